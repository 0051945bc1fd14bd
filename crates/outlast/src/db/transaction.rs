//! Transactions: reads and changes of several records that take effect as one.
//!
//! A transaction stores nothing while it runs. Each record is looked up once, and its value noted. In the
//! end, the changes are a batch that requires the noted values (`batch::make`).
//!
//! *Linearization point.* The batch compares all noted values, and makes the changes, while it holds
//! the gate, so no other thread changes anything in between. If every record has its noted value then, a
//! transaction that ran at that moment, alone, would have read the same and done the same. The record
//! may have had other values since it was read (ABA); that makes no difference, since nothing but the
//! values was read. If one differs, the transaction runs again from its beginning.
//!
//! Without changes, the comparison alone is made. It is left out if there is nothing to compare: for one
//! record, whose lookup is its own linearization point, and in a pool that is open read-only.
//!
//! *Crash.* Before the batch word is stored, nothing of the transaction is in the pool; after that, all of
//! it: see `batch::make`. What it returns depends on changes that were visible, so a crash does not
//! undo these, with the same exception as for any lookup (a batch that runs out of space is undone).

use super::batch::{BatchRecord, check_record};
use super::opened::Guarded;
use super::raw::RawMap;
use crate::error::{Error, Result};
use crate::pool::clock::NEVER;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Reads and changes of several records, in one map or in several maps of a pool, which take effect
/// as one. See [`Pool::transaction`](crate::Pool::transaction).
///
/// Nothing is changed before the transaction ends. What it has changed, it reads as changed. What it
/// has read, it reads again as it was.
#[must_use = "nothing is changed until it ends"]
pub struct Transaction {
    pool: Arc<Guarded>,
    /// Keyed by map (a process has one `OpenMap` for each) and key.
    records: BTreeMap<(usize, Vec<u8>), Noted>,
}

/// What a transaction has done with a record.
struct Noted {
    map: RawMap,
    /// The value that it has read, if it has read the record. The commit requires that value.
    read: Option<Option<Vec<u8>>>,
    /// What it changes the value to.
    change: Option<Option<Vec<u8>>>,
    /// When the new value expires; `None` keeps the time of the record.
    time: Option<u64>,
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("records", &self.records.len()).finish()
    }
}

impl Transaction {
    pub(super) fn begin(pool: Arc<Guarded>) -> Self {
        Transaction { pool, records: BTreeMap::new() }
    }

    fn note(&mut self, map: &RawMap, key: &[u8]) -> &mut Noted {
        let id = (Arc::as_ptr(&map.map) as usize, key.to_vec());
        self.records.entry(id).or_insert_with(|| Noted {
            map: map.clone(),
            read: None,
            change: None,
            time: None,
        })
    }

    /// Reads the value of `key` in a map of unknown types. See [`RawMap`] for the bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the map belongs to another pool, or if it cannot have this key;
    /// [`Error::KeyTooLarge`]; those of [`RawMap::get`].
    pub fn get_raw(&mut self, map: &RawMap, key: &[u8]) -> Result<Option<Vec<u8>>> {
        check_record(&self.pool, map, key, None)?;
        let noted = self.note(map, key);
        if let Some(value) = noted.change.as_ref().or(noted.read.as_ref()) {
            return Ok(value.clone());
        }
        let value = map.get(key)?;
        noted.read = Some(value.clone());
        Ok(value)
    }

    /// Changes a record of a map of unknown types: puts `value`, or removes `key` if `value` is
    /// `None`.
    ///
    /// # Errors
    /// Those of [`Batch::change_raw`](crate::Batch::change_raw).
    pub fn change_raw(&mut self, map: &RawMap, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.change_timed(map, key, value, Some(NEVER))
    }

    /// Like [`change_raw`](Self::change_raw). A new value expires at this time; without one, it expires when
    /// the value before it would have.
    pub(crate) fn change_timed(
        &mut self,
        map: &RawMap,
        key: &[u8],
        value: Option<&[u8]>,
        time: Option<u64>,
    ) -> Result<()> {
        check_record(&self.pool, map, key, value)?;
        let noted = self.note(map, key);
        noted.time = match (time, &noted.change) {
            (None, Some(Some(_))) => noted.time,
            // The transaction has removed the record, so this is a new one.
            (None, Some(None)) => Some(NEVER),
            (time, _) => time,
        };
        noted.change = Some(value.map(<[u8]>::to_vec));
        Ok(())
    }

    /// Makes the changes, if every record that was read still has the value that was read. Returns
    /// whether that is so. `changes` tells whether there are any to be made.
    pub(super) fn end(self, changes: bool) -> Result<bool> {
        let (mut required, mut changed) = (Vec::new(), Vec::new());
        for ((_, key), Noted { map, read, change, time }) in self.records {
            let record =
                |value| BatchRecord { map: Arc::clone(&map.map), key: key.clone(), value, time };
            required.extend(read.map(record));
            changed.extend(change.filter(|_| changes).map(record));
        }
        let is_read_only = self.pool.store.core().options().read_only;
        if changed.is_empty() && (required.len() <= 1 || is_read_only) {
            // One lookup is one moment, and nobody changes a pool that is open read-only.
            return Ok(true);
        }
        Ok(self.pool.store.make_batch(&required, &changed)?.is_none())
    }
}

/// Runs a transaction until no other change has interfered.
pub(super) fn run<T, E: From<Error>>(
    pool: &Arc<Guarded>,
    mut run: impl FnMut(&mut Transaction) -> Result<T, E>,
) -> Result<T, E> {
    loop {
        let mut transaction = Transaction::begin(Arc::clone(pool));
        let done = run(&mut transaction);
        // An error may come from records that were read at different moments.
        if transaction.end(done.is_ok())? {
            return done;
        }
        std::thread::yield_now();
    }
}
