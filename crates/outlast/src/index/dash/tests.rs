//! Batches beside other changes of the same buckets.

use super::points;
use crate::index::dash_eh::{Config, DashEh};
use crate::index::kit::change::{change, change_many};
use crate::index::kit::lock::Held;
use crate::index::kit::media::ones;
use crate::index::kit::table::{HashedKey, Lookup};
use crate::index::{Change, Inline, Previous};
use crate::pmem::{Control, Offset, Traced, Word};
use crate::pool::backing::{Backing, Heap};
use crate::pool::core::{Core, CoreOptions, root_offset};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

type Table = DashEh<Traced, Inline>;

/// Makes a table of two segments with four buckets each, in a pool of its own.
fn table(seam: Traced) -> Table {
    let config = Config { bucket_bits: 2, stash: 2 };
    let options = CoreOptions { page_bits: 12, ..CoreOptions::default() };
    let core = Core::create(Backing::Heap(Heap::new(&[], 4 << 20, 0)), seam, options).unwrap();
    let core = Arc::new(core);
    let passed = core.enter().unwrap();
    let words = Table::create(&core, config).unwrap();
    for (number, word) in words.into_iter().enumerate() {
        let place = Offset::<Word>::new(root_offset(0).raw() + 8 * (1 + number as u64));
        core.memory.store(core.memory.at(place).unwrap(), word, &points::CREATE);
    }
    drop(passed);
    Table::open(&core, 0, config).unwrap()
}

fn inserts(table: &Table, key: u64) -> bool {
    change(table, key, Change::Insert(key), Previous::UNWANTED).unwrap().applied
}

fn hash(table: &Table, key: u64) -> u64 {
    HashedKey::<Inline>::new(&table.core, key).hash
}

/// Yields keys of the first segment that are at home in this bucket, and in this line of it.
fn at_home(table: &Table, home: u32, line: usize) -> impl Iterator<Item = u64> {
    (1..).filter(move |&key| {
        let hash = hash(table, key);
        hash >> 63 == 0 && table.home(hash) == home && Table::first_slot(hash) == line
    })
}

/// Before the given access of a batch, inserts a key, unless the batch has locked its buckets.
#[derive(Clone, Default)]
struct InsertBefore(Arc<Inserting>);

#[derive(Default)]
struct Inserting {
    table: OnceLock<Table>,
    key: AtomicU64,
    /// Accesses of the batch until the insert; 0 if no batch is under way, or it was made.
    left: AtomicU64,
    inserted: AtomicBool,
}

impl Control for InsertBefore {
    fn before(&self, _: usize, _: bool) {
        let (Some(table), left) = (self.0.table.get(), self.0.left.load(Ordering::Relaxed)) else {
            return;
        };
        self.0.left.store(left.saturating_sub(1), Ordering::Relaxed);
        if left != 1 {
            return;
        }
        let key = self.0.key.load(Ordering::Relaxed);
        let hash = hash(table, key);
        let (segment, home) = (table.known_route(hash).unwrap().segment, table.home(hash));
        let is_free = |index| {
            let locked = table.try_hold(table.bucket(segment, index));
            locked.map(Held::unlock).is_some()
        };
        if is_free(home) && is_free(table.next(home)) {
            assert!(inserts(table, key));
            self.0.inserted.store(true, Ordering::Relaxed);
        }
    }
}

/// Bucket 1 is full, and the records that it has no room for are in bucket 2. A batch inserts one more,
/// or removes one of those, while another thread inserts a record that is at home in bucket 2.
#[test]
fn a_batch_loses_no_insert_into_the_second_bucket_of_a_key() {
    for removes in [false, true] {
        let mut inserted = 0;
        for accesses in 1.. {
            let control = InsertBefore::default();
            let seam = Traced::with_control(Box::new(control.clone()));
            assert!(control.0.table.set(table(seam)).is_ok());
            let table = control.0.table.get().unwrap();
            let (mut keys, mut last) = (at_home(table, 1, 0), at_home(table, 3, 0));
            assert!(inserts(table, keys.next().unwrap()));
            let other = at_home(table, 2, 0).next().unwrap();
            let segment = table.known_route(hash(table, other)).unwrap().segment;
            let [first, second, third] = [1, 2, 3].map(|n| table.bucket(segment, n));
            while table.bits(first).free_slot(0).is_some() {
                assert!(inserts(table, keys.next().unwrap()));
            }
            // Bucket 3 is full, too. So a record that is at home in bucket 2 goes there.
            while table.bits(third).free_slot(0).is_some() {
                assert!(inserts(table, last.next().unwrap()));
            }
            let guest = ones::<u32>(table.bits(second).guests()).next().expect("a guest");
            let guest = table.words(&second.slots[guest as usize]).first;
            let (key, what) = match removes {
                true => (guest, Change::Remove),
                false => (keys.next().unwrap(), Change::Insert(7)),
            };
            control.0.key.store(other, Ordering::Relaxed);
            control.0.left.store(accesses, Ordering::Relaxed);
            let mut done = Vec::new();
            change_many(table, &[key], &[what], &mut done).unwrap();
            let is_over = control.0.left.swap(0, Ordering::Relaxed) > 0;
            let find = |key| table.find_value(HashedKey::new(&table.core, key)).unwrap();
            assert!(done[0].applied, "access {accesses}");
            assert_eq!(find(key), (!removes).then_some(7), "access {accesses}");
            if control.0.inserted.load(Ordering::Relaxed) {
                assert_eq!(find(other), Some(other), "access {accesses}");
                inserted += 1;
            }
            if is_over {
                break;
            }
        }
        assert!(inserted > 3, "{inserted} inserts beside a batch");
    }
}
