//! `floor`: what the memory accesses of operations take by themselves, in a pool's memory and without
//! any index. No index that makes these accesses can be faster on the machine.

use crate::Fallible;
use crate::keys::Draw;
use crate::limits;
use crate::progress::Progress;
use crate::report::{Report, Show, rounded};
use crate::run::Run;
use crate::scratch::Scratch;
use crate::systems::Setup;
use outlast::internals::index::phast::points::INSERT;
use outlast::internals::pmem::{
    FlushInstruction, FlushMode, LINE, MapAccess, Mapping, Memory, Real, Word,
};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::time::Instant;

/// Options of the command.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory, and the seed.
    pub setup: Setup,
    /// Size of the memory in MiB, a power of two.
    pub mib: u64,
    /// Number of operations in each measurement.
    pub operations: u64,
    /// Number of rounds. Results are medians.
    pub rounds: usize,
}

/// The accesses of one operation.
#[derive(Debug, Clone, Copy)]
struct Accesses {
    name: &'static str,
    /// Lines read one after another: each names the next.
    chain: u32,
    /// Lines read at once.
    at_once: u32,
    /// Lines stored and flushed.
    stored: u32,
    /// Whether there is a fence after each of them, or only one after the last.
    fence_each: bool,
}

const fn accesses(
    name: &'static str,
    (chain, at_once): (u32, u32),
    stored: u32,
    fence_each: bool,
) -> Accesses {
    Accesses { name, chain, at_once, stored, fence_each }
}

/// The kinds of operations, in the order of the report.
const ALL: [Accesses; 11] = [
    accesses("1 line read", (0, 1), 0, false),
    accesses("2 lines read at once", (0, 2), 0, false),
    accesses("2 lines read, one names the other", (2, 0), 0, false),
    accesses("3 lines read, each names the next", (3, 0), 0, false),
    accesses("4 lines read, each names the next", (4, 0), 0, false),
    accesses("1 line stored, 1 fence", (0, 0), 1, false),
    accesses("2 lines stored, 1 fence", (0, 0), 2, false),
    accesses("2 lines stored, 2 fences", (0, 0), 2, true),
    accesses("16 lines stored, 1 fence", (0, 0), 16, false),
    accesses("3 lines read in a chain, 2 stored, 1 fence", (3, 0), 2, false),
    accesses("3 lines read in a chain, 2 stored, 2 fences", (3, 0), 2, true),
];

/// One result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The accesses of an operation.
    pub accesses: String,
    /// Nanoseconds of one operation.
    pub ns: f64,
    /// Nanoseconds in the fastest and in the slowest round.
    pub ns_min: f64,
    /// See `ns_min`.
    pub ns_max: f64,
    /// Million operations a second.
    pub mops: f64,
}

/// The memory that is measured.
struct Lines {
    memory: Memory<Real>,
    /// Their number less one, a mask.
    mask: u64,
    _mapping: Mapping,
    _dir: Scratch,
}

impl Lines {
    fn create(options: &Options) -> Fallible<Lines> {
        let dir = Scratch::create(&options.setup.dir)?;
        let bytes = options.mib << 20;
        let path = dir.path().join("memory");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        file.set_len(bytes)?;
        let mapping = Mapping::file(file, MapAccess::ReadWrite, bytes, bytes)?;
        mapping.fill(0..bytes)?;
        mapping.populate(0..bytes);
        mapping.collapse(0..bytes);
        let seam = Real::new(FlushMode::Lines(FlushInstruction::detect()));
        // SAFETY: the mapping has this many bytes, and is kept as long as the memory.
        let memory = unsafe {
            Memory::new(mapping.base(), mapping.shadow(), mapping.region().start(), bytes, seam)
        };
        Ok(Lines { memory, mask: bytes / LINE - 1, _mapping: mapping, _dir: dir })
    }

    /// Returns the words of a line.
    #[inline(always)]
    fn line(&self, number: u64) -> &[Word] {
        let words = self.memory.words((number & self.mask) * LINE, LINE);
        words.expect("the mask keeps it inside")
    }

    /// Makes the accesses of `operations` operations. Returns the nanoseconds that one took.
    #[inline(never)]
    fn measure(&self, accesses: Accesses, operations: u64, draw: &mut Draw) -> f64 {
        let began = Instant::now();
        let mut sum = 0u64;
        for _ in 0..operations {
            // All words are 0, which the processor does not know before it has read them.
            let mut named = 0;
            for _ in 0..accesses.chain {
                named = self.memory.load(&self.line(draw.bits() ^ named)[0]);
            }
            for _ in 0..accesses.at_once {
                sum |= self.memory.load(&self.line(draw.bits())[0]);
            }
            for _ in 0..accesses.stored {
                let line = self.line(draw.bits() ^ named);
                self.memory.store(&line[1], 1, &INSERT);
                self.memory.flush_words(line, &INSERT);
                if accesses.fence_each {
                    self.memory.fence(&INSERT);
                }
            }
            if accesses.stored > 0 && !accesses.fence_each {
                self.memory.fence(&INSERT);
            }
            sum |= named;
        }
        assert_eq!(std::hint::black_box(sum), 0, "nothing has stored to these words");
        began.elapsed().as_nanos() as f64 / operations as f64
    }
}

/// Measures all accesses, and prints a row for each.
///
/// # Errors
/// If an option is invalid, or if the memory cannot be mapped.
pub fn run(options: &Options, report: &mut Report) -> Fallible<Vec<Row>> {
    options.setup.check()?;
    limits::range("mib", options.mib, 1..=1 << 20)?;
    if !options.mib.is_power_of_two() {
        return Err(limits::refused(format!("--mib {}: not a power of two", options.mib)));
    }
    limits::range("operations", options.operations, 1..=limits::RECORDS_MAX)?;
    limits::range("rounds", options.rounds as u64, 1..=limits::ROUNDS_MAX as u64)?;
    #[derive(Serialize)]
    struct Own {
        mib: u64,
        operations: u64,
        rounds: usize,
    }
    let run = Run::on_files("floor", &options.setup, &[options.setup.scheme])?;
    let Options { mib, operations, rounds, .. } = *options;
    report.run(&run, &Own { mib, operations, rounds })?;
    let lines = Lines::create(options)?;
    let mut draw = Draw::new(options.setup.seed);
    let mut found = vec![Vec::new(); ALL.len()];
    let progress = Progress::new((rounds * ALL.len()) as u64);
    for round in 1..=rounds {
        for (accesses, found) in ALL.iter().zip(&mut found) {
            progress.next(&format!("round {round} of {rounds}: {}", accesses.name));
            found.push(lines.measure(*accesses, operations, &mut draw));
            progress.done(1);
        }
    }
    drop(progress);
    let mut rows = Vec::new();
    for (accesses, mut ns) in ALL.iter().zip(found) {
        ns.sort_by(f64::total_cmp);
        let median = ns[ns.len() / 2];
        let row = Row {
            accesses: accesses.name.into(),
            ns: rounded(median, 1),
            ns_min: rounded(ns[0], 1),
            ns_max: rounded(ns[ns.len() - 1], 1),
            mops: rounded(1e3 / median, 3),
        };
        report.row("floor", &row)?;
        rows.push(row);
    }
    report.table(
        "floor",
        &[
            ("accesses of an operation", "/accesses", Show::Text),
            ("ns", "/ns", Show::Decimal(1)),
            ("min", "/ns_min", Show::Decimal(1)),
            ("max", "/ns_max", Show::Decimal(1)),
            ("Mops", "/mops", Show::Decimal(2)),
        ],
    )?;
    Ok(rows)
}
