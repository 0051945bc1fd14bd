//! What caches need: records with marks and times, and removals by hash, which are counted.

use super::{Expiring, check_len};
use crate::error::{Boxed, Error};
use crate::index::{Bytes, Change, Changed, EvictingIndex, Previous, Verdict};
use crate::pmem::Seam;
use crate::pool::layout::TIME_BYTES;

/// Values up to this length are put together with their times on the stack.
const SMALL: usize = 504;

impl<S: Seam> Expiring<S> {
    fn below(&self) -> Boxed<&dyn EvictingIndex<Bytes>> {
        self.stored.evicting().ok_or_else(|| {
            let why = format!("{:?} has none", self.stored.scheme());
            Box::new(Error::Invalid { what: "scheme for a cache", why })
        })
    }

    /// See [`ExpiringIndex::put_marked`](super::ExpiringIndex::put_marked).
    pub(super) fn put_with_mark(
        &self,
        key: &[u8],
        time: u64,
        value: &[u8],
        mark: u32,
    ) -> Boxed<bool> {
        check_len(value)?;
        if self.has_passed(time) {
            return Ok(self.remove(key, Previous::UNWANTED)?.present);
        }
        let mut space = [0; TIME_BYTES + SMALL];
        let joined;
        let stored = match space.get_mut(..TIME_BYTES + value.len()) {
            Some(stored) => {
                let (head, tail) = stored.split_at_mut(TIME_BYTES);
                head.copy_from_slice(&time.to_le_bytes());
                tail.copy_from_slice(value);
                &*stored
            }
            None => {
                joined = super::join(time, value);
                &*joined
            }
        };
        let done: Changed<Bytes> = self.below()?.put_marked(key, stored, mark)?;
        self.note(key, Change::Put(stored), &done);
        self.expect(time);
        Ok(done.present)
    }

    /// See [`ExpiringIndex::evict`](super::ExpiringIndex::evict).
    pub(super) fn evict_counted(
        &self,
        hash: u64,
        decide: &mut dyn FnMut(u32) -> Verdict,
    ) -> Boxed<bool> {
        let evicted = self.below()?.evict(hash, decide)?;
        if let Some(bytes) = evicted {
            self.note_evicted(bytes);
        }
        Ok(evicted.is_some())
    }
}
