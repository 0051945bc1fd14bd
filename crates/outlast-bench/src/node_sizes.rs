//! `node-sizes`: the effect of an ordered map's node sizes on inserts and lookups (PhaST, TPDS
//! 2022, Figures 13 and 14), with counts that explain it.
//!
//! In each round, maps of all sizes take turns, and each map's speed is divided by that of the
//! default sizes in the same round. Counts come from a smaller map of the same sizes, with every
//! flush recorded.

use crate::counts;
use crate::keys::{Draw, Keys, value};
use crate::limits;
use crate::progress::Progress;
use crate::report::{Report, Show, median, rounded};
use crate::run::Run;
use crate::scratch::Scratch;
use crate::systems::{NodeSizes, Setup, create_pool, map_options};
use crate::team::{self, share};
use crate::{Failure, Fallible};
use outlast::Map;
use serde::{Deserialize, Serialize};

/// Options of the command.
#[derive(Debug, Clone)]
pub struct Options {
    /// The setup of the pools, except for the node sizes.
    pub setup: Setup,
    /// Leaves per inner node, one map for each number; with leaves of the default size.
    pub node_leaves: Vec<u32>,
    /// Pairs per leaf, one map for each number; with inner nodes of the default size.
    pub leaf_slots: Vec<u32>,
    /// Number of records per map.
    pub records: u64,
    /// Number of threads that share the records.
    pub threads: usize,
    /// Number of rounds.
    pub rounds: usize,
}

/// Number of records, at the end, of the maps in which flushes are counted.
const COUNTED: u64 = 200_000;

impl Options {
    fn check(&self) -> Fallible {
        self.setup.check()?;
        self.setup.check_records(self.records, 1000)?;
        limits::threads(&[self.threads])?;
        limits::range("rounds", self.rounds, 1..=limits::ROUNDS_MAX)?;
        limits::each_once("node-leaves", &self.node_leaves)?;
        limits::each_once("leaf-slots", &self.leaf_slots)?;
        for &leaves in &self.node_leaves {
            limits::range("node-leaves", leaves, 4..=1024)?;
        }
        for &slots in &self.leaf_slots {
            limits::range("leaf-slots", slots, 4..=56)?;
            if !slots.is_multiple_of(4) {
                return Err(limits::refused(format!("--leaf-slots {slots}: a multiple of 4")));
            }
        }
        Ok(())
    }

    /// Returns all sizes to measure, the default ones first.
    fn sizes(&self) -> Vec<NodeSizes> {
        let usual = NodeSizes::default();
        let nodes = self.node_leaves.iter().map(|&node_leaves| NodeSizes { node_leaves, ..usual });
        let leaves = self.leaf_slots.iter().map(|&leaf_slots| NodeSizes { leaf_slots, ..usual });
        let others = nodes.chain(leaves).filter(|&sizes| sizes != usual);
        [usual].into_iter().chain(others).collect()
    }
}

/// The results for maps with one choice of node sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The sizes.
    #[serde(flatten)]
    pub sizes: NodeSizes,
    /// Million inserts per second, starting from an empty map; median of the rounds.
    pub insert_mops: f64,
    /// Insert throughput relative to the default sizes; median of the rounds' ratios.
    pub insert_ratio: f64,
    /// Million lookups of present keys per second.
    pub get_mops: f64,
    /// Lookup throughput relative to the default sizes; median of the rounds' ratios.
    pub get_ratio: f64,
    /// Leaf splits per thousand inserts.
    pub leaf_splits: f64,
    /// Inner node splits per thousand inserts.
    pub node_splits: f64,
    /// Lines flushed per insert, including those of splits, in a map of 200,000 records.
    pub lines_flushed: f64,
    /// Fences per insert, in the same map.
    pub fences: f64,
    /// Records per leaf slot at the end.
    pub load_factor: f64,
    /// Bytes of DRAM per record.
    pub dram: f64,
}

/// The results of one turn of a map.
struct Turn {
    insert_mops: f64,
    get_mops: f64,
    splits: u64,
    node_splits: u64,
    load_factor: f64,
    dram_bytes: u64,
}

/// Measures maps of all sizes, and prints a row for each.
///
/// # Errors
/// If an option is invalid, or if an operation fails or returns a wrong result.
pub fn run(options: &Options, report: &mut Report) -> Fallible<Vec<Row>> {
    options.check()?;
    #[derive(Serialize)]
    struct Own {
        records: u64,
        threads: usize,
        rounds: usize,
    }
    let run = Run::on_files("node-sizes", &options.setup, &[options.setup.scheme])?;
    let Options { records, threads, rounds, .. } = *options;
    report.run(&run, &Own { records, threads, rounds })?;
    let sizes = options.sizes();
    let progress = Progress::new(2 * records * (rounds * sizes.len()) as u64);
    let mut turns: Vec<Vec<Turn>> = Vec::new();
    for round in 0..rounds {
        let mut of_round = Vec::new();
        for sizes in &sizes {
            let NodeSizes { leaf_slots, node_leaves } = sizes;
            progress.next(&format!(
                "round {} of {rounds}: {node_leaves} leaves of {leaf_slots}",
                round + 1
            ));
            of_round.push(turn(options, *sizes)?);
            progress.done(2 * records);
        }
        turns.push(of_round);
    }
    drop(progress);
    let mut rows = Vec::new();
    for (index, &sizes) in sizes.iter().enumerate() {
        let row = row(options, sizes, &turns, index)?;
        report.row("sizes", &row)?;
        rows.push(row);
    }
    report.note("Ratios: to the map of the usual sizes, in the same round; medians of rounds.")?;
    report.table(
        "sizes",
        &[
            ("leaves of a node", "/node_leaves", Show::Count),
            ("pairs of a leaf", "/leaf_slots", Show::Count),
            ("insert Mops", "/insert_mops", Show::Decimal(2)),
            ("/ usual", "/insert_ratio", Show::Decimal(2)),
            ("get Mops", "/get_mops", Show::Decimal(2)),
            ("/ usual", "/get_ratio", Show::Decimal(2)),
            ("leaf splits, of 1000", "/leaf_splits", Show::Decimal(1)),
            ("node splits, of 1000", "/node_splits", Show::Decimal(2)),
            ("lines flushed", "/lines_flushed", Show::Decimal(2)),
            ("fences", "/fences", Show::Decimal(2)),
            ("load", "/load_factor", Show::Decimal(2)),
            ("DRAM B/rec", "/dram", Show::Decimal(2)),
        ],
    )?;
    Ok(rows)
}

fn turn(options: &Options, sizes: NodeSizes) -> Fallible<Turn> {
    let setup = Setup { nodes: sizes, ..options.setup.clone() };
    let dir = Scratch::create(&setup.dir)?;
    let pool = create_pool(&setup, &dir.path().join("pool"))?;
    let map: Map<u64, u64> = pool.map_with("bench", &map_options(&setup))?;
    let keys = Keys::new(setup.seed);
    let Options { records, threads, .. } = *options;
    let before = map.stats()?;
    let (_, inserted) = team::run(threads, |thread| {
        let (first, count) = share(records, threads, thread);
        for number in first..first + count {
            let key = keys.key(number);
            if !map.insert(&key, &value(key, 0))? {
                return Err(Failure::from(format!("key {key} was there")));
            }
        }
        Ok(())
    })?;
    let after = map.stats()?;
    let (_, looked_up) = team::run(threads, |thread| {
        let mut draw = Draw::new(setup.seed + thread as u64);
        let (_, count) = share(records, threads, thread);
        for _ in 0..count {
            let key = keys.key(draw.below(records));
            if map.get(&key)? != Some(value(key, 0)) {
                return Err(Failure::from(format!("wrong answer for key {key}")));
            }
        }
        Ok(())
    })?;
    let mops = |taken: team::Taken| records as f64 / taken.time.as_secs_f64().max(1e-9) / 1e6;
    Ok(Turn {
        insert_mops: mops(inserted),
        get_mops: mops(looked_up),
        splits: after.splits - before.splits,
        node_splits: after.doublings - before.doublings,
        load_factor: records as f64 / after.slots as f64,
        dram_bytes: after.dram_bytes,
    })
}

/// Builds the row of the sizes with this index. In each round, the turn of these sizes has the same
/// index; the default sizes have index 0.
fn row(options: &Options, sizes: NodeSizes, turns: &[Vec<Turn>], index: usize) -> Fallible<Row> {
    let of_rounds = |of: &dyn Fn(&Turn) -> f64| {
        let all: Vec<f64> = turns.iter().map(|round| of(&round[index])).collect();
        median(&all).ok_or("no rounds")
    };
    let ratio = |of: &dyn Fn(&Turn) -> f64| {
        let all: Vec<f64> = turns.iter().map(|round| of(&round[index]) / of(&round[0])).collect();
        median(&all).ok_or("no rounds")
    };
    let setup = &options.setup;
    let counted = counts::count(&counts::Options {
        scheme: setup.scheme,
        form: setup.form,
        key_bytes: setup.key_bytes,
        value_bytes: setup.value_bytes,
        records: COUNTED - COUNTED / 4,
        operations: COUNTED / 4,
        stash_buckets: setup.stash_buckets,
        nodes: sizes,
        seed: setup.seed,
    })?;
    let insert = counted.iter().find(|row| row.operation == "insert").ok_or("no inserts")?;
    let thousands = options.records as f64 / 1000.0;
    Ok(Row {
        sizes,
        insert_mops: rounded(of_rounds(&|turn| turn.insert_mops)?, 3),
        insert_ratio: rounded(ratio(&|turn| turn.insert_mops)?, 3),
        get_mops: rounded(of_rounds(&|turn| turn.get_mops)?, 3),
        get_ratio: rounded(ratio(&|turn| turn.get_mops)?, 3),
        leaf_splits: rounded(of_rounds(&|turn| turn.splits as f64)? / thousands, 2),
        node_splits: rounded(of_rounds(&|turn| turn.node_splits as f64)? / thousands, 3),
        lines_flushed: insert.lines_flushed,
        fences: insert.fences,
        load_factor: rounded(of_rounds(&|turn| turn.load_factor)?, 3),
        dram: rounded(of_rounds(&|turn| turn.dram_bytes as f64)? / options.records as f64, 2),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Format;
    use outlast::{RecordForm, Scheme};

    fn options(node_leaves: &[u32], leaf_slots: &[u32]) -> Options {
        Options {
            setup: Setup::plain(Scheme::Phast, RecordForm::Inline, std::env::temp_dir(), 1),
            node_leaves: node_leaves.into(),
            leaf_slots: leaf_slots.into(),
            records: 5000,
            threads: 2,
            rounds: 1,
        }
    }

    #[test]
    fn smaller_leaves_are_split_more_often_and_flush_more() {
        let options = options(&[4], &[8, 56]);
        let rows = run(&options, &mut Report::new(Format::Json)).unwrap();
        let [usual, small_nodes, small_leaves] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!(usual.sizes, NodeSizes::default());
        assert_eq!(usual.insert_ratio, 1.0);
        assert!(small_nodes.node_splits > usual.node_splits, "{rows:?}");
        assert!(small_leaves.leaf_splits > 3.0 * usual.leaf_splits, "{rows:?}");
        assert!(small_leaves.lines_flushed > usual.lines_flushed, "{rows:?}");
        assert!(usual.lines_flushed > 2.0, "{rows:?}");
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        for (nodes, leaves) in
            [(&[2][..], &[56][..]), (&[128], &[60]), (&[128], &[7]), (&[8, 8], &[56])]
        {
            assert!(options(nodes, leaves).check().unwrap_err().is::<limits::Refused>());
        }
    }
}
