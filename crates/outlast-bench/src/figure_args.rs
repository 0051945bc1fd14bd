//! The commands `figure` and `figures`.

use crate::args::{OutputArgs, directory};
use clap::Args;
use outlast::FlushMode;
use outlast_bench::Fallible;
use outlast_bench::figures;
use outlast_bench::figures::lab::Scale;
use outlast_bench::figures::subject::flush_modes;
use std::path::PathBuf;

#[derive(Args)]
struct FigureScaleArgs {
    /// How much is measured. `small` takes up to 20 minutes on two cores for all figures.
    #[arg(long, value_enum, default_value = "small")]
    scale: Scale,
    /// Seed of keys and draws.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where pools are made that are opened again. Default: the system's directory for temporary
    /// files.
    #[arg(long)]
    pool_dir: Option<PathBuf>,
    /// How lines are flushed: clwb, clflushopt, clflush; or fence, for a medium that keeps the caches at a
    /// power loss and needs fences alone. Default: the best instruction of the processor.
    #[arg(long, value_parser = flush_mode)]
    flush: Option<FlushMode>,
    #[command(flatten)]
    output: OutputArgs,
}

fn flush_mode(text: &str) -> Result<FlushMode, String> {
    let modes = flush_modes();
    let known = || modes.iter().map(|(name, _)| &**name).collect::<Vec<_>>().join(", ");
    let found = modes.iter().find(|(name, _)| name == text);
    found.map(|(_, mode)| *mode).ok_or_else(|| format!("this processor has: {}", known()))
}

impl FigureScaleArgs {
    fn options(&self) -> figures::Options {
        figures::Options {
            scale: self.scale,
            seed: self.seed,
            flush: self.flush.unwrap_or_else(|| flush_modes()[0].1),
            dir: directory(self.pool_dir.clone()),
        }
    }
}

#[derive(Args)]
pub(crate) struct FigureArgs {
    /// Its name, for instance dash-7, clevel-6, thesis-5.9, group-5, phast-9. A letter after it
    /// names a panel: dash-8a.
    id: String,
    #[command(flatten)]
    figure: FigureScaleArgs,
}

#[derive(Args)]
pub(crate) struct FiguresArgs {
    #[command(flatten)]
    figure: FigureScaleArgs,
    /// Writes what came out to a page in Markdown: docs/figures.md.
    #[arg(long)]
    page: Option<PathBuf>,
    /// Writes the report for a browser, `index.html`, to this directory.
    #[arg(long)]
    report: Option<PathBuf>,
    /// Takes the results from a file with the rows of an earlier run (`--json`), and measures nothing.
    #[arg(long)]
    from: Option<PathBuf>,
}

pub(crate) fn run_figure(args: FigureArgs) -> Fallible {
    let FigureArgs { id, figure } = args;
    figures::run_one(&id, &figure.options(), &mut figure.output.report()).map(drop)
}

pub(crate) fn run_figures(args: FiguresArgs) -> Fallible {
    let written = match &args.from {
        Some(path) => figures::read(path)?,
        None => figures::run_all(&args.figure.options(), &mut args.figure.output.report())?,
    };
    if let Some(path) = &args.page {
        std::fs::write(path, figures::page::write(&written))?;
    }
    if let Some(dir) = &args.report {
        std::fs::create_dir_all(dir)?;
        std::fs::write(dir.join("index.html"), figures::report::write(&written))?;
    }
    Ok(())
}
