//! Histories of threads that use a few keys at the same time: are they linearizable, are keys
//! duplicated or missed?
//!
//! Linearizability is local (Herlihy and Wing): a history is linearizable if the history of each key
//! is. So each key's operations are checked on their own, by just-in-time linearization (Lowe): the
//! checker follows all states that the key can be in, and an operation takes effect at the latest when
//! it returns. So the work grows with the length of a history, not with the number of its orders.

use crate::figures::subject::{Memory, System};
use crate::figures::turns::value;
use crate::{Fallible, team};
use outlast_peers::workloads::draw::Draw;
use outlast_peers::workloads::keys::Spread;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// What an operation did, and what it returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Did {
    Got(Option<u64>),
    Inserted(u64, bool),
    Removed(bool),
}

/// An operation, with the stamps of its call and of its return.
#[derive(Debug, Clone, Copy)]
struct Operation {
    did: Did,
    begin: u64,
    end: u64,
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

/// A value of the key, and which of the operations in flight have taken effect, a bit each.
type State = (Option<u64>, u64);

/// Whether the operations of one key, which is absent at first, have an order that explains them all.
///
/// # Panics
/// If more than 64 of them are in flight at a time.
fn is_linearizable(operations: &[Operation]) -> bool {
    // Stamp, whether it is that of the return, and the operation.
    let mut moments: Vec<(u64, bool, usize)> = operations
        .iter()
        .enumerate()
        .flat_map(|(i, operation)| [(operation.begin, false, i), (operation.end, true, i)])
        .collect();
    moments.sort_unstable();
    let mut in_flight: Vec<Option<usize>> = Vec::new();
    let mut states: Vec<State> = vec![(None, 0)];
    for (_, returns, operation) in moments {
        if !returns {
            match in_flight.iter_mut().find(|place| place.is_none()) {
                Some(place) => *place = Some(operation),
                None => in_flight.push(Some(operation)),
            }
            assert!(in_flight.len() <= 64, "at most 64 operations of a key in flight");
            continue;
        }
        let Some(place) = in_flight.iter().position(|place| *place == Some(operation)) else {
            return false; // It returned before it was called.
        };
        let effective = 1 << place;
        let (mut seen, mut after, mut next) = (states.clone(), Vec::new(), 0);
        while let Some(&(value, done)) = seen.get(next) {
            next += 1;
            if done & effective != 0 {
                after.push((value, done & !effective));
                continue;
            }
            for (bit, other) in in_flight.iter().enumerate() {
                let Some(other) = other.filter(|_| done >> bit & 1 == 0) else { continue };
                let Some(value) = operations[other].did.apply(value) else { continue };
                let state = (value, done | 1 << bit);
                if !seen.contains(&state) {
                    seen.push(state);
                }
            }
        }
        if after.is_empty() {
            return false;
        }
        states = after;
        in_flight[place] = None;
    }
    true
}

/// What the check of a history has found.
#[derive(Debug, Clone, Copy)]
pub struct Checked {
    /// Operations.
    pub operations: u64,
    /// Keys whose history is not linearizable.
    pub bad_keys: u64,
    /// Seconds that the check took.
    pub seconds: f64,
}

/// Runs half lookups, a quarter inserts and a quarter removals on a small table that grows, as in the
/// thesis (6.3), and checks the history.
///
/// # Errors
/// If an operation fails.
pub fn check(
    system: &System,
    memory: &Memory,
    threads: usize,
    (operations, keys): (u64, u64),
    seed: u64,
) -> Fallible<Checked> {
    let subject = system.create(memory, keys * 4, 128)?;
    let clock = AtomicU64::new(0);
    // SeqCst: a thread draws a stamp after all its earlier accesses are visible to others, and before its
    // later ones. The processor's clock can be read while a store that it follows still waits in the store
    // buffer, so that an operation seems to have ended before others can see its effect.
    let stamp = || clock.fetch_add(1, Ordering::SeqCst);
    let (logs, _) = team::run(threads, |thread| {
        let (first, count) = team::share(operations, threads, thread);
        let mut draw = Draw::new(seed ^ (thread as u64) << 32);
        let mut log = Vec::with_capacity(count as usize);
        for number in first..first + count {
            let key_number = draw.below(keys);
            let key = Spread::Uniform.key(key_number);
            let kind = draw.below(4);
            let begin = stamp();
            let did = match kind {
                // Each value is stored once, so a lookup names its insert.
                2 => Did::Inserted(number + 1, subject.insert(key, number + 1)?),
                3 => Did::Removed(subject.remove(key)?),
                _ => Did::Got(subject.get(key)?),
            };
            log.push((key_number, Operation { did, begin, end: stamp() }));
            if thread == 0 && number % 16 == 0 {
                subject.step()?;
            }
        }
        Ok(log)
    })?;
    let start = Instant::now();
    let mut by_key = vec![Vec::new(); keys as usize];
    for (key, operation) in logs.into_iter().flatten() {
        by_key[key as usize].push(operation);
    }
    let bad_keys = by_key.iter().filter(|operations| !is_linearizable(operations)).count() as u64;
    Ok(Checked { operations, bad_keys, seconds: start.elapsed().as_secs_f64() })
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
pub fn races(
    system: &System,
    memory: &Memory,
    threads: usize,
    keys: u64,
    seed: u64,
) -> Fallible<Races> {
    let subject = system.create(memory, keys * 2, 64)?;
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

    fn operation(did: Did, begin: u64, end: u64) -> Operation {
        Operation { did, begin, end }
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
    fn a_fault_is_found_after_any_number_of_operations() {
        let mut operations: Vec<Operation> = (0..1000)
            .flat_map(|i| {
                let (at, removes) = (i * 10, operation(Did::Removed(true), i * 10 + 5, i * 10 + 9));
                let inserts = operation(Did::Inserted(i, true), at, at + 7);
                [inserts, operation(Did::Got(Some(i)), at + 1, at + 8), removes]
            })
            .collect();
        assert!(is_linearizable(&operations));
        operations.push(operation(Did::Got(Some(999)), 10_000, 10_001));
        assert!(!is_linearizable(&operations), "it was removed before");
    }

    #[test]
    fn one_thread_is_linearizable_and_a_table_without_a_check_duplicates() {
        let system = System::named("Dash-EH");
        let checked = check(&system, &Memory::flushed(), 1, (2_000, 100), 1).unwrap();
        assert_eq!((checked.operations, checked.bad_keys), (2_000, 0));
        let races =
            |name| super::races(&System::named(name), &Memory::flushed(), 2, 500, 1).unwrap();
        assert!(races("CCEH without the check").duplicated > 400);
        assert_eq!(races("Dash-EH").duplicated, 0);
    }
}
