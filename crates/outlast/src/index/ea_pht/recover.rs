//! Opening: builds the metadata of each bucket, and finds the overflow buckets that were handed out
//! and not linked (3.6).

use super::bucket::{BucketRef, disown, own};
use super::layout::{self, BUCKET_BYTES, Link, MOVED as MOVED_ON_MEDIA};
use super::table::{Area, Table};
use super::{DAMAGED, MOVED, Missing, Pht, Variant, bugs, points};
use crate::error::Damage;
use crate::index::bugs as index_bugs;
use crate::index::kit::lock::LockPlace;
use crate::index::kit::parallel::read_parts;
use crate::index::record::{SlotRecord, SlotWords};
use crate::index::version::is_at_rest;
use crate::pmem::Seam;
use crate::pool::core::Core;
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// The number of buckets that a thread reads at a time.
const PART: u64 = 256;

/// The overflow buckets that a table has handed out, and which of them the chains that were read so
/// far link to.
pub(super) struct Handed {
    areas: Vec<(Area, u64)>,
    /// The overflow buckets that a chain links to.
    linked: Mutex<HashSet<u64>>,
    /// After a crash, the linked buckets that have no owner, each with the chain that links to it.
    unowned: Mutex<Vec<(u64, u64)>>,
}

impl Handed {
    pub(super) fn of<S: Seam>(table: &Table, core: &Core<S>) -> Result<Handed, Damage> {
        let areas = core.memory.seam().lock(&table.overflow).areas.clone();
        let mut with_used = Vec::with_capacity(areas.len());
        for area in areas {
            with_used.push((area, area.used(&core.memory)?));
        }
        with_used.sort_unstable_by_key(|(area, _)| area.first);
        Ok(Handed { areas: with_used, linked: Mutex::default(), unowned: Mutex::default() })
    }

    /// Returns whether this is the offset of a bucket that was handed out.
    fn has(&self, bucket: u64) -> bool {
        let after = self.areas.partition_point(|(area, _)| area.first <= bucket);
        after.checked_sub(1).is_some_and(|number| {
            let (area, used) = self.areas[number];
            let place = bucket - area.first;
            place.is_multiple_of(BUCKET_BYTES) && place / BUCKET_BYTES < used
        })
    }

    /// Notes a link to a bucket. Returns `false` if the bucket was not handed out, or if a link to
    /// it was noted before.
    pub(super) fn link(&self, bucket: u64, seam: &impl Seam) -> bool {
        self.has(bucket) && seam.lock(&self.linked).insert(bucket)
    }

    /// Lists the buckets that no chain links to.
    pub(super) fn spare(self) -> Vec<u64> {
        let linked = self.linked.into_inner().unwrap_or_else(|e| e.into_inner());
        let all = self
            .areas
            .iter()
            .flat_map(|(area, used)| (0..*used).map(|number| area.first + number * BUCKET_BYTES));
        all.filter(|bucket| !linked.contains(bucket)).collect()
    }
}

impl<S: Seam, R: SlotRecord, V: Variant> Pht<S, R, V> {
    /// Builds the DRAM state of the tables. No operation runs yet.
    pub(super) fn recover(&mut self, next: Option<Box<Table>>) {
        // All that was found is made durable before anything is stored because of it.
        let tables = [Some(&*self.first), next.as_deref()];
        let [found, found_next] = tables.map(|table| match table {
            Some(table) if self.is_after_crash() => table.flush(&self.core, &points::OPENING),
            _ => Ok(()),
        });
        let moves = next.is_some();
        if moves && self.is_after_crash() {
            self.core.memory.fence(&points::OPENING);
        }
        let mut missing = self.recover_table(&self.first, found, None, moves);
        if let Some(next) = next {
            let _ = self.first.close(&self.core.memory);
            self.first.resizing.store(self.seam(), 1, Ordering::Relaxed);
            let of_first = missing.len();
            missing.extend(self.recover_table(&next, found_next, Some(&self.first), false));
            if of_first > 0 {
                // A damaged bucket of the first table may have been moved, to chains of the next
                // table that were not followed. So buckets that seem spare there may be linked.
                self.seam().lock(&next.overflow).spare.clear();
            }
            self.first.set_next(self.seam(), next);
        }
        for (low, high, damage) in &missing {
            tracing::warn!(%damage, low, high, "hashes that cannot be served");
        }
        self.missing = missing;
    }

    /// Builds the DRAM state of a table. `found` says whether its own block is whole. `before` is the
    /// table that is being moved to it, and `moves` says whether it is itself being moved. Returns the
    /// hashes that cannot be served.
    fn recover_table(
        &self,
        table: &Table,
        found: Result<(), Damage>,
        before: Option<&Table>,
        moves: bool,
    ) -> Vec<Missing> {
        let handed = match found.and_then(|()| Handed::of(table, &self.core)) {
            Ok(handed) => handed,
            Err(damage) => return vec![(0, u64::MAX, damage)],
        };
        let missing = Mutex::new(self.missing_chunks(table));
        // A part lies in one chunk.
        let chunk = table.buckets_of_chunk(0).end;
        let of_chunk = chunk.div_ceil(PART);
        let parts = table.chunks.len() as u64 * of_chunk;
        let read = |part: usize| {
            let (number, part) = (part as u64 / of_chunk, part as u64 % of_chunk);
            if table.chunks[number as usize] == 0 {
                return 0;
            }
            let first = number * chunk + part * PART;
            for index in first..first + PART.min(chunk) {
                let Some(bucket) = table.bucket(&self.core.memory, index) else { continue };
                let copied = before.is_none_or(|before| self.is_moved(before, index / 2));
                let ready = if copied {
                    self.make_ready(table, index, bucket, &handed, moves)
                } else {
                    // This bucket is space for copies that the resize has yet to make.
                    V::lock(bucket).store(self.seam(), 0, Ordering::Relaxed);
                    bucket.forget(self.seam());
                    Ok(())
                };
                if let Err(damage) = ready {
                    V::lock(bucket).store(self.seam(), DAMAGED, Ordering::Relaxed);
                    let segment = table.segment(index);
                    let hashes = (segment.low, segment.high(), damage);
                    self.seam().lock(&missing).push(hashes);
                }
            }
            PART.min(chunk)
        };
        read_parts(&self.core, parts as usize, read, || {
            if self.is_after_crash() {
                // Covers everything that this thread has flushed.
                self.core.memory.fence(&points::OPENING);
            }
        });
        // The links to these buckets are durable now, so the buckets can name their owners.
        for (offset, chain) in self.seam().lock(&handed.unowned).drain(..) {
            if let Ok(bucket) = BucketRef::at(&self.core.memory, offset) {
                own(&self.core.memory, bucket, layout::owner(chain, table.depth));
            }
        }
        let mut missing = missing.into_inner().unwrap_or_else(|e| e.into_inner());
        if missing.is_empty() {
            // This is skipped if a chain could not be followed, because that chain may link to any
            // of these buckets.
            let mut spare = handed.spare();
            missing = self.check_spare(table, &spare, before.is_some());
            if !missing.is_empty() {
                return missing;
            }
            if self.seeded(&bugs::LINKED_SPARED) {
                let areas = self.seam().lock(&table.overflow).areas.clone();
                spare.extend(areas.iter().map(|area| area.first));
            }
            self.seam().lock(&table.overflow).spare = spare;
        }
        missing
    }

    /// Checks that no chain has lost its link to one of these buckets, which no chain links to.
    /// Returns the hashes of the chains that have lost one. If there are none and this is after a
    /// crash, durably marks the buckets as owned by no chain. `is_filled` says whether another
    /// table is being moved to this one.
    fn check_spare(&self, table: &Table, spare: &[u64], is_filled: bool) -> Vec<Missing> {
        let (memory, seam) = (&self.core.memory, self.seam());
        let lost = self.lost(table, spare, is_filled);
        if lost.is_empty() && self.is_after_crash() {
            if !spare.is_empty() && !self.seeded(&bugs::OWNER_KEPT) {
                // Copies may have an owner. Other buckets may be marked as having none only in the
                // caches.
                disown(memory, spare.iter().copied());
            }
            return Vec::new();
        }
        let missing = lost.iter().map(|&(bucket, chain)| {
            if let Some(first) = table.bucket(memory, chain) {
                V::lock(first).store(seam, DAMAGED, Ordering::Relaxed);
            }
            let segment = table.segment(chain);
            (segment.low, segment.high(), lost_link(bucket, chain))
        });
        let missing = missing.collect();
        for (bucket, chain) in lost {
            seam.lock(&table.lost).entry(chain).or_default().push(bucket);
        }
        missing
    }

    /// `spare` has the buckets that opening did not reach through any chain. Returns those that
    /// have an owner, each with its owner: the chain that must have lost its link to the bucket.
    /// Leaves out the buckets of a moved chain, which keeps them until the table is retired but is
    /// not followed.
    ///
    /// In a table that was being filled when the pool crashed, such buckets can be copies that no
    /// chain has linked to yet, so none is returned.
    pub(super) fn lost(&self, table: &Table, spare: &[u64], is_filled: bool) -> Vec<(u64, u64)> {
        let memory = &self.core.memory;
        if is_filled && self.core.alloc().old_frontier() != 0 {
            return Vec::new();
        }
        let lost = spare.iter().filter_map(|&offset| {
            let chain = table.owner(memory, BucketRef::at(memory, offset).ok()?)?;
            (!self.is_moved(table, chain)).then_some((offset, chain))
        });
        lost.collect()
    }

    /// Returns the hashes of the chunks that cannot be read.
    fn missing_chunks(&self, table: &Table) -> Vec<Missing> {
        let mut missing: Vec<Missing> = Vec::new();
        for chunk in 0..table.chunks.len() {
            let Err(damage) = table.check_chunk(&self.core, chunk) else { continue };
            let buckets = table.buckets_of_chunk(chunk);
            let (first, last) = (table.segment(buckets.start), table.segment(buckets.end - 1));
            match missing.last_mut() {
                Some((_, high, _)) if *high + 1 == first.low => *high = last.high(),
                _ => missing.push((first.low, last.high(), damage)),
            }
        }
        missing
    }

    /// Returns whether stores of an earlier process may still be only in the caches.
    fn is_after_crash(&self) -> bool {
        self.core.alloc().old_frontier() != 0 && !self.core.options().read_only
    }

    /// Returns whether a bucket was moved. Opening must have read the table.
    fn is_moved(&self, table: &Table, index: u64) -> bool {
        let bucket = table.bucket(&self.core.memory, index);
        bucket.is_some_and(|b| V::lock(b).load(self.seam(), Ordering::Relaxed) & MOVED != 0)
    }

    /// Builds the metadata of a chain. After a crash, flushes what it finds.
    fn make_ready(
        &self,
        table: &Table,
        index: u64,
        first: BucketRef<'_>,
        handed: &Handed,
        moves: bool,
    ) -> Result<(), Damage> {
        let (memory, seam) = (&self.core.memory, self.seam());
        if !self.seeded(&index_bugs::LOCKS_KEPT) {
            // A free lock can keep its version. If locks are in the pool, storing to it would
            // needlessly make its line dirty.
            let lock = V::lock(first);
            if !is_at_rest(lock.load(seam, Ordering::Relaxed)) {
                lock.store(seam, 0, Ordering::Relaxed);
            }
        }
        let mut bucket = first;
        loop {
            if self.is_after_crash() {
                memory.flush(bucket.bucket, &points::OPENING);
            }
            bucket.forget(seam);
            let link = Link::read(memory, &bucket.bucket.next)?;
            let is_first = std::ptr::eq(bucket.bucket, first.bucket);
            if link.depth == MOVED_ON_MEDIA && is_first && moves {
                V::lock(first).store(seam, MOVED, Ordering::Relaxed);
                table.moved.fetch_add(seam, 1, Ordering::Relaxed);
                return Ok(());
            }
            let at = memory.offset_of(&bucket.bucket.next).raw();
            if link.depth != 0 {
                return Err(Damage::new(at, "a bucket's link", format!("{link:?}")));
            }
            for slot in 0..bucket.bucket.slots.len() {
                if let Some((_, hash)) = self.record_in(table, index, bucket, slot)? {
                    bucket.set_fingerprint(seam, slot, Some(hash));
                }
            }
            if link.offset == 0 {
                break;
            }
            if !handed.link(link.offset, seam) {
                let found = format!("{:#x}", link.offset);
                return Err(Damage::new(at, "an overflow bucket that no other links to", found));
            }
            bucket.set_next(seam, link.offset);
            bucket = BucketRef::at(memory, link.offset)?;
            if self.is_after_crash() && memory.load(bucket.bucket.lock.word()) == 0 {
                self.seam().lock(&handed.unowned).push((link.offset, index));
                seed!(self, bugs::REOWNED_EARLY => own(memory, bucket, layout::owner(index, table.depth)));
            }
        }
        if !std::ptr::eq(bucket.bucket, first.bucket) {
            table.chains.fetch_add(seam, 1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the words and the hash of the record in a slot of a chain, by invariant 1.
    pub(super) fn record_in(
        &self,
        table: &Table,
        index: u64,
        bucket: BucketRef<'_>,
        slot: usize,
    ) -> Result<Option<(SlotWords, u64)>, Damage> {
        let slot = &bucket.bucket.slots[slot];
        let words = slot.read(&self.core.memory);
        if words.first == self.empty(table.segment(index).low) {
            return Ok(None);
        }
        let hash = self.hash_of(words);
        if table.index(hash) != index {
            let at = self.core.memory.offset_of(slot).raw();
            let found = format!("{:#x} {:#x}", words.first, words.second);
            return Err(Damage::new(at, "an empty slot, or a record at home there", found));
        }
        R::check_link(&self.core, words)?;
        Ok(Some((words, hash)))
    }
}

/// The damage of a chain that owns an overflow bucket and does not link to it.
pub(super) fn lost_link(bucket: u64, chain: u64) -> Damage {
    Damage::new(bucket, format!("a link from chain {chain}, which owns this bucket"), "none")
}
