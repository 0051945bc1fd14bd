//! outlast as a store of byte strings, and as a store of words.

use super::{Client, bytes_in};
use crate::Fallible;
use crate::form::{Hand, spelled};
use crate::systems::{Setup, create_pool};
use outlast::{Map, MapOptions, OrderedMap, Pool};
use std::ops::Bound;
use std::path::{Path, PathBuf};

pub(super) struct Library {
    pool: Pool,
    map: Map<[u8], [u8]>,
    /// The same map, if its scheme keeps a key order.
    ordered: Option<OrderedMap<[u8], [u8]>>,
    hand: Hand,
    dir: PathBuf,
    waits: bool,
}

impl Library {
    pub(super) fn create(setup: &Setup, dir: &Path, hand: Hand, waits: bool) -> Fallible<Self> {
        let pool = create_pool(setup, &dir.join("pool"))?;
        let options = MapOptions::new().scheme(setup.scheme);
        let map = pool.map_with("bench", &options)?;
        let is_ordered = setup.scheme.is_ordered();
        let ordered = is_ordered.then(|| pool.ordered_map_with("bench", &options)).transpose()?;
        Ok(Library { pool, map, ordered, hand, dir: dir.into(), waits })
    }
}

impl Client for Library {
    fn load(&mut self, records: &mut dyn Iterator<Item = (u64, u64)>) -> Fallible {
        for (key, value) in records {
            let (key, value) = self.hand.pair_bytes(key, value);
            self.map.insert(key, value)?;
        }
        Ok(())
    }

    fn insert(&mut self, key: u64, value: u64) -> Fallible {
        let (key, value) = self.hand.pair_bytes(key, value);
        self.map.insert(key, value)?;
        if self.waits {
            self.pool.wait_durable()?;
        }
        Ok(())
    }

    fn get(&mut self, key: u64) -> Fallible<Option<u64>> {
        let reading = self.hand.reading;
        let found = self.map.get(self.hand.key_bytes(key))?;
        Ok(found.map(|value| reading.word(&value)))
    }

    fn scan(&mut self, from: u64, records: usize, found: &mut Vec<(u64, u64)>) -> Fallible<bool> {
        let Some(map) = &self.ordered else { return Ok(false) };
        let reading = self.hand.reading;
        let bounds = (Bound::Included(self.hand.key_bytes(from)), Bound::Unbounded);
        for record in map.range(bounds).with_batch(records).take(records) {
            let (key, value) = record?;
            found.push((spelled(&key), reading.word(&value)));
        }
        Ok(true)
    }

    fn bytes(&mut self) -> Fallible<u64> {
        bytes_in(&self.dir)
    }
}

/// outlast with inline records of words.
pub(super) struct Words {
    pool: Pool,
    map: Map<u64, u64>,
    /// The same map, if its scheme keeps a key order.
    ordered: Option<OrderedMap<u64, u64>>,
    dir: PathBuf,
    waits: bool,
}

/// Converts a key to the number that sorts as the key's little-endian bytes do, and back.
fn number(key: u64) -> u64 {
    key.swap_bytes()
}

impl Words {
    pub(super) fn create(setup: &Setup, dir: &Path, waits: bool) -> Fallible<Self> {
        let pool = create_pool(setup, &dir.join("pool"))?;
        let options = MapOptions::new().scheme(setup.scheme).form(setup.form);
        let map = pool.map_with("bench", &options)?;
        let is_ordered = setup.scheme.is_ordered();
        let ordered = is_ordered.then(|| pool.ordered_map_with("bench", &options)).transpose()?;
        Ok(Words { pool, map, ordered, dir: dir.into(), waits })
    }
}

impl Client for Words {
    fn load(&mut self, records: &mut dyn Iterator<Item = (u64, u64)>) -> Fallible {
        for (key, value) in records {
            self.map.insert(&number(key), &value)?;
        }
        Ok(())
    }

    fn insert(&mut self, key: u64, value: u64) -> Fallible {
        self.map.insert(&number(key), &value)?;
        if self.waits {
            self.pool.wait_durable()?;
        }
        Ok(())
    }

    fn get(&mut self, key: u64) -> Fallible<Option<u64>> {
        Ok(self.map.get(&number(key))?)
    }

    fn scan(&mut self, from: u64, records: usize, found: &mut Vec<(u64, u64)>) -> Fallible<bool> {
        let Some(map) = &self.ordered else { return Ok(false) };
        for record in map.range(number(from)..).with_batch(records).take(records) {
            let (key, value) = record?;
            found.push((number(key), value));
        }
        Ok(true)
    }

    fn bytes(&mut self) -> Fallible<u64> {
        bytes_in(&self.dir)
    }
}
