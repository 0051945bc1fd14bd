//! Does through the Rust interface what `benches/speed.c` does through the C interface.

use library::{Failure, PoolOptions};
use std::time::Instant;

const RECORDS: u32 = 1_000_000;

fn numbers() -> impl Iterator<Item = u64> {
    let next = |number: &u64| Some((number * 1_664_525 + 1_013_904_223) % (1 << 20));
    std::iter::successors(Some(0), next).take(RECORDS as usize)
}

fn key_of(number: u64) -> [u8; 16] {
    (u128::from(!number) << 64 | u128::from(number)).to_le_bytes()
}

fn report(what: &str, begun: Instant) {
    println!("{what} {:.0}", f64::from(RECORDS) / begun.elapsed().as_secs_f64() / 1000.0);
}

fn main() -> library::Result<()> {
    let path = std::env::args().nth(1).expect("usage: speed POOL");
    // SAFETY: the file belongs to this program.
    let pool = unsafe {
        PoolOptions::new().survive(Failure::ProcessDeath).initial_size(256 << 20).create(path)?
    };
    let words = pool.map::<u64, u64>("u64")?;
    let strings = pool.map::<[u8], [u8]>("bytes")?;
    let mut sum = 0;

    let mut begun = Instant::now();
    for _ in 0..2 {
        begun = Instant::now();
        for number in numbers() {
            words.put(&number, &number)?;
        }
    }
    report("put, u64", begun);

    begun = Instant::now();
    for number in numbers() {
        sum += words.get(&number)?.unwrap_or(0);
    }
    report("get, u64", begun);

    for _ in 0..2 {
        begun = Instant::now();
        for number in numbers() {
            let mut value = [0; 32];
            value[..8].copy_from_slice(&number.to_le_bytes());
            strings.put(&key_of(number), &value)?;
        }
    }
    report("put, strings", begun);

    begun = Instant::now();
    for number in numbers() {
        sum += strings.get(&key_of(number))?.map_or(0, |value| u64::from(value[0]));
    }
    report("get, strings", begun);
    eprintln!("sum {sum}");
    Ok(())
}
