//! The reclaim of space after a crash.
//!
//! After a crash, it is not known which of the blocks from before it, the *old* blocks, are in use.
//! Operations start immediately and allocate elsewhere. Meanwhile the reclaim runs, step by step:
//!
//! 1. *Trace*: for each root, the index reports the blocks that it owns, and the reclaim marks them
//!    alive. An operation that unlinks a block during the trace, or moves it to where the trace may
//!    have been, marks it first. So the trace only has to find the blocks that stay in place.
//! 2. *Grace*: an operation that began before the trace ended may still be on its way to an old
//!    block that nothing leads to any more. The reclaim waits for all such operations.
//! 3. *Sweep*: run by run, an old block is free if it is not marked alive, or if it was retired
//!    since the opening.
//!
//! If a root or a map cannot be read in full, the reclaim stops before the sweep, and nothing is
//! freed. In a pool that may not grow, an allocation waits for the reclaim before it fails with
//! [`Error::PoolFull`].

use super::roots;
use super::store::{MapSeam, Phase, ReclaimState, Store};
use crate::db::bugs;
use crate::error::{Damage, Error, Result};
use crate::index::Cursor;
use crate::pool::core::{GRACE_TURNS, Reclaimer};
use crate::pool::layout::ROOT_SLOTS;

/// Stops the reclaim, unless it has ended.
fn stop(phase: &mut Phase, error: Error) {
    if matches!(phase, Phase::Done | Phase::Stopped(_)) {
        return;
    }
    tracing::warn!(%error, "reclaim stopped: what is left of the space from before the crash is not reused");
    *phase = Phase::Stopped(match error {
        Error::Damaged(damage) | Error::DamagedRoot { damage, .. } => damage,
        other => Damage::new(0, "a pool that can be traced", other.to_string()),
    });
}

impl<S: MapSeam> Store<S> {
    /// Returns the progress of the reclaim.
    pub fn reclaim_state(&self) -> ReclaimState {
        match &*self.core.memory.seam().lock(&self.reclaim) {
            Phase::Done => ReclaimState::Done,
            Phase::Stopped(damage) => ReclaimState::Stopped(damage.clone()),
            Phase::Trace { .. } | Phase::Grace { .. } | Phase::Sweep { .. } => {
                ReclaimState::Running
            }
        }
    }

    /// Does one step of the reclaim. The caller has passed the gate. Returns whether the reclaim
    /// can go on immediately. It cannot when it has ended or was stopped by damage, or while it
    /// waits for operations or guards.
    pub(super) fn reclaim_step(&self) -> Result<bool> {
        let mut phase = self.core.memory.seam().lock(&self.reclaim);
        match self.advance(&mut phase) {
            Ok(advanced) => Ok(advanced && !matches!(*phase, Phase::Done | Phase::Stopped(_))),
            // What is not known to be in use is not freed.
            Err(error) if error.is_damage() || matches!(error, Error::NotBuilt(_)) => {
                stop(&mut phase, error);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Stops the reclaim, because of damage that another operation has found.
    pub(super) fn stop_reclaim(&self, error: Error) {
        stop(&mut self.core.memory.seam().lock(&self.reclaim), error);
    }

    /// Advances the reclaim. Returns whether it advanced.
    fn advance(&self, phase: &mut Phase) -> Result<bool> {
        let alloc = self.core.alloc();
        match phase {
            Phase::Trace { slot, cursor } => {
                if let Some((_, damage)) = self.core.lost_root() {
                    // The blocks of the lost root are not known.
                    return Err(damage.clone().into());
                }
                if *slot == ROOT_SLOTS || self.core.memory.seam().seeded(&bugs::SWEPT_UNTRACED) {
                    *phase = Phase::Grace { epoch: self.core.epochs().begin() };
                    return Ok(true);
                }
                let Some(info) = self.settled(|| roots::read(&self.core, *slot))?? else {
                    *slot += 1;
                    *cursor = Cursor::start();
                    return Ok(true);
                };
                // `None` means that the map was dropped meanwhile. The dropping thread has marked
                // its blocks.
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
                let skipped = self.core.memory.seam().seeded(&bugs::GRACE_SKIPPED);
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

    /// Runs the reclaim until it ends, or until damage or a guard stops it. Returns whether all
    /// space is accounted for; always `false` if the pool is read-only.
    pub fn finish_reclaim(&self) -> Result<bool> {
        self.check()?;
        if self.core.options().read_only {
            return Ok(false);
        }
        let _writing = self.core.enter()?;
        self.finish()
    }
}

impl<S: MapSeam> Reclaimer for Store<S> {
    fn finish(&self) -> Result<bool> {
        let mut turn = 0;
        loop {
            while self.reclaim_step()? {}
            match self.reclaim_state() {
                // Operations under way end soon, but a guard held by the user may not.
                ReclaimState::Running if turn < GRACE_TURNS => self.core.wait(&mut turn)?,
                state => return Ok(state == ReclaimState::Done),
            }
        }
    }

    fn free_dropped(&self) -> Result<bool> {
        Store::free_dropped(self)
    }
}
