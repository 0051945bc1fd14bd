//! Maps behind the public interface, with numbers for keys and values.

use crate::codec::{Form, key_bytes, value_bytes};
use crate::session::Do;
use crate::state::{Checked, Fault, ensure};
use crate::structures::structure;
use outlast::internals::index::{Bytes, Inline};
use outlast::{Config, Map, MapOptions, Pool, RecordForm, Scheme};

/// A map of either record form.
pub enum AnyMap {
    /// 8-byte keys and values.
    Inline(Map<u64, u64>),
    /// Byte strings.
    Bytes(Map<[u8], [u8]>),
}

/// The name and shape of a map of a torture pool.
#[derive(Debug, Clone, Copy)]
pub struct MapShape {
    /// Its name.
    pub name: &'static str,
    /// Its record form.
    pub form: RecordForm,
    /// Whether its settings are the smallest, so that it grows all the time.
    pub small: bool,
}

/// The maps of a torture pool. For each form there is one with default options and one that grows
/// all the time.
pub const MAPS: [MapShape; 4] = [
    MapShape { name: "inline", form: RecordForm::Inline, small: false },
    MapShape { name: "bytes", form: RecordForm::Bytes, small: false },
    MapShape { name: "inline, small", form: RecordForm::Inline, small: true },
    MapShape { name: "bytes, small", form: RecordForm::Bytes, small: true },
];

fn number(bytes: &Vec<u8>) -> Checked<u64> {
    Bytes::value_number(bytes)
        .ok_or_else(|| Fault(format!("a value that nobody wrote: {bytes:02x?}")))
}

impl AnyMap {
    /// Opens a map, or creates it.
    ///
    /// # Errors
    /// The errors of [`Pool::map_with`].
    pub fn open(pool: &Pool, shape: &MapShape, scheme: Scheme) -> outlast::Result<AnyMap> {
        let config = match shape.small {
            true => (structure(scheme).small)(shape.form),
            false => Config::of(scheme),
        };
        let options = MapOptions::new().config(config);
        Ok(match shape.form {
            RecordForm::Inline => AnyMap::Inline(pool.map_with(shape.name, &options)?),
            RecordForm::Bytes => AnyMap::Bytes(pool.map_with(shape.name, &options)?),
        })
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// If the map fails, or the value is one that nobody wrote.
    pub fn get(&self, key: u64) -> Checked<Option<u64>> {
        match self {
            AnyMap::Inline(map) => Ok(map.get(&Inline::nth_key(key))?),
            AnyMap::Bytes(map) => map.get(&key_bytes(key))?.as_ref().map(number).transpose(),
        }
    }

    /// Changes a key. Returns whether the change applied, and the value before if the call returns
    /// it.
    ///
    /// # Errors
    /// If the map fails, or the value before is one that nobody wrote.
    pub fn apply(&self, key: u64, change: Do) -> Checked<(bool, Option<Option<u64>>)> {
        Ok(match self {
            AnyMap::Inline(map) => {
                let key = Inline::nth_key(key);
                match change {
                    Do::Insert(v) => (map.insert(&key, &v)?, None),
                    Do::Update(v) => (map.update(&key, &v)?, None),
                    Do::Swap(old, new) => (map.compare_swap(&key, &old, &new)?, None),
                    Do::CompareRemove(old) => (map.compare_remove(&key, &old)?, None),
                    Do::Put(v) => (true, Some(map.put(&key, &v)?)),
                    Do::Remove => {
                        let told = map.remove(&key)?;
                        (told.is_some(), Some(told))
                    }
                }
            }
            AnyMap::Bytes(map) => {
                let key = key_bytes(key);
                let as_number = |value: Option<Vec<u8>>| value.as_ref().map(number).transpose();
                match change {
                    Do::Insert(v) => (map.insert(&key, &value_bytes(v))?, None),
                    Do::Update(v) => (map.update(&key, &value_bytes(v))?, None),
                    Do::Swap(old, new) => {
                        (map.compare_swap(&key, &value_bytes(old), &value_bytes(new))?, None)
                    }
                    Do::CompareRemove(old) => (map.compare_remove(&key, &value_bytes(old))?, None),
                    Do::Put(v) => (true, Some(as_number(map.put(&key, &value_bytes(v))?)?)),
                    Do::Remove => {
                        let told = as_number(map.remove(&key)?)?;
                        (told.is_some(), Some(told))
                    }
                }
            }
        })
    }

    /// Changes a key whose value is `before`, and checks the result.
    ///
    /// # Errors
    /// If the map fails or returns something wrong.
    pub fn change(&self, key: u64, change: Do, before: Option<u64>) -> Checked {
        let (applies, _) = change.on(before);
        let (applied, told) = self.apply(key, change)?;
        let right = applied == applies && told.is_none_or(|told| told == before);
        ensure(right, || {
            format!("{change:?} of key {key}, value {before:?}: returned {applied}, {told:?}")
        })
    }

    /// Returns all records, by iteration.
    ///
    /// # Errors
    /// If the map fails, or holds something that nobody wrote.
    pub fn records(&self) -> Checked<Vec<(u64, u64)>> {
        match self {
            AnyMap::Inline(map) => map
                .iter()
                .map(|record| {
                    let (key, value) = record?;
                    let key = Inline::key_number(&key)
                        .ok_or_else(|| Fault(format!("a key that nobody wrote: {key}")))?;
                    Ok((key, value))
                })
                .collect(),
            AnyMap::Bytes(map) => map
                .iter()
                .map(|record| {
                    let (key, value) = record?;
                    let key = Bytes::key_number(&key)
                        .ok_or_else(|| Fault(format!("a key that nobody wrote: {key:02x?}")))?;
                    Ok((key, number(&value)?))
                })
                .collect(),
        }
    }
}
