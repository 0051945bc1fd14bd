//! The costs of PhaST.

use super::{Bench, VALUE, cost, cost_at, has, lines_stored};
use outlast::RecordForm;
use outlast::internals::index::phast::points;
use outlast::internals::pmem::{Access, Event};
use outlast_check::session::Do;
use outlast_check::structures::phast::shape;

/// Makes a map with the paper's leaves.
fn bench(form: RecordForm) -> Bench {
    Bench::new(shape(form, 56, 128, 128))
}

/// Adds what the form needs to write a record: the block's lines.
fn with_record(form: RecordForm, events: &[Event], (lines, fences): (u64, u64)) -> (u64, u64) {
    match form {
        RecordForm::Inline => (lines, fences),
        RecordForm::Bytes => {
            let record = cost_at(events, &points::RECORD).0;
            assert!((1..=2).contains(&record), "a record of less than 64 bytes");
            (lines + record, fences)
        }
    }
}

/// Keeps only the index's events, because now and then a block needs more pages from the pool.
fn of_index(events: Vec<Event>) -> Vec<Event> {
    events.into_iter().filter(|e| e.point.is_none_or(|point| point.owner == "phast")).collect()
}

/// Returns the value that an event has stored.
fn stored_value(event: &Event) -> Option<u64> {
    match event.access {
        Access::Store { value, .. } => Some(value),
        _ => None,
    }
}

/// An insert flushes the pair and the line of its bit. In the first leaf of all, and for byte
/// strings, the bit must not become durable before the pair, so there are two fences. The block of a
/// byte string is durable with the pair.
#[test]
fn an_insert_flushes_two_lines() {
    for form in RecordForm::ALL {
        let mut bench = bench(form);
        for key in 10..66 {
            let events = of_index(bench.change(key, Do::Insert(VALUE + key)));
            assert_eq!(cost(&events), with_record(form, &events, (2, 2)), "{form}");
        }
        // Once the leaf is compacted, inserts into slots of removed pairs cost no more.
        for key in 10..40 {
            bench.change(key, Do::Remove);
        }
        for key in 10..20 {
            let events = of_index(bench.change(key, Do::Insert(VALUE + key)));
            assert_eq!(cost(&events), with_record(form, &events, (2, 2)), "{form}");
        }
    }
}

/// In all other leaves, an 8-byte record goes into a blank slot, and needs one fence. Compacting a
/// leaf makes the slots that it frees blank, with one fence.
#[test]
fn an_insert_into_a_blank_slot_takes_one_fence() {
    let mut bench = bench(RecordForm::Inline);
    bench.fill((10..122).step_by(2));
    let events = bench.change(65, Do::Insert(VALUE));
    assert!(has(&events, &points::SPLIT_COMMIT));
    let mut compacted = 0;
    for round in 0..20 {
        for key in (101..121).step_by(2) {
            let events = bench.change(key, Do::Insert(VALUE + key));
            let blank = cost_at(&events, &points::COMPACT_BLANK);
            if has(&events, &points::COMPACT_BLANK) {
                compacted += 1;
                assert_eq!(blank, (lines_stored(&events, &points::COMPACT_BLANK), 1));
            }
            assert_eq!(cost(&events), (2 + blank.0, 1 + blank.1), "{round}");
            // If a crash keeps only a part of the pair, the part must not have the key.
            let stored = events.iter().filter(|e| e.point == Some(&points::INSERT_PAIR));
            let stored: Vec<u64> = stored.filter_map(stored_value).collect();
            assert_eq!(stored, [VALUE + key, key]);
        }
        for key in (101..121).step_by(2) {
            assert_eq!(cost(&bench.change(key, Do::Remove)), (1, 1));
        }
    }
    assert!(compacted > 2);
}

/// Changes of many keys flush the same lines, and share one fence. Byte strings are changed one by one.
#[test]
fn changes_of_many_keys_share_a_fence() {
    for form in RecordForm::ALL {
        let mut bench = Bench::new(shape(form, 56, 128, 128));
        bench.fill((10..1600).step_by(2));
        // Far enough apart to be in different leaves.
        let keys = || (0..8).map(|n| 401 + 150 * n);
        for (change, lines) in [(Do::Insert(7), 2), (Do::Put(8), 1), (Do::Remove, 1)] {
            let changes: Vec<_> = keys().map(|key| (key, change)).collect();
            let events = of_index(bench.change_many(&changes));
            match form {
                RecordForm::Inline => assert_eq!(cost(&events), (8 * lines, 1), "{change:?}"),
                RecordForm::Bytes => assert!(!has(&events, &points::MANY)),
            }
        }
    }
}

/// A split of a leaf with blank slots makes those of the lower half blank, under the fence that makes
/// its bits durable.
#[test]
fn a_split_blanks_what_has_moved() {
    let mut bench = bench(RecordForm::Inline);
    bench.fill((10..122).step_by(2));
    let mut splits = 0;
    // The last leaf has the keys from 66 on.
    for key in (67..130).step_by(2) {
        let events = bench.change(key, Do::Insert(VALUE));
        if !has(&events, &points::SPLIT_COMMIT) {
            continue;
        }
        let blank = cost_at(&events, &points::SPLIT_BLANK);
        let is_first = splits == 0;
        splits += 1;
        assert_eq!(blank.0, lines_stored(&events, &points::SPLIT_BLANK));
        assert!(blank.1 == 0 && (blank.0 == 0) == is_first, "{blank:?}");
        let new = cost_at(&events, &points::SPLIT_NEW);
        // The insert that follows is in the last leaf.
        assert_eq!(cost(&events), (new.0 + blank.0 + 2 + 2, 3 + 1));
    }
    assert_eq!(splits, 2);
}

/// An update flushes one line. Metadata in DRAM keeps concurrent readers from returning a value
/// that is not durable.
#[test]
fn an_update_flushes_one_line() {
    for form in RecordForm::ALL {
        let mut bench = bench(form);
        bench.fill(10..50);
        for (key, change) in [(10, Do::Update(7)), (30, Do::Put(8)), (49, Do::Swap(VALUE + 49, 9))]
        {
            let events = of_index(bench.change(key, change));
            // The record must be durable before the link to it.
            let fences = if form == RecordForm::Bytes { 2 } else { 1 };
            assert_eq!(cost(&events), with_record(form, &events, (1, fences)), "{form}");
        }
    }
}

#[test]
fn a_removal_flushes_one_line() {
    for form in RecordForm::ALL {
        let mut bench = bench(form);
        bench.fill(10..50);
        for key in [49, 10, 30] {
            let events = bench.change(key, Do::Remove);
            assert_eq!(cost(&events), (1, 1), "{form}");
        }
    }
}

/// A split flushes the whole new leaf, the link that commits it, the old leaf's bits, and, if that
/// leaf has blank slots, the slots that become blank. The separator of byte strings is one line more.
/// There is a fence for each: the new leaf before the link, the link before the bits, and the bits
/// and blank slots before slots are reused.
#[test]
fn a_split_flushes_each_line_once() {
    for form in RecordForm::ALL {
        let mut bench = bench(form);
        bench.fill((10..122).step_by(2));
        let events = of_index(bench.change(33, Do::Insert(VALUE)));
        assert!(has(&events, &points::SPLIT_COMMIT));
        // The header, and the lines that 28 pairs can be on. With blank slots these are all lines.
        let (leaf, fences) = cost_at(&events, &points::SPLIT_NEW);
        let least = if form == RecordForm::Bytes { 2 + 7 } else { 2 + 14 };
        assert!((least..=2 + 14).contains(&leaf) && fences == 1, "{leaf}");
        assert_eq!(leaf, lines_stored(&events, &points::SPLIT_NEW));
        assert_eq!(cost_at(&events, &points::SPLIT_BLANK), (0, 0), "the first leaf of all");
        let separator = cost_at(&events, &points::SEPARATOR);
        assert_eq!(separator, if form == RecordForm::Bytes { (1, 0) } else { (0, 0) });
        let insert = with_record(form, &events, (2, 2));
        let split = (leaf + separator.0 + 2, 3);
        // The block of a byte string was written before the insert looked for room.
        assert_eq!(cost(&events), (insert.0 + split.0, insert.1 + split.1), "{form}");
    }
}

/// One word unlinks an empty leaf. A merge that moves pairs takes three fences: copies and mark,
/// bits, link.
#[test]
fn a_merge_flushes_each_line_once() {
    for form in RecordForm::ALL {
        let mut bench = Bench::new(shape(form, 8, 4, 1));
        bench.fill(10..26);
        let mut merged = 0;
        for key in (10..26).rev() {
            let events = bench.change(key, Do::Remove);
            if !has(&events, &points::MERGE_COMMIT) {
                continue;
            }
            merged += 1;
            assert_eq!(cost_at(&events, &points::MERGE_COMMIT), (1, 1));
            if has(&events, &points::MERGE_COPY) {
                let stored = lines_stored(&events, &points::MERGE_COPY);
                assert_eq!(cost_at(&events, &points::MERGE_COPY), (stored, 1));
                assert_eq!(cost_at(&events, &points::MERGE_BITS), (1, 1));
            }
        }
        assert!(merged > 0, "{form}");
    }
}
