//! Lookups of one key and of many.

use super::lock::{Guarded, LockPlace, VersionLock};
use super::table::{HashedKey, Lookup, Table};
use crate::error::{Boxed, Damage, Result};
use crate::index::BATCH;
use crate::index::record::{Record, SlotRecord, SlotWords};
use crate::pmem::Seam;

/// Returns the values of many keys, in batches; see [`Lookup`].
pub(crate) fn get_many<S: Seam, R: Record, T: Lookup<S, R>>(
    table: &T,
    keys: &[R::Key<'_>],
    found: &mut [Option<R::Owned>],
) -> Result<()> {
    for (keys, found) in keys.chunks(BATCH).zip(found.chunks_mut(BATCH)) {
        let (batch, mut staged) = (table.begin_batch(), [const { None }; BATCH]);
        let mut spaces = [[0; 8]; BATCH];
        let mut hashed = [HashedKey { key: R::reborrow(keys[0]), hash: 0 }; BATCH];
        let places = spaces.iter_mut().zip(&mut hashed).zip(&mut staged);
        for (&key, ((space, hashed), staged)) in keys.iter().zip(places) {
            R::check_size(key, None)?;
            *hashed = HashedKey::of(table, key, space);
            *staged = Some(table.stage_metadata(&batch, *hashed)?);
        }
        let keys = hashed[..keys.len()].iter().copied();
        stage_further(table, keys.clone(), &mut staged);
        for ((key, staged), found) in keys.zip(staged).zip(found) {
            let Some(staged) = staged else { break };
            *found = table.find_staged(&batch, staged, key)?;
        }
    }
    Ok(())
}

/// Prefetches what changes of these keys will need.
pub(crate) fn prefetch<'k, S: Seam, R: Record, T: Lookup<S, R>>(
    table: &T,
    keys: impl Iterator<Item = HashedKey<'k, R>> + Clone,
) {
    // Errors are ignored here: a change of the key reports them.
    let _ = stage(table, &table.begin_batch(), keys, &mut [const { None }; BATCH]);
}

/// Runs the stages of a batch of lookups. For each key, `staged` gets what the stages pass on.
#[inline(always)]
pub(crate) fn stage<'b, 'k, S: Seam, R: Record, T: Lookup<S, R>>(
    table: &'b T,
    batch: &'b T::Batch<'_>,
    keys: impl Iterator<Item = HashedKey<'k, R>> + Clone,
    staged: &mut [Option<T::Staged<'b>>; BATCH],
) -> Result<()> {
    for (key, staged) in keys.clone().zip(&mut *staged) {
        *staged = Some(table.stage_metadata(batch, key)?);
    }
    stage_further(table, keys, staged);
    Ok(())
}

/// Runs the stages after the first one.
#[inline(always)]
fn stage_further<'b, 'k, S: Seam, R: Record, T: Lookup<S, R>>(
    table: &'b T,
    keys: impl Iterator<Item = HashedKey<'k, R>> + Clone,
    staged: &mut [Option<T::Staged<'b>>; BATCH],
) {
    each(table, keys.clone(), staged, T::stage_node);
    each(table, keys.clone(), staged, T::stage_leaf);
    each(table, keys.clone(), staged, T::stage_slots);
    each(table, keys, staged, T::stage_record);
}

/// Runs one stage of a batch of lookups.
#[inline(always)]
fn each<'b, 'k, S: Seam, R: Record, T: Lookup<S, R>>(
    table: &'b T,
    keys: impl Iterator<Item = HashedKey<'k, R>>,
    staged: &mut [Option<T::Staged<'b>>; BATCH],
    stage: impl Fn(&'b T, &mut T::Staged<'b>, HashedKey<'k, R>),
) {
    for (key, staged) in keys.zip(staged) {
        if let Some(staged) = staged {
            stage(table, staged, key);
        }
    }
}

/// Lookups that read without a lock and check afterwards whether what they read was valid.
pub(crate) trait Optimistic<S: Seam, R: SlotRecord>: Table<S, R> {
    /// How an operation reached its segment.
    type Route<'t>
    where
        Self: 't;
    /// The type of its lock words.
    type Lock: LockPlace;
    /// Whether a change looks its key up before it locks, so that one that does not apply stores nothing
    /// where the locks are.
    const SEARCHES_FIRST: bool = false;

    /// Returns the route to a hash's segment. `None` if the segment is not ready for use.
    fn ready_route(&self, hash: u64) -> Option<Self::Route<'_>>;

    /// Returns the route to a hash's segment, which this may have to make ready. The thread has
    /// passed the gate `inside` times.
    fn any_route(&self, hash: u64, inside: usize) -> Result<Self::Route<'_>>;

    /// Finds a key and reads from its slot, once.
    fn read_once<T>(
        &self,
        route: &Self::Route<'_>,
        key: HashedKey<'_, R>,
        read: &mut impl FnMut(SlotWords) -> Result<T, Damage>,
    ) -> Read<T>;

    /// Returns the lock that a change of a key with this hash takes, and the offset of the
    /// structure that the lock guards, such as a bucket.
    fn lock_word<'t>(
        &'t self,
        route: &Self::Route<'t>,
        hash: u64,
    ) -> (VersionLock<'t, S, Self::Lock>, u64);
}

/// The outcome of a read that was made without a lock.
pub(crate) enum Read<T> {
    /// A concurrent change interfered, so that nothing is known.
    Raced,
    /// The read is valid, and has met damage.
    Damaged(Damage),
    /// The read is valid. It has found this, or `None` if the key is absent.
    Found(Option<T>),
}

impl<T> Read<T> {
    /// Returns the outcome of a read, given whether it was valid.
    #[inline(always)]
    pub(crate) fn of(valid: bool, found: Result<Option<T>, Damage>) -> Self {
        match found {
            _ if !valid => Read::Raced,
            Ok(found) => Read::Found(found),
            Err(damage) => Read::Damaged(damage),
        }
    }
}

/// The hot path of a lookup: reads once, if the segment is ready. Returns `None` if that does not
/// give the result.
#[inline(always)]
pub(crate) fn find_fast<S: Seam, R: SlotRecord, T>(
    table: &impl Optimistic<S, R>,
    key: HashedKey<'_, R>,
    mut read: impl FnMut(SlotWords) -> Result<T, Damage>,
) -> Option<Option<T>> {
    match table.read_once(&table.ready_route(key.hash)?, key, &mut read) {
        Read::Found(found) => Some(found),
        Read::Raced | Read::Damaged(_) => None,
    }
}

/// Finds a key and reads from its slot, until a read is valid. The thread has passed the gate
/// `inside` times.
#[cold]
#[inline(never)]
pub(crate) fn find<S: Seam, R: SlotRecord, T>(
    table: &impl Optimistic<S, R>,
    key: HashedKey<'_, R>,
    inside: usize,
    mut read: impl FnMut(SlotWords) -> Result<T, Damage>,
) -> Boxed<Option<T>> {
    let found =
        read_valid(table, key.hash, inside, |route| match table.read_once(route, key, &mut read) {
            Read::Raced => None,
            Read::Damaged(damage) => Some(Err(damage)),
            Read::Found(found) => Some(Ok(found)),
        });
    Ok(found??)
}

/// The number of invalid reads after which [`read_valid`] takes the lock for each further read.
const PATIENCE: u32 = 1 << 10;

/// Reads from the segment of a hash until a read is valid. `once` returns `None` if its result is
/// not. The thread has passed the gate `inside` times.
pub(crate) fn read_valid<'t, S: Seam, R: SlotRecord, O: Optimistic<S, R>, T>(
    table: &'t O,
    hash: u64,
    inside: usize,
    mut once: impl FnMut(&O::Route<'t>) -> Option<T>,
) -> Result<T> {
    let core = table.core();
    let mut turn = 0;
    loop {
        core.check()?;
        // Without the lock, no read of a long value that changes all the time would ever be valid.
        // Like all locks, this one is taken inside the gate. The gate comes first: a thread that
        // holds the gate for long may wait for the end of all visits.
        let locks = turn >= PATIENCE;
        let entered = if locks && inside == 0 { Some(core.enter()?) } else { None };
        // The lock may lie in a block that is retired meanwhile. A visit that begins before the lock
        // is found keeps that block from being reused.
        let visit = locks.then(|| core.visit());
        let passed = inside + usize::from(entered.is_some());
        let route = table.any_route(hash, passed)?;
        let (lock, offset) = table.lock_word(&route, hash);
        let held = if locks { Some(Guarded::new(lock.hold(core, offset)?)) } else { None };
        if let Some(found) = once(&route) {
            return Ok(found);
        }
        drop((held, visit, entered));
        lock.wait(core, offset, inside, &mut turn)?;
    }
}
