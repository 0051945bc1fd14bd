//! How a table grows: load factors, and the time that a rehash takes.

use crate::Fallible;
use crate::figures::subject::{Memory, System};
use crate::figures::turns::{Clock, value};
use outlast_peers::workloads::keys::Spread;

/// Returns the load factor after each `every` inserts. Background work is finished before each
/// sample.
///
/// # Errors
/// If an insert fails.
pub fn load_factors(system: &System, records: u64, every: u64) -> Fallible<Vec<(f64, f64)>> {
    let subject = system.create(&Memory::NoFlush, records, 1024)?;
    let mut samples = Vec::new();
    for number in 0..records {
        let key = Spread::Uniform.key(number);
        subject.insert(key, value(key))?;
        subject.step()?;
        if (number + 1) % every == 0 {
            subject.settle()?;
            let load = subject.slots()?.map_or(1.0, |slots| (number + 1) as f64 / slots as f64);
            samples.push(((number + 1) as f64, load));
        }
    }
    Ok(samples)
}

/// Returns the load factor just before each resize, by the number of the resize.
///
/// # Errors
/// If an insert fails.
pub fn at_resizes(system: &System, records: u64) -> Fallible<Vec<(f64, f64)>> {
    let subject = system.create(&Memory::NoFlush, records, 256)?;
    let mut samples = Vec::new();
    let (mut growths, mut slots) = (subject.growths(), subject.slots()?.unwrap_or(1));
    for number in 0..records {
        let key = Spread::Uniform.key(number);
        subject.insert(key, value(key))?;
        if subject.growths() != growths {
            samples.push(((samples.len() + 1) as f64, number as f64 / slots as f64));
            subject.settle()?;
            growths = subject.growths();
            slots = subject.slots()?.unwrap_or(1);
        }
    }
    Ok(samples)
}

/// Returns the slots before each rehash of the whole table, and the seconds of the thread's time that the
/// insert took that made it: the time of one thread that does all of it.
///
/// # Errors
/// If an insert fails.
pub fn rehashes(system: &System, memory: &Memory, records: u64) -> Fallible<Vec<(f64, f64)>> {
    let subject = system.create(memory, records, 1024)?;
    let mut samples = Vec::new();
    let mut slots = subject.slots()?.unwrap_or(1);
    let mut rebuilds = subject.rebuilds();
    for number in 0..records {
        let key = Spread::Uniform.key(number);
        // A thread's clock is read only where a resize is near: reading it costs more than an
        // insert.
        let near = number * 10 > slots * 4;
        let clock = near.then(Clock::now);
        subject.insert(key, value(key))?;
        let now = subject.rebuilds();
        if now != rebuilds {
            subject.settle()?;
            if let Some(clock) = clock {
                samples.push((slots as f64, clock.elapsed().cpu_ns as f64 / 1e9));
            }
            rebuilds = subject.rebuilds();
            slots = subject.slots()?.unwrap_or(1);
        }
    }
    Ok(samples)
}
