//! Draws histories of one key for people.

use super::check::{KeyHistory, What};
use super::record::{Answer, Shown};
use std::fmt::Write as _;

/// How many moments before the one in question are drawn.
const DRAWN: usize = 36;

/// Explains what is wrong with a key whose first `bad` moments cannot be explained. All but the
/// last of them can, by the operations in `order`.
pub(super) fn text(
    map: &str,
    key: u64,
    history: &KeyHistory,
    iteration: bool,
    bad: usize,
    order: &[usize],
) -> String {
    let what = if iteration { "what an iteration says of it" } else { "its answers" };
    let mut text = format!("{map:?}, key {key}: no order of its operations explains {what}\n");
    let last: Vec<_> = order
        .iter()
        .rev()
        .filter(|op| !history.ops[**op].scan || iteration)
        .take(DRAWN / 2)
        .map(|op| history.ops[*op].op.to_string())
        .collect();
    text.push_str(&picture(history, bad));
    let shown: Vec<_> = last.into_iter().rev().collect();
    let more = if shown.len() < order.len() { "... " } else { "" };
    let _ = match history.moments[bad - 1].what {
        What::End(op) => writeln!(
            text,
            "  all before the answer of {} (X) is explained by the order: {more}{}",
            history.ops[op].op,
            shown.join(" ")
        ),
        What::Begin(_) | What::Crash => Ok(()),
    };
    text
}

/// Draws the operations up to a moment as intervals, with one line per operation and one column per
/// moment. `|` is a begin or a return, `>` no return, `#` a crash, `X` a return at the last moment.
pub(super) fn picture(history: &KeyHistory, until: usize) -> String {
    let first = until.saturating_sub(DRAWN);
    let column = |moment: usize| moment.clamp(first, until) - first;
    let mut rows = Vec::new();
    for (index, op) in history.ops.iter().enumerate() {
        let begin = history.moments.iter().position(|m| m.what == What::Begin(index));
        let Some(begin) = begin.filter(|b| *b < until) else { continue };
        let ends = |what| what == What::End(index) || what == What::Crash;
        let end = history.moments[begin..until].iter().position(|m| ends(m.what));
        let end = end.map(|e| e + begin);
        if end.is_some_and(|e| e < first) {
            continue;
        }
        let answered = end.is_some_and(|e| history.moments[e].what == What::End(index));
        let mut line = vec![b' '; until - first + 1];
        for (moment, cell) in line.iter_mut().enumerate().take(until - first) {
            if history.moments[first + moment].what == What::Crash {
                *cell = b'#';
            }
        }
        let (from, to) = (column(begin), column(end.unwrap_or(until)));
        line[from..to].fill(b'-');
        line[from] = if begin < first { b'-' } else { b'|' };
        if let Some(end) = end.filter(|_| answered) {
            line[to] = if end + 1 == until { b'X' } else { b'|' };
        } else if end.is_none() {
            line[to] = b'>';
        }
        let said = match &op.answer {
            Some(answer) if answered => match (op.scan, answer) {
                (true, Answer::Value(None)) => "not reported".into(),
                (true, answer) => format!("reported {answer}"),
                (false, answer) => answer.to_string(),
            },
            _ => "no answer".into(),
        };
        let asked = if op.scan { "iteration".into() } else { op.call.to_string() };
        let name = format!("{:>4} T{} {asked} -> {said}", op.op, op.thread);
        rows.push((name, String::from_utf8_lossy(&line).trim_end().to_owned()));
    }
    let width = rows.iter().map(|r| r.0.len()).max().unwrap_or(0);
    let mut text = format!("  at first: {}\n", Shown(history.initial));
    for (name, line) in rows {
        let _ = writeln!(text, "{name:width$}  {line}");
    }
    text
}
