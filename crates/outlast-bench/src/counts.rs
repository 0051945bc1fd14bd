//! `counts`: what operations cost in persistent memory, counted and not timed.
//!
//! The library runs with the seam that records all accesses ([`Traced`]), on a pool in the
//! process's memory. The counts do not depend on the machine, and are never mixed with
//! measurements.

use crate::Fallible;
use crate::form::{Hand, Reads};
use crate::keys::{ABSENT, Draw, Keys, value};
use crate::limits;
use crate::report::{Report, Show, rounded};
use crate::run::Run;
use crate::systems::{NodeSizes, Setup, map_options};
use outlast::internals::db::store::{AnyIndex, OpenMap, Store};
use outlast::internals::index::{Bytes, Change, Growth, Inline, Previous};
use outlast::internals::pmem::{Access, Alive, Event, MediumKind, Traced};
use outlast::internals::pool::backing::{Backing, Heap};
use outlast::internals::pool::core::{Core, CoreOptions};
use outlast::{RecordForm, Scheme};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::sync::Arc;

/// Options of the command.
#[derive(Debug, Clone)]
pub struct Options {
    /// The scheme.
    pub scheme: Scheme,
    /// The record form.
    pub form: RecordForm,
    /// Key size in bytes.
    pub key_bytes: usize,
    /// Value size in bytes.
    pub value_bytes: usize,
    /// Records inserted before anything is counted.
    pub records: u64,
    /// Number of operations of each kind.
    pub operations: u64,
    /// Stash buckets per Dash segment.
    pub stash_buckets: u32,
    /// Sizes of an ordered map's nodes.
    pub nodes: NodeSizes,
    /// Seed of the keys and the hash function.
    pub seed: u64,
}

impl Options {
    fn setup(&self) -> Setup {
        let Options { scheme, form, key_bytes, value_bytes, stash_buckets, nodes, seed, .. } =
            *self;
        let plain = Setup::plain(scheme, form, "".into(), seed);
        Setup { key_bytes, value_bytes, stash_buckets, nodes, ..plain }
    }

    fn check(&self) -> Fallible {
        self.setup().check_form()?;
        limits::range("records", self.records, 1..=limits::RECORDS_MAX)?;
        limits::range("operations", self.operations, 1..=self.records)?;
        limits::fits_memory(self.records + self.operations, self.key_bytes + self.value_bytes)
    }

    /// Checks the options, and prints the row that describes the run.
    pub(crate) fn run(&self, command: &'static str, report: &mut Report) -> Fallible {
        self.check()?;
        #[derive(Serialize)]
        struct Own {
            records: u64,
            operations: u64,
        }
        let run = Run::in_memory(command, &self.setup(), "the recorder, as persistent memory");
        let run = Run { flush: "every flush counted".into(), ..run };
        report.run(&run, &Own { records: self.records, operations: self.operations })
    }
}

/// The cost of one kind of operation: means over the operations counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The kind. `insert` includes splits and doublings; `insert_simple` leaves out inserts that
    /// caused one.
    pub operation: String,
    /// The record form.
    pub record: String,
    /// Number of operations counted.
    pub operations: u64,
    /// Lines flushed.
    pub lines_flushed: f64,
    /// Fences.
    pub fences: f64,
    /// Distinct lines of the pool that were read.
    pub lines_read: f64,
    /// Distinct lines that were stored to, including those that are never flushed.
    pub lines_stored: f64,
    /// Distinct 256-byte blocks of the medium that were read.
    pub blocks_read: f64,
    /// Distinct 256-byte blocks that contain flushed lines.
    pub blocks_flushed: f64,
    /// The most lines that a single operation flushed.
    pub lines_flushed_max: u64,
    /// Number of splits among the operations.
    pub splits: u64,
    /// Number of doublings among the operations.
    pub doublings: u64,
}

/// Number of inserts between two times at which background work is finished.
const SETTLED_EVERY: u64 = 256;
/// Bytes per line.
const LINE: u64 = 64;
/// The size, in bytes, of the unit in which the medium reads and writes.
pub const BLOCK: u64 = 256;

/// The cost of one operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    lines_flushed: u64,
    fences: u64,
    lines_read: u64,
    lines_stored: u64,
    blocks_read: u64,
    blocks_flushed: u64,
}

impl Cost {
    /// Sums up the events of one operation.
    pub fn of(events: &[Event]) -> Cost {
        let mut cost = Cost::default();
        let (mut read, mut stored) = (HashSet::new(), HashSet::new());
        let mut blocks_flushed = HashSet::new();
        for event in events {
            match &event.access {
                Access::Load { offset, .. } => {
                    read.insert(offset / LINE);
                }
                Access::Store { offset, .. } => {
                    stored.insert(offset / LINE);
                }
                Access::CompareExchange { offset, exchanged, .. } => {
                    read.insert(offset / LINE);
                    if *exchanged {
                        stored.insert(offset / LINE);
                    }
                }
                Access::Flush { offset, bytes } => {
                    let lines = offset / LINE..(offset + bytes).div_ceil(LINE);
                    cost.lines_flushed += lines.end - lines.start;
                    blocks_flushed.extend(lines.map(|line| line * LINE / BLOCK));
                }
                Access::Fence => cost.fences += 1,
                Access::Dram | Access::Mark(_) => {}
            }
        }
        let blocks_read: HashSet<u64> = read.iter().map(|line| line * LINE / BLOCK).collect();
        cost.lines_read = read.len() as u64;
        cost.lines_stored = stored.len() as u64;
        cost.blocks_read = blocks_read.len() as u64;
        cost.blocks_flushed = blocks_flushed.len() as u64;
        cost
    }
}

/// A map whose accesses are recorded.
struct Recorded {
    seam: Traced,
    map: Arc<OpenMap>,
    hand: Hand,
    // The last field, so that the store is dropped after the map.
    store: Arc<Store<Traced>>,
}

/// A change of the record of a key. Values are given as words, in both record forms.
#[derive(Clone, Copy)]
enum Do {
    Insert(u64),
    Update(u64),
    Remove,
}

impl Recorded {
    fn create(options: &Options) -> Fallible<Recorded> {
        let seam = Traced::new();
        let record = (options.key_bytes + options.value_bytes) as u64 + 64;
        let capacity = (options.records + options.operations) * (record * 2 + 64) + (256 << 20);
        let core_options = CoreOptions {
            medium: MediumKind::Bytes,
            initial_size: 2 << 20,
            identity: Some((options.seed, 3)),
            ..CoreOptions::default()
        };
        let backing = Backing::Heap(Heap::new(&[], capacity.next_multiple_of(2 << 20), 0));
        let core = Core::create(backing, seam.clone(), core_options)?;
        let store = Store::with_alive(core, Arc::new(Alive::new()?))?;
        let schema = match options.form {
            RecordForm::Inline => "u64",
            RecordForm::Bytes => "bytes",
        };
        let request = map_options(&options.setup()).request("bench", options.form, [schema; 2])?;
        let map = store.map(&request)?;
        let hand = Hand::new(options.key_bytes, options.value_bytes, Reads::Owned);
        Ok(Recorded { seam, map, hand, store })
    }

    fn growth(&self) -> Growth {
        match self.map.index() {
            AnyIndex::Inline(index) => index.growth(),
            AnyIndex::Bytes(index) => index.growth(),
        }
    }

    /// Does the background work that there is. It is not counted: users have a thread for it.
    fn settle(&self) -> Fallible {
        while self.store.step()? {}
        Ok(())
    }

    /// Makes a change. Returns whether it applied.
    fn change(&mut self, key: u64, what: Do) -> Fallible<bool> {
        let word = match what {
            Do::Insert(value) | Do::Update(value) => value,
            Do::Remove => 0,
        };
        Ok(match self.map.index() {
            AnyIndex::Inline(index) => {
                let change = match what {
                    Do::Insert(_) => Change::<Inline>::Insert(word),
                    Do::Update(_) => Change::Update(word),
                    Do::Remove => Change::Remove,
                };
                index.change(key, change, Previous::UNWANTED)?.applied
            }
            AnyIndex::Bytes(index) => {
                let (key, value) = self.hand.pair_bytes(key, word);
                let change = match what {
                    Do::Insert(_) => Change::<Bytes>::Insert(value),
                    Do::Update(_) => Change::Update(value),
                    Do::Remove => Change::Remove,
                };
                index.change(key, change, Previous::UNWANTED)?.applied
            }
        })
    }

    fn is_there(&mut self, key: u64) -> Fallible<bool> {
        Ok(match self.map.index() {
            AnyIndex::Inline(index) => index.get(key)?.is_some(),
            AnyIndex::Bytes(index) => index.get(self.hand.key_bytes(key))?.is_some(),
        })
    }

    /// Runs one operation, and counts what it costs and how the map grew.
    fn count(&mut self, operation: impl FnOnce(&mut Self) -> Fallible<bool>) -> Fallible<Counted> {
        let before = self.growth();
        self.seam.start(true);
        let applied = operation(self)?;
        let events = self.seam.take();
        let after = self.growth();
        Ok(Counted {
            applied,
            cost: Cost::of(&events),
            splits: after.splits - before.splits,
            doublings: after.doublings - before.doublings,
        })
    }
}

struct Counted {
    applied: bool,
    cost: Cost,
    splits: u64,
    doublings: u64,
}

fn row(options: &Options, operation: &str, counted: &[&Counted]) -> Row {
    let count = counted.len().max(1) as f64;
    let mean = |pick: fn(&Cost) -> u64| {
        rounded(counted.iter().map(|c| pick(&c.cost)).sum::<u64>() as f64 / count, 3)
    };
    Row {
        operation: operation.into(),
        record: options.form.to_string(),
        operations: counted.len() as u64,
        lines_flushed: mean(|c| c.lines_flushed),
        fences: mean(|c| c.fences),
        lines_read: mean(|c| c.lines_read),
        lines_stored: mean(|c| c.lines_stored),
        blocks_read: mean(|c| c.blocks_read),
        blocks_flushed: mean(|c| c.blocks_flushed),
        lines_flushed_max: counted.iter().map(|c| c.cost.lines_flushed).max().unwrap_or(0),
        splits: counted.iter().map(|c| c.splits).sum(),
        doublings: counted.iter().map(|c| c.doublings).sum(),
    }
}

/// Counts the operations. Returns one row per kind.
///
/// # Errors
/// If an option is invalid, or if an operation fails or returns a wrong result.
pub fn count(options: &Options) -> Fallible<Vec<Row>> {
    options.check()?;
    let keys = Keys::new(options.seed);
    let mut map = Recorded::create(options)?;
    for number in 0..options.records {
        let key = keys.key(number);
        map.change(key, Do::Insert(value(key, 0)))?;
        if number.is_multiple_of(SETTLED_EVERY) {
            map.settle()?;
        }
    }
    map.settle()?;
    let mut rows = Vec::new();
    let mut draw = Draw::new(options.seed);
    let mut all = |name: &str,
                   expected: bool,
                   operation: &mut dyn FnMut(&mut Recorded, u64) -> Fallible<Counted>|
     -> Fallible<Vec<Counted>> {
        let counted: Vec<Counted> =
            (0..options.operations).map(|i| operation(&mut map, i)).collect::<Fallible<_>>()?;
        if counted.iter().any(|c| c.applied != expected) {
            return Err(format!("wrong answer in {name}").into());
        }
        rows.push(row(options, name, &counted.iter().collect::<Vec<_>>()));
        Ok(counted)
    };
    let mut present = || keys.key(draw.below(options.records));
    all("get_hit", true, &mut |map, _| {
        let key = present();
        map.count(|map| map.is_there(key))
    })?;
    all("get_miss", false, &mut |map, i| map.count(|map| map.is_there(keys.key(ABSENT + i))))?;
    all("update", true, &mut |map, i| {
        let key = present();
        map.count(|map| map.change(key, Do::Update(value(key, i as u8))))
    })?;
    let inserts = all("insert", true, &mut |map, i| {
        let key = keys.key(options.records + i);
        let counted = map.count(|map| map.change(key, Do::Insert(value(key, 0))));
        if i.is_multiple_of(SETTLED_EVERY) {
            map.settle()?;
        }
        counted
    })?;
    all("remove", true, &mut |map, i| map.count(|map| map.change(keys.key(i), Do::Remove)))?;
    let simple: Vec<&Counted> =
        inserts.iter().filter(|c| c.splits == 0 && c.doublings == 0).collect();
    rows.push(row(options, "insert_simple", &simple));
    Ok(rows)
}

/// Counts the operations and prints the rows.
///
/// # Errors
/// Those of [`count`]; also if the rows cannot be printed.
pub fn run(options: &Options, report: &mut Report) -> Fallible<Vec<Row>> {
    options.run("counts", report)?;
    let rows = count(options)?;
    for row in &rows {
        report.row("counts", row)?;
    }
    report.table("counts", COLUMNS)?;
    Ok(rows)
}

const COLUMNS: &[(&str, &str, Show)] = &[
    ("operation", "/operation", Show::Text),
    ("record", "/record", Show::Text),
    ("lines flushed", "/lines_flushed", Show::Decimal(2)),
    ("max", "/lines_flushed_max", Show::Count),
    ("fences", "/fences", Show::Decimal(2)),
    ("lines read", "/lines_read", Show::Decimal(2)),
    ("lines stored", "/lines_stored", Show::Decimal(2)),
    ("blocks read", "/blocks_read", Show::Decimal(2)),
    ("blocks flushed", "/blocks_flushed", Show::Decimal(2)),
    ("splits", "/splits", Show::Count),
    ("doublings", "/doublings", Show::Count),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_blocks_are_distinct_ones() {
        let event = |access| Event { thread: 0, point: None, access };
        let load = |offset| event(Access::Load { offset, value: 0 });
        let events = [
            load(0),
            load(8),
            load(64),
            load(256),
            event(Access::Store { offset: 256, value: 1, nontemporal: false }),
            event(Access::Flush { offset: 250, bytes: 16 }),
            event(Access::Flush { offset: 256, bytes: 8 }),
            event(Access::Fence),
        ];
        let expected = Cost {
            lines_flushed: 3,
            fences: 1,
            lines_read: 3,
            lines_stored: 1,
            blocks_read: 2,
            blocks_flushed: 2,
        };
        assert_eq!(Cost::of(&events), expected);
    }
}
