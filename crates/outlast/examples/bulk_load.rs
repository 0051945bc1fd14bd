//! Loads many records from lines of text, with several threads and many records per call.
//!
//! ```text
//! cargo run --release --example bulk_load               # in a temporary directory
//! cargo run --release --example bulk_load words.pool    # keeps the pool; run it again
//! ```

use outlast::{Map, PoolOptions};
use std::error::Error;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

const LINES: usize = 300_000;
/// Records per call. A few hundred are enough for the memory accesses for different keys to
/// overlap.
const PER_CALL: usize = 1_000;

/// Returns the input, which a real program would read from a file: lines of a word, a tab and a
/// number.
fn input() -> String {
    (0..LINES).map(|n| format!("word-{:06}\t{}\n", n * 7919 % LINES, n % 1000)).collect()
}

/// Stores the records of these lines. Returns how many keys were new.
fn load(words: &Map<str, u64>, lines: &[&str]) -> Result<usize, Box<dyn Error + Send + Sync>> {
    let mut new = 0;
    for lines in lines.chunks(PER_CALL) {
        let mut records = Vec::with_capacity(lines.len());
        for line in lines {
            let (word, number) = line.split_once('\t').ok_or("a line without a tab")?;
            records.push((word, number.parse::<u64>()?));
        }
        let records: Vec<_> = records.iter().map(|(word, number)| (*word, number)).collect();
        // Each record is durable by itself. If the process dies, just run the load again: it stores
        // the same records again, with the same values. (`insert_many` would leave records that are
        // already there unchanged.)
        let was_there = words.put_many(&records)?;
        new += was_there.iter().filter(|was_there| !**was_there).count();
    }
    Ok(new)
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let temporary = tempfile::tempdir()?;
    let path = std::env::args_os().nth(1).map(PathBuf::from);
    let path = path.unwrap_or_else(|| temporary.path().join("words.pool"));
    let text = input();
    let lines: Vec<&str> = text.lines().collect();

    // A pool grows by itself, but if it begins with enough space, it need not grow during the load.
    let options = PoolOptions::new().survive(outlast::Failure::ProcessDeath).initial_size(48 << 20);
    // SAFETY: no other program writes this file while the pool is open.
    let pool = unsafe { options.open_or_create(path)? };
    let words = pool.map::<str, u64>("words")?;
    let before = words.len()?;

    let start = Instant::now();
    let threads = thread::available_parallelism()?.get();
    let new = thread::scope(|scope| {
        let parts = lines.chunks(lines.len().div_ceil(threads));
        let loaders: Vec<_> = parts.map(|part| scope.spawn(|| load(&words, part))).collect();
        loaders
            .into_iter()
            .map(|loader| loader.join().expect("no thread panics"))
            .sum::<Result<usize, _>>()
    })?;
    let took = start.elapsed();
    println!("stored {LINES} records with {threads} threads in {took:.0?}, {new} of them new");
    println!("{:.1} million records a second", LINES as f64 / took.as_secs_f64() / 1e6);
    assert_eq!(words.len()?, before + new as u64);

    // Lookups of many keys in one call are faster, too.
    let keys: Vec<&str> = lines.iter().filter_map(|line| line.split('\t').next()).collect();
    let start = Instant::now();
    for (keys, lines) in keys.chunks(PER_CALL).zip(lines.chunks(PER_CALL)) {
        for (value, line) in words.get_many(keys)?.into_iter().zip(lines) {
            assert!(value.is_some_and(|value| line.ends_with(&format!("\t{value}"))), "{line}");
        }
    }
    println!("looked all of them up in {:.0?}", start.elapsed());

    // Once `sync` returns, the load survives a power loss, too, until something in the pool is
    // changed.
    let start = Instant::now();
    pool.sync()?;
    println!("synced {} MiB in {:.0?}", pool.stats().size >> 20, start.elapsed());
    Ok(pool.close()?)
}
