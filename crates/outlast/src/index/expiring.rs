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

use super::record::RecordRef;
use super::{
    Bytes, Care, Change, Changed, Cursor, Growth, Index, IndexStats, KeyRange, OrderedIndex,
    Previous, Scheme, Verified, Visitor,
};
use crate::error::{Boxed, Damage, Error, Result};
use crate::pmem::Seam;
use crate::pool::clock::{NEVER, SECOND};
use crate::pool::core::{Core, root_offset};
use crate::pool::layout::{MAX_VALUE_BYTES, TIME_BYTES};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};

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

/// The shortest time between two passes of the sweep.
const PAUSE: u64 = SECOND;
/// The longest one, after passes that found little.
const PAUSE_MAX: u64 = 64 * SECOND;
/// A pass that removes less than one record in this many doubles the time until the next one.
const FEW: u64 = 16;

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
}

/// Where the sweep is.
struct Sweep {
    /// The position of a pass under way. It is absent while a thread does a step.
    cursor: Option<Cursor>,
    /// Records of this pass that the sweep has looked at, and those that it has removed.
    seen: u64,
    removed: u64,
    /// The earliest time of those that it has left.
    earliest: u64,
    /// When the next pass may begin, and the time between passes.
    next: u64,
    pause: u64,
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

fn check_len(value: &[u8]) -> Result<()> {
    let max = MAX_VALUE_BYTES - TIME_BYTES;
    if value.len() > max { Err(Error::ValueTooLarge { len: value.len(), max }) } else { Ok(()) }
}

impl<S: Seam> Expiring<S> {
    /// Wraps the index of the map whose root is in this slot.
    pub fn new(core: Arc<Core<S>>, slot: usize, stored: Box<dyn Index<Bytes>>) -> Self {
        let sweep = Sweep {
            cursor: Some(Cursor::start()),
            seen: 0,
            removed: 0,
            earliest: NEVER,
            next: 0,
            pause: PAUSE,
        };
        let root = root_offset(slot).raw();
        // What the map holds is not known before the first pass.
        let earliest = AtomicU64::new(0);
        Expiring { core, root, stored, earliest, sweep: Mutex::new(sweep) }
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
        Ok(self.stored.change(key, change, Previous::UNWANTED)?.applied)
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

    /// Remembers that a record with this time was stored.
    fn expect(&self, time: u64) {
        if time == NEVER {
            return;
        }
        // Pairs with the fence in `sweep_part`: a pass that begins finds the record, or this load finds what
        // the pass has stored.
        fence(Ordering::SeqCst);
        if time < self.earliest.load(Ordering::Relaxed) {
            self.earliest.fetch_min(time, Ordering::Relaxed);
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
            let change = |change| self.stored.change(key, change, Previous::UNWANTED);
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
        let done = self.stored.change(key, Change::Put(&*new), Previous::WANTED)?;
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
        let done = self.stored.change(key, Change::Remove, Previous::WANTED)?;
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

    // ---- The sweep ----------------------------------------------------------------

    /// Returns whether the sweep has something to do.
    fn is_due(&self) -> bool {
        let earliest = self.earliest.load(Ordering::Relaxed);
        let sweep = self.core.memory.seam().lock(&self.sweep);
        let under_way = sweep.cursor.as_ref().is_some_and(|cursor| *cursor != Cursor::start());
        if under_way || sweep.cursor.is_none() {
            return sweep.cursor.is_some();
        }
        let now = self.now();
        // A clock that went back does not stop the sweep for longer than its longest pause.
        earliest <= now && (sweep.next <= now || sweep.next - now > PAUSE_MAX)
    }

    /// Sweeps the next part of the map. Returns whether there is more to sweep.
    fn sweep_part(&self) -> Result<bool> {
        let seam = self.core.memory.seam();
        let Some(mut cursor) = seam.lock(&self.sweep).cursor.take() else { return Ok(false) };
        if cursor == Cursor::start() {
            // Times that are put from now on count for the next pass.
            self.earliest.store(NEVER, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        let swept = self.sweep_at(&mut cursor);
        let mut sweep = seam.lock(&self.sweep);
        let (more, failed) = match &swept {
            Ok((seen, removed, earliest)) => {
                sweep.seen += seen;
                sweep.removed += removed;
                sweep.earliest = sweep.earliest.min(*earliest);
                (!cursor.is_done(), false)
            }
            Err(_) => (false, true),
        };
        if more {
            sweep.cursor = Some(cursor);
            return Ok(true);
        }
        let few = failed || sweep.removed * FEW < sweep.seen;
        let pause = if few { (2 * sweep.pause).min(PAUSE_MAX) } else { PAUSE };
        // What a pass that has failed left is not known.
        self.expect(if failed { 0 } else { sweep.earliest });
        let next = self.now().saturating_add(pause);
        let cursor = Some(Cursor::start());
        *sweep = Sweep { cursor, seen: 0, removed: 0, earliest: NEVER, next, pause };
        swept.map(|_| false)
    }

    /// Sweeps one part. Returns how many records it has seen and removed, and the earliest time of the
    /// others.
    fn sweep_at(&self, cursor: &mut Cursor) -> Result<(u64, u64, u64)> {
        let mut records = Vec::new();
        self.stored.scan(cursor, &mut records)?;
        let (now, mut removed, mut earliest) = (self.now(), 0, NEVER);
        for (key, stored) in &records {
            // A record without a time is found by whoever reads it.
            let Ok((time, _)) = self.split(stored) else { continue };
            if time > now {
                earliest = earliest.min(time);
            } else if self.core.memory.seam().seeded(&SWEPT_UNCOMPARED) {
                self.stored.change(key, Change::Remove, Previous::UNWANTED)?;
            } else {
                removed += u64::from(self.bury(key, stored)?);
            }
        }
        Ok((records.len() as u64, removed, earliest))
    }
}

impl<S: Seam> ExpiringIndex for Expiring<S> {
    fn stored(&self) -> &dyn Index<Bytes> {
        &*self.stored
    }

    fn put_stored(&self, key: &[u8], stored: &[u8]) -> Result<()> {
        let (time, _) = self.split(stored)?;
        self.stored.change(key, Change::Put(stored), Previous::UNWANTED)?;
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
        let applied = self.stored.change(key, change, Previous::UNWANTED)?.applied;
        self.expect(time);
        Ok(applied)
    }
}

impl<S: Seam> Index<Bytes> for Expiring<S> {
    fn scheme(&self) -> Scheme {
        self.stored.scheme()
    }

    fn get(&self, key: &[u8]) -> Boxed<Option<Vec<u8>>> {
        Ok(self.read(key)?.map(strip))
    }

    fn contains(&self, key: &[u8]) -> Boxed<bool> {
        Ok(self.get_ref(key)?.is_some())
    }

    fn get_ref(&self, key: &[u8]) -> Boxed<Option<RecordRef<'_>>> {
        loop {
            let Some(mut record) = self.stored.get_ref(key)? else { return Ok(None) };
            if record.len() < TIME_BYTES {
                return Err(self.untimed(record.len()).into());
            }
            let mut time = [0; TIME_BYTES];
            record.read_at(0, &mut time)?;
            if !self.has_passed(u64::from_le_bytes(time)) {
                record.skip(TIME_BYTES);
                return Ok(Some(record));
            }
            drop(record);
            if self.read(key)?.is_none() {
                return Ok(None);
            }
        }
    }

    fn get_many(&self, keys: &[&[u8]], found: &mut [Option<Vec<u8>>]) -> Result<()> {
        self.stored.get_many(keys, found)?;
        for (key, found) in keys.iter().zip(found) {
            let Some(stored) = found else { continue };
            let passed = self.has_passed(self.split(stored)?.0);
            *found = if passed && !self.core.memory.seam().seeded(&EXPIRED_FOUND) {
                self.get(key)?
            } else {
                found.take().map(strip)
            };
        }
        Ok(())
    }

    fn record_bytes(&self, key: &[u8], value: &[u8]) -> u64 {
        self.stored.record_bytes(key, &join(NEVER, value))
    }

    fn change(
        &self,
        key: &[u8],
        change: Change<'_, Bytes>,
        before: Previous<Bytes>,
    ) -> Boxed<Changed<Bytes>> {
        let time_of = |time| if self.core.memory.seam().seeded(&TIME_LOST) { NEVER } else { time };
        match change {
            Change::Insert(value) => {
                check_len(value)?;
                let new = join(NEVER, value);
                let done = self.stored.change(key, Change::Insert(&*new), Previous::UNWANTED)?;
                if done.applied {
                    return Ok(done);
                }
                self.decide(key, before, |live| match live {
                    Some(_) => Next::Keep,
                    None => Next::Store(NEVER, value),
                })
            }
            Change::Put(value) => {
                check_len(value)?;
                self.put(key, NEVER, value, before)
            }
            Change::Update(value) => {
                check_len(value)?;
                self.decide(key, before, |live| match live {
                    Some((time, _)) => Next::Store(time_of(time), value),
                    None => Next::Keep,
                })
            }
            Change::Swap { expected, new } => {
                check_len(new)?;
                if self.core.memory.seam().seeded(&EXPIRED_SWAPPED) {
                    let Some(old) = self.stored.get(key)? else {
                        return Ok(Changed { applied: false, before: None, present: false });
                    };
                    let (time, value) = self.split(&old)?;
                    let applied = value == expected;
                    if applied {
                        let change = Change::Swap { expected: &*old, new: &*join(time, new) };
                        self.stored.change(key, change, Previous::UNWANTED)?;
                    }
                    return Ok(Changed { applied, before: None, present: true });
                }
                self.decide(key, before, |live| match live {
                    Some((time, value)) if value == expected => Next::Store(time, new),
                    _ => Next::Keep,
                })
            }
            Change::Remove => self.remove(key, before),
            Change::CompareRemove(expected) => self.decide(key, before, |live| match live {
                Some((_, value)) if value == expected => Next::Remove,
                _ => Next::Keep,
            }),
        }
    }

    fn change_many(
        &self,
        keys: &[&[u8]],
        changes: &[Change<'_, Bytes>],
        done: &mut Vec<Changed<Bytes>>,
    ) -> Result<()> {
        for (key, change) in keys.iter().zip(changes) {
            done.push(self.change(key, *change, Previous::UNWANTED)?);
        }
        Ok(())
    }

    fn scan(&self, cursor: &mut Cursor, out: &mut Vec<(Vec<u8>, Vec<u8>)>) -> Result<()> {
        let first = out.len();
        if cursor.care == Care::Keys {
            // The times are in the values.
            cursor.care = Care::Trust;
        }
        self.stored.scan(cursor, out)?;
        self.filter(out, first, cursor.care, cursor.timed, &mut cursor.lost)
    }

    fn trace(&self, cursor: &mut Cursor, visit: &mut Visitor<'_>) -> Result<()> {
        self.stored.trace(cursor, visit)
    }

    fn has_work(&self) -> bool {
        self.stored.has_work() || self.is_due()
    }

    fn step(&self) -> Result<bool> {
        let more = self.stored.has_work() && self.stored.step()?;
        Ok((self.is_due() && self.sweep_part()?) | more)
    }

    fn use_huge_pages(&self) {
        self.stored.use_huge_pages();
    }

    fn len_estimate(&self) -> Result<u64> {
        self.stored.len_estimate()
    }

    fn stats(&self) -> Result<IndexStats> {
        self.stored.stats()
    }

    fn growth(&self) -> Growth {
        self.stored.growth()
    }

    fn verify(&self, visit: &mut Visitor<'_>) -> Result<Verified> {
        self.stored.verify(visit)
    }

    fn ordered(&self) -> Option<&dyn OrderedIndex<Bytes>> {
        self.stored.ordered().is_some().then_some(self as _)
    }

    fn expiring(&self) -> Option<&dyn ExpiringIndex> {
        Some(self)
    }
}

impl<S: Seam> OrderedIndex<Bytes> for Expiring<S> {
    fn next(
        &self,
        range: &mut KeyRange<Bytes>,
        reverse: bool,
        limit: usize,
        out: &mut Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Result<()> {
        let order = self.stored.ordered().expect("asked for by `ordered` alone");
        let first = out.len();
        if range.care == Care::Keys {
            range.care = Care::Trust;
        }
        order.next(range, reverse, limit, out)?;
        self.filter(out, first, range.care, false, &mut range.lost)
    }

    fn end(
        &self,
        mut range: KeyRange<Bytes>,
        reverse: bool,
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let order = self.stored.ordered().expect("asked for by `ordered` alone");
        loop {
            let Some((key, stored)) = order.end(range.clone(), reverse)? else { return Ok(None) };
            if !self.has_passed(self.split(&stored)?.0) {
                return Ok(Some((key, strip(stored))));
            }
            self.bury(&key, &stored)?;
            if self.core.options().read_only {
                let bound = if reverse { &mut range.high } else { &mut range.low };
                *bound = Bound::Excluded(key);
            }
        }
    }
}
