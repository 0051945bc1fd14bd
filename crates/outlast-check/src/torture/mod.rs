//! Kills a process again and again, and checks that its pool never loses anything.
//!
//! A child process works on a pool with several threads. It keeps the expected value of every key
//! in a file of its own ([`cells`]). The parent kills it at a random moment with SIGKILL. The next
//! life, of another child or of the parent, checks every key while it works and the reclaim runs.
//! The parent also verifies the pool at rest.
//!
//! SIGKILL leaves the processor's caches alone, so torture says nothing about flushes.

pub mod cells;
pub mod life;

use crate::random::Random;
use crate::state::{Checked, Fault, ensure};
use cells::Cells;
use life::Subject;
use outlast::JournalOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The file name of the pool in its directory.
pub const POOL: &str = "torture.pool";
/// The file name of the cells in the directory.
pub const CELLS: &str = "expected";
/// The exit code of a child that has found a fault.
pub const FOUND: u8 = 3;

/// When a run ends.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// After this many kills.
    Kills(u64),
    /// After this time.
    Elapsed(Duration),
}

/// Options of a torture run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The pool under torture.
    pub subject: Subject,
    /// When the run ends.
    pub until: Until,
    /// The seed of everything random except the moments of the kills.
    pub seed: u64,
    /// The path of this program, to be run as the child.
    pub program: PathBuf,
    /// The directory of pool and expectations; must be empty.
    pub dir: PathBuf,
    /// The directory of the pool, if that is another one.
    pub pool_dir: Option<PathBuf>,
    /// Whether the pool gets a journal.
    pub journal: bool,
    /// A shell command to run after each kill. It may mount the file system of the pool anew.
    pub after_kill: Option<String>,
}

impl Options {
    fn pool(&self) -> PathBuf {
        self.pool_dir.as_ref().unwrap_or(&self.dir).join(POOL)
    }
}

/// What a run did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Summary {
    /// Number of children killed.
    pub kills: u64,
    /// Lives of the parent, each with a verification.
    pub checks: u64,
    /// Kills after which the reclaim was still running.
    pub unfinished: u64,
    /// Size of the pool at the end, in bytes.
    pub pool_bytes: u64,
}

/// Creates the pool and the cells.
///
/// # Errors
/// If they cannot be created.
pub fn prepare(options: &Options) -> Checked<Cells> {
    let subject = &options.subject;
    let cells = Cells::create(&options.dir.join(CELLS), subject.cells())
        .map_err(|e| Fault(format!("making the expectations: {e}")))?;
    let path = options.pool();
    let options = match options.journal {
        true => Subject::options().journal(JournalOptions::new()),
        false => Subject::options(),
    };
    // SAFETY: the pool is in this run's own directory, and nothing else writes to it.
    let pool = unsafe { options.create(path)? };
    subject.open_maps(&pool)?;
    pool.close()?;
    Ok(cells)
}

/// Runs until the end, or until a fault is found.
///
/// # Errors
/// The fault.
pub fn run(options: &Options, mut progress: impl FnMut(&Summary)) -> Checked<Summary> {
    let start = Instant::now();
    let cells = prepare(options)?;
    let mut random = Random::new(options.seed);
    let mut summary = Summary::default();
    loop {
        kill_one(options, &mut random)?;
        summary.kills += 1;
        let ended = match options.until {
            Until::Kills(kills) => summary.kills >= kills,
            Until::Elapsed(time) => start.elapsed() >= time,
        };
        // Half of the time, start the next child immediately, so that some are killed before the
        // recovery from the last kill is complete.
        if ended || random.below(2) == 0 {
            let kills = summary.kills;
            check(options, &cells, &mut random, &mut summary)
                .map_err(|fault| Fault(format!("after {kills} kills: {fault}")))?;
            summary.checks += 1;
        }
        progress(&summary);
        if ended {
            return Ok(summary);
        }
    }
}

/// Starts a child and kills it.
fn kill_one(options: &Options, random: &mut Random) -> Checked {
    let mut child =
        spawn(options, random.next()).map_err(|e| Fault(format!("starting a child: {e}")))?;
    // Often kill it while it opens the pool or recovers, and sometimes long after.
    let patience = match random.below(4) {
        0 => random.below(20),
        1 | 2 => 20 + random.below(100),
        _ => 50 + random.below(400),
    };
    std::thread::sleep(Duration::from_millis(patience));
    let killed = child.kill();
    let output = child.wait_with_output().map_err(|e| Fault(format!("waiting: {e}")))?;
    ensure(was_killed(output.status), || {
        let text = String::from_utf8_lossy(&output.stderr);
        format!("a child ended by itself ({}): {text}", output.status)
    })?;
    killed.map_err(|e| Fault(format!("killing a child: {e}")))?;
    let Some(command) = &options.after_kill else { return Ok(()) };
    let ran = Command::new("sh").args(["-c", command]).status();
    let ran = ran.map_err(|e| Fault(format!("running {command:?}: {e}")))?;
    ensure(ran.success(), || format!("{command:?} ended with {ran}"))
}

/// Returns whether a process ended by SIGKILL.
pub fn was_killed(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    status.signal() == Some(libc::SIGKILL)
}

fn spawn(options: &Options, seed: u64) -> std::io::Result<Child> {
    let subject = &options.subject;
    let mut command = Command::new(&options.program);
    command.arg("torture-child").arg("--dir").arg(&options.dir);
    if let Some(dir) = &options.pool_dir {
        command.arg("--pool-dir").arg(dir);
    }
    command.args(["--seed", &seed.to_string(), "--keys", &subject.keys.to_string()]);
    command.args(["--threads", &subject.threads.to_string()]);
    command.args(["--scheme", subject.scheme.name()]);
    if let Some(form) = subject.record {
        command.args(["--record", &form.to_string()]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
}

/// Works as a child does, until it is killed.
///
/// # Errors
/// The fault that it found.
pub fn child(subject: &Subject, dir: &Path, pool_dir: &Path, seed: u64) -> Checked {
    let cells = Cells::open(&dir.join(CELLS)).map_err(|e| Fault(format!("{CELLS}: {e}")))?;
    let pool = life::open(&pool_dir.join(POOL))?;
    life::live(subject, &pool, &cells, seed, &AtomicBool::new(false))
}

/// Runs one life of the parent: works on the pool while it recovers, then checks it at rest.
fn check(options: &Options, cells: &Cells, random: &mut Random, summary: &mut Summary) -> Checked {
    let subject = &options.subject;
    let pool = life::open(&options.pool())?;
    let running = pool.stats().reclaim == outlast::ReclaimState::Running;
    summary.unfinished += u64::from(running);
    let stop = AtomicBool::new(false);
    let time = Duration::from_millis(random.below(60));
    let seed = random.next();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| life::live(subject, &pool, cells, seed, &stop));
        std::thread::sleep(time);
        stop.store(true, Ordering::SeqCst);
        worker.join().unwrap_or_else(|_| Err(Fault("a worker panicked".into())))
    })?;
    life::check_at_rest(subject, &pool, cells)?;
    summary.pool_bytes = pool.stats().size;
    let reclaim = pool.stats().reclaim;
    let done = reclaim == outlast::ReclaimState::Done;
    ensure(done, || format!("the reclaim has not ended: {reclaim:?}"))?;
    pool.close()?;
    Ok(())
}
