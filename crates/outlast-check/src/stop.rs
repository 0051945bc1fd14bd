//! Stops threads before a chosen memory access while other threads work.
//!
//! A test gives one or two threads a *role*. Only accesses of threads with a role are counted, and
//! only they stop. If another thread waits for a stopped one, all stopped threads continue: the
//! interleaving that the test wanted cannot happen.

use outlast::internals::pmem::{Access, Control, Point, Traced};
use outlast::internals::pool::threads::{OWNERS, number_this_thread};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread::{ScopedJoinHandle, scope, sleep, yield_now};
use std::time::Duration;

thread_local! { static ROLE: Cell<Option<Role>> = const { Cell::new(None) }; }

/// Turns of waiting, of all threads except the first together, after which a stopped thread counts
/// as awaited.
const PATIENCE: u64 = 500;

/// The role of a thread that can stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The thread that begins. It never waits for a stopped thread.
    First,
    /// The other thread.
    Second,
}

/// Stops the threads that have a role. Clones share their state.
#[derive(Clone, Default)]
pub struct Stops(Arc<State>);

#[derive(Default)]
struct State {
    threads: [Thread; 2],
    /// Turns that threads have waited since the stopped ones were last released.
    waits: AtomicU64,
    /// Whether a thread has had to wait for a stopped one.
    was_awaited: AtomicBool,
}

struct Thread {
    /// Accesses so far.
    accesses: AtomicU64,
    /// The thread stops before the access with this number.
    limit: AtomicU64,
    /// The thread stops before the access that follows its first store, or successful exchange, at
    /// this commit point.
    after: OnceLock<&'static Point>,
    is_stopped: AtomicBool,
}

impl Default for Thread {
    fn default() -> Self {
        Thread {
            accesses: AtomicU64::new(0),
            limit: AtomicU64::new(u64::MAX),
            after: OnceLock::new(),
            is_stopped: AtomicBool::new(false),
        }
    }
}

impl Control for Stops {
    fn before(&self, _: usize, waiting: bool) {
        let role = ROLE.get();
        if waiting {
            self.wait(role);
            return;
        }
        let Some(role) = role else { return };
        let thread = self.thread(role);
        let access = thread.accesses.fetch_add(1, SeqCst);
        if access < thread.limit.load(SeqCst) {
            return;
        }
        thread.is_stopped.store(true, SeqCst);
        while access >= thread.limit.load(SeqCst) {
            yield_now();
        }
        thread.is_stopped.store(false, SeqCst);
    }

    fn after(&self, access: &Access, point: Option<&'static Point>) {
        let (Some(role), Some(point)) = (ROLE.get(), point) else { return };
        let stored = matches!(
            access,
            Access::Store { .. } | Access::CompareExchange { exchanged: true, .. }
        );
        let thread = self.thread(role);
        if stored && thread.after.get().is_some_and(|after| *after == point) {
            thread.limit.fetch_min(thread.accesses.load(SeqCst), SeqCst);
        }
    }
}

impl Stops {
    /// Returns a recorder whose accesses these stops control. It does not record yet. Gives the
    /// calling thread a number, see [`number`].
    pub fn seam(&self) -> Traced {
        number(None);
        Traced::with_control(Box::new(self.clone()))
    }

    fn thread(&self, role: Role) -> &Thread {
        &self.0.threads[role as usize]
    }

    fn wait(&self, role: Option<Role>) {
        if role == Some(Role::First) || self.0.waits.fetch_add(1, SeqCst) < PATIENCE {
            return yield_now();
        }
        self.0.was_awaited.store(true, SeqCst);
        self.release(Role::First);
        self.release(Role::Second);
        // Sleep, so that the released threads run before this thread gives up waiting.
        self.0.waits.store(0, SeqCst);
        sleep(Duration::from_micros(20));
    }

    /// Gives the calling thread a role while `act` runs, and a number, see [`number`].
    pub fn play<T>(role: Role, act: impl FnOnce() -> T) -> T {
        number(Some(role));
        ROLE.set(Some(role));
        let done = act();
        ROLE.set(None);
        done
    }

    /// Lets a thread continue until just before its access with this number, counted from 0.
    pub fn limit(&self, role: Role, access: u64) {
        self.thread(role).limit.store(access, SeqCst);
    }

    /// Makes a thread stop before the access that follows its first store, or successful exchange,
    /// at a commit point. Only the first call for a thread has an effect.
    pub fn stop_after(&self, role: Role, point: &'static Point) {
        let _ = self.thread(role).after.set(point);
    }

    /// Waits until a thread has stopped or ended.
    pub fn await_stop<T>(&self, role: Role, thread: &ScopedJoinHandle<'_, T>) {
        while !self.is_stopped(role) && !thread.is_finished() {
            yield_now();
        }
    }

    /// Lets a thread continue and never stops it again.
    pub fn release(&self, role: Role) {
        self.limit(role, u64::MAX);
    }

    /// Returns whether a thread is stopped now.
    pub fn is_stopped(&self, role: Role) -> bool {
        self.thread(role).is_stopped.load(SeqCst)
    }

    /// Returns whether a thread has had to wait for a stopped one.
    pub fn was_awaited(&self) -> bool {
        self.0.was_awaited.load(SeqCst)
    }

    /// Runs `act` in a thread that stops before its access number `at`, counted from 0. Once the
    /// thread has stopped or ended, runs `meanwhile`, and tells it whether the thread has stopped.
    /// Then lets the thread run to its end.
    pub fn during<T: Send, M>(
        &self,
        at: u64,
        act: impl FnOnce() -> T + Send,
        meanwhile: impl FnOnce(bool) -> M,
    ) -> (std::thread::Result<T>, M) {
        self.limit(Role::First, at);
        scope(|scope| {
            let thread = scope.spawn(|| Stops::play(Role::First, act));
            self.await_stop(Role::First, &thread);
            let made = meanwhile(self.is_stopped(Role::First));
            self.release(Role::First);
            (thread.join(), made)
        })
    }
}

/// Gives the calling thread a fixed number, so that its accesses are the same in every run: the
/// number decides from which shard of the allocator it takes its blocks. A thread without a role
/// has the same shard as the first role. Threads that are given no number take small ones, so none
/// of them gets a number that this function gives.
pub fn number(role: Option<Role>) {
    number_this_thread(role.map_or(OWNERS / 2, |role| OWNERS * 3 / 4 + role as usize));
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use outlast::internals::index::dash_eh::points;
    use outlast::internals::pmem::Seam;
    use outlast::internals::pool::backing::{Backing, Heap};
    use outlast::internals::pool::core::{Core, CoreOptions};

    /// Four words in a pool, all 0 at first.
    pub(crate) struct FourWords {
        core: Core<Traced>,
        offset: u64,
    }

    impl FourWords {
        pub(crate) fn new(seam: Traced) -> Self {
            let options =
                CoreOptions { page_bits: 12, initial_size: 1 << 18, ..CoreOptions::default() };
            let heap = Backing::Heap(Heap::new(&[], 1 << 18, 0));
            let core = Core::create(heap, seam, options).unwrap();
            let offset = core.allocate(64).unwrap().offset;
            let words = FourWords { core, offset };
            words.store(0);
            words
        }

        /// Stores this in each word, one after another.
        pub(crate) fn store(&self, value: u64) {
            let memory = &self.core.memory;
            let words = memory.words(self.offset, 32).unwrap();
            words.iter().for_each(|word| memory.store(word, value, &points::RECORD));
        }

        /// Returns how many words are 1.
        pub(crate) fn stored(&self) -> usize {
            let memory = &self.core.memory;
            let words = memory.words(self.offset, 32).unwrap();
            words.iter().filter(|word| memory.load(word) == 1).count()
        }
    }

    /// Makes four stores in a thread that stops before the third. Returns what `meanwhile`
    /// returned, and how many stores were made at the end.
    fn four_stores<T>(
        stops: &Stops,
        meanwhile: impl Fn(&dyn Fn() -> usize, &Traced) -> T,
    ) -> (T, usize) {
        let seam = stops.seam();
        let words = FourWords::new(seam.clone());
        let (done, seen) = stops.during(
            2,
            || words.store(1),
            |stopped| {
                assert!(stopped);
                meanwhile(&|| words.stored(), &seam)
            },
        );
        assert!(done.is_ok());
        (seen, words.stored())
    }

    #[test]
    fn a_thread_stops_where_it_is_told_to() {
        let stops = Stops::default();
        assert_eq!(four_stores(&stops, |stored, _| stored()), (2, 4));
        assert!(!stops.was_awaited());
    }

    #[test]
    fn a_stopped_thread_goes_on_if_another_one_waits() {
        let stops = Stops::default();
        let wait = |stored: &dyn Fn() -> usize, seam: &Traced| {
            let mut turn = 0;
            while stored() < 4 {
                seam.wait(&mut turn);
            }
        };
        assert_eq!(four_stores(&stops, wait), ((), 4));
        assert!(stops.was_awaited());
    }
}
