//! Seeded bugs: for each published bug that can apply, a similar one is put into the shipped
//! operations, and the harness must find it. The code calls them *seeded*.
//!
//! A bug is a value of [`outlast::internals::pmem::Seeded`]. A check sets it for its thread, and every
//! recorder that is created meanwhile has the bug. Without a bug, the same checks must find
//! nothing.

mod checkers;
mod shared;
pub mod table;

use crate::parts::bugs::{Checker, Line, Stand};
use crate::session::alive;
use checkers::Found;
use outlast::internals::pmem::Seeded;
use outlast::{RecordForm, Scheme};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use table::lines;

/// How much to try for each bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Images of each run.
    pub images: usize,
    /// Second lives of each run.
    pub lives: usize,
    /// Number of threads.
    pub threads: usize,
    /// Whether the same checks are also run without a bug.
    pub control: bool,
    /// Whether to try the bugs that take long to find, too.
    pub slow: bool,
    /// Whether to try the bugs in code that all schemes share, too.
    pub shared: bool,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { images: 80, lives: 96, threads: 2, control: true, slow: true, shared: true }
    }
}

/// A bug, and how it was found.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The published bug that it stands for.
    pub line: Line,
    /// What was found; `None` if nothing was.
    pub found: Option<String>,
    /// What the check found with the bug and without it: a fault of the library itself.
    pub of_library: Option<String>,
    /// The time until it was found, or until everything was tried.
    pub took: Duration,
}

impl Finding {
    /// Describes the fault of the library itself that the check of the bug found.
    pub fn library_fault(&self) -> Option<String> {
        let fault = self.of_library.as_ref()?;
        let bug = self.line.published;
        Some(format!(
            "FAULT OF THE LIBRARY: found by the check of the seeded bug \"{bug}\", and again \
             without the bug: {fault}"
        ))
    }
}

/// The result of a run of all seeded bugs.
#[derive(Debug, Clone)]
pub struct SeededReport {
    /// The scheme.
    pub scheme: Scheme,
    /// The record form.
    pub form: RecordForm,
    /// Every bug, in the order of the table.
    pub findings: Vec<Finding>,
    /// What the same checks found without a bug. This must be empty.
    pub false_alarms: Vec<String>,
    /// The checks without a bug, and the time that each took.
    pub without: Vec<(Checker, Duration)>,
}

impl SeededReport {
    /// Counts the seeded bugs.
    pub fn bugs(&self) -> usize {
        self.findings.len()
    }

    /// Counts the bugs that were found.
    pub fn caught(&self) -> usize {
        self.findings.iter().filter(|f| f.found.is_some()).count()
    }

    /// Lists the bugs that were not found. If the same fault is there without one of them, its
    /// check shows nothing; [`library_faults`](Self::library_faults) lists it.
    pub fn missed(&self) -> Vec<Line> {
        let is_missed = |f: &&Finding| f.found.is_none() && f.of_library.is_none();
        self.findings.iter().filter(is_missed).map(|f| f.line).collect()
    }

    /// Describes the faults that checks found with a seeded bug, and again without it.
    pub fn library_faults(&self) -> Vec<String> {
        let each = self.findings.iter().filter_map(Finding::library_fault);
        each.collect()
    }

    /// Returns whether every bug was found, and nothing else.
    pub fn is_good(&self) -> bool {
        self.bugs() > 0 && self.caught() == self.bugs() && self.false_alarms.is_empty()
    }

    /// Formats the bugs and how they were found.
    pub fn table(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::ASCII_MARKDOWN);
        table.set_header(["seeded", "found by", "s", "what was found"]);
        for (checker, took) in &self.without {
            let seconds = format!("{:.1}", took.as_secs_f64());
            table.add_row(["nothing".into(), checker.name().into(), seconds, String::new()]);
        }
        for Finding { line, found, of_library, took } in &self.findings {
            let Stand::Bug { bug, checker, .. } = line.stand else { continue };
            let found = match (found, of_library) {
                (Some(text), _) => shortened(text),
                (None, Some(text)) => format!("WITHOUT THE BUG, TOO: {}", shortened(text)),
                (None, None) => "NOT FOUND".into(),
            };
            let seconds = format!("{:.1}", took.as_secs_f64());
            table.add_row([name_of(bug), checker.name().into(), seconds, found]);
        }
        table.to_string()
    }

    /// Returns the whole report as JSON.
    pub fn json(&self) -> Value {
        let findings: Vec<Value> = self
            .findings
            .iter()
            .map(|f| json!({ "published": f.line.published, "found": f.found }))
            .collect();
        json!({
            "scheme": self.scheme.to_string(),
            "record": self.form.to_string(),
            "seeded_bugs": self.bugs(),
            "seeded_bugs_caught": self.caught(),
            "false_alarms": self.false_alarms,
            "library_faults": self.library_faults(),
            "findings": findings,
        })
    }
}

fn shortened(text: &str) -> String {
    let short: String = text.chars().take(150).collect();
    if short.len() < text.len() { short + "..." } else { short }
}

/// Returns a bug's name in reports.
fn name_of(bug: Seeded) -> String {
    match bug {
        Seeded::NoFlush(p) => format!("no flush: {}/{}", p.owner, p.name),
        Seeded::NoFence(p) => format!("no fence: {}/{}", p.owner, p.name),
        Seeded::WrongLine(p) => format!("wrong line flushed: {}/{}", p.owner, p.name),
        Seeded::TornStore(p) => format!("torn store: {}/{}", p.owner, p.name),
        Seeded::InCode(bug) => bug.name.to_owned(),
    }
}

/// Formats a scheme's table of published bugs as Markdown, for the documentation.
pub fn markdown(scheme: Scheme) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::ASCII_MARKDOWN);
    table.set_header(["published bug", "seeded as", "where", "found by"]);
    for line in lines(scheme) {
        match line.stand {
            Stand::Bug { bug, place, checker, .. } => {
                table.add_row([line.published, &name_of(bug), place, checker.name()]);
            }
            Stand::Cannot(why) => {
                table.add_row([line.published, "cannot apply", why, ""]);
            }
        }
    }
    table.to_string()
}

/// Seeds every bug in turn. Calls `progress` with each finding.
pub fn run(
    scheme: Scheme,
    form: RecordForm,
    budget: &Budget,
    progress: impl Fn(&Finding) + Sync,
) -> SeededReport {
    run_some(scheme, form, budget, "", progress)
}

/// Does the same as [`run`] for the bugs whose name in reports contains `named`.
pub fn run_some(
    scheme: Scheme,
    form: RecordForm,
    budget: &Budget,
    named: &str,
    progress: impl Fn(&Finding) + Sync,
) -> SeededReport {
    let alive = alive();
    let applies = |line: &Line| match line.stand {
        Stand::Bug { bug, form: only, slow, .. } => {
            only.is_none_or(|only| only == form)
                && name_of(bug).contains(named)
                && (budget.slow || !slow)
                && (budget.shared || !table::is_shared(scheme, line))
        }
        Stand::Cannot(_) => false,
    };
    let bugs: Vec<Line> = lines(scheme).into_iter().filter(applies).collect();
    let subject = checkers::Subject { scheme, form, budget: *budget, alive: Arc::clone(&alive) };
    // Directed schedules need no run without a bug here. One that finds a bug is run again without
    // the bug, and `schedule` runs all of them without any.
    let is_held = |checker: &Checker| matches!(checker, Checker::Held(_));
    let mut all: Vec<Checker> =
        bugs.iter().filter_map(Line::checker).filter(|c| budget.control && !is_held(c)).collect();
    all.sort_unstable();
    all.dedup();
    // Long jobs should come first, so that none of them runs alone at the end: the checks without a
    // bug, and then the bugs. Both are in the reverse order of `Checker`, whose later variants
    // mostly take longer.
    all.reverse();
    let mut order: Vec<usize> = (0..bugs.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(bugs[index].checker()));
    let next = AtomicUsize::new(0);
    let findings = Mutex::new(Vec::new());
    let false_alarms = Mutex::new(Vec::new());
    let without = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..budget.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let start = Instant::now();
                    if let Some(&checker) = all.get(index) {
                        let found = subject.check(checker, None);
                        lock(&without).push((checker, start.elapsed()));
                        if let Some(Found::Bug(found) | Found::Library(found)) = found {
                            lock(&false_alarms).push(format!("{}: {found}", checker.name()));
                        }
                        continue;
                    }
                    let Some(&index) = order.get(index - all.len()) else { return };
                    let line = bugs[index];
                    let Stand::Bug { bug, checker, .. } = line.stand else { continue };
                    let found = subject.check(checker, Some(bug));
                    let (found, of_library) = match found {
                        Some(Found::Bug(found)) => (Some(found), None),
                        Some(Found::Library(found)) => (None, Some(found)),
                        None => (None, None),
                    };
                    let finding = Finding { line, found, of_library, took: start.elapsed() };
                    progress(&finding);
                    lock(&findings).push((index, finding));
                }
            });
        }
    });
    let mut findings = findings.into_inner().unwrap_or_else(|e| e.into_inner());
    findings.sort_by_key(|(index, _)| *index);
    SeededReport {
        scheme,
        form,
        findings: findings.into_iter().map(|(_, finding)| finding).collect(),
        false_alarms: false_alarms.into_inner().unwrap_or_else(|e| e.into_inner()),
        without: without.into_inner().unwrap_or_else(|e| e.into_inner()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
