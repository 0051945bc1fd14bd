//! Records, and the replaced ones that lead to them, with persist-on-read.

use super::layout::{RECORD_HEADER, RecordHead, slot, state};
use super::{Clevel, points};
use crate::error::{Damage, Result};
use crate::index::RecordForm;
use crate::index::bugs as index_bugs;
use crate::index::record::{BlockRecord, Body};
use crate::pmem::{Offset, Seam, Word};

/// The most replaced records that a slot may lead through. Each was left by a thread that stopped
/// before it changed the slot.
const HOPS_MAX: usize = 1 << 16;

/// A record in effect.
#[derive(Clone, Copy)]
pub(super) struct Place<'g> {
    /// Its block.
    pub(super) offset: u64,
    pub(super) head: &'g RecordHead,
    /// Its state when it was found.
    pub(super) state: u64,
    pub(super) body: Body<'g>,
}

impl<S: Seam, R: BlockRecord> Clevel<S, R> {
    /// Returns the first words of a record.
    #[inline(always)]
    pub(super) fn head(&self, offset: u64) -> Result<&RecordHead, Damage> {
        self.core.memory.at(Offset::<RecordHead>::new(offset))
    }

    /// Returns the key and the value of a record whose state is `word`.
    #[inline(always)]
    pub(super) fn body(&self, offset: u64, word: u64) -> Result<Body<'_>, Damage> {
        let (key_len, value_len) = state::lengths(word);
        if !R::has_lengths(key_len, value_len) {
            let found = format!("lengths {key_len} and {value_len}");
            return Err(Damage::new(offset, "a record of this map's form", found));
        }
        let bytes = (key_len + value_len).next_multiple_of(8) as u64;
        let words = self.core.memory.words(offset + RECORD_HEADER, bytes)?;
        Ok(Body { words, key_len, value_len })
    }

    /// Returns the body of a record whose state is `word`, its key, and the key's hash.
    pub(super) fn keyed(
        &self,
        offset: u64,
        word: u64,
    ) -> Result<(Body<'_>, R::OwnedKey, u64), Damage> {
        let body = self.body(offset, word)?;
        let key = R::read_key(&self.core.memory, body);
        let hash = R::hash(&self.core.hasher, R::key_of(&key));
        Ok((body, key, hash))
    }

    /// Returns the state of a record.
    #[inline(always)]
    pub(super) fn state(&self, offset: u64, head: &RecordHead) -> Result<u64, Damage> {
        let word = self.look(&head.state);
        if state::is_known(word) { Ok(word) } else { Err(unknown_state(offset, word)) }
    }

    /// Follows the forwards from the record at `first`. Returns the offset, head and state of the
    /// last record. The forwards that lead to it are durable when this returns.
    #[inline(always)]
    pub(super) fn tail(&self, first: u64) -> Result<(u64, &RecordHead, u64), Damage> {
        let mut offset = first;
        for _ in 0..HOPS_MAX {
            let head = self.head(offset)?;
            let word = self.state(offset, head)?;
            if state::kind(word) != state::FORWARD {
                return Ok((offset, head, word));
            }
            if word & state::PENDING != 0 {
                self.core.memory.persist(&head.state, &points::MET_STATE);
            }
            offset = state::next(word);
        }
        Err(endless(first))
    }

    /// Returns whether forwards lead from the record at `first` to the one at `to`, or they are the
    /// same record.
    pub(super) fn leads(&self, first: u64, to: u64) -> Result<bool, Damage> {
        let mut offset = first;
        for _ in 0..HOPS_MAX {
            if offset == to {
                return Ok(true);
            }
            let word = self.state(offset, self.head(offset)?)?;
            if state::kind(word) != state::FORWARD {
                return Ok(false);
            }
            offset = state::next(word);
        }
        Err(endless(first))
    }

    /// Returns the record in effect that a slot leads to, if it has this key. `word` is what the
    /// caller read from the slot. Persists everything that the result depends on, even if the
    /// result is `None` because the key was removed.
    #[inline(always)]
    pub(super) fn meet<'g>(
        &'g self,
        place: &Word,
        word: u64,
        key: R::Key<'_>,
    ) -> Result<Option<Place<'g>>, Damage> {
        if slot::mark(word) & slot::ANNOUNCED != 0 {
            // Announced, or an unconfirmed copy: the record is not in effect, or can be found
            // elsewhere.
            return Ok(None);
        }
        self.prefetch_record(slot::offset(word));
        let (offset, head, found) = self.tail(slot::offset(word))?;
        let kind = state::kind(found);
        if kind == state::KILLED {
            return Err(unknown_state(offset, found));
        }
        if kind == state::DEAD && found & state::PENDING != 0 {
            self.core.memory.persist(&head.state, &points::MET_STATE);
        }
        let body = self.body(offset, found)?;
        if !R::has_key(&self.core.memory, body, key)
            && !self.seeded(&index_bugs::FINGERPRINT_DECIDES)
        {
            return Ok(None);
        }
        if slot::mark(word) == slot::PENDING {
            self.core.memory.persist(place, &points::MET_SLOT);
        }
        if kind == state::DEAD {
            return Ok(None);
        }
        Ok(Some(Place { offset, head, state: found, body }))
    }

    /// Prefetches the first line of a record and, for byte strings, the line 32 bytes further on,
    /// which may be the next one and which even a short record can reach into.
    #[inline(always)]
    pub(super) fn prefetch_record(&self, offset: u64) {
        let memory = &self.core.memory;
        if let Ok(head) = self.head(offset) {
            memory.seam().prefetch(head);
        }
        if R::FORM == RecordForm::Bytes
            && let Ok(word) = memory.at(Offset::<Word>::new(offset + 2 * RECORD_HEADER))
        {
            memory.seam().prefetch(word);
        }
    }
}

#[cold]
pub(super) fn unknown_state(offset: u64, word: u64) -> Damage {
    Damage::new(offset, "a record's state", format!("{word:#x}"))
}

#[cold]
pub(super) fn endless(offset: u64) -> Damage {
    Damage::new(offset, "a chain that ends", "one that goes on beyond all there can be")
}
