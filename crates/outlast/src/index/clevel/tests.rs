//! Resizes in a full pool, after a shrink, and next to damage.

use super::layout::{CONTEXT_BYTES, slot};
use super::levels::Level;
use super::levels::tests::{table_in, value_of};
use super::ready::RESERVE_BITS;
use super::*;
use crate::index::kit::change;
use crate::index::{Change, Inline, Previous};
use crate::pmem::Real;
use crate::pool::geometry::LARGE;

type Table = Clevel<Real, Inline>;

fn key(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn insert(table: &Table, n: u64) {
    let insert = Change::Insert(n + 1);
    assert!(change::change(table, key(n), insert, Previous::UNWANTED).unwrap().applied);
}

fn step(core: &Core<Real>, table: &Table) -> bool {
    let _writing = core.enter_in_background().unwrap().unwrap();
    table.background_step().unwrap()
}

fn newest(table: &Table) -> Arc<Level> {
    let guard = table.guard(false);
    Arc::clone(table.context(&guard).unwrap().newest())
}

/// Returns log2 of the buckets of the level that is kept ready.
fn ready(table: &Table) -> Option<u32> {
    table.ready_level(table.look(table.root(root::READY))).unwrap().map(|(_, bits)| bits)
}

/// Allocates every block that there is.
fn exhaust(core: &Core<Real>) {
    let _writing = core.enter().unwrap();
    for bytes in (4..18).rev().flat_map(|bits| [16, 14, 12, 10].map(|part| part << bits >> 4)) {
        while core.allocate(bytes).is_ok() {}
    }
    assert!(core.allocate(CONTEXT_BYTES).is_err_and(|error| error.is_full()));
}

/// The block of the new context comes from the reserve that the expansion made, or from a level that
/// is kept ready: one whose block is a part of a page, or one of whole pages.
#[test]
fn an_emptied_level_is_dropped_in_a_full_pool() {
    for (records, prepares) in [(0, false), (0, true), (20_000, false), (20_000, true)] {
        let (_pool, core, table) = table_in(8 << 20);
        for n in 0..records {
            insert(&table, n);
            while step(&core, &table) {}
        }
        let mut end = records;
        while !table.is_draining().unwrap() {
            insert(&table, end);
            end += 1;
        }
        let bits = newest(&table).bits;
        assert_eq!(ready(&table), Some(RESERVE_BITS));
        if prepares {
            let _writing = core.enter().unwrap();
            table.prepare(&newest(&table)).unwrap();
            assert_eq!(ready(&table), Some(bits + 1));
        }
        let is_large = core.geometry.class_for(layout::level_bytes(bits + 1, 9)) == LARGE;
        assert_eq!(is_large, records > 0, "{bits} bits");
        exhaust(&core);
        // The next level is wanted, and there is no space for it. No step may fail for that.
        newest(&table).crowded.store(table.seam(), 1 << bits, Ordering::Relaxed);
        while step(&core, &table) {}
        assert!(!table.is_draining().unwrap(), "a level stays");
        assert_eq!(ready(&table), None);
        for n in 0..end {
            assert_eq!(value_of(&table, key(n)), Some(n + 1));
        }
        // Its space is used again.
        core.collect();
        assert!(core.allocate(CONTEXT_BYTES).is_ok());
    }
}

/// Three emptied levels are dropped, although only one block was in reserve, and other maps use all
/// space that becomes free between two steps.
#[test]
fn levels_that_piled_up_are_dropped_in_a_full_pool() {
    let (_pool, core, table) = table_in(8 << 20);
    let levels = || {
        let guard = table.guard(false);
        table.context(&guard).unwrap().levels.len()
    };
    let mut end = 0;
    while levels() < 5 {
        insert(&table, end);
        end += 1;
        while end < 3_000 && step(&core, &table) {}
    }
    let mut before = 0;
    loop {
        if levels() != before {
            exhaust(&core);
            before = levels();
        }
        if !step(&core, &table) {
            break;
        }
    }
    assert_eq!(levels(), 2);
    for n in 0..end {
        assert_eq!(value_of(&table, key(n)), Some(n + 1));
    }
}

#[test]
fn a_shrunk_table_keeps_no_large_level_ready() {
    const RECORDS: u64 = 40_000;
    // In the second case, the level is made ready during the shrink, and linked after it.
    for late in [false, true] {
        let (pool, core, table) = table_in(0);
        let mut end = 0;
        while end < RECORDS || ready(&table) != Some(newest(&table).bits + 1) {
            insert(&table, end);
            while step(&core, &table) {}
            end += 1;
        }
        let large = newest(&table);
        let bits = large.bits;
        for n in 20..end {
            let removed = change::change(&table, key(n), Change::Remove, Previous::UNWANTED);
            assert!(removed.unwrap().applied);
        }
        while step(&core, &table) {}
        if late {
            let _writing = core.enter().unwrap();
            table.prepare(&large).unwrap();
            assert_eq!(ready(&table), Some(bits + 1));
            assert!(table.has_background_work());
        }
        while step(&core, &table) {}
        let now = newest(&table).bits;
        assert!(now + 4 < bits, "{now} and {bits}");
        let ready = ready(&table);
        assert!(ready.is_none_or(|ready| ready <= now + 1), "{ready:?} beside {now}");
        assert!(!table.has_background_work());
        core.collect();
        // The map's own filters do not know the records, but it counts the blocks in use.
        let used = pool.verify().unwrap().used_bytes;
        assert!(used < layout::level_bytes(now + 3, 9), "{used} bytes in use");
    }
}

/// The space for the smaller level is that of the level kept ready.
#[test]
fn a_table_shrinks_in_a_full_pool() {
    let (_pool, core, table) = table_in(8 << 20);
    let mut end = 0;
    while end < 20_000 || ready(&table) != Some(newest(&table).bits + 1) {
        insert(&table, end);
        while step(&core, &table) {}
        end += 1;
    }
    let bits = newest(&table).bits;
    for n in 20..end {
        let removed = change::change(&table, key(n), Change::Remove, Previous::UNWANTED);
        assert!(removed.unwrap().applied);
    }
    core.collect();
    exhaust(&core);
    while step(&core, &table) {}
    let now = newest(&table).bits;
    assert!(now + 4 < bits, "{now} and {bits}");
    for n in 0..20 {
        assert_eq!(value_of(&table, key(n)), Some(n + 1));
    }
}

/// The maker of a copy finds the record damaged. The copy must go, because its maker's number is
/// free for another thread.
#[test]
fn a_copy_of_a_damaged_record_is_withdrawn() {
    let (_pool, _core, table) = table_in(0);
    let mut end = 0;
    while !table.is_draining().unwrap() {
        insert(&table, end);
        end += 1;
    }
    let guard = table.guard(true);
    let context = table.context(&guard).unwrap();
    let oldest = &context.levels[0];
    let words = || {
        let buckets = context
            .levels
            .iter()
            .flat_map(|level| (0..level.buckets()).map(|bucket| table.bucket(level, bucket)));
        buckets.flat_map(|bucket| bucket.slots.each_ref().map(|place| table.look(place)))
    };
    let word = table.look(&table.bucket(oldest, 0).slots[0]);
    let offset = slot::offset(word);
    let head = table.head(offset).unwrap();
    let (.., hash) = table.keyed(offset, table.look(&head.state)).unwrap();
    table.core.memory.store(&head.state, 7 << 60, &points::RECORD);
    let copied = table.copy(&guard, context, offset, hash, 3);
    assert!(copied.is_err_and(|error| error.is_damage()));
    assert!(words().any(slot::is_link));
    assert!(words().all(|word| slot::mark(word) != slot::COPY));
}
