//! Exploring every crash of every scenario.

use super::image::{Case, Good, answers_rest_on, second_run};
use super::phases::{Phase, phases_of};
use super::recording::Recording;
use super::scenario::{Scenario, catalogue};
use crate::response;
use crate::session::alive;
use crate::state::{Checked, Fault, State};
use outlast::pmem::Alive;
use outlast::{RecordForm, Scheme};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Cuts that one thread takes at a time.
const CHUNK: usize = 64;
/// Of the images between two stores of one commit point, one in this many is worked on
/// until something splits; the others are worked on a little.
const MIDWAY: usize = 16;
/// Of the images that are worked on, one in this many is also asked whether its answers
/// can still be taken back.
const READ: usize = 8;
/// Violations of a scenario that are described; the rest is counted.
const DESCRIBED: usize = 5;
/// Images with one phase of recovery that are explored for second crashes.
const PER_PHASE: usize = 1;

/// What is explored, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Only this scheme.
    pub scheme: Option<Scheme>,
    /// Only this record form.
    pub record: Option<RecordForm>,
    /// Only scenarios of this name, or whose name begins with it and a dash.
    pub scenario: Option<String>,
    /// Only the image of this cut.
    pub cut: Option<usize>,
    /// Only the image of this cut of the second run on that image.
    pub nested: Option<usize>,
    /// Images of each scenario whose second run is explored too, evenly spread.
    pub samples: usize,
    /// Threads.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            scheme: None,
            record: None,
            scenario: None,
            cut: None,
            nested: None,
            samples: 2,
            threads: 2,
        }
    }
}

/// An image that is not as the contract has it.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The scenario.
    pub scenario: String,
    /// The record form.
    pub form: RecordForm,
    /// Stores that the image keeps.
    pub cut: usize,
    /// Stores of the second run that it keeps, if it is an image of that.
    pub nested: Option<usize>,
    /// The last store before the crash, and the next event after it.
    pub around: (String, String),
    /// The step in flight.
    pub in_flight: String,
    /// What was found.
    pub fault: String,
    /// The command that shows it again.
    pub replay: String,
}

/// What the exploration of one scenario found.
#[derive(Debug, Clone)]
pub struct Row {
    /// The scenario.
    pub scenario: String,
    /// What it is for.
    pub about: &'static str,
    /// Its scheme.
    pub scheme: Scheme,
    /// Its record form.
    pub form: RecordForm,
    /// Stores of the run that were explored.
    pub stores: usize,
    /// Images checked.
    pub images: usize,
    /// Images of second crashes checked.
    pub nested: usize,
    /// Violations.
    pub violations: usize,
    /// Operations whose answer rested on something that was not durable.
    pub responses: usize,
    /// The first of them.
    pub described: Vec<Violation>,
    /// Phases that the scenario should have reached and has not.
    pub missing: Vec<Phase>,
    /// Time taken.
    pub took: Duration,
}

/// What an exploration found.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// By scenario and record form.
    pub rows: Vec<Row>,
}

impl Outcome {
    /// Whether there was something to explore, and nothing wrong with it.
    pub fn is_good(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(Row::is_good)
    }
}

impl Row {
    /// Whether nothing is wrong.
    pub fn is_good(&self) -> bool {
        self.violations == 0 && self.missing.is_empty()
    }
}

/// Explores what `options` choose; `done` is told of each scenario.
pub fn explore(options: &Options, mut done: impl FnMut(&Row)) -> Outcome {
    keep_freed_memory();
    let alive = alive();
    let mut outcome = Outcome::default();
    for &scheme in Scheme::ALL {
        if options.scheme.is_some_and(|s| s != scheme) {
            continue;
        }
        for form in RecordForm::ALL {
            if options.record.is_some_and(|f| f != form) {
                continue;
            }
            for scenario in catalogue(scheme, form) {
                if is_chosen(&scenario.name, options) {
                    let row = Explorer::new(&scenario, options, &alive).run();
                    done(&row);
                    outcome.rows.push(row);
                }
            }
        }
    }
    outcome
}

/// Asks the allocator not to give memory back to the system: every image takes some pages,
/// and page faults would be most of the time that its check takes.
fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets numbers of the allocator, which it may do at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 28);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 28);
    }
}

fn is_chosen(name: &str, options: &Options) -> bool {
    options.scenario.as_ref().is_none_or(|chosen| {
        name.strip_prefix(chosen.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    })
}

/// What the threads that explore one scenario share.
struct Found {
    images: usize,
    nested: usize,
    violations: usize,
    described: Vec<Violation>,
    recovery: BTreeSet<Phase>,
    /// How many images with a phase of recovery had their second run explored.
    per_phase: BTreeMap<Phase, usize>,
}

struct Explorer<'e> {
    scenario: &'e Scenario,
    options: &'e Options,
    alive: &'e Arc<Alive>,
    found: Mutex<Found>,
}

/// Runs a check; a panic is a finding like others.
fn caught<T>(check: impl FnOnce() -> Checked<T>) -> Checked<T> {
    catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("of an unknown kind");
        Err(Fault(format!("a panic: {text}")))
    })
}

impl<'e> Explorer<'e> {
    fn new(scenario: &'e Scenario, options: &'e Options, alive: &'e Arc<Alive>) -> Self {
        let found = Mutex::new(Found {
            images: 0,
            nested: 0,
            violations: 0,
            described: Vec::new(),
            recovery: BTreeSet::new(),
            per_phase: BTreeMap::new(),
        });
        Explorer { scenario, options, alive, found }
    }

    fn found(&self) -> std::sync::MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn run(self) -> Row {
        let start = Instant::now();
        let mut row = Row {
            scenario: self.scenario.name.clone(),
            about: self.scenario.about,
            scheme: self.scenario.shape.scheme,
            form: self.scenario.shape.form,
            stores: 0,
            images: 0,
            nested: 0,
            violations: 0,
            responses: 0,
            described: Vec::new(),
            missing: Vec::new(),
            took: Duration::ZERO,
        };
        match caught(|| self.scenario.record(self.alive)) {
            Err(fault) => self.report_run(None, &fault),
            Ok(played) => {
                let run = &played.recording;
                row.stores = run.cuts();
                row.responses = self.check_responses(run);
                self.explore_run(run);
                if let Some(fault) = &played.fault {
                    self.report_run(Some(run), fault);
                }
                if self.options.cut.is_none() {
                    let reached = phases_of(&run.events, self.scenario.shape.bucket_bits);
                    let recovery = &self.found().recovery;
                    let missing = |wanted: &[Phase], seen: &BTreeSet<Phase>| {
                        wanted.iter().filter(|p| !seen.contains(*p)).cloned().collect::<Vec<_>>()
                    };
                    row.missing = missing(&self.scenario.reaches, &reached);
                    row.missing.extend(missing(&self.scenario.mends, recovery));
                }
            }
        }
        let found = self.found.into_inner().unwrap_or_else(|e| e.into_inner());
        row.images = found.images;
        row.nested = found.nested;
        row.violations = found.violations;
        row.described = found.described;
        row.took = start.elapsed();
        row
    }

    fn check_responses(&self, run: &Recording) -> usize {
        let found = response::undurable(&run.events);
        for finding in &found {
            let violation = self.describe(None, 0, None, finding.to_string());
            self.report(violation);
        }
        found.len()
    }

    fn explore_run(&self, run: &Recording) {
        let cuts = match self.options.cut {
            Some(cut) if cut <= run.cuts() => cut..cut + 1,
            Some(_) => 0..0,
            None => 0..run.cuts() + 1,
        };
        let next = AtomicUsize::new(cuts.start);
        std::thread::scope(|scope| {
            for _ in 0..self.options.threads.max(1) {
                scope.spawn(|| {
                    loop {
                        let start = next.fetch_add(CHUNK, Ordering::Relaxed);
                        if start >= cuts.end {
                            return;
                        }
                        self.explore_chunk(run, start..(start + CHUNK).min(cuts.end));
                    }
                });
            }
        });
    }

    fn case<'a>(&self, run: &'a Recording, file: &'a [u8], cut: usize, thorough: bool) -> Case<'a> {
        Case {
            file,
            capacity: run.capacity(),
            allowed: run.allowed(cut),
            universe: &run.universe,
            shape: self.scenario.shape,
            seed: cut as u64,
            thorough,
        }
    }

    fn explore_chunk(&self, run: &Recording, cuts: Range<usize>) {
        let samples = if self.scenario.costly { 1 } else { self.options.samples.max(1) };
        let stride = (run.cuts() / samples).max(1);
        let mut image = run.image(cuts.start);
        for cut in cuts {
            image.advance(cut);
            let thorough = !run.is_midway(cut) || cut % MIDWAY == 0;
            let case = self.case(run, image.file(), cut, thorough);
            let good = caught(|| case.check(self.alive));
            self.found().images += 1;
            match good {
                Err(fault) => self.report(self.describe(Some(run), cut, None, fault.0)),
                Ok(Good { recovery, state }) => {
                    // Where no pool was left by any of the sample, the last image is taken.
                    let last = cut == run.cuts() && self.found().nested == 0;
                    let sampled = self.options.samples > 0 && (cut % stride == stride / 2 || last);
                    let wanted = self.note_recovery(recovery) || sampled;
                    let Some(state) = state else { continue };
                    let alone = self.options.cut.is_some();
                    if (thorough && cut % READ == 0) || alone {
                        self.check_answers(&case, &state, run, cut);
                    }
                    if wanted || alone {
                        self.explore_second(&case, &state, run, cut);
                    }
                }
            }
        }
    }

    /// Whether what the reopened image answers can still be taken back.
    fn check_answers(&self, case: &Case<'_>, state: &Arc<State>, run: &Recording, cut: usize) {
        let pending = run.pending(cut);
        if pending.is_empty() {
            return;
        }
        let checked = caught(|| answers_rest_on(case, state, pending, self.alive));
        if let Err(fault) = checked {
            self.report(self.describe(Some(run), cut, None, fault.0));
        }
    }

    /// Notes what the recovery of an image did. Whether that is worth a second crash.
    fn note_recovery(&self, recovery: BTreeSet<Phase>) -> bool {
        let mut found = self.found();
        let mut wanted = false;
        for phase in &self.scenario.mends {
            if recovery.contains(phase) {
                let seen = found.per_phase.entry(phase.clone()).or_default();
                *seen += 1;
                let enough = if self.scenario.costly { 0 } else { PER_PHASE };
                wanted |= *seen <= enough && self.options.samples > 0;
            }
        }
        found.recovery.extend(recovery);
        wanted
    }

    fn explore_second(&self, case: &Case<'_>, state: &Arc<State>, run: &Recording, cut: usize) {
        let second = match caught(|| second_run(case, state, self.alive)) {
            Ok(second) => second,
            Err(fault) => {
                let fault = format!("reopened: {fault}");
                return self.report(self.describe(Some(run), cut, None, fault));
            }
        };
        for finding in response::undurable(&second.events) {
            let fault = format!("reopened: {finding}");
            self.report(self.describe(Some(run), cut, None, fault));
        }
        let cuts = match self.options.nested {
            Some(nested) if nested <= second.cuts() => nested..nested + 1,
            Some(_) => 0..0,
            None => 0..second.cuts() + 1,
        };
        let mut image = second.image(cuts.start);
        for nested in cuts {
            image.advance(nested);
            let checked =
                caught(|| self.case(&second, image.file(), nested, false).check(self.alive));
            self.found().nested += 1;
            if let Err(fault) = checked {
                let mut violation = self.describe(Some(&second), nested, Some(nested), fault.0);
                violation.cut = cut;
                violation.replay = self.replay(Some(cut), Some(nested));
                self.report(violation);
            }
        }
    }

    fn report_run(&self, run: Option<&Recording>, fault: &Fault) {
        let cut = run.map_or(0, Recording::cuts);
        let fault = format!("the run itself, without a crash: {fault}");
        self.report(self.describe(run, cut, None, fault));
    }

    fn describe(
        &self,
        run: Option<&Recording>,
        cut: usize,
        nested: Option<usize>,
        fault: String,
    ) -> Violation {
        Violation {
            scenario: self.scenario.name.clone(),
            form: self.scenario.shape.form,
            cut,
            nested,
            around: run.map(|r| r.around(cut)).unwrap_or_default(),
            in_flight: run
                .and_then(|r| r.in_flight(cut))
                .map_or("nothing".into(), |step| step.text.clone()),
            fault,
            replay: self.replay(run.map(|_| cut), nested),
        }
    }

    fn replay(&self, cut: Option<usize>, nested: Option<usize>) -> String {
        let mut command = format!(
            "outlast-check prefix --scheme {} --record {} --scenario {}",
            self.scenario.shape.scheme, self.scenario.shape.form, self.scenario.name
        );
        for (option, value) in [("cut", cut), ("nested", nested)] {
            if let Some(value) = value {
                command.push_str(&format!(" --{option} {value}"));
            }
        }
        command
    }

    fn report(&self, violation: Violation) {
        let mut found = self.found();
        found.violations += 1;
        if found.described.len() < DESCRIBED {
            found.described.push(violation);
        }
    }
}
