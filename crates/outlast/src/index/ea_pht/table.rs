//! A table in use: where its buckets are, and its allocator of overflow buckets (3.4.2).

use super::bucket::{BucketRef, disown};
use super::layout::{self, AreaHeader, BUCKET_BYTES, Kind, Link, TABLE_HEADER, TableHeader};
use super::points;
use crate::error::{Damage, Result};
use crate::index::kit::directory::Segment;
use crate::index::kit::media::{check_block, check_identity};
use crate::index::kit::unlinked::UnlinkedBlock;
use crate::pmem::{Memory, Offset, Point, Seam, Shared, SharedWord, Word};
use crate::pool::core::Core;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, OnceLock};

/// The overflow buckets of one block, a chunk or an annex. The table hands them out in order by
/// advancing a counter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Area {
    /// The block.
    header: u64,
    /// The first of its overflow buckets.
    pub(super) first: u64,
    pub(super) count: u64,
}

impl Area {
    /// Returns the word that counts the buckets that were handed out.
    fn counter<'m, S: Seam>(&self, memory: &'m Memory<S>) -> Result<&'m Word, Damage> {
        Ok(&memory.at(Offset::<AreaHeader>::new(self.header))?.used)
    }

    /// Returns how many buckets were handed out.
    pub(super) fn used<S: Seam>(&self, memory: &Memory<S>) -> Result<u64, Damage> {
        let word = self.counter(memory)?;
        let used = Link::read(memory, word)?.offset / 64;
        if used <= self.count {
            return Ok(used);
        }
        let at = memory.offset_of(word).raw();
        Err(Damage::new(at, format!("at most {} buckets", self.count), used.to_string()))
    }
}

/// The allocator of overflow buckets.
#[derive(Debug, Default)]
pub(crate) struct Overflow {
    pub(super) areas: Vec<Area>,
    /// The first area that has buckets left.
    open: usize,
    /// The buckets of that area before this number were handed out, or prepared since the map was
    /// opened.
    prepared: u64,
    /// Buckets that were handed out and never linked.
    pub(super) spare: Vec<u64>,
    /// Whether no more buckets are handed out, because the table is being moved or the next one is
    /// being prepared.
    closed: bool,
}

/// A table: an array of 2^depth buckets in chunks, and overflow buckets.
pub(crate) struct Table {
    /// The offset of the table's own block.
    pub(super) offset: u64,
    pub(super) depth: u32,
    chunk_bits: u32,
    /// The chunks, 0 for one that cannot be read.
    pub(super) chunks: Box<[u64]>,
    pub(super) overflow: Mutex<Overflow>,
    /// The overflow buckets that a chain owns but does not link to, as opening has found, by the
    /// chain's number.
    pub(super) lost: Mutex<HashMap<u64, Vec<u64>>>,
    /// Held while an annex is added.
    extending: Mutex<()>,
    /// The number of chains that have overflow buckets.
    pub(super) chains: SharedWord,
    /// The number of overflow buckets that inserts have linked since the table was made or opened.
    pub(super) linked: SharedWord,
    /// After a resize failed, the next one is tried once `linked` reaches this number.
    pub(super) retried_at: SharedWord,
    /// 1 once the space for the next table was announced to the pool.
    pub(super) announced: SharedWord,
    /// 1 once a thread has begun to prepare the next table.
    pub(super) resizing: SharedWord,
    /// The table that this one is moved to.
    next: Shared<OnceLock<Box<Table>>>,
    /// The first bucket that no thread has claimed yet.
    pub(super) claimed: SharedWord,
    pub(super) moved: SharedWord,
    /// 1 once a thread has begun to make the next table the only one.
    pub(super) ending: SharedWord,
    /// The number of threads that move buckets.
    pub(super) helpers: SharedWord,
    /// 1 once the table's blocks may be retired and reused.
    retired: SharedWord,
}

impl Table {
    fn new(offset: u64, depth: u32, chunk_bits: u32, chunks: Box<[u64]>, areas: Vec<Area>) -> Self {
        Table {
            offset,
            depth,
            chunk_bits,
            chunks,
            overflow: Mutex::new(Overflow { areas, ..Overflow::default() }),
            lost: Mutex::default(),
            extending: Mutex::default(),
            chains: SharedWord::default(),
            linked: SharedWord::default(),
            retried_at: SharedWord::default(),
            announced: SharedWord::default(),
            resizing: SharedWord::default(),
            next: Shared::once(),
            claimed: SharedWord::default(),
            moved: SharedWord::default(),
            ending: SharedWord::default(),
            helpers: SharedWord::default(),
            retired: SharedWord::default(),
        }
    }

    /// Opens the table at an offset. Does not fail if a chunk cannot be read, but notes the chunk
    /// as 0; [`check_chunk`](Self::check_chunk) says why.
    pub(super) fn open<S: Seam>(core: &Core<S>, offset: u64, depth: u32) -> Result<Table, Damage> {
        let memory = &core.memory;
        let header = memory.at(Offset::<TableHeader>::new(offset))?;
        // From the property in the identity word, which is checked as a whole below.
        let chunk_bits = (memory.load(&header.identity) >> 24) as u32 & 0xff;
        let chunk_bits = chunk_bits.clamp(1, depth.min(*layout::CHUNK_BITS.end()));
        let expected = identity(offset, depth, chunk_bits);
        let what = format!("a table of 2^{depth} buckets");
        check_identity(memory, &header.identity, expected, &what)?;
        let words = check_block(core, offset, layout::table_bytes(depth - chunk_bits))?;
        let (mut chunks, mut areas) = (Vec::new(), Vec::new());
        let links = &words[TABLE_HEADER as usize / 8..][..1 << (depth - chunk_bits)];
        for (number, link) in links.iter().enumerate() {
            let chunk = check_chunk(core, link, chunk_bits, number as u64);
            if let Ok(chunk) = chunk {
                areas.push(chunk_area(chunk, chunk_bits));
            }
            chunks.push(chunk.unwrap_or(0));
        }
        let (mut annexes, mut seen) = (Vec::new(), HashSet::new());
        let mut link = &header.annexes;
        loop {
            let annex = Link::read(memory, link)?;
            if annex.offset == 0 {
                break;
            }
            let area = check_annex(core, annex)?;
            if !seen.insert(area.header) {
                return Err(Damage::new(annex.offset, "each annex once", "one a second time"));
            }
            annexes.push(area);
            link = &memory.at(Offset::<AreaHeader>::new(annex.offset))?.next;
        }
        // The oldest first, as they were made.
        areas.extend(annexes.into_iter().rev());
        Ok(Table::new(offset, depth, chunk_bits, chunks.into(), areas))
    }

    /// Writes a table with room for at least `overflow` overflow buckets, but not the content of
    /// any bucket. Flushes what it writes, without a fence. Returns the table and its blocks.
    pub(super) fn write<'c, S: Seam>(
        core: &'c Core<S>,
        depth: u32,
        chunk_bits: u32,
        overflow: u64,
        at: &'static Point,
    ) -> Result<(Table, Vec<UnlinkedBlock<'c, S>>)> {
        let memory = &core.memory;
        let chunk_bits = fitting(core, depth, chunk_bits);
        let count = 1u64 << (depth - chunk_bits);
        let mut blocks =
            vec![UnlinkedBlock::allocate(core, layout::table_bytes(depth - chunk_bits))?];
        for _ in 0..count {
            blocks.push(UnlinkedBlock::allocate(core, layout::chunk_bytes(chunk_bits))?);
        }
        let offset = blocks[0].offset();
        let chunks: Box<[u64]> = blocks[1..].iter().map(UnlinkedBlock::offset).collect();
        let mut areas: Vec<_> = chunks.iter().map(|&chunk| chunk_area(chunk, chunk_bits)).collect();
        let mut lacking = overflow.saturating_sub(count * layout::overflow_buckets(chunk_bits));
        let mut annex = Link::default();
        while lacking > 0 {
            let bits = (lacking + 1).next_power_of_two().ilog2().min(largest_annex(core));
            let bits = bits.min(ANNEX_BITS);
            let block = UnlinkedBlock::allocate(core, layout::annex_bytes(bits))?;
            let older = annex;
            annex = Link { offset: block.offset(), depth: bits };
            write_annex(memory, annex, older, at)?;
            areas.push(annex_area(annex));
            blocks.push(block);
            lacking = lacking.saturating_sub((1 << bits) - 1);
        }
        for (number, &chunk) in chunks.iter().enumerate() {
            let header = memory.at(Offset::<AreaHeader>::new(chunk))?;
            let identity = layout::identity(Kind::Chunk, chunk, number as u64, chunk_bits);
            write_area(memory, header, identity, Link::default(), at);
        }
        let header = memory.at(Offset::<TableHeader>::new(offset))?;
        memory.store(&header.identity, identity(offset, depth, chunk_bits), at);
        annex.store(memory, &header.annexes, at);
        let words = memory.words(offset, TABLE_HEADER + 8 * count)?;
        let (head, links) = words.split_at(TABLE_HEADER as usize / 8);
        for (word, &chunk) in links.iter().zip(&chunks) {
            Link { offset: chunk, depth: 0 }.store(memory, word, at);
        }
        memory.flush_words(&head[..2], at);
        memory.flush_words(links, at);
        Ok((Table::new(offset, depth, chunk_bits, chunks, areas), blocks))
    }

    /// Checks a chunk again. If it cannot be read, fails with the reason.
    pub(super) fn check_chunk<S: Seam>(&self, core: &Core<S>, number: usize) -> Result<(), Damage> {
        let words = core.memory.words(self.offset, self.bytes())?;
        let link = &words[TABLE_HEADER as usize / 8 + number];
        check_chunk(core, link, self.chunk_bits, number as u64).map(drop)
    }

    /// Flushes the headers of the table and its areas, as opening has found them, without a fence.
    pub(super) fn flush<S: Seam>(&self, core: &Core<S>, at: &'static Point) -> Result<(), Damage> {
        let memory = &core.memory;
        let links = 8 * self.chunks.len() as u64;
        memory.flush_words(memory.words(self.offset, TABLE_HEADER + links)?, at);
        for area in &memory.seam().lock(&self.overflow).areas {
            memory.flush_words(memory.words(area.header, 24)?, at);
        }
        Ok(())
    }

    /// Returns the size, in bytes, of the table's own block.
    fn bytes(&self) -> u64 {
        layout::table_bytes(self.depth - self.chunk_bits)
    }

    /// Returns the kind, offset and size of each of the table's blocks.
    pub(super) fn blocks<S: Seam>(&self, seam: &S) -> Vec<(Kind, u64, u64)> {
        let chunks = self.chunks.iter().filter(|&&chunk| chunk != 0);
        let chunk = |&chunk: &u64| (Kind::Chunk, chunk, layout::chunk_bytes(self.chunk_bits));
        let mut blocks = vec![(Kind::Table, self.offset, self.bytes())];
        blocks.extend(chunks.map(chunk));
        let overflow = seam.lock(&self.overflow);
        let annexes = overflow.areas.iter().filter(|area| area.first == area.header + BUCKET_BYTES);
        let annex = |area: &Area| (Kind::Annex, area.header, (area.count + 1) * BUCKET_BYTES);
        // The filter above picks out annexes: in a chunk, the array lies between the header and the
        // overflow buckets.
        blocks.extend(annexes.map(annex));
        blocks
    }

    pub(super) fn buckets(&self) -> u64 {
        1 << self.depth
    }

    /// Returns the buckets of a chunk, as numbers in the array.
    pub(super) fn buckets_of_chunk(&self, chunk: usize) -> std::ops::Range<u64> {
        let first = (chunk as u64) << self.chunk_bits;
        first..first + (1 << self.chunk_bits)
    }

    /// Returns the number of the bucket of a hash.
    #[inline(always)]
    pub(super) fn index(&self, hash: u64) -> u64 {
        hash >> (64 - self.depth)
    }

    /// Returns the first bucket of a chain, by its number. `None` if its chunk cannot be read.
    #[inline(always)]
    pub(super) fn bucket<'m, S: Seam>(
        &self,
        memory: &'m Memory<S>,
        index: u64,
    ) -> Option<BucketRef<'m>> {
        let chunk = self.chunks[(index >> self.chunk_bits) as usize];
        let place = index & ((1 << self.chunk_bits) - 1);
        // SAFETY: the chunk was checked to lie in a block of its size, or is from an allocation of
        // that size, and the place is one of its array.
        (chunk != 0).then(|| unsafe { BucketRef::new(memory, chunk + (1 + place) * BUCKET_BYTES) })
    }

    /// Returns the range of a chain's hashes, as a segment whose offset is the chain's number.
    pub(super) fn segment(&self, index: u64) -> Segment {
        Segment { offset: index, depth: self.depth, low: index << (64 - self.depth) }
    }

    pub(super) fn next(&self, seam: &impl Seam) -> Option<&Table> {
        self.next.get(seam).map(|next| &**next)
    }

    /// Sets the table that this one is moved to, which no thread has set before.
    pub(super) fn set_next(&self, seam: &impl Seam, next: Box<Table>) -> &Table {
        self.next.get_or_init(seam, || next)
    }

    /// Makes the buckets from number `from` on claimable again. Threads that claim them skip those
    /// that have already been moved.
    pub(super) fn claim_again(&self, seam: &impl Seam, from: u64) {
        loop {
            let now = self.claimed.load(seam, Ordering::Relaxed);
            let orders = (Ordering::AcqRel, Ordering::Relaxed);
            if now <= from || self.claimed.compare_exchange(seam, now, from, orders).is_ok() {
                return;
            }
        }
    }

    /// Returns whether the table's blocks may have been reused.
    #[inline(always)]
    pub(super) fn is_retired(&self, seam: &impl Seam) -> bool {
        self.retired.load(seam, Ordering::Acquire) != 0
    }

    pub(super) fn set_retired(&self, seam: &impl Seam) {
        self.retired.store(seam, 1, Ordering::SeqCst);
    }

    // ---- Overflow buckets -------------------------------------------------------

    /// Hands out an overflow bucket: a spare one or, after advancing and flushing an area's
    /// counter, the area's next one. The caller fences. Returns `None` if no bucket is left, or if
    /// [`close`](Self::close) has been called.
    pub(super) fn take<S: Seam>(&self, core: &Core<S>) -> Result<Option<u64>, Damage> {
        let memory = &core.memory;
        let mut overflow = memory.seam().lock(&self.overflow);
        if overflow.closed {
            return Ok(None);
        }
        if let Some(bucket) = overflow.spare.pop() {
            return Ok(Some(bucket));
        }
        while let Some(area) = overflow.areas.get(overflow.open).copied() {
            let used = area.used(memory)?;
            if used < area.count {
                if used >= overflow.prepared {
                    // Media do not tell which buckets are prepared, because a copy's owner can have
                    // outlived the counter that covers its bucket.
                    overflow.prepared = area.count.min((used + 1).next_multiple_of(DISOWNED));
                    let few = used..overflow.prepared;
                    let few = few.map(|number| area.first + number * BUCKET_BYTES);
                    // The buckets must be durably without an owner before the counter covers them,
                    // because opening relies on the owners of all buckets that it covers.
                    disown(memory, few);
                }
                let counter = area.counter(memory)?;
                let at = &points::COUNTER;
                Link { offset: (used + 1) * 64, depth: 0 }.store(memory, counter, at);
                memory.flush_words(std::slice::from_ref(counter), at);
                return Ok(Some(area.first + used * BUCKET_BYTES));
            }
            (overflow.open, overflow.prepared) = (overflow.open + 1, 0);
        }
        Ok(None)
    }

    /// Returns the chain that owns an overflow bucket, unless none does (invariant 6).
    pub(super) fn owner<S: Seam>(&self, memory: &Memory<S>, bucket: BucketRef<'_>) -> Option<u64> {
        let word = bucket.bucket.lock.word();
        let owner = Link::unpack(memory.offset_of(word).raw(), memory.load(word))?;
        let chain = (owner.offset / 64).checked_sub(1)?;
        (owner.depth == self.depth && chain < self.buckets()).then_some(chain)
    }

    /// Takes back a bucket that nothing links to.
    pub(super) fn give_back(&self, seam: &impl Seam, bucket: u64) {
        seam.lock(&self.overflow).spare.push(bucket);
    }

    /// Stops handing out buckets. Returns how many were handed out and are not spare.
    pub(super) fn close<S: Seam>(&self, memory: &Memory<S>) -> Result<u64, Damage> {
        let mut overflow = memory.seam().lock(&self.overflow);
        overflow.closed = true;
        let used: Result<u64, Damage> = overflow.areas.iter().map(|area| area.used(memory)).sum();
        Ok(used?.saturating_sub(overflow.spare.len() as u64))
    }

    /// Undoes [`close`](Self::close).
    pub(super) fn reopen(&self, seam: &impl Seam) {
        seam.lock(&self.overflow).closed = false;
    }

    /// Adds annexes until at least this many buckets are left to hand out. Does nothing in a table
    /// that hands out none any more.
    pub(super) fn extend<S: Seam>(&self, core: &Core<S>, wanted: u64) -> Result<()> {
        // If several threads find too few buckets, one adds an annex, and the others wait for it.
        let _extending = core.memory.seam().lock(&self.extending);
        while self.lacks(&core.memory, wanted)? {
            if let Err(error) = self.add_annex(core) {
                // Another thread may have given some buckets back.
                return if self.lacks(&core.memory, wanted)? { Err(error) } else { Ok(()) };
            }
        }
        Ok(())
    }

    /// Returns whether fewer than this many buckets are left, so that an annex is needed.
    fn lacks<S: Seam>(&self, memory: &Memory<S>, wanted: u64) -> Result<bool, Damage> {
        let overflow = memory.seam().lock(&self.overflow);
        if overflow.closed {
            // The table may even have been retired, and its areas reused.
            return Ok(false);
        }
        let mut left = overflow.spare.len() as u64;
        for area in overflow.areas.iter().skip(overflow.open) {
            left += area.count - area.used(memory)?;
        }
        Ok(left < wanted)
    }

    fn add_annex<S: Seam>(&self, core: &Core<S>) -> Result<()> {
        let wanted = self.depth.saturating_sub(3).clamp(2, ANNEX_BITS);
        let mut bits = wanted.min(largest_annex(core));
        let mut block = loop {
            match UnlinkedBlock::allocate(core, layout::annex_bytes(bits)) {
                // Free space may be scattered: try a smaller annex.
                Err(error) if error.is_full() && bits > 2 => bits = (bits / 2).max(2),
                block => break block?,
            }
        };
        let annex = Link { offset: block.offset(), depth: bits };
        let memory = &core.memory;
        let mut overflow = memory.seam().lock(&self.overflow);
        if overflow.closed {
            return Ok(());
        }
        let header = memory.at(Offset::<TableHeader>::new(self.offset))?;
        let older = Link::read(memory, &header.annexes)?;
        write_annex(memory, annex, older, &points::ANNEX_NEW)?;
        memory.fence(&points::ANNEX_NEW);
        let at = &points::ANNEX_COMMIT;
        annex.store(memory, &header.annexes, at);
        block.set_linked();
        memory.flush_words(std::slice::from_ref(&header.annexes), at);
        memory.fence(at);
        overflow.areas.push(annex_area(annex));
        Ok(())
    }
}

/// Returns the identity word of a table.
fn identity(offset: u64, depth: u32, chunk_bits: u32) -> u64 {
    layout::identity(Kind::Table, offset, 0, depth | chunk_bits << 8)
}

fn chunk_area(chunk: u64, bits: u32) -> Area {
    let first = chunk + BUCKET_BYTES * (1 + (1 << bits));
    Area { header: chunk, first, count: layout::overflow_buckets(bits) }
}

/// How many overflow buckets are prepared together before they are handed out. Until then they may
/// hold anything.
const DISOWNED: u64 = 16;

/// log2 of the size, in buckets and including the header, of the largest annex that a table tries
/// to allocate.
const ANNEX_BITS: u32 = 16;

/// Returns log2 of the size, in buckets and including the header, of the largest possible annex.
fn largest_annex<S: Seam>(core: &Core<S>) -> u32 {
    (core.geometry.large_max() / BUCKET_BYTES).ilog2()
}

fn annex_area(annex: Link) -> Area {
    let first = annex.offset + BUCKET_BYTES;
    Area { header: annex.offset, first, count: (1 << annex.depth) - 1 }
}

/// Checks the chunk that a table links to, and returns its offset.
fn check_chunk<S: Seam>(
    core: &Core<S>,
    link: &Word,
    bits: u32,
    number: u64,
) -> Result<u64, Damage> {
    let memory = &core.memory;
    let Link { offset, depth: 0 } = Link::read(memory, link)? else {
        let at = memory.offset_of(link).raw();
        return Err(Damage::new(at, "a chunk's offset", "one with a depth"));
    };
    let header = memory.at(Offset::<AreaHeader>::new(offset))?;
    check_block(core, offset, layout::chunk_bytes(bits))?;
    let expected = layout::identity(Kind::Chunk, offset, number, bits);
    check_identity(memory, &header.identity, expected, &format!("chunk {number}"))?;
    chunk_area(offset, bits).used(memory)?;
    Ok(offset)
}

/// Checks an annex, and returns its buckets.
fn check_annex<S: Seam>(core: &Core<S>, annex: Link) -> Result<Area, Damage> {
    let memory = &core.memory;
    let header = memory.at(Offset::<AreaHeader>::new(annex.offset))?;
    let bytes = 1u64.checked_shl(annex.depth + 8).filter(|_| annex.depth >= 1);
    check_block(core, annex.offset, bytes.unwrap_or(u64::MAX / 2))?;
    let expected = layout::identity(Kind::Annex, annex.offset, 0, annex.depth);
    check_identity(memory, &header.identity, expected, "an annex")?;
    let area = annex_area(annex);
    area.used(memory)?;
    Ok(area)
}

/// Returns log2 of the buckets of a chunk, in a table of this depth. It is `wanted`, unless a chunk
/// or the table's header would then be larger than the largest block.
fn fitting<S: Seam>(core: &Core<S>, depth: u32, wanted: u32) -> u32 {
    let fits = |bits: &u32| layout::chunk_bytes(*bits) <= core.geometry.large_max();
    let mut bits = (1..=wanted.min(depth)).rev().find(fits).unwrap_or(1);
    while layout::table_bytes(depth - bits) > core.geometry.large_max()
        && bits < *layout::CHUNK_BITS.end()
        && fits(&(bits + 1))
    {
        bits += 1;
    }
    bits
}

/// Returns about how many bytes of the pool a table of this depth takes.
pub(super) fn bytes<S: Seam>(core: &Core<S>, depth: u32, chunk_bits: u32) -> u64 {
    let bits = fitting(core, depth, chunk_bits);
    let geometry = core.geometry;
    let room = |bytes| {
        let whole = geometry.pages_for(bytes) * geometry.page_bytes();
        geometry.class_bytes(geometry.class_for(bytes)).unwrap_or(whole)
    };
    room(layout::table_bytes(depth - bits)) + (room(layout::chunk_bytes(bits)) << (depth - bits))
}

/// Writes the header of a chunk or an annex and flushes it, without a fence.
fn write_area<S: Seam>(
    memory: &Memory<S>,
    header: &AreaHeader,
    identity: u64,
    next: Link,
    at: &'static Point,
) {
    memory.store(&header.identity, identity, at);
    Link::default().store(memory, &header.used, at);
    next.store(memory, &header.next, at);
    memory.flush_words(std::slice::from_ref(&header.identity), at);
}

fn write_annex<S: Seam>(
    memory: &Memory<S>,
    annex: Link,
    next: Link,
    at: &'static Point,
) -> Result<(), Damage> {
    let header = memory.at(Offset::<AreaHeader>::new(annex.offset))?;
    let identity = layout::identity(Kind::Annex, annex.offset, 0, annex.depth);
    write_area(memory, header, identity, next, at);
    Ok(())
}
