//! Tests the allocator by itself: blocks of all sizes, allocated and freed at random, must never
//! overlap.
//!
//! A map uses few sizes, and seldom frees a whole run of blocks. Here most runs are released and
//! their pages claimed for another size, while entries of the free lists still lead to them.

use crate::random::Random;
use crate::session::{PoolShape, Session, recorder};
use crate::state::{Checked, Fault, ensure};
use outlast::Error;
use outlast::internals::pmem::Alive;
use outlast::internals::pool::alloc::Block;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The number of seeds to try.
const SEEDS: u64 = 12;
/// Allocations and frees per seed.
const STEPS: u64 = 1_500;
/// The sizes of the blocks, in bytes. Those above half a page of 4096 have classes in eighths of a
/// page, or take whole pages.
const SIZES: [u64; 14] =
    [24, 40, 56, 100, 200, 500, 1_000, 2_000, 2_300, 3_000, 3_700, 5_000, 9_000, 13_000];

/// Runs all the seeds, half of them with freed blocks reused immediately.
///
/// # Errors
/// If two blocks overlap, a block is too small, a block cannot be freed, or the pool reports that
/// it is full while at most 60 of its 160 pages are used.
pub fn check(alive: &Arc<Alive>) -> Checked {
    (0..SEEDS).try_for_each(|seed| one(seed, alive).map_err(|f| Fault(format!("blocks: {f}"))))
}

fn one(seed: u64, alive: &Arc<Alive>) -> Checked {
    let pool = PoolShape { max_pages: 160, ..PoolShape::default() };
    let seam = recorder(false);
    if seed.is_multiple_of(2) {
        seam.reuse_at_once();
    }
    let session = Session::create(pool, alive, seam)?;
    let core = session.store().core();
    let _writing = core.enter()?;
    let mut random = Random::new(seed ^ 0xb10c);
    let mut blocks: BTreeMap<u64, Block> = BTreeMap::new();
    for step in 0..STEPS {
        // Each phase of 60 steps uses about one size. Whole runs of blocks of that size are freed
        // before the next size is allocated.
        let size = SIZES[step as usize / 60 % SIZES.len()];
        let size = size + 8 * random.below(3);
        if random.below(8) < if step / 30 % 2 == 0 { 6 } else { 1 } {
            let block = match core.allocate(size) {
                Ok(block) => block,
                Err(Error::PoolFull { .. }) if used(&blocks) > 60 << 12 => continue,
                Err(error) => {
                    return Err(Fault(format!("{error}, with {} bytes used", used(&blocks))));
                }
            };
            ensure(block.bytes >= size, || format!("{size} bytes requested, got {block:?}"))?;
            let before = blocks.range(..block.offset + block.bytes).next_back();
            let is_free = before.is_none_or(|(_, b)| b.offset + b.bytes <= block.offset);
            ensure(is_free, || format!("{block:?} overlaps {before:?}"))?;
            blocks.insert(block.offset, block);
        } else if !blocks.is_empty() {
            let at = random.below(blocks.len() as u64) as usize;
            let offset = *blocks.keys().nth(at).expect("one of them");
            blocks.remove(&offset);
            core.free_unlinked(offset);
        }
    }
    let kept = core.unfreeable();
    ensure(kept == 0, || format!("{kept} blocks could not be freed"))
}

fn used(blocks: &BTreeMap<u64, Block>) -> u64 {
    blocks.values().map(|block| block.bytes).sum()
}
