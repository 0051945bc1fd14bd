//! Many schedules, crashes in them, and what is wrong made small.

use super::act::{self, MAP};
use super::baton::{Held, Strategy};
use super::run::{Run, run as run_once};
use super::workload::{self, Holding, Instance, Workload};
use crate::history::{self, json};
use crate::model::{Image, Kept, Timeline, windows};
use crate::random::Random;
use crate::response::{is_durable, undurable};
use crate::session::{Do, Session, Shape, alive, recorder};
use crate::state::{Checked, Fault};
use outlast::pmem::Alive;
use outlast::{RecordForm, Scheme};
use rapidhash::fast::RapidHasher;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How much is tried.
#[derive(Debug, Clone)]
pub struct Budget {
    /// Schedules.
    pub schedules: u64,
    /// Crashes of each at moments of its trace, besides those at answers.
    pub crashes: usize,
    /// A thread is held before one in this many of its accesses at commit points,
    pub held_points: u64,
    /// and before one in this many of its others.
    pub held_others: u64,
    /// Where two threads are held, at most so many pairs of steps are tried of each.
    pub held_pairs: u64,
    /// A run that takes longer ends, and counts as a violation.
    pub time: Duration,
    /// Threads that run schedules, each its own.
    pub threads: usize,
    /// The first seed.
    pub seed: u64,
    /// Only workloads of this name.
    pub workload: Option<String>,
    /// Violations after which no more is tried.
    pub violations: usize,
    /// Whether operations that a violation does not need are dropped from it.
    pub minimises: bool,
}

impl Budget {
    /// For a test: seconds.
    pub fn quick() -> Budget {
        Budget { schedules: 520, held_points: 16, held_others: 240, held_pairs: 1, ..Budget::ci() }
    }

    /// At least 2,000 schedules, 200 of each workload.
    pub fn ci() -> Budget {
        Budget {
            schedules: 5_200,
            crashes: 4,
            held_points: 2,
            held_others: 48,
            held_pairs: 8,
            time: Duration::from_secs(600),
            threads: 2,
            seed: 1,
            workload: None,
            violations: 3,
            minimises: true,
        }
    }
}

/// Which strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// [`Strategy::walk`].
    Random,
    /// [`Strategy::pct`].
    Pct,
    /// One of [`Workload::held`], whose number is the seed, held before a step.
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

/// What was done so far.
#[derive(Debug, Default)]
pub struct Counters {
    /// Schedules run.
    pub schedules: AtomicU64,
    /// Schedules with a thread that is held.
    pub held: AtomicU64,
    /// Those with at least one crash image.
    pub crashed: AtomicU64,
    /// Histories checked.
    pub histories: AtomicU64,
    /// Crash images reopened.
    pub images: AtomicU64,
    /// Those that differ in bytes or in the history before them.
    pub images_distinct: AtomicU64,
    /// Answers whose durability was checked.
    pub responses: AtomicU64,
    /// Those for which an image had to be reopened.
    pub responses_imaged: AtomicU64,
    /// Steps of all schedules.
    pub steps: AtomicU64,
    /// Violations.
    pub violations: AtomicU64,
    /// Images that were looked at.
    seen: Mutex<HashSet<u64>>,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// Where a violation shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The run itself: its history, its end, a panic.
    Run,
    /// Nobody gets on.
    Stuck,
    /// An operation's own stores are not durable when it answers.
    Undurable,
    /// The least that a power loss leaves when an operation has answered.
    Response,
    /// A crash at some moment.
    Crash,
}

/// Something that is not as the contract has it.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The workload.
    pub workload: &'static str,
    /// The record form.
    pub form: RecordForm,
    /// The strategy.
    pub strategy: Choice,
    /// The seed of the workload.
    pub seed: u64,
    /// That of the strategy; for a thread that is held, the step.
    pub order: u64,
    /// Events of the trace before the crash, if there was one.
    pub crash: Option<usize>,
    /// Where it shows.
    pub kind: Kind,
    /// What was found; for a history, a picture.
    pub fault: String,
    /// The smallest workload that was found to show it, thread by thread, and how.
    pub minimised: String,
    /// The history as JSON lines.
    pub history: String,
    /// The command that shows it again.
    pub replay: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {} {} seed {}", self.workload, self.form, self.strategy, self.seed)?;
        if let Some(crash) = self.crash {
            writeln!(f, "  crash after event {crash}, {:?}", self.kind)?;
        }
        writeln!(f, "{}\n{}\n  replay: {}", self.fault, self.minimised, self.replay)
    }
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// What was done: see [`Counters`].
    pub schedules: u64,
    /// Schedules with a thread that is held.
    pub held: u64,
    /// Why it was less than the budget names, if it was.
    pub short: Option<String>,
    /// Schedules with a crash.
    pub crashed: u64,
    /// Histories.
    pub histories: u64,
    /// Crash images.
    pub images: u64,
    /// Distinct ones.
    pub images_distinct: u64,
    /// Answers.
    pub responses: u64,
    /// Of these, with an image.
    pub responses_imaged: u64,
    /// By kind, how many operations there were.
    pub operations: BTreeMap<&'static str, u64>,
    /// What is wrong.
    pub violations: Vec<Violation>,
    /// Time taken.
    pub took: Duration,
}

impl Outcome {
    /// Returns the share of the most frequent kind of operation in all operations, in percent.
    pub fn largest_share(&self) -> u64 {
        let all: u64 = self.operations.values().sum();
        self.operations.values().max().map_or(0, |max| max * 100 / all.max(1))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: u64 = self.operations.values().sum();
        let shares: Vec<_> = self
            .operations
            .iter()
            .map(|(kind, n)| format!("{kind} {}%", n * 100 / all.max(1)))
            .collect();
        write!(
            f,
            "{} schedules, {} of them crashed; {} with a thread held; {} histories, {} crash images ({} distinct), {} \
             answers, {} of them with an image; {} violations; {:.1} s\n  {all} operations: {}",
            self.schedules,
            self.crashed,
            self.held,
            self.histories,
            self.images,
            self.images_distinct,
            self.responses,
            self.responses_imaged,
            self.violations.len(),
            self.took.as_secs_f64(),
            shares.join(", ")
        )
    }
}

/// Something wrong with a run, before it is made small.
#[derive(Debug, Clone)]
struct Found {
    kind: Kind,
    crash: Option<usize>,
    fault: String,
}

/// A schedule by its names.
#[derive(Debug, Clone, Copy)]
struct Named {
    workload: &'static Workload,
    shape: Shape,
    choice: Choice,
    seed: u64,
}

impl Named {
    fn instance(&self, alive: &Arc<Alive>) -> Checked<Instance> {
        match self.choice {
            Choice::Random | Choice::Pct => self.workload.make(self.shape, self.seed, alive),
            Choice::Held => {
                let held = self.workload.held(self.shape, alive)?;
                let none = || Fault(format!("{} held ones", held.len()));
                held.get(self.seed as usize).cloned().ok_or_else(none)
            }
        }
    }

    /// The strategy that a seed names. Where it has to know how long the run is, that is
    /// found out by a run without switches.
    fn strategy(&self, instance: &Instance, seed: u64, alive: &Arc<Alive>) -> Checked<Strategy> {
        Ok(match self.choice {
            Choice::Random => Strategy::walk(seed),
            Choice::Pct => {
                let steps = run_once(instance, Strategy::InTurn, alive)?.steps;
                Strategy::pct(seed, instance.scripts.len(), steps.all, steps.windows)
            }
            Choice::Held => Strategy::held(Held::unpack(seed), instance.scripts.len()),
        })
    }

    fn run(&self, instance: &Instance, seed: u64, alive: &Arc<Alive>) -> Checked<Run> {
        run_once(instance, self.strategy(instance, seed, alive)?, alive)
    }

    fn replay(&self, crash: Option<usize>, without: &[usize], strategy_seed: u64) -> String {
        let mut command = format!(
            "outlast-check schedule --scheme {} --record {} --workload {} --strategy {} --seed {}",
            self.shape.scheme(),
            self.shape.form,
            self.workload.name,
            self.choice,
            self.seed
        );
        if strategy_seed != self.seed {
            command.push_str(&format!(" --order {strategy_seed}"));
        }
        if !without.is_empty() {
            let list: Vec<_> = without.iter().map(ToString::to_string).collect();
            command.push_str(&format!(" --without {}", list.join(",")));
        }
        if let Some(crash) = crash {
            command.push_str(&format!(" --crash {crash}"));
        }
        command
    }
}

fn caught<T>(check: impl FnOnce() -> Checked<T>) -> Checked<T> {
    catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Fault(format!("a panic: {}", text.unwrap_or("of an unknown kind"))))
    })
}

/// The file where open lines keep no more than this.
fn kept(timeline: &Timeline<'_>, kept: &[Kept]) -> Vec<u8> {
    let mut image = Image::default();
    timeline.least_and(kept, &mut image);
    image.bytes
}

/// The file where everything survives.
fn all(timeline: &Timeline<'_>) -> Vec<u8> {
    let mut image = Image::default();
    timeline.all_but(&[], &mut image);
    image.bytes
}

/// Checks runs and crashes in them.
struct Checker<'c> {
    alive: &'c Arc<Alive>,
    counters: &'c Counters,
    crashes: usize,
    /// Only the crash at this moment.
    only: Option<usize>,
    /// Whether a violation is made small.
    minimises: bool,
}

impl Checker<'_> {
    /// What is wrong with a run, or a crash in it.
    fn check(&self, run: &Run, seed: u64) -> Option<Found> {
        if let Some(fault) = &run.fault {
            let kind = if run.is_stuck() { Kind::Stuck } else { Kind::Run };
            return Some(Found { kind, crash: None, fault: fault.to_string() });
        }
        add(&self.counters.histories, 1);
        if let Some(found) = undurable(&run.events).first() {
            let fault = found.to_string();
            return Some(Found { kind: Kind::Undurable, crash: None, fault });
        }
        let mut random = Random::new(seed ^ 0xc4a5);
        let mut timeline = Timeline::new(
            &Image::of_file(&run.initial, run.initial.len() as u64),
            run.initial_len,
            &run.events,
        );
        let answers: HashMap<usize, usize> = run.answers().collect();
        let mut moments: Vec<usize> = match self.only {
            Some(only) => vec![only.min(run.events.len())],
            None => {
                let mut windows = windows(&run.events);
                random.shuffle(&mut windows);
                windows.truncate(self.crashes);
                // And one anywhere, for process death.
                windows.push(random.below(run.events.len() as u64 + 1) as usize);
                windows
            }
        };
        let chosen: HashSet<usize> = moments.iter().copied().collect();
        if self.only.is_none() {
            moments.extend(answers.keys());
        }
        moments.sort_unstable();
        moments.dedup();
        for moment in moments {
            timeline.advance(moment);
            let answered = answers.contains_key(&moment);
            if answered {
                add(&self.counters.responses, 1);
            }
            let is_open =
                timeline.open().any(|line| line.stores.iter().any(|store| is_durable(store.point)));
            if answered && is_open {
                add(&self.counters.responses_imaged, 1);
                let image = kept(&timeline, &[]);
                if self.is_new(run, moment, &image)
                    && let Err(fault) = self.check_image(run, moment, &image, &mut random)
                {
                    let fault = format!("a power loss that leaves the least:\n{fault}");
                    return Some(Found { kind: Kind::Response, crash: Some(moment), fault });
                }
            }
            if chosen.contains(&moment)
                && let Some(found) = self.check_moment(run, &timeline, &mut random)
            {
                return Some(found);
            }
        }
        None
    }

    /// Runs a schedule and checks it: what is wrong, made small.
    fn run(&self, named: Named, instance: &Instance, order: u64) -> Option<Violation> {
        let run = match named.run(instance, order, self.alive) {
            Ok(run) => run,
            Err(fault) => {
                let found = Found { kind: Kind::Run, crash: None, fault: fault.to_string() };
                return Some(describe(named, &found, None, &[], order));
            }
        };
        add(&self.counters.steps, run.steps.all);
        let found = self.check(&run, order)?;
        if !self.minimises {
            return Some(describe(named, &found, Some(&run), &[], order));
        }
        Some(minimise(named, order, instance, run, found, self.alive))
    }

    fn check_moment(
        &self,
        run: &Run,
        timeline: &Timeline<'_>,
        random: &mut Random,
    ) -> Option<Found> {
        let moment = timeline.moment();
        let open: Vec<(u64, usize)> =
            timeline.open().map(|line| (line.line, line.stores.len())).collect();
        let mut cut = || {
            let kept: Vec<Kept> = open
                .iter()
                .map(|&(line, stores)| Kept {
                    line,
                    stores: match random.below(3) {
                        0 => 0,
                        1 => stores,
                        _ => random.below(stores as u64 + 1) as usize,
                    },
                })
                .collect();
            self::kept(timeline, &kept)
        };
        let mut images = vec![
            ("a power loss that leaves the least", kept(timeline, &[])),
            ("a process death", all(timeline)),
        ];
        if !open.is_empty() {
            images.push(("a power loss that leaves some of the open lines", cut()));
            images.push(("a power loss that leaves some of the open lines", cut()));
        }
        for (what, image) in images {
            if !self.is_new(run, moment, &image) {
                continue;
            }
            if let Err(fault) = self.check_image(run, moment, &image, random) {
                let fault = format!("{what}:\n{fault}");
                return Some(Found { kind: Kind::Crash, crash: Some(moment), fault });
            }
        }
        None
    }

    /// Whether an image, with the history before it, has not been looked at.
    fn is_new(&self, run: &Run, moment: usize, image: &[u8]) -> bool {
        let mut hasher = RapidHasher::default();
        image.hash(&mut hasher);
        run.instance.workload.name.hash(&mut hasher);
        (run.instance.fill, &run.instance.others).hash(&mut hasher);
        run.hash_history(moment, &mut hasher);
        let new =
            self.counters.seen.lock().unwrap_or_else(|e| e.into_inner()).insert(hasher.finish());
        add(&self.counters.images_distinct, u64::from(new));
        new
    }

    /// Reopens an image: it must verify, hold what the history allows, and work on.
    fn check_image(&self, run: &Run, moment: usize, file: &[u8], random: &mut Random) -> Checked {
        add(&self.counters.images, 1);
        caught(|| {
            let mut universe = run.universe();
            random.shuffle(&mut universe);
            let capacity = run.instance.capacity();
            let seam = recorder(false);
            if random.below(2) == 0 {
                seam.reuse_at_once();
            }
            let opened = Session::open(file, capacity, self.alive, seam, None);
            let mut session = opened.map_err(|e| Fault(format!("opening: {e}")))?;
            // Whoever comes first recovers: a verification, a lookup, an iteration.
            let way = random.below(3);
            if way == 0 {
                let found = outlast::db::verify::verify(session.store())?;
                let damage: Vec<_> = found.all_damage().map(ToString::to_string).collect();
                if !damage.is_empty() {
                    return Err(Fault(format!("damage: {}", damage.join("; "))));
                }
            }
            let found = Arc::new(session.observe(&universe, way == 1)?);
            add(&self.counters.histories, 1);
            let history = run.history_with(moment, true, &found)?;
            if let Err(findings) = history::check(&history) {
                return Err(Fault(findings[0].to_string()));
            }
            session.settle(&*found, &universe, true)?;
            work_on(&mut session, run, &universe, random)
                .map_err(|fault| Fault(format!("working on: {fault}")))
        })
    }
}

/// A little of everything, and a verification.
fn work_on(session: &mut Session, run: &Run, universe: &[u64], random: &mut Random) -> Checked {
    for i in 0..10 {
        let key = universe[random.below(universe.len() as u64) as usize];
        let value = 8_000_000 + i;
        let change = match random.below(4) {
            0 => Do::Remove,
            1 => Do::Put(value),
            2 => Do::Update(value),
            _ => Do::Insert(value),
        };
        session.change(MAP, key, change)?;
        if random.below(4) == 0 && session.has_work() {
            session.background()?;
        }
    }
    for n in 0..2 {
        if random.below(4) == 0 {
            session.create_map(&act::other(n), run.instance.shape)?;
        }
    }
    session.verify()?;
    session.check(universe, random.below(2) == 0)
}

/// Runs schedules of all workloads, with crashes in them, within a budget.
pub fn run(
    scheme: Scheme,
    form: RecordForm,
    budget: &Budget,
    counters: &Counters,
    progress: impl Fn(&Counters) + Sync,
) -> Outcome {
    let start = Instant::now();
    let alive = alive();
    let kinds: Vec<&'static Workload> = workload::all(scheme)
        .filter(|w| budget.workload.as_ref().is_none_or(|name| name == w.name))
        .collect();
    if kinds.is_empty() {
        return Outcome::default();
    }
    let found = Mutex::new((Vec::new(), BTreeMap::new()));
    let stop = AtomicBool::new(false);
    let is_over = || start.elapsed() > budget.time || stop.load(Ordering::Relaxed);
    let note = |operations: Vec<&'static str>, violation: Option<Violation>| {
        let mut found = found.lock().unwrap_or_else(|e| e.into_inner());
        for kind in operations {
            *found.1.entry(kind).or_insert(0) += 1;
        }
        if let Some(violation) = violation {
            add(&counters.violations, 1);
            found.0.push(violation);
            if found.0.len() >= budget.violations {
                stop.store(true, Ordering::Relaxed);
            }
        }
        drop(found);
        progress(counters);
    };
    let held = held_ones(&kinds, (scheme, form), budget, &alive);
    let wanted = budget.schedules + held.as_ref().map_or(0, |held| held.len() as u64);
    let next = AtomicU64::new(0);
    let one_of = |n: u64| {
        let Some(n) = n.checked_sub(budget.schedules) else {
            let workload = kinds[(n % kinds.len() as u64) as usize];
            let choice = match n / kinds.len() as u64 % 3 {
                0 => Choice::Random,
                _ => Choice::Pct,
            };
            let shape = workload.shape(scheme, form);
            let named = Named { workload, shape, choice, seed: budget.seed + n };
            let (operations, violation) = one(named, budget, counters, &alive);
            return note(operations, violation);
        };
        let Some((named, instance, step)) = held.as_ref().ok().and_then(|h| h.get(n as usize))
        else {
            return;
        };
        let checker = Checker {
            alive: &alive,
            counters,
            crashes: 1,
            only: None,
            minimises: budget.minimises,
        };
        let violation = checker.run(*named, instance, *step);
        add(&counters.held, 1);
        note(Vec::new(), violation);
    };
    let work = || loop {
        let n = next.fetch_add(1, Ordering::Relaxed);
        if n >= wanted || is_over() {
            return;
        }
        one_of(n);
    };
    std::thread::scope(|scope| {
        for _ in 1..budget.threads {
            scope.spawn(work);
        }
        // One of them is this one: what is planted on it is planted in its runs.
        work();
    });
    let (violations, operations) = found.into_inner().unwrap_or_else(|e| e.into_inner());
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let made = count(&counters.schedules) + count(&counters.held);
    let short = match held {
        Err(fault) => Some(format!("no thread was held: {fault}")),
        Ok(_) if made < wanted => Some(format!("{made} of {wanted} schedules were made")),
        Ok(_) => None,
    };
    Outcome {
        schedules: count(&counters.schedules),
        held: count(&counters.held),
        short,
        crashed: count(&counters.crashed),
        histories: count(&counters.histories),
        images: count(&counters.images),
        images_distinct: count(&counters.images_distinct),
        responses: count(&counters.responses),
        responses_imaged: count(&counters.responses_imaged),
        operations,
        violations,
        took: start.elapsed(),
    }
}

/// A step before which one thread of one of a workload's [pairs](Workload::pairs) is paused.
#[derive(Debug, Clone, Copy)]
pub struct Pause {
    pair: usize,
    thread: usize,
    step: u64,
}

/// Runs each of a workload's [pairs](Workload::pairs) with one of the threads paused before
/// one in `every` of its steps, or only the pause `only`, with crashes in them. On the calling
/// thread, which gets a number. Returns the first pause with which something is wrong.
///
/// # Errors
/// If a pair cannot be made.
pub fn paused(
    (scheme, form): (Scheme, RecordForm),
    workload: &Workload,
    every: usize,
    only: Option<Pause>,
    alive: &Arc<Alive>,
) -> Checked<Option<(Pause, Fault)>> {
    let counters = Counters::default();
    let checker = Checker { alive, counters: &counters, crashes: 1, only: None, minimises: false };
    let pairs = workload.pairs(workload.shape(scheme, form), alive)?;
    let try_one = |pause: Pause| {
        let Pause { pair, thread, step } = pause;
        let run = run_once(&pairs[pair], Strategy::paused(thread, step, 2), alive)?;
        Checked::Ok(checker.check(&run, step).map(|found| {
            let (name, act) = (workload.name, pairs[pair].scripts[thread][0]);
            let fault = format!("{name}: {act}, paused after {step} steps: {}", found.fault);
            (pause, Fault(fault))
        }))
    };
    if let Some(pause) = only {
        return try_one(pause);
    }
    for (pair, instance) in pairs.iter().enumerate() {
        // One of several operations is not paused.
        for thread in (0..2).filter(|&thread| instance.scripts[thread].len() == 1) {
            let alone = run_once(&instance.alone(thread), Strategy::InTurn, alive)?;
            for step in (0..alone.steps.all).step_by(every) {
                if let Some(found) = try_one(Pause { pair, thread, step })? {
                    return Ok(Some(found));
                }
            }
        }
    }
    Ok(None)
}

/// One schedule.
fn one(
    named: Named,
    budget: &Budget,
    counters: &Counters,
    alive: &Arc<Alive>,
) -> (Vec<&'static str>, Option<Violation>) {
    let (crashes, minimises) = (budget.crashes, budget.minimises);
    let checker = Checker { alive, counters, crashes, only: None, minimises };
    let instance = match named.instance(alive) {
        Ok(instance) => instance,
        Err(fault) => {
            let found = Found { kind: Kind::Run, crash: None, fault: fault.to_string() };
            return (Vec::new(), Some(describe(named, &found, None, &[], named.seed)));
        }
    };
    let operations = instance.scripts.iter().flatten().map(|act| act.kind()).collect();
    add(&counters.schedules, 1);
    let before = counters.images.load(Ordering::Relaxed);
    let violation = checker.run(named, &instance, named.seed);
    add(&counters.crashed, u64::from(counters.images.load(Ordering::Relaxed) > before));
    (operations, violation)
}

/// Steps from the one before an access at a commit point on that count as near it.
const NEAR: u64 = 8;

/// The schedules with a thread that is held: of each workload, each instance, before which steps
/// of its first thread.
fn held_ones(
    kinds: &[&'static Workload],
    (scheme, form): (Scheme, RecordForm),
    budget: &Budget,
    alive: &Arc<Alive>,
) -> Checked<Vec<(Named, Arc<Instance>, u64)>> {
    let mut all = Vec::new();
    for &workload in kinds {
        let shape = workload.shape(scheme, form);
        for (number, instance) in workload.held(shape, alive)?.into_iter().enumerate() {
            let named = Named { workload, shape, choice: Choice::Held, seed: number as u64 };
            let alone = run_once(&instance.alone(0), Strategy::InTurn, alive)?;
            let instance = Arc::new(instance);
            let pointed: HashSet<u64> = alone.pointed[0].iter().map(|(step, _)| *step).collect();
            let others = budget.held_others.div_ceil(workload.held_share());
            let is_chosen = |&step: &u64| match pointed.contains(&step) {
                true => (step + budget.seed).is_multiple_of(budget.held_points),
                false => (step + budget.seed + named.seed).is_multiple_of(others),
            };
            let held = |first, second, again| Held { first, second, again }.pack();
            let mut add = |order| all.push((named, Arc::clone(&instance), order));
            if instance.holding == Holding::First {
                let steps = (0..alone.steps.all).filter(is_chosen);
                steps.for_each(|step| add(held(step, None, None)));
                continue;
            }
            // The second thread is as far as it comes alone: it can meet the first one's stores.
            let second = run_once(&instance.alone(1), Strategy::InTurn, alive)?;
            let any = |run: &Run| (0..run.steps.all).collect::<Vec<_>>();
            let near = |run: &Run, thread: usize, point| {
                let at = run.pointed[thread].iter().filter(|(_, at)| *at == point);
                let near = at.flat_map(|&(step, _)| step.saturating_sub(1)..step + NEAR);
                near.collect::<BTreeSet<u64>>().into_iter().collect::<Vec<_>>()
            };
            let optional = |steps: Vec<u64>| steps.into_iter().map(Some).collect();
            let (first, second, again) = match instance.holding {
                Holding::First => unreachable!("above"),
                Holding::Two => (any(&alone), optional(any(&second)), vec![None]),
                Holding::Twice(point) => {
                    (near(&alone, 0, point), vec![None], optional(any(&alone)))
                }
                Holding::Both(point) => {
                    let near = near(&alone, 0, point);
                    (near.clone(), optional(any(&second)), optional(near))
                }
            };
            let number = first.len() * second.len() * again.len();
            let stride = number.div_ceil(budget.held_pairs.max(1) as usize).max(1) | 1;
            let begin = (budget.seed + named.seed * 7) as usize % stride;
            for n in (begin..number).step_by(stride) {
                let (n, one) = (n / first.len(), first[n % first.len()]);
                let (n, second) = (n / second.len(), second[n % second.len()]);
                match again[n] {
                    Some(again) => add(held(one.min(again), second, Some(one.max(again)))),
                    None => add(held(one, second, None)),
                }
            }
        }
    }
    Ok(all)
}

/// Makes a violation small: operations are dropped as long as something of the same kind
/// still shows, under this or one of a few other orders.
fn minimise(
    named: Named,
    order: u64,
    instance: &Instance,
    run: Run,
    found: Found,
    alive: &Arc<Alive>,
) -> Violation {
    let counters = Counters::default();
    let checker = Checker { alive, counters: &counters, crashes: 12, only: None, minimises: false };
    let mut best = (run, found, Vec::new(), order);
    let deadline = Instant::now() + Duration::from_secs(20);
    for number in (0..instance.operations()).rev() {
        let mut dropped: Vec<usize> = best.2.clone();
        dropped.push(number);
        dropped.sort_unstable();
        let smaller = instance.without(&dropped);
        // Which step it is held before does not change with what others do.
        let attempts = if named.choice == Choice::Held { 1 } else { 40 };
        for attempt in 0..attempts {
            if Instant::now() > deadline {
                break;
            }
            let seed = if attempt == 0 { best.3 } else { named.seed + attempt * 7_919 };
            let Ok(run) = named.run(&smaller, seed, alive) else { break };
            if let Some(found) = checker.check(&run, seed)
                && found.kind == best.1.kind
            {
                best = (run, found, dropped, seed);
                break;
            }
        }
    }
    let (run, found, dropped, seed) = best;
    describe(named, &found, Some(&run), &dropped, seed)
}

fn describe(
    named: Named,
    found: &Found,
    run: Option<&Run>,
    dropped: &[usize],
    seed: u64,
) -> Violation {
    let mut minimised = String::new();
    let mut text = String::new();
    if let Some(run) = run {
        for (thread, script) in run.instance.scripts.iter().enumerate() {
            let acts: Vec<_> = script.iter().map(ToString::to_string).collect();
            minimised.push_str(&format!("  thread {thread}: {}\n", acts.join(", ")));
        }
        let moment = found.crash.unwrap_or(run.events.len());
        if let Ok(history) = run.history(moment) {
            text = json::export(&history);
        }
        let from = moment.saturating_sub(12);
        minimised.push_str("  trace:\n");
        for (i, event) in run.events[from..(moment + 3).min(run.events.len())].iter().enumerate() {
            let point = event.point.map_or("-", |p| p.name);
            let cut = if from + i == moment { "  ---- crash\n" } else { "" };
            let what = format!("{:x?}", event.access);
            minimised.push_str(&format!("{cut}    T{} [{point}] {what}\n", event.thread));
        }
    }
    Violation {
        workload: named.workload.name,
        form: named.shape.form,
        strategy: named.choice,
        seed: named.seed,
        crash: found.crash,
        kind: found.kind,
        fault: found.fault.clone(),
        order: seed,
        minimised,
        history: text,
        replay: named.replay(found.crash, dropped, seed),
    }
}

/// What names one schedule on the command line.
#[derive(Debug, Clone)]
pub struct Replay {
    /// The scheme.
    pub scheme: Scheme,
    /// The record form.
    pub form: RecordForm,
    /// The workload.
    pub workload: String,
    /// The strategy.
    pub strategy: Choice,
    /// The seed of the workload.
    pub seed: u64,
    /// The seed of the order, if it is another one.
    pub order: Option<u64>,
    /// Operations that are left out.
    pub without: Vec<usize>,
    /// Only the crash at this moment.
    pub crash: Option<usize>,
}

/// Runs one schedule again. Its trace, and what is wrong with it.
///
/// # Errors
/// If there is no such schedule.
pub fn replay(replay: &Replay) -> Checked<(Run, Option<Violation>)> {
    let workload = Workload::named(replay.scheme, &replay.workload).ok_or_else(|| {
        let known = workload::names(replay.scheme);
        Fault(format!("unknown workload {:?}; known: {}", replay.workload, known.join(", ")))
    })?;
    let alive = alive();
    let shape = workload.shape(replay.scheme, replay.form);
    let named = Named { workload, shape, choice: replay.strategy, seed: replay.seed };
    let instance = named.instance(&alive)?.without(&replay.without);
    let order = replay.order.unwrap_or(replay.seed);
    let run = named.run(&instance, order, &alive)?;
    let counters = Counters::default();
    let (alive, counters) = (&alive, &counters);
    let checker = Checker { alive, counters, crashes: 40, only: replay.crash, minimises: false };
    let found = checker.check(&run, order);
    let violation = found.map(|found| describe(named, &found, Some(&run), &replay.without, order));
    Ok((run, violation))
}
