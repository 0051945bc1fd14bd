//! Walks over the table: iteration, the trace of all blocks, samples.
//!
//! All walks go through the table by ranges of hashes. The groups of buckets that a range owns are
//! read from the oldest level to the newest, under one guard, as a lookup reads them.

use super::layout::{
    Bucket, CONTEXT_BYTES, NODE_BYTES, RECORD_HEADER, SLOTS, level_bytes, root, slot, state,
};
use super::levels::{Context, DRAINED, Guard, Level, TOUCHED};
use super::{Clevel, points};
use crate::error::{Damage, Error, Result};
use crate::index::clevel::bugs;
use crate::index::kit::collect::Collector;
use crate::index::kit::table::Walk;
use crate::index::record::BlockRecord;
use crate::index::{BlockKind, Cursor, CursorState, IndexStats, Visitor};
use crate::pmem::{Seam, Word};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// log2 of the most groups that a range has in the largest level.
const RANGE_GROUPS_LOG2: u32 = 3;
/// Tables of up to this many buckets are counted in full.
const COUNTED: u64 = 1 << 13;
/// In larger tables, this many buckets of each level are read.
const SAMPLE: u64 = 256;

/// The parts that a walk visits.
pub(super) enum Part<'g> {
    /// An overflow node. It is visited once, not once for each range.
    Node(u64),
    /// A slot that names a record, with its level, its home and its word.
    Slot(&'g Level, Home, &'g Word, u64),
    /// Damage that hides a part of a chain.
    Damage(Damage),
}

/// The position of a slot in its level.
#[derive(Debug, Clone, Copy)]
pub(super) enum Home {
    /// In a bucket, by its number.
    Bucket(u64),
    /// In the overflow chain of a group.
    Chain(u64),
}

impl<S: Seam, R: BlockRecord> Walk<S, R> for Clevel<S, R> {
    /// Does one step of an iteration: the records of one range.
    fn scan(&self, cursor: &mut Cursor, out: &mut Vec<(R::OwnedKey, R::Owned)>) -> Result<()> {
        if cursor.is_done() {
            return Ok(());
        }
        let memory = &self.core.memory;
        let guard = self.guard(false);
        let range = (cursor.low, Self::range_end(self.context(&guard)?, cursor.low));
        let mut keys = HashSet::new();
        let mut collector = Collector::<R>::new(cursor.care, out);
        let walked = self.walk(&guard, range, |part| {
            let (place, word) = match part {
                Part::Slot(_, _, place, word) => (place, word),
                Part::Node(_) => return Ok(()),
                Part::Damage(damage) => return Ok(collector.step_over(damage)?),
            };
            if slot::mark(word) & slot::ANNOUNCED != 0 {
                return Ok(());
            }
            let tail = self.tail(slot::offset(word)).map_err(Error::from);
            let Some((offset, head, found)) = collector.readable(tail)? else { return Ok(()) };
            if !matches!(state::kind(found), state::LIVE | state::UNDECIDED) {
                // The record is left out because it was removed, so the removal must be durable.
                if found & state::PENDING != 0 {
                    memory.persist(&head.state, &points::MET_STATE);
                }
                return Ok(());
            }
            let keyed = match collector.checks() {
                true => self.check_seal(offset, head, found),
                false => Ok(()),
            };
            let keyed = keyed.and_then(|()| self.keyed(offset, found)).map_err(Error::from);
            let Some((body, key, hash)) = collector.readable(keyed)? else { return Ok(()) };
            if !(range.0..=range.1).contains(&hash) {
                return Ok(());
            }
            if slot::mark(word) == slot::PENDING {
                memory.persist(place, &points::MET_SLOT);
            }
            // A key can be met twice: its record can be in two levels, or the key can be removed
            // from one level and inserted into another meanwhile.
            if keys.insert(key.clone()) || self.seeded(&bugs::SCANNED_TWICE) {
                let value = collector.value(|| Ok(R::read_value(memory, body)))?;
                collector.records.push((key, value));
            }
            Ok(())
        });
        collector.finish(&mut cursor.lost);
        walked?;
        cursor.pass(range.1);
        Ok(())
    }

    /// Does one step of the trace: the blocks of one range and, in the first step, also the context
    /// and the levels. After the step, no slot of the range leads to a removed record or through a
    /// replaced one. The caller has passed the gate, or holds it.
    fn trace(&self, cursor: &mut Cursor, visit: &mut Visitor<'_>) -> Result<()> {
        if cursor.is_done() {
            return Ok(());
        }
        let guard = self.guard(true);
        let context = self.context(&guard)?;
        if cursor.state == CursorState::Start {
            // Levels and contexts that are added later are in new blocks, which the trace need not
            // find. A thread that removes a level or a context marks its block (`before_unlink`).
            self.trace_levels(context, visit)?;
        }
        let high = Self::range_end(context, cursor.low);
        self.trace_range(&guard, (cursor.low, high), visit)?;
        cursor.pass(high);
        Ok(())
    }

    /// Counts the records of a small table, and estimates those of a larger one by a sample of its
    /// buckets.
    fn stats(&self) -> Result<IndexStats> {
        let guard = self.guard(false);
        let context = self.context(&guard)?;
        let buckets: u64 = context.levels.iter().map(|level| level.buckets()).sum();
        let mut records = 0;
        if buckets <= COUNTED {
            let mut seen = HashSet::new();
            self.walk(&guard, (0, u64::MAX), |part| {
                match part {
                    Part::Slot(_, _, _, word) if slot::mark(word) & slot::ANNOUNCED == 0 => {
                        seen.insert(slot::offset(word));
                    }
                    Part::Damage(damage) => return Err(damage.into()),
                    _ => {}
                }
                Ok(())
            })?;
            records = seen.len() as u64;
        } else {
            for level in &context.levels {
                records += (self.load(&guard, level, SAMPLE)? * level.slots() as f64) as u64;
            }
        }
        let known = context.levels.iter().chain(context.next.get(self.seam()));
        Ok(IndexStats {
            segments: context.levels.len() as u64,
            directory_entries: context.levels.len() as u64,
            records_estimate: records,
            slots: buckets * SLOTS as u64,
            dram_bytes: known.map(|level| level.dram_bytes()).sum(),
            ..self.counters.stats()
        })
    }
}

impl<S: Seam, R: BlockRecord> Clevel<S, R> {
    // ---- Ranges -----------------------------------------------------------------

    /// Returns the last hash of the range that begins with `low`.
    pub(super) fn range_end(context: &Context, low: u64) -> u64 {
        let groups = context.levels.iter().map(|level| level.groups_log2());
        let (least, most) =
            groups.fold((u32::MAX, 0), |(least, most), g| (least.min(g), most.max(g)));
        let bits = most.saturating_sub(RANGE_GROUPS_LOG2).max(least);
        low | u64::MAX >> bits
    }

    /// Visits the slots in the groups of a range, as [`search`](Self::search) does for one hash.
    /// Groups can also hold records of other ranges.
    pub(super) fn walk<'g>(
        &'g self,
        guard: &'g Guard<'_, S>,
        (low, high): (u64, u64),
        mut visit: impl FnMut(Part<'g>) -> Result<()>,
    ) -> Result<()> {
        let mut context = self.context(guard)?;
        let mut from = 0;
        loop {
            for level in &context.levels[from..] {
                for group in level.group(low)..=level.group(high) {
                    self.walk_group(guard, level, group, (low, high), &mut visit)?;
                }
            }
            let now = self.context(guard)?;
            if std::ptr::eq(now, context) {
                return Ok(());
            }
            let newest = context.newest();
            let seen = now.levels.iter().position(|level| Arc::ptr_eq(level, newest));
            from = seen.map_or(0, |index| index + 1);
            context = now;
        }
    }

    fn walk_group<'g>(
        &'g self,
        guard: &'g Guard<'_, S>,
        level: &'g Level,
        group: u64,
        (low, high): (u64, u64),
        visit: &mut impl FnMut(Part<'g>) -> Result<()>,
    ) -> Result<()> {
        let first = group * level.group_buckets();
        for bucket in first..first + level.group_buckets() {
            let line = self.line(guard, level, bucket)?;
            let filter = line.filter.load(self.seam(), Ordering::SeqCst);
            if filter & !TOUCHED != 0 && filter & DRAINED == 0 {
                self.walk_bucket(level, Home::Bucket(bucket), line.bucket, visit)?;
            }
        }
        let hidden = match self.chain_filter(guard, level, group) {
            Ok(filter)
                if filter.load(self.seam(), Ordering::SeqCst) & !(TOUCHED | DRAINED) == 0 =>
            {
                return Ok(());
            }
            Ok(_) => false,
            // The nodes before the damage can be read all the same.
            Err(Error::Damaged(damage)) => visit(Part::Damage(damage)).map(|()| true)?,
            Err(error) => return Err(error),
        };
        // The first hash of the group, in two shifts, as in `Level::group`.
        let first = group << 1 << (63 - level.groups_log2());
        for node in self.nodes(level, group) {
            let node = match node {
                Ok(node) => node,
                Err(_) if hidden => return Ok(()),
                Err(damage) => return visit(Part::Damage(damage)),
            };
            for bucket in self.node_buckets(node) {
                self.walk_bucket(level, Home::Chain(group), bucket, visit)?;
            }
            if (low..=high).contains(&first) {
                visit(Part::Node(node))?;
            }
        }
        Ok(())
    }

    fn walk_bucket<'g>(
        &'g self,
        level: &'g Level,
        home: Home,
        bucket: &'g Bucket,
        visit: &mut impl FnMut(Part<'g>) -> Result<()>,
    ) -> Result<()> {
        for place in &bucket.slots {
            let word = self.look(place);
            if slot::is_link(word) {
                visit(Part::Slot(level, home, place, word))?;
            }
        }
        Ok(())
    }

    // ---- Trace ------------------------------------------------------------------

    fn trace_levels(&self, context: &Context, visit: &mut Visitor<'_>) -> Result<()> {
        visit(BlockKind::Directory, context.block, CONTEXT_BYTES)?;
        let ready = self.ready_level(self.look(self.root(root::READY)))?;
        let known = context.levels.iter().map(|level| (level.offset, level.bits));
        for (offset, bits) in known.chain(ready) {
            visit(BlockKind::Segment, offset, level_bytes(bits, self.shape.group_bits))?;
        }
        Ok(())
    }

    fn trace_range(
        &self,
        guard: &Guard<'_, S>,
        (low, high): (u64, u64),
        visit: &mut Visitor<'_>,
    ) -> Result<()> {
        let memory = &self.core.memory;
        let at = &points::REPAIR_SLOT;
        let mut records = HashSet::new();
        let mut stored = false;
        let walked = self.walk(guard, (low, high), |part| {
            let (place, mut word) = match part {
                Part::Node(node) => return visit(BlockKind::Overflow, node, NODE_BYTES),
                Part::Slot(_, _, place, word) => (place, word),
                Part::Damage(damage) => return Err(damage.into()),
            };
            while slot::is_link(word) && slot::mark(word) & slot::ANNOUNCED == 0 {
                if slot::mark(word) == slot::PENDING {
                    memory.persist(place, &points::MET_SLOT);
                    let plain = slot::with_mark(word, slot::PLAIN);
                    let unmarked = self.exchange(place, word, plain, &points::UNMARK);
                    word = unmarked.map_or_else(|found| found, |_| plain);
                    continue;
                }
                let first = slot::offset(word);
                let (offset, head, found) = self.tail(first)?;
                let dead = state::kind(found) == state::DEAD;
                if dead && found & state::PENDING != 0 {
                    memory.persist(&head.state, &points::MET_STATE);
                }
                if !dead && first == offset {
                    let (body, _, hash) = self.keyed(offset, found)?;
                    if (low..=high).contains(&hash) && records.insert(offset) {
                        let bytes = RECORD_HEADER + (body.key_len + body.value_len) as u64;
                        visit(BlockKind::Record, offset, bytes)?;
                    }
                    break;
                }
                let new = if dead { slot::EMPTY } else { slot::word(offset, slot::tag(word)) };
                word = match self.exchange(place, word, new, at) {
                    Ok(_) => {
                        memory.flush(place, at);
                        stored = true;
                        new
                    }
                    Err(found) => found,
                };
            }
            Ok(())
        });
        // Also if the walk met damage, as in `relink`.
        if stored {
            memory.fence(at);
        }
        walked
    }
}
