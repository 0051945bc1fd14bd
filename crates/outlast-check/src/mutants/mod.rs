//! Mutation testing: every flush and fence of the library is done wrong, one at a time, and the
//! suite must notice. The code calls these mutants *mutants*.
//!
//! Each row of the tables of commit points declares whether the operation stores, flushes and
//! fences at that point, and the recorded runs must do exactly that. Then, in the recorded trace,
//! each flush and fence of each row is dropped everywhere, dropped once, shortened by a line or
//! moved too early ([`mutation`]). The suite can notice a mutant in two ways ([`trial`]): a result
//! depends on something that is not durable, or the oracle rejects a crash image that the original
//! trace does not allow. A mutant that the suite does not notice must be in the table of
//! [`equivalent`] mutants, with its reason. Otherwise it is uncovered.

pub mod equivalent;
pub mod mutation;
pub mod pairs;
pub mod tape;
pub mod trial;

use crate::explore::catalogue;
use crate::explore::image::caught;
use crate::parts::mutants::{Act, Reason, Wrong};
use crate::session::alive;
use crate::state::{Checked, Fault};
use mutation::mutate;
use outlast::internals::pmem::{Access, Alive, LINE, Point};
use outlast::{RecordForm, Scheme};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use tape::Tape;
use trial::Verdict;

/// The most moments of one run at which the first process dies, when second lives are chosen for
/// one mutant.
const DEATHS_CHOSEN: usize = 200;

/// The most runs of one kind whose crash images are tried for one mutant. There are hundreds of
/// runs in which threads meet, and similar runs show the same faults. Half of the runs tried are
/// those with the fewest fences after the mutation, because a later fence of the same thread can
/// hide it.
const TAPES_TRIED: usize = 100;

/// How much to try before a mutant counts as not noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Crash images to try in each run of one life.
    pub images: usize,
    /// Crash images to try in each run of two lives, or of two threads.
    pub images_second: usize,
    /// For each commit point, the number of runs of two lives to make in which the first life ends
    /// after a store at this point.
    pub deaths: usize,
    /// Whether to make the mutants of the pool's own points too, which are the same for each
    /// scheme.
    pub pool: bool,
    /// Number of threads.
    pub threads: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { images: 120, images_second: 40, deaths: 2, pool: true, threads: 2 }
    }
}

/// A mutant: one act of one commit point, done wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mutant {
    /// The commit point.
    pub point: &'static Point,
    /// The act that is done wrong.
    pub act: Act,
    /// How it is done wrong.
    pub wrong: Wrong,
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mutant { point, act, wrong } = self;
        write!(f, "{}/{}: {act} {wrong}", point.owner, point.name)
    }
}

/// The fate of a mutant.
#[derive(Debug, Clone)]
pub enum Fate {
    /// The suite noticed it, in this way.
    Killed(String),
    /// The mutant does no harm. It allows images that the original does not, and all that the suite
    /// tried were good.
    Equivalent {
        /// Why.
        reason: Reason,
        /// Images tried.
        images: usize,
    },
    /// The suite did not notice the mutant.
    Uncovered {
        /// Images tried.
        images: usize,
    },
    /// In no run could this act be done wrong in this way.
    NotApplicable,
}

/// The result of a run of all mutants.
#[derive(Debug, Clone)]
pub struct MutantReport {
    /// The scheme.
    pub scheme: Scheme,
    /// The record form.
    pub form: RecordForm,
    /// Number of declared commit points.
    pub points: usize,
    /// Points at which the runs do something undeclared, or never do something declared.
    pub undeclared: Vec<String>,
    /// The mutants that could be made, each with its fate.
    pub fates: Vec<(Mutant, Fate)>,
    /// Runs that failed without a mutant.
    pub broken: Vec<String>,
}

impl MutantReport {
    fn count(&self, is: impl Fn(&Fate) -> bool) -> usize {
        self.fates.iter().filter(|(_, fate)| is(fate)).count()
    }

    /// Counts the mutants that could be made.
    pub fn mutants(&self) -> usize {
        self.fates.len()
    }

    /// Counts the mutants that were noticed.
    pub fn killed(&self) -> usize {
        self.count(|f| matches!(f, Fate::Killed(_)))
    }

    /// Counts the mutants that do no harm.
    pub fn equivalent(&self) -> usize {
        self.count(|f| matches!(f, Fate::Equivalent { .. }))
    }

    /// Lists the mutants that were not noticed and are not known to do no harm.
    pub fn uncovered(&self) -> Vec<Mutant> {
        let is = |(c, f): &(Mutant, Fate)| matches!(f, Fate::Uncovered { .. }).then_some(*c);
        self.fates.iter().filter_map(is).collect()
    }

    /// Returns whether the declared acts are the observed ones, and every mutant is killed or
    /// equivalent.
    pub fn is_good(&self) -> bool {
        self.undeclared.is_empty()
            && self.broken.is_empty()
            && self.mutants() > 0
            && self.killed() + self.equivalent() == self.mutants()
    }

    /// Formats the commit points and the fates of their mutants.
    pub fn table(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::ASCII_MARKDOWN);
        table.set_header(["commit point", "act", "mutants", "killed", "equivalent", "uncovered"]);
        let mut rows: BTreeMap<(&str, &str, Act), [usize; 4]> = BTreeMap::new();
        for (mutant, fate) in &self.fates {
            let row = rows.entry((mutant.point.owner, mutant.point.name, mutant.act)).or_default();
            row[0] += 1;
            row[match fate {
                Fate::Killed(_) => 1,
                Fate::Equivalent { .. } => 2,
                Fate::Uncovered { .. } | Fate::NotApplicable => 3,
            }] += 1;
        }
        for ((owner, name, act), counts) in rows {
            let [all, killed, equivalent, uncovered] = counts.map(|n| n.to_string());
            let point = format!("{owner}/{name}");
            table.add_row([point, act.to_string(), all, killed, equivalent, uncovered]);
        }
        table.to_string()
    }

    /// Describes what is wrong, for people. Empty if nothing is.
    pub fn failures(&self) -> String {
        let mut lines = self.broken.clone();
        lines.extend(self.undeclared.iter().cloned());
        for (mutant, fate) in &self.fates {
            if let Fate::Uncovered { images } = fate {
                lines.push(format!("UNCOVERED {mutant} ({images} images)"));
            }
        }
        lines.join("\n")
    }

    /// Returns the whole report as JSON.
    pub fn json(&self) -> Value {
        let fates: Vec<Value> = self
            .fates
            .iter()
            .map(|(mutant, fate)| {
                let (fate, how) = match fate {
                    Fate::Killed(how) => ("killed", how.clone()),
                    Fate::Equivalent { reason, images } => {
                        ("equivalent", format!("{reason} ({images} images)"))
                    }
                    Fate::Uncovered { images } => ("uncovered", format!("{images} images")),
                    Fate::NotApplicable => ("not applicable", String::new()),
                };
                json!({ "mutant": mutant.to_string(), "fate": fate, "how": how })
            })
            .collect();
        json!({
            "scheme": self.scheme.to_string(),
            "record": self.form.to_string(),
            "commit_points": self.points,
            "undeclared": self.undeclared,
            "mutants": self.mutants(),
            "killed": self.killed(),
            "equivalent": self.equivalent(),
            "uncovered": self.uncovered().len(),
            "broken": self.broken,
            "fates": fates,
        })
    }
}

/// Returns every commit point that a map of a scheme depends on: its own and the pool's.
pub fn declared(scheme: Scheme) -> Vec<&'static Point> {
    [outlast::internals::pool::points::ALL, &scheme.commit_points()].concat()
}

/// The runs, from the cheapest to the most expensive.
struct Tapes<'a> {
    scheme: Scheme,
    alive: &'a Arc<Alive>,
    first: Vec<Tape>,
    /// The index of the first life, and the moment of its death.
    deaths: Vec<(usize, usize)>,
    second: Vec<OnceLock<Checked<Option<Tape>>>>,
    /// For each second life, those that follow if it dies in its repair.
    third: Vec<OnceLock<Checked<Vec<Tape>>>>,
    pairs: Vec<Tape>,
}

impl<'a> Tapes<'a> {
    fn record(
        scheme: Scheme,
        form: RecordForm,
        budget: &Budget,
        alive: &'a Arc<Alive>,
    ) -> Checked<Tapes<'a>> {
        let scenarios = catalogue(scheme, form);
        let mut first: Vec<Tape> =
            scenarios.iter().map(|s| Tape::first(s, alive)).collect::<Checked<_>>()?;
        let shape = scenarios.first().map(|s| s.shape);
        if let Some(shape) = shape {
            first.push(Tape::next_region(shape, alive)?);
            first.push(Tape::every_root(shape, alive)?);
            first.push(Tape::refused(shape, alive)?);
        }
        // Runs of which only the results are checked come last.
        first.sort_by_key(|t| (!t.images, t.events.len()));
        let mut seen: BTreeMap<Option<&Point>, usize> = BTreeMap::new();
        let mut deaths = Vec::new();
        for (i, tape) in first.iter().enumerate() {
            for moment in tape.deaths() {
                let times = seen.entry(tape.events[moment - 1].point).or_default();
                *times += 1;
                if *times <= budget.deaths {
                    deaths.push((i, moment));
                }
            }
        }
        let second = deaths.iter().map(|_| OnceLock::new()).collect();
        let third = deaths.iter().map(|_| OnceLock::new()).collect();
        let mut pairs = pairs::record(scheme, form, alive)?;
        pairs.extend(pairs::lookups(scheme, form, alive)?);
        Ok(Tapes { scheme, alive, first, deaths, second, third, pairs })
    }

    /// Returns a run of two lives, or `None` if its first life left no pool or its second went
    /// wrong.
    fn second(&self, index: usize) -> Option<&Tape> {
        let (first, moment) = self.deaths[index];
        let made = self.second[index].get_or_init(|| self.life_after(&self.first[first], moment));
        made.as_ref().ok()?.as_ref()
    }

    /// Records the life that follows if a process dies at this moment, and checks its results.
    fn life_after(&self, tape: &Tape, moment: usize) -> Checked<Option<Tape>> {
        let Some(next) = tape.second(moment, self.alive)? else { return Ok(None) };
        match next.undurable(&next.events) {
            Some(found) => Err(Fault(format!("{}: {found}", next.name))),
            None => Ok(Some(next)),
        }
    }

    /// Returns the lives that follow if a second life dies in its repair. (Two second lives that
    /// follow a death at the same point are alike, so this returns those of one in two.)
    fn third(&self, index: usize) -> &[Tape] {
        let made = self.third[index].get_or_init(|| {
            let Some(second) = self.second(index).filter(|_| index.is_multiple_of(2)) else {
                return Ok(Vec::new());
            };
            let moments = second.repairs().into_iter();
            let lives = moments.map(|moment| self.life_after(second, moment));
            lives.filter_map(Checked::transpose).collect()
        });
        made.as_deref().unwrap_or_default()
    }

    /// Iterates over all runs.
    fn all(&self) -> impl Iterator<Item = &Tape> {
        let numbers = 0..self.deaths.len();
        let second = numbers.clone().filter_map(|i| self.second(i));
        let third = numbers.flat_map(|i| self.third(i));
        self.first.iter().chain(second).chain(third).chain(&self.pairs)
    }

    /// Tries second lives chosen for this mutant. A flush of words that were only read matters only
    /// if the dead process left them in the caches. So here the process dies right after it stored
    /// to the lines in question.
    fn by_chosen_death(&self, mutant: Mutant) -> Option<String> {
        let made =
            |tape: &Tape| mutate(&tape.events, tape.start, mutant.point, mutant.act, mutant.wrong);
        let mut lines = BTreeSet::new();
        for index in 0..self.deaths.len() {
            lines.extend(self.second(index).and_then(made).into_iter().flat_map(|m| m.lines));
        }
        for first in &self.first {
            let stores = first.events.iter().enumerate().filter(|(_, event)| {
                let line = crate::model::stored(event).map(|(offset, _)| offset / LINE);
                event.point.is_some_and(|p| !p.volatile) && line.is_some_and(|l| lines.contains(&l))
            });
            for (event, _) in trial::spread(stores.collect(), DEATHS_CHOSEN) {
                let Ok(Some(tape)) = first.second(event + 1, self.alive) else { continue };
                let Some(mutated) = made(&tape) else { continue };
                if let Some(found) = trial::by_answers(&tape, &mutated) {
                    return Some(format!("{found} ({})", tape.name));
                }
            }
        }
        None
    }

    fn fate(&self, mutant: Mutant, budget: &Budget) -> Fate {
        let made =
            |tape: &Tape| mutate(&tape.events, tape.start, mutant.point, mutant.act, mutant.wrong);
        let mut applies = false;
        let mut images = 0;
        let reason = equivalent::reason(self.scheme, mutant);
        type Group<'t, 'a> = (Box<dyn Iterator<Item = &'t Tape> + 'a>, usize);
        let groups: [Group<'_, '_>; 4] = [
            (Box::new(self.first.iter()), budget.images),
            (Box::new(self.pairs.iter()), budget.images_second),
            (Box::new((0..self.deaths.len()).filter_map(|i| self.second(i))), budget.images_second),
            (Box::new((0..self.deaths.len()).flat_map(|i| self.third(i))), budget.images_second),
        ];
        for (tapes, budget) in groups {
            let tapes: Vec<&Tape> = tapes.collect();
            for tape in &tapes {
                let Some(mutated) = made(tape) else { continue };
                applies = true;
                if let Some(found) = trial::by_answers(tape, &mutated) {
                    return Fate::Killed(found);
                }
            }
            for tape in trial::nearest(tapes.into_iter().filter(|t| t.images), made, TAPES_TRIED) {
                let Some(mutated) = made(tape) else { continue };
                match trial::by_images(tape, &mutated, budget, self.alive) {
                    Verdict::Noticed(how) => return Fate::Killed(how),
                    Verdict::Unnoticed(tried) => images += tried,
                }
            }
        }
        if applies
            && (!mutant.point.store || mutant.wrong == Wrong::UnlessStored)
            && let Some(found) = self.by_chosen_death(mutant)
        {
            return Fate::Killed(found);
        }
        if applies && reason.is_none() {
            for tape in self.first.iter().filter(|t| t.images) {
                let Some(mutated) = made(tape) else { continue };
                match trial::by_next_life(tape, &mutated, budget.images_second, self.alive) {
                    Verdict::Noticed(how) => return Fate::Killed(how),
                    Verdict::Unnoticed(tried) => images += tried,
                }
            }
        }
        match reason {
            _ if !applies => Fate::NotApplicable,
            Some(reason) => Fate::Equivalent { reason, images },
            None => Fate::Uncovered { images },
        }
    }
}

/// Compares what the runs do under each point with what the point declares.
fn undeclared<'t>(points: &[&'static Point], tapes: impl Iterator<Item = &'t Tape>) -> Vec<String> {
    let mut observed: BTreeMap<&Point, [bool; 3]> = BTreeMap::new();
    for tape in tapes {
        for event in &tape.events {
            let Some(point) = event.point else { continue };
            let does = observed.entry(point).or_default();
            match event.access {
                Access::Store { .. } | Access::CompareExchange { .. } => does[0] = true,
                Access::Flush { .. } => does[1] = true,
                Access::Fence => does[2] = true,
                Access::Load { .. } | Access::Dram | Access::Mark(_) => {}
            }
        }
    }
    let mut found = Vec::new();
    for point in observed.keys().filter(|p| !points.contains(p)) {
        found.push(format!("UNDECLARED {}/{} is in no table", point.owner, point.name));
    }
    for &point in points {
        let does = observed.get(point).copied().unwrap_or_default();
        for (name, declared, done) in [
            ("store", point.store, does[0]),
            ("flush", point.flush, does[1]),
            ("fence", point.fence, does[2]),
        ] {
            if declared != done {
                let what =
                    if done { "is done and not declared" } else { "is declared, never done" };
                found.push(format!("UNDECLARED {}/{}: {name} {what}", point.owner, point.name));
            }
        }
    }
    found
}

/// Tries every mutant of a scheme and record form. Calls `progress` with the fate of each.
pub fn run(
    scheme: Scheme,
    form: RecordForm,
    budget: &Budget,
    progress: impl Fn(&Mutant, &Fate) + Sync,
) -> MutantReport {
    let alive = alive();
    let points = declared(scheme);
    let mut report = MutantReport {
        scheme,
        form,
        points: points.len(),
        undeclared: Vec::new(),
        fates: Vec::new(),
        broken: Vec::new(),
    };
    let tapes = match caught(|| Tapes::record(scheme, form, budget, &alive)) {
        Ok(tapes) => tapes,
        Err(fault) => {
            report.broken.push(format!("a run itself: {fault}"));
            return report;
        }
    };
    let mut mutants = Vec::new();
    let pool = outlast::internals::pool::points::ALL;
    for &point in points.iter().filter(|point| budget.pool || !pool.contains(point)) {
        for (act, done) in [(Act::Flush, point.flush), (Act::Fence, point.fence)] {
            if done {
                mutants.extend(Wrong::all(act).into_iter().map(|wrong| Mutant {
                    point,
                    act,
                    wrong,
                }));
            }
        }
    }
    let next = AtomicUsize::new(0);
    let (fates, broken) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..budget.threads.max(1) {
            scope.spawn(|| {
                while let Some(&mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let fate = caught(|| Ok(tapes.fate(mutant, budget))).unwrap_or_else(|fault| {
                        lock(&broken).push(format!("{mutant}: {fault}"));
                        Fate::Uncovered { images: 0 }
                    });
                    progress(&mutant, &fate);
                    lock(&fates).push((mutant, fate));
                }
            });
        }
    });
    report.fates = fates.into_inner().unwrap_or_else(|e| e.into_inner());
    report.broken = broken.into_inner().unwrap_or_else(|e| e.into_inner());
    report.fates.retain(|(_, fate)| !matches!(fate, Fate::NotApplicable));
    report.fates.sort_by_key(|(mutant, _)| *mutant);
    report.undeclared = undeclared(&points, tapes.all());
    let second =
        tapes.second.iter().filter_map(OnceLock::get).filter_map(|made| made.as_ref().err());
    let third = tapes.third.iter().filter_map(OnceLock::get).filter_map(|made| made.as_ref().err());
    report.broken.extend(second.map(|fault| format!("a second life: {fault}")));
    report.broken.extend(third.map(|fault| format!("a third life: {fault}")));
    report
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
