//! Batches during other changes of the same buckets.

use crate::index::dash_eh::{Config, DashEh};
use crate::index::kit::change::{change, change_many};
use crate::index::kit::interleaved::{Interleaved, pool_of};
use crate::index::kit::lock::Held;
use crate::index::kit::media::ones;
use crate::index::kit::table::{HashedKey, Lookup};
use crate::index::{Change, Inline, Previous};
use crate::pmem::Traced;

type Table = DashEh<Traced, Inline>;

/// Makes a table of two segments with four buckets each.
fn table(seam: Traced) -> Table {
    let config = Config { bucket_bits: 2, stash_buckets: 2 };
    let core = pool_of(seam, |core| Table::create(core, config).unwrap());
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

/// Inserts a key that is at home in bucket 2, unless a thread has locked its buckets.
fn insert_other(table: &Table) -> bool {
    let key = other(table);
    let hash = hash(table, key);
    let (segment, home) = (table.ready_route(hash).unwrap().segment, table.home(hash));
    let is_free = |index| {
        let locked = table.try_hold(table.bucket(segment, index));
        locked.map(Held::unlock).is_some()
    };
    let is_possible = is_free(home) && is_free(table.next(home));
    assert!(!is_possible || inserts(table, key));
    is_possible
}

fn other(table: &Table) -> u64 {
    at_home(table, 2, 0).next().unwrap()
}

/// Bucket 1 is full, and the records that it has no room for are in bucket 2. A batch inserts one more,
/// or removes one of those, while another thread inserts a record that is at home in bucket 2.
#[test]
fn a_batch_loses_no_insert_into_the_second_bucket_of_a_key() {
    for removes in [false, true] {
        let mut inserted = 0;
        for access in 1.. {
            let interleaved = Interleaved::new(table, insert_other);
            let table = interleaved.index();
            let (mut keys, mut last) = (at_home(table, 1, 0), at_home(table, 3, 0));
            assert!(inserts(table, keys.next().unwrap()));
            let other = other(table);
            let segment = table.ready_route(hash(table, other)).unwrap().segment;
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
            let mut done = Vec::new();
            let goes_on = interleaved.run(access, |table| {
                change_many(table, &[key], &[what], &mut done).unwrap();
            });
            let find = |key| table.value(HashedKey::new(&table.core, key)).unwrap();
            assert!(done[0].applied, "access {access}");
            assert_eq!(find(key), (!removes).then_some(7), "access {access}");
            if interleaved.happened() {
                assert_eq!(find(other), Some(other), "access {access}");
                inserted += 1;
            }
            if !goes_on {
                break;
            }
        }
        assert!(inserted > 3, "{inserted} inserts during a batch");
    }
}
