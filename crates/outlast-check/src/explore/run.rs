//! Explores the crashes of every scenario.

use super::crash::{Crash, Looked, Scratch, check_cut, crash_at};
use super::image::{Case, Good, Setting, answers_rest_on, caught, second_run};
use super::options::Options;
use super::recording::Recording;
use super::scenario::catalogue;
use super::violation::{Place, Violation, minimise};
use crate::model::{Image, Kept, Timeline, deaths};
use crate::parts::scenario::Scenario;
use crate::response;
use crate::session::alive;
use crate::state::{Fault, State};
use crate::structures::phases::{Phase, phases_of};
use crate::tally::{Site, Tally};
use outlast::internals::pmem::Alive;
use outlast::{RecordForm, Scheme};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How many violations of a scenario are described. The rest are counted.
const DESCRIBED: usize = 5;
/// For each phase of recovery, how many images that go through it are explored for second crashes.
const PER_PHASE: usize = 1;
/// One prefix in this many is also reopened to check whether a power loss could still undo what its
/// reads return.
const READ: u64 = 16;
/// After the first round, some prefixes are thinned out to one in this many: those that end with a
/// store to a volatile word, or to a structure that nothing links to yet.
const LATER_STRIDE: usize = 4;

/// The result of exploring one scenario, in all rounds.
#[derive(Debug, Clone)]
pub struct Row {
    /// The scenario.
    pub scenario: String,
    /// What the scenario is for.
    pub about: &'static str,
    /// The scheme.
    pub scheme: Scheme,
    /// The record form.
    pub form: RecordForm,
    /// Rounds explored.
    pub rounds: u64,
    /// Stores explored.
    pub stores: usize,
    /// Images checked, including those of second crashes.
    pub images: usize,
    /// Distinct images.
    pub distinct: usize,
    /// Images of second crashes checked.
    pub nested: usize,
    /// Process deaths after which the power failed during the next life.
    pub deaths: usize,
    /// Steps whose stores were checked to be durable when they returned.
    pub responses: usize,
    /// Number of violations.
    pub violations: usize,
    /// The first violations, described.
    pub described: Vec<Violation>,
    /// Phases that the scenario should have reached but did not.
    pub missing: Vec<Phase>,
    /// Time taken.
    pub took: Duration,
}

/// The result of an exploration.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// By scenario and record form.
    pub rows: Vec<Row>,
}

impl Outcome {
    /// Returns whether there was something to explore and nothing is wrong with it.
    pub fn is_good(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(Row::is_good)
    }

    /// Counts the violations of all scenarios.
    pub fn violations(&self) -> usize {
        self.rows.iter().map(|r| r.violations).sum()
    }
}

impl Row {
    fn new(scenario: &Scenario) -> Row {
        Row {
            scenario: scenario.name.clone(),
            about: scenario.about,
            scheme: scenario.shape.scheme(),
            form: scenario.shape.form,
            rounds: 0,
            stores: 0,
            images: 0,
            distinct: 0,
            nested: 0,
            deaths: 0,
            responses: 0,
            violations: 0,
            described: Vec::new(),
            missing: Vec::new(),
            took: Duration::ZERO,
        }
    }

    /// Returns whether nothing is wrong.
    pub fn is_good(&self) -> bool {
        self.violations == 0 && self.missing.is_empty()
    }

    fn add(&mut self, other: Row) {
        self.rounds += other.rounds;
        self.stores += other.stores;
        self.images += other.images;
        self.distinct += other.distinct;
        self.nested += other.nested;
        self.deaths += other.deaths;
        self.responses += other.responses;
        self.violations += other.violations;
        self.described.extend(other.described);
        self.described.truncate(DESCRIBED);
        self.missing.extend(other.missing);
        self.took += other.took;
    }
}

/// Explores what `options` select, and counts the images in `tally`. `progress` is called often, on
/// several threads.
pub fn run(options: &Options, tally: &Tally, progress: &(dyn Fn() + Sync)) -> Outcome {
    keep_freed_memory();
    let alive = alive();
    let chosen: Vec<Scenario> = Scheme::ALL
        .iter()
        .filter(|&&s| options.scheme.is_none_or(|chosen| chosen == s))
        .flat_map(|&scheme| RecordForm::ALL.map(|form| (scheme, form)))
        .filter(|(_, form)| options.record.is_none_or(|chosen| chosen == *form))
        .flat_map(|(scheme, form)| catalogue(scheme, form))
        .filter(|scenario| is_chosen(&scenario.name, options))
        .collect();
    let is_replay = options.crash.is_some();
    let rounds = if is_replay { 1 } else { options.budget.rounds };
    let rows = Mutex::new(BTreeMap::new());
    let next = AtomicUsize::new(0);
    let enough = || {
        let distinct = options.budget.distinct.unwrap_or(u64::MAX);
        !is_replay && tally.all().distinct >= distinct
    };
    // The number of scenarios in a row that added no distinct image. After two full rounds of such
    // scenarios, the exploration ends.
    let fruitless = AtomicUsize::new(0);
    let work = || {
        loop {
            let job = next.fetch_add(1, Ordering::Relaxed);
            let round = (job / chosen.len().max(1)) as u64;
            let exhausted = fruitless.load(Ordering::Relaxed) > 2 * chosen.len();
            if chosen.is_empty() || round >= rounds || enough() || exhausted {
                return;
            }
            // Each round starts with another scenario, so that it is not always the same scenarios
            // that find the shares of their kinds used up.
            let number = (job + 7 * round as usize) % chosen.len();
            if chosen[number].costly && !round.is_multiple_of(2) {
                continue;
            }
            let place =
                Place { scenario: &chosen[number], round: options.round + round, parent: None };
            let explorer = Explorer {
                row: Row::new(place.scenario),
                place,
                options,
                alive: &alive,
                tally,
                progress,
                recovery: BTreeSet::new(),
                per_phase: BTreeMap::new(),
                skipped: false,
            };
            let (place, mut row) = (explorer.place.clone(), Row::new(explorer.place.scenario));
            match caught(|| Ok(explorer.run())) {
                Ok(explored) => row = explored,
                Err(fault) => {
                    row.violations = 1;
                    row.described.push(place.violation(None, &fault));
                }
            }
            if row.distinct > 0 {
                fruitless.store(0, Ordering::Relaxed);
            } else {
                fruitless.fetch_add(1, Ordering::Relaxed);
            }
            match rows.lock().unwrap_or_else(|e| e.into_inner()).entry(number) {
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(row);
                }
                std::collections::btree_map::Entry::Occupied(mut entry) => entry.get_mut().add(row),
            }
            progress();
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..options.threads.max(1) {
            scope.spawn(work);
        }
        work();
    });
    let rows = rows.into_inner().unwrap_or_else(|e| e.into_inner());
    Outcome { rows: rows.into_values().collect() }
}

/// Tells the allocator to keep freed memory. Every image takes some pages, and without this the
/// check would spend most of its time in page faults.
fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` only sets parameters of the allocator, which is allowed at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 28);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 28);
    }
}

fn is_chosen(name: &str, options: &Options) -> bool {
    options.scenario.as_ref().is_none_or(|chosen| is_called(name, chosen))
}

fn is_called(name: &str, chosen: &str) -> bool {
    name.strip_prefix(chosen).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Returns the names of all scenarios.
pub fn names() -> BTreeSet<String> {
    let of = |&scheme: &Scheme| RecordForm::ALL.map(|form| catalogue(scheme, form));
    Scheme::ALL.iter().flat_map(of).flatten().map(|scenario| scenario.name).collect()
}

/// Returns whether `chosen` is the name of a scenario, or the beginning of one up to a dash.
pub fn is_known(chosen: &str) -> bool {
    names().iter().any(|name| is_called(name, chosen))
}

/// Returns the cut in which everything survives.
fn everything(timeline: &Timeline<'_>) -> Vec<Kept> {
    timeline.open().map(|open| Kept { line: open.line, stores: open.stores.len() }).collect()
}

/// Which moments of a second run are explored.
#[derive(Clone, Copy)]
enum Part {
    /// A sample of all.
    All,
    /// All of the first two steps: the opening, with the reading, and the first change.
    Beginning,
}

/// Explores one scenario in one round.
struct Explorer<'e> {
    place: Place<'e>,
    options: &'e Options,
    alive: &'e Arc<Alive>,
    tally: &'e Tally,
    progress: &'e (dyn Fn() + Sync),
    row: Row,
    /// Phases that the recovery of some image went through.
    recovery: BTreeSet<Phase>,
    /// By phase of recovery, how many images went through it.
    per_phase: BTreeMap<Phase, usize>,
    /// Whether images were left out because there are enough of their kind.
    skipped: bool,
}

impl<'e> Explorer<'e> {
    fn run(mut self) -> Row {
        let start = Instant::now();
        let scenario = self.place.scenario;
        self.row.rounds = 1;
        match caught(|| scenario.record(self.place.round, self.alive)) {
            Err(fault) => self.report(self.place.violation(None, &fault)),
            Ok(played) => {
                let run = &played.recording;
                self.row.stores = run.stores();
                self.check_responses(run);
                if let Some(fault) = &played.fault {
                    let fault = Fault(format!("the run itself, without a crash: {fault}"));
                    self.report_at_end(run, &fault);
                }
                match &self.options.crash {
                    Some(crash) => self.replay(run, crash),
                    None => self.explore(run),
                }
                // Later rounds have other keys, and may miss what the scenario is for.
                if self.options.crash.is_none() && self.place.round == 0 && !self.is_enough() {
                    let reached = phases_of(&run.events, scenario.shape);
                    let missing = |wanted: &[Phase], seen: &BTreeSet<Phase>| {
                        wanted.iter().filter(|p| !seen.contains(*p)).cloned().collect::<Vec<_>>()
                    };
                    self.row.missing = missing(&scenario.reaches, &reached);
                    if !self.skipped {
                        self.row.missing.extend(missing(&scenario.mends, &self.recovery));
                    }
                }
            }
        }
        self.row.took = start.elapsed();
        self.row
    }

    fn is_enough(&self) -> bool {
        self.options.budget.distinct.is_some_and(|enough| self.tally.all().distinct >= enough)
    }

    fn setting<'r>(&self, run: &'r Recording) -> Setting<'r>
    where
        'e: 'r,
    {
        Setting::of(self.place.scenario, run, self.alive)
    }

    fn check_responses(&mut self, run: &Recording) {
        self.row.responses += run.steps.len();
        for finding in response::undurable(&run.events) {
            self.report_at_end(run, &Fault(finding.to_string()));
        }
    }

    /// Reports a fault of the whole run.
    fn report_at_end(&mut self, run: &Recording, fault: &Fault) {
        let mut violation = self.place.violation(None, fault);
        violation.history = run.history(run.events.len());
        self.report(violation);
    }

    fn explore(&mut self, run: &Recording) {
        let budget = &self.options.budget;
        // Later rounds explore fewer stores to words that recovery rebuilds or never reads.
        let first = self.place.round == 0;
        let stride = if first { budget.unseen_stride } else { LATER_STRIDE };
        let moments = run.moments(stride);
        let seconds = if self.place.scenario.costly { 1 } else { budget.second_runs };
        let every = (moments.len() / seconds.max(1)).max(1);
        let mut deaths = deaths(&run.events, run.first());
        deaths.retain(|&death| moments.binary_search(&(death, false)).is_ok());
        // The runs resemble each other, so different moments are tried in each.
        let step = deaths.len().div_ceil(budget.deaths).max(1);
        let skip = (run.stores() + self.place.round as usize) % step;
        let deaths: BTreeSet<_> = deaths.into_iter().skip(skip).step_by(step).collect();
        let mut timeline = run.timeline();
        let mut scratch = Scratch::default();
        let mut window = self.place.round as usize;
        let (mut due, mut dies) = (false, false);
        for (number, &(moment, is_window)) in moments.iter().enumerate() {
            // If the image at a chosen moment holds no pool yet, the next image that holds one is
            // taken.
            due |= seconds > 0 && number % every == every / 2;
            dies |= !is_window && deaths.contains(&moment);
            window += usize::from(is_window);
            if is_window && !window.is_multiple_of(budget.stride) {
                continue;
            }
            timeline.advance(moment);
            let (mut sampled, mut dying) = (due, dies && !is_window);
            let cuts = is_window.then_some(budget.cuts);
            let go_on =
                self.crash_at(run, &timeline, cuts, &mut scratch, &mut |explorer, looked| {
                    let Looked { crash, case, result: Ok(good), .. } = looked else { return };
                    let Good { recovery, state, .. } = good;
                    let wanted = explorer.note_recovery(recovery) || sampled;
                    let Some(state) = state else { return };
                    let answers = dying || !is_window && crash.order.is_multiple_of(READ);
                    if answers && crash.lost.is_empty() {
                        explorer.check_answers(&case, &state, run, &timeline, &crash);
                    }
                    if dying {
                        dying = false;
                        explorer.row.deaths += 1;
                        explorer.second(&case, &state, run, &timeline, &crash, Part::Beginning);
                    }
                    if wanted {
                        sampled = false;
                        explorer.second(&case, &state, run, &timeline, &crash, Part::All);
                    }
                });
            due = sampled;
            dies &= dying || is_window;
            if !go_on {
                return;
            }
        }
    }

    /// Checks the images of one moment: up to `cuts` combinations of line cuts or, if `cuts` is
    /// `None`, the image in which everything survives. Returns false once there are enough images.
    fn crash_at(
        &mut self,
        run: &Recording,
        timeline: &Timeline<'_>,
        cuts: Option<usize>,
        scratch: &mut Scratch,
        then: &mut dyn FnMut(&mut Self, Looked<'_>),
    ) -> bool {
        let moment = timeline.moment();
        let (kind, phase) = (run.kind(moment), run.phase(moment));
        if !self.tally.wants(kind, phase) {
            self.skipped = true;
            return true;
        }
        let allowed = run.allowed(moment);
        let setting = self.setting(run);
        let nested = self.place.parent.is_some();
        let mut each = |looked: Looked<'_>| {
            self.row.images += 1;
            self.row.nested += usize::from(nested);
            match &looked.result {
                Err(fault) => {
                    if self.row.described.len() < DESCRIBED {
                        let crash = looked.crash.clone();
                        let fault = fault.clone();
                        let (crash, fault) = minimise(setting, timeline, &allowed, crash, fault);
                        let run = Some((run, timeline, crash));
                        self.report(self.place.violation(run, &fault));
                    } else {
                        self.row.violations += 1;
                    }
                }
                Ok(good) => {
                    let Looked { kept, lost, .. } = looked;
                    let site = Site { kind, phase, kept, lost, nested };
                    self.row.distinct += usize::from(self.tally.note(site, good.digest));
                    then(self, looked);
                }
            }
            self.tally.wants(kind, phase) && !self.is_enough()
        };
        match cuts {
            Some(limit) => {
                crash_at(setting, timeline, &allowed, limit, scratch, &mut each);
            }
            None => {
                check_cut(setting, timeline, &allowed, &everything(timeline), scratch, &mut each);
            }
        }
        (self.progress)();
        !self.is_enough()
    }

    /// Checks that no result read from the reopened image depends on stores that a power loss could
    /// still undo.
    fn check_answers(
        &mut self,
        case: &Case<'_>,
        state: &Arc<State>,
        run: &Recording,
        timeline: &Timeline<'_>,
        crash: &Crash,
    ) {
        let pending = run.pending(crash.moment);
        if pending.is_empty() {
            return;
        }
        if let Err(fault) = caught(|| answers_rest_on(case, state, pending)) {
            self.report(self.place.violation(Some((run, timeline, crash.clone())), &fault));
        }
    }

    /// Notes the phases of an image's recovery. Returns whether the image is worth a second crash.
    fn note_recovery(&mut self, recovery: BTreeSet<Phase>) -> bool {
        let mut wanted = false;
        for phase in &self.place.scenario.mends {
            if recovery.contains(phase) {
                let seen = self.per_phase.entry(phase.clone()).or_default();
                *seen += 1;
                let enough = if self.place.scenario.costly { 0 } else { PER_PHASE };
                wanted |= *seen <= enough && self.options.budget.second_runs > 0;
            }
        }
        self.recovery.extend(recovery);
        wanted
    }

    /// Reopens an image under the recorder, and explores the crashes of that run.
    fn second(
        &mut self,
        case: &Case<'_>,
        state: &Arc<State>,
        run: &Recording,
        timeline: &Timeline<'_>,
        crash: &Crash,
        part: Part,
    ) {
        let allowed = run.allowed(crash.moment);
        // Unless everything is read first, it is not known how long a power loss can still undo the
        // operation in flight.
        let is_open = allowed.0.iter().any(|other| other.as_ref() != Some(state));
        let reads = is_open || crash.order.is_multiple_of(2);
        let second = match caught(|| second_run(case, state, reads)) {
            Ok(second) => second,
            Err(fault) => {
                let fault = Fault(format!("reopened: {fault}"));
                let at = Some((run, timeline, crash.clone()));
                return self.report(self.place.violation(at, &fault));
            }
        };
        self.place.parent = Some(crash.clone());
        self.check_responses(&second);
        let second = match crash.lost.is_empty() {
            true => second.after_death(run, timeline, allowed, reads),
            false => second,
        };
        match &self.options.nested {
            Some(nested) => self.replay(&second, nested),
            // Only the first crash is replayed. That includes the check of responses above, but no
            // second crash.
            None if self.options.crash.is_some() => {}
            None => self.explore_second(&second, crash.order as usize, part),
        }
        self.place.parent = None;
    }

    fn explore_second(&mut self, run: &Recording, offset: usize, part: Part) {
        let budget = &self.options.budget;
        let mut moments = run.moments(1);
        let (stride, cuts) = match part {
            Part::All => (budget.second_stride, budget.second_cuts),
            Part::Beginning => {
                moments.retain(|&(moment, _)| run.begun(moment) <= Some(1));
                (1, budget.cuts)
            }
        };
        let stride = stride.max(moments.len().div_ceil(budget.second_moments));
        let mut timeline = run.timeline();
        let mut scratch = Scratch::default();
        for (moment, is_window) in moments.into_iter().skip(offset % stride).step_by(stride) {
            timeline.advance(moment);
            let cuts = is_window.then_some(cuts);
            if !self.crash_at(run, &timeline, cuts, &mut scratch, &mut |_, _| ()) {
                return;
            }
        }
    }

    /// Checks one image again, and a second crash in it if one was requested.
    fn replay(&mut self, run: &Recording, crash: &Crash) {
        if crash.moment > run.events.len() {
            let fault = Fault(format!("the run has {} moments only", run.events.len()));
            return self.report(self.place.violation(None, &fault));
        }
        let mut timeline = run.timeline();
        timeline.advance(crash.moment);
        let open = |kept: &Kept| timeline.line(kept.line).map_or(0, |open| open.stores.len());
        if let Some(kept) = crash.lost.iter().find(|kept| open(kept) <= kept.stores) {
            let Kept { line, stores } = kept;
            let fault = format!("at that moment, line {line} has no more than {stores} stores");
            return self.report(self.place.violation(None, &Fault(fault)));
        }
        let mut image = Image::default();
        timeline.all_but(&crash.lost, &mut image);
        let allowed = run.allowed(crash.moment);
        let setting = self.setting(run);
        let case = Case { setting, image: &image, judge: &allowed, order: crash.order };
        self.row.images += 1;
        let nested = self.place.parent.is_some();
        self.row.nested += usize::from(nested);
        match case.check() {
            Err(fault) => {
                let at = Some((run, &timeline, crash.clone()));
                let violation = self.place.violation(at, &fault);
                self.report(violation);
            }
            Ok(Good { state: Some(state), .. }) => {
                if crash.lost.is_empty() {
                    self.check_answers(&case, &state, run, &timeline, crash);
                }
                if !nested {
                    self.second(&case, &state, run, &timeline, crash, Part::All);
                }
            }
            Ok(_) => {}
        }
    }

    fn report(&mut self, violation: Violation) {
        self.row.violations += 1;
        if self.row.described.len() < DESCRIBED {
            self.row.described.push(violation);
        }
    }
}
