//! The part that runs inside the virtual machine.

mod files;
mod full;
mod journal;
mod place;
mod port;
mod work;

use super::wire::Said;
use crate::state::Checked;
use outlast::{RecordForm, Scheme};
pub use place::Place;
use port::Port;
use std::time::Duration;

/// How many records [`Step::Fill`] writes between acknowledgements.
pub const FILL_BATCH: u64 = full::BATCH;

/// What the host tells the guest to do, on the kernel's command line.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Step {
    /// Opens a pool, reports its contents, and works on it until the power is cut.
    Work(WorkArgs),
    /// Runs `work` in a process, kills it, and shuts down in order.
    KillThenShutDown {
        /// What the process does.
        #[command(flatten)]
        work: WorkArgs,
        /// When to kill it.
        #[arg(long)]
        after_ms: u64,
    },
    /// Creates a pool in each place and reports its medium.
    Detect {
        /// The places.
        #[arg(long, value_delimiter = ',')]
        places: Vec<Place>,
        /// Makes the file systems first.
        #[arg(long)]
        format: bool,
    },
    /// Tries to write to a pool on a device that refuses writes.
    Unarmed,
    /// Runs the demonstration of the `outlast` command.
    Demo {
        /// The scheme of its map.
        #[arg(long)]
        scheme: Scheme,
        /// Its seed.
        #[arg(long)]
        seed: u64,
    },
    /// Copies a pool while threads work on it.
    CopyLive {
        /// The scheme of its maps.
        #[arg(long)]
        scheme: Scheme,
    },
    /// Opens the copies of [`CopyLive`](Step::CopyLive), after another boot.
    OpenLiveCopies {
        /// The scheme of its maps.
        #[arg(long)]
        scheme: Scheme,
    },
    /// Copies a closed pool from DAX to an ordinary disk and back.
    CopyClosed {
        /// The scheme of its maps.
        #[arg(long)]
        scheme: Scheme,
    },
    /// Fills a small file system with a pool, makes room, and fills it until the power is cut.
    Fill {
        /// The scheme of its map.
        #[arg(long)]
        scheme: Scheme,
    },
    /// Checks the pool that [`Fill`](Step::Fill) left.
    CheckFilled {
        /// The scheme of its map.
        #[arg(long)]
        scheme: Scheme,
        /// Number of records acknowledged.
        #[arg(long)]
        acknowledged: u64,
    },
}

/// Options of the work on a pool.
#[derive(Debug, Clone, clap::Args)]
pub struct WorkArgs {
    /// Where the pool is.
    #[arg(long)]
    pub place: Place,
    /// The seed of the work.
    #[arg(long)]
    pub seed: u64,
    /// The number of this boot.
    #[arg(long)]
    pub life: u64,
    /// The scheme of the maps.
    #[arg(long)]
    pub scheme: Scheme,
    /// Only maps of this form.
    #[arg(long, value_parser = crate::codec::record_form)]
    pub record: Option<RecordForm>,
    /// Keys per map.
    #[arg(long)]
    pub keys: u64,
    /// Number of threads.
    #[arg(long)]
    pub threads: u64,
    /// Makes the file system first.
    #[arg(long)]
    pub format: bool,
    /// Verifies the pool before it runs operations.
    #[arg(long)]
    pub verify: bool,
    /// Runs no operations; only verifies and closes the pool.
    #[arg(long)]
    pub rest: bool,
    /// If a pool is refused as possibly torn, opens it all the same instead of restoring it.
    #[arg(long)]
    pub accept: bool,
    /// The pool has a journal.
    #[arg(long)]
    pub journal: bool,
    /// While it works, no fsync of a file has an effect.
    #[arg(long, requires = "journal")]
    pub without_sync: bool,
    /// The place is mounted already.
    #[arg(long)]
    pub mounted: bool,
}

/// Does a step, and reports how it ended. Returns the exit code.
///
/// # Errors
/// If the report fails.
pub fn run(step: &Step) -> Checked<u8> {
    let port = Port::open()?;
    let code = match act(step, &port) {
        Ok(code) => code,
        Err(fault) => {
            port.say(&Said::Fault(fault.to_string()))?;
            1
        }
    };
    place::unmount_all();
    port.say(&Said::End(code))?;
    Ok(code)
}

fn act(step: &Step, port: &Port) -> Checked<u8> {
    match step {
        Step::Work(args) => work::run(args, port)?,
        Step::KillThenShutDown { work, after_ms } => {
            work::run_and_kill(work, Duration::from_millis(*after_ms), port)?;
        }
        Step::Detect { places, format } => files::detect(places, *format, port)?,
        Step::Unarmed => files::unarmed(port)?,
        Step::Demo { scheme, seed } => return files::demo(*scheme, *seed, port),
        Step::CopyLive { scheme } => files::copy_live(*scheme, port)?,
        Step::OpenLiveCopies { scheme } => files::open_live_copies(*scheme, port)?,
        Step::CopyClosed { scheme } => files::copy_closed(*scheme, port)?,
        Step::Fill { scheme } => full::fill(*scheme, port)?,
        Step::CheckFilled { scheme, acknowledged } => {
            full::check(*scheme, *acknowledged, port)?;
        }
    }
    Ok(0)
}
