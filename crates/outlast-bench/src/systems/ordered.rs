//! Maps in DRAM that keep keys in order, used as their documentation recommends.

use super::System;
use crate::Fallible;
use crate::form::{Form, Hand};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ops::Bound;

/// `crossbeam_skiplist::SkipMap`.
pub(super) struct Skiplist<F: Form>(crossbeam_skiplist::SkipMap<F::Key, F::Value>);

impl<F: Form> Skiplist<F> {
    pub(super) fn new() -> Self {
        Skiplist(crossbeam_skiplist::SkipMap::new())
    }
}

impl<F: Form> System for Skiplist<F> {
    #[inline]
    fn get(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>> {
        let reading = hand.reading;
        let found = self.0.get(F::lookup(hand, key));
        Ok(found.map(|entry| F::word(reading, entry.value())))
    }
    #[inline]
    fn insert(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible<bool> {
        // The map does not report whether the key was present. The keys of a workload are distinct.
        self.0.insert(F::key(hand, key), F::value(hand, value));
        Ok(true)
    }
    #[inline]
    fn update(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible<bool> {
        // An update replaces the entry, because values cannot be changed in place.
        if !self.0.contains_key(F::lookup(hand, key)) {
            return Ok(false);
        }
        self.0.insert(F::key(hand, key), F::value(hand, value));
        Ok(true)
    }
    #[inline]
    fn remove(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>> {
        let reading = hand.reading;
        let found = self.0.remove(F::lookup(hand, key));
        Ok(found.map(|entry| F::word(reading, entry.value())))
    }
    fn scan(
        &self,
        hand: &mut Hand,
        from: u64,
        records: usize,
        found: &mut Vec<(u64, u64)>,
    ) -> Fallible {
        let reading = hand.reading;
        let bounds = (Bound::Included(F::lookup(hand, from)), Bound::Unbounded);
        let word = |key: &F::Key| F::key_word(std::borrow::Borrow::borrow(key));
        let range = self.0.range::<F::Lookup, _>(bounds).take(records);
        found.extend(range.map(|entry| (word(entry.key()), F::word(reading, entry.value()))));
        Ok(())
    }
}

/// `std::collections::BTreeMap` behind one reader-writer lock.
pub(super) struct Btree<F: Form>(RwLock<BTreeMap<F::Key, F::Value>>);

impl<F: Form> Btree<F> {
    pub(super) fn new() -> Self {
        Btree(RwLock::new(BTreeMap::new()))
    }
}

impl<F: Form> System for Btree<F> {
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
    fn scan(
        &self,
        hand: &mut Hand,
        from: u64,
        records: usize,
        found: &mut Vec<(u64, u64)>,
    ) -> Fallible {
        let reading = hand.reading;
        let bounds = (Bound::Included(F::lookup(hand, from)), Bound::Unbounded);
        let map = self.0.read();
        let word = |key: &F::Key| F::key_word(std::borrow::Borrow::borrow(key));
        let range = map.range::<F::Lookup, _>(bounds).take(records);
        found.extend(range.map(|(key, value)| (word(key), F::word(reading, value))));
        Ok(())
    }
}
