//! The scheduler: of all threads, only the one that has the baton runs.
//!
//! Before each access to memory, and in each iteration of a wait, the running thread asks the
//! [`Strategy`] which thread is next, and hands it the baton. So the strategy's choices determine
//! the interleaving, and the same choices make the same run. A thread that waits or takes a lock
//! asks the strategy too, because waits and locks go through the seam.

use super::strategy::{Pauses, Steps, Strategy};
use crate::response::is_durable;
use outlast::internals::pmem::{Access, Control, Point, Traced};
use outlast::internals::pool::threads::{OWNERS, number_this_thread};
use std::cell::Cell;
use std::mem::discriminant;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

/// If no operation returns in this many steps, the scheduler concludes that the threads wait for
/// each other or loop. An operation on tables as small as those here takes hundreds of steps.
const STEPS_MAX: u64 = 60_000;

/// The same for a run that [`Baton::begin`] begins.
const LONG: u64 = 10_000_000;

/// The numbers of the two threads of [`Baton::during`]. They decide from which shard of the
/// allocator a thread takes its blocks, and these two take them from the same. Threads that are
/// given no number take small ones.
const CALLER: usize = OWNERS / 2;
const OTHER: usize = OWNERS * 3 / 4;

/// In the trace, a run's threads have numbers from this one on. The thread that set it up has 0.
pub const FIRST: usize = 1;

thread_local! {
    /// The number of this thread in its run, if it is scheduled.
    static THREAD: Cell<Option<usize>> = const { Cell::new(None) };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    /// Has not reached the start yet.
    Away,
    Ready,
    /// Stopped for ever, or until all others are done.
    Stopped,
    Done,
}

/// An access of a thread at a commit point.
#[derive(Debug, Clone)]
pub struct Accessed {
    /// How many steps the thread had made before.
    pub step: u64,
    /// The commit point.
    pub point: &'static Point,
    /// The access.
    pub access: Access,
}

struct State {
    strategy: Strategy,
    threads: Vec<Status>,
    /// The threads that are ready.
    ready: Vec<usize>,
    running: Option<usize>,
    steps: Steps,
    /// By thread.
    own_steps: Vec<u64>,
    /// By thread: its accesses at commit points.
    accesses: Vec<Vec<Accessed>>,
    /// By thread: whether it has stored since its last fence.
    unfenced: Vec<bool>,
    /// Steps since an operation last returned.
    idle: u64,
    idle_max: u64,
    /// The thread that is to be stopped, and how many steps it may make before.
    stop: Option<(usize, u64)>,
    /// Whether the thread was stopped.
    stopped: bool,
    /// No thread makes progress, so all of them unwind.
    stuck: bool,
}

impl State {
    fn new(threads: usize, strategy: Strategy) -> State {
        State {
            strategy,
            threads: vec![Status::Away; threads],
            ready: Vec::new(),
            running: None,
            steps: Steps::default(),
            own_steps: vec![0; threads],
            accesses: vec![Vec::new(); threads],
            unfenced: vec![false; threads],
            idle: 0,
            idle_max: STEPS_MAX,
            stop: None,
            stopped: false,
            stuck: false,
        }
    }

    fn set(&mut self, thread: usize, status: Status) {
        self.threads[thread] = status;
        let all = self.threads.iter().enumerate();
        self.ready = all.filter(|(_, s)| **s == Status::Ready).map(|(t, _)| t).collect();
    }

    fn next(&mut self, me: usize, waiting: bool) -> usize {
        self.strategy.next(me, waiting, self.steps, self.own_steps[me], &self.ready)
    }
}

struct Shared {
    state: Mutex<State>,
    turns: Vec<Condvar>,
}

/// The baton of one run. Clones are the same one.
#[derive(Clone)]
pub struct Baton(Arc<Shared>);

/// The panic payload with which the threads of a stuck run unwind.
#[derive(Debug)]
pub struct Stuck;

impl Baton {
    /// Makes a baton for this many threads.
    pub fn new(threads: usize, strategy: Strategy) -> Baton {
        let state = State::new(threads, strategy);
        let turns = (0..threads).map(|_| Condvar::new()).collect();
        Baton(Arc::new(Shared { state: Mutex::new(state), turns }))
    }

    /// Stops a thread before its step number `step`, until all others are done.
    pub fn stop(&self, thread: usize, step: u64) {
        self.state().stop = Some((thread, step));
    }

    /// Sets how many steps all threads together may make until an operation returns.
    pub fn limit(&self, steps: u64) {
        self.state().idle_max = steps;
    }

    /// Steps made so far.
    pub fn steps(&self) -> Steps {
        self.state().steps
    }

    /// Returns the number of a thread's steps. The step that it is about to make counts, too.
    pub fn own_steps(&self, thread: usize) -> u64 {
        self.state().own_steps[thread]
    }

    /// Returns the recorded accesses of a thread at commit points.
    pub fn accesses(&self, thread: usize) -> Vec<Accessed> {
        self.state().accesses[thread].clone()
    }

    /// Returns the steps of a thread that were stores, flushes or fences of a commit point: how
    /// many steps it had made before, and the point. If several in a row have the same point and
    /// kind of access, only the first is listed.
    pub fn pointed(&self, thread: usize) -> Vec<(u64, &'static Point)> {
        let mut accesses = self.accesses(thread);
        accesses.dedup_by_key(|accessed| (accessed.point, discriminant(&accessed.access)));
        accesses.iter().map(|accessed| (accessed.step, accessed.point)).collect()
    }

    /// Returns whether the thread that [`stop`](Baton::stop) names has reached its step and
    /// stopped.
    pub fn has_stopped(&self) -> bool {
        self.state().stopped
    }

    /// Returns whether no thread could make progress any more.
    pub fn is_stuck(&self) -> bool {
        self.state().stuck
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Makes the calling thread one of the run. Returns once all threads of the run have called
    /// this, and the calling thread has the baton.
    pub fn enter(&self, thread: usize) {
        THREAD.set(Some(thread));
        let mut state = self.state();
        state.set(thread, Status::Ready);
        if state.ready.len() == state.threads.len() {
            let first = state.next(0, false);
            self.hand_to(&mut state, first);
        }
        self.wait_for_turn(state, thread);
    }

    /// Ends the calling thread's part in the run, and hands on the baton.
    pub fn leave(&self) {
        let Some(thread) = THREAD.take() else { return };
        let mut state = self.state();
        state.set(thread, Status::Done);
        if state.running == Some(thread) {
            self.go_on(&mut state, thread, true);
        }
    }

    /// Runs a function as one thread of the run.
    fn scheduled<T>(&self, thread: usize, act: impl FnOnce() -> T) -> thread::Result<T> {
        let done = catch_unwind(AssertUnwindSafe(|| {
            self.enter(thread);
            act()
        }));
        self.leave();
        done
    }

    /// Runs these functions to their ends, each as the thread of its number.
    pub fn play<'a, T: Send + 'a>(
        &self,
        acts: impl IntoIterator<Item = Box<dyn FnOnce() -> T + Send + 'a>>,
    ) -> Vec<thread::Result<T>> {
        thread::scope(|scope| {
            let numbered = acts.into_iter().enumerate();
            let threads: Vec<_> = numbered
                .map(|(thread, act)| scope.spawn(move || self.scheduled(thread, act)))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(Err)).collect()
        })
    }

    /// Begins another run, which may be long, with the first of the baton's threads.
    pub fn begin(&self, threads: usize, strategy: Strategy) {
        *self.state() = State { idle_max: LONG, ..State::new(threads, strategy) };
    }

    /// Runs `act` in a thread that pauses before its step number `at`, counted from 0. Once it has
    /// paused or ended, runs `meanwhile`, and tells it whether the thread has paused. Then lets the
    /// thread run to its end. It also goes on if `meanwhile` has to wait for it.
    ///
    /// # Panics
    /// If `meanwhile` does.
    pub fn during<T: Send, M>(
        &self,
        at: u64,
        act: impl FnOnce() -> T + Send,
        meanwhile: impl FnOnce(bool) -> M,
    ) -> (thread::Result<T>, M) {
        self.begin(2, Strategy::held(Pauses { first: at, second: None, again: None }, 2));
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                number_this_thread(OTHER);
                self.scheduled(0, act)
            });
            let made = self.scheduled(1, || meanwhile(self.own_steps(0) > at));
            (thread.join().unwrap_or_else(Err), made.unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }

    /// Returns a recorder whose accesses this baton schedules. It does not record yet. The calling
    /// thread gets a number.
    pub fn seam(&self) -> Traced {
        number_this_thread(CALLER);
        Traced::with_control(Box::new(self.clone()))
    }

    /// Notes that an operation of the calling thread has returned.
    pub fn answered(&self) {
        self.state().idle = 0;
    }

    fn hand_to(&self, state: &mut State, thread: usize) {
        state.running = Some(thread);
        self.0.turns[thread].notify_one();
    }

    /// Hands the baton to the next thread. If no thread is ready, those that were stopped go on.
    fn go_on(&self, state: &mut State, me: usize, waiting: bool) {
        if state.ready.is_empty() {
            state.stop = None;
            for thread in 0..state.threads.len() {
                if state.threads[thread] == Status::Stopped {
                    state.set(thread, Status::Ready);
                }
            }
        }
        if state.ready.is_empty() {
            state.running = None;
            return;
        }
        let next = state.next(me, waiting);
        if state.running != Some(next) || next != me {
            self.hand_to(state, next);
        }
    }

    fn wait_for_turn(&self, mut state: MutexGuard<'_, State>, thread: usize) {
        while state.running != Some(thread) && !state.stuck {
            state = self.0.turns[thread].wait(state).unwrap_or_else(|e| e.into_inner());
        }
        if state.stuck {
            drop(state);
            resume_unwind(Box::new(Stuck));
        }
    }
}

impl Control for Baton {
    fn before(&self, _thread: usize, waiting: bool) {
        let Some(thread) = THREAD.get() else { return };
        if thread::panicking() {
            // A thread that unwinds is not scheduled any more, so that it can end.
            if waiting {
                thread::yield_now();
            }
            return;
        }
        let mut guard = self.state();
        let state = &mut *guard;
        if state.stuck {
            drop(guard);
            resume_unwind(Box::new(Stuck));
        }
        state.steps.all += 1;
        state.own_steps[thread] += 1;
        state.steps.windows += u64::from(state.unfenced[thread]);
        state.idle += 1;
        if state.idle > state.idle_max {
            state.stuck = true;
            self.0.turns.iter().for_each(Condvar::notify_all);
            drop(guard);
            resume_unwind(Box::new(Stuck));
        }
        if let Some((victim, left)) = &mut state.stop
            && *victim == thread
        {
            if *left == 0 {
                state.set(thread, Status::Stopped);
                state.stopped = true;
            } else {
                *left -= 1;
            }
        }
        self.go_on(state, thread, waiting);
        self.wait_for_turn(guard, thread);
    }

    fn before_lock(&self, thread: usize) {
        self.before(thread, false);
    }

    fn after(&self, access: &Access, at: Option<&'static Point>) {
        let Some(thread) = THREAD.get() else { return };
        if let Some(point) = at {
            let mut state = self.state();
            let step = state.own_steps[thread] - 1;
            state.accesses[thread].push(Accessed { step, point, access: access.clone() });
        }
        match access {
            Access::Store { .. } | Access::CompareExchange { .. } if !is_durable(at) => {}
            Access::Store { .. } | Access::CompareExchange { exchanged: true, .. } => {
                self.state().unfenced[thread] = true;
            }
            Access::Fence | Access::Mark(_) => self.state().unfenced[thread] = false,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stop::tests::FourWords;
    use outlast::internals::pmem::Seam;

    /// Makes four stores in a thread that pauses before the third. Returns what `meanwhile`
    /// returned, and how many stores were made at the end.
    fn four_stores<T>(meanwhile: impl Fn(&dyn Fn() -> usize, &Traced) -> T) -> (T, usize) {
        let baton = Baton::new(2, Strategy::InTurn);
        let seam = baton.seam();
        let words = FourWords::new(seam.clone());
        let (done, seen) = baton.during(
            2,
            || words.store(1),
            |held| {
                assert!(held);
                meanwhile(&|| words.stored(), &seam)
            },
        );
        assert!(done.is_ok());
        (seen, words.stored())
    }

    #[test]
    fn a_thread_pauses_where_it_is_told_to() {
        assert_eq!(four_stores(|stored, _| stored()), (2, 4));
    }

    #[test]
    fn a_held_thread_goes_on_if_another_one_waits() {
        let wait = |stored: &dyn Fn() -> usize, seam: &Traced| {
            let mut turn = 0;
            while stored() < 4 {
                seam.wait(&mut turn);
            }
        };
        assert_eq!(four_stores(wait), ((), 4));
    }
}
