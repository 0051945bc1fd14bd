//! A plain skip list (Pugh, CACM 1990), in DRAM or in persistent memory.
//!
//! Compared with in PhaST (2.2, Figure 2b: the time to write it in DRAM and in persistent memory;
//! Table 3: its size). [`super::nv_skip_list`] has one in DRAM as its index.
//!
//! A node has a key, a value, and a link for each of its levels; a node of one level has the next
//! one with a probability of one half. An insert makes the node durable, then its link in the
//! lowest level, then the others: a flush and a fence for each level. A removal unlinks it from
//! the highest level down.
//!
//! # Simplified
//!
//! - One reader-writer lock for the whole list.
//! - "In DRAM" is the same code with memory whose flushes and fences are empty. A recorder does not
//!   see it.

use crate::shared::{Arena, LINE, Locks, RwLock};
use crate::{Full, Options, Peer, Promises};
use outlast::internals::pmem::Seam;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most levels of a node.
const LEVELS: usize = 24;

/// Words of a node. The links follow, that of the lowest level first.
const KEY: u64 = 0;
const VALUE: u64 = 8;
const HEIGHT: u64 = 16;
const LINKS: u64 = 24;

/// The list.
pub(super) struct SkipList<S> {
    arena: Arena<S>,
    lock: u64,
    locks: Locks,
    /// A node without a record, of all levels.
    head: u64,
    /// The state of the generator of heights.
    heights: AtomicU64,
}

fn node_bytes(height: usize) -> u64 {
    LINKS + height as u64 * 8
}

impl<S: Seam> SkipList<S> {
    pub(super) fn create(arena: Arena<S>, options: &Options) -> Result<Self, Full> {
        let (lock, head) = (arena.alloc(LINE)?, arena.alloc(node_bytes(LEVELS))?);
        arena.persist(head, node_bytes(LEVELS));
        Ok(SkipList { arena, lock, locks: options.locks, head, heights: AtomicU64::new(1) })
    }

    fn lock(&self) -> RwLock<'_, S> {
        RwLock::at(&self.arena, self.lock, self.locks)
    }

    fn link(node: u64, level: usize) -> u64 {
        node + LINKS + level as u64 * 8
    }

    /// Returns for each level the last node whose key is less, or the head.
    fn before(&self, key: u64) -> [u64; LEVELS] {
        let (mut before, mut node) = ([self.head; LEVELS], self.head);
        for level in (0..LEVELS).rev() {
            loop {
                let next = self.arena.load(Self::link(node, level));
                if next == 0 || self.arena.load(next + KEY) >= key {
                    break;
                }
                node = next;
            }
            before[level] = node;
        }
        before
    }

    /// Returns the first node with this key or a greater one, after the nodes before it.
    fn at_or_after(&self, before: &[u64; LEVELS]) -> Option<u64> {
        let node = self.arena.load(Self::link(before[0], 0));
        (node != 0).then_some(node)
    }

    fn find(&self, before: &[u64; LEVELS], key: u64) -> Option<u64> {
        self.at_or_after(before).filter(|&node| self.arena.load(node + KEY) == key)
    }

    fn record(&self, node: u64) -> (u64, u64) {
        (self.arena.load(node + KEY), self.arena.load(node + VALUE))
    }

    /// Draws a height: each further level with a probability of one half.
    fn height(&self) -> usize {
        let mut x =
            self.heights.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let height = 1 + (x >> 8).trailing_ones() as usize;
        height.min(LEVELS)
    }

    /// Returns the record with the greatest key that is not greater than this one.
    pub(super) fn floor(&self, key: u64) -> Option<(u64, u64)> {
        let _guard = self.lock().read();
        let before = self.before(key);
        let node = self.find(&before, key).unwrap_or(before[0]);
        (node != self.head).then(|| self.record(node))
    }
}

impl<S: Seam> Peer for SkipList<S> {
    fn promises(&self) -> Promises {
        Promises::ORDERED
    }

    fn get(&self, key: u64) -> Option<u64> {
        let _guard = self.lock().read();
        self.find(&self.before(key), key).map(|node| self.arena.load(node + VALUE))
    }

    fn insert(&self, key: u64, value: u64) -> Result<bool, Full> {
        let _guard = self.lock().write();
        let before = self.before(key);
        if self.find(&before, key).is_some() {
            return Ok(false);
        }
        let (arena, height) = (&self.arena, self.height());
        let node = arena.alloc_aligned(node_bytes(height), 8)?;
        arena.store(node + KEY, key);
        arena.store(node + VALUE, value);
        arena.store(node + HEIGHT, height as u64);
        for (level, &before) in before.iter().enumerate().take(height) {
            arena.store(Self::link(node, level), arena.load(Self::link(before, level)));
        }
        arena.persist(node, node_bytes(height));
        for (level, &before) in before.iter().enumerate().take(height) {
            arena.store_durably(Self::link(before, level), node);
        }
        Ok(true)
    }

    fn update(&self, key: u64, value: u64) -> Result<bool, Full> {
        let _guard = self.lock().write();
        let found = self.find(&self.before(key), key);
        Ok(found.map(|node| self.arena.store_durably(node + VALUE, value)).is_some())
    }

    fn remove(&self, key: u64) -> bool {
        let _guard = self.lock().write();
        let before = self.before(key);
        let Some(node) = self.find(&before, key) else { return false };
        let height = self.arena.load(node + HEIGHT) as usize;
        for level in (0..height).rev() {
            let next = self.arena.load(Self::link(node, level));
            self.arena.store_durably(Self::link(before[level], level), next);
        }
        self.arena.free(node, node_bytes(height));
        true
    }

    fn scan(&self, from: u64, records: usize, found: &mut Vec<(u64, u64)>) {
        let _guard = self.lock().read();
        let first = self.at_or_after(&self.before(from));
        let nodes = std::iter::successors(first, |&node| {
            Some(self.arena.load(Self::link(node, 0))).filter(|&next| next != 0)
        });
        found.extend(nodes.take(records).map(|node| self.record(node)));
    }

    fn growths(&self) -> u64 {
        0
    }

    fn bytes(&self) -> u64 {
        self.arena.allocated()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast::internals::pmem::{FlushMode, Real};

    fn list() -> SkipList<Real> {
        let arena = Arena::new(Real::new(FlushMode::None), 64 << 20);
        SkipList::create(arena, &Options::default()).unwrap()
    }

    #[test]
    fn half_of_the_nodes_have_a_further_level() {
        let list = list();
        let mut counts = [0u32; LEVELS + 1];
        (0..100_000).for_each(|_| counts[list.height()] += 1);
        for (height, &count) in counts.iter().enumerate().take(6).skip(1) {
            let expected = 100_000 >> height;
            assert!(count.abs_diff(expected) < expected / 10 + 100, "{height}: {count}");
        }
        // Two links a node on average, so 40 bytes.
        (1..=10_000).for_each(|key| assert_eq!(list.insert(key, 1), Ok(true)));
        let bytes = list.bytes() as f64 / 10_000.0;
        assert!((39.0..41.5).contains(&bytes), "{bytes}");
    }

    #[test]
    fn the_floor_is_the_key_itself_or_the_one_before() {
        let list = list();
        assert_eq!(list.floor(5), None);
        for key in [10, 20] {
            list.insert(key, !key).unwrap();
        }
        let expected = [(9, None), (10, Some(10)), (19, Some(10)), (20, Some(20)), (99, Some(20))];
        for (key, floor) in expected {
            assert_eq!(list.floor(key), floor.map(|key: u64| (key, !key)));
        }
    }
}
