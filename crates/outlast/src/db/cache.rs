//! A cache: a map whose records expire, with a bound on what they take. The part that knows no types.
//!
//! # What is evicted
//!
//! The policy is S3-FIFO (Yang et al., SOSP 2023), by samples in place of queues. A record is *young* until it
//! was used since it was inserted, and *proved* from then on. If more than `YOUNG` of all records are young,
//! the oldest young records of a sample go. Otherwise, of its proved records that were not used since they were
//! last looked at, the oldest goes; those older than it lose one of their visits, and count as new. A young
//! record that is inserted again soon after its eviction is proved at once; *ghosts* remember its hash.
//!
//! A sample is what a few buckets of the table hold, at a hand that goes through it. The places of records in
//! a hash table are random, and so are the samples. The share of young records is a moving average over samples.
//! In this form, nothing but the records themselves has an order, so there is no queue to lock, to make durable
//! or to rebuild.
//!
//! # Where it is kept
//!
//! The *mark* of a record is the high half of the second word of its block, which is otherwise 0, and
//! which no checksum covers:
//!
//! ```text
//!  31      24 23   22   21      20             0
//! +----------+--------+--------+----------------+
//! |   0xc5   | visits | proved |     stamp      |     0: not marked yet
//! +----------+--------+--------+----------------+
//! ```
//!
//! The stamp counts insertions, in units of a small share of the cache. A lookup stores a mark only if the
//! record has less than three visits, so most lookups store nothing. Marks are in the mapping and survive the
//! death of the process without a flush. They are hints: whatever they are after a power loss, the cache
//! works. Ghosts and statistics are in memory, and begin anew with each opening.
//!
//! # The bound
//!
//! The layer of expiry counts what the records take, exactly ([`Counted`]). An insert reserves its own share, and
//! evicts records until that fits. Opening a cache reads the table's slots, once, to count them.

mod raw;

use super::expiry::after;
use super::open_map::OpenMap;
use super::raw::RawMap;
use crate::error::{Boxed, Error, Result};
use crate::index::record::RecordRef;
use crate::index::{Bytes, Care, Change, Counted, Cursor, ExpiringIndex, Index, Previous, Scheme};
use crate::pmem::Real;
use crate::pool::clock::NEVER;
use crate::pool::core::Core;
use crate::pool::threads::thread_number;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The share of young records above which young ones are evicted.
const YOUNG: f32 = 0.03;
/// What a sample counts in the moving average of that share.
const LATEST: f32 = 0.05;
/// The most young records that are evicted by one sample.
const YOUNG_TAKEN: usize = 8;
/// Buckets in a sample. The hand moves on by one of them.
const SAMPLE: usize = 3;
/// A record with this many visits is not marked again.
const VISITS_MAX: u32 = 3;
/// The most records that an insert evicts because the pool is full.
const EVICTED_MAX: u32 = 1_000;
/// Insertions of a whole cache in stamps.
const STAMPS: u64 = 1 << 16;
const STAMP_MASK: u32 = (1 << 21) - 1;
/// What a record is expected to take at least, to size what is kept in memory.
const LIKELY_BYTES: u64 = 256;

/// Options for [opening a cache](crate::Pool::cache).
///
/// ```
/// use outlast::CacheOptions;
/// use std::time::Duration;
///
/// let options = CacheOptions::bytes(1 << 30).live_for(Duration::from_secs(3_600));
/// ```
#[derive(Debug, Clone)]
pub struct CacheOptions {
    bytes: u64,
    records: u64,
    pub(crate) lives: Option<Duration>,
}

impl CacheOptions {
    /// A cache whose records take at most this many bytes. Each counts as the block that it takes, and
    /// 24 bytes for its slot.
    pub fn bytes(bytes: u64) -> Self {
        CacheOptions { bytes, records: u64::MAX, lives: None }
    }

    /// A cache of at most this many records.
    pub fn records(records: u64) -> Self {
        CacheOptions { bytes: u64::MAX, records, lives: None }
    }

    /// Makes the records that are inserted without a time expire after this time.
    #[must_use]
    pub fn live_for(mut self, duration: Duration) -> Self {
        self.lives = Some(duration);
        self
    }
}

/// What a cache did since it was opened, and what it holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Lookups that found a value.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Records that were evicted to make room.
    pub evictions: u64,
    /// Records that were removed because their time had passed.
    pub expired: u64,
    /// Records that the cache holds.
    pub records: u64,
    /// The space of these records, in bytes.
    pub bytes: u64,
}

/// A record's mark; see the module's documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    visits: u32,
    proved: bool,
    stamp: u32,
}

impl Mark {
    fn of(word: u32, now: u32) -> Mark {
        if word >> 24 != crate::index::record::MARKED {
            return Mark { visits: 0, proved: false, stamp: now };
        }
        Mark { visits: word >> 22 & 3, proved: word >> 21 & 1 == 1, stamp: word & STAMP_MASK }
    }

    fn word(self) -> u32 {
        crate::index::record::MARKED << 24
            | self.visits << 22
            | u32::from(self.proved) << 21
            | self.stamp & STAMP_MASK
    }

    /// How long ago the stamp was; 0 if it seems to be from the future.
    fn age(self, now: u32) -> u32 {
        let age = now.wrapping_sub(self.stamp) & STAMP_MASK;
        if age > STAMP_MASK / 2 { 0 } else { age }
    }
}

/// Counters of some threads.
#[derive(Default)]
#[repr(align(128))]
struct Stripe {
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Records that are to be evicted next, and where the hand is.
struct Evictor {
    hand: Cursor,
    /// The share of young records.
    young: f32,
    /// The keys, and whether the records were proved. The first to go is the last.
    queue: Vec<(Vec<u8>, bool)>,
}

/// What all handles of a cache share.
pub(crate) struct Bounded {
    bytes_max: AtomicU64,
    records_max: AtomicU64,
    /// What inserts under way have reserved.
    reserved: AtomicU64,
    inserting: AtomicU64,
    inserted: AtomicU64,
    /// Insertions between two stamps.
    unit: u64,
    evictor: Mutex<Evictor>,
    ghosts: Box<[AtomicU32]>,
    stripes: [Stripe; 16],
    evictions: AtomicU64,
    flights: Mutex<HashMap<Vec<u8>, Arc<Flight>>>,
}

/// A value that a thread is loading.
#[derive(Default)]
struct Flight {
    landed: Mutex<bool>,
    changed: Condvar,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these locks guard is valid at every moment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start() -> Cursor {
    Cursor::with_care(Care::Keys)
}

/// A handle of a cache, whatever its types.
#[doc(hidden)]
#[derive(Clone)]
pub struct RawCache {
    map: RawMap,
    kept: Arc<Bounded>,
}

impl RawCache {
    pub(crate) fn open(map: RawMap, options: &CacheOptions) -> Result<RawCache> {
        let scheme = map.info().scheme();
        if scheme != Scheme::DashEh || !map.info().expires {
            let why = format!("{:?} is a map that is no cache", map.info().name);
            return Err(Error::Invalid { what: "cache", why });
        }
        if options.bytes == 0 || options.records == 0 {
            return Err(Error::Invalid { what: "cache", why: "it has no room".into() });
        }
        let core = Arc::clone(map.pool.store.core());
        let open: &OpenMap = &map.map;
        let kept = match open.cache.get() {
            Some(kept) => Arc::clone(kept),
            None => {
                if !core.options().read_only {
                    core.change_alone(|| open.expiring()?.begin_to_count())?;
                }
                let new = Bounded::new(options, open)?;
                Arc::clone(open.cache.get_or_init(|| Arc::new(new)))
            }
        };
        let kept = kept.downcast::<Bounded>().expect("only a cache is kept there");
        kept.bytes_max.store(options.bytes, Ordering::Relaxed);
        kept.records_max.store(options.records, Ordering::Relaxed);
        Ok(RawCache { map, kept })
    }

    /// When a record expires that is inserted now; `lives` is how long it lives.
    pub(crate) fn time_after(&self, lives: Option<Duration>) -> u64 {
        lives.map_or(NEVER, |lives| after(&self.map, lives))
    }

    fn core(&self) -> &Core<Real> {
        self.map.pool.store.core()
    }

    fn expiring(&self) -> Result<&dyn ExpiringIndex> {
        self.map.map.expiring()
    }

    fn index(&self) -> Result<&dyn Index<Bytes>> {
        self.map.map.bytes()
    }

    fn stripe(&self) -> &Stripe {
        &self.kept.stripes[thread_number() % self.kept.stripes.len()]
    }

    /// Returns the value of a key, and notes the visit. `counts` says whether the statistics count it.
    pub fn get(&self, key: &[u8], counts: bool) -> Result<Option<Vec<u8>>> {
        let found = match self.index()?.get_ref(key)? {
            Some(record) => {
                self.touch(&record);
                Some(record.to_vec()?)
            }
            None => None,
        };
        self.count(found.is_some(), counts);
        Ok(found)
    }

    /// Counts a lookup, if the statistics count it.
    fn count(&self, hit: bool, counts: bool) {
        if counts {
            let stripe = self.stripe();
            let counter = if hit { &stripe.hits } else { &stripe.misses };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn touch(&self, record: &RecordRef<'_>) {
        let mark = Mark::of(record.mark(), self.kept.now());
        if mark.visits < VISITS_MAX {
            record.set_mark(Mark { visits: mark.visits + 1, ..mark }.word());
        }
    }

    /// Puts a value that expires at `time`, and evicts others if there is no room.
    pub(crate) fn put(&self, key: &[u8], time: u64, value: &[u8]) -> Result<()> {
        let (kept, expiring) = (&*self.kept, self.expiring()?);
        let weight = expiring.weight(key.len(), value.len());
        if weight > kept.bytes_max.load(Ordering::Relaxed) {
            // It has no room at all. The old value must not stay.
            self.index()?.change(key, Change::Remove, Previous::UNWANTED)?;
            return Ok(());
        }
        let change = || expiring.put_timed(key, time, value, Previous::UNWANTED);
        let done = self.with_room(weight, change)?;
        self.note_insert(key, done.present)
    }

    /// Makes a change that takes this much room, and evicts records before it, if there is too little.
    fn with_room<T>(&self, weight: u64, change: impl FnMut() -> Boxed<T>) -> Result<T> {
        let kept = &*self.kept;
        kept.reserved.fetch_add(weight, Ordering::Relaxed);
        kept.inserting.fetch_add(1, Ordering::Relaxed);
        let done = self.change_reserved(change);
        // Release: pairs with the Acquire loads in `is_over`.
        kept.inserting.fetch_sub(1, Ordering::Release);
        kept.reserved.fetch_sub(weight, Ordering::Release);
        done
    }

    fn change_reserved<T>(&self, mut change: impl FnMut() -> Boxed<T>) -> Result<T> {
        let expiring = self.expiring()?;
        while self.kept.is_over(expiring) && self.evict()? {}
        let mut evicted = 0;
        loop {
            match change() {
                // The pool or the disk is full before the cache is.
                Err(error) if error.is_full() && evicted < EVICTED_MAX && self.evict()? => {
                    evicted += 1;
                }
                done => return Ok(done?),
            }
        }
    }

    /// Marks a record that was just inserted. `present` says whether the key was present before.
    fn note_insert(&self, key: &[u8], present: bool) -> Result<()> {
        let kept = &*self.kept;
        kept.inserted.fetch_add(1, Ordering::Relaxed);
        let returns = kept.ghost(self.core().hasher.bytes(key)).take();
        if let Some(record) = self.index()?.get_ref(key)? {
            let proved = present || returns;
            record.set_mark(Mark { visits: 0, proved, stamp: kept.now() }.word());
        }
        Ok(())
    }

    /// Evicts a record. Returns whether there was one.
    fn evict(&self) -> Result<bool> {
        let Some((key, proved)) = self.next_victim()? else { return Ok(false) };
        if self.index()?.change(&key, Change::Remove, Previous::UNWANTED)?.applied {
            self.kept.evictions.fetch_add(1, Ordering::Relaxed);
            if !proved {
                self.kept.ghost(self.core().hasher.bytes(&key)).remember();
            }
        }
        Ok(true)
    }

    fn next_victim(&self) -> Result<Option<(Vec<u8>, bool)>> {
        let mut evictor = locked(&self.kept.evictor);
        let mut rounds = 0;
        while evictor.queue.is_empty() {
            let was_at_start = evictor.hand == start();
            if was_at_start && rounds == 2 {
                return Ok(None);
            }
            rounds += usize::from(was_at_start);
            // After a whole round without a victim, the average is no guide.
            self.sample(&mut evictor, rounds < 2)?;
        }
        Ok(evictor.queue.pop())
    }

    /// Chooses victims among the records at the hand, and moves the hand on. If there must be none of the wrong
    /// kind, `strict` is set, and there may be none at all.
    fn sample(&self, evictor: &mut Evictor, strict: bool) -> Result<()> {
        let (index, stored) = (self.index()?, self.expiring()?.stored());
        let (mut ahead, mut records) = (evictor.hand.clone(), Vec::new());
        for part in 0..SAMPLE {
            let mut keys = Vec::new();
            stored.scan(&mut ahead, &mut keys)?;
            for (key, _) in keys {
                // An expired record is removed here.
                if let Some(record) = index.get_ref(&key)? {
                    records.push((key, record));
                }
            }
            if part == 0 {
                evictor.hand = if ahead.is_done() { start() } else { ahead.clone() };
            }
            if ahead.is_done() {
                break;
            }
        }
        let victims = choose(&records, self.kept.now(), &mut evictor.young, strict);
        for (number, proved) in victims.into_iter().rev() {
            evictor.queue.push((std::mem::take(&mut records[number].0), proved));
        }
        Ok(())
    }

    /// Returns the value of a key. If it is absent, one thread loads and inserts it, and others wait.
    pub(crate) fn get_or_load<E: From<Error>>(
        &self,
        key: &[u8],
        load: impl FnOnce() -> Result<Vec<u8>, E>,
        put: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<Vec<u8>, E> {
        let mut counts = true;
        loop {
            if let Some(found) = self.get(key, counts)? {
                return Ok(found);
            }
            counts = false;
            let (flight, leads) = {
                let mut flights = locked(&self.kept.flights);
                match flights.get(key) {
                    Some(flight) => (Arc::clone(flight), false),
                    None => {
                        let flight = Arc::new(Flight::default());
                        flights.insert(key.to_vec(), Arc::clone(&flight));
                        (flight, true)
                    }
                }
            };
            if !leads {
                let mut landed = locked(&flight.landed);
                while !*landed {
                    landed = flight.changed.wait(landed).unwrap_or_else(PoisonError::into_inner);
                }
                continue;
            }
            // Others go on however this ends, also by a panic.
            let _landing = Landing { kept: &self.kept, key, flight };
            // Another thread may have loaded it since the lookup.
            if let Some(found) = self.get(key, false)? {
                return Ok(found);
            }
            let value = load()?;
            put(&value)?;
            return Ok(value);
        }
    }
}

/// Ends a load.
struct Landing<'c> {
    kept: &'c Bounded,
    key: &'c [u8],
    flight: Arc<Flight>,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        locked(&self.kept.flights).remove(self.key);
        *locked(&self.flight.landed) = true;
        self.flight.changed.notify_all();
    }
}

/// Chooses the records of a sample that are evicted: their numbers, and whether they were proved. Updates
/// the marks of the others, and the share of young records.
fn choose(
    records: &[(Vec<u8>, RecordRef<'_>)],
    now: u32,
    share: &mut f32,
    strict: bool,
) -> Vec<(usize, bool)> {
    let (mut young, mut proved) = (Vec::new(), Vec::new());
    for (number, (_, record)) in records.iter().enumerate() {
        let mut mark = Mark::of(record.mark(), now);
        if !mark.proved && mark.visits > 0 {
            mark = Mark { visits: 0, proved: true, ..mark };
            record.set_mark(mark.word());
        }
        if mark.proved { &mut proved } else { &mut young }.push((number, mark));
    }
    if records.is_empty() {
        return Vec::new();
    }
    let oldest = |(_, mark): &(usize, Mark)| std::cmp::Reverse(mark.age(now));
    *share += LATEST * (young.len() as f32 / records.len() as f32 - *share);
    let many = *share > YOUNG;
    if !young.is_empty() && (many || !strict) {
        young.sort_by_key(oldest);
        let few = (records.len() as f32 * YOUNG) as usize;
        let taken = (young.len() - few.min(young.len() - 1)).min(YOUNG_TAKEN);
        return young[..taken].iter().map(|&(number, _)| (number, false)).collect();
    }
    if many && strict {
        return Vec::new();
    }
    proved.sort_by_key(oldest);
    for &(number, mark) in &proved {
        if mark.visits == 0 {
            return vec![(number, true)];
        }
        let record = &records[number].1;
        record.set_mark(Mark { visits: mark.visits - 1, stamp: now, ..mark }.word());
    }
    // All of them were used. The oldest goes.
    proved.first().map(|&(number, _)| (number, true)).into_iter().collect()
}

/// The place where a ghost of this hash is remembered.
struct Ghost<'b> {
    place: &'b AtomicU32,
    print: u32,
}

impl Ghost<'_> {
    /// Returns whether the hash is remembered, and forgets it.
    fn take(&self) -> bool {
        let known = self.place.load(Ordering::Relaxed) == self.print;
        if known {
            self.place.store(0, Ordering::Relaxed);
        }
        known
    }

    fn remember(&self) {
        self.place.store(self.print, Ordering::Relaxed);
    }
}

impl Bounded {
    fn new(options: &CacheOptions, map: &OpenMap) -> Result<Bounded> {
        let likely = options.records.min(options.bytes / LIKELY_BYTES).max(16);
        let unit = (likely / STAMPS).max(1);
        let ghosts = likely.next_power_of_two().min(1 << 22);
        let (newest, young) = look_around(map)?;
        Ok(Bounded {
            bytes_max: AtomicU64::new(options.bytes),
            records_max: AtomicU64::new(options.records),
            reserved: AtomicU64::new(0),
            inserting: AtomicU64::new(0),
            inserted: AtomicU64::new(u64::from(newest) * unit),
            unit,
            evictor: Mutex::new(Evictor { hand: start(), young, queue: Vec::new() }),
            ghosts: (0..ghosts).map(|_| AtomicU32::new(0)).collect(),
            stripes: Default::default(),
            evictions: AtomicU64::new(0),
            flights: Mutex::default(),
        })
    }

    /// The present stamp.
    fn now(&self) -> u32 {
        (self.inserted.load(Ordering::Relaxed) / self.unit) as u32 & STAMP_MASK
    }

    /// Returns whether the records, and those that are being inserted, are more than the cache may hold.
    fn is_over(&self, expiring: &dyn ExpiringIndex) -> bool {
        // Acquire, and before the records are counted: an insert that has given up its reservation is counted.
        let reserved = self.reserved.load(Ordering::Acquire);
        let inserting = self.inserting.load(Ordering::Acquire);
        let Counted { records, bytes, .. } = expiring.counted();
        bytes + reserved > self.bytes_max.load(Ordering::Relaxed)
            || records + inserting > self.records_max.load(Ordering::Relaxed)
    }

    fn ghost(&self, hash: u64) -> Ghost<'_> {
        let place = &self.ghosts[hash as usize & (self.ghosts.len() - 1)];
        Ghost { place, print: (hash >> 32) as u32 | 1 }
    }
}

/// Returns the newest stamp in a sample of the records, and the share of young ones.
fn look_around(map: &OpenMap) -> Result<(u32, f32)> {
    let (index, stored) = (map.bytes()?, map.expiring()?.stored());
    let (mut cursor, mut newest, mut seen, mut young) = (start(), None::<u32>, 0, 0);
    while !cursor.is_done() && seen < 1_000 {
        let mut keys = Vec::new();
        stored.scan(&mut cursor, &mut keys)?;
        for (key, _) in keys {
            let Some(record) = index.get_ref(&key)? else { continue };
            let word = record.mark();
            let mark = Mark::of(word, 0);
            seen += 1;
            young += u32::from(!mark.proved && mark.visits == 0);
            if word == 0 {
                continue;
            }
            newest = Some(match newest {
                Some(newest) if mark.age(newest) > 0 || mark.stamp == newest => newest,
                _ => mark.stamp,
            });
        }
    }
    let share = if seen == 0 { 1.0 } else { young as f32 / seen as f32 };
    Ok((newest.unwrap_or(0), share))
}
