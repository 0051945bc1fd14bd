//! A pool with its open maps: opening, creating and dropping maps; background steps; sync and
//! close.
//!
//! # Locks
//!
//! Lock order: gate, `creating`, `reclaim`, `maps`. A thread passes the gate before it steps the
//! reclaim; an allocation that helps the reclaim is inside the gate already.

pub use super::open_map::{AnyIndex, MapRequest, MapSeam, OpenMap};
use super::roots::{self, MapInfo};
use crate::db::bugs;
use crate::error::{Damage, Error, NotOpen, Result};
use crate::index::Cursor;
use crate::pmem::{Alive, Moment};
use crate::pool::core::{Core, Quiet, Reclaimer};
use crate::pool::layout::{EXPIRING_MAPS, ROOT_SLOTS};
use crate::pool::roots as slots;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};

/// The open maps of a pool.
#[derive(Default)]
struct Maps {
    /// Keyed by slot: in a damaged file, two roots can have the same name.
    open: BTreeMap<usize, Arc<OpenMap>>,
    /// Dropped maps whose blocks are not freed yet, because handles to them still exist.
    dropped: Vec<Arc<OpenMap>>,
    /// Slots of dropped maps whose blocks are being listed in order to free them. Meanwhile the
    /// index may read the words of the root, so the slot must not be reused.
    freeing: Vec<usize>,
}

/// Marks a change of a root as under way. Dropped once the change is durable.
struct RootChange<'c>(&'c AtomicU64);

impl<'c> RootChange<'c> {
    fn begin(changes: &'c AtomicU64) -> Self {
        changes.fetch_add(1, Ordering::Relaxed);
        // Pairs with the Acquire fence in `settled`: a thread that reads the changed root also sees
        // that it is changing.
        fence(Ordering::Release);
        RootChange(changes)
    }
}

impl Drop for RootChange<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `settled`.
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Where the reclaim after a crash is.
pub(super) enum Phase {
    Trace { slot: usize, cursor: Cursor },
    Grace { epoch: u64 },
    Sweep { page: u32 },
    Done,
    Stopped(Damage),
}

/// Progress of the reclaim after a crash.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReclaimState {
    /// Nothing to reclaim, or all of it is done.
    Done,
    /// Under way.
    Running,
    /// Damage stopped it. Space from before the crash that it has not freed yet is not reused.
    Stopped(Damage),
}

/// A pool with its open maps. See the module's documentation.
pub struct Store<S: MapSeam> {
    pub(super) core: Arc<Core<S>>,
    maps: Mutex<Maps>,
    creating: Mutex<()>,
    /// Odd while a root is being committed or cleared. Changed under `creating`.
    root_changes: AtomicU64,
    pub(super) reclaim: Mutex<Phase>,
    alive: Arc<Alive>,
    /// The damage of a batch that was under way when the pool was last used, and cannot be finished.
    pub(super) damaged_batch: Mutex<Option<Damage>>,
    /// Whether huge pages may be used for DRAM. Set immediately in a new pool, otherwise a moment
    /// after the opening.
    huge_pages: AtomicBool,
}

impl<S: MapSeam> Store<S> {
    /// Wraps a core. Finishes the batch that a crash has cut short, if there is one.
    ///
    /// # Errors
    /// [`Error::Io`] if the page that detects forked children cannot be mapped; [`Error::Unfinished`] if
    /// the pool is read-only and a batch would have to be finished.
    pub fn new(core: Core<S>) -> Result<Arc<Self>> {
        let alive = Alive::new().map_err(|e| Error::io("mapping a page", e))?;
        Self::with_alive(core, Arc::new(alive))
    }

    /// Like [`Store::new`], but shares a page that exists already. The test harness uses this,
    /// because it opens millions of crash images.
    ///
    /// # Errors
    /// [`Error::Unfinished`], as for [`Store::new`].
    pub fn with_alive(core: Core<S>, alive: Arc<Alive>) -> Result<Arc<Self>> {
        let forgets = core.memory.seam().seeded(&bugs::NOT_RECLAIMED);
        let phase = if core.alloc().old_frontier() == 0 || forgets {
            Phase::Done
        } else {
            Phase::Trace { slot: 0, cursor: Cursor::start() }
        };
        let store = Arc::new(Store {
            core: Arc::new(core),
            maps: Mutex::default(),
            creating: Mutex::default(),
            root_changes: AtomicU64::new(0),
            reclaim: Mutex::new(phase),
            alive,
            damaged_batch: Mutex::default(),
            huge_pages: AtomicBool::new(false),
        });
        let reclaimer: Arc<dyn Reclaimer> = Arc::clone(&store) as _;
        store.core.set_reclaimer(Arc::downgrade(&reclaimer));
        store.finish_batch()?;
        Ok(store)
    }

    /// The pool's core.
    pub fn core(&self) -> &Arc<Core<S>> {
        &self.core
    }

    /// Returns whether this process is the one that opened the pool.
    pub fn is_here(&self) -> bool {
        self.alive.is_here()
    }

    // ---- Maps -------------------------------------------------------------------

    /// Lists every map: its slot and description, or the error in reading it.
    pub fn maps(&self) -> Vec<(usize, Result<MapInfo>)> {
        if let Err(error) = self.check() {
            return vec![(0, Err(error))];
        }
        let found = self.settled(|| roots::read_all(&self.core));
        let mut maps = found.unwrap_or_else(|e| vec![(0, Err(e))]);
        if let Some((slot, damage)) = self.core.lost_root()
            && maps.iter().all(|(_, map)| map.is_ok())
        {
            maps.push((*slot, Err(Error::DamagedRoot { slot: *slot, damage: damage.clone() })));
        }
        maps
    }

    /// Reads roots at a moment when none is being committed or cleared. So what `read` finds is
    /// durable, whether that is a root or the absence of one.
    pub(super) fn settled<T>(&self, read: impl Fn() -> T) -> Result<T> {
        let mut turn = 0;
        loop {
            // The Acquire load and the fence below pair with `RootChange`.
            let before = self.root_changes.load(Ordering::Acquire);
            if before.is_multiple_of(2) || self.core.memory.seam().seeded(&bugs::ROOT_READ_EARLY) {
                let found = read();
                fence(Ordering::Acquire);
                if self.root_changes.load(Ordering::Relaxed) == before {
                    return Ok(found);
                }
            }
            self.core.wait(&mut turn)?;
        }
    }

    /// Opens the map of this name, whatever its types.
    pub fn open_map(&self, name: &str) -> Result<Arc<OpenMap>> {
        self.check()?;
        loop {
            let Some((slot, info)) = self.find(name)? else {
                return Err(Error::NoSuchMap { name: name.into() });
            };
            if let Some(map) = self.open(slot, info, false)? {
                return Ok(map);
            }
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        if !self.is_here() {
            return Err(Error::NotOpen(NotOpen::Forked));
        }
        self.core.check()
    }

    /// Finds a root by name. If the name is not found and a root is damaged, fails with the damage,
    /// because that root may have had the name.
    fn find(&self, name: &str) -> Result<Option<(usize, MapInfo)>> {
        let mut damaged = None;
        for (slot, info) in self.maps() {
            match info {
                Ok(info) if info.name == name => return Ok(Some((slot, info))),
                Ok(_) => {}
                Err(error) => damaged = Some(error),
            }
        }
        damaged.map_or(Ok(None), Err)
    }

    /// Opens the map in a slot. Returns `None` if the map was dropped meanwhile. `inside` says
    /// whether the calling thread has passed the gate or holds it.
    pub(super) fn open(
        &self,
        slot: usize,
        info: MapInfo,
        inside: bool,
    ) -> Result<Option<Arc<OpenMap>>> {
        let seam = self.core.memory.seam();
        let known = || seam.lock(&self.maps).open.get(&slot).is_some_and(|open| open.info == info);
        // In some schemes, opening a map writes, because it repairs what a crash left or resets
        // locks.
        let row = info.scheme().row();
        let mends = row.linear_recovery && self.core.alloc().old_frontier() != 0;
        let writes = (mends || row.locks_in_pool) && !inside && !known();
        let _writing = if writes { Some(self.core.enter()?) } else { None };
        let mut maps = seam.lock(&self.maps);
        if let Some(open) = maps.open.get(&slot)
            && open.info == info
        {
            return Ok(Some(Arc::clone(open)));
        }
        // The map may have been dropped since it was found, and its slot reused for another. If it
        // were opened anyway, its blocks could be freed while the new handle uses them.
        if roots::read(&self.core, slot)?.as_ref() != Some(&info) {
            return Ok(None);
        }
        let index = S::open(&self.core, slot, &info)?;
        let open = Arc::new(OpenMap {
            info,
            slot,
            dropped: AtomicBool::new(false),
            alive: Arc::clone(&self.alive),
            index,
            cache: OnceLock::new(),
        });
        maps.open.insert(slot, Arc::clone(&open));
        // Checked under the lock of `maps`. If the flag is not set yet, `use_huge_pages` will take
        // the lock later and find the map in the list.
        if self.huge_pages.load(Ordering::Relaxed) {
            open.index.use_huge_pages();
        }
        Ok(Some(open))
    }

    /// Opens the requested map, or creates it. Creation is atomic across a crash.
    pub fn map(&self, request: &MapRequest) -> Result<Arc<OpenMap>> {
        self.check()?;
        let asked = &request.info;
        asked.check()?;
        loop {
            if let Some((slot, info)) = self.find(&asked.name)? {
                matches_request(&info, request)?;
                if let Some(map) = self.open(slot, info, false)? {
                    return Ok(map);
                }
                continue;
            }
            let _writing = self.core.enter_to_change()?;
            let _creating = self.core.memory.seam().lock(&self.creating);
            if self.find(&asked.name)?.is_none() {
                let slot = match self.free_slot() {
                    // The last handle of a dropped map may be gone by now.
                    Err(Error::TooManyMaps { .. }) => {
                        self.free_dropped()?;
                        self.free_slot()?
                    }
                    found => found?,
                };
                if asked.expires {
                    self.core.use_feature(EXPIRING_MAPS)?;
                }
                let words = S::create(&self.core, asked)?;
                let _change = RootChange::begin(&self.root_changes);
                slots::commit(&self.core, slot, &asked.to_words(), words)?;
            }
        }
    }

    /// Finds a free slot whose words nobody reads any more: neither a user of the dropped map that
    /// had the slot, nor the thread that frees that map's blocks.
    fn free_slot(&self) -> Result<usize> {
        let maps = self.core.memory.seam().lock(&self.maps);
        let in_use =
            |slot| maps.dropped.iter().any(|map| map.slot == slot) || maps.freeing.contains(&slot);
        for slot in 0..ROOT_SLOTS {
            let read = roots::read(&self.core, slot);
            if matches!(read, Ok(None)) && !in_use(slot) {
                return Ok(slot);
            }
        }
        Err(Error::TooManyMaps { max: ROOT_SLOTS })
    }

    /// Drops a map. Once this returns, the map is gone; a crash before that leaves it either intact
    /// or gone. Its space is freed once no handle is left.
    pub fn drop_map(&self, name: &str) -> Result<()> {
        let map = self.open_map(name)?;
        let _writing = self.core.enter_to_change()?;
        let seam = self.core.memory.seam();
        let _creating = seam.lock(&self.creating);
        if map.dropped.load(Ordering::Acquire) {
            return Err(Error::NoSuchMap { name: name.into() });
        }
        if self.core.alloc().old_frontier() != 0 && !seam.seeded(&bugs::DROPPED_UNMARKED) {
            // Once the root is cleared, the trace cannot find this map's blocks, but its last
            // readers still use them.
            let marked = self.trace_map(&map, &mut |offset, bytes| {
                Ok(self.core.alloc().mark(&self.core, offset, Some(bytes))?)
            });
            match marked {
                // The blocks that were not found keep their content if nothing is swept. The next
                // open reclaims the space without this map.
                Err(error) if error.is_damage() => self.stop_reclaim(error),
                marked => marked?,
            }
        }
        {
            let _change = RootChange::begin(&self.root_changes);
            slots::clear(&self.core, map.slot)?;
        }
        map.dropped.store(true, Ordering::Release);
        let mut maps = seam.lock(&self.maps);
        maps.open.remove(&map.slot);
        maps.dropped.push(map);
        drop(maps);
        self.free_dropped()?;
        Ok(())
    }

    fn trace_map(
        &self,
        map: &OpenMap,
        visit: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        let mut cursor = Cursor::start();
        while !cursor.is_done() {
            map.index.trace(&mut cursor, &mut |_, offset, bytes| visit(offset, bytes))?;
        }
        Ok(())
    }

    /// Returns whether no dropped map still has handles, so that every block in use has an owner.
    fn is_settled(&self) -> bool {
        self.core.memory.seam().lock(&self.maps).dropped.is_empty()
    }

    /// Frees the blocks of the dropped maps to which no handle is left. Returns whether there was
    /// such a map. The caller has passed the gate, or holds it.
    pub(super) fn free_dropped(&self) -> Result<bool> {
        let seam = self.core.memory.seam();
        let early = seam.seeded(&bugs::DROPPED_IN_USE);
        let ready: Vec<_> = {
            let mut maps = seam.lock(&self.maps);
            let ready: Vec<_> =
                maps.dropped.extract_if(.., |m| Arc::strong_count(m) == 1 || early).collect();
            if !seam.seeded(&bugs::SLOT_FREED_EARLY) {
                maps.freeing.extend(ready.iter().map(|map| map.slot));
            }
            ready
        };
        // Pairs with the Release in the drop of the last handles: this thread sees what was done
        // through them.
        fence(Ordering::Acquire);
        let found = !ready.is_empty();
        for map in ready {
            let mut blocks = Vec::new();
            let traced = self.trace_map(&map, &mut |offset, _| {
                blocks.push(offset);
                Ok(())
            });
            // The blocks are collected, so nothing reads the root any more.
            seam.lock(&self.maps).freeing.retain(|&slot| slot != map.slot);
            if let Err(error) = traced {
                // The map is gone all the same. Blocks that cannot be found cannot be freed now.
                // The free state is not saved, and the next open traces what is left.
                tracing::warn!(%error, "the blocks of a dropped map cannot be freed");
                self.core.note_unfreeable();
                continue;
            }
            // The blocks need not be retired: the root has been cleared durably, and any operation
            // or reference that could still read a block would hold a handle.
            blocks.into_iter().for_each(|offset| self.core.free_unlinked(offset));
        }
        Ok(found)
    }

    /// Visits the blocks of dropped maps that still have handles. The caller holds the gate.
    pub(super) fn visit_dropped(&self, visit: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let dropped = self.core.memory.seam().lock(&self.maps).dropped.clone();
        for map in dropped {
            self.trace_map(&map, &mut |offset, bytes| {
                visit(offset, bytes);
                Ok(())
            })?;
        }
        Ok(())
    }

    // ---- Background work ---------------------------------------------------------

    /// Does one step of background work: on the indexes, the reclaim, dropped maps, or growth ahead
    /// of use. Returns whether there may be more to do.
    pub fn step(&self) -> Result<bool> {
        self.check()?;
        let options = self.core.options();
        if options.read_only {
            return Ok(false);
        }
        self.core.backing().at(Moment::Work);
        // Even if an index's step fails, the rest is done.
        let (more, stepped) = self.step_indexes();
        let rest = self.step_pool(more);
        stepped.and(rest)
    }

    /// The part of a step that concerns no index. `more` says whether an index may have more to do.
    fn step_pool(&self, more: bool) -> Result<bool> {
        if self.reclaim_state() == ReclaimState::Running {
            let Some(_writing) = self.core.enter_in_background()? else { return Ok(more) };
            return Ok(self.reclaim_step()? | more);
        }
        if !self.is_settled()
            && let Some(_writing) = self.core.enter_in_background()?
        {
            self.free_dropped()?;
        }
        if self.core.epochs().limbo_bytes() > 0
            && let Some(_writing) = self.core.enter_in_background()?
        {
            self.core.collect();
        }
        match self.core.grow_ahead() {
            Ok(grown) => Ok(grown | more),
            // The pool cannot grow. An operation that needs more space will fail with this error.
            Err(error) if error.is_full() => Ok(more),
            Err(error) => Err(error),
        }
    }

    /// Whether the pool has no map yet, so no thread is waiting for a first result.
    pub(super) fn is_new(&self) -> bool {
        self.core.alloc().stats(&self.core).frontier_pages <= self.core.geometry.first_page()
    }

    /// Allows huge pages for DRAM. In a pool with content and a worker, this is called a moment
    /// after the opening, so that the first operations do not wait for huge pages.
    pub(super) fn use_huge_pages(&self) {
        self.huge_pages.store(true, Ordering::Relaxed);
        if let Some(mapping) = self.core.backing().mapping() {
            mapping.use_huge_pages();
        }
        let maps: Vec<_> = {
            let maps = self.core.memory.seam().lock(&self.maps);
            maps.open.values().cloned().collect()
        };
        maps.iter().for_each(|map| map.index.use_huge_pages());
    }

    /// Does one step on each open index that has work. Returns whether there may be more, and the last
    /// error.
    fn step_indexes(&self) -> (bool, Result<()>) {
        let maps: Vec<_> = {
            let maps = self.core.memory.seam().lock(&self.maps);
            maps.open.values().filter(|map| map.index.has_work()).cloned().collect()
        };
        let (mut more, mut result) = (false, Ok(()));
        for map in maps {
            let step = match self.core.enter_in_background() {
                Ok(Some(_writing)) => map.index.step(),
                Ok(None) => break,
                Err(error) => Err(error),
            };
            match step {
                Ok(has_more) => more |= has_more,
                Err(error) => result = Err(error),
            }
        }
        (more, result)
    }

    // ---- Life -------------------------------------------------------------------

    /// Syncs the pool; see [`Pool::sync`](crate::Pool::sync).
    pub fn sync(&self) -> Result<()> {
        self.sync_and(|core| core.check_named())
    }

    /// Syncs the pool if it has not been changed since this function was last called. Does nothing
    /// if a power loss cannot tear the pool, or if the pool is read-only or suspect.
    pub(super) fn sync_if_quiet(&self) -> Result<Quiet> {
        self.core.sync_if_quiet(|| self.is_settled())
    }

    /// Makes the pool clean and durable, and calls `then` while writers are still held back.
    pub fn sync_and<T>(&self, then: impl FnOnce(&Core<S>) -> Result<T>) -> Result<T> {
        self.check()?;
        if !self.is_settled() {
            let _writing = self.core.enter()?;
            self.free_dropped()?;
        }
        self.core.sync_and(|| self.is_settled(), then)
    }

    /// Closes the pool. From then on, calls through other handles fail with [`Error::NotOpen`].
    pub fn close(&self) -> Result<()> {
        self.check()?;
        self.core.close(|| self.free_dropped().map(|_| ()), || self.is_settled())
    }

    /// Marks the pool dirty and holds all writers back while `during` walks the structures.
    pub fn stand_still<T>(&self, during: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        self.check()?;
        self.core.stand_still(|| during(self))
    }
}

fn matches_request(info: &MapInfo, request: &MapRequest) -> Result<()> {
    let asked = &request.info;
    let differs = |what, stored: &dyn ToString, asked: &dyn ToString| {
        Err(Error::MapMismatch {
            name: info.name.clone(),
            what,
            stored: stored.to_string(),
            asked: asked.to_string(),
        })
    };
    if request.scheme_matters && info.scheme() != asked.scheme() {
        return differs("scheme", &info.scheme(), &asked.scheme());
    }
    if info.key_schema != asked.key_schema {
        return differs("key schema", &info.key_schema, &asked.key_schema);
    }
    if info.value_schema != asked.value_schema {
        return differs("value schema", &info.value_schema, &asked.value_schema);
    }
    Ok(())
}
