//! PhaST.

mod panels;

use super::shared::{MODELLED, SINGLE, by_phase, by_threads};
use super::{Figure, Paper, Way, claim, less, more};
use crate::figures::claim::{Is, Test};
use crate::figures::lab::{Runs, Timed};
use crate::figures::panel::Panel;
use crate::figures::turns::Phase;
use panels::{distributions, figure_2, figure_15, node_size, table_3};

/// The modules of Optane of the paper's processor.
const MODULES: f64 = 2.0;
const AXIS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
const ALL: &[&str] = &["PhaST", "NV-Skiplist", "wB+-Tree", "FPTree", "FAST-FAIR", "WORT"];
const FIVE: &[&str] = &["PhaST", "NV-Skiplist", "wB+-Tree", "FPTree", "FAST-FAIR"];
const TWO: &[&str] = &["PhaST", "FAST-FAIR"];
const TREES: &str = "wB+-Tree, WORT, FPTree and NV-Skiplist have a lock for the whole tree, and the index of FPTree is \
                     a B-tree of the standard library. The memory is DRAM, and at a small scale inner nodes lie \
                     in the caches. So FAST-FAIR and wB+-Tree, which have theirs in persistent memory, are slowed \
                     down less than in the paper. An insert of ours has one fence, FPTree's has two.";

/// The rows.
pub(super) const FIGURES: &[Figure] = &[
    Figure {
        id: "phast-t1",
        paper: Paper::Phast,
        place: "Table 1",
        section: "2.1",
        title: "Bandwidth and latency of DRAM and PM",
        systems: &[],
        workload: "64-byte accesses, 32 threads",
        way: Way::NotHere,
        runs: &[],
        claims: &[],
        draw: None,
        note: "A property of Optane modules, of which there are none here. The table is what the time \
               model takes its bandwidths from; outlast-bench floor measures this machine's memory.",
    },
    Figure {
        id: "phast-2",
        paper: Paper::Phast,
        place: "Figure 2",
        section: "2.3",
        title: "Sequential and random accesses; the write time of a skip list in DRAM and PM",
        systems: &["skip list in DRAM", "skip list in PM"],
        workload: "a: 32 threads; b: 50 M inserts after 50 M, without the time to find the place",
        way: Way::Ratio,
        runs: &[],
        claims: &[
            claim(
                "a",
                "random reads take three times as long",
                Test::Across("this memory", "random read", "sequential read"),
                Is::AtLeast(2.0),
                Some(635.0 / 172.0),
            ),
            claim(
                "b",
                "writing takes much longer in PM",
                Test::Ratio("skip list in PM", "skip list in DRAM", "write"),
                Is::AtLeast(2.0),
                Some(27.0),
            ),
        ],
        draw: Some(figure_2),
        note: "The memory is DRAM; \"in PM\" means that flushes and fences are executed. Optane's writes are \
               slower still, and the paper's lists are larger.",
    },
    Figure {
        id: "phast-7",
        paper: Paper::Phast,
        place: "Figure 7",
        section: "5.2",
        title: "One thread: insert, search, update, scan",
        systems: ALL,
        workload: "50 M inserts after 50 M; 50 M searches, updates and scans of 50 records",
        way: Way::Ratio,
        runs: SINGLE,
        claims: &[
            more(
                "",
                "PhaST inserts faster than NV-Skiplist",
                ("PhaST", "NV-Skiplist", "insert"),
                Some(2.56),
            ),
            more("", "than wB+-Tree", ("PhaST", "wB+-Tree", "insert"), Some(3.76)),
            more("", "than FPTree", ("PhaST", "FPTree", "insert"), Some(1.33)),
            more("", "than FAST-FAIR", ("PhaST", "FAST-FAIR", "insert"), Some(1.61)),
            more("", "than WORT", ("PhaST", "WORT", "insert"), Some(4.05)),
            more(
                "",
                "PhaST searches faster than FPTree",
                ("PhaST", "FPTree", "search"),
                Some(1.22),
            ),
            more("", "than FAST-FAIR", ("PhaST", "FAST-FAIR", "search"), Some(1.30)),
            more("", "than NV-Skiplist", ("PhaST", "NV-Skiplist", "search"), Some(2.42)),
            more("", "than wB+-Tree", ("PhaST", "wB+-Tree", "search"), Some(2.87)),
            more("", "PhaST scans faster than NV-Skiplist", ("PhaST", "NV-Skiplist", "scan"), None),
            more("", "than wB+-Tree", ("PhaST", "wB+-Tree", "scan"), None),
            more("", "FAST-FAIR scans faster", ("FAST-FAIR", "PhaST", "scan"), Some(1.49)),
        ],
        draw: Some(|lab, figure| {
            let phases =
                [("insert", Phase::Insert), ("search", Phase::Hit), ("update", Phase::Update)];
            let title = ("", "one thread, measured here");
            let mut panel = by_phase(lab, figure.systems, title, Runs::Flushed(1), &phases)?;
            panel.groups.push("scan".into());
            for &name in figure.systems.iter().filter(|name| **name != "WORT") {
                let mops = lab.mops(name, Runs::Flushed(1), Phase::Scan)?;
                panel.push(name, false, 3.0, mops);
            }
            Ok(vec![panel])
        }),
        note: TREES,
    },
    Figure {
        id: "phast-8",
        paper: Paper::Phast,
        place: "Figure 8",
        section: "5.2",
        title: "Parts of the time of an insert",
        systems: ALL,
        workload: "50 M inserts after 50 M; index cache on and off",
        way: Way::Ratio,
        runs: &[Runs::Flushed(1), Runs::Unflushed],
        claims: &[
            claim(
                "a",
                "PhaST finds its leaf fastest of the trees with leaves of many records",
                Test::Ratio("PhaST", "NV-Skiplist", "leaf search"),
                Is::AtMost(1.0),
                None,
            ),
            less("a", "and faster than FAST-FAIR", ("PhaST", "FAST-FAIR", "leaf search"), None),
            less(
                "a",
                "PhaST flushes for less time than FPTree",
                ("PhaST", "FPTree", "flush"),
                None,
            ),
            less("a", "and than wB+-Tree", ("PhaST", "wB+-Tree", "flush"), None),
            more(
                "a",
                "PhaST writes the entry longer than FAST-FAIR",
                ("PhaST", "FAST-FAIR", "entry write"),
                None,
            ),
        ],
        draw: Some(|lab, figure| {
            let groups = ["leaf search", "entry write", "flush"];
            let mut panel = Panel::bars("a", "one insert, measured here", "nanoseconds", &groups);
            for &name in figure.systems {
                let flushed = lab.took(name, Runs::Flushed(1), Phase::Insert)?.cpu_ns;
                let plain = lab.took(name, Runs::Unflushed, Phase::Insert)?.cpu_ns;
                let search = lab.took(name, Runs::Unflushed, Phase::Hit)?.cpu_ns.min(plain);
                let values = [search, plain - search, (flushed - plain).max(0.0)];
                panel.add_bars(name, false, values.map(Some).to_vec());
            }
            Ok(vec![panel])
        }),
        note: "Leaf search is the time of a lookup, flush what flushes add to an insert, entry write the \
               rest, with splits. Panel b compares with PhaST without its index cache. It is left out: ours \
               reaches its inner nodes through that cache alone, and has no skip list to fall back on. FAST-FAIR \
               shifts half of a leaf for an insert, ours stores the pair in a free slot. At a small scale \
               FAST-FAIR's nodes lie in the caches, so that it finds its leaf faster.",
    },
    Figure {
        id: "phast-9",
        paper: Paper::Phast,
        place: "Figure 9",
        section: "5.2",
        title: "YCSB, one thread",
        systems: FIVE,
        workload: "100 M loaded, 50 M operations of Load and A to F",
        way: Way::Ratio,
        runs: SINGLE,
        claims: &[
            more(
                "",
                "PhaST loads faster than NV-Skiplist",
                ("PhaST", "NV-Skiplist", "Load"),
                Some(3.27),
            ),
            more("", "than FPTree", ("PhaST", "FPTree", "Load"), Some(1.38)),
            best("PhaST is ahead in A", "A"),
            best("in B", "B"),
            best("in C", "C"),
            best("in F", "F"),
            more("", "FAST-FAIR is ahead in E", ("FAST-FAIR", "PhaST", "E"), None),
            more("", "so is FPTree", ("FPTree", "PhaST", "E"), None),
            more("", "PhaST is ahead of NV-Skiplist in E", ("PhaST", "NV-Skiplist", "E"), None),
            more("", "and of wB+-Tree", ("PhaST", "wB+-Tree", "E"), None),
        ],
        draw: Some(|lab, figure| {
            let letters = [("A", 'A'), ("B", 'B'), ("C", 'C'), ("D", 'D'), ("E", 'E'), ("F", 'F')];
            let mut phases = vec![("Load", Phase::Insert)];
            phases.extend(letters.map(|(name, letter)| (name, Phase::Ycsb(letter))));
            let title = ("", "one thread, measured here");
            Ok(vec![by_phase(lab, figure.systems, title, Runs::Flushed(1), &phases)?])
        }),
        note: TREES,
    },
    Figure {
        id: "phast-10",
        paper: Paper::Phast,
        place: "Figure 10",
        section: "5.2",
        title: "Distribution of latencies, one thread",
        systems: FIVE,
        workload: "YCSB Load and C",
        way: Way::Ratio,
        runs: &[],
        claims: &[
            less("a", "FPTree's inserts are faster below 97.5%", ("FPTree", "PhaST", "90"), None),
            more("a", "but their tail is longer", ("FPTree", "PhaST", "99.9"), None),
            claim(
                "b",
                "PhaST's lookups have the shortest tail",
                Test::AgainstLeast("PhaST", "99"),
                Is::AtMost(1.0),
                None,
            ),
        ],
        draw: Some(|lab, figure| {
            distributions(lab, figure, 1, &[("a", Timed::Insert), ("b", Timed::Read)])
        }),
        note: TREES,
    },
    Figure {
        id: "phast-11",
        paper: Paper::Phast,
        place: "Figure 11",
        section: "5.3",
        title: "Insert, search and mixed by threads; cache misses",
        systems: TWO,
        workload: "50 M operations on 100 M records; 50 M inserts with 200 M searches; 1 to 32 threads",
        way: Way::TimeModel,
        runs: MODELLED,
        claims: &[
            more("a", "PhaST inserts faster", ("PhaST", "FAST-FAIR", "32"), Some(1.56)),
            more(
                "b",
                "PhaST searches faster with one thread",
                ("PhaST", "FAST-FAIR", "1"),
                Some(1.33),
            ),
            more("b", "and with 32", ("PhaST", "FAST-FAIR", "32"), Some(2.62)),
            more("c", "and in the mix", ("PhaST", "FAST-FAIR", "32"), Some(1.59)),
            more("d", "FAST-FAIR misses more", ("FAST-FAIR", "PhaST", "search"), Some(2.0)),
        ],
        draw: Some(|lab, figure| {
            let mut panels = Vec::new();
            for (id, title, phase) in [
                ("a", "insert", Phase::Insert),
                ("b", "search", Phase::Hit),
                ("c", "20% insert, 80% search", Phase::FourToOne),
            ] {
                panels.push(by_threads(lab, figure, (id, title), phase, AXIS, MODULES)?);
            }
            let mut d = Panel::bars("d", "misses in PM (cache model)", "misses", &["search"]);
            for &name in figure.systems {
                let misses = lab.costs(name)?.hit.misses;
                d.add_bars(name, true, vec![Some(misses)]);
            }
            panels.push(d);
            Ok(panels)
        }),
        note: "PhaST's inner nodes lie in DRAM, and the model does not see their misses, while it sees \
               all of FAST-FAIR's.",
    },
    Figure {
        id: "phast-12",
        paper: Paper::Phast,
        place: "Figure 12",
        section: "5.3",
        title: "YCSB Load, A and C by threads; distribution of latencies",
        systems: TWO,
        workload: "100 M loaded, 50 M operations, 1 to 32 threads",
        way: Way::TimeModel,
        runs: MODELLED,
        claims: &[
            more("a", "PhaST is ahead in Load", ("PhaST", "FAST-FAIR", "32"), Some(1.49)),
            more("c", "PhaST is ahead in A", ("PhaST", "FAST-FAIR", "32"), Some(1.90)),
            more("e", "PhaST is ahead in C", ("PhaST", "FAST-FAIR", "32"), Some(2.40)),
            less(
                "b",
                "PhaST's inserts have the shorter tail",
                ("PhaST", "FAST-FAIR", "99.9"),
                None,
            ),
            less("d", "and those of A", ("PhaST", "FAST-FAIR", "99.9"), None),
            less("f", "PhaST's lookups have the shorter tail", ("PhaST", "FAST-FAIR", "99"), None),
        ],
        draw: Some(|lab, figure| {
            let mut panels = Vec::new();
            for (id, title, phase) in [
                ("a", "Load", Phase::Insert),
                ("c", "A", Phase::Ycsb('A')),
                ("e", "C", Phase::Ycsb('C')),
            ] {
                panels.push(by_threads(lab, figure, (id, title), phase, AXIS, MODULES)?);
            }
            let tails = [("b", Timed::Insert), ("d", Timed::ReadOrUpdate), ("f", Timed::Read)];
            panels.extend(distributions(lab, figure, 2, &tails)?);
            Ok(panels)
        }),
        note: "Tails are measured with two threads, each on a core of its own. The paper's longer ones, with \
               16 threads, come from threads that wait for a lock of FAST-FAIR's. A lookup here takes a few \
               hundred nanoseconds, and reading the clock twice is a part of that; at a small scale the nodes of \
               FAST-FAIR lie in the caches.",
    },
    Figure {
        id: "phast-13",
        paper: Paper::Phast,
        place: "Figure 13",
        section: "5.4",
        title: "Throughput by leaves of an inner node",
        systems: &["PhaST"],
        workload: "32 to 1024 leaves, concurrent inserts and searches",
        way: Way::Ratio,
        runs: &[],
        claims: &[
            claim(
                "",
                "searches are slower with 1024 leaves than with 128",
                Test::Across("search", "1024", "128"),
                Is::AtMost(1.0),
                None,
            ),
            claim(
                "",
                "inserts are slower with 1024 leaves than with 128",
                Test::Across("insert", "1024", "128"),
                Is::AtMost(1.0),
                None,
            ),
            claim(
                "",
                "inserts are fastest with 128 or 256",
                Test::PeakAt("insert"),
                Is::Between(64.0, 256.0),
                Some(128.0),
            ),
        ],
        draw: Some(|lab, _| {
            let x = "leaves of an inner node";
            let mut panel = Panel::lines("", "two threads", x, "million operations a second");
            panel.log_x = true;
            for node_leaves in [32u32, 64, 128, 256, 512, 1024] {
                let config = outlast::config::Phast { node_leaves, ..Default::default() };
                let [insert, search] = node_size(lab, config.into(), 2)?;
                panel.push("insert", false, node_leaves.into(), insert);
                panel.push("search", false, node_leaves.into(), search);
            }
            Ok(vec![panel])
        }),
        note: "At a small scale there are few inner nodes: one of 1024 leaves holds 57,000 records.",
    },
    Figure {
        id: "phast-14",
        paper: Paper::Phast,
        place: "Figure 14",
        section: "5.4",
        title: "Throughput of inserts by records of a leaf, normalized to 56",
        systems: &["PhaST"],
        workload: "16, 32, 56 and 64 records",
        way: Way::Ratio,
        runs: &[],
        claims: &[
            claim(
                "",
                "56 records insert faster than 16",
                Test::Across("insert", "56", "16"),
                Is::AtLeast(1.0),
                None,
            ),
            claim(
                "",
                "56 records insert faster than 32",
                Test::Across("insert", "56", "32"),
                Is::AtLeast(1.0),
                None,
            ),
        ],
        draw: Some(|lab, _| {
            let mut panel = Panel::lines("", "one thread", "records of a leaf", "inserts, 56 = 1");
            let mut all = Vec::new();
            for leaf_slots in [16u32, 32, 48, 56] {
                let config = outlast::config::Phast { leaf_slots, ..Default::default() };
                all.push((f64::from(leaf_slots), node_size(lab, config.into(), 1)?[0]));
            }
            let of_56 = all.last().map_or(1.0, |last| last.1);
            panel.add("insert", false, all.into_iter().map(|(x, y)| (x, y / of_56)).collect());
            Ok(vec![panel])
        }),
        note: "Our leaves have 56 records at most: bitmap and fingerprints in one line. So the step down at \
               64 is not shown.",
    },
    Figure {
        id: "phast-15",
        paper: Paper::Phast,
        place: "Figure 15",
        section: "5.4",
        title: "One partition, ten times the records, values of 8 to 256 bytes, recovery by threads",
        systems: FIVE,
        workload: "a: keys in 1% of the key space; b: 1 G records; c: values of 8 to 256 bytes; d: recovery of 100 M",
        way: Way::Ratio,
        runs: &[Runs::Tenfold],
        claims: &[
            more(
                "a",
                "PhaST inserts faster than FPTree",
                ("PhaST", "FPTree", "insert"),
                Some(1.18),
            ),
            more("a", "searches faster", ("PhaST", "FPTree", "search"), Some(1.07)),
            more("a", "updates faster", ("PhaST", "FPTree", "update"), Some(1.07)),
            more(
                "b",
                "with ten times the records too, PhaST inserts faster than FPTree",
                ("PhaST", "FPTree", "insert"),
                Some(1.15),
            ),
            more("b", "and than FAST-FAIR", ("PhaST", "FAST-FAIR", "insert"), Some(1.56)),
            more("b", "searches faster than FPTree", ("PhaST", "FPTree", "search"), Some(1.26)),
            more("b", "and than FAST-FAIR", ("PhaST", "FAST-FAIR", "search"), Some(1.61)),
            more("b", "updates faster than FPTree", ("PhaST", "FPTree", "update"), Some(1.16)),
            more("b", "and than FAST-FAIR", ("PhaST", "FAST-FAIR", "update"), Some(1.41)),
            claim(
                "c",
                "PhaST is ahead in inserts of larger values",
                Test::AgainstBest("PhaST", "insert"),
                Is::AtLeast(1.0),
                None,
            ),
            claim(
                "c",
                "and in searches",
                Test::AgainstBest("PhaST", "search"),
                Is::AtLeast(1.0),
                None,
            ),
            claim(
                "d",
                "two threads recover faster than one",
                Test::Across("PhaST", "2", "1"),
                Is::AtMost(0.9),
                None,
            ),
        ],
        draw: Some(figure_15),
        note: "Our partitions divide the keys that are there, not the key space, so skewed keys do not fall \
               into one: in panel a, ours has one. A billion records (b) take 31 GB, so b has ten times those of \
               Figure 7 here. The other panels are small, and FAST-FAIR's nodes lie in the caches there: it looks \
               up more than ours in c, and less in b. Recovery has two threads, and a small map is open in a few \
               milliseconds, of which reading the leaves is a part.",
    },
    Figure {
        id: "phast-t3",
        paper: Paper::Phast,
        place: "Table 3",
        section: "5.4",
        title: "DRAM of the inner nodes",
        systems: &["skip list", "NV-Skiplist", "PhaST"],
        workload: "100 M records",
        way: Way::Counts,
        runs: &[],
        claims: &[
            claim(
                "formula",
                "a skip list takes 29 times as much as NV-Skiplist",
                Test::Ratio("skip list", "NV-Skiplist", "DRAM"),
                Is::Between(20.0, 40.0),
                Some(10.4 * 1024.0 / 365.5),
            ),
            claim(
                "here",
                "NV-Skiplist takes 4.8 times as much as PhaST",
                Test::Ratio("NV-Skiplist", "PhaST", "DRAM"),
                Is::AtLeast(1.0),
                Some(365.5 / 76.1),
            ),
        ],
        draw: Some(table_3),
        note: "The paper's numbers come from formulas; ours are the bytes that the structures have here, for \
               each record. PhaST's fingerprints and locks in DRAM, which the paper has in PM, are among \
               them.",
    },
];

const fn best(says: &'static str, workload: &'static str) -> super::Claim {
    claim("", says, Test::AgainstBest("PhaST", workload), Is::AtLeast(1.0), None)
}
