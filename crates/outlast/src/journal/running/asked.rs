//! Waiting for durability without holding a thread: a task asks, is woken once a turn has ended, and asks
//! again whether all is done.
//!
//! Threads and tasks wait for the same thing ([`Asked`]): a cut that begins after they asked. What the caller had
//! done before is noted by then, so that cut takes it, or an earlier one did; and `done` reaches the cut's number
//! only once all that it took is durable. So a power loss after the future was ready undoes nothing of it.
//!
//! No task is forgotten. A task that is not done leaves its waker under the lock of the state, and each turn that
//! ends, in whatever way, and the end of the journal wake all tasks that have left theirs; so a task looks again
//! after each. A turn that has not begun is asked for, and the journal's thread makes it.

use super::*;
use std::task::{Context, Poll};

/// What a task waits for.
pub struct Asked {
    /// The number of the cut that must be durable.
    target: u64,
    /// Failed attempts to write when the task asked.
    failures: u64,
}

impl Journal {
    /// Begins to wait for everything that was done before this call. Returns `None` if it is durable already.
    pub fn ask(&self) -> Option<Asked> {
        let state = lock(&self.state);
        (!self.is_all_durable(&state)).then(|| self.asked(&state))
    }

    /// Returns the outcome if there is one. If not, the journal's thread takes a turn at once, after which the
    /// task is woken.
    pub fn poll(&self, asked: &Asked, task: &Context<'_>) -> Poll<Result<()>> {
        let mut state = lock(&self.state);
        if let Some(outcome) = asked.outcome(&state) {
            return Poll::Ready(outcome);
        }
        // One task can ask many times before a turn ends.
        if !state.tasks.last().is_some_and(|last| last.will_wake(task.waker())) {
            state.tasks.push(task.waker().clone());
        }
        // A cut that has begun already is not the one that the task needs.
        state.asked |= state.begun < asked.target;
        self.wake.notify_all();
        Poll::Pending
    }

    pub(super) fn asked(&self, state: &State) -> Asked {
        // A cut that has begun may have missed what this thread did.
        let target = state.begun + u64::from(!seeded(&bugs::WAITS_FOR_LAST_CUT));
        Asked { target, failures: state.failures }
    }

    pub(super) fn is_all_durable(&self, state: &State) -> bool {
        let is_done = state.done == state.begun || seeded(&bugs::WAITS_FOR_NOTES);
        is_done && !self.notes.any() && !state.ended && !state.stop
    }

    /// Tells threads and tasks that the state has changed.
    pub(super) fn tell(&self) {
        self.told.notify_all();
        // A task may be polled by the call that wakes it.
        let tasks = std::mem::take(&mut lock(&self.state).tasks);
        tasks.into_iter().for_each(Waker::wake);
    }
}

impl Asked {
    /// Returns the outcome, if it is known.
    pub(super) fn outcome(&self, state: &State) -> Option<Result<()>> {
        if state.done >= self.target {
            return Some(Ok(()));
        }
        // Of two failed attempts, the first may have begun before the task asked.
        let failed = state.ended || state.failures >= self.failures + 2;
        match &state.failure {
            Some(failure) if failed => Some(Err(failure.error())),
            _ if state.ended || state.stop => Some(Err(Error::NotOpen(NotOpen::ClosedMeanwhile))),
            _ => None,
        }
    }
}
