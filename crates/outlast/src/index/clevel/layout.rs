//! The on-media structs of clevel and nothing else. Drawn in docs/format.md.

pub use crate::index::config::GROUP_BITS;
use crate::index::kit::media::{self, LOW48 as OFFSET};
use crate::pmem::{LINE, Media, Word};

/// Slots in a bucket.
pub const SLOTS: usize = 8;
/// Bytes of a bucket: a line.
pub const BUCKET_BYTES: u64 = LINE;
/// Bytes of a level before its buckets.
pub const LEVEL_HEADER: u64 = LINE;
/// log2 of the buckets of the smallest level and of the largest.
pub const LEVEL_BITS: std::ops::RangeInclusive<u32> = 1..=32;
/// The most levels in a context.
pub const MAX_LEVELS: usize = 30;
/// Bytes of a context.
pub const CONTEXT_BYTES: u64 = 256;
/// Buckets in an overflow node.
pub const NODE_BUCKETS: usize = 3;
/// Bytes of an overflow node.
pub const NODE_BYTES: u64 = (1 + NODE_BUCKETS as u64) * BUCKET_BYTES;
/// Bytes of a record before its key.
pub const RECORD_HEADER: u64 = 16;

/// Returns log2 of the groups of a level.
pub fn level_groups(bits: u32, group_bits: u32) -> u32 {
    bits.saturating_sub(group_bits)
}

/// Returns the size, in bytes, of a level: header, buckets, and one word for each group. It is at
/// least 256, because blocks of that size and more are aligned to cache lines.
pub fn level_bytes(bits: u32, group_bits: u32) -> u64 {
    let heads = (8u64 << level_groups(bits, group_bits)).next_multiple_of(LINE);
    (LEVEL_HEADER + (BUCKET_BYTES << bits) + heads).max(256)
}

/// A bucket: eight slots, see [`slot`].
#[repr(C, align(64))]
pub struct Bucket {
    /// The slots.
    pub slots: [Word; SLOTS],
}
// SAFETY: consists of words.
unsafe impl Media for Bucket {}

/// The first line of a level. Its buckets follow, and then a word for each group: the link to the
/// first node of the group's overflow chain, see [`link`].
#[repr(C, align(64))]
pub struct LevelHeader {
    /// See [`identity`].
    pub identity: Word,
    /// Unused, of any content.
    pub unused: [Word; 7],
}
// SAFETY: consists of words.
unsafe impl Media for LevelHeader {}

/// The first line of an overflow node. Its buckets follow.
#[repr(C, align(64))]
pub struct NodeHeader {
    /// See [`identity`].
    pub identity: Word,
    /// The next node, see [`link`].
    pub next: Word,
    /// Unused, of any content.
    pub unused: [Word; 6],
}
// SAFETY: consists of words.
unsafe impl Media for NodeHeader {}

/// A context: the levels, by age. It does not change once the root names it.
#[repr(C, align(64))]
pub struct ContextBlock {
    /// CRC-32C of the block's offset and of the words after this one that are in use.
    pub check: Word,
    /// Low byte: the number of levels. Next byte: how many levels may stay, counted from the
    /// newest. While there are more, the oldest is emptied.
    pub counts: Word,
    /// The levels, the oldest first: offset and, from bit 48, log2 of the buckets.
    pub levels: [Word; MAX_LEVELS],
}
// SAFETY: consists of words.
unsafe impl Media for ContextBlock {}

/// The first two words of a record. Key and value follow.
#[repr(C, align(16))]
pub struct RecordHead {
    /// See [`state`].
    pub state: Word,
    /// Low half: CRC-32C of the block's offset, the lengths, key and value. High half: the number
    /// of the thread that wrote the record, which is its priority among inserts of the same key
    /// (the smallest wins).
    pub seal: Word,
}
// SAFETY: consists of words.
unsafe impl Media for RecordHead {}

const _: () = {
    assert!(size_of::<Bucket>() as u64 == BUCKET_BYTES);
    assert!(size_of::<LevelHeader>() as u64 == LEVEL_HEADER);
    assert!(size_of::<NodeHeader>() as u64 == BUCKET_BYTES);
    assert!(size_of::<ContextBlock>() as u64 == CONTEXT_BYTES);
    assert!(size_of::<RecordHead>() as u64 == RECORD_HEADER);
};

/// The words of slots.
///
/// ```text
///  63   62 61          48 47                      4 3     0
/// +-------+--------------+-------------------------+-------+
/// | mark  |     tag      |    record's offset / 16 | maker |
/// +-------+--------------+-------------------------+-------+
/// ```
///
/// In a word that names a record, `maker` is 0 unless the word is an unconfirmed copy, which only
/// its maker confirms.
///
/// ```text
///            announce         take effect        durable
///   EMPTY ------------> (R,A) ------------> (R,P) ------> (R) ---> EMPTY  (unlinked)
///     |  ^                |                                ^ |
///     |  +----------------+ withdrawn, or void             | +---> (N)    (replaced)
///     |  +----------------+                                |
///     |  v   copy         | withdrawn, or void             |
///     +------------> (R,C) --------------------------------+
///     |                       confirmed
///     +---> FROZEN (also from (R), once its copy is durable, and from what is withdrawn)
/// ```
pub mod slot {
    use super::OFFSET;

    /// Holds nothing.
    pub const EMPTY: u64 = 0;
    /// Holds nothing and takes no record any more, because its level is being emptied.
    pub const FROZEN: u64 = 1;
    /// Bits of a tag.
    pub const TAG_BITS: u32 = 14;

    const MARK: u64 = 3 << 62;
    /// In effect and durable.
    pub const PLAIN: u64 = 0;
    /// P: in effect, possibly not durable.
    pub const PENDING: u64 = 1 << 62;
    /// A: announced by an insert; not in effect. Void after a crash.
    pub const ANNOUNCED: u64 = 2 << 62;
    /// C: an unconfirmed copy. No thread follows it, and only its maker confirms it. Void after a
    /// crash.
    pub const COPY: u64 = 3 << 62;

    /// Returns the word of a record at `offset`, in effect and durable.
    #[inline(always)]
    pub fn word(offset: u64, tag: u64) -> u64 {
        debug_assert!(offset <= OFFSET && tag < 1 << TAG_BITS);
        offset | tag << 48
    }
    /// Makers of copies are numbered below this.
    pub const MAKERS: u32 = 16;

    /// Returns the word of the unconfirmed copy that `maker` makes of `plain`, the word of a slot
    /// in effect.
    #[inline(always)]
    pub fn copy(plain: u64, maker: u32) -> u64 {
        debug_assert!(mark(plain) == PLAIN && plain & 15 == 0 && maker < MAKERS);
        plain | COPY | u64::from(maker)
    }
    /// Returns the record's offset. Not for copies.
    #[inline(always)]
    pub fn offset(word: u64) -> u64 {
        debug_assert!(mark(word) != COPY);
        word & OFFSET
    }
    /// Returns the record's tag.
    #[inline(always)]
    pub fn tag(word: u64) -> u64 {
        word >> 48 & ((1 << TAG_BITS) - 1)
    }
    /// Returns one of [`PLAIN`], [`PENDING`], [`ANNOUNCED`], [`COPY`].
    #[inline(always)]
    pub fn mark(word: u64) -> u64 {
        word & MARK
    }
    /// Replaces the mark of a word.
    #[inline(always)]
    pub fn with_mark(word: u64, mark: u64) -> u64 {
        word & !MARK | mark
    }
    /// Returns whether the word names a record at all.
    #[inline(always)]
    pub fn is_link(word: u64) -> bool {
        word & OFFSET > FROZEN
    }
    /// Returns whether the word leads to the record that it names: it is neither an unconfirmed
    /// copy nor only announced.
    #[inline(always)]
    pub fn leads(word: u64) -> bool {
        is_link(word) && mark(word) & ANNOUNCED == 0
    }
}

/// State words of records.
///
/// ```text
///  63   62    60 59       48 47 46 45          17 16          0
/// +---+--------+------------+-----+--------------+-------------+
/// | P |  kind  |     0      |  0  | value length | key length  |   but for FORWARD:
/// +---+--------+------------+-----+--------------+-------------+
/// | P |  kind  |     0      |    offset of the record after it |
/// +---+--------+------------+----------------------------------+
/// ```
///
/// ```text
///   UNDECIDED ---> LIVE ---> FORWARD  (replaced)
///       |            +-----> DEAD     (removed)
///       +---> KILLED
/// ```
///
/// P: possibly not durable; on FORWARD and DEAD only. UNDECIDED and KILLED have a meaning only if a
/// slot announces the record. In any other record, UNDECIDED means LIVE, because a crash can have
/// undone the store of LIVE.
pub mod state {
    use super::OFFSET;

    /// In effect.
    pub const LIVE: u64 = 1 << 60;
    /// Announced; see above.
    pub const UNDECIDED: u64 = 2 << 60;
    /// Announced and lost.
    pub const KILLED: u64 = 3 << 60;
    /// Replaced by another record.
    pub const FORWARD: u64 = 4 << 60;
    /// Removed.
    pub const DEAD: u64 = 5 << 60;
    /// P.
    pub const PENDING: u64 = 1 << 63;

    const KIND: u64 = 7 << 60;
    const KEY_BITS: u32 = 17;
    const LENGTHS: u64 = (1 << 46) - 1;

    /// Returns a state of this kind for these lengths.
    #[inline(always)]
    pub fn word(kind: u64, key_len: usize, value_len: usize) -> u64 {
        kind | key_len as u64 | (value_len as u64) << KEY_BITS
    }
    /// Returns the kind of a state.
    #[inline(always)]
    pub fn kind(word: u64) -> u64 {
        word & KIND
    }
    /// Replaces the kind of a state.
    #[inline(always)]
    pub fn with_kind(word: u64, kind: u64) -> u64 {
        word & LENGTHS | kind
    }
    /// Returns both lengths, in the form that the checksum covers.
    #[inline(always)]
    pub fn packed_lengths(word: u64) -> u64 {
        word & LENGTHS
    }
    /// Returns the lengths of key and value.
    #[inline(always)]
    pub fn lengths(word: u64) -> (usize, usize) {
        let key_len = word & ((1 << KEY_BITS) - 1);
        (key_len as usize, ((word & LENGTHS) >> KEY_BITS) as usize)
    }
    /// Returns the state of a record that the one at `offset` has replaced.
    #[inline(always)]
    pub fn forward(offset: u64) -> u64 {
        FORWARD | offset
    }
    /// Returns the record that has replaced this one.
    #[inline(always)]
    pub fn next(word: u64) -> u64 {
        word & OFFSET
    }
    /// Returns whether the word can be a state.
    pub fn is_known(word: u64) -> bool {
        let rest = match kind(word) {
            LIVE | UNDECIDED | KILLED => word & !(KIND | LENGTHS),
            DEAD => word & !(KIND | LENGTHS | PENDING),
            FORWARD => word & !(KIND | OFFSET | PENDING),
            _ => return false,
        };
        rest == 0
    }
}

/// Links of overflow chains: the offset of a node, which the mark P can accompany; or 0 if there is
/// no node; or [`CLOSED`](link::CLOSED). All other bits are 0.
pub mod link {
    use super::OFFSET;

    /// There is no node, and none is added any more, because the level is being emptied.
    pub const CLOSED: u64 = 1;
    /// P: possibly not durable.
    pub const PENDING: u64 = 1 << 63;

    /// Returns the node's offset.
    pub fn offset(word: u64) -> u64 {
        word & OFFSET
    }
    /// Returns whether the word can be a link. Only a link to a node can be pending.
    pub fn is_known(word: u64) -> bool {
        word & !(OFFSET | PENDING) == 0 && (word & PENDING == 0 || is_node(word))
    }
    /// Returns whether the word names a node.
    pub fn is_node(word: u64) -> bool {
        word & OFFSET > CLOSED
    }
}

/// The kind of a structure, for [`identity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// A level.
    Level = 0xc1e0,
    /// An overflow node.
    Node = 0xc1e1,
}

/// Returns the identity word of a structure; see `kit::media::identity`. Its property is log2 of a
/// level's buckets, or 0 for an overflow node. Its checksum covers the offset.
pub fn identity(kind: Kind, offset: u64, property: u32) -> u64 {
    media::identity(kind as u16, property as u16, &[offset])
}

/// Returns a level's word in a context, which is also the root's word of the level kept ready.
pub fn pack_level(offset: u64, bits: u32) -> u64 {
    offset | u64::from(bits) << 48
}

/// Reads a level's word. Returns `None` if it cannot be one.
pub fn unpack_level(word: u64) -> Option<(u64, u32)> {
    let (offset, bits) = (word & OFFSET, (word >> 48) as u32);
    let whole = LEVEL_BITS.contains(&bits) && offset != 0 && offset.is_multiple_of(LINE);
    whole.then_some((offset, bits))
}

/// The root's scheme words.
pub mod root {
    use super::{LINE, OFFSET, media};

    /// The context. This is the commit word of every change of the levels.
    pub const CONTEXT: usize = 0;
    /// The level kept ready for the next expansion, or 0; see [`pack_level`](super::pack_level).
    pub const READY: usize = 1;
    /// How far the emptying of the oldest level has come. The word only saves rework after a
    /// restart, so it is not flushed.
    pub const PROGRESS: usize = 2;

    /// P on the context's word: possibly not durable.
    pub const PENDING: u64 = 1 << 48;
    /// Changes of the context are counted from this bit on, modulo [`TURNS`].
    const TURN_SHIFT: u32 = 49;
    /// See [`TURN_SHIFT`].
    const TURNS: u64 = 1 << 7;

    /// Returns the root's word of a context, without P.
    ///
    /// ```text
    ///  63      56 55    49  48  47                          0
    /// +----------+--------+---+-----------------------------+
    /// |  check   |  turn  | P |      context's offset       |
    /// +----------+--------+---+-----------------------------+
    /// ```
    ///
    /// `check` is a CRC-32C of the lower 56 bits without P, folded to 8 bits.
    pub fn pack(context: u64, turn: u64) -> u64 {
        media::seal8(context | (turn % TURNS) << TURN_SHIFT)
    }
    /// Reads the word, with or without P. Returns the context's offset and the turn, or `None` if
    /// the word is damaged.
    pub fn unpack(word: u64) -> Option<(u64, u64)> {
        let offset = word & OFFSET;
        let turn = word >> TURN_SHIFT & (TURNS - 1);
        let whole = pack(offset, turn) == word & !PENDING;
        (whole && offset != 0 && offset.is_multiple_of(LINE)).then_some((offset, turn))
    }
    /// Returns the progress mark for a part of a level: a bucket or, after the last bucket, a
    /// group's chain.
    pub fn pack_progress(level: u64, bucket: u64) -> u64 {
        bucket & 0xffff_ffff | (level / LINE) << 32
    }
    /// Returns the part if the mark is for this level, otherwise 0.
    pub fn progress(word: u64, level: u64) -> u64 {
        let bucket = word & 0xffff_ffff;
        if pack_progress(level, bucket) == word { bucket } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back() {
        let word = slot::word(0xabc0, 0x2a5a);
        assert_eq!((slot::offset(word), slot::tag(word), slot::mark(word)), (0xabc0, 0x2a5a, 0));
        let announced = slot::with_mark(word, slot::ANNOUNCED);
        assert_eq!((slot::offset(announced), slot::tag(announced)), (0xabc0, 0x2a5a));
        assert_eq!(slot::with_mark(announced, slot::PLAIN), word);
        let copies = [0, 1, 15].map(|maker| slot::copy(word, maker));
        assert!(copies.iter().all(|&c| slot::mark(c) == slot::COPY && slot::tag(c) == 0x2a5a));
        assert!(copies.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(!slot::is_link(slot::EMPTY) && !slot::is_link(slot::FROZEN));
        let state = state::word(state::UNDECIDED, 1 << 16, 1 << 28);
        assert_eq!(state::lengths(state), (1 << 16, 1 << 28));
        assert_eq!(state::kind(state::with_kind(state, state::DEAD)), state::DEAD);
        assert!(state::is_known(state) && !state::is_known(state | 1 << 50));
        assert!(!state::is_known(0));
        let root = root::pack(0x10040, 5);
        assert_eq!(root::unpack(root), Some((0x10040, 5)));
        assert_eq!(root::unpack(root | root::PENDING), Some((0x10040, 5)));
        assert_eq!(root::unpack(root ^ 1 << 20), None);
        assert_eq!(unpack_level(pack_level(0x40, 9)), Some((0x40, 9)));
        assert_eq!(root::progress(root::pack_progress(0x1000, 77), 0x1000), 77);
        assert_eq!(root::progress(root::pack_progress(0x1000, 77), 0x2000), 0);
    }
}
