//! Buckets of the EA-PHT family that the walk could not reach.

use super::super::Walk;
use super::super::ea_pht::{ANNEX, BUCKET, CHUNK, SLOTS, Table};
use super::super::image::{identity, unpack};
use super::{Found, Take, Walked};
use outlast::internals::pool::layout::RecordForm;
use outlast::{Error, Result};
use std::collections::{HashMap, HashSet};

/// A bucket: its offset, its words of link and owner, and its slots.
struct Bucket {
    at: u64,
    owner: u64,
    next: u64,
    slots: Vec<[u64; 2]>,
}

/// A chunk that the walk has not reached.
struct Chunk {
    at: u64,
    bytes: u64,
    number: u64,
    /// How many of its overflow buckets were handed out, if that is known.
    used: Option<u64>,
    is_certain: bool,
}

/// The size of a table.
#[derive(Clone, Copy)]
struct Size {
    depth: u32,
    chunk_bits: u32,
    /// The first words of empty slots.
    empties: [u64; 2],
}

impl Size {
    /// The number of buckets in a chunk's array.
    fn buckets(self) -> u64 {
        1 << self.chunk_bits
    }

    fn chunk_bytes(self) -> u64 {
        BUCKET * (1 + self.buckets() + self.overflow())
    }

    /// The number of a chunk's overflow buckets.
    fn overflow(self) -> u64 {
        (self.buckets() / 8).saturating_sub(1).max(1)
    }

    fn chunks(self) -> u64 {
        1 << (self.depth - self.chunk_bits)
    }

    /// Returns the chain that an overflow bucket names as its owner.
    fn owner(self, bucket: &Bucket) -> Option<u64> {
        let (chain, depth) = unpack(bucket.at, bucket.owner).ok()?;
        let chain = (chain / 64).checked_sub(1)?;
        (depth == self.depth && chain >> self.depth == 0).then_some(chain)
    }
}

impl Walk<'_, '_> {
    pub(super) fn take_buckets<E: From<Error>>(
        &self,
        map: &Walked,
        take: Take<'_, E>,
    ) -> Result<(), E> {
        let [Ok((first, depth)), Ok((next, next_depth))] =
            [0, 1].map(|number| unpack(number, map.words[number as usize]))
        else {
            return Ok(());
        };
        if depth == 0 || next != 0 && next != first && next_depth != depth + 1 {
            return Ok(());
        }
        let empties = self.hash.empty_words(RecordForm::Inline);
        let Some(empties) = empties else { return Ok(()) };
        let table = map.seen.table.as_ref();
        // While records are moved, a bucket does not say which table has them.
        let moves = next != 0 && next != first;
        for depth in depth..=depth + u32::from(moves) {
            let bits = table.map(|table| table.chunk_bits);
            let Some(chunk_bits) =
                bits.map_or_else(|| self.chunk_bits(depth, empties), |b| Ok(Some(b)))?
            else {
                continue;
            };
            let size = Size { depth, chunk_bits, empties };
            self.take_of_table(size, table, !moves, take)?;
        }
        Ok(())
    }

    /// Returns log2 of the buckets in a chunk, from the first chunk that nothing leads to.
    fn chunk_bits(&self, depth: u32, empties: [u64; 2]) -> Result<Option<u32>> {
        for block in self.runs.unlinked(self.page_bits).filter(|block| block.bytes >= 4 * BUCKET) {
            let word = self.image.word(block.offset)?;
            let bits = (word >> 16 & 0xffff) as u32;
            if word & 0xffff != CHUNK || !(1..=depth.min(16)).contains(&bits) {
                continue;
            }
            let size = Size { depth, chunk_bits: bits, empties };
            let is_chunk = |number| word == identity(CHUNK, u64::from(bits), block.offset, number);
            if self.number_of(size, block.offset)?.is_some_and(is_chunk) {
                return Ok(Some(bits));
            }
        }
        Ok(None)
    }

    fn bucket(&self, at: u64) -> Result<Option<Bucket>> {
        match self.image.words(at, BUCKET / 8) {
            Ok(words) => Ok(Some(Bucket {
                at,
                owner: words[0],
                next: words[1],
                slots: words[2..2 + 2 * SLOTS].as_chunks().0.to_vec(),
            })),
            Err(Error::Damaged(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the number of the chunk that a block seems to be: the one that most of the records
    /// in its first buckets belong to.
    fn number_of(&self, size: Size, at: u64) -> Result<Option<u64>> {
        let (mut counts, mut all) = (HashMap::<u64, u64>::new(), 0);
        for number in 0..size.buckets().min(256) {
            let Some(bucket) = self.bucket(at + BUCKET * (1 + number))? else { break };
            for [first, _] in bucket.slots {
                if size.empties.contains(&first) {
                    continue;
                }
                let index = self.hash.of(&first.to_le_bytes()) >> (64 - size.depth);
                all += 1;
                if index & (size.buckets() - 1) == number {
                    *counts.entry(index >> size.chunk_bits).or_default() += 1;
                }
            }
        }
        let most = counts.into_iter().max_by_key(|&(_, count)| count);
        Ok(most.filter(|&(_, count)| count * 2 > all).map(|(number, _)| number))
    }

    fn take_of_table<E: From<Error>>(
        &self,
        size: Size,
        table: Option<&Table>,
        is_one: bool,
        take: Take<'_, E>,
    ) -> Result<(), E> {
        let mut chunks: Vec<Chunk> = Vec::new();
        let mut others = Vec::new();
        for block in self.runs.unlinked(self.page_bits) {
            if block.is_used == Some(false) || block.bytes < 2 * BUCKET {
                continue;
            }
            let certain = is_one && block.is_used == Some(true);
            let (at, bytes) = (block.offset, block.bytes);
            self.image.read_ahead(at, bytes.min(1 << 16));
            let number = match bytes >= size.chunk_bytes() {
                true => self.number_of(size, at)?,
                false => None,
            };
            let missing = |&number: &u64| {
                number < size.chunks()
                    && table.is_none_or(|table| table.chunks[number as usize].is_none())
            };
            match number.filter(missing) {
                Some(number) => {
                    let [word, used] = self.image.array(at)?;
                    let is_chunk = word == identity(CHUNK, u64::from(size.chunk_bits), at, number);
                    let used = unpack(at + 8, used).ok().filter(|_| is_chunk);
                    let used = used.map(|(used, _)| (used / 64).min(size.overflow()));
                    chunks.push(Chunk { at, bytes, number, used, is_certain: certain });
                }
                None => others.push((at, bytes, certain)),
            }
        }
        chunks.sort_by_key(|chunk| chunk.number);
        for pair in 1..chunks.len() {
            if chunks[pair - 1].number == chunks[pair].number {
                chunks[pair - 1].is_certain = false;
                chunks[pair].is_certain = false;
            }
        }
        // Overflow buckets that were handed out for certain.
        let mut linked = table.map_or_else(HashSet::new, |table| table.astray.borrow().clone());
        for chunk in &chunks {
            for number in 0..size.buckets() {
                let at = chunk.at + BUCKET * (1 + number);
                let Some(bucket) = self.bucket(at)? else { break };
                let chain = chunk.number << size.chunk_bits | number;
                self.take_bucket(size, &bucket, chain, chunk.is_certain, &mut linked, take)?;
            }
        }
        // Those of chunks and annexes that the walk has read, and those of the others.
        for &(first, used) in table.iter().flat_map(|table| &table.areas) {
            let all = 0..used;
            self.take_spare(size, table, first, all, Some(used), is_one, &mut linked, take)?;
        }
        for chunk in chunks {
            let first = chunk.at + BUCKET * (1 + size.buckets());
            let all = 0..size.overflow().min((chunk.bytes / BUCKET).saturating_sub(1));
            let (used, certain) = (chunk.used, chunk.is_certain);
            self.take_spare(size, table, first, all, used, certain, &mut linked, take)?;
        }
        for (at, bytes, certain) in others {
            let all = 0..bytes / BUCKET - 1;
            let used = self.annex_used(at)?;
            self.take_spare(size, table, at + BUCKET, all, used, certain, &mut linked, take)?;
        }
        Ok(())
    }

    /// Returns how many buckets of an annex were handed out, if there is an annex at this offset.
    fn annex_used(&self, at: u64) -> Result<Option<u64>> {
        let [word, used] = self.image.array(at)?;
        let is_annex = word == identity(ANNEX, word >> 16 & 0xffff, at, 0);
        Ok(unpack(at + 8, used).ok().filter(|_| is_annex).map(|(used, _)| used / 64))
    }

    /// Passes on the records of overflow buckets that have an owner and that nothing leads to.
    /// They are certain if it is known that the bucket was handed out.
    #[expect(clippy::too_many_arguments, reason = "an area is described by several of these")]
    fn take_spare<E: From<Error>>(
        &self,
        size: Size,
        table: Option<&Table>,
        first: u64,
        all: std::ops::Range<u64>,
        used: Option<u64>,
        is_certain: bool,
        linked: &mut HashSet<u64>,
        take: Take<'_, E>,
    ) -> Result<(), E> {
        for number in all {
            let at = first + BUCKET * number;
            if table.is_some_and(|table| table.linked.borrow().contains(&at)) {
                continue;
            }
            let Some(bucket) = self.bucket(at)? else { break };
            let Some(chain) = size.owner(&bucket) else { continue };
            let handed = used.is_some_and(|used| number < used) || linked.contains(&at);
            let is_certain = is_certain && handed && self.report.free_state;
            self.take_bucket(size, &bucket, chain, is_certain, linked, take)?;
        }
        Ok(())
    }

    fn take_bucket<E: From<Error>>(
        &self,
        size: Size,
        bucket: &Bucket,
        chain: u64,
        is_certain: bool,
        linked: &mut HashSet<u64>,
        take: Take<'_, E>,
    ) -> Result<(), E> {
        if let Ok((next, 0)) = unpack(bucket.at + 8, bucket.next) {
            linked.insert(next);
        }
        for (slot, &words) in (1..).zip(&bucket.slots) {
            if self.hash.of(&words[0].to_le_bytes()) >> (64 - size.depth) == chain {
                let place = bucket.at + 16 * slot;
                take(Found { place, words, is_certain })?;
            }
        }
        Ok(())
    }
}
