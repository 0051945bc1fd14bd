//! The costs of EA-PHT, EA-PHT-H and EA-PHT-HPR.

use super::{Bench, VALUE, colliding, cost, cost_at, has};
use outlast::internals::index::ea_pht::layout::BUCKET_BYTES;
use outlast::internals::index::ea_pht::points;
use outlast::internals::pmem::{Event, Point, Traced};
use outlast::internals::pool::points::HEADER_DIRTY;
use outlast::{RecordForm, Scheme};
use outlast_check::codec::SPECIAL;
use outlast_check::fuzz::pool::{set_word, word_at};
use outlast_check::model::stored;
use outlast_check::session::{Do, PAGE_BITS, PoolShape, Session, alive};
use outlast_check::structures::{Shape, structure};

/// The lines of a bucket.
const LINES: u64 = BUCKET_BYTES / 64;

/// Calls `check` with a map of each scheme and form: 2^`depth` buckets, chunks of 2^`chunk_bits`.
fn each(depth: u32, chunk_bits: u32, check: impl Fn(Shape)) {
    for scheme in [Scheme::EaPht, Scheme::EaPhtH, Scheme::EaPhtHpr] {
        for form in RecordForm::ALL {
            check(Shape { form, config: (structure(scheme).config)(chunk_bits, 2 * depth) });
        }
    }
}

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
    events.into_iter().filter(|e| e.point.is_none_or(|point| point.owner == "ea-pht")).collect()
}

/// An operation must fence once before it returns, and the slot's words commit it. The thesis
/// flushes two lines and fences four times for each (3.8).
#[test]
fn a_change_flushes_one_line() {
    each(6, 4, |shape| {
        let mut bench = Bench::new(shape);
        for key in 10..310 {
            let events = of_index(bench.change(key, Do::Insert(VALUE + key)));
            if !has(&events, &points::NODE_COMMIT) {
                assert_eq!(cost(&events), with_record(shape.form, &events, (1, 1)), "{shape:?}");
            }
        }
        for key in 10..100 {
            let events = of_index(bench.change(key, Do::Put(key)));
            assert_eq!(cost(&events), with_record(shape.form, &events, (1, 1)), "{shape:?}");
            let events = of_index(bench.change(key, Do::Remove));
            assert_eq!(cost(&events), (1, 1), "{shape:?}");
            // The slot is used again.
            let events = of_index(bench.change(key, Do::Insert(VALUE)));
            assert_eq!(cost(&events), with_record(shape.form, &events, (1, 1)), "{shape:?}");
        }
    });
}

/// The counter and the bucket must be durable before the link. The thesis flushes four lines and
/// fences eight times; its buckets are zeroed in advance. Here the owners of 16 buckets are cleared
/// together.
#[test]
fn an_overflow_insert_flushes_the_counter_the_bucket_and_a_link() {
    each(8, 4, |shape| {
        let mut bench = Bench::in_pool(shape, colliding());
        let mut buckets = 0;
        for key in SPECIAL..SPECIAL + 100 {
            let events = of_index(bench.change(key, Do::Insert(VALUE)));
            let simple = !has(&events, &points::NODE_COMMIT);
            // A chunk as small as this has one overflow bucket, whose owner is cleared by itself.
            let own = if simple { (1, 1) } else { (1 + 1 + LINES + 1, 3) };
            buckets += u64::from(!simple);
            assert_eq!(cost(&events), with_record(shape.form, &events, own), "{shape:?}");
            assert_eq!(cost_at(&events, &points::COUNTER), (u64::from(!simple), 0));
        }
        assert_eq!(buckets, 6, "15 records each, the first bucket is there");
    });
}

/// A resize flushes the new table, and the root that commits it. EA-PHT and -H fence once for 16
/// buckets; -HPR fences for each bucket, and for its mark.
#[test]
fn a_resize_flushes_the_new_table_and_the_root() {
    each(1, 16, |shape| {
        let waits = shape.scheme() != Scheme::EaPhtHpr;
        let mut bench = Bench::in_pool(shape, PoolShape { max_pages: 640, ..PoolShape::default() });
        let (mut resizes, mut events) = (0, Vec::new());
        for key in 10..2_000 {
            events.extend(of_index(bench.change(key, Do::Insert(VALUE + key))));
            if !has(&events, &points::RESIZE_COMMIT) {
                continue;
            }
            let old = 2 << resizes;
            let fences = if waits { 1 + u64::div_ceil(old - 1, 16) } else { old };
            let (lines, fenced) = cost_at(&events, &points::MOVE_NEW);
            assert_eq!(fenced, fences, "{shape:?}, {old} buckets");
            let copies = lines / LINES;
            assert!((2 * old..3 * old).contains(&copies), "{copies} buckets for {old}");
            assert_eq!(cost_at(&events, &points::RESIZE_NEW).1, 0);
            assert_eq!(cost_at(&events, &points::RESIZE_COMMIT), (1, 1));
            if !waits {
                assert_eq!(cost_at(&events, &points::RESIZE_BEGIN), (1, 2));
                assert_eq!(cost_at(&events, &points::MOVE_COMMIT), (old, old));
            }
            resizes += 1;
            events.clear();
        }
        assert!(resizes >= 6, "{shape:?}: {resizes}");
    });
}

/// Keys that no resize separates get a chain. The table does not grow for them without end.
#[test]
fn keys_of_one_hash_do_not_grow_the_table_without_end() {
    each(1, 4, |shape| {
        let mut bench = Bench::in_pool(shape, colliding());
        let (mut buckets, mut resizes, mut disowned) = (0, 0, (0, 0));
        for key in SPECIAL..SPECIAL + 1_000 {
            let events = bench.change(key, Do::Insert(VALUE));
            let (lines, fences) = cost_at(&events, &points::DISOWN);
            disowned = (disowned.0 + lines, disowned.1 + fences);
            buckets += cost_at(&events, &points::NODE_COMMIT).1;
            resizes += cost_at(&events, &points::RESIZE_COMMIT).1;
        }
        assert_eq!(buckets, 66, "{shape:?}");
        // One bucket in each of 16 chunks, and then annexes of 3 buckets and more, whose owners are
        // cleared together.
        assert_eq!(disowned, (70, 26), "{shape:?}");
        assert_eq!(resizes, 3, "{shape:?}: one chain is enough for 8 buckets");
    });
}

/// The locks of EA-PHT lie in the pool. Opening a map leaves free locks alone. It resets others
/// only after the pool's dirty mark: without the mark, another process could have the pool open.
#[test]
fn opening_a_map_resets_locks_after_the_dirty_mark() {
    let shape = Shape::smallest(Scheme::EaPht, RecordForm::Inline);
    let mut bench = Bench::new(shape);
    bench.fill(10..60);
    let events = bench.change(12, Do::Put(1));
    let lock = events.iter().filter(|event| event.point == Some(&points::LOCK)).find_map(stored);
    let (lock, _) = lock.expect("an update takes a lock");
    bench.session.reopen().unwrap();
    let closed = bench.session.file();
    for (held, resets) in [(0, false), (1 << 16, true), (1, true)] {
        let mut file = closed.clone();
        let word = word_at(&file, lock) | held;
        set_word(&mut file, lock, word);
        let seam = Traced::new();
        seam.start(false);
        let capacity = PoolShape::default().max_pages << PAGE_BITS;
        let session = Session::open(&file, capacity, &alive(), seam.clone(), None).unwrap();
        session.store().open_map("m").unwrap();
        let events = seam.take();
        let at = |point: &Point| events.iter().position(|event| event.point == Some(point));
        let dirty = at(&HEADER_DIRTY).expect("a dirty mark");
        assert_eq!(at(&points::LOCK).is_some(), resets);
        assert!(at(&points::LOCK).is_none_or(|reset| dirty < reset));
    }
}

/// Moves a chain of three buckets to a table with one overflow bucket left. This move used to go on
/// without end: the mover took the bucket, found no second one and gave it back, and no annex was
/// added because the table still had a bucket left.
#[test]
fn a_move_that_needs_more_overflow_buckets_than_are_left_ends() {
    let config = (structure(Scheme::EaPhtHpr).config)(16, 8);
    let mut bench = Bench::new(Shape { form: RecordForm::Inline, config });
    let hash = |bench: &Bench, key| bench.session.hash(RecordForm::Inline, key);
    let some = |bench: &Bench, bits: u32, first: u64, count: usize| -> Vec<u64> {
        (10..).filter(|&key| hash(bench, key) >> (64 - bits) == first).take(count).collect()
    };
    let last = some(&bench, 4, 15, 60);
    let low = some(&bench, 5, 0, 31);
    let between = some(&bench, 4, 7, 12);
    bench.fill(last[..45].iter().copied());
    bench.fill(low);
    bench.fill(between);
    bench.fill(last[45..].iter().copied());
    while bench.session.background().unwrap() {}
    bench.session.verify().unwrap();
}
