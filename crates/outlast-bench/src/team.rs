//! Threads that begin together, each on a core of its own where there are enough.

use crate::{Failure, Fallible};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// The cores that this process may use.
pub fn cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Keeps the calling thread on a core; without one, where it is.
pub fn pin(core: Option<usize>) {
    if let Some(core) = core {
        let mut set = CpuSet::new();
        set.set(core);
        // Where it is refused, the figures are worse and not wrong.
        let _ = sched_setaffinity(None, &set);
    }
}

/// The part of `total` that falls to one of `threads`: its first number and how many.
pub fn share(total: u64, threads: usize, thread: usize) -> (u64, u64) {
    let (threads, thread) = (threads as u64, thread as u64);
    let first = total * thread / threads;
    (first, total * (thread + 1) / threads - first)
}

/// Runs `work` in so many threads and hands out what each returned, and the time from when
/// the first began to when the last ended.
///
/// Threads are made and pinned before any of them begins.
///
/// # Errors
/// The first thread's error, if any; a panic is one.
pub fn run<T: Send>(
    threads: usize,
    work: impl Fn(usize) -> Fallible<T> + Sync,
) -> Fallible<(Vec<T>, Duration)> {
    let cores = cores();
    let pinned = threads <= cores.len();
    let barrier = Barrier::new(threads);
    let one = |thread: usize| {
        pin(pinned.then(|| cores[thread]));
        barrier.wait();
        let start = Instant::now();
        let result = work(thread);
        (result, start, Instant::now())
    };
    let ends: Vec<_> = std::thread::scope(|scope| {
        let one = &one;
        let handles: Vec<_> = (0..threads).map(|t| scope.spawn(move || one(t))).collect();
        handles.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    let mut results = Vec::new();
    let mut span: Option<(Instant, Instant)> = None;
    for end in ends {
        let (result, start, stop) = end.map_err(|_| Failure::from("a worker panicked"))?;
        results.push(result?);
        span = Some(span.map_or((start, stop), |(a, b)| (a.min(start), b.max(stop))));
    }
    let time = span.map_or(Duration::ZERO, |(start, stop)| stop - start);
    Ok((results, time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once() {
        for (total, threads) in [(10, 3), (1, 4), (7, 7), (100, 1)] {
            let mut next = 0;
            for thread in 0..threads {
                let (first, count) = share(total, threads, thread);
                assert_eq!(first, next);
                next += count;
            }
            assert_eq!(next, total);
        }
    }

    #[test]
    fn results_come_in_order_and_errors_come_out() {
        let (results, _) = run(3, Ok).unwrap();
        assert_eq!(results, [0, 1, 2]);
        assert!(run(2, |t| if t == 1 { Err("no".into()) } else { Ok(()) }).is_err());
        assert!(
            run(2, |t| {
                assert_ne!(t, 1, "on purpose");
                Ok(())
            })
            .is_err()
        );
    }
}
