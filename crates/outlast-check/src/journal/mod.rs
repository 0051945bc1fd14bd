//! The medium `journal`: what a power loss leaves of base and segments, at any call to the disk.
//!
//! A recorded run (see [`explore`](crate::explore)) becomes a *life* of a journaled pool. Its
//! stores go to the working file, its flushes to the real [`Notes`](outlast::internals::pmem::Notes), and the
//! real [`Journal`](outlast::internals::journal::running::Journal) works on a [simulated
//! disk](outlast::internals::journal::sim::SimDisk): it cuts between operations, writes epochs, and makes
//! checkpoints while operations go on.
//!
//! 1. The disk is copied before some of its calls. Each copy loses power in several ways: of what
//!    was written and not synced, any part survives, and the sector that was being written is torn.
//! 2. The copy is rebuilt. The rebuild loses power too, and is repeated.
//! 3. The result must be the pool as of a cut, one that is no older than what a wait has confirmed.
//!    The pool must open, hold exactly the contents of that moment, and be fit to work on.
//! 4. On some of the results, another life begins, and it loses power again.
//!
//! Some lives end with the death of the process, in the middle of an operation. The next process
//! finds the working file and the notes, repairs the pool, and continues with the journal.
//!
//! Some copies are damaged as no crash can damage them: a segment is gone, the base is shorter, the
//! base is an older one, or the segments are those of another life. A rebuild must refuse such a
//! copy or, if only a segment is gone, may restore the state of a cut.
//!
//! Schedules of several threads are not repeated here. A cut holds the gate, so it captures what a
//! power loss at that moment can leave of persistent memory: every flushed line as it is, and any
//! other line as it was at some moment since its last flush. Those images are checked already.

mod life;
pub mod mutants;
mod rebuild;

use crate::explore::catalogue;
use crate::explore::image::caught;
use crate::parts::scenario::Scenario;
use crate::session::alive;
use crate::state::{Checked, Fault};
use outlast::internals::pmem::{Alive, Traced};
use outlast::{RecordForm, Scheme};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mutants::Wrong;

/// How much to try.
#[derive(Debug, Clone)]
pub struct Budget {
    /// Ends once this many distinct images of base and segments were checked.
    pub images: u64,
    /// The most lives that are tried to find a mutant; 0 makes no mutants.
    pub lives_of_mutant: u64,
    /// Number of threads.
    pub threads: usize,
    /// Only this scenario.
    pub scenario: Option<String>,
    /// The first round. Each has other keys and another seed.
    pub round: u64,
}

impl Budget {
    /// Returns a budget of seconds.
    pub fn quick() -> Budget {
        Budget { images: 3_000, ..Budget::ci() }
    }

    /// Returns a budget of a minute or two.
    pub fn ci() -> Budget {
        Budget { images: 31_000, lives_of_mutant: 300, threads: 2, scenario: None, round: 0 }
    }

    /// Returns a budget of an hour.
    pub fn deep() -> Budget {
        Budget { images: 1_000_000, lives_of_mutant: 20_000, ..Budget::ci() }
    }
}

/// How many violations are described. The rest are counted.
const DESCRIBED: usize = 5;

/// Counts of what happened in all lives.
#[derive(Default)]
pub struct Counts {
    images: AtomicU64,
    rebuilds: AtomicU64,
    pools: AtomicU64,
    lives: AtomicU64,
    deaths: AtomicU64,
    epochs: AtomicU64,
    checkpoints: AtomicU64,
    refused: AtomicU64,
    /// Digests of base and segments.
    seen: Mutex<HashSet<u64>>,
    /// Pools that were checked, with what they may hold.
    seen_pools: Mutex<HashSet<u64>>,
}

impl Counts {
    fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn is_new(seen: &Mutex<HashSet<u64>>, digest: u64) -> bool {
        seen.lock().unwrap_or_else(PoisonError::into_inner).insert(digest)
    }

    /// Counts the distinct images.
    pub fn distinct(&self) -> u64 {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }
}

/// The result of a run.
pub struct Outcome {
    scheme: Scheme,
    form: RecordForm,
    counts: Counts,
    /// The first violations, described, and the number of all.
    described: Vec<String>,
    violations: usize,
    mutants: Vec<mutants::Fate>,
    took: Duration,
}

impl Outcome {
    /// Returns whether nothing is wrong, and every mutant was noticed.
    pub fn is_good(&self) -> bool {
        self.violations == 0
            && self.counts.distinct() > 0
            && self.mutants.iter().all(|m| m.found.is_some())
    }

    /// Returns the one-line summary.
    pub fn json(&self) -> Value {
        let counts = &self.counts;
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let noticed = self.noticed().len();
        json!({
            "scheme": self.scheme.to_string(),
            "record": self.form.to_string(),
            "medium": "journal",
            "images": get(&counts.images),
            "images_distinct": counts.distinct(),
            "rebuilds": get(&counts.rebuilds),
            "pools_checked": get(&counts.pools),
            "lives": get(&counts.lives),
            "process_deaths": get(&counts.deaths),
            "epochs": get(&counts.epochs),
            "checkpoints": get(&counts.checkpoints),
            "damaged_refused": get(&counts.refused),
            "mutants": self.mutants.len(),
            "mutants_noticed": noticed,
            "violations": self.violations,
            "seconds": (self.took.as_secs_f64() * 10.0).round() / 10.0,
        })
    }

    /// Returns the names of the mutants that were noticed.
    pub fn noticed(&self) -> Vec<String> {
        let noticed = self.mutants.iter().filter(|m| m.found.is_some());
        noticed.map(|fate| fate.mutant.name()).collect()
    }

    /// Describes everything that is wrong, for people. Empty if nothing is.
    pub fn failures(&self) -> String {
        let mut text = self.described.join("\n");
        for fate in self.mutants.iter().filter(|m| m.found.is_none()) {
            let _ = writeln!(text, "NOT NOTICED: {}", fate.mutant.name());
        }
        text
    }

    /// Formats the mutants and what noticed them.
    pub fn table(&self) -> String {
        mutants::table(&self.mutants)
    }
}

/// The lives of one scenario and round.
struct Trial<'t> {
    scenario: &'t Scenario,
    round: u64,
    alive: &'t Arc<Alive>,
    counts: &'t Counts,
    wrong: Option<Wrong>,
}

impl Trial<'_> {
    fn run(&self) -> Checked {
        let bug = self.wrong.and_then(Wrong::bug);
        caught(|| Traced::seeding(bug, || life::tell(self)))
    }
}

/// Checks the medium `journal`: first lives of the unchanged library, then lives with each of the
/// [`mutants`]. `progress` may be called on any thread, and gets the number of distinct images so
/// far.
pub fn run(
    scheme: Scheme,
    form: RecordForm,
    budget: &Budget,
    progress: &(dyn Fn(u64) + Sync),
) -> Outcome {
    let start = Instant::now();
    keep_freed_memory();
    let alive = alive();
    let chosen =
        |scenario: &Scenario| budget.scenario.as_ref().is_none_or(|name| *name == scenario.name);
    let scenarios: Vec<Scenario> = catalogue(scheme, form).into_iter().filter(chosen).collect();
    let (counts, described) = (Counts::default(), Mutex::new(Vec::new()));
    let (next, violations) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let only = budget.scenario.is_some();
    let work = || {
        while !scenarios.is_empty() {
            let job = next.fetch_add(1, Ordering::Relaxed);
            let scenario = &scenarios[job % scenarios.len()];
            let round = budget.round + (job / scenarios.len()) as u64;
            // If only one scenario is wanted, this is a replay, for which one round is enough.
            if counts.distinct() >= budget.images || (only && round > budget.round) {
                return;
            }
            let trial = Trial { scenario, round, alive: &alive, counts: &counts, wrong: None };
            if let Err(fault) = trial.run() {
                violations.fetch_add(1, Ordering::Relaxed);
                let mut described = described.lock().unwrap_or_else(PoisonError::into_inner);
                if described.len() < DESCRIBED {
                    described.push(describe(scheme, form, &trial, &fault));
                }
            }
            progress(counts.distinct());
        }
    };
    std::thread::scope(|scope| {
        (1..budget.threads.max(1)).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    let mutants = match only || budget.lives_of_mutant == 0 {
        true => Vec::new(),
        false => mutants::run(&scenarios, budget, &alive),
    };
    Outcome {
        scheme,
        form,
        counts,
        described: described.into_inner().unwrap_or_else(PoisonError::into_inner),
        violations: violations.into_inner(),
        mutants,
        took: start.elapsed(),
    }
}

/// Makes the allocator keep freed memory for later use. A life copies files of about 1 MiB many
/// times. If the allocator gave that memory back to the kernel each time, page faults would take most
/// of the run.
fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: these set parameters of the allocator. Another thread may allocate meanwhile, by the old
    // parameters or by the new ones.
    unsafe {
        // Some versions refuse such a threshold for large allocations. Then the other parameter stays,
        // too, because setting it alone makes the first one fixed.
        if libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 30) == 1 {
            libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        }
    }
}

fn describe(scheme: Scheme, form: RecordForm, trial: &Trial<'_>, fault: &Fault) -> String {
    let (name, round) = (&trial.scenario.name, trial.round);
    format!(
        "VIOLATION in {name}, round {round}, {scheme}, {form}\n  found: {fault}\n  replay: outlast-check run \
         --medium journal --scheme {scheme} --record {form} --scenario {name} --round {round}\n"
    )
}

/// What a rebuild may find: by epoch, the moments at which it can have been cut.
#[derive(Debug, Clone, Default)]
struct Ledger {
    ends: BTreeMap<u64, Vec<life::At>>,
    /// The same, with the attempts at epochs that a later attempt has voided. If the segment of the
    /// later attempt is taken away, an earlier one can count again.
    tries: BTreeMap<u64, Vec<life::At>>,
    /// The life whose epochs these are, if it is not the first.
    life: u128,
    /// The attempts in the life before, which count until the base says that this life has begun.
    earlier: BTreeMap<u64, Vec<life::At>>,
    /// Everything before this moment was confirmed to be durable.
    told: life::At,
}
