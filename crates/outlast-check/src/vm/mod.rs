//! The library on a real DAX file system: a kernel in a virtual machine, ext4 mounted with
//! DAX on an emulated NVDIMM, and power cuts: the machine is killed.
//!
//! The guest runs this same program ([`guest`]), works on a pool and says over a serial port
//! what has returned ([`wire`]). The host keeps the account ([`ledger`]), kills the machine,
//! boots it again on the same image, and holds what is found there against the account.
//!
//! The emulator has no caches that could lose anything: whatever the guest has stored is in
//! the image. So this proves mapping, detection, growth and recovery on a real kernel, and
//! says nothing about flushes; those are checked on recorded traces ([`explore`]).
//!
//! [`explore`]: crate::explore

pub mod guest;
pub mod initramfs;
pub mod ledger;
pub mod machine;
pub mod scenarios;
pub mod script;
pub mod tools;
pub mod wire;

use crate::state::{Fault, ensure};
use machine::Factory;
use outlast::{RecordForm, Scheme};
use std::fmt;
use std::path::{Path, PathBuf};
use tools::{Missing, Tools};

/// The exit code where no virtual machine can be run.
pub const CANNOT_RUN: u8 = 4;

/// What is tried in virtual machines.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// What is done.
    #[command(subcommand)]
    pub scenario: Scenario,
    /// Prints results as JSON, one object a line, and nothing else.
    #[arg(long, global = true)]
    pub json: bool,
    /// Prints everything that guests say.
    #[arg(long, short, global = true)]
    pub verbose: bool,
    /// The scheme of maps.
    #[arg(long, global = true, default_value_t = Scheme::ALL[0])]
    pub scheme: Scheme,
    /// Seed of the work and of the moments of cuts; what a guest has done by then differs.
    #[arg(long, global = true, default_value_t = 1)]
    pub seed: u64,
    /// Where files of machines are made; a temporary directory if not given.
    #[arg(long, global = true)]
    pub dir: Option<PathBuf>,
}

/// What is done.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Scenario {
    /// What pools on each kind of device lie on, and how they are flushed.
    Detect,
    /// The demonstration of the `outlast` command, with SIGKILL, inside of the guest.
    Demo,
    /// The machine is killed at random moments while threads work on a pool.
    PowerCut(PowerCut),
    /// Power cuts of which the losses must be noticed: a pool that was refused as possibly torn
    /// is opened all the same, and taken for whole.
    Canary,
    /// The process is killed, and the machine shut down in order.
    Reboot,
    /// Copies of a pool that is worked on.
    LiveCopy,
    /// A pool grows until its file system is full; then the machine is killed.
    DiskFull,
    /// A closed pool goes from DAX to an ordinary disk and back.
    Copies,
    /// Detection and three power cuts.
    Short,
    /// Everything.
    All(PowerCut),
}

/// Power cuts.
#[derive(Debug, Clone, clap::Args)]
pub struct PowerCut {
    /// How often the machine is killed.
    #[arg(long, default_value_t = 20)]
    pub cuts: u64,
    /// What the pool lies on.
    #[arg(long, value_enum, default_value_t = On::Dax)]
    pub on: On,
    /// Only maps of this record form: inline or bytes.
    #[arg(long, value_parser = crate::codec::record_form)]
    pub record: Option<RecordForm>,
    /// Keys of each map.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: u64,
    /// Threads.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub threads: u64,
}

impl Default for PowerCut {
    fn default() -> Self {
        PowerCut { cuts: 20, on: On::Dax, record: None, keys: 300, threads: 4 }
    }
}

/// What a pool of power cuts lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum On {
    /// ext4 with DAX on an NVDIMM.
    Dax,
    /// ext4 on an ordinary disk.
    Ext4,
}

/// How a run ends that is not as it should be.
#[derive(Debug)]
pub enum Ended {
    /// No virtual machine can be run here.
    Missing(Missing),
    /// Something was found.
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
    /// The exit code of this program.
    pub fn code(&self) -> u8 {
        match self {
            Ended::Missing(_) => CANNOT_RUN,
            Ended::Found(_) => 1,
            Ended::Exit(code) => *code,
        }
    }
}

/// Runs a scenario. `program` is this program, linked statically, and `outlast` the command
/// of that name, as well.
///
/// # Errors
/// What was found, or is missing.
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
