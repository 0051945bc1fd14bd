//! The catalogue: the 58 measured figures and tables of the five papers, a row each.

mod clevel;
mod dash;
mod group;
mod phast;
mod shared;
mod thesis;

use super::claim::{Claim, Is, Test};
use super::lab::{Lab, Runs};
use super::panel::Panel;
use crate::Fallible;
use serde::Serialize;

/// A paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Paper {
    /// Chen et al., clevel hashing, USENIX ATC 2020.
    Clevel,
    /// Cepeda Chavez, EA-PHT, master's thesis, 2020.
    Thesis,
    /// Lu et al., Dash, VLDB 2020 (the short revision).
    Dash,
    /// Zhang et al., group hashing, ICPP 2018.
    Group,
    /// Li et al., PhaST, IEEE TPDS 2022.
    Phast,
}

impl Paper {
    /// All of them.
    pub const ALL: [Paper; 5] =
        [Paper::Clevel, Paper::Thesis, Paper::Dash, Paper::Group, Paper::Phast];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Paper::Clevel => "clevel hashing (ATC 2020)",
            Paper::Thesis => "EA-PHT (thesis, 2020)",
            Paper::Dash => "Dash (VLDB 2020)",
            Paper::Group => "group hashing (ICPP 2018)",
            Paper::Phast => "PhaST (TPDS 2022)",
        }
    }
}

/// How a figure is shown here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Way {
    /// Exact counts.
    Counts,
    /// Ratios of times measured on this machine, with one and two threads.
    Ratio,
    /// A model of a cache over a recorded run.
    CacheModel,
    /// The model of threads and of the medium, with measured points in the same plot.
    TimeModel,
    /// Not at all.
    NotHere,
}

impl Way {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Way::Counts => "counts",
            Way::Ratio => "measured ratio",
            Way::CacheModel => "cache model",
            Way::TimeModel => "time model",
            Way::NotHere => "not here",
        }
    }
}

/// Draws the panels of a figure.
pub type Draw = fn(&mut Lab, &Figure) -> Fallible<Vec<Panel>>;

/// A figure or a table of a paper.
pub struct Figure {
    /// Its name on the command line.
    pub id: &'static str,
    /// Its paper.
    pub paper: Paper,
    /// Its number in the paper.
    pub place: &'static str,
    /// The section that describes it.
    pub section: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// The systems that are compared.
    pub systems: &'static [&'static str],
    /// The workload, in the paper's size.
    pub workload: &'static str,
    /// How it is shown here.
    pub way: Way,
    /// The runs that it needs of all its systems.
    pub runs: &'static [Runs],
    /// What the paper concludes.
    pub claims: &'static [Claim],
    /// Draws it. `None` if it cannot be shown here.
    pub draw: Option<Draw>,
    /// What differs from the paper's set-up here, and what that may change; why it cannot be shown.
    pub note: &'static str,
}

/// Returns all figures, in the papers' order.
pub fn all() -> Vec<&'static Figure> {
    let parts: [&'static [Figure]; 5] =
        [clevel::FIGURES, thesis::FIGURES, dash::FIGURES, group::FIGURES, phast::FIGURES];
    parts.into_iter().flatten().collect()
}

/// Returns the figure of an id, and the letter of the panel if the id ends in one: `dash-8a`.
pub fn find(id: &str) -> Option<(&'static Figure, Option<char>)> {
    let named = |id: &str| all().into_iter().find(|figure| figure.id == id);
    if let Some(figure) = named(id) {
        return Some((figure, None));
    }
    let letter = id.chars().last().filter(char::is_ascii_lowercase)?;
    Some((named(&id[..id.len() - 1])?, Some(letter)))
}

// Claims are written with these.

const fn claim(
    panel: &'static str,
    says: &'static str,
    test: Test,
    is: Is,
    paper: Option<f64>,
) -> Claim {
    Claim { says, panel, test, is, paper }
}

/// The first is greater than the second.
const fn more(
    panel: &'static str,
    says: &'static str,
    (a, b, at): (&'static str, &'static str, &'static str),
    paper: Option<f64>,
) -> Claim {
    claim(panel, says, Test::Ratio(a, b, at), Is::AtLeast(1.0), paper)
}

/// The first is less than the second.
const fn less(
    panel: &'static str,
    says: &'static str,
    (a, b, at): (&'static str, &'static str, &'static str),
    paper: Option<f64>,
) -> Claim {
    claim(panel, says, Test::Ratio(a, b, at), Is::AtMost(1.0), paper)
}

/// They are about the same.
const fn same(
    panel: &'static str,
    says: &'static str,
    (a, b, at): (&'static str, &'static str, &'static str),
    paper: Option<f64>,
) -> Claim {
    claim(panel, says, Test::Ratio(a, b, at), Is::Between(0.7, 1.4), paper)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::subject::System;
    use std::collections::HashSet;

    #[test]
    fn there_are_58_figures_with_names_of_their_own() {
        let figures = all();
        assert_eq!(figures.len(), 58);
        let ids: HashSet<&str> = figures.iter().map(|figure| figure.id).collect();
        assert_eq!(ids.len(), 58);
        let of = |paper| figures.iter().filter(|figure| figure.paper == paper).count();
        assert_eq!(Paper::ALL.map(of), [9, 26, 5, 6, 12]);
    }

    #[test]
    fn a_figure_has_claims_or_a_reason_and_its_systems_exist() {
        for figure in all() {
            assert_eq!(figure.draw.is_some(), !figure.claims.is_empty(), "{}", figure.id);
            assert_eq!(figure.draw.is_none(), figure.way == Way::NotHere, "{}", figure.id);
            assert!(figure.draw.is_some() || !figure.note.is_empty(), "{}", figure.id);
            for name in figure.systems {
                assert!(figure.runs.is_empty() || System::named(name).name == *name);
            }
        }
    }

    #[test]
    fn a_letter_names_a_panel() {
        assert!(matches!(find("dash-8a"), Some((Figure { id: "dash-8", .. }, Some('a')))));
        assert!(matches!(find("dash-8"), Some((Figure { id: "dash-8", .. }, None))));
        assert!(matches!(find("thesis-5.9"), Some((_, None))));
        assert!(find("dash-80").is_none() && find("a").is_none() && find("").is_none());
    }
}
