//! The output of a demonstration, as text or as JSON.

use super::items::Item;
use super::listing::Listing;
use super::plan::Plan;
use super::rates::Rates;
use super::referee::{Account, Findings};
use super::walk::Found;
use super::workspace::{Workspace, open_pool};
use crate::account;
use crate::args::DemoArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::table::table;
use comfy_table::{ColumnConstraint, Table};
use indicatif::{BinaryBytes, HumanCount};
use outlast::Verification;
use serde::Serialize;
use std::time::Instant;

/// The beginning of a demonstration.
#[derive(Debug, Serialize)]
pub(super) struct Start {
    event: &'static str,
    dir: String,
    files: u64,
    unreadable: u64,
    /// Whether there are more files below the directory than are indexed.
    more_files: bool,
    generated: u64,
    operations: u64,
    threads: u32,
    kills: u32,
    scheme: String,
    journal: bool,
    pool: String,
    medium: String,
    survives_power_loss: bool,
    seed: u64,
}

impl Start {
    pub(super) fn new(
        args: &DemoArgs,
        plan: &Plan,
        space: &Workspace,
        found: &Found,
        items: &[Item],
        seed: u64,
    ) -> Result<Self, Failure> {
        let pool = open_pool(&space.pool, &space.dir, plan)?;
        let durability = pool.durability();
        pool.close()?;
        let generated = items.iter().filter(|i| matches!(i, Item::Generated(_))).count() as u64;
        Ok(Start {
            event: "start",
            dir: args.dir.to_string_lossy().into_owned(),
            files: items.len() as u64 - generated,
            unreadable: found.unreadable,
            more_files: found.more,
            generated,
            operations: plan.len(),
            threads: plan.threads,
            kills: args.kills,
            scheme: plan.scheme.clone(),
            journal: plan.journal,
            pool: space.pool.to_string_lossy().into_owned(),
            medium: durability.medium.to_string(),
            survives_power_loss: durability.survives_power_loss,
            seed,
        })
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let skipped = match self.unreadable {
            0 => String::new(),
            n => format!(", {} unreadable ones left out", HumanCount(n)),
        };
        let first = if self.more_files { "the first " } else { "" };
        let files = HumanCount(self.files);
        lines.push(format!("Indexing {first}{files} files below {}{skipped}.", self.dir));
        if self.generated > 0 {
            let generated = HumanCount(self.generated);
            lines.push(format!("There are too few: {generated} generated records are added."));
        }
        let kills = match self.kills {
            1 => "once".into(),
            n => format!("{n} times"),
        };
        let operations = HumanCount(self.operations);
        lines.push(format!(
            "A record: path -> size, modification time, fingerprint of up to 64 KiB.\n\
             {operations} inserts, updates and removals by {} threads of another process,\n\
             which is killed (SIGKILL) {kills} in the middle of them. Each time the pool is\n\
             reopened, and all of it compared with what had been acknowledged.",
            self.threads,
        ));
        if self.journal {
            lines.push(
                "After some of the kills a power loss is simulated, too: the memory is lost, and the\n\
                 part of the journal that was not synced. Everything that the workers were told is\n\
                 durable must be there. Of each thread's later operations, only the first ones may be."
                    .into(),
            );
        }
        lines.push(String::new());
        let power = match (self.survives_power_loss, self.journal) {
            (true, _) => "",
            (false, true) => " and a power loss, except for the last moments",
            (false, false) => ", not a power loss",
        };
        lines.push(format!("  pool    {}", self.pool));
        lines.push(format!("  scheme  {}", self.scheme));
        lines.push(format!("  medium  {}: survives process death{power}", self.medium));
        lines.push(String::new());
        lines
    }
}

/// The findings after one worker.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    event: &'static str,
    /// The number of the kill, or `None` for the last worker, which was not killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    kill: Option<u32>,
    /// The fraction of the work that was done.
    done: f64,
    acknowledged: u64,
    inserts: u64,
    updates: u64,
    removals: u64,
    records: u64,
    in_flight: u64,
    took_effect: u64,
    lost: u64,
    torn: u64,
    duplicated: u64,
    unknown: u64,
    wrong_answers: u64,
    compared_with_files: u64,
    changed_files: u64,
    reopen_ms: f64,
    /// Whether a power loss came with the kill.
    power_loss: bool,
    /// Operations that were in effect but not confirmed to be durable, and that the power loss
    /// undid.
    taken_back: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    examples: Vec<String>,
    #[serde(skip)]
    is_clean: bool,
}

impl Row {
    pub(super) fn new(
        kill: Option<u32>,
        plan: &Plan,
        account: &Account,
        findings: Findings,
        reopen_ms: f64,
        taken_back: Option<u64>,
    ) -> Self {
        Row {
            event: if kill.is_some() { "kill" } else { "end" },
            kill,
            done: account.operations() as f64 / plan.len().max(1) as f64,
            acknowledged: account.operations(),
            inserts: account.inserts,
            updates: account.updates,
            removals: account.removals,
            records: account.records(),
            in_flight: findings.in_flight,
            took_effect: findings.took_effect,
            lost: findings.lost,
            torn: findings.torn,
            duplicated: findings.duplicated,
            unknown: findings.unknown,
            wrong_answers: findings.wrong_answers,
            compared_with_files: findings.compared,
            changed_files: findings.changed_files,
            reopen_ms: rounded(reopen_ms),
            power_loss: taken_back.is_some(),
            taken_back: taken_back.unwrap_or(0),
            is_clean: findings.is_clean(),
            examples: findings.examples,
        }
    }

    fn cells(&self) -> [String; 10] {
        let count = |n| HumanCount(n).to_string();
        [
            match self.kill {
                Some(kill) if self.power_loss => format!("{kill}, power"),
                Some(kill) => kill.to_string(),
                None => "end".into(),
            },
            count(self.acknowledged),
            count(self.records),
            match self.in_flight {
                0 => "0".into(),
                n => format!("{n} ({} took effect)", self.took_effect),
            },
            count(self.lost),
            count(self.torn),
            count(self.duplicated),
            format!("{:.2} ms", self.reopen_ms),
            count(self.unknown + self.wrong_answers),
            count(self.taken_back),
        ]
    }
}

fn rounded(n: f64) -> f64 {
    (n * 1000.0).round() / 1000.0
}

/// The end of a demonstration.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    event: &'static str,
    scheme: String,
    records: u64,
    kills: u64,
    lost: u64,
    torn: u64,
    duplicated: u64,
    leaked_bytes: u64,
    reopen_ms_p50: f64,
    reopen_ms_max: f64,
    gets_per_s: u64,
    verified: bool,
    unknown: u64,
    wrong_answers: u64,
    in_flight: u64,
    scan_per_s: u64,
    threads: u32,
    pool_bytes: u64,
    power_losses: u64,
    taken_back: u64,
    seconds: f64,
}

impl Summary {
    /// Builds the part of the summary that does not depend on the rows.
    pub(super) fn new(
        plan: &Plan,
        records: u64,
        rates: &Rates,
        verification: &Verification,
        account: &account::Account,
    ) -> Self {
        let of_maps = |of: fn(&outlast::Verified) -> u64| {
            verification.maps.iter().map(|(_, verified)| of(verified)).sum::<u64>()
        };
        let same = verification.records() == records && account.records == records;
        Summary {
            event: "summary",
            scheme: plan.scheme.clone(),
            records,
            kills: 0,
            lost: 0,
            torn: of_maps(|v| v.torn),
            duplicated: of_maps(|v| v.duplicated),
            // A closed pool records which space is free. If this one does not, count all of it as
            // leaked.
            leaked_bytes: account.leaked_bytes.unwrap_or(account.file_bytes),
            reopen_ms_p50: 0.0,
            reopen_ms_max: 0.0,
            gets_per_s: rates.gets_per_s as u64,
            verified: verification.is_sound() && account.problems.is_empty() && same,
            unknown: 0,
            wrong_answers: 0,
            in_flight: 0,
            scan_per_s: rates.scan_per_s as u64,
            threads: plan.threads,
            pool_bytes: account.file_bytes,
            power_losses: 0,
            taken_back: 0,
            seconds: 0.0,
        }
    }

    fn is_clean(&self) -> bool {
        let wrong = [self.lost, self.torn, self.duplicated, self.unknown, self.wrong_answers];
        wrong == [0; 5] && self.leaked_bytes == 0 && self.verified
    }

    fn lines(&self) -> Vec<String> {
        let rate = |n| HumanCount(n).to_string();
        vec![
            String::new(),
            format!("  records  {}", HumanCount(self.records)),
            format!("  lookups  {} a second, {} threads", rate(self.gets_per_s), self.threads),
            format!("  scan     {} records a second, one thread", rate(self.scan_per_s)),
            format!("  pool     {}", BinaryBytes(self.pool_bytes)),
            format!(
                "  reopen   {:.2} ms (median), {:.2} ms (longest), up to the first result",
                self.reopen_ms_p50, self.reopen_ms_max
            ),
            format!("  leaked   {} bytes", HumanCount(self.leaked_bytes)),
            String::new(),
        ]
    }

    fn verdict(&self) -> String {
        let kills = match self.kills {
            1 => "1 kill".into(),
            n => format!("{n} kills"),
        };
        let kills = match self.power_losses {
            0 => kills,
            1 => format!("{kills}, 1 with a power loss"),
            n => format!("{kills}, {n} with a power loss"),
        };
        if self.is_clean() {
            return format!(
                "{kills}: nothing lost, torn or duplicated, no byte leaked. ({:.1} s)",
                self.seconds
            );
        }
        format!(
            "{kills}: {} lost, {} torn, {} duplicated, {} unknown keys, {} wrong results, {} bytes \
             leaked, {}",
            self.lost,
            self.torn,
            self.duplicated,
            self.unknown,
            self.wrong_answers,
            self.leaked_bytes,
            if self.verified { "structure sound" } else { "structure damaged" }
        )
    }
}

/// Prints a demonstration.
pub(super) struct Report<'o> {
    out: &'o mut Output,
    rows: Vec<Row>,
    listing: Option<Listing>,
}

impl<'o> Report<'o> {
    pub(super) fn new(out: &'o mut Output) -> Self {
        Report { out, rows: Vec::new(), listing: None }
    }

    /// Prints the result of a directory scan as JSON, and keeps it for the text of the summary.
    pub(super) fn listing(&mut self, listing: Listing) -> Result<(), Failure> {
        self.out.object(&listing)?;
        self.listing = Some(listing);
        Ok(())
    }

    /// Prints what is about to happen.
    pub(super) fn start(&mut self, start: &Start) -> Result<(), Failure> {
        self.out.object(start)?;
        for line in start.lines() {
            self.out.line(line)?;
        }
        self.out.flush()
    }

    /// Prints the findings after a worker as JSON, and keeps them for the summary.
    pub(super) fn row(&mut self, row: Row) -> Result<(), Failure> {
        self.out.object(&row)?;
        self.out.flush()?;
        self.rows.push(row);
        Ok(())
    }

    /// Prints the summary. Fails if anything was wrong.
    pub(super) fn summary(&mut self, mut summary: Summary, start: Instant) -> Result<(), Failure> {
        for row in &self.rows {
            summary.kills += u64::from(row.kill.is_some());
            summary.lost += row.lost;
            summary.torn += row.torn;
            summary.duplicated += row.duplicated;
            summary.unknown += row.unknown;
            // Wrong results stay in the journals, so each row includes those of the rows before it.
            summary.wrong_answers = row.wrong_answers;
            summary.in_flight += row.in_flight;
            summary.power_losses += u64::from(row.power_loss);
            summary.taken_back += row.taken_back;
        }
        let mut times: Vec<f64> =
            self.rows.iter().filter(|row| row.kill.is_some()).map(|row| row.reopen_ms).collect();
        times.sort_by(f64::total_cmp);
        summary.reopen_ms_p50 = times.get(times.len() / 2).copied().unwrap_or(0.0);
        summary.reopen_ms_max = times.last().copied().unwrap_or(0.0);
        summary.seconds = rounded(start.elapsed().as_secs_f64());

        self.out.line(self.table().to_string())?;
        for example in self.rows.iter().flat_map(|row| &row.examples) {
            self.out.line(format!("  ! {example}"))?;
        }
        for line in summary.lines() {
            self.out.line(line)?;
        }
        for line in self.listing.iter().flat_map(Listing::lines) {
            self.out.line(line)?;
        }
        self.out.object(&summary)?;
        if self.listing.as_ref().is_some_and(|listing| !listing.is_right()) {
            let wrong = "the scan of a directory does not list its files in order";
            return Err(Failure::Failed(wrong.into()));
        }
        if !summary.is_clean() || self.rows.iter().any(|row| !row.is_clean) {
            return Err(Failure::Failed(summary.verdict()));
        }
        self.out.line(summary.verdict())
    }

    fn table(&self) -> Table {
        let headings = [
            "kill",
            "acknowledged",
            "records",
            "in flight",
            "lost",
            "torn",
            "twice",
            "reopen",
            "other",
            "taken back",
        ];
        let mut table = table(headings, 0);
        for row in &self.rows {
            table.add_row(row.cells());
        }
        // The column `other` is seldom needed, and without it the table fits into 80 characters.
        if self.rows.iter().all(|row| row.unknown + row.wrong_answers == 0) {
            table.column_mut(8).expect("the last but one").set_constraint(ColumnConstraint::Hidden);
        }
        if !self.rows.iter().any(|row| row.power_loss) {
            table.column_mut(9).expect("the last one").set_constraint(ColumnConstraint::Hidden);
        }
        table
    }
}
