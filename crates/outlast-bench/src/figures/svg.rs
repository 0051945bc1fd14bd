//! Plots as SVG, drawn by hand: axes with units, a legend below the data, colours from style sheets.
//!
//! Series have the classes `s0` to `s9`; the page gives these their colours, in light and in dark.

use super::panel::{Panel, Series};
use std::fmt::Write;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 46.0;
/// Height of a line of the legend, and the width of a character, for the number of its columns.
const LEGEND_LINE: f64 = 19.0;
const CHARACTER: f64 = 9.6;
/// Number of colours.
const COLOURS: usize = 10;

/// Replaces the characters that mean something in markup.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// An axis from one value to another.
#[derive(Debug, Clone, Copy)]
struct Axis {
    low: f64,
    high: f64,
    log: bool,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64> + Clone, log: bool, from_zero: bool) -> Axis {
        let usable = values.filter(|value| value.is_finite() && (!log || *value > 0.0));
        let low = usable.clone().fold(f64::INFINITY, f64::min);
        let high = usable.fold(f64::NEG_INFINITY, f64::max);
        if low > high {
            return Axis { low: 0.0, high: 1.0, log: false };
        }
        if log {
            let (low, high) = (low.log10(), high.log10());
            let margin = ((high - low) * 0.04).max(0.02);
            return Axis { low: low - margin, high: high + margin, log };
        }
        let low = if from_zero { low.min(0.0) } else { low };
        let high = if high > low { high } else { low + 1.0 };
        Axis { low, high: high + (high - low) * 0.04, log }
    }

    /// Where a value lies, from 0 to 1.
    fn part(self, value: f64) -> f64 {
        let value = if self.log { value.max(1e-12).log10() } else { value };
        (value - self.low) / (self.high - self.low)
    }

    /// Four to ten round values.
    fn ticks(self) -> Vec<f64> {
        if self.log {
            let powers = self.low.floor() as i32..=self.high.ceil() as i32;
            let steps: &[f64] = if self.high - self.low > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let all = powers.flat_map(|power| steps.iter().map(move |s| s * 10f64.powi(power)));
            return all.filter(|&tick| (0.0..=1.0).contains(&self.part(tick))).collect();
        }
        let rough = (self.high - self.low) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|s| s * power).find(|s| *s >= rough);
        let step = step.unwrap_or(rough);
        let first = (self.low / step).ceil() as i64;
        (first..).map(|i| i as f64 * step).take_while(|tick| *tick <= self.high).collect()
    }
}

/// Writes a number as short as it can be.
pub fn number(value: f64) -> String {
    let magnitude = value.abs();
    let text = match magnitude {
        0.0 => return "0".into(),
        m if m >= 1e6 => return format!("{} M", trimmed(format!("{:.2}", value / 1e6))),
        m if m >= 1e4 => return format!("{} k", trimmed(format!("{:.1}", value / 1e3))),
        m if m >= 100.0 => format!("{value:.0}"),
        m if m >= 10.0 => format!("{value:.1}"),
        m if m >= 0.1 => format!("{value:.2}"),
        m if m >= 0.001 => format!("{value:.4}"),
        _ => return format!("{value:.1e}"),
    };
    trimmed(text)
}

fn trimmed(text: String) -> String {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

/// Draws a panel.
pub fn draw(panel: &Panel) -> String {
    let is_bars = !panel.groups.is_empty();
    let values = panel.series.iter().flat_map(|s| s.points.iter().map(|point| point.1));
    let y = Axis::of(values, panel.log_y, true);
    let entries = legend_entries(panel);
    let columns = {
        let length = |entry: &(String, String)| entry.1.chars().count();
        let longest = entries.iter().map(length).max().unwrap_or(1);
        (((WIDTH - 20.0) / (longest as f64 * CHARACTER + 26.0)) as usize).clamp(1, 4)
    };
    let legend = entries.len().div_ceil(columns) as f64 * LEGEND_LINE + 8.0;
    let height = HEIGHT + legend;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\" \
         xmlns=\"http://www.w3.org/2000/svg\">",
        escaped(&panel.title)
    );
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let at_y = |value: f64| bottom - y.part(value).clamp(0.0, 1.0) * (bottom - TOP);
    for tick in y.ticks() {
        let at = at_y(tick);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            at + 4.0,
            number(tick)
        );
    }
    let _ = write!(
        svg,
        "<text class=\"axis\" transform=\"translate(14 {:.1}) rotate(-90)\" \
         text-anchor=\"middle\">{}</text>",
        (TOP + bottom) / 2.0,
        escaped(&panel.y)
    );
    let _ = write!(
        svg,
        "<text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 8.0,
        escaped(&panel.x)
    );
    if is_bars {
        bars(&mut svg, panel, &at_y, (bottom, right));
    } else {
        lines(&mut svg, panel, &at_y, (bottom, right));
    }
    let _ = write!(
        svg,
        "<line class=\"frame\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{bottom}\" y2=\"{bottom}\"/>\
         <line class=\"frame\" x1=\"{LEFT}\" x2=\"{LEFT}\" y1=\"{TOP}\" y2=\"{bottom}\"/>"
    );
    let width = (WIDTH - 20.0) / columns as f64;
    for (i, (class, text)) in entries.iter().enumerate() {
        let x = 12.0 + (i % columns) as f64 * width;
        let y = HEIGHT + 14.0 + (i / columns) as f64 * LEGEND_LINE;
        let mark = match class.as_str() {
            RING => format!(
                "<circle class=\"{RING}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\"/>",
                x + 7.0,
                y - 4.0
            ),
            class => format!(
                "<rect class=\"fill {class}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"14\" height=\"10\"/>",
                y - 9.0
            ),
        };
        let _ = write!(
            svg,
            "{mark}<text class=\"legend\" x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
            x + 20.0,
            escaped(text)
        );
    }
    svg.push_str("</svg>");
    svg
}

/// The classes of the mark of points that were measured beside a model.
const RING: &str = "ring beside";

/// The entries of the legend: the classes of the mark, and the text. Measured points beside a model have
/// one entry together, because their colours are those of the model.
fn legend_entries(panel: &Panel) -> Vec<(String, String)> {
    let is_beside = |series: &&Series| series.name.contains(", measured");
    let entry = |series: &Series| match series.model {
        true => (format!("{} model", class(panel, series)), format!("{} (model)", series.name)),
        false => (class(panel, series), series.name.clone()),
    };
    let mut entries: Vec<_> = panel.series.iter().filter(|s| !is_beside(s)).map(entry).collect();
    if panel.series.iter().any(|series| is_beside(&series)) {
        entries.push((RING.into(), "measured here".into()));
    }
    entries
}

/// A system has one colour in all of its series in a panel.
fn class(panel: &Panel, series: &Series) -> String {
    let system = |series: &Series| series.name.split(", measured").next().map(str::to_owned);
    let mut names = Vec::new();
    for series in &panel.series {
        let name = system(series);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let number = names.iter().position(|name| *name == system(series)).unwrap_or(0);
    format!("s{}", number % COLOURS)
}

fn bars(svg: &mut String, panel: &Panel, at_y: &dyn Fn(f64) -> f64, (bottom, right): (f64, f64)) {
    let group_width = (right - LEFT) / panel.groups.len() as f64;
    let width = (group_width * 0.84 / panel.series.len().max(1) as f64).min(46.0);
    for (i, group) in panel.groups.iter().enumerate() {
        let middle = LEFT + (i as f64 + 0.5) * group_width;
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 17.0,
            escaped(group)
        );
        let first = middle - width * panel.series.len() as f64 / 2.0;
        for (j, series) in panel.series.iter().enumerate() {
            let Some(point) = series.points.iter().find(|point| point.0 == i as f64) else {
                continue;
            };
            let top = at_y(point.1);
            let _ = write!(
                svg,
                "<rect class=\"fill {}{}\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" \
                 height=\"{:.1}\"><title>{}, {}: {}</title></rect>",
                class(panel, series),
                if series.model { " model" } else { "" },
                first + j as f64 * width,
                (width - 1.5).max(1.0),
                (bottom - top).max(0.5),
                escaped(&series.name),
                escaped(group),
                number(point.1)
            );
        }
    }
}

fn lines(svg: &mut String, panel: &Panel, at_y: &dyn Fn(f64) -> f64, (bottom, right): (f64, f64)) {
    let positions = panel.series.iter().flat_map(|s| s.points.iter().map(|point| point.0));
    let x = Axis::of(positions, panel.log_x, false);
    let at_x = |value: f64| LEFT + x.part(value).clamp(0.0, 1.0) * (right - LEFT);
    for tick in x.ticks() {
        let at = at_x(tick);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
             <text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 17.0,
            number(tick)
        );
    }
    for series in &panel.series {
        let class = class(panel, series);
        let points: Vec<(f64, f64)> =
            series.points.iter().map(|point| (at_x(point.0), at_y(point.1))).collect();
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let dashed = if series.model { " model" } else { "" };
        let beside = series.name.contains(", measured");
        if !beside {
            let _ = write!(
                svg,
                "<polyline class=\"line {class}{dashed}\" points=\"{}\"/>",
                path.join(" ")
            );
        }
        // Long series are curves; a mark at each point would hide them.
        if points.len() <= 16 {
            for ((x, y), point) in points.iter().zip(&series.points) {
                let _ = write!(
                    svg,
                    "<circle class=\"{} {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{}\"><title>{}, {}: \
                     {}</title></circle>",
                    if beside { "ring" } else { "fill" },
                    if beside { 5 } else { 3 },
                    escaped(&series.name),
                    number(point.0),
                    number(point.1)
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let axis = Axis::of([0.0, 9.3].into_iter(), false, true);
        assert_eq!(axis.ticks(), [0.0, 2.0, 4.0, 6.0, 8.0]);
        let axis = Axis::of([1.0, 36.0].into_iter(), true, false);
        assert_eq!(axis.ticks(), [1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(number(1_234_567.0), "1.23 M");
        assert_eq!([number(0.05), number(2.0), number(12_000.0)], ["0.05", "2", "12 k"]);
    }

    #[test]
    fn a_plot_has_a_mark_for_each_value_and_no_raw_text() {
        let mut panel = Panel::bars("a", "a < b", "Mops", &["x & y", "z"]);
        panel.add_bars("one", false, vec![Some(1.0), None]);
        panel.add_bars("two", true, vec![Some(2.0), Some(3.0)]);
        let svg = draw(&panel);
        assert_eq!(svg.matches("<title>").count(), 3);
        assert!(
            svg.contains("a &lt; b") && svg.contains("x &amp; y") && svg.contains("two (model)")
        );
        let mut panel = Panel::lines("", "t", "threads", "Mops");
        panel.add("one", true, vec![(1.0, 1.0), (2.0, 2.0)]);
        panel.add("one, measured here", false, vec![(1.0, 1.1)]);
        let svg = draw(&panel);
        let marks = (svg.matches("<polyline").count(), svg.matches("<circle").count());
        assert_eq!(marks, (1, 4), "three points, and the ring in the legend");
        assert!(!svg.contains("s1"), "one system, one colour");
    }

    #[test]
    fn a_panel_without_values_is_drawn() {
        let svg = draw(&Panel::lines("", "t", "x", "y"));
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>") && !svg.contains("NaN"));
    }
}
