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
use std::hint::select_unpredictable;
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

/// Words in a line.
const LINE_WORDS: usize = 8;

/// A line of words in DRAM.
#[derive(Default)]
#[repr(C, align(64))]
struct Line([AtomicU64; LINE_WORDS]);

/// Something that begins with a line of its own and goes on in others: one allocation,
/// found by a thin pointer, so that what is read first and what is read next are known at once.
#[repr(C)]
pub(super) struct Piece<H> {
    head: H,
    lines: [Line],
}

/// The first line of a [`Piece`]: what it holds beside where its parts begin.
///
/// # Safety
/// It is as large and as aligned as a line, zero bytes are a value, and `extent` answers what it
/// was made with.
pub(super) unsafe trait Head: Send + Sync {
    fn with_extent(extent: Extent) -> Self;
    fn extent(&self) -> Extent;
}

/// How the lines of a [`Piece`] are used: where each kind begins behind the head.
///
/// Heads come first. The words are in order, with `u64::MAX` behind the last one, and the heads
/// are every eighth of them. So a search looks at the heads, most often two lines that are asked
/// for together, and then at one line of words: two waits for memory, where halving the words
/// would have one for nearly each step.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    words: u16,
    /// Numbers of 32 bits, one for each word.
    numbers: u16,
    /// Links, if there are any.
    links: u16,
    end: u16,
}

impl Extent {
    /// For so many elements, whose least keys are `links` or words.
    const fn of(elements: u32, links: bool) -> Extent {
        let lines = elements.div_ceil(LINE_WORDS as u32);
        let words = lines.div_ceil(LINE_WORDS as u32);
        let numbers = words + lines;
        let end = numbers + lines.div_ceil(2);
        let all = end + if links { lines } else { 0 };
        assert!(all <= u16::MAX as u32);
        Extent { words: words as u16, numbers: numbers as u16, links: end as u16, end: all as u16 }
    }

    /// Bytes of a piece.
    const fn bytes(self) -> u64 {
        (self.end as u64 + 1) * size_of::<Line>() as u64
    }
}

impl<H: Head> Piece<H> {
    fn new(elements: u32, links: bool) -> Box<Piece<H>> {
        const { assert!(size_of::<H>() == size_of::<Line>() && align_of::<H>() == 64) };
        let extent = Extent::of(elements, links);
        let lines: Box<[Line]> = (0..=extent.end).map(|_| Line::default()).collect();
        let lines = Box::into_raw(lines).cast::<Line>();
        let piece = ptr::slice_from_raw_parts_mut(lines, usize::from(extent.end));
        // SAFETY: the allocation is that of a line and `extent.end` more, which is the layout
        // of such a piece: its head is as large and as aligned as a line, and zero bytes are a
        // value of it. Nobody else knows of it.
        let mut piece = unsafe { Box::from_raw(piece as *mut Piece<H>) };
        piece.head = H::with_extent(extent);
        piece
    }

    /// The whole piece that begins here.
    ///
    /// # Safety
    /// The pointer was that of a whole piece, which is still there.
    #[inline(always)]
    unsafe fn whole(head: *mut H) -> *mut Piece<H> {
        // SAFETY: it is a piece's head, by the caller's promise.
        let lines = unsafe { &*head }.extent().end;
        ptr::slice_from_raw_parts_mut(head.cast::<Line>(), usize::from(lines)) as *mut Piece<H>
    }

    /// The piece that begins here.
    ///
    /// # Safety
    /// As [`whole`](Self::whole), and it stays for `'p`.
    #[inline(always)]
    unsafe fn reach<'p>(head: *mut H) -> &'p Piece<H> {
        // SAFETY: the piece has so many lines (`Head`), and the pointer is allowed to all of it.
        unsafe { &*Self::whole(head) }
    }

    /// Asks for what a search looks at first, beside the head: without waiting for the head.
    ///
    /// # Safety
    /// As [`reach`](Self::reach).
    #[inline(always)]
    unsafe fn expect(head: *mut H, seam: &impl Seam) {
        for line in 1..=2 {
            // SAFETY: every piece has a line of heads, one of words and one of numbers at least.
            seam.prefetch(unsafe { &*head.cast::<Line>().add(line) });
        }
    }

    fn heads(&self) -> &[Line] {
        &self.lines[..usize::from(self.head.extent().words)]
    }

    fn words(&self) -> &[Line] {
        let Extent { words, numbers, .. } = self.head.extent();
        &self.lines[usize::from(words)..usize::from(numbers)]
    }

    /// A word among those of all lines from `line` on.
    #[inline(always)]
    fn at(&self, line: u16, place: usize) -> &AtomicU64 {
        &self.lines[usize::from(line) + place / LINE_WORDS].0[place % LINE_WORDS]
    }

    #[inline(always)]
    fn word(&self, place: usize) -> u64 {
        self.at(self.head.extent().words, place).load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn has_links(&self) -> bool {
        let Extent { links, end, .. } = self.head.extent();
        links < end
    }

    /// The link of a place, where there are links.
    #[inline(always)]
    fn link(&self, place: usize) -> u64 {
        self.at(self.head.extent().links, place).load(Ordering::Relaxed)
    }

    /// The number of a place.
    #[inline(always)]
    fn number(&self, place: usize) -> u32 {
        let pair = self.at(self.head.extent().numbers, place / 2).load(Ordering::Relaxed);
        (pair >> (place % 2 * 32)) as u32
    }

    /// How many words are not above a limit; at most `most`.
    #[inline(always)]
    fn count_up_to(&self, seam: &impl Seam, most: usize, limit: u64) -> usize {
        let Extent { words, numbers, .. } = self.head.extent();
        let (words, numbers) = (usize::from(words), usize::from(numbers));
        let (mut first, mut left) = (0, words);
        while left > 1 {
            let half = left / 2;
            let found = self.lines[first + half].0[0].load(Ordering::Relaxed) <= limit;
            first = select_unpredictable(found, first + half, first);
            left -= half;
        }
        let heads = first * LINE_WORDS + self.lines[first].count_up_to(limit);
        // Behind the last line there are heads of none.
        let group = heads.saturating_sub(1).min(numbers - words - 1);
        // Whoever asks for a place asks for its number.
        seam.prefetch(&self.lines[numbers + group / 2]);
        (group * LINE_WORDS + self.lines[words + group].count_up_to(limit)).min(most)
    }

    /// How many words are below this one; at most `most`.
    #[inline(always)]
    fn count_below(&self, seam: &impl Seam, most: usize, word: u64) -> usize {
        word.checked_sub(1).map_or(0, |limit| self.count_up_to(seam, most, limit))
    }

    /// Replaces the content: words, of which the first one is not searched, numbers, links.
    fn set(&self, content: impl ExactSizeIterator<Item = (u64, u32, u64)> + Clone) {
        let searched = content.clone().skip(1).map(|(word, ..)| word);
        let mut searched = searched.chain(std::iter::repeat(u64::MAX));
        let mut firsts = [u64::MAX; LINE_WORDS];
        for (group, line) in self.words().iter().enumerate() {
            for (word, value) in line.0.iter().zip(searched.by_ref()) {
                word.store(value, Ordering::Relaxed);
            }
            let place = group % LINE_WORDS;
            firsts[place] = line.0[0].load(Ordering::Relaxed);
            firsts[place + 1..].fill(u64::MAX);
            for (head, first) in self.heads()[group / LINE_WORDS].0.iter().zip(firsts) {
                head.store(first, Ordering::Relaxed);
            }
        }
        let Extent { numbers, links, .. } = self.head.extent();
        let mut pairs = content.clone().map(|(_, number, _)| u64::from(number));
        for pair in 0..content.len().div_ceil(2) {
            let (low, high) = (pairs.next().unwrap_or(0), pairs.next().unwrap_or(0));
            self.at(numbers, pair).store(low | high << 32, Ordering::Relaxed);
        }
        if self.has_links() {
            for (place, (.., link)) in content.enumerate() {
                self.at(links, place).store(link, Ordering::Relaxed);
            }
        }
    }
}

impl<H: Head> Piece<H> {
    /// Puts an element before the one at `place`, which is not the first, of `len`.
    fn insert(&self, len: usize, place: usize, (word, number, link): (u64, u32, u64)) {
        let Extent { words, numbers, links, .. } = self.head.extent();
        // The first element has no word.
        let first = place - 1;
        shift(len - 1 - first, |at| self.at(words, first + at), word);
        let heads = self.heads().iter().flat_map(|line| &line.0).zip(self.words());
        for (head, line) in heads.skip(first / LINE_WORDS).take(len / LINE_WORDS + 1) {
            head.store(line.0[0].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        if self.has_links() {
            shift(len - place, |at| self.at(links, place + at), link);
        }
        for at in (place..len).rev() {
            self.set_number(numbers, at + 1, self.number(at));
        }
        self.set_number(numbers, place, number);
    }

    fn set_number(&self, numbers: u16, place: usize, number: u32) {
        let pair = self.at(numbers, place / 2);
        let shift = place % 2 * 32;
        let others = pair.load(Ordering::Relaxed) & !(u64::from(u32::MAX) << shift);
        pair.store(others | u64::from(number) << shift, Ordering::Relaxed);
    }
}

/// Moves so many words up by one, and puts another one before them.
fn shift<'w>(count: usize, at: impl Fn(usize) -> &'w AtomicU64, first: u64) {
    let mut carried = first;
    for place in 0..=count {
        let word = at(place);
        let next = word.load(Ordering::Relaxed);
        word.store(carried, Ordering::Relaxed);
        carried = next;
    }
}

impl Line {
    /// How many words are not above a limit.
    #[inline(always)]
    fn count_up_to(&self, limit: u64) -> usize {
        // No branch: what they decide cannot be foretold.
        let above =
            self.0.iter().fold(0, |n, word| n + usize::from(limit < word.load(Ordering::Relaxed)));
        LINE_WORDS - above
    }
}

/// An inner node: so many leaves, in the order of their keys. The words are, of each leaf but
/// the first, eight bytes of its least key, from `skip` on; the links the first words of the least
/// keys, the numbers the leaves' handles.
///
/// Fields are changed by who has locked it; what readers rest on, while it is marked as
/// changing.
pub(super) type Node = Piece<NodeHead>;

/// The first line of a node.
#[repr(C, align(64))]
pub(super) struct NodeHead {
    /// A version lock.
    lock: AtomicU64,
    /// First word of its least key.
    low: AtomicU64,
    /// First word of the least key of the next node, if there is one.
    high: AtomicU64,
    count: AtomicU32,
    /// The node after it.
    next: AtomicU32,
    /// Bytes that the least keys of all its leaves but the first begin with alike.
    skip: AtomicU32,
    /// Leaves at most.
    most: u32,
    extent: Extent,
}

// SAFETY: one line; atomics and numbers; `extent` is never changed.
unsafe impl Head for NodeHead {
    fn with_extent(extent: Extent) -> Self {
        NodeHead {
            lock: AtomicU64::new(0),
            low: AtomicU64::new(0),
            high: AtomicU64::new(0),
            count: AtomicU32::new(0),
            next: AtomicU32::new(NONE),
            skip: AtomicU32::new(0),
            most: 0,
            extent,
        }
    }
    #[inline(always)]
    fn extent(&self) -> Extent {
        self.extent
    }
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

/// Whether a key that compares so to a least key belongs behind it: it is not below, or, if
/// what is looked for lies strictly `below` the key, above.
#[inline(always)]
fn behind(order: Order, below: bool) -> bool {
    order == Order::Greater || (order == Order::Equal && !below)
}

impl Node {
    /// Bytes of DRAM that one takes.
    pub(super) fn bytes(leaves: u32, links: bool) -> u64 {
        Extent::of(leaves, links).bytes() + size_of::<AtomicPtr<NodeHead>>() as u64
    }

    #[inline(always)]
    pub(super) fn lock<'n, S: Seam>(&'n self, seam: &'n S) -> Reached<'n, S> {
        Reached { seam, word: &self.head.lock }
    }

    pub(super) fn next(&self) -> u32 {
        self.head.next.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.head.count.load(Ordering::Relaxed).min(self.head.most) as usize
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() == self.head.most as usize
    }

    #[inline(always)]
    pub(super) fn leaf(&self, place: usize) -> u32 {
        self.number(place)
    }

    /// First word of a leaf's least key.
    fn low_at(&self, place: usize) -> u64 {
        match place {
            0 => self.head.low.load(Ordering::Relaxed),
            _ if self.has_links() => self.link(place),
            _ => self.word(place - 1),
        }
    }

    /// First word of the least key of what follows a leaf; `None` if nothing does.
    pub(super) fn high_of(&self, place: usize) -> Option<u64> {
        if place + 1 < self.len() {
            Some(self.low_at(place + 1))
        } else {
            (self.next() != NONE).then(|| self.head.high.load(Ordering::Relaxed))
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
        let low = self.head.low.load(Ordering::Relaxed);
        if len == 0 || !behind(R::compare_with(core, key, low)?, below) {
            return Ok(Side::Before);
        }
        let place = self.place_of::<S, R>(core, key, below, len)?;
        if place + 1 >= len {
            let next = self.next();
            if next != NONE {
                let high = self.head.high.load(Ordering::Relaxed);
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
        let skip = self.head.skip.load(Ordering::Relaxed) as usize;
        if skip > 0 {
            match R::compare_start(core, key, self.low_at(1), skip)? {
                Order::Less => return Ok(0),
                Order::Greater => return Ok(len - 1),
                Order::Equal => {}
            }
        }
        let (seam, word) = (core.memory.seam(), R::word(key, skip));
        if R::EMPTY.is_none() && !below {
            // The words are the keys.
            return Ok(self.count_up_to(seam, len - 1, word));
        }
        let mut place = self.count_below(seam, len - 1, word);
        if R::EMPTY.is_none() {
            return Ok(place);
        }
        while place + 1 < len && self.word(place) == word {
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

    /// Of the leaves of a node and one more, at this place.
    pub(super) fn with_one_more<S: Seam, R: OrderedRecord>(
        core: &Core<S>,
        node: &Node,
        place: usize,
        entry: Entry,
    ) -> Result<Content, Damage> {
        let mut entries = node.entries();
        entries.insert(place, entry);
        Content::new::<S, R>(core, entries)
    }
}

/// The word of one leaf more at a place of a node, if those of the others can stay: if it begins
/// with what they begin with alike, as it mostly does.
pub(super) fn word_beside<S: Seam, R: OrderedRecord>(
    core: &Core<S>,
    node: &Node,
    place: usize,
    entry: Entry,
) -> Result<Option<u64>, Damage> {
    let (len, skip) = (node.len(), node.head.skip.load(Ordering::Relaxed) as usize);
    // Now and then it is looked whether they have more in common by now.
    let look = R::EMPTY.is_some() && skip == 0 && (len + 1).is_power_of_two();
    if place == 0 || len < 2 || look {
        return Ok(None);
    }
    let key = R::key_at(core, entry.low)?;
    let like = node.entry(1).low;
    let fits = skip == 0 || R::compare_start(core, R::key_of(&key), like, skip)? == Order::Equal;
    Ok(fits.then(|| R::word(R::key_of(&key), skip)))
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
        let words = content.entries.iter().zip(&content.words);
        node.set(words.map(|(entry, &word)| (word, entry.leaf, entry.low)));
        if let Some(first) = content.entries.first() {
            node.head.low.store(first.low, Ordering::Relaxed);
        }
        node.head.skip.store(content.skip as u32, Ordering::Relaxed);
        node.head.count.store(content.entries.len() as u32, Ordering::Relaxed);
    }

    /// Puts a leaf before the one at this place, which is not the first. There is room, and the
    /// node is marked as changing.
    pub(super) fn insert(&mut self, place: usize, word: u64, entry: Entry) {
        let len = self.node.len();
        self.node.insert(len, place, (word, entry.leaf, entry.low));
        self.node.head.count.store(len as u32 + 1, Ordering::Relaxed);
    }

    /// Takes the leaves out. The node is marked as changing.
    pub(super) fn clear(&mut self) {
        self.node.head.count.store(0, Ordering::Relaxed);
    }

    /// Says what follows. The node is marked as changing.
    pub(super) fn set_next(&mut self, next: u32, high: u64) {
        self.node.head.next.store(next, Ordering::Relaxed);
        self.node.head.high.store(high, Ordering::Relaxed);
    }

    /// What follows: number and least key.
    pub(super) fn follows(&self) -> (u32, u64) {
        (self.node.next(), self.node.head.high.load(Ordering::Relaxed))
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
    slab: Slab<AtomicPtr<NodeHead>>,
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
        // SAFETY: a number that was given out, and `take` has set its pointer, to a whole node,
        // before it gave it out; nodes live as long as `self`.
        unsafe { Node::reach(self.pointer(number)) }
    }

    /// As [`get`](Self::get), to search it.
    #[inline(always)]
    pub(super) fn get_to_search(&self, seam: &impl Seam, number: u32) -> &Node {
        // SAFETY: as in `get`.
        unsafe {
            Node::expect(self.pointer(number), seam);
            Node::reach(self.pointer(number))
        }
    }

    #[inline(always)]
    fn pointer(&self, number: u32) -> *mut NodeHead {
        // Acquire: pairs with the Release in `take`.
        self.slab.get(number).load(Ordering::Acquire)
    }

    /// A node that nobody knows of yet.
    pub(super) fn take(&self, seam: &impl Seam) -> u32 {
        let number = self.slab.take(seam);
        let place = self.slab.get(number);
        if place.load(Ordering::Acquire).is_null() {
            let mut node = Node::new(self.leaves, self.links);
            node.head.most = self.leaves;
            // Release: pairs with the Acquire in `get`.
            place.store(Box::into_raw(node).cast(), Ordering::Release);
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
                // SAFETY: as in `get`; made by `Piece::new` in `take`, and taken out here once.
                drop(unsafe { Box::from_raw(Node::whole(node)) });
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
    /// The one in use; null if there is none yet.
    current: AtomicPtr<BufferHead>,
    /// How often it was replaced. By who replaces it.
    turn: AtomicU64,
    /// Two of each size, made as they are needed; smaller ones stay.
    buffers: [[OnceLock<Box<Buffer>>; SIZES]; 2],
}

/// The words are, of each element but the first, eight bytes of its least key, from `skip` on; the
/// links the first words of those keys, the numbers what the elements lead to.
type Buffer = Piece<BufferHead>;

#[repr(C, align(64))]
struct BufferHead {
    len: AtomicU32,
    skip: AtomicU32,
    extent: Extent,
}

// SAFETY: one line; atomics and numbers; `extent` is never changed.
unsafe impl Head for BufferHead {
    fn with_extent(extent: Extent) -> Self {
        BufferHead { len: AtomicU32::new(0), skip: AtomicU32::new(0), extent }
    }
    #[inline(always)]
    fn extent(&self) -> Extent {
        self.extent
    }
}

impl Buffer {
    #[inline(always)]
    fn len(&self) -> usize {
        // As many as there are words for.
        let Extent { words, numbers, .. } = self.head.extent;
        let most = usize::from(numbers - words) * LINE_WORDS;
        (self.head.len.load(Ordering::Relaxed) as usize).min(most)
    }
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
            current: AtomicPtr::new(ptr::null_mut()),
            turn: AtomicU64::new(0),
            buffers: [const { [const { OnceLock::new() }; SIZES] }; 2],
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
        let turn = self.turn.load(Ordering::Relaxed).wrapping_add(1);
        self.turn.store(turn, Ordering::Relaxed);
        let size = content.len().div_ceil(SMALLEST).max(1).next_power_of_two().ilog2() as usize;
        let buffer = self.buffers[turn as usize & 1][size]
            .get_or_init(|| Buffer::new((SMALLEST << size) as u32, links));
        let words = content.iter().zip(&words);
        buffer.set(words.map(|(pointer, &word)| (word, pointer.number, pointer.low)));
        buffer.head.skip.store(skip as u32, Ordering::Relaxed);
        buffer.head.len.store(content.len() as u32, Ordering::Relaxed);
        core.memory.seam().dram();
        // Release: pairs with the Acquire in `current`.
        self.current.store(ptr::from_ref::<Buffer>(buffer).cast_mut().cast(), Ordering::Release);
        Ok(())
    }

    /// The buffer in use.
    #[inline(always)]
    fn current(&self) -> Option<&Buffer> {
        // Acquire: pairs with the Release in `replace`.
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: not null, then it is one of the buffers, whole, which stay.
        (!current.is_null()).then(|| unsafe { Buffer::reach(current) })
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
        let buffer = self.current()?;
        let len = buffer.len();
        if len <= 1 {
            return Some(buffer.number(0));
        }
        let skip = buffer.head.skip.load(Ordering::Relaxed) as usize;
        if skip > 0 {
            match R::compare_start(core, key, buffer.link(1), skip) {
                Ok(Order::Less) => return Some(buffer.number(0)),
                Ok(Order::Greater) => return Some(buffer.number(len - 1)),
                // What is damaged, the nodes tell.
                Ok(Order::Equal) | Err(_) => {}
            }
        }
        let (seam, word) = (core.memory.seam(), R::word(key, skip));
        if R::EMPTY.is_none() && !below {
            return Some(buffer.number(buffer.count_up_to(seam, len - 1, word)));
        }
        let mut place = buffer.count_below(seam, len - 1, word);
        while R::EMPTY.is_some() && place + 1 < len && buffer.word(place) == word {
            let order = R::compare_with(core, key, buffer.link(place + 1));
            if !order.is_ok_and(|order| behind(order, below)) {
                break;
            }
            place += 1;
        }
        Some(buffer.number(place))
    }

    /// Where the greatest keys lead. A hint, as above.
    pub(super) fn last(&self) -> Option<u32> {
        let buffer = self.current()?;
        Some(buffer.number(buffer.len().saturating_sub(1)))
    }

    /// Bytes of DRAM.
    pub(super) fn bytes(&self) -> u64 {
        let made = self.buffers.iter().flatten().filter_map(OnceLock::get);
        made.map(|buffer| buffer.head.extent.bytes()).sum()
    }
}

const _: () = {
    const fn is_zeroed<T: Zeroed>() {}
    is_zeroed::<AtomicPtr<NodeHead>>();
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmem::{FlushMode, Real};

    #[test]
    fn what_comes_before_is_counted() {
        let seam = Real::new(FlushMode::None);
        for most in [4u32, 9, 16, 64, 65, 128, 700, 1024] {
            let node = Node::new(most, false);
            for len in [1, 2, 3, most / 2, most - 1, most] {
                // Each word twice; the greatest at the end.
                let word = |i: u32| if i + 1 == most { u64::MAX } else { u64::from(i / 2) * 3 };
                let words: Vec<u64> = (0..len).map(word).collect();
                node.set(words.iter().zip(0..len).map(|(&word, i)| (word, i * 7, 0)));
                let searched = &words[1..];
                let most = searched.len();
                for n in (0..u64::from(len) * 2 + 2).chain([u64::MAX]) {
                    let below = searched.iter().filter(|&&w| w < n).count();
                    let up_to = searched.iter().filter(|&&w| w <= n).count();
                    assert_eq!(node.count_below(&seam, most, n), below, "{len} {n}");
                    assert_eq!(node.count_up_to(&seam, most, n), up_to, "{len} {n}");
                }
                assert!((0..len).all(|i| node.number(i as usize) == i * 7));
            }
        }
    }

    #[test]
    fn one_more_is_the_same_as_all_anew() {
        for (most, links) in [(4u32, true), (9, false), (65, true), (128, false), (1024, true)] {
            let (one, other) = (Node::new(most, links), Node::new(most, links));
            let element = |n: u32| (u64::from(n) * 10, n * 7, u64::from(n) << 32);
            let mut elements = vec![element(0), element(2)];
            one.set(elements.iter().copied());
            let mut draw = 1u32;
            while elements.len() < most as usize {
                draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let new = element(draw >> 12);
                let place = elements.partition_point(|old| old.0 <= new.0).max(1);
                one.insert(elements.len(), place, new);
                elements.insert(place, new);
                other.set(elements.iter().copied());
                let lines = one.lines.iter().zip(&other.lines).enumerate();
                for (at, (line, expected)) in lines {
                    let words = |line: &Line| line.0.each_ref().map(|w| w.load(Ordering::Relaxed));
                    assert_eq!(words(line), words(expected), "{at} of {most}, {place}");
                }
            }
        }
    }
}
