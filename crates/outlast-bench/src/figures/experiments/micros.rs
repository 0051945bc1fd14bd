//! Measurements of single instructions and of allocators.

use crate::figures::lab::time_of;
use crate::figures::subject::{Memory, flush_modes};
use crate::{Fallible, team};
use outlast::internals::pmem::Real;
use outlast_peers::shared::Arena;
use outlast_peers::workloads::draw::Draw;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Nanoseconds of a load and a store followed by a flush between two fences, for each way to flush that the
/// processor has: the loop of the EA-PHT thesis (3.8).
///
/// # Errors
/// None in practice.
pub fn flush_instructions(calls: u64) -> Fallible<Vec<(String, f64)>> {
    let mut rows = Vec::new();
    for (name, mode) in flush_modes() {
        let arena = Arena::new(Real::new(mode), 2 << 20).touched(2 << 20);
        let at = arena.alloc(64)?;
        let ns = time_of(3, calls, |i| {
            let before = arena.load(at);
            arena.store(at, before ^ i);
            arena.fence();
            arena.flush(at, 8);
            arena.fence();
            Ok(())
        })?;
        rows.push((name, ns));
    }
    Ok(rows)
}

/// Nanoseconds of an exchange of a word that another core has just exchanged: two threads take turns. The
/// fastest of three rounds.
///
/// # Errors
/// If a thread cannot be created.
pub fn exchanges(calls: u64) -> Fallible<f64> {
    let mut least = f64::INFINITY;
    // With one core, the other thread has to run for a turn.
    let yields = team::cores().len() < 2;
    for _ in 0..3 {
        let word = AtomicU64::new(0);
        let start = Instant::now();
        team::run(2, |thread| {
            let mut next = thread as u64;
            while next < calls {
                match word.compare_exchange(next, next + 1, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => next += 2,
                    Err(_) if yields => std::thread::yield_now(),
                    Err(_) => std::hint::spin_loop(),
                }
            }
            Ok(())
        })?;
        least = least.min(start.elapsed().as_nanos() as f64 / calls as f64);
    }
    Ok(least)
}

/// Nanoseconds of an allocation of 256 bytes: by the counter of a chunk, as in the thesis (3.4), and
/// by an allocator with a redo log, as libpmemobj's: it makes the log durable, applies it to the
/// bitmap and to the pointer, and clears the log.
///
/// # Errors
/// If the arena is too small.
pub fn allocations(memory: &Memory, calls: u64) -> Fallible<[f64; 2]> {
    let size = (calls * 3 * 256 + (4 << 20)).next_multiple_of(2 << 20);
    let arena = Arena::new(memory.seam(), size).touched(size);
    let counter = arena.alloc(64)?;
    let embedded = time_of(3, calls, |_| {
        let next = arena.load(counter);
        if !arena.swap_if(counter, next, next + 1) {
            return Err("one thread".into());
        }
        arena.persist(counter, 8);
        Ok(())
    })?;
    let [log, bitmap, pointer, header] =
        [arena.alloc(128)?, arena.alloc(calls * 3 / 8 + 64)?, arena.alloc(64)?, arena.alloc(64)?];
    let logged = time_of(3, calls, |i| {
        let word = bitmap + i / 64 * 8;
        let bits = arena.load(word) | 1 << (i % 64);
        // The block's header, then the log of two words with its checksum, then both words, then
        // the end of the log.
        arena.store(header, i);
        arena.persist(header, 16);
        for (entry, text) in [(0, word), (8, bits), (16, pointer), (24, i * 256), (32, word ^ bits)]
        {
            arena.store(log + entry, text);
        }
        arena.persist(log, 40);
        arena.store_durably(word, bits);
        arena.store_durably(pointer, i * 256);
        arena.store_durably(log, 0);
        Ok(())
    })?;
    Ok([embedded, logged])
}

/// Nanoseconds of a read and of a flushed write of a line, one after another and at random, in memory of
/// so many MiB: sequential read, random read, sequential write, random write.
///
/// # Errors
/// None in practice.
pub fn access_patterns(memory: &Memory, mib: u64, calls: u64) -> Fallible<[f64; 4]> {
    let size = mib << 20;
    let arena = Arena::new(memory.seam(), size).touched(size);
    let lines = size / 64 - 64;
    let start = 4096;
    let mut draw = Draw::new(1);
    let mut sum = 0;
    let sequential_read = time_of(3, calls, |i| {
        sum ^= arena.load(start + i % lines * 64);
        Ok(())
    })?;
    // Each place depends on what was read before, so that reads do not overlap.
    let mut named = 0;
    let random_read = time_of(3, calls, |_| {
        named = arena.load(start + (draw.below(lines) ^ named) * 64);
        Ok(())
    })?;
    let sequential_write = time_of(3, calls, |i| {
        let at = start + i % lines * 64;
        arena.store(at + 8, i);
        arena.persist(at, 64);
        Ok(())
    })?;
    let random_write = time_of(3, calls, |i| {
        let at = start + draw.below(lines) * 64;
        arena.store(at + 8, i);
        arena.persist(at, 64);
        Ok(())
    })?;
    std::hint::black_box((sum, named));
    Ok([sequential_read, random_read, sequential_write, random_write])
}
