//! Space: allocation, retirement, and growth of the pool.

use super::{Core, FULL_TURNS, GRACE_TURNS, HAND_TURNS, Reclaimer};
use crate::error::{Damage, Error, Result};
use crate::pmem::{MappingError, Seam};
use crate::pool::alloc::{Alloc, Block};
use crate::pool::backing::mapping_error;
use crate::pool::bugs;
use crate::pool::geometry::DEFAULT_PAGE_BITS;
use crate::pool::layout::{PageKind, field};
use crate::pool::points;
use crate::reclaim::threads::thread_number;
use crate::reclaim::{Epochs, Pin, Visit};
use std::ops::Range;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::thread::Thread;

/// The largest step by which a pool grows ahead of use, in bytes.
const AHEAD_MAX: u64 = 256 << 20;

impl<S: Seam> Core<S> {
    /// The allocator.
    pub fn alloc(&self) -> &Alloc {
        &self.alloc
    }

    /// Allocates a block of at least `bytes`. The caller must not hold a lock of an index.
    pub fn allocate(&self, bytes: u64) -> Result<Block> {
        if self.memory.seam().refuses(bytes) {
            return Err(Error::PoolFull { needed: bytes, limit: self.limit(), note: None });
        }
        self.alloc.allocate(self, bytes)
    }

    /// Like [`allocate`](Core::allocate), for a record that consists of `before` bytes and a value
    /// of `value` bytes.
    ///
    /// # Errors
    /// Also [`Error::ValueTooLarge`] if no block of this pool can hold the record.
    pub fn allocate_record(&self, before: usize, value: usize) -> Result<Block> {
        let max = self.geometry.large_max();
        let bytes = (before + value) as u64;
        if bytes > max {
            let max = max as usize - before;
            return Err(Error::ValueTooLarge { len: value, max });
        }
        self.allocate(bytes)
    }

    /// Frees a block that was never linked, or that no thread can reach any more.
    pub fn free_unlinked(&self, offset: u64) {
        self.free_or_report(offset);
    }

    pub(super) fn free_or_report(&self, offset: u64) {
        self.report(self.alloc.free(self, offset));
    }

    fn report(&self, freed: Result<(), Damage>) {
        if let Err(damage) = freed {
            // The operation that unlinked the block has succeeded; the damage was there before. A
            // block that cannot be freed is kept.
            self.note_unfreeable();
            tracing::warn!(%damage, "a block could not be freed");
        }
    }

    /// Counts a block that cannot be freed because of damage. The free state is then not exact, so
    /// a close does not save it.
    pub fn note_unfreeable(&self) {
        self.leaked.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of blocks that could not be freed because of damage.
    pub fn unfreeable(&self) -> u64 {
        self.leaked.load(Ordering::Relaxed)
    }

    /// Marks a block alive for the trace. Called before a block that may be from before a crash is
    /// moved or unlinked.
    #[inline]
    pub fn before_unlink(&self, offset: u64) -> Result<(), Damage> {
        if self.alloc.old_frontier() == 0 {
            return Ok(());
        }
        self.alloc.mark(self, offset, None)
    }

    /// Retires a block whose unlinking is durable. It is freed once no guard can read it.
    pub fn retire(&self, offset: u64, bytes: u64) {
        self.retire_by(offset, |free| {
            if self.memory.seam().seeded(&bugs::FREED_EPOCH_EARLY) {
                return self.epochs().retire_early(1, offset, bytes, free);
            }
            self.epochs().retire(offset, bytes, free);
        });
    }

    /// Like [`retire`](Core::retire), for a thread that is about to allocate a block of that size. If the block
    /// can be freed at once, the thread keeps it at hand.
    pub fn retire_for_reuse(&self, offset: u64, bytes: u64) {
        if self.memory.seam().reuses_at_once() {
            return self.retire(offset, bytes);
        }
        self.epochs().retire(offset, bytes, |offset| {
            self.report(self.alloc.free_for_reuse(self, offset));
        });
    }

    /// Like [`retire`](Core::retire), for blocks that operations reach through links in
    /// [visits](Core::visit).
    pub fn retire_visited(&self, offset: u64, bytes: u64) {
        self.retire_by(offset, |free| {
            if self.memory.seam().seeded(&bugs::FREED_EPOCH_EARLY) {
                // Two epochs early, because one of them is only a margin.
                return self.epochs().retire_early(2, offset, bytes, free);
            }
            self.epochs().retire_visited(offset, bytes, free);
        });
    }

    pub(super) fn retire_by(&self, offset: u64, retire: impl FnOnce(&mut dyn FnMut(u64))) {
        let seam = self.memory.seam();
        seed!(seam, bugs::NEVER_FREED => return);
        if seam.seeded(&bugs::FREED_TWICE) || seam.seeded(&bugs::FREED_UNDER_READERS) {
            self.free_or_report(offset);
        }
        seed!(seam, bugs::FREED_UNDER_READERS => return);
        retire(&mut |offset| self.free_or_report(offset));
        if seam.reuses_at_once() {
            self.collect();
        }
    }

    /// Frees retired blocks that no guard can read any more.
    pub fn collect(&self) {
        if self.epochs().limbo_bytes() > 0 {
            self.epochs().collect(|offset| self.free_or_report(offset));
        }
    }

    /// The pool's epochs.
    #[inline(always)]
    pub fn epochs(&self) -> &Epochs {
        self.epochs.step(self.memory.seam())
    }

    /// Pins the current epoch, for a reference that is handed out.
    pub fn pin(&self) -> Pin {
        self.epochs().pin(thread_number())
    }

    /// Pins the current epoch for an operation of this thread.
    #[inline(always)]
    pub fn visit(&self) -> Visit<'_> {
        self.epochs().begin_visit(thread_number())
    }

    /// Sets the object that can finish a reclaim.
    pub fn set_reclaimer(&self, reclaimer: Weak<dyn Reclaimer>) {
        let _ = self.reclaimer.set(reclaimer);
    }

    /// Wakes the background thread, because there is work for it.
    pub fn wake_worker(&self) {
        if let Some(worker) = self.worker.get() {
            worker.unpark();
        }
    }

    /// Sets the thread that does the background work.
    pub fn set_worker(&self, worker: Thread) {
        let _ = self.worker.set(worker);
    }

    /// Claims a run of pages, growing the pool or finishing the reclaim if necessary. Returns
    /// `None` if blocks were freed meanwhile: the caller then looks for a free block again.
    /// `of_class` is the class of blocks that would serve the caller as well. `unreclaimed` says
    /// whether space was unaccounted for when the caller last looked.
    pub(in crate::layers::pool) fn claim_or_help(
        &self,
        (kind, class, pages): (PageKind, u8, u32),
        of_class: Option<u8>,
        unreclaimed: bool,
    ) -> Result<Option<u32>> {
        loop {
            let total = self.geometry.pages_in(self.size());
            let trims = self.alloc.trims();
            let refused = match self.alloc.claim(self, kind, class, pages, total) {
                Ok(Some(head)) => {
                    self.wake_worker();
                    return Ok(Some(head));
                }
                Ok(None) => None,
                // The free pages lack disk blocks and cannot get any. Space can still come from
                // elsewhere.
                Err(error) if error.is_full() => Some(error),
                Err(error) => return Err(error),
            };
            if self.alloc.wait_for_trim(self, trims)? {
                continue;
            }
            if unreclaimed && self.alloc.old_frontier() == 0 {
                // Another thread has finished the reclaim since. So there is space, and a growth
                // now would count as needed forever.
                return Ok(None);
            }
            if self.collect_or_wait(of_class)? {
                return Ok(None);
            }
            // While space is unaccounted for after a crash, growth is limited: a pool whose process
            // is killed again and again must not grow each time.
            let bytes = self.geometry.offset_of(pages);
            if unreclaimed && !self.may_grow_unreclaimed(bytes) && self.help()? {
                return Ok(None);
            }
            // If at least half as many pages as needed are free, though scattered, then the failed
            // claim does not show that space is scarce.
            let scattered = self.alloc.stats(self).free_pages >= pages.div_ceil(2);
            let grown = match refused {
                Some(error) => Err(error),
                None => self.grow(total, bytes, unreclaimed, scattered),
            };
            if let Err(error) = grown {
                if error.is_full()
                    && (self.alloc.give_back(self)?
                        || self.free_dropped()?
                        || unreclaimed && self.help()?
                        || self.wait_for_space(of_class)?)
                {
                    return Ok(None);
                }
                self.refusals.note_failure();
                return Err(error);
            }
        }
    }

    /// Frees retired blocks before the pool takes more space. Returns whether that yielded pages,
    /// or blocks of `of_class` if one is given.
    ///
    /// A thread in the middle of an operation keeps everything that is retired meanwhile from being
    /// freed. If it has lost its processor, the others can retire an eighth of a pool in that time.
    /// This call waits for such a thread as long as something is kept that was retired before the
    /// call began. It does not wait for what others retire from now on. Nor does it wait forever:
    /// the thread may have been stopped, and then no one waits for it again.
    pub(super) fn collect_or_wait(&self, of_class: Option<u8>) -> Result<bool> {
        if self.epochs().limbo_bytes() == 0 {
            return Ok(false);
        }
        let free_pages = || self.alloc.stats(self).free_pages;
        let (now, had) = (self.epochs().now(), free_pages());
        let mut turn = 0;
        loop {
            self.collect();
            let has_blocks = |class| self.alloc.has_blocks(self, class);
            if free_pages() > had || of_class.is_some_and(has_blocks) {
                return Ok(true);
            }
            // A guard held by the user may never end.
            let is_kept = self.epochs().oldest_retired().is_some_and(|epoch| epoch <= now);
            if !is_kept || self.epochs().pins() > 0 {
                return Ok(false);
            }
            let visit = self.epochs().oldest_visit();
            if visit.is_some() && visit == Some(self.stopped_visit.load(Ordering::Relaxed)) {
                return Ok(false);
            }
            if turn >= GRACE_TURNS {
                self.stopped_visit.store(visit.unwrap_or(0), Ordering::Relaxed);
                return Ok(false);
            }
            self.wait(&mut turn)?;
        }
    }

    /// The last resort of an allocation when the pool cannot grow: waits for other threads to give
    /// space back. Returns whether that yielded pages, or blocks of `of_class` if one is given.
    ///
    /// Space may soon become free for two reasons. First, retired blocks are freed once the
    /// operations under way end, and with many threads on few processors one of them may not have
    /// run for a long time. Second, a thread can briefly hold the last run of the list, to take
    /// blocks from it. A user's guard may never end, nor may a visit for which a wait has timed out
    /// before. For those, this call waits no longer than for such a brief hold.
    pub(super) fn wait_for_space(&self, of_class: Option<u8>) -> Result<bool> {
        let free_pages = || self.alloc.stats(self).free_pages;
        let had = free_pages();
        let mut turn = 0;
        loop {
            self.collect();
            let has_blocks = |class| self.alloc.has_blocks(self, class);
            if free_pages() > had || of_class.is_some_and(has_blocks) {
                return Ok(true);
            }
            let visit = self.epochs().oldest_visit().unwrap_or(0);
            let ends = self.epochs().limbo_bytes() > 0
                && self.epochs().pins() == 0
                && visit != self.hopeless_visit.load(Ordering::Relaxed);
            if turn >= FULL_TURNS {
                self.hopeless_visit.store(visit, Ordering::Relaxed);
            }
            if turn >= if ends { FULL_TURNS } else { HAND_TURNS } {
                return Ok(false);
            }
            self.wait(&mut turn)?;
        }
    }

    /// Size of the pool up to which pages may be claimed, in bytes. The memory may already be
    /// longer.
    pub fn size(&self) -> u64 {
        // Acquire: pairs with the Release in `grow`.
        self.size.load(Ordering::Acquire)
    }

    /// Whether the pool may grow by `bytes` while space is unaccounted for: up to an eighth beyond
    /// the size that it has needed with all its space accounted for. Growth during a reclaim does
    /// not count as needed. Otherwise, each process that dies before its reclaim ends would add
    /// another eighth.
    pub(super) fn may_grow_unreclaimed(&self, bytes: u64) -> bool {
        let reclaimed = self.header().get(field::RECLAIMED_SIZE);
        self.size() + bytes <= reclaimed.saturating_add(reclaimed / 8)
    }

    /// Finishes the reclaim, together with other threads. Returns whether all space is accounted
    /// for.
    pub(super) fn help(&self) -> Result<bool> {
        match self.reclaimer.get().and_then(Weak::upgrade) {
            Some(reclaimer) => reclaimer.finish(),
            None => Ok(false),
        }
    }

    /// Frees the blocks of dropped maps, which otherwise wait for the background work.
    fn free_dropped(&self) -> Result<bool> {
        match self.reclaimer.get().and_then(Weak::upgrade) {
            Some(reclaimer) => reclaimer.free_dropped(),
            None => Ok(false),
        }
    }

    /// Records that all space is accounted for.
    pub fn reclaimed(&self) {
        self.alloc.swept();
    }

    /// Grows the pool by at least `bytes`. Does nothing if another thread has grown it past `total`
    /// pages since, or if space that was `unreclaimed` no longer is. If `sparing`, grows by no more
    /// than necessary, and leaves the size that the pool is known to need unchanged.
    pub(super) fn grow(
        &self,
        total: u32,
        bytes: u64,
        unreclaimed: bool,
        sparing: bool,
    ) -> Result<()> {
        let seam = self.memory.seam();
        let _growth = seam.lock(&self.growth);
        let size = self.size();
        let changed = unreclaimed && self.alloc.old_frontier() == 0;
        if changed || self.geometry.pages_in(size) != total {
            return Ok(());
        }
        let page = self.geometry.page_bytes();
        let [want, least] = self.targets(total, bytes, unreclaimed, sparing);
        for target in [want, least].into_iter().flatten() {
            match self.grow_backing(target) {
                Ok(()) => {
                    // SAFETY: the backing has just grown to `target` bytes.
                    unsafe { self.memory.grown(target) };
                    seed!(seam, bugs::SIZE_TOLD_EARLY => self.size.store(target, Ordering::Release));
                    {
                        let mut header = seam.lock(&self.header);
                        header.set(field::SIZE, target);
                        // A run this long needs only its own bytes. For a shorter one, the ample
                        // growth will soon be needed too.
                        let needed = if bytes >= 16 * page { size + bytes } else { target };
                        if !unreclaimed && !sparing {
                            header.set(field::RECLAIMED_SIZE, needed.min(target));
                        }
                        if !seam.seeded(&bugs::SIZE_NOT_TOLD) {
                            header.write(&self.memory, &points::HEADER_SIZE)?;
                        }
                    }
                    // Pages there can be claimed only from now on: a frontier beyond the size in
                    // the header would be damage. Release: pairs with the Acquire in `size`.
                    self.size.store(target, Ordering::Release);
                    return Ok(());
                }
                Err(Error::DiskFull { .. }) if least.is_some_and(|least| target > least) => {}
                Err(error) => return Err(error),
            }
        }
        let free = self.geometry.offset_of(self.alloc.stats(self).free_pages);
        let note = match (self.epochs().limbo_bytes(), self.epochs().pins()) {
            (0, _) if free >= bytes => {
                Some(format!("{free} bytes are free, but in smaller pieces"))
            }
            (0, _) => None,
            (held, 1) => Some(format!("1 guard keeps {held} bytes from reuse")),
            (held, pins) => Some(format!("{pins} guards keep {held} bytes from reuse")),
        };
        Err(Error::PoolFull { needed: bytes, limit: self.limit(), note })
    }

    /// Returns the size that the pool may not exceed: whole pages, in bytes.
    fn limit(&self) -> u64 {
        let limit = match self.options.max_size {
            0 => self.backing.reserved(),
            max => max.min(self.backing.reserved()),
        };
        limit & !(self.geometry.page_bytes() - 1)
    }

    /// Returns the sizes to which [`grow`](Core::grow) would grow a pool of `total` pages: the
    /// preferred one and the least, each `None` if the pool's limit does not allow it.
    fn targets(
        &self,
        total: u32,
        bytes: u64,
        unreclaimed: bool,
        sparing: bool,
    ) -> [Option<u64>; 2] {
        let (size, page) = (self.geometry.offset_of(total), self.geometry.page_bytes());
        // The run may have to begin after the next region's descriptors.
        let least = if bytes > self.geometry.offset_of(self.geometry.left_in_region(total)) {
            bytes + self.geometry.offset_of(self.geometry.left_in_region(total)) + page
        } else {
            bytes + page
        };
        // With pages of the default size or larger, grows by whole huge pages, which can then back
        // the mapping.
        let granule = if unreclaimed || page < 1 << DEFAULT_PAGE_BITS { page } else { 2 << 20 };
        let ample = (size / 8).clamp(16 * page, AHEAD_MAX);
        let step = if unreclaimed || sparing { least } else { ample };
        [step.max(least), least].map(|want| {
            let target = (size + want).next_multiple_of(granule).min(self.limit());
            (target >= size + bytes && target > size).then_some(target)
        })
    }

    /// Allocates the space for the growth of a journaled pool before the growth. The growth itself
    /// happens inside the gate, where a cut, and with it all writers, would have to wait for it.
    fn prepare_growth(&self, total: u32, bytes: u64, sparing: bool) {
        if self.journal().is_some()
            && !self.gate.is_clean()
            && let [Some(target), _] = self.targets(total, bytes, false, sparing)
        {
            // If this fails, so will the growth, unless the working file can be moved.
            if let Err(error) = self.grow_backing(target)
                && self.make_room(&error).unwrap_or(false)
            {
                let _ = self.backing.grow(target);
            }
        }
    }

    pub(super) fn grow_backing(&self, target: u64) -> Result<()> {
        let needed = target.saturating_sub(self.size());
        let grown = self.refusals.ask(needed, || {
            if self.memory.seam().refuses(needed) {
                let source = std::io::ErrorKind::StorageFull.into();
                return Err(Error::disk_full(needed, source));
            }
            self.backing.grow(target).map_err(|error| {
                // A journal notices such an error of its base itself.
                if matches!(error, MappingError::WriteBack(_)) && self.journal().is_none() {
                    self.note_suspect();
                }
                mapping_error(error)
            })
        });
        grown.map_err(|error| self.named(error))
    }

    /// Names the pool's file as the one that found no space. In a journaled pool it can also be the working
    /// file, so none is named.
    fn named(&self, error: Error) -> Error {
        if self.journal().is_some() { error } else { error.at(&self.options.path) }
    }

    /// Gets disk blocks for a part of the file, which may have been given back.
    pub(in crate::layers::pool) fn fill(&self, range: Range<u64>) -> Result<()> {
        let filled = self.refusals.ask(range.end - range.start, || self.backing.fill(range));
        filled.map_err(|error| self.named(error))
    }

    /// Announces that an index will soon allocate `bytes` within a short time. The background
    /// thread grows the pool for that and pre-faults its pages, so that no operation has to wait
    /// for either.
    #[cold]
    pub fn announce(&self, bytes: u64) {
        self.announced.fetch_add(bytes, Ordering::Relaxed);
        self.wake_worker();
    }

    /// Returns the offset up to which announced allocations will soon use the pool. Returns 0 if
    /// nothing was announced, or if there was no space for it.
    pub fn expected(&self) -> u64 {
        self.expected.load(Ordering::Relaxed)
    }

    /// The offset up to which the pool has been in use.
    pub fn frontier(&self) -> u64 {
        self.geometry.offset_of(self.alloc.stats(self).frontier_pages)
    }

    /// Grows the pool ahead of use, if little space is left or more is expected to be used. Returns
    /// whether it did.
    pub fn grow_ahead(&self) -> Result<bool> {
        if self.options.read_only || self.alloc.old_frontier() != 0 {
            return Ok(false);
        }
        let (page, total) = (self.geometry.page_bytes(), self.geometry.pages_in(self.size()));
        let stats = self.alloc.stats(self);
        let announced = self.announced.swap(0, Ordering::Relaxed);
        if announced > 0 {
            // Free pages are used first.
            let more = announced.saturating_sub(u64::from(stats.free_pages) * page);
            self.expected.fetch_max(self.frontier() + more, Ordering::Relaxed);
        }
        let short = self.expected().saturating_sub(self.size());
        if short > 0 {
            self.prepare_growth(total, short.min(AHEAD_MAX), true);
            let Some(_writing) = self.enter_in_background()? else { return Ok(false) };
            // The pool does not need this space yet, so the growth is sparing. It goes in steps,
            // because operations that need pages wait until a step ends.
            match self.grow(total, short.min(AHEAD_MAX), false, true) {
                Err(error) if error.is_full() => self.expected.store(0, Ordering::Relaxed),
                grown => return grown.map(|()| true),
            }
        }
        // Retired blocks will soon be free.
        let retired = self.epochs().limbo_bytes() / page;
        let left = u64::from(total.saturating_sub(stats.frontier_pages) + stats.free_pages);
        // Far enough ahead that the worker has touched the new pages and built huge pages from them
        // before operations get there.
        if left + retired >= u64::from(total / 12).max(4) {
            return Ok(false);
        }
        self.prepare_growth(total, page, false);
        let Some(_writing) = self.enter_in_background()? else { return Ok(false) };
        self.grow(total, page, false, false).map(|()| true)
    }
}
