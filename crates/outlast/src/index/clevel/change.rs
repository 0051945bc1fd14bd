//! Changes of one key.

use super::layout::{Bucket, RECORD_HEADER, slot, state};
use super::levels::{Context, DRAINED, Guard, Level, filter_bits, tag_of};
use super::records::Place;
use super::{Clevel, points};
use crate::error::{Boxed, Damage, Error, Result};
use crate::index::Changed;
use crate::index::bugs as index_bugs;
use crate::index::clevel::bugs;
use crate::index::kit::change::{Plan, Step, Update};
use crate::index::kit::table::{HashedKey, Table};
use crate::index::kit::unlinked::UnlinkedBlock;
use crate::index::record::BlockRecord;
use crate::pmem::{Point, Seam, SharedWord, Word};
use crate::pool::threads::thread_number;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A new record that nothing leads to yet.
pub(crate) struct Draft<'c, S: Seam> {
    block: UnlinkedBlock<'c, S>,
    bytes: u64,
    /// Whether its content has been written, durably.
    written: bool,
}

/// What prevents an announced insert from becoming live.
enum Rival {
    Nothing,
    /// A record of the key that is in effect.
    InEffect,
    /// An announced insert that has priority.
    Stronger(u64),
}

impl<S: Seam, R: BlockRecord> Update<S, R> for Clevel<S, R> {
    /// The new record, while nothing leads to it.
    type Progress<'t> = Option<Draft<'t, S>>;
    /// The word of the context in which no slot was free.
    type Full<'t> = u64;

    #[inline(always)]
    fn begin<'t>(
        &'t self,
        _: HashedKey<'_, R>,
        _: &Plan<'_, R>,
        _: &mut Option<Draft<'t, S>>,
    ) -> Boxed<Option<Changed<R>>> {
        Ok(None)
    }

    #[inline(always)]
    fn attempt<'t>(
        &'t self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        draft: &mut Option<Draft<'t, S>>,
    ) -> Boxed<Step<R, u64>> {
        let done = self.try_change(key, plan, draft);
        done.or_else(|error| self.without_space(key, plan, draft.is_some(), error))
    }

    fn grow(&self, key: HashedKey<'_, R>, context: u64) -> Result<()> {
        self.make_room(key.hash, context)
    }
}

impl<S: Seam, R: BlockRecord> Clevel<S, R> {
    /// Makes one attempt at a change.
    #[inline(always)]
    fn try_change<'t>(
        &'t self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        draft: &mut Option<Draft<'t, S>>,
    ) -> Boxed<Step<R, u64>> {
        if let (None, Some(value)) = (&draft, plan.value) {
            *draft = Some(self.draft(key.key, value)?);
        }
        let guard = self.guard(true);
        let Some(place) = self.find_place(&guard, key)? else {
            return match (plan.inserts, &mut *draft, plan.value) {
                (true, Some(new), Some(value)) => match self.insert(&guard, key, value, new)? {
                    Some(step) => Ok(step),
                    None => {
                        // This insert announced its record, so other threads could see it, but the
                        // record was killed. The block has been retired, so the next attempt needs
                        // a new one.
                        *draft = None;
                        Ok(Step::Again)
                    }
                },
                _ => Ok(Step::absent(false)),
            };
        };
        let memory = &self.core.memory;
        let value = || Ok(R::read_value(memory, place.body));
        let before = plan.before.take(value)?;
        let applied = self.applies(plan, &place);
        if applied {
            let changed = match (draft, plan.value) {
                (Some(draft), Some(value)) => {
                    self.write(draft, state::LIVE, key.key, value)?;
                    self.replace(&guard, key.hash, place, draft)?
                }
                _ => self.remove(&guard, key.hash, place)?,
            };
            if !changed {
                return Ok(Step::Again);
            }
        }
        Ok(Step::Done(Changed { applied, before, present: true }))
    }

    /// Returns whether a change applies to this record of its key.
    #[inline(always)]
    fn applies(&self, plan: &Plan<'_, R>, place: &Place<'_>) -> bool {
        plan.replaces
            && plan.expected.is_none_or(|value| {
                R::has_value(&self.core.memory, place.body, value)
                    || self.seeded(&index_bugs::COMPARISON_IGNORED)
            })
    }

    /// Decides about an attempt that has failed. If its new record got no block because there is no
    /// space (not `has_block`), the change still succeeds if it turns out not to apply.
    #[cold]
    fn without_space(
        &self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        has_block: bool,
        error: Box<Error>,
    ) -> Boxed<Step<R, u64>> {
        if has_block || !error.is_full() {
            return Err(error);
        }
        let guard = self.guard(true);
        match self.find_place(&guard, key)? {
            None if !plan.inserts => Ok(Step::absent(false)),
            Some(place) if !self.applies(plan, &place) => {
                let value = || Ok(R::read_value(&self.core.memory, place.body));
                let before = plan.before.take(value)?;
                Ok(Step::Done(Changed { applied: false, before, present: true }))
            }
            _ => Err(error),
        }
    }

    /// Allocates a block for a record. Its content is undefined.
    #[inline(always)]
    fn draft(&self, key: R::Key<'_>, value: R::Value<'_>) -> Result<Draft<'_, S>> {
        let bytes = self.record_bytes(key, value);
        let (key_len, value_len) = R::lengths(key, value);
        let before = RECORD_HEADER as usize + key_len;
        let block = UnlinkedBlock::for_record(&self.core, before, value_len)?;
        Ok(Draft { block, bytes, written: false })
    }

    /// Writes a draft as a record of this kind. If it is written already, changes only its kind.
    /// When this returns, all of it is durable except possibly the kind, which is `LIVE` or
    /// `UNDECIDED`; after a crash, both mean the same.
    #[inline(always)]
    fn write(
        &self,
        draft: &mut Draft<'_, S>,
        kind: u64,
        key: R::Key<'_>,
        value: R::Value<'_>,
    ) -> Result<(), Damage> {
        let memory = &self.core.memory;
        let head = self.head(draft.block.offset())?;
        let (key_len, value_len) = R::lengths(key, value);
        let word = state::word(kind, key_len, value_len);
        if draft.written {
            memory.store_release(&head.state, word, &points::RECORD_KIND);
            return Ok(());
        }
        let bytes = draft.bytes.next_multiple_of(8);
        let words = memory.words(draft.block.offset(), bytes)?;
        memory.store(&words[0], word, &points::RECORD);
        let lengths = state::packed_lengths(word);
        let at = &points::RECORD;
        let crc = R::write(memory, &words[2..], (draft.block.offset(), lengths), key, value, at);
        // Of several announced inserts of a key, that of the thread with the smallest number wins.
        // It loses only to a record that is in effect, or to rehashing, so some thread always makes
        // progress.
        let priority = thread_number().min(u32::MAX as usize) as u64;
        memory.store(&words[1], crc | priority << 32, at);
        memory.flush_words(words, at);
        memory.fence(at);
        draft.written = true;
        Ok(())
    }

    // ---- Replace and remove -----------------------------------------------------

    /// Returns the size, in bytes, of a record's block, for its retirement.
    fn bytes_of(place: &Place<'_>) -> u64 {
        RECORD_HEADER + (place.body.key_len + place.body.value_len) as u64
    }

    /// Replaces a record with a draft that is written. Does nothing and returns `false` if the
    /// record is no longer in effect.
    #[inline(always)]
    fn replace(
        &self,
        guard: &Guard<'_, S>,
        hash: u64,
        place: Place<'_>,
        draft: &mut Draft<'_, S>,
    ) -> Result<bool> {
        let (memory, at) = (&self.core.memory, &points::UPDATE);
        self.core.before_unlink(place.offset)?;
        let word = state::forward(draft.block.offset());
        let word_pending = word | state::PENDING;
        if self.seeded(&bugs::UPDATED_IN_ONE_SLOT) {
            draft.block.set_linked();
            self.relink(guard, hash, place.offset, Some(draft.block.offset()), at)?;
            self.core.retire_visited(place.offset, Self::bytes_of(&place));
            return Ok(true);
        }
        if self.exchange(&place.head.state, place.state, word_pending, at).is_err() {
            return Ok(false);
        }
        draft.block.set_linked();
        if self.seeded(&index_bugs::UPDATE_EMPTIES_FIRST) {
            let dead = state::with_kind(place.state, state::DEAD) | state::PENDING;
            let _ = self.exchange(&place.head.state, word_pending, dead, at);
            memory.persist(&place.head.state, at);
            let _ = self.exchange(&place.head.state, dead, word_pending, at);
        }
        memory.persist(&place.head.state, at);
        let _ = self.exchange(&place.head.state, word_pending, word, &points::UNMARK);
        self.relink(guard, hash, place.offset, Some(draft.block.offset()), &points::UPDATE_SLOT)?;
        self.core.retire_visited(place.offset, Self::bytes_of(&place));
        Ok(true)
    }

    /// Removes a record. Does nothing and returns `false` if it is no longer in effect.
    #[inline(always)]
    fn remove(&self, guard: &Guard<'_, S>, hash: u64, place: Place<'_>) -> Result<bool> {
        let (memory, at) = (&self.core.memory, &points::REMOVE);
        seed!(self, index_bugs::REMOVES_NOTHING => return Ok(true));
        self.core.before_unlink(place.offset)?;
        let word = state::with_kind(place.state, state::DEAD);
        let word_pending = word | state::PENDING;
        if self.exchange(&place.head.state, place.state, word_pending, at).is_err() {
            return Ok(false);
        }
        memory.persist(&place.head.state, at);
        let _ = self.exchange(&place.head.state, word_pending, word, &points::UNMARK);
        self.relink(guard, hash, place.offset, None, &points::REMOVE_SLOT)?;
        self.core.retire_visited(place.offset, Self::bytes_of(&place));
        self.removed.fetch_add(self.seam(), 1, Ordering::Relaxed);
        Ok(true)
    }

    /// Makes every slot that leads to or through the record at `through` lead to its successor,
    /// `to`, or empties the slot if there is none, so that the record can be retired. What this
    /// thread changes is durable when this returns. A slot that another thread has changed is
    /// durable before that thread's guard ends.
    ///
    /// Also withdraws every unconfirmed copy with this tag in the slots that the hash can be in.
    /// Its record could be this one or a predecessor of it, and no thread may follow the copy to
    /// find out (invariant 7). The thread that made the copy then tries again.
    #[inline(always)]
    pub(super) fn relink(
        &self,
        guard: &Guard<'_, S>,
        hash: u64,
        through: u64,
        to: Option<u64>,
        at: &'static Point,
    ) -> Result<()> {
        let memory = &self.core.memory;
        let new = to.map_or(slot::EMPTY, |offset| slot::word(offset, tag_of(hash)));
        let mut stored = false;
        let searched = self.search(guard, hash, |place, mut word| {
            while slot::is_link(word) && slot::tag(word) == tag_of(hash) {
                match slot::mark(word) {
                    slot::ANNOUNCED => break,
                    slot::COPY => {
                        self.withdraw(place, word);
                        word = self.look(place);
                        continue;
                    }
                    _ if self.leads(slot::offset(word), through)? => {}
                    _ => break,
                }
                match self.exchange(place, word, new, at) {
                    Ok(_) => {
                        memory.flush(place, at);
                        stored = true;
                        break;
                    }
                    Err(found) => word = found,
                }
            }
            if stored
                && (self.seeded(&bugs::ONE_SLOT_UNLINKED)
                    || self.seeded(&bugs::UPDATED_IN_ONE_SLOT))
            {
                return Ok(Some(()));
            }
            Ok(None::<()>)
        });
        // Also if the search met damage. A thread that no longer finds its record in a slot that was
        // changed here may retire the record.
        if stored {
            memory.fence(at);
        }
        searched.map(drop)
    }

    // ---- Insert -----------------------------------------------------------------

    /// Inserts a key that was not found. Returns `None` if the draft was killed: another record of
    /// the key is in effect, another insert of it is stronger, or rehashing is emptying the slot's
    /// level.
    #[inline(always)]
    fn insert(
        &self,
        guard: &Guard<'_, S>,
        key: HashedKey<'_, R>,
        value: R::Value<'_>,
        draft: &mut Draft<'_, S>,
    ) -> Result<Option<Step<R, u64>>> {
        let hash = key.hash;
        self.write(draft, state::UNDECIDED, key.key, value)?;
        let context = self.context(guard)?;
        let plain = slot::word(draft.block.offset(), tag_of(hash));
        let announced = slot::with_mark(plain, slot::ANNOUNCED);
        let at = &points::ANNOUNCE;
        let Some(place) = self.claim(guard, context, 0, hash, announced, at)? else {
            return Ok(Some(Step::Full(context.word)));
        };
        draft.block.set_linked();
        let won = self.decide(guard, key, draft.block.offset()).or_else(|error| {
            // Something is damaged, so the call fails. The insert must then not take effect, unless
            // another thread has already decided it.
            self.settle(draft.block.offset(), state::KILLED)?;
            let word = self.state(draft.block.offset(), self.head(draft.block.offset())?)?;
            if state::kind(word) == state::KILLED { Err(error) } else { Ok(true) }
        });
        if matches!(won, Ok(true)) {
            self.take_effect(place, announced, &points::INSERT);
            return Ok(Some(Step::absent(true)));
        }
        self.withdraw(place, announced);
        self.core.retire_visited(draft.block.offset(), draft.bytes);
        won.map(|_| None)
    }

    /// Empties the slot of an announcement that has lost, or of an unconfirmed copy, unless another
    /// thread already has. The change is durable when this returns, because neither may be on media
    /// after a clean close. Blocks are then handed out before every bucket has been touched, so
    /// after the next opening, the following could happen:
    ///
    /// 1. One thread touches the bucket, finds the announcement or copy there, and pauses.
    /// 2. Another thread touches the bucket, is given the same block, and announces it in the same
    ///    slot.
    /// 3. The first thread continues, and voids that announcement, which it takes for the old one.
    #[cold]
    pub(super) fn withdraw(&self, place: &Word, word: u64) {
        let _ = self.exchange(place, word, slot::EMPTY, &points::WITHDRAW);
        self.core.memory.persist(place, &points::WITHDRAW);
    }

    /// Makes an insert that was decided take effect, durably, in the slot that announced it.
    #[inline(always)]
    pub(super) fn take_effect(&self, place: &Word, announced: u64, at: &'static Point) {
        let pending = slot::with_mark(announced, slot::PENDING);
        // If this exchange fails, another thread has already done it. If the record has been moved
        // to another slot since, it is durable there.
        let _ = self.exchange(place, announced, pending, at);
        self.core.memory.persist(place, at);
        let plain = slot::with_mark(announced, slot::PLAIN);
        let _ = self.exchange(place, pending, plain, &points::UNMARK);
    }

    /// Stores `word` in a free slot of one of the levels that take records, except the `skip`
    /// oldest of all levels. Returns the slot, or `None` if none is free.
    #[inline(always)]
    pub(super) fn claim<'g>(
        &'g self,
        guard: &'g Guard<'_, S>,
        context: &'g Context,
        skip: usize,
        hash: u64,
        word: u64,
        at: &'static Point,
    ) -> Result<Option<&'g Word>> {
        let newer = context.levels.len() - skip;
        for level in context.open_levels().take(newer) {
            if let Some(place) = self.claim_in(guard, level, hash, word, at)? {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    #[inline(always)]
    fn claim_in<'g>(
        &'g self,
        guard: &'g Guard<'_, S>,
        level: &'g Arc<Level>,
        hash: u64,
        word: u64,
        at: &'static Point,
    ) -> Result<Option<&'g Word>> {
        let bits = filter_bits(slot::tag(word));
        let [one, other] = level.pair(hash);
        let (one, other) = (self.line(guard, level, one)?, self.line(guard, level, other)?);
        // The bucket that is emptier according to the filters comes first.
        let load = |filter: u64| (filter & !(super::levels::TOUCHED | DRAINED)).count_ones();
        let filters = [one, other].map(|line| line.filter.load(self.seam(), Ordering::Relaxed));
        let lines = if load(filters[0]) <= load(filters[1]) { [one, other] } else { [other, one] };
        for line in lines {
            if let Some((place, index)) = self.claim_slot(line.bucket, line.filter, bits, word, at)
            {
                if index + 2 >= super::layout::SLOTS {
                    level.crowded.fetch_add(self.seam(), 1, Ordering::Relaxed);
                }
                return Ok(Some(place));
            }
        }
        let group = level.group(hash);
        let filter = self.chain_filter(guard, level, group)?;
        if filter.load(self.seam(), Ordering::SeqCst) & !super::levels::TOUCHED == 0 {
            return Ok(None);
        }
        for node in self.nodes_to_use(level, group) {
            for bucket in self.node_buckets(node?) {
                if let Some((place, _)) = self.claim_slot(bucket, filter, bits, word, at) {
                    return Ok(Some(place));
                }
            }
        }
        Ok(None)
    }

    #[inline(always)]
    fn claim_slot<'g>(
        &'g self,
        bucket: &'g Bucket,
        filter: &SharedWord,
        bits: u64,
        word: u64,
        at: &'static Point,
    ) -> Option<(&'g Word, usize)> {
        for (index, place) in bucket.slots.iter().enumerate() {
            if self.look(place) == slot::EMPTY {
                // The filter's bits are set before the slot gets the word. So a thread that reads
                // the filter without the bits has read it before the record was there.
                self.set_filter(filter, bits);
                if self.exchange(place, slot::EMPTY, word, at).is_ok() {
                    return Some((place, index));
                }
            }
        }
        None
    }

    /// Decides an announced insert of this key. Returns whether it has won.
    ///
    /// Each insert announces before it searches, so of two announcements, at least one is seen by
    /// the other insert's search. A thread that sees another announcement decides between the two
    /// by priority and kills the weaker. Then it decides the stronger in place of its inserter,
    /// which may have stopped. So no thread waits, and at most one of the announced inserts wins.
    #[inline(always)]
    fn decide(&self, guard: &Guard<'_, S>, key: HashedKey<'_, R>, mine: u64) -> Result<bool> {
        let mut target = mine;
        loop {
            let rival = match self.seeded(&index_bugs::INSERT_UNCHECKED) {
                true => Rival::Nothing,
                false => self.rival(guard, key, target)?,
            };
            match rival {
                Rival::Nothing => {
                    self.settle(target, state::LIVE)?;
                    break;
                }
                Rival::InEffect => {
                    self.settle(target, state::KILLED)?;
                    break;
                }
                Rival::Stronger(other) if self.seeded(&bugs::RIVAL_AWAITED) => {
                    let (mut turn, head) = (0, self.head(other)?);
                    while state::kind(self.state(other, head)?) == state::UNDECIDED {
                        self.core.memory.seam().wait(&mut turn);
                    }
                }
                Rival::Stronger(other) => {
                    self.settle(target, state::KILLED)?;
                    target = other;
                }
            }
        }
        // Any other thread that saw this insert may have decided it first, either way. If the
        // insert has won, its record may have been replaced or removed since, so any state but
        // KILLED means that it has won.
        Ok(state::kind(self.state(mine, self.head(mine)?)?) != state::KILLED)
    }

    /// Changes a record's state to `kind`, `LIVE` or `KILLED`, if it is still undecided.
    pub(super) fn settle(&self, offset: u64, kind: u64) -> Result<(), Damage> {
        let head = self.head(offset)?;
        let word = self.state(offset, head)?;
        if state::kind(word) == state::UNDECIDED {
            let decided = state::with_kind(word, kind);
            let _ = self.exchange(&head.state, word, decided, &points::DECIDE);
        }
        Ok(())
    }

    /// Returns what prevents an announced insert of this key from becoming live. Kills weaker
    /// inserts.
    #[inline(always)]
    fn rival(&self, guard: &Guard<'_, S>, key: HashedKey<'_, R>, target: u64) -> Result<Rival> {
        let HashedKey { key, hash } = key;
        let rival = self.search(guard, hash, |place, mut word| {
            while slot::is_link(word) && slot::tag(word) == tag_of(hash) {
                // A slot marked as a copy does not count, because another slot leads to its record
                // too.
                if slot::mark(word) == slot::COPY || slot::offset(word) == target {
                    break;
                }
                if slot::mark(word) != slot::ANNOUNCED {
                    let met = self.meet(place, word, key)?;
                    return Ok(met.map(|_| Rival::InEffect));
                }
                match self.rival_announced(place, word, key, target)? {
                    Some(rival) => return Ok(rival),
                    // The announced insert was decided meanwhile, so its slot has to be read again.
                    None => word = self.look(place),
                }
            }
            Ok(None)
        })?;
        Ok(rival.unwrap_or(Rival::Nothing))
    }

    /// Does what [`rival`](Self::rival) does, for one announced record. `None` if the slot must be
    /// read again.
    #[cold]
    fn rival_announced(
        &self,
        place: &Word,
        word: u64,
        key: R::Key<'_>,
        target: u64,
    ) -> Result<Option<Option<Rival>>> {
        let offset = slot::offset(word);
        let head = self.head(offset)?;
        let found = self.state(offset, head)?;
        let kind = state::kind(found);
        if kind == state::KILLED {
            return Ok(Some(None));
        }
        if kind == state::LIVE || kind == state::UNDECIDED {
            let body = self.body(offset, found)?;
            if !R::has_key(&self.core.memory, body, key) {
                return Ok(Some(None));
            }
        }
        if kind != state::UNDECIDED {
            // The announced insert has won. Make it take effect before anything depends on it.
            let pending = slot::with_mark(word, slot::PENDING);
            let _ = self.exchange(place, word, pending, &points::MET_DECIDED);
            return Ok(None);
        }
        if self.priority(offset)? < self.priority(target)? {
            return Ok(Some(Some(Rival::Stronger(offset))));
        }
        let killed = state::with_kind(found, state::KILLED);
        match self.exchange(&head.state, found, killed, &points::DECIDE) {
            Ok(_) => Ok(Some(None)),
            Err(_) => Ok(None),
        }
    }

    /// Returns a record's priority. The smaller of two is the stronger.
    fn priority(&self, offset: u64) -> Result<(u64, u64), Damage> {
        let seal = self.core.memory.load(&self.head(offset)?.seal);
        Ok((seal >> 32, offset))
    }
}
