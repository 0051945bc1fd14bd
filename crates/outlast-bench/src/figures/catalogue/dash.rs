//! Dash.

use super::shared::{MODELLED, SINGLE, by_phase, by_threads};
use super::{Figure, Paper, Way, claim, more, same};
use crate::Fallible;
use crate::figures::claim::{Is, Test};
use crate::figures::experiments::growth::load_factors;
use crate::figures::experiments::restart::Left;
use crate::figures::lab::{Lab, Runs, Scale};
use crate::figures::panel::Panel;
use crate::figures::subject::{LONG_KEYS, Memory, System};
use crate::figures::turns::{Phase, value};
use outlast::Scheme;
use outlast_peers::workloads::keys::Spread;

/// The modules of Optane of the paper's machine.
const MODULES: f64 = 6.0;
const THREADS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 24.0];
const FOUR: &[&str] = &["Dash-EH", "Dash-LH", "CCEH", "Level"];

/// The rows.
pub(super) const FIGURES: &[Figure] = &[
    Figure {
        id: "dash-1",
        paper: Paper::Dash,
        place: "Figure 1",
        section: "1",
        title: "Throughput of CCEH and Level hashing by threads",
        systems: &["CCEH", "Level"],
        workload: "10 M loaded, 190 M inserts, 190 M searches, 1 to 24 threads",
        way: Way::TimeModel,
        runs: MODELLED,
        claims: &[
            claim(
                "insert",
                "CCEH's inserts do not scale as expected",
                Test::Across("CCEH", "24", "1"),
                Is::AtMost(18.0),
                None,
            ),
            claim(
                "insert",
                "Level's inserts do not scale as expected",
                Test::Across("Level", "24", "1"),
                Is::AtMost(18.0),
                None,
            ),
            claim(
                "search",
                "CCEH's searches do not scale as expected",
                Test::Across("CCEH", "24", "1"),
                Is::AtMost(18.0),
                None,
            ),
        ],
        draw: Some(|lab, figure| {
            let panel = |lab: &mut Lab, id, phase| {
                by_threads(lab, figure, (id, id), phase, THREADS, MODULES)
            };
            Ok(vec![panel(lab, "insert", Phase::Insert)?, panel(lab, "search", Phase::Hit)?])
        }),
        note: "\"Expected\" is taken as three quarters of linear. The paper blames CCEH's locks of \
               segments. The model knows only the lines that they dirty, by the cache model, and not the threads \
               that wait for them.",
    },
    Figure {
        id: "dash-7",
        paper: Paper::Dash,
        place: "Figure 7",
        section: "6.1",
        title: "One thread: insert, hit, miss, delete",
        systems: FOUR,
        workload: "10 M loaded, 190 M operations of each kind; a: 8-byte keys, b: 16-byte keys; 8-byte values",
        way: Way::Ratio,
        runs: SINGLE,
        claims: &[
            more("a", "EH beats CCEH in hits", ("Dash-EH", "CCEH", "hit"), Some(1.9)),
            more("a", "EH beats Level in hits", ("Dash-EH", "Level", "hit"), Some(2.6)),
            same("a", "EH and LH are alike in hits", ("Dash-EH", "Dash-LH", "hit"), Some(1.0)),
            more("a", "EH beats CCEH in misses", ("Dash-EH", "CCEH", "miss"), None),
            more("a", "EH beats Level in misses", ("Dash-EH", "Level", "miss"), None),
            same("a", "EH and CCEH are alike in inserts", ("Dash-EH", "CCEH", "insert"), Some(1.0)),
            more("a", "EH beats Level in inserts", ("Dash-EH", "Level", "insert"), Some(2.5)),
            more("a", "EH beats CCEH in deletes", ("Dash-EH", "CCEH", "delete"), Some(1.2)),
            more("a", "EH beats Level in deletes", ("Dash-EH", "Level", "delete"), Some(1.9)),
            more("b", "EH beats CCEH in hits of long keys", ("Dash-EH", "CCEH", "hit"), Some(2.0)),
            more("b", "and Level", ("Dash-EH", "Level", "hit"), Some(5.0)),
            more("b", "so does LH CCEH", ("Dash-LH", "CCEH", "hit"), Some(2.0)),
            more("b", "and Level", ("Dash-LH", "Level", "hit"), Some(5.0)),
            more(
                "b",
                "EH beats CCEH in misses of long keys",
                ("Dash-EH", "CCEH", "miss"),
                Some(5.0),
            ),
            more("b", "and Level", ("Dash-EH", "Level", "miss"), Some(15.0)),
            more("b", "so does LH CCEH", ("Dash-LH", "CCEH", "miss"), Some(5.0)),
            more("b", "and Level", ("Dash-LH", "Level", "miss"), Some(15.0)),
        ],
        draw: Some(|lab, figure| {
            let phases = [
                ("insert", Phase::Insert),
                ("hit", Phase::Hit),
                ("miss", Phase::Miss),
                ("delete", Phase::Remove),
            ];
            let title = ("a", "8-byte keys, one thread, measured here");
            let a = by_phase(lab, figure.systems, title, Runs::Flushed(1), &phases)?;
            let title = ("b", "16-byte keys behind pointers, one thread, measured here");
            let long = figure.systems.iter().map(|name| format!("{name}{LONG_KEYS}"));
            let long: Vec<String> = long.collect();
            let long: Vec<&str> = long.iter().map(String::as_str).collect();
            lab.run(&long, figure.runs)?;
            Ok(vec![a, by_phase(lab, &long, title, Runs::Flushed(1), &phases)?])
        }),
        note: "The memory is DRAM with flushes executed, so a line that is read costs less than on \
               Optane. In panel b, an insert writes and flushes the key, which the paper's benchmark made \
               before. Ours has key and value in one record, and a lookup copies the value to the heap. At a \
               small scale, the keys that CCEH compares in vain lie in the caches.",
    },
    Figure {
        id: "dash-8",
        paper: Paper::Dash,
        place: "Figure 8",
        section: "6.2",
        title: "Throughput by threads: insert, hit, miss, delete, mixed",
        systems: FOUR,
        workload: "10 M loaded, 190 M operations of each kind; 60 M loaded for the mix; 1 to 24 threads",
        way: Way::TimeModel,
        runs: MODELLED,
        claims: &[
            more("a", "EH beats CCEH in inserts", ("Dash-EH", "CCEH", "24"), Some(1.3)),
            more("a", "EH beats Level in inserts", ("Dash-EH", "Level", "24"), Some(8.9)),
            claim(
                "b",
                "EH scales nearly linearly in hits",
                Test::Across("Dash-EH", "24", "1"),
                Is::AtLeast(16.0),
                None,
            ),
            more("b", "EH beats CCEH in hits", ("Dash-EH", "CCEH", "24"), None),
            more("b", "EH beats Level in hits", ("Dash-EH", "Level", "24"), None),
            more("c", "EH beats CCEH in misses", ("Dash-EH", "CCEH", "24"), None),
            claim(
                "d",
                "EH's deletes scale to half of the paper's factor at least",
                Test::Across("Dash-EH", "24", "1"),
                Is::AtLeast(4.2),
                Some(8.4),
            ),
            claim(
                "d",
                "LH's deletes scale to half of the paper's factor at least",
                Test::Across("Dash-LH", "24", "1"),
                Is::AtLeast(4.9),
                Some(9.8),
            ),
            claim(
                "d",
                "CCEH's deletes scale to half of the paper's factor at least",
                Test::Across("CCEH", "24", "1"),
                Is::AtLeast(3.0),
                Some(6.1),
            ),
            claim(
                "d",
                "Level's deletes scale to half of the paper's factor at least",
                Test::Across("Level", "24", "1"),
                Is::AtLeast(7.3),
                Some(14.7),
            ),
            more("e", "EH beats CCEH in the mix", ("Dash-EH", "CCEH", "24"), Some(2.7)),
            more("e", "EH beats Level in the mix", ("Dash-EH", "Level", "24"), Some(9.0)),
        ],
        draw: Some(|lab, figure| {
            let panels = [
                ("a", "insert", Phase::Insert),
                ("b", "hit", Phase::Hit),
                ("c", "miss", Phase::Miss),
                ("d", "delete", Phase::Remove),
                ("e", "20% insert, 80% search", Phase::FourToOne),
            ];
            panels
                .into_iter()
                .map(|(id, title, phase)| {
                    by_threads(lab, figure, (id, title), phase, THREADS, MODULES)
                })
                .collect()
        }),
        note: "Lines of bucket metadata in DRAM cost nothing in the model, which favours our Dash. No thread \
               waits for the lock of a bucket or a segment.",
    },
    Figure {
        id: "dash-9",
        paper: Paper::Dash,
        place: "Figure 9",
        section: "6.3",
        title: "Load factor by records inserted",
        systems: &["Dash-EH (2)", "Dash-LH (2)", "Dash-EH (4)", "CCEH", "Level"],
        workload: "inserts into an empty table",
        way: Way::Counts,
        runs: &[],
        claims: &[
            claim(
                "",
                "with two stash buckets, EH fills to 80%",
                Test::Peak("Dash-EH (2)"),
                Is::AtLeast(0.76),
                Some(0.80),
            ),
            claim(
                "",
                "with two stash buckets, LH fills to 80%",
                Test::Peak("Dash-LH (2)"),
                Is::AtLeast(0.76),
                Some(0.80),
            ),
            claim(
                "",
                "with four stash buckets, EH fills to 90%",
                Test::Peak("Dash-EH (4)"),
                Is::AtLeast(0.86),
                Some(0.90),
            ),
            claim(
                "",
                "Level fills as far as EH with four",
                Test::Peak("Level"),
                Is::AtLeast(0.86),
                Some(0.90),
            ),
            claim("", "CCEH fills to 43%", Test::Peak("CCEH"), Is::Between(0.34, 0.52), Some(0.43)),
            claim("", "and not below 35%", Test::Low("CCEH"), Is::AtLeast(0.25), Some(0.35)),
        ],
        draw: Some(|lab, figure| {
            let records = lab.scale.records();
            let mut panel = Panel::lines("", "load factor", "records inserted", "records per slot");
            for &name in figure.systems {
                lab.say(&format!("{name}, load factors"));
                let samples = load_factors(&System::named(name), records, records / 150)?;
                panel.add(name, false, samples);
            }
            Ok(vec![panel])
        }),
        note: "Our buckets have 16 slots, and up to three records are moved before a stash bucket is \
               used, so two stash buckets fill further than in the paper.",
    },
    Figure {
        id: "dash-t1",
        paper: Paper::Dash,
        place: "Table 1",
        section: "6.4",
        title: "Recovery time by data size",
        systems: &["Dash-EH", "Dash-LH", "CCEH"],
        workload: "40 M to 1280 M records, the process killed",
        way: Way::Ratio,
        runs: &[],
        claims: &[
            claim(
                "",
                "EH recovers in constant time",
                Test::Across("Dash-EH", "8", "1"),
                Is::AtMost(2.5),
                Some(1.0),
            ),
            claim(
                "",
                "LH recovers in constant time",
                Test::Across("Dash-LH", "8", "1"),
                Is::AtMost(2.5),
                Some(1.0),
            ),
            claim(
                "scan",
                "CCEH scans a directory that grows with the data (eight times the data; the paper's \
                 time from 160 M to 1280 M)",
                Test::Across("CCEH", "8", "1"),
                Is::AtLeast(4.0),
                Some(1673.0 / 262.0),
            ),
        ],
        draw: Some(recovery),
        note: "Our pools are on files in the page cache, opened as after the death of the process. \
               The peers recover nothing, so CCEH's part is the number of segments that its scan \
               reads; Level's constant time is not tested.",
    },
];

fn recovery(lab: &mut Lab, _: &Figure) -> Fallible<Vec<Panel>> {
    let unit = lab.scale.records() / 4;
    let sizes = [1u64, 2, 4, 8];
    let mut panel = Panel::lines(
        "",
        &format!("first result after the process died (sizes in units of {unit} records)"),
        "size of the data",
        "milliseconds",
    );
    for (name, scheme) in [("Dash-EH", Scheme::DashEh), ("Dash-LH", Scheme::DashLh)] {
        for size in sizes {
            lab.say(&format!("{name}, restart with {} records", unit * size));
            let left = Left::new(scheme, unit * size, &lab.dir)?;
            let rounds = if lab.scale == Scale::Test { 1 } else { 5 };
            panel.push(name, false, size as f64, left.open_ms(1, rounds)?);
        }
    }
    let mut scan =
        Panel::lines("scan", "what a scan of CCEH reads", "size of the data", "segments");
    let subject = System::named("CCEH").create(&Memory::NoFlush, unit * 8, 1024)?;
    for number in 0..unit * 8 {
        let key = Spread::Uniform.key(number);
        subject.insert(key, value(key))?;
        let inserted = number + 1;
        if sizes.iter().any(|size| inserted == unit * size) {
            let segments = subject.slots()?.unwrap_or(0) as f64 / 1024.0;
            scan.push("CCEH", false, (inserted / unit) as f64, segments);
        }
    }
    Ok(vec![panel, scan])
}
