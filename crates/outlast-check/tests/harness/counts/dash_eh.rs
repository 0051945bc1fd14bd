//! The costs of Dash-EH.

use super::{Bench, VALUE, colliding, cost, cost_at, has, lines_stored};
use outlast::RecordForm;
use outlast::internals::index::dash_eh::layout::SLOTS;
use outlast::internals::index::dash_eh::points;
use outlast::internals::pmem::{Access, Event};
use outlast_check::codec::SPECIAL;
use outlast_check::schemes::dash_eh::rows::{self, Row};
use outlast_check::session::Do;
use outlast_check::structures::dash_eh::{buckets, phases, shape};
use outlast_check::structures::phases::phases_of;

/// Keys of a segment's half of the hash space, by home bucket.
type Homes = Vec<std::vec::IntoIter<u64>>;

fn homes(bench: &Bench) -> Homes {
    let buckets = buckets(bench.shape.config) as usize;
    let mut homes = vec![Vec::new(); buckets];
    for key in 10..4_000 {
        let hash = bench.session.hash(bench.shape.form, key);
        if hash >> 63 == 0 {
            homes[(hash >> 8) as usize % buckets].push(key);
        }
    }
    homes.into_iter().map(Vec::into_iter).collect()
}

/// Counts the lines of the record that the operation wrote, header included: one or two, because a
/// block of less than 64 bytes can cross into the next line.
fn record_lines(events: &[Event]) -> u64 {
    cost_at(events, &points::RECORD).0
}

/// Adds what the form needs to write a record: the block's lines, and one fence, because the link
/// must not become durable before the record.
fn with_record(form: RecordForm, events: &[Event], (lines, fences): (u64, u64)) -> (u64, u64) {
    match form {
        RecordForm::Inline => (lines, fences),
        RecordForm::Bytes => {
            let record = record_lines(events);
            assert!((1..=2).contains(&record), "a record of less than 64 bytes");
            assert_eq!(cost_at(events, &points::RECORD).1, 1);
            (lines + record, fences + 1)
        }
    }
}

#[test]
fn lookups_store_nothing_wherever_the_record_is() {
    for form in RecordForm::ALL {
        let mut bench = Bench::new(shape(form, 2, 2));
        let mut homes = homes(&bench);
        // Keys of one home fill the home bucket, the next one and the stash.
        let keys: Vec<u64> = homes[0].by_ref().take(32).collect();
        bench.fill(keys.iter().copied());
        // Look up keys in each of them, and absent keys with and without overflow to search.
        let absent: Vec<u64> = homes.iter_mut().flat_map(|h| h.by_ref().take(3)).collect();
        for &key in keys.iter().chain(&absent) {
            bench.read(key);
        }
        bench.iterate();

        let mut bench = Bench::in_pool(shape(form, 1, 2), colliding());
        bench.fill(SPECIAL..SPECIAL + 60);
        for key in SPECIAL..SPECIAL + 70 {
            bench.read(key);
        }
        bench.iterate();
    }
}

#[test]
fn changes_of_many_keys_share_one_fence() {
    for form in RecordForm::ALL {
        let mut bench = Bench::new(shape(form, 2, 2));
        let mut homes = homes(&bench);
        // The segment is touched.
        bench.fill(homes[0].next());
        let keys: Vec<u64> = homes.iter_mut().map(|keys| keys.next().unwrap()).collect();
        let mut cost_of = |change: fn(u64) -> Do| {
            let changes: Vec<_> = keys.iter().map(|&key| (key, change(key))).collect();
            // The allocator may have to claim a run of pages for the records.
            let mut events = bench.change_many(&changes);
            events.retain(|event| event.point.is_some_and(|point| point.owner == "dash"));
            (cost(&events), record_lines(&events))
        };
        let lines = keys.len() as u64;
        // The blocks of byte strings must be durable before the links to them.
        let fences = if form == RecordForm::Bytes { 2 } else { 1 };
        let (inserts, records) = cost_of(|key| Do::Insert(VALUE + key));
        assert_eq!(inserts, (lines + records, fences), "{form}");
        let (updates, records) = cost_of(Do::Update);
        assert_eq!(updates, (lines + records, fences), "{form}");
        assert_eq!(cost_of(|_| Do::Remove), ((lines, 1), 0), "{form}");
        assert_eq!(cost_of(|_| Do::Remove), ((0, 0), 0), "{form}: nothing is left to remove");
    }
}

#[test]
fn an_insert_flushes_one_line_and_its_record() {
    for form in RecordForm::ALL {
        let mut bench = Bench::new(shape(form, 2, 2));
        let mut homes = homes(&bench);
        for _ in 0..2 * SLOTS {
            // One line, one fence: the slot's two words share the line, and its commit word is
            // stored last. An operation that returns has fenced at least once.
            let key = homes[0].next().unwrap();
            let events = bench.change(key, Do::Insert(VALUE + 41));
            if has(&events, &outlast::internals::pool::points::CLAIM_FENCE) {
                continue;
            }
            assert_eq!(cost(&events), with_record(form, &events, (1, 1)), "{form}");
        }
        // The home bucket and the next one are full of records with the same home, so these keys go
        // to the stash.
        for _ in 0..20 {
            let key = homes[0].next().unwrap();
            let events = bench.change(key, Do::Insert(VALUE + 41));
            assert!(has(&events, &points::INSERT_OVERFLOW));
            if has(&events, &outlast::internals::pool::points::CLAIM_FENCE) {
                continue;
            }
            // The same cost as in a bucket, because the home's overflow fingerprint is volatile.
            assert_eq!(cost(&events), with_record(form, &events, (1, 1)), "{form}, stash");
        }
    }
}

#[test]
fn a_change_flushes_one_line_wherever_the_record_is() {
    for form in RecordForm::ALL {
        let mut bench = Bench::new(shape(form, 2, 2));
        let mut homes = homes(&bench);
        let keys: Vec<u64> = homes[0].by_ref().take(40).collect();
        bench.fill(keys.iter().copied());
        // In the first round, some changes claim pages for the blocks of their records, and are
        // skipped.
        for round in 0..3 {
            for &key in &keys {
                let now = if round == 0 { VALUE + key } else { VALUE + 41 * 3 + round - 1 };
                let new = VALUE + 41 * 3 + round;
                let change = match key % 3 {
                    0 => Do::Update(new),
                    1 => Do::Put(new),
                    _ => Do::Swap(now, new),
                };
                let events = bench.change(key, change);
                let update = match form {
                    RecordForm::Inline => &points::UPDATE,
                    RecordForm::Bytes => &points::UPDATE_LINK,
                };
                assert!(has(&events, update));
                if has(&events, &outlast::internals::pool::points::CLAIM_FENCE)
                    || has(&events, &outlast::internals::pool::points::RELEASE)
                {
                    continue;
                }
                // One word of one line: the value itself, or the link to the new record.
                assert_eq!(cost(&events), with_record(form, &events, (1, 1)), "{change:?}");
            }
        }
        // A change that has no effect flushes nothing. With byte strings it does not even write a
        // record, unless only a comparison under the lock can tell.
        let nothing = |events: &[Event]| match form {
            RecordForm::Inline => assert_eq!(cost(events), (0, 0)),
            RecordForm::Bytes => assert_eq!(cost(events), (record_lines(events), 1)),
        };
        let absent: Vec<u64> = homes[1].by_ref().take(4).collect();
        assert_eq!(cost(&bench.change(keys[3], Do::Insert(5))), (0, 0));
        assert_eq!(cost(&bench.change(absent[0], Do::Update(5))), (0, 0));
        assert_eq!(cost(&bench.change(absent[1], Do::Swap(5, 6))), (0, 0));
        assert_eq!(cost(&bench.change(absent[2], Do::Remove)), (0, 0));
        nothing(&bench.change(keys[5], Do::Swap(5, 6)));
        for &key in &keys {
            // Only the commit word is flushed. The record's block needs no store at all, and a
            // comparison before the removal costs nothing.
            let compared = Do::CompareRemove(VALUE + 41 * 3 + 2);
            let events = bench.change(key, if key % 2 == 0 { compared } else { Do::Remove });
            assert!(has(&events, &points::REMOVE));
            if has(&events, &outlast::internals::pool::points::RELEASE) {
                continue;
            }
            assert_eq!(cost(&events), (1, 1), "remove, {form}");
        }
    }
}

#[test]
fn a_displacement_flushes_two_lines() {
    for form in RecordForm::ALL {
        let mut bench = Bench::new(shape(form, 2, 2));
        let mut homes = homes(&bench);
        // Bucket 1 has guests from bucket 0, which has room again. Bucket 2 has only guests, from
        // bucket 1.
        let first: Vec<u64> = homes[0].by_ref().take(SLOTS + 5).collect();
        bench.fill(first.iter().copied());
        bench.fill(homes[1].by_ref().take(2 * SLOTS - 5).collect::<Vec<_>>());
        for &key in &first[..4] {
            bench.change(key, Do::Remove);
        }
        for _ in 0..3 {
            let events = bench.change(homes[1].next().unwrap(), Do::Insert(VALUE + 41));
            assert!(has(&events, &points::DISPLACE_COPY), "{form}");
            // One line in each of two buckets, and two fences: the copy must be durable before the
            // slot it was copied from is overwritten.
            let moved = cost_at(&events, &points::DISPLACE_COPY);
            let filled = cost_at(&events, &points::DISPLACE_FILL);
            assert_eq!((moved, filled), ((1, 1), (1, 1)));
            if has(&events, &outlast::internals::pool::points::CLAIM_FENCE) {
                continue;
            }
            assert_eq!(cost(&events), with_record(form, &events, (2, 2)), "{form}");
        }
    }
}

#[test]
fn each_move_of_a_row_flushes_one_line_more() {
    for (form, row) in RecordForm::ALL.into_iter().flat_map(|f| Row::ALL.map(|row| (f, row))) {
        let mut bench = Bench::new(shape(form, rows::BUCKET_BITS, 2));
        let keys = row.keys(|key| bench.session.hash(form, key), 0);
        for (number, &key) in keys[..row.filled()].iter().enumerate() {
            bench.fill([key]);
            for &key in &keys[row.removed_after(number)] {
                bench.change(key, Do::Remove);
            }
        }
        for &key in &keys[row.filled()..][..6] {
            let events = bench.change(key, Do::Insert(VALUE + 41));
            // One line in each bucket. Each copy must be durable before the slot it was copied from
            // is overwritten, by the next copy or finally by the new record.
            let moves = row.moves as u64;
            assert_eq!(cost_at(&events, &points::DISPLACE_COPY), (moves, moves), "{form} {row:?}");
            assert_eq!(cost_at(&events, &points::DISPLACE_FILL), (1, 1), "{form} {row:?}");
            let way = if row.forward { phases::FORWARD } else { phases::BACKWARD };
            let phases = phases_of(&events, bench.shape);
            assert!(phases.contains(way[row.moves - 1]), "{form} {row:?}: {phases:?}");
            if has(&events, &outlast::internals::pool::points::CLAIM_FENCE) {
                continue;
            }
            let expected = with_record(form, &events, (moves + 1, moves + 1));
            assert_eq!(cost(&events), expected, "{form} {row:?}");
        }
    }
}

#[test]
fn a_split_and_a_doubling_flush_what_they_write() {
    for form in RecordForm::ALL {
        for bits in [1u32, 2] {
            let mut bench = Bench::new(shape(form, bits, 2));
            let (mut seen, mut gathered) = ((0, 0), 0);
            let segment_lines = ((1 << bits) + 2) * 4;
            for key in 10..600 {
                let events = bench.change(key, Do::Insert(VALUE + key));
                // Count each by its commit points, because one operation can make several.
                let splits = cost_at(&events, &points::SPLIT_COMMIT).1;
                if splits == 1 {
                    seen.0 += 1;
                    // The new segment: its buckets, and the one used line of its header. Fenced
                    // before the old segment's state leads to it.
                    assert_eq!(cost_at(&events, &points::SPLIT_NEW), (segment_lines + 1, 1));
                    // The state, fenced before the directory follows it.
                    assert_eq!(cost_at(&events, &points::SPLIT_COMMIT), (1, 1));
                    // The entries, fenced before any thread uses them.
                    let (lines, fences) = cost_at(&events, &points::SPLIT_DIRECTORY);
                    assert!(lines >= 1 && fences == 1);
                    assert_eq!(cost_at(&events, &points::SPLIT_DONE), (0, 0));
                    // Compaction flushes each line that receives a copy once, and each line that a
                    // record leaves once. There is one fence for all copies, and one for all
                    // emptied slots.
                    let copies = cost_at(&events, &points::COMPACT_COPY);
                    let slots = cost_at(&events, &points::COMPACT_CLEAR);
                    assert_eq!(copies.0, lines_stored(&events, &points::COMPACT_COPY));
                    assert_eq!(slots.0, lines_stored(&events, &points::COMPACT_CLEAR));
                    assert_eq!(copies.1, u64::from(copies.0 > 0));
                    assert_eq!(slots.1, copies.1);
                    gathered += copies.0;
                }
                let doublings = cost_at(&events, &points::DOUBLE_COMMIT).1;
                if doublings == 1 {
                    seen.1 += 1;
                    let stores = events
                        .iter()
                        .filter(|e| e.point == Some(&points::DOUBLE_NEW))
                        .filter(|e| matches!(e.access, Access::Store { .. }))
                        .count() as u64;
                    // The directory's identity has a line of its own, and its entries follow. They
                    // are fenced before the root leads to it. The root is one line.
                    let lines = 1 + (stores - 1).div_ceil(8);
                    assert_eq!(cost_at(&events, &points::DOUBLE_NEW), (lines, 1));
                    assert_eq!(cost_at(&events, &points::DOUBLE_COMMIT), (1, 1));
                }
                if seen.0 >= 3 && seen.1 >= 2 {
                    break;
                }
            }
            assert!(seen.0 >= 3 && seen.1 >= 2, "{seen:?} splits and doublings");
            assert!(gathered > 0);
        }
    }
}

#[test]
fn an_overflow_node_is_written_whole_before_its_link() {
    for form in RecordForm::ALL {
        let mut bench = Bench::in_pool(shape(form, 1, 2), colliding());
        let mut nodes = 0;
        for key in SPECIAL..SPECIAL + 160 {
            let events = bench.change(key, Do::Insert(VALUE + 41));
            if has(&events, &points::NODE_COMMIT) {
                nodes += 1;
                // The whole node is flushed, although only one word of its header's line is used.
                let lines = outlast::internals::index::dash_eh::layout::NODE_BYTES / 64;
                assert_eq!(cost_at(&events, &points::NODE_NEW), (lines, 1));
                assert_eq!(cost_at(&events, &points::NODE_COMMIT), (1, 1));
            } else if has(&events, &points::INSERT_OVERFLOW)
                && !has(&events, &outlast::internals::pool::points::CLAIM_FENCE)
                && !has(&events, &points::SPLIT_NEW)
                && !has(&events, &points::DOUBLE_NEW)
            {
                assert_eq!(cost(&events), with_record(form, &events, (1, 1)), "{form}");
            }
        }
        assert!(nodes >= 1);
        for key in SPECIAL + 58..SPECIAL + 100 {
            let events = bench.change(key, Do::Remove);
            if !has(&events, &outlast::internals::pool::points::RELEASE) {
                assert_eq!(cost(&events), (1, 1), "remove from a node");
            }
        }
    }
}
