//! First touches: what an earlier process has left in a bucket or a chain.

use super::layout::{Bucket, SLOTS, slot};
use super::levels::{DRAINED, Guard, Level, TOUCHED, note_bits};
use super::{Clevel, points};
use crate::error::Result;
use crate::index::record::Record;
use crate::pmem::Seam;
use std::sync::atomic::{AtomicU64, Ordering};

impl<S: Seam, R: Record> Clevel<S, R> {
    /// Looks at a bucket for the first time since opening: announcements and copies in it are
    /// void, everything else is made durable before an answer rests on it, and its note is made.
    #[cold]
    pub(super) fn touch(&self, guard: &Guard<'_, S>, level: &Level, bucket: u64) -> Result<()> {
        let (note, bucket) = (level.note(bucket), self.bucket(level, bucket));
        let Some(bits) = self.touch_bucket(guard, bucket, note)? else { return Ok(()) };
        self.core.memory.fence(&points::REPAIR_FOUND);
        let frozen = bucket.slots.iter().all(|place| self.look(place) == slot::FROZEN);
        // SeqCst: pairs with the Acquire in `line`.
        note.fetch_or(bits | TOUCHED | if frozen { DRAINED } else { 0 }, Ordering::SeqCst);
        self.repaired.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// As [`touch`](Self::touch), a bucket that `note` is about, up to the fence. The bits of
    /// its tags; `None` if another thread has touched it meanwhile.
    fn touch_bucket(
        &self,
        guard: &Guard<'_, S>,
        bucket: &Bucket,
        note: &AtomicU64,
    ) -> Result<Option<u64>> {
        let mut bits = 0;
        for place in &bucket.slots {
            let word = self.look(place);
            if !slot::is_link(word) {
                continue;
            }
            if slot::mark(word) & slot::ANNOUNCED == 0 {
                bits |= note_bits(slot::tag(word));
                continue;
            }
            // If it is of this process, the bucket was touched before.
            if note.load(Ordering::SeqCst) & TOUCHED != 0 {
                return Ok(None);
            }
            let _writing = if guard.inside { None } else { Some(self.core.enter()?) };
            // If this fails, another thread has done it: the record's block is not handed out
            // before every bucket was touched and this guard is gone.
            let _ = self.exchange(place, word, slot::EMPTY, &points::REPAIR_VOID);
        }
        self.core.memory.flush(bucket, &points::REPAIR_FOUND);
        Ok(Some(bits))
    }

    /// As [`touch`](Self::touch), the chain of a group.
    #[cold]
    pub(super) fn touch_chain(
        &self,
        guard: &Guard<'_, S>,
        level: &Level,
        group: u64,
    ) -> Result<()> {
        let memory = &self.core.memory;
        let note = level.chain_note(group);
        let mut bits = TOUCHED;
        memory.flush(self.chain_head(level, group), &points::REPAIR_CHAIN);
        for node in self.nodes(level, group) {
            let node = node?;
            memory.flush(&self.node(node)?.next, &points::REPAIR_CHAIN);
            // Not empty of tags, where there is a chain: see `claim_in`.
            bits |= 1;
            for bucket in self.node_buckets(node) {
                match self.touch_bucket(guard, bucket, note)? {
                    Some(found) => bits |= found,
                    None => return Ok(()),
                }
            }
        }
        memory.fence(&points::REPAIR_CHAIN);
        note.fetch_or(bits, Ordering::SeqCst);
        Ok(())
    }
}

const _: () = assert!(SLOTS == 8, "a bucket is a line");
