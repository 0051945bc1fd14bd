//! What lookups of a cache write to the journal: nothing.

use super::{copy, create, open, working_files};
use outlast::{Cache, CacheOptions, JournalStats, Pool};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

const RECORDS: u64 = 2_000;

fn cache(pool: &Pool) -> Cache<u64, u64> {
    pool.cache("c", &CacheOptions::records(RECORDS)).unwrap()
}

fn journal(pool: &Pool) -> JournalStats {
    pool.stats().journal.unwrap()
}

/// Waits until the pool has written what there is to write.
fn settle(pool: &Pool) -> JournalStats {
    pool.wait_durable().unwrap();
    loop {
        let before = journal(pool);
        std::thread::sleep(Duration::from_millis(100));
        if journal(pool).segment_bytes == before.segment_bytes {
            return journal(pool);
        }
    }
}

/// More words than look like marks by chance: one in 1,024 hashes does.
const FEW: u64 = 50;

/// Counts the words in the working file that can be those of a record with three visits.
fn visited(pool: &Pool, place: &Path) -> u64 {
    let file = std::fs::File::open(&working_files(place)[0]).unwrap();
    let mut bytes = vec![0; pool.stats().size as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    words.filter(|word| word >> 54 == 0xc5 << 2 | 3).count() as u64
}

#[test]
fn lookups_of_a_cache_write_nothing_to_the_journal() {
    let place = tempfile::tempdir().unwrap();
    let pool = create(place.path());
    let cached = cache(&pool);
    (0..RECORDS).for_each(|key| cached.insert(&key, &(key * 3)).unwrap());
    let before = settle(&pool);
    assert!(visited(&pool, place.path()) < FEW);
    for _ in 0..4 {
        (0..RECORDS).for_each(|key| assert_eq!(cached.get(&key).unwrap(), Some(key * 3)));
        // A cut every 2 ms would take the lines that are noted.
        std::thread::sleep(Duration::from_millis(20));
    }
    let after = settle(&pool);
    assert!(visited(&pool, place.path()) >= RECORDS, "the lookups have set marks");
    assert_eq!((after.lines, after.segment_bytes), (before.lines, before.segment_bytes));
    assert_eq!((after.epochs, after.base_bytes), (before.epochs, before.base_bytes));
    // A power loss leaves older marks, and all records.
    let copied = copy(&pool, place.path());
    let lost = open(copied.path()).unwrap();
    lost.verify().unwrap().ensure_sound().unwrap();
    assert!(visited(&lost, copied.path()) < FEW);
    let cached = cache(&lost);
    (0..RECORDS).for_each(|key| assert_eq!(cached.get(&key).unwrap(), Some(key * 3)));
    // What is written beside a mark takes the mark along.
    cached.insert(&RECORDS, &0).unwrap();
    settle(&lost);
    assert!(journal(&lost).lines > 0);
}
