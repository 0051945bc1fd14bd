//! What EA-PHT, EA-PHT-H and EA-PHT-HPR add to the harness.

mod scenarios;
mod seeded;
mod workloads;

use crate::parts::Parts;
use crate::parts::mutants::{Act, DROPPED, Equivalent, Reason, Which, Wrong};
use crate::structures::ea_pht::{hybrid, parallel, plain};
use outlast::internals::index::ea_pht::points;

/// What a scheme of the family adds. The schemes differ in whether changes go on while a table is
/// moved.
macro_rules! parts {
    ($parts:ident: $scheme:ident, $goes_on:literal, $workloads:path, $seeded:expr) => {
        /// What this scheme adds to the harness.
        pub const $parts: Parts = Parts {
            expected: |name, form| scenarios::expected(name, form, $goes_on),
            scenarios: |form| scenarios::catalogue(form, $scheme::config, $goes_on),
            workloads: &$workloads($scheme::config(2, 2)),
            seeded: $seeded,
            equivalent: if $goes_on { REUSED_BY_OTHERS } else { COUNTED_AGAIN },
        };
    };
}

parts!(PLAIN: plain, false, workloads::all, seeded::PLAIN);
parts!(HYBRID: hybrid, false, workloads::all, seeded::HYBRID);
parts!(PARALLEL: parallel, true, workloads::resumed, seeded::PARALLEL);

/// The mutant of EA-PHT-HPR that does no harm in runs of one thread. Without the fence after a
/// resize's end, another thread can reuse the old table while the root on media still leads to it.
/// The thread that ended the resize cannot, because it fences before it could reuse anything.
const REUSED_BY_OTHERS: &[Equivalent] = &[Equivalent {
    point: &points::RESIZE_COMMIT,
    act: Act::Fence,
    ways: DROPPED,
    reason: Reason::OtherThreads,
}];

/// The harmless mutant of EA-PHT and EA-PHT-H leaves out the first flush of a new table. That is
/// the flush of the first chunk's header or, if there are annexes, of the first annex's. Only a
/// table with chains is resized, and each move reserves as many overflow buckets of the new table
/// as its chain has. So the moves advance the counter in that line, and flush it again before the
/// root leads to it.
const COUNTED_AGAIN: &[Equivalent] = &[Equivalent {
    point: &points::RESIZE_NEW,
    act: Act::Flush,
    ways: &[Wrong::DroppedOnce(Which::First)],
    reason: Reason::FlushedAgain,
}];
