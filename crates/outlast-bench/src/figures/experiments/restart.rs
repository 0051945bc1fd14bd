//! How long a pool takes to open after its process died.

use crate::Fallible;
use crate::scratch::Scratch;
use outlast::{Failure, MapOptions, Pool, PoolOptions, Scheme};
use outlast_peers::workloads::keys::Spread;
use std::fs;
use std::path::Path;
use std::time::Instant;

/// A pool as its process left it, with the time that its inserts took.
pub struct Left {
    /// Milliseconds of all inserts.
    pub insert_ms: f64,
    /// Size of the file in bytes.
    pub bytes: u64,
    dir: Scratch,
    scheme: Scheme,
    records: u64,
}

fn options() -> PoolOptions {
    PoolOptions::new().survive(Failure::ProcessDeath).identity(1, 2).background(false)
}

fn create(path: &Path) -> Fallible<Pool> {
    // SAFETY: the path is in a directory that was made for this pool.
    Ok(unsafe { options().create(path)? })
}

impl Left {
    /// Fills a pool and saves the content of its file while the pool is open: what a process leaves
    /// that dies then.
    ///
    /// # Errors
    /// If an insert fails, or the file cannot be copied.
    pub fn new(scheme: Scheme, records: u64, dir: &Path) -> Fallible<Left> {
        let dir = Scratch::create(dir)?;
        let path = dir.path().join("open");
        let pool = create(&path)?;
        let map = pool.map_with::<u64, u64>("figure", &MapOptions::new().scheme(scheme))?;
        let start = Instant::now();
        for number in 0..records {
            let key = Spread::Uniform.key(number);
            map.insert(&key, &(key ^ 1))?;
        }
        let insert_ms = start.elapsed().as_secs_f64() * 1e3;
        fs::copy(&path, dir.path().join("left"))?;
        let bytes = fs::metadata(&path)?.len();
        drop((map, pool));
        Ok(Left { insert_ms, bytes, dir, scheme, records })
    }

    /// Milliseconds from the call that opens such a pool to its first result: the least of some rounds.
    ///
    /// # Errors
    /// If the pool cannot be opened, or the record is not there.
    pub fn open_ms(&self, threads: usize, rounds: usize) -> Fallible<f64> {
        let mut least = f64::INFINITY;
        for round in 0..rounds {
            // Into the same file: a pool in another one would be recognised as a copy.
            let path = self.dir.path().join("open");
            fs::copy(self.dir.path().join("left"), &path)?;
            let start = Instant::now();
            // SAFETY: the path is in a directory that was made for this pool.
            let pool = unsafe { options().recovery_threads(threads).open(&path)? };
            let map =
                pool.map_with::<u64, u64>("figure", &MapOptions::new().scheme(self.scheme))?;
            let key = Spread::Uniform.key(round as u64 % self.records);
            let found = map.get(&key)?;
            least = least.min(start.elapsed().as_secs_f64() * 1e3);
            if found != Some(key ^ 1) {
                return Err("a record is missing after a restart".into());
            }
            drop((map, pool));
        }
        Ok(least)
    }
}
