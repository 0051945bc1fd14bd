//! Reads records from lines of text.

use crate::args::Format;
use crate::failure::Failure;
use crate::text::{BYTE_ORDER_MARK, Column, unescape};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::io::{BufRead, Read};

/// Upper bound on a line's length in bytes: a key and a value of the largest sizes, fully escaped.
const LINE_BYTES_MAX: u64 = 1 << 31;

/// How lines are read.
#[derive(Clone, Copy)]
pub(super) struct How {
    pub(super) format: Format,
    /// Whether tab-separated lines are taken as they are: without escapes, and with tabs in values.
    pub(super) raw: bool,
    /// Whether a tab-separated last line is a record even if it lacks its newline.
    pub(super) unterminated: bool,
}

/// Reads records from lines.
pub(super) struct Records<R> {
    from: R,
    how: How,
    line: Vec<u8>,
    number: u64,
    is_terminated: bool,
    /// What the line says, if it is a JSON object.
    object: Option<Object>,
}

/// The map that a line names.
pub(super) enum Named {
    /// It names none.
    Not,
    /// It says that the map is not known, as lines do that `salvage` has written.
    Unknown,
    Map(String),
}

/// A line of `ndjson`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Object {
    /// `None` if there is no such member, and `Some(None)` if it is `null`.
    #[serde(default, deserialize_with = "present")]
    map: Option<Option<String>>,
    key: Value,
    value: Value,
}

fn present<'d, D: Deserializer<'d>>(from: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(from).map(Some)
}

impl<R: BufRead> Records<R> {
    /// Reads records from `from`.
    pub(super) fn new(from: R, how: How) -> Self {
        Records { from, how, line: Vec::new(), number: 0, is_terminated: true, object: None }
    }

    /// The number of the last line read, counted from 1.
    pub(super) fn line_number(&self) -> u64 {
        self.number
    }

    /// Reads the line of the next record, and returns which map it names, or `None` after the last
    /// record. Skips empty lines, and a byte order mark at the beginning of the input. A line ends
    /// with a newline, or with a carriage return and a newline.
    ///
    /// A last line without a newline may be what a program wrote before it died. A JSON object
    /// shows that it is complete: if it were not, its last brace would be missing. The value of a
    /// tab-separated line can be cut anywhere and still be a value, so such a line is an error.
    pub(super) fn next(&mut self) -> Result<Option<Named>, Failure> {
        loop {
            self.line.clear();
            self.number += 1;
            let place = format_args!("line {}", self.number);
            let mut limited = self.from.by_ref().take(LINE_BYTES_MAX);
            let read = limited.read_until(b'\n', &mut self.line);
            if read.map_err(|e| Failure::io(place, &e))? == 0 {
                return Ok(None);
            }
            self.is_terminated = true;
            match self.line.pop() {
                Some(b'\n') => {}
                Some(_) if self.line.len() as u64 + 1 == LINE_BYTES_MAX => {
                    return Err(Failure::Failed(format!("{place}: longer than any record can be")));
                }
                Some(other) => {
                    self.line.push(other);
                    self.is_terminated = false;
                }
                None => {}
            }
            if self.line.last() == Some(&b'\r') {
                self.line.pop();
            }
            if self.number == 1 && self.line.starts_with(BYTE_ORDER_MARK) {
                self.line.drain(..BYTE_ORDER_MARK.len());
            }
            if self.line.is_empty() {
                continue;
            }
            if self.how.format == Format::Tsv {
                if !self.is_terminated && !self.how.unterminated {
                    return Err(Failure::Failed(format!(
                        "{place}: the last line, which has no newline at its end, was not \
                         loaded: the input may have been cut short there. If it is complete, add \
                         the newline, or load it with --unterminated"
                    )));
                }
                return Ok(Some(Named::Not));
            }
            let mut object = object(&self.line).map_err(|why| self.failed(&why))?;
            let named = match object.map.take() {
                None => Named::Not,
                Some(None) => Named::Unknown,
                Some(Some(name)) => Named::Map(name),
            };
            self.object = Some(object);
            return Ok(Some(named));
        }
    }

    /// Returns the key and the value of the record in the last line read, as a map with columns of
    /// these types stores them.
    pub(super) fn record(&self, columns: &(Column, Column)) -> Result<Record, Failure> {
        let record = match &self.object {
            Some(object) => object.record(columns),
            None if self.how.raw => raw(&self.line, columns),
            None => tsv(&self.line, columns),
        };
        record.map_err(|why| self.failed(&why))
    }

    /// Describes why the last line read is not loaded.
    pub(super) fn failed(&self, why: &str) -> Failure {
        let cut = match self.is_terminated {
            true => "",
            false => " (the input may have been cut short: the last line has no newline)",
        };
        Failure::Failed(format!("line {}: {why}{cut}", self.number))
    }
}

pub(super) type Record = (Vec<u8>, Vec<u8>);

fn tsv(line: &[u8], (keys, values): &(Column, Column)) -> Result<Record, String> {
    let mut fields = line.split(|&byte| byte == b'\t');
    let (Some(key), Some(value), None) = (fields.next(), fields.next(), fields.next()) else {
        let tabs = line.iter().filter(|&&byte| byte == b'\t').count();
        let hint = if tabs == 0 && line[0] == b'{' { " (is it --format ndjson?)" } else { "" };
        return Err(format!(
            "expected one tab, between key and value, but found {tabs} tabs; a tab inside a key or value is \
             written \\t{hint}"
        ));
    };
    let field = |text: &[u8], column: &Column| {
        let bytes = unescape(text).ok_or("unknown escape; known are \\t \\n \\r \\\\ \\xHH")?;
        column.parse(&bytes, false).map_err(|e| e.message().to_owned())
    };
    Ok((field(key, keys)?, field(value, values)?))
}

/// Splits a line at its first tab, and takes both parts as they are.
fn raw(line: &[u8], (keys, values): &(Column, Column)) -> Result<Record, String> {
    let tab = line.iter().position(|&byte| byte == b'\t');
    let (key, value) = line.split_at(tab.ok_or("no tab between key and value")?);
    let field = |text: &[u8], column: &Column| {
        column.parse(text, false).map_err(|e| e.message().to_owned())
    };
    Ok((field(key, keys)?, field(&value[1..], values)?))
}

fn object(line: &[u8]) -> Result<Object, String> {
    // A list of a struct's members would be read as well.
    let is_object = line.trim_ascii_start().first() == Some(&b'{');
    if !is_object && serde_json::from_slice::<Value>(line).is_ok() {
        return Err("not a JSON object".into());
    }
    serde_json::from_slice(line).map_err(|error| {
        // The object is the whole input of the parser.
        let why = error.to_string().replace(" at line 1 column ", " at column ");
        if error.is_data() { why } else { format!("not a JSON object: {why}") }
    })
}

impl Object {
    fn record(&self, (keys, values): &(Column, Column)) -> Result<Record, String> {
        let field = |value: &Value, column: &Column| {
            column.parse_json(value).map_err(|e| e.message().to_owned())
        };
        Ok((field(&self.key, keys)?, field(&self.value, values)?))
    }
}
