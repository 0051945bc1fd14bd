//! outlast, through its public interface.

use super::{Many, Room, Setup, System};
use crate::Fallible;
use crate::form::{Hand, Reads, spelled};
use crate::scratch::Scratch;
use outlast::Latency;
use outlast::{
    Config, JournalOptions, Map, MapOptions, OrderedKey, OrderedMap, Pool, PoolOptions, RawMap,
    RecordForm,
};
use std::fmt;
use std::ops::Bound;
use std::time::Duration;

/// The medium that the pool's file is treated as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// The page cache. No flush is needed to survive process death.
    PageCache,
    /// Persistent memory: every flush and fence is executed, with these delays added.
    EmulatedPm {
        /// Nanoseconds added per line flushed.
        line_ns: u64,
        /// Nanoseconds added per fence.
        fence_ns: u64,
    },
    /// A file in memory, with a journal on the disk.
    Journal,
}

impl Medium {
    /// What an operation survives once it has returned.
    pub fn guarantee(self) -> String {
        match self {
            Medium::PageCache => "process death".into(),
            Medium::EmulatedPm { .. } => "process death; power loss, if the file were on PM".into(),
            Medium::Journal => "process death; power loss, after 10 ms or a wait".into(),
        }
    }

    /// Whether the results are a model's, because delays were added to emulate another medium.
    pub fn is_model(self) -> bool {
        matches!(self, Medium::EmulatedPm { line_ns, fence_ns } if line_ns + fence_ns > 0)
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Medium::PageCache => f.write_str("page-cache"),
            Medium::Journal => f.write_str("journal"),
            Medium::EmulatedPm { line_ns: 0, fence_ns: 0 } => f.write_str("emulated-pm"),
            Medium::EmulatedPm { line_ns, fence_ns } => {
                write!(f, "model: emulated-pm, {line_ns} ns a line, {fence_ns} ns a fence")
            }
        }
    }
}

/// A separate pool with one map.
pub struct Library<T: ?Sized + OrderedKey> {
    pool: Pool,
    map: Map<T, T>,
    /// The same map, if its scheme keeps a key order.
    ordered: Option<OrderedMap<T, T>>,
    _dir: Scratch,
}

/// Creates the pool for a setup at `path`.
///
/// # Errors
/// Those of [`PoolOptions::create`].
pub fn create_pool(setup: &Setup, path: &std::path::Path) -> Fallible<Pool> {
    let mut options = PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .identity(setup.seed, u128::from(setup.seed));
    if let Medium::EmulatedPm { line_ns, fence_ns } = setup.medium {
        let (per_line, per_fence) = (Duration::from_nanos(line_ns), Duration::from_nanos(fence_ns));
        options = options.emulate_pm(Latency { per_line, per_fence });
    }
    if setup.medium == Medium::Journal {
        options = options.journal(JournalOptions::new());
    }
    // SAFETY: the path is in a directory that was made for this pool.
    Ok(unsafe { options.create(path)? })
}

/// Creates the map for a setup in a pool, for callers to whom the record form does not matter.
///
/// # Errors
/// Those of [`Pool::raw_map_with`].
pub fn create_map(setup: &Setup, pool: &Pool) -> Fallible<RawMap> {
    let schema = match setup.form {
        RecordForm::Inline => "u64",
        RecordForm::Bytes => "bytes",
    };
    Ok(pool.raw_map_with("bench", schema, schema, &map_options(setup))?)
}

/// Returns the map options for a setup.
pub fn map_options(setup: &Setup) -> MapOptions {
    let mut config = Config::of(setup.scheme);
    match &mut config {
        Config::DashEh(config) => config.stash_buckets = setup.stash_buckets,
        Config::DashLh(config) => config.stash_buckets = setup.stash_buckets,
        Config::Phast(config) => {
            config.leaf_slots = setup.nodes.leaf_slots;
            config.node_leaves = setup.nodes.node_leaves;
        }
        Config::EaPht(config) => config.helpers = setup.helpers.unwrap_or(config.helpers),
        Config::EaPhtH(config) => config.helpers = setup.helpers.unwrap_or(config.helpers),
        Config::EaPhtHpr(config) => config.helpers = setup.helpers.unwrap_or(config.helpers),
        _ => {}
    }
    MapOptions::new().config(config).form(setup.form)
}

impl<T: ?Sized + OrderedKey> Library<T> {
    /// Creates a pool in a new directory. Both are removed when the value is dropped.
    pub fn create(setup: &Setup) -> Fallible<Self> {
        let dir = Scratch::create(&setup.dir)?;
        let pool = create_pool(setup, &dir.path().join("pool"))?;
        let options = map_options(setup);
        let map = pool.map_with("bench", &options)?;
        let is_ordered = setup.scheme.is_ordered();
        let ordered = is_ordered.then(|| pool.ordered_map_with("bench", &options)).transpose()?;
        Ok(Library { pool, map, ordered, _dir: dir })
    }

    fn ordered(&self) -> Fallible<&OrderedMap<T, T>> {
        Ok(self.ordered.as_ref().ok_or("a map that keeps no order")?)
    }

    fn change_all(&self, how: Many, pairs: &[(&T, &T)], done: &mut Vec<bool>) -> Fallible {
        done.extend(match how {
            Many::Insert => self.map.insert_many(pairs)?,
            Many::Update => self.map.update_many(pairs)?,
            Many::Remove => {
                self.map.remove_many(&pairs.iter().map(|(key, _)| *key).collect::<Vec<_>>())?
            }
        });
        Ok(())
    }

    fn room(&self, records: u64) -> Fallible<Room> {
        let pool = self.pool.stats();
        let index = self.map.stats()?;
        Ok(Room {
            load_factor: Some(records as f64 / index.slots.max(1) as f64),
            file_bytes: Some(pool.size),
            pool_bytes: Some(pool.size - pool.free_page_bytes),
            index_dram_bytes: Some(index.dram_bytes),
            shadow_bytes: pool.shadow_bytes,
            shadow_huge_bytes: pool.shadow_huge_page_bytes,
            huge_bytes: pool.huge_page_bytes,
        })
    }
}

impl System for Library<u64> {
    #[inline]
    fn get(&self, _: &mut Hand, key: u64) -> Fallible<Option<u64>> {
        Ok(self.map.get(&key)?)
    }
    #[inline]
    fn insert(&self, _: &mut Hand, key: u64, value: u64) -> Fallible<bool> {
        Ok(self.map.insert(&key, &value)?)
    }
    #[inline]
    fn update(&self, _: &mut Hand, key: u64, value: u64) -> Fallible<bool> {
        Ok(self.map.update(&key, &value)?)
    }
    #[inline]
    fn remove(&self, _: &mut Hand, key: u64) -> Fallible<Option<u64>> {
        Ok(self.map.remove(&key)?)
    }
    fn get_many(&self, _: &mut Hand, keys: &[u64], found: &mut Vec<Option<u64>>) -> Fallible {
        let mut asked = [&0; BATCH_MAX];
        for batch in keys.chunks(BATCH_MAX) {
            for (asked, key) in asked.iter_mut().zip(batch) {
                *asked = key;
            }
            found.extend(self.map.get_many(&asked[..batch.len()])?);
        }
        Ok(())
    }
    fn change_many(
        &self,
        _: &mut Hand,
        how: Many,
        records: &[(u64, u64)],
        done: &mut Vec<bool>,
    ) -> Fallible {
        let pairs: Vec<(&u64, &u64)> = records.iter().map(|(key, value)| (key, value)).collect();
        self.change_all(how, &pairs, done)
    }
    fn scan(
        &self,
        _: &mut Hand,
        from: u64,
        records: usize,
        found: &mut Vec<(u64, u64)>,
    ) -> Fallible {
        for record in self.ordered()?.range(from..).with_batch(records).take(records) {
            found.push(record?);
        }
        Ok(())
    }
    fn room(&self, records: u64) -> Fallible<Room> {
        self.room(records)
    }
}

/// The greatest number of keys per call of the library's `get_many`.
const BATCH_MAX: usize = 64;

impl System for Library<[u8]> {
    #[inline]
    fn get(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>> {
        let reading = hand.reading;
        match reading.reads {
            Reads::Owned => {
                let found = self.map.get(hand.key_bytes(key))?;
                Ok(found.map(|value| reading.word(&value)))
            }
            Reads::Borrowed => {
                let Some(found) = self.map.get_ref(hand.key_bytes(key))? else { return Ok(None) };
                let record = found.bytes();
                if record.len() != hand.room().len() {
                    return Ok(Some(0));
                }
                record.read_at(0, hand.room())?;
                Ok(Some(hand.read_room()))
            }
        }
    }
    #[inline]
    fn insert(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible<bool> {
        let (key, value) = hand.pair_bytes(key, value);
        Ok(self.map.insert(key, value)?)
    }
    #[inline]
    fn update(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible<bool> {
        let (key, value) = hand.pair_bytes(key, value);
        Ok(self.map.update(key, value)?)
    }
    #[inline]
    fn remove(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>> {
        let reading = hand.reading;
        let found = self.map.remove(hand.key_bytes(key))?;
        Ok(found.map(|value| reading.word(&value)))
    }
    fn get_many(&self, hand: &mut Hand, keys: &[u64], found: &mut Vec<Option<u64>>) -> Fallible {
        let spelled: Vec<Vec<u8>> = keys.iter().map(|&key| hand.key_bytes(key).to_vec()).collect();
        let asked: Vec<&[u8]> = spelled.iter().map(Vec::as_slice).collect();
        let reading = hand.reading;
        let values = self.map.get_many(&asked)?;
        found.extend(values.into_iter().map(|value| value.map(|value| reading.word(&value))));
        Ok(())
    }
    fn change_many(
        &self,
        hand: &mut Hand,
        how: Many,
        records: &[(u64, u64)],
        done: &mut Vec<bool>,
    ) -> Fallible {
        let spell = |&(key, value): &(u64, u64)| {
            let (key, value) = hand.pair_bytes(key, value);
            (key.to_vec(), value.to_vec())
        };
        let spelled: Vec<(Vec<u8>, Vec<u8>)> = records.iter().map(spell).collect();
        let pairs: Vec<(&[u8], &[u8])> =
            spelled.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
        self.change_all(how, &pairs, done)
    }
    fn scan(
        &self,
        hand: &mut Hand,
        from: u64,
        records: usize,
        found: &mut Vec<(u64, u64)>,
    ) -> Fallible {
        let reading = hand.reading;
        let bounds = (Bound::Included(hand.key_bytes(from)), Bound::Unbounded);
        for record in self.ordered()?.range(bounds).with_batch(records).take(records) {
            let (key, value) = record?;
            found.push((spelled(&key), reading.word(&value)));
        }
        Ok(())
    }
    fn room(&self, records: u64) -> Fallible<Room> {
        self.room(records)
    }
}
