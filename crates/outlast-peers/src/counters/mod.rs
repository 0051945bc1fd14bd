//! Counters without hardware: what a recorded trace costs in a model of the caches and the medium.
//!
//! [`Machine`] takes the events of a recorder (`Traced`, with loads) one after another. Its caches
//! are those of one core. Accesses to DRAM are not recorded, so they neither hit nor evict: the
//! counts are those of the accesses to persistent memory alone.

mod cache;
mod medium;

pub use cache::CacheSize;
pub use medium::MediumCounts;

use cache::{Cache, Evicted};
use medium::Medium;
use outlast::internals::pmem::{Access, Event};

/// Bytes per cache line.
const LINE: u64 = 64;

/// What a flush does to its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// Writes it and keeps it in the caches: `clwb`.
    Keeps,
    /// Writes it and drops it, so that the next access misses: `clflush`, `clflushopt`.
    Drops,
}

/// The sizes of a machine.
#[derive(Debug, Clone)]
pub struct Sizes {
    /// The caches, the one next to the core first.
    pub caches: Vec<CacheSize>,
    /// What a flush does.
    pub flush: Flush,
    /// 256-byte blocks that the medium's own buffer holds. Optane's has 64 of them a module.
    pub buffer_blocks: usize,
}

impl Sizes {
    /// The machine of group hashing (Table 2): a core of a Xeon E5-2620, with `clflush`. It has no
    /// persistent memory; a buffer of one block merges nothing but neighbours.
    pub fn group_hashing() -> Sizes {
        Sizes {
            caches: vec![
                CacheSize { bytes: 32 << 10, ways: 8 },
                CacheSize { bytes: 256 << 10, ways: 8 },
                CacheSize { bytes: 15 << 20, ways: 20 },
            ],
            flush: Flush::Drops,
            buffer_blocks: 1,
        }
    }

    /// The machine of the EA-PHT thesis and PhaST: a core of a Xeon Gold (6230, 6148), whose
    /// `clwb` drops the line, with one module of Optane.
    pub fn xeon_gold() -> Sizes {
        Sizes {
            caches: vec![
                CacheSize { bytes: 32 << 10, ways: 8 },
                CacheSize { bytes: 1 << 20, ways: 16 },
                CacheSize { bytes: 55 << 19, ways: 11 },
            ],
            flush: Flush::Drops,
            buffer_blocks: 64,
        }
    }
}

/// What the events since the beginning cost.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MachineCounts {
    /// Accesses by the program: loads, stores and exchanges of words.
    pub accesses: u64,
    /// Misses of each cache, the one next to the core first.
    pub misses: Vec<u64>,
    /// Lines flushed, whether or not they were dirty.
    pub flushed: u64,
    /// Fences.
    pub fences: u64,
    /// Lines and blocks of the medium.
    pub medium: MediumCounts,
}

/// Caches with a medium behind them.
///
/// A line that is accessed enters every cache that missed. A dirty line that a cache evicts enters
/// the next one; from the last one, it is written to the medium. A cache that evicts a line does not
/// evict it from the others.
#[derive(Debug)]
pub struct Machine {
    caches: Vec<Cache>,
    flush: Flush,
    medium: Medium,
    /// The line of the last non-temporal stores, which the core has not sent yet.
    streamed: Option<u64>,
    counts: MachineCounts,
}

impl Machine {
    /// Creates a machine with empty caches.
    ///
    /// # Panics
    /// If there is no cache, or if a cache has not even one set.
    pub fn new(sizes: &Sizes) -> Machine {
        assert!(!sizes.caches.is_empty(), "a cache");
        let caches: Vec<Cache> = sizes.caches.iter().map(|&size| Cache::new(size)).collect();
        let misses = vec![0; caches.len()];
        Machine {
            caches,
            flush: sizes.flush,
            medium: Medium::new(sizes.buffer_blocks),
            streamed: None,
            counts: MachineCounts { misses, ..MachineCounts::default() },
        }
    }

    /// The counts since the machine was created or [reset](Self::reset).
    pub fn counts(&self) -> MachineCounts {
        MachineCounts { medium: self.medium.counts(), ..self.counts.clone() }
    }

    /// Sets the counts to 0. The caches keep their lines.
    pub fn reset(&mut self) {
        let misses = vec![0; self.caches.len()];
        self.counts = MachineCounts { misses, ..MachineCounts::default() };
        self.medium.reset();
    }

    /// Takes events in their order.
    pub fn run(&mut self, events: &[Event]) {
        for event in events {
            match event.access {
                Access::Load { offset, .. } => self.access(offset / LINE, false),
                Access::Store { offset, nontemporal: false, .. } => {
                    self.access(offset / LINE, true);
                }
                Access::Store { offset, nontemporal: true, .. } => self.stream(offset / LINE),
                Access::CompareExchange { offset, exchanged, .. } => {
                    self.access(offset / LINE, exchanged);
                }
                Access::Flush { offset, bytes } => {
                    for line in offset / LINE..(offset + bytes).div_ceil(LINE) {
                        self.flush(line);
                    }
                }
                Access::Fence => {
                    self.counts.fences += 1;
                    self.send_streamed();
                }
                Access::Dram | Access::Mark(_) => {}
            }
        }
    }

    fn access(&mut self, line: u64, writes: bool) {
        self.counts.accesses += 1;
        let hit = self.caches.iter_mut().position(|cache| cache.touch(line));
        let missed = hit.unwrap_or(self.caches.len());
        self.counts.misses[..missed].iter_mut().for_each(|misses| *misses += 1);
        if hit.is_none() {
            self.medium.read(line);
        }
        // The last cache first: a line that an upper one evicts finds its place.
        for level in (0..missed).rev() {
            self.enter(level, line, false);
        }
        if writes {
            self.caches[0].make_dirty(line);
        }
    }

    /// Puts a line into a cache.
    fn enter(&mut self, level: usize, line: u64, dirty: bool) {
        match self.caches[level].insert(line, dirty) {
            Some(Evicted { line, dirty: true }) if level + 1 < self.caches.len() => {
                self.enter(level + 1, line, true);
            }
            Some(Evicted { line, dirty: true }) => self.medium.write(line),
            _ => {}
        }
    }

    fn flush(&mut self, line: u64) {
        self.counts.flushed += 1;
        let drops = self.flush == Flush::Drops;
        // Each cache, because a dirty copy may lie under a clean one.
        let dirty = self.caches.iter_mut().filter_map(|cache| {
            if drops { cache.remove(line) } else { cache.clean(line) }.then_some(())
        });
        if dirty.count() > 0 {
            self.medium.write(line);
        }
    }

    fn stream(&mut self, line: u64) {
        self.counts.accesses += 1;
        if self.streamed != Some(line) {
            self.send_streamed();
            let removed = self.caches.iter_mut().filter_map(|c| c.remove(line).then_some(()));
            if removed.count() > 0 {
                self.medium.write(line);
            }
            self.streamed = Some(line);
        }
    }

    fn send_streamed(&mut self) {
        if let Some(line) = self.streamed.take() {
            self.medium.write(line);
        }
    }
}

#[cfg(test)]
mod tests;
