//! The journal's own thread, and the end of both of its threads.

use super::*;

/// The longest interval between two turns.
const LONGEST: Duration = Duration::from_secs(3_600);
/// How long the journal may take, before its first cut, to touch the noted lines that a dead
/// process has left.
const TOUCHING: Duration = Duration::from_millis(20);

impl Journal {
    /// Takes a turn after each interval in which something changed, until [`shut`](Self::shut).
    pub fn run(&self, source: &dyn Source) {
        let _running = Running(self);
        // A process that died may have left many noted lines whose pages are not mapped in this
        // process yet. Touching them now shortens the first cut.
        let start = Instant::now();
        self.notes.look(|lines| {
            if start.elapsed() < TOUCHING && !self.is_stopped() {
                source.touch(lines);
            }
        });
        let (mut due, mut pause) = (Instant::now(), RETRY.0);
        let mut if_asked = due;
        while let Some(state) = self.due(due, if_asked) {
            let start = Instant::now();
            let outcome = self.take_turn(state, source);
            (due, if_asked) = match outcome {
                Outcome::Done => (start + self.settings.interval.min(LONGEST), start),
                Outcome::Busy => (Instant::now() + BUSY, Instant::now() + BUSY),
                Outcome::Failed => (Instant::now() + pause, Instant::now() + pause),
                Outcome::Ended => return,
            };
            pause = match outcome {
                Outcome::Failed => (pause * 2).min(RETRY.1),
                _ => RETRY.0,
            };
        }
    }

    /// Waits until a turn is due, at `if_asked` if a task waits for it. Returns `None` if the thread must stop.
    fn due(&self, mut due: Instant, if_asked: Instant) -> Option<MutexGuard<'_, State>> {
        let mut state = lock(&self.state);
        loop {
            if state.stop || state.ended {
                return None;
            }
            let now = Instant::now();
            let asked = state.asked && !state.busy;
            if asked && now >= if_asked {
                return Some(state);
            }
            if now >= due {
                // A failed turn is repeated even if nothing has changed since.
                if !state.busy && (self.notes.any() || state.failure.is_some()) {
                    return Some(state);
                }
                due = now + self.settings.interval.min(LOOK);
            }
            let until = if asked { due.min(if_asked) } else { due };
            let waited = self.wake.wait_timeout(state, until - now);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Announces a thread that is about to call [`run`](Self::run) or
    /// [`run_checkpoints`](Self::run_checkpoints).
    pub fn expect(&self) {
        lock(&self.state).running += 1;
    }

    /// Withdraws an announcement, because the thread could not be started.
    pub fn unexpect(&self) {
        lock(&self.state).running -= 1;
    }

    /// Stops the journal's threads, and waits for them to end. Nothing is written after that. If
    /// the base now equals the pool (`closed`), deletes the segments and, unless it is to be kept,
    /// the working file.
    pub fn shut(&self, closed: bool) {
        let mut state = lock(&self.state);
        state.stop = true;
        self.wake.notify_all();
        drop(state);
        self.tell();
        let mut state = lock(&self.state);
        while state.running > 0 || state.busy {
            state = self.told.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        if closed {
            // Segments that cannot be deleted now are deleted when the next life begins.
            let mut writer = lock(&self.writer);
            let _ = writer.delete_all().and_then(|()| writer.sync_deletions());
            if !self.settings.keep {
                let _ = std::fs::remove_file(self.working());
            }
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        let state = lock(&self.state);
        state.stop || state.ended
    }
}

/// Ends the count of a running thread, which [`expect`](Journal::expect) began, when it is dropped,
/// also if the thread unwinds.
pub(super) struct Running<'j>(pub(super) &'j Journal);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).running -= 1;
        self.0.told.notify_all();
    }
}
