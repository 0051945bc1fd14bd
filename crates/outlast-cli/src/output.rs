//! Standard output: text, or one JSON object per line.

use crate::failure::Failure;
use serde::Serialize;
use serde_json::json;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

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

    /// Prints an object, if results are JSON.
    pub(crate) fn object(&mut self, object: &impl Serialize) -> Result<(), Failure> {
        if self.json {
            serde_json::to_writer(&mut self.to, object).map_err(io::Error::from).map_err(closed)?;
            self.to.write_all(b"\n").map_err(closed)?;
        }
        Ok(())
    }

    /// Prints a line, if results are text.
    pub(crate) fn line(&mut self, line: impl AsRef<[u8]>) -> Result<(), Failure> {
        if !self.json {
            self.to.write_all(line.as_ref()).map_err(closed)?;
            self.to.write_all(b"\n").map_err(closed)?;
        }
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
        // If this fails too, no one is reading.
        let _ = self.object(&object).and_then(|()| self.flush());
        let message = failure.message().replace('\n', " ");
        let _ = writeln!(io::stderr(), "outlast: {message}");
    }
}

fn closed(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::Closed,
        _ => Failure::io("writing to standard output", &error),
    }
}
