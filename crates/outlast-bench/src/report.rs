//! Prints rows as JSON lines or as a table.

use crate::Fallible;
use crate::run::Run;
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use serde::Serialize;
use serde_json::Value;
use std::io::Write;

/// The format of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One JSON object per line, printed immediately.
    Json,
    /// A table at the end.
    Table,
}

/// Prints the rows of one command.
#[derive(Debug)]
pub struct Report {
    format: Format,
    rows: Vec<Value>,
}

impl Report {
    /// Creates a report that has printed nothing yet.
    pub fn new(format: Format) -> Report {
        Report { format, rows: Vec::new() }
    }

    /// Whether rows are printed as JSON.
    pub fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// Adds a row. `event` says of which kind it is.
    ///
    /// # Errors
    /// If it cannot be printed.
    pub fn row(&mut self, event: &str, row: &impl Serialize) -> Fallible {
        let Value::Object(fields) = serde_json::to_value(row)? else {
            return Err("a row is a structure with fields".into());
        };
        let mut row = serde_json::Map::new();
        row.insert("event".into(), event.into());
        row.extend(fields);
        let row = Value::Object(row);
        if self.is_json() {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{row}")?;
            out.flush()?;
        }
        self.rows.push(row);
        Ok(())
    }

    /// Adds the first row: how the run was made, with the command's own options. In a table report,
    /// prints it as lines of text.
    ///
    /// # Errors
    /// As [`row`](Report::row).
    pub fn run(&mut self, run: &Run, options: &impl Serialize) -> Fallible {
        #[derive(Serialize)]
        struct Whole<'r, O> {
            #[serde(flatten)]
            run: &'r Run,
            #[serde(flatten)]
            options: &'r O,
        }
        self.row("run", &Whole { run, options })?;
        let options = serde_json::to_value(options)?;
        let told = options
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, value)| format!("{} {}", name.replace('_', " "), plain(value)));
        let told = told.collect::<Vec<_>>().join(", ");
        run.lines().iter().try_for_each(|line| self.note(line))?;
        if told.is_empty() { Ok(()) } else { self.note(&format!("Options: {told}.")) }
    }

    /// Returns the rows of one kind so far.
    pub fn rows<'r>(&'r self, event: &'r str) -> impl Iterator<Item = &'r Value> {
        self.rows.iter().filter(move |row| row["event"] == event)
    }

    /// Prints the rows of one kind as a table, unless they were printed as JSON. Each column has a
    /// heading, the location of its value in a row (as a JSON pointer), and a format.
    ///
    /// # Errors
    /// If it cannot be printed.
    pub fn table(&self, event: &str, columns: &[(&str, &str, Show)]) -> Fallible {
        let rows: Vec<&Value> = self.rows(event).collect();
        if self.is_json() || rows.is_empty() {
            return Ok(());
        }
        let cell = |row: &Value, pointer: &str, show: Show| show.of(row.pointer(pointer));
        // Leaves out columns without any value.
        let told = |(_, pointer, show): &&(&str, &str, Show)| {
            rows.iter().any(|row| !cell(row, pointer, *show).is_empty())
        };
        let columns: Vec<_> = columns.iter().filter(told).collect();
        let mut table = Table::new();
        const LINE: LineStyle = LineStyle::none().fill('─').junction('─');
        let style = TableStyle::new().top_border(LINE).header_separator(LINE).bottom_border(LINE);
        table.load_style(style);
        table.set_header(columns.iter().map(|(heading, ..)| *heading));
        for row in &rows {
            table.add_row(columns.iter().map(|(_, pointer, show)| cell(row, pointer, *show)));
        }
        for (i, (.., show)) in columns.iter().enumerate() {
            if *show != Show::Text
                && let Some(column) = table.column_mut(i)
            {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        writeln!(std::io::stdout().lock(), "{table}")?;
        Ok(())
    }

    /// Prints a line of text, unless rows are printed as JSON.
    ///
    /// # Errors
    /// If it cannot be printed.
    pub fn note(&self, text: &str) -> Fallible {
        if !self.is_json() {
            writeln!(std::io::stdout().lock(), "{text}")?;
        }
        Ok(())
    }
}

/// How a value is shown in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// As it is.
    Text,
    /// A whole number, with its digits grouped in threes.
    Count,
    /// A number with this many decimal places.
    Decimal(usize),
    /// A time in nanoseconds, shown in a suitable unit.
    Nanoseconds,
}

impl Show {
    fn of(self, value: Option<&Value>) -> String {
        match (self, value) {
            (_, None | Some(Value::Null)) => String::new(),
            (Show::Text, Some(Value::String(text))) => text.clone(),
            (Show::Text, Some(value)) => value.to_string(),
            (Show::Count, Some(value)) => value.as_u64().map_or(value.to_string(), thousands),
            (Show::Decimal(digits), Some(value)) => {
                value.as_f64().map_or(value.to_string(), |number| format!("{number:.digits$}"))
            }
            (Show::Nanoseconds, Some(value)) => {
                value.as_f64().map_or(value.to_string(), nanoseconds)
            }
        }
    }
}

/// Formats a value without JSON's punctuation.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(","),
        Value::Object(fields) => {
            let told = fields.iter().map(|(name, value)| format!("{name} {}", plain(value)));
            format!("({})", told.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// Formats a whole number with its digits grouped in threes.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a time in a suitable unit.
pub fn nanoseconds(ns: f64) -> String {
    match ns {
        ns if ns < 1e4 => format!("{ns:.0} ns"),
        ns if ns < 1e7 => format!("{:.1} us", ns / 1e3),
        ns if ns < 1e10 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.1} s", ns / 1e9),
    }
}

/// Returns the median; for an even count, the mean of the middle two numbers. Returns `None` if
/// there are no numbers.
pub fn median(numbers: &[f64]) -> Option<f64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// Rounds a number to this many decimal places. More digits would suggest a precision that the
/// measurements do not have.
pub fn rounded(number: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (number * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn values_are_shown_for_people() {
        let of = |show: Show, value: Value| show.of(Some(&value));
        assert_eq!(of(Show::Count, json!(1_234_567)), "1,234,567");
        assert_eq!(of(Show::Decimal(2), json!(1.234)), "1.23");
        assert_eq!(of(Show::Nanoseconds, json!(12_345)), "12.3 us");
        assert_eq!(of(Show::Nanoseconds, json!(87_000_000)), "87.0 ms");
        assert_eq!(of(Show::Text, json!("x")), "x");
        assert_eq!(of(Show::Text, Value::Null), "");
        assert_eq!(plain(&json!({"a": ["x", 1], "b": true})), "(a x,1, b true)");
    }
}
