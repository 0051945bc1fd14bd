//! Reader-writer locks that lie in persistent memory, as in the published code.
//!
//! A lock is one word, accessed through the seam, so the recorder sees that a reader stores to
//! persistent memory too. Locks are never flushed. After a crash a lock may be held for ever: this
//! bug of CCEH and P-CLHT is kept, since nothing is recovered.

use super::Arena;
use outlast::internals::pmem::Seam;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock as SystemLock, RwLockReadGuard, RwLockWriteGuard};

/// How a thread waits for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Locks {
    /// Sleeps after the first failure, like the locks of the operating system that the papers use
    /// by default. A sleep is 50 microseconds long; nobody wakes the sleeper.
    #[default]
    Sleeping,
    /// Spins, then yields, and never sleeps: the "-TBB" variants.
    Spinning,
}

impl Locks {
    /// Makes one turn of a loop that waits for a lock. `turn` counts the turns, from 0.
    pub fn wait<S: Seam>(self, seam: &S, turn: &mut u32) {
        /// From this turn on, `Seam::wait` sleeps.
        const SLEEPS: u32 = 1000;
        *turn = match self {
            Locks::Sleeping => (*turn).max(SLEEPS),
            Locks::Spinning => (*turn).min(SLEEPS - 1),
        };
        seam.wait(turn);
    }
}

/// The word of a lock that a writer holds. Otherwise, it is the number of readers.
const WRITER: u64 = u64::MAX;

/// A reader-writer lock in one word, a view of the place where it lies. Readers are preferred.
pub struct RwLock<'a, S> {
    arena: &'a Arena<S>,
    at: u64,
    kind: Locks,
}

// Not derived: the seam need not be `Copy`.
impl<S> Clone for RwLock<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S> Copy for RwLock<'_, S> {}

impl<'a, S: Seam> RwLock<'a, S> {
    /// Returns the lock at an offset. A lock of 0 is free.
    #[inline]
    pub fn at(arena: &'a Arena<S>, at: u64, kind: Locks) -> RwLock<'a, S> {
        RwLock { arena, at, kind }
    }

    /// Waits until no writer holds the lock, and takes it for reading.
    #[inline]
    pub fn read(self) -> ReadGuard<'a, S> {
        let mut turn = 0;
        loop {
            let readers = self.arena.load(self.at);
            if readers != WRITER && self.arena.swap_if(self.at, readers, readers + 1) {
                return ReadGuard(self);
            }
            // Another reader that came between is no reason to wait.
            if readers == WRITER {
                self.kind.wait(self.arena.seam(), &mut turn);
            }
        }
    }

    /// Waits until nobody holds the lock, and takes it for writing.
    #[inline]
    pub fn write(self) -> WriteGuard<'a, S> {
        let mut turn = 0;
        loop {
            if let Some(guard) = self.try_write() {
                return guard;
            }
            self.kind.wait(self.arena.seam(), &mut turn);
        }
    }

    /// Takes the lock for writing if nobody holds it.
    #[inline]
    pub fn try_write(self) -> Option<WriteGuard<'a, S>> {
        // Not `then_some`: it would drop a guard, which unlocks.
        self.arena.swap_if(self.at, 0, WRITER).then(|| WriteGuard(self))
    }
}

/// A lock held for reading, until this is dropped.
#[must_use]
pub struct ReadGuard<'a, S: Seam>(RwLock<'a, S>);

impl<S: Seam> Drop for ReadGuard<'_, S> {
    fn drop(&mut self) {
        let RwLock { arena, at, .. } = self.0;
        while {
            let readers = arena.load(at);
            !arena.swap_if(at, readers, readers - 1)
        } {}
    }
}

/// A lock held for writing, until this is dropped.
#[must_use]
pub struct WriteGuard<'a, S: Seam>(RwLock<'a, S>);

impl<S: Seam> Drop for WriteGuard<'_, S> {
    fn drop(&mut self) {
        self.0.arena.store_release(self.0.at, 0);
    }
}

/// A lock for what excludes all other operations, as a resize does. Every other operation takes it for
/// reading. Each thread has a line of its own of it, in DRAM, so readers do not disturb each other: the
/// published code reads a flag instead.
#[derive(Debug)]
pub struct WideLock(Vec<Line>);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(SystemLock<()>);

impl Default for WideLock {
    fn default() -> Self {
        const LINES: usize = 64;
        WideLock((0..LINES).map(|_| Line::default()).collect())
    }
}

impl WideLock {
    /// Takes the line of this thread. Threads may share a line.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, ()> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed));
        let line = NUMBER.with(|number| number % self.0.len());
        self.0[line].0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all lines.
    pub fn write(&self) -> Vec<RwLockWriteGuard<'_, ()>> {
        let lines = self.0.iter();
        lines.map(|line| line.0.write().unwrap_or_else(PoisonError::into_inner)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast::internals::pmem::{FlushMode, Real};

    #[test]
    fn a_writer_excludes_all_and_readers_exclude_writers() {
        let arena = Arena::new(Real::new(FlushMode::None), 2 << 20);
        let lock = RwLock::at(&arena, 4096, Locks::Spinning);
        let (one, two) = (lock.read(), lock.read());
        assert!(lock.try_write().is_none());
        drop(one);
        assert!(lock.try_write().is_none());
        drop(two);
        let writer = lock.write();
        assert!(lock.try_write().is_none());
        drop(writer);
        assert!(lock.try_write().is_some());
    }

    #[test]
    fn readers_of_a_wide_lock_exclude_a_writer_and_not_each_other() {
        let (lock, done) = (WideLock::default(), AtomicUsize::new(0));
        std::thread::scope(|threads| {
            let reader = lock.read();
            threads.spawn(|| drop(lock.read())).join().expect("readers go together");
            threads.spawn(|| {
                let _all = lock.write();
                done.store(1, Ordering::Release);
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert_eq!(done.load(Ordering::Acquire), 0, "a reader is there");
            drop(reader);
        });
        assert_eq!(done.into_inner(), 1);
    }

    #[test]
    fn no_increment_under_the_lock_is_lost() {
        for kind in [Locks::Sleeping, Locks::Spinning] {
            let arena = Arena::new(Real::new(FlushMode::None), 2 << 20);
            std::thread::scope(|threads| {
                for _ in 0..2 {
                    threads.spawn(|| {
                        let lock = RwLock::at(&arena, 4096, kind);
                        for _ in 0..20_000 {
                            let _guard = lock.write();
                            arena.store(4104, arena.load(4104) + 1);
                            arena.store(4112, arena.load(4112) + 1);
                        }
                    });
                }
                threads.spawn(|| {
                    let lock = RwLock::at(&arena, 4096, kind);
                    for _ in 0..2_000 {
                        let _guard = lock.read();
                        assert_eq!(arena.load(4104), arena.load(4112));
                    }
                });
            });
            assert_eq!(arena.load(4104), 40_000);
        }
    }
}
