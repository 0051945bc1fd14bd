//! Searches for a fault in a run with a flush or fence done wrong.

use super::crash::{Scratch, check_cut};
use super::image::Setting;
use super::recording::{Recording, is_flush_or_fence};
use super::violation::{Place, Violation, minimise};
use crate::model::{Kept, windows};
use crate::parts::scenario::Scenario;
use crate::random::Random;
use outlast::internals::pmem::{Alive, Event};
use std::sync::Arc;

/// How many images a search for one violation may check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// In total.
    pub images: usize,
    /// At one moment.
    pub per_window: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { images: 3_000, per_window: 8 }
    }
}

/// The result of a search for one violation.
#[derive(Debug, Clone)]
pub struct Searched {
    /// Images checked.
    pub images: usize,
    /// Whether the limit ended the search.
    pub ended_early: bool,
    /// The first violation.
    pub violation: Option<Violation>,
}

/// Checks images that a mutated trace of a run allows and the original trace does not, until one
/// breaks the contract.
///
/// `mutated` has the stores and marks of the run in their order; flushes and fences may be missing,
/// shorter, or elsewhere. An image is new if some line keeps fewer stores than were durable in the
/// original trace after as many stores and marks.
pub fn first_violation_of(
    scenario: &Scenario,
    original: &Recording,
    mutated: Vec<Event>,
    limits: Limits,
    alive: &Arc<Alive>,
) -> Searched {
    let run = original.with_events(mutated);
    let setting = Setting::of(scenario, &run, alive);
    let (mut now, mut before) = (run.timeline(), original.timeline());
    let first = run.first();
    let mut scratch = Scratch::default();
    let mut random = Random::new(0);
    let mut searched = Searched { images: 0, ended_early: false, violation: None };
    let rest = |events: &[Event]| events.iter().filter(|e| !is_flush_or_fence(e)).count();
    for moment in windows(&run.events).into_iter().filter(|&m| m >= first) {
        // Advance the original to the earliest moment with as many stores and marks, because the
        // fewest stores were durable then.
        let mut left = rest(&run.events[now.moment()..moment]);
        now.advance(moment);
        let mut until = before.moment();
        while left > 0 {
            left -= usize::from(!is_flush_or_fence(&original.events[until]));
            until += 1;
        }
        before.advance(until);
        let lines: Vec<(Kept, usize)> = now
            .open()
            .map(|open| {
                let undurable = before.line(open.line).map_or(0, |o| o.stores.len());
                let below = open.stores.len().saturating_sub(undurable);
                (Kept { line: open.line, stores: open.stores.len() }, below)
            })
            .collect();
        let below: Vec<usize> = (0..lines.len()).filter(|&i| lines[i].1 > 0).collect();
        if below.is_empty() {
            continue;
        }
        let allowed = run.allowed(moment);
        for number in 0..limits.per_window {
            if searched.images >= limits.images {
                searched.ended_early = true;
                return searched;
            }
            // At least one line keeps less than it must. All, none or some of the other lines
            // survive.
            let target = below[random.below(below.len() as u64) as usize];
            let cut: Vec<Kept> = lines
                .iter()
                .enumerate()
                .map(|(i, &(kept, below))| {
                    let any = random.below(kept.stores as u64 + 1) as usize;
                    let stores = match number % 4 {
                        _ if i == target && number < 2 => 0,
                        _ if i == target => random.below(below as u64) as usize,
                        0 => kept.stores,
                        1 => 0,
                        2 if random.below(4) > 0 => kept.stores,
                        _ => any,
                    };
                    Kept { stores, ..kept }
                })
                .collect();
            let mut found = None;
            check_cut(setting, &now, &allowed, &cut, &mut scratch, &mut |looked| {
                searched.images += 1;
                if let Err(fault) = looked.result {
                    found = Some((looked.crash, fault));
                }
                true
            });
            if let Some((crash, fault)) = found {
                let (crash, fault) = minimise(setting, &now, &allowed, crash, fault);
                let place = Place { scenario, round: 0, parent: None };
                searched.violation = Some(place.violation(Some((&run, &now, crash)), &fault));
                return searched;
            }
        }
    }
    searched
}
