//! The whole proof of one scheme and record form: crash images, schedules, mutants, seeded bugs and
//! faults of the disk, with a one-line summary.

use crate::disk;
use crate::explore;
use crate::mutants;
use crate::schedule;
use crate::seeded;
use crate::tally::Tally;
use outlast::{RecordForm, Scheme};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// How much to try.
#[derive(Debug, Clone)]
pub struct Budget {
    /// The budget for crash images.
    pub explore: explore::Budget,
    /// The budget for schedules.
    pub schedule: schedule::Budget,
    /// The budget for each mutant.
    pub mutant: mutants::Budget,
    /// The budget for each seeded bug.
    pub seeded: seeded::Budget,
}

impl Budget {
    /// Returns a budget of about a minute.
    pub fn quick() -> Budget {
        Budget {
            explore: explore::Budget::QUICK,
            schedule: schedule::Budget::quick(),
            ..Budget::ci()
        }
    }

    /// Returns a budget of minutes, which a scheme must pass in order to land.
    pub fn ci() -> Budget {
        Budget {
            explore: explore::Budget::CI,
            schedule: schedule::Budget::ci(),
            mutant: mutants::Budget::default(),
            seeded: seeded::Budget::default(),
        }
    }

    /// Returns a budget of hours.
    pub fn deep() -> Budget {
        let schedule = schedule::Budget {
            schedules: 50_000,
            crashes: 8,
            held_points: 1,
            held_others: 4,
            held_pairs: 400,
            time: Duration::from_secs(3_600),
            ..schedule::Budget::ci()
        };
        Budget { explore: explore::Budget::DEEP, schedule, ..Budget::ci() }
    }

    /// Sets the number of threads.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Budget {
        self.schedule.threads = threads;
        self.mutant.threads = threads;
        self.seeded.threads = threads;
        self
    }
}

/// Which of the two record forms a long test tries with a scheme. Every pair of scheme and form in
/// every test would take too long, so each test takes one half of the pairs. [`run`] takes any pair
/// through everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// Byte strings with the first scheme, inline records with the second, and so on.
    First,
    /// Each scheme with the form that it does not have in `First`.
    Second,
}

impl Half {
    /// Lists each scheme with its form.
    pub fn pairs(self) -> impl Iterator<Item = (Scheme, RecordForm)> {
        let forms = match self {
            Half::First => [RecordForm::Bytes, RecordForm::Inline],
            Half::Second => [RecordForm::Inline, RecordForm::Bytes],
        };
        Scheme::ALL.iter().copied().zip(forms.into_iter().cycle())
    }
}

/// What is going on, for a progress bar.
#[derive(Debug, Clone, Copy)]
pub enum Progress {
    /// This many distinct crash images were checked, out of the number requested.
    Images(u64, Option<u64>),
    /// Another schedule was run, out of this many.
    Schedule(u64),
    /// The fate of another mutant is known.
    Mutant,
    /// The fate of another seeded bug is known.
    Seeded,
    /// Another fault of the disk was tried, out of this many.
    Disk(usize),
}

/// The result of a run.
pub struct Report {
    scheme: Scheme,
    form: RecordForm,
    explored: explore::Outcome,
    tally: Tally,
    scheduled: schedule::Outcome,
    mutants: mutants::MutantReport,
    seeded: seeded::SeededReport,
    disk: disk::Outcomes,
    took: Duration,
    /// The time that each part took.
    stages: Vec<(&'static str, Duration)>,
}

/// Runs the whole proof on one scheme and record form. Any thread may call `progress`.
pub fn run(
    scheme: Scheme,
    form: RecordForm,
    budget: &Budget,
    progress: &(dyn Fn(Progress) + Sync),
) -> Report {
    let start = Instant::now();
    let tally = Tally::default();
    let options = explore::Options {
        scheme: Some(scheme),
        record: Some(form),
        budget: budget.explore.clone(),
        threads: budget.schedule.threads,
        ..explore::Options::default()
    };
    let mut stages = Vec::new();
    let mut stage = |name| {
        let before: Duration = stages.iter().map(|(_, took)| *took).sum();
        stages.push((name, start.elapsed() - before));
    };
    let explored = explore::run(&options, &tally, &|| {
        progress(Progress::Images(tally.all().distinct, options.budget.distinct));
    });
    stage("images");
    let counters = schedule::Counters::default();
    let scheduled = schedule::run(scheme, form, &budget.schedule, &counters, |_| {
        progress(Progress::Schedule(budget.schedule.schedules));
    });
    stage("schedules");
    let mutants = mutants::run(scheme, form, &budget.mutant, |_, _| progress(Progress::Mutant));
    stage("mutants");
    let seeded = seeded::run(scheme, form, &budget.seeded, |_| progress(Progress::Seeded));
    stage("seeded_bugs");
    let disk =
        disk::run(scheme, form, budget.schedule.threads, &|all| progress(Progress::Disk(all)));
    stage("sync_faults");
    let took = start.elapsed();
    Report { scheme, form, explored, tally, scheduled, mutants, seeded, disk, took, stages }
}

/// Converts to seconds, rounded to a tenth.
fn seconds(took: Duration) -> f64 {
    (took.as_secs_f64() * 10.0).round() / 10.0
}

impl Report {
    /// Counts everything that breaks the contract, apart from missed mutants and seeded bugs.
    pub fn violations(&self) -> usize {
        let unreached: usize = self.explored.rows.iter().map(|row| row.missing.len()).sum();
        self.explored.violations()
            + unreached
            + self.scheduled.violations.len()
            + usize::from(self.scheduled.short.is_some())
            + self.mutants.broken.len()
            + self.mutants.undeclared.len()
            + self.seeded.false_alarms.len()
            + self.seeded.library_faults().len()
            + self.disk.violations.len()
    }

    /// Returns whether nothing is wrong and the suite noticed everything that was made wrong.
    pub fn is_good(&self) -> bool {
        self.explored.is_good()
            && self.violations() == 0
            && self.mutants.is_good()
            && self.seeded.is_good()
            && self.disk.is_good()
    }

    /// Returns the one-line summary.
    pub fn json(&self) -> Value {
        let (explored, scheduled) = (self.tally.all(), &self.scheduled);
        let answers: usize = self.explored.rows.iter().map(|row| row.responses).sum();
        json!({
            "scheme": self.scheme.to_string(),
            "record": self.form.to_string(),
            "images": explored.images + scheduled.images,
            "images_distinct": explored.distinct + scheduled.images_distinct,
            "nested_crashes": self.tally.nested().distinct,
            "largest_share": (self.tally.largest_share() * 1000.0).round() / 1000.0,
            "schedules": scheduled.crashed,
            "held_schedules": scheduled.held,
            "histories": scheduled.histories,
            "responses_checked": answers as u64 + scheduled.responses,
            "commit_points": self.mutants.points,
            "mutants": self.mutants.mutants(),
            "killed": self.mutants.killed(),
            "equivalent": self.mutants.equivalent(),
            "uncovered": self.mutants.uncovered().len(),
            "seeded_bugs": self.seeded.bugs(),
            "seeded_bugs_caught": self.seeded.caught(),
            "sync_events": self.disk.events,
            "sync_faults": self.disk.faults.len(),
            "sync_left_out": self.disk.left_out.len(),
            "sync_left_out_noticed": self.disk.noticed(),
            "sync_left_out_needless": self.disk.needless(),
            "violations": self.violations(),
            "seconds": seconds(self.took),
            "seconds_of": self.stages.iter().map(|&(name, took)| (name, seconds(took))).collect::<BTreeMap<_, _>>(),
        })
    }

    /// Describes everything that is wrong, for people. Empty if nothing is.
    pub fn failures(&self) -> String {
        let mut text = explore::report::failures(&self.explored);
        for violation in &self.scheduled.violations {
            let _ = writeln!(text, "{violation}");
        }
        if let Some(short) = &self.scheduled.short {
            let _ = writeln!(text, "SHORT: {short}");
        }
        let mutants = self.mutants.failures();
        if !mutants.is_empty() {
            let _ = writeln!(text, "{mutants}");
        }
        for line in self.seeded.missed() {
            let _ = writeln!(text, "NOT FOUND: {}", line.published);
        }
        for fault in self.seeded.library_faults() {
            let _ = writeln!(text, "{fault}");
        }
        for alarm in &self.seeded.false_alarms {
            let _ = writeln!(text, "FALSE ALARM: {alarm}");
        }
        text.push_str(&self.disk.failures());
        text
    }

    /// Formats all the tables, for people.
    pub fn tables(&self) -> String {
        format!(
            "{}\n\n{}\n\n{}\n\n{}\n\n{}\n\n{}",
            explore::report::table(&self.explored),
            self.tally.tables(),
            self.scheduled,
            self.mutants.table(),
            self.seeded.table(),
            self.disk
        )
    }
}
