//! Damaged words whose right values follow from other words.
//!
//! They are those of the space: the frontier, and the descriptors of pages. What a block holds says
//! what it is, and so how large it is, whatever its page's descriptor says. And of a root and its
//! commit word, the checksum tells which bit was flipped, if it was a single one.

use super::image::{Image, Source, crc_words};
use super::space::{Run, descriptor_of};
use super::{Locked, Walk, walk_image};
use outlast::internals::pool::geometry::{CLASS_COUNT, LARGE};
use outlast::internals::pool::layout::{ROOT_FIXED, ROOT_WORDS, ROOTS_OFFSET};
use outlast::{Damage, Error, Result};
use std::collections::HashMap;
use std::path::Path;
use std::sync::LazyLock;

/// What [`repairs`] has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repairs {
    /// The pool's size, in bytes, if the file was cut and is shorter. What it lacks counts as zeros.
    pub size: Option<u64>,
    /// Offsets and right values of damaged words.
    pub words: Vec<(u64, u64)>,
    /// What was damaged.
    pub damage: Vec<Damage>,
}

/// Walks the pool in the file at `path`, and returns what has to be changed in a copy of the file so
/// that a pool opens all maps whose own structures are whole.
///
/// # Errors
/// Those of [`walk`](super::walk).
pub fn repairs(path: &Path) -> Result<Repairs> {
    let locked = Locked::open(path)?;
    let image = Image::new(Source::File(&locked.file), locked.len);
    if image.needs_journal() {
        return Err(Error::Unfinished { path: path.into() });
    }
    let mut watch = |_| {};
    let walk = walk_image(image, None, &mut watch).map_err(|e| e.at(path))?;
    let size = Some(walk.image.len).filter(|&size| size > locked.len);
    // The first problem is that the file was cut.
    let mut damage: Vec<_> = size.and(walk.report.problems.first().cloned()).into_iter().collect();
    let mut words = Vec::new();
    for (offset, word, of) in walk.repairs {
        words.push((offset, word));
        damage.push(of);
    }
    Ok(Repairs { size, words, damage })
}

impl Walk<'_, '_> {
    /// Reports damage to the word at this offset, whose right value is known.
    pub(super) fn repair(&mut self, offset: u64, word: u64, damage: Damage) {
        self.problem(damage.clone());
        self.repairs.push((offset, word, damage));
    }

    /// Finds the run of a block of `needed` bytes, if the run's first descriptor is damaged or was
    /// never written. Returns its number.
    pub(super) fn damaged_run(&mut self, offset: u64, needed: u64) -> Option<usize> {
        let page = offset >> self.page_bits;
        if page >= self.frontier || self.is_system(page) {
            return None;
        }
        let (head, told) = match self.descriptor(page) {
            Ok(Some((4, class, distance))) => (page.checked_sub(distance)?, Some(class)),
            Ok(None) | Err(Error::Damaged(_)) => (page, None),
            _ => return None,
        };
        let damage = match self.descriptor(head) {
            Err(Error::Damaged(damage)) => damage,
            // Zeros are no damage in themselves, and were not reported. But if the block is zeros as
            // well, nothing says that there is one.
            Ok(None) if self.image.word(offset).is_ok_and(|word| word != 0) => {
                let place = self.descriptor_offset(head);
                let damage = Damage::new(place, format!("a descriptor of page {head}"), "0x0");
                self.problem(damage.clone());
                damage
            }
            _ => return None,
        };
        // A block can be in a run of its class, or alone in a run of whole pages.
        let whole = needed.next_multiple_of(self.page_bytes());
        let smallest = (0..CLASS_COUNT as u8)
            .find(|&class| self.class_bytes(class).is_some_and(|bytes| bytes >= needed))
            .filter(|&class| self.class_bytes(class) < Some(whole));
        let classes = told.map_or([smallest, Some(LARGE)], |told| [Some(told), None]);
        let runs = classes.into_iter().flatten().filter_map(|class| {
            let pages = match class {
                LARGE => needed.div_ceil(self.page_bytes()),
                _ => self.run_pages(class)?,
            };
            self.run_of(head, class, if class == LARGE { 2 } else { 1 }, pages).ok()
        });
        let mut run = runs.into_iter().find(|run| self.can_be(run, offset, needed))?;
        let kind = if run.class == LARGE { 2 } else { 1 };
        let word = descriptor_of(head, kind, run.class, run.pages);
        self.repairs.push((self.descriptor_offset(head), word, damage));
        let bits = self.runs.unknown.remove(&head);
        run.used = bits.filter(|bits| bits.len() == run.claimed.len());
        Some(self.runs.push(run))
    }

    /// Returns whether there can be such a run, and such a block in it.
    fn can_be(&self, run: &Run, offset: u64, needed: u64) -> bool {
        let inside = offset - (run.head << self.page_bits);
        run.block_bytes >= needed
            && inside.is_multiple_of(run.block_bytes)
            && inside / run.block_bytes < run.blocks
            && run.head + run.pages <= self.frontier
            && (run.head..run.head + run.pages).all(|page| self.runs.number_of(page).is_none())
            && (1..run.pages).all(|distance| match self.descriptor(run.head + distance) {
                Ok(Some(found)) => found == (4, run.class, distance),
                // More of the descriptors may be damaged.
                _ => true,
            })
    }

    /// Reports that the root in a slot, which has these words, does not match its commit word.
    /// Returns whether the root is known all the same, and repairs its words.
    pub(super) fn damaged_root(&mut self, slot: usize, words: &mut [u64]) -> bool {
        let offset = ROOTS_OFFSET + (slot * ROOT_WORDS * 8) as u64;
        let fixed = &words[ROOT_FIXED..];
        let sum = crc_words(fixed);
        let (found, whole) = (words[0], 1 | sum << 32);
        // One bit of a commit word that was 0. A root whose checksum became 0 may still have the 1, unless
        // its slot was never used.
        let was_used = fixed.iter().any(|&word| word != 0);
        let is_free = found.is_power_of_two() && (found != 1 || !was_used);
        let expected = format!("root {slot}'s commit word {whole:#x}");
        let damage = Damage::new(offset, expected, format!("{found:#x}"));
        if is_free {
            let expected = format!("0, because root {slot} is unused");
            self.repair(offset, 0, Damage::new(offset, expected, format!("{found:#x}")));
        } else if (found ^ whole).count_ones() == 1 {
            self.repair(offset, whole, damage);
            words[0] = whole;
            return true;
        } else if found as u32 == 1
            && let Some(&bit) = FLIPS.get(&(sum ^ found >> 32))
        {
            let number = ROOT_FIXED + bit / 64;
            words[number] ^= 1 << (bit % 64);
            self.repair(offset + 8 * number as u64, words[number], damage);
            return true;
        } else {
            self.problem(damage);
            self.lacks_map = true;
        }
        false
    }
}

/// For each bit of a root's fixed words, what its flip changes in their checksum, which no other
/// flip does.
static FLIPS: LazyLock<HashMap<u64, usize>> = LazyLock::new(|| {
    let mut words = [0; ROOT_WORDS - ROOT_FIXED];
    let sum = crc_words(&words);
    let flips = (0..64 * words.len()).map(|bit| {
        words[bit / 64] = 1 << (bit % 64);
        let change = crc_words(&words) ^ sum;
        words[bit / 64] = 0;
        (change, bit)
    });
    flips.collect()
});
