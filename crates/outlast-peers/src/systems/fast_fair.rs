//! FAST-FAIR: a B+-tree with failure-atomic shifts (Hwang et al., FAST 2018).
//!
//! Compared with in PhaST (5.1 to 5.4), with a fanout of 30.
//!
//! # Structure
//!
//! Nodes of 512 bytes: a header of four words and 30 sorted entries of key and child (or value), of
//! which one stays empty as the end mark. Every node links to its right sibling.
//!
//! An insert shifts the larger entries to the right, one by one, and flushes each line once it is
//! left (FAST). A removal shifts them to the left. A split copies the upper half to a new sibling,
//! links it, cuts the upper half off, and then inserts the separator into the parent (FAIR). Until
//! then, and for ever if a crash or lack of room prevents it, the sibling is found by its link.
//!
//! # Concurrency
//!
//! Writers lock a node, readers do not.
//!
//! # Simplified
//!
//! - Published readers recognise an entry that is being shifted by its value, which equals its left
//!   neighbour's. So neighbours with equal values are wrong there: a removal fails. Here, readers
//!   check a version in the node's header instead. The stores and flushes are the same.
//! - A leaf knows its lower bound, so that a reader can tell whether to go right even if the
//!   sibling is empty. Nodes are never merged.
//!
//! # Crash bugs that it keeps
//!
//! - A root split is not atomic; an insert through a sibling link that is not yet durable can be
//!   lost (Witcher 5, 6; PMRace).
//! - A lookup returns values that are not durable yet; locks survive a crash held.

use crate::shared::{Arena, LINE, Locks, RwLock, WriteGuard};
use crate::{Full, Options, Peer, Promises};
use outlast::internals::pmem::Seam;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a node.
const NODE: u64 = 512;
/// Entries of a node, with the one that stays empty.
const ENTRIES: u64 = 30;

/// Words of a node's header, after its lock.
/// The node's height above the leaves, and from bit 8 on its version, odd during a change.
const META: u64 = 8;
/// The child before the first entry, or a leaf's lower bound.
const LEFTMOST: u64 = 16;
const SIBLING: u64 = 24;

/// The tree.
pub(super) struct FastFair<S> {
    arena: Arena<S>,
    /// The place of the root node.
    root: u64,
    locks: Locks,
    splits: AtomicU64,
}

/// A node, locked for a change.
struct Locked<'a, S: Seam> {
    node: u64,
    _guard: WriteGuard<'a, S>,
}

/// Returns the place of an entry's key. Its value is the next word.
fn entry(node: u64, index: u64) -> u64 {
    node + 32 + index * 16
}

impl<S: Seam> FastFair<S> {
    pub(super) fn create(arena: Arena<S>, options: &Options) -> Result<Self, Full> {
        let root = arena.alloc(LINE)?;
        let leaf = arena.alloc_aligned(NODE, NODE)?;
        arena.persist(leaf, NODE);
        arena.store_durably(root, leaf);
        Ok(FastFair { arena, root, locks: options.locks, splits: AtomicU64::new(0) })
    }

    fn level(&self, node: u64) -> u64 {
        self.arena.load(node + META) & 0xff
    }

    /// Reads from a node until it is not changed meanwhile.
    fn read<T>(&self, node: u64, read: impl Fn() -> T) -> T {
        let mut turn = 0;
        loop {
            let before = self.arena.load_acquire(node + META);
            if before & 0x100 == 0 {
                let result = read();
                if self.arena.load(node + META) == before {
                    return result;
                }
            }
            self.arena.seam().wait(&mut turn);
        }
    }

    /// Changes a locked node, which readers notice.
    fn change<T>(&self, node: u64, change: impl FnOnce() -> T) -> T {
        let meta = self.arena.load(node + META);
        self.arena.store(node + META, meta + 0x100);
        // All stores of the change have Release, so they come after this one.
        let result = change();
        self.arena.store_release(node + META, meta + 0x200);
        result
    }

    /// The entry of a node: key and value. Loads with Acquire, so a check of the version after it
    /// comes after it.
    fn entry_at(&self, node: u64, index: u64) -> (u64, u64) {
        let at = entry(node, index);
        (self.arena.load_acquire(at), self.arena.load_acquire(at + 8))
    }

    /// The entries of a node in order.
    fn entries(&self, node: u64) -> impl Iterator<Item = (u64, u64)> {
        (0..ENTRIES).map(move |index| self.entry_at(node, index)).take_while(|&(key, _)| key != 0)
    }

    /// Returns the right sibling if the key belongs there or further right.
    fn right_for(&self, node: u64, key: u64) -> Option<u64> {
        let sibling = self.arena.load_acquire(node + SIBLING);
        if sibling == 0 {
            return None;
        }
        let first = match self.level(sibling) {
            0 => sibling + LEFTMOST,
            _ => entry(sibling, 0),
        };
        (self.arena.load_acquire(first) <= key).then_some(sibling)
    }

    /// Returns the child of an inner node for a key, or the sibling where the key belongs.
    fn step(&self, node: u64, key: u64) -> u64 {
        self.read(node, || {
            self.right_for(node, key).unwrap_or_else(|| {
                let children = self.entries(node).take_while(|&(first, _)| first <= key);
                let child = children.last().map(|(_, child)| child);
                child.unwrap_or_else(|| self.arena.load_acquire(node + LEFTMOST))
            })
        })
    }

    /// Descends to a node of a level that may hold the key; it may lie further right. Returns
    /// `None` if there is no such level.
    fn descend(&self, key: u64, level: u64) -> Option<u64> {
        let mut node = self.arena.load_acquire(self.root);
        if self.level(node) < level {
            return None;
        }
        while self.level(node) > level {
            node = self.step(node, key);
        }
        Some(node)
    }

    /// Locks the node of a level where the key belongs.
    fn lock(&self, key: u64, level: u64) -> Option<Locked<'_, S>> {
        let mut node = self.descend(key, level)?;
        loop {
            let guard = RwLock::at(&self.arena, node, self.locks).write();
            match self.right_for(node, key) {
                None => return Some(Locked { node, _guard: guard }),
                Some(sibling) => node = sibling,
            }
        }
    }

    fn lock_leaf(&self, key: u64) -> Locked<'_, S> {
        self.lock(key, 0).expect("there are leaves")
    }

    fn position(&self, node: u64, key: u64) -> Option<u64> {
        self.entries(node).position(|(other, _)| other == key).map(|index| index as u64)
    }

    fn store_entry(&self, node: u64, index: u64, (key, value): (u64, u64)) {
        self.arena.store_release(entry(node, index) + 8, value);
        self.arena.store_release(entry(node, index), key);
    }

    /// Inserts an entry into a locked node that has room, by shifts.
    fn shift_in(&self, node: u64, key: u64, value: u64) {
        let count = self.entries(node).count() as u64;
        self.change(node, || {
            // The end mark first.
            self.store_entry(node, count + 1, (0, 0));
            if entry(node, count + 1).is_multiple_of(LINE) {
                self.arena.persist(entry(node, count + 1), 16);
            }
            let mut index = count;
            while index > 0 {
                let before = self.entry_at(node, index - 1);
                if before.0 < key {
                    break;
                }
                self.store_entry(node, index, before);
                // The last entry of this line: the next one that changes lies in another.
                if entry(node, index).is_multiple_of(LINE) {
                    self.arena.persist(entry(node, index), 16);
                }
                index -= 1;
            }
            self.store_entry(node, index, (key, value));
            self.arena.persist(entry(node, index), 16);
        });
    }

    /// Removes an entry from a locked node, by shifts.
    fn shift_out(&self, node: u64, index: u64) {
        let count = self.entries(node).count() as u64;
        self.change(node, || {
            for index in index..count {
                self.store_entry(node, index, self.entry_at(node, index + 1));
                let is_last_of_line = (entry(node, index) + 16).is_multiple_of(LINE);
                if is_last_of_line || index + 1 == count {
                    self.arena.persist(entry(node, index), 16);
                }
            }
        });
    }

    /// Inserts an entry into a locked node, and splits it if it is full.
    fn insert_into(&self, locked: Locked<'_, S>, key: u64, value: u64) -> Result<(), Full> {
        let node = locked.node;
        let count = self.entries(node).count() as u64;
        if count < ENTRIES - 1 {
            self.shift_in(node, key, value);
            return Ok(());
        }
        let arena = &self.arena;
        let sibling = arena.alloc_aligned(NODE, NODE)?;
        // Another thread could find it by its link and fill it, before this one inserts.
        let sibling_guard = RwLock::at(arena, sibling, self.locks).write();
        let (level, middle) = (self.level(node), count / 2);
        let (separator, middle_child) = self.entry_at(node, middle);
        // The middle entry of an inner node goes up, and its child becomes the leftmost.
        let (leftmost, moved) =
            if level == 0 { (separator, middle) } else { (middle_child, middle + 1) };
        arena.store(sibling + META, level);
        arena.store(sibling + LEFTMOST, leftmost);
        arena.store(sibling + SIBLING, arena.load(node + SIBLING));
        for index in moved..count {
            self.store_entry(sibling, index - moved, self.entry_at(node, index));
        }
        arena.persist(sibling, NODE);
        self.change(node, || {
            arena.store_release(node + SIBLING, sibling);
            arena.persist(node, 32);
            self.store_entry(node, middle, (0, 0));
            arena.persist(entry(node, middle), 16);
        });
        self.splits.fetch_add(1, Ordering::Relaxed);
        if key < separator {
            self.shift_in(node, key, value);
        } else {
            self.shift_in(sibling, key, value);
        }
        if arena.load_acquire(self.root) == node {
            // Without room, the tree stays as it is, and the sibling is found by its link.
            let _ = self.new_root(node, separator, sibling);
            return Ok(());
        }
        drop((locked, sibling_guard));
        if let Some(parent) = self.lock(separator, level + 1) {
            let _ = self.insert_into(parent, separator, sibling);
        }
        Ok(())
    }

    fn new_root(&self, left: u64, separator: u64, right: u64) -> Result<(), Full> {
        let root = self.arena.alloc_aligned(NODE, NODE)?;
        self.arena.store(root + META, self.level(left) + 1);
        self.arena.store(root + LEFTMOST, left);
        self.store_entry(root, 0, (separator, right));
        self.arena.persist(root, NODE);
        self.arena.store_durably(self.root, root);
        Ok(())
    }
}

impl<S: Seam> Peer for FastFair<S> {
    fn promises(&self) -> Promises {
        Promises::ORDERED
    }

    fn get(&self, key: u64) -> Option<u64> {
        let mut node = self.descend(key, 0).expect("there are leaves");
        loop {
            let (right, found) = self.read(node, || {
                let found = self.entries(node).find(|&(other, _)| other == key);
                (self.right_for(node, key), found)
            });
            match right {
                Some(right) => node = right,
                None => return found.map(|(_, value)| value),
            }
        }
    }

    fn insert(&self, key: u64, value: u64) -> Result<bool, Full> {
        let leaf = self.lock_leaf(key);
        if self.position(leaf.node, key).is_some() {
            return Ok(false);
        }
        self.insert_into(leaf, key, value)?;
        Ok(true)
    }

    fn update(&self, key: u64, value: u64) -> Result<bool, Full> {
        let leaf = self.lock_leaf(key);
        let found = self.position(leaf.node, key);
        let stored = found.map(|i| self.arena.store_durably(entry(leaf.node, i) + 8, value));
        Ok(stored.is_some())
    }

    fn remove(&self, key: u64) -> bool {
        let leaf = self.lock_leaf(key);
        let found = self.position(leaf.node, key);
        found.map(|index| self.shift_out(leaf.node, index)).is_some()
    }

    fn scan(&self, from: u64, records: usize, found: &mut Vec<(u64, u64)>) {
        let end = found.len() + records;
        let mut node = self.descend(from, 0).expect("there are leaves");
        while node != 0 && found.len() < end {
            let (entries, sibling) = self.read(node, || {
                let entries: Vec<_> = self.entries(node).filter(|&(key, _)| key >= from).collect();
                (entries, self.arena.load_acquire(node + SIBLING))
            });
            found.extend(entries.into_iter().take(end - found.len()));
            node = sibling;
        }
    }

    fn growths(&self) -> u64 {
        self.splits.load(Ordering::Relaxed)
    }

    fn bytes(&self) -> u64 {
        self.arena.allocated()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast::internals::pmem::{Counts, Traced};

    #[test]
    fn a_shift_flushes_every_line_that_it_changes_once() {
        let seam = Traced::new();
        let arena = Arena::new(seam.clone(), 16 << 20);
        let tree = FastFair::create(arena, &Options::default()).unwrap();
        // Descending keys shift the whole node: it has `count` entries and the end mark after.
        for count in 0..ENTRIES - 1 {
            seam.start(false);
            assert_eq!(tree.insert(1000 - count, 7), Ok(true));
            let lines = entry(0, count + 1) / LINE - entry(0, 0) / LINE + 1;
            let counts = Counts::of(&seam.take());
            assert_eq!((counts.lines, counts.fences), (lines, lines), "{count} entries");
        }
        assert_eq!(tree.growths(), 0);
        for count in (1..ENTRIES).rev() {
            let key = 1000 - count + 1;
            seam.start(false);
            assert!(tree.remove(key), "equal values are no trouble");
            let lines = entry(0, count - 1) / LINE - entry(0, 0) / LINE + 1;
            assert_eq!(Counts::of(&seam.take()).lines, lines, "{count} entries");
        }
    }
}
