//! The level that is kept ready: the one that the next expansion links, or a small one in reserve.

use super::layout::{self, CONTEXT_BYTES, pack_level, root, unpack_level};
use super::levels::Level;
use super::resize::write_level;
use super::{Clevel, points};
use crate::error::{Damage, Error, Result};
use crate::index::kit::unlinked::UnlinkedBlock;
use crate::index::record::BlockRecord;
use crate::pmem::{Point, Seam};
use crate::pool::geometry::LARGE;
use std::sync::Arc;

/// log2 of the buckets of the level that is kept in reserve, whose block has the size of a context's.
/// No expansion makes so small a level.
pub(super) const RESERVE_BITS: u32 = 1;

/// Passes every error on, except that there is no space.
pub(super) fn unless_full(error: Error) -> Result<()> {
    if error.is_full() { Ok(()) } else { Err(error) }
}

impl<S: Seam, R: BlockRecord> Clevel<S, R> {
    pub(super) fn new_level(&self, bits: u32, at: &'static Point) -> Result<UnlinkedBlock<'_, S>> {
        let level =
            UnlinkedBlock::allocate(&self.core, layout::level_bytes(bits, self.shape.group_bits))?;
        write_level(&self.core.memory, level.offset(), bits, self.shape, at)?;
        self.core.memory.fence(at);
        Ok(level)
    }

    /// Takes the level that is kept ready, if `wants` accepts log2 of its buckets, which it returns
    /// too. Its removal from the root is durable when this returns, because the level may be freed
    /// and its space reused, for example if another expansion comes first.
    pub(super) fn take_ready(
        &self,
        wants: impl Fn(u32) -> bool,
    ) -> Result<Option<(UnlinkedBlock<'_, S>, u32)>> {
        let place = self.root(root::READY);
        let word = self.look(place);
        let Some((offset, bits)) = self.ready_level(word)? else { return Ok(None) };
        if !wants(bits) {
            return Ok(None);
        }
        self.core.before_unlink(offset)?;
        if self.exchange(place, word, 0, &points::READY).is_err() {
            return Ok(None);
        }
        self.core.memory.persist(place, &points::READY);
        let mut level = UnlinkedBlock::of(&self.core, offset);
        // The level is checked only now that this thread owns it. Before, another thread could have
        // taken it, and its space could have been reused.
        match self.check_level(offset, bits) {
            Ok(()) => Ok(Some((level, bits))),
            Err(damage) => {
                // The block is not freed, because the space may belong to something else. Instead,
                // the next close does not save the free state, so the trace after the next opening
                // frees the space if nothing owns it.
                level.set_linked();
                self.core.note_unfreeable();
                Err(damage.into())
            }
        }
    }

    /// Makes sure that the root has a level in reserve: any level that is kept ready, or the smallest
    /// one. When a level has been emptied, dropping it takes a block for the new context, and a full
    /// pool has none; see [`drop_context`](Self::drop_context). So the reserve is made before a level
    /// is added. It is on media, and so serves a later process too.
    pub(super) fn keep_reserve(&self) -> Result<()> {
        if self.look(self.root(root::READY)) == 0 {
            let level = self.new_level(RESERVE_BITS, &points::RESERVE)?;
            self.offer_ready(level, RESERVE_BITS);
        }
        Ok(())
    }

    /// Does the same if a level is being emptied, because dropping it may need the reserve. It is also
    /// dropped without, but then only if the pool has space again.
    pub(super) fn keep_reserve_to_drain(&self) -> Result<()> {
        if self.is_draining()? { self.keep_reserve().or_else(unless_full) } else { Ok(()) }
    }

    /// Keeps a level ready, unless one is. Otherwise frees it.
    pub(super) fn offer_ready(&self, mut level: UnlinkedBlock<'_, S>, bits: u32) {
        let place = self.root(root::READY);
        let word = pack_level(level.offset(), bits);
        // If this exchange fails, another thread has put a level there.
        if self.exchange(place, 0, word, &points::READY).is_ok() {
            level.set_linked();
            self.core.memory.persist(place, &points::READY);
        }
    }

    /// Allocates the block of a context that drops a level. In a full pool, takes the block of the
    /// level kept ready.
    pub(super) fn drop_context(&self) -> Result<UnlinkedBlock<'_, S>> {
        loop {
            let error = match UnlinkedBlock::allocate(&self.core, CONTEXT_BYTES) {
                Err(error) if error.is_full() => error,
                done => return done,
            };
            let Some((block, bits)) = self.take_ready(|_| true)? else { return Err(error) };
            let bytes = layout::level_bytes(bits, self.shape.group_bits);
            if self.core.geometry.class_for(bytes) != LARGE {
                return Ok(block);
            }
            // A block of whole pages is too large for a context. It is freed here, and its pages hold
            // many contexts.
        }
    }

    /// Returns whether the level kept ready is too large to follow `newest`, as it is after a shrink.
    pub(super) fn has_large_ready(&self, newest: &Level) -> bool {
        let ready = unpack_level(self.look(self.root(root::READY)));
        ready.is_some_and(|(_, bits)| bits > newest.bits + 1)
    }

    /// Reads the root's word of the level that is kept ready.
    pub(super) fn ready_level(&self, word: u64) -> Result<Option<(u64, u32)>, Damage> {
        if word == 0 {
            return Ok(None);
        }
        let place = self.root + root::READY as u64 * 8;
        unpack_level(word)
            .ok_or_else(|| Damage::new(place, "a level's offset and size", format!("{word:#x}")))
            .map(Some)
    }

    /// Makes the level that will follow `newest` ready, so that the next expansion only has to link
    /// it.
    pub(super) fn prepare(&self, newest: &Arc<Level>) -> Result<()> {
        let bits = newest.bits + 1;
        if bits > self.bits_max() {
            return Ok(());
        }
        let place = self.root(root::READY);
        let word = self.look(place);
        let found = self.ready_level(word)?;
        if let Some((offset, found)) = found
            && found == bits
        {
            // A level of this size is ready already: an earlier process made it, or it was made
            // while another level was the newest. Only its filters are missing.
            return self.prepare_notes(newest, offset);
        }
        let mut level = self.new_level(bits, &points::LEVEL)?;
        let (offset, at) = (level.offset(), &points::READY);
        if let Some((offset, _)) = found {
            self.core.before_unlink(offset)?;
        }
        if self.exchange(place, word, pack_level(offset, bits), at).is_err() {
            return Ok(());
        }
        level.set_linked();
        self.core.memory.persist(place, at);
        if let Some((offset, bits)) = found {
            let bytes = layout::level_bytes(bits, self.shape.group_bits);
            self.core.retire_visited(offset, bytes);
        }
        self.prepare_notes(newest, offset)
    }

    /// Makes the filters of the level that is kept ready, for the context that will have it.
    fn prepare_notes(&self, newest: &Arc<Level>, offset: u64) -> Result<()> {
        let level = Arc::new(self.new_filters(offset, newest.bits + 1));
        level.touch_notes();
        let guard = self.guard(true);
        let context = self.context(&guard)?;
        if Arc::ptr_eq(context.newest(), newest) {
            // Only one thread does this for each newest level, so `set` does not wait for another.
            let _ = context.next.set(self.seam(), level);
        }
        Ok(())
    }
}
