//! outlast as a store of byte strings, and as a store of words.

use super::{Client, Found, SCANNED};
use crate::Fallible;
use crate::form::{Hand, spelled};
use crate::systems::{Setup, create_pool};
use outlast::{Map, MapOptions, OrderedMap, Pool};
use std::ops::Bound;
use std::path::Path;

/// outlast with records of byte strings.
pub(super) struct Strings {
    pool: Pool,
    map: Map<[u8], [u8]>,
    /// The same map, if its scheme keeps a key order.
    ordered: Option<OrderedMap<[u8], [u8]>>,
    waits: bool,
}

impl Strings {
    pub(super) fn create(setup: &Setup, dir: &Path, waits: bool) -> Fallible<Self> {
        let pool = create_pool(setup, &dir.join("pool"))?;
        let options = MapOptions::new().scheme(setup.scheme);
        let map = pool.map_with("bench", &options)?;
        let is_ordered = setup.scheme.is_ordered();
        let ordered = is_ordered.then(|| pool.ordered_map_with("bench", &options)).transpose()?;
        Ok(Strings { pool, map, ordered, waits })
    }
}

impl Client for Strings {
    fn load(&self, hand: &mut Hand, records: &mut dyn Iterator<Item = (u64, u64)>) -> Fallible {
        for (key, value) in records {
            let (key, value) = hand.pair_bytes(key, value);
            self.map.insert(key, value)?;
        }
        Ok(())
    }

    fn insert(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible {
        let (key, value) = hand.pair_bytes(key, value);
        self.map.insert(key, value)?;
        if self.waits {
            self.pool.wait_durable()?;
        }
        Ok(())
    }

    fn get(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>> {
        let reading = hand.reading;
        let found = self.map.get(hand.key_bytes(key))?;
        Ok(found.map(|value| reading.word(&value)))
    }

    fn scan(&self, hand: &mut Hand, from: u64, found: &mut Found) -> Fallible<bool> {
        let Some(map) = &self.ordered else { return Ok(false) };
        let reading = hand.reading;
        let bounds = (Bound::Included(hand.key_bytes(from)), Bound::Unbounded);
        for record in map.range(bounds).with_batch(SCANNED).take(SCANNED) {
            let (key, value) = record?;
            found.push((spelled(&key), reading.word(&value)));
        }
        Ok(true)
    }
}

/// outlast with inline records of words.
pub(super) struct Words {
    pool: Pool,
    map: Map<u64, u64>,
    /// The same map, if its scheme keeps a key order.
    ordered: Option<OrderedMap<u64, u64>>,
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
        Ok(Words { pool, map, ordered, waits })
    }
}

impl Client for Words {
    fn load(&self, _: &mut Hand, records: &mut dyn Iterator<Item = (u64, u64)>) -> Fallible {
        for (key, value) in records {
            self.map.insert(&number(key), &value)?;
        }
        Ok(())
    }

    fn insert(&self, _: &mut Hand, key: u64, value: u64) -> Fallible {
        self.map.insert(&number(key), &value)?;
        if self.waits {
            self.pool.wait_durable()?;
        }
        Ok(())
    }

    fn get(&self, _: &mut Hand, key: u64) -> Fallible<Option<u64>> {
        Ok(self.map.get(&number(key))?)
    }

    fn scan(&self, _: &mut Hand, from: u64, found: &mut Found) -> Fallible<bool> {
        let Some(map) = &self.ordered else { return Ok(false) };
        for record in map.range(number(from)..).with_batch(SCANNED).take(SCANNED) {
            let (key, value) = record?;
            found.push((number(key), value));
        }
        Ok(true)
    }
}
