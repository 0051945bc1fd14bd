//! Progress on standard error, for a user who waits.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A bar of `len` steps. Hidden unless standard error is a terminal.
pub(crate) fn bar(len: u64, what: &str) -> ProgressBar {
    let style = "{msg:32} {wide_bar:.cyan/blue} {human_pos}/{human_len} {elapsed}";
    styled(ProgressBar::new(len), style, what)
}

/// A bar of `len` bytes. Hidden unless standard error is a terminal.
pub(crate) fn bytes(len: u64, what: &str) -> ProgressBar {
    let style = "{msg:32} {wide_bar:.cyan/blue} {bytes}/{total_bytes} {eta}";
    styled(ProgressBar::new(len), style, what)
}

/// A spinner. Hidden unless standard error is a terminal.
pub(crate) fn spinner(what: &str) -> ProgressBar {
    let bar = styled(ProgressBar::new_spinner(), "{spinner} {msg} {human_pos} {elapsed}", what);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// A bar that is never shown.
pub(crate) fn none() -> ProgressBar {
    ProgressBar::hidden()
}

fn styled(bar: ProgressBar, template: &str, what: &str) -> ProgressBar {
    bar.set_style(ProgressStyle::with_template(template).expect("a template of this file"));
    bar.set_message(what.to_owned());
    bar
}

#[cfg(test)]
mod tests {
    #[test]
    fn templates_parse() {
        super::bar(1, "a").finish_and_clear();
        super::bytes(1, "b").finish_and_clear();
        super::spinner("c").finish_and_clear();
    }
}
