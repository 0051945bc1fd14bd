//! Mutations aimed at structure: meaningful values in meaningful places, with checksums recomputed,
//! and lines and pages from elsewhere and from an earlier time.

use super::images::Image;
use super::pool::{set_word, word_at};
use super::repair::repair;
use crate::random::Random;
use outlast::internals::index::dash_eh::layout as dash;
use outlast::internals::index::group::layout as group;
use outlast::internals::pool::layout::{HEADER_OFFSETS, HEADER_WORDS, SYSTEM_BYTES};
use outlast_offline::{Region, What};
use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};

/// A file to open, and what was done to it.
pub struct Mutant {
    /// The file.
    pub bytes: Vec<u8>,
    /// Each mutation, in words.
    pub done: Vec<String>,
}

/// Makes mutants of an image.
pub struct Mutator<'i> {
    image: &'i Image,
    /// Another pool, from which lines and pages are taken.
    other: &'i Image,
    /// Regions by kind.
    kinds: Vec<Vec<Region>>,
    random: Random,
}

impl<'i> Mutator<'i> {
    /// Makes a mutator, for one mutant or several.
    pub fn new(image: &'i Image, other: &'i Image, random: Random) -> Self {
        let mut kinds: HashMap<Discriminant<What>, usize> = HashMap::new();
        let mut by_kind: Vec<Vec<Region>> = Vec::new();
        for region in &image.regions {
            let index = *kinds.entry(discriminant(&region.what)).or_insert_with(|| {
                by_kind.push(Vec::new());
                by_kind.len() - 1
            });
            by_kind[index].push(*region);
        }
        Mutator { image, other, kinds: by_kind, random }
    }

    /// Returns the image with one mutation or a few.
    pub fn mutant(&mut self) -> Mutant {
        let mut mutant = Mutant { bytes: self.image.bytes.clone(), done: Vec::new() };
        let count = [1, 1, 1, 2, 2, 3, 5][self.random.below(7) as usize];
        for _ in 0..count {
            let done = self.mutate(&mut mutant.bytes);
            mutant.done.push(done);
        }
        mutant
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.below(n.max(1))
    }

    fn pick(&mut self, regions: &[Region]) -> Region {
        regions[self.below(regions.len() as u64) as usize]
    }

    /// Picks a region. Each kind is equally likely, although there are more records than segments.
    fn region(&mut self) -> (usize, Region) {
        let kind = self.below(self.kinds.len() as u64) as usize;
        let index = self.below(self.kinds[kind].len() as u64) as usize;
        (kind, self.kinds[kind][index])
    }

    fn mutate(&mut self, bytes: &mut [u8]) -> String {
        match self.below(16) {
            0 => self.any_byte(bytes),
            1 => self.structure_over_another(bytes),
            2 => self.forged_link(bytes),
            3 => self.forged_descriptor(bytes),
            4 => self.header_field(bytes),
            5 => self.piece_of_earlier(bytes),
            6 => self.piece_from_elsewhere(bytes),
            7 => self.filled_piece(bytes),
            8 => self.words_swapped(bytes),
            _ => self.field(bytes),
        }
    }

    /// Picks a value that is meaningful in some word of some structure.
    fn telling_word(&mut self, bytes: &[u8], old: u64) -> u64 {
        let (kind, any) = self.region();
        let of_kind = self.kinds[kind].clone();
        let alike = self.pick(&of_kind);
        match self.below(14) {
            0 => 0,
            1 => u64::MAX,
            2 => self.random.next(),
            3 => self.below(300),
            4 => any.offset,
            5 => any.offset & !255,
            6 => 1 << self.below(64),
            7 => {
                let words = bytes.len() as u64 / 8;
                word_at(bytes, self.below(words) * 8)
            }
            8 => old.wrapping_add(1 << self.below(20)),
            9 => old.wrapping_sub(1 << self.below(20)),
            // Replace the offset, and keep the bits above it.
            10 => old & !0xffff_ffff_ffff | alike.offset,
            11 => old ^ 0xff << (8 * self.below(8)),
            12 => word_at(bytes, alike.offset & !7),
            _ => old ^ 1 << self.below(64),
        }
    }

    fn field(&mut self, bytes: &mut [u8]) -> String {
        let (_, region) = self.region();
        let at = (region.offset & !7) + 8 * self.below(region.bytes / 8);
        let old = word_at(bytes, at);
        let new = match self.below(3) {
            0 => old ^ 1 << self.below(64),
            1 => {
                // Take the value of a word nearby.
                let near = at + 8 * self.below(16);
                if near + 8 <= bytes.len() as u64 { word_at(bytes, near) } else { 0 }
            }
            _ => self.telling_word(bytes, old),
        };
        set_word(bytes, at, new);
        let repaired = self.below(3) != 0;
        if repaired {
            repair(bytes, &region);
        }
        format!("{at:#x} in {:?}: {old:#x} becomes {new:#x}, repaired {repaired}", region.what)
    }

    fn any_byte(&mut self, bytes: &mut [u8]) -> String {
        let at = self.below(bytes.len() as u64);
        let change = (1 + self.below(255)) as u8;
        bytes[at as usize] ^= change;
        format!("byte {at:#x} xor {change:#x}")
    }

    fn words_swapped(&mut self, bytes: &mut [u8]) -> String {
        let (_, region) = self.region();
        let words = region.bytes / 8;
        let [one, other] = [0; 2].map(|_| (region.offset & !7) + 8 * self.below(words));
        let [first, second] = [one, other].map(|at| word_at(bytes, at));
        set_word(bytes, one, second);
        set_word(bytes, other, first);
        let repaired = self.below(2) == 0;
        if repaired {
            repair(bytes, &region);
        }
        format!("{one:#x} and {other:#x} in {:?} swapped, repaired {repaired}", region.what)
    }

    fn structure_over_another(&mut self, bytes: &mut [u8]) -> String {
        let (kind, region) = self.region();
        let of_kind = self.kinds[kind].clone();
        let from = self.pick(&of_kind);
        let count = from.bytes.min(region.bytes) as usize;
        let (source, target) = (from.offset as usize, region.offset as usize);
        bytes.copy_within(source..source + count, target);
        let repaired = self.below(2) == 0;
        if repaired {
            repair(bytes, &region);
        }
        format!("{:?} at {source:#x} over that at {target:#x}, repaired {repaired}", region.what)
    }

    /// Forges an overflow node at a random place, and makes a segment's chain begin with it.
    fn forged_link(&mut self, bytes: &mut [u8]) -> String {
        let is_segment =
            |r: &&Region| matches!(r.what, What::Segment { .. } | What::GroupSegment { .. });
        let regions = self.image.regions.iter();
        let segments: Vec<Region> = regions.filter(is_segment).copied().collect();
        if segments.is_empty() {
            return self.field(bytes);
        }
        let Region { offset: segment, what, .. } = self.pick(&segments);
        let at = match self.below(3) {
            0 => segment + 256 * self.below(12),
            1 => self.region().1.offset & !255,
            _ => self.below(bytes.len() as u64 / 256) * 256,
        };
        if at + 2048 > bytes.len() as u64 || at < SYSTEM_BYTES {
            return self.field(bytes);
        }
        let next = match self.below(4) {
            0 => word_at(bytes, segment + 24),
            1 => at,
            _ => 0,
        };
        let words = match what {
            What::GroupSegment { group: size } => {
                let link = |offset: u64, place| group::Link { offset, depth: 0 }.pack(place);
                let next = next & ((1 << 48) - 1) & !63;
                let identity = group::identity(group::Kind::Node, at, 0, u32::from(size));
                [identity, link(next, at + 8), link(at, segment + 24)]
            }
            _ => [dash::identity(dash::Kind::Node, at, 0, 0), next, at],
        };
        for (place, word) in [at, at + 8, segment + 24].into_iter().zip(words) {
            set_word(bytes, place, word);
        }
        format!("a node forged at {at:#x}, with next {next:#x}, for the segment at {segment:#x}")
    }

    fn forged_descriptor(&mut self, bytes: &mut [u8]) -> String {
        let page_bytes = 1u64 << self.image.page_bits;
        let first = SYSTEM_BYTES.div_ceil(page_bytes);
        let pages = bytes.len() as u64 / page_bytes;
        let page = (first + 1 + self.below(pages - first - 1)) as u32;
        let low = match self.below(3) {
            0 => (1 + self.below(5)) | self.below(48) << 8 | self.below(20) << 16,
            1 => 2 | 255 << 8 | self.below(20) << 16,
            _ => self.random.next() & ((1 << 48) - 1),
        };
        // An image lies entirely in the first one or two regions. Damage the first region's
        // descriptors.
        let at = first * page_bytes + u64::from(page) * 8;
        if u64::from(page) >= page_bytes / 8 {
            return self.field(bytes);
        }
        set_word(bytes, at, low);
        repair(bytes, &Region { offset: at, bytes: 8, what: What::Descriptor { page } });
        format!("descriptor of page {page} becomes {low:#x}")
    }

    /// Changes a header field, in both copies or in one.
    fn header_field(&mut self, bytes: &mut [u8]) -> String {
        let index =
            if self.below(4) == 0 { self.below(HEADER_WORDS as u64) } else { self.below(24) };
        let old = word_at(bytes, HEADER_OFFSETS[0] + index * 8);
        let value = self.telling_word(bytes, old);
        let mut copies = 0;
        for copy in HEADER_OFFSETS {
            if self.below(4) != 0 {
                set_word(bytes, copy + index * 8, value);
                repair(bytes, &Region { offset: copy, bytes: 512, what: What::Header });
                copies += 1;
            }
        }
        format!("header field {index} becomes {value:#x} in {copies} copies")
    }

    /// Picks offset and length of a piece, aligned to its length: a line, a few lines, or a page.
    fn piece(&mut self, len: u64) -> (u64, u64) {
        let bytes = match self.below(4) {
            0 => 64,
            1 => 512,
            2 => 4096,
            _ => 1 << self.image.page_bits,
        };
        let at = if self.below(2) == 0 {
            self.below(len / bytes) * bytes
        } else {
            // Pick a place in use.
            self.region().1.offset / bytes * bytes
        };
        (at.min(len.saturating_sub(bytes) & !63), bytes)
    }

    /// Imitates a write that the device lost.
    fn piece_of_earlier(&mut self, bytes: &mut [u8]) -> String {
        let len = self.image.earlier.len().min(bytes.len()) as u64;
        let (at, count) = self.piece(len);
        let (from, to) = (at as usize, (at + count) as usize);
        bytes[from..to].copy_from_slice(&self.image.earlier[from..to]);
        format!("{count} bytes at {at:#x} as they were earlier")
    }

    /// Imitates a write to the wrong place, or a read from one.
    fn piece_from_elsewhere(&mut self, bytes: &mut [u8]) -> String {
        let (at, count) = self.piece(bytes.len() as u64);
        let same = self.below(2) == 0;
        let source = if same { &self.image.bytes } else { &self.other.bytes };
        let other = self.below((source.len() as u64 - count) / 64 + 1) * 64;
        // From another pool, take the same place as often as a random one.
        let from = if !same && self.below(2) == 0 && at + count <= source.len() as u64 {
            at
        } else {
            other / count * count
        };
        let (target, from) = (at as usize, from as usize);
        bytes[target..target + count as usize]
            .copy_from_slice(&source[from..from + count as usize]);
        let whose = if same { "this pool" } else { "another pool" };
        format!("{count} bytes at {at:#x} as those of {whose} at {from:#x}")
    }

    fn filled_piece(&mut self, bytes: &mut [u8]) -> String {
        let (at, count) = self.piece(bytes.len() as u64);
        let fill = [0, 0, 0xff, 0xcd][self.below(4) as usize];
        bytes[at as usize..(at + count) as usize].fill(fill);
        format!("{count} bytes at {at:#x} become {fill:#x}")
    }
}
