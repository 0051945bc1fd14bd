//! Records histories of real threads, through the public interface.
//!
//! Events are stamped from one counter, before the call and after the return. Each thread keeps its
//! own events, so that the recording itself orders the threads as little as possible.

use super::record::{Answer, Call, Event, History};
use crate::maps::{AnyMap, MapShape};
use crate::random::Random;
use crate::session::Do;
use crate::state::{Checked, Fault};
use outlast::{PoolOptions, RecordForm, Scheme};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Options of a recording.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The scheme of the map.
    pub scheme: Scheme,
    /// The record form of the map.
    pub form: RecordForm,
    /// Number of threads.
    pub threads: usize,
    /// Operations per thread on the recorded keys.
    pub operations: u64,
    /// Number of recorded keys.
    pub keys: u64,
    /// The seed of each thread's choices.
    pub seed: u64,
}

/// Keys from here on only make the map grow. They are not recorded.
const FILL: u64 = 1_000_000;

struct Thread<'r> {
    number: usize,
    map: &'r AnyMap,
    name: &'r Arc<str>,
    clock: &'r AtomicU64,
    ops: &'r AtomicU64,
    events: Vec<(u64, Event)>,
}

impl Thread<'_> {
    fn note(&mut self, event: Event) {
        // SeqCst: the thread draws the stamp after all its earlier accesses and before all its
        // later ones.
        self.events.push((self.clock.fetch_add(1, Ordering::SeqCst), event));
    }

    fn record(&mut self, call: Call) -> Checked {
        let op = self.ops.fetch_add(1, Ordering::Relaxed);
        self.note(Event::Begin { op, thread: self.number, map: Arc::clone(self.name), call });
        let answer = ask(self.map, call)?;
        self.note(Event::End { op, answer });
        Ok(())
    }
}

/// Makes a call to a public map and returns its result.
///
/// # Errors
/// If the map fails, or holds something that nobody wrote.
pub fn ask(map: &AnyMap, call: Call) -> Checked<Answer> {
    let (key, change) = match call {
        Call::Get(key) => return Ok(Answer::Value(map.get(key)?)),
        Call::Scan => {
            let records = map.records()?.into_iter().filter(|r| r.0 < FILL);
            return Ok(Answer::Records(records.collect()));
        }
        Call::Change(key, change) => (key, change),
    };
    // For an insert, an update or a comparison, the public interface returns only yes or no, so the
    // value before stays unknown.
    let (applied, before) = map.apply(key, change)?;
    let present = match change {
        Do::Insert(_) => Some(!applied),
        Do::Update(_) => Some(applied),
        Do::Swap(..) | Do::CompareRemove(_) => applied.then_some(true),
        Do::Put(_) | Do::Remove => before.map(|before| before.is_some()),
    };
    Ok(Answer::Changed { applied, present, before: before.flatten() })
}

/// Runs threads on a map in memory that changes its structure all the time. Returns their history,
/// and how often the structure changed: splits and doublings, or levels that came and went.
///
/// # Errors
/// If an operation fails.
pub fn record(options: &Options) -> Checked<(History, u64)> {
    let pool = PoolOptions::new().page_bits(12).anonymous()?;
    let shape = MapShape { name: "live", form: options.form, small: true };
    let map = AnyMap::open(&pool, &shape, options.scheme)?;
    let name: Arc<str> = shape.name.into();
    let (clock, ops) = (AtomicU64::new(0), AtomicU64::new(0));
    let threads: Vec<Checked<Vec<(u64, Event)>>> = std::thread::scope(|scope| {
        let spawn = |number: usize| {
            let (map, name, clock, ops) = (&map, &name, &clock, &ops);
            scope.spawn(move || {
                let thread = Thread { number, map, name, clock, ops, events: Vec::new() };
                run(thread, options)
            })
        };
        let handles: Vec<_> = (0..options.threads).map(spawn).collect();
        let lost = |_| Err(Fault("a thread panicked".into()));
        handles.into_iter().map(|h| h.join().unwrap_or_else(lost)).collect()
    });
    let mut stamped = Vec::new();
    for events in threads {
        stamped.append(&mut events?);
    }
    stamped.sort_unstable_by_key(|(stamp, _)| *stamp);
    let stats = match &map {
        AnyMap::Inline(map) => map.stats()?,
        AnyMap::Bytes(map) => map.stats()?,
    };
    let changes = stats.splits + stats.doublings;
    Ok((History { events: stamped.into_iter().map(|(_, event)| event).collect() }, changes))
}

fn run(mut thread: Thread<'_>, options: &Options) -> Checked<Vec<(u64, Event)>> {
    let mut random = Random::new(options.seed ^ (thread.number as u64) << 32);
    let first = FILL * (1 + thread.number as u64);
    for i in 0..options.operations {
        let key = random.below(options.keys);
        let value = 1 + random.below(1 << 20);
        thread.record(match random.below(10) {
            0..3 => Call::Get(key),
            3 | 4 => Call::Change(key, Do::Insert(value)),
            5 => Call::Change(key, Do::Put(value)),
            6 => Call::Change(key, Do::Update(value)),
            7 => {
                let old = thread.map.get(key)?.unwrap_or(value);
                Call::Change(key, Do::Swap(old, value))
            }
            8 => {
                let old = thread.map.get(key)?.unwrap_or(value);
                Call::Change(key, Do::CompareRemove(old))
            }
            _ => Call::Change(key, Do::Remove),
        })?;
        if i % 512 == 17 {
            thread.record(Call::Scan)?;
        }
        if i % 4 == 0 {
            ask(thread.map, Call::Change(first + i, Do::Insert(value)))?;
        }
        if i % 8 == 7 && i > 600 {
            // Keep the map small enough to iterate over.
            ask(thread.map, Call::Change(first + i - 7 - 512, Do::Remove))?;
        }
    }
    Ok(thread.events)
}
