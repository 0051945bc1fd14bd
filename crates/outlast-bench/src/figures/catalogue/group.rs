//! Group hashing.

use super::{Figure, Paper, Way, claim, less, more};
use crate::Fallible;
use crate::figures::claim::{Claim, Is, Test};
use crate::figures::experiments::fixed::{
    TRACES, Times, accepted, costs, keys, system, times, utilization,
};
use crate::figures::experiments::restart::Left;
use crate::figures::lab::{Lab, Scale};
use crate::figures::panel::Panel;
use outlast::Scheme;

const SIX: &[&str] = &["linear", "linear-L", "PFHT", "PFHT-L", "path", "path-L"];
const LOGGED: &[&str] = &["linear-L", "PFHT-L", "path-L", "group"];
const GROUPS: [&str; 3] = ["insert", "query", "delete"];
const OPTIONS: &str = "Fingerprints are random, and bags of words are generated. For random numbers and words, group \
                       is the library's, which has fingerprints and locks in DRAM. For fingerprints, in cells of \
                       32 bytes, it is the paper's: a search that goes on in the second level reads cell by cell. \
                       The paper explains its few misses by prefetching, which the cache model does not have. Its \
                       PFHT has records in the stash at 0.75, ours nearly none.";

impl Lab {
    /// Cells of a table: a power of two, as in the paper.
    fn cells(&self) -> u64 {
        match self.scale {
            Scale::Test => 1 << 12,
            Scale::Small => 1 << 18,
            Scale::Medium => 1 << 21,
            Scale::Large => 1 << 23,
        }
    }

    /// Operations that are timed: 1,000 in the paper, more here, because each is a hundredth of a
    /// load factor at most.
    fn calls(&self) -> u64 {
        (self.cells() / 128).clamp(32, 5_000)
    }
}

const fn slower(says: &'static str, a: &'static str, b: &'static str, at: &'static str) -> Claim {
    claim("a", says, Test::Ratio(a, b, at), Is::AtLeast(1.3), Some(1.95))
}

const fn misses_more(
    says: &'static str,
    a: &'static str,
    b: &'static str,
    at: &'static str,
) -> Claim {
    claim("b", says, Test::Ratio(a, b, at), Is::AtLeast(1.3), Some(2.16))
}

const fn least(panel: &'static str, says: &'static str, at: &'static str) -> Claim {
    claim(panel, says, Test::AgainstLeast("group", at), Is::AtMost(1.0), None)
}

/// The rows.
pub(super) const FIGURES: &[Figure] = &[
    Figure {
        id: "group-2",
        paper: Paper::Group,
        place: "Figure 2",
        section: "2.3",
        title: "What an undo log costs: latency, cache misses",
        systems: SIX,
        workload: "RandomNum, load factor 0.5, 1,000 requests",
        way: Way::CacheModel,
        runs: &[],
        claims: &[
            slower("the log slows linear's inserts", "linear-L", "linear", "insert"),
            slower("the log slows PFHT's inserts", "PFHT-L", "PFHT", "insert"),
            slower("the log slows path's inserts", "path-L", "path", "insert"),
            slower("the log slows PFHT's deletes", "PFHT-L", "PFHT", "delete"),
            slower("the log slows path's deletes", "path-L", "path", "delete"),
            less("a", "linear is queried faster than PFHT", ("linear", "PFHT", "query"), None),
            less("a", "PFHT is queried faster than path", ("PFHT", "path", "query"), None),
            misses_more("the log makes linear miss", "linear-L", "linear", "insert"),
            misses_more("the log makes PFHT miss", "PFHT-L", "PFHT", "insert"),
            misses_more("the log makes path miss", "path-L", "path", "insert"),
        ],
        draw: Some(|lab, figure| {
            let a = latency(lab, figure, "a", "RandomNum", 0.5)?;
            let b = misses(lab, figure, "b", "RandomNum", 0.5)?;
            Ok(vec![a, b])
        }),
        note: "The paper does not describe its log; ours saves an address and a word for each word that \
               changes. Misses are those of the cache model, a cache in proportion to the table. Path hashing \
               misses most even without the log, because an insert looks for its key in two cells of each \
               level first; so the log adds a smaller part.",
    },
    Figure {
        id: "group-5",
        paper: Paper::Group,
        place: "Figure 5",
        section: "4.2",
        title: "Latency of a request, three traces, two load factors",
        systems: LOGGED,
        workload: "2^23 to 2^25 cells, load factors 0.5 and 0.75, 1,000 requests",
        way: Way::Ratio,
        runs: &[],
        claims: &[
            least("RandomNum 0.5", "group inserts fastest", "insert"),
            least("RandomNum 0.5", "group is queried fastest", "query"),
            least("RandomNum 0.5", "group deletes fastest", "delete"),
            least("Bag-of-Words 0.5", "group inserts fastest", "insert"),
            least("Fingerprint 0.5", "group inserts fastest", "insert"),
            least("Fingerprint 0.5", "group is queried fastest", "query"),
            least("Fingerprint 0.5", "group deletes fastest", "delete"),
            least("RandomNum 0.75", "group inserts fastest", "insert"),
            less(
                "RandomNum 0.5",
                "linear-L beats PFHT-L in queries",
                ("linear-L", "PFHT-L", "query"),
                None,
            ),
            claim(
                "RandomNum 0.75",
                "linear-L deletes slowest",
                Test::AgainstBest("linear-L", "delete"),
                Is::AtLeast(1.0),
                None,
            ),
            less(
                "RandomNum 0.5",
                "PFHT-L beats path-L at 0.5",
                ("PFHT-L", "path-L", "query"),
                None,
            ),
            more(
                "RandomNum 0.75",
                "path-L beats PFHT-L at 0.75",
                ("PFHT-L", "path-L", "query"),
                None,
            ),
        ],
        draw: Some(|lab, figure| traces(lab, figure, latency)),
        note: OPTIONS,
    },
    Figure {
        id: "group-6",
        paper: Paper::Group,
        place: "Figure 6",
        section: "4.3",
        title: "Last-level cache misses of a request",
        systems: LOGGED,
        workload: "as Figure 5",
        way: Way::CacheModel,
        runs: &[],
        claims: &[
            least("RandomNum 0.5", "group's inserts miss least", "insert"),
            least("RandomNum 0.5", "group's queries miss least", "query"),
            least("RandomNum 0.5", "group's deletes miss least", "delete"),
            least("Fingerprint 0.5", "group's inserts miss least", "insert"),
            least("Fingerprint 0.5", "group's queries miss least", "query"),
            least("Fingerprint 0.5", "group's deletes miss least", "delete"),
            less(
                "RandomNum 0.5",
                "linear-L's queries miss less than PFHT-L's",
                ("linear-L", "PFHT-L", "query"),
                None,
            ),
            less(
                "RandomNum 0.5",
                "PFHT-L's queries miss less than path-L's at 0.5",
                ("PFHT-L", "path-L", "query"),
                None,
            ),
            more("RandomNum 0.75", "and more at 0.75", ("PFHT-L", "path-L", "query"), None),
        ],
        draw: Some(|lab, figure| traces(lab, figure, misses)),
        note: OPTIONS,
    },
    Figure {
        id: "group-7",
        paper: Paper::Group,
        place: "Figure 7",
        section: "4.4",
        title: "Space utilization",
        systems: &["PFHT", "path", "group"],
        workload: "inserts until the first fails",
        way: Way::Counts,
        runs: &[],
        claims: &[
            claim(
                "",
                "path fills furthest",
                Test::AgainstBest("path", "RandomNum"),
                Is::AtLeast(1.0),
                None,
            ),
            more("", "PFHT fills further than group", ("PFHT", "group", "RandomNum"), None),
            claim(
                "",
                "group fills to 82%",
                Test::Value("group", "RandomNum"),
                Is::Between(0.75, 0.9),
                Some(0.82),
            ),
        ],
        draw: Some(|lab, figure| {
            let mut panel =
                Panel::bars("", "load factor at the first failure", "records per cell", &TRACES);
            let cells = lab.cells();
            for &name in figure.systems {
                lab.say(&format!("{name}, space utilization"));
                let values = TRACES.iter().map(|trace| {
                    let keys = keys(trace, cells * 5 / 4, lab.seed);
                    utilization(&system(name, trace, cells, 256), cells, &keys).map(Some)
                });
                panel.add_bars(name, false, values.collect::<Fallible<Vec<_>>>()?);
            }
            Ok(vec![panel])
        }),
        note: "Our group hashing splits a group that is full instead of failing; this is the load factor \
               at the first split. Its second level is a little smaller than its first.",
    },
    Figure {
        id: "group-8",
        paper: Paper::Group,
        place: "Figure 8",
        section: "4.5",
        title: "Latency and space utilization by group size",
        systems: &["group"],
        workload: "groups of 64 to 1024 cells; latency at load factor 0.5",
        way: Way::Ratio,
        runs: &[],
        claims: &[
            claim(
                "a",
                "inserts take longer in larger groups",
                Test::Across("insert", "1024", "64"),
                Is::AtLeast(1.0),
                None,
            ),
            claim(
                "a",
                "queries take longer in larger groups",
                Test::Across("query", "1024", "64"),
                Is::AtLeast(1.0),
                None,
            ),
            claim(
                "b",
                "larger groups fill further",
                Test::Across("RandomNum", "1024", "64"),
                Is::AtLeast(1.0),
                None,
            ),
            claim(
                "b",
                "groups of 256 fill to 80%",
                Test::Value("RandomNum", "256"),
                Is::AtLeast(0.75),
                Some(0.80),
            ),
        ],
        draw: Some(by_group_size),
        note: OPTIONS,
    },
    Figure {
        id: "group-t3",
        paper: Paper::Group,
        place: "Table 3",
        section: "4.6",
        title: "Recovery time, and its share of the inserts' time",
        systems: &["group"],
        workload: "128 MB to 1 GB of cells, load factor 0.5",
        way: Way::Ratio,
        runs: &[],
        claims: &[
            claim(
                "",
                "recovery takes eight times as long for eight times the data",
                Test::Across("recovery", "8", "1"),
                Is::Between(3.0, 12.0),
                Some(8.1),
            ),
            claim(
                "share",
                "recovery is below 1% of the inserts' time",
                Test::Value("recovery", "8"),
                Is::AtMost(1.0),
                Some(0.93),
            ),
        ],
        draw: Some(|lab, _| {
            let unit = lab.cells() / 4;
            let title = format!("time by size (in units of {unit} records)");
            let mut panel = Panel::lines("", &title, "size", "milliseconds").with_log_y();
            let mut share = Panel::lines("share", "recovery of inserts", "size", "percent");
            for size in [1u64, 2, 4, 8] {
                lab.say(&format!("group, restart with {} records", unit * size));
                let left = Left::new(Scheme::Group, unit * size, &lab.dir)?;
                let ms = left.open_ms(1, 3)?;
                panel.push("recovery", false, size as f64, ms);
                panel.push("inserts", false, size as f64, left.insert_ms);
                share.push("recovery", false, size as f64, 100.0 * ms / left.insert_ms);
            }
            Ok(vec![panel, share])
        }),
        note: "The paper's inserts wait 300 ns for each flushed line, ours are on the page cache and so \
               faster, which raises the share. Recovery includes opening the pool and the first lookup.",
    },
];

type Measure = fn(&mut Lab, &Figure, &str, &str, f64) -> Fallible<Panel>;

/// The panels of all traces and load factors.
fn traces(lab: &mut Lab, figure: &Figure, measure: Measure) -> Fallible<Vec<Panel>> {
    let mut panels = Vec::new();
    for load in [0.5, 0.75] {
        for trace in TRACES {
            panels.push(measure(lab, figure, &format!("{trace} {load}"), trace, load)?);
        }
    }
    Ok(panels)
}

/// Room for the records of the load, the timed inserts and the absent keys.
fn trace_keys(lab: &Lab, trace: &str) -> Vec<u64> {
    keys(trace, lab.cells() * 5 / 4, lab.seed)
}

fn latency(lab: &mut Lab, figure: &Figure, id: &str, trace: &str, load: f64) -> Fallible<Panel> {
    let title = format!("{trace}, load factor {load}, 300 ns a flushed line");
    let mut panel = Panel::bars(id, &title, "nanoseconds", &GROUPS);
    let (cells, calls) = (lab.cells(), lab.calls());
    let keys = trace_keys(lab, trace);
    for &name in figure.systems {
        lab.say(&format!("{name}, {trace}, load factor {load}"));
        let table = system(name, trace, cells, 256);
        let keys = accepted(&table, cells, (cells as f64 * load) as u64 + calls, &keys)?;
        let Times { insert, query, delete } =
            times(&table, &lab.memory(), (cells, load), &keys, calls)?;
        panel.add_bars(name, false, vec![Some(insert), Some(query), Some(delete)]);
    }
    Ok(panel)
}

fn misses(lab: &mut Lab, figure: &Figure, id: &str, trace: &str, load: f64) -> Fallible<Panel> {
    let title = format!("{trace}, load factor {load}, misses of the last cache (model)");
    let mut panel = Panel::bars(id, &title, "misses", &GROUPS);
    // Recording is slow, and the cache is in proportion.
    let cells = lab.cells().min(1 << 16);
    let calls = (cells / 64).clamp(32, 1_000);
    let keys = keys(trace, cells * 5 / 4, lab.seed);
    for &name in figure.systems {
        lab.say(&format!("{name}, {trace}, load factor {load}, counted"));
        let table = system(name, trace, cells, 256);
        let keys = accepted(&table, cells, (cells as f64 * load) as u64 + calls, &keys)?;
        let costs = costs(&table, cells, load, keys, calls)?;
        let values = [costs.insert.misses, costs.hit.misses, costs.remove.misses];
        panel.add_bars(name, true, values.map(Some).to_vec());
    }
    Ok(panel)
}

fn by_group_size(lab: &mut Lab, _: &Figure) -> Fallible<Vec<Panel>> {
    let (cells, calls) = (lab.cells(), lab.calls());
    let x = "cells of a group";
    let mut a = Panel::lines("a", "RandomNum, load factor 0.5", x, "nanoseconds").with_log_x();
    let mut b = Panel::lines("b", "load factor at the first split", x, "records per cell");
    b.log_x = true;
    for size in [64u32, 128, 256, 512, 1024] {
        lab.say(&format!("groups of {size} cells"));
        let table = system("group", "RandomNum", cells, size);
        let keys = trace_keys(lab, "RandomNum");
        let mut least = [f64::INFINITY; 3];
        for _ in 0..lab.scale.rounds() {
            let Times { insert, query, delete } =
                times(&table, &lab.memory(), (cells, 0.5), &keys, calls)?;
            for (least, ns) in least.iter_mut().zip([insert, query, delete]) {
                *least = least.min(ns);
            }
        }
        GROUPS.iter().zip(least).for_each(|(name, ns)| a.push(name, false, size.into(), ns));
        for trace in TRACES {
            let load = utilization(&table, cells, &trace_keys(lab, trace))?;
            b.push(trace, false, size.into(), load);
        }
    }
    Ok(vec![a, b])
}
