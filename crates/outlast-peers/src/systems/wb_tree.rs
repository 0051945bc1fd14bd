//! wB+-Tree: write-atomic B+-trees (Chen and Jin, VLDB 2015).
//!
//! Compared with in PhaST (5.1 to 5.4), with 7 records a leaf and a fanout of 7: the variant whose
//! slot array is one word.
//!
//! # Structure
//!
//! Inner nodes and leaves lie in persistent memory. A node has two lines: the slot array, the next
//! leaf (or the leftmost child), and 7 unsorted entries. The slot array is one word: the number of
//! entries, and the index of each in key order. So an insert makes its entry durable and then the
//! slot array, with one store, which is the commit point. A removal stores the slot array alone.
//!
//! A split saves what it changes in the nodes and their parents in an undo log first: "it relies on
//! costly undo-redo logs when a split occurs" (PhaST, 6). Here it is an undo log alone.
//!
//! # Simplified
//!
//! - One reader-writer lock for the whole tree, and one log. Nodes are never merged.
//! - The height lies in the low bits of the root's place, so both change with one store.

use crate::shared::{Arena, LINE, Locks, RwLock, UndoLog};
use crate::{Full, Options, Peer, Promises};
use outlast::internals::pmem::Seam;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a node, and its alignment, whose low bits have room for the height.
const NODE: u64 = 2 * LINE;
/// Entries of a node.
const ENTRIES: usize = 7;
/// Words that a split may save: two for each node of a path, one for the last parent, the root.
const LOGGED: u64 = 64;

/// Words of a node. The entries follow.
const SLOTS: u64 = 0;
/// The next leaf, or an inner node's leftmost child.
const LINK: u64 = 8;

/// The slot array of a node: the indices of its entries in key order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slots {
    count: usize,
    indices: [u8; ENTRIES],
}

impl Slots {
    fn of(word: u64) -> Slots {
        let [count, indices @ ..] = word.to_le_bytes();
        Slots { count: usize::from(count), indices }
    }

    fn word(self) -> u64 {
        let mut bytes = [0; 8];
        bytes[0] = self.count as u8;
        bytes[1..].copy_from_slice(&self.indices);
        u64::from_le_bytes(bytes)
    }

    fn iter(self) -> impl Iterator<Item = u8> {
        self.indices.into_iter().take(self.count)
    }

    /// An entry that no slot names. The node has room.
    fn free_entry(self) -> u8 {
        let is_free = |entry: &u8| self.iter().all(|used| used != *entry);
        (0..ENTRIES as u8).find(is_free).expect("a node with room")
    }

    fn with(mut self, position: usize, entry: u8) -> Slots {
        self.indices.copy_within(position..ENTRIES - 1, position + 1);
        self.indices[position] = entry;
        Slots { count: self.count + 1, ..self }
    }

    fn without(mut self, position: usize) -> Slots {
        self.indices.copy_within(position + 1.., position);
        Slots { count: self.count - 1, ..self }
    }
}

/// The tree.
pub(super) struct WbTree<S> {
    arena: Arena<S>,
    /// The place of the root node, whose low bits are the height of the tree above the leaves.
    root: u64,
    lock: u64,
    locks: Locks,
    log: UndoLog,
    splits: AtomicU64,
}

impl<S: Seam> WbTree<S> {
    pub(super) fn create(arena: Arena<S>, options: &Options) -> Result<Self, Full> {
        let (root, lock) = (arena.alloc(LINE)?, arena.alloc(LINE)?);
        let log = UndoLog::new(&arena, LOGGED)?;
        let leaf = arena.alloc_aligned(NODE, NODE)?;
        arena.persist(leaf, NODE);
        arena.store_durably(root, leaf);
        Ok(WbTree { arena, root, lock, locks: options.locks, log, splits: AtomicU64::new(0) })
    }

    fn lock(&self) -> RwLock<'_, S> {
        RwLock::at(&self.arena, self.lock, self.locks)
    }

    fn slots(&self, node: u64) -> Slots {
        Slots::of(self.arena.load(node + SLOTS))
    }

    fn entry(node: u64, entry: u8) -> u64 {
        node + 16 + u64::from(entry) * 16
    }

    fn record(&self, node: u64, entry: u8) -> (u64, u64) {
        let at = Self::entry(node, entry);
        (self.arena.load(at), self.arena.load(at + 8))
    }

    /// The entries of a node in key order.
    fn entries(&self, node: u64) -> impl Iterator<Item = (u64, u64)> {
        self.slots(node).iter().map(move |entry| self.record(node, entry))
    }

    /// The nodes from the root to the leaf of a key.
    fn path(&self, key: u64) -> Vec<u64> {
        let root = self.arena.load(self.root);
        let (mut path, height) = (vec![root & !(NODE - 1)], root % NODE);
        for level in 0..height as usize {
            let node = path[level];
            let child = self.entries(node).take_while(|&(first, _)| first <= key).last();
            path.push(child.map_or_else(|| self.arena.load(node + LINK), |(_, child)| child));
        }
        path
    }

    fn leaf(&self, key: u64) -> u64 {
        *self.path(key).last().expect("a leaf")
    }

    /// Returns the position and the entry of a key in a leaf.
    fn find(&self, leaf: u64, key: u64) -> Option<(usize, u8)> {
        let mut slots = self.slots(leaf).iter().enumerate();
        slots.find(|&(_, entry)| self.arena.load(Self::entry(leaf, entry)) == key)
    }

    /// Inserts an entry into a node that has room.
    fn insert_into(&self, node: u64, key: u64, value: u64) {
        let slots = self.slots(node);
        let position = self.entries(node).take_while(|&(other, _)| other < key).count();
        let entry = slots.free_entry();
        self.arena.store(Self::entry(node, entry), key);
        self.arena.store(Self::entry(node, entry) + 8, value);
        self.arena.persist(Self::entry(node, entry), 16);
        self.arena.store_durably(node + SLOTS, slots.with(position, entry).word());
    }

    /// Inserts an entry into the last node of a path, and splits it and its parents if they are
    /// full. The log holds the old words.
    fn insert_splitting(&self, path: &[u64], key: u64, value: u64) -> Result<(), Full> {
        let (&node, parents) = path.split_last().expect("a node");
        let slots = self.slots(node);
        if slots.count < ENTRIES {
            self.log.save(&self.arena, &[node + SLOTS]);
            self.insert_into(node, key, value);
            return Ok(());
        }
        let is_leaf = path.len() as u64 == self.arena.load(self.root) % NODE + 1;
        let records: Vec<(u64, u64)> = self.entries(node).collect();
        let middle = ENTRIES / 2;
        let (separator, middle_child) = records[middle];
        // The middle entry of an inner node goes up, and its child becomes the leftmost.
        let (moved, link) = match is_leaf {
            true => (&records[middle..], self.arena.load(node + LINK)),
            false => (&records[middle + 1..], middle_child),
        };
        let right = self.arena.alloc_aligned(NODE, NODE)?;
        self.arena.store(right + LINK, link);
        let mut right_slots = Slots::of(0);
        for (index, &(key, value)) in moved.iter().enumerate() {
            self.arena.store(Self::entry(right, index as u8), key);
            self.arena.store(Self::entry(right, index as u8) + 8, value);
            right_slots = right_slots.with(index, index as u8);
        }
        self.arena.store(right + SLOTS, right_slots.word());
        self.arena.persist(right, NODE);
        self.log.save(&self.arena, &[node + SLOTS, node + LINK]);
        self.arena.store(node + SLOTS, Slots { count: middle, ..slots }.word());
        if is_leaf {
            self.arena.store(node + LINK, right);
        }
        self.arena.persist(node, 16);
        self.insert_into(if key < separator { node } else { right }, key, value);
        if parents.is_empty() {
            self.new_root(node, separator, right)?;
        } else {
            self.insert_splitting(parents, separator, right)?;
        }
        self.splits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn new_root(&self, left: u64, separator: u64, right: u64) -> Result<(), Full> {
        let height = self.arena.load(self.root) % NODE;
        let root = self.arena.alloc_aligned(NODE, NODE)?;
        self.arena.store(root + LINK, left);
        self.arena.store(Self::entry(root, 0), separator);
        self.arena.store(Self::entry(root, 0) + 8, right);
        self.arena.store(root + SLOTS, Slots::of(0).with(0, 0).word());
        self.arena.persist(root, NODE);
        self.log.save(&self.arena, &[self.root]);
        self.arena.store_durably(self.root, root | (height + 1));
        Ok(())
    }
}

impl<S: Seam> Peer for WbTree<S> {
    fn promises(&self) -> Promises {
        Promises::ORDERED
    }

    fn get(&self, key: u64) -> Option<u64> {
        let _guard = self.lock().read();
        let leaf = self.leaf(key);
        self.find(leaf, key).map(|(_, entry)| self.record(leaf, entry).1)
    }

    fn insert(&self, key: u64, value: u64) -> Result<bool, Full> {
        let _guard = self.lock().write();
        let path = self.path(key);
        let leaf = path[path.len() - 1];
        if self.find(leaf, key).is_some() {
            return Ok(false);
        }
        if self.slots(leaf).count < ENTRIES {
            self.insert_into(leaf, key, value);
            return Ok(true);
        }
        match self.insert_splitting(&path, key, value) {
            Ok(()) => self.log.clear(&self.arena),
            Err(Full) => {
                self.log.undo(&self.arena);
                return Err(Full);
            }
        }
        Ok(true)
    }

    fn update(&self, key: u64, value: u64) -> Result<bool, Full> {
        let _guard = self.lock().write();
        let leaf = self.leaf(key);
        let at = self.find(leaf, key).map(|(_, entry)| Self::entry(leaf, entry) + 8);
        Ok(at.map(|at| self.arena.store_durably(at, value)).is_some())
    }

    fn remove(&self, key: u64) -> bool {
        let _guard = self.lock().write();
        let leaf = self.leaf(key);
        let Some((position, _)) = self.find(leaf, key) else { return false };
        self.arena.store_durably(leaf + SLOTS, self.slots(leaf).without(position).word());
        true
    }

    fn scan(&self, from: u64, records: usize, found: &mut Vec<(u64, u64)>) {
        let _guard = self.lock().read();
        let end = found.len() + records;
        let mut leaf = self.leaf(from);
        while leaf != 0 && found.len() < end {
            let there = self.entries(leaf).filter(|&(key, _)| key >= from);
            found.extend(there.take(end - found.len()));
            leaf = self.arena.load(leaf + LINK);
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

    #[test]
    fn a_slot_array_is_one_word() {
        let slots = Slots::of(0).with(0, 3).with(0, 1).with(1, 6);
        assert_eq!(slots.iter().collect::<Vec<_>>(), [1, 6, 3]);
        assert_eq!(slots.word() & 0xffff_ffff, 0x0306_0103);
        assert_eq!(Slots::of(slots.word()), slots);
        assert_eq!(slots.free_entry(), 0);
        assert_eq!(slots.without(1).iter().collect::<Vec<_>>(), [1, 3]);
        let full = (0..7).fold(Slots::of(0), |slots, i| slots.with(0, i));
        assert_eq!(full.without(6).free_entry(), 0);
    }
}
