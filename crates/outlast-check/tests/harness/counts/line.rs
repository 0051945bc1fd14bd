//! The costs of line hashing.

use super::{Bench, VALUE, colliding, cost, cost_at, has, lines_stored};
use outlast::RecordForm;
use outlast::internals::db::store::AnyIndex;
use outlast::internals::index::line::layout::{BLOCK_LINES, DIRECTORY, NODE_BYTES, SIZES};
use outlast::internals::index::line::points;
use outlast::internals::index::{Change, Record};
use outlast::internals::pmem::{Access, Event};
use outlast_check::codec::SPECIAL;
use outlast_check::session::{Do, PoolShape};
use outlast_check::structures::line::shape;
use std::collections::HashSet;

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
    events.into_iter().filter(|e| e.point.is_none_or(|point| point.owner == "line")).collect()
}

/// An operation must fence once before it returns, and stores to one line, wherever the record is:
/// in its home line, in its block, or in the stash.
#[test]
fn a_change_flushes_one_line() {
    for form in RecordForm::ALL {
        let mut bench = Bench::new(shape(form, 2));
        let (mut away, mut overflowed) = (0, 0);
        for key in 10..1000 {
            let events = of_index(bench.change(key, Do::Insert(VALUE + key)));
            if has(&events, &points::REBUILD_COMMIT) || has(&events, &points::DOUBLE_COMMIT) {
                continue;
            }
            assert_eq!(cost(&events), with_record(form, &events, (1, 1)), "{form}");
            away += u64::from(has(&events, &points::INSERT_AWAY));
            overflowed += u64::from(has(&events, &points::INSERT_OVERFLOW));
            let events = of_index(bench.change(key, Do::Insert(VALUE)));
            assert_eq!(cost(&events).0, cost_at(&events, &points::RECORD).0, "present");
            let events = of_index(bench.change(key, Do::Put(key)));
            assert_eq!(cost(&events), with_record(form, &events, (1, 1)), "{form}");
            if key % 3 == 0 {
                let events = of_index(bench.change(key, Do::Remove));
                assert_eq!(cost(&events), (1, 1), "{form}");
                assert_eq!(cost(&bench.change(key, Do::Remove)), (0, 0), "absent");
            }
        }
        assert!(away > 20 && overflowed > 5, "{form}: {away} {overflowed}");
    }
}

/// The new segments must be durable before the intent, and the intent before the cells.
#[test]
fn a_rebuild_flushes_the_new_segments_the_intent_and_the_cells() {
    for form in RecordForm::ALL {
        let mut bench = Bench::new(shape(form, 1));
        let (mut rebuilds, mut doublings) = ([0; 2], 0);
        for key in 10..1500 {
            let events = of_index(bench.change(key, Do::Insert(VALUE + key)));
            if has(&events, &points::DOUBLE_COMMIT) {
                doublings += 1;
                let (lines, fences) = cost_at(&events, &points::DOUBLE_NEW);
                assert_eq!(fences, 1);
                assert!(
                    (2..14).any(|depth| lines == 1 + DIRECTORY.entries(depth).div_ceil(8)),
                    "{lines}"
                );
                assert_eq!(cost_at(&events, &points::DOUBLE_COMMIT), (1, 1));
            }
            if !has(&events, &points::REBUILD_COMMIT) {
                continue;
            }
            let (lines, fences) = cost_at(&events, &points::REBUILD_NEW);
            let made = (1..=2).find(|made| lines == made * u64::from(SIZES[1].lines));
            rebuilds[made.expect("whole segments") as usize - 1] += 1;
            assert_eq!(lines_stored(&events, &points::REBUILD_NEW), lines);
            assert_eq!(fences, 1, "{form}");
            assert_eq!(cost_at(&events, &points::REBUILD_COMMIT), (1, 1), "{form}");
            let (cells, fences) = cost_at(&events, &points::REBUILD_CELLS);
            assert!((1..=16).contains(&cells) && fences == 1, "{form}: {cells} {fences}");
        }
        assert!(rebuilds.iter().all(|&times| times > 0) && doublings > 1, "{form}: {rebuilds:?}");
    }
}

/// A node must be durable before the link to it. Records of one hash make nothing grow.
#[test]
fn a_node_is_flushed_once() {
    for form in RecordForm::ALL {
        let mut bench = Bench::in_pool(shape(form, 0), colliding());
        let mut nodes = 0;
        for key in 0..300 {
            let events = of_index(bench.change(SPECIAL + key, Do::Insert(VALUE)));
            assert!(!has(&events, &points::REBUILD_COMMIT), "{form}: {key}");
            if has(&events, &points::NODE_COMMIT) {
                nodes += 1;
                assert_eq!(cost_at(&events, &points::NODE_NEW), (NODE_BYTES / 64, 1));
                assert_eq!(cost_at(&events, &points::NODE_COMMIT), (1, 1));
            }
        }
        assert_eq!(nodes, 3, "{form}: 28 in lines, 124 in a node");
    }
}

/// Returns 16 keys of the lower half of the hashes, in different blocks of a segment of 16 KiB, and sets
/// `next` to a key after them.
fn in_different_blocks(bench: &Bench, next: &mut u64) -> Vec<u64> {
    let hasher = &bench.session.store().core().hasher;
    let (mut keys, mut blocks) = (Vec::new(), HashSet::new());
    while keys.len() < 16 {
        let hash = match bench.shape.form {
            RecordForm::Inline => hasher.word(*next),
            RecordForm::Bytes => hasher.bytes(&next.to_le_bytes()),
        };
        if hash >> 63 == 0 && blocks.insert(SIZES[4].home_of(hash) / BLOCK_LINES) {
            keys.push(*next);
        }
        *next += 1;
    }
    keys
}

/// Changes these keys with one call: inserts them, puts other values, or removes them. Returns the
/// events.
fn change_row(bench: &Bench, keys: &[u64], number: u8) -> Vec<Event> {
    fn changes<'v, R: Record>(number: u8, value: R::Value<'v>) -> Vec<Change<'v, R>> {
        let change = |_| match number {
            0 => Change::Insert(value),
            1 => Change::Put(value),
            _ => Change::Remove,
        };
        (0..16).map(change).collect()
    }
    bench.seam.take();
    bench.seam.start(false);
    let map = bench.session.store().open_map("m").unwrap();
    let value = VALUE + u64::from(number);
    let applied = match map.index() {
        AnyIndex::Inline(index) => {
            let mut done = Vec::new();
            index.change_many(keys, &changes(number, value), &mut done).unwrap();
            done.iter().filter(|done| done.applied).count()
        }
        AnyIndex::Bytes(index) => {
            let keys: Vec<_> = keys.iter().map(|key| key.to_le_bytes()).collect();
            let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
            let mut done = Vec::new();
            let value = value.to_le_bytes();
            index.change_many(&keys, &changes(number, &value[..]), &mut done).unwrap();
            done.iter().filter(|done| done.applied).count()
        }
    };
    assert_eq!(applied, 16);
    let events = bench.seam.take().into_iter();
    of_index(events.filter(|e| !matches!(e.access, Access::Mark(_))).collect())
}

/// The changes of a call share the fence, if their records are in different blocks, wherever they are
/// in them. Only an insert into the stash needs a lock for which the others would have to wait.
#[test]
fn changes_of_many_keys_share_one_fence() {
    for form in RecordForm::ALL {
        let pool = PoolShape { max_pages: 400, ..PoolShape::default() };
        let mut bench = Bench::in_pool(shape(form, 4), pool);
        bench.fill(10_000..11_040);
        let (mut next, mut away, mut in_stash) = (1 << 40, 0, 0);
        for round in 0..30 {
            let keys = in_different_blocks(&bench, &mut next);
            let mut is_in_stash = false;
            for number in 0..3 {
                let events = change_row(&bench, &keys, number);
                assert!(!has(&events, &points::REBUILD_COMMIT), "{form}: {round}");
                away += u64::from(has(&events, &points::INSERT_AWAY));
                if has(&events, &points::INSERT_OVERFLOW) {
                    is_in_stash = true;
                    in_stash += 1;
                    continue;
                }
                let has_records = form == RecordForm::Bytes && number < 2;
                let records = cost_at(&events, &points::RECORD).0;
                assert_eq!(has_records, records > 0);
                let (lines, fences) = cost(&events);
                assert_eq!(fences, 1 + u64::from(has_records), "{form}: {round} {number}");
                assert!(lines == 16 + records || is_in_stash, "{form}: {round} {lines} {records}");
            }
        }
        assert!(away > 10 && (1..20).contains(&in_stash), "{form}: {away} {in_stash}");
    }
}
