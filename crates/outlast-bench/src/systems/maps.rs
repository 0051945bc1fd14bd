//! Maps in DRAM. All use our hash function and begin empty.
//!
//! Each is used as its documentation recommends. Inserts use `insert`: the keys of a workload are
//! distinct, so inserting if absent and replacing are the same. Updates are made in place if the
//! map allows it.

use super::System;
use crate::Fallible;
use crate::form::{Form, Hand, OurBuild};

/// `dashmap::DashMap`.
pub(super) struct Dashmap<F: Form>(dashmap::DashMap<F::Key, F::Value, OurBuild>);

impl<F: Form> Dashmap<F> {
    pub(super) fn new(build: OurBuild) -> Self {
        Dashmap(dashmap::DashMap::with_hasher(build))
    }
}

impl<F: Form> System for Dashmap<F> {
    #[inline]
    fn get(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>> {
        let reading = hand.reading;
        let found = self.0.get(F::lookup(hand, key));
        Ok(found.map(|entry| F::word(reading, entry.value())))
    }
    #[inline]
    fn insert(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible<bool> {
        Ok(self.0.insert(F::key(hand, key), F::value(hand, value)).is_none())
    }
    #[inline]
    fn update(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible<bool> {
        let value = F::value(hand, value);
        Ok(match self.0.get_mut(F::lookup(hand, key)) {
            Some(mut entry) => {
                *entry = value;
                true
            }
            None => false,
        })
    }
    #[inline]
    fn remove(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>> {
        let reading = hand.reading;
        let found = self.0.remove(F::lookup(hand, key));
        Ok(found.map(|(_, value)| F::word(reading, &value)))
    }
}

/// `papaya::HashMap`, pinned for each operation.
pub(super) struct Papaya<F: Form>(papaya::HashMap<F::Key, F::Value, OurBuild>);

impl<F: Form> Papaya<F> {
    pub(super) fn new(build: OurBuild) -> Self {
        Papaya(papaya::HashMap::with_hasher(build))
    }
}

impl<F: Form> System for Papaya<F> {
    #[inline]
    fn get(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>> {
        let reading = hand.reading;
        let map = self.0.pin();
        let found = map.get(F::lookup(hand, key));
        Ok(found.map(|value| F::word(reading, value)))
    }
    #[inline]
    fn insert(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible<bool> {
        Ok(self.0.pin().insert(F::key(hand, key), F::value(hand, value)).is_none())
    }
    #[inline]
    fn update(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible<bool> {
        let value = F::value(hand, value);
        Ok(self.0.pin().update(F::key(hand, key), |_| value.clone()).is_some())
    }
    #[inline]
    fn remove(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>> {
        let reading = hand.reading;
        let map = self.0.pin();
        let found = map.remove(F::lookup(hand, key));
        Ok(found.map(|value| F::word(reading, value)))
    }
}

/// `scc::HashMap`.
pub(super) struct Scc<F: Form>(scc::HashMap<F::Key, F::Value, OurBuild>);

impl<F: Form> Scc<F> {
    pub(super) fn new(build: OurBuild) -> Self {
        Scc(scc::HashMap::with_hasher(build))
    }
}

impl<F: Form> System for Scc<F> {
    #[inline]
    fn get(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>> {
        let reading = hand.reading;
        Ok(self.0.read_sync(F::lookup(hand, key), |_, value| F::word(reading, value)))
    }
    #[inline]
    fn insert(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible<bool> {
        Ok(self.0.insert_sync(F::key(hand, key), F::value(hand, value)).is_ok())
    }
    #[inline]
    fn update(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible<bool> {
        let new = F::value(hand, value);
        Ok(self.0.update_sync(F::lookup(hand, key), |_, value| *value = new).is_some())
    }
    #[inline]
    fn remove(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>> {
        let reading = hand.reading;
        let found = self.0.remove_sync(F::lookup(hand, key));
        Ok(found.map(|(_, value)| F::word(reading, &value)))
    }
}

/// `hashbrown::HashMap` behind one reader-writer lock.
pub(super) struct Hashbrown<F: Form>(
    parking_lot::RwLock<hashbrown::HashMap<F::Key, F::Value, OurBuild>>,
);

impl<F: Form> Hashbrown<F> {
    pub(super) fn new(build: OurBuild) -> Self {
        Hashbrown(parking_lot::RwLock::new(hashbrown::HashMap::with_hasher(build)))
    }
}

impl<F: Form> System for Hashbrown<F> {
    #[inline]
    fn get(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>> {
        let reading = hand.reading;
        let map = self.0.read();
        let found = map.get(F::lookup(hand, key));
        Ok(found.map(|value| F::word(reading, value)))
    }
    #[inline]
    fn insert(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible<bool> {
        let (key, value) = (F::key(hand, key), F::value(hand, value));
        Ok(self.0.write().insert(key, value).is_none())
    }
    #[inline]
    fn update(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible<bool> {
        let new = F::value(hand, value);
        Ok(match self.0.write().get_mut(F::lookup(hand, key)) {
            Some(value) => {
                *value = new;
                true
            }
            None => false,
        })
    }
    #[inline]
    fn remove(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>> {
        let reading = hand.reading;
        let found = self.0.write().remove(F::lookup(hand, key));
        Ok(found.map(|value| F::word(reading, &value)))
    }
}
