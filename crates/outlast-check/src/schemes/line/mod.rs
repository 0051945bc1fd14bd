//! What line hashing adds to the harness.

mod scenarios;
mod seeded;
mod workloads;

use crate::parts::Parts;
use crate::parts::mutants::{Act, DROPPED, Equivalent, Reason, Which, Wrong};
use outlast::internals::index::line::points;

/// What line hashing adds to the harness.
pub const PARTS: Parts = Parts {
    expected: scenarios::expected,
    scenarios: scenarios::catalogue,
    workloads: workloads::ALL,
    seeded: seeded::LINES,
    equivalent: HARMLESS,
};

/// The mutants that do no harm in runs of one thread.
///
/// `REBUILD_CELLS`: until another rebuild commits, the next process completes these cells. A thread
/// that rebuilds again fences before it commits; another thread would not wait for these flushes.
///
/// `DOUBLE_COMMIT`: a thread doubles the directory only to rebuild a segment, and the intent is in the
/// same line as the directory's word. Another thread could reuse the old directory's block before.
const HARMLESS: &[Equivalent] = &[
    Equivalent {
        point: &points::REBUILD_CELLS,
        act: Act::Fence,
        ways: DROPPED,
        reason: Reason::OtherThreads,
    },
    Equivalent {
        point: &points::DOUBLE_COMMIT,
        act: Act::Flush,
        ways: FLUSH_DROPPED,
        reason: Reason::FlushedAgain,
    },
    Equivalent {
        point: &points::DOUBLE_COMMIT,
        act: Act::Fence,
        ways: DROPPED,
        reason: Reason::FlushedAgain,
    },
];

const FLUSH_DROPPED: &[Wrong] = &[
    Wrong::Dropped,
    Wrong::DroppedOnce(Which::First),
    Wrong::DroppedOnce(Which::Second),
    Wrong::DroppedOnce(Which::Last),
    Wrong::DroppedOnce(Which::Seeded(1)),
    Wrong::DroppedOnce(Which::Seeded(2)),
    Wrong::BeforeStores,
];
