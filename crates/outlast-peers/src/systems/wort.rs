//! WORT: write optimal radix tree (Lee et al., FAST 2017).
//!
//! Compared with in PhaST (5.1, 5.2), with a fanout of 16.
//!
//! # Structure
//!
//! A radix tree on the key's 16 digits of four bits, the highest first. A node has a header of one
//! word and 16 children; a child is a node or a record of its own. Paths without branches are
//! compressed: the header has the node's depth and the digits before its branch.
//!
//! An insert makes its record durable and then the one word that links it. If two records share
//! digits, a new node with both is made first. If a key leaves a compressed path, a new node is
//! linked above the old one, and then the old one's header is shortened; a crash between is seen by
//! the depth in the header, which is then not the depth of its place.
//!
//! # Simplified
//!
//! - One reader-writer lock for the whole tree. Nodes are never removed.
//! - No scans, as in the released code (PhaST, 5.2).

use crate::shared::{Arena, LINE, Locks, RwLock};
use crate::{Full, Options, Peer, Promises};
use outlast::internals::pmem::Seam;
use std::sync::atomic::{AtomicU64, Ordering};

/// Digits of a key.
const DIGITS: u32 = 16;
/// Bytes of a node: the header and 16 children.
const NODE: u64 = 17 * 8;
/// Bytes of a record: key and value.
const RECORD: u64 = 16;
/// The bit of a child that is a record.
const IS_RECORD: u64 = 1;

/// A node's header. The root has depth 0 and no compressed digits, so the others have 14 at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    /// The number of digits before the node's own.
    depth: u32,
    /// The number of compressed digits. The next one is that of the branch.
    length: u32,
    /// The compressed digits, the last one lowest.
    digits: u64,
}

impl Header {
    fn of(word: u64) -> Header {
        let (depth, length) = ((word >> 60) as u32, (word >> 56) as u32 & 0xf);
        Header { depth, length, digits: word & ((1 << 56) - 1) }
    }

    fn word(self) -> u64 {
        u64::from(self.depth) << 60 | u64::from(self.length) << 56 | self.digits
    }

    /// The header with the digits of a key from a depth on.
    fn with(key: u64, depth: u32, length: u32) -> Header {
        Header { depth, length, digits: digits(key, depth, length) }
    }

    /// How many of the compressed digits a key has.
    fn matching(self, key: u64) -> u32 {
        let differing = digits(key, self.depth, self.length) ^ self.digits;
        self.length - (64 - differing.leading_zeros()).div_ceil(4)
    }
}

/// Returns some digits of a key, the last one lowest.
fn digits(key: u64, from: u32, count: u32) -> u64 {
    let cut = key.checked_shr((DIGITS - from - count) * 4).unwrap_or(0);
    cut & ((1u64 << (count * 4)) - 1)
}

/// The tree.
pub(super) struct Wort<S> {
    arena: Arena<S>,
    root: u64,
    lock: u64,
    locks: Locks,
    nodes: AtomicU64,
}

/// Where a key is, or would be.
enum Place {
    /// Its record, linked from this word.
    Record { link: u64, record: u64 },
    /// Another record, whose place is linked from this word; the record's digits before the depth
    /// are those of the key.
    Other { link: u64, record: u64, depth: u32 },
    /// An empty link.
    Empty { link: u64 },
    /// A node linked from this word, of whose compressed digits the key has only some.
    Leaves { link: u64, node: u64, matching: u32 },
}

impl<S: Seam> Wort<S> {
    pub(super) fn create(arena: Arena<S>, options: &Options) -> Result<Self, Full> {
        let (lock, root) = (arena.alloc(LINE)?, arena.alloc(NODE)?);
        arena.persist(root, NODE);
        Ok(Wort { arena, root, lock, locks: options.locks, nodes: AtomicU64::new(0) })
    }

    fn lock(&self) -> RwLock<'_, S> {
        RwLock::at(&self.arena, self.lock, self.locks)
    }

    fn child(node: u64, key: u64, depth: u32) -> u64 {
        node + 8 + digits(key, depth, 1) * 8
    }

    fn find(&self, key: u64) -> Place {
        let (mut link, mut node) = (0, self.root);
        loop {
            let header = Header::of(self.arena.load(node));
            let matching = header.matching(key);
            if matching < header.length {
                return Place::Leaves { link, node, matching };
            }
            let branch = header.depth + header.length;
            link = Self::child(node, key, branch);
            let child = self.arena.load(link);
            if child == 0 {
                return Place::Empty { link };
            }
            if child & IS_RECORD != 0 {
                let record = child & !IS_RECORD;
                return match self.arena.load(record) == key {
                    true => Place::Record { link, record },
                    false => Place::Other { link, record, depth: branch + 1 },
                };
            }
            node = child;
        }
    }

    fn record_of(&self, key: u64) -> Option<u64> {
        match self.find(key) {
            Place::Record { record, .. } => Some(record),
            _ => None,
        }
    }

    /// Makes a durable record, and returns it as a child.
    fn new_record(&self, key: u64, value: u64) -> Result<u64, Full> {
        let record = self.arena.alloc_aligned(RECORD, RECORD)?;
        self.arena.store(record, key);
        self.arena.store(record + 8, value);
        self.arena.persist(record, RECORD);
        Ok(record | IS_RECORD)
    }

    /// Makes a durable node with two children, whose links are given by keys.
    fn new_node(&self, header: Header, children: [(u64, u64); 2]) -> Result<u64, Full> {
        let node = self.arena.alloc(NODE)?;
        self.arena.store(node, header.word());
        for (key, child) in children {
            self.arena.store(Self::child(node, key, header.depth + header.length), child);
        }
        self.arena.persist(node, NODE);
        self.nodes.fetch_add(1, Ordering::Relaxed);
        Ok(node)
    }
}

impl<S: Seam> Peer for Wort<S> {
    fn promises(&self) -> Promises {
        Promises::HASH
    }

    fn get(&self, key: u64) -> Option<u64> {
        let _guard = self.lock().read();
        self.record_of(key).map(|record| self.arena.load(record + 8))
    }

    fn insert(&self, key: u64, value: u64) -> Result<bool, Full> {
        let _guard = self.lock().write();
        match self.find(key) {
            Place::Record { .. } => return Ok(false),
            Place::Empty { link } => {
                let record = self.new_record(key, value)?;
                self.arena.store_durably(link, record);
            }
            Place::Other { link, record: other, depth } => {
                let other_key = self.arena.load(other);
                let common = (key ^ other_key).leading_zeros() / 4 - depth;
                let record = self.new_record(key, value)?;
                let children = [(key, record), (other_key, other | IS_RECORD)];
                let node = self.new_node(Header::with(key, depth, common), children)?;
                self.arena.store_durably(link, node);
            }
            Place::Leaves { link, node, matching } => {
                let old = Header::of(self.arena.load(node));
                // The digits after the branch of the new node.
                let left = old.length - matching - 1;
                let depth = old.depth + matching + 1;
                let digits = old.digits & ((1 << (left * 4)) - 1);
                let shortened = Header { depth, length: left, digits };
                // A key with the digit with which the old node is linked.
                let branch = old.digits >> (left * 4) & 0xf;
                let old_key = branch << ((DIGITS - depth) * 4);
                let record = self.new_record(key, value)?;
                let header = Header::with(key, old.depth, matching);
                let above = self.new_node(header, [(key, record), (old_key, node)])?;
                self.arena.store_durably(link, above);
                self.arena.store_durably(node, shortened.word());
            }
        }
        Ok(true)
    }

    fn update(&self, key: u64, value: u64) -> Result<bool, Full> {
        let _guard = self.lock().write();
        let record = self.record_of(key);
        Ok(record.map(|record| self.arena.store_durably(record + 8, value)).is_some())
    }

    fn remove(&self, key: u64) -> bool {
        let _guard = self.lock().write();
        let Place::Record { link, record } = self.find(key) else { return false };
        self.arena.store_durably(link, 0);
        self.arena.free(record, RECORD);
        true
    }

    fn growths(&self) -> u64 {
        self.nodes.load(Ordering::Relaxed)
    }

    fn bytes(&self) -> u64 {
        self.arena.allocated()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast::internals::pmem::{FlushMode, Real};

    #[test]
    fn headers_are_words_and_know_how_far_a_key_agrees() {
        let key = 0x1234_5678_9abc_def0;
        let header = Header::with(key, 3, 5);
        assert_eq!(header.digits, 0x45678);
        assert_eq!(Header::of(header.word()), header);
        assert_eq!(header.matching(key), 5);
        assert_eq!(header.matching(0x1234_5670_9abc_def0), 4);
        assert_eq!(header.matching(0x1230_5678_9abc_def0), 0);
        assert_eq!(Header::with(key, 1, 14).matching(key), 14);
        assert_eq!(Header::with(key, 7, 0).matching(0), 0);
    }

    #[test]
    fn a_node_is_made_only_where_keys_part() {
        let arena = Arena::new(Real::new(FlushMode::None), 2 << 20);
        let tree = Wort::create(arena, &Options::default()).unwrap();
        let expected = [
            (0x1000_0000_0000_0000, 0), // the root's own child
            (0x1000_0000_0000_0001, 1), // they part at the last digit
            (0x1000_0000_0000_0002, 1), // there
            (0x1000_0000_1000_0000, 2), // within the compressed digits
            (0x2000_0000_0000_0000, 2), // another child of the root
        ];
        for (key, nodes) in expected {
            assert_eq!(tree.insert(key, !key), Ok(true));
            assert_eq!(tree.growths(), nodes, "{key:x}");
        }
        expected.iter().for_each(|&(key, _)| assert_eq!(tree.get(key), Some(!key)));
        assert_eq!(tree.get(0x1000_0000_1000_0001), None);
    }
}
