//! The walk of a table of the EA-PHT family: chunks, annexes, and the chains of buckets.

use super::image::{identity, unpack};
use super::record::{ByKey, Slot};
use super::{MapReport, Owner, SchemeWalk, Walk, What};
use outlast::internals::pool::layout::RecordForm;
use outlast::{Damage, Error, Result};
use std::cell::RefCell;
use std::collections::HashSet;

/// The entry of EA-PHT in the table of walks.
pub(super) const WALK: SchemeWalk = SchemeWalk {
    number: 6,
    name: "ea-pht",
    root: What::PhtRoot,
    walk: |walk, map, place, words, config| walk.walk_ea_pht(map, place, words, config, false),
};
/// The entry of EA-PHT-H.
pub(super) const WALK_H: SchemeWalk = SchemeWalk { number: 7, name: "ea-pht-h", ..WALK };
/// The entry of EA-PHT-HPR.
pub(super) const WALK_HPR: SchemeWalk = SchemeWalk {
    number: 8,
    name: "ea-pht-hpr",
    walk: |walk, map, place, words, config| walk.walk_ea_pht(map, place, words, config, true),
    ..WALK
};

pub(super) const BUCKET: u64 = 256;
pub(super) const SLOTS: usize = 15;
const TABLE: u64 = 0x6501;
pub(super) const CHUNK: u64 = 0x6502;
pub(super) const ANNEX: u64 = 0x6503;

/// The overflow buckets of a chunk or an annex: the first one's offset, and how many were handed
/// out.
type Area = (u64, u64);

/// A table, after its headers were checked.
pub(super) struct Table {
    depth: u32,
    pub(super) chunk_bits: u32,
    /// The chunks' offsets; `None` for a chunk that cannot be read.
    pub(super) chunks: Vec<Option<u64>>,
    pub(super) areas: Vec<Area>,
    /// Overflow buckets that a chain links to.
    pub(super) linked: RefCell<HashSet<u64>>,
    /// Where links lead that do not lead to such a bucket.
    pub(super) astray: RefCell<HashSet<u64>>,
}

impl Table {
    /// Returns the offset of a bucket of the array. Returns `None` if its chunk cannot be read.
    fn bucket(&self, index: u64) -> Option<u64> {
        let place = index & ((1 << self.chunk_bits) - 1);
        self.chunks[(index >> self.chunk_bits) as usize].map(|chunk| chunk + (1 + place) * BUCKET)
    }

    /// Yields the numbers of the buckets whose chunks can be read.
    fn buckets(&self) -> impl Iterator<Item = u64> {
        let readable = |&chunk: &usize| self.chunks[chunk].is_some();
        let bits = self.chunk_bits;
        (0..self.chunks.len()).filter(readable).flat_map(move |chunk| {
            let first = (chunk as u64) << bits;
            first..first + (1 << bits)
        })
    }

    fn low(&self, index: u64) -> u64 {
        index << (64 - self.depth)
    }

    /// Returns the chain that owns an overflow bucket whose first word is `word`, or `None` if no
    /// chain does.
    fn owner(&self, bucket: u64, word: u64) -> Option<u64> {
        let (chain, depth) = unpack(bucket, word).ok()?;
        let chain = (chain / 64).checked_sub(1)?;
        (depth == self.depth && chain < 1 << depth).then_some(chain)
    }

    /// Returns whether this is an overflow bucket that was handed out.
    fn has(&self, bucket: u64) -> bool {
        let after = self.areas.partition_point(|&(first, _)| first <= bucket);
        after.checked_sub(1).is_some_and(|number| {
            let (first, used) = self.areas[number];
            (bucket - first).is_multiple_of(BUCKET) && (bucket - first) / BUCKET < used
        })
    }
}

impl Walk<'_, '_> {
    fn walk_ea_pht(
        &mut self,
        map: &mut MapReport,
        place: u64,
        words: &[u64],
        config: [u64; 3],
        goes_on: bool,
    ) -> Result<()> {
        let [depth, chunk, helpers] = config;
        let known = (1..=24).contains(&depth) && (1..=16).contains(&chunk);
        let known = known && (1..=64).contains(&helpers);
        let empties = self.hash.empty_words(map.form).filter(|_| known);
        let Some(empties) = empties else {
            return Err(Damage::new(place, "a size of tables", format!("{config:?}")).into());
        };
        let root = |number: u64, word: u64| {
            unpack(number, word).map_err(|_| {
                let at = place + 8 * number;
                Damage::new(at, "a table's offset and depth", format!("{word:#x}"))
            })
        };
        let (first, depth) = root(0, words[0])?;
        let (next, next_depth) = root(1, words[1])?;
        let moves = next != 0 && next != first;
        let fits = depth > 0
            && match next {
                0 => next_depth == 0,
                _ if moves => goes_on && next_depth == depth + 1,
                _ => next_depth == depth,
            };
        if first == 0 || !fits {
            let found = format!("{:#x} and {:#x}", words[0], words[1]);
            return Err(Damage::new(place, "a table, and one of twice the size", found).into());
        }
        let table = self.read_table(map, first, depth)?;
        map.depth = depth;
        let mut moved = HashSet::new();
        for index in table.buckets() {
            let walked = self.walk_chain(map, &table, index, &empties, moves);
            if self.or_problem(map, walked)? == Some(true) {
                moved.insert(index);
            }
        }
        self.check_spare(map, &table, Some(&moved))?;
        if map.form == RecordForm::Inline && !moves {
            self.seen.table = Some(table);
        }
        if moves {
            let table = self.read_table(map, next, next_depth)?;
            map.depth = next_depth;
            for index in table.buckets().filter(|index| moved.contains(&(index / 2))) {
                let walked = self.walk_chain(map, &table, index, &empties, false);
                self.or_problem(map, walked)?;
            }
            self.check_spare(map, &table, None)?;
        }
        Ok(())
    }

    /// Checks that every overflow bucket with an owner is linked from a chain. `moved` has the
    /// chains whose records were moved to the next table, and which are not checked. It is `None`
    /// for a table that is being filled.
    ///
    /// In a table that was being filled when the pool crashed, an owned bucket without a link can
    /// be a copy that no chain links to yet, so it is no damage there.
    fn check_spare(
        &mut self,
        map: &mut MapReport,
        table: &Table,
        moved: Option<&HashSet<u64>>,
    ) -> Result<()> {
        let is_left_by_crash = !self.report.free_state;
        if !map.whole || is_left_by_crash && moved.is_none() {
            return Ok(());
        }
        for &(first, used) in &table.areas {
            for bucket in (0..used).map(|number| first + number * BUCKET) {
                if table.linked.borrow().contains(&bucket) {
                    continue;
                }
                let owner = table.owner(bucket, self.image.word(bucket)?);
                let owner = owner.filter(|chain| moved.is_none_or(|moved| !moved.contains(chain)));
                let Some(chain) = owner else { continue };
                let expected = format!("a link from chain {chain}, which owns this bucket");
                map.whole = false;
                self.problem(Damage::new(bucket, expected, "none"));
            }
        }
        Ok(())
    }

    /// Reports damage and goes on.
    fn or_problem<T>(&mut self, map: &mut MapReport, walked: Result<T>) -> Result<Option<T>> {
        match walked {
            Ok(walked) => Ok(Some(walked)),
            Err(Error::Damaged(damage)) => {
                map.whole = false;
                self.problem(damage);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads a table's headers.
    fn read_table(&mut self, map: &mut MapReport, at: u64, depth: u32) -> Result<Table> {
        if !at.is_multiple_of(64) {
            return Err(Damage::new(at, "a table at a multiple of 64", "another offset").into());
        }
        let words = self.image.words(at, 2)?;
        let chunk_bits = (words[0] >> 24 & 0xff) as u32;
        let expected = identity(TABLE, u64::from(depth | chunk_bits << 8), at, 0);
        if words[0] != expected || !(1..=depth.min(16)).contains(&chunk_bits) {
            let expected = format!("a table of 2^{depth} buckets");
            return Err(Damage::new(at, expected, format!("{:#x}", words[0])).into());
        }
        let count = 1u64 << (depth - chunk_bits);
        self.claim(at, (64 + 8 * count).next_power_of_two(), Owner::Structure)?;
        self.region(at, 16, What::PhtTable);
        self.region(at + 64, 8 * count, What::PhtTable);
        let links = self.image.words(at + 64, count)?;
        let (chunks, areas) = (Vec::new(), Vec::new());
        let (linked, astray) = (RefCell::default(), RefCell::default());
        let mut table = Table { depth, chunk_bits, chunks, areas, linked, astray };
        for (number, &word) in links.iter().enumerate() {
            let read = self.read_chunk(map, &mut table, at + 64 + 8 * number as u64, word, number);
            let chunk = self.or_problem(map, read)?;
            table.chunks.push(chunk);
        }
        let walked = self.read_annexes(&mut table, at + 8, words[1]);
        self.or_problem(map, walked)?;
        table.areas.sort_unstable();
        Ok(table)
    }

    /// Reads the headers of a table's annexes. The newest has its link at `link`.
    fn read_annexes(&mut self, table: &mut Table, mut link: u64, mut word: u64) -> Result<()> {
        let mut seen = HashSet::new();
        loop {
            let (annex, bits) = unpack(link, word)?;
            if annex == 0 {
                return Ok(());
            }
            let bad = |found: &str| Err(Damage::new(annex, "an annex", found).into());
            if !annex.is_multiple_of(BUCKET) || !seen.insert(annex) {
                return bad("a misaligned offset, or one for the second time");
            }
            let words = self.image.words(annex, 3)?;
            if words[0] != identity(ANNEX, u64::from(bits), annex, 0) || bits == 0 {
                return bad(&format!("{:#x}", words[0]));
            }
            self.claim(annex, BUCKET << bits, Owner::Structure)?;
            self.area(table, annex, words[1], annex + BUCKET, (1 << bits) - 1)?;
            (link, word) = (annex + 16, words[2]);
        }
    }

    fn read_chunk(
        &mut self,
        map: &mut MapReport,
        table: &mut Table,
        link: u64,
        word: u64,
        number: usize,
    ) -> Result<u64> {
        let (chunk, extra) = unpack(link, word)?;
        let bad = |found: String| Err(Damage::new(chunk, "a chunk", found).into());
        if !chunk.is_multiple_of(BUCKET) || extra != 0 {
            return bad("a misaligned offset".into());
        }
        let words = self.image.words(chunk, 2)?;
        if words[0] != identity(CHUNK, u64::from(table.chunk_bits), chunk, number as u64) {
            return bad(format!("{:#x}", words[0]));
        }
        let buckets = 1u64 << table.chunk_bits;
        let overflow = (buckets / 8).saturating_sub(1).max(1);
        self.claim(chunk, BUCKET * (1 + buckets + overflow), Owner::Structure)?;
        map.segments += buckets;
        self.area(table, chunk, words[1], chunk + BUCKET * (1 + buckets), overflow)?;
        Ok(chunk)
    }

    /// Adds the overflow buckets of a chunk or an annex to the table's areas.
    fn area(
        &mut self,
        table: &mut Table,
        header: u64,
        word: u64,
        first: u64,
        count: u64,
    ) -> Result<()> {
        // Only an annex has a link to another one.
        let fixed = if first == header + BUCKET { 24 } else { 16 };
        self.region(header, fixed, What::PhtArea);
        let used = unpack(header + 8, word)?.0 / 64;
        if used > count {
            let expected = format!("at most {count} buckets");
            return Err(Damage::new(header + 8, expected, used.to_string()).into());
        }
        table.areas.push((first, used));
        Ok(())
    }

    /// Walks a chain. Returns `true`, without having walked it, if its records were moved to the
    /// next table.
    fn walk_chain(
        &mut self,
        map: &mut MapReport,
        table: &Table,
        index: u64,
        empties: &[u64; 2],
        moves: bool,
    ) -> Result<bool> {
        let Some(first) = table.bucket(index) else { return Ok(false) };
        let (mut bucket, mut keys) = (first, ByKey::new());
        loop {
            let words = self.image.words(bucket, BUCKET / 8)?;
            if bucket != first {
                self.region(bucket, 8, What::PhtLink);
                // The store of the owner is not flushed, so a power loss can undo it.
                if words[0] != 0 && table.owner(bucket, words[0]) != Some(index) {
                    let expected = format!("a bucket that chain {index} owns");
                    self.problem(Damage::new(bucket, expected, format!("{:#x}", words[0])));
                }
            }
            self.region(bucket + 8, 8, What::PhtLink);
            let (next, mark) = unpack(bucket + 8, words[1])?;
            if mark == 1 && moves && bucket == first {
                return Ok(true);
            }
            if mark != 0 {
                return Err(Damage::new(bucket + 8, "a bucket's link", "a mark").into());
            }
            self.region(bucket + 16, BUCKET - 16, What::Bucket { form: map.form });
            for number in 0..SLOTS {
                let slot = [words[2 + 2 * number], words[3 + 2 * number]];
                let place = bucket + 16 * (1 + number as u64);
                let empty = empties[(table.low(index) >> 63) as usize];
                let walked =
                    self.walk_slot_of_chain(map, table, index, place, slot, empty, &mut keys);
                self.or_problem(map, walked)?;
            }
            if next == 0 {
                return Ok(false);
            }
            if !table.has(next) || !table.linked.borrow_mut().insert(next) {
                table.astray.borrow_mut().insert(next);
                let expected = "an overflow bucket that no other links to";
                return Err(Damage::new(bucket + 8, expected, format!("{next:#x}")).into());
            }
            map.nodes += 1;
            bucket = next;
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn walk_slot_of_chain(
        &mut self,
        map: &mut MapReport,
        table: &Table,
        index: u64,
        place: u64,
        [first, second]: [u64; 2],
        empty: u64,
        keys: &mut ByKey<()>,
    ) -> Result<()> {
        if first == empty {
            return Ok(());
        }
        let hash = self.hash.of_slot(map.form, [first, second]);
        if hash >> (64 - table.depth) != index {
            let expected = "an empty slot, or a record at home there";
            return Err(Damage::new(place, expected, format!("{first:#x} {second:#x}")).into());
        }
        self.region(place, 16, What::LiveSlot { form: map.form, depth: table.depth });
        map.records += 1;
        let slot = Slot { place, words: [first, second] };
        if keys.add(self, map.form, slot, ()).is_some() {
            map.duplicates += 1;
            return Err(Damage::new(place, "each key once", "one for the second time").into());
        }
        self.check_record(map, slot)
    }
}
