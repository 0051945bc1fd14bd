//! First touches: what an earlier process left in a bucket or a chain.

use super::layout::{Bucket, SLOTS, link, slot};
use super::levels::{DRAINED, Guard, Level, TOUCHED, filter_bits};
use super::{Clevel, points};
use crate::error::Result;
use crate::index::clevel::bugs;
use crate::index::record::BlockRecord;
use crate::pmem::{Seam, SharedWord, Word};
use std::sync::atomic::Ordering;

impl<S: Seam, R: BlockRecord> Clevel<S, R> {
    /// Touches a bucket for the first time since opening: voids announcements and copies, makes
    /// everything else durable before results depend on it, and makes the Bloom filter.
    #[cold]
    pub(super) fn touch(&self, guard: &Guard<'_, S>, level: &Level, bucket: u64) -> Result<()> {
        let (filter, bucket) = (level.filter(bucket), self.bucket(level, bucket));
        let Some(words) = self.touch_bucket(guard, bucket, filter)? else { return Ok(()) };
        let frozen = words.iter().all(|&word| word == slot::FROZEN);
        let bits = bits_of(words) | TOUCHED | if frozen { DRAINED } else { 0 };
        // SeqCst: pairs with the Acquire in `line`.
        filter.fetch_or(self.seam(), bits, Ordering::SeqCst);
        self.counters.repaired.add_one();
        Ok(())
    }

    /// Does what [`touch`](Self::touch) does, except for the filter, for a bucket that `filter`
    /// covers. Returns what the bucket held, or `None` if another thread has touched it meanwhile.
    fn touch_bucket(
        &self,
        guard: &Guard<'_, S>,
        bucket: &Bucket,
        filter: &SharedWord,
    ) -> Result<Option<[u64; SLOTS]>> {
        let memory = &self.core.memory;
        let words = bucket.slots.each_ref().map(|place| self.look(place));
        for (place, &word) in bucket.slots.iter().zip(&words) {
            if !slot::is_link(word) || slot::mark(word) & slot::ANNOUNCED == 0 {
                continue;
            }
            // If the word is from this process, the bucket has already been touched.
            if filter.load(self.seam(), Ordering::SeqCst) & TOUCHED != 0 {
                return Ok(None);
            }
            let _writing = if guard.inside { None } else { Some(self.core.enter()?) };
            // The exchange voids what an earlier process left. If it fails, another thread has
            // already done so. It cannot void an announcement of this process: the record's block
            // is not handed out until every bucket has been touched and this guard is gone. If it
            // voids a copy that a thread of this process has just made, that thread makes it again.
            if !self.seeded(&bugs::ANNOUNCED_KEPT) {
                let _ = self.exchange(place, word, slot::EMPTY, &points::REPAIR_VOID);
            }
        }
        memory.flush(bucket, &points::REPAIR_FOUND);
        memory.fence(&points::REPAIR_FOUND);
        // Removes the mark P, because otherwise every lookup of such a record would flush the
        // line. Removes it only from words read before the flush: what another thread has put there
        // since may not be durable.
        let pending = |word: u64| slot::is_link(word) && slot::mark(word) == slot::PENDING;
        for (place, word) in bucket.slots.iter().zip(words) {
            if guard.inside && pending(word) {
                let plain = slot::with_mark(word, slot::PLAIN);
                let _ = self.exchange(place, word, plain, &points::UNMARK);
            }
        }
        Ok(Some(words))
    }

    /// Flushes a link that an earlier process may have left in the caches. The fence for the bucket
    /// behind it, which is touched next, covers the link too. The word that closes a chain need not
    /// be durable, so it is not flushed.
    fn flush_link(&self, place: &Word) {
        if link::is_node(self.look(place)) {
            self.core.memory.flush(place, &points::REPAIR_CHAIN);
        }
    }

    /// Touches the chain of a group for the first time; see [`touch`](Self::touch).
    #[cold]
    pub(super) fn touch_chain(
        &self,
        guard: &Guard<'_, S>,
        level: &Level,
        group: u64,
    ) -> Result<()> {
        let filter = level.chain_filter(group);
        let mut bits = TOUCHED;
        self.flush_link(self.chain_head(level, group));
        for node in self.nodes(level, group) {
            let node = node?;
            self.flush_link(&self.node(node)?.next);
            // Where there is a chain, its filter must not be empty; see `claim_in`.
            bits |= 1;
            for bucket in self.node_buckets(node) {
                match self.touch_bucket(guard, bucket, filter)? {
                    Some(words) => bits |= bits_of(words),
                    None => return Ok(()),
                }
            }
        }
        filter.fetch_or(self.seam(), bits, Ordering::SeqCst);
        Ok(())
    }
}

/// Returns the filter bits of the tags in a bucket.
fn bits_of(words: [u64; SLOTS]) -> u64 {
    let links = words.into_iter().filter(|&word| slot::is_link(word));
    links.fold(0, |bits, word| bits | filter_bits(slot::tag(word)))
}

const _: () = assert!(SLOTS == 8, "a bucket is a line");
