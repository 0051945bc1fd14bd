//! The command line of the proof harness.

use clap::{Args, Parser, Subcommand};
use outlast::{RecordForm, Scheme};
use outlast_check::prefix::{self, report};
use std::process::ExitCode;

/// Tries to break the claims that outlast makes about crashes.
#[derive(Parser)]
#[command(name = "outlast-check", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Crashes a recorded run after every store, reopens what is left, and checks it.
    Prefix(PrefixArgs),
}

#[derive(Args)]
struct PrefixArgs {
    /// Only this scheme.
    #[arg(long)]
    scheme: Option<Scheme>,
    /// Only this record form: inline or bytes.
    #[arg(long, value_parser = record_form)]
    record: Option<RecordForm>,
    /// Only this scenario, in all shapes unless one is named.
    #[arg(long)]
    scenario: Option<String>,
    /// Only the image after this many stores, with its second crashes.
    #[arg(long, requires = "scenario")]
    cut: Option<usize>,
    /// Only the image after this many stores of the second run.
    #[arg(long, requires = "cut")]
    nested: Option<usize>,
    /// Images of each scenario whose second crashes are explored.
    #[arg(long, default_value_t = prefix::Options::default().samples)]
    samples: usize,
    /// Threads.
    #[arg(long, default_value_t = prefix::Options::default().threads)]
    threads: usize,
    /// Prints the outcome as JSON.
    #[arg(long)]
    json: bool,
}

fn record_form(text: &str) -> Result<RecordForm, String> {
    RecordForm::ALL
        .into_iter()
        .find(|form| form.to_string() == text)
        .ok_or_else(|| format!("unknown record form {text:?}; known: inline, bytes"))
}

fn main() -> ExitCode {
    let good = match Cli::parse().command {
        Command::Prefix(args) => run_prefix(args),
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_prefix(args: PrefixArgs) -> bool {
    let options = prefix::Options {
        scheme: args.scheme,
        record: args.record,
        scenario: args.scenario,
        cut: args.cut,
        nested: args.nested,
        samples: args.samples,
        threads: args.threads,
    };
    // A panic in an image is reported with the image.
    std::panic::set_hook(Box::new(|_| {}));
    let progress = indicatif::ProgressBar::new_spinner();
    let outcome = prefix::explore(&options, |row| {
        progress.inc(1);
        progress.set_message(format!("{} {}: {} images", row.scenario, row.form, row.images));
    });
    progress.finish_and_clear();
    if args.json {
        println!("{}", report::json(&outcome));
    } else {
        print!("{}", report::failures(&outcome));
        println!("{}", report::table(&outcome));
    }
    outcome.is_good()
}
