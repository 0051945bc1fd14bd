//! A run in progress: what scenarios are made of.

use crate::codec::SPECIAL;
use crate::random::Random;
use crate::schemes::{Parts, parts};
use crate::session::{Do, Session, Shape};
use crate::state::{Checked, Fault};

/// A run in progress.
pub struct Play {
    pub(crate) session: Session,
    pub(crate) shape: Shape,
    pub(crate) random: Random,
    /// What is added to the keys that are no special ones.
    pub(super) base: u64,
    /// The first step that is explored.
    pub(super) from: usize,
}

impl Play {
    /// Everything up to here is preparation.
    pub(crate) fn prepared(&mut self) {
        self.from = self.session.logged();
    }

    pub(crate) fn map(&mut self) -> Checked {
        self.session.create_map("m", self.shape)
    }

    /// The key of this round that stands for `key` of the first.
    pub(crate) fn key(&self, key: u64) -> u64 {
        if (3..SPECIAL).contains(&key) { key + self.base } else { key }
    }

    pub(crate) fn change(&mut self, key: u64, change: Do) -> Checked {
        self.change_in("m", key, change)
    }

    pub(crate) fn change_in(&mut self, name: &str, key: u64, change: Do) -> Checked {
        self.session.change(name, self.key(key), change)
    }

    pub(crate) fn get(&mut self, key: u64) -> Checked {
        self.session.get("m", self.key(key))
    }

    /// Inserts keys from `first` on until the map has grown so many times.
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

    /// Inserts keys until the map has grown so many times, and removes them again: its
    /// structure stays.
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

    /// Inserts keys as long as the map does not grow.
    pub(crate) fn insert_to_the_brim(&mut self, count: u64) -> Checked {
        // Both extremes are keys like others.
        for key in (0..3).chain(10..count + 7) {
            self.change(key, Do::Insert(key + 100_000))?;
        }
        Ok(())
    }

    /// Records that a new map of this shape takes without growing.
    pub(crate) fn brim(&self) -> u64 {
        (self.parts().brim)(self.shape.config)
    }

    pub(crate) fn parts(&self) -> &'static Parts {
        parts(self.shape.scheme())
    }
}
