//! The EA-PHT thesis.

use super::shared::{MODELLED, by_threads};
use super::{Claim, Draw, Figure, Paper, Way, claim, less, more};
use crate::Fallible;
use crate::figures::claim::{Is, Test};
use crate::figures::experiments::growth::rehashes;
use crate::figures::experiments::history::check;
use crate::figures::experiments::micros::{allocations, flush_instructions};
use crate::figures::experiments::restart::Left;
use crate::figures::lab::{Lab, Scale};
use crate::figures::panel::Panel;
use crate::figures::scaling::{READ_GB_S, WRITE_GB_S};
use crate::figures::subject::System;
use crate::figures::turns::Phase;
use outlast::Scheme;

/// The thesis does not say how many modules of Optane its machine has: six, as in the others.
const MODULES: f64 = 6.0;
const AXIS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 40.0];
const BASE: &[&str] = &["EA-PHT", "Dash-EH", "CCEH", "Level"];
const WITH_H: &[&str] = &["EA-PHT", "EA-PHT-H", "Dash-EH", "CCEH", "Level"];
const WITH_HPR: &[&str] = &["EA-PHT", "EA-PHT-H", "EA-PHT-HPR", "Dash-EH", "CCEH", "Level"];
const NOTE: &str = "Our three tables share fingerprints in DRAM (7.2 of the thesis), and only the locks' place \
                    and the resize differ. Dash is Dash-EH, whose metadata are in DRAM too, so that it reads \
                    less persistent memory than the thesis's. The model has no threads that wait for the lock of a \
                    bucket. It gives the inserts of all mixes the rebuilds of a table that grows threefold. In \
                    the thesis tables of 64 M records grow by half at most, and HPR, which rebuilds with all \
                    threads, is as fast as H there: so perhaps no resize fell into these runs.";

const fn throughput(
    (id, place, section): (&'static str, &'static str, &'static str),
    title: &'static str,
    systems: &'static [&'static str],
    claims: &'static [Claim],
    draw: Draw,
) -> Figure {
    Figure {
        id,
        paper: Paper::Thesis,
        place,
        section,
        title,
        systems,
        workload: "YCSB, zipfian, 64 M records loaded, 64 M operations, 1 to 40 threads",
        way: Way::TimeModel,
        runs: MODELLED,
        claims,
        draw: Some(draw),
        note: NOTE,
    }
}

fn mixed(lab: &mut Lab, figure: &Figure, reads: u8) -> Fallible<Vec<Panel>> {
    let title = format!("{reads}% search, {}% insert", 100 - reads);
    Ok(vec![by_threads(lab, figure, ("", &title), Phase::Reads(reads), AXIS, MODULES)?])
}

fn load(lab: &mut Lab, figure: &Figure) -> Fallible<Vec<Panel>> {
    let title = ("", "load phase");
    Ok(vec![by_threads(lab, figure, title, Phase::Insert, AXIS, MODULES)?])
}

/// EA-PHT is ahead of the others.
const fn base_claims(over_dash: Option<f64>) -> [Claim; 3] {
    [
        more("", "EA-PHT is ahead of Dash", ("EA-PHT", "Dash-EH", "40"), over_dash),
        more("", "EA-PHT is ahead of CCEH", ("EA-PHT", "CCEH", "40"), None),
        more("", "EA-PHT is ahead of Level", ("EA-PHT", "Level", "40"), None),
    ]
}

const fn alike() -> [Claim; 1] {
    let ratio = Test::Ratio("EA-PHT-HPR", "EA-PHT-H", "40");
    [claim("", "HPR and H are essentially the same", ratio, Is::Between(0.85, 1.18), Some(1.0))]
}

/// The rows.
pub(super) const FIGURES: &[Figure] = &[
    Figure {
        id: "thesis-3.13",
        paper: Paper::Thesis,
        place: "Figure 3.13",
        section: "3.8",
        title: "Time to allocate 256 bytes",
        systems: &["embedded", "redo log"],
        workload: "one thread",
        way: Way::Ratio,
        runs: &[],
        claims: &[more(
            "",
            "the allocation of libpmemobj takes longer",
            ("redo log", "embedded", "256 bytes"),
            Some(2.9),
        )],
        draw: Some(|lab, _| {
            let calls = lab.scale.records().min(200_000);
            let [embedded, logged] = allocations(&lab.memory(), calls)?;
            let mut panel = Panel::bars("", "one thread", "nanoseconds", &["256 bytes"]);
            panel.add_bars("embedded", false, vec![Some(embedded)]);
            panel.add_bars("redo log", false, vec![Some(logged)]);
            Ok(vec![panel])
        }),
        note: "In the place of libpmemobj stands an allocator with the flushes of a redo log: the \
               log, the bitmap, the pointer, the end of the log. It searches for no block.",
    },
    throughput(
        ("thesis-3.14", "Figure 3.14", "3.8"),
        "50/50 search and insert by threads",
        BASE,
        &base_claims(Some(1.22)),
        |lab, figure| mixed(lab, figure, 50),
    ),
    throughput(
        ("thesis-3.15", "Figure 3.15", "3.8"),
        "80/20 search and insert by threads",
        BASE,
        &base_claims(None),
        |lab, figure| mixed(lab, figure, 80),
    ),
    throughput(
        ("thesis-3.16", "Figure 3.16", "3.8"),
        "95/5 search and insert by threads",
        BASE,
        &base_claims(None),
        |lab, figure| mixed(lab, figure, 95),
    ),
    throughput(
        ("thesis-3.17", "Figure 3.17", "3.8"),
        "Searches alone by threads",
        BASE,
        &base_claims(Some(1.33)),
        |lab, figure| mixed(lab, figure, 100),
    ),
    throughput(
        ("thesis-3.18", "Figure 3.18", "3.8"),
        "Load phase by threads",
        BASE,
        &[
            more("", "Dash loads faster", ("Dash-EH", "EA-PHT", "40"), Some(1.22)),
            claim(
                "",
                "EA-PHT and CCEH are alike",
                Test::Ratio("EA-PHT", "CCEH", "40"),
                Is::Between(0.7, 1.4),
                Some(1.0),
            ),
            claim(
                "",
                "Level loads slowest",
                Test::AgainstLeast("Level", "40"),
                Is::AtMost(1.0),
                None,
            ),
        ],
        load,
    ),
    Figure {
        id: "thesis-3.19",
        paper: Paper::Thesis,
        place: "Figure 3.19",
        section: "3.8",
        title: "Flush instructions",
        systems: &["clwb", "clflush", "clflushopt"],
        workload: "1 M times a load, a store and a flush between fences",
        way: Way::Ratio,
        runs: &[],
        claims: &[
            claim(
                "",
                "clwb and clflushopt are alike",
                Test::Ratio("clwb", "clflushopt", "flush"),
                Is::Between(0.7, 1.4),
                Some(1.0),
            ),
            claim(
                "",
                "clflush and clflushopt are alike",
                Test::Ratio("clflush", "clflushopt", "flush"),
                Is::Between(0.7, 1.4),
                Some(1.0),
            ),
        ],
        draw: Some(|lab, _| {
            let mut panel = Panel::bars("", "this processor", "nanoseconds", &["flush"]);
            for (name, ns) in flush_instructions(lab.scale.records().min(1_000_000))? {
                panel.add_bars(&name, false, vec![Some(ns)]);
            }
            Ok(vec![panel])
        }),
        note: "A property of the processor: on later ones clwb keeps the line in the cache, and the next \
               load hits.",
    },
    cache_misses(
        "thesis-4.3",
        "Figure 4.3",
        "4.2",
        &["EA-PHT", "EA-PHT-H"],
        &[less("", "EA-PHT-H misses less", ("EA-PHT-H", "EA-PHT", "misses"), Some(0.9))],
    ),
    throughput(
        ("thesis-4.4", "Figure 4.4", "4.2"),
        "50/50 search and insert by threads",
        WITH_H,
        &[
            more("", "H is ahead of EA-PHT", ("EA-PHT-H", "EA-PHT", "40"), Some(1.20)),
            more("", "H is ahead of Dash", ("EA-PHT-H", "Dash-EH", "40"), Some(1.46)),
        ],
        |lab, figure| mixed(lab, figure, 50),
    ),
    throughput(
        ("thesis-4.5", "Figure 4.5", "4.2"),
        "80/20 search and insert by threads",
        WITH_H,
        &[
            more("", "H is ahead of EA-PHT", ("EA-PHT-H", "EA-PHT", "40"), Some(1.07)),
            more("", "H is ahead of Dash", ("EA-PHT-H", "Dash-EH", "40"), Some(1.32)),
        ],
        |lab, figure| mixed(lab, figure, 80),
    ),
    throughput(
        ("thesis-4.6", "Figure 4.6", "4.2"),
        "95/5 search and insert by threads",
        WITH_H,
        &[more("", "EA-PHT is ahead of H", ("EA-PHT", "EA-PHT-H", "40"), Some(1.05))],
        |lab, figure| mixed(lab, figure, 95),
    ),
    throughput(
        ("thesis-4.7", "Figure 4.7", "4.2"),
        "Searches alone by threads",
        WITH_H,
        &[more("", "EA-PHT is ahead of H", ("EA-PHT", "EA-PHT-H", "40"), Some(1.11))],
        |lab, figure| mixed(lab, figure, 100),
    ),
    Figure {
        id: "thesis-4.8",
        paper: Paper::Thesis,
        place: "Figure 4.8",
        section: "4.2",
        title: "Time of a rehash by the size of the table",
        systems: &["EA-PHT", "EA-PHT-H"],
        workload: "load phase",
        way: Way::Ratio,
        runs: &[],
        claims: &[
            more(
                "",
                "a rehash of H takes longer in large tables",
                ("EA-PHT-H", "EA-PHT", ""),
                None,
            ),
            claim(
                "growth",
                "a rehash takes longer in larger tables",
                Test::Value("EA-PHT", "last / first"),
                Is::AtLeast(2.0),
                None,
            ),
        ],
        draw: Some(|lab, figure| rehash_panels(lab, figure.systems)),
        note: "The time of the thread that moves all records, without helpers.",
    },
    throughput(
        ("thesis-4.9", "Figure 4.9", "4.2"),
        "Load phase by threads",
        WITH_H,
        &[
            more("", "H loads faster than EA-PHT", ("EA-PHT-H", "EA-PHT", "40"), Some(1.10)),
            more("", "Dash loads faster than H", ("Dash-EH", "EA-PHT-H", "40"), Some(1.16)),
        ],
        load,
    ),
    cache_misses(
        "thesis-5.4",
        "Figure 5.4",
        "5.3",
        &["EA-PHT", "EA-PHT-H", "EA-PHT-HPR"],
        &[
            less("", "EA-PHT-H misses less", ("EA-PHT-H", "EA-PHT", "misses"), Some(0.9)),
            claim(
                "",
                "HPR misses as H does",
                Test::Ratio("EA-PHT-HPR", "EA-PHT-H", "misses"),
                Is::Between(0.9, 1.1),
                Some(1.0),
            ),
        ],
    ),
    throughput(
        ("thesis-5.5", "Figure 5.5", "5.3"),
        "80/20 search and insert by threads",
        WITH_HPR,
        &alike(),
        |lab, figure| mixed(lab, figure, 80),
    ),
    throughput(
        ("thesis-5.6", "Figure 5.6", "5.3"),
        "50/50 search and insert by threads",
        WITH_HPR,
        &alike(),
        |lab, figure| mixed(lab, figure, 50),
    ),
    throughput(
        ("thesis-5.7", "Figure 5.7", "5.3"),
        "95/5 search and insert by threads",
        WITH_HPR,
        &alike(),
        |lab, figure| mixed(lab, figure, 95),
    ),
    throughput(
        ("thesis-5.8", "Figure 5.8", "5.3"),
        "Searches alone by threads",
        WITH_HPR,
        &alike(),
        |lab, figure| mixed(lab, figure, 100),
    ),
    Figure {
        id: "thesis-5.9",
        paper: Paper::Thesis,
        place: "Figure 5.9",
        section: "5.3",
        title: "Time of a rehash by the size of the table, with 32 helpers",
        systems: &["EA-PHT", "EA-PHT-H", "EA-PHT-HPR"],
        workload: "load phase",
        way: Way::TimeModel,
        runs: &[],
        claims: &[
            claim(
                "",
                "HPR rehashes in less than half of the time of H",
                Test::Ratio("EA-PHT-HPR", "EA-PHT-H", ""),
                Is::AtMost(0.5),
                Some(0.4),
            ),
            claim(
                "",
                "HPR rehashes in less than half of the time of EA-PHT",
                Test::Ratio("EA-PHT-HPR", "EA-PHT", ""),
                Is::AtMost(0.5),
                Some(0.4),
            ),
        ],
        draw: Some(|lab, figure| {
            let mut panels = rehash_panels(lab, &figure.systems[..2])?;
            // Every helper moves buckets on its own, until the medium's bandwidth is used up: 15 slots
            // of 16 bytes are read from a bucket of four lines, and two are written.
            let panel = &mut panels[0];
            let of_h = panel.series("EA-PHT-H").map(|s| s.points.clone()).unwrap_or_default();
            let points = of_h.into_iter().map(|(slots, seconds)| {
                let buckets = slots / 15.0;
                let bytes_ns = 256.0 / READ_GB_S + 512.0 / WRITE_GB_S;
                let medium = buckets * bytes_ns * (2.0 / MODULES) / 1e9;
                (slots, (seconds / 32.0).max(medium))
            });
            panel.add("EA-PHT-HPR", true, points.collect());
            Ok(panels)
        }),
        note: "EA-PHT and EA-PHT-H are measured with one thread that moves all. HPR is a model: H's \
               time divided among 32 helpers, but not less than the medium's bandwidth allows. What \
               ships as EA-PHT-HPR never stops a change for a whole rehash, so it has no such time.",
    },
    throughput(
        ("thesis-5.10", "Figure 5.10", "5.3"),
        "Load phase by threads",
        WITH_HPR,
        &[
            more("", "HPR loads faster than Dash", ("EA-PHT-HPR", "Dash-EH", "40"), Some(1.29)),
            more("", "and than H", ("EA-PHT-HPR", "EA-PHT-H", "40"), Some(1.51)),
            more("", "and than EA-PHT", ("EA-PHT-HPR", "EA-PHT", "40"), Some(1.66)),
        ],
        load,
    ),
    recovery(
        "thesis-t2.1",
        "Table 2.1",
        "2.5",
        &["Dash-EH"],
        &[
            more(
                "",
                "Dash recovers faster than FlatStore",
                ("Dash-EH", "FlatStore, quoted", ""),
                None,
            ),
            more("", "and than HiKV", ("Dash-EH", "HiKV, quoted", ""), None),
        ],
    ),
    recovery(
        "thesis-t3.1",
        "Table 3.1",
        "3.8",
        &["Dash-EH", "EA-PHT"],
        &[
            less("", "EA-PHT recovers slower than Dash", ("EA-PHT", "Dash-EH", ""), None),
            more(
                "",
                "and faster than FlatStore",
                ("EA-PHT", "FlatStore, quoted", ""),
                Some(49.0 / 25.0),
            ),
            more("", "and than HiKV", ("EA-PHT", "HiKV, quoted", ""), Some(49.0 / 0.57)),
        ],
    ),
    recovery(
        "thesis-t5.1",
        "Table 5.1",
        "5.3",
        &["Dash-EH", "EA-PHT", "EA-PHT-H", "EA-PHT-HPR"],
        &[
            more(
                "",
                "H recovers faster than EA-PHT",
                ("EA-PHT-H", "EA-PHT", ""),
                Some(52.0 / 49.0),
            ),
            claim(
                "",
                "HPR recovers as H does",
                Test::Ratio("EA-PHT-HPR", "EA-PHT-H", ""),
                Is::Between(0.7, 1.4),
                Some(1.0),
            ),
            less("", "HPR recovers slower than Dash", ("EA-PHT-HPR", "Dash-EH", ""), None),
        ],
    ),
    Figure {
        id: "thesis-t6.1",
        paper: Paper::Thesis,
        place: "Table 6.1",
        section: "6.3",
        title: "Linearizability without failures",
        systems: &["EA-PHT", "EA-PHT-H", "EA-PHT-HPR", "Level", "CCEH", "Dash-EH"],
        workload: "50% search, 25% insert, 25% delete; 50 K keys, 10 runs of 1 M operations",
        way: Way::Counts,
        runs: &[],
        claims: &[
            linearizable("EA-PHT is linearizable", "EA-PHT"),
            linearizable("EA-PHT-H is linearizable", "EA-PHT-H"),
            linearizable("EA-PHT-HPR is linearizable", "EA-PHT-HPR"),
            linearizable("CCEH is linearizable", "CCEH"),
            linearizable("Dash is linearizable", "Dash-EH"),
            claim("", "Level is not", Test::Value("Level", "runs"), Is::AtLeast(1.0), Some(10.0)),
        ],
        draw: Some(histories),
        note: "Four threads on two cores. Operations are stamped by a counter that all threads share, which \
               spaces them. A run that shows no violation proves nothing about the others.",
    },
    Figure {
        id: "thesis-t6.2",
        paper: Paper::Thesis,
        place: "Table 6.2",
        section: "6.3",
        title: "Linearizability with power failures",
        systems: &["EA-PHT", "EA-PHT-H", "EA-PHT-HPR"],
        workload: "75% search, 25% insert, 30 power cuts",
        way: Way::NotHere,
        runs: &[],
        claims: &[],
        draw: None,
        note: "A power cut needs a machine that loses its caches. The proof harness examines crash images \
               and cuts the power of a virtual machine instead: outlast-check run, and .ci/dax-vm.",
    },
];

const fn linearizable(says: &'static str, system: &'static str) -> Claim {
    claim("", says, Test::Value(system, "runs"), Is::AtMost(0.0), Some(0.0))
}

fn histories(lab: &mut Lab, figure: &Figure) -> Fallible<Vec<Panel>> {
    let (runs, operations, keys) = match lab.scale {
        Scale::Test => (1, 2_000, 100),
        Scale::Small => (10, 200_000, 10_000),
        Scale::Medium | Scale::Large => (10, 1_000_000, 50_000),
    };
    let title = format!("{runs} histories of {operations} operations that are not linearizable");
    let groups = ["runs", "keys"];
    let mut panel = Panel::bars("", &title, "runs; keys of all runs", &groups);
    let (mut checked, mut seconds) = (0, 0.0);
    for &name in figure.systems {
        let (mut bad_runs, mut bad_keys) = (0u64, 0u64);
        for run in 0..runs {
            lab.say(&format!("{name}, history {} of {runs}", run + 1));
            let system = System::named(name);
            let found = check(&system, &lab.memory(), 4, (operations, keys), lab.seed + run)?;
            bad_runs += u64::from(found.bad_keys > 0);
            bad_keys += found.bad_keys;
            checked += found.operations;
            seconds += found.seconds;
        }
        panel.add_bars(name, false, vec![Some(bad_runs as f64), Some(bad_keys as f64)]);
    }
    let title = format!("the check of all {checked} operations");
    let mut speed = Panel::bars("check", &title, "million operations a second", &["checked"]);
    speed.add_bars("checker", false, vec![Some(checked as f64 / seconds / 1e6)]);
    Ok(vec![panel, speed])
}

const fn cache_misses(
    id: &'static str,
    place: &'static str,
    section: &'static str,
    systems: &'static [&'static str],
    claims: &'static [Claim],
) -> Figure {
    Figure {
        id,
        paper: Paper::Thesis,
        place,
        section,
        title: "Cache misses with half searches and half inserts",
        systems,
        workload: "YCSB A, 40 threads",
        way: Way::CacheModel,
        runs: &[],
        claims,
        draw: Some(|lab, figure| {
            let groups = ["misses", "misses of 100 accesses"];
            let mut panel = Panel::bars("", "accesses to PM", "per operation; percent", &groups);
            for &name in figure.systems {
                let costs = lab.costs(name)?;
                let cost = costs.hit.mixed(0.5, costs.insert);
                let share = 100.0 * cost.misses / cost.accesses;
                panel.add_bars(name, true, vec![Some(cost.misses), Some(share)]);
            }
            Ok(vec![panel])
        }),
        note: "One thread and the cache model. What the thesis explains by threads that spin on a lock \
               in a flushed line does not occur with one.",
    }
}

fn rehash_panels(lab: &mut Lab, systems: &[&str]) -> Fallible<Vec<Panel>> {
    let mut panel = Panel::lines("", "time of a rehash", "slots before it", "seconds")
        .with_log_x()
        .with_log_y();
    let mut growth = Panel::bars("growth", "largest and smallest", "ratio", &["last / first"]);
    for &name in systems {
        lab.say(&format!("{name}, rehashes"));
        let points = rehashes(&System::named(name), &lab.memory(), lab.scale.records())?;
        let ratio = points.last().zip(points.first()).map(|(last, first)| last.1 / first.1);
        growth.add_bars(name, false, vec![ratio]);
        panel.add(name, false, points);
    }
    Ok(vec![panel, growth])
}

const fn recovery(
    id: &'static str,
    place: &'static str,
    section: &'static str,
    systems: &'static [&'static str],
    claims: &'static [Claim],
) -> Figure {
    Figure {
        id,
        paper: Paper::Thesis,
        place,
        section,
        title: "Records recovered in a second",
        systems,
        workload: "the process killed after the load phase",
        way: Way::Ratio,
        runs: &[],
        claims,
        draw: Some(recovered),
        note: "Million records that are in reach again, by the time to the first result. Dash's time is \
               constant, so its rate grows with the data. FlatStore and HiKV are quoted from the \
               thesis's tables (25 and 0.57 million a second on their machines); Tables 3.1 and 5.1 \
               print HiKV's figure as Level's. CCEH and Level recover nothing here. A small table takes a few \
               milliseconds, of which opening the pool is a part.",
    }
}

fn recovered(lab: &mut Lab, figure: &Figure) -> Fallible<Vec<Panel>> {
    let records = lab.scale.records();
    let mut panel =
        Panel::bars("", "one thread", "million records a second", &["rate"]).with_log_y();
    for &name in figure.systems {
        lab.say(&format!("{name}, restart"));
        let scheme = match name {
            "EA-PHT" => Scheme::EaPht,
            "EA-PHT-H" => Scheme::EaPhtH,
            "EA-PHT-HPR" => Scheme::EaPhtHpr,
            _ => Scheme::DashEh,
        };
        let rounds = lab.scale.rounds() + 2;
        let ms = Left::new(scheme, records, &lab.dir)?.open_ms(1, rounds)?;
        panel.add_bars(name, false, vec![Some(records as f64 / ms / 1e3)]);
    }
    panel.add_bars("FlatStore, quoted", false, vec![Some(25.0)]);
    panel.add_bars("HiKV, quoted", false, vec![Some(0.57)]);
    Ok(vec![panel])
}
