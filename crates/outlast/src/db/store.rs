//! Open maps, and the reclaim of space after a crash.
//!
//! # Reclaim
//!
//! After a crash nothing is known of the blocks that were there before it, the *old*
//! ones. Operations go on at once, in other space; meanwhile, step by step:
//!
//! 1. *Trace*: for each root, its index reports the blocks it owns; they are marked
//!    alive. What operations move or unlink meanwhile they mark first themselves, so the
//!    trace need only see what stays put.
//! 2. *Grace*: whoever began before the trace ended may still be on the way to an old block
//!    that nothing leads to any more; it is waited for.
//! 3. *Sweep*: run by run, an old block is free if it is not alive, or was retired since.
//!
//! A root that cannot be read stops the reclaim before the sweep: nothing is freed. A
//! pool that may not grow waits for the reclaim before it says that it is full.
//!
//! # Locks
//!
//! In this order: gate, `creating`, `reclaim`, `maps`. Whoever steps the reclaim has
//! passed the gate before; an allocation that helps it along is inside the gate already.

use super::raw::Form;
use super::roots::{self, MapInfo};
use crate::error::{Damage, Error, Result};
use crate::index::{Bytes, Cursor, Index, Inline, RecordForm, Visitor};
use crate::pmem::{Alive, Planted, Seam};
use crate::pool::core::{Core, GRACE_TURNS, Reclaimer};
use crate::pool::layout::ROOT_SLOTS;
use crate::pool::roots as slots;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};

/// An index of either record form.
pub enum AnyIndex {
    /// 8-byte keys and values.
    Inline(Box<dyn Index<Inline>>),
    /// Byte strings.
    Bytes(Box<dyn Index<Bytes>>),
}

macro_rules! each_form {
    ($any:expr, $index:ident => $body:expr) => {
        match $any {
            AnyIndex::Inline($index) => $body,
            AnyIndex::Bytes($index) => $body,
        }
    };
}

impl AnyIndex {
    fn trace(&self, cursor: &mut Cursor, visit: &mut Visitor<'_>) -> Result<()> {
        each_form!(self, index => index.trace(cursor, visit))
    }

    fn has_work(&self) -> bool {
        each_form!(self, index => index.has_work())
    }

    fn step(&self) -> Result<bool> {
        each_form!(self, index => index.step())
    }

    fn use_huge_pages(&self) {
        each_form!(self, index => index.use_huge_pages());
    }

    /// See [`Index::verify`].
    pub fn verify(&self, visit: &mut Visitor<'_>) -> Result<crate::index::Verified> {
        each_form!(self, index => index.verify(visit))
    }

    /// See [`Index::stats`].
    pub fn stats(&self) -> Result<crate::index::IndexStats> {
        each_form!(self, index => index.stats())
    }
}

/// A map that is open. There is one of each in a process.
pub struct OpenMap {
    info: MapInfo,
    slot: usize,
    dropped: AtomicBool,
    alive: Arc<Alive>,
    index: AnyIndex,
}

impl OpenMap {
    /// The map as its root describes it.
    pub fn info(&self) -> &MapInfo {
        &self.info
    }

    /// The index, if map and pool are still there.
    #[inline(always)]
    pub(crate) fn form(&self) -> Result<Form<'_>> {
        if self.dropped.load(Ordering::Acquire) {
            return Err(Error::MapDropped);
        }
        if !self.alive.is_here() {
            return Err(Error::NotOpen("this process is a fork of the one that opened it"));
        }
        Ok(match &self.index {
            AnyIndex::Inline(index) => Form::Inline(&**index),
            AnyIndex::Bytes(index) => Form::Bytes(&**index),
        })
    }

    /// The index, whatever became of the map.
    pub fn index(&self) -> &AnyIndex {
        &self.index
    }
}

/// What is asked of a map that is opened or created.
#[derive(Debug, Clone)]
pub struct MapRequest {
    /// What the map must be, or is created as; the configuration counts for a new map.
    pub info: MapInfo,
    /// Whether the scheme was asked for, and must match.
    pub scheme_matters: bool,
}

/// Open maps of a pool.
#[derive(Default)]
struct Maps {
    /// By slot: in a damaged file two roots can have one name.
    open: BTreeMap<usize, Arc<OpenMap>>,
    /// Dropped, but their blocks are not freed yet: someone may still read them.
    dropped: Vec<Arc<OpenMap>>,
    /// Slots of dropped maps whose blocks are being freed: until that is done, an index may
    /// read its root's words.
    freeing: Vec<usize>,
}

enum Phase {
    Trace { slot: usize, cursor: Cursor },
    Grace { epoch: u64 },
    Sweep { page: u32 },
    Done,
    Stopped(Damage),
}

/// Marks, while it lives, that a root is changing and its change not durable yet.
struct RootChange<'c>(&'c AtomicU64);

impl<'c> RootChange<'c> {
    fn begin(changes: &'c AtomicU64) -> Self {
        changes.fetch_add(1, Ordering::Relaxed);
        // Pairs with the Acquire fence in `settled`: whoever reads the changed root sees
        // that it was changing.
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

/// How far the reclaim after a crash is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReclaimState {
    /// Nothing to reclaim, or all done.
    Done,
    /// Under way.
    Running,
    /// Damage stopped it: no space from before the crash is reused.
    Stopped(Damage),
}

/// A pool with its open maps. See the module's documentation.
pub struct Store<S: Seam> {
    core: Arc<Core<S>>,
    maps: Mutex<Maps>,
    creating: Mutex<()>,
    /// Odd while a root is committed or cleared. Changed under `creating`.
    root_changes: AtomicU64,
    reclaim: Mutex<Phase>,
    alive: Arc<Alive>,
    /// Whether DRAM may be had in large pages: not before the first answers are given.
    huge_pages: AtomicBool,
}

impl<S: Seam> Store<S> {
    /// Wraps a core.
    ///
    /// # Errors
    /// [`Error::Io`] if the page that tells forked children apart cannot be had.
    pub fn new(core: Core<S>) -> Result<Arc<Self>> {
        let alive = Alive::new().map_err(|e| Error::io("mapping a page", e))?;
        Ok(Self::with_alive(core, Arc::new(alive)))
    }

    /// As [`Store::new`], with a page that is there already: for crash images, of which
    /// there are millions.
    pub fn with_alive(core: Core<S>, alive: Arc<Alive>) -> Arc<Self> {
        let forgets = core.memory.seam().planted(Planted::NotReclaimed);
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
            huge_pages: AtomicBool::new(false),
        });
        let reclaimer: Arc<dyn Reclaimer> = Arc::clone(&store) as _;
        store.core.set_reclaimer(Arc::downgrade(&reclaimer));
        store
    }

    /// The core.
    pub fn core(&self) -> &Arc<Core<S>> {
        &self.core
    }

    /// Whether this process is the one that opened the pool.
    pub fn is_here(&self) -> bool {
        self.alive.is_here()
    }

    // ---- Maps -------------------------------------------------------------------

    /// Every map: slot and description, or what is wrong with it.
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

    /// Reads roots while none is being committed or cleared: a root that can be seen is
    /// durable, and so is the absence of one.
    fn settled<T>(&self, read: impl Fn() -> T) -> Result<T> {
        let mut turn = 0;
        loop {
            // Acquire, and the fence: pair with `RootChange`.
            let before = self.root_changes.load(Ordering::Acquire);
            if before.is_multiple_of(2) || self.core.memory.seam().planted(Planted::RootReadEarly) {
                let found = read();
                fence(Ordering::Acquire);
                if self.root_changes.load(Ordering::Relaxed) == before {
                    return Ok(found);
                }
            }
            self.core.wait(&mut turn)?;
        }
    }

    /// The map of this name, opened as it is.
    pub fn open_map(&self, name: &str) -> Result<Arc<OpenMap>> {
        self.open_map_by(name, false)
    }

    /// As [`open_map`](Store::open_map); `inside` says whether the calling thread has passed
    /// the gate, or holds it.
    pub(super) fn open_map_by(&self, name: &str, inside: bool) -> Result<Arc<OpenMap>> {
        self.check()?;
        loop {
            let Some((slot, info)) = self.find(name)? else {
                return Err(Error::NoSuchMap { name: name.into() });
            };
            if let Some(map) = self.open(slot, info, inside)? {
                return Ok(map);
            }
        }
    }

    fn check(&self) -> Result<()> {
        if !self.is_here() {
            return Err(Error::NotOpen("this process is a fork of the one that opened it"));
        }
        self.core.check()
    }

    /// A root by name. A damaged root is an error only where the name is not found
    /// among the others: it may be the one.
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

    /// Opens the map of a slot. `None` if it is not there any more. `inside` says whether the
    /// calling thread has passed the gate, or holds it.
    fn open(&self, slot: usize, info: MapInfo, inside: bool) -> Result<Option<Arc<OpenMap>>> {
        let seam = self.core.memory.seam();
        let known = || seam.lock(&self.maps).open.get(&slot).is_some_and(|open| open.info == info);
        // Opening mends what a crash left, if the scheme does that then.
        let mends = info.scheme().row().linear_recovery && self.core.alloc().old_frontier() != 0;
        let _writing = if mends && !inside && !known() { Some(self.core.enter()?) } else { None };
        let mut maps = seam.lock(&self.maps);
        if let Some(open) = maps.open.get(&slot)
            && open.info == info
        {
            return Ok(Some(Arc::clone(open)));
        }
        // It can have been dropped since it was found, and its slot used for another. Were
        // it opened all the same, its blocks would be freed under the new handle.
        if roots::read(&self.core, slot)?.as_ref() != Some(&info) {
            return Ok(None);
        }
        let index = match info.form {
            RecordForm::Inline => AnyIndex::Inline(info.config.open(&self.core, slot)?),
            RecordForm::Bytes => AnyIndex::Bytes(info.config.open(&self.core, slot)?),
        };
        let open = Arc::new(OpenMap {
            info,
            slot,
            dropped: AtomicBool::new(false),
            alive: Arc::clone(&self.alive),
            index,
        });
        maps.open.insert(slot, Arc::clone(&open));
        // Under the lock: else `use_huge_pages` finds the map there.
        if self.huge_pages.load(Ordering::Relaxed) {
            open.index.use_huge_pages();
        }
        Ok(Some(open))
    }

    /// Opens the map that is asked for, or creates it: atomically under a crash.
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
                let slot = self.free_slot()?;
                let words = match asked.form {
                    RecordForm::Inline => asked.config.create::<S, Inline>(&self.core)?,
                    RecordForm::Bytes => asked.config.create::<S, Bytes>(&self.core)?,
                };
                let _change = RootChange::begin(&self.root_changes);
                slots::commit(&self.core, slot, &asked.to_words(), words)?;
            }
        }
    }

    /// A slot that no map uses, nor the last readers of one that was dropped, nor who frees its
    /// blocks.
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

    /// Drops a map: it is gone when this returns, whole or not at all under a crash. Its
    /// space is freed once no handle is left.
    pub fn drop_map(&self, name: &str) -> Result<()> {
        let map = self.open_map(name)?;
        let _writing = self.core.enter_to_change()?;
        let seam = self.core.memory.seam();
        let _creating = seam.lock(&self.creating);
        if map.dropped.load(Ordering::Acquire) {
            return Err(Error::NoSuchMap { name: name.into() });
        }
        if self.core.alloc().old_frontier() != 0 && !seam.planted(Planted::DroppedUnmarked) {
            // The trace will not find it any more, and its last readers still read it.
            self.trace_map(&map, &mut |offset, bytes| {
                Ok(self.core.alloc().mark(&self.core, offset, Some(bytes))?)
            })?;
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
        self.free_dropped()
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

    /// Whether every block in use has an owner: no dropped map is still held.
    fn is_settled(&self) -> bool {
        self.core.memory.seam().lock(&self.maps).dropped.is_empty()
    }

    /// Frees the blocks of dropped maps that nobody holds any more. The caller has passed
    /// the gate, or holds it.
    fn free_dropped(&self) -> Result<()> {
        let seam = self.core.memory.seam();
        let ready: Vec<_> = {
            let mut maps = seam.lock(&self.maps);
            let ready: Vec<_> =
                maps.dropped.extract_if(.., |m| Arc::strong_count(m) == 1).collect();
            if !seam.planted(Planted::SlotFreedEarly) {
                maps.freeing.extend(ready.iter().map(|map| map.slot));
            }
            ready
        };
        // Pairs with the Release of the handles that are gone: what was done by them is seen.
        fence(Ordering::Acquire);
        for map in ready {
            let mut blocks = Vec::new();
            let traced = self.trace_map(&map, &mut |offset, bytes| {
                blocks.push((offset, bytes));
                Ok(())
            });
            // The blocks are known: nothing reads the root any more.
            seam.lock(&self.maps).freeing.retain(|&slot| slot != map.slot);
            if let Err(error) = traced {
                // The map is gone all the same. What cannot be found cannot be freed now;
                // the free state is not saved, and the next open traces what is left.
                tracing::warn!(%error, "the blocks of a dropped map cannot be freed");
                self.core.note_unfreeable();
                continue;
            }
            for (offset, bytes) in blocks {
                if seam.planted(Planted::DroppedUnretired) {
                    self.core.free_unlinked(offset);
                    continue;
                }
                self.core.retire(offset, bytes);
            }
        }
        Ok(())
    }

    /// The blocks of dropped maps that someone still holds. The caller holds the gate.
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

    /// One step of background work: that of the indexes, reclaim, dropped maps, growth ahead
    /// of use. Returns whether there may be more to do.
    pub fn step(&self) -> Result<bool> {
        self.check()?;
        let options = self.core.options();
        if options.read_only {
            return Ok(false);
        }
        let more = self.step_indexes()?;
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
            // The pool is as large as it can be: an operation that needs more will say so.
            Err(Error::PoolFull { .. } | Error::DiskFull { .. } | Error::AddressSpace { .. }) => {
                Ok(more)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether it has no map yet, so that nobody waits for a first answer.
    pub(super) fn is_new(&self) -> bool {
        self.core.alloc().stats(&self.core).frontier_pages <= self.core.geometry.first_page()
    }

    /// The first operations after the opening are done: DRAM may be had in large pages.
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

    /// One step of each open index that has work. Whether there may be more.
    fn step_indexes(&self) -> Result<bool> {
        let maps: Vec<_> = {
            let maps = self.core.memory.seam().lock(&self.maps);
            maps.open.values().filter(|map| map.index.has_work()).cloned().collect()
        };
        let mut more = false;
        for map in maps {
            let Some(_writing) = self.core.enter_in_background()? else { return Ok(more) };
            more |= map.index.step()?;
        }
        Ok(more)
    }

    /// How far the reclaim is.
    pub fn reclaim_state(&self) -> ReclaimState {
        match &*self.core.memory.seam().lock(&self.reclaim) {
            Phase::Done => ReclaimState::Done,
            Phase::Stopped(damage) => ReclaimState::Stopped(damage.clone()),
            Phase::Trace { .. } | Phase::Grace { .. } | Phase::Sweep { .. } => {
                ReclaimState::Running
            }
        }
    }

    /// One step of the reclaim. The caller has passed the gate. Whether it can go on at once:
    /// not so at its end, nor while guards are alive that it has to wait for.
    fn reclaim_step(&self) -> Result<bool> {
        let mut phase = self.core.memory.seam().lock(&self.reclaim);
        match self.advance(&mut phase) {
            Ok(advanced) => Ok(advanced && !matches!(*phase, Phase::Done | Phase::Stopped(_))),
            Err(error) if error.is_damage() => {
                tracing::warn!(%error, "reclaim stopped: no space from before the crash is reused");
                let damage = match error {
                    Error::Damaged(damage) | Error::DamagedRoot { damage, .. } => damage,
                    other => Damage::new(0, "a pool that can be traced", other.to_string()),
                };
                *phase = Phase::Stopped(damage);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether it has advanced.
    fn advance(&self, phase: &mut Phase) -> Result<bool> {
        let alloc = self.core.alloc();
        match phase {
            Phase::Trace { slot, cursor } => {
                if let Some((_, damage)) = self.core.lost_root() {
                    // What it owned is not known.
                    return Err(damage.clone().into());
                }
                if *slot == ROOT_SLOTS || self.core.memory.seam().planted(Planted::SweptUntraced) {
                    *phase = Phase::Grace { epoch: self.core.epochs().begin() };
                    return Ok(true);
                }
                let Some(info) = self.settled(|| roots::read(&self.core, *slot))?? else {
                    *slot += 1;
                    *cursor = Cursor::start();
                    return Ok(true);
                };
                // Dropped beside us: it has marked its blocks itself.
                let Some(map) = self.open(*slot, info, true)? else { return Ok(true) };
                map.index.trace(cursor, &mut |_, offset, bytes| {
                    Ok(alloc.mark(&self.core, offset, Some(bytes))?)
                })?;
                if cursor.is_done() {
                    *slot += 1;
                    *cursor = Cursor::start();
                }
            }
            Phase::Grace { epoch } => {
                let skipped = self.core.memory.seam().planted(Planted::GraceSkipped);
                if !self.core.epochs().has_reached(*epoch) && !skipped {
                    return Ok(false);
                }
                *phase = Phase::Sweep { page: self.core.geometry.first_page() };
            }
            Phase::Sweep { page } => {
                let end = alloc.old_frontier();
                for _ in 0..64 {
                    if *page >= end {
                        self.core.reclaimed();
                        *phase = Phase::Done;
                        return Ok(true);
                    }
                    *page = alloc.sweep(&self.core, *page)?;
                }
            }
            Phase::Done | Phase::Stopped(_) => {}
        }
        Ok(true)
    }

    // ---- Life -------------------------------------------------------------------

    /// See [`Pool::sync`](crate::Pool::sync).
    pub fn sync(&self) -> Result<()> {
        self.sync_and(|_| Ok(()))
    }

    /// Makes the pool clean and durable and calls `then` while it stands still.
    pub fn sync_and<T>(&self, then: impl FnOnce(&Core<S>) -> Result<T>) -> Result<T> {
        self.check()?;
        if !self.is_settled() {
            let _writing = self.core.enter()?;
            self.free_dropped()?;
        }
        self.core.sync_and(|| self.is_settled(), then)
    }

    /// Closes the pool. Other handles get [`Error::NotOpen`] from now on.
    pub fn close(&self) -> Result<()> {
        self.check()?;
        self.core.close(|| self.free_dropped(), || self.is_settled())
    }

    /// Holds all writers back, marked dirty, while `during` walks the structures.
    pub fn stand_still<T>(&self, during: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        self.check()?;
        self.core.stand_still(|| during(self))
    }

    /// Runs the reclaim to its end.
    pub fn finish_reclaim(&self) -> Result<bool> {
        self.check()?;
        if self.core.options().read_only {
            return Ok(false);
        }
        let _writing = self.core.enter()?;
        self.finish()
    }
}

impl<S: Seam> Reclaimer for Store<S> {
    fn finish(&self) -> Result<bool> {
        let mut turn = 0;
        loop {
            while self.reclaim_step()? {}
            match self.reclaim_state() {
                // Operations that are under way end soon; a guard that the user holds need not.
                ReclaimState::Running if turn < GRACE_TURNS => self.core.wait(&mut turn)?,
                state => return Ok(state == ReclaimState::Done),
            }
        }
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
