//! Holds a guard (a reference to a record) for a long time, while records of the same map are
//! updated.

use crate::codec::key_bytes;
use crate::growth::map_options;
use crate::state::{Checked, ensure};
use outlast::{Error, Map, Pool, PoolOptions, Scheme};
use std::path::Path;
use std::time::{Duration, Instant};

const KEYS: u64 = 500;
const VALUE_BYTES: usize = 200;

/// The effect of holding a guard.
#[derive(Debug, Clone, Copy)]
pub struct Summary {
    /// Updates made meanwhile.
    pub updates: u64,
    /// Bytes that the guard kept from reuse at the end.
    pub held_bytes: u64,
    /// Bytes that the pool grew by meanwhile.
    pub grown_bytes: u64,
}

type BytesMap = Map<[u8], [u8]>;

fn create(path: &Path, scheme: Scheme, max_size: u64) -> Checked<(Pool, BytesMap)> {
    let options = PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .page_bits(12)
        .initial_size(512 << 10)
        .max_size(max_size);
    // SAFETY: the pool is in this run's own directory, and nothing else writes to it.
    let pool = unsafe { options.background(false).create(path)? };
    let map: BytesMap = pool.map_with("m", &map_options(scheme))?;
    for key in 0..KEYS {
        map.insert(&key_bytes(key), &[key as u8; VALUE_BYTES])?;
    }
    Ok((pool, map))
}

fn update(map: &BytesMap, number: u64) -> outlast::Result<()> {
    let key = number % KEYS;
    map.update(&key_bytes(key), &[number as u8; VALUE_BYTES]).map(|_| ())
}

/// Holds a guard for `time` under updates, in a pool that may grow. The pool must report the space
/// that the guard holds, keep the record intact, and reuse the space once the guard is gone.
///
/// # Errors
/// If one of these does not hold.
pub fn hold(dir: &Path, scheme: Scheme, time: Duration) -> Checked<Summary> {
    let (pool, map) = create(&dir.join("guard.pool"), scheme, 0)?;
    let size = pool.stats().size;
    let guarded = 7;
    let guard = map.get_ref(&key_bytes(guarded))?;
    let guard = guard.ok_or_else(|| crate::state::Fault("no record to guard".into()))?;
    let start = Instant::now();
    let (mut updates, mut held) = (0, 0);
    while start.elapsed() < time {
        for _ in 0..40 {
            update(&map, updates)?;
            updates += 1;
        }
        let now = pool.stats().held_bytes;
        ensure(now > held, || format!("held bytes went from {held} to {now}"))?;
        held = now;
        let value = guard.to_owned()?;
        ensure(value == [guarded as u8; VALUE_BYTES], || format!("guarded: {value:02x?}"))?;
        std::thread::sleep(Duration::from_millis(2));
    }
    let stats = pool.stats();
    ensure(stats.guards == 1, || format!("{} guards", stats.guards))?;
    drop(guard);
    // The same updates again fit into the space that the guard held.
    for number in 0..updates {
        update(&map, number)?;
    }
    // Space counts as held until the pool checks again whether a guard holds it, which verification
    // does.
    crate::session::check_verification(&pool.verify()?, KEYS)?;
    let after = pool.stats();
    ensure(after.held_bytes == 0, || format!("{} bytes held by nobody", after.held_bytes))?;
    ensure(after.size == stats.size, || {
        format!("grew from {} to {} although space was free", stats.size, after.size)
    })?;
    Ok(Summary { updates, held_bytes: held, grown_bytes: stats.size - size })
}

/// Holds a guard in a pool that may not grow. Updates must fail once the pool is full, with an
/// error that names the reason, and must succeed again once the guard is gone.
///
/// # Errors
/// If one of these does not hold.
pub fn hold_when_full(dir: &Path, scheme: Scheme) -> Checked {
    let (pool, map) = create(&dir.join("full.pool"), scheme, 1 << 20)?;
    let guard = map.get_ref(&key_bytes(7))?;
    let mut error = None;
    for number in 0..1 << 20 {
        if let Err(found) = update(&map, number) {
            error = Some(found);
            break;
        }
    }
    let held = pool.stats().held_bytes;
    ensure(held > 0, || "nothing is held".into())?;
    match error {
        Some(Error::PoolFull { note: Some(why), limit, .. }) => {
            ensure(why.contains("1 guard") && why.contains(&held.to_string()), || {
                format!("the guard is not named: {why:?}")
            })?;
            ensure(limit == 1 << 20, || format!("limit {limit}"))?;
        }
        other => ensure(false, || format!("expected a full pool, found {other:?}"))?,
    }
    // Nothing was lost, and operations that need no space still work.
    map.remove(&key_bytes(8))?;
    drop(guard);
    for number in 0..KEYS {
        update(&map, number)?;
    }
    crate::session::check_verification(&pool.verify()?, KEYS - 1)?;
    ensure(pool.stats().held_bytes == 0, || "still held".into())
}
