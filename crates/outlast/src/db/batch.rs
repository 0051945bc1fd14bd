//! Batches: changes of several records, of which a crash leaves all or none. The module `make`
//! describes the protocol.

mod make;

use super::open_map::OpenMap;
use super::opened::Guarded;
use super::raw::RawMap;
use crate::error::{Error, Result};
use crate::pool::clock::NEVER;
use std::fmt;
use std::sync::Arc;

/// A record that a batch requires, or one of its changes.
#[derive(Clone)]
pub struct BatchRecord {
    /// The map.
    pub map: Arc<OpenMap>,
    /// The key, as bytes; see [`RawMap`].
    pub key: Vec<u8>,
    /// The value; `None` if the key is absent.
    pub value: Option<Vec<u8>>,
    /// When a new value expires; `None` keeps the time of the record. Only of changes of maps whose records
    /// expire.
    pub time: Option<u64>,
}

/// Changes of several records, in one map or in several maps of a pool. Once
/// [`commit`](Batch::commit) has returned `true`, all of them are made; if it returns `false`, none
/// is. A crash during the call leaves either all of them or none.
///
/// ```
/// # fn main() -> outlast::Result<()> {
/// let pool = outlast::PoolOptions::new().anonymous()?;
/// let accounts = pool.map::<str, u64>("accounts")?;
/// let transfers = pool.ordered_map::<u64, str>("transfers")?;
/// accounts.put("ada", &100)?;
///
/// // 30 from Ada to Bob, if they have what they had when the sums were computed.
/// let mut batch = pool.batch();
/// batch.require(&accounts, "ada", Some(&100))?.require(&accounts, "bob", None)?;
/// batch.put(&accounts, "ada", &70)?.put(&accounts, "bob", &30)?;
/// batch.put(&transfers, &1, "30 from ada to bob")?;
/// assert!(batch.commit()?);
/// assert_eq!(accounts.get("bob")?, Some(30));
/// # Ok(())
/// # }
/// ```
///
/// # What other threads see
///
/// No other thread changes a record of the pool between the check of what the batch
/// [requires](Batch::require) and the last change of the batch. So batches and other changes take
/// effect one after another. A batch that requires everything that its changes depend on is a
/// transaction.
///
/// Lookups and iterations go on meanwhile, and can see a part of the batch. What they see survives
/// a crash, with the exception named at [`commit`](Batch::commit). (In the first moments after a
/// crash, a lookup may have to repair something first, and then it waits for the batch.)
///
/// # Complexity
///
/// A batch takes as long as its changes one by one, plus a lookup of each key, plus the writing of
/// a log in the pool, which is about as large as the keys, the new values and the old values
/// together. In a full pool, even a batch of removals has no space for its log. Until the changes are
/// made, memory holds them about three times. Everything else that changes the pool waits meanwhile,
/// and so do `sync`, `snapshot` and the cuts of a journal. Where the records need not change together, use
/// [`put_many`](crate::Map::put_many) and similar methods: they are faster, and no other thread
/// waits for them.
///
/// If a crash cuts a batch short, the next open makes its changes before it returns, which takes as
/// long as the batch.
#[must_use = "nothing is changed until `commit`"]
pub struct Batch {
    pool: Arc<Guarded>,
    required: Vec<BatchRecord>,
    changes: Vec<BatchRecord>,
    /// The requirement that kept the last commit from being made.
    failed: Option<usize>,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("required", &self.required.len())
            .field("changes", &self.changes.len())
            .finish()
    }
}

/// Fails if the map belongs to another pool, or cannot have this record.
pub(super) fn check_record(
    pool: &Arc<Guarded>,
    map: &RawMap,
    key: &[u8],
    value: Option<&[u8]>,
) -> Result<()> {
    make::check(map.info(), key, value)?;
    if Arc::ptr_eq(pool, &map.pool) {
        return Ok(());
    }
    let why = format!("the map {:?} belongs to another pool", map.info().name);
    Err(Error::Invalid { what: "batch", why })
}

impl Batch {
    pub(super) fn new(pool: Arc<Guarded>) -> Batch {
        Batch { pool, required: Vec::new(), changes: Vec::new(), failed: None }
    }

    /// Adds a change of a map of unknown types: puts `value`, or removes `key` if `value` is
    /// `None`. See [`RawMap`] for the bytes. If a key is named more than once, the last change
    /// counts.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// pool.map::<str, u64>("ages")?.insert("Ada", &36)?;
    /// let ages = pool.raw_map("ages")?;
    /// let mut batch = pool.batch();
    /// batch.change_raw(&ages, b"Ada", None)?;
    /// batch.change_raw(&ages, b"Bob", Some(&40u64.to_le_bytes()))?;
    /// batch.commit()?;
    /// assert_eq!(pool.map::<str, u64>("ages")?.get("Bob")?, Some(40));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the map belongs to another pool, or if its types do not allow these
    /// bytes; [`Error::KeyTooLarge`], [`Error::ValueTooLarge`].
    pub fn change_raw(
        &mut self,
        map: &RawMap,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<&mut Self> {
        self.change_timed(map, key, value, NEVER)
    }

    /// Like [`change_raw`](Self::change_raw). A new value expires at this time.
    pub(super) fn change_timed(
        &mut self,
        map: &RawMap,
        key: &[u8],
        value: Option<&[u8]>,
        time: u64,
    ) -> Result<&mut Self> {
        let record = self.record(map, key, value)?;
        self.changes.push(BatchRecord { time: Some(time), ..record });
        Ok(self)
    }

    /// Adds a requirement on a map of unknown types: that `key` has this value, or is absent if
    /// `value` is `None`.
    ///
    /// # Errors
    /// Same as for [`change_raw`](Batch::change_raw).
    pub fn require_raw(
        &mut self,
        map: &RawMap,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<&mut Self> {
        let record = self.record(map, key, value)?;
        self.required.push(record);
        Ok(self)
    }

    fn record(&self, map: &RawMap, key: &[u8], value: Option<&[u8]>) -> Result<BatchRecord> {
        check_record(&self.pool, map, key, value)?;
        let (key, value) = (key.to_vec(), value.map(<[u8]>::to_vec));
        Ok(BatchRecord { map: Arc::clone(&map.map), key, value, time: None })
    }

    /// Returns the number of changes.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// let mut batch = pool.batch();
    /// batch.put(&ages, "Ada", &36)?.remove(&ages, "Bob")?;
    /// assert_eq!(batch.len(), 2);
    /// batch.commit()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Returns whether there are no changes.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let mut batch = pool.batch();
    /// assert!(batch.is_empty());
    /// batch.commit()?; // Does nothing.
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Makes all changes, in the order in which they were added, if all requirements hold. Returns
    /// whether they hold; if not, nothing is changed. When this returns, the changes are as durable
    /// as those of any operation ([`Pool::durability`](crate::Pool::durability)), and the batch is
    /// empty.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// let mut batch = pool.batch();
    /// batch.put(&ages, "Ada", &36)?;
    /// assert_eq!(ages.get("Ada")?, None, "nothing has happened yet");
    /// batch.commit()?;
    /// assert_eq!(ages.get("Ada")?, Some(36));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of any change of a map; [`Error::ReadOnly`]; [`Error::Invalid`] if the log of the
    /// batch would be larger than a block of the pool can be: about half a GiB, less in a pool with
    /// small pages. On an error, no record is changed, and the batch is as before.
    ///
    /// The pool may run out of space while the batch is under way. Then the changes made so far are
    /// undone, although readers may have seen them. Space for undoing them is set aside beforehand.
    /// If even that does not suffice, every later call fails with [`Error::NotOpen`] until the pool
    /// is opened again. That open makes all of the batch's changes or undoes all of them.
    pub fn commit(&mut self) -> Result<bool> {
        self.failed = None;
        self.failed = self.pool.store.make_batch(&self.required, &self.changes)?;
        self.required.clear();
        self.changes.clear();
        Ok(self.failed.is_none())
    }

    /// Returns which requirement did not hold when [`commit`](Batch::commit) returned `false`: the
    /// first one, counted from 0 in the order in which they were added.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// ages.insert("Ada", &36)?;
    /// let mut batch = pool.batch();
    /// batch.require(&ages, "Ada", Some(&36))?.require(&ages, "Bob", Some(&40))?;
    /// assert!(!batch.put(&ages, "Ada", &37)?.commit()?);
    /// assert_eq!(batch.failed(), Some(1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn failed(&self) -> Option<usize> {
        self.failed
    }
}
