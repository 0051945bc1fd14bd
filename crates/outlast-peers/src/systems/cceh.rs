//! CCEH: extendible hashing with segments (Nam et al., FAST 2019).
//!
//! Compared with in Dash (6.1 to 6.4), clevel hashing (4.1: MSB index, lazy deletion) and the
//! EA-PHT thesis (3.8).
//!
//! # Structure
//!
//! A directory maps the high bits of the hash to segments. A segment has 256 buckets of one line,
//! four records each (16 KiB), and a line before them with its lock, local depth and pattern. The
//! low bits of the hash name a bucket, and a record lies there or in one of the three buckets after
//! it: 16 slots are probed. A slot is free if its key is 0, or if the key's high hash bits are not
//! the segment's pattern: a split leaves the moved records where they were (lazy deletion).
//!
//! An insert stores the value, then the key, and flushes their line once. If no slot is free, the
//! segment is split: a new segment gets the records with the next hash bit set, then the directory
//! is changed, doubled if need be, and at last the old segment's depth.
//!
//! # Concurrency
//!
//! A reader-writer lock for each segment, in persistent memory, and one for the directory. A split takes
//! the latter for writing. Other operations read the directory without it, and lock only the segment, for
//! reading or for writing. If they meet another segment than their key's, they begin again. With
//! [`Options::directory_lock`] they take the directory's lock for reading, which clevel hashing's authors
//! added.
//!
//! # Simplified
//!
//! - Segments are never merged, and an old directory is never freed. So the published bug of a
//!   lookup that reads a freed directory is not there.
//! - An insert checks for the key, unless [`Options::unique`] is off: the published code never
//!   does, and then has duplicates (clevel hashing, Table 1).
//! - The published code has no update, and none in clevel hashing's port; ours stores 8 bytes in
//!   place. Removals store an empty key, as in Dash's port.
//! - A doubling of the directory costs as many lines as it has, without undo log or allocator.
//!
//! # Crash bugs that it keeps
//!
//! - The directory's place and its depth are two stores (Witcher 24).
//! - A doubled directory is visible before its place is durable, so another thread's insert can be
//!   lost (SEPH).
//! - The pattern and the depth of a split segment are two stores, and come after the directory.
//! - A lookup returns values that are not durable yet; locks survive a crash held; a crash during a
//!   split leaks the new segment.

use crate::shared::{Arena, Keys, LINE, Locks, RwLock, hash};
use crate::{Full, Options, Peer, Promises};
use outlast::internals::pmem::Seam;
use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets of a segment.
const BUCKETS: u64 = 256;
/// Slots of a segment.
const SLOTS: u64 = BUCKETS * BUCKET_SLOTS;
const BUCKET_SLOTS: u64 = 4;
/// Buckets that are probed.
const PROBED: u64 = 4;
/// Bytes of a segment.
const SEGMENT: u64 = LINE + BUCKETS * LINE;
/// Greatest depth: a directory of two gigabytes.
const DEPTH_MAX: u64 = 28;

/// Words of a segment's first line, after its lock.
const DEPTH: u64 = 8;
const PATTERN: u64 = 16;

/// Words of the root. The directory's lock has a line of its own.
const DIRECTORY: u64 = 0;
const GLOBAL_DEPTH: u64 = 8;
const DIRECTORY_LOCK: u64 = LINE;

/// The table.
pub(super) struct Cceh<S> {
    arena: Arena<S>,
    root: u64,
    locks: Locks,
    unique: bool,
    directory_lock: bool,
    keys: Keys,
    segments: AtomicU64,
    doublings: AtomicU64,
    first_segments: u64,
}

/// Returns the `depth` high bits of a hash.
fn prefix(hash: u64, depth: u64) -> u64 {
    hash.checked_shr(64 - depth as u32).unwrap_or(0)
}

impl<S: Seam> Cceh<S> {
    pub(super) fn create(arena: Arena<S>, options: &Options) -> Result<Self, Full> {
        let first_segments = options.initial_slots.div_ceil(SLOTS).next_power_of_two();
        let depth = u64::from(first_segments.trailing_zeros());
        if depth > DEPTH_MAX {
            return Err(Full);
        }
        let root = arena.alloc(2 * LINE)?;
        let directory = arena.alloc(first_segments * 8)?;
        for pattern in 0..first_segments {
            let segment = arena.alloc(SEGMENT)?;
            arena.store(segment + DEPTH, depth);
            arena.store(segment + PATTERN, pattern);
            arena.flush(segment, LINE);
            arena.store(directory + pattern * 8, segment);
        }
        arena.persist(directory, first_segments * 8);
        arena.store(root + DIRECTORY, directory);
        arena.store(root + GLOBAL_DEPTH, depth);
        arena.persist(root, LINE);
        let (segments, doublings) = (AtomicU64::new(first_segments), AtomicU64::new(0));
        let Options { locks, unique, directory_lock, keys, .. } = *options;
        Ok(Cceh {
            arena,
            root,
            locks,
            unique,
            directory_lock,
            keys,
            segments,
            doublings,
            first_segments,
        })
    }

    fn lock(&self, at: u64) -> RwLock<'_, S> {
        RwLock::at(&self.arena, at, self.locks)
    }

    /// Returns the segment that the directory has for a hash.
    fn segment_of(&self, hash: u64) -> u64 {
        let lock = self.lock(self.root + DIRECTORY_LOCK);
        let _guard = self.directory_lock.then(|| lock.read());
        // A doubling stores the directory before its depth, so the one that is read here has at least
        // this depth. With a smaller depth than its own, it leads to another segment, which `holds` shows.
        let depth = self.arena.load_acquire(self.root + GLOBAL_DEPTH);
        let directory = self.arena.load_acquire(self.root + DIRECTORY);
        self.arena.load_acquire(directory + prefix(hash, depth) * 8)
    }

    /// Whether a segment, whose lock the caller holds, is the one for a hash. It may have been
    /// split since the directory was read.
    fn holds(&self, segment: u64, hash: u64) -> bool {
        prefix(hash, self.arena.load(segment + DEPTH)) == self.arena.load(segment + PATTERN)
    }

    /// Returns the slots where the record of a hash may lie.
    fn probe(segment: u64, hash: u64) -> impl Iterator<Item = u64> {
        (0..PROBED).flat_map(move |i| {
            let bucket = segment + LINE + (hash + i) % BUCKETS * LINE;
            (0..BUCKET_SLOTS).map(move |slot| bucket + slot * 16)
        })
    }

    fn find(&self, segment: u64, key: u64, hash: u64) -> Option<u64> {
        let is_here = |&slot: &u64| self.keys.is(&self.arena, self.arena.load(slot), key);
        Self::probe(segment, hash).find(is_here)
    }

    /// Runs `change` on the slot of a key, under the segment's lock for writing.
    fn change(&self, key: u64, change: impl FnOnce(u64)) -> bool {
        let hash = hash(key);
        loop {
            let segment = self.segment_of(hash);
            let _guard = self.lock(segment).write();
            if self.holds(segment, hash) {
                return self.find(segment, key, hash).map(change).is_some();
            }
        }
    }

    /// Returns the first free slot for a key, unless the key is there.
    fn free_slot(&self, segment: u64, key: u64, hash: u64) -> FreeSlot {
        let mut free = FreeSlot::None;
        for slot in Self::probe(segment, hash) {
            let word = self.arena.load(slot);
            if self.unique && self.keys.is(&self.arena, word, key) {
                return FreeSlot::KeyIsThere;
            }
            let hash_of = |word| crate::shared::hash(self.keys.of(&self.arena, word));
            let is_free = || word == 0 || !self.holds(segment, hash_of(word));
            if matches!(free, FreeSlot::None) && is_free() {
                free = FreeSlot::At(slot);
                if !self.unique {
                    break;
                }
            }
        }
        free
    }

    /// Splits a segment, whose lock the caller holds for writing.
    fn split(&self, segment: u64) -> Result<(), Full> {
        let arena = &self.arena;
        let (depth, pattern) = (arena.load(segment + DEPTH), arena.load(segment + PATTERN));
        if depth == DEPTH_MAX {
            return Err(Full);
        }
        let right = arena.alloc(SEGMENT)?;
        let (right_pattern, right_depth) = (pattern << 1 | 1, depth + 1);
        arena.store(right + DEPTH, right_depth);
        arena.store(right + PATTERN, right_pattern);
        // Records keep their slots. Stale ones of former splits are left behind.
        for place in (LINE..SEGMENT).step_by(16) {
            let word = arena.load(segment + place);
            if word != 0 && prefix(hash(self.keys.of(arena, word)), right_depth) == right_pattern {
                arena.store(right + place + 8, arena.load(segment + place + 8));
                arena.store(right + place, word);
            }
        }
        arena.persist(right, SEGMENT);

        let _guard = self.lock(self.root + DIRECTORY_LOCK).write();
        if depth == arena.load(self.root + GLOBAL_DEPTH) {
            self.double(right, right_pattern)?;
        } else {
            let directory = arena.load(self.root + DIRECTORY);
            let entries = 1 << (arena.load(self.root + GLOBAL_DEPTH) - right_depth);
            let first = directory + right_pattern * entries * 8;
            for entry in (0..entries).rev() {
                arena.store_release(first + entry * 8, right);
            }
            arena.persist(first, entries * 8);
        }
        arena.store(segment + PATTERN, pattern << 1);
        arena.store(segment + DEPTH, depth + 1);
        arena.persist(segment, LINE);
        self.segments.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Doubles the directory, whose lock the caller holds for writing, with the entry of a new
    /// segment.
    fn double(&self, right: u64, right_pattern: u64) -> Result<(), Full> {
        let arena = &self.arena;
        let depth = arena.load(self.root + GLOBAL_DEPTH);
        let old = arena.load(self.root + DIRECTORY);
        let new = arena.alloc(16 << depth)?;
        for entry in 0..2 << depth {
            arena.store(new + entry * 8, arena.load(old + entry / 2 * 8));
        }
        arena.store(new + right_pattern * 8, right);
        arena.persist(new, 16 << depth);
        arena.store_durably(self.root + DIRECTORY, new);
        arena.store_durably(self.root + GLOBAL_DEPTH, depth + 1);
        self.doublings.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

enum FreeSlot {
    KeyIsThere,
    At(u64),
    None,
}

impl<S: Seam> Peer for Cceh<S> {
    fn promises(&self) -> Promises {
        Promises { inserts_once: self.unique, ..Promises::HASH }
    }

    fn get(&self, key: u64) -> Option<u64> {
        let hash = hash(key);
        loop {
            let segment = self.segment_of(hash);
            let _guard = self.lock(segment).read();
            if self.holds(segment, hash) {
                return self.find(segment, key, hash).map(|slot| self.arena.load(slot + 8));
            }
        }
    }

    fn insert(&self, key: u64, value: u64) -> Result<bool, Full> {
        let hash = hash(key);
        loop {
            let segment = self.segment_of(hash);
            let _guard = self.lock(segment).write();
            if !self.holds(segment, hash) {
                continue;
            }
            match self.free_slot(segment, key, hash) {
                FreeSlot::KeyIsThere => return Ok(false),
                FreeSlot::At(slot) => {
                    let word = self.keys.new_word(&self.arena, key)?;
                    self.arena.store(slot + 8, value);
                    self.arena.store_release(slot, word);
                    self.arena.persist(slot, 16);
                    return Ok(true);
                }
                FreeSlot::None => self.split(segment)?,
            }
        }
    }

    fn update(&self, key: u64, value: u64) -> Result<bool, Full> {
        Ok(self.change(key, |slot| self.arena.store_durably(slot + 8, value)))
    }

    fn remove(&self, key: u64) -> bool {
        self.change(key, |slot| self.arena.store_durably(slot, 0))
    }

    fn slots(&self) -> Option<u64> {
        Some(self.segments.load(Ordering::Relaxed) * SLOTS)
    }

    fn growths(&self) -> u64 {
        let splits = self.segments.load(Ordering::Relaxed) - self.first_segments;
        splits + self.doublings.load(Ordering::Relaxed)
    }

    fn bytes(&self) -> u64 {
        self.arena.allocated()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast::internals::pmem::{FlushMode, Real};

    fn table(unique: bool) -> Cceh<Real> {
        let arena = Arena::new(Real::new(FlushMode::None), 256 << 20);
        Cceh::create(arena, &Options { unique, ..Options::default() }).unwrap()
    }

    #[test]
    fn a_key_may_be_there_twice_if_inserts_do_not_look() {
        for unique in [true, false] {
            let table = table(unique);
            assert_eq!(table.insert(7, 1), Ok(true));
            assert_eq!(table.insert(7, 2), Ok(!unique));
            assert!(table.remove(7));
            assert_eq!(table.get(7).is_some(), !unique);
        }
    }

    #[test]
    fn the_load_factor_is_as_low_as_the_papers_say() {
        // clevel hashing (4.2): no more than 45%; Dash (6.4): between 35% and 43%.
        let table = table(true);
        let (mut least, mut most) = (1.0f64, 0.0f64);
        for key in 1..=400_000 {
            table.insert(key, !key).unwrap();
            if key > 100_000 {
                let load = key as f64 / table.slots().unwrap() as f64;
                (least, most) = (least.min(load), most.max(load));
            }
        }
        assert!((0.25..0.40).contains(&least) && (0.40..0.50).contains(&most), "{least} {most}");
    }

    #[test]
    fn stale_records_of_a_split_are_not_found() {
        let table = table(true);
        let count = 20_000;
        for key in 1..=count {
            table.insert(key, !key).unwrap();
        }
        for key in 1..=count {
            assert!(table.remove(key));
            assert_eq!(table.get(key), None, "{key}: its stale copies lie in other segments");
            assert!(!table.remove(key));
        }
        assert!(table.doublings.load(Ordering::Relaxed) >= 4);
    }
}
