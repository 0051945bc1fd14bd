//! PhaST: an ordered index, its inner part in DRAM, its leaves in persistent memory (Li et al.,
//! TPDS 2022).
//!
//! # Structure
//!
//! ```text
//!  root ---> master array [ leaf | leaf | ... ]                                  persistent
//!                            |      |
//!       +--------------------+      +------------------+
//!       v                                              v
//!    leaf --> leaf --> leaf --> leaf --> leaf --> leaf --> leaf --> leaf       in order of keys
//!      ^        ^        ^        ^        ^        ^        ^        ^
//!  - - | - - - -|- - - - | - - - -| - - - -| - - - -| - - - -| - - - -| - - - - - - - - - - - - -
//!    [ a        b        c ]--->[ d        e ]--->[ f        g        h ]      inner nodes
//!      ^                          ^                 ^
//!    [ a ......................   d ]             [ f ]                        index caches
//!      ^                                            ^
//!    [ a ........................................   f ]                        partitions    DRAM
//!
//!  leaf    [ bitmap | 56 fingerprints ][ identity | next | least key | .. ][ 56 pairs ]
//!           `------- one line -------´  `---------- one line -----------´
//! ```
//!
//! A leaf has up to 56 pairs, in no order: the words of a record each. The key's hash names one
//! of its 14 lines, where the pair stands if there is room, or else in the line beside it if
//! there is any: a lookup asks for the header and for the named line together. The bitmap says
//! which pairs there are; it and the fingerprints are one line, so that one flush commits an insert.
//! The least key that can be in a leaf is written when the leaf is made, and never changes:
//! a leaf's keys are those from it to the least key of the next leaf.
//!
//! An inner node lists up to 128 leaves by their least keys, a partition its nodes, in an array
//! that is searched before them (the index cache). Each is one piece of whole lines: a head, every
//! eighth word, the words, and what they lead to; a search looks at one line of every eighth word and
//! at one of words, without a branch that could be guessed wrong. For byte strings, those arrays hold eight
//! bytes of each key, from where the keys of the array begin to differ; so keys with a long
//! prefix in common are told apart as fast as others, and a key's block is read where eight
//! bytes do not decide.
//!
//! Partitions are parts of the keys that are there: when a partition has twice its share of
//! nodes, it is split where its nodes are halved, and where there are as many as there can be,
//! two small ones are joined first. Each has an entry in the master array, the leaf that it
//! begins with: opening reads the parts side by side.
//!
//! Integers are kept in a form whose order is that of the numbers
//! ([`KeyOrder`]).
//!
//! # Invariants
//!
//! 1. A slot holds a record if and only if its bit is set, and its key is not below the leaf's
//!    least key, and is below the next one's, if there is a next leaf.
//! 2. Pairs outside of those bounds have bits only in a leaf whose link is marked *moving*.
//! 3. Least keys ascend along the links. The first leaf's is the least of all, and that leaf
//!    stays for ever.
//! 4. An entry of the master array is 0 or a leaf that the links lead to.
//! 5. A slot's bit is set at most once before the leaf is *tidied*, split or merged, which one
//!    thread does while nobody else is at work in it. So, for who is at work in it, two equal
//!    bitmaps stand for the same keys. (Not for the same blocks: a byte string's is replaced, and
//!    used again, under the same bit. Who compares keys there looks at the leaf's count of
//!    replaced records afterwards.)
//! 6. What readers rest on is durable: if anybody is at work in the leaf, they flush it
//!    themselves.
//!
//! # Commit points
//!
//! | operation | stores, in order | lines, fences | a crash in between leaves |
//! |---|---|---|---|
//! | insert, inline | fingerprint, pair; fence; bit (commit) | 2, 2 | a pair without a bit, or the record |
//! | insert, bytes | record block, fingerprint, pair; fence; bit (commit) | record + 2, 2 | a block that no pair with a bit links to, which the trace frees; as above |
//! | update, inline | value (commit) | 1, 1 | the old value or the new |
//! | update, bytes | record block; fence; link (commit) | record + 1, 2 | the old record or the new; the other block is freed by the trace |
//! | remove | bit (commit) | 1, 1 | the record or none |
//! | map | master array and first leaf whole; fence, the root's; root's commit word | both, 0 (+ the root's) | blocks for the trace |
//! | split | separator's block, new leaf whole; fence; old leaf's link, marked moving (commit); fence; old leaf's bits; fence; the mark goes, unflushed | leaf + 2 (+ separator), 3 | before the commit, blocks for the trace; after it, bits that opening clears |
//! | merge of pairs | copies in free slots of the left leaf, its link marked moving; fence; their fingerprints and bits; fence; left leaf's link past the right one (commit); fence | copies + 3, 3 | before the commit, bits that opening clears |
//! | merge of an empty leaf | left leaf's link (commit); fence | 1, 1 | the leaf or none |
//! | partition | entry of the master array; fence, the split's; an entry that goes: fence | 1, 0 or 1 | the entry or none: opening takes longer |
//!
//! Why no fewer: a bit and its pair are different lines, and if the bit were durable first the
//! slot would show what it held before; hence the insert's second fence. The fingerprint is in
//! the bit's line and stored before it, so it is durable whenever the bit is; without the bit it
//! says nothing. (A pair that commits
//! itself, as in Dash-EH, takes one; but then opening has to read every pair, and not one line
//! of each leaf.) A lookup stores nothing, and flushes only beside a change in its leaf.
//!
//! # Concurrency
//!
//! Of each leaf there is one word in DRAM, its *state* (`state.rs`): which slots are taken,
//! how many inserts are under way, whether one thread is changing or removing, whether the leaf
//! is closed. It is the paper's shadow bitmap, and its read-write lock.
//!
//! - *Inserts* exclude nobody but who closes the leaf. One reserves a slot (one exchange of the
//!   state), looks for its key, writes the pair and makes it durable, and sets its bit by an
//!   exchange of the bitmap. If that fails, others have set or cleared bits: it looks for its key
//!   in those that were set since it looked last, and goes on from there. By invariant 5 the
//!   exchange succeeds only if the leaf still holds just the keys that were looked at: of two
//!   inserts of one key the second sees the first one's bit. Linearization point: the exchange.
//! - *Updates and removals* in one leaf exclude each other (`BUSY`), and nobody else.
//!   Linearization point: the store of the value or link, the exchange of the bitmap.
//! - *Lookups* lock nothing. They read the node under its version, the leaf, and the leaf's
//!   state last. If nobody is at work by then, whoever has done what was read has made it
//!   durable before it left. Else the lookup flushes what it has read, and fences. Slots that are
//!   used again, and leaves that are, are told by the node's version, which changes in between;
//!   for byte strings, whose blocks are used again at once, by a count of each leaf.
//! - *Who closes a leaf* waits until nobody is at work in it. Tidying makes the slots of removed
//!   pairs free, after the node's version has changed. A split publishes the new leaf in its
//!   node when the commit is durable, and clears bits of the old leaf after that: who reads the
//!   old leaf without them had its node's version before. Both leaves are closed until then. A
//!   merge takes two neighbours, the left one first.
//!
//! Who is at work in a leaf has announced itself in the state and seen the node's version
//! unchanged after that, so the leaf is still the one for its key, and stays so until it leaves.
//!
//! Lock order: leaves (left before right; only tried), `structure`, nodes (left before right).
//! Node locks are held for a rewrite of the node's arrays; nothing is flushed under them. Nothing
//! is allocated in the pool under any of them: a split guesses where, allocates,
//! and looks again once it has the leaf.
//!
//! The arrays above the nodes are hints. They are replaced as a whole, by copying and swapping;
//! a reader that is overtaken goes astray, and the node that it comes to says in which direction.
//! So partitions and caches can change without anybody waiting. Inner nodes and what is kept of
//! leaves are used again, but never given back before the map is dropped: nobody reads memory
//! that has become something else.
//!
//! # A scan
//!
//! reads leaf by leaf, each as a lookup does, and asks the memory for the next one while it sorts.
//! What it appends for one leaf was there at one
//! moment. It goes on at the least key of the next leaf, as that was then: a key, and no place,
//! so splits and merges between two steps do not matter. A record that is there during the
//! whole scan is reported exactly once, in its place.
//!
//! # After a crash
//!
//! Opening reads the header lines of every leaf, by as many threads as are asked for: each takes
//! a part of the chain, from one entry of the master array to the next. It flushes what is found
//! (a process that died leaves its stores in the caches; answers will rest on them), clears the
//! bits of pairs that are not the leaf's where the link is marked moving, and makes the nodes.
//! All of that is done before the first operation.
//!
//! A removed key cannot come back from the other half of a split: from the commit on, by
//! invariant 1, the old leaf's pairs above the separator are no records, and the mark stays
//! until their bits are durably cleared. Which those are, opening reads from the records that
//! they link to; so the new leaf is closed until then, and none of those blocks is used again.
//! Nor can it come back from a merge: its copies are no records before the commit, and after it
//! the right leaf is not reachable.
//!
//! Where the chain cannot be followed, because a leaf is damaged, the keys from there to the next
//! entry of the master array answer with the damage; all others are served.
//!
//! # Deviations from the paper
//!
//! - Two concurrent inserts of one key both succeed in the paper. Here the bits that changed
//!   decide, see above.
//! - The paper's readers see a bit or a value before it is durable: thread 1 sets its bit, thread
//!   2 finds the key and answers; power fails, the key is gone. Invariant 6 forbids it.
//! - The paper deletes by writing an invalid key, and so has one key less; slots come back at a
//!   split alone, and leaves never. Here the bit is cleared, a leaf that has few pairs left is
//!   merged, and its space given back.
//! - A leaf has its least key, which never changes, in place of its greatest, which a split would
//!   have to change as a second step.
//! - The paper finds a split that a crash cut short by two leaves with one greatest key. Here the
//!   link that commits it says so, and opening reads a leaf's keys only there.
//! - Partitions by leading bits collapse when keys have them in common; here by what is there.
//! - Nodes are found by the caches, and beyond their last element by the links between nodes. The
//!   paper's towers of forward pointers would hold the same keys once more: a cache of 1 MiB, its
//!   threshold, lists every node of a partition that has up to 50,000 (350 million pairs).
//! - The paper's inserts take the first free slot, so a lookup learns from the header where to
//!   look, and waits for memory twice; here the hash names a line that most pairs stand in.
//! - One lock per node in the paper; one word per leaf here, so that inserts into different
//!   leaves of a node share no line.

pub mod bugs;
mod cache;
mod change;
pub mod layout;
mod lines;
mod nodes;
mod ops;
pub mod points;
mod recover;
mod resize;
mod route;
mod scan;
mod state;
mod verify;

use super::ordered::{KeyOrder, KeyRange, OrderedIndex, OrderedRecord};
use crate::error::{Damage, Error, Result};
use crate::index::kit::table::Table;
use crate::index::kit::walk::{Counter, Counters};
use crate::index::{Growth, Scheme, SchemeConfig, Settings};
use crate::pmem::{Offset, Seam, SeededBug, SharedWord, Word};
use crate::pool::core::{Core, root_offset};
use crate::pool::layout::ROOT_SCHEME_WORDS;
use cache::{Cache, Pointer};
use layout::{LEAF_HEADER, LINE_SLOTS, LeafHeader, MAX_PARTITIONS, MAX_SLOTS, Pair};
use nodes::{MAX_LEAVES, Node, Nodes};
use state::{Leaf, Slab};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

/// How a map is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Pairs of a leaf: a multiple of 4, from 4 to 56.
    pub slots: u32,
    /// Leaves of an inner node: from 4 to 1024.
    pub node_leaves: u32,
    /// Partitions at most: from 1 to 1024.
    pub partitions: u32,
    /// How its keys are ordered.
    pub order: KeyOrder,
    /// Whether bitmaps carry a [seal](layout::seal): so in every map made since there are seals.
    pub sealed: bool,
}

/// In the third word of a map's root: its leaves' bitmaps are sealed.
const WORD_SEALED: u64 = 1 << 32;

impl Config {
    /// A configuration for keys that are plain bytes or unsigned numbers.
    pub const fn new(slots: u32, node_leaves: u32, partitions: u32) -> Config {
        Config { slots, node_leaves, partitions, order: KeyOrder::Plain, sealed: true }
    }
}

impl SchemeConfig for Config {
    fn of_settings(settings: &mut Settings, key_schema: &str) -> Result<Config> {
        Ok(Config {
            slots: settings.take("leaf_slots", [8, MAX_SLOTS], 4..=MAX_SLOTS, 4)?,
            node_leaves: settings.take("node_leaves", [4, 128], 4..=MAX_LEAVES, 1)?,
            partitions: settings.take("partitions", [4, 128], 1..=MAX_PARTITIONS, 1)?,
            order: KeyOrder::of_schema(key_schema),
            sealed: true,
        })
    }

    fn from_words(words: [u64; 3]) -> Option<Config> {
        let config = Config {
            slots: u32::try_from(words[0]).ok()?,
            node_leaves: words[1] as u32,
            partitions: (words[1] >> 32) as u32,
            order: KeyOrder::from_media(words[2] & !WORD_SEALED)?,
            sealed: words[2] & WORD_SEALED != 0,
        };
        let known = (4..=MAX_SLOTS).contains(&config.slots)
            && config.slots.is_multiple_of(4)
            && (4..=MAX_LEAVES).contains(&config.node_leaves)
            && (1..=MAX_PARTITIONS).contains(&config.partitions);
        known.then_some(config)
    }

    fn to_words(self) -> [u64; 3] {
        let nodes = u64::from(self.node_leaves) | u64::from(self.partitions) << 32;
        let sealed = if self.sealed { WORD_SEALED } else { 0 };
        [u64::from(self.slots), nodes, self.order.to_media() | sealed]
    }

    fn features(self) -> u64 {
        layout::FEATURE | if self.sealed { layout::FEATURE_SEALED } else { 0 }
    }
}

impl Config {
    fn leaf_bytes(self) -> u64 {
        layout::leaf_bytes(self.slots)
    }

    /// The first slot of the line in which a pair of this hash stands if it can.
    #[inline(always)]
    fn line_of(self, hash: u64) -> u32 {
        (((hash >> 32) * u64::from(self.slots / LINE_SLOTS)) >> 32) as u32 * LINE_SLOTS
    }

    /// A bit for every slot.
    fn all_slots(self) -> u64 {
        (1 << self.slots) - 1
    }

    /// The bitmap word of a leaf whose slots in use are these.
    fn bitmap_of(self, bits: u64) -> u64 {
        if self.sealed { layout::seal(bits) } else { bits }
    }

    /// What setting or clearing a slot's bit changes in the bitmap word.
    #[inline(always)]
    fn toggle(self, slot: u32) -> u64 {
        if self.sealed { layout::toggle(slot) } else { 1 << slot }
    }
}

/// A part of the map, in the order of keys.
struct Partition {
    /// Its entry of the master array, and its index cache.
    entry: u32,
    /// Its inner nodes.
    nodes: Vec<Pointer>,
}

/// What changes of the inner part above its nodes are made under, one at a time.
struct Structure {
    /// Never empty; the first one begins with the least key.
    partitions: Vec<Partition>,
    /// Entries of the master array that are not in use.
    free: Vec<u32>,
}

/// An ordered index. See the module's documentation.
pub struct Phast<S: Seam, R: OrderedRecord> {
    core: Arc<Core<S>>,
    shape: Config,
    /// Offset of the master array.
    master: u64,
    leaves: Slab<Leaf>,
    /// Of each leaf, how many records were replaced or removed. Only for byte strings, whose
    /// blocks are used again.
    versions: Slab<SharedWord>,
    nodes: Nodes,
    /// The node of the least key. It stays.
    first: u32,
    /// Leads to partitions' caches.
    top: Cache,
    /// Index caches, which lead to nodes.
    caches: Box<[Cache]>,
    structure: Mutex<Structure>,
    /// What is wrong with leaves that cannot be served.
    damage: Mutex<HashMap<u32, Damage>>,
    /// Splits of leaves and of inner nodes, and leaves that were mended.
    counters: Counters,
    merges: Counter,
    form: PhantomData<R>,
}

impl<S: Seam, R: OrderedRecord> Phast<S, R> {
    /// Opens the index whose root is in a slot: reads all of its leaves' headers. The caller
    /// has passed the gate, or holds it, or the pool was closed cleanly.
    pub fn open(core: &Arc<Core<S>>, slot: usize, shape: Config) -> Result<Self> {
        let scheme_words = root_offset(slot).raw() + 8;
        let word = core.memory.load(core.memory.at(Offset::<Word>::new(scheme_words))?);
        let damaged_root = |expected: &str, found: String| Error::DamagedRoot {
            slot,
            damage: Damage::new(scheme_words, expected, found),
        };
        let master = layout::unpack_root(word)
            .ok_or_else(|| damaged_root("a master array's offset", format!("{word:#x}")))?;
        let mut index = Phast {
            core: Arc::clone(core),
            shape,
            master,
            leaves: Slab::new(),
            versions: Slab::new(),
            nodes: Nodes::new(shape.node_leaves, R::EMPTY.is_some()),
            first: 0,
            top: Cache::new(),
            caches: (0..shape.partitions).map(|_| Cache::new()).collect(),
            structure: Mutex::new(Structure { partitions: Vec::new(), free: Vec::new() }),
            damage: Mutex::default(),
            counters: Counters::default(),
            merges: Counter::default(),
            form: PhantomData,
        };
        index.recover()?;
        Ok(index)
    }

    /// Makes the master array and the first leaf of a new map, durable before the root that
    /// will name them. Returns the root's words.
    pub fn create(core: &Arc<Core<S>>, shape: Config) -> Result<[u64; ROOT_SCHEME_WORDS]> {
        core.use_feature(shape.features(), &points::FEATURE)?;
        resize::create(core, shape)
    }

    #[inline(always)]
    fn seam(&self) -> &S {
        self.core.memory.seam()
    }

    /// See [`Seam::seeded`].
    #[inline(always)]
    fn seeded(&self, bug: &'static SeededBug) -> bool {
        self.core.memory.seam().seeded(bug)
    }

    // ---- Addressing -------------------------------------------------------------

    /// What this process knows of a leaf.
    #[inline(always)]
    fn leaf(&self, handle: u32) -> &Leaf {
        self.leaves.get(self.seam(), handle)
    }

    /// An inner node.
    #[inline(always)]
    fn node(&self, number: u32) -> &Node {
        self.nodes.get(self.seam(), number)
    }

    /// The header of a leaf.
    #[inline(always)]
    fn header(&self, leaf: u64) -> &LeafHeader {
        // SAFETY: offsets of leaves are those of allocations of that size, or were checked
        // (`check_leaf`), or are 0; their whole extent is inside the memory, and aligned.
        unsafe { self.core.memory.at_unchecked(Offset::new(leaf)) }
    }

    /// Asks for what a lookup or an insert of this hash most likely needs of a leaf: both lines
    /// at once, where one after the other would be waited for twice.
    #[inline(always)]
    fn expect(&self, leaf: u64, hash: u64) {
        let seam = self.core.memory.seam();
        seam.prefetch(&self.header(leaf).head);
        seam.prefetch(self.pair(leaf, self.shape.line_of(hash)));
    }

    /// Asks for all that a scan reads of a leaf.
    fn expect_all(&self, leaf: u64) {
        let seam = self.core.memory.seam();
        seam.prefetch(&self.header(leaf).head);
        for slot in (0..self.shape.slots).step_by(LINE_SLOTS as usize) {
            seam.prefetch(self.pair(leaf, slot));
        }
    }

    /// A pair of a leaf.
    #[inline(always)]
    fn pair(&self, leaf: u64, slot: u32) -> &Pair {
        debug_assert!(slot < self.shape.slots);
        let offset = leaf + LEAF_HEADER + u64::from(slot) * size_of::<Pair>() as u64;
        // SAFETY: as above: `slot` is one of the leaf's.
        unsafe { self.core.memory.at_unchecked(Offset::new(offset)) }
    }

    /// How many records of a leaf were replaced or removed.
    #[inline(always)]
    fn replaced(&self, leaf: u32) -> Option<&SharedWord> {
        R::EMPTY.is_some().then(|| self.versions.reach(self.seam(), leaf))
    }

    /// What is wrong with a leaf that cannot be served.
    #[cold]
    fn damage_of(&self, leaf: u32) -> Damage {
        let damage = self.core.memory.seam().lock(&self.damage);
        damage.get(&leaf).cloned().unwrap_or_else(|| {
            Damage::new(self.master, "leaves that can be read", "one that cannot")
        })
    }

    /// Makes the bounds of a range as keys are kept.
    fn encode(&self, range: &mut KeyRange<R>) {
        if !range.encoded {
            for bound in [&mut range.low, &mut range.high] {
                if let Bound::Included(key) | Bound::Excluded(key) = bound {
                    let mut space = [0; 8];
                    *key = R::own(R::encode(self.shape.order, R::key_of(key), &mut space));
                }
            }
            range.encoded = true;
        }
    }

    /// Makes keys that were kept those that came.
    fn decode(&self, records: &mut [(R::OwnedKey, R::Owned)]) {
        records.iter_mut().for_each(|(key, _)| R::decode(self.shape.order, key));
    }
}

impl<S: Seam, R: OrderedRecord> Table<S, R> for Phast<S, R> {
    const SCHEME: Scheme = Scheme::Phast;

    #[inline(always)]
    fn core(&self) -> &Arc<Core<S>> {
        &self.core
    }

    fn growth(&self) -> Growth {
        let growth = self.counters.growth();
        Growth { splits: growth.splits + self.merges.get(), ..growth }
    }

    #[inline(always)]
    fn encode<'s, 'k: 's>(&self, key: R::Key<'k>, space: &'s mut [u8; 8]) -> R::Key<'s> {
        R::encode(self.shape.order, key, space)
    }

    fn ordered(&self) -> Option<&dyn OrderedIndex<R>> {
        Some(self)
    }
}

impl<S: Seam, R: OrderedRecord> OrderedIndex<R> for Phast<S, R> {
    fn next(
        &self,
        range: &mut KeyRange<R>,
        reverse: bool,
        limit: usize,
        out: &mut Vec<(R::OwnedKey, R::Owned)>,
    ) -> Result<()> {
        self.encode(range);
        if range.done || limit == 0 {
            return Ok(());
        }
        let start = out.len();
        self.range_step(range, reverse, limit, out)?;
        self.decode(&mut out[start..]);
        Ok(())
    }

    fn end(
        &self,
        mut range: KeyRange<R>,
        reverse: bool,
    ) -> Result<Option<(R::OwnedKey, R::Owned)>> {
        self.encode(&mut range);
        let mut found = self.range_end(&range, reverse)?;
        self.decode(found.as_mut_slice());
        Ok(found)
    }
}
