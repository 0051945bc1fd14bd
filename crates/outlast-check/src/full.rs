//! Fills a pool of fixed size, removes one record in twenty, kills the process, and expects the
//! pool to take inserts right after it is reopened.

use crate::codec::key_bytes;
use crate::growth::map_options;
use crate::state::{Checked, Fault, ensure};
use crate::torture::was_killed;
use outlast::ReclaimState;
use outlast::{Error, Map, PoolOptions, Scheme};
use std::path::Path;
use std::process::{Command, Stdio};

const POOL: &str = "full.pool";
const VALUE: [u8; 200] = [0x5a; 200];

fn options() -> PoolOptions {
    PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .page_bits(12)
        .initial_size(1 << 20)
        .max_size(1 << 20)
        .background(false)
}

fn open_map(pool: &outlast::Pool, scheme: Scheme) -> Checked<Map<[u8], [u8]>> {
    Ok(pool.map_with("m", &map_options(scheme))?)
}

/// Inserts until the pool is full, and returns the number of records.
fn fill(map: &Map<[u8], [u8]>) -> Checked<u64> {
    let mut count = 0;
    loop {
        match map.insert(&key_bytes(count + 10), &VALUE) {
            Ok(_) => count += 1,
            Err(Error::PoolFull { .. }) => return Ok(count),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Runs the child process: fills the pool, removes one record in twenty, and kills itself.
///
/// # Errors
/// If an operation fails.
pub fn child(dir: &Path, scheme: Scheme) -> Checked {
    // SAFETY: the pool is in this run's own directory, and nothing else writes to it.
    let pool = unsafe { options().create(dir.join(POOL))? };
    let map = open_map(&pool, scheme)?;
    let count = fill(&map)?;
    for key in (0..count).step_by(20) {
        let before = map.remove(&key_bytes(key + 10))?;
        ensure(before.is_some(), || format!("key {key} was not there to be removed"))?;
    }
    // SAFETY: `kill` only sends a signal, which ends this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    Err(Fault("alive".into()))
}

/// Lets a child fill a pool and die, then inserts right after reopening. Returns the number of
/// records at the end.
///
/// # Errors
/// If an insert fails although there is space.
pub fn run(program: &Path, dir: &Path, scheme: Scheme) -> Checked<u64> {
    let output = Command::new(program)
        .arg("full-child")
        .arg("--dir")
        .arg(dir)
        .args(["--scheme", scheme.name()])
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Fault(format!("starting a child: {e}")))?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure(was_killed(output.status), || format!("a child ended by itself: {text}"))?;
    // SAFETY: the pool is in this run's own directory, and nothing else writes to it.
    let pool = unsafe { options().open(dir.join(POOL))? };
    let map = open_map(&pool, scheme)?;
    let running = pool.stats().reclaim == ReclaimState::Running;
    ensure(running, || "the reclaim is over before it has begun".into())?;
    ensure(map.insert(&key_bytes(10), &VALUE)?, || "key 0 is still there".into())?;
    let count = map.iter().count() as u64;
    // Almost everything that was removed fits again.
    let removed = count.div_ceil(19);
    for key in (20..removed * 20).step_by(20).take(removed as usize * 9 / 10) {
        map.insert(&key_bytes(key + 10), &VALUE)?;
    }
    let records = map.iter().count() as u64;
    crate::session::check_verification(&pool.verify()?, records)?;
    Ok(records)
}
