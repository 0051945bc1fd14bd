//! The mutants that do no harm, and why.

use super::Mutant;
use crate::parts::mutants::{Act, DROPPED, Equivalent, Reason, Which, Wrong};
use crate::schemes::parts;
use outlast::Scheme;
use outlast::internals::pool::points as pool;

/// The pool's harmless mutants. A scheme's harmless mutants are in the scheme's folder.
///
/// `HEADER`: a torn first header copy does no harm, because the pool does not exist before the
/// second copy is written. The fence only keeps the two writes apart, so that one copy is intact at
/// any time. Leaving it out would save one fence in the life of a pool.
///
/// `SAVED`: recovery rejects saved free state that is incomplete, and traces its space instead. It
/// would accept a complete but older state. So a missing fence is harmless only where no state was
/// saved before, for example at the first fence of a run.
///
/// `HEADER_SIZE`, the header that announces a growth: the thread that grows the pool fences again
/// before it moves the frontier. Another thread that moves the frontier first depends on this fence
/// alone.
const POOL: &[Equivalent] = &[
    Equivalent { point: &pool::HEADER, act: Act::Fence, ways: ONCE, reason: Reason::DoubleHeader },
    Equivalent { point: &pool::SAVED, act: Act::Fence, ways: ONCE, reason: Reason::SavedFreeState },
    Equivalent {
        point: &pool::HEADER_SIZE,
        act: Act::Fence,
        ways: DROPPED,
        reason: Reason::OtherThreads,
    },
];

const ONCE: &[Wrong] = &[Wrong::DroppedOnce(Which::First), Wrong::DroppedOnce(Which::Seeded(2))];

/// Returns why a mutant does no harm, if the tables declare it harmless.
pub fn reason(scheme: Scheme, mutant: Mutant) -> Option<Reason> {
    let Mutant { point, act, wrong } = mutant;
    let mut all = POOL.iter().chain(parts(scheme).equivalent);
    let row = all.find(|row| row.point == point && row.act == act && row.ways.contains(&wrong));
    row.map(|row| row.reason)
}
