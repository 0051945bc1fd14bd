//! Damages pools in many places at once, makes checksums good again, and uses them.
//!
//! ```text
//! cargo run --release --example fuzz_file -- --minutes 5 --seed 1
//! cargo run --release --example fuzz_file -- --seed 1 --case 123456
//! ```
//!
//! Ends with an error if a case panicked; a signal or a hang ends it at once and prints
//! the case. The engine is that of `tests/hostile.rs`.

#[path = "../tests/hostile/engine.rs"]
mod engine;

use engine::{fuzz_case, images, in_parallel};
use outlast::pmem::Alive;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Cases between two looks at the clock.
const BATCH: u64 = 2000;

fn main() {
    let mut minutes = 1.0;
    let mut seed = 1;
    let mut case = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        let number = || value.parse::<u64>().unwrap_or_else(|_| usage());
        match argument.as_str() {
            "--minutes" => minutes = value.parse().unwrap_or_else(|_| usage()),
            "--seed" => seed = number(),
            "--case" => case = Some(number()),
            _ => usage(),
        }
    }
    let images = images();
    let alive = Arc::new(Alive::new().expect("a page of memory"));
    if let Some(case) = case {
        println!("{:?}", fuzz_case(&images, &alive, seed, case));
        return;
    }
    let started = Instant::now();
    let mut done = 0;
    let mut failures = Vec::new();
    while started.elapsed() < Duration::from_secs_f64(minutes * 60.0) && failures.len() < 50 {
        let found = in_parallel(BATCH, |number| fuzz_case(&images, &alive, seed, done + number));
        failures.extend(found);
        done += BATCH;
    }
    println!("{done} cases in {:?}, {} failed", started.elapsed(), failures.len());
    std::process::exit(i32::from(!failures.is_empty()));
}

fn usage() -> ! {
    eprintln!("usage: fuzz_file [--minutes N] [--seed S] [--case C]");
    std::process::exit(2)
}
