//! Progress of a long run, on standard error.
//!
//! The thread that waits for measurements updates the progress between them, so nothing runs
//! alongside the workers.

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// The progress of a run of `total` steps. Steps should take about equally long.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    lines: bool,
    start: Instant,
    total: u64,
}

impl Progress {
    /// Starts the progress of a run that begins now: a bar on a terminal, otherwise lines.
    pub fn new(total: u64) -> Progress {
        let bar = ProgressBar::new(total);
        let style = "{msg:44} {wide_bar:.cyan/blue} {percent:>3}% {prefix}";
        bar.set_style(ProgressStyle::with_template(style).expect("a template of this file"));
        Progress { bar, lines: !stderr().is_terminal(), start: Instant::now(), total }
    }

    /// Shows the name of the next long step. Each long step begins with this call.
    pub fn next(&self, what: &str) {
        let left = remaining(self.start.elapsed(), self.bar.position(), self.total);
        let left = left.map(|left| format!("{} left", HumanDuration(left)));
        if self.lines {
            let left = left.as_ref().map_or(String::new(), |left| format!(" ({left})"));
            // If standard error is closed, no one is reading.
            let _ = writeln!(stderr(), "{what}{left}");
        }
        self.bar.set_prefix(left.unwrap_or_default());
        self.bar.set_message(what.to_owned());
    }

    /// Records that `steps` more steps are done.
    pub fn done(&self, steps: u64) {
        self.bar.inc(steps);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Returns the time left at the pace so far, or `None` if nothing was done yet.
fn remaining(elapsed: Duration, done: u64, total: u64) -> Option<Duration> {
    let left = total.saturating_sub(done);
    (done > 0).then(|| elapsed.mul_f64(left as f64 / done as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_takes_as_long_as_what_is_done() {
        let ten = Duration::from_secs(10);
        assert_eq!(remaining(ten, 0, 4), None);
        assert_eq!(remaining(ten, 1, 4), Some(ten * 3));
        assert_eq!(remaining(ten, 4, 4), Some(Duration::ZERO));
    }
}
