//! Batches: changes of several records, of which a crash leaves all or none.
//!
//! A batch is written to a *log*, a block of its own, before the first of its changes is made. The
//! *batch word* of the pool leads to the log:
//!
//! 1. The thread holds the gate, so that nobody else makes a change until the batch is over.
//! 2. It reads the values that the keys have, and writes them to the log together with the changes. The
//!    log is durable before the batch word is stored.
//! 3. The batch word is stored. Once it is durable, the batch takes place, whatever happens.
//! 4. The changes are made as operations on their maps. Each is durable by itself, and readers may see it
//!    at once, because a crash cannot undo it any more.
//! 5. The batch word becomes 0. Once that is durable, the log's block is free.
//!
//! A pool that opens and finds a batch word makes all changes of the log again, before anything else
//! is done with the pool. That is no harm to those that were made already, since nobody has changed
//! the records since.
//!
//! If a change fails, because the pool is full for example, all keys get back the values that they had.
//! Space for that is kept aside from the beginning. A crash meanwhile leaves the batch word in place, so the
//! next open tries the changes again, and takes them back again if it fails too.

use super::handle::Guarded;
use super::open_map::{MapSeam, OpenMap};
use super::raw::{Form, RawMap, bytes_of, word};
use super::roots;
use super::store::Store;
use crate::db::bugs;
use crate::error::{Error, Result};
use crate::index::{Change, Index, Previous, Record};
use crate::pool::batch::Log;
use crate::pool::unlinked::UnlinkedBlock;
use std::fmt;
use std::sync::Arc;

/// A change of one record, as a part of a batch.
#[derive(Clone)]
pub struct BatchChange {
    /// The map.
    pub map: Arc<OpenMap>,
    /// The key, as bytes; see [`RawMap`].
    pub key: Vec<u8>,
    /// The value to put, or `None` to remove the key.
    pub value: Option<Vec<u8>>,
}

/// Changes of several records, in one map or in several maps of a pool. Once [`commit`](Batch::commit) has
/// returned, all of them are made. A crash before that leaves either all of them or none.
///
/// ```
/// # fn main() -> outlast::Result<()> {
/// let pool = outlast::PoolOptions::new().anonymous()?;
/// let accounts = pool.map::<str, u64>("accounts")?;
/// let transfers = pool.ordered_map::<u64, str>("transfers")?;
/// accounts.put("ada", &100)?;
///
/// let mut batch = pool.batch();
/// batch.put(&accounts, "ada", &70)?.put(&accounts, "bob", &30)?;
/// batch.put(&transfers, &1, "30 from ada to bob")?;
/// batch.commit()?;
/// assert_eq!(accounts.get("bob")?, Some(30));
/// # Ok(())
/// # }
/// ```
///
/// # What other threads see
///
/// No other thread changes a record of the pool between the first change of a batch and its last. So batches
/// never mix, and nobody else's change is lost. (A value that the program has *read* before the batch can
/// have been changed since.)
///
/// Readers go on meanwhile, and are *not* kept from seeing a part of the batch. What they see is
/// durable: no crash undoes it.
///
/// # Complexity
///
/// A batch takes the time of its changes one by one, plus that of a lookup of each key, plus the time to
/// write everything to a log in the pool: about as many bytes as the keys, the new values and the old ones.
/// Writers of all maps of the pool wait meanwhile. Use
/// [`put_many`](crate::Map::put_many) and its like where each record may stand for itself: they are faster, and hold
/// nobody back.
#[must_use = "nothing is changed until `commit`"]
pub struct Batch {
    pool: Arc<Guarded>,
    changes: Vec<BatchChange>,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("changes", &self.changes.len()).finish()
    }
}

impl Batch {
    pub(super) fn new(pool: Arc<Guarded>) -> Batch {
        Batch { pool, changes: Vec::new() }
    }

    /// Adds to a map of unknown types: puts `value`, or removes `key` if there is none. See [`RawMap`] for the
    /// bytes. If a key is named more than once, the last change counts.
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
    /// [`Error::Invalid`] if the map is one of another pool, or if its types do not allow these bytes;
    /// [`Error::KeyTooLarge`], [`Error::ValueTooLarge`].
    pub fn change_raw(
        &mut self,
        map: &RawMap,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<&mut Self> {
        map.check_batched(key, value)?;
        if !Arc::ptr_eq(&self.pool, &map.pool) {
            let why = format!("the map {:?} is one of another pool", map.info().name);
            return Err(Error::Invalid { what: "batch", why });
        }
        let (key, value) = (key.to_vec(), value.map(<[u8]>::to_vec));
        self.changes.push(BatchChange { map: Arc::clone(&map.map), key, value });
        Ok(self)
    }

    /// Counts the changes.
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
    /// let batch = pool.batch();
    /// assert!(batch.is_empty());
    /// batch.commit()?; // Does nothing.
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Makes all changes, in the order in which they were added. When this returns, they are durable
    /// as those of any operation are ([`Pool::durability`](crate::Pool::durability)).
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
    /// As any change of a map; [`Error::ReadOnly`]; [`Error::Invalid`] if the batch is too large for
    /// one block of the pool, which has at most 256 MiB. On an error, no record is changed. If the
    /// pool has no space left while the batch is under way, readers can have seen some of its changes
    /// before they are taken back.
    pub fn commit(self) -> Result<()> {
        self.pool.store.make_batch(&self.changes)
    }
}

/// A change in the log.
struct Logged {
    /// Slot of the map's root.
    slot: usize,
    key: Vec<u8>,
    value: Option<Vec<u8>>,
    /// The value before the batch.
    before: Option<Vec<u8>>,
}

impl Logged {
    /// Appends the change to a log.
    ///
    /// ```text
    /// slot: 4 bytes | key: its length in 4 bytes, then it | value | value before
    /// ```
    ///
    /// A value is its length and 1 in 4 bytes, then it; 0 stands for no value.
    fn encode(&self, log: &mut Vec<u8>) {
        log.extend((self.slot as u32).to_le_bytes());
        log.extend((self.key.len() as u32).to_le_bytes());
        log.extend(&self.key);
        for value in [&self.value, &self.before] {
            let len = value.as_ref().map_or(0, |value| value.len() as u32 + 1);
            log.extend(len.to_le_bytes());
            log.extend(value.iter().flatten());
        }
    }

    /// Takes a change from the front of a log. Returns `None` if there is no whole one.
    fn decode(log: &mut &[u8]) -> Option<Logged> {
        let slot = number(log)? as usize;
        let len = number(log)? as usize;
        let key = log.split_off(..len)?.to_vec();
        let mut value = || {
            Some(match number(log)?.checked_sub(1) {
                Some(len) => Some(log.split_off(..len as usize)?.to_vec()),
                None => None,
            })
        };
        Some(Logged { slot, key, value: value()?, before: value()? })
    }
}

fn number(log: &mut &[u8]) -> Option<u32> {
    log.split_off(..4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("4 bytes")))
}

/// Runs the same code for either record form. `$word` makes the form's keys and values from bytes.
macro_rules! each_form {
    ($map:expr, ($index:ident, $from:ident) => $body:expr) => {
        match $map.form()? {
            Form::Inline($index) => {
                let $from = |bytes: &[u8]| word(bytes, "key or value");
                $body
            }
            Form::Bytes($index) => {
                let $from = |bytes| Ok::<&[u8], Error>(bytes);
                $body
            }
        }
    };
}

/// Puts a value, or removes the key.
fn set(map: &OpenMap, key: &[u8], value: Option<&[u8]>) -> Result<()> {
    fn change<'a, R: Record>(
        index: &dyn Index<R>,
        key: R::Key<'a>,
        value: Option<R::Value<'a>>,
    ) -> Result<()> {
        index.change(key, value.map_or(Change::Remove, Change::Put), Previous::UNWANTED).map(drop)
    }
    each_form!(map, (index, from) => change(index, from(key)?, value.map(from).transpose()?))
}

fn get(map: &OpenMap, key: &[u8]) -> Result<Option<Vec<u8>>> {
    Ok(match map.form()? {
        Form::Inline(index) => index.get(word(key, "key")?)?.map(bytes_of),
        Form::Bytes(index) => index.get(key)?,
    })
}

/// Returns the bytes of the block that a record takes, or 0 if none.
fn block_bytes(map: &OpenMap, key: &[u8], value: &[u8]) -> Result<u64> {
    Ok(each_form!(map, (index, from) => index.record_bytes(from(key)?, from(value)?)))
}

impl<S: MapSeam> Store<S> {
    /// Makes all of these changes, or none; see [`Batch::commit`](crate::Batch::commit).
    ///
    /// # Errors
    /// As `Batch::commit`.
    pub fn make_batch(&self, changes: &[BatchChange]) -> Result<()> {
        self.check()?;
        if let Some(damage) = self.damaged_batch.get() {
            return Err(damage.clone().into());
        }
        if changes.is_empty() {
            return Ok(());
        }
        if self.core.memory.seam().seeded(&bugs::BATCH_NOT_ALONE) {
            let _writing = self.core.enter_to_change()?;
            return self.log_and_make(changes);
        }
        self.core.change_alone(|| self.log_and_make(changes))
    }

    fn log_and_make(&self, changes: &[BatchChange]) -> Result<()> {
        let (mut bytes, mut logged, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        for BatchChange { map, key, value } in changes {
            let before = get(map, key)?;
            if let Some(before) = &before {
                match block_bytes(map, key, before)? {
                    0 => {}
                    bytes => kept.push(UnlinkedBlock::allocate(&self.core, bytes)?),
                }
            }
            let change = Logged { slot: map.slot, key: key.clone(), value: value.clone(), before };
            change.encode(&mut bytes);
            logged.push((&**map, change));
        }
        let logged: Vec<_> = logged.iter().map(|(map, change)| (*map, change)).collect();
        let mut log = Log::write(&self.core, &bytes)?;
        let seam = self.core.memory.seam();
        if seam.seeded(&bugs::BATCH_MADE_EARLY) {
            make(&logged)?;
        }
        log.commit()?;
        if seam.seeded(&bugs::BATCH_CLEARED_EARLY) {
            log.clear()?;
            return make(&logged);
        }
        Self::make_or_take_back(&logged, log, || drop(kept))
    }

    /// Makes the changes of a log, or none of them if one fails. `make_room` frees the space that is
    /// kept for taking changes back.
    fn make_or_take_back(
        changes: &[(&OpenMap, &Logged)],
        log: Log<'_, S>,
        make_room: impl FnOnce(),
    ) -> Result<()> {
        let made = make(changes);
        if made.is_err() {
            make_room();
            take_back(changes)?;
        }
        log.clear()?;
        made
    }

    /// Makes the batch that a crash has cut short, if there is one. Nothing else has been done with the
    /// pool yet.
    pub(super) fn finish_batch(&self) -> Result<()> {
        let core = &self.core;
        if core.memory.seam().seeded(&bugs::BATCH_FORGOTTEN) {
            return Ok(());
        }
        let found = Log::find(core).map_err(Error::from).and_then(|found| match found {
            Some(_) if core.options().read_only => Err(Error::Unfinished),
            Some((log, changes)) => core.change_alone(|| self.make_again(log, &changes)),
            None => Ok(()),
        });
        match found {
            // The pool opens all the same, and a verification reports the damage.
            Err(Error::Damaged(damage) | Error::DamagedRoot { damage, .. }) => {
                tracing::warn!(%damage, "a batch was under way, and its log cannot be read");
                let _ = self.damaged_batch.set(damage);
                Ok(())
            }
            found => found,
        }
    }

    fn make_again(&self, log: Log<'_, S>, mut changes: &[u8]) -> Result<()> {
        let mut logged = Vec::new();
        while !changes.is_empty() {
            let change = Logged::decode(&mut changes);
            let change = change.ok_or_else(|| log.damage("changes that can be decoded"))?;
            let map = match roots::read(&self.core, change.slot) {
                Ok(Some(info)) => self.open(change.slot, info, true)?,
                Ok(None) | Err(_) => None,
            };
            let map = map.ok_or_else(|| log.damage("changes of maps that exist"))?;
            logged.push((map, change));
        }
        let logged: Vec<_> = logged.iter().map(|(map, change)| (&**map, change)).collect();
        match Self::make_or_take_back(&logged, log, || ()) {
            Err(error) if error.is_full() => {
                tracing::warn!(%error, "a batch that a crash has cut short was taken back");
                Ok(())
            }
            made => made,
        }
    }
}

/// Makes all changes, until one fails.
fn make(changes: &[(&OpenMap, &Logged)]) -> Result<()> {
    changes.iter().try_for_each(|(map, change)| set(map, &change.key, change.value.as_deref()))
}

/// Gives all keys the values back that they had before the batch.
fn take_back(changes: &[(&OpenMap, &Logged)]) -> Result<()> {
    for (map, change) in changes.iter().rev() {
        match set(map, &change.key, change.before.as_deref()) {
            // The change itself has met the same damage, or a part of the map is lost anyway.
            Err(Error::Damaged(damage)) => tracing::warn!(%damage, "a change cannot be taken back"),
            set => set?,
        }
    }
    Ok(())
}
