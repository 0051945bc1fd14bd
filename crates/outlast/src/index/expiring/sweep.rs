//! The sweep: removes what has expired in the background.

use super::{Expiring, SWEPT_UNCOMPARED};
use crate::error::Result;
use crate::index::{Change, Cursor, Previous};
use crate::pmem::Seam;
use crate::pool::clock::{NEVER, SECOND};
use std::sync::atomic::{Ordering, fence};

/// The shortest time between two passes of the sweep.
const PAUSE: u64 = SECOND;
/// The longest one, after passes that found little.
const PAUSE_MAX: u64 = 64 * SECOND;
/// A pass that removes less than one record in this many doubles the time until the next one.
const FEW: u64 = 16;

/// Where the sweep is.
pub(super) struct Sweep {
    /// The position of a pass under way. It is absent while a thread does a step.
    cursor: Option<Cursor>,
    /// Records of this pass that the sweep has looked at, and those that it has removed.
    seen: u64,
    removed: u64,
    /// The earliest time of those that it has left.
    earliest: u64,
    /// When the next pass may begin, and the time between passes.
    next: u64,
    pause: u64,
}

impl Sweep {
    pub(super) fn new() -> Self {
        Sweep {
            cursor: Some(Cursor::start()),
            seen: 0,
            removed: 0,
            earliest: NEVER,
            next: 0,
            pause: PAUSE,
        }
    }
}

impl<S: Seam> Expiring<S> {
    /// Remembers that a record with this time was stored.
    pub(super) fn expect(&self, time: u64) {
        if time == NEVER {
            return;
        }
        // Pairs with the fence in `sweep_part`: a pass that begins finds the record, or this load finds what
        // the pass has stored.
        fence(Ordering::SeqCst);
        if time < self.earliest.load(Ordering::Relaxed) {
            self.earliest.fetch_min(time, Ordering::Relaxed);
        }
    }

    /// Returns whether the sweep has something to do.
    pub(super) fn is_due(&self) -> bool {
        let earliest = self.earliest.load(Ordering::Relaxed);
        let sweep = self.core.memory.seam().lock(&self.sweep);
        let under_way = sweep.cursor.as_ref().is_some_and(|cursor| *cursor != Cursor::start());
        if under_way || sweep.cursor.is_none() {
            return sweep.cursor.is_some();
        }
        let now = self.now();
        // A clock that went back does not stop the sweep for longer than its longest pause.
        earliest <= now && (sweep.next <= now || sweep.next - now > PAUSE_MAX)
    }

    /// Sweeps the next part of the map. Returns whether there is more to sweep.
    pub(super) fn sweep_part(&self) -> Result<bool> {
        let seam = self.core.memory.seam();
        let Some(mut cursor) = seam.lock(&self.sweep).cursor.take() else { return Ok(false) };
        if cursor == Cursor::start() {
            // Times that are put from now on count for the next pass.
            self.earliest.store(NEVER, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        let swept = self.sweep_at(&mut cursor);
        let mut sweep = seam.lock(&self.sweep);
        let (more, failed) = match &swept {
            Ok((seen, removed, earliest)) => {
                sweep.seen += seen;
                sweep.removed += removed;
                sweep.earliest = sweep.earliest.min(*earliest);
                (!cursor.is_done(), false)
            }
            Err(_) => (false, true),
        };
        if more {
            sweep.cursor = Some(cursor);
            return Ok(true);
        }
        let few = failed || sweep.removed * FEW < sweep.seen;
        let pause = if few { (2 * sweep.pause).min(PAUSE_MAX) } else { PAUSE };
        // What a pass that has failed left is not known.
        self.expect(if failed { 0 } else { sweep.earliest });
        let next = self.now().saturating_add(pause);
        *sweep = Sweep { next, pause, ..Sweep::new() };
        swept.map(|_| false)
    }

    /// Sweeps one part. Returns how many records it has seen and removed, and the earliest time of the
    /// others.
    fn sweep_at(&self, cursor: &mut Cursor) -> Result<(u64, u64, u64)> {
        let mut records = Vec::new();
        self.stored.scan(cursor, &mut records)?;
        let (now, mut removed, mut earliest) = (self.now(), 0, NEVER);
        for (key, stored) in &records {
            // A record without a time is found by whoever reads it.
            let Ok((time, _)) = self.split(stored) else { continue };
            if time > now {
                earliest = earliest.min(time);
            } else if self.core.memory.seam().seeded(&SWEPT_UNCOMPARED) {
                self.apply(key, Change::Remove, Previous::UNWANTED)?;
            } else {
                removed += u64::from(self.bury(key, stored)?);
            }
        }
        Ok((records.len() as u64, removed, earliest))
    }
}
