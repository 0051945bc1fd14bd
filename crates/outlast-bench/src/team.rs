//! Threads that start together, each on its own core if there are enough.

use crate::usage::ThreadUsage;
use crate::{Failure, Fallible};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::{Barrier, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Returns the cores that this process may use.
pub fn cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Pins the calling thread to a core, if one is given.
pub fn pin(core: Option<usize>) {
    if let Some(core) = core {
        let mut set = CpuSet::new();
        set.set(core);
        // If the system refuses, the results are worse but not wrong.
        let _ = sched_setaffinity(None, &set);
    }
}

/// Returns the share of `total` that belongs to one of `threads`: its first number and its size.
pub fn share(total: u64, threads: usize, thread: usize) -> (u64, u64) {
    let (threads, thread) = (threads as u64, thread as u64);
    let first = total * thread / threads;
    (first, total * (thread + 1) / threads - first)
}

/// The time that a team took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Taken {
    /// From the start of the first thread to the end of the last one.
    pub time: Duration,
    /// Processor time of all threads together, in nanoseconds. This stays meaningful if something
    /// else runs at the same time.
    pub cpu_ns: u64,
}

/// Runs `work` in `threads` threads. Returns their results, and the time that they took.
///
/// All threads are created and pinned before any of them begins to work.
///
/// # Errors
/// The first error of a thread, if any. A panic counts as an error.
pub fn run<T: Send>(
    threads: usize,
    work: impl Fn(usize) -> Fallible<T> + Sync,
) -> Fallible<(Vec<T>, Taken)> {
    let cores = cores();
    let pinned = threads <= cores.len();
    let barrier = Barrier::new(threads);
    // No thread waits at the barrier before all of them exist. If one cannot be created, the others
    // end, because they would wait for it forever.
    let complete = RwLock::new(false);
    let one = |thread: usize| {
        if !*complete.read().unwrap_or_else(PoisonError::into_inner) {
            return None;
        }
        pin(pinned.then(|| cores[thread]));
        barrier.wait();
        let (usage, start) = (ThreadUsage::now(), Instant::now());
        let result = work(thread);
        let end = Instant::now();
        Some((result, start, end, ThreadUsage::now().since(&usage).cpu_ns))
    };
    let ends: Vec<_> = std::thread::scope(|scope| {
        let one = &one;
        let mut gate = complete.write().unwrap_or_else(PoisonError::into_inner);
        let spawn = |t| std::thread::Builder::new().spawn_scoped(scope, move || one(t));
        let handles = (0..threads).map(spawn).collect::<Result<Vec<_>, _>>();
        let handles = handles.map_err(|e| format!("{threads} threads: {e}"))?;
        *gate = true;
        drop(gate);
        Fallible::Ok(handles.into_iter().map(std::thread::ScopedJoinHandle::join).collect())
    })?;
    let mut results = Vec::new();
    let mut span: Option<(Instant, Instant)> = None;
    let mut cpu_ns = 0;
    for end in ends {
        let end = end.map_err(|_| Failure::from("a worker panicked"))?;
        let Some((result, start, stop, cpu)) = end else { continue };
        results.push(result?);
        cpu_ns += cpu;
        span = Some(span.map_or((start, stop), |(a, b)| (a.min(start), b.max(stop))));
    }
    let time = span.map_or(Duration::ZERO, |(start, stop)| stop - start);
    Ok((results, Taken { time, cpu_ns }))
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
