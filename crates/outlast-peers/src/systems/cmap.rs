//! cmap: the concurrent hash map of libpmemobj-cpp, the engine `cmap` of pmemkv.
//!
//! Compared with in clevel hashing (2.4.2, 4.1 to 4.4). Modelled on Intel TBB's map of that name.
//!
//! # Structure
//!
//! Buckets with a reader-writer lock, a mark and a list of nodes, one record each. Buckets lie in
//! segments; segment *k* has 2^*k* of them, from number 2^*k* on. Once there are as many records as
//! buckets, the next segment is added, which doubles their number. Its buckets are marked as not
//! rehashed. The first operation that meets such a bucket moves the records that belong to it
//! from its parent, whose number lacks the highest bit (lazy rehashing).
//!
//! An insert makes a node durable and then the head of the list. A rehash saves each word that it
//! changes in an undo log, as the published code does in a transaction.
//!
//! # Concurrency
//!
//! Lookups lock a bucket for reading, changes for writing. A rehash locks the bucket and then its
//! parent, so always in descending order of their numbers.
//!
//! # Simplified
//!
//! - A bucket has two lines and a node has two, because a lock of the published code takes a line.
//!   A node's lock is never taken: the bucket's lock excludes enough.
//! - The allocator and the transaction of a removal cost nothing beyond the change itself.
//! - The number of records is counted in DRAM.
//! - There is no update in clevel hashing's measurements of it; ours stores 8 bytes in place.
//!
//! # Crash bugs that it keeps
//!
//! - A new segment is visible before the number of buckets is durable. Locks survive a crash held
//!   (the published code gives them a new run number instead).

use crate::shared::{Arena, LINE, Locks, ReadGuard, RwLock, UndoLog, WriteGuard, hash};
use crate::{Full, Options, Peer, Promises};
use outlast::internals::pmem::Seam;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a bucket, and of a node.
const BUCKET: u64 = 2 * LINE;
const NODE: u64 = 2 * LINE;

/// Words of a bucket after its lock's line. A bucket's mark is 1 once it is rehashed.
const HEAD: u64 = LINE;
const REHASHED: u64 = LINE + 8;

/// Words of a node after its lock's line.
const NEXT: u64 = LINE;
const KEY: u64 = LINE + 8;
const VALUE: u64 = LINE + 16;

/// Words of the root: the number of buckets less one, and the segments.
const MASK: u64 = 0;
const SEGMENTS: u64 = 8;
const SEGMENTS_MAX: u64 = 40;

/// Records that one transaction of a rehash moves at most, and the words that it saves for each.
const MOVES: u64 = 16;
const WORDS: u64 = 3;
/// Undo logs to begin with. Each thread needs one for each bucket that it rehashes at a time.
const LOGS: u64 = 16;

/// The map.
pub(super) struct Cmap<S> {
    arena: Arena<S>,
    root: u64,
    locks: Locks,
    records: AtomicU64,
    growths: AtomicU64,
    growing: Mutex<()>,
    /// The undo logs that no thread uses.
    logs: Mutex<Vec<UndoLog>>,
}

impl<S: Seam> Cmap<S> {
    pub(super) fn create(arena: Arena<S>, options: &Options) -> Result<Self, Full> {
        let root = arena.alloc(SEGMENTS + SEGMENTS_MAX * 8)?;
        let map = Cmap {
            arena,
            root,
            locks: options.locks,
            records: AtomicU64::new(0),
            growths: AtomicU64::new(0),
            growing: Mutex::new(()),
            logs: Mutex::default(),
        };
        let buckets = options.initial_slots.next_power_of_two().max(2);
        let logs = (0..LOGS).map(|_| UndoLog::new(&map.arena, MOVES * WORDS));
        *map.logs.lock().unwrap_or_else(|e| e.into_inner()) = logs.collect::<Result<_, _>>()?;
        for segment in 0..u64::from(buckets.trailing_zeros()) {
            map.new_segment(segment)?;
        }
        for bucket in 0..buckets {
            map.arena.store(map.bucket(bucket) + REHASHED, 1);
            map.arena.flush(map.bucket(bucket) + REHASHED, 8);
        }
        map.arena.store_durably(root + MASK, buckets - 1);
        Ok(map)
    }

    /// Allocates a segment. Segment 0 has the buckets 0 and 1, and segment *k* those from 2^*k* on.
    fn new_segment(&self, segment: u64) -> Result<(), Full> {
        if segment >= SEGMENTS_MAX {
            return Err(Full);
        }
        let at = self.arena.alloc((1 << segment.max(1)) * BUCKET)?;
        self.arena.store_durably(self.root + SEGMENTS + segment * 8, at);
        Ok(())
    }

    fn bucket(&self, index: u64) -> u64 {
        let segment = u64::from((index | 1).ilog2());
        let first = if segment == 0 { 0 } else { 1 << segment };
        self.arena.load(self.root + SEGMENTS + segment * 8) + (index - first) * BUCKET
    }

    fn lock(&self, bucket: u64) -> RwLock<'_, S> {
        RwLock::at(&self.arena, bucket, self.locks)
    }

    fn mask(&self) -> u64 {
        self.arena.load_acquire(self.root + MASK)
    }

    /// Locks the bucket of a key for reading, or for writing if it must be rehashed first.
    fn read(&self, key: u64) -> Result<(u64, Guard<'_, S>), Full> {
        loop {
            let mask = self.mask();
            let bucket = self.bucket(hash(key) & mask);
            let guard = self.lock(bucket).read();
            if self.arena.load(bucket + REHASHED) == 0 {
                drop(guard);
                let (bucket, guard) = self.write(key)?;
                return Ok((bucket, Guard::Write(guard)));
            }
            // If the number of buckets has changed since, the record may have been moved away.
            // Later it cannot be, because that takes this lock.
            if self.mask() == mask {
                return Ok((bucket, Guard::Read(guard)));
            }
        }
    }

    /// Locks the bucket of a key for writing, and rehashes it if it must be.
    fn write(&self, key: u64) -> Result<(u64, WriteGuard<'_, S>), Full> {
        loop {
            let mask = self.mask();
            let guard = self.write_bucket(hash(key) & mask)?;
            if self.mask() == mask {
                return Ok((self.bucket(hash(key) & mask), guard));
            }
        }
    }

    fn write_bucket(&self, index: u64) -> Result<WriteGuard<'_, S>, Full> {
        let bucket = self.bucket(index);
        let guard = self.lock(bucket).write();
        if self.arena.load(bucket + REHASHED) == 0 {
            let parent = index & !(1 << index.ilog2());
            let _parent_guard = self.write_bucket(parent)?;
            self.rehash(index, self.bucket(parent))?;
        }
        Ok(guard)
    }

    /// Moves the records of a bucket from its parent. Both are locked for writing.
    fn rehash(&self, index: u64, parent: u64) -> Result<(), Full> {
        let arena = &self.arena;
        let bucket = self.bucket(index);
        let mask = (2 << index.ilog2()) - 1;
        let free_log = self.logs.lock().unwrap_or_else(|e| e.into_inner()).pop();
        let log = match free_log {
            Some(log) => log,
            None => UndoLog::new(arena, MOVES * WORDS)?,
        };
        let (mut link, mut moves) = (parent + HEAD, 0);
        while arena.load(link) != 0 {
            let node = arena.load(link);
            if hash(arena.load(node + KEY)) & mask != index {
                link = node + NEXT;
                continue;
            }
            if moves == MOVES {
                log.clear(arena);
                moves = 0;
            }
            moves += 1;
            log.save(arena, &[link, node + NEXT, bucket + HEAD]);
            let next = arena.load(node + NEXT);
            arena.store(link, next);
            arena.store(node + NEXT, arena.load(bucket + HEAD));
            arena.store(bucket + HEAD, node);
            for changed in [link, node + NEXT, bucket + HEAD] {
                arena.flush(changed, 8);
            }
            arena.fence();
        }
        arena.store_durably(bucket + REHASHED, 1);
        if moves > 0 {
            log.clear(arena);
        }
        self.logs.lock().unwrap_or_else(|e| e.into_inner()).push(log);
        Ok(())
    }

    /// Returns the place of the link to a key's node, whose bucket is locked.
    fn find(&self, bucket: u64, key: u64) -> Option<u64> {
        let mut link = bucket + HEAD;
        loop {
            let node = self.arena.load(link);
            if node == 0 || self.arena.load(node + KEY) == key {
                return (node != 0).then_some(link);
            }
            link = node + NEXT;
        }
    }

    /// Doubles the number of buckets if there are more records than buckets and no other thread
    /// does so.
    fn grow_if_due(&self) -> Result<(), Full> {
        let Ok(_growing) = self.growing.try_lock() else { return Ok(()) };
        let buckets = self.mask() + 1;
        if self.records.load(Ordering::Relaxed) < buckets {
            return Ok(());
        }
        self.new_segment(u64::from(buckets.ilog2()))?;
        self.arena.store_durably(self.root + MASK, buckets * 2 - 1);
        self.growths.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// The lock of a bucket, held until this is dropped.
enum Guard<'a, S: Seam> {
    Read(#[expect(dead_code, reason = "held")] ReadGuard<'a, S>),
    Write(#[expect(dead_code, reason = "held")] WriteGuard<'a, S>),
}

impl<S: Seam> Peer for Cmap<S> {
    fn promises(&self) -> Promises {
        Promises::HASH
    }

    fn get(&self, key: u64) -> Option<u64> {
        // Without room for an undo log, nothing can be rehashed.
        let (bucket, _guard) = self.read(key).expect("room for an undo log");
        let link = self.find(bucket, key)?;
        Some(self.arena.load(self.arena.load(link) + VALUE))
    }

    fn insert(&self, key: u64, value: u64) -> Result<bool, Full> {
        {
            let arena = &self.arena;
            let (bucket, _guard) = self.write(key)?;
            if self.find(bucket, key).is_some() {
                return Ok(false);
            }
            let node = arena.alloc(NODE)?;
            arena.store(node + NEXT, arena.load(bucket + HEAD));
            arena.store(node + KEY, key);
            arena.store(node + VALUE, value);
            arena.persist(node + NEXT, 24);
            arena.store_durably(bucket + HEAD, node);
        }
        self.records.fetch_add(1, Ordering::Relaxed);
        // The record is there, whether or not there is room for more buckets.
        let _ = self.grow_if_due();
        Ok(true)
    }

    fn update(&self, key: u64, value: u64) -> Result<bool, Full> {
        let (bucket, _guard) = self.write(key)?;
        let found = self.find(bucket, key);
        let node = found.map(|link| self.arena.load(link));
        Ok(node.map(|node| self.arena.store_durably(node + VALUE, value)).is_some())
    }

    fn remove(&self, key: u64) -> bool {
        let (bucket, _guard) = self.write(key).expect("room for an undo log");
        let Some(link) = self.find(bucket, key) else { return false };
        let node = self.arena.load(link);
        self.arena.store_durably(link, self.arena.load(node + NEXT));
        self.arena.free(node, NODE);
        self.records.fetch_sub(1, Ordering::Relaxed);
        true
    }

    fn growths(&self) -> u64 {
        self.growths.load(Ordering::Relaxed)
    }

    fn bytes(&self) -> u64 {
        self.arena.allocated()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast::internals::pmem::{FlushMode, Real};

    #[test]
    fn a_bucket_is_rehashed_when_it_is_first_used() {
        let arena = Arena::new(Real::new(FlushMode::None), 64 << 20);
        let options = Options { initial_slots: 16, ..Options::default() };
        let map = Cmap::create(arena, &options).unwrap();
        for key in 1..=16 {
            assert_eq!(map.insert(key, !key), Ok(true));
        }
        assert_eq!((map.mask(), map.growths()), (31, 1));
        let rehashed = |index| map.arena.load(map.bucket(index) + REHASHED) == 1;
        assert!((0..16).all(rehashed) && !(16..32).any(rehashed));
        for key in 1..=16 {
            assert_eq!(map.get(key), Some(!key));
            let index = hash(key) & 31;
            assert!(rehashed(index));
            // Its own bucket has it now, and no other.
            for bucket in (0..32).map(|index| map.bucket(index)) {
                let expected = bucket == map.bucket(index);
                assert_eq!(map.find(bucket, key).is_some(), expected);
            }
        }
    }
}
