//! The command line of the benchmarks.

mod args;
mod figure_args;

use args::*;
use clap::Parser;
use figure_args::{run_figure, run_figures};
use outlast::{RecordForm, Scheme};
use outlast_bench::form::Reads;
use outlast_bench::kv::{self, Store};
use outlast_bench::limits::{Refused, refused};
use outlast_bench::micro::{self, Phase};
use outlast_bench::systems::{Medium, Setup};
use outlast_bench::{
    Failure, Fallible, cache, contention, counts, first_full, floor, load_factor, model,
    node_sizes, recovery, scratch, space, stalls,
};
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let command = Cli::parse().command;
    // The files of a recovery child are removed by its parent.
    if !matches!(command, Command::RecoveryChild(_) | Command::CacheChild(_))
        && let Err(failure) = scratch::remove_on_signals()
    {
        eprintln!("outlast-bench: signals: {failure}");
        return ExitCode::FAILURE;
    }
    let done = match command {
        Command::Micro(args) => run_micro(args),
        Command::Kv(args) => run_kv(args),
        Command::LoadFactor(args) => run_load_factor(args),
        Command::FirstFull(args) => run_first_full(args),
        Command::Recovery(args) => run_recovery(args),
        Command::Counts(args) => run_counts(&args),
        Command::Space(args) => run_space(args),
        Command::Stalls(args) => run_stalls(args),
        Command::Contention(args) => run_contention(args),
        Command::Model(args) => run_model(&args),
        Command::Floor(args) => run_floor(args),
        Command::NodeSizes(args) => run_node_sizes(args),
        Command::Figure(args) => run_figure(args),
        Command::Figures(args) => run_figures(args),
        Command::Cache(args) => run_cache(args),
        Command::CacheChild(args) => cache::child(&args.pool, args.capacity),
        Command::RecoveryChild(args) => {
            recovery::child(args.scheme, &args.pool, args.records, args.seed, args.journal)
        }
    };
    scratch::let_signals_finish();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the report has closed it.
        Err(failure) if is_broken_pipe(&failure) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("outlast-bench: {failure}");
            ExitCode::from(if failure.is::<Refused>() { USAGE } else { 1 })
        }
    }
}

/// The exit code for invalid arguments.
const USAGE: u8 = 2;

fn is_broken_pipe(failure: &Failure) -> bool {
    let io = failure.downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

fn run_micro(args: MicroArgs) -> Fallible {
    let options = micro::Options {
        setup: Setup {
            batched: args.batched,
            ..setup(args.scheme, args.reads, &args.record, args.pool)?
        },
        records: args.records,
        operations: args.operations,
        threads: args.threads,
        rounds: args.rounds,
        latency_rounds: args.latency_rounds,
        latency_operations: args.latency_operations,
        rivals: args.rival,
        phases: if args.phases.is_empty() { Phase::ALL.to_vec() } else { args.phases },
    };
    check_plot(args.plot.as_deref())?;
    let (rows, latencies) = micro::run(&options, &mut args.output.report())?;
    #[cfg(feature = "plot")]
    if let Some(path) = &args.plot {
        let title = format!(
            "{}, {} records, {}, {}",
            options.setup.scheme,
            options.setup.form,
            outlast_bench::report::thousands(options.records),
            options.setup.medium
        );
        outlast_bench::plot::draw(path, &rows, &latencies, &title)?;
    }
    #[cfg(not(feature = "plot"))]
    let _ = (rows, latencies);
    Ok(())
}

/// Checks that the plot's file can be written, because a run that may take hours must not fail at
/// its end for that reason.
fn check_plot(path: Option<&Path>) -> Fallible {
    if cfg!(not(feature = "plot")) && path.is_some() {
        return Err(refused("--plot: this build cannot (feature `plot`)"));
    }
    let Some(path) = path else { return Ok(()) };
    let no = |why: &dyn Display| refused(format!("--plot {}: {why}", path.display()));
    if !path.extension().is_some_and(|extension| extension == "png" || extension == "svg") {
        return Err(no(&"the name has to end with .png or .svg"));
    }
    if path.exists() {
        return OpenOptions::new().write(true).open(path).map(drop).map_err(|e| no(&e));
    }
    let dir = path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
    tempfile::tempfile_in(dir).map(drop).map_err(|e| no(&e))
}

fn run_kv(args: KvArgs) -> Fallible {
    let record = RecordArgs {
        record: args.record,
        key_size: args.key_size,
        value_size: args.value_size,
        stash: 2,
        seed: args.place.seed,
    };
    let pool =
        PoolArgs { medium: args.medium, pool_dir: args.place.pool_dir, ..PoolArgs::default() };
    let options = kv::Options {
        setup: setup(args.scheme, Reads::Owned, &record, pool)?,
        records: args.records,
        operations: args.operations,
        insert_seconds: args.insert_seconds,
        rounds: args.rounds,
        threads: args.threads,
        stores: if args.store.is_empty() { Store::ALL.to_vec() } else { args.store },
    };
    kv::run(&options, &mut args.output.report()).map(drop)
}

fn run_load_factor(args: LoadFactorArgs) -> Fallible {
    let stash_buckets = match args.stash.is_empty() {
        true if outlast_bench::systems::has_stash(args.scheme) => vec![2, 4],
        true => vec![2],
        false => args.stash,
    };
    let options = load_factor::Options {
        scheme: args.scheme,
        form: args.record,
        records: args.records,
        every: args.every,
        stash_buckets,
        seed: args.seed,
    };
    check_plot(args.plot.as_deref())?;
    let samples = load_factor::run(&options, &mut args.output.report())?;
    #[cfg(feature = "plot")]
    if let Some(path) = &args.plot {
        let title = format!("{}, {}", options.scheme, options.form);
        outlast_bench::plot::draw_load_factor(path, &samples, &title)?;
    }
    #[cfg(not(feature = "plot"))]
    let _ = samples;
    Ok(())
}

fn run_first_full(args: FirstFullArgs) -> Fallible {
    let FirstFullArgs { group_size, cells, rounds, seed, output } = args;
    let options = first_full::Options { group_sizes: group_size, cells, rounds, seed };
    first_full::run(&options, &mut output.report())?;
    Ok(())
}

fn run_recovery(args: RecoveryArgs) -> Fallible {
    let options = recovery::Options {
        scheme: args.scheme,
        records: args.records,
        kills: args.kills,
        threads: args.threads,
        lost: match (args.journal, args.reboot) {
            (false, _) => recovery::Lost::Nothing,
            (true, false) => recovery::Lost::NothingOfJournal,
            (true, true) => recovery::Lost::Memory,
        },
        dir: directory(args.place.pool_dir),
        seed: args.place.seed,
        program: std::env::current_exe()?,
    };
    recovery::run(&options, &mut args.output.report()).map(drop)
}

fn run_cache(args: CacheArgs) -> Fallible {
    let options = cache::Options {
        capacity: args.capacity,
        requests: args.requests,
        trace: args.trace,
        speed_records: args.speed_records,
        speed_rounds: args.speed_rounds,
        speed_system: args.speed_system,
        trace_files: args.trace_file,
        churn_seconds: args.churn_seconds,
        seed: args.place.seed,
        dir: directory(args.place.pool_dir),
        program: std::env::current_exe()?,
    };
    cache::run(&options, &mut args.output.report()).map(drop)
}

fn run_counts(args: &CountsArgs) -> Fallible {
    counts::run(&args.counted.options()?, &mut args.output.report()).map(drop)
}

fn run_model(args: &ModelArgs) -> Fallible {
    model::run(&args.counted.options()?, args.base_ns, &mut args.output.report()).map(drop)
}

fn run_space(args: SpaceArgs) -> Fallible {
    let mut report = args.fill.output.report();
    let options = space::Options { setup: args.fill.setup(args.scheme)?, records: args.records };
    space::run(&options, &mut report).map(drop)
}

fn run_floor(args: FloorArgs) -> Fallible {
    let plain =
        Setup::plain(Scheme::ALL[0], RecordForm::Inline, directory(args.pool_dir), args.seed);
    let medium = Medium::EmulatedPm { line_ns: 0, fence_ns: 0 };
    let options = floor::Options {
        setup: Setup { medium, ..plain },
        mib: args.mib,
        operations: args.operations,
        rounds: args.rounds,
    };
    floor::run(&options, &mut args.output.report()).map(drop)
}

fn run_stalls(args: StallsArgs) -> Fallible {
    let mut report = args.fill.output.report();
    let options = stalls::Options {
        setup: args.fill.setup(args.scheme[0])?,
        schemes: args.scheme,
        records: args.records,
        threads: args.threads,
        slowest: args.slowest,
    };
    stalls::run(&options, &mut report).map(drop)
}

fn run_contention(args: ContentionArgs) -> Fallible {
    let mut report = args.fill.output.report();
    let options = contention::Options {
        setup: args.fill.setup(args.scheme)?,
        records: args.records,
        threads: args.threads,
        seconds: args.seconds,
    };
    contention::run(&options, &mut report).map(drop)
}

fn run_node_sizes(args: NodeSizesArgs) -> Fallible {
    let record = RecordArgs {
        record: RecordForm::Inline,
        key_size: 8,
        value_size: 8,
        stash: 2,
        seed: args.seed,
    };
    let options = node_sizes::Options {
        setup: setup(Scheme::Phast, Reads::Owned, &record, args.pool)?,
        node_leaves: args.node_leaves,
        leaf_slots: args.leaf_slots,
        records: args.records,
        threads: args.threads,
        rounds: args.rounds,
    };
    node_sizes::run(&options, &mut args.output.report()).map(drop)
}
