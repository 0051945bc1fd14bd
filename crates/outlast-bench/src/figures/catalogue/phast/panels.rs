//! The panels of PhaST's figures.

use crate::Fallible;
use crate::figures::catalogue::Figure;
use crate::figures::catalogue::shared::by_phase;
use crate::figures::experiments::micros::access_patterns;
use crate::figures::experiments::restart::Left;
use crate::figures::experiments::values::throughput;
use crate::figures::lab::{Lab, Runs, Timed, time_of};
use crate::figures::panel::Panel;
use crate::figures::subject::{Memory, System};
use crate::figures::turns::{Phase, Work, turn, value};
use outlast::{Config, Scheme};
use outlast_peers::workloads::keys::Spread;

pub(super) fn figure_2(lab: &mut Lab, figure: &Figure) -> Fallible<Vec<Panel>> {
    let records = lab.scale.records();
    let groups = ["sequential read", "random read", "sequential write", "random write"];
    let mut a = Panel::bars("a", "one thread, this machine's memory", "nanoseconds", &groups);
    let mib = (records / 1000).next_power_of_two().clamp(8, 1024);
    let ns = access_patterns(&lab.memory(), mib, records)?;
    a.add_bars("this memory", false, ns.map(Some).to_vec());
    let mut b = Panel::bars("b", "write time of an insert", "nanoseconds", &["write"]);
    for &name in figure.systems {
        lab.say(name);
        let records = records.min(1_000_000);
        let subject = System::named(name).create(&lab.memory(), records, 1024)?;
        let key = |number| Spread::Uniform.key(number);
        for number in 0..records / 2 {
            subject.insert(key(number), value(key(number)))?;
        }
        let half = records / 2;
        let search = time_of(1, half, |i| {
            std::hint::black_box(subject.get(key(half + i))?);
            Ok(())
        })?;
        let insert =
            time_of(1, half, |i| subject.insert(key(half + i), value(key(half + i))).map(drop))?;
        b.add_bars(name, false, vec![Some((insert - search).max(1.0))]);
    }
    Ok(vec![a, b])
}

/// Latencies by percentiles, of the operations of each panel.
pub(super) fn distributions(
    lab: &mut Lab,
    figure: &Figure,
    threads: usize,
    panels: &[(&str, Timed)],
) -> Fallible<Vec<Panel>> {
    let mut drawn = Vec::new();
    for &(id, timed) in panels {
        let title = match timed {
            Timed::Insert => "inserts",
            Timed::Read => "zipfian lookups",
            Timed::ReadOrUpdate => "zipfian lookups and updates",
        };
        let plural = if threads == 1 { "" } else { "s" };
        let title = format!("{title}, {threads} thread{plural}");
        let mut panel = Panel::lines(id, &title, "percent of the operations", "nanoseconds");
        panel.log_y = true;
        for &name in figure.systems {
            let latency = lab.latency(name, threads, timed)?;
            let percents = [10.0, 30.0, 50.0, 70.0, 80.0, 90.0, 95.0, 97.5, 99.0, 99.5, 99.9];
            let points = percents.map(|percent| (percent, latency.at(percent / 100.0) as f64));
            panel.add(name, false, points.to_vec());
        }
        drawn.push(panel);
    }
    Ok(drawn)
}

/// Million inserts and searches a second of a map with this configuration.
pub(super) fn node_size(lab: &Lab, config: Config, threads: usize) -> Fallible<[f64; 2]> {
    let records = lab.scale.records();
    let work =
        Work { records, operations: records, spread: Spread::Uniform, seed: lab.seed, threads };
    let mut best = [0.0f64; 2];
    for round in 1..=lab.scale.rounds() {
        lab.say(&format!("{config:?}, round {round}"));
        let subject = System::ours("PhaST", config).create(&lab.memory(), records, 1024)?;
        let took = turn(&*subject, &work, &[Phase::Insert, Phase::Hit])?;
        for (best, (_, took)) in best.iter_mut().zip(took) {
            *best = best.max(took.mops);
        }
    }
    Ok(best)
}

pub(super) fn figure_15(lab: &mut Lab, figure: &Figure) -> Fallible<Vec<Panel>> {
    let phases = [("insert", Phase::Insert), ("search", Phase::Hit), ("update", Phase::Update)];
    let title = ("a", "keys in a hundredth of the key space, one thread");
    let mut systems = figure.systems.to_vec();
    systems[0] = "PhaST, 1 partition";
    lab.run(&systems, &[Runs::Skewed])?;
    let mut a = by_phase(lab, &systems, title, Runs::Skewed, &phases)?;
    a.series[0].name = figure.systems[0].into();
    let title = ("b", "ten times the records of Figure 7 (50 million at most), one thread");
    let b = by_phase(lab, figure.systems, title, Runs::Tenfold, &phases)?;
    let groups: Vec<&str> = phases.iter().map(|(name, _)| *name).collect();
    let unit = "million operations a second";
    let mut c = Panel::bars("c", "values of 8 to 256 bytes, one thread", unit, &groups);
    for &name in figure.systems {
        lab.say(&format!("{name}, values of 8 to 256 bytes"));
        let records = lab.scale.records() / 2;
        let mops = throughput(&System::named(name), &lab.memory(), records, lab.seed)?;
        c.add_bars(name, false, mops.map(Some).to_vec());
    }
    let mut d = Panel::lines("d", "first result after the process died", "threads", "milliseconds");
    lab.say("PhaST, restart");
    let left = Left::new(Scheme::Phast, lab.scale.records() * 2, &lab.dir)?;
    for threads in [1, 2] {
        d.push("PhaST", false, threads as f64, left.open_ms(threads, lab.scale.rounds() + 2)?);
    }
    Ok(vec![a, b, c, d])
}

pub(super) fn table_3(lab: &mut Lab, _: &Figure) -> Fallible<Vec<Panel>> {
    // The paper's formulas (Table 3), in MiB for 100 million records.
    let records = 1e8f64;
    let bytes =
        |nodes: f64, own: f64| nodes * (own + 8.0 * nodes.log2().ceil()) / f64::from(1 << 20);
    let mut formula =
        Panel::bars("formula", "the paper's formulas, 100 M records", "MiB", &["DRAM"]);
    for (name, mib) in [
        ("skip list", bytes(records / 2.0, 16.0)),
        ("NV-Skiplist", bytes(records / (0.75 * 64.0), 16.0)),
        ("PhaST", bytes(records / (0.75 * 56.0 * 0.75 * 128.0), 3096.0)),
    ] {
        formula.add_bars(name, true, vec![Some(mib)]);
    }
    let mut here = Panel::bars("here", "here", "bytes a record", &["DRAM"]).with_log_y();
    let records = lab.scale.records();
    for name in ["NV-Skiplist", "PhaST"] {
        let subject = System::named(name).create(&Memory::NoFlush, records, 1024)?;
        for number in 0..records {
            let key = Spread::Uniform.key(number);
            subject.insert(key, value(key))?;
        }
        let bytes = subject.dram_bytes()?.map(|bytes| bytes as f64 / records as f64);
        here.add_bars(name, false, vec![bytes]);
    }
    Ok(vec![formula, here])
}
