//! What a medium has promised to keep of the operations of one life.
//!
//! A journal may take operations back, but only the newest ones:
//!
//! 1. Once a thread has waited, every operation that had returned when it began to wait is durable,
//!    whichever thread did it.
//! 2. An operation that returned [long enough](Promises::pulse) ago is durable, even if nobody
//!    waited.
//! 3. The operations found are those of one moment. None of them is there without all operations,
//!    of any thread, that had returned before it began.
//!
//! The guest's reports have an order, so each of them also tells which operations had returned by
//! then.

use super::Totals;
use crate::state::{Checked, Fault, ensure};
use crate::vm::script::{INTERVAL, batch};
use crate::vm::wire::Pulse;

/// What the guest's scheduler may add to the time until something is durable, in microseconds,
/// besides the gaps that are seen between pulses.
const SCHEDULING_MICROS: u64 = 100_000;

/// Numbers of operations, by thread.
type Numbers = Vec<u64>;

/// The account of one life; see the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Promises {
    /// What must be there.
    kept: Numbers,
    /// What threads have waited for.
    waited: Numbers,
    /// What must be there because it is old enough.
    aged: Numbers,
    /// What had returned when each thread began to wait, if it waits.
    waiting: Vec<Option<Numbers>>,
    /// For each thread and each of its batches, what had returned when the batch began.
    begun: Vec<Vec<Numbers>>,
    /// The time of each pulse and what had returned by then.
    pulses: Vec<(u64, Numbers)>,
    /// How many of the pulses are old enough.
    old: usize,
    last: Pulse,
}

fn raise(numbers: &mut Numbers, least: &[u64]) {
    for (number, least) in numbers.iter_mut().zip(least) {
        *number = (*number).max(*least);
    }
}

impl Promises {
    pub(super) fn new(threads: usize) -> Promises {
        let none = vec![0; threads];
        Promises {
            kept: none.clone(),
            waited: none.clone(),
            aged: none.clone(),
            waiting: vec![None; threads],
            begun: vec![vec![none]; threads],
            pulses: Vec::new(),
            old: 0,
            last: Pulse::default(),
        }
    }

    /// Returns how many operations of a thread must be there.
    pub(super) fn kept(&self, thread: u64) -> u64 {
        self.kept[thread as usize]
    }

    /// Notes that everything that has `returned` is durable.
    pub(super) fn all(&mut self, returned: &[u64]) {
        raise(&mut self.kept, returned);
    }

    /// Notes that a thread begins a batch.
    pub(super) fn begins(&mut self, thread: u64, returned: &[u64]) {
        self.begun[thread as usize].push(returned.to_vec());
    }

    /// Notes that a thread begins to wait.
    pub(super) fn waits(&mut self, thread: u64, returned: &[u64]) -> Checked {
        let waiting = self.waiting.get_mut(thread as usize);
        let waiting = waiting.ok_or_else(|| Fault(format!("thread {thread} waits")))?;
        ensure(waiting.is_none(), || format!("thread {thread} waits twice"))?;
        *waiting = Some(returned.to_vec());
        Ok(())
    }

    /// Notes that a thread has waited.
    pub(super) fn waited(&mut self, thread: u64) -> Checked {
        let waiting = self.waiting.get_mut(thread as usize).and_then(Option::take);
        let waiting = waiting.ok_or_else(|| Fault(format!("thread {thread} did not wait")))?;
        raise(&mut self.kept, &waiting);
        raise(&mut self.waited, &waiting);
        Ok(())
    }

    /// Notes a pulse, and what is old enough by then.
    ///
    /// An operation that returns just after a group commit has begun waits for that commit, for the
    /// interval, and for its own commit. Its wait may be longer by the longest pauses of a
    /// processor and by the scheduler's delays, but by no more.
    pub(super) fn pulse(&mut self, pulse: Pulse, returned: &[u64]) -> Checked {
        let in_order = pulse.micros >= self.last.micros;
        ensure(in_order, || format!("a pulse at {} µs, too late", pulse.micros))?;
        self.last = pulse;
        self.pulses.push((pulse.micros, returned.to_vec()));
        let age = INTERVAL.as_micros() as u64
            + 2 * (pulse.commit_micros + pulse.gap_micros)
            + SCHEDULING_MICROS;
        while let Some((micros, returned)) = self.pulses.get(self.old)
            && micros + age <= pulse.micros
        {
            raise(&mut self.kept, returned);
            raise(&mut self.aged, returned);
            self.old += 1;
        }
        Ok(())
    }

    /// Finds a moment at which the pool had the observed contents. A moment is, for each thread,
    /// the number of its operations done by then. Returns the earliest such moment, or a finding.
    pub(super) fn one_moment(&self, seen: &[Vec<u64>]) -> Result<Numbers, String> {
        let mut found: Numbers = seen.iter().map(|numbers| numbers[0]).collect();
        // The more operations of one thread are there, the more of the other threads' operations
        // must be there too. So raise the numbers that are too low until none is.
        loop {
            let before = found.clone();
            for thread in 0..found.len() {
                let Some(last) = found[thread].checked_sub(1) else { continue };
                let number = last / batch(thread as u64);
                // Batches are not noted on media that keep whatever has returned.
                let Some(needed) = self.begun[thread].get(number as usize) else { continue };
                for (other, needed) in needed.iter().enumerate() {
                    let enough = seen[other].iter().find(|number| *number >= needed);
                    let enough = enough.ok_or_else(|| {
                        format!(
                            "torn: operation {} of thread {thread} is there, and operation \
                             {needed} of thread {other} is not, which had returned before",
                            last + 1
                        )
                    })?;
                    found[other] = found[other].max(*enough);
                }
            }
            if found == before {
                return Ok(found);
            }
        }
    }

    /// Returns a lower bound on the age, in microseconds at the last pulse, of the oldest operation
    /// that had returned and is not in `found`. Also returns whether that is more than an interval
    /// plus the longest commit.
    pub(super) fn oldest(&self, found: &[u64]) -> (u64, bool) {
        let missed = |(_, returned): &&(u64, Numbers)| {
            returned.iter().zip(found).any(|(returned, found)| returned > found)
        };
        let age = self.pulses.iter().find(missed).map_or(0, |(at, _)| self.last.micros - at);
        (age, age > INTERVAL.as_micros() as u64 + self.last.commit_micros)
    }

    /// Adds what this life has done to the totals.
    pub(super) fn total(&self, totals: &mut Totals) {
        totals.waited += self.waited.iter().sum::<u64>();
        totals.aged += self.aged.iter().sum::<u64>();
        totals.commit_micros = totals.commit_micros.max(self.last.commit_micros);
        totals.gap_micros = totals.gap_micros.max(self.last.gap_micros);
        totals.checkpoints += self.last.checkpoints;
    }
}
