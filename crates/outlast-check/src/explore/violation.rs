//! The report of an image that breaks the contract.

use super::crash::Crash;
use super::image::{Case, Setting};
use super::recording::Recording;
use crate::model::{Image, Kept, Timeline};
use crate::parts::scenario::Scenario;
use crate::state::{Fault, Judge};
use outlast::internals::pmem::LINE;
use outlast::{RecordForm, Scheme};
use std::fmt;

/// The most images to build in order to minimize one violation.
const ATTEMPTS: usize = 200;

/// An image, or a run, that breaks the contract.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The scenario.
    pub scenario: String,
    /// The scheme.
    pub scheme: Scheme,
    /// The record form.
    pub form: RecordForm,
    /// The round, which determines the keys.
    pub round: u64,
    /// The crash; `None` if the run itself went wrong.
    pub crash: Option<Crash>,
    /// The second crash, in the run that reopened what the first had left.
    pub nested: Option<Crash>,
    /// The fault.
    pub fault: String,
    /// The last steps before the crash.
    pub history: Vec<String>,
    /// The trace around the crash.
    pub trace: Vec<String>,
    /// The lines that lost something, as few as still show the fault.
    pub lost: Vec<String>,
    /// The command that reproduces it.
    pub replay: String,
}

/// A run being explored, and how to get to it.
#[derive(Clone)]
pub struct Place<'a> {
    /// The scenario.
    pub scenario: &'a Scenario,
    /// The round.
    pub round: u64,
    /// The first crash, if this is the run after it.
    pub parent: Option<Crash>,
}

impl Place<'_> {
    /// Makes a violation of the run itself, or of an image of it.
    pub fn violation(
        &self,
        run: Option<(&Recording, &Timeline<'_>, Crash)>,
        fault: &Fault,
    ) -> Violation {
        let shape = self.scenario.shape;
        let own = run.as_ref().map(|(_, _, crash)| crash.clone());
        let (crash, nested) = match &self.parent {
            Some(parent) => (Some(parent.clone()), own),
            None => (own, None),
        };
        let (mut history, mut trace, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        if let Some((run, timeline, crash)) = &run {
            history = run.history(crash.moment);
            trace = run.trace_around(crash.moment);
            lost = losses(timeline, &crash.lost);
        }
        let mut replay = format!(
            "outlast-check explore --scheme {} --record {} --scenario {} --round {}",
            shape.scheme(),
            shape.form,
            self.scenario.name,
            self.round
        );
        for (option, crash) in [("crash", &crash), ("nested", &nested)] {
            if let Some(crash) = crash {
                replay.push_str(&format!(" --{option} {crash}"));
            }
        }
        Violation {
            scenario: self.scenario.name.clone(),
            scheme: shape.scheme(),
            form: shape.form,
            round: self.round,
            crash,
            nested,
            fault: fault.0.clone(),
            history,
            trace,
            lost,
            replay,
        }
    }
}

/// Describes the stores that lines have lost, for people.
fn losses(timeline: &Timeline<'_>, lost: &[Kept]) -> Vec<String> {
    let mut lines = Vec::new();
    for kept in lost {
        let Some(open) = timeline.line(kept.line) else { continue };
        let start = kept.line * LINE;
        lines.push(format!(
            "line {:#x} (from {start:#x}) keeps {} of {} stores that were not durable, and loses",
            kept.line,
            kept.stores,
            open.stores.len()
        ));
        for store in &open.stores[kept.stores.min(open.stores.len())..] {
            let point = store.point.map_or("-".into(), |p| format!("{}: {}", p.owner, p.name));
            lines.push(format!(
                "    {:>8} t{} [{point}] {:#x} = {:#x}",
                store.event, store.thread, store.offset, store.value
            ));
        }
    }
    lines
}

/// Returns the same crash with as few lost stores as still show a fault.
pub fn minimise(
    setting: Setting<'_>,
    timeline: &Timeline<'_>,
    judge: &dyn Judge,
    crash: Crash,
    fault: Fault,
) -> (Crash, Fault) {
    let mut image = Image::default();
    let mut attempts = 0;
    let (mut least, mut found) = (crash, fault);
    let mut try_instead = |lost: Vec<Kept>, least: &mut Crash| -> bool {
        attempts += 1;
        if attempts > ATTEMPTS {
            return false;
        }
        timeline.all_but(&lost, &mut image);
        let case = Case { setting, image: &image, judge, order: least.order };
        match case.check() {
            Ok(_) => false,
            Err(fault) => {
                least.lost = lost;
                found = fault;
                true
            }
        }
    };
    // First let groups of lines keep all their stores, from all lines down to single ones. Then let
    // each line keep more of its stores.
    let mut part = least.lost.len();
    while part > 0 {
        let mut from = 0;
        while from < least.lost.len() {
            let mut fewer = least.lost.clone();
            fewer.drain(from..(from + part).min(fewer.len()));
            if !try_instead(fewer, &mut least) {
                from += part;
            }
        }
        part /= 2;
    }
    for i in 0..least.lost.len() {
        let stores = timeline.line(least.lost[i].line).map_or(0, |open| open.stores.len());
        while least.lost[i].stores + 1 < stores {
            let mut fewer = least.lost.clone();
            fewer[i].stores += 1;
            if !try_instead(fewer, &mut least) {
                break;
            }
        }
    }
    (least, found)
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "VIOLATION in {}, {}, {}", self.scenario, self.scheme, self.form)?;
        writeln!(f, "  found: {}", self.fault)?;
        for (title, lines) in
            [("history", &self.history), ("trace", &self.trace), ("lost", &self.lost)]
        {
            if !lines.is_empty() {
                writeln!(f, "  {title}:")?;
            }
            for line in lines {
                writeln!(f, "    {line}")?;
            }
        }
        write!(f, "  replay: {}", self.replay)
    }
}
