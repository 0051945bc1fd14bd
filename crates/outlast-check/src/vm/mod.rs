//! Runs the library on a real DAX file system, in a virtual machine: a kernel, and ext4 mounted
//! with DAX on an emulated NVDIMM. Killing the machine is the power cut.
//!
//! The guest runs this same program ([`guest`]). It works on a pool, and reports over a serial port
//! which operations have returned ([`wire`]). The host keeps the account ([`ledger`]), kills the
//! machine, boots it again on the same image, and compares what is found there with the account.
//!
//! The emulator has no caches that could lose anything: whatever the guest has stored is in the
//! image. So this tests mapping, detection, growth and recovery on a real kernel, and says nothing
//! about flushes. Those are checked on recorded traces ([`explore`]).
//!
//! A pool with a journal is on a disk of our own, a network block device ([`nbd`]). At a cut, that
//! disk can lose any sector that the guest's kernel wrote and did not flush ([`volume`]).
//!
//! [`explore`]: crate::explore

pub mod guest;
pub mod initramfs;
pub mod ledger;
pub mod machine;
pub mod nbd;
pub mod scenarios;
pub mod script;
pub mod tools;
pub mod volume;
pub mod wire;

use crate::state::{Fault, ensure};
use machine::Factory;
use outlast::{RecordForm, Scheme};
use std::fmt;
use std::path::{Path, PathBuf};
use tools::{Missing, Tools};

/// The exit code if no virtual machine can run here.
pub const CANNOT_RUN: u8 = 4;

/// What to try in virtual machines.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The scenario to run.
    #[command(subcommand)]
    pub scenario: Scenario,
    /// Prints only the results, as JSON, one object per line.
    #[arg(long, global = true)]
    pub json: bool,
    /// Prints everything that guests report.
    #[arg(long, short, global = true)]
    pub verbose: bool,
    /// The scheme of the maps.
    #[arg(long, global = true, default_value_t = Scheme::ALL[0])]
    pub scheme: Scheme,
    /// The seed of the work and of the moments of the cuts. What a guest has done by then varies.
    #[arg(long, global = true, default_value_t = 1)]
    pub seed: u64,
    /// Where to put the machines' files. Default: a temporary directory.
    #[arg(long, global = true)]
    pub dir: Option<PathBuf>,
}

/// What to do with virtual machines.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Scenario {
    /// Detects the medium of pools on each kind of device, and how they are flushed.
    Detect,
    /// Runs the demonstration of the `outlast` command, with SIGKILL, inside the guest.
    Demo,
    /// Kills the machine at random moments while threads work on a pool.
    PowerCut(PowerCut),
    /// Kills the machine at random moments while threads work on a pool with a journal. Its disk loses
    /// what was not flushed.
    JournalCut(JournalCut),
    /// Checks that losses are noticed: a pool that was refused as possibly torn is opened all the
    /// same after power cuts, and treated as whole; and a journal writes without fsync.
    Mutant,
    /// Kills the process, then shuts the machine down in order.
    Reboot,
    /// Copies a pool while threads work on it.
    LiveCopy,
    /// Grows a pool until its file system is full, then kills the machine.
    DiskFull,
    /// Copies a closed pool from DAX to an ordinary disk and back.
    Copies,
    /// Runs detection and three power cuts.
    Short,
    /// Runs everything.
    All(Cuts),
}

/// Options of power cuts.
#[derive(Debug, Clone, clap::Args)]
pub struct PowerCut {
    /// The cuts, and the work that they interrupt.
    #[command(flatten)]
    pub cuts: Cuts,
    /// The device that holds the pool.
    #[arg(long, value_enum, default_value_t = On::Dax)]
    pub on: On,
}

/// Options of power cuts of a pool with a journal.
#[derive(Debug, Clone, clap::Args)]
pub struct JournalCut {
    /// The cuts, and the work that they interrupt.
    #[command(flatten)]
    pub cuts: Cuts,
    /// The file system that holds the pool.
    #[arg(long, value_enum, default_value_t = FileSystem::Ext4)]
    pub file_system: FileSystem,
    /// Makes fsync do nothing while threads work. The scenario must fail.
    #[arg(long)]
    pub without_sync: bool,
}

/// How often to cut the power, and of which work.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Cuts {
    /// How often to kill the machine.
    #[arg(long, default_value_t = 20)]
    pub cuts: u64,
    /// Only maps of this record form: inline or bytes.
    #[arg(long, value_parser = crate::codec::record_form)]
    pub record: Option<RecordForm>,
    /// Keys per map.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: u64,
    /// Number of threads.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub threads: u64,
}

impl Default for Cuts {
    fn default() -> Self {
        Cuts { cuts: 20, record: None, keys: 300, threads: 4 }
    }
}

/// A file system on an ordinary disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[expect(missing_docs, reason = "their names")]
pub enum FileSystem {
    Ext4,
    Xfs,
}

/// The device that holds the pool of power cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum On {
    /// ext4 with DAX on an NVDIMM.
    Dax,
    /// ext4 on an ordinary disk.
    Ext4,
}

/// How a run that goes wrong ends.
#[derive(Debug)]
pub enum Ended {
    /// No virtual machine can run here.
    Missing(Missing),
    /// A fault was found.
    Found(Fault),
    /// The guest ended with this exit code.
    Exit(u8),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Missing(missing) => write!(f, "no virtual machine can be run here: {missing}"),
            Ended::Found(fault) => write!(f, "FOUND: {fault}"),
            Ended::Exit(code) => write!(f, "the guest ended with exit code {code}"),
        }
    }
}

impl From<Missing> for Ended {
    fn from(missing: Missing) -> Self {
        Ended::Missing(missing)
    }
}

impl From<Fault> for Ended {
    fn from(fault: Fault) -> Self {
        Ended::Found(fault)
    }
}

impl Ended {
    /// Returns the exit code of this program.
    pub fn code(&self) -> u8 {
        match self {
            Ended::Missing(_) => CANNOT_RUN,
            Ended::Found(_) => 1,
            Ended::Exit(code) => *code,
        }
    }
}

/// Runs a scenario. `program` is this program and `outlast` is the command of that name, both
/// linked statically.
///
/// # Errors
/// The fault that was found, or what is missing.
pub fn run(args: &Args, program: &Path, outlast: &Path) -> Result<(), Ended> {
    let say = |text: &str| {
        if !args.json {
            eprintln!("{text}");
        }
    };
    for path in [program, outlast] {
        ensure(path.is_file(), || format!("{} is not there", path.display()))?;
    }
    let tools = Tools::provide(&tools::cache()?, &say)?;
    let mut place = tempfile::Builder::new();
    place.prefix("outlast-dax-vm-");
    let work = match &args.dir {
        Some(dir) => place.tempdir_in(dir),
        None => place.tempdir(),
    };
    let work = work.map_err(|e| Fault(format!("a directory for the machine: {e}")))?;
    let initramfs = work.path().join("initramfs");
    let programs = [("outlast-check", program), ("outlast", outlast)];
    initramfs::write(&initramfs, &tools, &programs)?;
    let dir = work.path().to_owned();
    let factory = Factory { tools, initramfs, dir, verbose: args.verbose };
    scenarios::run(&factory, args)
}
