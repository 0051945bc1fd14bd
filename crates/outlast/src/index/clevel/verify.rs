//! The offline check: every level, every slot, every record.

use super::Clevel;
use super::layout::{LEVEL_HEADER, level_bytes, root, slot, state};
use super::levels::{Guard, Level, tag_of};
use super::scan::{Home, Part};
use crate::error::{Damage, Error, Result};
use crate::index::record::{Record, body_checksum};
use crate::index::{Cursor, CursorState, Verified, Visitor};
use crate::pmem::{Seam, Word};
use std::collections::{HashMap, HashSet};

impl<S: Seam, R: Record> Clevel<S, R> {
    /// Checks everything. The caller holds the gate: nothing else runs.
    pub(super) fn verify_all(&self, visit: &mut Visitor<'_>) -> Result<Verified> {
        let mut verified = Verified::default();
        match self.verify_ready() {
            Ok(()) => {}
            Err(Error::Damaged(damage)) => verified.damage.push(damage),
            Err(error) => return Err(error),
        }
        let mut cursor = Cursor::start();
        while !cursor.is_done() {
            let low = cursor.low;
            let high = {
                let guard = self.guard(true);
                Self::range_end(self.context(&guard)?, low)
            };
            // Before the trace, which sets slots right that lead past a record.
            match self.verify_range((low, high), &mut verified) {
                Ok(()) => {}
                Err(Error::Damaged(damage)) => verified.damage.push(damage),
                Err(error) => return Err(error),
            }
            match self.trace_next(&mut cursor, visit) {
                Ok(()) => {}
                Err(Error::Damaged(damage)) => {
                    verified.damage.push(damage);
                    match high.checked_add(1) {
                        Some(next) => (cursor.low, cursor.state) = (next, CursorState::Inside),
                        None => cursor.finish(),
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(verified)
    }

    /// Checks the level kept ready: the next expansion links it as it is, so it must be a level,
    /// and hold nothing.
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

    fn verify_range(&self, range: (u64, u64), verified: &mut Verified) -> Result<()> {
        let guard = self.guard(true);
        let mut offsets = HashSet::new();
        let mut keys = HashMap::new();
        self.walk(&guard, range, |part| {
            let Part::Slot(level, home, place, word) = part else { return Ok(()) };
            if slot::mark(word) & slot::ANNOUNCED != 0 {
                return Ok(());
            }
            let found = self.verify_slot(&guard, (level, home), place, word, range);
            let (offset, key) = match found {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(()),
                Err(Error::Damaged(damage)) => {
                    verified.torn += 1;
                    verified.damage.push(damage);
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            // Two slots can lead to one record: rehashing leaves that.
            if !offsets.insert(offset) {
                return Ok(());
            }
            verified.records += 1;
            if let Some(other) = keys.insert(key.clone(), offset) {
                verified.duplicated += 1;
                let found = format!("key {key:?} a second time, also at {other:#x}");
                verified.damage.push(Damage::new(offset, "each key once", found));
            }
            Ok(())
        })
    }

    /// Checks what a slot leads to: offset and key of the record, if it is one of this range.
    fn verify_slot(
        &self,
        guard: &Guard<'_, S>,
        (level, home): (&Level, Home),
        place: &Word,
        word: u64,
        (low, high): (u64, u64),
    ) -> Result<Option<(u64, R::OwnedKey)>> {
        let memory = &self.core.memory;
        let at = memory.offset_of(place).raw();
        let (offset, head, found) = self.tail(slot::offset(word))?;
        let dead = state::kind(found) == state::DEAD;
        if (dead || offset != slot::offset(word)) && self.core.alloc().old_frontier() == 0 {
            // Only a crash leaves such a slot, and the reclaim after it sets it right. Where the
            // free space is known, the block of the record is free: another record will use it.
            let found = format!("one to a removed or replaced record at {:#x}", slot::offset(word));
            return Err(Damage::new(at, "a slot that leads to a record in effect", found).into());
        }
        if dead {
            return Ok(None);
        }
        let body = self.body(offset, found)?;
        let key = R::read_key(memory, body);
        let hash = R::hash(&self.core.hasher, R::key_of(&key));
        let sum = body_checksum(memory, body, (offset, state::packed_lengths(found)));
        let seal = memory.load(&head.seal) & 0xffff_ffff;
        if seal != sum {
            let expected = format!("a record with checksum {sum:#x}");
            return Err(Damage::new(offset, expected, format!("{seal:#x}")).into());
        }
        let is_home = match home {
            Home::Bucket(bucket) => level.pair(hash).contains(&bucket),
            Home::Chain(group) => level.group(hash) == group,
        };
        if !is_home {
            let expected = format!("a record of {home:?}");
            return Err(Damage::new(at, expected, format!("one of hash {hash:#x}")).into());
        }
        if !(low..=high).contains(&hash) {
            // Another range has it.
            return Ok(None);
        }
        if slot::tag(word) != tag_of(hash) {
            let expected = format!("tag {:#x} of hash {hash:#x}", tag_of(hash));
            return Err(Damage::new(at, expected, format!("{:#x}", slot::tag(word))).into());
        }
        let seen = self.find(guard, R::key_of(&key), hash)?;
        if seen.is_none_or(|place| place.offset != offset) {
            let found = "one that they do not";
            return Err(Damage::new(at, "a record that lookups find", found).into());
        }
        Ok(Some((offset, key)))
    }
}
