//! The command line of the proof harness.

mod args;
mod commands;

use args::*;
use clap::Parser;
use commands::{run_endings, run_journal};
use outlast::{RecordForm, Scheme};
use outlast_check::explore::{self, report};
use outlast_check::parts::workload::Workload;
use outlast_check::state::{Checked, Fault, ensure};
use outlast_check::tally::Tally;
use outlast_check::torture::life::Subject;
use outlast_check::{
    disk, endings, full, fuzz, growth, guard, history, mutants, schedule, seeded, suite, torture,
    vm,
};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let command = Cli::parse().command;
    use Command::{Explore, Fuzz, History, Mutants, Run, Schedule, Seeded};
    if matches!(
        command,
        Run(_) | Explore(_) | Mutants(_) | Seeded(_) | Schedule(_) | Fuzz(_) | History(_)
    ) {
        // The reader of stdout may close it early, which should end these commands without a panic.
        // (The other commands talk to processes of their own, and must get the error if one has
        // ended.)
        // SAFETY: no other thread runs yet, and the default action runs no code of this program.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    match command {
        Command::Run(args) if args.medium == MediumName::Journal => run_journal(&args),
        Command::Run(args) => run_suite(&args),
        Command::Explore(args) => run_explore(args),
        Command::Mutants(args) => run_mutants(&args),
        Command::Seeded(args) => run_seeded(&args),
        Command::Torture(args) => in_place(args.dir.clone(), |place| run_torture(args, place)),
        Command::Endings(args) => in_place(args.dir.clone(), |place| run_endings(&args, place)),
        Command::EndingChild { dir, scheme, moment, nth } => {
            child_end(endings::child(&dir, scheme, moment, nth))
        }
        Command::Growth(args) => in_place(args.dir.clone(), |place| run_growth(&args, place)),
        Command::Guard(args) => in_place(args.place.dir.clone(), |place| run_guard(&args, place)),
        Command::Full(args) => in_place(args.dir.clone(), |place| run_full(&args, place)),
        Command::Disk(args) => run_disk(&args),
        Command::Schedule(args) => {
            let names = schedule::workload::names;
            let mut known: Vec<_> = args.schemes().into_iter().flat_map(names).collect();
            known.sort_unstable();
            known.dedup();
            match &args.workload {
                Some(name) if !known.contains(&name.as_str()) => {
                    usage(&format!("unknown workload {name:?}; known: {}", known.join(", ")))
                }
                _ => report_end(run_schedule(&args)),
            }
        }
        Command::Fuzz(args) => run_fuzz(&args),
        Command::FuzzJournal(args) => fuzz::journal::command(&args),
        Command::History(args) => run_history(&args).unwrap_or_else(|e| usage(&e)),
        Command::Vm(args) => run_vm(&args),
        Command::VmGuest { step } => match vm::guest::run(&step) {
            Ok(code) => ExitCode::from(code),
            Err(fault) => report_end(Err(fault)),
        },
        Command::FullChild(args) => {
            child_end(full::child(&args.dir.unwrap_or_default(), args.scheme))
        }
        Command::TortureChild(args) => {
            let seed = args.subject.seed;
            let pool_dir = args.pool_dir.as_ref().unwrap_or(&args.dir).clone();
            child_end(torture::child(&args.subject.into(), &args.dir, &pool_dir, seed))
        }
        Command::GrowthChild(args) => {
            let life = args.life;
            let dir = args.growth.dir.clone().unwrap_or_default();
            child_end(growth::child(&args.growth.options(dir, PathBuf::new()), life))
        }
    }
}

/// Ends a command that cannot be done as requested.
fn usage(what: &str) -> ExitCode {
    eprintln!("error: {what}");
    ExitCode::from(2)
}

fn report_end(result: Checked) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("FOUND: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn run_fuzz(args: &FuzzArgs) -> ExitCode {
    let FuzzArgs { scheme, mutants, seed, threads, .. } = *args;
    let fuzzer = fuzz::Fuzzer::new(scheme, seed);
    if let Some(number) = args.mutant {
        println!("{}", fuzzer.describe(number));
        return match fuzzer.try_one(number) {
            Ok(sound) => {
                println!("called {}", if sound { "sound, and it is" } else { "damaged" });
                ExitCode::SUCCESS
            }
            Err(failure) => {
                eprintln!("FOUND: {failure}");
                ExitCode::FAILURE
            }
        };
    }
    let started = std::time::Instant::now();
    let bar = indicatif::ProgressBar::new(mutants);
    let style = "{bar:30} {human_pos} of {human_len} mutants, {msg}, {eta} left";
    if let Ok(style) = indicatif::ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    let summary = fuzzer.run(mutants, threads, |done, failed| {
        bar.set_position(done);
        bar.set_message(format!("{failed} failed"));
    });
    bar.finish_and_clear();
    for failure in &summary.failures {
        eprintln!("FOUND: {failure}");
    }
    let (tried, failed, sound) = (summary.mutants, summary.failures.len(), summary.sound);
    if args.json {
        let line = serde_json::json!({
            "event": "fuzz", "scheme": scheme.name(), "seed": seed, "mutants": tried,
            "sound": sound, "damaged": tried - sound - failed as u64, "failures": failed,
            "seconds": started.elapsed().as_secs_f64(),
        });
        println!("{line}");
    } else {
        let damaged = tried - sound - failed as u64;
        println!(
            "{scheme}, seed {seed}: {tried} mutants, {sound} sound, {damaged} damaged, {failed} failures"
        );
    }
    if failed == 0 && tried == mutants { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_vm(args: &vm::Args) -> ExitCode {
    let run = || {
        let program = program()?;
        vm::run(args, &program, &program.with_file_name("outlast"))
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(ended) => {
            eprintln!("{ended}");
            ExitCode::from(ended.code())
        }
    }
}

fn child_end(result: Checked) -> ExitCode {
    if let Err(fault) = result {
        eprintln!("{fault}");
    }
    ExitCode::from(torture::FOUND)
}

fn run_suite(args: &RunArgs) -> ExitCode {
    let budget = match args.budget {
        BudgetName::Quick => suite::Budget::quick(),
        BudgetName::Ci => suite::Budget::ci(),
        BudgetName::Deep => suite::Budget::deep(),
    };
    let mut budget = budget.with_threads(args.threads as usize);
    budget.explore.distinct = args.distinct.or(budget.explore.distinct);
    // A panic in an image or a schedule is reported with that image or schedule.
    std::panic::set_hook(Box::new(|_| {}));
    let mut good = true;
    for form in RecordForm::ALL.into_iter().filter(|f| args.record.is_none_or(|r| r == *f)) {
        // The bar draws nothing if stderr is not a terminal. Then each stage has a line of its own.
        let draws = std::io::stderr().is_terminal();
        let bar = indicatif::ProgressBar::no_length();
        let style = "{elapsed_precise} {wide_bar} {human_pos} of {human_len} {msg}";
        if let Ok(style) = indicatif::ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        let stage = std::sync::Mutex::new("");
        let begin = |name: &'static str, length: Option<u64>| {
            let mut stage = stage.lock().unwrap_or_else(|e| e.into_inner());
            if *stage != name {
                *stage = name;
                if !draws {
                    eprintln!("{}, {form}: {name}", args.scheme);
                }
                bar.set_position(0);
                bar.set_message(name);
                length.map_or_else(|| bar.unset_length(), |length| bar.set_length(length));
            }
        };
        let report = suite::run(args.scheme, form, &budget, &|progress| match progress {
            suite::Progress::Images(distinct, wanted) => {
                begin("distinct crash images", wanted);
                bar.set_position(distinct);
            }
            suite::Progress::Schedule(all) => {
                begin("schedules", Some(all));
                bar.inc(1);
            }
            suite::Progress::Mutant => {
                begin("mutants", None);
                bar.inc(1);
            }
            suite::Progress::Seeded => {
                begin("seeded bugs", None);
                bar.inc(1);
            }
            suite::Progress::Disk(all) => {
                begin("faults of the disk", Some(all as u64));
                bar.inc(1);
            }
        });
        bar.finish_and_clear();
        good &= report.is_good();
        eprint!("{}", report.failures());
        if !args.json {
            println!("{}\n", report.tables());
        }
        println!("{}", report.json());
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_disk(args: &DiskArgs) -> ExitCode {
    let mut good = true;
    let schemes = Scheme::ALL.iter().filter(|s| args.scheme.is_none_or(|scheme| scheme == **s));
    for &scheme in schemes {
        for form in RecordForm::ALL.into_iter().filter(|f| args.record.is_none_or(|r| r == *f)) {
            let bar = indicatif::ProgressBar::no_length();
            let found = disk::run(scheme, form, args.threads as usize, &|all| {
                bar.set_length(all as u64);
                bar.inc(1);
            });
            bar.finish_and_clear();
            good &= found.is_good();
            eprint!("{}", found.failures());
            println!("{scheme}, {form}: {found}");
        }
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_explore(args: ExploreArgs) -> ExitCode {
    let mut budget = match args.budget {
        BudgetName::Quick => explore::Budget::QUICK,
        BudgetName::Ci => explore::Budget::CI,
        BudgetName::Deep => explore::Budget::DEEP,
    };
    budget.distinct = args.distinct.or(budget.distinct);
    let options = explore::Options {
        scheme: args.scheme,
        record: args.record,
        scenario: args.scenario,
        round: args.round,
        crash: args.crash,
        nested: args.nested,
        budget,
        threads: args.threads,
    };
    // A panic in an image is reported with that image.
    std::panic::set_hook(Box::new(|_| {}));
    let tally = Tally::default();
    // The bar draws nothing if stderr is not a terminal.
    let progress = match options.budget.distinct {
        Some(distinct) => indicatif::ProgressBar::new(distinct),
        None => indicatif::ProgressBar::no_length(),
    };
    let style = indicatif::ProgressStyle::with_template(
        "{elapsed_precise} {wide_bar} {human_pos} of {human_len} distinct images, {eta} {msg}",
    );
    if let Ok(style) = style {
        progress.set_style(style);
    }
    if let Some(name) = &options.scenario
        && !explore::is_known(name)
    {
        let known = Vec::from_iter(explore::names()).join(", ");
        return usage(&format!("unknown scenario {name:?}; known: {known}"));
    }
    let outcome = explore::run(&options, &tally, &|| progress.set_position(tally.all().distinct));
    progress.finish_and_clear();
    if args.json {
        println!("{}", report::json(&outcome, &tally));
    } else {
        print!("{}", report::failures(&outcome));
        println!("{}", report::table(&outcome));
        if args.tables {
            println!("{}", tally.tables());
        }
    }
    if outcome.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl From<SubjectArgs> for Subject {
    fn from(args: SubjectArgs) -> Subject {
        let SubjectArgs { scheme, record, keys, threads, .. } = args;
        Subject { scheme, record, keys, threads }
    }
}

fn run_mutants(args: &MutantArgs) -> ExitCode {
    let mut good = true;
    for form in RecordForm::ALL.into_iter().filter(|f| args.record.is_none_or(|r| r == *f)) {
        let report =
            mutants::run(args.scheme, form, &mutants::Budget::default(), |mutant, fate| {
                if let mutants::Fate::Uncovered { .. } = fate {
                    eprintln!("not noticed: {mutant}");
                }
            });
        good &= report.is_good();
        if args.json {
            println!("{}", report.json());
        } else {
            println!(
                "{}, {form}: {} commit points, {} mutants: {} killed, {} equivalent, {} \
                 uncovered\n{}\n{}",
                report.scheme,
                report.points,
                report.mutants(),
                report.killed(),
                report.equivalent(),
                report.uncovered().len(),
                report.table(),
                report.failures()
            );
        }
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_seeded(args: &SeededArgs) -> ExitCode {
    if args.markdown {
        println!("{}", seeded::markdown(args.of.scheme));
        return ExitCode::SUCCESS;
    }
    // Some bugs are found by a panic.
    std::panic::set_hook(Box::new(|_| {}));
    let mut good = true;
    for form in RecordForm::ALL.into_iter().filter(|f| args.of.record.is_none_or(|r| r == *f)) {
        let budget = seeded::Budget::default();
        let report = seeded::run_some(args.of.scheme, form, &budget, &args.only, |finding| {
            if let Some(fault) = finding.library_fault() {
                eprintln!("{fault}");
            } else if finding.found.is_none() {
                eprintln!("not found: {}", finding.line.published);
            }
        });
        good &= report.is_good();
        if args.of.json {
            println!("{}", report.json());
        } else {
            println!(
                "{}, {form}: {} seeded bugs, {} found\n{}\n{}",
                report.scheme,
                report.bugs(),
                report.caught(),
                report.table(),
                report.false_alarms.join("\n")
            );
        }
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs in a directory of its own inside the requested one, and removes that directory at the end.
fn in_place(dir: Option<PathBuf>, run: impl FnOnce(&Path) -> Checked) -> ExitCode {
    let within = dir.unwrap_or_else(std::env::temp_dir);
    match tempfile::tempdir_in(&within) {
        Ok(place) => report_end(run(place.path())),
        Err(error) => usage(&format!("{}: {error}", within.display())),
    }
}

fn program() -> Checked<PathBuf> {
    std::env::current_exe()
        .map_err(|e| outlast_check::state::Fault(format!("finding this program: {e}")))
}

fn run_torture(args: TortureArgs, place: &Path) -> Checked {
    let until = match (args.kills, args.minutes) {
        (Some(kills), _) => torture::Until::Kills(kills),
        (None, minutes) => {
            let seconds = minutes.unwrap_or(1.0).clamp(0.0, 1e6) * 60.0;
            torture::Until::Elapsed(Duration::from_secs_f64(seconds))
        }
    };
    let options = torture::Options {
        seed: args.subject.seed,
        subject: args.subject.into(),
        until,
        program: program()?,
        dir: place.into(),
        pool_dir: args.pool_dir,
        journal: args.journal,
        after_kill: args.after_kill,
    };
    let progress = indicatif::ProgressBar::new_spinner();
    let summary = torture::run(&options, |summary| {
        progress.set_message(format!("{} kills, {} checks", summary.kills, summary.checks));
        progress.tick();
    })?;
    progress.finish_and_clear();
    println!(
        "{} kills, {} lives checked at rest, {} found the reclaim unfinished; {} bytes; nothing \
         lost. (SIGKILL keeps the caches: nothing is said about flushes.)",
        summary.kills, summary.checks, summary.unfinished, summary.pool_bytes
    );
    Ok(())
}

impl GrowthArgs {
    fn options(&self, dir: PathBuf, program: PathBuf) -> growth::Options {
        growth::Options {
            scheme: self.scheme,
            lives: self.lives,
            operations: self.operations,
            keys: self.keys,
            threads: self.threads,
            even: self.even,
            program,
            dir,
        }
    }
}

fn run_growth(args: &GrowthArgs, place: &Path) -> Checked {
    let summary = growth::run(&args.options(place.into(), program()?))?;
    println!(
        "{} bytes in one life, {} in {} lives, of which {} ended before the reclaim: ratio {:.3}",
        summary.uncrashed_bytes,
        summary.crashed_bytes,
        args.lives,
        summary.running,
        summary.ratio()
    );
    Ok(())
}

fn run_guard(args: &GuardArgs, place: &Path) -> Checked {
    let time = Duration::from_secs_f64(args.seconds.clamp(0.0, 1e6));
    let summary = guard::hold(place, args.place.scheme, time)?;
    guard::hold_when_full(place, args.place.scheme)?;
    println!(
        "{} updates while a guard was held: it held {} bytes; the pool grew by {}",
        summary.updates, summary.held_bytes, summary.grown_bytes
    );
    Ok(())
}

fn run_schedule(args: &ScheduleArgs) -> Checked {
    // A panic in a schedule is reported with that schedule.
    std::panic::set_hook(Box::new(|_| {}));
    let (mut found, mut shorts) = (Vec::new(), Vec::new());
    for scheme in args.schemes() {
        for form in RecordForm::ALL {
            if args.record.is_some_and(|record| record != form) {
                continue;
            }
            if let (Some(strategy), Some(workload)) = (args.strategy, &args.workload) {
                if Workload::named(scheme, workload).is_none() {
                    continue;
                }
                let (run, violation) = schedule::replay(&schedule::Replay {
                    scheme,
                    form,
                    workload: workload.clone(),
                    strategy,
                    seed: args.seed,
                    order: args.order,
                    without: args.without.clone(),
                    crash: args.crash,
                })?;
                println!("{scheme} {form}: {} steps, {} events", run.steps.all, run.events.len());
                found.extend(violation);
                continue;
            }
            let budget = schedule::Budget {
                schedules: args.schedules,
                crashes: args.crashes,
                time: Duration::from_secs_f64(args.seconds.clamp(0.0, 1e6)),
                threads: args.threads,
                seed: args.seed,
                workload: args.workload.clone(),
                ..schedule::Budget::ci()
            };
            let bar = indicatif::ProgressBar::new(args.schedules);
            let outcome =
                schedule::run(scheme, form, &budget, &schedule::Counters::default(), |_| {
                    bar.inc(1);
                });
            bar.finish_and_clear();
            println!("{scheme} {form}: {outcome}");
            if let Some(short) = &outcome.short {
                shorts.push(format!("{scheme} {form}: {short}"));
            }
            found.extend(outcome.violations);
        }
    }
    let texts: Vec<_> = found.iter().map(ToString::to_string).chain(shorts).collect();
    ensure(texts.is_empty(), || texts.join("\n"))
}

/// Fails if the file is not a history, or cannot be read or written.
fn run_history(args: &HistoryArgs) -> Result<ExitCode, String> {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", args.file.display());
    if args.write {
        let (scheme, form, seed) = (args.scheme, args.record, args.seed);
        let (threads, operations, keys) = (args.threads, args.operations, args.keys);
        let options = history::live::Options { scheme, form, threads, operations, keys, seed };
        let (recorded, changes) = match history::live::record(&options) {
            Ok(recorded) => recorded,
            Err(fault) => return Ok(report_end(Err(fault))),
        };
        println!("recorded during {changes} changes of the structure");
        std::fs::write(&args.file, history::json::export(&recorded)).map_err(|e| named(&e))?;
    }
    let text = std::fs::read_to_string(&args.file).map_err(|e| named(&e))?;
    let read = history::json::import(&text).map_err(|e| named(&e))?;
    Ok(report_end(match history::check(&read) {
        Ok(figures) => {
            println!(
                "strictly linearizable: {} operations, {} without an answer, {} keys, {} crashes",
                figures.operations, figures.pending, figures.keys, figures.crashes
            );
            Ok(())
        }
        Err(findings) => {
            let texts: Vec<_> = findings.iter().map(ToString::to_string).collect();
            Err(Fault(format!("not strictly linearizable\n{}", texts.join("\n"))))
        }
    }))
}

fn run_full(args: &PlaceArgs, place: &Path) -> Checked {
    let records = full::run(&program()?, place, args.scheme)?;
    println!("{records} records in a pool of 1 MiB; it took inserts at once after a kill");
    Ok(())
}
