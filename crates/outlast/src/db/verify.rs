//! The check of a whole pool.

use super::roots::MapInfo;
use super::store::{MapSeam, ReclaimState, Store};
use crate::error::{Damage, Error, Result};
use crate::index::Verified;
use crate::pool::alloc::Owned;
use crate::pool::core::root_offset;

/// The result of verifying a pool: its counts and its damage.
///
/// Verifying a damaged pool returns one too. [`ensure_sound`](Verification::ensure_sound) makes
/// damage an error.
#[must_use = "any damage is in here; `ensure_sound` makes it an error"]
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Verification {
    /// Each map that could be read, with the result of verifying it.
    pub maps: Vec<(MapInfo, Verified)>,
    /// Damage outside of any map: in the roots or in the space.
    pub damage: Vec<Damage>,
    /// Bytes of blocks that no map owns and that are not free either. `None` where this is not
    /// known: in a pool that was opened read-only after a crash, or if damage or a guard keeps the
    /// reclaim from ending.
    pub leaked_bytes: Option<u64>,
    /// Bytes of blocks that maps own.
    pub used_bytes: u64,
    /// Damage in one copy of the header, which a crash can leave. The pool is sound all the same:
    /// the other copy holds everything, and the next change rewrites this one.
    pub header_copy: Option<Damage>,
}

impl Verification {
    /// Returns whether there is neither damage nor leaked space. A damaged [header
    /// copy](Self::header_copy) does not count.
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty()
            && self.leaked_bytes.unwrap_or(0) == 0
            && self.maps.iter().all(|(_, v)| v.damage.is_empty())
    }

    /// Fails unless the pool [is sound](Self::is_sound).
    ///
    /// # Errors
    /// [`Error::Damaged`] with the first damage found, or with the number of leaked bytes if that
    /// is all. [`all_damage`](Verification::all_damage) has the rest.
    pub fn ensure_sound(&self) -> Result<()> {
        if self.is_sound() {
            return Ok(());
        }
        let leaked = || {
            let found = format!("{} leaked bytes", self.leaked_bytes.unwrap_or(0));
            Damage::new(0, "only blocks that a map owns or that are free", found)
        };
        Err(self.all_damage().next().cloned().unwrap_or_else(leaked).into())
    }

    /// Returns the number of live records in all maps.
    pub fn records(&self) -> u64 {
        self.maps.iter().map(|(_, v)| v.records).sum()
    }

    /// Returns all damage, including that of the maps.
    pub fn all_damage(&self) -> impl Iterator<Item = &Damage> {
        self.damage.iter().chain(self.maps.iter().flat_map(|(_, v)| &v.damage))
    }
}

/// Verifies a pool; see [`Pool::verify`](crate::Pool::verify).
pub fn verify<S: MapSeam>(store: &Store<S>) -> Result<Verification> {
    let core = store.core();
    // This is read first, because the first store to the pool rewrites the damaged copy.
    let header_copy = core.header().copy_damaged;
    // A pool that the background thread made clean because it was idle is left to that thread,
    // which will make it clean again.
    let was_clean = core.is_clean() && !core.header().is_synced_idle();
    store.finish_reclaim()?;
    let found = store.stand_still(|store| {
        let suspect = core.is_suspect();
        // The kernel may have dropped pages that it could not write. After the rewrite, the disk
        // holds what the checks below read.
        let rewritten = !suspect || core.options().read_only || core.rewrite().is_ok();
        let mut found = check(store)?;
        if let Some(damage) = store.damaged_batch() {
            // If nothing else is wrong, the batch has left a sound pool. Then it is given up, so
            // its damage is reported only once.
            if found.is_sound() && !core.options().read_only {
                store.give_up_batch()?;
            }
            found.damage.push(damage);
        }
        if suspect && rewritten && found.is_sound() {
            core.note_sound()?;
        }
        Ok(found)
    })?;
    // Verification does not count as a change, so a pool that was clean is made clean again.
    if was_clean {
        store.sync()?;
    }
    Ok(Verification { header_copy, ..found })
}

fn check<S: MapSeam>(store: &Store<S>) -> Result<Verification> {
    let core = store.core();
    let mut found = Verification::default();
    found.damage.extend(core.saved_damage().cloned());
    if let ReclaimState::Stopped(damage) = store.reclaim_state() {
        found.damage.push(damage);
    }
    let mut owned = Owned::default();
    let mut own = |offset, bytes| core.alloc().own(core, &mut owned, (offset, bytes));
    for (slot, info) in store.maps() {
        // No map is dropped while the gate is held.
        let map = match info.and_then(|info| store.open(slot, info, true)) {
            Ok(Some(map)) => map,
            Ok(None) => continue,
            Err(Error::Damaged(damage) | Error::DamagedRoot { damage, .. }) => {
                found.damage.push(damage);
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut verified = map.index().verify(&mut |_, offset, bytes| {
            own(offset, bytes);
            Ok(())
        })?;
        let name = &map.info().name;
        if found.maps.iter().any(|(info, _)| info.name == *name) {
            // A power loss can undo the dropping of a map, and keep another one of that name.
            let again = format!("{name:?} a second time");
            let place = root_offset(slot).raw();
            verified.damage.push(Damage::new(place, "maps with different names", again));
        }
        found.maps.push((map.info().clone(), verified));
    }
    core.collect();
    core.epochs().visit(&mut own);
    store.visit_dropped(&mut own)?;
    let account = core.alloc().account(core, owned)?;
    found.used_bytes = account.used_bytes;
    found.leaked_bytes = account.leaked_bytes;
    found.damage.extend(account.damage);
    Ok(found)
}
