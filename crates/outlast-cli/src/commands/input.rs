//! Reads records from lines of text.

use crate::args::Format;
use crate::failure::Failure;
use crate::text::{BYTE_ORDER_MARK, Column, unescape};
use serde_json::{Map, Value};
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
    columns: (Column, Column),
    line: Vec<u8>,
    number: u64,
}

impl<R: BufRead> Records<R> {
    /// Reads records from `from`, with the types of a map's keys and values.
    pub(super) fn new(from: R, how: How, columns: (Column, Column)) -> Self {
        Records { from, how, columns, line: Vec::new(), number: 0 }
    }

    /// The number of the last line read, counted from 1.
    pub(super) fn line_number(&self) -> u64 {
        self.number
    }

    /// Returns the key and the value of the next record, as the map stores them, or `None` after
    /// the last record. Skips empty lines, and a byte order mark at the beginning of the input. A
    /// line ends with a newline, or with a carriage return and a newline.
    ///
    /// A last line without a newline may be what a program wrote before it died. A JSON object
    /// shows that it is complete: if it were not, its last brace would be missing. The value of a
    /// tab-separated line can be cut anywhere and still be a value, so such a line is an error.
    #[expect(clippy::type_complexity, reason = "a pair that may not be there or fail")]
    pub(super) fn next(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>, Failure> {
        loop {
            self.line.clear();
            self.number += 1;
            let place = format_args!("line {}", self.number);
            let mut limited = self.from.by_ref().take(LINE_BYTES_MAX);
            let read = limited.read_until(b'\n', &mut self.line);
            if read.map_err(|e| Failure::io(place, &e))? == 0 {
                return Ok(None);
            }
            let mut is_terminated = true;
            match self.line.pop() {
                Some(b'\n') => {}
                Some(_) if self.line.len() as u64 + 1 == LINE_BYTES_MAX => {
                    return Err(Failure::Failed(format!("{place}: longer than any record can be")));
                }
                Some(other) => {
                    self.line.push(other);
                    is_terminated = false;
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
            let record = match self.how.format {
                Format::Tsv if !is_terminated && !self.how.unterminated => {
                    return Err(Failure::Failed(format!(
                        "{place}: the last line, which has no newline at its end, was not \
                         loaded: the input may have been cut short there. If it is complete, add \
                         the newline, or load it with --unterminated"
                    )));
                }
                Format::Tsv if self.how.raw => raw(&self.line, &self.columns),
                Format::Tsv => tsv(&self.line, &self.columns),
                Format::Ndjson => ndjson(&self.line, &self.columns),
            };
            return match record {
                Ok(record) => Ok(Some(record)),
                Err(why) if is_terminated => Err(Failure::Failed(format!("{place}: {why}"))),
                Err(why) => Err(Failure::Failed(format!(
                    "{place}: {why} (the input may have been cut short: the last line has no \
                     newline)"
                ))),
            };
        }
    }
}

type Record = (Vec<u8>, Vec<u8>);

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

fn ndjson(line: &[u8], (keys, values): &(Column, Column)) -> Result<Record, String> {
    let object: Map<String, Value> =
        serde_json::from_slice(line).map_err(|e| format!("not a JSON object: {e}"))?;
    let field = |name: &str, column: &Column| {
        let value = object.get(name).ok_or_else(|| format!("the object has no {name:?}"))?;
        column.parse_json(value).map_err(|e| e.message().to_owned())
    };
    Ok((field("key", keys)?, field("value", values)?))
}
