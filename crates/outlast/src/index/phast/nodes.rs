//! The inner part, in DRAM: inner nodes, and the arrays by which they are found.
//!
//! An inner node is read under its version. The arrays above it (the index caches, and the
//! list of partitions) are hints: whatever is read there, the node says whether a key belongs
//! to it, to one before or to one after it.

use super::state::{Slab, Zeroed};
use crate::error::Damage;
use crate::index::ordered::OrderedRecord;
use crate::index::version::{self, LockWord};
use crate::pmem::Seam;
use crate::pool::core::Core;
use std::cmp::Ordering as Order;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// No node.
pub(super) const NONE: u32 = u32::MAX;

/// Leaves of an inner node at most.
pub(super) const MAX_LEAVES: u32 = 1024;

/// A leaf as an inner node lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// First word of its least key: the key, or a link to it.
    pub(super) low: u64,
    /// Its handle.
    pub(super) leaf: u32,
}

/// An inner node: so many leaves, in the order of their keys.
///
/// Fields are changed by who has locked it; what readers rest on, while it is marked as
/// changing.
pub(super) struct Node {
    /// A version lock.
    lock: AtomicU64,
    count: AtomicU32,
    /// The node after it.
    next: AtomicU32,
    /// First word of its least key.
    low: AtomicU64,
    /// First word of the least key of the next node, if there is one.
    high: AtomicU64,
    /// Bytes that the least keys of all its leaves but the first begin with alike.
    skip: AtomicU32,
    /// Of each leaf but the first, eight bytes of its least key, from `skip` on.
    words: Box<[AtomicU64]>,
    /// First words of the least keys. Only for forms where they are links.
    lows: Box<[AtomicU64]>,
    leaves: Box<[AtomicU32]>,
}

/// Where in a node a key belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// To a node before it.
    Before,
    /// To this one, or one after it.
    After(u32),
    /// To the leaf at this place.
    At(usize),
}

/// A node's lock word, where other threads may run before each access.
pub(super) struct Reached<'n, S: Seam> {
    seam: &'n S,
    word: &'n AtomicU64,
}

impl<S: Seam> LockWord for Reached<'_, S> {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.seam.dram();
        self.word.load(order)
    }
    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        self.seam.dram();
        self.word.store(value, order);
    }
    #[inline(always)]
    fn compare_exchange(&self, current: u64, new: u64, success: Ordering) -> bool {
        self.seam.dram();
        self.word.compare_exchange(current, new, success, Ordering::Relaxed).is_ok()
    }
}

/// The number of elements that come before: `before` holds for them and for no later one.
#[inline(always)]
fn count_before(len: usize, before: impl Fn(usize) -> bool) -> usize {
    let (mut base, mut left) = (0, len);
    while left > 1 {
        let half = left / 2;
        base = if before(base + half - 1) { base + half } else { base };
        left -= half;
    }
    base + usize::from(left == 1 && before(base))
}

/// Whether a key that compares so to a least key belongs behind it: it is not below, or, if
/// what is looked for lies strictly `below` the key, above.
#[inline(always)]
fn behind(order: Order, below: bool) -> bool {
    order == Order::Greater || (order == Order::Equal && !below)
}

impl Node {
    fn new(leaves: u32, links: bool) -> Node {
        let words = |n: u32| (0..n).map(|_| AtomicU64::new(0)).collect();
        Node {
            lock: AtomicU64::new(0),
            count: AtomicU32::new(0),
            next: AtomicU32::new(NONE),
            low: AtomicU64::new(0),
            high: AtomicU64::new(0),
            skip: AtomicU32::new(0),
            words: words(leaves),
            lows: words(if links { leaves } else { 0 }),
            leaves: (0..leaves).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Bytes of DRAM that one takes.
    pub(super) fn bytes(leaves: u32, links: bool) -> u64 {
        let entry = if links { 20 } else { 12 };
        size_of::<Node>() as u64 + u64::from(leaves) * entry + size_of::<AtomicPtr<Node>>() as u64
    }

    #[inline(always)]
    pub(super) fn lock<'n, S: Seam>(&'n self, seam: &'n S) -> Reached<'n, S> {
        Reached { seam, word: &self.lock }
    }

    pub(super) fn next(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        (self.count.load(Ordering::Relaxed) as usize).min(self.leaves.len())
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() == self.leaves.len()
    }

    #[inline(always)]
    pub(super) fn leaf(&self, place: usize) -> u32 {
        self.leaves[place].load(Ordering::Relaxed)
    }

    /// First word of a leaf's least key.
    fn low_at(&self, place: usize) -> u64 {
        match place {
            0 => self.low.load(Ordering::Relaxed),
            _ if self.lows.is_empty() => self.words[place].load(Ordering::Relaxed),
            _ => self.lows[place].load(Ordering::Relaxed),
        }
    }

    /// First word of the least key of what follows a leaf; `None` if nothing does.
    pub(super) fn high_of(&self, place: usize) -> Option<u64> {
        if place + 1 < self.len() {
            Some(self.low_at(place + 1))
        } else {
            (self.next() != NONE).then(|| self.high.load(Ordering::Relaxed))
        }
    }

    /// First word of a leaf's least key, and the leaf.
    pub(super) fn entry(&self, place: usize) -> Entry {
        Entry { low: self.low_at(place), leaf: self.leaf(place) }
    }

    /// Its leaves.
    pub(super) fn entries(&self) -> Vec<Entry> {
        (0..self.len()).map(|place| self.entry(place)).collect()
    }

    /// The leaf that holds a key; or, `below`, keys below it. To be validated.
    #[inline(always)]
    pub(super) fn search<S: Seam, R: OrderedRecord>(
        &self,
        core: &Core<S>,
        key: R::Key<'_>,
        below: bool,
    ) -> Result<Side, Damage> {
        core.memory.seam().dram();
        let len = self.len();
        // A node without leaves leads nowhere: it was taken out.
        if len == 0 || !behind(R::compare_with(core, key, self.low.load(Ordering::Relaxed))?, below)
        {
            return Ok(Side::Before);
        }
        let place = self.place_of::<S, R>(core, key, below, len)?;
        if place + 1 >= len {
            let next = self.next();
            if next != NONE {
                let high = self.high.load(Ordering::Relaxed);
                if behind(R::compare_with(core, key, high)?, below) {
                    return Ok(Side::After(next));
                }
            }
        }
        Ok(Side::At(place))
    }

    /// The last leaf whose least key a key is behind. It is behind the first one's.
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
        let skip = self.skip.load(Ordering::Relaxed) as usize;
        if skip > 0 {
            match R::compare_start(core, key, self.low_at(1), skip)? {
                Order::Less => return Ok(0),
                Order::Greater => return Ok(len - 1),
                Order::Equal => {}
            }
        }
        let word = R::word(key, skip);
        let words = &self.words[1..len];
        if self.lows.is_empty() {
            // The words are the keys.
            return Ok(if below {
                count_before(words.len(), |i| words[i].load(Ordering::Relaxed) < word)
            } else {
                count_before(words.len(), |i| words[i].load(Ordering::Relaxed) <= word)
            });
        }
        let first = count_before(words.len(), |i| words[i].load(Ordering::Relaxed) < word);
        let mut place = first;
        while place < words.len() && words[place].load(Ordering::Relaxed) == word {
            if !behind(R::compare_with(core, key, self.low_at(place + 1))?, below) {
                break;
            }
            place += 1;
        }
        Ok(place)
    }
}

/// The content of a node, made ready before its readers are made to wait.
pub(super) struct Content {
    entries: Vec<Entry>,
    skip: usize,
    words: Vec<u64>,
}

impl Content {
    /// Of these leaves.
    pub(super) fn new<S: Seam, R: OrderedRecord>(
        core: &Core<S>,
        entries: Vec<Entry>,
    ) -> Result<Content, Damage> {
        let (skip, words) = words_of::<S, R>(core, entries.iter().map(|e| e.low))?;
        Ok(Content { entries, skip, words })
    }

    /// Of these leaves, which are those of a node and one more, at this place.
    pub(super) fn with_one_more<S: Seam, R: OrderedRecord>(
        core: &Core<S>,
        node: &Node,
        place: usize,
        entry: Entry,
    ) -> Result<Content, Damage> {
        let mut entries = node.entries();
        entries.insert(place, entry);
        let skip = node.skip.load(Ordering::Relaxed) as usize;
        // What the others begin with alike, it mostly begins with as well.
        // (Now and then it is looked whether they have more in common by now.)
        if place > 0 && entries.len() > 2 && !(skip == 0 && entries.len().is_power_of_two()) {
            let like = if place == 1 { entries[2].low } else { entries[1].low };
            let key = R::key_at(core, entry.low)?;
            if skip == 0 || R::compare_start(core, R::key_of(&key), like, skip)? == Order::Equal {
                let old = |i: usize| node.words[i].load(Ordering::Relaxed);
                let mut words: Vec<u64> = (0..node.len()).map(old).collect();
                words.insert(place, R::word(R::key_of(&key), skip));
                return Ok(Content { entries, skip, words });
            }
        }
        Content::new::<S, R>(core, entries)
    }
}

/// The bytes that all keys but the first begin with alike, and the words that follow.
fn words_of<S: Seam, R: OrderedRecord>(
    core: &Core<S>,
    lows: impl ExactSizeIterator<Item = u64>,
) -> Result<(usize, Vec<u64>), Damage> {
    let len = lows.len();
    let mut keys = Vec::with_capacity(len);
    for low in lows {
        keys.push(R::key_at(core, low)?);
    }
    let skip = match &keys[..] {
        [_, first, .., last] => R::shared(R::key_of(first), R::key_of(last)),
        _ => 0,
    };
    Ok((skip, keys.iter().map(|key| R::word(R::key_of(key), skip)).collect()))
}

/// A locked node; unlocked when dropped.
pub(super) struct LockedNode<'n, S: Seam> {
    pub(super) node: &'n Node,
    seam: &'n S,
    word: u64,
}

impl<'n, S: Seam> LockedNode<'n, S> {
    /// Locks a node, if it is free.
    pub(super) fn try_new(node: &'n Node, seam: &'n S) -> Option<Self> {
        let word = version::try_lock(&node.lock(seam))?;
        Some(LockedNode { node, seam, word })
    }

    /// Makes readers wait, and read again.
    pub(super) fn changing(&mut self) {
        self.word = version::set_changing(&self.node.lock(self.seam), self.word);
    }

    /// Replaces the leaves. The node is marked as changing.
    pub(super) fn set(&mut self, content: &Content) {
        let node = self.node;
        for (place, (entry, word)) in content.entries.iter().zip(&content.words).enumerate() {
            if place == 0 {
                node.low.store(entry.low, Ordering::Relaxed);
            }
            node.words[place].store(*word, Ordering::Relaxed);
            if let Some(low) = node.lows.get(place) {
                low.store(entry.low, Ordering::Relaxed);
            }
            node.leaves[place].store(entry.leaf, Ordering::Relaxed);
        }
        node.skip.store(content.skip as u32, Ordering::Relaxed);
        node.count.store(content.entries.len() as u32, Ordering::Relaxed);
    }

    /// Takes the leaves out. The node is marked as changing.
    pub(super) fn clear(&mut self) {
        self.node.count.store(0, Ordering::Relaxed);
    }

    /// Says what follows. The node is marked as changing.
    pub(super) fn set_next(&mut self, next: u32, high: u64) {
        self.node.next.store(next, Ordering::Relaxed);
        self.node.high.store(high, Ordering::Relaxed);
    }

    /// What follows: number and least key.
    pub(super) fn follows(&self) -> (u32, u64) {
        (self.node.next(), self.node.high.load(Ordering::Relaxed))
    }
}

impl<S: Seam> Drop for LockedNode<'_, S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // It may be half changed: it stays locked, and the gate tells others not to wait.
            return;
        }
        version::unlock(&self.node.lock(self.seam), self.word);
    }
}

/// All inner nodes.
pub(super) struct Nodes {
    slab: Slab<AtomicPtr<Node>>,
    leaves: u32,
    links: bool,
}

impl Nodes {
    /// Nodes of so many leaves, whose least keys are `links` or words.
    pub(super) fn new(leaves: u32, links: bool) -> Nodes {
        Nodes { slab: Slab::new(), leaves, links }
    }

    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> &Node {
        let node = self.slab.get(number).load(Ordering::Acquire);
        // SAFETY: a number that was given out, and `take` has set its pointer before it gave
        // it out; nodes live as long as `self`. Acquire: pairs with the Release in `take`.
        unsafe { &*node }
    }

    /// A node that nobody knows of yet.
    pub(super) fn take(&self, seam: &impl Seam) -> u32 {
        let number = self.slab.take(seam);
        let place = self.slab.get(number);
        if place.load(Ordering::Acquire).is_null() {
            let node = Box::into_raw(Box::new(Node::new(self.leaves, self.links)));
            // Release: pairs with the Acquire in `get`.
            place.store(node, Ordering::Release);
        }
        number
    }

    /// Takes back a node that nothing leads to any more. Its version has changed since.
    pub(super) fn give(&self, seam: &impl Seam, number: u32) {
        self.slab.give(seam, number);
    }

    /// Bytes of DRAM.
    pub(super) fn bytes(&self, seam: &impl Seam) -> u64 {
        u64::from(self.slab.numbers(seam)) * Node::bytes(self.leaves, self.links)
    }

    /// Nodes in use.
    pub(super) fn in_use(&self, seam: &impl Seam) -> u64 {
        self.slab.in_use(seam)
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.slab.each_mut(|place| {
            let node = place.swap(ptr::null_mut(), Ordering::Relaxed);
            if !node.is_null() {
                // SAFETY: made by `Box::into_raw` in `take`, and taken out here once.
                drop(unsafe { Box::from_raw(node) });
            }
        });
    }
}

/// Chunks of sizes of a cache's buffers.
const SIZES: usize = 28;
/// Elements of the smallest one.
const SMALLEST: usize = 16;

/// A sorted array that leads from keys to numbers: an index cache, or the list of partitions.
///
/// It is replaced as a whole: the new content is written beside the one in use, and then
/// the two are swapped. A reader that is overtaken twice reads a mixture, which leads it
/// astray and no further: what it finds says where the key belongs.
pub(super) struct Cache {
    /// Two of each size, made as they are needed; smaller ones stay.
    buffers: [[OnceLock<Buffer>; SIZES]; 2],
    /// Which one is in use: size, and above it the turn.
    current: AtomicU64,
}

struct Buffer {
    len: AtomicU32,
    skip: AtomicU32,
    words: Box<[AtomicU64]>,
    lows: Box<[AtomicU64]>,
    numbers: Box<[AtomicU32]>,
}

/// An element of a cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pointer {
    /// First word of the least key.
    pub(super) low: u64,
    /// What it leads to.
    pub(super) number: u32,
}

impl Cache {
    pub(super) fn new() -> Cache {
        Cache {
            buffers: [const { [const { OnceLock::new() }; SIZES] }; 2],
            current: AtomicU64::new(u64::MAX),
        }
    }

    /// Replaces the content. By one thread at a time.
    pub(super) fn replace<S: Seam, R: OrderedRecord>(
        &self,
        core: &Core<S>,
        content: &[Pointer],
    ) -> Result<(), Damage> {
        let (skip, words) = words_of::<S, R>(core, content.iter().map(|p| p.low))?;
        let links = R::EMPTY.is_some();
        let turn = (self.current.load(Ordering::Relaxed) >> 8).wrapping_add(1);
        let size = content.len().div_ceil(SMALLEST).max(1).next_power_of_two().ilog2() as usize;
        let buffer = self.buffers[turn as usize & 1][size].get_or_init(|| {
            let len = SMALLEST << size;
            let words = |n| (0..n).map(|_| AtomicU64::new(0)).collect();
            Buffer {
                len: AtomicU32::new(0),
                skip: AtomicU32::new(0),
                words: words(len),
                lows: words(if links { len } else { 0 }),
                numbers: (0..len).map(|_| AtomicU32::new(0)).collect(),
            }
        });
        for (place, (pointer, word)) in content.iter().zip(&words).enumerate() {
            buffer.words[place].store(*word, Ordering::Relaxed);
            if let Some(low) = buffer.lows.get(place) {
                low.store(pointer.low, Ordering::Relaxed);
            }
            buffer.numbers[place].store(pointer.number, Ordering::Relaxed);
        }
        buffer.skip.store(skip as u32, Ordering::Relaxed);
        buffer.len.store(content.len() as u32, Ordering::Relaxed);
        core.memory.seam().dram();
        // Release: pairs with the Acquire in `find`.
        self.current.store(turn << 8 | size as u64, Ordering::Release);
        Ok(())
    }

    /// Where a key leads. A hint; `None` if there is nothing yet.
    #[inline(always)]
    pub(super) fn find<S: Seam, R: OrderedRecord>(
        &self,
        core: &Core<S>,
        key: R::Key<'_>,
        below: bool,
    ) -> Option<u32> {
        core.memory.seam().dram();
        // Acquire: pairs with the Release in `replace`.
        let current = self.current.load(Ordering::Acquire);
        if current == u64::MAX {
            return None;
        }
        let buffer = self.buffers[(current >> 8) as usize & 1][current as usize & 0xff].get()?;
        let len = (buffer.len.load(Ordering::Relaxed) as usize).min(buffer.words.len());
        let number = |place: usize| buffer.numbers[place].load(Ordering::Relaxed);
        if len <= 1 {
            return Some(number(0));
        }
        let skip = buffer.skip.load(Ordering::Relaxed) as usize;
        if skip > 0 {
            let like = buffer.lows[1].load(Ordering::Relaxed);
            match R::compare_start(core, key, like, skip) {
                Ok(Order::Less) => return Some(number(0)),
                Ok(Order::Greater) => return Some(number(len - 1)),
                // What is damaged, the nodes tell.
                Ok(Order::Equal) | Err(_) => {}
            }
        }
        let word = R::word(key, skip);
        let words = &buffer.words[1..len];
        let mut place = if below || !buffer.lows.is_empty() {
            count_before(words.len(), |i| words[i].load(Ordering::Relaxed) < word)
        } else {
            count_before(words.len(), |i| words[i].load(Ordering::Relaxed) <= word)
        };
        if !buffer.lows.is_empty() {
            while place < words.len() && words[place].load(Ordering::Relaxed) == word {
                let low = buffer.lows[place + 1].load(Ordering::Relaxed);
                let order = R::compare_with(core, key, low);
                if !order.is_ok_and(|order| behind(order, below)) {
                    break;
                }
                place += 1;
            }
        }
        Some(number(place))
    }

    /// Where the greatest keys lead. A hint, as above.
    pub(super) fn last(&self) -> Option<u32> {
        let current = self.current.load(Ordering::Acquire);
        if current == u64::MAX {
            return None;
        }
        let buffer = self.buffers[(current >> 8) as usize & 1][current as usize & 0xff].get()?;
        let len = (buffer.len.load(Ordering::Relaxed) as usize).min(buffer.words.len());
        Some(buffer.numbers[len.saturating_sub(1)].load(Ordering::Relaxed))
    }

    /// Bytes of DRAM.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = |b: &Buffer| b.words.len() * 12 + b.lows.len() * 8;
        self.buffers.iter().flatten().filter_map(|b| b.get()).map(|b| bytes(b) as u64).sum()
    }
}

const _: () = {
    const fn is_zeroed<T: Zeroed>() {}
    is_zeroed::<AtomicPtr<Node>>();
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_before_is_counted() {
        let numbers = [1, 3, 3, 5, 9, 12, 12];
        for len in 0..=numbers.len() {
            for n in 0..14 {
                let expected = numbers[..len].iter().filter(|&&x| x < n).count();
                assert_eq!(count_before(len, |i| numbers[i] < n), expected, "{len} {n}");
            }
        }
    }
}
