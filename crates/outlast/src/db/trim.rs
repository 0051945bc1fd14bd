//! Decides when the background thread gives free space back to the file system.
//! `pool/alloc/trim.rs` describes how it does so, and why that is correct.

use super::store::Store;
use crate::error::Error;
use crate::pmem::{Moment, Real};
use crate::pool::core::Trimmed;
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// How long pages must have been free before they are given back, by default.
pub(super) const TRIM_AFTER: Duration = Duration::from_secs(1);
/// The longest time between two rounds: after an error, or if the pool keeps reusing the space that
/// it gave back.
const PAUSE_MAX: Duration = Duration::from_secs(64);
/// Bytes given back in one step of the worker.
const STEP: u64 = 64 << 20;

/// Gives free pages back in rounds:
///
/// 1. Check whether enough pages are free. Of these, only the ones that stay free are given back.
/// 2. A while later, write the pool back.
/// 3. Punch out the pages that have stayed free, some with each step.
pub(super) struct Trimmer {
    phase: Phase,
    /// When to go on.
    next: Instant,
    /// How long pages must have been free.
    after: Duration,
    /// The time between two rounds.
    pause: Duration,
    /// The number of bytes that had been given back and then used again, as of the last check.
    refilled: u64,
    /// Whether the last round gave anything back.
    gave: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Look,
    WriteBack,
    Punch,
    /// The file system cannot punch holes.
    Never,
}

impl Trimmer {
    pub(super) fn new(now: Instant, after: Duration) -> Trimmer {
        let (phase, next) = (Phase::Look, now + after);
        Trimmer { phase, next, after, pause: after, refilled: 0, gave: false }
    }

    /// Does the next piece of work, if it is time. Returns whether there is more to do immediately.
    pub(super) fn step(&mut self, store: &Store<Real>, now: Instant) -> bool {
        if now < self.next || self.phase == Phase::Never {
            return false;
        }
        match self.advance(store, now) {
            Ok(more) => more,
            Err(error) => {
                self.note_error(&error, now);
                false
            }
        }
    }

    fn advance(&mut self, store: &Store<Real>, now: Instant) -> Result<bool, Error> {
        let core = store.core();
        core.backing().at(Moment::Trim);
        match self.phase {
            Phase::Look => {
                self.next = now + self.pause;
                if let Some(found) = core.begin_trim() {
                    self.set_pause(found.refilled);
                    if found.is_worth_it {
                        (self.phase, self.next) = (Phase::WriteBack, now + self.after);
                        return Ok(self.after.is_zero());
                    }
                }
            }
            Phase::WriteBack => {
                core.write_back_for_trim()?;
                self.phase = Phase::Punch;
                return Ok(true);
            }
            Phase::Punch => match core.trim(STEP)? {
                Trimmed::More(bytes) => {
                    self.gave |= bytes > 0;
                    // Nothing was given back if another thread was waiting for pages. Then go on in
                    // a later turn.
                    return Ok(bytes > 0);
                }
                Trimmed::All(bytes) => {
                    self.gave |= bytes > 0;
                    (self.phase, self.next) = (Phase::Look, now + self.pause);
                }
            },
            Phase::Never => {}
        }
        Ok(false)
    }

    /// Sets the time between two rounds. If the pool has reused given-back space since the last
    /// round, that round was in vain, and the next one comes later.
    fn set_pause(&mut self, refilled: u64) {
        if std::mem::take(&mut self.gave) {
            let in_vain = refilled > self.refilled;
            self.pause = if in_vain { (2 * self.pause).min(PAUSE_MAX) } else { self.after };
        }
        self.refilled = refilled;
    }

    fn note_error(&mut self, error: &Error, now: Instant) {
        let errno = match error {
            Error::Io { source, .. } => source.raw_os_error().map(Errno::from_raw_os_error),
            _ => None,
        };
        let never = [Errno::OPNOTSUPP, Errno::NOSYS, Errno::INVAL, Errno::PERM, Errno::NODEV];
        if matches!(error, Error::NotOpen(_)) || errno.is_some_and(|e| never.contains(&e)) {
            tracing::debug!(%error, "no free space is given back");
            self.phase = Phase::Never;
        } else {
            tracing::warn!(%error, "giving free space back failed");
            (self.phase, self.next) = (Phase::Look, now + PAUSE_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_in_vain_become_rare() {
        let mut trimmer = Trimmer::new(Instant::now(), TRIM_AFTER);
        for (round, pause) in [1, 2, 4, 8, 16, 32, 64, 64].into_iter().enumerate() {
            assert_eq!(trimmer.pause, Duration::from_secs(pause));
            trimmer.gave = true;
            trimmer.set_pause(round as u64 + 1);
            // A second check without a round in between changes nothing.
            trimmer.set_pause(round as u64 + 1);
        }
        trimmer.gave = true;
        trimmer.set_pause(8);
        assert_eq!(trimmer.pause, TRIM_AFTER);
    }

    #[test]
    fn a_file_system_that_cannot_punch_is_asked_once() {
        let now = Instant::now();
        let error = |errno: Errno| Error::io("punching", errno.into());
        let mut trimmer = Trimmer::new(now, TRIM_AFTER);
        trimmer.note_error(&error(Errno::IO), now);
        assert_eq!((trimmer.phase, trimmer.next), (Phase::Look, now + PAUSE_MAX));
        trimmer.note_error(&error(Errno::OPNOTSUPP), now);
        assert_eq!(trimmer.phase, Phase::Never);
    }
}
