//! Sets of pages.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of pages, as ranges that neither overlap nor touch: each one's start and end.
#[derive(Debug, Default)]
pub(in crate::layers::pool) struct Ranges(BTreeMap<u32, u32>);

impl Ranges {
    /// Returns the range of the set that contains `page`.
    fn around(&self, page: u32) -> Option<Range<u32>> {
        let (&start, &end) = self.0.range(..=page).next_back()?;
        (page < end).then_some(start..end)
    }

    /// Returns the end of the range that contains `page`.
    pub(in crate::layers::pool) fn end_around(&self, page: u32) -> Option<u32> {
        self.around(page).map(|range| range.end)
    }

    /// Returns the first page of the set that is not below `page`.
    pub(in crate::layers::pool) fn first_from(&self, page: u32) -> Option<u32> {
        self.around(page).map(|_| page).or_else(|| self.0.range(page..).next().map(|(&p, _)| p))
    }

    pub(in crate::layers::pool) fn overlaps(&self, range: &Range<u32>) -> bool {
        self.first_from(range.start).is_some_and(|page| page < range.end)
    }

    pub(in crate::layers::pool) fn insert(&mut self, mut range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        // The ranges that it overlaps or touches become part of it.
        while let Some((&start, &end)) = self.0.range(..=range.end).next_back()
            && end >= range.start
        {
            self.0.remove(&start);
            range = range.start.min(start)..range.end.max(end);
        }
        self.0.insert(range.start, range.end);
    }

    pub(in crate::layers::pool) fn remove(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        while let Some((&start, &end)) = self.0.range(..range.end).next_back()
            && end > range.start
        {
            self.0.remove(&start);
            if start < range.start {
                self.0.insert(start, range.start);
            }
            if range.end < end {
                self.0.insert(range.end, end);
            }
            if start <= range.start {
                return;
            }
        }
    }

    /// Returns the parts of `range` that are not in the set.
    pub(in crate::layers::pool) fn gaps(
        &self,
        range: Range<u32>,
    ) -> impl Iterator<Item = Range<u32>> + '_ {
        let mut at = range.start;
        std::iter::from_fn(move || {
            if let Some(end) = self.end_around(at) {
                at = end;
            }
            if at >= range.end {
                return None;
            }
            let end = self.first_from(at).map_or(range.end, |next| next.min(range.end));
            let gap = at..end;
            at = end;
            Some(gap)
        })
    }

    pub(in crate::layers::pool) fn iter(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        self.0.iter().map(|(&start, &end)| start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A set of ranges and a set of pages take the same random steps.
    #[test]
    fn a_set_of_ranges_is_a_set_of_pages() {
        let (mut ranges, mut pages) = (Ranges::default(), BTreeSet::new());
        let mut seed = 7_u64;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((seed >> 33) as u32) % below
        };
        for _ in 0..20_000 {
            let start = random(60);
            let range = start..start + random(12);
            if random(2) == 0 {
                ranges.insert(range.clone());
                pages.extend(range.clone());
            } else {
                ranges.remove(range.clone());
                pages.retain(|page| !range.contains(page));
            }
            assert_eq!(ranges.iter().flatten().collect::<BTreeSet<_>>(), pages);
            let mut ends = ranges.iter().map(|r| (r.start, r.end)).collect::<Vec<_>>();
            ends.dedup_by(|next, last| last.1 >= next.0);
            assert_eq!(ends.len(), ranges.iter().count(), "ranges that touch");
            let start = random(60);
            let range = start..start + random(12);
            assert_eq!(ranges.overlaps(&range), range.clone().any(|page| pages.contains(&page)));
            let gaps: Vec<u32> = ranges.gaps(range.clone()).flatten().collect();
            assert_eq!(gaps, range.filter(|page| !pages.contains(page)).collect::<Vec<_>>());
            assert_eq!(ranges.first_from(start), pages.range(start..).next().copied());
        }
    }
}
