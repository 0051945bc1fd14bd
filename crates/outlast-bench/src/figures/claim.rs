//! The claims of the papers as inequalities over the data of plots, and their verdicts.

use super::panel::Panel;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A claim of a paper.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    /// What the paper says, in our words.
    pub says: &'static str,
    /// The letter of the panel whose data decide.
    pub panel: &'static str,
    /// How the tested number follows from the data.
    pub test: Test,
    /// The condition that this number must meet.
    pub is: Is,
    /// The number that the paper prints for it.
    pub paper: Option<f64>,
}

/// A number that follows from the data of a panel.
#[derive(Debug, Clone, Copy)]
pub enum Test {
    /// The value of the first series divided by that of the second, at a position.
    Ratio(&'static str, &'static str, &'static str),
    /// A value.
    Value(&'static str, &'static str),
    /// The greatest value of a series.
    Peak(&'static str),
    /// The least value of a series after the first quarter of its points.
    Low(&'static str),
    /// The value of a series at one position divided by that at another.
    Across(&'static str, &'static str, &'static str),
    /// The value of a series divided by the greatest of all other series, at a position.
    AgainstBest(&'static str, &'static str),
    /// The value of a series divided by the least of all other series, at a position.
    AgainstLeast(&'static str, &'static str),
    /// The position of a series' greatest value.
    PeakAt(&'static str),
}

/// A condition on a number.
#[derive(Debug, Clone, Copy)]
pub enum Is {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
    /// From the first to the second.
    Between(f64, f64),
}

impl Is {
    fn holds(self, number: f64) -> bool {
        match self {
            Is::AtLeast(least) => number >= least,
            Is::AtMost(most) => number <= most,
            Is::Between(least, most) => (least..=most).contains(&number),
        }
    }
}

impl fmt::Display for Is {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Is::AtLeast(least) => write!(f, "at least {least}"),
            Is::AtMost(most) => write!(f, "at most {most}"),
            Is::Between(least, most) => write!(f, "{least} to {most}"),
        }
    }
}

/// A claim with what came out.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Check {
    /// What the paper says.
    pub says: String,
    /// The tested quantity.
    pub quantity: String,
    /// The condition that it had to meet.
    pub wanted: String,
    /// The paper's number.
    pub paper: Option<f64>,
    /// Ours; `None` if a value is missing, and then the claim does not hold.
    pub ours: Option<f64>,
    /// Ours divided by the paper's: the error of a model, the distance of a measurement.
    pub of_paper: Option<f64>,
    /// Whether the claim holds here.
    pub holds: bool,
    /// Whether a model's values decided.
    pub model: bool,
}

impl Claim {
    /// Tests the claim on the panels of its figure.
    pub fn check(&self, panels: &[Panel]) -> Check {
        let panel = panels.iter().find(|panel| panel.id == self.panel);
        let ours = panel.and_then(|panel| self.test.number(panel)).filter(|n| n.is_finite());
        let model = panel.is_some_and(|panel| self.test.rests_on_model(panel));
        let paper = self.paper.filter(|&paper| paper != 0.0);
        let of_paper = ours.zip(paper).map(|(ours, paper)| super::significant(ours / paper));
        Check {
            says: self.says.into(),
            quantity: self.quantity(),
            wanted: self.is.to_string(),
            paper: self.paper,
            ours: ours.map(super::significant),
            of_paper,
            holds: ours.is_some_and(|ours| self.is.holds(ours)),
            model,
        }
    }

    fn quantity(&self) -> String {
        let at = |at: &str| if at.is_empty() { String::new() } else { format!(" ({at})") };
        let text = match self.test {
            Test::Ratio(a, b, x) => format!("{a} / {b}{}", at(x)),
            Test::Value(a, x) => format!("{a}{}", at(x)),
            Test::Peak(a) => format!("peak of {a}"),
            Test::Low(a) => format!("low of {a}"),
            Test::Across(a, x, y) => format!("{a}: {x} / {y}"),
            Test::AgainstBest(a, x) => format!("{a} / greatest of the others{}", at(x)),
            Test::AgainstLeast(a, x) => format!("{a} / least of the others{}", at(x)),
            Test::PeakAt(a) => format!("position of the peak of {a}"),
        };
        if self.panel.is_empty() { text } else { format!("{}: {text}", self.panel) }
    }
}

impl Test {
    fn number(self, panel: &Panel) -> Option<f64> {
        let others = |name: &'static str, at: &'static str| {
            let all = panel.series.iter().filter(move |series| series.name != name);
            all.filter_map(move |series| panel.value(&series.name, at))
        };
        let values = |name: &str, skip: usize| {
            let points = &panel.series(name)?.points;
            Some(points[points.len() / 4 * skip..].iter().map(|point| point.1).collect::<Vec<_>>())
        };
        match self {
            Test::Ratio(a, b, at) => Some(panel.value(a, at)? / panel.value(b, at)?),
            Test::Value(a, at) => panel.value(a, at),
            Test::Peak(a) => values(a, 0)?.into_iter().reduce(f64::max),
            Test::Low(a) => values(a, 1)?.into_iter().reduce(f64::min),
            Test::Across(a, x, y) => Some(panel.value(a, x)? / panel.value(a, y)?),
            Test::AgainstBest(a, at) => Some(panel.value(a, at)? / others(a, at).reduce(f64::max)?),
            Test::AgainstLeast(a, at) => {
                Some(panel.value(a, at)? / others(a, at).reduce(f64::min)?)
            }
            Test::PeakAt(a) => {
                let points = &panel.series(a)?.points;
                points.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|point| point.0)
            }
        }
    }

    fn rests_on_model(self, panel: &Panel) -> bool {
        let of = |name: &str| panel.series(name).is_some_and(|series| series.model);
        match self {
            Test::Ratio(a, b, _) => of(a) || of(b),
            Test::AgainstBest(..) | Test::AgainstLeast(..) => panel.has_model(),
            Test::Value(a, _)
            | Test::Peak(a)
            | Test::Low(a)
            | Test::Across(a, ..)
            | Test::PeakAt(a) => of(a),
        }
    }
}

/// What came out for a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// All claims hold.
    Agrees,
    /// A claim does not.
    Differs,
    /// It cannot be shown on this machine.
    NotHere,
}

impl Verdict {
    /// The verdict of a figure with these checks. A figure without any cannot be shown.
    pub fn of(checks: &[Check]) -> Verdict {
        match checks {
            [] => Verdict::NotHere,
            checks if checks.iter().all(|check| check.holds) => Verdict::Agrees,
            _ => Verdict::Differs,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Agrees => "agrees",
            Verdict::Differs => "differs",
            Verdict::NotHere => "not here",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panels() -> Vec<Panel> {
        let mut panel = Panel::lines("a", "t", "threads", "Mops");
        panel.add("x", false, vec![(1.0, 2.0), (2.0, 6.0), (3.0, 5.0), (4.0, 4.0)]);
        panel.add("y", true, vec![(1.0, 4.0), (2.0, 3.0), (3.0, 1.0), (4.0, 2.0)]);
        vec![panel]
    }

    fn check(test: Test, is: Is) -> (Option<f64>, bool, bool) {
        let claim = Claim { says: "", panel: "a", test, is, paper: Some(2.0) };
        let check = claim.check(&panels());
        (check.ours, check.holds, check.model)
    }

    #[test]
    fn numbers_follow_from_the_points() {
        let any = Is::AtLeast(0.0);
        assert_eq!(check(Test::Ratio("x", "y", "1"), Is::AtLeast(1.0)), (Some(0.5), false, true));
        assert_eq!(check(Test::Ratio("x", "y", ""), Is::AtLeast(1.0)), (Some(2.0), true, true));
        assert_eq!(check(Test::Peak("x"), Is::AtMost(6.0)), (Some(6.0), true, false));
        assert_eq!(check(Test::Low("y"), any), (Some(1.0), true, true));
        assert_eq!(check(Test::PeakAt("x"), Is::Between(2.0, 2.0)), (Some(2.0), true, false));
        assert_eq!(check(Test::Across("x", "4", "1"), any), (Some(2.0), true, false));
        assert_eq!(check(Test::AgainstBest("x", "2"), any), (Some(2.0), true, true));
        assert_eq!(check(Test::Value("x", "9"), any), (None, false, false), "a missing value");
    }

    #[test]
    fn one_claim_that_fails_makes_the_figure_differ() {
        let claim = |least| Claim {
            says: "",
            panel: "a",
            test: Test::Peak("x"),
            is: Is::AtLeast(least),
            paper: Some(3.0),
        };
        let [good, bad] = [6.0, 7.0].map(|least| claim(least).check(&panels()));
        assert_eq!(good.of_paper, Some(2.0));
        let of_none = Claim { paper: Some(0.0), ..claim(6.0) }.check(&panels());
        assert_eq!((of_none.paper, of_none.of_paper), (Some(0.0), None));
        assert_eq!(Verdict::of(&[]), Verdict::NotHere);
        assert_eq!(Verdict::of(std::slice::from_ref(&good)), Verdict::Agrees);
        assert_eq!(Verdict::of(&[good, bad]), Verdict::Differs);
    }
}
