//! PhaST: an ordered index with its inner part in DRAM and its leaves in persistent memory (Li et
//! al., TPDS 2022).
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
//! *Leaves.* A leaf has up to 56 pairs, unordered. A pair is the two words of a record. The key's
//! hash names one of the 14 lines of pairs. The pair is in that line if it had room, otherwise in
//! the adjacent line if that had room, otherwise in the first free slot. So a lookup prefetches the
//! header and the named line together. The bitmap says which slots hold a pair. It is in one line
//! with the fingerprints, so the flush that commits an insert covers both. The least key that can
//! be in a leaf is written when the leaf is made, and never changes. The leaf's keys are those from
//! its least key up to, but not including, the least key of the next leaf.
//!
//! *Blank slots.* A free slot of a leaf of 8-byte records has the key just below the leaf's least
//! key, which never belongs there: the slot is *blank*. So opening can tell whether a pair became
//! durable together with its bit, and an insert needs one fence. The first leaf has no blank slots,
//! because no key is below its least key, and byte strings have none, because their blocks need
//! another fence anyway.
//!
//! *Inner nodes.* An inner node lists up to 128 leaves by their least keys. A partition lists its
//! nodes, in an array that is searched first (the index cache). Nodes and caches have the same
//! form, in whole cache lines: a header, the first word of each line of words, the lines of words,
//! and what the words lead to. A search picks one line of words by these first words and reads only
//! that line, without a branch that could be mispredicted. For byte strings, a word is eight bytes
//! of a key, starting where the keys of the array begin to differ. So keys with a long common
//! prefix are told apart as fast as others. The prefix itself is in one more line, unless it is longer
//! than that. So the search reads the blocks of keys only for a longer prefix, for the bounds of a node
//! if it ends in the node's first or last leaf, and for keys whose eight bytes are equal. A node also
//! has the number of each leaf's first cache line, as a hint: an operation prefetches the leaf's lines
//! before it has read the leaf's offset, which is with the leaf's state.
//!
//! *Changes of byte strings.* A change looks its key up before it writes the new record's block, and
//! uses the place that this lookup has found. Like any place that was found early, it is checked
//! after the thread has announced itself in the leaf.
//!
//! *Partitions.* A partition is a part of the keys that are present. When it has twice its share of
//! nodes, it is split in the middle of its nodes. If there are as many partitions as allowed, this
//! happens at four times its share, and two small neighbors are joined first. Each partition has an
//! entry in the master array: the leaf that it begins with. So opening can read the partitions in
//! parallel.
//!
//! Integers are encoded so that their order as words or bytes is the numerical order
//! (`KeyOrder`).
//!
//! # Invariants
//!
//! 1. A slot holds a record if and only if its bit is set, its key is not below the leaf's least
//!    key, and, if there is a next leaf, its key is below that leaf's least key.
//! 2. Pairs outside those bounds have bits only in a leaf whose link is marked *moving*, and in slots
//!    that are blank, until the first opening after a crash.
//! 3. Least keys ascend along the links. The first leaf has the least key of all, and is never
//!    removed.
//! 4. An entry of the master array is 0, or a leaf that the links lead to.
//! 5. A slot's bit is set at most once until the leaf is *compacted* (the slots of removed pairs
//!    become free), split or merged. One thread does that while no other is active in the leaf. So
//!    for a thread that is active in the leaf, two equal bitmaps stand for the same keys. (They
//!    need not stand for the same blocks: the block of a byte-string record can be replaced and
//!    reused while the bit stays the same. So after a thread has compared keys in blocks, it checks
//!    the leaf's count of replaced records.)
//! 6. In a leaf whose DRAM state has the flag `BLANK`, every slot that is not in use is blank,
//!    durably.
//! 7. Readers return only results that are durable: if another thread is active in the leaf, the
//!    reader makes durable what its result depends on.
//!
//! # Commit points
//!
//! *Lines* are the cache lines that an operation flushes; *record*, *leaf* and *separator* stand
//! for all lines of such a block. An operation fences after the last store that it flushes. This
//! last fence is counted, but not always listed.
//!
//! | operation | stores, in order | lines, fences | a crash in between leaves |
//! |---|---|---|---|
//! | insert, inline, blank slot | fingerprint, pair, bit (commit once the pair is durable, too) | 2, 1 | a pair without a bit; a bit whose slot is blank, which opening clears; or the record |
//! | insert, inline, first leaf | fingerprint, pair; fence; bit (commit) | 2, 2 | a pair without a bit, or the record |
//! | insert, bytes | record block, fingerprint, pair; fence; bit (commit) | record + 2, 2 | a record block that no pair with a bit links to, which the sweep frees; otherwise as above |
//! | update, inline | value (commit) | 1, 1 | the old value or the new |
//! | update, bytes | record block; fence; link (commit) | record + 1, 2 | the old record or the new; the sweep frees the other block |
//! | remove | bit (commit) | 1, 1 | the record or none |
//! | map | the master array and the first leaf, completely; fence (shared with the root's fixed words); the root's commit word | both; no fence besides the root's | blocks that the sweep frees |
//! | compact | the slots that become free, made blank; fence (no slot and no fence without blank slots) | lines of pairs, 1 | slots without bits |
//! | split | the separator's block and the new leaf, completely; fence; the old leaf's link, marked moving (commit); fence; the slots that become free, made blank, and the old leaf's bits; fence; the link again, without the mark (not flushed) | leaf + 2 (+ separator, + lines of pairs with blank slots), 3 | before the commit, blocks that the sweep frees; after it, bits that opening clears |
//! | merge of pairs | the copies in free slots of the left leaf, its other free slots, made blank, and its link, marked moving; fence; the copies' fingerprints and bits; fence; the left leaf's link past the right leaf (commit); fence | copies + 3, 3 | before the commit, bits that opening clears |
//! | merge of an empty leaf | the left leaf's link past the empty leaf (commit); fence | 1, 1 | the leaf or none |
//! | partition | the entry of the master array; fence (a new entry shares the split's, the removal of an entry has its own) | 1, 0 or 1 | the entry or none, which affects only the time that opening takes |
//!
//! Why no fewer: a bit and its pair are in different lines. If the bit became durable first, the
//! slot would show what it held before. Hence the second fence, unless what it held before is blank.
//! The fingerprint is in the line of the bit and stored before it, so it is durable whenever the bit
//! is. Without the bit it means nothing. A lookup stores nothing, and flushes only if its leaf is
//! being changed concurrently.
//!
//! Slots stay blank until an insert uses them: an insert that is given up after it has stored its
//! pair keeps its slot, and so does a removal, until the leaf is compacted, split or merged. What
//! opening finds in free slots is not known, so the first insert into a leaf compacts it.
//!
//! Up to 16 changes of 8-byte records share one fence (`many.rs`).
//!
//! # Concurrency
//!
//! Each leaf has one word in DRAM, its *state* (`state.rs`): which slots are taken, how many
//! inserts are in progress, whether a thread is updating or removing, whether the leaf is closed.
//! It takes the place of the paper's shadow bitmap and read-write lock.
//!
//! - *Inserts* exclude only a thread that closes the leaf. An insert takes these steps:
//!   1. It reserves a slot, by one exchange of the state.
//!   2. It looks for its key.
//!   3. It writes the pair and makes it durable.
//!   4. It sets its bit, by an exchange of the bitmap. If that fails, other threads have set or
//!      cleared bits. Then the insert looks for its key among the bits that were set since it last
//!      looked, and retries.
//!
//!   In a blank slot, steps 3 and 4 share one fence, at the end.
//!
//!   By invariant 5, the exchange succeeds only if the leaf still holds exactly the keys that the
//!   insert has checked. So of two inserts of one key, the second sees the first one's bit.
//!   Linearization point: the exchange.
//! - *Updates and removals* in one leaf exclude each other (`BUSY`), but no other operation.
//!   Linearization point: for an update, the store of the value or link; for a removal, the
//!   exchange of the bitmap.
//! - *Lookups* lock nothing. A lookup reads the node under its version, then the leaf, then the
//!   leaf's state. If no thread is active in the leaf by then, what it has read is durable: threads
//!   make their stores durable before they leave the leaf. Otherwise the lookup flushes what its
//!   result depends on, and fences. If slots or leaves were reused in between, the node's version
//!   has changed. The blocks of byte-string records can be reused immediately. If one has been, the
//!   leaf's count of replaced records has changed. In both cases, the lookup retries.
//! - *A thread that closes a leaf* waits until no other thread is active in it. Compaction frees
//!   the slots of removed pairs after it has changed the node's version. A split publishes the new
//!   leaf in its node when the commit is durable, and clears bits of the old leaf after that. So if
//!   a reader came to the old leaf and sees it without those bits, the node's version has changed
//!   since the reader read it. Both leaves stay closed until the bits are cleared. A merge closes
//!   two neighboring leaves, the left one first.
//!
//! A thread that is active in a leaf has announced itself in the state, and after that has seen
//! that the node's version is unchanged. So the leaf is still the one for its key, and stays so
//! until the thread leaves.
//!
//! Lock order: leaves (left before right; by try-lock only), `structure`, nodes (left before
//! right). A node's lock is held while the node's arrays are rewritten; nothing is flushed under
//! it. Nothing in the pool is allocated under any of these locks: a split guesses where to split,
//! allocates, closes the leaf, and checks again.
//!
//! *Several keys.* A batch finds the places of all its keys before the first lookup or change, so that
//! their searches overlap. A place that was found early is used like any other: with the version that
//! its node had when the place was found. So a lookup sees after it has read the leaf whether the
//! place was still right, and a change sees it after it has announced itself. A change in the same
//! batch that splits or merges a leaf changes the version, too.
//!
//! The arrays above the nodes are hints. A thread replaces an array as a whole: it writes the new
//! content to a second buffer, and then swaps the two. A reader that still uses the old content may
//! reach the wrong node, but that node says whether the key belongs to it, to a node before it or
//! to one after it. So partitions and caches can change without any thread waiting. Inner nodes and
//! the DRAM state of leaves are reused for their own kind only, and are not freed before the map is
//! dropped. So no thread reads memory that now has another type.
//!
//! # Scans
//!
//! A scan reads leaf by leaf, each as a lookup does, and prefetches the next leaf while it sorts.
//! The records that it returns for one leaf were all present at one moment. It continues at the key
//! at which the leaf ended at that moment: the least key of the leaf that was next. (A reverse scan
//! continues below the leaf's own least key.) The scan remembers a key and not a position, so
//! splits and merges between two steps do not matter. A record that is present during the whole
//! scan is returned exactly once, in key order.
//!
//! # After a crash
//!
//! Opening reads the header lines of all leaves before the first operation, and, if the pool was not
//! closed cleanly and the leaves have blank slots, their pairs. Each of its threads
//! takes a part of the chain at a time, from one entry of the master array to the next, and takes
//! these steps:
//!
//! 1. It flushes what it finds. After process death, stores that were not flushed are still in the
//!    caches, and results will depend on them.
//! 2. In a leaf whose link is marked moving, it clears the bits of pairs outside the leaf's bounds,
//!    and in every leaf those of blank slots, durably.
//! 3. It builds the nodes.
//!
//! *What a crash leaves of a split:*
//!
//! 1. The separator and the new leaf are written. Crash: blocks that the sweep frees.
//! 2. The old leaf's link leads to the new leaf and is marked moving (commit). Crash: the old
//!    leaf's pairs from the separator on are not records any more (invariant 1), and opening clears
//!    their bits.
//! 3. The old leaf's free slots are made blank and its bits cleared, durably. A slot can become blank
//!    before its bit is cleared. Until both are durable, the new leaf stays closed. So none of
//!    the blocks of the moved records is reused, and opening can tell by their keys which bits to
//!    clear. Crash: opening finds no bits to clear.
//! 4. The mark is removed, unflushed. Crash: opening checks the keys of the leaf once more.
//!
//! *What a crash leaves of a merge:*
//!
//! 1. The copies are written, and the left leaf's link is marked moving. Crash: pairs without bits.
//! 2. The copies get their bits. Crash: they are outside the left leaf's bounds, so they are not
//!    records, and opening clears their bits.
//! 3. The left leaf's link leads past the right leaf, without the mark (commit). Crash: the right
//!    leaf is not reachable, and the sweep frees it.
//!
//! So a removed key cannot come back from the other half of a split, or from a merge.
//!
//! If the chain cannot be followed because a leaf is damaged, operations on keys from there to the
//! next entry of the master array fail with the damage. If that leaf's least key cannot be read,
//! the leaf before it may be unavailable as well. All other keys are available.
//!
//! # Deviations from the paper
//!
//! - In the paper, two concurrent inserts of one key both succeed. Here the exchange of the bitmap
//!   lets only the first succeed; see above.
//! - In the paper, readers see a bit or a value before it is durable: thread 1 sets its bit, thread
//!   2 finds the key and returns, and a power loss then removes the key. Invariant 7 forbids this.
//! - The paper deletes by writing an invalid key, so that key cannot be used. It frees slots only
//!   when the leaf is split, and never frees leaves. Here a removal clears the bit, and a leaf that
//!   has few pairs left is merged and its space freed.
//! - A leaf stores its least key, which never changes, instead of its greatest, which a split would
//!   have to change in a second step.
//! - The paper detects an interrupted split by two leaves with the same greatest key. Here the link
//!   that commits the split says so.
//! - The paper forms partitions by the leading bits of keys. If all keys share those bits, one
//!   partition has them all. Here partitions divide the keys that are present.
//! - Here the caches lead to nodes, and a search follows the links between nodes to those that a
//!   cache does not list. The paper's towers of forward pointers would only hold the same keys
//!   again: a cache of 1 MiB, the paper's threshold, lists every node of a partition of up to
//!   40,000 nodes (280 million pairs).
//! - The paper's inserts take the first free slot. So a lookup learns only from the header where to
//!   look, and waits for memory twice. Here the hash names a line, and most pairs are in the line
//!   that their hash names.
//! - The paper has one lock for each node. Here there is one word for each leaf, so inserts into
//!   different leaves of a node do not contend for a lock.
//! - The paper splits an inner node under that node's own lock, and publishes a new cache by copying
//!   and an exchange. Here one lock of the map covers all changes of nodes, and caches are swapped
//!   between two buffers under it.
//! - The paper persists a pair and then its bit, with two fences. Here a slot that was never used is
//!   known to be blank, and one fence covers both.
//! - A scan takes no lock. In the paper it takes the node's read lock.
//! - Keys that come in ascending order split a leaf at seven eighths, not in half.
//! - Recovery does not compute fingerprints again: they are in one line with the bitmap.
//! - A leaf has at most 56 pairs; the paper also tries 64. The paper measures one thread with a build
//!   without locks; here there is one build.

pub mod bugs;
mod cache;
mod change;
pub mod layout;
mod lines;
mod many;
mod merge;
mod nodes;
mod ops;
pub mod points;
mod recover;
mod resize;
mod route;
mod salvage;
mod scan;
mod state;
mod structure;
mod verify;

#[cfg(test)]
mod tests;

use super::ordered::{KeyRange, OrderedIndex, OrderedRecord};
use crate::error::{Damage, Error, Result};
pub use crate::index::config::Phast as Config;
use crate::index::kit::table::Table;
use crate::index::kit::walk::{Counter, Counters};
use crate::index::{Growth, Scheme};
use crate::pmem::{LINE, Offset, Seam, SeededBug, SharedWord, Word};
use crate::pool::core::{Core, root_offset};
use crate::pool::layout::ROOT_SCHEME_WORDS;
use cache::{Cache, Pointer};
use layout::{LEAF_HEADER, LINE_SLOTS, LeafHeader, Pair};
use nodes::{Node, Nodes};
use route::Located;
use salvage::Missing;
use state::{Leaf, Slab};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

impl Config {
    fn leaf_bytes(self) -> u64 {
        layout::leaf_bytes(self.leaf_slots)
    }

    /// Returns the first slot of the line that this hash names.
    #[inline(always)]
    fn line_of(self, hash: u64) -> u32 {
        (((hash >> 32) * u64::from(self.leaf_slots / LINE_SLOTS)) >> 32) as u32 * LINE_SLOTS
    }

    /// Returns a bit for each slot.
    fn all_slots(self) -> u64 {
        (1 << self.leaf_slots) - 1
    }

    /// Returns whether leaves have blank slots. Those of byte strings have none: the block of a
    /// record needs a fence before it is linked to in any case.
    #[inline(always)]
    fn has_blanks<R: OrderedRecord>(self) -> bool {
        R::EMPTY.is_none()
    }

    /// Returns the first word of a blank slot in a leaf with this least key, or `None` if the leaf
    /// has no blank slots.
    #[inline(always)]
    fn blank<R: OrderedRecord>(self, low: u64) -> Option<u64> {
        if self.has_blanks::<R>() { layout::blank(low) } else { None }
    }
}

/// A range of the map's keys.
struct Partition {
    /// The number of its entry in the master array, and of its index cache.
    entry: u32,
    /// Its inner nodes.
    nodes: Vec<Pointer>,
}

/// The state above the inner nodes, which one thread changes at a time.
struct Structure {
    /// Never empty. The first partition begins with the least key.
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
    /// For each leaf, how many of its records were replaced or removed. Only for byte strings,
    /// whose blocks are reused.
    versions: Slab<SharedWord>,
    nodes: Nodes,
    /// The node of the least key. It never changes.
    first: u32,
    /// The list of partitions, which leads to their caches.
    top: Cache,
    /// Index caches, which lead to nodes.
    caches: Box<[Cache]>,
    structure: Mutex<Structure>,
    /// What is known of leaves that cannot be used.
    damage: Mutex<HashMap<u32, Missing>>,
    /// Counts splits of leaves and of inner nodes, and leaves that were repaired.
    counters: Counters,
    merges: Counter,
    form: PhantomData<R>,
}

/// Nodes do not have the lines of leaves from this offset on.
const UNLISTED: u64 = LINE << 32;

impl<S: Seam, R: OrderedRecord> Phast<S, R> {
    /// Opens the index whose root is in `slot`. Reads the headers of all its leaves, and after a
    /// crash repairs leaves. So the caller must have passed the gate or hold it, unless the pool
    /// was closed cleanly.
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

    /// Makes the master array and the first leaf of a new map, and flushes them. The caller's fence
    /// makes them durable before the root names them. Returns the scheme's words of the root.
    pub fn create(core: &Arc<Core<S>>, shape: Config) -> Result<[u64; ROOT_SCHEME_WORDS]> {
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

    /// Returns the DRAM state of a leaf.
    #[inline(always)]
    fn leaf(&self, handle: u32) -> &Leaf {
        self.leaves.get(self.seam(), handle)
    }

    /// Returns an inner node.
    #[inline(always)]
    fn node(&self, number: u32) -> &Node {
        self.nodes.get(self.seam(), number)
    }

    /// Returns the header of a leaf.
    #[inline(always)]
    fn header(&self, leaf: u64) -> &LeafHeader {
        // SAFETY: offsets of leaves are from allocations of that size, or were checked
        // (`check_leaf`, `expect`), or are 0. Their whole extent is inside the memory, and aligned.
        unsafe { self.core.memory.at_unchecked(Offset::new(leaf)) }
    }

    /// Prefetches the two lines of a leaf that an operation on a key of this hash most likely needs:
    /// the line with bitmap and fingerprints, and the line of pairs that the hash names. So their
    /// cache misses overlap, and also that of the leaf's state, which has the leaf's offset. In pools
    /// of more than 256 GiB, the node does not have the place of every leaf.
    #[inline(always)]
    fn prefetch(&self, at: &Located<'_>, hash: u64) {
        if let Some(leaf) = self.listed(at.line) {
            self.prefetch_at(leaf, hash);
        }
    }

    /// Returns the leaf that a node lists with this line, which is a hint: a concurrent change of the
    /// node can make it anything. `None` if there can be no leaf.
    #[inline(always)]
    fn listed(&self, line: u32) -> Option<u64> {
        let leaf = u64::from(line) * LINE;
        (leaf + self.shape.leaf_bytes() <= self.core.memory.len()).then_some(leaf)
    }

    /// Prefetches the same lines of a leaf that [`expect`](Self::expect) had no hint for.
    #[inline(always)]
    fn prefetch_far(&self, leaf: u64, hash: u64) {
        if leaf >= UNLISTED {
            self.prefetch_at(leaf, hash);
        }
    }

    #[inline(always)]
    fn prefetch_at(&self, leaf: u64, hash: u64) {
        let seam = self.core.memory.seam();
        seam.prefetch(&self.header(leaf).head);
        seam.prefetch(self.pair(leaf, self.shape.line_of(hash)));
    }

    /// Prefetches everything that a scan reads of a leaf.
    fn prefetch_all(&self, leaf: u64) {
        let seam = self.core.memory.seam();
        seam.prefetch(&self.header(leaf).head);
        for slot in (0..self.shape.leaf_slots).step_by(LINE_SLOTS as usize) {
            seam.prefetch(self.pair(leaf, slot));
        }
    }

    /// Returns a pair of a leaf.
    #[inline(always)]
    fn pair(&self, leaf: u64, slot: u32) -> &Pair {
        debug_assert!(slot < self.shape.leaf_slots);
        let offset = leaf + LEAF_HEADER + u64::from(slot) * size_of::<Pair>() as u64;
        // SAFETY: as above. `slot` is one of the leaf's slots.
        unsafe { self.core.memory.at_unchecked(Offset::new(offset)) }
    }

    /// Returns the count of replaced and removed records of a leaf, or `None` if records have no
    /// blocks.
    #[inline(always)]
    fn replaced(&self, leaf: u32) -> Option<&SharedWord> {
        R::EMPTY.is_some().then(|| self.versions.reach(self.seam(), leaf))
    }

    /// Returns the damage of a leaf that cannot be used.
    #[cold]
    fn damage_of(&self, leaf: u32) -> Damage {
        let damage = self.core.memory.seam().lock(&self.damage);
        damage.get(&leaf).map(|missing| missing.damage.clone()).unwrap_or_else(|| {
            Damage::new(self.master, "leaves that can be read", "one that cannot")
        })
    }

    /// Encodes the bounds of a range.
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

    /// Decodes keys into the form in which they were passed in.
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
