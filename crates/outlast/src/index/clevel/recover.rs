//! First touches: what an earlier process has left in a bucket or a chain.

use super::layout::{Bucket, SLOTS, link, slot};
use super::levels::{DRAINED, Guard, Level, TOUCHED, note_bits};
use super::{Clevel, points};
use crate::error::Result;
use crate::index::clevel::bugs;
use crate::index::record::Record;
use crate::pmem::{Seam, SharedWord, Word};
use std::sync::atomic::Ordering;

impl<S: Seam, R: Record> Clevel<S, R> {
    /// Looks at a bucket for the first time since opening: announcements and copies in it are
    /// void, everything else is made durable before an answer rests on it, and its note is made.
    #[cold]
    pub(super) fn touch(&self, guard: &Guard<'_, S>, level: &Level, bucket: u64) -> Result<()> {
        let (note, bucket) = (level.note(bucket), self.bucket(level, bucket));
        let Some(words) = self.touch_bucket(guard, bucket, note)? else { return Ok(()) };
        let frozen = words.iter().all(|&word| word == slot::FROZEN);
        let bits = bits_of(words) | TOUCHED | if frozen { DRAINED } else { 0 };
        // SeqCst: pairs with the Acquire in `line`.
        note.fetch_or(self.seam(), bits, Ordering::SeqCst);
        self.counters.repaired.add_one();
        Ok(())
    }

    /// As [`touch`](Self::touch), a bucket that `note` is about, but for the note. What it
    /// held; `None` if another thread has touched it meanwhile.
    fn touch_bucket(
        &self,
        guard: &Guard<'_, S>,
        bucket: &Bucket,
        note: &SharedWord,
    ) -> Result<Option<[u64; SLOTS]>> {
        let memory = &self.core.memory;
        let words = bucket.slots.each_ref().map(|place| self.look(place));
        for (place, &word) in bucket.slots.iter().zip(&words) {
            if !slot::is_link(word) || slot::mark(word) & slot::ANNOUNCED == 0 {
                continue;
            }
            // If it is of this process, the bucket was touched before.
            if note.load(self.seam(), Ordering::SeqCst) & TOUCHED != 0 {
                return Ok(None);
            }
            let _writing = if guard.inside { None } else { Some(self.core.enter()?) };
            // If this fails, another thread has done it. It hits no announcement of this process:
            // the record's block is not handed out before every bucket was touched and this
            // guard is gone. A copy that it hits is made again.
            if !self.seeded(&bugs::ANNOUNCED_KEPT) {
                let _ = self.exchange(place, word, slot::EMPTY, &points::REPAIR_VOID);
            }
        }
        memory.flush(bucket, &points::REPAIR_FOUND);
        memory.fence(&points::REPAIR_FOUND);
        // Else every lookup of such a record would flush it. Only what was there before the
        // flush: what another thread has put there since may not be durable.
        let pending = |word: u64| slot::is_link(word) && slot::mark(word) == slot::PENDING;
        for (place, word) in bucket.slots.iter().zip(words) {
            if guard.inside && pending(word) {
                let plain = slot::with_mark(word, slot::PLAIN);
                let _ = self.exchange(place, word, plain, &points::UNMARK);
            }
        }
        Ok(Some(words))
    }

    /// A link that an earlier process may have left in the caches. The fence of the bucket behind
    /// it, which is touched next, is its, too. That a chain is closed need not be durable.
    fn flush_link(&self, place: &Word) {
        if link::is_node(self.look(place)) {
            self.core.memory.flush(place, &points::REPAIR_CHAIN);
        }
    }

    /// As [`touch`](Self::touch), the chain of a group.
    #[cold]
    pub(super) fn touch_chain(
        &self,
        guard: &Guard<'_, S>,
        level: &Level,
        group: u64,
    ) -> Result<()> {
        let note = level.chain_note(group);
        let mut bits = TOUCHED;
        self.flush_link(self.chain_head(level, group));
        for node in self.nodes(level, group) {
            let node = node?;
            self.flush_link(&self.node(node)?.next);
            // Not empty of tags, where there is a chain: see `claim_in`.
            bits |= 1;
            for bucket in self.node_buckets(node) {
                match self.touch_bucket(guard, bucket, note)? {
                    Some(words) => bits |= bits_of(words),
                    None => return Ok(()),
                }
            }
        }
        note.fetch_or(self.seam(), bits, Ordering::SeqCst);
        Ok(())
    }
}

/// The bits of the tags in a bucket.
fn bits_of(words: [u64; SLOTS]) -> u64 {
    let links = words.into_iter().filter(|&word| slot::is_link(word));
    links.fold(0, |bits, word| bits | note_bits(slot::tag(word)))
}

const _: () = assert!(SLOTS == 8, "a bucket is a line");
