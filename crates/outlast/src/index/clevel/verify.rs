//! Verification: checks every level, every slot and every record.

use super::Clevel;
use super::layout::{LEVEL_HEADER, RecordHead, level_bytes, link, root, slot, state};
use super::levels::{Guard, Level, tag_of};
use super::scan::{Home, Part};
use crate::error::{Damage, Result};
use crate::index::kit::audit::Audit;
use crate::index::kit::table::{HashedKey, Verify, Walk};
use crate::index::record::{BlockRecord, Body, body_checksum};
use crate::index::{Cursor, Schemas, Verified, Visitor};
use crate::pmem::{Seam, Word};
use std::collections::HashSet;

impl<S: Seam, R: BlockRecord> Verify<S, R> for Clevel<S, R> {
    fn verify(&self, visit: &mut Visitor<'_>, schemas: Schemas<R>) -> Result<Verified> {
        let mut audit = Audit::new(schemas);
        audit.report(self.verify_ready())?;
        self.verify_ends(&mut audit)?;
        let mut cursor = Cursor::start();
        while !cursor.is_done() {
            let low = cursor.low;
            let high = {
                let guard = self.guard(true);
                Self::range_end(self.context(&guard)?, low)
            };
            // Runs before the trace, which repairs slots that lead through another record.
            let verified = self.verify_range((low, high), &mut audit);
            audit.report(verified)?;
            if audit.report(self.trace(&mut cursor, visit))?.is_none() {
                cursor.pass(high);
            }
        }
        Ok(audit.verified)
    }
}

impl<S: Seam, R: BlockRecord> Clevel<S, R> {
    /// Checks the level kept ready. The next expansion links it as it is, so it must be a level,
    /// and empty.
    fn verify_ready(&self) -> Result<()> {
        let word = self.look(self.root(root::READY));
        let Some((offset, bits)) = self.ready_level(word)? else { return Ok(()) };
        self.check_level(offset, bits)?;
        let memory = &self.core.memory;
        let bytes = level_bytes(bits, self.shape.group_bits) - LEVEL_HEADER;
        for word in memory.words(offset + LEVEL_HEADER, bytes)? {
            let found = memory.load(word);
            if found != 0 {
                let at = memory.offset_of(word).raw();
                let expected = "nothing in the level kept ready";
                return Err(Damage::new(at, expected, format!("{found:#x}")).into());
            }
        }
        Ok(())
    }

    /// Checks that no chain of the newest level is closed. Only a level that is being emptied has such
    /// chains, and an insert would fail.
    fn verify_ends(&self, audit: &mut Audit<R>) -> Result<()> {
        let guard = self.guard(true);
        let level = self.context(&guard)?.newest();
        for group in 0..level.groups() {
            let mut end = self.chain_head(level, group);
            // `verify_range` reports a chain that cannot be followed.
            let nodes = self.nodes(level, group).map(|node| self.node(node?));
            for node in nodes.map_while(Result::ok) {
                end = &node.next;
            }
            if self.look(end) == link::CLOSED {
                let at = self.core.memory.offset_of(end).raw();
                audit.wrong(at, "the end of a chain", "a closed one");
            }
        }
        Ok(())
    }

    fn verify_range(&self, range: (u64, u64), audit: &mut Audit<R>) -> Result<()> {
        let guard = self.guard(true);
        let mut offsets = HashSet::new();
        audit.begin_part();
        self.walk(&guard, range, |part| {
            let (level, home, place, word) = match part {
                Part::Slot(level, home, place, word) => (level, home, place, word),
                Part::Node(_) => return Ok(()),
                Part::Damage(damage) => return Err(damage.into()),
            };
            if slot::mark(word) & slot::ANNOUNCED != 0 {
                return Ok(());
            }
            let found = self.verify_slot(&guard, (level, home), place, word, range);
            let Some(found) = audit.report_torn(found)? else { return Ok(()) };
            // Rehashing can leave two slots that lead to one record.
            if let Some((offset, key, body)) = found
                && offsets.insert(offset)
            {
                audit.count(offset, &key, || Ok(R::read_value(&self.core.memory, body)));
            }
            Ok(())
        })
    }

    /// Checks the checksum of a record whose state is `word`.
    pub(super) fn check_seal(
        &self,
        offset: u64,
        head: &RecordHead,
        word: u64,
    ) -> Result<(), Damage> {
        let memory = &self.core.memory;
        let body = self.body(offset, word)?;
        let sum = body_checksum(memory, body, (offset, state::packed_lengths(word)));
        let seal = memory.load(&head.seal) & 0xffff_ffff;
        if seal != sum {
            let expected = format!("a record with checksum {sum:#x}");
            return Err(Damage::new(offset, expected, format!("{seal:#x}")));
        }
        Ok(())
    }

    /// Checks what a slot leads to. Returns offset, key and body of the record, or `None` if it was
    /// removed or belongs to another range.
    fn verify_slot(
        &self,
        guard: &Guard<'_, S>,
        (level, home): (&Level, Home),
        place: &Word,
        word: u64,
        (low, high): (u64, u64),
    ) -> Result<Option<(u64, R::OwnedKey, Body<'_>)>> {
        let memory = &self.core.memory;
        let at = memory.offset_of(place).raw();
        let (offset, head, found) = self.tail(slot::offset(word))?;
        let dead = state::kind(found) == state::DEAD;
        if (dead || offset != slot::offset(word)) && self.core.alloc().old_frontier() == 0 {
            // Only a crash leaves such a slot, and the reclaim after the crash repairs it. If the
            // free space is known, that reclaim has ended, so the record's block is free, and
            // another record will use it.
            let found = format!("one to a removed or replaced record at {:#x}", slot::offset(word));
            return Err(Damage::new(at, "a slot that leads to a record in effect", found).into());
        }
        if dead {
            return Ok(None);
        }
        self.check_seal(offset, head, found)?;
        let (body, key, hash) = self.keyed(offset, found)?;
        let is_home = match home {
            Home::Bucket(bucket) => level.pair(hash).contains(&bucket),
            Home::Chain(group) => level.group(hash) == group,
        };
        if !is_home {
            let expected = format!("a record of {home:?}");
            return Err(Damage::new(at, expected, format!("one of hash {hash:#x}")).into());
        }
        if !(low..=high).contains(&hash) {
            // It belongs to another range.
            return Ok(None);
        }
        if slot::tag(word) != tag_of(hash) {
            let expected = format!("tag {:#x} of hash {hash:#x}", tag_of(hash));
            return Err(Damage::new(at, expected, format!("{:#x}", slot::tag(word))).into());
        }
        let seen = self.find_place(guard, HashedKey { key: R::key_of(&key), hash })?;
        if seen.is_none_or(|place| place.offset != offset) {
            let found = "one that they do not";
            return Err(Damage::new(at, "a record that lookups find", found).into());
        }
        Ok(Some((offset, key, body)))
    }
}
