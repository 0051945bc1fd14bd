//! A cache: a map whose records expire, with a bound on what they take. The part that knows no types.
//!
//! # What is evicted
//!
//! The policy is S3-FIFO (Yang et al., SOSP 2023). A record is *young* until it was used since it was inserted,
//! and *proved* from then on. Young records are in a queue, in memory. If it has more than a small share of all
//! records, its oldest goes, or is proved if it was used. Otherwise, of the proved records of a sample that were
//! not used since they were last looked at, the oldest go; those older than them lose one of their visits, and
//! count as new. A young record that is inserted again soon after its eviction is proved at once; *ghosts*
//! remember its hash.
//!
//! A sample is what a few buckets of the table hold, at a hand that goes through it. The places of records in
//! a hash table are random, and so are the samples. So proved records need no queue, which would have to be
//! locked by lookups, made durable or rebuilt. After an opening, the queue is empty, and the young records that
//! the table has are *strays*. As long as samples find strays, these go first. While a cache fills for the first
//! time, the queue forgets all but its newest records, which become strays too.
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
//! works. So no flush notes their lines for a journal either, and lookups write nothing to it. The queue, ghosts
//! and statistics are in memory, and begin anew with each opening.
//!
//! # The bound
//!
//! The layer of expiry counts what the records take ([`Counted`]). An insert reserves its own share, and
//! evicts records until that fits. Opening a cache reads the table's slots, once, to count them.
//!
//! Threads that insert and evict share as little as they can: each counts in a stripe of its own what cancels out
//! (so a large cache leaves up to 0.2% of its bound unused), and young records and victims go to and from the
//! evictor several at a time.

mod evictor;
mod mark;
mod raw;

use super::expiry::after;
use super::open_map::OpenMap;
use super::raw::RawMap;
use crate::error::{Boxed, Error, Result};
use crate::index::record::RecordRef;
use crate::index::{
    Bytes, Change, Counted, EvictingIndex, ExpiringIndex, Index, Part, Previous, Scheme, Verdict,
};
use crate::pmem::{Real, Seam};
use crate::pool::clock::NEVER;
use crate::pool::core::Core;
use crate::pool::threads::thread_number;
use evictor::{Evictor, Victim, look_around};
use mark::{Mark, VISITS_MAX, stamp};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most records that an insert evicts because the pool is full.
const EVICTED_MAX: u32 = 1_000;
/// An insert spares victims that were used meanwhile, or that are not young any more, this often.
const PATIENCE: u32 = 200;
/// How many records are given to the evictor at a time, and got from it, in a large cache.
const BATCH: usize = 16;
/// A batch is at most one of this many records.
const BATCHES: u64 = 1 << 12;
/// How far ahead of its eviction each part of a record is prefetched.
const AHEAD: [(usize, Part); 3] = [(8, Part::Metadata), (5, Part::Slots), (2, Part::Block)];
/// Insertions of a whole cache in stamps.
const STAMPS: u64 = 1 << 16;
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

/// What a cache did since it was opened, and what it holds. While other threads change it, the numbers are of no
/// single moment.
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

/// What threads do apart from others: some of them share it.
#[derive(Default)]
#[repr(align(128))]
struct Stripe {
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
    /// Insertions that [`Bounded::inserted`] does not have yet.
    inserted: AtomicU64,
    exchanged: Mutex<Exchanged>,
}

/// What threads give to the evictor, and get from it, several at a time.
#[derive(Default)]
struct Exchanged {
    /// Young records that are not queued yet: hashes and stamps.
    young: Vec<(u64, u32)>,
    /// The next records to evict.
    victims: VecDeque<Victim>,
}

/// What threads seldom write stays in their caches if what others write is in other lines.
#[derive(Default)]
#[repr(align(128))]
struct Apart<T>(T);

/// What all handles of a cache share.
pub(crate) struct Bounded {
    bytes_max: AtomicU64,
    records_max: AtomicU64,
    /// Insertions between two stamps.
    unit: u64,
    ghosts: Box<[AtomicU32]>,
    /// Insertions, those apart that stripes still have.
    inserted: Apart<AtomicU64>,
    evictor: Apart<Mutex<Evictor>>,
    stripes: [Stripe; 16],
    flights: Apart<Mutex<HashMap<Vec<u8>, Arc<Flight>>>>,
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

/// How a change went for which room was made.
struct Inserted {
    applied: bool,
    /// Whether the key was present before.
    present: bool,
    /// Whether the record has got its mark.
    is_marked: bool,
}

/// Returns how many records are given to the evictor and got from it at a time in a cache with this many.
fn batch(records: u64) -> usize {
    ((records / BATCHES) as usize).clamp(1, BATCH)
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
        open.expiring()?.bound_count(options.records, options.bytes);
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
        if let Some(index) = self.expiring()?.stored().evicting() {
            index.prefetch(self.core().hasher.bytes(key), Part::Block);
        }
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
        self.with_room(key, weight, |mark| {
            let present = expiring.put_marked(key, time, value, mark)?;
            Ok(Inserted { applied: true, present, is_marked: true })
        })?;
        Ok(())
    }

    /// Makes a change that inserts a record of this weight, and evicts records before it, if there is too
    /// little room. `change` gets the mark for the record. Returns whether the change applied.
    fn with_room(
        &self,
        key: &[u8],
        weight: u64,
        change: impl FnMut(u32) -> Boxed<Inserted>,
    ) -> Result<bool> {
        let expiring = self.expiring()?;
        expiring.reserve(1, weight);
        let done = self.change_reserved(key, change);
        expiring.reserve(-1, weight);
        done
    }

    fn change_reserved(
        &self,
        key: &[u8],
        mut change: impl FnMut(u32) -> Boxed<Inserted>,
    ) -> Result<bool> {
        let (kept, expiring) = (&*self.kept, self.expiring()?);
        let hash = self.core().hasher.bytes(key);
        let ghost = kept.ghost(hash);
        self.core().memory.seam().prefetch(ghost.place);
        evicting(expiring)?.prefetch(hash, Part::Metadata);
        let now = kept.now();
        while kept.is_over(expiring) && self.evict(expiring)? {}
        let proved = ghost.take();
        let mark = Mark { visits: 0, proved, stamp: now };
        let mut evicted = 0;
        let Inserted { applied, present, is_marked } = loop {
            match change(mark.word()) {
                // The pool or the disk is full before the cache is.
                Err(error)
                    if error.is_full() && evicted < EVICTED_MAX && self.evict(expiring)? =>
                {
                    evicted += 1;
                }
                done => break done?,
            }
        };
        if applied {
            self.count_insert();
        } else if proved {
            ghost.remember();
        }
        if applied && !proved && !present {
            let mut exchanged = locked(&self.stripe().exchanged);
            exchanged.young.push((hash, now));
            let records = expiring.counted_at_most().records;
            // In a full cache, evictions queue them.
            if exchanged.young.len() > 2 * batch(records) {
                locked(&kept.evictor.0).inserted(exchanged.young.drain(..), records, false);
            }
        }
        // One that has replaced another record is proved.
        let right = Mark { proved: proved || present, ..mark };
        if applied
            && (!is_marked || right != mark)
            && let Some(record) = self.index()?.get_ref(key)?
        {
            record.set_mark(right.word());
        }
        Ok(applied)
    }

    /// Counts an insert, for the stamps. Threads that share a stripe and count at the same time may count one.
    fn count_insert(&self) {
        let (stripe, kept) = (self.stripe(), &*self.kept);
        let inserted = stripe.inserted.load(Ordering::Relaxed) + 1;
        let moves = inserted >= kept.unit.min(BATCH as u64);
        stripe.inserted.store(if moves { 0 } else { inserted }, Ordering::Relaxed);
        if moves {
            kept.inserted.0.fetch_add(inserted, Ordering::Relaxed);
        }
    }

    /// Evicts a record. Returns whether there was one.
    fn evict(&self, expiring: &dyn ExpiringIndex) -> Result<bool> {
        let (kept, now) = (&*self.kept, self.kept.now());
        for attempt in 1.. {
            let Some(victim) = self.next_victim(expiring, now)? else { break };
            let mut proved = false;
            let evicted = expiring.evict(victim.hash, &mut |word| {
                proved = Mark::of(word, now).proved;
                // Where all records are used all the time, any will do.
                if attempt < PATIENCE { victim.verdict(word, now) } else { Verdict::Evict }
            })?;
            if evicted {
                self.stripe().evictions.fetch_add(1, Ordering::Relaxed);
                if !proved {
                    kept.ghost(victim.hash).remember();
                }
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the next record to evict. `None` if there are none.
    fn next_victim(&self, expiring: &dyn ExpiringIndex, now: u32) -> Result<Option<Victim>> {
        let (kept, index) = (&*self.kept, evicting(expiring)?);
        let Exchanged { young, victims } = &mut *locked(&self.stripe().exchanged);
        let records = expiring.counted_at_most().records;
        let batch = batch(records);
        // Small caches are in the processor's.
        let ahead = if batch < BATCH { 0 } else { AHEAD[0].0 };
        if victims.len() <= ahead {
            let mut evictor = locked(&kept.evictor.0);
            evictor.inserted(young.drain(..), records, true);
            while victims.len() < ahead + batch
                && let Some(victim) = evictor.next(index, records, now)?
            {
                victims.push_back(victim);
            }
        }
        let victim = victims.pop_front();
        for (ahead, part) in AHEAD {
            if let Some(victim) = victims.get(ahead - 1) {
                index.prefetch(victim.hash, part);
                if part == Part::Slots {
                    self.core().memory.seam().prefetch(kept.ghost(victim.hash).place);
                }
            }
        }
        Ok(victim)
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
                let mut flights = locked(&self.kept.flights.0);
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

impl RawMap {
    /// Returns statistics of the cache that this map is. `None` if this process has not opened it as one.
    ///
    /// # Errors
    /// Those of [`stats`](RawMap::stats).
    #[doc(hidden)]
    pub fn cache_stats(&self) -> Result<Option<CacheStats>> {
        let kept = self.map.cache.get().and_then(|kept| kept.downcast_ref::<Bounded>());
        match kept {
            Some(kept) => Ok(Some(kept.stats(self.map.expiring()?))),
            None => Ok(None),
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
        locked(&self.kept.flights.0).remove(self.key);
        *locked(&self.flight.landed) = true;
        self.flight.changed.notify_all();
    }
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
        let (newest, strays) = look_around(evicting(map.expiring()?)?)?;
        Ok(Bounded {
            bytes_max: AtomicU64::new(options.bytes),
            records_max: AtomicU64::new(options.records),
            unit,
            ghosts: (0..ghosts).map(|_| AtomicU32::new(0)).collect(),
            inserted: Apart(AtomicU64::new(u64::from(newest) * unit)),
            evictor: Apart(Mutex::new(Evictor::new(strays))),
            stripes: Default::default(),
            flights: Apart::default(),
        })
    }

    /// The present stamp.
    fn now(&self) -> u32 {
        stamp(self.inserted.0.load(Ordering::Relaxed) / self.unit)
    }

    /// Returns whether the records, and those that are being inserted, are more than the cache may hold.
    fn is_over(&self, expiring: &dyn ExpiringIndex) -> bool {
        let Counted { records, bytes, .. } = expiring.counted_at_most();
        bytes > self.bytes_max.load(Ordering::Relaxed)
            || records > self.records_max.load(Ordering::Relaxed)
    }

    fn stats(&self, expiring: &dyn ExpiringIndex) -> CacheStats {
        let Counted { records, bytes, expired } = expiring.counted();
        let sum = |of: fn(&Stripe) -> &AtomicU64| {
            self.stripes.iter().map(|stripe| of(stripe).load(Ordering::Relaxed)).sum()
        };
        CacheStats {
            hits: sum(|stripe| &stripe.hits),
            misses: sum(|stripe| &stripe.misses),
            evictions: sum(|stripe| &stripe.evictions),
            expired,
            records,
            bytes,
        }
    }

    fn ghost(&self, hash: u64) -> Ghost<'_> {
        let place = &self.ghosts[hash as usize & (self.ghosts.len() - 1)];
        Ghost { place, print: (hash >> 32) as u32 | 1 }
    }
}

fn evicting(expiring: &dyn ExpiringIndex) -> Result<&dyn EvictingIndex<Bytes>> {
    expiring.stored().evicting().ok_or_else(|| Error::Invalid {
        what: "cache",
        why: "its scheme is none for caches".into(),
    })
}
