//! A service that caches the pages of a slow one. It is killed with SIGKILL in the middle, and goes on with
//! a warm cache.
//!
//!     cargo run --release --example http_cache
//!
//! The program starts itself again, as the service, kills it, and starts it once more. The service prints its
//! hit ratio over every ten thousand requests.

use outlast::{Cache, CacheOptions, Failure, PoolOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Requests between two lines of the service.
const LINE: u64 = 10_000;

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().collect();
    if let [_, path, first] = &args[..] {
        return serve(Path::new(path), first.parse()?);
    }
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("pages.pool");
    let mut ratios = run(&path, 0, 8)?;
    println!("killed with SIGKILL");
    ratios.extend(run(&path, 8 * LINE, 4)?);
    let (before, after) = (ratios[7], ratios[8]);
    println!("hit ratio before the kill {before:.3}, after it {after:.3}");
    assert!(after > before - 0.02, "the cache is warm");
    Ok(())
}

/// Starts the service at a request, lets it print so many lines, and kills it. Returns its hit ratios.
fn run(path: &Path, first: u64, lines: usize) -> Outcome<Vec<f64>> {
    let mut service: Child = Command::new(std::env::current_exe()?)
        .arg(path)
        .arg(first.to_string())
        .stdout(Stdio::piped())
        .spawn()?;
    let out = service.stdout.take().ok_or("no output")?;
    let mut ratios = Vec::new();
    for line in BufReader::new(out).lines().take(lines) {
        let line = line?;
        println!("{line}");
        ratios.push(line.rsplit(' ').next().unwrap_or_default().parse()?);
    }
    service.kill()?;
    service.wait()?;
    Ok(ratios)
}

/// The service: answers requests until it is killed.
fn serve(path: &Path, first: u64) -> Outcome {
    // A cache need not survive a power loss, and is faster without a journal.
    let options = PoolOptions::new().survive(Failure::ProcessDeath);
    // SAFETY: one service at a time uses this file.
    let pool = unsafe { options.open_or_create(path)? };
    let options = CacheOptions::bytes(2 << 20).live_for(Duration::from_secs(3_600));
    let pages: Cache<str, str> = pool.cache("pages", &options)?;
    let mut out = std::io::stdout().lock();
    for line in first / LINE.. {
        let before = pages.stats()?;
        for number in line * LINE..(line + 1) * LINE {
            let path = requested(number);
            let page = pages.get_or_insert_with(&path, || fetch(&path))?;
            assert!(page.starts_with(&path));
        }
        let hits = pages.stats()?.hits - before.hits;
        let ratio = hits as f64 / LINE as f64;
        writeln!(out, "requests {} to {}: {ratio:.3}", line * LINE, (line + 1) * LINE)?;
        out.flush()?;
    }
    Ok(())
}

/// The page that a request asks for. Some are asked for often.
fn requested(number: u64) -> String {
    let mut bits = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits ^= bits >> 29;
    bits = bits.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let part = |shift: u32| (bits >> shift & 0xffff) + 1;
    let page = part(0) * part(16) / 65_536 * part(32) / 65_536;
    format!("/pages/{page}")
}

/// Stands for the slow service.
fn fetch(path: &str) -> outlast::Result<String> {
    Ok(format!("{path}: {}", "text ".repeat(path.len() * 10)))
}
