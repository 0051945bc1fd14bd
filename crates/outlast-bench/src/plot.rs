//! Plots: for a `micro` run, throughput bars by phase and latency curves by percentile; for
//! `load-factor`, a curve per table. PNG, or SVG if the file's name ends with `.svg`.

use crate::Fallible;
use crate::load_factor::Sample;
use crate::micro::{Distributions, Phase, Row};
use crate::report::thousands;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::path::Path;

/// The rows for one number of threads.
struct Panel<'r> {
    threads: usize,
    rows: Vec<&'r Row>,
}

const WIDTH: u32 = 1500;
const BARS_HEIGHT: u32 = 460;
const CURVES_HEIGHT: u32 = 430;
/// The legend is next to the bars, so that it covers none.
const LEGEND_WIDTH: u32 = 130;
const LEGEND_TOP: i32 = 52;
const LEGEND_LINE: i32 = 22;
/// The phases whose latency curves are drawn.
const CURVES: [Phase; 3] = [Phase::Insert, Phase::GetHit, Phase::Update];
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 90, 160),
    RGBColor(230, 120, 20),
    RGBColor(60, 150, 60),
    RGBColor(150, 80, 160),
    RGBColor(120, 120, 120),
    RGBColor(200, 40, 60),
    RGBColor(0, 160, 170),
    RGBColor(140, 100, 50),
];

/// Draws a run into a file.
///
/// # Errors
/// If there is nothing to draw, or if the file cannot be written.
pub fn draw(path: &Path, rows: &[Row], latencies: &Distributions, title: &str) -> Fallible {
    let mut threads: Vec<usize> = rows.iter().map(|row| row.threads).collect();
    threads.sort_unstable();
    threads.dedup();
    let panels: Vec<Panel<'_>> = threads
        .into_iter()
        .map(|threads| Panel {
            threads,
            rows: rows.iter().filter(|row| row.threads == threads).collect(),
        })
        .collect();
    if panels.is_empty() {
        return Err("nothing to plot".into());
    }
    let height = (BARS_HEIGHT + CURVES_HEIGHT) * panels.len() as u32;
    to_file(path, height, &Run { panels, latencies, title })
}

/// A figure that can be drawn on any backend.
trait Figure {
    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Fallible
    where
        B::ErrorType: 'static;
}

fn to_file(path: &Path, height: u32, figure: &impl Figure) -> Fallible {
    register_font("sans-serif", FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT)
        .map_err(|_| "the font of plots cannot be read")?;
    let size = (WIDTH, height);
    if path.extension().is_some_and(|extension| extension == "svg") {
        figure.draw(&SVGBackend::new(path, size).into_drawing_area())
    } else {
        figure.draw(&BitMapBackend::new(path, size).into_drawing_area())
    }
}

struct Run<'r> {
    panels: Vec<Panel<'r>>,
    latencies: &'r Distributions,
    title: &'r str,
}

impl Figure for Run<'_> {
    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Fallible
    where
        B::ErrorType: 'static,
    {
        let Run { panels, latencies, title } = self;
        draw_all(area, panels, latencies, title)
    }
}

/// Draws into a file how full each table was while it grew.
///
/// # Errors
/// Those of [`draw`].
pub fn draw_load_factor(path: &Path, samples: &[Sample], title: &str) -> Fallible {
    if samples.is_empty() {
        return Err("nothing to plot".into());
    }
    to_file(path, CURVES_HEIGHT, &Growth { samples, title })
}

struct Growth<'r> {
    samples: &'r [Sample],
    title: &'r str,
}

impl Figure for Growth<'_> {
    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Fallible
    where
        B::ErrorType: 'static,
    {
        area.fill(&WHITE)?;
        let most = self.samples.iter().map(|sample| sample.records).max().unwrap_or(1) as f64;
        let mut chart = ChartBuilder::on(area)
            .caption(format!("{}: load factor over records", self.title), ("sans-serif", 22))
            .margin(12)
            // The last label is centered below the right end, and half of it needs this margin.
            .margin_right(48)
            .x_label_area_size(40)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..most * 1.01, 0.0..1.0)?;
        chart
            .configure_mesh()
            .x_labels(11)
            .x_label_formatter(&|records| thousands(records.round() as u64))
            .y_label_formatter(&|load| format!("{load:.1}"))
            .label_style(("sans-serif", 16))
            .light_line_style(WHITE)
            .draw()?;
        let mut tables: Vec<u32> = self.samples.iter().map(|s| s.stash_buckets).collect();
        tables.dedup();
        for (table, colour) in tables.into_iter().zip(COLOURS.into_iter().cycle()) {
            let samples = self.samples.iter().filter(|s| s.stash_buckets == table);
            let points = samples.map(|s| (s.records as f64, s.load_factor));
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
                .label(format!("{table} stash buckets"))
                .legend(move |(x, y)| {
                    Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled())
                });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .label_font(("sans-serif", 16))
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        area.present()?;
        Ok(())
    }
}

fn draw_all<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    panels: &[Panel<'_>],
    latencies: &Distributions,
    title: &str,
) -> Fallible
where
    B::ErrorType: 'static,
{
    area.fill(&WHITE)?;
    for (panel, area) in panels.iter().zip(area.split_evenly((panels.len(), 1))) {
        let (bars, curves) = area.split_vertically(BARS_HEIGHT);
        draw_bars(&bars, panel, title)?;
        let shown: Vec<Phase> = CURVES
            .into_iter()
            .filter(|phase| latencies.iter().any(|(p, t, ..)| p == phase && *t == panel.threads))
            .collect();
        for (phase, area) in shown.iter().zip(curves.split_evenly((1, shown.len().max(1)))) {
            draw_curves(&area, *phase, panel, latencies)?;
        }
    }
    area.present()?;
    Ok(())
}

/// Returns the systems of a panel, in the order of its rows.
fn systems<'r>(panel: &Panel<'r>) -> Vec<&'r str> {
    let mut systems: Vec<&str> = Vec::new();
    for row in &panel.rows {
        if !systems.contains(&row.system.as_str()) {
            systems.push(&row.system);
        }
    }
    systems
}

fn draw_bars<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    panel: &Panel<'_>,
    title: &str,
) -> Fallible
where
    B::ErrorType: 'static,
{
    let mut phases: Vec<Phase> = panel.rows.iter().map(|row| row.phase).collect();
    phases.dedup();
    let systems = systems(panel);
    let (area, legend) = area.split_horizontally(WIDTH - LEGEND_WIDTH);
    draw_legend(&legend, &systems)?;
    let most = panel.rows.iter().map(|row| row.mops.mops_max).fold(0.0, f64::max);
    let threads =
        if panel.threads == 1 { "1 thread".into() } else { format!("{} threads", panel.threads) };
    let mut chart = ChartBuilder::on(&area)
        .caption(format!("{title}, {threads}: million operations a second"), ("sans-serif", 22))
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..phases.len() as f64, 0.0..most * 1.1)?;
    let names = phases.clone();
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_label_style(("sans-serif", 16))
        .light_line_style(WHITE)
        .draw()?;
    // Names are centered below their groups.
    let (_, y) = chart.plotting_area().get_pixel_range();
    for (i, phase) in names.iter().enumerate() {
        let (x, _) = chart.plotting_area().map_coordinate(&(i as f64 + 0.5, 0.0));
        let (left, top) = area.get_base_pixel();
        let centred = TextStyle::from(("sans-serif", 17).into_font()).pos(
            plotters::style::text_anchor::Pos::new(
                plotters::style::text_anchor::HPos::Center,
                plotters::style::text_anchor::VPos::Top,
            ),
        );
        area.draw(&Text::new(phase.name(), (x - left, y.end - top + 8), centred))?;
    }
    let width = 0.84 / systems.len() as f64;
    for (s, system) in systems.iter().enumerate() {
        let colour = COLOURS[s % COLOURS.len()];
        let of_system = panel.rows.iter().filter(|row| row.system == *system);
        let bars: Vec<(f64, &Row)> = of_system
            .filter_map(|row| {
                let phase = phases.iter().position(|phase| *phase == row.phase)?;
                Some((phase as f64 + 0.08 + s as f64 * width, *row))
            })
            .collect();
        chart.draw_series(bars.iter().map(|(x, row)| {
            Rectangle::new([(*x, 0.0), (x + width * 0.92, row.mops.mops)], colour.filled())
        }))?;
        // The spread of the rounds.
        chart.draw_series(bars.iter().map(|(x, row)| {
            let middle = x + width * 0.46;
            PathElement::new([(middle, row.mops.mops_min), (middle, row.mops.mops_max)], BLACK)
        }))?;
    }
    Ok(())
}

/// Draws the names of the systems beside their colors.
fn draw_legend<B: DrawingBackend>(area: &DrawingArea<B, Shift>, systems: &[&str]) -> Fallible
where
    B::ErrorType: 'static,
{
    for (s, system) in systems.iter().enumerate() {
        let y = LEGEND_TOP + LEGEND_LINE * s as i32;
        let colour = COLOURS[s % COLOURS.len()];
        area.draw(&Rectangle::new([(4, y), (16, y + 12)], colour.filled()))?;
        area.draw(&Text::new(*system, (24, y - 1), ("sans-serif", 16)))?;
    }
    Ok(())
}

/// The range of quantiles drawn, each given as the number of nines: 0 is quantile 0, 2 is quantile
/// 0.99.
const NINES: std::ops::Range<f64> = 0.0..5.0;

fn draw_curves<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    phase: Phase,
    panel: &Panel<'_>,
    latencies: &Distributions,
) -> Fallible
where
    B::ErrorType: 'static,
{
    let systems = systems(panel);
    let of_phase: Vec<_> = latencies
        .iter()
        .filter(|(p, threads, ..)| *p == phase && *threads == panel.threads)
        .collect();
    let curve = |latency: &crate::latency::Latency| -> Vec<(f64, f64)> {
        (0..=100)
            .map(|i| f64::from(i) / 100.0 * NINES.end)
            .map(|nines| (nines, latency.at(1.0 - 10f64.powf(-nines)).max(1) as f64))
            .collect()
    };
    let all: Vec<_> = of_phase.iter().map(|(.., kind, latency)| (kind, curve(latency))).collect();
    let times = || all.iter().flat_map(|(_, points)| points.iter().map(|(_, ns)| *ns));
    let least = times().fold(f64::INFINITY, f64::min) * 0.8;
    let most = times().fold(1.0, f64::max) * 1.3;
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{}: latency by percentile", phase.name()), ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(NINES, (least..most).log_scale())?;
    chart
        .configure_mesh()
        .x_labels(6)
        .x_label_formatter(&|nines| percentile(*nines))
        .y_label_formatter(&|ns| crate::report::nanoseconds(*ns))
        .label_style(("sans-serif", 15))
        .light_line_style(WHITE)
        .draw()?;
    for (kind, points) in all {
        let index = systems.iter().position(|system| *system == kind.name()).unwrap_or(0);
        chart
            .draw_series(LineSeries::new(points, COLOURS[index % COLOURS.len()].stroke_width(2)))?;
    }
    Ok(())
}

fn percentile(nines: f64) -> String {
    let percent = 100.0 * (1.0 - 10f64.powf(-nines));
    let digits = (nines as usize).saturating_sub(2);
    format!("{percent:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_have_the_digits_they_need() {
        let labels: Vec<String> = (0..=4).map(|n| percentile(f64::from(n))).collect();
        assert_eq!(labels, ["0", "90", "99", "99.9", "99.99"]);
    }
}
