//! Recomputes checksums after a change, so that the library believes the changed bytes.

use super::pool::{set_word, word_at};
use outlast::internals::index::clevel::layout as clevel;
use outlast::internals::index::dash_eh::layout as dash;
use outlast::internals::index::dash_lh::layout as dash_lh;
use outlast::internals::index::ea_pht::layout as pht;
use outlast::internals::index::group::layout as group;
use outlast::internals::index::line::layout as line;
use outlast::internals::index::phast::layout as phast;
use outlast::internals::pool::layout::{self, field};
use outlast_offline::{Region, What};

fn crc(words: &[u64]) -> u64 {
    let sum = words.iter().fold(0, |crc, w| crc32c::crc32c_append(crc, &w.to_le_bytes()));
    u64::from(sum)
}

fn words_at(bytes: &[u8], offset: u64, count: u64) -> Vec<u64> {
    (0..count).map(|i| word_at(bytes, offset + i * 8)).collect()
}

/// Recomputes the checksum of a link, which covers the offset `of`.
fn set_link(bytes: &mut [u8], at: u64, of: u64) {
    let low = word_at(bytes, at) & ((1 << 48) - 1);
    let link = group::Link { offset: low & !63, depth: (low & 63) as u32 };
    set_word(bytes, at, link.pack(of));
}

/// Recomputes the checksums of a region, so that the library believes its content.
pub fn repair(bytes: &mut [u8], region: &Region) {
    let at = region.offset;
    if at + region.bytes.max(8) > bytes.len() as u64 {
        return;
    }
    match region.what {
        What::Header => {
            let sum = crc(&words_at(bytes, at, field::CHECKSUM as u64));
            set_word(bytes, at + field::CHECKSUM as u64 * 8, sum);
        }
        What::Frontier => {
            let word = word_at(bytes, at);
            set_word(bytes, at, layout::pack_frontier(word as u32));
        }
        What::RootCommit | What::RootFixed => {
            let slot = at & !511;
            let fixed = words_at(bytes, slot + 64, 56);
            set_word(bytes, slot, 1 | crc(&fixed) << 32);
        }
        What::RootScheme => {
            let word = word_at(bytes, at);
            let depth = (word >> 48) as u32 & 0xff;
            set_word(bytes, at, dash::pack_root(word & ((1 << 48) - 1), depth));
        }
        What::Descriptor { page } => {
            let low = word_at(bytes, at) & ((1 << 48) - 1);
            let mut input = page.to_le_bytes().to_vec();
            input.extend_from_slice(&low.to_le_bytes());
            let sum = crc32c::crc32c(&input);
            let check = u64::from((sum ^ sum >> 16) & 0xffff);
            set_word(bytes, at, low | check << 48);
        }
        What::SavedState => {
            let words = words_at(bytes, at, region.bytes / 8);
            set_word(bytes, at + 16, crc(&words[3..]));
        }
        What::Directory { depth } => {
            let word = dash::DIRECTORY.identity(at, depth);
            set_word(bytes, at, word);
        }
        What::Segment { shape } => {
            let low = word_at(bytes, at + 8);
            set_word(bytes, at, dash::identity(dash::Kind::Segment, at, low, shape));
            let bits = word_at(bytes, at + 16) & ((1 << 48) - 1);
            let sum = crc(&[bits, at]);
            set_word(bytes, at + 16, bits | ((sum ^ sum >> 16) & 0xffff) << 48);
        }
        What::Node => set_word(bytes, at, dash::identity(dash::Kind::Node, at, 0, 0)),
        What::Record => {
            let mut sum = crc32c::crc32c(&at.to_le_bytes());
            sum = crc32c::crc32c_append(sum, &bytes[at as usize..at as usize + 8]);
            let end = (at + region.bytes) as usize;
            sum = crc32c::crc32c_append(sum, &bytes[at as usize + 16..end]);
            set_word(bytes, at + 8, u64::from(sum));
        }
        What::ClevelRoot => {
            let word = word_at(bytes, at);
            let word = clevel::root::pack(word & ((1 << 48) - 1), word >> 49 & 0x7f);
            set_word(bytes, at, word);
        }
        What::Context { levels } => {
            let covered = words_at(bytes, at + 8, 1 + levels as u64);
            let sum = crc(&[&[at], &covered[..]].concat());
            set_word(bytes, at, sum);
        }
        What::Level { bits } => {
            set_word(bytes, at, clevel::identity(clevel::Kind::Level, at, bits));
        }
        What::ChainNode => set_word(bytes, at, clevel::identity(clevel::Kind::Node, at, 0)),
        What::ClevelRecord => {
            let lengths = word_at(bytes, at) & ((1 << 46) - 1);
            let mut sum = crc32c::crc32c(&at.to_le_bytes());
            sum = crc32c::crc32c_append(sum, &lengths.to_le_bytes());
            let end = (at + region.bytes) as usize;
            sum = crc32c::crc32c_append(sum, &bytes[at as usize + 16..end]);
            set_word(bytes, at + 8, u64::from(sum));
        }
        What::PhastRoot => {
            let word = phast::pack_root(word_at(bytes, at) & ((1 << 48) - 1));
            set_word(bytes, at, word);
        }
        What::Master { entries } => {
            set_word(bytes, at, phast::identity(phast::Kind::Master, entries, at, 0));
        }
        What::MasterEntries => {
            let master = at - phast::MASTER_HEADER;
            for index in 0..region.bytes / 8 {
                let place = at + index * 8;
                let leaf = word_at(bytes, place) & ((1 << 48) - 1);
                set_word(bytes, place, phast::pack_entry(master, index as usize, leaf));
            }
        }
        What::LeafHead { slots } => {
            let bits = word_at(bytes, at);
            set_word(bytes, at, phast::seal(bits & ((1 << slots) - 1)));
        }
        What::LeafPlace { slots, .. } => {
            let leaf = at - 64;
            let low = word_at(bytes, at + 16);
            set_word(bytes, at, phast::identity(phast::Kind::Leaf, slots, leaf, low));
            let link = word_at(bytes, at + 8) & ((1 << 48) - 1) & !0x3e;
            let next = phast::Next { offset: link & !63, moving: link & 1 == 1 };
            set_word(bytes, at + 8, next.pack(leaf));
        }
        What::Turn => {
            let word = word_at(bytes, at);
            let depth = (word >> 40) as u32 & 63;
            let late = word >> 46 & 1 != 0;
            let turn = dash_lh::Turn { late, depth, next: word & ((1 << 40) - 1) };
            set_word(bytes, at, turn.pack());
        }
        What::GroupRoot => set_link(bytes, at, 0),
        What::GroupSegment { group } => {
            let low = word_at(bytes, at + 8);
            let kind = group::Kind::Segment;
            set_word(bytes, at, group::identity(kind, at, low, u32::from(group)));
            set_link(bytes, at + 16, at + 16);
            set_link(bytes, at + 24, at + 24);
        }
        What::GroupNode { group } => {
            set_word(bytes, at, group::identity(group::Kind::Node, at, 0, u32::from(group)));
            set_link(bytes, at + 8, at + 8);
        }
        What::PhtRoot => {
            set_link(bytes, at, 0);
            set_link(bytes, at + 8, 1);
        }
        What::PhtTable if region.bytes == 16 => {
            let bits = (word_at(bytes, at) >> 16) as u32 & 0xffff;
            set_word(bytes, at, pht::identity(pht::Kind::Table, at, 0, bits));
            set_link(bytes, at + 8, at + 8);
        }
        What::PhtTable | What::PhtLink => {
            (at..at + region.bytes).step_by(8).for_each(|at| set_link(bytes, at, at));
        }
        What::PhtArea => {
            set_link(bytes, at + 8, at + 8);
            set_link(bytes, at + 16, at + 16);
        }
        What::LineRoot => {
            let word = word_at(bytes, at);
            let depth = (word >> 48) as u32 & 0xff;
            set_word(bytes, at, line::pack_root(word & ((1 << 48) - 1), depth));
        }
        What::LineIntent => set_link(bytes, at, at),
        What::LineDirectory { depth } => {
            set_word(bytes, at, line::DIRECTORY.identity(at, depth));
        }
        What::LineSegment { .. } => {
            if let Some(shape) = line::shape_of(word_at(bytes, at)) {
                let low = word_at(bytes, at + 8);
                set_word(bytes, at, line::segment_identity(at, low, shape));
            }
            set_link(bytes, at + 16, at + 16);
            set_link(bytes, at + 24, at + 24);
        }
        // The identity names the segment, which the region does not tell.
        What::LineNode => set_link(bytes, at + 8, at + 8),
        What::Entry
        | What::Cell
        | What::Bucket { .. }
        | What::LiveSlot { .. }
        | What::ClevelSlot
        | What::ReadyLevel
        | What::ChainHead
        | What::Array
        | What::Pair { .. } => {}
    }
}
