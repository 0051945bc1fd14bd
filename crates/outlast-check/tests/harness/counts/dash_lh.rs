//! The costs of Dash-LH, apart from those of its segments, which are the same as in Dash-EH.

use super::{Bench, VALUE, colliding, cost_at, has};
use outlast::RecordForm;
use outlast::internals::index::dash_lh::layout::{BUCKET_BYTES, DIRECTORY_DEPTH, NODE_BYTES};
use outlast::internals::index::dash_lh::points;
use outlast::internals::pmem::Event;
use outlast_check::codec::SPECIAL;
use outlast_check::session::{Do, PoolShape};
use outlast_check::structures::dash_lh::shape;

fn roomy() -> PoolShape {
    PoolShape { max_pages: 640, ..PoolShape::default() }
}

/// A split flushes the new segment, the turn with it, and the state that commits the split. No
/// pointer to the new segment is stored, so there is no third fence.
#[test]
fn a_split_flushes_the_new_segment_the_turn_and_a_state() {
    for form in RecordForm::ALL {
        let mut bench = Bench::in_pool(shape(form, 6, 2), roomy());
        let lines = (64 + 2) * BUCKET_BYTES / 64 + 1;
        let mut splits = 0;
        for key in 10..6_000 {
            let events = bench.change(key, Do::Insert(VALUE + key));
            if !has(&events, &points::SPLIT_COMMIT) {
                assert!(!has(&events, &points::TURN) && !has(&events, &points::ARRAY));
                continue;
            }
            // An overflow node causes four splits.
            let (_, nodes) = cost_at(&events, &points::NODE_COMMIT);
            assert_eq!(cost_at(&events, &points::NODE_NEW), (nodes * NODE_BYTES / 64, nodes));
            let all = 4 * nodes;
            assert_eq!(cost_at(&events, &points::ERASED), (all, all));
            assert_eq!(cost_at(&events, &points::TURN), (all, 0));
            assert_eq!(cost_at(&events, &points::SPLIT_NEW), (all * lines, all));
            assert_eq!(cost_at(&events, &points::SPLIT_COMMIT), (all, all));
            assert_eq!(cost_at(&events, &points::SPLIT_DONE), (0, 0));
            // Four segments need two arrays. The entry of one of them can be part of a new
            // directory.
            let (arrays, fences) = cost_at(&events, &points::ARRAY);
            assert!(fences == 0 && arrays <= all / 2, "{arrays}");
            splits += all;
        }
        assert!(splits >= 8, "{form}: {splits}");
    }
}

/// The new directory is fenced before the root names it. The root is in the turn's line.
#[test]
fn a_doubling_costs_one_fence() {
    let mut bench = Bench::new(shape(RecordForm::Inline, 1, 2));
    let mut doublings = 0;
    for key in 10..600 {
        let events = bench.change(key, Do::Insert(VALUE + key));
        if has(&events, &points::DOUBLE_COMMIT) {
            doublings += 1;
            // Identity and entries.
            let entries = 1 << (DIRECTORY_DEPTH + doublings);
            assert_eq!(cost_at(&events, &points::DOUBLE_NEW), (1 + u64::div_ceil(entries, 8), 1));
            assert_eq!(cost_at(&events, &points::DOUBLE_COMMIT), (0, 0));
            let (splits, _) = cost_at(&events, &points::SPLIT_COMMIT);
            let (arrays, _) = cost_at(&events, &points::ARRAY);
            assert!(arrays < splits / 2, "the new directory has one of them");
        }
    }
    assert!(doublings >= 2, "{doublings}");
}

/// Keys that no split separates get overflow nodes. The table does not grow for them without end.
#[test]
fn keys_of_one_hash_do_not_grow_the_table_without_end() {
    let mut bench = Bench::in_pool(shape(RecordForm::Inline, 1, 2), colliding());
    let count = |events: &[Event], point| events.iter().filter(|e| e.point == Some(point)).count();
    let (mut nodes, mut splits) = (0, 0);
    for key in 0..3_000 {
        let events = bench.change(SPECIAL + key, Do::Insert(VALUE));
        // Each has three events: store, flush and fence.
        nodes += count(&events, &points::NODE_COMMIT) / 3;
        splits += count(&events, &points::SPLIT_COMMIT) / 3;
    }
    assert!(nodes > 20, "{nodes} nodes");
    // Four splits for each of the first eight nodes and the sixteenth, and for some nodes that a
    // split has given back.
    assert!(splits <= 4 * 12, "{splits} splits");
}
