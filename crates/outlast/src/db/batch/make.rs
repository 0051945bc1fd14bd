//! How the changes of a batch are made, all or none.
//!
//! A batch is written to a *log*, a block of its own, before the first of its changes is made. The
//! *batch word* of the pool points to the log:
//!
//! Of several changes of one key, only the last one counts: the others are neither logged nor made.
//!
//! 1. The thread holds the gate, so that nobody else makes a change until the batch is over.
//! 2. It reads the values that the keys have, and writes them to the log together with the changes. The
//!    log is durable before the batch word is stored.
//! 3. The batch word is stored. Once it is durable, a crash no longer undoes the batch: the next
//!    open makes its changes.
//! 4. The changes are made as operations on their maps. Each is durable by itself, and readers may
//!    see it immediately, because a crash can no longer undo it.
//! 5. The batch word becomes 0. Once that is durable, the log's block is free.
//!
//! An open that finds a batch word makes all changes of the log again, before anything else is done
//! with the pool. Repeating a change that was made already does no harm, since nobody has changed
//! the records since.
//!
//! A change can fail, because the pool is full for example. Then every key gets its old value back.
//! To have space for that, the thread sets aside a block of the same size for each old record that
//! is in a block, before it makes any change. It frees that block just before it writes the old
//! record again. If even that fails, the pool is poisoned. The next open tries to make all changes
//! again, and undoes them if one fails. The same happens if the process crashes while it undoes
//! them.
//!
//! In three cases an open neither makes the changes nor undoes them. If the pool may be torn, it
//! can mix pages of different moments, and the batch word may be an old one: the open clears it. If
//! the log is damaged, or names something that is not there, the pool opens as it is, and a
//! verification reports the damage. If the pool is opened for reading, the open fails with
//! [`Error::Unfinished`], unless the user accepts a pool that may be torn.

use super::BatchRecord;
use crate::db::bugs;
use crate::db::open_map::{Form, MapSeam, OpenMap, bytes_of, check_types, word};
use crate::db::roots::{self, MapInfo};
use crate::db::store::Store;
use crate::error::{Damage, Error, Result};
use crate::index::{Bytes, Change, Index, Inline, Previous, Record, RecordForm};
use crate::pmem::Seam;
use crate::pool::batch::{self, Log};
use crate::pool::core::Core;
use crate::pool::layout::{ROOT_SLOTS, TIME_BYTES};
use crate::pool::unlinked::UnlinkedBlock;
use std::collections::HashSet;
use std::sync::Arc;

/// Fails if a map cannot have a record with this key and value. Without a value, checks only that
/// the key's length is possible, because a removal may name any key.
pub(super) fn check(info: &MapInfo, key: &[u8], value: Option<&[u8]>) -> Result<()> {
    match info.form {
        RecordForm::Inline => {
            let value = value.map(|value| word(value, "value")).transpose()?;
            check_types::<Inline>(info, word(key, "key")?, value)
        }
        RecordForm::Bytes => {
            Bytes::check_size(key, value)?;
            check_types::<Bytes>(info, key, value)
        }
    }
}

/// Like [`check`], for a value as it is stored.
fn check_stored(info: &MapInfo, key: &[u8], stored: Option<&[u8]>) -> Result<()> {
    match stored {
        Some(stored) if info.expires => match stored.get(TIME_BYTES..) {
            Some(value) => check(info, key, Some(value)),
            None => Err(Error::Invalid { what: "value", why: "it has no time".into() }),
        },
        stored => check(info, key, stored),
    }
}

/// A change in the log. Values are as they are stored.
struct Logged {
    /// Slot of the map's root.
    slot: usize,
    key: Vec<u8>,
    value: Option<Vec<u8>>,
    /// The value before the batch.
    before: Option<Vec<u8>>,
}

impl Logged {
    /// What a change takes in a log besides key and values, in bytes.
    const FIELDS: usize = 16;

    /// Appends the change to a log.
    ///
    /// ```text
    /// slot: 4 bytes | key: its length in 4 bytes, then it | value | value before
    /// ```
    ///
    /// A value is its length plus 1, in 4 bytes, and then its bytes. A length field of 0 means that
    /// there is no value.
    fn encode(&self, log: &mut Vec<u8>) {
        log.extend((self.slot as u32).to_le_bytes());
        log.extend((self.key.len() as u32).to_le_bytes());
        log.extend_from_slice(&self.key);
        for value in [&self.value, &self.before] {
            let len = value.as_ref().map_or(0, |value| value.len() as u32 + 1);
            log.extend(len.to_le_bytes());
            log.extend_from_slice(value.as_deref().unwrap_or_default());
        }
    }

    /// Takes a change from the front of a log. Returns `None` if there is no complete one.
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

/// Runs the same code for either record form, on records as they are stored. `$from` makes the form's keys
/// and values from bytes.
macro_rules! each_form {
    ($map:expr, ($index:ident, $from:ident) => $body:expr) => {
        match $map.stored_form()? {
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
        index.change(key, value.map_or(Change::Remove, Change::Put), Previous::UNWANTED)?;
        Ok(())
    }
    if map.info.expires {
        match value {
            Some(stored) => map.expiring()?.put_stored(key, stored)?,
            None => drop(map.bytes()?.change(key, Change::Remove, Previous::UNWANTED)?),
        }
        return Ok(());
    }
    each_form!(map, (index, from) => change(index, from(key)?, value.map(from).transpose()?))
}

/// Returns the value of a key as it is stored.
fn get_stored(map: &OpenMap, key: &[u8]) -> Result<Option<Vec<u8>>> {
    match map.stored_form()? {
        Form::Inline(_) => get(map, key),
        Form::Bytes(index) => Ok(index.get(key)?),
    }
}

/// Does what [`get_stored`] does for the key of each change. The lookups of changes of one map overlap.
fn get_all_stored(changes: &[&BatchRecord]) -> Result<Vec<Option<Vec<u8>>>> {
    fn get_many<'k, R: Record>(
        index: &dyn Index<R>,
        keys: impl Iterator<Item = Result<R::Key<'k>>>,
    ) -> Result<Vec<Option<R::Owned>>> {
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let mut found = vec![None; keys.len()];
        index.get_many(&keys, &mut found)?;
        Ok(found)
    }
    let mut values = Vec::with_capacity(changes.len());
    for changes in changes.chunk_by(|one, next| Arc::ptr_eq(&one.map, &next.map)) {
        let keys = changes.iter().map(|change| &change.key[..]);
        match changes[0].map.stored_form()? {
            Form::Inline(index) => {
                let words = get_many(index, keys.map(|key| word(key, "key")))?;
                values.extend(words.into_iter().map(|value| value.map(bytes_of)));
            }
            Form::Bytes(index) => values.extend(get_many(index, keys.map(Ok))?),
        }
    }
    Ok(values)
}

fn get(map: &OpenMap, key: &[u8]) -> Result<Option<Vec<u8>>> {
    Ok(match map.form()? {
        Form::Inline(index) => index.get(word(key, "key")?)?.map(bytes_of),
        Form::Bytes(index) => index.get(key)?,
    })
}

/// Returns the size, in bytes, of the block that a record takes, or 0 if it takes none.
fn block_bytes(map: &OpenMap, key: &[u8], value: &[u8]) -> Result<u64> {
    Ok(each_form!(map, (index, from) => index.record_bytes(from(key)?, from(value)?)))
}

/// A change of a batch under way.
struct Part<'c, S: Seam> {
    map: Arc<OpenMap>,
    change: Logged,
    /// A block as large as that of the old record, if it has one.
    kept: Option<UnlinkedBlock<'c, S>>,
}

impl<'c, S: Seam> Part<'c, S> {
    fn new(core: &'c Core<S>, map: Arc<OpenMap>, change: Logged) -> Result<Self> {
        let bytes = change.before.as_ref().map(|before| block_bytes(&map, &change.key, before));
        let kept = match bytes.transpose()? {
            None | Some(0) => None,
            Some(bytes) => Some(UnlinkedBlock::allocate(core, bytes)?),
        };
        Ok(Part { map, change, kept })
    }

    fn make(&self) -> Result<()> {
        set(&self.map, &self.change.key, self.change.value.as_deref())
    }

    /// Restores the value that the key had before the batch.
    fn take_back(&mut self, core: &Core<S>) -> Result<()> {
        let Logged { key, before, .. } = &self.change;
        let is_late = core.memory.seam().seeded(&bugs::KEPT_TOO_LONG);
        let _late = self.kept.take().filter(|_| is_late);
        // A change that was never made usually ends here, so undoing it needs no space.
        if get_stored(&self.map, key)? == *before {
            Ok(())
        } else {
            set(&self.map, key, before.as_deref())
        }
    }
}

impl<S: MapSeam> Store<S> {
    /// Makes all of the changes, or none; see [`Batch::commit`](crate::Batch::commit). Returns the
    /// index of the first requirement that does not hold; `None` if the changes are made.
    ///
    /// # Errors
    /// Same as for `Batch::commit`.
    pub fn make_batch(
        &self,
        required: &[BatchRecord],
        changes: &[BatchRecord],
    ) -> Result<Option<usize>> {
        self.check()?;
        let changes = last_of_each_key(changes);
        // The old values come to this. They are read while nobody else can change the pool.
        let value = |change: &BatchRecord| change.value.as_ref().map_or(0, Vec::len);
        let least = changes.iter().map(|change| Logged::FIELDS + change.key.len() + value(change));
        Log::bytes_for(&self.core, least.sum())?;
        let failed = || -> Result<Option<usize>> {
            for (index, BatchRecord { map, key, value, .. }) in required.iter().enumerate() {
                if get(map, key)? != *value {
                    return Ok(Some(index));
                }
            }
            Ok(None)
        };
        let early = self.core.memory.seam().seeded(&bugs::REQUIRED_EARLY);
        if early && let failed @ Some(_) = failed()? {
            return Ok(failed);
        }
        self.core.change_alone(|| {
            if let Some(damage) = self.damaged_batch() {
                return Err(damage.into());
            }
            if !early && let failed @ Some(_) = failed()? {
                return Ok(failed);
            }
            if !changes.is_empty() {
                self.log_and_make(&changes)?;
            }
            Ok(None)
        })
    }

    fn log_and_make(&self, changes: &[&BatchRecord]) -> Result<()> {
        let core = &*self.core;
        let (mut bytes, mut parts) = (Vec::new(), Vec::new());
        let mut before = get_all_stored(changes)?;
        let seam = core.memory.seam();
        seed!(seam, bugs::LAST_BEFORE_LOST => before.last_mut().map(Option::take));
        for (BatchRecord { map, key, value, time }, before) in changes.iter().zip(before) {
            let value = match value {
                Some(value) if map.info.expires => {
                    Some(map.expiring()?.stored_value(*time, value, before.as_deref())?)
                }
                value => value.clone(),
            };
            let change = Logged { slot: map.slot, key: key.clone(), value, before };
            change.encode(&mut bytes);
            parts.push(Part::new(core, Arc::clone(map), change)?);
        }
        let mut log = Log::write(core, &bytes)?;
        seed!(seam, bugs::BATCH_MADE_EARLY => parts.iter().try_for_each(Part::make)?);
        log.commit()?;
        if seam.seeded(&bugs::BATCH_CLEARED_EARLY) {
            log.clear()?;
            return parts.iter().try_for_each(Part::make);
        }
        carry_out(core, parts, log).and_then(|taken_back| taken_back.map_or(Ok(()), Err))
    }

    /// Finishes the batch that a crash has cut short, if there is one. If damage prevents that,
    /// records the damage and succeeds. Must be called before anything else is done with the pool.
    pub(in crate::layers::db) fn finish_batch(&self) -> Result<()> {
        let (core, options) = (&self.core, self.core.options());
        if core.memory.seam().seeded(&bugs::BATCH_FORGOTTEN) || !batch::is_under_way(core)? {
            return Ok(());
        }
        if core.is_torn() {
            tracing::warn!("a batch may have been under way when the pool was torn");
            // The word goes before the header names this process. If this process dies in between,
            // the next open finds a pool that is torn, rather than one whose batch it would finish.
            return if options.read_only { Ok(()) } else { batch::forget(core) };
        }
        let found = match core.header().is_dirty() {
            true => Log::find(core).map_err(Error::from),
            false => Err(batch::unexpected().into()),
        };
        let finished = found.and_then(|(log, changes)| {
            let changes = decode(&log, &changes);
            if options.read_only {
                log.abandon()?;
                // A batch that cannot be finished hinders nobody who reads.
                changes?;
                return match options.accept_possibly_torn {
                    true => Ok(()),
                    false => Err(Error::Unfinished { path: self.core().options().path.clone() }),
                };
            }
            core.change_alone(|| self.finish(log, changes))
        });
        match finished {
            Err(Error::Damaged(damage) | Error::DamagedRoot { damage, .. }) => {
                tracing::warn!(%damage, "a batch was under way, and cannot be finished");
                *core.memory.seam().lock(&self.damaged_batch) = Some(damage);
                Ok(())
            }
            finished => finished,
        }
    }

    fn finish(&self, log: Log<'_, S>, changes: Result<Vec<Logged>>) -> Result<()> {
        let part = |change| self.part_of(&log, change);
        let parts = changes.and_then(|changes| changes.into_iter().map(part).collect());
        let parts: Vec<_> = match parts {
            Ok(parts) => parts,
            Err(error @ (Error::Damaged(_) | Error::DamagedRoot { .. })) => {
                log.abandon()?;
                return Err(error);
            }
            // The next open may have space, or the scheme of the map.
            Err(error) => return Err(error),
        };
        if let Some(error) = carry_out(&self.core, parts, log)? {
            tracing::warn!(%error, "a batch that a crash has cut short was taken back");
        }
        Ok(())
    }

    /// Opens the map that a change names, and sets space aside for undoing the change.
    fn part_of(&self, log: &Log<'_, S>, change: Logged) -> Result<Part<'_, S>> {
        let map = match roots::read(&self.core, change.slot)? {
            Some(info) => self.open(change.slot, info, true)?,
            None => None,
        };
        let map = map.ok_or_else(|| log.damage("changes of maps that exist"))?;
        for value in [&change.value, &change.before] {
            let checked = check_stored(&map.info, &change.key, value.as_deref());
            checked.map_err(|_| log.damage("records that their map can have"))?;
        }
        Part::new(&self.core, map, change)
    }

    /// Returns the damage of the batch that cannot be finished, if there is one.
    pub(in crate::layers::db) fn damaged_batch(&self) -> Option<Damage> {
        self.core.memory.seam().lock(&self.damaged_batch).clone()
    }

    /// Gives up a batch that cannot be finished. The caller holds the gate.
    pub(in crate::layers::db) fn give_up_batch(&self) -> Result<()> {
        batch::forget(&self.core)?;
        *self.core.memory.seam().lock(&self.damaged_batch) = None;
        Ok(())
    }
}

/// Returns the last change of each key, in order. The others have no effect.
fn last_of_each_key(changes: &[BatchRecord]) -> Vec<&BatchRecord> {
    let mut seen = HashSet::with_capacity(changes.len());
    let mut last = Vec::with_capacity(changes.len());
    for change in changes.iter().rev() {
        if seen.insert((Arc::as_ptr(&change.map), &change.key)) {
            last.push(change);
        }
    }
    last.reverse();
    last
}

/// Reads the changes of a log.
fn decode<S: Seam>(log: &Log<'_, S>, mut bytes: &[u8]) -> Result<Vec<Logged>> {
    let mut changes = Vec::new();
    while !bytes.is_empty() {
        let change = Logged::decode(&mut bytes).filter(|change| change.slot < ROOT_SLOTS);
        changes.push(change.ok_or_else(|| log.damage("changes that can be decoded"))?);
    }
    Ok(changes)
}

/// Makes the changes of a log. Returns `None` if all of them were made. If one fails, undoes them
/// all and returns its error. Fails if that is not possible.
fn carry_out<S: Seam>(
    core: &Core<S>,
    parts: Vec<Part<'_, S>>,
    log: Log<'_, S>,
) -> Result<Option<Error>> {
    match parts.iter().try_for_each(Part::make) {
        Ok(()) => log.clear().map(|()| None),
        Err(error) => take_back(core, parts, log).map(|()| Some(error)),
    }
}

/// Restores the values that all keys had before the batch.
fn take_back<S: Seam>(core: &Core<S>, parts: Vec<Part<'_, S>>, log: Log<'_, S>) -> Result<()> {
    for mut part in parts.into_iter().rev() {
        match part.take_back(core) {
            // The change itself failed because of the same damage, or this part of the map is lost
            // anyway.
            Err(Error::Damaged(damage)) => tracing::warn!(%damage, "a change cannot be taken back"),
            taken => taken?,
        }
    }
    log.clear()
}
