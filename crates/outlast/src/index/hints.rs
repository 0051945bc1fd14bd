//! Hint words: where the records of a block are that are not in their home lines.
//!
//! ```text
//!  63 62 61         58 57         54 53     45         17     9 8      0
//! +-----+-------------+-------------+---------+ ... +---------+---------+
//! |  0  | beyond 3..0 | within 3..0 | entry 5 |     | entry 1 | entry 0 |
//! +-----+-------------+-------------+---------+ ... +---------+---------+
//! entry, 9 bits: where (6 to 8) | home line in the block (4 to 5) | tag (0 to 3)
//! ```
//!
//! A *place* is what an entry has in `where`. 0: none, so the entry is free. 1 to 3: the line of the
//! block whose number differs from the home's by this (exclusive or). 4 to 7: two lines of the
//! stash.
//!
//! If the flag `within` of a home is clear, there are at least as many entries of it for each tag and
//! place in the block as there are such records. If `beyond` is clear, the same holds for the stash,
//! and none of its records is in a node.
//!
//! These are pure functions over the word.

/// Entries of a hint word.
const ENTRIES: u32 = 6;
const ENTRY_BITS: u32 = 9;
/// The lowest bit of each entry.
const LOWEST: u64 = {
    let (mut all, mut entry) = (0, 0);
    while entry < ENTRIES {
        all |= 1 << (ENTRY_BITS * entry);
        entry += 1;
    }
    all
};
const WITHIN: u32 = ENTRIES * ENTRY_BITS;
const BEYOND: u32 = WITHIN + 4;

/// The lowest place that means the stash.
pub(super) const STASH: u32 = 4;

/// Whose records: those of one home line whose hashes have one tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Whose {
    /// The home line's number in the block.
    pub(super) home: u32,
    /// Four bits of the hash.
    pub(super) tag: u32,
}

impl Whose {
    #[inline(always)]
    fn low_bits(self) -> u64 {
        u64::from(self.home << 4 | self.tag)
    }

    fn entry(self, place: u32) -> u64 {
        self.low_bits() | u64::from(place) << 6
    }
}

/// Returns a word with bit 6 of each entry that is this home's and has this tag. Free entries are left
/// out.
#[inline(always)]
fn matching(word: u64, whose: Whose) -> u64 {
    let differs = word ^ (LOWEST * whose.low_bits());
    // 0x3f + 0x3f does not carry into the next entry.
    let differs = (differs & (LOWEST * 0x3f)) + LOWEST * 0x3f;
    !differs & has_place(word)
}

/// Returns a word with bit 6 of each entry that is not free.
#[inline(always)]
fn has_place(word: u64) -> u64 {
    (word | word >> 1 | word >> 2) & LOWEST << 6
}

/// Yields the places of the entries that match; see [`Whose`].
#[inline(always)]
pub(super) fn places(word: u64, whose: Whose) -> impl Iterator<Item = u32> {
    let mut left = matching(word, whose);
    std::iter::from_fn(move || {
        let at = (left != 0).then(|| left.trailing_zeros())?;
        left &= left - 1;
        Some((word >> at) as u32 & 7)
    })
}

/// Returns the place of the first entry that matches, or 0 if none does.
#[inline(always)]
pub(super) fn first_place(word: u64, whose: Whose) -> u32 {
    match matching(word, whose) {
        0 => 0,
        left => (word >> left.trailing_zeros()) as u32 & 7,
    }
}

/// Returns whether some record of this home may be in its block without an entry.
#[inline(always)]
pub(super) fn is_within(word: u64, home: u32) -> bool {
    word >> (WITHIN + home) & 1 == 1
}

/// Returns whether some record of this home may be in the stash without an entry, or in a node.
#[inline(always)]
pub(super) fn is_beyond(word: u64, home: u32) -> bool {
    word >> (BEYOND + home) & 1 == 1
}

/// Returns whether the word says anything about these records.
#[inline(always)]
pub(super) fn concerns(word: u64, whose: Whose) -> bool {
    let flags = word >> (WITHIN + whose.home) & 0x11;
    flags | matching(word, whose) != 0
}

/// Adds the flag of a record in a node.
#[must_use]
pub(super) fn with_node(word: u64, home: u32) -> u64 {
    word | 1 << (BEYOND + home)
}

/// Returns the flags of records beyond the block.
#[must_use]
pub(super) fn beyond_flags(word: u64) -> u64 {
    word & 0xf << BEYOND
}

/// The bits of an entry.
const ENTRY: u64 = (1 << ENTRY_BITS) - 1;

/// Adds a record at this place.
#[must_use]
#[inline(always)]
pub(super) fn with(word: u64, whose: Whose, place: u32) -> u64 {
    let free = !has_place(word) & LOWEST << 6;
    if free != 0 {
        let at = free.trailing_zeros() - 6;
        return word & !(ENTRY << at) | whose.entry(place) << at;
    }
    with_flag(word, whose, place)
}

/// Does the same for a word that has no free entry.
#[cold]
fn with_flag(word: u64, whose: Whose, place: u32) -> u64 {
    if place < STASH {
        return word | 1 << (WITHIN + whose.home);
    }
    // A record in the stash costs a lookup more than one in the block, so it takes the entry of one.
    let within = !word & LOWEST << 8;
    if within != 0 {
        let at = within.trailing_zeros() - 8;
        let home = (word >> at) as u32 >> 4 & 3;
        return word & !(ENTRY << at) | whose.entry(place) << at | 1 << (WITHIN + home);
    }
    word | 1 << (BEYOND + whose.home)
}

/// Removes a record at this place. Returns `None` if it has no entry of its own.
#[must_use]
#[inline(always)]
pub(super) fn without(word: u64, whose: Whose, place: u32) -> Option<u64> {
    let mut left = matching(word, whose);
    while left != 0 {
        let at = left.trailing_zeros();
        if (word >> at) as u32 & 7 == place {
            return Some(word & !(ENTRY << (at - 6)));
        }
        left &= left - 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_entry(word: u64, entry: u32, value: u64) -> u64 {
        let at = ENTRY_BITS * entry;
        word & !(ENTRY << at) | value << at
    }

    /// A plain list of records, and the word that was kept for it.
    #[derive(Default)]
    struct Model {
        word: u64,
        records: Vec<(Whose, u32)>,
    }

    impl Model {
        fn check(&self) {
            assert_eq!(self.word >> 62, 0);
            for &(whose, place) in &self.records {
                let same = self.records.iter().filter(|r| **r == (whose, place)).count();
                let entries = places(self.word, whose).filter(|&p| p == place).count();
                let flag = match place {
                    0..STASH => is_within(self.word, whose.home),
                    _ => is_beyond(self.word, whose.home),
                };
                assert!(entries >= same || flag, "{whose:?} {place} {:#x}", self.word);
                assert!(concerns(self.word, whose));
            }
        }

        fn rebuild(&mut self) {
            self.records.sort_by_key(|(_, place)| std::cmp::Reverse(*place));
            self.word =
                self.records.iter().fold(0, |word, &(whose, place)| with(word, whose, place));
        }
    }

    #[test]
    fn the_word_never_forgets_a_record() {
        let mut random = 7u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let (mut evicted, mut rebuilt) = (0, 0);
        for _ in 0..300 {
            let mut model = Model::default();
            for _ in 0..60 {
                let whose = Whose { home: next(4) as u32, tag: next(3) as u32 };
                if model.records.is_empty() || next(5) < 3 {
                    let place = 1 + next(7) as u32;
                    let before = model.word;
                    model.word = with(model.word, whose, place);
                    evicted +=
                        u32::from(before >> WITHIN != model.word >> WITHIN && place >= STASH);
                    model.records.push((whose, place));
                } else {
                    let at = next(model.records.len() as u64) as usize;
                    let (whose, place) = model.records.swap_remove(at);
                    match without(model.word, whose, place) {
                        Some(word) => model.word = word,
                        None => {
                            model.rebuild();
                            rebuilt += 1;
                        }
                    }
                }
                model.check();
            }
        }
        assert!(evicted > 100 && rebuilt > 100, "{evicted} {rebuilt}");
    }

    #[test]
    fn entries_match_by_home_and_tag_alone() {
        for entry in 0..ENTRIES {
            for home in 0..4 {
                for tag in 0..16 {
                    let whose = Whose { home, tag };
                    let word = with_entry(u64::MAX >> 2, entry, whose.entry(5));
                    let other = Whose { home: home ^ 1, tag };
                    let expected = if home == 3 && tag == 15 { ENTRIES as usize } else { 1 };
                    assert_eq!(places(word, whose).count(), expected);
                    assert!(places(word, whose).any(|place| place == 5));
                    assert!(places(word, other).all(|place| place == 7));
                    let alone = with_entry(0, entry, whose.entry(6));
                    assert_eq!(places(alone, whose).collect::<Vec<_>>(), [6]);
                    assert_eq!(places(alone, other).count(), 0);
                    assert_eq!(places(0, whose).count(), 0, "a free entry");
                }
            }
        }
    }
}
