//! The script: which operations are done, and in which order. It depends only on the number of
//! items and threads, so each worker can continue where the last one stopped.
//!
//! Every item has a fate, a list of operations. A thread works through its own items in chunks. It
//! returns to an item once in each of the following chunks until the item's fate is complete. So
//! inserts, updates and removals are always mixed.

use super::random::{Random, mix};
use serde::{Deserialize, Serialize};

/// Number of items whose first operation falls into one chunk.
const CHUNK_ITEMS: usize = 512;

/// A kind of operation. The numbers are stored in journals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Kind {
    Insert = 1,
    Update = 2,
    Remove = 3,
}

use Kind::{Insert, Remove, Update};

/// The fates. All begin with an insert. Two of the twelve end with a removal, so one item in six
/// has no record at the end.
const FATES: [&[Kind]; 12] = [
    &[Insert],
    &[Insert],
    &[Insert],
    &[Insert],
    &[Insert, Update],
    &[Insert, Update],
    &[Insert, Update],
    &[Insert, Update, Update],
    &[Insert, Update, Remove, Insert],
    &[Insert, Remove, Insert],
    &[Insert, Remove],
    &[Insert, Update, Remove],
];

/// The fate of an item.
pub(super) fn fate(item: u32) -> &'static [Kind] {
    FATES[(mix(u64::from(item) + 1) % FATES.len() as u64) as usize]
}

/// Returns whether the item has a record at the end.
pub(super) fn survives(item: u32) -> bool {
    fate(item).last() != Some(&Remove)
}

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) kind: Kind,
    pub(super) item: u32,
    /// How many operations the item has had, including this one.
    pub(super) revision: u32,
}

/// The parameters that the parent passes to the workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) items: u32,
    pub(super) threads: u32,
    pub(super) scheme: String,
    /// Whether the pool has a journal.
    pub(super) journal: bool,
}

impl Plan {
    /// Returns the script of a thread, in chunks.
    pub(super) fn script(&self, thread: u32) -> Vec<Vec<Step>> {
        let own: Vec<u32> = (thread..self.items).step_by(self.threads as usize).collect();
        let mut chunks: Vec<Vec<Step>> = Vec::new();
        for (number, items) in own.chunks(CHUNK_ITEMS).enumerate() {
            for &item in items {
                for (stage, &kind) in fate(item).iter().enumerate() {
                    if chunks.len() <= number + stage {
                        chunks.resize_with(number + stage + 1, Vec::new);
                    }
                    let revision = stage as u32 + 1;
                    chunks[number + stage].push(Step { kind, item, revision });
                }
            }
        }
        for (number, chunk) in chunks.iter_mut().enumerate() {
            shuffle(chunk, u64::from(thread) << 32 | number as u64);
        }
        chunks.retain(|chunk| !chunk.is_empty());
        chunks
    }

    /// Number of operations of a thread.
    pub(super) fn len_of(&self, thread: u32) -> u64 {
        let own = (thread..self.items).step_by(self.threads as usize);
        own.map(|item| fate(item).len() as u64).sum()
    }

    /// Number of operations of all threads.
    pub(super) fn len(&self) -> u64 {
        (0..self.threads).map(|thread| self.len_of(thread)).sum()
    }
}

/// Shuffles the steps of a chunk. No chunk has two steps of one item, so any order will do.
fn shuffle(steps: &mut [Step], seed: u64) {
    let mut random = Random::new(seed);
    for i in (1..steps.len()).rev() {
        steps.swap(i, random.below(i as u64 + 1) as usize);
    }
}

/// Returns how many items are needed to have `records` records at the end.
pub(super) fn items_for(records: u32) -> u32 {
    let mut left = records;
    let mut item = 0;
    while left > 0 {
        left -= u32::from(survives(item));
        item += 1;
    }
    item
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn plan(items: u32, threads: u32) -> Plan {
        Plan { items, threads, scheme: "dash-eh".into(), journal: false }
    }

    fn survivors(items: u32) -> u32 {
        (0..items).filter(|&item| survives(item)).count() as u32
    }

    #[test]
    fn scripts_fulfil_each_fate_once_and_in_order() {
        for threads in [1, 2, 3, 16] {
            let plan = plan(3000, threads);
            let mut done: HashMap<u32, Vec<Kind>> = HashMap::new();
            let mut steps = 0;
            for thread in 0..threads {
                for step in plan.script(thread).concat() {
                    let kinds = done.entry(step.item).or_default();
                    kinds.push(step.kind);
                    assert_eq!(kinds.len(), step.revision as usize);
                    assert_eq!(step.item % threads, thread);
                    steps += 1;
                }
            }
            assert_eq!(steps, plan.len());
            assert!((0..3000).all(|item| done[&item] == fate(item)));
        }
    }

    #[test]
    fn fates_are_possible() {
        for fate in FATES {
            let mut there = false;
            for kind in fate {
                assert_eq!(there, *kind != Insert, "{fate:?}");
                there = *kind != Remove;
            }
        }
    }

    #[test]
    fn all_kinds_are_mixed_in_most_chunks() {
        let script = plan(20_000, 2).script(1);
        for chunk in &script[2..script.len() - 4] {
            for kind in [Insert, Update, Remove] {
                assert!(chunk.iter().filter(|s| s.kind == kind).count() > 10);
            }
        }
    }

    #[test]
    fn enough_items_are_planned() {
        for records in [1, 100, 20_000] {
            let items = items_for(records);
            assert_eq!(survivors(items), records);
            assert!(survivors(items - 1) < records);
        }
    }
}
