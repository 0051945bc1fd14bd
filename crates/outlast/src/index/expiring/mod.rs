//! Maps whose records expire: one layer above all schemes.
//!
//! The layer is an [`Index`] of byte strings above another one. What the lower index stores as the value of
//! a key begins with the time at which the record expires:
//!
//! ```text
//!  0                                8
//! +--------------------------------+------------------+
//! | nanoseconds since 1970, or MAX | the value     0..|
//! +--------------------------------+------------------+
//! ```
//!
//! *Expiry is a removal.* An operation that finds a record whose time has passed removes it before it
//! goes on: it compares time and value, and removes the record if it still has both. Only then does it
//! report the key as absent. So:
//!
//! - A record that was seen absent is gone. It cannot come back, whatever the clock, a crash or another
//!   thread does. A change that was decided while the record was alive compares what it has read when it
//!   is made, and fails.
//! - Each operation takes effect where the lower index makes its change or its read, as in a map without
//!   expiry. A removal of an expired record takes effect just before it. An operation may replace an expired
//!   record in one step, which is both.
//! - What a crash leaves is what it leaves of the lower index. Times are parts of values.
//!
//! *The time of an operation* is what the clock shows at one moment during the call. So an operation that
//! begins after a record's time does not find the record, if the clock does not go back.
//!
//! In a pool that is open for reading only, nothing is removed, and expired records are left out.
//!
//! *Changes* are read, decided and then made if the record is still as it was read, as those of
//! [`Map::alter`](crate::Map::alter). An insert, a put and a removal need no reading first.
//!
//! *The sweep* goes through the map in the background, part by part, and removes what has expired, in the same
//! way: a record that was renewed meanwhile is not the one that it compares with. It runs only while some
//! record may have expired, and less often if it finds little.

mod count;
mod evict;
mod ops;
mod row;
mod sweep;

use super::{Bytes, Care, Change, Changed, Index, Previous, Verdict};
use crate::error::{Boxed, Damage, Error, Result};
use crate::pmem::Seam;
use crate::pool::clock::NEVER;
use crate::pool::core::{Core, root_offset};
use crate::pool::layout::{MAX_VALUE_BYTES, TIME_BYTES};
use count::Count;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use sweep::Sweep;

pub use count::Counted;

crate::pmem::seeded_bugs! {
    /// A batch of lookups returns records that have expired.
    EXPIRED_FOUND = "ExpiredFound";
    /// Scans return records that have expired.
    EXPIRED_SCANNED = "ExpiredScanned";
    /// A compare-and-swap replaces a record that has expired.
    EXPIRED_SWAPPED = "ExpiredSwapped";
    /// A lookup reports an expired record as absent, and leaves it there.
    EXPIRED_LEFT = "ExpiredLeft";
    /// The sweep does not compare the record that it removes with the one that has expired.
    SWEPT_UNCOMPARED = "SweptUncompared";
    /// An update makes the record one that never expires.
    TIME_LOST = "TimeLost";
}

/// A record's time and its value.
pub type Timed<'v> = (u64, &'v [u8]);

/// The part of the interface that only expiring indexes have. Times are nanoseconds since 1970, or
/// [`NEVER`].
pub trait ExpiringIndex: Send + Sync {
    /// Returns the index below, whose values begin with their times.
    fn stored(&self) -> &dyn Index<Bytes>;

    /// Puts a value as it is stored, with its time.
    fn put_stored(&self, key: &[u8], stored: &[u8]) -> Result<()>;

    /// Returns what to store for a value in place of `before`, as it was stored: the value with this
    /// time, or, without one, with the time that the record has.
    fn stored_value(
        &self,
        time: Option<u64>,
        value: &[u8],
        before: Option<&[u8]>,
    ) -> Result<Vec<u8>>;

    /// Returns the time and the value of a key.
    fn get_timed(&self, key: &[u8]) -> Boxed<Option<(u64, Vec<u8>)>>;

    /// Puts a value with a time; see [`Change::Put`]. If the time has passed, removes the key.
    fn put_timed(
        &self,
        key: &[u8],
        time: u64,
        value: &[u8],
        before: Previous<Bytes>,
    ) -> Boxed<Changed<Bytes>>;

    /// Puts a value with a time and a mark; see
    /// [`EvictingIndex::put_marked`](super::EvictingIndex::put_marked). If the time has passed, removes the
    /// key. Returns whether the key had a record, expired or not.
    fn put_marked(&self, key: &[u8], time: u64, value: &[u8], mark: u32) -> Boxed<bool>;

    /// Removes a record with this hash, expired or not, if `decide` says so for its mark; see
    /// [`EvictingIndex::evict`](super::EvictingIndex::evict). Returns whether it did.
    fn evict(&self, hash: u64, decide: &mut dyn FnMut(u32) -> Verdict) -> Boxed<bool>;

    /// Counts the records and the space that they take from now on. The caller holds the gate. Takes time
    /// linear in the number of records, but reads few of them.
    fn begin_to_count(&self) -> Result<()>;

    /// Returns what is [counted](Self::begin_to_count), exactly.
    fn counted(&self) -> Counted;

    /// Tells how much is to be counted at most, so that threads share no counter while they replace records.
    fn bound_count(&self, records: u64, bytes: u64);

    /// Returns at least what is counted and [reserved](Self::reserve), and at most 0.4% of the
    /// [bound](Self::bound_count) more.
    fn counted_at_most(&self) -> Counted;

    /// Reserves `records` more (gives them up, if negative), each of which counts as `weight`.
    fn reserve(&self, records: i64, weight: u64);

    /// Returns the space that a record of a key and a value of these lengths counts as, in bytes.
    fn weight(&self, key: usize, value: usize) -> u64;

    /// Replaces time and value of a key if they are `before`, which an earlier call has returned.
    /// Returns whether they are. `None` stands for an absent key. A time that has passed removes the key.
    fn exchange(
        &self,
        key: &[u8],
        before: Option<Timed<'_>>,
        after: Option<Timed<'_>>,
    ) -> Boxed<bool>;
}

/// An index whose records expire; see the module's documentation.
pub struct Expiring<S: Seam> {
    core: Arc<Core<S>>,
    /// The offset of the map's root.
    root: u64,
    stored: Box<dyn Index<Bytes>>,
    /// No record has an earlier time than this, except perhaps those that the sweep passes right now.
    earliest: AtomicU64,
    sweep: Mutex<Sweep>,
    count: Count,
}

/// What becomes of a record.
enum Next<'v> {
    /// The change does not apply.
    Keep,
    Store(u64, &'v [u8]),
    Remove,
}

/// Returns a value as it is stored.
fn join(time: u64, value: &[u8]) -> Vec<u8> {
    let mut stored = Vec::with_capacity(TIME_BYTES + value.len());
    stored.extend_from_slice(&time.to_le_bytes());
    stored.extend_from_slice(value);
    stored
}

fn strip(mut stored: Vec<u8>) -> Vec<u8> {
    stored.drain(..TIME_BYTES);
    stored
}

/// Checks the length of the new value of a change, if it has one.
fn check_new(change: Change<'_, Bytes>) -> Result<()> {
    match change {
        Change::Insert(new) | Change::Put(new) | Change::Update(new) => check_len(new),
        Change::Swap { new, .. } => check_len(new),
        Change::Remove | Change::CompareRemove(_) => Ok(()),
    }
}

fn check_len(value: &[u8]) -> Result<()> {
    let max = MAX_VALUE_BYTES - TIME_BYTES;
    if value.len() > max { Err(Error::ValueTooLarge { len: value.len(), max }) } else { Ok(()) }
}

impl<S: Seam> Expiring<S> {
    /// Wraps the index of the map whose root is in this slot.
    pub fn new(core: Arc<Core<S>>, slot: usize, stored: Box<dyn Index<Bytes>>) -> Self {
        let root = root_offset(slot).raw();
        // What the map holds is not known before the first pass.
        let earliest = AtomicU64::new(0);
        Expiring {
            core,
            root,
            stored,
            earliest,
            sweep: Mutex::new(Sweep::new()),
            count: Count::default(),
        }
    }

    fn now(&self) -> u64 {
        self.core.options().clock.now()
    }

    /// Returns whether a time has passed. The clock is read only if the record can expire.
    fn has_passed(&self, time: u64) -> bool {
        time != NEVER && time <= self.now()
    }

    fn split<'v>(&self, stored: &'v [u8]) -> Result<Timed<'v>, Damage> {
        match stored.split_first_chunk() {
            Some((time, value)) => Ok((u64::from_le_bytes(*time), value)),
            None => Err(self.untimed(stored.len())),
        }
    }

    #[cold]
    fn untimed(&self, len: usize) -> Damage {
        let expected = "a time before each value of the map with this root";
        Damage::new(self.root, expected, format!("{len} bytes"))
    }

    /// Removes a record that has expired, if it is as it was read. Returns whether the key is then absent
    /// for the caller.
    #[cold]
    fn bury(&self, key: &[u8], stored: &[u8]) -> Boxed<bool> {
        // Nobody changes a pool that is open for reading only.
        if self.core.options().read_only || self.core.memory.seam().seeded(&EXPIRED_LEFT) {
            return Ok(true);
        }
        let change = Change::CompareRemove(stored);
        let removed = self.apply(key, change, Previous::UNWANTED)?.applied;
        self.count.note_expired(removed);
        Ok(removed)
    }

    /// Returns the record of a key as it is stored, if it has not expired.
    fn read(&self, key: &[u8]) -> Boxed<Option<Vec<u8>>> {
        loop {
            let Some(stored) = self.stored.get(key)? else { return Ok(None) };
            if !self.has_passed(self.split(&stored)?.0) {
                return Ok(Some(stored));
            }
            if self.bury(key, &stored)? {
                return Ok(None);
            }
        }
    }

    /// Makes a change that depends on what is there. `decide` gets time and value of a record that has not
    /// expired.
    fn decide<'v>(
        &self,
        key: &[u8],
        before: Previous<Bytes>,
        decide: impl Fn(Option<Timed<'_>>) -> Next<'v>,
    ) -> Boxed<Changed<Bytes>> {
        loop {
            let found = self.stored.get(key)?;
            let mut live = found.as_deref().map(|stored| self.split(stored)).transpose()?;
            live = live.filter(|(time, _)| !self.has_passed(*time));
            let previous = match live {
                Some((_, value)) => before.take(|| Ok(value.to_vec()))?,
                None => None,
            };
            let change = |change| self.apply(key, change, Previous::UNWANTED);
            let next = decide(live);
            let applied = !matches!(next, Next::Keep);
            let done = match (next, found.as_deref()) {
                (Next::Keep | Next::Remove, None) => true,
                (Next::Keep, Some(_)) if live.is_some() => true,
                (Next::Keep, Some(stored)) => self.bury(key, stored)?,
                (Next::Store(time, value), None) => {
                    let done = change(Change::Insert(&*join(time, value)))?.applied;
                    self.expect(time);
                    done
                }
                (Next::Store(time, value), Some(expected)) => {
                    let done = change(Change::Swap { expected, new: &*join(time, value) })?.applied;
                    self.expect(time);
                    done
                }
                (Next::Remove, Some(expected)) => change(Change::CompareRemove(expected))?.applied,
            };
            if done {
                return Ok(Changed { applied, before: previous, present: live.is_some() });
            }
        }
    }

    /// Returns what a change does with what it finds.
    fn next<'v>(&self, change: Change<'v, Bytes>, live: Option<Timed<'_>>) -> Next<'v> {
        let seam = self.core.memory.seam();
        match (change, live) {
            (Change::Insert(value), None) | (Change::Put(value), _) => Next::Store(NEVER, value),
            (Change::Update(value), Some(_)) if seam.seeded(&TIME_LOST) => {
                Next::Store(NEVER, value)
            }
            (Change::Update(value), Some((time, _))) => Next::Store(time, value),
            (Change::Swap { expected, new }, Some((time, value))) if value == expected => {
                Next::Store(time, new)
            }
            (Change::Remove, Some(_)) => Next::Remove,
            (Change::CompareRemove(expected), Some((_, value))) if value == expected => {
                Next::Remove
            }
            _ => Next::Keep,
        }
    }

    /// See [`Index::change`].
    fn change_one(
        &self,
        key: &[u8],
        change: Change<'_, Bytes>,
        before: Previous<Bytes>,
    ) -> Boxed<Changed<Bytes>> {
        check_new(change)?;
        match change {
            Change::Put(value) => return self.put(key, NEVER, value, before),
            Change::Remove => return self.remove(key, before),
            Change::Insert(value) => {
                let new = join(NEVER, value);
                let done = self.apply(key, Change::Insert(&*new), Previous::UNWANTED)?;
                if done.applied {
                    return Ok(done);
                }
            }
            Change::Swap { expected, new } if self.core.memory.seam().seeded(&EXPIRED_SWAPPED) => {
                return self.swap_expired(key, expected, new);
            }
            _ => {}
        }
        self.decide(key, before, |live| self.next(change, live))
    }

    /// What [`EXPIRED_SWAPPED`] does.
    #[cold]
    fn swap_expired(&self, key: &[u8], expected: &[u8], new: &[u8]) -> Boxed<Changed<Bytes>> {
        let Some(old) = self.stored.get(key)? else {
            return Ok(Changed { applied: false, before: None, present: false });
        };
        let (time, value) = self.split(&old)?;
        let applied = value == expected;
        if applied {
            let change = Change::Swap { expected: &*old, new: &*join(time, new) };
            self.apply(key, change, Previous::UNWANTED)?;
        }
        Ok(Changed { applied, before: None, present: true })
    }

    /// Returns the result of a change that was made whatever was there. `now` is from before the change.
    fn replaced(
        &self,
        now: u64,
        done: Changed<Bytes>,
        before: Previous<Bytes>,
    ) -> Boxed<(bool, Option<Vec<u8>>)> {
        let Some(stored) = done.before else { return Ok((false, None)) };
        let live = self.split(&stored)?.0 > now;
        Ok((live, (live && before.wanted).then(|| strip(stored))))
    }

    fn put(
        &self,
        key: &[u8],
        time: u64,
        value: &[u8],
        before: Previous<Bytes>,
    ) -> Boxed<Changed<Bytes>> {
        if before.check.is_some() {
            // The value before must be checked before it is replaced.
            return self.decide(key, before, |_| Next::Store(time, value));
        }
        let (now, new) = (self.now(), join(time, value));
        let done = self.apply(key, Change::Put(&*new), Previous::WANTED)?;
        self.expect(time);
        let (present, before) = self.replaced(now, done, before)?;
        Ok(Changed { applied: true, before, present })
    }

    fn remove(&self, key: &[u8], before: Previous<Bytes>) -> Boxed<Changed<Bytes>> {
        if before.check.is_some() {
            return self.decide(key, before, |live| match live {
                Some(_) => Next::Remove,
                None => Next::Keep,
            });
        }
        let now = self.now();
        let done = self.apply(key, Change::Remove, Previous::WANTED)?;
        let (present, before) = self.replaced(now, done, before)?;
        Ok(Changed { applied: present, before, present })
    }

    /// Keeps those of the records in `out`, from number `first` on, that have not expired, and takes their
    /// times off, unless `timed` is set.
    fn filter(
        &self,
        out: &mut Vec<(Vec<u8>, Vec<u8>)>,
        first: usize,
        care: Care,
        timed: bool,
        lost: &mut Vec<Damage>,
    ) -> Result<()> {
        let (now, mut kept) = (self.now(), first);
        for number in first..out.len() {
            let (key, stored) = &mut out[number];
            let passed = match self.split(stored) {
                Ok((time, _)) => time <= now,
                Err(damage) if care == Care::Salvage => {
                    lost.push(damage);
                    continue;
                }
                Err(damage) => return Err(damage.into()),
            };
            if passed && !self.core.memory.seam().seeded(&EXPIRED_SCANNED) {
                // A salvage leaves the pool as it is.
                if care == Care::Salvage || self.bury(key, stored)? {
                    continue;
                }
                // It was changed meanwhile.
                match self.read(key)? {
                    Some(changed) => *stored = changed,
                    None => continue,
                }
            }
            if !timed {
                *stored = strip(std::mem::take(stored));
            }
            out.swap(kept, number);
            kept += 1;
        }
        out.truncate(kept);
        Ok(())
    }
}

impl<S: Seam> ExpiringIndex for Expiring<S> {
    fn put_marked(&self, key: &[u8], time: u64, value: &[u8], mark: u32) -> Boxed<bool> {
        self.put_with_mark(key, time, value, mark)
    }

    fn evict(&self, hash: u64, decide: &mut dyn FnMut(u32) -> Verdict) -> Boxed<bool> {
        self.evict_counted(hash, decide)
    }

    fn begin_to_count(&self) -> Result<()> {
        self.count_all()
    }

    fn counted(&self) -> Counted {
        self.count.now()
    }

    fn bound_count(&self, records: u64, bytes: u64) {
        self.count.set_bound(records, bytes);
    }

    fn counted_at_most(&self) -> Counted {
        self.count.at_most()
    }

    fn reserve(&self, records: i64, weight: u64) {
        self.count.reserve(records, records * weight.cast_signed());
    }

    fn weight(&self, key: usize, value: usize) -> u64 {
        self.weight_of(key, TIME_BYTES + value)
    }

    fn stored(&self) -> &dyn Index<Bytes> {
        &*self.stored
    }

    fn put_stored(&self, key: &[u8], stored: &[u8]) -> Result<()> {
        let (time, _) = self.split(stored)?;
        self.apply(key, Change::Put(stored), Previous::WANTED)?;
        self.expect(time);
        Ok(())
    }

    fn stored_value(
        &self,
        time: Option<u64>,
        value: &[u8],
        before: Option<&[u8]>,
    ) -> Result<Vec<u8>> {
        check_len(value)?;
        let has = before.map(|stored| self.split(stored)).transpose()?.map(|(time, _)| time);
        let kept = || has.filter(|time| !self.has_passed(*time)).unwrap_or(NEVER);
        Ok(join(time.unwrap_or_else(kept), value))
    }

    fn get_timed(&self, key: &[u8]) -> Boxed<Option<(u64, Vec<u8>)>> {
        let Some(stored) = self.read(key)? else { return Ok(None) };
        Ok(Some((self.split(&stored)?.0, strip(stored))))
    }

    fn put_timed(
        &self,
        key: &[u8],
        time: u64,
        value: &[u8],
        before: Previous<Bytes>,
    ) -> Boxed<Changed<Bytes>> {
        check_len(value)?;
        if self.has_passed(time) {
            return self.remove(key, before);
        }
        self.put(key, time, value, before)
    }

    fn exchange(
        &self,
        key: &[u8],
        before: Option<Timed<'_>>,
        after: Option<Timed<'_>>,
    ) -> Boxed<bool> {
        let time = after.map_or(NEVER, |(time, _)| time);
        let after = match after {
            Some((time, value)) => {
                check_len(value)?;
                Some(join(time, value)).filter(|_| !self.has_passed(time))
            }
            None => None,
        };
        let before = before.map(|(time, value)| join(time, value));
        let change = match (before.as_deref(), after.as_deref()) {
            (before, after) if before == after => return Ok(true),
            (None, Some(new)) => Change::Insert(new),
            (Some(expected), Some(new)) => Change::Swap { expected, new },
            (Some(expected), None) => Change::CompareRemove(expected),
            (None, None) => return Ok(true),
        };
        let applied = self.apply(key, change, Previous::UNWANTED)?.applied;
        self.expect(time);
        Ok(applied)
    }
}
