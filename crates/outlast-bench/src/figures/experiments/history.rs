//! Histories of threads that use a few keys at the same time: are they linearizable, are keys
//! duplicated or missed?
//!
//! Linearizability is local (Herlihy and Wing): a history is linearizable if the history of each key
//! is. So each key's operations are checked on their own, by a search with memory (Wing and Gong;
//! Lowe).

use crate::figures::subject::{Memory, System};
use crate::figures::turns::value;
use crate::{Fallible, team};
use outlast_peers::workloads::draw::Draw;
use outlast_peers::workloads::keys::Spread;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// What an operation did, and what it returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Did {
    Got(Option<u64>),
    Inserted(u64, bool),
    Removed(bool),
}

#[derive(Debug, Clone, Copy)]
struct Operation {
    did: Did,
    begin_ns: u64,
    end_ns: u64,
}

impl Did {
    /// Returns the value after the operation, or `None` if it cannot have happened.
    fn apply(self, before: Option<u64>) -> Option<Option<u64>> {
        match self {
            Did::Got(found) => (found == before).then_some(before),
            Did::Inserted(value, true) => before.is_none().then_some(Some(value)),
            Did::Inserted(_, false) => before.is_some().then_some(before),
            Did::Removed(true) => before.is_some().then_some(None),
            Did::Removed(false) => before.is_none().then_some(None),
        }
    }
}

/// Whether the operations of one key, which is absent at first, have an order that explains them all.
/// At most 128 operations are looked at.
fn is_linearizable(operations: &[Operation]) -> bool {
    let operations = &operations[..operations.len().min(128)];
    let all = if operations.len() == 128 { u128::MAX } else { (1 << operations.len()) - 1 };
    let mut seen = HashSet::new();
    let mut open = vec![(0u128, None)];
    while let Some((done, state)) = open.pop() {
        if done == all {
            return true;
        }
        let left = || operations.iter().enumerate().filter(|(i, _)| done >> i & 1 == 0);
        let first_end = left().map(|(_, operation)| operation.end_ns).min().unwrap_or(u64::MAX);
        for (i, operation) in left().filter(|(_, operation)| operation.begin_ns <= first_end) {
            if let Some(after) = operation.did.apply(state)
                && seen.insert((done | 1 << i, after))
            {
                open.push((done | 1 << i, after));
            }
        }
    }
    false
}

/// Runs half lookups, a quarter inserts and a quarter removals on a small table that grows, as in the
/// thesis (6.3). Returns the number of keys whose history is not linearizable.
///
/// # Errors
/// If an operation fails.
pub fn violations(
    system: &System,
    threads: usize,
    operations: u64,
    keys: u64,
    seed: u64,
) -> Fallible<u64> {
    let subject = system.create(&Memory::FLUSHED, keys * 4, 128)?;
    let began = Instant::now();
    let now = || began.elapsed().as_nanos() as u64;
    let (logs, _) = team::run(threads, |thread| {
        let (first, count) = team::share(operations, threads, thread);
        let mut draw = Draw::new(seed ^ (thread as u64) << 32);
        let mut log = Vec::with_capacity(count as usize);
        for number in first..first + count {
            let key = Spread::Uniform.key(draw.below(keys));
            let kind = draw.below(4);
            let begin_ns = now();
            let did = match kind {
                // Each value is stored once, so a lookup names its insert.
                2 => Did::Inserted(number + 1, subject.insert(key, number + 1)?),
                3 => Did::Removed(subject.remove(key)?),
                _ => Did::Got(subject.get(key)?),
            };
            log.push((key, Operation { did, begin_ns, end_ns: now() }));
            if thread == 0 && number % 16 == 0 {
                subject.step()?;
            }
        }
        Ok(log)
    })?;
    let mut by_key: HashMap<u64, Vec<Operation>> = HashMap::new();
    for (key, operation) in logs.into_iter().flatten() {
        by_key.entry(key).or_default().push(operation);
    }
    let bad = by_key.values_mut().filter_map(|operations| {
        operations.sort_by_key(|operation| operation.begin_ns);
        (!is_linearizable(operations)).then_some(())
    });
    Ok(bad.count() as u64)
}

/// What threads find that insert the same keys at about the same time, while the table grows.
#[derive(Debug, Clone, Copy)]
pub struct Races {
    /// Keys that more than one insert reported as new.
    pub duplicated: u64,
    /// Lookups that did not find a key after its insert had returned.
    pub missed: u64,
}

/// Runs such threads: each inserts all keys, in the same order, and looks up keys that are there for
/// certain.
///
/// # Errors
/// If an operation fails.
pub fn races(system: &System, threads: usize, keys: u64, seed: u64) -> Fallible<Races> {
    let subject = system.create(&Memory::FLUSHED, keys * 2, 64)?;
    let won: Vec<AtomicU64> = (0..keys).map(|_| AtomicU64::new(0)).collect();
    let (missed, _) = team::run(threads, |thread| {
        let mut draw = Draw::new(seed ^ thread as u64);
        let mut missed = 0u64;
        for number in 0..keys {
            let key = Spread::Uniform.key(number);
            if subject.insert(key, value(key))? {
                won[number as usize].fetch_add(1, Ordering::Relaxed);
            }
            // This thread has inserted it, or was told that it is there.
            let earlier = Spread::Uniform.key(draw.below(number + 1));
            missed += u64::from(subject.get(earlier)?.is_none());
            if thread == 0 {
                subject.step()?;
            }
        }
        Ok(missed)
    })?;
    let duplicated = won.iter().filter(|won| won.load(Ordering::Relaxed) > 1).count() as u64;
    Ok(Races { duplicated, missed: missed.iter().sum() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(did: Did, begin_ns: u64, end_ns: u64) -> Operation {
        Operation { did, begin_ns, end_ns }
    }

    #[test]
    fn operations_that_overlap_may_take_either_order() {
        let insert = operation(Did::Inserted(7, true), 0, 10);
        let finds = |found, begin, end| operation(Did::Got(found), begin, end);
        assert!(is_linearizable(&[insert, finds(Some(7), 5, 8), finds(None, 4, 6)]));
        assert!(is_linearizable(&[insert, finds(None, 5, 20)]));
        assert!(!is_linearizable(&[insert, finds(None, 11, 20)]), "a missed key");
        assert!(!is_linearizable(&[insert, finds(Some(7), 2, 3), finds(None, 4, 6)]), "went back");
        let second = operation(Did::Inserted(8, true), 5, 15);
        assert!(!is_linearizable(&[insert, second]), "a duplicated key");
        let removed = operation(Did::Removed(true), 1, 30);
        assert!(is_linearizable(&[insert, removed, second]));
    }

    #[test]
    fn one_thread_is_linearizable_and_a_table_without_a_check_duplicates() {
        let system = System::named("Dash-EH");
        assert_eq!(violations(&system, 1, 2_000, 100, 1).unwrap(), 0);
        let races = |name| super::races(&System::named(name), 2, 500, 1).unwrap();
        assert!(races("CCEH without the check").duplicated > 400);
        assert_eq!(races("Dash-EH").duplicated, 0);
    }
}
