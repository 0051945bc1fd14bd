//! One life of a torture pool: threads work on it and check every result against the cells, until
//! they are stopped or killed.

use super::cells::Cells;
use crate::codec::SPECIAL;
use crate::maps::{AnyMap, MAPS, MapShape};
use crate::random::Random;
use crate::session::Do;
use crate::state::{Checked, Fault, ensure};
use outlast::{Pool, PoolOptions, RecordForm, Scheme};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The pool under torture.
#[derive(Debug, Clone, Copy)]
pub struct Subject {
    /// The scheme of the maps.
    pub scheme: Scheme,
    /// Only maps of this form.
    pub record: Option<RecordForm>,
    /// Keys per map.
    pub keys: u64,
    /// Number of threads.
    pub threads: u64,
}

impl Subject {
    /// Lists its maps.
    pub fn shapes(&self) -> Vec<MapShape> {
        MAPS.iter().filter(|m| self.record.is_none_or(|form| form == m.form)).copied().collect()
    }

    /// Returns the number of cells that it needs.
    pub fn cells(&self) -> usize {
        self.shapes().len() * self.keys as usize
    }

    /// Returns options for its pool.
    pub fn options() -> PoolOptions {
        // With small pages, runs of blocks are often emptied and claimed again.
        PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .page_bits(12)
            .initial_size(256 << 10)
    }

    /// Opens the maps.
    ///
    /// # Errors
    /// The pool's.
    pub fn open_maps(&self, pool: &Pool) -> Checked<Vec<AnyMap>> {
        let open = |shape: &MapShape| Ok(AnyMap::open(pool, shape, self.scheme)?);
        self.shapes().iter().map(open).collect()
    }

    /// Lists the keys that belong to a thread, each with the number of its map.
    pub fn keys_of(&self, thread: u64) -> impl Iterator<Item = (usize, u64)> {
        let Subject { keys, threads, .. } = *self;
        (0..self.shapes().len())
            .flat_map(move |map| (0..keys).map(move |key| (map, key)))
            .filter(move |(_, key)| key % threads == thread)
    }

    fn cell_of(&self, map: usize, key: u64) -> usize {
        map * self.keys as usize + key as usize
    }
}

/// Opens the pool.
///
/// # Errors
/// The pool's.
pub fn open(path: &Path) -> Checked<Pool> {
    // SAFETY: the pool is in this run's own directory, and nothing else writes to it.
    Ok(unsafe { Subject::options().open(path)? })
}

/// Works on the pool with all threads until `stop` is set or a thread finds a fault.
///
/// # Errors
/// The first finding of any thread.
pub fn live(
    subject: &Subject,
    pool: &Pool,
    cells: &Cells,
    seed: u64,
    stop: &AtomicBool,
) -> Checked {
    let maps = subject.open_maps(pool)?;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..subject.threads)
            .map(|thread| {
                let maps = &maps;
                scope.spawn(move || {
                    let random = Random::new(seed ^ thread << 48);
                    let worked = Worker { subject, maps, cells, thread, random }.run(stop);
                    if worked.is_err() {
                        stop.store(true, Ordering::SeqCst);
                    }
                    worked
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(worked) => worked,
            Err(_) => Err(Fault("a worker panicked".into())),
        })
    })
}

/// Chooses the next change of a key with this value; `None` is a lookup.
pub fn choose(random: &mut Random, before: Option<u64>) -> Option<Do> {
    let value = random.next() >> 36 | if random.below(64) == 0 { SPECIAL } else { 0 };
    Some(match random.below(8) {
        0 => Do::Insert(value),
        1 => Do::Put(value),
        2 => Do::Update(value),
        3 => Do::Swap(before.unwrap_or(value), value + 1),
        4 => Do::Swap(value, value + 1),
        5 if before.is_some() => Do::Remove,
        6 if let Some(before) = before => {
            // A few of them compare with a value that the key does not have.
            Do::CompareRemove(before ^ u64::from(value.is_multiple_of(8)))
        }
        5 => Do::Insert(value),
        _ => return None,
    })
}

/// Changes a key whose value is `before`, or looks it up, and checks the result.
///
/// # Errors
/// If the map fails or returns something wrong.
pub fn act(
    maps: &[AnyMap],
    map: usize,
    key: u64,
    change: Option<Do>,
    before: Option<u64>,
) -> Checked {
    let Some(change) = change else {
        let found = maps[map].get(key)?;
        return ensure(found == before, || format!("key {key} has {found:?}, expected {before:?}"));
    };
    maps[map].change(key, change, before)
}

/// One thread, and the keys that belong to it.
struct Worker<'w> {
    subject: &'w Subject,
    maps: &'w [AnyMap],
    cells: &'w Cells,
    thread: u64,
    random: Random,
}

impl Worker<'_> {
    fn run(&mut self, stop: &AtomicBool) -> Checked {
        let mut keys: Vec<(usize, u64)> = self.subject.keys_of(self.thread).collect();
        self.random.shuffle(&mut keys);
        // While the pool still recovers, check what the last life has left key by key, and work on
        // the keys already checked.
        for (checked, &(map, key)) in keys.iter().enumerate() {
            self.check(map, key)?;
            let (map, key) = keys[self.random.below(checked as u64 + 1) as usize];
            self.work(map, key)?;
            if stop.load(Ordering::Relaxed) {
                // Settle the remaining keys before anything else reads the cells.
                return keys[checked + 1..].iter().try_for_each(|&(m, k)| self.check(m, k));
            }
        }
        while !stop.load(Ordering::Relaxed) {
            let (map, key) = keys[self.random.below(keys.len() as u64) as usize];
            self.work(map, key)?;
        }
        Ok(())
    }

    fn named(&self, map: usize, fault: &Fault) -> Fault {
        Fault(format!("map {:?}: {fault}", self.subject.shapes()[map].name))
    }

    /// Checks a key that may have been in flight when the last life ended.
    fn check(&self, map: usize, key: u64) -> Checked {
        let cell = self.cells.cell(self.subject.cell_of(map, key));
        let found = self.maps[map].get(key).map_err(|f| self.named(map, &f))?;
        let allowed = cell.allowed();
        ensure(allowed.contains(&found), || {
            let fault = Fault(format!("key {key} has {found:?}, expected {allowed:?}"));
            self.named(map, &fault).0
        })?;
        cell.settle(found);
        Ok(())
    }

    fn work(&mut self, map: usize, key: u64) -> Checked {
        let cell = self.cells.cell(self.subject.cell_of(map, key));
        let before = cell.settled();
        let change = choose(&mut self.random, before);
        if let Some(change) = change {
            cell.begin(change.on(before).1);
        }
        act(self.maps, map, key, change, before).map_err(|f| self.named(map, &f))?;
        if let Some(change) = change {
            cell.settle(change.on(before).1);
        }
        Ok(())
    }
}

/// Checks a pool that no thread works on: every key by get and by iteration, and that the pool
/// verifies without a leak.
///
/// # Errors
/// The first finding.
pub fn check_at_rest(subject: &Subject, pool: &Pool, cells: &Cells) -> Checked {
    check_against(subject, pool, |map, key| cells.cell(subject.cell_of(map, key)).allowed())
}

/// Does the same as [`check_at_rest`], with the values of each key that `allowed` returns.
///
/// # Errors
/// The first finding.
pub fn check_against(
    subject: &Subject,
    pool: &Pool,
    allowed: impl Fn(usize, u64) -> [Option<u64>; 2],
) -> Checked {
    let maps = subject.open_maps(pool)?;
    let mut total = 0;
    for (index, map) in maps.iter().enumerate() {
        let name = subject.shapes()[index].name;
        let mut walked: std::collections::BTreeMap<u64, u64> = Default::default();
        for (key, value) in map.records()? {
            let twice = walked.insert(key, value);
            ensure(twice.is_none(), || format!("map {name:?}: iteration gives key {key} twice"))?;
        }
        total += walked.len() as u64;
        for key in 0..subject.keys {
            let (found, allowed) = (map.get(key)?, allowed(index, key));
            ensure(allowed.contains(&found), || {
                format!("map {name:?}: key {key} has {found:?}, expected {allowed:?}")
            })?;
            let by_walk = walked.remove(&key);
            ensure(by_walk == found, || {
                format!("map {name:?}: key {key}: get {found:?}, iteration {by_walk:?}")
            })?;
        }
        ensure(walked.is_empty(), || {
            format!("map {name:?}: keys that no thread owns: {walked:?}")
        })?;
    }
    crate::session::check_verification(&pool.verify()?, total)
}
