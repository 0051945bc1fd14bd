//! The tables of seeded bugs: for each entry of the list of published bugs, the seeded bug in the
//! pool or a scheme, or the reason why there is none.

use super::shared;
use crate::parts::bugs::Line;
use crate::parts::published;
use crate::schemes::parts;
use outlast::Scheme;

/// Returns the published bugs, in the order of the list.
pub fn published() -> &'static [&'static str] {
    published::ALL
}

/// Returns whether a line of a scheme is one of those that all schemes share.
pub(super) fn is_shared(scheme: Scheme, line: &Line) -> bool {
    parts(scheme).seeded.iter().all(|own| own.published != line.published)
}

/// Returns every line of a scheme, with the published bugs first.
pub fn lines(scheme: Scheme) -> Vec<Line> {
    let own = parts(scheme).seeded;
    let has_own = |shared: &&Line| own.iter().any(|line| line.published == shared.published);
    let shared = || shared::LINES.iter().filter(|line| !has_own(line));
    let all = || shared().chain(own).copied();
    let published = published::ALL.iter().flat_map(|bug| all().filter(|l| l.published == *bug));
    let others = all().filter(|line| !published::ALL.contains(&line.published));
    published.chain(others).collect()
}
