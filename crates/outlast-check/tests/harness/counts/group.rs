//! The costs of group hashing.

use super::{Bench, VALUE, colliding, cost, cost_at, has, lines_stored};
use outlast::RecordForm;
use outlast::internals::index::group::layout::segment_bytes;
use outlast::internals::index::group::points;
use outlast::internals::pmem::Event;
use outlast_check::codec::SPECIAL;
use outlast_check::session::Do;
use outlast_check::structures::group::shape;

/// Adds what the form needs to write a record: the block's lines, and their fence.
fn with_record(form: RecordForm, events: &[Event], (lines, fences): (u64, u64)) -> (u64, u64) {
    match form {
        RecordForm::Inline => (lines, fences),
        RecordForm::Bytes => {
            let record = cost_at(events, &points::RECORD).0;
            assert!((1..=2).contains(&record), "a record of less than 64 bytes");
            (lines + record, fences + 1)
        }
    }
}

/// Keeps only the index's events, because now and then a block needs more pages from the pool.
fn of_index(events: Vec<Event>) -> Vec<Event> {
    events.into_iter().filter(|e| e.point.is_none_or(|point| point.owner == "group")).collect()
}

/// An operation must fence once before it returns. The cell's own words commit it, in the first
/// level and in the second. The paper flushes three lines and fences three times.
#[test]
fn a_change_flushes_one_line() {
    for form in RecordForm::ALL {
        let shape = shape(form, 256, 1);
        let mut bench = Bench::new(shape);
        let brim = (shape.structure().brim)(shape.config);
        for key in 10..10 + brim * 7 / 10 {
            let events = of_index(bench.change(key, Do::Insert(VALUE + key)));
            assert_eq!(cost(&events), with_record(form, &events, (1, 1)), "{form}");
        }
        for key in 10..100 {
            let events = of_index(bench.change(key, Do::Put(key)));
            assert_eq!(cost(&events), with_record(form, &events, (1, 1)), "{form}");
            let events = of_index(bench.change(key, Do::Remove));
            assert_eq!(cost(&events), (1, 1), "{form}");
            // The cell is used again.
            let events = of_index(bench.change(key, Do::Insert(VALUE)));
            assert_eq!(cost(&events), with_record(form, &events, (1, 1)), "{form}");
        }
    }
}

/// A split flushes the new segment, and the link that commits it. The new segment must be durable
/// before the link to it. Apart from that link, the old segment is not changed.
#[test]
fn a_split_flushes_the_new_segment_and_a_link() {
    for form in RecordForm::ALL {
        let mut bench = Bench::new(shape(form, 16, 1));
        let mut splits = 0;
        for key in 10..200 {
            let events = of_index(bench.change(key, Do::Insert(VALUE + key)));
            if !has(&events, &points::SPLIT_COMMIT) {
                continue;
            }
            splits += 1;
            let lines = segment_bytes(16) / 64 - 1;
            assert_eq!(lines_stored(&events, &points::SPLIT_NEW), lines);
            let each = events.iter().filter(|e| e.point == Some(&points::SPLIT_COMMIT));
            assert!(each.count() > 0);
            let times = cost_at(&events, &points::SPLIT_COMMIT).0;
            let split = (times * (lines + 1), times * 2);
            let insert = with_record(form, &events, (1, 1));
            assert_eq!(cost(&events), (insert.0 + split.0, insert.1 + split.1), "{form}");
        }
        assert!(splits > 5, "{form}: {splits}");
    }
}

/// A node must be durable before the link to it.
#[test]
fn a_node_is_flushed_once() {
    for form in RecordForm::ALL {
        let mut bench = Bench::in_pool(shape(form, 16, 1), colliding());
        let mut nodes = 0;
        for key in 0..60 {
            let events = of_index(bench.change(SPECIAL + key, Do::Insert(VALUE)));
            if has(&events, &points::NODE_COMMIT) {
                nodes += 1;
                let lines = lines_stored(&events, &points::NODE_NEW);
                assert_eq!(cost_at(&events, &points::NODE_NEW), (lines, 1));
                assert_eq!(cost_at(&events, &points::NODE_COMMIT), (1, 1));
            }
        }
        assert!(nodes > 1, "{form}: {nodes}");
    }
}
