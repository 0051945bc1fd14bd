//! Standard output: text, or one JSON object per line.

use crate::failure::Failure;
use crate::text;
use outlast::Damage;
use serde::Serialize;
use serde_json::json;
use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::str::Utf8Chunk;

/// The destination of results.
pub(crate) struct Output {
    json: bool,
    to: BufWriter<StdoutLock<'static>>,
}

impl Output {
    /// Locks standard output for the life of the process.
    pub(crate) fn new(json: bool) -> Self {
        Output { json, to: BufWriter::with_capacity(1 << 16, io::stdout().lock()) }
    }

    /// Whether results are JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Whether standard output is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.to.get_ref().is_terminal()
    }

    /// Returns a map's name as text that is to be part of a line; see [`text::name`]. On a terminal,
    /// all of its control characters are escaped.
    pub(crate) fn shown(&self, name: &str) -> String {
        let name = text::name(name);
        match self.is_terminal() {
            true => String::from_utf8_lossy(&escaped(name.as_bytes(), b"")).into_owned(),
            false => name,
        }
    }

    /// Prints an object, if results are JSON.
    pub(crate) fn object(&mut self, object: &impl Serialize) -> Result<(), Failure> {
        if self.json {
            serde_json::to_writer(&mut self.to, object).map_err(io::Error::from).map_err(closed)?;
            self.to.write_all(b"\n").map_err(closed)?;
        }
        Ok(())
    }

    /// Prints a line, if results are text. On a terminal, control characters other than tabs and
    /// newlines are escaped, because the terminal would act on them.
    pub(crate) fn line(&mut self, line: impl AsRef<[u8]>) -> Result<(), Failure> {
        if self.json {
            return Ok(());
        }
        let line = match self.is_terminal() {
            true => escaped(line.as_ref(), b"\t\n"),
            false => Cow::Borrowed(line.as_ref()),
        };
        self.to.write_all(&line).map_err(closed)?;
        self.to.write_all(b"\n").map_err(closed)
    }

    /// Reports damage that a command has stepped over: a line on standard error, and an object if
    /// results are JSON.
    pub(crate) fn skipped(&mut self, damage: &Damage) -> Result<(), Failure> {
        self.object(&json!({
            "event": "damage",
            "offset": damage.offset(),
            "expected": damage.expected(),
            "found": damage.found(),
        }))?;
        complain(&format!("skipped damage {damage}"));
        Ok(())
    }

    /// Flushes the output.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.to.flush().map_err(closed)
    }

    /// Reports a failure: a line on standard error, and an object if results are JSON.
    pub(crate) fn fail(&mut self, failure: &Failure) {
        if matches!(failure, Failure::Closed) {
            return;
        }
        let object =
            json!({"event": "error", "kind": failure.kind(), "message": failure.message()});
        // If this fails, the user still gets the line on standard error.
        let _ = self.object(&object).and_then(|()| self.flush());
        complain(failure.message());
    }
}

/// Prints one line on standard error.
pub(crate) fn complain(message: &str) {
    let message = message.replace('\n', " ");
    let message = match io::stderr().is_terminal() {
        true => escaped(message.as_bytes(), b"\t"),
        false => Cow::Borrowed(message.as_bytes()),
    };
    let _ = writeln!(io::stderr(), "outlast: {}", String::from_utf8_lossy(&message));
}

/// Writes control characters other than those of `keep` as \xHH. Some terminals also take bytes
/// from 0x80 to 0x9f that are not part of a UTF-8 character for control characters. If the text has
/// any of either kind, all bytes that are not UTF-8 are escaped as well; otherwise they are kept.
fn escaped<'t>(text: &'t [u8], keep: &[u8]) -> Cow<'t, [u8]> {
    let is_plain = |c: char| !c.is_control() || u8::try_from(c).is_ok_and(|c| keep.contains(&c));
    let is_safe = |chunk: &Utf8Chunk<'_>| {
        chunk.valid().chars().all(is_plain)
            && !chunk.invalid().iter().any(|b| (0x80..0xa0).contains(b))
    };
    if text.utf8_chunks().all(|chunk| is_safe(&chunk)) {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len() + 16);
    let escape = |out: &mut Vec<u8>, bytes: &[u8]| {
        bytes.iter().for_each(|byte| out.extend(format!("\\x{byte:02x}").into_bytes()));
    };
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            let bytes = c.encode_utf8(&mut [0; 4]).as_bytes().to_vec();
            if is_plain(c) { out.extend(bytes) } else { escape(&mut out, &bytes) }
        }
        escape(&mut out, chunk.invalid());
    }
    Cow::Owned(out)
}

fn closed(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::Closed,
        _ => Failure::io("writing to standard output", &error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_text_is_not() {
        for plain in ["", "a\tb", "Grüße, 世界"] {
            assert!(matches!(escaped(plain.as_bytes(), b"\t"), Cow::Borrowed(_)));
        }
        let escape = |text: &[u8]| String::from_utf8_lossy(&escaped(text, b"")).into_owned();
        assert_eq!(escape(b"\x1b[31mred\n"), "\\x1b[31mred\\x0a");
        // A control character of two bytes, and the same as one byte that is not UTF-8.
        assert_eq!(escape("\u{9b}2J".as_bytes()), "\\xc2\\x9b2J");
        assert_eq!(escape(b"\x9b2J"), "\\x9b2J");
    }
}
