//! Walks over the table: iteration, the trace of all blocks, samples, verification.

use super::bucket::BucketRef;
use super::layout::{BUCKET_BYTES, Kind, Link, SLOTS};
use super::recover::{Handed, lost_link};
use super::table::Table;
use super::{DAMAGED, MOVED, Pht, Route, Variant};
use crate::error::{Damage, Result};
use crate::index::kit::audit::Audit;
use crate::index::kit::collect::Collector;
use crate::index::kit::directory::Segment;
use crate::index::kit::lock::LockPlace;
use crate::index::kit::lookup::read_valid;
use crate::index::kit::table::{Verify, Walk};
use crate::index::kit::walk::{Salvaged, sample, scan};
use crate::index::record::SlotRecord;
use crate::index::version::{is_unchanged, version};
use crate::index::{BlockKind, Cursor, CursorState, IndexStats, Schemas, Verified, Visitor};
use crate::pmem::{SHADOW_SHARE, Seam};
use std::collections::HashSet;
use std::sync::atomic::Ordering;

impl<S: Seam, R: SlotRecord, V: Variant> Walk<S, R> for Pht<S, R, V> {
    /// Does one step of an iteration: the records of one bucket. See `scan_part`.
    fn scan(&self, cursor: &mut Cursor, out: &mut Vec<(R::OwnedKey, R::Owned)>) -> Result<()> {
        let read = |at, cursor: Option<&Cursor>, found: &mut Collector<'_, R>| match cursor {
            Some(cursor) => Ok(self.collect(at, cursor, found)?.range()),
            None => self.route(at).map(|route| Self::segment(route).range()),
        };
        scan(cursor, out, 1, read, |at, _, damage, found| self.salvage(at, damage, found))
    }

    /// Does one step of the trace: first the tables, then one chain at a time.
    fn trace(&self, cursor: &mut Cursor, visit: &mut Visitor<'_>) -> Result<()> {
        if cursor.is_done() {
            return Ok(());
        }
        // Until the visit ends, the buckets that are read here are not reused.
        let _visit = self.core.visit();
        if cursor.state == CursorState::Start {
            for table in self.tables() {
                for (kind, offset, bytes) in table.blocks(self.seam()) {
                    let kind = match kind {
                        Kind::Table => BlockKind::Directory,
                        Kind::Chunk => BlockKind::Segment,
                        Kind::Annex => BlockKind::Overflow,
                    };
                    visit(kind, offset, bytes)?;
                }
            }
        }
        let route = self.route(cursor.low)?;
        if cursor.state == CursorState::Start
            && let Some(next) = self.current().next(self.seam())
        {
            // No route leads to a chunk of the next table before a bucket has been moved to it, so
            // the chunks are checked here.
            (0..next.chunks.len()).try_for_each(|chunk| next.check_chunk(&self.core, chunk))?;
        }
        if R::EMPTY.is_some() {
            for bucket in self.chain(route.bucket) {
                for slot in &bucket?.bucket.slots {
                    let words = slot.read_whole(&self.core.memory);
                    if Some(words.first) != R::EMPTY {
                        let (offset, bytes) = R::extent(&self.core, words)?;
                        visit(BlockKind::Record, offset, bytes)?;
                    }
                }
            }
        }
        // If the bucket was moved meanwhile, its slots still link to the same record blocks as the
        // copies.
        cursor.pass(Self::segment(route).high());
        Ok(())
    }

    /// Returns statistics. The number of records is an estimate from a sample of the buckets, spread
    /// evenly over the hash space.
    fn stats(&self) -> Result<IndexStats> {
        let table = self.current();
        let (segments, [records, overflow]) = sample(table.buckets(), |hash| {
            // Until the visit ends, the buckets that are read here are not reused.
            let _visit = self.core.visit();
            let route = self.route(hash)?;
            let (mut records, mut buckets) = (0, 0);
            for bucket in self.chain(route.bucket) {
                records += bucket?.used(self.seam()).count() as u64;
                buckets += 1;
            }
            Ok((Self::segment(route).range(), [records, buckets - 1]))
        })?;
        let buckets = segments + overflow;
        Ok(IndexStats {
            segments,
            directory_entries: table.chunks.len() as u64,
            records_estimate: records,
            slots: buckets * SLOTS as u64,
            dram_bytes: buckets * BUCKET_BYTES / SHADOW_SHARE,
            ..self.counters.stats()
        })
    }
}

impl<S: Seam, R: SlotRecord, V: Variant> Pht<S, R, V> {
    /// Yields the current table, then the next one if there is one.
    fn tables(&self) -> impl Iterator<Item = &Table> {
        let current = self.current();
        [Some(current), current.next(self.seam())].into_iter().flatten()
    }

    /// Returns the hashes of a route's bucket.
    fn segment(route: Route<'_>) -> Segment {
        route.table.segment(route.index)
    }

    /// Appends the records of the bucket that holds the hash `at`, if they are in the cursor's range.
    fn collect(&self, at: u64, cursor: &Cursor, found: &mut Collector<'_, R>) -> Result<Segment> {
        let start = found.mark();
        let read = read_valid(self, at, 0, |route| {
            found.reset(start);
            let lock = self.lock_of(route.bucket);
            let before = version(&lock)?;
            if before & Self::elsewhere() != 0 {
                return None;
            }
            let read = self.read_chain(route, cursor, found);
            let valid = is_unchanged(&lock, before) && !route.table.is_retired(self.seam());
            valid.then(|| read.map(|()| Self::segment(*route)))
        })?;
        Ok(read?)
    }

    fn read_chain(
        &self,
        route: &Route<'_>,
        cursor: &Cursor,
        found: &mut Collector<'_, R>,
    ) -> Result<(), Damage> {
        for bucket in self.chain(route.bucket) {
            let bucket = bucket?;
            for slot in bucket.used(self.seam()) {
                let place = &bucket.bucket.slots[slot];
                let words = place.read(&self.core.memory);
                if (cursor.low..=cursor.high).contains(&self.hash_of(words)) {
                    found.take(&self.core, words, || self.core.memory.offset_of(place).raw())?;
                }
            }
        }
        Ok(())
    }

    /// Collects what can be read of a chain that is not served. `hash` leads to it.
    ///
    /// No operation uses such a chain, so nothing changes it, and no block that it links to is reused.
    fn salvage(&self, hash: u64, damage: Damage, found: &mut Collector<'_, R>) -> Result<Salvaged> {
        let (mark, seam) = (found.mark(), self.seam());
        let current = self.current();
        // Passes at most one bucket of the current table. The next bucket may be readable, because
        // it may not have been moved to the unreadable chunk yet.
        let own = current.segment(current.index(hash)).high();
        let mut high = self.missing_at(hash).1.min(own);
        let mut route = self.route_in(current, hash);
        if let (Some(of_current), Some(next)) = (route, current.next(seam)) {
            let moved = V::lock(of_current.bucket).load(seam, Ordering::Acquire) & MOVED != 0;
            if V::GOES_ON && (moved || current.is_retired(seam)) {
                route = self.route_in(next, hash);
            }
        }
        if let Some(route) = route {
            high = Self::segment(route).high();
            if V::lock(route.bucket).load(seam, Ordering::Acquire) & DAMAGED != 0 {
                self.salvage_chain(route, found)?;
            }
        }
        found.step_over_once(damage, mark)?;
        Ok(Salvaged::Read(high))
    }

    fn salvage_chain(&self, route: Route<'_>, found: &mut Collector<'_, R>) -> Result<(), Damage> {
        let memory = &self.core.memory;
        let (mut bucket, mut keys, mut seen) = (route.bucket, HashSet::new(), HashSet::new());
        let lost = self.seam().lock(&route.table.lost).get(&route.index).cloned();
        let mut lost = lost.unwrap_or_default();
        loop {
            for (slot, place) in bucket.bucket.slots.iter().enumerate() {
                match self.record_in(route.table, route.index, bucket, slot) {
                    Ok(Some((words, _))) => {
                        let at = memory.offset_of(place).raw();
                        found.take_unused(&self.core, words, at, &mut keys)?;
                    }
                    Ok(None) => {}
                    Err(damage) => found.step_over(damage)?,
                }
            }
            let next = Link::read(memory, &bucket.bucket.next).and_then(|link| {
                Some(link.offset)
                    .filter(|&o| o != 0 && seen.insert(o))
                    .map_or(Ok(None), |o| BucketRef::at(memory, o).map(Some))
            });
            match next {
                Ok(Some(next)) => bucket = next,
                // After the last bucket of the chain come those that it has lost its link to.
                Ok(None) => match lost.pop() {
                    Some(next) => bucket = BucketRef::at(memory, next)?,
                    None => return Ok(()),
                },
                Err(damage) => return found.step_over(damage),
            }
        }
    }

    /// Checks every slot of a chain, and its links. Notes the overflow buckets that it links to.
    fn verify_chain(
        &self,
        route: Route<'_>,
        audit: &mut Audit<R>,
        handed: Option<&Handed>,
    ) -> Result<()> {
        let memory = &self.core.memory;
        for bucket in self.chain(route.bucket) {
            let Some(bucket) = audit.report(bucket.map_err(Into::into))? else { return Ok(()) };
            if !std::ptr::eq(bucket.bucket, route.bucket.bucket) {
                handed.inspect(|handed| _ = handed.link(bucket.offset(memory), self.seam()));
                let owner = memory.load(bucket.bucket.lock.word());
                // The store of the owner is not flushed, so a power loss can undo it.
                if owner != 0 && route.table.owner(memory, bucket) != Some(route.index) {
                    let expected = format!("a bucket that chain {} owns", route.index);
                    audit.wrong(bucket.offset(memory), &expected, format!("{owner:#x}"));
                }
            }
            let link = Link::read(memory, &bucket.bucket.next).map_err(Into::into);
            if let Some(link) = audit.report(link)?
                && (link.offset, link.depth) != (bucket.next(self.seam()), 0)
            {
                let at = memory.offset_of(&bucket.bucket.next).raw();
                audit.wrong(at, "the link that opening has found", format!("{link:?}"));
            }
            for slot in 0..SLOTS {
                let at = memory.offset_of(&bucket.bucket.slots[slot]).raw();
                let record = self.record_in(route.table, route.index, bucket, slot);
                let Some(record) = audit.report(record.map_err(Into::into))? else { continue };
                let used = bucket.used(self.seam()).any(|used| used == slot);
                if used != record.is_some() {
                    let expected =
                        format!("a slot that is {}", if used { "in use" } else { "free" });
                    audit.wrong(at, &expected, format!("{record:?}"));
                }
                if let Some((words, _)) = record {
                    audit.check_slot(&self.core, at, words, |slot| {
                        Ok(self.search(route.bucket, slot)?.map(|(.., words)| words))
                    });
                }
            }
        }
        Ok(())
    }
}

impl<S: Seam, R: SlotRecord, V: Variant> Verify<S, R> for Pht<S, R, V> {
    fn verify(&self, visit: &mut Visitor<'_>, schemas: Schemas<R>) -> Result<Verified> {
        let mut audit = Audit::new(schemas);
        let mut handed = Vec::new();
        for table in self.tables() {
            // A damaged counter is reported below.
            handed.extend(Handed::of(table, &self.core).map(|of_table| (table, of_table)));
            // The table may have been damaged after opening.
            let again = Table::open(&self.core, table.offset, table.depth);
            audit.report(again.map_err(Into::into))?;
            for chunk in (0..table.chunks.len()).filter(|&chunk| table.chunks[chunk] != 0) {
                audit.report(table.check_chunk(&self.core, chunk).map_err(Into::into))?;
            }
        }
        let mut cursor = Cursor::start();
        while !cursor.is_done() {
            let at = cursor.low;
            let step = self.trace(&mut cursor, visit);
            match (audit.report(step)?, self.route(at)) {
                (Some(()), Ok(route)) => {
                    audit.begin_part();
                    let of_table =
                        handed.iter().find(|(table, _)| std::ptr::eq(*table, route.table));
                    self.verify_chain(route, &mut audit, of_table.map(|(_, handed)| handed))?;
                }
                // Continue after the part that cannot be read.
                (None, Ok(route)) => cursor.pass(Self::segment(route).high()),
                (_, Err(_)) => cursor.pass(self.missing_at(at).1),
            }
        }
        // If a chain could not be followed, it is not known to which buckets it links. In EA-PHT
        // and -H, no chain of the next table is followed.
        if audit.verified.damage.is_empty() {
            let tables = handed.into_iter().take(if V::GOES_ON { 2 } else { 1 });
            for (number, (table, handed)) in tables.enumerate() {
                for (bucket, chain) in self.lost(table, &handed.spare(), number > 0) {
                    audit.damaged(lost_link(bucket, chain));
                }
            }
        }
        Ok(audit.finish(&self.core))
    }
}
