//! Exploring the crashes of every scenario.

use super::crash::{Crash, Looked, Scratch, check_cut, crash_at};
use super::image::{Case, Good, Setting, answers_rest_on, caught, second_run};
use super::phases::{Phase, phases_of};
use super::recording::{Recording, is_flush_or_fence};
use super::scenario::{Scenario, catalogue};
use super::violation::{Place, Violation, minimise};
use crate::model::{Image, Kept, Timeline, windows};
use crate::random::Random;
use crate::response;
use crate::session::alive;
use crate::state::{Fault, State};
use crate::tally::{Site, Tally};
use outlast::pmem::{Alive, Event};
use outlast::{RecordForm, Scheme};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Violations of a scenario that are described; the rest is counted.
const DESCRIBED: usize = 5;
/// Images with one phase of recovery that are explored for second crashes.
const PER_PHASE: usize = 1;
/// Of the prefixes, one in this many is asked whether its answers can still be taken back.
const READ: u64 = 16;
/// Of the prefixes that end with a store to a volatile word, or to a structure that nothing
/// links to yet, one in this many is looked at after the first round.
const LATER_STRIDE: usize = 4;

/// How much is explored.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    /// Rounds over all scenarios, each with other keys.
    pub rounds: u64,
    /// Ends as soon as so many distinct images were checked.
    pub distinct: Option<u64>,
    /// Of the windows, one in this many is explored; in each round others.
    pub stride: usize,
    /// Combinations of line cuts at one moment, at most.
    pub cuts: usize,
    /// Images of each scenario and round whose second crashes are explored, evenly spread,
    /// beside those whose recovery does something new.
    pub second_runs: usize,
    /// Of the moments of a second run, one in this many is explored.
    pub second_stride: usize,
    /// Combinations of line cuts at one moment of a second run, at most.
    pub second_cuts: usize,
}

impl Budget {
    /// Seconds: for the tests.
    pub const QUICK: Budget = Budget {
        rounds: 1,
        distinct: None,
        stride: 6,
        cuts: 8,
        second_runs: 1,
        second_stride: 4,
        second_cuts: 2,
    };
    /// Minutes: every window of every scenario.
    pub const CI: Budget = Budget {
        rounds: u64::MAX,
        distinct: Some(110_000),
        stride: 1,
        cuts: 32,
        second_runs: 2,
        second_stride: 2,
        second_cuts: 4,
    };
    /// As long as it is let.
    pub const DEEP: Budget = Budget {
        rounds: u64::MAX,
        distinct: Some(5_000_000),
        stride: 1,
        cuts: 256,
        second_runs: 4,
        second_stride: 1,
        second_cuts: 16,
    };
}

/// What is explored, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Only this scheme.
    pub scheme: Option<Scheme>,
    /// Only this record form.
    pub record: Option<RecordForm>,
    /// Only scenarios of this name, or whose name begins with it and a dash.
    pub scenario: Option<String>,
    /// The first round.
    pub round: u64,
    /// Only the image that this crash leaves.
    pub crash: Option<Crash>,
    /// Only the image that this crash leaves of the run that reopened it.
    pub nested: Option<Crash>,
    /// How much is explored.
    pub budget: Budget,
    /// Threads.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            scheme: None,
            record: None,
            scenario: None,
            round: 0,
            crash: None,
            nested: None,
            budget: Budget::QUICK,
            threads: 2,
        }
    }
}

/// What the exploration of one scenario found, in all rounds.
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
    /// Rounds.
    pub rounds: u64,
    /// Stores of the runs that were explored.
    pub stores: usize,
    /// Images checked, those of second crashes included.
    pub images: usize,
    /// Distinct ones.
    pub distinct: usize,
    /// Images of second crashes checked.
    pub nested: usize,
    /// Answers held against what was durable.
    pub responses: usize,
    /// Violations.
    pub violations: usize,
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

    /// Violations of all scenarios.
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
            responses: 0,
            violations: 0,
            described: Vec::new(),
            missing: Vec::new(),
            took: Duration::ZERO,
        }
    }

    /// Whether nothing is wrong.
    pub fn is_good(&self) -> bool {
        self.violations == 0 && self.missing.is_empty()
    }

    fn add(&mut self, other: Row) {
        self.rounds += other.rounds;
        self.stores += other.stores;
        self.images += other.images;
        self.distinct += other.distinct;
        self.nested += other.nested;
        self.responses += other.responses;
        self.violations += other.violations;
        self.described.extend(other.described);
        self.described.truncate(DESCRIBED);
        self.missing.extend(other.missing);
        self.took += other.took;
    }
}

/// Explores what `options` choose, and counts the images in `tally`. `progress` is called
/// often, by several threads.
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
    // Scenarios in a row that added nothing: all that they have is wanted no more.
    let fruitless = AtomicUsize::new(0);
    let work = || {
        loop {
            let job = next.fetch_add(1, Ordering::Relaxed);
            let round = (job / chosen.len().max(1)) as u64;
            let exhausted = fruitless.load(Ordering::Relaxed) > 2 * chosen.len();
            if chosen.is_empty() || round >= rounds || enough() || exhausted {
                return;
            }
            // In each round another one comes first, when no kind of image is scarce yet.
            let number = (job + 7 * round as usize) % chosen.len();
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
            let row = explorer.run();
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
    options.scenario.as_ref().is_none_or(|chosen| is_called(name, chosen))
}

fn is_called(name: &str, chosen: &str) -> bool {
    name.strip_prefix(chosen).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// The names of all scenarios.
pub fn names() -> BTreeSet<String> {
    let of = |&scheme: &Scheme| RecordForm::ALL.map(|form| catalogue(scheme, form));
    Scheme::ALL.iter().flat_map(of).flatten().map(|scenario| scenario.name).collect()
}

/// Whether a scenario is meant by this name.
pub fn is_known(chosen: &str) -> bool {
    names().iter().any(|name| is_called(name, chosen))
}

fn setting<'a>(scenario: &Scenario, run: &'a Recording, alive: &'a Arc<Alive>) -> Setting<'a> {
    Setting { capacity: run.capacity(), universe: &run.universe, shape: scenario.shape, alive }
}

/// The cut in which everything survives.
fn everything(timeline: &Timeline<'_>) -> Vec<Kept> {
    timeline.open().map(|open| Kept { line: open.line, stores: open.stores.len() }).collect()
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
    /// How many images with a phase of recovery had their second run explored.
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
                // Later rounds have other keys, and may miss what a scenario is for.
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
        setting(self.place.scenario, run, self.alive)
    }

    fn check_responses(&mut self, run: &Recording) {
        self.row.responses += run.steps.len();
        for finding in response::undurable(&run.events) {
            self.report_at_end(run, &Fault(finding.to_string()));
        }
    }

    /// A fault of a whole run.
    fn report_at_end(&mut self, run: &Recording, fault: &Fault) {
        let mut violation = self.place.violation(None, fault);
        violation.history = run.history(run.events.len());
        self.report(violation);
    }

    fn explore(&mut self, run: &Recording) {
        let budget = &self.options.budget;
        // Later rounds look less often at what recovery makes anew or never sees.
        let stride = if self.place.round == 0 { 1 } else { LATER_STRIDE };
        let moments = run.moments(stride);
        let seconds = if self.place.scenario.costly { 1 } else { budget.second_runs };
        let every = (moments.len() / seconds.max(1)).max(1);
        let mut timeline = run.timeline();
        let mut scratch = Scratch::default();
        let mut window = self.place.round as usize;
        let mut due = false;
        for (number, &(moment, is_window)) in moments.iter().enumerate() {
            // Where no pool was left yet, the next image that has one is taken.
            due |= seconds > 0 && number % every == every / 2;
            window += usize::from(is_window);
            if is_window && !window.is_multiple_of(budget.stride) {
                continue;
            }
            timeline.advance(moment);
            let mut sampled = due;
            let cuts = is_window.then_some(budget.cuts);
            let go_on =
                self.crash_at(run, &timeline, cuts, &mut scratch, &mut |explorer, looked| {
                    let Looked { crash, case, result: Ok(good), .. } = looked else { return };
                    let Good { recovery, state, .. } = good;
                    let wanted = explorer.note_recovery(recovery) || sampled;
                    let Some(state) = state else { return };
                    if crash.lost.is_empty() && !is_window && crash.order.is_multiple_of(READ) {
                        explorer.check_answers(&case, &state, run, &timeline, &crash);
                    }
                    if wanted {
                        sampled = false;
                        explorer.second(&case, &state, run, &timeline, &crash);
                    }
                });
            due = sampled;
            if !go_on {
                return;
            }
        }
    }

    /// Checks the images of one moment: of all cuts of lines up to so many, or else that
    /// in which everything survives. False if there is enough.
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

    /// Whether what the reopened image answers can still be taken back.
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

    /// Notes what the recovery of an image did. Whether that is worth a second crash.
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
    ) {
        let second = match caught(|| second_run(case, state)) {
            Ok(second) => second,
            Err(fault) => {
                let fault = Fault(format!("reopened: {fault}"));
                let at = Some((run, timeline, crash.clone()));
                return self.report(self.place.violation(at, &fault));
            }
        };
        self.place.parent = Some(crash.clone());
        self.check_responses(&second);
        match &self.options.nested {
            Some(nested) => self.replay(&second, nested),
            // A replay of the first crash: the answers after it belong to it.
            None if self.options.crash.is_some() => {}
            None => self.explore_second(&second, crash.order as usize),
        }
        self.place.parent = None;
    }

    fn explore_second(&mut self, run: &Recording, offset: usize) {
        let budget = &self.options.budget;
        let mut timeline = run.timeline();
        let mut scratch = Scratch::default();
        for (number, (moment, is_window)) in run.moments(1).into_iter().enumerate() {
            if !(number.wrapping_add(offset)).is_multiple_of(budget.second_stride) {
                continue;
            }
            timeline.advance(moment);
            let cuts = is_window.then_some(budget.second_cuts);
            if !self.crash_at(run, &timeline, cuts, &mut scratch, &mut |_, _| ()) {
                return;
            }
        }
    }

    /// Checks one image again, and the second crash in it if one is asked for.
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
                    self.second(&case, &state, run, &timeline, crash);
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

/// How many images a search for one violation may check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// In all.
    pub images: usize,
    /// At one moment.
    pub per_window: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { images: 3_000, per_window: 8 }
    }
}

/// What a search for one violation came to.
#[derive(Debug, Clone)]
pub struct Searched {
    /// Images checked.
    pub images: usize,
    /// Whether the limit ended it.
    pub ended_early: bool,
    /// The first violation.
    pub violation: Option<Violation>,
}

/// Checks images that a mutated trace of a run allows and the trace as recorded does not,
/// until one is not as the contract has it.
///
/// `mutated` has the stores and marks of the run in their order; flushes and fences may be
/// missing, shorter, or elsewhere. An image is new where a line keeps fewer stores than
/// were durable by the trace as recorded when as many stores and marks had happened.
pub fn first_violation_of(
    scenario: &Scenario,
    original: &Recording,
    mutated: Vec<Event>,
    limits: Limits,
    alive: &Arc<Alive>,
) -> Searched {
    let run = original.with_events(mutated);
    let setting = setting(scenario, &run, alive);
    let (mut now, mut before) = (run.timeline(), original.timeline());
    let first = run.first();
    let mut scratch = Scratch::default();
    let mut random = Random::new(0);
    let mut searched = Searched { images: 0, ended_early: false, violation: None };
    let rest = |events: &[Event]| events.iter().filter(|e| !is_flush_or_fence(e)).count();
    for moment in windows(&run.events).into_iter().filter(|&m| m >= first) {
        // The earliest moment with as much, when the least was durable.
        let mut left = rest(&run.events[now.moment()..moment]);
        now.advance(moment);
        let mut until = before.moment();
        while left > 0 {
            left -= usize::from(!is_flush_or_fence(&original.events[until]));
            until += 1;
        }
        before.advance(until);
        let lines: Vec<(Kept, usize)> = now
            .open()
            .map(|open| {
                let undurable = before.line(open.line).map_or(0, |o| o.stores.len());
                let below = open.stores.len().saturating_sub(undurable);
                (Kept { line: open.line, stores: open.stores.len() }, below)
            })
            .collect();
        let below: Vec<usize> = (0..lines.len()).filter(|&i| lines[i].1 > 0).collect();
        if below.is_empty() {
            continue;
        }
        let allowed = run.allowed(moment);
        for number in 0..limits.per_window {
            if searched.images >= limits.images {
                searched.ended_early = true;
                return searched;
            }
            // One line at least keeps less than it must; of the others, all, none or some.
            let target = below[random.below(below.len() as u64) as usize];
            let cut: Vec<Kept> = lines
                .iter()
                .enumerate()
                .map(|(i, &(kept, below))| {
                    let any = random.below(kept.stores as u64 + 1) as usize;
                    let stores = match number % 4 {
                        _ if i == target && number < 2 => 0,
                        _ if i == target => random.below(below as u64) as usize,
                        0 => kept.stores,
                        1 => 0,
                        2 if random.below(4) > 0 => kept.stores,
                        _ => any,
                    };
                    Kept { stores, ..kept }
                })
                .collect();
            let mut found = None;
            check_cut(setting, &now, &allowed, &cut, &mut scratch, &mut |looked| {
                searched.images += 1;
                if let Err(fault) = looked.result {
                    found = Some((looked.crash, fault));
                }
                true
            });
            if let Some((crash, fault)) = found {
                let (crash, fault) = minimise(setting, &now, &allowed, crash, fault);
                let place = Place { scenario, round: 0, parent: None };
                searched.violation = Some(place.violation(Some((&run, &now, crash)), &fault));
                return searched;
            }
        }
    }
    searched
}
