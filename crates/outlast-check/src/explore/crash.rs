//! Crashes at one moment: builds every image that the model allows there, up to a limit.

use super::cuts::Cuts;
use super::image::{Case, Good, Setting};
use crate::model::{Image, Kept, Store, Timeline, mix};
use crate::random::Random;
use crate::response::is_relied_on;
use crate::state::{Checked, Judge};
use outlast::internals::pmem::{LINE, LineSet, Point};
use outlast::internals::pool::layout::{HEADER_OFFSETS, HeaderCopy};
use std::cmp::Reverse;
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

/// A crash, with everything needed to rebuild its image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crash {
    /// How many events of the run had happened.
    pub moment: usize,
    /// The lines that lost stores, each with how many of its undurable stores it kept. Other lines
    /// lost nothing.
    pub lost: Vec<Kept>,
    /// The order of the check, see [`Case::order`].
    pub order: u64,
}

/// Formats a crash. `m120,81:3,90:0@17` means: at moment 120, line 0x81 keeps 3 stores and line
/// 0x90 none, order 17.
impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}", self.moment)?;
        for Kept { line, stores } in &self.lost {
            write!(f, ",{line:x}:{stores}")?;
        }
        write!(f, "@{}", self.order)
    }
}

impl FromStr for Crash {
    type Err = String;

    fn from_str(text: &str) -> Result<Crash, String> {
        let parse = || {
            let (left, order) = text.strip_prefix('m')?.split_once('@')?;
            let mut parts = left.split(',');
            let moment = parts.next()?.parse().ok()?;
            let kept = |part: &str| {
                let (line, stores) = part.split_once(':')?;
                let line = u64::from_str_radix(line, 16).ok()?;
                Some(Kept { line, stores: stores.parse().ok()? })
            };
            let lost = parts.map(kept).collect::<Option<_>>()?;
            Some(Crash { moment, lost, order: order.parse().ok()? })
        };
        parse().ok_or_else(|| format!("{text:?} is not of the form m120,81:3,90:0@17"))
    }
}

/// An image that was checked.
pub struct Looked<'a> {
    /// The crash that left it.
    pub crash: Crash,
    /// The commit point of the last store that survived although it could have been lost.
    pub kept: Option<&'static Point>,
    /// The commit point of the first store that was lost.
    pub lost: Option<&'static Point>,
    /// The image and what it may hold.
    pub case: Case<'a>,
    /// The result of the check.
    pub result: Checked<Good>,
}

/// State that is passed on from one moment of a run to the next: the images already checked, and
/// memory to build others in.
#[derive(Default)]
pub struct Scratch {
    image: Image,
    seen: HashSet<u64>,
}

/// Whether to continue.
pub type GoOn = bool;

/// Builds and checks what a power loss at the moment of `timeline` can leave: every combination of
/// cuts of the lines that a check reads, or `limit` of them.
///
/// Calls `each` for every image, until it returns false. Images already seen with the same judge
/// are left out.
///
/// The trace can come from several threads. The caller makes a [`Timeline`] of the trace and of the
/// file as it was before the trace, advances it to the moment of the crash, and passes a [`Judge`]
/// that knows the history up to that moment.
pub fn crash_at(
    setting: Setting<'_>,
    timeline: &Timeline<'_>,
    judge: &dyn Judge,
    limit: usize,
    scratch: &mut Scratch,
    each: &mut dyn FnMut(Looked<'_>) -> GoOn,
) -> GoOn {
    let mut random = Random::new(mix(timeline.moment() as u64, limit as u64));
    let mut read = LineSet::default();
    let mut look = |cut: &[Kept], read: &mut LineSet| {
        check_cut(setting, timeline, judge, cut, scratch, &mut |looked| {
            if let Ok(good) = &looked.result {
                read.extend(&good.lines);
            }
            each(looked)
        })
    };
    let all: Vec<Kept> =
        timeline.open().map(|o| Kept { line: o.line, stores: o.stores.len() }).collect();
    if !look(&all, &mut read) || !look(&[], &mut read) {
        return false;
    }
    // When a check reads open lines that were not known to matter, start again with those included.
    let mut left = limit;
    loop {
        let known = read.clone();
        // The header's lines always matter, because an opening reads the header before it maps the
        // file.
        let matters = |line| known.contains(line) || is_of_header(line);
        let mut cuts = Cuts::new(timeline, matters, left);
        let mut more = false;
        while let Some(cut) = cuts.next(&mut random) {
            if !look(&cut, &mut read) {
                return false;
            }
            left = left.saturating_sub(1);
            if timeline.open().any(|o| read.contains(o.line) && !known.contains(o.line)) {
                more = true;
                break;
            }
        }
        if !more || left == 0 {
            return true;
        }
    }
}

fn is_of_header(line: u64) -> bool {
    let lines = size_of::<HeaderCopy>() as u64 / LINE;
    HEADER_OFFSETS.iter().any(|start| (start / LINE..start / LINE + lines).contains(&line))
}

/// Builds and checks the image of one cut. Lines that the cut does not name lose as much as they
/// can.
pub fn check_cut(
    setting: Setting<'_>,
    timeline: &Timeline<'_>,
    judge: &dyn Judge,
    cut: &[Kept],
    scratch: &mut Scratch,
    each: &mut dyn FnMut(Looked<'_>) -> GoOn,
) -> GoOn {
    timeline.least_and(cut, &mut scratch.image);
    let order = scratch.image.number();
    if !scratch.seen.insert(mix(judge.key(), order)) {
        return true;
    }
    let case = Case { setting, image: &scratch.image, judge, order };
    let site = site(timeline, cut);
    let crash = Crash { moment: timeline.moment(), lost: site.losses, order };
    let point = |store: Option<Store>| store.and_then(|s| s.point);
    let (kept, lost) = (point(site.kept), point(site.lost));
    each(Looked { crash, kept, lost, case, result: case.check() })
}

/// Finds the last store that a cut keeps and the first that it loses, and the lines that lose
/// stores. Stores to volatile words count only if there are no other stores.
fn site(timeline: &Timeline<'_>, cut: &[Kept]) -> CutSite {
    let durable = |store: &Store| is_relied_on(store.point);
    let mut sorted = cut.to_vec();
    sorted.sort_unstable();
    let mut found = CutSite::default();
    for open in timeline.open() {
        let named = sorted.binary_search_by_key(&open.line, |kept| kept.line);
        let count = named.map_or(0, |i| sorted[i].stores.min(open.stores.len()));
        let (keeps, loses) = open.stores.split_at(count);
        let rank = |store: &Store| (durable(store), store.event);
        let keeps = keeps.iter().max_by_key(|s| rank(s));
        let loses_first = loses.iter().max_by_key(|s| (durable(s), Reverse(s.event)));
        found.kept = found.kept.into_iter().chain(keeps.copied()).max_by_key(rank);
        found.lost = found
            .lost
            .into_iter()
            .chain(loses_first.copied())
            .max_by_key(|s| (durable(s), Reverse(s.event)));
        if !loses.is_empty() {
            found.losses.push(Kept { line: open.line, stores: count });
        }
    }
    found
}

#[derive(Default)]
struct CutSite {
    kept: Option<Store>,
    lost: Option<Store>,
    losses: Vec<Kept>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_is_named_and_found_again() {
        for text in ["m0@0", "m120,81:3,90:0@18446744073709551615"] {
            assert_eq!(text.parse::<Crash>().unwrap().to_string(), text);
        }
        for text in ["", "m", "m1", "1@2", "m1,@2", "m1,x:1@2", "m1,1@2", "m1,1:1@"] {
            assert!(text.parse::<Crash>().is_err(), "{text}");
        }
    }
}
