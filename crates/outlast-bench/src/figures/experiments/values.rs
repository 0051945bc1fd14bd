//! Values of 8 to 256 bytes behind pointers, as PhaST has them (5.4): a structure of words holds the
//! place of each value.

use crate::Fallible;
use crate::figures::lab::time_of;
use crate::figures::subject::{Memory, System};
use crate::figures::turns::STEP_EVERY;
use outlast_peers::shared::Arena;
use outlast_peers::workloads::draw::Draw;
use outlast_peers::workloads::keys::{Spread, value_bytes};

/// Million inserts, lookups and updates a second with such values.
///
/// # Errors
/// If an operation fails, or a lookup finds nothing.
pub fn throughput(system: &System, memory: &Memory, records: u64, seed: u64) -> Fallible<[f64; 3]> {
    let subject = system.create(memory, records, 1024)?;
    let size = (records * 2 * 264).next_multiple_of(2 << 20) + (2 << 20);
    let arena = Arena::new(memory.seam(), size).touched(size);
    let mut draw = Draw::new(seed);
    let mut store = |i: u64| -> Fallible<u64> {
        let bytes = value_bytes(&mut draw).next_multiple_of(8) as u64;
        let at = arena.alloc_aligned(bytes + 8, 8)?;
        arena.store(at, bytes);
        (0..bytes / 8).for_each(|word| arena.store(at + 8 + word * 8, i ^ word));
        arena.persist(at, bytes + 8);
        Ok(at)
    };
    let key = |i: u64| Spread::Uniform.key(i);
    let insert = time_of(1, records, |i| {
        if i % STEP_EVERY == 0 {
            subject.step()?;
        }
        subject.insert(key(i), store(i)?).map(drop)
    })?;
    let mut numbers = Draw::new(seed + 1);
    let search = time_of(1, records, |_| {
        let at = subject.get(key(numbers.below(records)))?.ok_or("a key is missing")?;
        let words = arena.load(at) / 8;
        std::hint::black_box((0..words).fold(0, |sum, word| sum ^ arena.load(at + 8 + word * 8)));
        Ok(())
    })?;
    let update = time_of(1, records / 2, |i| {
        let at = store(i)?;
        subject.update(key(numbers.below(records)), at).map(drop)
    })?;
    Ok([insert, search, update].map(|ns| 1e3 / ns))
}
