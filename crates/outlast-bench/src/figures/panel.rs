//! The data of a plot: panels with series of points.

use serde::{Deserialize, Serialize};

/// One plot of a figure.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Panel {
    /// The letter of the panel in the paper, or an empty text.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// The label of the horizontal axis.
    pub x: String,
    /// The label of the vertical axis, with its unit.
    pub y: String,
    /// Whether points lie in groups with names; otherwise, positions are numbers.
    pub groups: Vec<String>,
    /// Whether the horizontal axis is logarithmic.
    pub log_x: bool,
    /// Whether the vertical axis is logarithmic.
    pub log_y: bool,
    /// The series.
    pub series: Vec<Series>,
}

/// The values of one system, or of one part of a plot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Whether the values come from a model and not from a measurement or a count.
    pub model: bool,
    /// Position and value. In a panel with groups, the position is the number of the group.
    pub points: Vec<(f64, f64)>,
}

impl Panel {
    /// Creates a panel of bars in named groups.
    pub fn bars(id: &str, title: &str, y: &str, groups: &[&str]) -> Panel {
        Panel {
            id: id.into(),
            title: title.into(),
            x: String::new(),
            y: y.into(),
            groups: groups.iter().map(|&group| group.into()).collect(),
            log_x: false,
            log_y: false,
            series: Vec::new(),
        }
    }

    /// Creates a panel of lines.
    pub fn lines(id: &str, title: &str, x: &str, y: &str) -> Panel {
        Panel { x: x.into(), ..Panel::bars(id, title, y, &[]) }
    }

    /// The same panel with a logarithmic horizontal axis.
    #[must_use]
    pub fn with_log_x(self) -> Panel {
        Panel { log_x: true, ..self }
    }

    /// The same panel with a logarithmic vertical axis.
    #[must_use]
    pub fn with_log_y(self) -> Panel {
        Panel { log_y: true, ..self }
    }

    /// Adds a series.
    pub fn add(&mut self, name: &str, model: bool, points: Vec<(f64, f64)>) {
        self.series.push(Series { name: name.into(), model, points });
    }

    /// Adds the values of a series for all groups.
    pub fn add_bars(&mut self, name: &str, model: bool, values: Vec<Option<f64>>) {
        let points = values.into_iter().enumerate();
        let points = points.filter_map(|(i, value)| value.map(|value| (i as f64, value)));
        self.add(name, model, points.collect());
    }

    /// Adds one value of a series, which is made if it is not there.
    pub fn push(&mut self, name: &str, model: bool, x: f64, y: f64) {
        match self.series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push((x, y)),
            None => self.add(name, model, vec![(x, y)]),
        }
    }

    /// Returns the series of a name.
    pub fn series(&self, name: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.name == name)
    }

    /// Returns the position of a group, or the number that the text says. An empty text means the
    /// last position of the series.
    pub fn position(&self, at: &str, series: &Series) -> Option<f64> {
        if at.is_empty() {
            return series.points.last().map(|point| point.0);
        }
        let group = self.groups.iter().position(|group| group == at);
        group.map(|i| i as f64).or_else(|| at.parse().ok())
    }

    /// Returns a value of a series.
    pub fn value(&self, name: &str, at: &str) -> Option<f64> {
        let series = self.series(name)?;
        let x = self.position(at, series)?;
        series.points.iter().find(|point| (point.0 - x).abs() < 1e-9).map(|point| point.1)
    }

    /// Whether a series of this panel comes from a model.
    pub fn has_model(&self) -> bool {
        self.series.iter().any(|series| series.model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_group_and_by_number() {
        let mut bars = Panel::bars("", "t", "y", &["insert", "hit"]);
        bars.add_bars("a", false, vec![None, Some(2.0)]);
        assert_eq!((bars.value("a", "hit"), bars.value("a", "insert")), (Some(2.0), None));
        assert_eq!(bars.value("a", ""), Some(2.0));
        let mut lines = Panel::lines("", "t", "threads", "y");
        lines.push("b", true, 1.0, 5.0);
        lines.push("b", true, 24.0, 7.0);
        assert_eq!((lines.value("b", "24"), lines.value("b", "")), (Some(7.0), Some(7.0)));
        assert!(lines.has_model() && !bars.has_model());
    }
}
