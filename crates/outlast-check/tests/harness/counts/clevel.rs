//! The costs of clevel.

use super::{Bench, VALUE, colliding, cost, cost_at, has};
use outlast::RecordForm;
use outlast::internals::index::clevel::layout::{CONTEXT_BYTES, NODE_BYTES, level_bytes, state};
use outlast::internals::index::clevel::points;
use outlast::internals::pmem::{Access, Event, Point, Word};
use outlast::internals::pool::points as pool;
use outlast_check::codec::SPECIAL;
use outlast_check::session::Do;
use outlast_check::structures::clevel::shape;

/// Counts the lines of the record that the operation wrote. One fence completes all of them.
fn record_lines(events: &[Event]) -> u64 {
    let (lines, fences) = cost_at(events, &points::RECORD);
    assert!((1..=2).contains(&lines) && fences == 1, "a record of less than 64 bytes");
    lines
}

/// Returns whether the operation claimed pages for blocks, or released some.
fn moves_pages(events: &[Event]) -> bool {
    has(events, &pool::CLAIM_FENCE) || has(events, &pool::RELEASE)
}

/// Returns whether the operation made room, with another level or an overflow node.
fn makes_room(events: &[Event]) -> bool {
    has(events, &points::CONTEXT_COMMIT) || has(events, &points::NODE_LINK)
}

#[test]
fn an_insert_flushes_its_record_and_one_slot() {
    for form in RecordForm::ALL {
        let mut bench = Bench::new(shape(form, 2, 2));
        let mut seen = 0;
        for key in 10..60 {
            let events = bench.change(key, Do::Insert(VALUE + 41));
            // The record must be durable before its slot can lead to it, and the slot before the
            // insert returns. In between, the insert stores an announcement and a decision. They
            // need not be durable, because a crash makes them void. Skip inserts that touch a
            // bucket for the first time since opening, because those cost more.
            let touches = has(&events, &points::REPAIR_FOUND);
            if moves_pages(&events) || makes_room(&events) || touches {
                continue;
            }
            seen += 1;
            assert_eq!(cost_at(&events, &points::INSERT), (1, 1));
            assert_eq!(cost(&events), (record_lines(&events) + 1, 2), "{form}");
        }
        assert!(seen > 30, "{seen} inserts");
    }
}

#[test]
fn a_replacement_flushes_its_record_and_two_words_a_removal_two_words() {
    for form in RecordForm::ALL {
        let mut bench = Bench::new(shape(form, 2, 2));
        bench.fill(10..40);
        let mut seen = (0, 0);
        for key in 10..40 {
            let change = match key % 3 {
                0 => Do::Update(VALUE + 41),
                1 => Do::Put(VALUE + 41),
                _ => Do::Swap(VALUE + key, VALUE + 41),
            };
            let events = bench.change(key, change);
            if moves_pages(&events) {
                continue;
            }
            seen.0 += 1;
            // The new record must be durable before the old one leads to it. That link, the commit,
            // must be durable before the slot leads any thread past it. The slot must be durable
            // before the old record's block is reused.
            assert_eq!(cost_at(&events, &points::UPDATE), (1, 1));
            assert_eq!(cost_at(&events, &points::UPDATE_SLOT), (1, 1));
            assert_eq!(cost(&events), (record_lines(&events) + 2, 3), "{change:?}, {form}");
        }
        for key in 10..40 {
            let value = bench.session.state().maps["m"].records[&key];
            let compared = Do::CompareRemove(value);
            let events = bench.change(key, if key % 2 == 0 { compared } else { Do::Remove });
            if moves_pages(&events) {
                continue;
            }
            seen.1 += 1;
            // The commit must be durable before the slot is emptied: a reader that finds the slot
            // empty cannot tell that the removal may not be durable yet. The empty slot must be
            // durable before the record's block is reused.
            assert_eq!(cost_at(&events, &points::REMOVE), (1, 1));
            assert_eq!(cost_at(&events, &points::REMOVE_SLOT), (1, 1));
            assert_eq!(cost(&events), (2, 2), "remove, {form}");
        }
        assert!(seen.0 > 20 && seen.1 > 20, "{seen:?}");
    }
}

#[test]
fn an_expansion_flushes_the_level_and_the_context() {
    for form in RecordForm::ALL {
        let mut bench = Bench::new(shape(form, 1, 1));
        let mut bits = 1;
        for key in 10..300 {
            let events = bench.change(key, Do::Insert(VALUE + key));
            if !has(&events, &points::CONTEXT_COMMIT) {
                continue;
            }
            bits += 1;
            // All of the level must be durable before the context names it, the context before the
            // root names it, and the root before the insert continues.
            let (lines, fences) = cost_at(&events, &points::LEVEL);
            assert!(lines >= (level_bytes(bits, 1) - 192) / 64 && fences == 1, "{lines} lines");
            let (lines, fences) = cost_at(&events, &points::CONTEXT);
            assert!((1..=CONTEXT_BYTES / 64).contains(&lines) && fences == 1);
            assert_eq!(cost_at(&events, &points::CONTEXT_COMMIT), (1, 1));
        }
        assert!(bits >= 4, "{bits}");
    }
}

#[test]
fn an_overflow_node_is_durable_before_its_link() {
    for form in RecordForm::ALL {
        let mut bench = Bench::in_pool(shape(form, 1, 1), colliding());
        let mut nodes = 0;
        for key in SPECIAL..SPECIAL + 120 {
            let events = bench.change(key, Do::Insert(VALUE + 41));
            if has(&events, &points::NODE_LINK) {
                nodes += 1;
                assert_eq!(cost_at(&events, &points::NODE), (NODE_BYTES / 64, 1));
                assert_eq!(cost_at(&events, &points::NODE_LINK), (1, 1));
            } else if !moves_pages(&events)
                && !makes_room(&events)
                && !has(&events, &points::REPAIR_FOUND)
            {
                // The same cost as in a bucket.
                assert_eq!(cost(&events), (record_lines(&events) + 1, 2), "{form}");
            }
        }
        assert!(nodes >= 2);
    }
}

/// Returns a map with keys of one hash, from [`SPECIAL`] on, and the offsets of their records. It has
/// `levels` levels, and lookups find the keys in order.
fn crowd(form: RecordForm, levels: u64) -> (Bench, Vec<u64>) {
    let mut bench = Bench::in_pool(shape(form, 1, 1), colliding());
    let mut records = Vec::new();
    for key in SPECIAL.. {
        let events = bench.change(key, Do::Insert(VALUE + key));
        let written = |event: &Event| match event.access {
            Access::Store { offset, .. } if event.point == Some(&points::RECORD) => Some(offset),
            _ => None,
        };
        records.extend(events.iter().find_map(written));
        if records.len() >= 4 && bench.session.grown("m").unwrap() + 1 >= levels {
            break;
        }
    }
    (bench, records)
}

/// Does what `run` does, which must fail with damage, after the state of a record has become `word`.
/// Returns the last flush at `last` and all events after it. The caller checks that a fence follows.
fn events_of_failure(
    bench: &mut Bench,
    (record, word): (u64, u64),
    last: &'static Point,
    run: impl FnOnce(&mut Bench) -> Result<(), String>,
) -> Vec<Event> {
    let core = bench.session.store().core();
    let place: &Word = &core.memory.words(record, 8).unwrap()[0];
    core.memory.store(place, word, &points::RECORD);
    bench.seam.take();
    bench.seam.start(false);
    let error = run(bench).unwrap_err();
    assert!(error.contains("a record's state"), "{error}");
    let events = bench.seam.take();
    let flushed = events.iter().rposition(|event| {
        event.point == Some(last) && matches!(event.access, Access::Flush { .. })
    });
    events[flushed.expect("a flush before the damage")..].to_vec()
}

/// A word that is no record's state.
const BAD: u64 = 7 << 60;

fn is_fenced(events: &[Event], at: &'static Point) -> bool {
    events.iter().any(|e| e.point == Some(at) && matches!(e.access, Access::Fence))
}

/// An operation that meets damage may have changed slots already. Other threads no longer find their
/// records through these slots, and retire the records. So the slots must be durable all the same.
#[test]
fn slots_that_a_change_has_changed_before_damage_are_durable() {
    for form in RecordForm::ALL {
        for (change, at) in
            [(Do::Remove, &points::REMOVE_SLOT), (Do::Update(VALUE + 41), &points::UPDATE_SLOT)]
        {
            let (mut bench, records) = crowd(form, 1);
            let events = events_of_failure(&mut bench, (records[3], BAD), at, |bench| {
                bench.session.change("m", SPECIAL, change).map_err(|fault| fault.to_string())
            });
            assert!(is_fenced(&events, at), "{change:?}");
        }
    }
}

/// Rehashing has copied other records of the bucket when it meets the damage.
#[test]
fn slots_that_rehashing_has_changed_before_damage_are_durable() {
    for form in RecordForm::ALL {
        let (mut bench, records) = crowd(form, 3);
        let last = &points::CONFIRM;
        let events = events_of_failure(&mut bench, (records[3], BAD), last, |bench| {
            bench.session.background().map(drop).map_err(|fault| fault.to_string())
        });
        assert!(is_fenced(&events, &points::FREEZE));
    }
}

/// The trace has emptied the slot of a removed record when it meets the damage.
#[test]
fn slots_that_the_trace_has_repaired_before_damage_are_durable() {
    for form in RecordForm::ALL {
        let (mut bench, records) = crowd(form, 1);
        let core = bench.session.store().core();
        let first = &core.memory.words(records[0], 8).unwrap()[0];
        let dead = state::with_kind(core.memory.load(first), state::DEAD);
        core.memory.store(first, dead, &points::REMOVE);
        let at = &points::REPAIR_SLOT;
        let events = events_of_failure(&mut bench, (records[3], BAD), at, |bench| {
            bench.session.verify().map_err(|fault| fault.to_string())
        });
        assert!(is_fenced(&events, at));
    }
}
