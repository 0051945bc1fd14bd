//! Inner nodes, in DRAM.
//!
//! A reader reads an inner node under its version. The arrays above the nodes
//! ([`cache`](super::cache)) are hints. Whatever they lead to, the node says whether a key belongs
//! to it, to a node before it or to one after it.

use super::lines::{Extent, Head, LINE_WORDS, Piece};
use super::state::{Slab, Zeroed};
use crate::error::Damage;
use crate::index::kit::lock::{Guarded, HeldLock, VersionLock};
use crate::index::ordered::OrderedRecord;
use crate::pmem::{LINE, Seam, Shared, SharedWord};
use crate::pool::core::Core;
use std::cmp::Ordering as Order;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The number that stands for no node.
pub(super) const NONE: u32 = u32::MAX;

/// A leaf as an inner node lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// The first word of its least key: the key, or a link to it.
    pub(super) low: u64,
    /// The leaf's handle.
    pub(super) leaf: u32,
    /// The number of the leaf's first cache line in the pool, modulo 2^32. Only a hint: it lets a
    /// thread prefetch the leaf's lines before it has read the leaf's offset.
    pub(super) line: u32,
}

impl Entry {
    /// Returns the entry of the leaf at an offset.
    pub(super) fn new(low: u64, leaf: u32, offset: u64) -> Entry {
        Entry { low, leaf, line: (offset / LINE) as u32 }
    }

    /// Returns the number that a node has for the leaf: its handle, and its line above it.
    #[inline(always)]
    fn number(self) -> u64 {
        u64::from(self.leaf) | u64::from(self.line) << 32
    }
}

/// An inner node: a list of leaves, in key order. For each leaf except the first, the words have
/// eight bytes of its least key, from `skip` on. The links have the first words of the least keys,
/// and the numbers have the leaves' handles and lines.
///
/// The thread that has locked the node changes its fields. Fields that readers depend on change
/// only while the node is marked as changing.
pub(crate) type Node = Piece<NodeHead>;

/// The first line of a node.
#[repr(C, align(64))]
pub(crate) struct NodeHead {
    /// A version lock.
    lock: SharedWord,
    /// The first word of its least key.
    low: SharedWord,
    /// The first word of the least key of the next node, if there is one.
    high: SharedWord,
    count: Shared<AtomicU32>,
    /// The next node.
    next: Shared<AtomicU32>,
    /// The length of the prefix that the least keys of all its leaves except the first share.
    skip: Shared<AtomicU32>,
    /// The most leaves.
    most: u32,
    extent: Extent,
}

// SAFETY: one line of atomics and numbers; `extent` never changes.
unsafe impl Head for NodeHead {
    fn with_extent(extent: Extent) -> Self {
        NodeHead {
            lock: Shared::default(),
            low: Shared::default(),
            high: Shared::default(),
            count: Shared::default(),
            next: Shared::<AtomicU32>::new(NONE),
            skip: Shared::default(),
            most: 0,
            extent,
        }
    }
    #[inline(always)]
    fn extent(&self) -> Extent {
        self.extent
    }
}

/// Where a key belongs, relative to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// In a node before it.
    Before,
    /// In this node, or in one after it.
    After(u32),
    /// In the leaf at this place.
    At(usize),
}

/// Returns whether a search passes a least key, given how the key of the search compares with it.
/// It does if its key is greater. If the keys are equal, it does unless it searches for records
/// strictly `below` its key.
#[inline(always)]
pub(super) fn behind(order: Order, below: bool) -> bool {
    order == Order::Greater || (order == Order::Equal && !below)
}

impl Node {
    /// Returns the bytes of DRAM that a node takes.
    pub(super) fn bytes(leaves: u32, links: bool) -> u64 {
        Extent::of(leaves, links).bytes() + size_of::<Shared<AtomicPtr<NodeHead>>>() as u64
    }

    #[inline(always)]
    pub(super) fn lock<'n, S: Seam>(&'n self, seam: &'n S) -> VersionLock<'n, S> {
        VersionLock::new(seam, &self.head.lock)
    }

    #[cfg(test)]
    pub(super) fn is_changing(&self, seam: &impl Seam) -> bool {
        self.head.lock.load(seam, Ordering::Acquire) & crate::index::version::CHANGING != 0
    }

    pub(super) fn next(&self, seam: &impl Seam) -> u32 {
        self.head.next.load(seam, Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn len(&self, seam: &impl Seam) -> usize {
        self.head.count.load(seam, Ordering::Relaxed).min(self.head.most) as usize
    }

    pub(super) fn is_full(&self, seam: &impl Seam) -> bool {
        self.len(seam) == self.head.most as usize
    }

    #[inline(always)]
    pub(super) fn leaf(&self, seam: &impl Seam, place: usize) -> u32 {
        self.leaf_and_line(seam, place).0
    }

    /// Returns the handle of the leaf at a place, and its line; see [`Entry`].
    #[inline(always)]
    pub(super) fn leaf_and_line(&self, seam: &impl Seam, place: usize) -> (u32, u32) {
        let number = self.number(seam, place);
        (number as u32, (number >> 32) as u32)
    }

    /// Returns the first word of a leaf's least key.
    fn low_at(&self, seam: &impl Seam, place: usize) -> u64 {
        match place {
            0 => self.head.low.load(seam, Ordering::Relaxed),
            _ if self.has_links() => self.link(seam, place),
            _ => self.word(seam, place - 1),
        }
    }

    /// Returns the first word of the least key of the leaf after this one, or `None` if there is
    /// none.
    pub(super) fn high_of(&self, seam: &impl Seam, place: usize) -> Option<u64> {
        if place + 1 < self.len(seam) {
            Some(self.low_at(seam, place + 1))
        } else {
            (self.next(seam) != NONE).then(|| self.head.high.load(seam, Ordering::Relaxed))
        }
    }

    /// Returns the entry of the leaf at a place.
    pub(super) fn entry(&self, seam: &impl Seam, place: usize) -> Entry {
        let (leaf, line) = self.leaf_and_line(seam, place);
        Entry { low: self.low_at(seam, place), leaf, line }
    }

    /// Returns the node's leaves.
    pub(super) fn entries(&self, seam: &impl Seam) -> Vec<Entry> {
        (0..self.len(seam)).map(|place| self.entry(seam, place)).collect()
    }

    /// Finds the leaf for a key or, if `below` is set, the leaf for the keys just below it. The
    /// node can change meanwhile, so the caller must check its version before it uses the result.
    #[inline(always)]
    pub(super) fn search<S: Seam, R: OrderedRecord>(
        &self,
        core: &Core<S>,
        key: R::Key<'_>,
        below: bool,
    ) -> Result<Side, Damage> {
        let seam = core.memory.seam();
        let len = self.len(seam);
        // A node without leaves has been removed, and leads nowhere.
        if len == 0 {
            return Ok(Side::Before);
        }
        let place = self.place_of::<S, R>(core, key, below, len)?;
        // A key that is behind the least key of a later leaf is behind that of the first.
        if place == 0 {
            let low = self.head.low.load(seam, Ordering::Relaxed);
            if !behind(R::compare_with(core, key, low)?, below) {
                return Ok(Side::Before);
            }
        }
        if place + 1 >= len {
            let next = self.next(seam);
            if next != NONE {
                let high = self.head.high.load(seam, Ordering::Relaxed);
                if behind(R::compare_with(core, key, high)?, below) {
                    return Ok(Side::After(next));
                }
            }
        }
        Ok(Side::At(place))
    }

    /// Prefetches the lines in which a search for the key ends.
    #[inline(always)]
    pub(super) fn prefetch_end_of<R: OrderedRecord>(&self, seam: &impl Seam, key: R::Key<'_>) {
        let skip = self.head.skip.load(seam, Ordering::Relaxed) as usize;
        self.prefetch_end(seam, R::word(key, skip));
    }

    /// Returns the last leaf whose least key a search for the key passes; see [`behind`]. If there is
    /// none, returns the first.
    #[inline(always)]
    fn place_of<S: Seam, R: OrderedRecord>(
        &self,
        core: &Core<S>,
        key: R::Key<'_>,
        below: bool,
        len: usize,
    ) -> Result<usize, Damage> {
        if len <= 1 {
            return Ok(0);
        }
        let seam = core.memory.seam();
        let skip = self.head.skip.load(seam, Ordering::Relaxed) as usize;
        if skip > 0 {
            match self.compare_prefix::<S, R>(core, key, skip)? {
                Order::Less => return Ok(0),
                Order::Greater => return Ok(len - 1),
                Order::Equal => {}
            }
        }
        let word = R::word(key, skip);
        if R::EMPTY.is_none() && !below {
            // Here the words are the complete keys.
            return Ok(self.count_up_to(seam, len - 1, word));
        }
        let mut place = self.count_below(seam, len - 1, word);
        if R::EMPTY.is_none() {
            return Ok(place);
        }
        while place + 1 < len && self.word(seam, place) == word {
            if !behind(R::compare_with(core, key, self.low_at(seam, place + 1))?, below) {
                break;
            }
            place += 1;
        }
        Ok(place)
    }
}

/// The content of a node, prepared before its readers have to wait.
pub(super) struct Content {
    entries: Vec<Entry>,
    words: Words,
}

impl Content {
    /// Makes the content of these leaves.
    pub(super) fn new<S: Seam, R: OrderedRecord>(
        core: &Core<S>,
        entries: Vec<Entry>,
    ) -> Result<Content, Damage> {
        let words = Words::new::<S, R>(core, entries.iter().map(|e| e.low))?;
        Ok(Content { entries, words })
    }

    /// Makes the content of these leaves, with these least keys.
    pub(super) fn of<R: OrderedRecord>(entries: Vec<Entry>, lows: &[R::OwnedKey]) -> Content {
        Content { entries, words: Words::of::<R>(lows) }
    }

    /// Makes the content of the leaves of a node and one more, at this place.
    pub(super) fn with_one_more<S: Seam, R: OrderedRecord>(
        core: &Core<S>,
        node: &Node,
        place: usize,
        entry: Entry,
    ) -> Result<Content, Damage> {
        let mut entries = node.entries(core.memory.seam());
        entries.insert(place, entry);
        Content::new::<S, R>(core, entries)
    }
}

/// Returns the word of an additional leaf at a place of a node, or `None` if all words must be
/// computed anew. The words of the others can stay if the new leaf's least key begins with the
/// prefix that they share, as it usually does.
pub(super) fn word_beside<S: Seam, R: OrderedRecord>(
    core: &Core<S>,
    node: &Node,
    place: usize,
    entry: Entry,
) -> Result<Option<u64>, Damage> {
    let seam = core.memory.seam();
    let (len, skip) = (node.len(seam), node.head.skip.load(seam, Ordering::Relaxed) as usize);
    // At some counts, makes the caller compute all words anew, because the keys may share a prefix
    // by now.
    let look = R::EMPTY.is_some() && skip == 0 && (len + 1).is_power_of_two();
    if place == 0 || len < 2 || look {
        return Ok(None);
    }
    let key = R::key_at(core, entry.low)?;
    let like = node.entry(seam, 1).low;
    let fits = skip == 0 || R::compare_start(core, R::key_of(&key), like, skip)? == Order::Equal;
    Ok(fits.then(|| R::word(R::key_of(&key), skip)))
}

/// What a search reads of the keys of an array.
pub(super) struct Words {
    /// The length of the prefix that all keys except the first share.
    pub(super) skip: usize,
    /// The prefix, as [`begins_with`](OrderedRecord::begins_with) reads it.
    pub(super) prefix: [u64; LINE_WORDS],
    /// For each key, eight bytes from `skip` on.
    pub(super) words: Vec<u64>,
}

impl Words {
    pub(super) fn new<S: Seam, R: OrderedRecord>(
        core: &Core<S>,
        lows: impl ExactSizeIterator<Item = u64>,
    ) -> Result<Words, Damage> {
        let keys = lows.map(|low| R::key_at(core, low)).collect::<Result<Vec<_>, _>>()?;
        Ok(Words::of::<R>(&keys))
    }

    fn of<R: OrderedRecord>(keys: &[R::OwnedKey]) -> Words {
        let skip = match keys {
            [_, first, .., last] => R::shared(R::key_of(first), R::key_of(last)),
            _ => 0,
        };
        let word = |key, from| R::word(R::key_of(key), from);
        let prefix = std::array::from_fn(|i| keys.get(1).map_or(0, |key| word(key, 8 * i)));
        Words { skip, prefix, words: keys.iter().map(|key| word(key, skip)).collect() }
    }
}

/// A locked node. Dropping this unlocks it.
pub(super) struct LockedNode<'n, S: Seam> {
    pub(super) node: &'n Node,
    seam: &'n S,
    lock: Guarded<HeldLock<'n, S>>,
}

impl<'n, S: Seam> LockedNode<'n, S> {
    /// Locks a node, if it is free.
    pub(super) fn try_new(node: &'n Node, seam: &'n S) -> Option<Self> {
        let lock = Guarded::new(node.lock(seam).try_hold()?);
        Some(LockedNode { node, seam, lock })
    }

    /// Marks the node as changing until it is unlocked: readers wait, and then retry.
    pub(super) fn changing(&mut self) {
        self.lock.changing();
    }

    /// Replaces the leaves. The node is marked as changing.
    pub(super) fn set(&mut self, content: &Content) {
        let node = self.node;
        let Words { skip, prefix, words } = &content.words;
        let words = content.entries.iter().zip(words);
        node.set_prefix(self.seam, prefix);
        node.set(self.seam, words.map(|(entry, &word)| (word, entry.number(), entry.low)));
        if let Some(first) = content.entries.first() {
            node.head.low.store(self.seam, first.low, Ordering::Relaxed);
        }
        node.head.skip.store(self.seam, *skip as u32, Ordering::Relaxed);
        node.head.count.store(self.seam, content.entries.len() as u32, Ordering::Relaxed);
    }

    /// Inserts a leaf before the one at `place`, which must not be 0. The caller has made sure that
    /// the node has room, and has marked it as changing.
    pub(super) fn insert(&mut self, place: usize, word: u64, entry: Entry) {
        let len = self.node.len(self.seam);
        self.node.insert(self.seam, len, place, (word, entry.number(), entry.low));
        self.node.head.count.store(self.seam, len as u32 + 1, Ordering::Relaxed);
    }

    /// Removes all leaves. The node is marked as changing.
    pub(super) fn clear(&mut self) {
        self.node.head.count.store(self.seam, 0, Ordering::Relaxed);
    }

    /// Sets the next node. The node is marked as changing.
    pub(super) fn set_next(&mut self, next: u32, high: u64) {
        self.node.head.next.store(self.seam, next, Ordering::Relaxed);
        self.node.head.high.store(self.seam, high, Ordering::Relaxed);
    }

    /// Returns the number and the least key of the next node.
    pub(super) fn follows(&self) -> (u32, u64) {
        (self.node.next(self.seam), self.node.head.high.load(self.seam, Ordering::Relaxed))
    }
}

/// All inner nodes.
pub(super) struct Nodes {
    slab: Slab<Shared<AtomicPtr<NodeHead>>>,
    leaves: u32,
    links: bool,
}

impl Nodes {
    /// Makes an empty collection, for nodes of up to this many leaves. `links` says whether least
    /// keys are links or plain words.
    pub(super) fn new(leaves: u32, links: bool) -> Nodes {
        Nodes { slab: Slab::new(), leaves, links }
    }

    #[inline(always)]
    pub(super) fn get(&self, seam: &impl Seam, number: u32) -> &Node {
        // SAFETY: `number` came from `take`, which stores a pointer to a complete node under that
        // number before it returns. Nodes live as long as `self`.
        unsafe { Node::reach(self.pointer(seam, number)) }
    }

    /// Does what [`get`](Self::get) does, and prefetches what a search of the node reads first.
    #[inline(always)]
    pub(super) fn get_to_search(&self, seam: &impl Seam, number: u32) -> &Node {
        // SAFETY: as in `get`.
        unsafe {
            Node::prefetch(self.pointer(seam, number), seam);
            Node::reach(self.pointer(seam, number))
        }
    }

    #[inline(always)]
    fn pointer(&self, seam: &impl Seam, number: u32) -> *mut NodeHead {
        // Acquire: pairs with the Release in `take`.
        self.slab.get(seam, number).load(seam, Ordering::Acquire)
    }

    /// Returns the node of any number, if it was made.
    #[cfg(test)]
    pub(super) fn made(&self, seam: &impl Seam, number: u32) -> Option<&Node> {
        let node = self.slab.reach(seam, number).load(seam, Ordering::Acquire);
        // SAFETY: as in `get`, and it is not null.
        (!node.is_null()).then(|| unsafe { Node::reach(node) })
    }

    /// Takes a node that was given back, or makes one. Returns its number. No other node links to
    /// it yet.
    pub(super) fn take(&self, seam: &impl Seam) -> u32 {
        let number = self.slab.take(seam);
        let place = self.slab.get(seam, number);
        if place.load(seam, Ordering::Acquire).is_null() {
            let mut node = Node::new(self.leaves, self.links);
            node.head.most = self.leaves;
            // Release: pairs with the Acquire in `get`.
            place.store(seam, Box::into_raw(node).cast(), Ordering::Release);
        }
        number
    }

    /// Takes back a node that no other node links to any more. Its version must have changed since
    /// the last link to it was there, so that readers that still have its number notice.
    pub(super) fn give(&self, seam: &impl Seam, number: u32) {
        self.slab.give(seam, number);
    }

    /// Returns the bytes of DRAM that the nodes take.
    pub(super) fn bytes(&self, seam: &impl Seam) -> u64 {
        u64::from(self.slab.numbers(seam)) * Node::bytes(self.leaves, self.links)
    }

    /// Returns the number of nodes in use.
    pub(super) fn in_use(&self, seam: &impl Seam) -> u64 {
        self.slab.in_use(seam)
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.slab.each_mut(|place| {
            let node = *place.alone().get_mut();
            if !node.is_null() {
                // SAFETY: as in `get`. It was made by `Piece::new` in `take`, and is taken out here
                // once.
                drop(unsafe { Box::from_raw(Node::whole(node)) });
            }
        });
    }
}

const _: () = {
    const fn is_zeroed<T: Zeroed>() {}
    is_zeroed::<Shared<AtomicPtr<NodeHead>>>();
};

#[cfg(test)]
mod tests {
    use super::super::lines::Line;
    use super::*;
    use crate::pmem::{FlushMode, Real};

    #[test]
    fn what_comes_before_is_counted() {
        let seam = Real::new(FlushMode::None);
        for most in [4u32, 9, 16, 64, 65, 128, 700, 1024] {
            let node = Node::new(most, false);
            for len in [1, 2, 3, most / 2, most - 1, most] {
                // Each word twice, and the greatest at the end.
                let word = |i: u32| if i + 1 == most { u64::MAX } else { u64::from(i / 2) * 3 };
                let words: Vec<u64> = (0..len).map(word).collect();
                node.set(
                    &seam,
                    words.iter().zip(0..len).map(|(&word, i)| (word, u64::from(i) * 7, 0)),
                );
                let searched = &words[1..];
                let most = searched.len();
                for n in (0..u64::from(len) * 2 + 2).chain([u64::MAX]) {
                    let below = searched.iter().filter(|&&w| w < n).count();
                    let up_to = searched.iter().filter(|&&w| w <= n).count();
                    assert_eq!(node.count_below(&seam, most, n), below, "{len} {n}");
                    assert_eq!(node.count_up_to(&seam, most, n), up_to, "{len} {n}");
                }
                assert!((0..len).all(|i| node.number(&seam, i as usize) == u64::from(i) * 7));
            }
        }
    }

    #[test]
    fn one_more_is_the_same_as_all_anew() {
        let seam = Real::new(FlushMode::None);
        for (most, links) in [(4u32, true), (9, false), (65, true), (128, false), (1024, true)] {
            let (one, other) = (Node::new(most, links), Node::new(most, links));
            let element = |n: u32| (u64::from(n) * 10, u64::from(n) * 7, u64::from(n) << 32);
            let mut elements = vec![element(0), element(2)];
            one.set(&seam, elements.iter().copied());
            let mut draw = 1u32;
            while elements.len() < most as usize {
                draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let new = element(draw >> 12);
                let place = elements.partition_point(|old| old.0 <= new.0).max(1);
                one.insert(&seam, elements.len(), place, new);
                elements.insert(place, new);
                other.set(&seam, elements.iter().copied());
                let lines = one.lines.iter().zip(&other.lines).enumerate();
                for (at, (line, expected)) in lines {
                    let words =
                        |line: &Line| line.0.each_ref().map(|w| w.load(&seam, Ordering::Relaxed));
                    assert_eq!(words(line), words(expected), "{at} of {most}, {place}");
                }
            }
        }
    }
}
