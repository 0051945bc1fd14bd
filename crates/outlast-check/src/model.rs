//! The model of a crash: what it can leave of a recorded run. `docs/evidence.md` has a summary.
//!
//! **Power loss** (Px86). A prefix of the stores to each 64-byte line survives, in the order in
//! which they became visible. The prefix includes at least what a completed flush has written back.
//! A flush takes the stores that its line has had so far, whichever thread made them. It completes
//! at the next fence of the thread that issued it, and at no other thread's. A non-temporal store
//! counts as a store that is flushed immediately. Lines are independent of each other. An aligned
//! word is never torn. A compare-exchange that succeeds is a store, one that fails does nothing,
//! and neither is a fence. The flushes of a process that died ([`Mark::Death`]) never complete; its
//! stores stay in the caches.
//!
//! **Persistent caches, and process death.** A prefix of all stores survives, in the order in which
//! they became visible. It includes, of each thread, every store before the thread's last fence,
//! and whatever other threads stored before these ([`Timeline::fenced`]).
//!
//! A [`Timeline`] follows a trace of any number of threads. For the moment that it has reached, it
//! lists the [open](Timeline::open) lines, those of which a crash may keep more or fewer stores,
//! and builds the [image](Timeline::least_and) of one such choice. [`windows`] returns the moments
//! worth looking at. Whatever a crash at any other moment can leave, a crash at one of these can
//! leave too, and at that moment no more contents are allowed.

use crate::random::Random;
use outlast::internals::pmem::{Access, Event, LINE, Mark, Point};
use outlast::internals::pool::layout::{HEADER_OFFSETS, field};
use std::collections::BTreeMap;

/// The byte that fills fresh space: nothing may rely on zeroes there.
pub const GARBAGE: u8 = 0xa5;

/// A store that is not durable yet, so that a crash may undo it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Store {
    /// Its event number in the trace.
    pub event: usize,
    /// The thread that made it.
    pub thread: usize,
    /// The offset of the word.
    pub offset: u64,
    /// The value stored.
    pub value: u64,
    /// Its commit point.
    pub point: Option<&'static Point>,
}

impl Store {
    /// Converts an event to a store, if it is one. A compare-exchange that succeeded counts as a
    /// store.
    pub fn of(number: usize, event: &Event) -> Option<Store> {
        let (offset, value) = stored(event)?;
        Some(Store { event: number, thread: event.thread, offset, value, point: event.point })
    }

    /// Returns the number of the word's line.
    pub fn line(&self) -> u64 {
        self.offset / LINE
    }
}

/// Returns the offset and the value that an event stored, if it stored something.
pub fn stored(event: &Event) -> Option<(u64, u64)> {
    match event.access {
        Access::Store { offset, value, .. } => Some((offset, value)),
        Access::CompareExchange { offset, new, exchanged: true, .. } => Some((offset, new)),
        _ => None,
    }
}

/// A line with stores that are not durable yet. A crash may keep the first `n` of them, for any
/// `n`.
#[derive(Debug, Clone, Copy)]
pub struct OpenLine<'t> {
    /// The line's number: its offset divided by the line size.
    pub line: u64,
    /// The stores since the last durable one, in trace order.
    pub stores: &'t [Store],
}

/// One line's part of an image: how many of the stores of an [open line](OpenLine) survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kept {
    /// The line's number.
    pub line: u64,
    /// The number of stores kept; 0 leaves what is durable.
    pub stores: usize,
}

/// The part of a [`Timeline`] that knows which stores of a trace are durable, without the bytes.
#[derive(Debug, Clone, Default)]
struct Caches {
    /// The stores that are not durable yet, by line.
    open: BTreeMap<u64, Vec<Store>>,
    /// Flushes in flight: the thread, the line, and an event number. The flush takes the stores
    /// before that event.
    flushing: Vec<(usize, u64, usize)>,
    /// By thread: the number of the event after its last store.
    last_store: BTreeMap<usize, usize>,
    /// The number of the event after the last store that a fence of its own thread has followed.
    fenced: usize,
}

impl Caches {
    /// Processes an event. Calls `durable` for each store that is durable from now on, in order.
    fn follow(&mut self, number: usize, event: &Event, mut durable: impl FnMut(&Store)) {
        if let Some(store) = Store::of(number, event) {
            self.open.entry(store.line()).or_default().push(store);
            self.last_store.insert(event.thread, number + 1);
        }
        match event.access {
            Access::Store { offset, nontemporal: true, .. } => {
                self.flushing.push((event.thread, offset / LINE, number + 1));
            }
            Access::Flush { offset, bytes } => {
                let lines = offset / LINE..(offset + bytes).div_ceil(LINE);
                let dirty = self.open.range(lines).map(|(&line, _)| (event.thread, line, number));
                self.flushing.extend(dirty);
            }
            Access::Fence => {
                if let Some(&last) = self.last_store.get(&event.thread) {
                    self.fenced = self.fenced.max(last);
                }
                let open = &mut self.open;
                self.flushing.retain(|&(thread, line, before)| {
                    if thread != event.thread {
                        return true;
                    }
                    if let Some(stores) = open.get_mut(&line) {
                        let kept = stores.partition_point(|s| s.event < before);
                        stores.drain(..kept).for_each(|store| durable(&store));
                        if stores.is_empty() {
                            open.remove(&line);
                        }
                    }
                    false
                });
            }
            Access::Mark(Mark::Death) => {
                self.flushing.clear();
                self.last_store.clear();
                // The dead process's stores are in the caches.
                self.fenced = number;
            }
            _ => {}
        }
    }
}

/// The bytes of a file, and a hash of them that is updated with each store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// A hash of what was stored. Two images that began with equal bytes have equal hashes if their
    /// bytes are equal.
    pub hash: u64,
}

impl Image {
    /// Makes an image of a file, or of nothing yet, with room to grow to `capacity`. The room is
    /// filled with [`GARBAGE`], as fresh space is in every pool here.
    pub fn of_file(file: &[u8], capacity: u64) -> Image {
        let mut bytes = file.to_vec();
        bytes.resize(capacity as usize, GARBAGE);
        Image { bytes, hash: 0 }
    }

    fn store(&mut self, store: &Store) {
        let at = store.offset as usize;
        let Some(bytes) = self.bytes.get_mut(at..at + 8) else { return };
        let old = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        bytes.copy_from_slice(&store.value.to_le_bytes());
        let change = mix(store.offset, store.value).wrapping_sub(mix(store.offset, old));
        self.hash = self.hash.wrapping_add(change);
    }

    /// Returns a number for the image: a hash of its length and of its differences from the initial
    /// bytes.
    pub fn number(&self) -> u64 {
        mix(self.bytes.len() as u64, self.hash)
    }
}

/// Hashes a word together with its offset.
pub fn mix(offset: u64, value: u64) -> u64 {
    let mut random = Random::new(value ^ offset.wrapping_mul(0x2545_f491_4f6c_dd1d));
    random.next()
}

/// A moment of a trace, and what a crash at that moment can leave.
pub struct Timeline<'t> {
    events: &'t [Event],
    next: usize,
    caches: Caches,
    /// Only what is durable.
    least: Image,
    /// Everything that is visible.
    all: Image,
    lengths: Vec<(usize, u64)>,
}

impl<'t> Timeline<'t> {
    /// Starts at the beginning of a trace. `initial` is the file before it, padded to the size the
    /// pool can grow to; its first `len` bytes are the file.
    pub fn new(initial: &Image, len: u64, events: &'t [Event]) -> Timeline<'t> {
        Timeline {
            events,
            next: 0,
            caches: Caches::default(),
            least: initial.clone(),
            all: initial.clone(),
            lengths: lengths(events, len),
        }
    }

    /// Returns how many events have happened.
    pub fn moment(&self) -> usize {
        self.next
    }

    /// Advances until `moment` events have happened.
    pub fn advance(&mut self, moment: usize) {
        while self.next < moment {
            let event = &self.events[self.next];
            if let Some(store) = Store::of(self.next, event) {
                self.all.store(&store);
            }
            let least = &mut self.least;
            self.caches.follow(self.next, event, |store| least.store(store));
            self.next += 1;
        }
    }

    /// Lists the open lines: those with stores that a crash at this moment can keep or lose.
    pub fn open(&self) -> impl Iterator<Item = OpenLine<'_>> {
        self.caches.open.iter().map(|(&line, stores)| OpenLine { line, stores })
    }

    /// Returns a line, if it is open.
    pub fn line(&self, line: u64) -> Option<OpenLine<'_>> {
        self.caches.open.get(&line).map(|stores| OpenLine { line, stores })
    }

    /// Returns the length of the file.
    pub fn len(&self) -> usize {
        let known = self.lengths.partition_point(|l| l.0 < self.next.max(1)) - 1;
        self.lengths[known].1 as usize
    }

    /// Returns whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Builds in `image` the file in which each line of `kept` keeps that many of its stores, and
    /// every other open line keeps only what is durable.
    pub fn least_and(&self, kept: &[Kept], image: &mut Image) {
        copy(&self.least, self.len(), image);
        for kept in kept {
            if let Some(open) = self.line(kept.line) {
                let count = kept.stores.min(open.stores.len());
                open.stores[..count].iter().for_each(|store| image.store(store));
            }
        }
    }

    /// Builds in `image` the file in which each line of `kept` keeps that many of its stores, and
    /// every other open line keeps all of them.
    pub fn all_but(&self, kept: &[Kept], image: &mut Image) {
        copy(&self.all, self.len(), image);
        for kept in kept {
            let Some(open) = self.line(kept.line) else { continue };
            // Roll the line back to what is durable, then replay the stores that survive.
            for store in open.stores {
                let at = store.offset as usize;
                let Some(durable) = self.least.bytes.get(at..at + 8) else { continue };
                let value = u64::from_le_bytes(durable.try_into().expect("8 bytes"));
                image.store(&Store { value, ..*store });
            }
            let count = kept.stores.min(open.stores.len());
            open.stores[..count].iter().for_each(|store| image.store(store));
        }
    }

    /// For persistent caches: returns the event before which every store survives. A prefix of the
    /// stores from this event to the current moment survives.
    pub fn fenced(&self) -> usize {
        self.caches.fenced
    }
}

fn copy(from: &Image, len: usize, to: &mut Image) {
    to.bytes.clear();
    to.bytes.extend_from_slice(&from.bytes[..len]);
    to.hash = from.hash;
}

/// Returns the moments at which the most can go wrong, each as a number of events that have
/// happened.
///
/// What a crash can leave grows with each store, and shrinks when a fence makes something durable.
/// What a crash is allowed to leave grows when an operation begins, and shrinks when one returns.
/// So three kinds of moments are enough: just before such a fence, just before an operation begins,
/// and the end. Such a moment matters only if something was stored or returned since the previous
/// one. The moment just before the file grows counts too, because a crash there leaves the shorter
/// file.
pub fn windows(events: &[Event]) -> Vec<usize> {
    let mut caches = Caches::default();
    let mut windows = Vec::new();
    // The first length does not matter, because only changes count.
    let grown: Vec<usize> = lengths(events, 0).iter().skip(1).map(|l| l.0).collect();
    let mut more = true;
    for (number, event) in events.iter().enumerate() {
        let mut raised = false;
        caches.follow(number, event, |_| raised = true);
        let begins = matches!(event.access, Access::Mark(Mark::Begin(_)));
        let weaker = raised || begins || grown.binary_search(&number).is_ok();
        if weaker && std::mem::take(&mut more) {
            windows.push(number);
        }
        let answers = matches!(event.access, Access::Mark(Mark::End(_)));
        more |= answers || stored(event).is_some();
    }
    if more {
        windows.push(events.len());
    }
    windows
}

/// Lists the moments from `start` on at which a dying process leaves something in the caches: for
/// each commit point, the end of its first sequence of stores and, if it has more than two
/// sequences, the end of the middle one.
pub fn deaths(events: &[Event], start: usize) -> Vec<usize> {
    let stores: Vec<usize> = (start..events.len())
        .filter(|&i| stored(&events[i]).is_some() && events[i].point.is_some())
        .collect();
    let mut rows: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for pair in stores.windows(2) {
        let (this, next) = (&events[pair[0]], &events[pair[1]]);
        if this.point != next.point {
            rows.entry(this.point).or_default().push(pair[0] + 1);
        }
    }
    let mut deaths: Vec<usize> = rows
        .values()
        .flat_map(|ends| [Some(ends[0]), (ends.len() > 2).then(|| ends[ends.len() / 2])])
        .flatten()
        .collect();
    deaths.sort_unstable();
    deaths.dedup();
    deaths
}

/// Lists the file's lengths, each with the number of the event at which it takes effect. A trace
/// shows growth only by the size in the pool's header. The file must have grown before the pool
/// stores the first word of that header copy.
pub fn lengths(events: &[Event], initial: u64) -> Vec<(usize, u64)> {
    let mut lengths = vec![(0, initial)];
    for (i, event) in events.iter().enumerate() {
        let Some((offset, size)) = stored(event) else { continue };
        let is_size = HEADER_OFFSETS.iter().any(|start| offset == start + field::SIZE as u64 * 8);
        if is_size && size > lengths.last().map_or(0, |l| l.1) {
            // The size comes this many words after the first word of its header copy.
            let mut words = field::SIZE;
            let mut first = i;
            // Other threads may store in between, so only count this thread's stores.
            while words > 0 && first > 0 {
                first -= 1;
                let own = events[first].thread == event.thread;
                words -= usize::from(own && stored(&events[first]).is_some());
            }
            lengths.push((first, size));
        }
    }
    lengths
}

#[cfg(test)]
mod tests;
