//! The commands about journaled pools.

use crate::args::{BudgetName, EndingsArgs, RunArgs};
use crate::{program, report_end};
use outlast::{RecordForm, Scheme};
use outlast_check::state::{Checked, Fault, ensure};
use outlast_check::{endings, journal};
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run_endings(args: &EndingsArgs, place: &Path) -> Checked {
    let mut faults = Vec::new();
    for &scheme in Scheme::ALL.iter().filter(|s| args.scheme.is_none_or(|only| only == **s)) {
        let bar = indicatif::ProgressBar::new_spinner();
        let told = |what: &str, done: u64| {
            bar.set_message(format!("{scheme}: {done} {what}"));
            bar.tick();
        };
        let schedules = endings::schedules(scheme, place, args.times, &program()?, &mut |done| {
            told("schedules", done);
        })?;
        let dir = place.join(scheme.name());
        std::fs::create_dir(&dir).map_err(|e| Fault(format!("{}: {e}", dir.display())))?;
        let campaign = endings::campaign(scheme, &dir, args.rounds, args.seed, &mut |done| {
            told("rounds", done);
        })?;
        bar.finish_and_clear();
        let (schedules_done, rounds) = (schedules.done, campaign.done);
        let found = [schedules.faults, campaign.faults].concat();
        if args.json {
            println!(
                "{}",
                serde_json::json!({
                    "scheme": scheme.to_string(),
                    "ending_schedules": schedules_done,
                    "campaign_rounds": rounds,
                    "violations": found.len(),
                })
            );
        } else {
            println!(
                "{scheme}: {schedules_done} schedules, {rounds} rounds, {} violations",
                found.len()
            );
        }
        faults.extend(found);
    }
    ensure(faults.is_empty(), || faults.join("\n"))
}

/// Runs the endings of a scheme while its background threads work.
fn endings_of(scheme: Scheme) -> Checked<endings::Summary> {
    let place = tempfile::tempdir().map_err(|e| Fault(format!("a temporary directory: {e}")))?;
    endings::schedules(scheme, place.path(), 1, &program()?, &mut |_| ())
}

pub(crate) fn run_journal(args: &RunArgs) -> ExitCode {
    let usual = match args.budget {
        BudgetName::Quick => journal::Budget::quick(),
        BudgetName::Ci => journal::Budget::ci(),
        BudgetName::Deep => journal::Budget::deep(),
    };
    let budget = journal::Budget {
        images: args.distinct.unwrap_or(usual.images),
        threads: args.threads as usize,
        scenario: args.scenario.clone(),
        round: args.round,
        ..usual
    };
    std::panic::set_hook(Box::new(|_| {}));
    // A replay of one scenario is of a crash, not of an ending.
    let endings = match args.scenario {
        Some(_) => Ok(endings::Summary::default()),
        None => endings_of(args.scheme),
    };
    let endings = match endings {
        Ok(endings) => endings,
        Err(fault) => return report_end(Err(fault)),
    };
    let mut good = endings.faults.is_empty();
    eprint!("{}", endings.faults.iter().map(|fault| format!("{fault}\n")).collect::<String>());
    for form in RecordForm::ALL.into_iter().filter(|f| args.record.is_none_or(|r| r == *f)) {
        let bar = indicatif::ProgressBar::new(budget.images);
        let style = "{elapsed_precise} {wide_bar} {human_pos} of {human_len} distinct images";
        if let Ok(style) = indicatif::ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        let outcome =
            journal::run(args.scheme, form, &budget, &|distinct| bar.set_position(distinct));
        bar.finish_and_clear();
        good &= outcome.is_good();
        eprint!("{}", outcome.failures());
        if !args.json {
            println!("{}\n", outcome.table());
        }
        let mut line = outcome.json();
        line["ending_schedules"] = endings.done.into();
        line["ending_violations"] = endings.faults.len().into();
        println!("{line}");
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
