//! Work on a pool with a journal until the power is cut.

use super::WorkArgs;
use super::port::Port;
use super::work::{FIRST_BATCHES, Hand, POOL, wait_for_the_end, work};
use crate::maps::AnyMap;
use crate::state::{Checked, Fault, ensure};
use crate::torture::life::Subject;
use crate::vm::machine::PROCESSORS;
use crate::vm::script::INTERVAL;
use crate::vm::wire::{Pulse, Said};
use outlast::internals::pmem::{Call, Disk, DiskWatch, Fate};
use outlast::{Error, JournalOptions, Pool};
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The directory of working files. Its contents are lost with the machine's memory.
const MEMORY: &str = "/dev/shm";
/// The lengths that the journal should not exceed, in bytes. Two lives have the first, the next two
/// the second, and so on. With the first, there is always a checkpoint under way.
const LIMITS: [u64; 2] = [512 << 10, 1 << 20];
/// One in this many lives ends with a closed pool.
const CLOSED: u64 = 6;
/// After how many batches each thread waits, in lives in which threads wait. Thread n uses entry n
/// modulo 4.
const WAITS: [u64; 4] = [8, 40, 16, 24];
/// The pause between pulses.
const PULSE: Duration = Duration::from_millis(10);

/// Makes fsync, and the write of a file's end, return success without effect, once its flag is set.
#[derive(Default)]
struct Pretender(AtomicBool);

impl DiskWatch for Pretender {
    fn before(&self, call: Call, _: &File) -> Fate {
        match self.0.load(Ordering::Relaxed) {
            true if call.makes_durable() => Fate::Pretends,
            _ => Fate::Done,
        }
    }
}

/// A pool with a journal, in one life.
pub(super) struct Journaled {
    life: u64,
    without_sync: bool,
    pretender: Arc<Pretender>,
}

impl Journaled {
    pub(super) fn new(args: &WorkArgs) -> Checked<Journaled> {
        let left = working_files()?;
        ensure(left.is_empty(), || format!("after a power cut, there are {}", left.join(", ")))?;
        let WorkArgs { life, without_sync, .. } = *args;
        Ok(Journaled { life, without_sync, pretender: Arc::default() })
    }

    /// Opens the pool, or creates it. It must not be refused.
    pub(super) fn open(&self, dir: &Path) -> Checked<Pool> {
        let limit = LIMITS[(self.life / 2 % 2) as usize];
        let journal = JournalOptions::new().interval(INTERVAL).limit(limit);
        let disk = Disk::watched(self.pretender.clone());
        let options = Subject::options().journal(journal).disk(disk);
        let path = dir.join(POOL);
        // SAFETY: only this process uses the pools of this file system.
        let pool = match unsafe { options.open(&path) } {
            // SAFETY: as above.
            Err(Error::NoSuchPool { .. }) => unsafe { options.create(&path)? },
            other => other?,
        };
        let there = working_files()?;
        ensure(there.len() == 1, || format!("{} working files in {MEMORY}", there.len()))?;
        Ok(pool)
    }

    /// Works until the power is cut. In every other life, threads wait now and then.
    pub(super) fn work(
        &self,
        pool: Pool,
        maps: Vec<AnyMap>,
        hands: &mut [Hand],
        port: &Port,
    ) -> Checked {
        self.pretender.0.store(self.without_sync, Ordering::Relaxed);
        let closes = self.life.is_multiple_of(CLOSED);
        let waits = self.life % 2 == 1;
        let stop = AtomicBool::new(false);
        let after = |thread: u64, batch: u64| {
            let every = WAITS[(thread % WAITS.len() as u64) as usize];
            if !waits || !batch.is_multiple_of(every) {
                return Ok(());
            }
            port.say(&Said::Waiting { thread })?;
            pool.wait_durable()?;
            port.say(&Said::Waited { thread })
        };
        std::thread::scope(|scope| {
            let heart = scope.spawn(|| beat(&pool, port, &stop));
            let batches = closes.then_some(FIRST_BATCHES);
            let worked = work(&maps, hands, batches, port, &after);
            stop.store(true, Ordering::Relaxed);
            let beaten = heart.join().unwrap_or_else(|_| Err(Fault("the heart panicked".into())));
            worked.and(beaten)
        })?;
        drop(maps);
        port.say(&Said::Cleaning)?;
        pool.close()?;
        let left = working_files()?;
        ensure(left.is_empty(), || format!("a closed pool has left {}", left.join(", ")))?;
        port.say(&Said::Clean)?;
        wait_for_the_end()
    }
}

/// Lists the names of the working files.
fn working_files() -> Checked<Vec<String>> {
    let list = || -> std::io::Result<Vec<String>> {
        fs::read_dir(MEMORY)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    };
    list().map_err(|e| Fault(format!("{MEMORY}: {e}")))
}

/// Sends pulses until `stop` is set.
fn beat(pool: &Pool, port: &Port, stop: &AtomicBool) -> Checked {
    let start = Instant::now();
    let (mut last, mut gap) = (start, Duration::ZERO);
    for processor in (0..PROCESSORS).cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(PULSE);
        run_on(processor)?;
        port.say_then(|| {
            // Read the time first, so that the commit under way at that time counts.
            let now = Instant::now();
            let journal = pool.stats().journal.unwrap_or_default();
            gap = gap.max(now - last);
            last = now;
            let micros = |time: Duration| time.as_micros() as u64;
            Said::Pulse(Pulse {
                micros: micros(now - start),
                commit_micros: journal.longest_commit_ns.div_ceil(1000),
                gap_micros: micros(gap),
                checkpoints: journal.checkpoints,
            })
        })?;
    }
    Ok(())
}

/// Moves this thread to a processor.
fn run_on(processor: usize) -> Checked {
    // SAFETY: all zeros is the empty set of processors. The call reads the set and nothing else.
    let moved = unsafe {
        let mut set: libc::cpu_set_t = MaybeUninit::zeroed().assume_init();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    let error = std::io::Error::last_os_error();
    ensure(moved == 0, || format!("moving to processor {processor}: {error}"))
}
