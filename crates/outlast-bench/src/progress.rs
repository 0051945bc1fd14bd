//! How far a long run is, on standard error.
//!
//! Told between measurements, by the thread that waits for them: nothing ticks beside the
//! workers.

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// A run of so many steps; steps should take about as long each.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    lines: bool,
    start: Instant,
    total: u64,
}

impl Progress {
    /// A run that begins now: a bar on a terminal, else lines.
    pub fn new(total: u64) -> Progress {
        let bar = ProgressBar::new(total);
        let style = "{msg:44} {wide_bar:.cyan/blue} {percent:>3}% {prefix}";
        bar.set_style(ProgressStyle::with_template(style).expect("a template of this file"));
        Progress { bar, lines: !stderr().is_terminal(), start: Instant::now(), total }
    }

    /// Says what is done next, at the beginning of something that a person waits for.
    pub fn next(&self, what: &str) {
        let left = remaining(self.start.elapsed(), self.bar.position(), self.total);
        let left = left.map(|left| format!("{} left", HumanDuration(left)));
        if self.lines {
            let left = left.as_ref().map_or(String::new(), |left| format!(" ({left})"));
            // Who has closed standard error does not want to know.
            let _ = writeln!(stderr(), "{what}{left}");
        }
        self.bar.set_prefix(left.unwrap_or_default());
        self.bar.set_message(what.to_owned());
    }

    /// So many steps more are done.
    pub fn done(&self, steps: u64) {
        self.bar.inc(steps);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// What is left at the pace so far; `None` while there is none.
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
