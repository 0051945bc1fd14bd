//! A run in progress, with the steps that scenarios are made of.

use crate::codec::SPECIAL;
use crate::random::Random;
use crate::session::{Do, Session};
use crate::state::{Checked, Fault};
use crate::structures::Shape;

/// A run in progress.
pub struct Play {
    pub(crate) session: Session,
    pub(crate) shape: Shape,
    pub(crate) random: Random,
    /// Added to all keys except those below 3 and those from [`SPECIAL`] on.
    pub(crate) base: u64,
    /// The first step to explore.
    pub(crate) from: usize,
}

impl Play {
    /// Marks everything up to here as preparation.
    pub(crate) fn prepared(&mut self) {
        self.from = self.session.logged();
    }

    pub(crate) fn map(&mut self) -> Checked {
        self.session.create_map("m", self.shape)
    }

    /// Returns the key of this round that corresponds to `key` of the first.
    pub(crate) fn key(&self, key: u64) -> u64 {
        if (3..SPECIAL).contains(&key) { key + self.base } else { key }
    }

    pub(crate) fn change(&mut self, key: u64, change: Do) -> Checked {
        self.change_in("m", key, change)
    }

    pub(crate) fn change_in(&mut self, name: &str, key: u64, change: Do) -> Checked {
        self.session.change(name, self.key(key), change)
    }

    /// Makes changes with one call.
    pub(crate) fn change_many(&mut self, changes: &[(u64, Do)]) -> Checked {
        let changes: Vec<_> =
            changes.iter().map(|&(key, change)| (self.key(key), change)).collect();
        self.session.change_many("m", &changes)
    }

    pub(crate) fn get(&mut self, key: u64) -> Checked {
        self.session.get("m", self.key(key))
    }

    /// Inserts keys from `first` on until the map has grown this many times since it was opened.
    /// Returns the first key that it did not insert.
    pub(crate) fn insert_until_grown(&mut self, first: u64, times: u64) -> Checked<u64> {
        let mut key = first;
        while self.session.grown("m")? < times {
            self.change(key, Do::Insert(key + 100_000))?;
            key += 1;
            if key - first > 600 {
                return Err(Fault(format!("not grown {times} times by {} inserts", key - first)));
            }
        }
        Ok(key)
    }

    /// Inserts keys until the map has grown this many times since it was opened, and then removes
    /// them. The structure that has grown stays.
    pub(crate) fn insert_and_remove_until_grown(&mut self, first: u64, times: u64) -> Checked {
        let mut key = first;
        while self.session.grown("m")? < times {
            for _ in 0..16 {
                self.change(key, Do::Insert(key + 100_000))?;
                key += 1;
            }
        }
        for key in first..key {
            self.change(key, Do::Remove)?;
        }
        self.session.forget_used();
        Ok(())
    }

    /// Inserts keys, which must be few enough that the map does not grow.
    pub(crate) fn insert_to_the_brim(&mut self, count: u64) -> Checked {
        // The first three keys include the lowest and the highest that there are.
        for key in (0..3).chain(10..count + 7) {
            self.change(key, Do::Insert(key + 100_000))?;
        }
        Ok(())
    }

    /// Returns how many records a new map of this shape takes without growing.
    pub(crate) fn brim(&self) -> u64 {
        (self.shape.structure().brim)(self.shape.config)
    }
}
