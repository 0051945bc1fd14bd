//! foyer, in memory and hybrid, on the traces and in the loops of `outlast-bench cache`. Prints rows of JSON.
//!
//! Usage: outlast-foyer [CAPACITY [REQUESTS [SPEED_RECORDS]]]
//!
//! The hybrid cache keeps half of the records in memory. A record on its disk takes a page of 4 KiB, so its file has
//! a page for each of the other half. To be killed, the program starts itself with `--child DIRECTORY CAPACITY`.

use foyer::{
    BlockEngineConfig, Cache, CacheBuilder, DeviceBuilder, FsDeviceBuilder, HybridCache,
    HybridCacheBuilder, S3FifoConfig,
};
use outlast_bench::Fallible;
use outlast_bench::cache::speed::{self, Key, Shared, VALUE};
use outlast_bench::cache::{halves, kill_after, traces, until_killed};
use serde_json::json;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const SEED: u64 = 1;
const PAGE: usize = 4 << 10;

struct InMemory(Cache<Key, Vec<u8>>);

impl Shared for InMemory {
    fn get(&self, key: &Key) -> Fallible<bool> {
        Ok(self.0.get(key).is_some_and(|entry| entry.value().clone().len() == VALUE))
    }

    fn insert(&self, key: &Key, value: &[u8]) -> Fallible {
        self.0.insert(*key, value.to_vec());
        Ok(())
    }
}

/// Makes the requests in memory, and returns the share of hits.
fn in_memory(keys: &[u64], capacity: usize) -> f64 {
    let cache: Cache<u64, u64> =
        CacheBuilder::new(capacity).with_eviction_config(S3FifoConfig::default()).build();
    let mut hits = 0;
    for key in keys {
        match cache.get(key) {
            Some(_) => hits += 1,
            None => drop(cache.insert(*key, *key)),
        }
    }
    f64::from(hits) / keys.len() as f64
}

async fn open(dir: &Path, capacity: usize) -> Fallible<HybridCache<u64, u64>> {
    let device = FsDeviceBuilder::new(dir).with_capacity(capacity / 2 * PAGE).build()?;
    let engine = BlockEngineConfig::new(device).with_block_size(1 << 20);
    let builder = HybridCacheBuilder::new()
        .memory(capacity / 2)
        .with_eviction_config(S3FifoConfig::default())
        .storage()
        .with_engine_config(engine);
    Ok(builder.build().await?)
}

/// Makes the requests of a hybrid cache, and returns the share of hits.
async fn hybrid(cache: &HybridCache<u64, u64>, keys: &[u64]) -> Fallible<f64> {
    let mut hits = 0;
    for key in keys {
        match cache.get(key).await? {
            Some(_) => hits += 1,
            None => drop(cache.insert(*key, *key)),
        }
    }
    Ok(f64::from(hits) / keys.len() as f64)
}

/// Kills a hybrid cache after the requests `before`. Returns the milliseconds that opening it again
/// takes, and the share of hits of the requests `after`.
async fn killed(before: &[u64], after: &[u64], capacity: usize) -> Fallible<(f64, f64)> {
    let dir = tempfile::tempdir()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--child").arg(dir.path()).arg(capacity.to_string());
    kill_after(&mut command, before)?;
    let start = Instant::now();
    let cache = open(dir.path(), capacity).await?;
    let open_ms = start.elapsed().as_secs_f64() * 1e3;
    Ok((open_ms, hybrid(&cache, after).await?))
}

fn main() -> Fallible {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, dir, capacity] = &arguments[..]
        && flag == "--child"
    {
        let cache = runtime.block_on(open(Path::new(dir), capacity.parse()?))?;
        return until_killed(|keys| {
            runtime.block_on(hybrid(&cache, keys))?;
            // What it writes in the background gets time.
            std::thread::sleep(Duration::from_secs(1));
            Ok(())
        });
    }
    let number = |at: usize, default| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let (capacity, requests) = (number(0, 10_000)?, number(1, 400_000)?);
    let all = traces::all(requests, capacity, SEED);
    for trace in &all {
        let hit_ratio = in_memory(&trace.keys, capacity);
        println!(
            "{}",
            json!({"event": "trace", "trace": trace.name, "system": "foyer", "hit_ratio": hit_ratio})
        );
        let hit_ratio = runtime.block_on(async {
            let dir = tempfile::tempdir()?;
            hybrid(&open(dir.path(), capacity).await?, &trace.keys).await
        })?;
        println!(
            "{}",
            json!({"event": "trace", "trace": trace.name, "system": "foyer hybrid", "hit_ratio": hit_ratio})
        );
    }
    let (before, after) = halves(&all[0].keys);
    let whole = runtime.block_on(async {
        let dir = tempfile::tempdir()?;
        let cache = open(dir.path(), capacity).await?;
        hybrid(&cache, before).await?;
        hybrid(&cache, after).await
    })?;
    let (open_ms, ratio) = runtime.block_on(killed(before, after, capacity))?;
    println!(
        "{}",
        json!({"event": "after_kill", "system": "foyer hybrid", "hit_ratio_before": whole, "hit_ratio_after": ratio,
            "open_ms": open_ms})
    );
    let mut systems = speed::systems();
    systems.push(("foyer", |records| {
        let builder = CacheBuilder::new(records as usize);
        Ok(Box::new(InMemory(builder.with_eviction_config(S3FifoConfig::default()).build())))
    }));
    speed::run(&systems, number(2, 1_000_000)? as u64, 5, SEED, |row| {
        Ok(println!("{}", json!({"event": "throughput", "row": row})))
    })
}
