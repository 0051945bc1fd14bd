//! The parts of the walks of Dash-EH and Dash-LH that concern a directory's block and one segment. Line
//! hashing has directories of the same form.

use super::image::{Hash, LOW48, MAX_DEPTH, crc_words, fold16, identity};
use super::record::{ByKey, Slot};
use super::{MapReport, Owner, Walk, What};
use outlast::internals::pool::layout::RecordForm;
use outlast::{Damage, Error, Result};
use std::collections::HashSet;

const SLOTS: usize = 16;
const BUCKET_BYTES: u64 = 256;
const NODE_BYTES: u64 = 8 * BUCKET_BYTES;
pub(super) const DIRECTORY_HEADER: u64 = 64;

const DIRECTORY: u64 = 0xd1e0;
const SEGMENT: u64 = 0xd1e1;
const NODE: u64 = 0xd1e2;

impl Walk<'_, '_> {
    /// Reads the directory that the root's word at `place` names, and claims its block. Returns its
    /// depth, the offset of its entries, and the entries.
    pub(super) fn dash_directory(&mut self, place: u64, word: u64) -> Result<(u32, u64, Vec<u64>)> {
        let (depth, first, entries) = self.directory(place, word, DIRECTORY, MAX_DEPTH)?;
        self.region(first - DIRECTORY_HEADER, 8, What::Directory { depth });
        Ok((depth, first, entries))
    }

    /// Does the same for a directory of this kind, whose depth is at most `deepest`.
    pub(super) fn directory(
        &mut self,
        place: u64,
        word: u64,
        kind: u64,
        deepest: u32,
    ) -> Result<(u32, u64, Vec<u64>)> {
        // Offset, depth, and a checksum folded to 8 bits.
        let low = word & ((1 << 56) - 1);
        let sum = crc_words(&[low]);
        let check = (sum ^ sum >> 8 ^ sum >> 16 ^ sum >> 24) & 0xff;
        let (offset, depth) = (word & LOW48, (word >> 48 & 0xff) as u32);
        if word >> 56 != check || !(1..=deepest).contains(&depth) || !offset.is_multiple_of(64) {
            let expected = "a directory's offset and depth";
            return Err(Damage::new(place, expected, format!("{word:#x}")).into());
        }
        let expected = identity(kind, 0, offset, u64::from(depth));
        let found = self.image.word(offset)?;
        if found != expected {
            let expected = format!("a directory of depth {depth} ({expected:#x})");
            return Err(Damage::new(offset, expected, format!("{found:#x}")).into());
        }
        // The claim comes before the read, because it fails unless there is a block of that size.
        // The length of the file would not limit the read, because a sparse file can be of any
        // length.
        self.claim(offset, (DIRECTORY_HEADER + (8 << depth)).max(256), Owner::Structure)?;
        let entries = self.image.words(offset + DIRECTORY_HEADER, 1 << depth)?;
        Ok((depth, offset + DIRECTORY_HEADER, entries))
    }

    /// Reads a segment's header.
    pub(super) fn dash_segment(&self, shape: &Shape, offset: u64) -> Result<Segment> {
        if !offset.is_multiple_of(256) {
            return Err(
                Damage::new(offset, "a segment at a multiple of 256", "another offset").into()
            );
        }
        let words = self.image.words(offset, shape.segment_bytes / 8)?;
        let [found, low, state, chain] = words[..4] else { unreachable!("32 words and more") };
        let expected = shape.identity(offset, low);
        if found != expected {
            let expected = format!("a segment ({expected:#x})");
            return Err(Damage::new(offset, expected, format!("{found:#x}")).into());
        }
        let bits = state & LOW48;
        let depth = (bits >> 40) as u32;
        if state >> 48 != fold16(crc_words(&[bits, offset])) || !(1..=MAX_DEPTH).contains(&depth) {
            let expected = "a segment's state";
            return Err(Damage::new(offset + 16, expected, format!("{state:#x}")).into());
        }
        let partner = (bits & ((1 << 40) - 1)) << 8;
        Ok(Segment { offset, low, depth, partner, chain, words })
    }

    /// Walks the buckets and the overflow nodes of a segment. The caller has claimed the segment's
    /// block.
    pub(super) fn walk_segment(
        &mut self,
        map: &mut MapReport,
        shape: &Shape,
        segment: &Segment,
    ) -> Result<()> {
        self.region(segment.offset, 32, What::Segment { shape: shape.packed as u16 });
        map.segments += 1;
        let Segment { offset, low, depth, .. } = *segment;
        let number = self.seen.add(map, offset, low, depth);
        let mut keys = Keys::new();
        let mut walk_buckets = |walk: &mut Self, at: u64, words: &[u64], homes: u32| {
            for (bucket, words) in words.chunks_exact(BUCKET_BYTES as usize / 8).enumerate() {
                let at = at + bucket as u64 * BUCKET_BYTES;
                walk.region(at, BUCKET_BYTES, What::Bucket { form: map.form });
                let home = Some(bucket as u32).filter(|&bucket| bucket < homes);
                for slot in 0..SLOTS {
                    let place = at + slot as u64 * 16;
                    let words = [words[slot * 2], words[slot * 2 + 1]];
                    match walk.walk_slot(map, shape, segment, place, words, home, &mut keys) {
                        Ok(()) => {}
                        Err(Error::Damaged(damage)) => walk.problem(damage),
                        Err(error) => return Err(error),
                    }
                }
            }
            Ok(())
        };
        let own = (BUCKET_BYTES / 8) as usize;
        let first = segment.offset + BUCKET_BYTES;
        walk_buckets(self, first, &segment.words[own..], shape.buckets)?;
        let mut nodes = Vec::new();
        let mut seen = HashSet::new();
        let mut node = segment.chain;
        while node != 0 {
            let bad = |found: String| Error::from(Damage::new(node, "an overflow node", found));
            if !node.is_multiple_of(256) {
                return Err(bad("a misaligned offset".into()));
            }
            if !seen.insert(node) {
                return Err(bad("one that occurred earlier in the chain".into()));
            }
            let words = self.image.words(node, NODE_BYTES / 8)?;
            if words[0] != node_identity(node) {
                return Err(bad(format!("{:#x}", words[0])));
            }
            self.claim(node, NODE_BYTES, Owner::Structure)?;
            self.region(node, 16, What::Node);
            walk_buckets(self, node + BUCKET_BYTES, &words[own..], 0)?;
            nodes.push(node);
            node = words[1];
        }
        self.seen.set_whole(number);
        map.nodes += nodes.len() as u64;
        for (first, mut copies) in keys.into_values().filter(|(_, more)| !more.is_empty()) {
            map.duplicates += copies.len() as u64;
            copies.insert(0, first);
            if self.report.free_state || !is_left_by_crash(&copies) {
                let [.., last] = &copies[..] else { unreachable!("more than one") };
                let found = format!("{copies:x?}");
                self.problem(Damage::new(last.place, "each key once", found));
            }
        }
        Ok(())
    }

    /// Walks a slot. In a bucket that can be a home, `home` is its number, and the slot's record
    /// must be at home there or in the bucket before.
    #[expect(clippy::too_many_arguments, reason = "a slot is told by all of these")]
    fn walk_slot(
        &mut self,
        map: &mut MapReport,
        shape: &Shape,
        segment: &Segment,
        place: u64,
        [first, second]: [u64; 2],
        home: Option<u32>,
        keys: &mut Keys,
    ) -> Result<()> {
        if first == shape.empty[(segment.low >> 63) as usize] {
            return Ok(());
        }
        let hash = self.hash.of_slot(map.form, [first, second]);
        let own = (hash >> 8) as u32 & (shape.buckets - 1);
        if let Some(bucket) = home
            && own != bucket
            && (own + 1) & (shape.buckets - 1) != bucket
        {
            let expected = format!("an empty slot, or a record of bucket {bucket}");
            return Err(Damage::new(place, expected, format!("{first:#x} {second:#x}")).into());
        }
        if (hash ^ segment.low) >> (64 - segment.depth) != 0 {
            // The slot counts as empty: a split has moved its record to another segment.
            return self.check_stale(map, Slot { place, words: [first, second] });
        }
        self.region(place, 16, What::LiveSlot { form: map.form, depth: segment.depth });
        let part = match home {
            Some(bucket) if bucket == own => Part::Home,
            Some(_) => Part::Next,
            None => Part::Overflow,
        };
        let copy = Copy { place, part, first };
        let slot = Slot { place, words: [first, second] };
        if let Some(((copy, _), (_, more))) = keys.add(self, map.form, slot, (copy, Vec::new())) {
            // Only the block of a key's first copy is claimed. `walk_segment` judges all copies
            // together.
            more.push(copy);
            return Ok(());
        }
        map.records += 1;
        self.check_record(map, slot)
    }
}

/// The keys of a segment: where each was found first, and where else.
type Keys = ByKey<(Copy, Vec<Copy>)>;

/// Where in a segment a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// In its home bucket.
    Home,
    /// In the bucket after its home.
    Next,
    /// In a stash bucket or an overflow node.
    Overflow,
}

/// One location of a key.
#[derive(Debug)]
struct Copy {
    place: u64,
    part: Part,
    first: u64,
}

/// Returns whether a crash can have left a key in all of these places. A record is copied to its
/// home bucket, or the one after it, before it leaves its old place.
fn is_left_by_crash(copies: &[Copy]) -> bool {
    let count = |part| copies.iter().filter(|copy| copy.part == part).count();
    // The next open keeps the copy at home, otherwise the one in the bucket after it.
    let kept = match (count(Part::Home), count(Part::Next)) {
        (0, 0) => copies.len(),
        (0, next) => next,
        (home, _) => home,
    };
    kept == 1 && copies.iter().all(|copy| copy.first == copies[0].first)
}

/// The sizes of a map's segments.
pub(super) struct Shape {
    buckets: u32,
    packed: u64,
    pub(super) segment_bytes: u64,
    /// The first word of an empty slot, indexed by the most significant bit of the segment's
    /// hashes.
    empty: [u64; 2],
}

impl Shape {
    pub(super) fn new([bits, stash]: [u64; 2], form: RecordForm, hash: &Hash) -> Option<Shape> {
        if !(1..=6).contains(&bits) || !matches!(stash, 2 | 4) {
            return None;
        }
        let empty = hash.empty_words(form)?;
        let buckets = 1 << bits;
        Some(Shape {
            buckets,
            packed: bits | stash << 8,
            segment_bytes: (1 + u64::from(buckets) + stash) * BUCKET_BYTES,
            empty,
        })
    }

    /// Returns the identity word of a segment at this offset whose first hash is `low`.
    pub(super) fn identity(&self, offset: u64, low: u64) -> u64 {
        identity(SEGMENT, self.packed, offset, low)
    }
}

/// Returns the identity word of an overflow node at this offset.
pub(super) fn node_identity(offset: u64) -> u64 {
    identity(NODE, 0, offset, 0)
}

/// A segment's header, and its words.
pub(super) struct Segment {
    pub(super) offset: u64,
    pub(super) low: u64,
    pub(super) depth: u32,
    pub(super) partner: u64,
    pub(super) chain: u64,
    words: Vec<u64>,
}
