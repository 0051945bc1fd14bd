//! Panels that several figures have.

use super::Figure;
use crate::Fallible;
use crate::figures::lab::{Lab, Runs};
use crate::figures::panel::Panel;
use crate::figures::subject::plain_name;
use crate::figures::turns::Phase;

/// The runs of figures whose threads are modelled.
pub(super) const MODELLED: &[Runs] = &[Runs::Flushed(1), Runs::Flushed(2), Runs::Unflushed];
/// The runs of figures of one thread.
pub(super) const SINGLE: &[Runs] = &[Runs::Flushed(1)];

/// The name of the measured series of a system beside its model.
pub(super) fn measured(name: &str) -> String {
    format!("{}, measured here", plain_name(name))
}

/// Throughput by the number of threads: computed with the model for `threads`, and measured with one and two.
pub(super) fn by_threads(
    lab: &mut Lab,
    figure: &Figure,
    (id, title): (&str, &str),
    phase: Phase,
    threads: &[f64],
    modules: f64,
) -> Fallible<Panel> {
    let mut panel = Panel::lines(id, title, "threads", "million operations a second");
    for &name in figure.systems {
        let scaling = lab.scaling(name, phase, modules)?;
        let modelled = threads.iter().map(|&n| (n, scaling.mops(n))).collect();
        panel.add(plain_name(name), true, modelled);
        let points = [1, 2].map(|n| lab.mops(name, Runs::Flushed(n), phase).map(|y| (n as f64, y)));
        let points = points.into_iter().collect::<Fallible<Vec<_>>>()?;
        panel.add(&measured(name), false, points);
    }
    Ok(panel)
}

/// Throughput of one thread in several phases, measured.
pub(super) fn by_phase(
    lab: &mut Lab,
    systems: &[&str],
    (id, title): (&str, &str),
    runs: Runs,
    phases: &[(&str, Phase)],
) -> Fallible<Panel> {
    let groups: Vec<&str> = phases.iter().map(|(name, _)| *name).collect();
    let mut panel = Panel::bars(id, title, "million operations a second", &groups);
    for &name in systems {
        let values = phases.iter().map(|&(_, phase)| lab.mops(name, runs, phase).map(Some));
        panel.add_bars(plain_name(name), false, values.collect::<Fallible<Vec<_>>>()?);
    }
    Ok(panel)
}

/// Values of the model in several phases, with so many threads: throughput, or the latency of an
/// operation in nanoseconds.
pub(super) fn modelled_phases(
    lab: &mut Lab,
    figure: &Figure,
    (id, title): (&str, &str),
    phases: &[(&str, Phase)],
    (threads, modules): (f64, f64),
    latency: bool,
) -> Fallible<Panel> {
    let groups: Vec<&str> = phases.iter().map(|(name, _)| *name).collect();
    let unit = if latency { "nanoseconds" } else { "million operations a second" };
    let mut panel = Panel::bars(id, title, unit, &groups);
    for &name in figure.systems {
        let mut values = Vec::new();
        for &(_, phase) in phases {
            let scaling = lab.scaling(name, phase, modules)?;
            let value = if latency { scaling.latency_ns(threads) } else { scaling.mops(threads) };
            values.push(Some(value));
        }
        panel.add_bars(plain_name(name), true, values);
    }
    Ok(panel)
}
