//! Starts workers and kills them in the middle of their work.

use super::journal::Journal;
use super::plan::Plan;
use super::random::Random;
use super::workspace::Workspace;
use crate::failure::Failure;
use crate::interrupt;
use indicatif::ProgressBar;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which the journals are polled.
const POLL: Duration = Duration::from_micros(50);

/// A worker that makes no progress for this long counts as hung.
const STALL_MAX: Duration = Duration::from_secs(120);

/// The longest delay between the moment when operations are seen under way and the kill. It is
/// about as long as an operation takes, and the actual delay is random, so a kill can hit an
/// operation at any point.
const DELAY_MAX: Duration = Duration::from_micros(3);

/// How long, from the start of the watch, a worker is watched for operations under way in all
/// threads together, and then for one in any thread. After that it is killed even if none is under
/// way.
const WATCH_ALL_MAX: Duration = Duration::from_millis(2);
const WATCH_ANY_MAX: Duration = Duration::from_millis(200);

/// How many more operations a thread that has reached its limit may do at a time, so that a kill
/// can hit one of them.
const MORE_OPERATIONS: u64 = 8;

/// Starts and kills workers.
pub(super) struct Executioner<'d> {
    space: &'d Workspace,
    plan: &'d Plan,
    journals: &'d [Journal],
    kills: u32,
    bar: ProgressBar,
}

/// A worker process. It is killed when this value is dropped.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl<'d> Executioner<'d> {
    pub(super) fn new(
        space: &'d Workspace,
        plan: &'d Plan,
        journals: &'d [Journal],
        kills: u32,
        bar: ProgressBar,
    ) -> Self {
        Executioner { space, plan, journals, kills, bar }
    }

    /// Starts a worker and kills it somewhere within its part of the work.
    pub(super) fn kill(&self, number: u32, random: &mut Random) -> Result<(), Failure> {
        self.bar.set_message(format!("kill {number} of {}: working", self.kills));
        // The worker does not go beyond its part of the work, so it is still alive when it is
        // killed.
        let part = |number: f64| number / f64::from(self.kills);
        let end = part(f64::from(number) - 0.1);
        for (thread, journal) in self.journals.iter().enumerate() {
            journal.set_limit(self.limit(thread, end));
        }
        let at = part(f64::from(number) - 0.9 + 0.6 * random.fraction());
        let threshold = (self.plan.len() as f64 * at) as u64;
        let mut worker = self.start()?;
        self.wait(&mut worker, |done| done >= threshold)?;
        self.watch(part(f64::from(number)));
        let until = Instant::now() + DELAY_MAX.mul_f64(random.fraction());
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        let action = "killing the worker";
        worker.0.kill().map_err(|e| Failure::io(action, &e))?;
        let status = worker.0.wait().map_err(|e| Failure::io(action, &e))?;
        match status.signal() {
            Some(libc::SIGKILL) => Ok(()),
            _ => Err(ended(status)),
        }
    }

    /// Returns how many operations `thread` may have done when the fraction `part` of all work is
    /// done. The number never reaches the end of the thread's script, so that the thread cannot
    /// end.
    fn limit(&self, thread: usize, part: f64) -> u64 {
        let len = self.plan.len_of(thread as u32);
        ((len as f64 * part) as u64).min(len.saturating_sub(1))
    }

    fn limits_reach(&self, part: f64) -> bool {
        let mut threads = self.journals.iter().enumerate();
        threads.all(|(thread, journal)| journal.limit() >= self.limit(thread, part))
    }

    fn done(&self) -> u64 {
        self.journals.iter().map(Journal::done).sum()
    }

    /// Waits until operations are under way. Between operations the worker reads files, and a kill
    /// at such a moment would show little.
    fn watch(&self, part_end: f64) {
        let start = Instant::now();
        loop {
            let under_way = self.journals.iter().filter(|j| j.is_under_way()).count();
            let time = start.elapsed();
            let enough = if time < WATCH_ALL_MAX { self.journals.len() } else { 1 };
            if under_way >= enough || time > WATCH_ANY_MAX {
                return;
            }
            // If the worker has reached its limit before this process got a processor, let it do a
            // few more operations, repeatedly if necessary.
            if self.journals.iter().all(|j| j.done() >= j.limit()) {
                if self.limits_reach(part_end) {
                    return;
                }
                for (thread, journal) in self.journals.iter().enumerate() {
                    let limit = journal.limit() + MORE_OPERATIONS;
                    journal.set_limit(limit.min(self.limit(thread, part_end)));
                }
            }
            thread::yield_now();
        }
    }

    /// Starts a worker and waits until it has done the rest of the work.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        self.bar.set_message("the rest of the work");
        self.journals.iter().for_each(|journal| journal.set_limit(u64::MAX));
        let mut worker = self.start()?;
        let action = "waiting for the worker";
        loop {
            let total = self.plan.len();
            self.wait(&mut worker, |done| done >= total)?;
            match worker.0.try_wait().map_err(|e| Failure::io(action, &e))? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(ended(status)),
                None => thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn start(&self) -> Result<Worker, Failure> {
        let action = "starting the worker";
        let program = std::env::current_exe().map_err(|e| Failure::io(action, &e))?;
        let child = Command::new(program)
            .arg("demo-worker")
            .arg("--work")
            .arg(&self.space.dir)
            .arg("--target")
            .arg(&self.space.pool)
            .arg("--parent")
            .arg(std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| Failure::io(action, &e))?;
        Ok(Worker(child))
    }

    /// Waits until the number of operations done by all threads together is `enough`. Fails if the
    /// worker ends before that, or hangs.
    fn wait(&self, worker: &mut Worker, enough: impl Fn(u64) -> bool) -> Result<(), Failure> {
        let mut last = (0, Instant::now());
        let mut next_look = Instant::now();
        loop {
            let done = self.done();
            if enough(done) {
                self.bar.set_position(done);
                return Ok(());
            }
            // Checks that cost more than reading the journals are made less often.
            if Instant::now() >= next_look {
                next_look = Instant::now() + Duration::from_millis(20);
                interrupt::check()?;
                self.bar.set_position(done);
                let status = worker.0.try_wait();
                if let Some(status) =
                    status.map_err(|e| Failure::io("waiting for the worker", &e))?
                {
                    interrupt::check()?;
                    return Err(ended(status));
                }
                if done != last.0 {
                    last = (done, Instant::now());
                } else if last.1.elapsed() > STALL_MAX {
                    return Err(Failure::Failed(format!("the worker hangs at operation {done}")));
                }
            }
            thread::sleep(POLL);
        }
    }
}

fn ended(status: ExitStatus) -> Failure {
    Failure::Failed(format!("the worker ended by itself: {status}"))
}
