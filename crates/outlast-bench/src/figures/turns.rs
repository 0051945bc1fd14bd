//! One run of a system through the phases of the papers' evaluations.

use super::subject::Subject;
use crate::{Fallible, team};
use outlast_peers::workloads::draw::Draw;
use outlast_peers::workloads::keys::Spread;
use outlast_peers::workloads::mix::{Mix, Operation, Operations};
use std::fs;
use std::time::Instant;

/// A part of a run, in which all threads make the same kind of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Nine tenths of the records are inserted.
    Insert,
    /// Present keys are looked up, uniform.
    Hit,
    /// Absent keys are looked up.
    Miss,
    /// Values are replaced, uniform.
    Update,
    /// 50 records from a present key on.
    Scan,
    /// So many percent zipfian lookups, the rest inserts: the EA-PHT thesis and clevel hashing.
    Reads(u8),
    /// Four uniform lookups to an insert: Dash, and PhaST's mixed workload.
    FourToOne,
    /// YCSB's A to F, by their letters.
    Ycsb(char),
    /// All loaded records are removed.
    Remove,
}

impl Phase {
    /// The phases of hash tables.
    pub const HASH: [Phase; 10] = [
        Phase::Insert,
        Phase::Hit,
        Phase::Miss,
        Phase::Update,
        Phase::Reads(50),
        Phase::Reads(80),
        Phase::Reads(95),
        Phase::Reads(100),
        Phase::FourToOne,
        Phase::Remove,
    ];
    /// The phases of ordered structures.
    pub const ORDERED: [Phase; 12] = [
        Phase::Insert,
        Phase::Hit,
        Phase::Update,
        Phase::Scan,
        Phase::FourToOne,
        Phase::Ycsb('A'),
        Phase::Ycsb('B'),
        Phase::Ycsb('C'),
        Phase::Ycsb('D'),
        Phase::Ycsb('E'),
        Phase::Ycsb('F'),
        Phase::Remove,
    ];

    fn mix(self) -> Option<Mix> {
        Some(match self {
            Phase::Reads(percent) => Mix::reads_and_inserts(percent.into()),
            Phase::FourToOne => Mix::DASH,
            Phase::Ycsb('A') => Mix::A,
            Phase::Ycsb('B') => Mix::B,
            Phase::Ycsb('C') => Mix::C,
            Phase::Ycsb('D') => Mix::D,
            Phase::Ycsb('E') => Mix::E,
            Phase::Ycsb('F') => Mix::F,
            _ => return None,
        })
    }

    /// A number that differs for each phase.
    fn number(self) -> u64 {
        match self {
            Phase::Insert => 1,
            Phase::Hit => 2,
            Phase::Miss => 3,
            Phase::Update => 4,
            Phase::Scan => 5,
            Phase::FourToOne => 6,
            Phase::Remove => 7,
            Phase::Ycsb(letter) => 16 + u64::from(letter as u8 - b'A'),
            Phase::Reads(percent) => 64 + u64::from(percent),
        }
    }
}

/// The size of a run.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// Records that are loaded.
    pub records: u64,
    /// Operations of each phase that does not load or empty the table.
    pub operations: u64,
    /// How keys lie in the key space.
    pub spread: Spread,
    /// Seed of all draws.
    pub seed: u64,
    /// Number of threads.
    pub threads: usize,
}

/// What a phase took.
#[derive(Debug, Clone, Copy)]
pub struct Took {
    /// Nanoseconds of one operation, by the threads' time on a processor.
    pub cpu_ns: f64,
    /// Million operations a second of all threads. The time in which a thread could run and was not
    /// let, because another program ran, is left out.
    pub mops: f64,
}

/// The value of a key, which is never the key.
#[inline]
pub fn value(key: u64) -> u64 {
    key ^ 0x5555_5555_5555_5555
}

/// How many inserts of a thread lie between two steps of the index's background work.
pub const STEP_EVERY: u64 = 16;

/// Runs a system through phases, and returns what each took. A tenth of the records is inserted
/// before the first.
///
/// # Errors
/// If an operation fails, or if more than one in a hundred returns a wrong result. (Level hashing
/// misses keys that another thread moves.)
pub fn turn(subject: &dyn Subject, work: &Work, phases: &[Phase]) -> Fallible<Vec<(Phase, Took)>> {
    let key = |number: u64| work.spread.key(number);
    for number in 0..work.records / 10 {
        subject.insert(key(number), value(key(number)))?;
        if number % STEP_EVERY == 0 {
            subject.step()?;
        }
    }
    let mut all = Vec::new();
    for &phase in phases {
        let operations = match phase {
            Phase::Insert => work.records - work.records / 10,
            Phase::Remove => work.records,
            Phase::Scan | Phase::Ycsb('E') => (work.operations / 20).max(1),
            _ => work.operations,
        };
        let (done, _) = team::run(work.threads, |thread| {
            let (first, count) = team::share(operations, work.threads, thread);
            let start = Clock::now();
            let wrong = run_phase(subject, work, phase, thread, (first, count))?;
            Ok((start.elapsed(), wrong))
        })?;
        let wrong: u64 = done.iter().map(|(_, wrong)| wrong).sum();
        if wrong > operations / 100 {
            return Err(format!("{phase:?}: {wrong} of {operations} results are wrong").into());
        }
        let own_ns = done.iter().map(|(clock, _)| clock.own_ns).max().unwrap_or(1).max(1);
        let cpu_ns: u64 = done.iter().map(|(clock, _)| clock.cpu_ns).sum();
        let mops = operations as f64 * 1e3 / own_ns as f64;
        let took = Took { cpu_ns: cpu_ns as f64 / operations as f64, mops };
        all.push((phase, took));
    }
    Ok(all)
}

/// Makes the operations of one thread. Returns how many results were wrong.
fn run_phase(
    subject: &dyn Subject,
    work: &Work,
    phase: Phase,
    thread: usize,
    (first, count): (u64, u64),
) -> Fallible<u64> {
    let key = |number: u64| work.spread.key(number);
    let mut draw = Draw::new(work.seed ^ phase.number() << 32 ^ thread as u64);
    let mut wrong = 0;
    if let Some(mix) = phase.mix() {
        let thread = thread as u64;
        let operations = Operations::new(mix, work.records, thread, work.threads as u64, work.seed);
        // Numbers that no other phase inserts.
        let key = |number: u64| {
            key(if number < work.records { number } else { number + (phase.number() << 40) })
        };
        return run_mix(subject, operations.take(count as usize), key);
    }
    let mut found = Vec::new();
    for i in 0..count {
        let is_right = match phase {
            Phase::Insert => {
                let key = key(work.records / 10 + first + i);
                if i % STEP_EVERY == 0 && thread == 0 {
                    subject.step()?;
                }
                subject.insert(key, value(key))?
            }
            Phase::Hit => {
                let key = key(draw.below(work.records));
                // Updates store another value.
                subject.get(key)?.is_some_and(|found| found | 1 == value(key) | 1)
            }
            Phase::Miss => subject.get(key((1 << 50) + draw.bits() % (1 << 40)))?.is_none(),
            Phase::Update => {
                let key = key(draw.below(work.records));
                subject.update(key, value(key) ^ 1)?
            }
            Phase::Scan => {
                found.clear();
                subject.scan(key(draw.below(work.records)), 50, &mut found)?;
                !found.is_empty()
            }
            _ => subject.remove(key(first + i))?,
        };
        wrong += u64::from(!is_right);
    }
    Ok(wrong)
}

fn run_mix(
    subject: &dyn Subject,
    operations: impl Iterator<Item = Operation>,
    key: impl Fn(u64) -> u64,
) -> Fallible<u64> {
    let (mut wrong, mut found, mut inserts) = (0, Vec::new(), 0);
    for operation in operations {
        let is_right = match operation {
            Operation::Read(number) => subject.get(key(number))?.is_some(),
            Operation::Update(number) => subject.update(key(number), value(key(number)))?,
            Operation::Insert(number) => {
                inserts += 1;
                if inserts % STEP_EVERY == 0 {
                    subject.step()?;
                }
                subject.insert(key(number), value(key(number)))?
            }
            Operation::Scan(number, records) => {
                found.clear();
                subject.scan(key(number), records as usize, &mut found)?;
                !found.is_empty()
            }
            Operation::ReadModifyWrite(number) => {
                let before = subject.get(key(number))?;
                before.is_some() && subject.update(key(number), value(key(number)))?
            }
            Operation::Remove(number) => subject.remove(key(number))?,
        };
        wrong += u64::from(!is_right);
    }
    Ok(wrong)
}

/// A thread's time.
pub struct Clock {
    start: Instant,
    cpu_ns: u64,
    waited_ns: u64,
}

/// How much of it has passed.
#[derive(Debug, Clone, Copy)]
pub struct Elapsed {
    /// Without the time in which the thread could run but no processor was free.
    pub own_ns: u64,
    /// On a processor.
    pub cpu_ns: u64,
}

impl Clock {
    /// Reads the clocks of the calling thread.
    pub fn now() -> Clock {
        let waited_ns = waited_ns();
        Clock { cpu_ns: crate::usage::ThreadUsage::now().cpu_ns, waited_ns, start: Instant::now() }
    }

    /// Returns the time since.
    pub fn elapsed(&self) -> Elapsed {
        let wall = self.start.elapsed().as_nanos() as u64;
        let cpu_ns = crate::usage::ThreadUsage::now().cpu_ns - self.cpu_ns;
        let waited = waited_ns().saturating_sub(self.waited_ns);
        // A thread is never on a processor for less than it computed.
        Elapsed { own_ns: wall.saturating_sub(waited).max(cpu_ns).max(1), cpu_ns }
    }
}

/// The time for which the calling thread waited for a processor so far; 0 if the kernel does not
/// count it.
fn waited_ns() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}
