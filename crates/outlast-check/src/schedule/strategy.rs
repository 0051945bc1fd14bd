//! How the next thread of a schedule is chosen.

use crate::random::Random;
use std::fmt;

/// Upper bounds on how many of its own steps a thread makes before it pauses. The first bound
/// covers the beginning of an operation, in which it looks for its key, and the second a whole
/// operation.
const OWN_STEPS: [u64; 2] = [10, 60];

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

    /// The first thread pauses where [`Pauses`] says, and so does the second, if it pauses at all.
    pub fn held(at: Pauses, threads: usize) -> Strategy {
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
    pub(super) fn next(
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

/// After how many of their own steps the threads of a directed schedule pause. A thread that pauses
/// lets all others go first, except those that pause after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pauses {
    /// The first thread.
    pub first: u64,
    /// The second thread, if it pauses.
    pub second: Option<u64>,
    /// The first thread again, if it pauses twice. The third thread begins then.
    pub again: Option<u64>,
}

/// Bits of each number of steps in [`Pauses::pack`].
const STEP_BITS: u32 = 21;

impl Pauses {
    /// Packs the three numbers of steps into one number.
    pub fn pack(self) -> u64 {
        let [second, again] = [self.second, self.again].map(|at| at.map_or(0, |at| at + 1));
        self.first | second << STEP_BITS | again << (2 * STEP_BITS)
    }

    /// Undoes [`pack`](Pauses::pack).
    pub fn unpack(packed: u64) -> Pauses {
        let nth = |n| packed >> (n * STEP_BITS) & ((1 << STEP_BITS) - 1);
        Pauses { first: nth(0), second: nth(1).checked_sub(1), again: nth(2).checked_sub(1) }
    }
}

/// The strategy of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// [`Strategy::walk`].
    Random,
    /// [`Strategy::pct`].
    Pct,
    /// A directed schedule: one of the instances of `Workload::held`, with threads held before
    /// chosen steps. The seed is the instance's number.
    Held,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Choice::Random => "random",
            Choice::Pct => "pct",
            Choice::Held => "held",
        })
    }
}

impl std::str::FromStr for Choice {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "random" => Ok(Choice::Random),
            "pct" => Ok(Choice::Pct),
            "held" => Ok(Choice::Held),
            _ => Err(format!("unknown strategy {text:?}; known: random, pct, held")),
        }
    }
}
