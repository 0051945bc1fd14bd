//! The report for a browser: one file with everything in it, which requests nothing.

use super::claim::Check;
use super::lab::Scale;
use super::panel::Panel;
use super::published::Nearness;
use super::svg::{draw, escaped, number};
use super::{Outcome, Written};
use std::collections::BTreeSet;
use std::fmt::Write;

const STYLE: &str = include_str!("report.css");
const SCRIPT: &str = include_str!("report.js");

/// Writes the report.
pub fn write(written: &Written) -> String {
    let Written { run, outcomes, published, summary } = written;
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>outlast: the papers' figures</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
    );
    let _ = write!(
        html,
        "<header><h1>The papers' figures, measured again</h1>\
         <p class=\"lead\">Five papers about persistent indexes, {} figures and tables. For each: what the \
         paper claims, what came out here, and whether the claim holds. Verdicts are computed.</p>\
         <ul class=\"tiles\"><li class=\"agrees\"><b>{}</b> agree</li><li class=\"differs\"><b>{}</b> \
         differ</li><li class=\"not_here\"><b>{}</b> cannot be shown here</li>\
         <li class=\"model\"><b>{}</b> verdicts rest on a model</li>\
         <li><b>{} of {}</b> claims hold</li></ul>{}</header>\n<main>\n",
        summary.rows,
        summary.agrees,
        summary.differs,
        summary.not_here,
        summary.model,
        summary.claims_hold,
        summary.claims,
        about(run)
            + &summary.model_error.map_or(String::new(), |error| {
                format!("<p class=\"about\">{}</p>", escaped(&error.sentence()))
            })
    );
    index(&mut html, outcomes);
    for outcome in outcomes {
        figure(&mut html, outcome);
    }
    nearness(&mut html, published);
    let _ = write!(html, "</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n");
    html
}

fn about(run: &serde_json::Value) -> String {
    let value = |name: &str| match &run[name] {
        serde_json::Value::String(text) => escaped(text),
        other => other.to_string(),
    };
    let warning = match run["scale"].as_str() {
        Some(scale) if scale == Scale::Test.name() => {
            "<p class=\"warning\">This run has the scale of a test: its verdicts mean little.</p>"
        }
        _ => "",
    };
    let busy = super::busy(run)
        .map_or(String::new(), |busy| format!("<p class=\"warning\">{}</p>", escaped(&busy)));
    format!(
        "{warning}{busy}<p class=\"about\">Commit <code>{}</code>, scale {}, seed {}. {}, {} cores, Linux {}, load {}. \
         Medium: {}.</p>",
        value("commit"),
        value("scale"),
        value("seed"),
        value("processor"),
        value("cores"),
        value("kernel"),
        value("load_average"),
        value("medium")
    )
}

/// The table of all figures.
fn index(html: &mut String, outcomes: &[Outcome]) {
    let options = |values: BTreeSet<&str>| {
        values.into_iter().fold(String::new(), |mut text, value| {
            let value = escaped(value);
            let _ = write!(text, "<option>{value}</option>");
            text
        })
    };
    let _ = write!(
        html,
        "<section id=\"all\"><h2>All figures</h2><form class=\"filters\" onsubmit=\"return false\">\
         <label>Search <input type=\"search\" id=\"search\" autocomplete=\"off\"></label>\
         <label>Paper <select id=\"paper\"><option value=\"\">all</option>{}</select></label>\
         <label>Verdict <select id=\"verdict\"><option value=\"\">all</option><option>agrees</option>\
         <option>differs</option><option>not here</option></select></label>\
         <label>Way <select id=\"way\"><option value=\"\">all</option>{}</select></label>\
         <output id=\"shown\"></output></form><div class=\"scroll\"><table id=\"index\"><thead><tr>",
        options(outcomes.iter().map(|o| &*o.paper).collect()),
        options(outcomes.iter().map(|o| &*o.way).collect())
    );
    for heading in ["figure", "paper", "shows", "way", "claims", "verdict"] {
        let _ = write!(html, "<th aria-sort=\"none\"><button>{heading}</button></th>");
    }
    html.push_str("</tr></thead><tbody>");
    for (i, outcome) in outcomes.iter().enumerate() {
        let hold = outcome.checks.iter().filter(|check| check.holds).count();
        let share = match outcome.checks.len() {
            0 => -1.0,
            all => hold as f64 / all as f64,
        };
        let claims = match outcome.checks.len() {
            0 => "none".into(),
            all => format!("{hold} of {all}"),
        };
        let verdict = outcome.verdict.to_string();
        let _ = write!(
            html,
            "<tr><td data-key=\"{i}\"><a href=\"#{id}\">{id}</a></td><td>{}</td><td>{}</td><td>{}</td>\
             <td data-key=\"{share}\">{claims}</td><td><span class=\"verdict {}\">{verdict}</span>{}</td>\
             </tr>",
            escaped(&outcome.paper),
            escaped(&outcome.title),
            escaped(&outcome.way),
            verdict.replace(' ', "_"),
            if outcome.model { " <span class=\"tag\">model</span>" } else { "" },
            id = escaped(&outcome.id),
        );
    }
    html.push_str("</tbody></table></div></section>\n");
}

fn figure(html: &mut String, outcome: &Outcome) {
    let verdict = outcome.verdict.to_string();
    let _ = write!(
        html,
        "<section class=\"figure\" id=\"{id}\"><h2><span>{id}</span> {}</h2><p>\
         <span class=\"verdict {}\">{verdict}</span>{} {}, {}, section {}. Shown by: {}.</p>\
         <p class=\"workload\">The paper's workload: {}.</p>",
        escaped(&outcome.title),
        verdict.replace(' ', "_"),
        if outcome.model { " <span class=\"tag\">model</span>" } else { "" },
        escaped(&outcome.paper),
        escaped(&outcome.place),
        escaped(&outcome.section),
        escaped(&outcome.way),
        escaped(&outcome.workload),
        id = escaped(&outcome.id),
    );
    claims(html, &outcome.checks);
    if !outcome.note.is_empty() {
        let _ = write!(html, "<p class=\"note\">{}</p>", escaped(&outcome.note));
    }
    html.push_str("<div class=\"panels\">");
    for panel in &outcome.panels {
        let letter = if panel.id.is_empty() { String::new() } else { format!("{}: ", panel.id) };
        let _ = write!(
            html,
            "<figure><figcaption>{}{}</figcaption>{}",
            escaped(&letter),
            escaped(&panel.title),
            draw(panel)
        );
        data(html, panel);
        html.push_str("</figure>");
    }
    html.push_str("</div><p class=\"up\"><a href=\"#all\">all figures</a></p></section>\n");
}

fn claims(html: &mut String, checks: &[Check]) {
    if checks.is_empty() {
        return;
    }
    html.push_str(
        "<div class=\"scroll\"><table class=\"claims\"><thead><tr><th>the paper says</th><th>tested</th>\
         <th>wanted</th><th>paper</th><th>here</th><th>here / paper</th><th></th></tr></thead><tbody>",
    );
    let shown = |value: Option<f64>| value.map_or(String::new(), number);
    for check in checks {
        let _ = write!(
            html,
            "<tr><td>{}</td><td>{}{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td><span class=\"verdict {}\">{}</span></td></tr>",
            escaped(&check.says),
            escaped(&check.quantity),
            if check.model { " <span class=\"tag\">model</span>" } else { "" },
            escaped(&check.wanted),
            shown(check.paper),
            check.ours.map_or("no value".into(), number),
            shown(check.of_paper),
            if check.holds { "agrees" } else { "differs" },
            if check.holds { "holds" } else { "does not hold" },
        );
    }
    html.push_str("</tbody></table></div>");
}

/// The comparison systems, compared with the published code.
fn nearness(html: &mut String, rows: &[Nearness]) {
    html.push_str(
        "<section id=\"published\"><h2>The comparison systems and the published code</h2>\
         <p class=\"note\">The ratio of a system to one of the library's: of the authors' code on one other \
         machine, and here. A quotient from 0.7 to 1.4 counts as near.</p><div class=\"scroll\"><table>\
         <thead><tr><th>system</th><th>divided by</th><th>operation</th><th>published</th><th>here</th>\
         <th>quotient</th><th></th></tr></thead><tbody>",
    );
    for row in rows {
        let _ = write!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td>{}</td></tr>",
            escaped(&row.system),
            escaped(&row.divisor),
            escaped(&row.operation),
            number(row.published),
            number(row.here),
            number(row.quotient),
            if row.near { "near" } else { "far" },
        );
    }
    html.push_str("</tbody></table></div></section>\n");
}

/// The data behind a plot.
fn data(html: &mut String, panel: &Panel) {
    let mut positions: Vec<f64> =
        panel.series.iter().flat_map(|s| s.points.iter().map(|point| point.0)).collect();
    positions.sort_by(f64::total_cmp);
    positions.dedup();
    // A curve of many samples is shown by every tenth.
    let step = positions.len().div_ceil(24).max(1);
    let x = if panel.x.is_empty() { "" } else { &*panel.x };
    let _ = write!(
        html,
        "<details><summary>Data ({})</summary><div class=\"scroll\"><table><thead><tr><th>{}</th>",
        escaped(&panel.y),
        escaped(x)
    );
    for series in &panel.series {
        let model = if series.model { " <span class=\"tag\">model</span>" } else { "" };
        let _ = write!(html, "<th>{}{model}</th>", escaped(&series.name));
    }
    html.push_str("</tr></thead><tbody>");
    for &position in positions.iter().step_by(step) {
        let group = panel.groups.get(position as usize);
        let name = group.cloned().unwrap_or_else(|| number(position));
        let _ = write!(html, "<tr><td>{}</td>", escaped(&name));
        for series in &panel.series {
            let point = series.points.iter().find(|point| point.0 == position);
            let value = point.map_or(String::new(), |point| number(point.1));
            let _ = write!(html, "<td class=\"n\">{value}</td>");
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div></details>");
}
