//! The scheduler: of all threads, only the one that has the baton runs.
//!
//! Before each access to memory, and in each iteration of a wait, the running thread asks the
//! [`Strategy`] which thread is next, and hands it the baton. So the strategy's choices determine
//! the interleaving, and the same choices make the same run. A thread that waits or takes a lock
//! asks the strategy too, because waits and locks go through the seam.

use super::directed::Held;
use crate::random::Random;
use crate::response::is_durable;
use outlast::internals::pmem::{Access, Control, Point};
use std::cell::Cell;
use std::mem::{Discriminant, discriminant};
use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// If no operation returns in this many steps, the scheduler concludes that the threads wait for
/// each other or loop. An operation on tables as small as those here takes hundreds of steps.
const STEPS_MAX: u64 = 60_000;

/// Upper bounds on how many of its own steps a thread makes before it pauses. The first bound
/// covers the beginning of an operation, in which it looks for its key, and the second a whole
/// operation.
const OWN_STEPS: [u64; 2] = [10, 60];

thread_local! {
    /// The number of this thread in its run, if it is scheduled.
    static THREAD: Cell<Option<usize>> = const { Cell::new(None) };
}

/// How the next thread is chosen.
#[derive(Debug, Clone)]
pub enum Strategy {
    /// A random walk: one step in `one_in` switches to a random thread.
    Walk {
        /// Draws the steps and the threads.
        random: Random,
        /// One step in this many is a switch.
        one_in: u64,
    },
    /// Probabilistic concurrency testing (Burckhardt et al., ASPLOS 2010): the thread of the
    /// highest priority runs. At a few steps chosen in advance, its priority becomes the lowest.
    Pct {
        /// By thread; higher goes first.
        priorities: Vec<i64>,
        /// Steps at which the running thread's priority falls, ascending.
        changes: Vec<u64>,
        /// Whether only steps between a store and the fence after it are counted. There, other
        /// threads can see stores that are not durable yet.
        in_windows: bool,
        /// Threads whose priority becomes the lowest after this many of their own steps. Otherwise
        /// a lookup of a few dozen steps that runs next to a split of a thousand would hardly ever
        /// be interrupted.
        own: Vec<(usize, u64)>,
        /// The next priority that is lower than all others.
        lowest: i64,
    },
    /// One thread after the other runs until it ends or waits.
    InTurn,
}

impl Strategy {
    /// Returns a walk that a seed determines, including how often it switches.
    pub fn walk(seed: u64) -> Strategy {
        let mut random = Random::new(seed ^ 0x3a1c);
        let one_in = [2, 4, 8, 20, 60][random.below(5) as usize];
        Strategy::Walk { random, one_in }
    }

    /// Returns priorities and change points that a seed determines, for a run of about `steps`
    /// steps. `windows` of them lie between a store and a fence. Two of every three seeds put their
    /// change points there, because these windows are few and short, and most faults show in them.
    pub fn pct(seed: u64, threads: usize, steps: u64, windows: u64) -> Strategy {
        let mut random = Random::new(seed ^ 0x9c71);
        let depth = 2 + random.below(4);
        let in_windows = random.below(3) != 0;
        let steps = if in_windows { windows } else { steps };
        let mut priorities: Vec<i64> = (1..=threads as i64).collect();
        random.shuffle(&mut priorities);
        let mut changes: Vec<u64> = (1..depth).map(|_| random.below(steps.max(1))).collect();
        changes.sort_unstable();
        let own = (random.below(2) == 0).then(|| {
            let among = OWN_STEPS[random.below(2) as usize];
            (random.below(threads as u64) as usize, random.below(among))
        });
        let own = own.into_iter().collect();
        Strategy::Pct { priorities, changes, in_windows, own, lowest: 0 }
    }

    /// One thread goes first, and pauses after `steps` steps of its own. It continues when the
    /// others, which run one after the other, are done or wait for it.
    pub fn paused(thread: usize, steps: u64, threads: usize) -> Strategy {
        let mut priorities: Vec<i64> = (1..=threads as i64).rev().collect();
        priorities[thread] = threads as i64 + 1;
        let own = vec![(thread, steps)];
        Strategy::Pct { priorities, changes: Vec::new(), in_windows: false, own, lowest: 0 }
    }

    /// The first thread pauses where [`Held`] says, and so does the second, if it pauses at all.
    pub fn held(at: Held, threads: usize) -> Strategy {
        let mut priorities: Vec<i64> = (1..=threads as i64).rev().collect();
        if at.again.is_some() {
            // The third thread must wait until the first has paused twice. The first pause lowers
            // the first thread's priority to 0, and the second thread's pause lowers its own to -2.
            priorities[2] = -1;
        }
        let own = [(0, Some(at.first)), (1, at.second), (0, at.again)];
        let own = own.into_iter().filter_map(|(thread, at)| Some((thread, at?))).collect();
        Strategy::Pct { priorities, changes: Vec::new(), in_windows: false, own, lowest: 0 }
    }

    /// Chooses the thread that runs next from those in `ready`. `me` may go on, unless it waits
    /// and others are ready.
    fn next(
        &mut self,
        me: usize,
        waiting: bool,
        steps: Steps,
        own_steps: u64,
        ready: &[usize],
    ) -> usize {
        match self {
            Strategy::Walk { random, one_in } => {
                let others = ready.iter().filter(|t| **t != me).count() as u64;
                let switches = others > 0 && (waiting || random.below(*one_in) == 0);
                if !switches && ready.contains(&me) {
                    return me;
                }
                let n = random.below(others) as usize;
                ready.iter().copied().filter(|t| *t != me).nth(n).expect("as many as counted")
            }
            Strategy::Pct { priorities, changes, in_windows, own, lowest } => {
                let left = own.len();
                own.retain(|&(thread, at)| thread != me || own_steps <= at);
                let own_falls = own.len() < left;
                let mut falls = waiting || own_falls;
                let step = if *in_windows { steps.windows } else { steps.all };
                while changes.first().is_some_and(|at| *at <= step) {
                    changes.remove(0);
                    falls = true;
                }
                if falls {
                    priorities[me] = *lowest;
                    *lowest -= 2;
                }
                ready.iter().copied().max_by_key(|t| priorities[*t]).expect("a thread that can")
            }
            Strategy::InTurn => match ready.iter().find(|t| **t > me || (**t == me && !waiting)) {
                _ if !waiting && ready.contains(&me) => me,
                Some(&next) => next,
                None => ready[0],
            },
        }
    }
}

/// Steps that were made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Steps {
    /// All steps.
    pub all: u64,
    /// The steps that a thread made between a store and the fence after it.
    pub windows: u64,
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

struct State {
    strategy: Strategy,
    threads: Vec<Status>,
    /// The threads that are ready.
    ready: Vec<usize>,
    running: Option<usize>,
    steps: Steps,
    /// By thread.
    own_steps: Vec<u64>,
    /// By thread: its steps that were stores, flushes or fences of a commit point. If several in a
    /// row have the same point and kind of access, only the first is listed.
    pointed: Vec<Vec<(u64, &'static Point)>>,
    /// By thread: the point and the kind of access of its last such step.
    last_pointed: Vec<Option<(&'static Point, Discriminant<Access>)>>,
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
        let state = State {
            strategy,
            threads: vec![Status::Away; threads],
            ready: Vec::new(),
            running: None,
            steps: Steps::default(),
            own_steps: vec![0; threads],
            pointed: vec![Vec::new(); threads],
            last_pointed: vec![None; threads],
            unfenced: vec![false; threads],
            idle: 0,
            idle_max: STEPS_MAX,
            stop: None,
            stopped: false,
            stuck: false,
        };
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

    /// Returns the steps of a thread that were stores, flushes or fences of a commit point: how
    /// many steps it had made before, and the point. If several in a row have the same point and
    /// kind of access, only the first is listed.
    pub fn pointed(&self, thread: usize) -> Vec<(u64, &'static Point)> {
        self.state().pointed[thread].iter().map(|&(step, point)| (step - 1, point)).collect()
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
        if std::thread::panicking() {
            // A thread that unwinds is not scheduled any more, so that it can end.
            if waiting {
                std::thread::yield_now();
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
            let this = Some((point, discriminant(access)));
            if state.last_pointed[thread] != this {
                let step = state.own_steps[thread];
                state.last_pointed[thread] = this;
                state.pointed[thread].push((step, point));
            }
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
