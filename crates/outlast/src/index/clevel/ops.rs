//! Lookups: the path through the levels.

use super::layout::{BUCKET_BYTES, Bucket, NODE_BYTES, NodeHeader, link, slot};
use super::levels::{Context, DRAINED, Guard, Level, TOUCHED, filter_bits, tag_of};
use super::records::{Place, endless};
use super::{Clevel, points};
use crate::error::{Boxed, Damage, Result};
use crate::index::clevel::bugs;
use crate::index::kit::media::{check_identity, ones};
use crate::index::kit::table::{HashedKey, Lookup, Wanted};
use crate::index::record::BlockRecord;
use crate::pmem::{Offset, Seam, SharedWord, Word};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most levels that a lookup checks together. Usually there are two, or three while one is
/// being emptied.
const AT_ONCE: usize = 4;

/// A bucket, and its Bloom filter.
#[derive(Clone, Copy)]
pub(super) struct Line<'g> {
    pub(super) bucket: &'g Bucket,
    pub(super) filter: &'g SharedWord,
}

impl<S: Seam, R: BlockRecord> Lookup<S, R> for Clevel<S, R> {
    type Batch<'t> = Guard<'t, S>;
    type Staged<'b> = &'b Context;

    #[inline(always)]
    fn find<W: Wanted<R>>(&self, key: HashedKey<'_, R>) -> Boxed<Option<W::Found<'_>>> {
        loop {
            let guard = self.guard(false);
            let Some(place) = self.find_place(&guard, key)? else { return Ok(None) };
            // The record may have been retired before the pin is made. If its state is unchanged,
            // it was not.
            let pin = || {
                let pin = guard.pin();
                let valid = self.look(&place.head.state) == place.state;
                if !valid {
                    self.core.epochs().unpin(pin);
                    return None;
                }
                Some(pin)
            };
            if let Some(found) = W::in_block(&self.core, place.body, pin) {
                return Ok(Some(found));
            }
        }
    }

    fn begin_batch(&self) -> Guard<'_, S> {
        self.guard(false)
    }

    #[inline(always)]
    fn stage_metadata<'b>(
        &'b self,
        guard: &'b Guard<'_, S>,
        HashedKey { hash, .. }: HashedKey<'_, R>,
    ) -> Result<&'b Context> {
        let context = self.context(guard)?;
        context.levels.iter().for_each(|level| self.prefetch_filters(level, hash));
        Ok(context)
    }

    #[inline(always)]
    fn stage_slots<'b>(
        &'b self,
        context: &mut &'b Context,
        HashedKey { hash, .. }: HashedKey<'_, R>,
    ) {
        self.likely(context, hash).for_each(|bucket| self.seam().prefetch(bucket));
    }

    #[inline(always)]
    fn stage_record<'b>(
        &'b self,
        context: &mut &'b Context,
        HashedKey { hash, .. }: HashedKey<'_, R>,
    ) {
        for place in self.likely(context, hash).flat_map(|bucket| &bucket.slots) {
            let word = self.core.memory.load(place);
            if slot::tag(word) == tag_of(hash) && slot::leads(word) {
                self.prefetch_record(slot::offset(word));
            }
        }
    }

    #[inline(always)]
    fn find_staged<'b>(
        &'b self,
        guard: &'b Guard<'_, S>,
        context: &'b Context,
        key: HashedKey<'_, R>,
    ) -> Boxed<Option<R::Owned>> {
        let mut pairs = [[0; 2]; AT_ONCE];
        for (pair, level) in pairs.iter_mut().zip(&context.levels) {
            *pair = level.pair(key.hash);
        }
        let place = self.find_in(guard, context, &pairs, key)?;
        Ok(place.map(|place| R::read_value(&self.core.memory, place.body)))
    }
}

impl<S: Seam, R: BlockRecord> Clevel<S, R> {
    // ---- The way ----------------------------------------------------------------

    /// Visits the slots that `hash` can be in and whose tag is that of `hash`, from the oldest
    /// level to the newest, until `visit` returns `Some`.
    ///
    /// Records move only from older levels to newer ones, and are in the new place before they
    /// leave the old one. So one pass misses no record that is present throughout, if it continues
    /// with the levels that were added meanwhile.
    #[inline(always)]
    pub(super) fn search<'g, T>(
        &'g self,
        guard: &'g Guard<'_, S>,
        hash: u64,
        mut visit: impl FnMut(&'g Word, u64) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let mut context = self.context(guard)?;
        let mut from = 0;
        loop {
            for level in &context.levels[from..] {
                if let found @ Some(_) = self.probe(guard, level, hash, &mut visit)? {
                    return Ok(found);
                }
            }
            let now = self.context(guard)?;
            if std::ptr::eq(now, context) || self.seeded(&bugs::CONTEXT_NOT_RECHECKED) {
                return Ok(None);
            }
            let newest = context.newest();
            let seen = now.levels.iter().position(|level| Arc::ptr_eq(level, newest));
            if seen.is_none() && self.seeded(&bugs::SEARCH_ENDS_WITH_LEVELS) {
                return Ok(None);
            }
            from = seen.map_or(0, |index| index + 1);
            context = now;
        }
    }

    /// Does what [`search`](Self::search) does, in one level.
    #[inline(always)]
    fn probe<'g, T>(
        &'g self,
        guard: &'g Guard<'_, S>,
        level: &'g Level,
        hash: u64,
        visit: &mut impl FnMut(&'g Word, u64) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let tag = tag_of(hash);
        let bits = filter_bits(tag);
        for bucket in level.pair(hash) {
            let line = self.line(guard, level, bucket)?;
            let filter = line.filter.load(self.seam(), Ordering::SeqCst);
            if filter & (bits | DRAINED) == bits
                && let found @ Some(_) = self.probe_line(line.bucket, tag, visit)?
            {
                return Ok(found);
            }
        }
        let group = level.group(hash);
        let filter = self.chain_filter(guard, level, group)?.load(self.seam(), Ordering::SeqCst);
        if filter & (bits | DRAINED) != bits {
            return Ok(None);
        }
        self.probe_chain(level, group, tag, visit)
    }

    #[inline(always)]
    fn probe_line<'g, T>(
        &'g self,
        bucket: &'g Bucket,
        tag: u64,
        visit: &mut impl FnMut(&'g Word, u64) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        // All slots are read before one is visited; see `find_at_once`.
        let words = bucket.slots.each_ref().map(|place| self.look(place));
        let mut same = 0u32;
        for (index, &word) in words.iter().enumerate() {
            same |= u32::from(slot::tag(word) == tag && slot::is_link(word)) << index;
        }
        for index in ones::<usize>(same) {
            if let found @ Some(_) = visit(&bucket.slots[index], words[index])? {
                return Ok(found);
            }
        }
        Ok(None)
    }

    #[cold]
    fn probe_chain<'g, T>(
        &'g self,
        level: &'g Level,
        group: u64,
        tag: u64,
        visit: &mut impl FnMut(&'g Word, u64) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        for node in self.nodes(level, group) {
            for bucket in self.node_buckets(node?) {
                if let found @ Some(_) = self.probe_line(bucket, tag, visit)? {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }

    /// Returns a bucket of a level and its filter, and touches the bucket first if necessary.
    #[inline(always)]
    pub(super) fn line<'g>(
        &'g self,
        guard: &Guard<'_, S>,
        level: &'g Level,
        bucket: u64,
    ) -> Result<Line<'g>> {
        let filter = level.filter(bucket);
        // Acquire: pairs with the `fetch_or` in `touch` that sets the mark.
        if !level.is_touched(filter.load(self.seam(), Ordering::Acquire)) {
            self.touch(guard, level, bucket)?;
        }
        Ok(Line { bucket: self.bucket(level, bucket), filter })
    }

    /// Returns the filter of a group's chain, and touches the chain first if necessary.
    #[inline(always)]
    pub(super) fn chain_filter<'g>(
        &'g self,
        guard: &Guard<'_, S>,
        level: &'g Level,
        group: u64,
    ) -> Result<&'g SharedWord> {
        let filter = level.chain_filter(group);
        // Acquire: as above.
        if !level.is_touched(filter.load(self.seam(), Ordering::Acquire)) {
            self.touch_chain(guard, level, group)?;
        }
        Ok(filter)
    }

    // ---- Overflow chains --------------------------------------------------------

    /// Yields the offsets of the nodes of a group's chain.
    pub(super) fn nodes<'g>(
        &'g self,
        level: &'g Level,
        group: u64,
    ) -> impl Iterator<Item = Result<u64, Damage>> + 'g {
        self.nodes_and(level, group, |_| {})
    }

    /// Like [`nodes`](Self::nodes), for a thread that will put something into one of the nodes:
    /// makes the links up to a node durable before it yields the node. So a thread that only reads
    /// need not persist links: whatever it finds behind a link, recovery finds there too. It would
    /// be too late to fence the links together with the new content: another thread could see that
    /// content, make it durable and return before the fence.
    pub(super) fn nodes_to_use<'g>(
        &'g self,
        level: &'g Level,
        group: u64,
    ) -> impl Iterator<Item = Result<u64, Damage>> + 'g {
        self.nodes_and(level, group, |place| self.core.memory.persist(place, &points::MET_LINK))
    }

    /// Yields the nodes, and calls `pending` for each link that is pending.
    fn nodes_and<'g>(
        &'g self,
        level: &'g Level,
        group: u64,
        pending: impl Fn(&Word) + 'g,
    ) -> impl Iterator<Item = Result<u64, Damage>> + 'g {
        let mut next = Ok(self.chain_head(level, group));
        // A chain cannot have more nodes than fit into the memory.
        let mut left = self.core.memory.len() / NODE_BYTES;
        std::iter::from_fn(move || {
            let place = match &next {
                Ok(place) => *place,
                Err(_) => return None,
            };
            let word = self.look(place);
            if !link::is_known(word) {
                next = Err(());
                let at = self.core.memory.offset_of(place).raw();
                return Some(Err(Damage::new(at, "a link of a chain", format!("{word:#x}"))));
            }
            if !link::is_node(word) {
                return None;
            }
            let node = link::offset(word);
            if word & link::PENDING != 0 {
                pending(place);
            }
            let header = self.node(node).and_then(|header| {
                left = left.checked_sub(1).ok_or_else(|| endless(node))?;
                Ok(header)
            });
            match header {
                Ok(header) => {
                    next = Ok(&header.next);
                    Some(Ok(node))
                }
                Err(damage) => {
                    next = Err(());
                    Some(Err(damage))
                }
            }
        })
    }

    /// Returns the header of an overflow node, after checking its identity and that all of the node
    /// lies inside the memory.
    pub(super) fn node(&self, offset: u64) -> Result<&NodeHeader, Damage> {
        let memory = &self.core.memory;
        let header = memory.at(Offset::<NodeHeader>::new(offset))?;
        memory.words(offset, NODE_BYTES)?;
        let expected = super::layout::identity(super::layout::Kind::Node, offset, 0);
        check_identity(memory, &header.identity, expected, "an overflow node")?;
        Ok(header)
    }

    /// Yields the buckets of a node that [`node`](Self::node) has checked.
    pub(super) fn node_buckets(&self, node: u64) -> impl Iterator<Item = &Bucket> {
        (1..NODE_BYTES / BUCKET_BYTES).map(move |index| {
            // SAFETY: the node's extent was checked, and its offset is a multiple of a line.
            unsafe { self.core.memory.at_unchecked(Offset::new(node + index * BUCKET_BYTES)) }
        })
    }

    // ---- Finding ----------------------------------------------------------------

    /// Finds the record of a key.
    #[inline(always)]
    pub(super) fn find_place<'g>(
        &'g self,
        guard: &'g Guard<'_, S>,
        key: HashedKey<'_, R>,
    ) -> Result<Option<Place<'g>>> {
        let context = self.context(guard)?;
        let mut pairs = [[0; 2]; AT_ONCE];
        for (pair, level) in pairs.iter_mut().zip(&context.levels) {
            *pair = level.pair(key.hash);
            for bucket in *pair {
                self.core.memory.seam().prefetch(level.filter(bucket));
            }
        }
        // Most records are in a level that takes new records, so its buckets are prefetched
        // together with the filters.
        let closed = context.levels.len().saturating_sub(context.keep);
        for (pair, level) in pairs.iter().zip(&context.levels).skip(closed) {
            for &bucket in pair {
                self.core.memory.seam().prefetch(self.bucket(level, bucket));
            }
        }
        self.find_in(guard, context, &pairs, key)
    }

    /// Does what [`find_place`](Self::find_place) does, after the prefetches. `pairs` has the buckets of the
    /// hash in the oldest levels, at most [`AT_ONCE`].
    #[inline(always)]
    fn find_in<'g>(
        &'g self,
        guard: &'g Guard<'_, S>,
        context: &'g Context,
        pairs: &[[u64; 2]; AT_ONCE],
        key: HashedKey<'_, R>,
    ) -> Result<Option<Place<'g>>> {
        match self.find_at_once(guard, context, pairs, key)? {
            Some(found) => Ok(found),
            None => self.find_slowly(guard, key),
        }
    }

    #[cold]
    fn find_slowly<'g>(
        &'g self,
        guard: &'g Guard<'_, S>,
        key: HashedKey<'_, R>,
    ) -> Result<Option<Place<'g>>> {
        self.search(guard, key.hash, |place, word| Ok(self.meet(place, word, key.key)?))
    }

    /// The hot path of [`find_place`](Self::find_place): reads the filters of all levels once, and then only
    /// the buckets whose filters show the key. Returns `None` if this does not decide, and the
    /// general path has to.
    ///
    /// Which bucket holds a record is effectively random, so a branch on it would often be
    /// mispredicted. So nothing is decided before all filters have been read. They are read from
    /// the oldest level to the newest, so if none shows the key and the context has not changed,
    /// the key is absent. If a filter shows the key but its bucket does not have it, that proves
    /// nothing: after the filters were read, the record may have moved to a level whose filter did
    /// not show it.
    #[inline(always)]
    fn find_at_once<'g>(
        &'g self,
        guard: &'g Guard<'_, S>,
        context: &'g Context,
        pairs: &[[u64; 2]; AT_ONCE],
        key: HashedKey<'_, R>,
    ) -> Result<Option<Option<Place<'g>>>> {
        if context.levels.len() > AT_ONCE {
            return Ok(None);
        }
        let HashedKey { key, hash } = key;
        let tag = tag_of(hash);
        let bits = filter_bits(tag);
        let shows = |filter: u64| u64::from(filter & (bits | DRAINED) == bits);
        let (mut touched, mut chained, mut likely) = (TOUCHED, 0, 0);
        for (index, (pair, level)) in pairs.iter().zip(&context.levels).enumerate() {
            // SeqCst: as `look`.
            let [one, other] =
                pair.map(|bucket| level.filter(bucket).load(self.seam(), Ordering::SeqCst));
            let chain = level.chain_filter(level.group(hash)).load(self.seam(), Ordering::SeqCst);
            touched &= level.touched(one) & level.touched(other) & level.touched(chain);
            chained |= shows(chain);
            likely |= (shows(one) | shows(other) << 1) << (2 * index);
        }
        if touched == 0 || chained != 0 {
            return Ok(None);
        }
        if likely == 0 {
            let now = self.context(guard)?;
            let same = std::ptr::eq(now, context) || self.seeded(&bugs::CONTEXT_NOT_RECHECKED);
            return Ok(same.then_some(None));
        }
        for at in ones::<usize>(likely) {
            let at = at % (2 * AT_ONCE);
            let bucket = self.bucket(&context.levels[at / 2], pairs[at / 2][at % 2]);
            let found =
                self.probe_line(bucket, tag, &mut |place, word| Ok(self.meet(place, word, key)?))?;
            if found.is_some() {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    // ---- Prefetches ---------------------------------------------------------------

    /// Prefetches the filters of a hash in a level.
    #[inline(always)]
    fn prefetch_filters(&self, level: &Level, hash: u64) {
        for bucket in level.pair(hash) {
            self.core.memory.seam().prefetch(level.filter(bucket));
        }
    }

    /// Prefetches the filters and the buckets of a hash in a level.
    #[inline(always)]
    pub(super) fn prefetch_lines(&self, level: &Level, hash: u64) {
        self.prefetch_filters(level, hash);
        for bucket in level.pair(hash) {
            self.core.memory.seam().prefetch(self.bucket(level, bucket));
        }
    }

    /// Yields the buckets that can hold a hash's record, according to their filters.
    #[inline(always)]
    fn likely<'g>(
        &'g self,
        context: &'g Context,
        hash: u64,
    ) -> impl Iterator<Item = &'g Bucket> + 'g {
        let bits = filter_bits(tag_of(hash));
        let pairs = context
            .levels
            .iter()
            .flat_map(move |level| level.pair(hash).map(|bucket| (level, bucket)));
        pairs.filter_map(move |(level, bucket)| {
            let filter = level.filter(bucket).load(self.seam(), Ordering::Relaxed);
            (filter & (bits | DRAINED) == bits).then(|| self.bucket(level, bucket))
        })
    }
}
