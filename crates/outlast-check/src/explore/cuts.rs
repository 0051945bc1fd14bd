//! Enumerates the images that a power loss at one moment can leave.

use crate::model::{Kept, OpenLine, Timeline};
use crate::random::Random;
use crate::response::is_relied_on;

/// The ways to cut one line.
///
/// Words that are volatile by design share lines with durable ones and may be stored again and
/// again. Cuts that differ only in how many of those stores survive show nothing new. So a level
/// fixes how many durable stores survive, and chance decides how many of the volatile stores right
/// after them do.
struct Levels {
    line: u64,
    /// For each level, the smallest and largest number of stores kept.
    kept: Vec<(usize, usize)>,
}

impl Levels {
    fn of(open: OpenLine<'_>) -> Levels {
        let mut kept = Vec::new();
        let mut least = 0;
        for (i, store) in open.stores.iter().enumerate() {
            if is_relied_on(store.point) {
                kept.push((least, i));
                least = i + 1;
            }
        }
        kept.push((least, open.stores.len()));
        Levels { line: open.line, kept }
    }

    fn at(&self, level: usize, random: &mut Random) -> Kept {
        let (least, most) = self.kept[level];
        // Favor all or none of the volatile stores: a real line either was evicted or was not.
        let stores = match random.below(4) {
            0 => least,
            1 | 2 => most,
            _ => least + random.below((most - least) as u64 + 1) as usize,
        };
        Kept { line: self.line, stores }
    }
}

/// The cuts of the open lines at one moment: every combination while there are few, otherwise a
/// sample that a seed determines.
pub struct Cuts {
    /// Lines known to matter.
    known: Vec<Levels>,
    /// The other lines.
    rest: Vec<Levels>,
    limit: usize,
    next: usize,
}

impl Cuts {
    /// Prepares the cuts at the current moment of `timeline`. `matters` tells which lines are read.
    pub fn new(timeline: &Timeline<'_>, matters: impl Fn(u64) -> bool, limit: usize) -> Cuts {
        let all = timeline.open().map(Levels::of);
        let (known, rest) = all.partition(|levels: &Levels| matters(levels.line));
        Cuts { known, rest, limit, next: 0 }
    }

    /// Returns how many combinations of cuts the lines that matter have, or `None` if there are
    /// more than the limit.
    fn combinations(&self) -> Option<usize> {
        self.known.iter().try_fold(1_usize, |product, levels| {
            product.checked_mul(levels.kept.len()).filter(|&p| p <= self.limit)
        })
    }

    /// Returns the next cut of all open lines. Lines that do not matter are cut at random.
    ///
    /// There are no cuts if each line that matters can be cut in only one way, because only its
    /// volatile words differ. The two images that the caller tries in any case, with everything
    /// lost and with nothing lost, are then enough.
    pub fn next(&mut self, random: &mut Random) -> Option<Vec<Kept>> {
        let count = self.combinations();
        // Only volatile words differ, and the caller tries the images with all of them and with
        // none.
        if count == Some(1) {
            return None;
        }
        if self.next >= count.unwrap_or(self.limit) {
            return None;
        }
        let mut number = self.next;
        self.next += 1;
        let mut cut = Vec::with_capacity(self.known.len() + self.rest.len());
        // If there are too many combinations, `way` decides: all lines but a few keep everything,
        // all but a few lose everything, or each line is cut at random.
        let few = 1 + random.below(3);
        let way = random.below(3);
        let lines = self.known.len().max(1) as u64;
        for levels in &self.known {
            let top = levels.kept.len() - 1;
            let any = random.below(top as u64 + 1) as usize;
            let is_one_of_few = random.below(lines) < few;
            let level = match (count, way) {
                (Some(_), _) => {
                    let level = number % (top + 1);
                    number /= top + 1;
                    level
                }
                (None, 0) if !is_one_of_few => top,
                (None, 1) if !is_one_of_few => 0,
                (None, _) => any,
            };
            cut.push(levels.at(level, random));
        }
        for levels in &self.rest {
            let level = random.below(levels.kept.len() as u64) as usize;
            cut.push(levels.at(level, random));
        }
        Some(cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Image;
    use outlast::internals::index::dash_eh::points::{INSERT, SPLIT_DONE as VOLATILE};
    use outlast::internals::pmem::Point;
    use outlast::internals::pmem::{Access, Event};
    use std::collections::BTreeSet;

    fn cuts(stores: &[(u64, &'static Point)], limit: usize) -> BTreeSet<Vec<(u64, usize)>> {
        let event = |&(offset, point): &(u64, &'static Point)| Event {
            thread: 0,
            point: Some(point),
            access: Access::Store { offset, value: 1, nontemporal: false },
        };
        let events: Vec<_> = stores.iter().map(event).collect();
        let initial = Image { bytes: vec![0; 512], hash: 0 };
        let mut timeline = Timeline::new(&initial, 512, &events);
        timeline.advance(events.len());
        let mut cuts = Cuts::new(&timeline, |_| true, limit);
        let mut random = Random::new(1);
        std::iter::from_fn(|| cuts.next(&mut random))
            .map(|cut| cut.iter().map(|k| (k.line, k.stores)).collect())
            .collect()
    }

    #[test]
    fn every_combination_is_tried_once() {
        let stores = [(0, &INSERT), (8, &INSERT), (64, &INSERT), (128, &INSERT)];
        assert_eq!(cuts(&stores, 100).len(), 3 * 2 * 2);
        assert_eq!(cuts(&stores, 12).len(), 12);
        let sample = cuts(&stores, 11).len();
        assert!((4..=11).contains(&sample), "{sample}");
    }

    #[test]
    fn volatile_stores_make_no_cuts_of_their_own() {
        let stores = [(0, &VOLATILE), (8, &VOLATILE), (16, &INSERT), (8, &VOLATILE)];
        let cuts = cuts(&stores, 100);
        assert_eq!(cuts.len(), 2);
        let below = cuts.iter().filter(|cut| cut[0].1 < 3).count();
        assert_eq!(below, 1, "one with the durable store, one without: {cuts:?}");
    }
}
