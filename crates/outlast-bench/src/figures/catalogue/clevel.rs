//! clevel hashing.

use super::shared::{MODELLED, by_threads, modelled_phases};
use super::{Figure, Paper, Way, claim, less, more};
use crate::Fallible;
use crate::figures::claim::{Is, Test};
use crate::figures::experiments::clevel_slots::simulate;
use crate::figures::experiments::growth::{at_resizes, load_factors};
use crate::figures::experiments::history::races;
use crate::figures::lab::{Lab, Runs, Scale, Timed};
use crate::figures::panel::Panel;
use crate::figures::scaling::Scaling;
use crate::figures::subject::{System, plain_name};
use crate::figures::turns::Phase;
use outlast_peers::System as PeerSystem;

/// The modules of Optane of the paper's machine.
const MODULES: f64 = 6.0;
/// The threads of its experiments.
const THREADS: f64 = 36.0;
// Its authors ported the others to pointers to records (4.1).
const ALL: &[&str] = &[
    "Level, ported",
    "Level-TBB, ported",
    "CCEH, ported",
    "CCEH-TBB, ported",
    "cmap, ported",
    "cmap-TBB, ported",
    "P-CLHT, ported",
    "clevel, ported",
];
const FIVE: &[&str] =
    &["Level, ported", "CCEH, ported", "cmap, ported", "P-CLHT, ported", "clevel, ported"];
const RECORDS: &str = "Keys have 16 bytes and values 8, not 15 each. As in the paper, all systems have keys \
                       behind pointers, but the peers keep the value in the slot and take no time in an \
                       allocator.";

/// The rows.
pub(super) const FIGURES: &[Figure] = &[
    Figure {
        id: "clevel-3",
        paper: Paper::Clevel,
        place: "Figure 3",
        section: "3.1",
        title: "Load factor at each resize, by slots a bucket",
        systems: &["Level", "clevel"],
        workload: "inserts; 4, 8 and 16 slots a bucket",
        way: Way::Counts,
        runs: &[],
        claims: &[
            less(
                "peaks",
                "with 4 slots, clevel fills less than Level",
                ("clevel", "Level", "4"),
                None,
            ),
            less(
                "peaks",
                "with 8 slots, clevel fills less than Level",
                ("clevel", "Level", "8"),
                None,
            ),
            claim(
                "peaks",
                "clevel with 8 slots fills to 80%",
                Test::Value("clevel", "8"),
                Is::AtLeast(0.75),
                Some(0.80),
            ),
            claim(
                "peaks",
                "more slots fill further",
                Test::Across("clevel", "16", "4"),
                Is::AtLeast(1.0),
                None,
            ),
        ],
        draw: Some(figure_3),
        note: "clevel by a simulation of its placement, because what ships has 8 slots; the curve of \
               what ships is beside it. It extends its chains before it resizes, and fills further.",
    },
    Figure {
        id: "clevel-5",
        paper: Paper::Clevel,
        place: "Figure 5",
        section: "4.2",
        title: "Throughput by slots a bucket, normalized to 8 slots",
        systems: &["clevel"],
        workload: "zipfian, 15 + 15 bytes, 16 M records, 36 threads",
        way: Way::TimeModel,
        runs: &[],
        claims: &[
            more("", "16 slots insert faster than 8", ("16 slots", "8 slots", "insert"), None),
            less("", "4 slots insert slower than 8", ("4 slots", "8 slots", "insert"), None),
            less("", "16 slots search slower", ("16 slots", "8 slots", "search (P)"), None),
            less("", "16 slots miss slower", ("16 slots", "8 slots", "search (N)"), None),
            less("", "16 slots update slower", ("16 slots", "8 slots", "update"), None),
            less("", "16 slots delete slower", ("16 slots", "8 slots", "delete"), None),
        ],
        draw: Some(figure_5),
        note: "A simulation counts lines, and the time model turns them into time; nothing of this \
               figure is measured. An insert looks for its key first, in four buckets, which have two lines \
               each with 16 slots. The paper explains its gain by fewer resizes; what a resize costs other \
               threads is left out.",
    },
    Figure {
        id: "clevel-6",
        paper: Paper::Clevel,
        place: "Figure 6",
        section: "4.2",
        title: "Load factor by records inserted",
        systems: &["Level", "CCEH", "cmap", "P-CLHT", "clevel"],
        workload: "inserts, a sample every 10 K",
        way: Way::Counts,
        runs: &[],
        claims: &[
            claim("", "CCEH fills to 45%", Test::Peak("CCEH"), Is::Between(0.3, 0.52), Some(0.45)),
            claim("", "P-CLHT to 84%", Test::Peak("P-CLHT"), Is::Between(0.75, 0.92), Some(0.84)),
            claim("", "clevel to 86%", Test::Peak("clevel"), Is::AtLeast(0.80), Some(0.86)),
            claim("", "Level as far", Test::Peak("Level"), Is::AtLeast(0.80), Some(0.86)),
            claim("", "cmap is always full", Test::Low("cmap"), Is::AtLeast(1.0), Some(1.0)),
        ],
        draw: Some(|lab, figure| {
            let records = lab.scale.records();
            let mut panel = Panel::lines("", "load factor", "records inserted", "records per slot");
            for &name in figure.systems {
                lab.say(&format!("{name}, load factors"));
                let samples = load_factors(&System::named(name), records, records / 100)?;
                panel.add(name, false, samples);
            }
            Ok(vec![panel])
        }),
        note: "clevel's background work is finished before each sample.",
    },
    Figure {
        id: "clevel-7",
        paper: Paper::Clevel,
        place: "Figure 7",
        section: "4.3",
        title: "Mean latency of a search with 36 threads",
        systems: ALL,
        workload: "zipfian, 15 + 15 bytes, 16 M records, 36 threads",
        way: Way::TimeModel,
        runs: MODELLED,
        claims: &[
            claim(
                "model",
                "clevel finds present keys fastest, by 1.2 at least",
                Test::AgainstLeast("clevel", "search (P)"),
                Is::AtMost(1.0),
                Some(1.0 / 1.2),
            ),
            claim(
                "model",
                "clevel finds absent keys fastest, by 1.4 at least",
                Test::AgainstLeast("clevel", "search (N)"),
                Is::AtMost(1.0),
                Some(1.0 / 1.4),
            ),
            more(
                "model",
                "Level misses slower than P-CLHT",
                ("Level", "P-CLHT", "search (N)"),
                None,
            ),
        ],
        draw: Some(|lab, figure| {
            let phases = [("search (P)", Phase::Reads(100)), ("search (N)", Phase::Miss)];
            let title = ("model", "36 threads on Optane (model)");
            let model = modelled_phases(lab, figure, title, &phases, (THREADS, MODULES), true)?;
            Ok(vec![model, measured_latency(lab, figure, &phases)?])
        }),
        note: RECORDS,
    },
    Figure {
        id: "clevel-8",
        paper: Paper::Clevel,
        place: "Figure 8",
        section: "4.3",
        title: "Mean latency of insert, update and delete with 36 threads",
        systems: ALL,
        workload: "zipfian, 15 + 15 bytes, 16 M records, 36 threads",
        way: Way::TimeModel,
        runs: MODELLED,
        claims: &[
            less("model", "clevel inserts faster than Level", ("clevel", "Level", "insert"), None),
            less("model", "clevel inserts faster than CCEH", ("clevel", "CCEH", "insert"), None),
            less(
                "model",
                "clevel inserts faster than P-CLHT",
                ("clevel", "P-CLHT", "insert"),
                None,
            ),
            claim(
                "model",
                "clevel inserts slightly slower than cmap-TBB",
                Test::Ratio("clevel", "cmap-TBB", "insert"),
                Is::Between(0.9, 2.0),
                None,
            ),
            less("model", "clevel updates faster than Level", ("clevel", "Level", "update"), None),
            claim(
                "model",
                "cmap deletes slowest",
                Test::AgainstBest("cmap", "delete"),
                Is::AtLeast(1.0),
                None,
            ),
            more("model", "Level deletes slower than clevel", ("Level", "clevel", "delete"), None),
        ],
        draw: Some(|lab, figure| {
            let phases =
                [("insert", Phase::Insert), ("update", Phase::Update), ("delete", Phase::Remove)];
            let title = ("model", "36 threads on Optane (model)");
            let model = modelled_phases(lab, figure, title, &phases, (THREADS, MODULES), true)?;
            Ok(vec![model, measured_latency(lab, figure, &phases)?])
        }),
        note: "The peers have all operations, also those that the published code lacks. Their \
               allocators cost no flush, and cmap's records and removals no transaction. No bucket of cmap \
               is left to be rehashed when the removals begin, which is why its removals are slow in the \
               paper. A new level of ours costs no undo log.",
    },
    Figure {
        id: "clevel-9",
        paper: Paper::Clevel,
        place: "Figure 9",
        section: "4.3",
        title: "Median and 90th percentile of the time of an insert",
        systems: FIVE,
        workload: "15 + 15 bytes, 16 M records, 36 threads",
        way: Way::Ratio,
        runs: &[],
        claims: &[
            more("", "clevel's median is above Level's", ("clevel", "Level", "median"), None),
            more("", "and above P-CLHT's", ("clevel", "P-CLHT", "median"), None),
            less("", "but below CCEH's", ("clevel", "CCEH", "median"), None),
            less("", "and below cmap's", ("clevel", "cmap", "median"), None),
            less("", "clevel's p90 is below CCEH's", ("clevel", "CCEH", "p90"), None),
        ],
        draw: Some(|lab, figure| {
            let mut panel = Panel::bars("", "two threads here", "nanoseconds", &["median", "p90"]);
            for &name in figure.systems {
                let inserts = lab.latency(name, 2, Timed::Insert)?;
                let values = [0.5, 0.9].map(|quantile| Some(inserts.at(quantile) as f64));
                panel.add_bars(plain_name(name), false, values.to_vec());
            }
            Ok(vec![panel])
        }),
        note: "Two threads, so nearly no insert waits for a segment's lock, which is what the paper \
               shows of CCEH. Level looks for its key under the locks of up to 16 slots, one after another, \
               while clevel's insert takes no lock, so that its median is the lower one here.",
    },
    Figure {
        id: "clevel-10",
        paper: Paper::Clevel,
        place: "Figure 10",
        section: "4.4",
        title: "YCSB Load A, A, B and C, normalized to P-CLHT",
        systems: ALL,
        workload: "64 M records, 64 M operations, 36 threads",
        way: Way::TimeModel,
        runs: MODELLED,
        claims: &[
            more("model", "clevel loads faster than cmap", ("clevel", "cmap", "Load A"), Some(1.4)),
            more("model", "and than P-CLHT", ("clevel", "P-CLHT", "Load A"), Some(4.2)),
            more("model", "CCEH loads faster than Level", ("CCEH", "Level", "Load A"), None),
            more("model", "clevel is ahead of Level in A", ("clevel", "Level", "A"), None),
            more("model", "clevel is ahead of P-CLHT in A", ("clevel", "P-CLHT", "A"), None),
        ],
        draw: Some(figure_10),
        note: RECORDS,
    },
    Figure {
        id: "clevel-11",
        paper: Paper::Clevel,
        place: "Figure 11",
        section: "4.4",
        title: "Throughput of inserts by threads",
        systems: FIVE,
        workload: "YCSB Load A, 1 to 36 threads",
        way: Way::TimeModel,
        runs: MODELLED,
        claims: &[
            claim(
                "",
                "clevel is ahead of all at 36 threads",
                Test::AgainstBest("clevel", "36"),
                Is::AtLeast(1.0),
                None,
            ),
            claim(
                "",
                "clevel's throughput grows with the threads",
                Test::Across("clevel", "36", "8"),
                Is::AtLeast(1.0),
                None,
            ),
        ],
        draw: Some(|lab, figure| {
            let threads = [1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 36.0];
            let title = ("", "inserts");
            Ok(vec![by_threads(lab, figure, title, Phase::Insert, &threads, MODULES)?])
        }),
        note: RECORDS,
    },
    Figure {
        id: "clevel-t1",
        paper: Paper::Clevel,
        place: "Table 1",
        section: "2.4",
        title: "Duplicated and missing records of concurrent operations",
        systems: &["Level", "CCEH without the check", "cmap", "P-CLHT", "clevel"],
        workload: "threads that insert the same keys while the table grows",
        way: Way::Counts,
        runs: &[],
        claims: &[
            none("clevel duplicates nothing", "clevel", "duplicated"),
            none("clevel misses nothing", "clevel", "missed"),
            none("cmap duplicates nothing", "cmap", "duplicated"),
            none("cmap misses nothing", "cmap", "missed"),
            none("P-CLHT duplicates nothing", "P-CLHT", "duplicated"),
            none("P-CLHT misses nothing", "P-CLHT", "missed"),
            none("CCEH misses nothing", "CCEH without the check", "missed"),
            some("CCEH duplicates", "CCEH without the check", "duplicated"),
            some("Level duplicates or misses", "Level", "either"),
        ],
        draw: Some(|lab, figure| {
            let groups = ["duplicated", "missed", "either"];
            let mut panel = Panel::bars("", "four threads", "keys, lookups", &groups);
            let (keys, rounds) = match lab.scale {
                Scale::Test => (300, 1),
                _ => (20_000, 5),
            };
            for &name in figure.systems {
                lab.say(&format!("{name}, races"));
                let (mut duplicated, mut missed) = (0, 0);
                for round in 0..rounds {
                    let found =
                        races(&System::named(name), &lab.memory(), 4, keys, lab.seed + round)?;
                    duplicated += found.duplicated;
                    missed += found.missed;
                }
                let values = [duplicated, missed, duplicated + missed].map(|n| Some(n as f64));
                panel.add_bars(name, false, values.to_vec());
            }
            Ok(vec![panel])
        }),
        note: "What does not happen in a run may still be possible. The table's other columns are not \
               measurements.",
    },
];

const fn none(says: &'static str, system: &'static str, what: &'static str) -> super::Claim {
    claim("", says, Test::Value(system, what), Is::AtMost(0.0), None)
}

const fn some(says: &'static str, system: &'static str, what: &'static str) -> super::Claim {
    claim("", says, Test::Value(system, what), Is::AtLeast(1.0), None)
}

fn measured_latency(lab: &mut Lab, figure: &Figure, phases: &[(&str, Phase)]) -> Fallible<Panel> {
    let groups: Vec<&str> = phases.iter().map(|(name, _)| *name).collect();
    let mut panel = Panel::bars("two", "two threads, measured here", "nanoseconds", &groups);
    for &name in figure.systems {
        let values = phases.iter().map(|&(_, phase)| {
            lab.mops(name, Runs::Flushed(2), phase).map(|mops| Some(2e3 / mops))
        });
        panel.add_bars(plain_name(name), false, values.collect::<Fallible<Vec<_>>>()?);
    }
    Ok(panel)
}

fn figure_3(lab: &mut Lab, _: &Figure) -> Fallible<Vec<Panel>> {
    let records = lab.scale.records().min(2_000_000);
    let mut curve =
        Panel::lines("curve", "load factor just before each resize", "resize", "records per slot");
    let mut peaks = Panel::bars("peaks", "the fullest", "records per slot", &["4", "8", "16"]);
    for (group, slots) in [4u64, 8, 16].into_iter().enumerate() {
        lab.say(&format!("{slots} slots a bucket"));
        let name = format!("Level, {slots} slots");
        let level = at_resizes(&System::peer_with_slots(&name, PeerSystem::Level, slots), records)?;
        let simulated = simulate(slots as usize, 256, records).at_resizes;
        let points: Vec<(f64, f64)> =
            simulated.iter().enumerate().map(|(i, &load)| (i as f64 + 1.0, load)).collect();
        for (name, points) in [("Level", level), ("clevel", points)] {
            // The first resizes are of tables of a few buckets.
            let late = points.iter().skip(points.len() / 3).map(|point| point.1);
            peaks.push(name, false, group as f64, late.fold(0.0, f64::max));
            curve.add(&format!("{name}, {slots} slots"), false, points);
        }
    }
    let ships = at_resizes(&System::named("clevel"), records)?;
    curve.add("clevel as it ships", false, ships);
    Ok(vec![curve, peaks])
}

fn figure_5(lab: &mut Lab, _: &Figure) -> Fallible<Vec<Panel>> {
    let groups = ["insert", "search (P)", "search (N)", "update", "delete"];
    let mut panel =
        Panel::bars("", "36 threads on Optane (model)", "throughput, 8 slots = 1", &groups);
    let records = lab.scale.records().min(2_000_000);
    let mops = [4usize, 8, 16].map(|slots| {
        let found = simulate(slots, 65_536.min(records as usize / 4), records);
        [found.insert, found.hit, found.miss, found.update, found.remove].map(|cost| {
            // A tenth of a microsecond for all that is not the medium's.
            Scaling::new(100.0, &cost, 0.0, MODULES).mops(THREADS)
        })
    });
    for (name, all) in ["4 slots", "8 slots", "16 slots"].into_iter().zip(mops) {
        let values = all.iter().zip(mops[1]).map(|(mops, of_8)| Some(mops / of_8));
        panel.add_bars(name, true, values.collect());
    }
    Ok(vec![panel])
}

fn figure_10(lab: &mut Lab, figure: &Figure) -> Fallible<Vec<Panel>> {
    let phases = [
        ("Load A", Phase::Insert),
        ("A", Phase::Reads(50)),
        ("B", Phase::Reads(95)),
        ("C", Phase::Reads(100)),
    ];
    let title = ("model", "36 threads on Optane (model)");
    let mut model = modelled_phases(lab, figure, title, &phases, (THREADS, MODULES), false)?;
    let groups: Vec<&str> = phases.iter().map(|(name, _)| *name).collect();
    let mut two = Panel::bars("two", "two threads, measured here", "", &groups);
    for &name in figure.systems {
        let values =
            phases.iter().map(|&(_, phase)| lab.mops(name, Runs::Flushed(2), phase).map(Some));
        two.add_bars(plain_name(name), false, values.collect::<Fallible<Vec<_>>>()?);
    }
    for panel in [&mut model, &mut two] {
        panel.y = "throughput, P-CLHT = 1".into();
        let of = panel.series("P-CLHT").map(|series| series.points.clone()).unwrap_or_default();
        for series in &mut panel.series {
            series.points.iter_mut().zip(&of).for_each(|(point, of)| point.1 /= of.1);
        }
    }
    Ok(vec![model, two])
}
