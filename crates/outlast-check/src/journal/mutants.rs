//! The mutants of the journal: one thing at a time is made wrong, and the lives must show it.

use super::{Budget, Counts, Trial};
use crate::parts::scenario::Scenario;
use comfy_table::{Table, presets};
use outlast::internals::journal::bugs;
use outlast::internals::pmem::{Alive, Seeded, SeededBug};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Something that is made wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    /// The library has this seeded bug.
    Bug(&'static SeededBug),
    /// A cut is made while an operation is under way.
    GateNotHeld,
    /// Only the first line of a flush is noted.
    OneLineNoted,
    /// The base does not grow with the pool.
    GrownLate,
    /// The next process forgets which pages have changed since the checkpoint.
    PagesForgotten,
    /// The next process forgets the lines that were cut and are not durable.
    CutNotesLost,
}

impl Wrong {
    /// Returns its name.
    pub fn name(self) -> String {
        match self {
            Wrong::Bug(bug) => bug.name.to_owned(),
            other => format!("{other:?}"),
        }
    }

    pub(super) fn bug(self) -> Option<Seeded> {
        match self {
            Wrong::Bug(bug) => Some(Seeded::InCode(bug)),
            _ => None,
        }
    }
}

/// A mutant, and what it breaks.
#[derive(Debug, Clone, Copy)]
pub struct Mutant {
    /// What is wrong.
    pub wrong: Wrong,
    /// What it breaks, in a few words.
    pub about: &'static str,
}

const fn bug(bug: &'static SeededBug, about: &'static str) -> Mutant {
    Mutant { wrong: Wrong::Bug(bug), about }
}

const fn wrong(wrong: Wrong, about: &'static str) -> Mutant {
    Mutant { wrong, about }
}

/// All mutants.
pub static ALL: &[Mutant] = &[
    bug(&bugs::LIFE_IGNORED, "segments of another life count"),
    bug(&bugs::BEGUN_WITHOUT_SEGMENT, "a life begins without a segment"),
    bug(&bugs::TOLD_BEFORE_SYNC, "an epoch counts as durable before its fdatasync"),
    bug(&bugs::SYNC_REPEATED, "a failed fdatasync is retried, and its success is trusted"),
    bug(&bugs::CHECKSUM_IGNORED, "torn blocks count"),
    bug(&bugs::VOID_EPOCHS_COUNT, "epochs count that a later segment has voided"),
    bug(&bugs::HEADER_DAMAGE_IGNORED, "a segment whose header is damaged counts as none"),
    bug(&bugs::LENGTH_IGNORED, "a segment that was cut short counts as far as it goes"),
    bug(&bugs::STRAYS_IGNORED, "blocks behind the end of the epochs mean nothing"),
    bug(&bugs::SPARES_IGNORED, "the epoch that a spare names need not be there"),
    bug(&bugs::DAMAGE_IGNORED, "a journal is used although a file of it is as no crash leaves one"),
    bug(&bugs::OLDER_USED, "a working file that is older than the journal is used"),
    bug(&bugs::BEGUN_UNTOLD, "the working file does not know which epoch is being written"),
    bug(&bugs::SHORT_CONTINUED, "a journal that lacks epochs of the working file is continued"),
    bug(&bugs::LIMIT_REFUSES, "a full journal takes no epoch, and a checkpoint waits for one"),
    bug(&bugs::WAITS_FOR_LAST_CUT, "a wait accepts a cut that began before the wait"),
    bug(&bugs::WAITS_FOR_NOTES, "a wait returns at once if nothing was noted since the last cut"),
    wrong(Wrong::GateNotHeld, "a cut is made inside an operation"),
    wrong(Wrong::OneLineNoted, "a flush of several lines notes only one"),
    bug(&bugs::PAGES_NOT_AWAITED, "pages are written before an epoch that ends after their copies"),
    bug(&bugs::REACHED_UNTOLD, "the base does not say which epochs its pages need"),
    bug(&bugs::MISSING_IGNORED, "a rebuild succeeds without the epochs that the base needs"),
    bug(&bugs::BASE_UNSYNCED, "a checkpoint ends before its pages are synced"),
    bug(&bugs::FORGOTTEN_EARLY, "segments are deleted before the checkpoint is durable"),
    bug(&bugs::DELETIONS_UNSYNCED, "a life ends while segments of the one before it can come back"),
    bug(&bugs::PAGES_DROPPED, "a failed checkpoint forgets its pages"),
    bug(&bugs::MARKS_CLEARED, "a checkpoint forgets the pages that changed meanwhile"),
    bug(&bugs::SIZE_IGNORED, "a base that was cut short is used"),
    wrong(Wrong::GrownLate, "the base does not grow with the pool"),
    bug(&bugs::DURABLE_UNTOLD, "the working file does not know the last durable epoch"),
    bug(&bugs::EPOCH_BEFORE_SUM, "the working file learns of an epoch before its checksum"),
    bug(
        &bugs::NOTES_REMOVED_EARLY,
        "notes are removed when they are cut, not when they are durable",
    ),
    wrong(Wrong::CutNotesLost, "the next process forgets what was cut"),
    wrong(Wrong::PagesForgotten, "the next process forgets which pages the base lacks"),
];

/// What became of a mutant.
pub struct Fate {
    /// The mutant.
    pub mutant: Mutant,
    /// The number of lives tried until the suite noticed the mutant, and the violation that it
    /// found.
    pub found: Option<(u64, String)>,
}

impl Mutant {
    /// Returns the mutant's name.
    pub fn name(&self) -> String {
        self.wrong.name()
    }
}

pub(super) fn run(scenarios: &[Scenario], budget: &Budget, alive: &Arc<Alive>) -> Vec<Fate> {
    let (next, fates) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(&mutant) = ALL.get(number) else { return };
            let found = find(mutant, scenarios, budget, alive);
            let mut fates = fates.lock().unwrap_or_else(PoisonError::into_inner);
            fates.push((number, Fate { mutant, found }));
        }
    };
    std::thread::scope(|scope| {
        (1..budget.threads.max(1)).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    let mut fates = fates.into_inner().unwrap_or_else(PoisonError::into_inner);
    fates.sort_by_key(|(number, _)| *number);
    fates.into_iter().map(|(_, fate)| fate).collect()
}

fn find(
    mutant: Mutant,
    scenarios: &[Scenario],
    budget: &Budget,
    alive: &Arc<Alive>,
) -> Option<(u64, String)> {
    // The counts are separate, so that images of a mutant are not taken for images of a sound
    // journal.
    let counts = Counts::default();
    (0..budget.lives_of_mutant).find_map(|number| {
        let scenario = &scenarios[number as usize % scenarios.len()];
        let round = number / scenarios.len() as u64;
        let trial = Trial { scenario, round, alive, counts: &counts, wrong: Some(mutant.wrong) };
        let fault = trial.run().err()?;
        Some((number + 1, format!("{}: {fault}", scenario.name)))
    })
}

pub(super) fn table(fates: &[Fate]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["mutant", "what is wrong", "lives", "what was found"]);
    for Fate { mutant, found } in fates {
        let (lives, found) = match found {
            Some((lives, found)) => (lives.to_string(), found.chars().take(120).collect()),
            None => (String::new(), "NOT NOTICED".to_owned()),
        };
        table.add_row([mutant.name(), mutant.about.to_owned(), lives, found]);
    }
    table.to_string()
}
