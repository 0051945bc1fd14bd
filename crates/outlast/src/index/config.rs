//! What the creator of a map chooses, for each scheme. It is fixed for the life of the map.

use super::ordered::KeyOrder;
use super::registry::Scheme;
use crate::error::{Error, Result};
use std::fmt;
use std::ops::RangeInclusive;

/// log2 of the buckets of a group of clevel, in every map that is created with the users' settings.
pub const GROUP_BITS: u32 = 9;
/// The cells of a group of group hashing.
pub const GROUP_SIZES: RangeInclusive<u32> = 16..=1024;
/// log2 of the segments of a new map of Dash-LH.
pub const DASH_LH_DEPTHS: RangeInclusive<u32> = 1..=10;
/// log2 of the size of the largest segments of line hashing, in KiB.
pub const LINE_SEGMENT_BITS: RangeInclusive<u32> = 0..=5;
/// log2 of the buckets of a new map of EA-PHT.
pub const EA_PHT_DEPTHS: RangeInclusive<u32> = 1..=24;
/// log2 of the buckets in a chunk of EA-PHT.
pub const CHUNK_BITS: RangeInclusive<u32> = 1..=16;
/// The most records of a leaf of PhaST.
pub const MAX_SLOTS: u32 = 56;
/// The most leaves of an inner node of PhaST.
pub const MAX_LEAVES: u32 = 1024;
/// The most partitions of PhaST.
pub const MAX_PARTITIONS: u32 = 1024;
const HELPERS: RangeInclusive<u32> = 1..=64;

/// What a scheme lets the creator of a map choose. It is fixed for the life of the map.
pub trait SchemeConfig: Copy + Eq + fmt::Debug + Default {
    /// Returns the smallest configuration, with which a few inserts split or expand a map.
    fn small() -> Self;

    /// Checks the values.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a value that is not allowed.
    fn check(self) -> Result<()>;

    /// Returns the configuration for a map whose keys have this schema.
    #[must_use]
    fn for_keys(self, _key_schema: &str) -> Self {
        self
    }

    /// Reads the words of a map's root. Returns `None` if they are not those of any map.
    fn from_words(words: [u64; 3]) -> Option<Self>;

    /// Returns the words for a map's root.
    fn to_words(self) -> [u64; 3];
}

/// Checks a setting of a new map.
///
/// # Errors
/// [`Error::Invalid`] if the value is not in `range`, or not a multiple of `step`.
fn check_setting(name: &str, value: u32, range: RangeInclusive<u32>, step: u32) -> Result<()> {
    if range.contains(&value) && value.is_multiple_of(step) {
        return Ok(());
    }
    let (low, high) = range.into_inner();
    let multiple = if step == 1 { String::new() } else { format!("a multiple of {step} ") };
    let why = format!("{name} is {value}; it must be {multiple}from {low} to {high}");
    Err(Error::Invalid { what: "map options", why })
}

/// The size of a map's segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentSize {
    /// log2 of the buckets of a segment: from 1 to 6.
    pub bucket_bits: u32,
    /// Stash buckets of a segment: 2 or 4.
    pub stash: u32,
}

impl SegmentSize {
    pub(crate) fn check(self) -> Result<()> {
        check_setting("bucket_bits", self.bucket_bits, 1..=6, 1)?;
        check_setting("stash_buckets", self.stash, 2..=4, 2)
    }

    /// Reads two words of a root. Returns `None` if no segment has this size.
    pub(crate) fn from_words([bucket_bits, stash]: [u64; 2]) -> Option<SegmentSize> {
        let [bucket_bits, stash] = [bucket_bits, stash].map(|word| u32::try_from(word).ok());
        let size = SegmentSize { bucket_bits: bucket_bits?, stash: stash? };
        size.check().is_ok().then_some(size)
    }

    pub(crate) fn to_words(self) -> [u64; 2] {
        [u64::from(self.bucket_bits), u64::from(self.stash)]
    }
}

/// The size of a map's segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DashEh {
    /// log2 of the buckets of a segment: from 1 to 6.
    pub bucket_bits: u32,
    /// Stash buckets of a segment: 2 or 4. With four, segments fill further before they split, but
    /// misses in full segments are slower.
    pub stash_buckets: u32,
}

impl Default for DashEh {
    fn default() -> DashEh {
        DashEh { bucket_bits: 6, stash_buckets: 2 }
    }
}

impl SchemeConfig for DashEh {
    fn small() -> DashEh {
        DashEh { bucket_bits: 1, ..DashEh::default() }
    }

    fn check(self) -> Result<()> {
        self.size().check()
    }

    fn from_words([bucket_bits, stash, rest]: [u64; 3]) -> Option<DashEh> {
        let size = SegmentSize::from_words([bucket_bits, stash])?;
        (rest == 0).then(|| size.into())
    }

    fn to_words(self) -> [u64; 3] {
        let [bucket_bits, stash] = self.size().to_words();
        [bucket_bits, stash, 0]
    }
}

impl DashEh {
    pub(crate) fn size(self) -> SegmentSize {
        SegmentSize { bucket_bits: self.bucket_bits, stash: self.stash_buckets }
    }
}

impl From<SegmentSize> for DashEh {
    fn from(size: SegmentSize) -> DashEh {
        DashEh { bucket_bits: size.bucket_bits, stash_buckets: size.stash }
    }
}

/// The size of a map's segments, and how many it begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DashLh {
    /// log2 of the buckets of a segment: from 1 to 6.
    pub bucket_bits: u32,
    /// Stash buckets of a segment: 2 or 4. With four, segments fill further before they split, but
    /// misses in full segments are slower.
    pub stash_buckets: u32,
    /// log2 of the segments that a new map has: from 1 to 10. The default, 6, is 1.1 MB with segments of
    /// the usual size. The map allocates its segments in arrays, each in one block, and the first arrays
    /// have this many segments. In a pool without space for such a block, use a smaller value: otherwise
    /// creating the map fails with [`Error::PoolFull`](crate::Error::PoolFull), or with
    /// [`Error::Invalid`](crate::Error::Invalid) where the pool's pages are too small for it.
    pub initial_depth: u32,
}

impl Default for DashLh {
    fn default() -> DashLh {
        DashLh { bucket_bits: 6, stash_buckets: 2, initial_depth: 6 }
    }
}

impl SchemeConfig for DashLh {
    fn small() -> DashLh {
        DashLh { bucket_bits: 1, initial_depth: 1, ..DashLh::default() }
    }

    fn check(self) -> Result<()> {
        self.size().check()?;
        check_setting("initial_depth", self.initial_depth, DASH_LH_DEPTHS, 1)
    }

    fn from_words([bucket_bits, stash, depth]: [u64; 3]) -> Option<DashLh> {
        let SegmentSize { bucket_bits, stash } = SegmentSize::from_words([bucket_bits, stash])?;
        let initial_depth = u32::try_from(depth).ok().filter(|d| DASH_LH_DEPTHS.contains(d))?;
        Some(DashLh { bucket_bits, stash_buckets: stash, initial_depth })
    }

    fn to_words(self) -> [u64; 3] {
        let [bucket_bits, stash] = self.size().to_words();
        [bucket_bits, stash, u64::from(self.initial_depth)]
    }
}

impl DashLh {
    pub(crate) fn size(self) -> SegmentSize {
        SegmentSize { bucket_bits: self.bucket_bits, stash: self.stash_buckets }
    }
}

/// The size of a map's segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// log2 of the size of the largest segments, in KiB: from 0 to 5 (the default, 32 KiB). A map begins
    /// with segments of 1 KiB. Small values are for tests.
    pub segment_bits: u32,
}

impl Default for Line {
    fn default() -> Line {
        Line { segment_bits: 5 }
    }
}

impl SchemeConfig for Line {
    fn small() -> Line {
        Line { segment_bits: 0 }
    }

    fn check(self) -> Result<()> {
        check_setting("segment_bits", self.segment_bits, LINE_SEGMENT_BITS, 1)
    }

    fn from_words([bits, rest, other]: [u64; 3]) -> Option<Line> {
        let config = Line { segment_bits: u32::try_from(bits).ok()? };
        (rest == 0 && other == 0 && config.check().is_ok()).then_some(config)
    }

    fn to_words(self) -> [u64; 3] {
        [u64::from(self.segment_bits), 0, 0]
    }
}

/// The size of a map's first level, and of the groups of all levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clevel {
    /// log2 of the buckets of the first level, and of the smallest one: from 1 to 16.
    pub first_bits: u32,
    /// log2 of the buckets of a group: from 1 to 9 (the default). Small values are for
    /// tests.
    pub group_bits: u32,
}

impl Default for Clevel {
    fn default() -> Clevel {
        Clevel { first_bits: 6, group_bits: GROUP_BITS }
    }
}

impl SchemeConfig for Clevel {
    fn small() -> Clevel {
        Clevel { first_bits: 1, ..Clevel::default() }
    }

    fn check(self) -> Result<()> {
        check_setting("first_bits", self.first_bits, 1..=16, 1)?;
        check_setting("group_bits", self.group_bits, 1..=GROUP_BITS, 1)
    }

    fn from_words([first, group, rest]: [u64; 3]) -> Option<Clevel> {
        let [first_bits, group_bits] = [first, group].map(|word| u32::try_from(word).ok());
        let config = Clevel { first_bits: first_bits?, group_bits: group_bits? };
        (rest == 0 && config.check().is_ok()).then_some(config)
    }

    fn to_words(self) -> [u64; 3] {
        [u64::from(self.first_bits), u64::from(self.group_bits), 0]
    }
}

/// The layout of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// Cells of a group: a power of two from 16 to 1024. Larger groups fill further before they split, but
    /// inserts, misses and splits take longer. Default: 256.
    pub group_size: u32,
    /// log2 of the segments that a new map has: from 1 to 20. A segment is two groups: with groups of
    /// 256 cells, 8 KiB and about 400 records. Default: 1.
    pub initial_depth: u32,
}

impl Default for Group {
    fn default() -> Group {
        Group { group_size: 256, initial_depth: 1 }
    }
}

impl SchemeConfig for Group {
    fn small() -> Group {
        Group { group_size: 16, ..Group::default() }
    }

    fn check(self) -> Result<()> {
        let Group { group_size, initial_depth } = self;
        check_setting("group_size", group_size, GROUP_SIZES, 1)?;
        if !group_size.is_power_of_two() {
            let why =
                format!("group_size is {group_size}; it must be a power of two from 16 to 1024");
            return Err(Error::Invalid { what: "map options", why });
        }
        check_setting("initial_depth", initial_depth, 1..=20, 1)
    }

    fn from_words([group, depth, rest]: [u64; 3]) -> Option<Group> {
        let [group_size, initial_depth] = [group, depth].map(|word| u32::try_from(word).ok());
        let config = Group { group_size: group_size?, initial_depth: initial_depth? };
        (rest == 0 && config.check().is_ok()).then_some(config)
    }

    fn to_words(self) -> [u64; 3] {
        [u64::from(self.group_size), u64::from(self.initial_depth), 0]
    }
}

/// The layout of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Phast {
    /// Records of a leaf: a multiple of 4, from 4 to 56. Default: 56. Small leaves are for tests: a few
    /// inserts then cause a split.
    pub leaf_slots: u32,
    /// The most leaves of an inner node: from 4 to 1024. Default: 128.
    pub node_leaves: u32,
    /// The most partitions: from 1 to 1024. Partitions divide the keys that are present, not the key space.
    /// More of them make opening with many threads faster. Default: 128.
    pub partitions: u32,
    /// The order of its keys, which follows from their type.
    #[doc(hidden)]
    pub order: KeyOrder,
}

impl Default for Phast {
    fn default() -> Phast {
        Phast { leaf_slots: MAX_SLOTS, node_leaves: 128, partitions: 128, order: KeyOrder::Plain }
    }
}

impl SchemeConfig for Phast {
    fn small() -> Phast {
        Phast { leaf_slots: 8, node_leaves: 4, partitions: 4, ..Phast::default() }
    }

    fn check(self) -> Result<()> {
        check_setting("leaf_slots", self.leaf_slots, 4..=MAX_SLOTS, 4)?;
        check_setting("node_leaves", self.node_leaves, 4..=MAX_LEAVES, 1)?;
        check_setting("partitions", self.partitions, 1..=MAX_PARTITIONS, 1)
    }

    fn for_keys(self, key_schema: &str) -> Phast {
        Phast { order: KeyOrder::of_schema(key_schema), ..self }
    }

    fn from_words(words: [u64; 3]) -> Option<Phast> {
        let config = Phast {
            leaf_slots: u32::try_from(words[0]).ok()?,
            node_leaves: words[1] as u32,
            partitions: (words[1] >> 32) as u32,
            order: KeyOrder::from_media(words[2])?,
        };
        config.check().is_ok().then_some(config)
    }

    fn to_words(self) -> [u64; 3] {
        let nodes = u64::from(self.node_leaves) | u64::from(self.partitions) << 32;
        [u64::from(self.leaf_slots), nodes, self.order.to_media()]
    }
}

/// The layout of a map of one of the three schemes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EaPhtOf<const SCHEME: u8> {
    /// log2 of the buckets of a new map: from 1 to 24. A bucket is 256 bytes and about ten records.
    /// Default: 4.
    pub initial_depth: u32,
    /// log2 of the buckets in a block of the table, a chunk: from 1 to 16 (the default, 18 MB). A smaller
    /// table is one chunk. Small values are for tests.
    pub chunk_bits: u32,
    /// How many threads may help to move a table at a time, besides the thread that began the
    /// resize and the background thread: from 1 to 64. Default: 1, and 32 in EA-PHT-HPR.
    pub helpers: u32,
}

impl<const SCHEME: u8> Default for EaPhtOf<SCHEME> {
    fn default() -> Self {
        let helpers = if SCHEME == Scheme::EaPhtHpr as u8 { 32 } else { 1 };
        EaPhtOf { initial_depth: 4, chunk_bits: 16, helpers }
    }
}

impl<const SCHEME: u8> SchemeConfig for EaPhtOf<SCHEME> {
    fn small() -> Self {
        EaPhtOf { initial_depth: 1, chunk_bits: 2, ..Self::default() }
    }

    fn check(self) -> Result<()> {
        check_setting("initial_depth", self.initial_depth, EA_PHT_DEPTHS, 1)?;
        check_setting("chunk_bits", self.chunk_bits, CHUNK_BITS, 1)?;
        check_setting("helpers", self.helpers, HELPERS, 1)
    }

    fn from_words(words: [u64; 3]) -> Option<Self> {
        let [initial_depth, chunk_bits, helpers] = words.map(|word| u32::try_from(word).ok());
        let (initial_depth, chunk_bits) = (initial_depth?, chunk_bits?);
        let config = EaPhtOf { initial_depth, chunk_bits, helpers: helpers? };
        config.check().is_ok().then_some(config)
    }

    fn to_words(self) -> [u64; 3] {
        [self.initial_depth, self.chunk_bits, self.helpers].map(u64::from)
    }
}

/// The layout of a map of EA-PHT.
pub type EaPht = EaPhtOf<{ Scheme::EaPht as u8 }>;
/// The layout of a map of EA-PHT-H.
pub type EaPhtH = EaPhtOf<{ Scheme::EaPhtH as u8 }>;
/// The layout of a map of EA-PHT-HPR.
pub type EaPhtHpr = EaPhtOf<{ Scheme::EaPhtHpr as u8 }>;
