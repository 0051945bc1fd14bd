//! At each answer, everything that the operation stored is durable.
//!
//! Told from a trace, without building an image: when an operation answers, the last
//! store to each word that it changed must have been flushed after it, and the flush
//! completed by a fence of the same thread. Lines are flushed, but words are checked:
//! words that are volatile by design share lines with words that are not.
//!
//! A word is volatile only by the store that wrote it: a durable store that is followed
//! by a volatile one to the same word must still have become durable.

use outlast::Scheme;
use outlast::index::dash_eh;
use outlast::pmem::{Access, Event, LINE, Mark, Point};
use std::collections::BTreeMap;
use std::fmt;

/// A word that was not durable when an operation answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undurable {
    /// The operation.
    pub operation: String,
    /// The word.
    pub offset: u64,
    /// The commit point of the store.
    pub point: &'static Point,
    /// Whether it was flushed, at least.
    pub flushed: bool,
}

impl fmt::Display for Undurable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Undurable { operation, offset, point, flushed } = self;
        let what = if *flushed { "flushed but not fenced" } else { "not flushed" };
        write!(
            f,
            "{operation}: at its answer, the word at {offset:#x}, stored at {}/{}, was {what}",
            point.owner, point.name
        )
    }
}

/// Commit points whose stores are never meant to be durable.
pub fn volatile_points(scheme: Scheme) -> &'static [&'static Point] {
    static DASH_EH: [&Point; 2] = [&dash_eh::points::VOLATILE, &dash_eh::points::SPLIT_DONE];
    match scheme {
        Scheme::DashEh => &DASH_EH,
        _ => &[],
    }
}

#[derive(Clone, Copy)]
struct Pending {
    thread: usize,
    point: &'static Point,
    /// The thread whose next fence completes the write-back.
    flushed_by: Option<usize>,
}

/// Every word that was not durable when the operation that stored it answered.
pub fn undurable(events: &[Event], scheme: Scheme) -> Vec<Undurable> {
    let volatile = volatile_points(scheme);
    let mut pending: BTreeMap<u64, Pending> = BTreeMap::new();
    let mut found = Vec::new();
    for event in events {
        match &event.access {
            Access::Store { offset, nontemporal, .. } => {
                note(&mut pending, event, *offset, *nontemporal, volatile);
            }
            Access::CompareExchange { offset, exchanged: true, .. } => {
                note(&mut pending, event, *offset, false, volatile);
            }
            Access::Flush { offset, bytes } => {
                let first = offset / LINE * LINE;
                let end = (offset + bytes).next_multiple_of(LINE);
                for (_, word) in pending.range_mut(first..end) {
                    word.flushed_by = Some(event.thread);
                }
            }
            Access::Fence => pending.retain(|_, word| word.flushed_by != Some(event.thread)),
            Access::Mark(Mark::End(operation)) => pending.retain(|&offset, word| {
                let own = word.thread == event.thread;
                if own {
                    found.push(Undurable {
                        operation: operation.clone(),
                        offset,
                        point: word.point,
                        flushed: word.flushed_by.is_some(),
                    });
                }
                !own
            }),
            Access::Load { .. } | Access::CompareExchange { .. } | Access::Mark(Mark::Begin(_)) => {
            }
        }
    }
    found
}

fn note(
    pending: &mut BTreeMap<u64, Pending>,
    event: &Event,
    offset: u64,
    nontemporal: bool,
    volatile: &[&'static Point],
) {
    let Some(point) = event.point else { return };
    if volatile.contains(&point) {
        return;
    }
    let flushed_by = nontemporal.then_some(event.thread);
    pending.insert(offset, Pending { thread: event.thread, point, flushed_by });
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast::index::dash_eh::points::{INSERT, VOLATILE};

    fn store(offset: u64, point: &'static Point) -> Event {
        let access = Access::Store { offset, value: 1, nontemporal: false };
        Event { thread: 0, point: Some(point), access }
    }
    fn flush(offset: u64, bytes: u64) -> Event {
        Event { thread: 0, point: Some(&INSERT), access: Access::Flush { offset, bytes } }
    }
    fn fence(thread: usize) -> Event {
        Event { thread, point: Some(&INSERT), access: Access::Fence }
    }
    fn end() -> Event {
        Event { thread: 0, point: None, access: Access::Mark(Mark::End("op".into())) }
    }
    fn found(events: &[Event]) -> Vec<(u64, bool)> {
        let found = undurable(events, Scheme::DashEh);
        found.iter().map(|f| (f.offset, f.flushed)).collect()
    }

    #[test]
    fn stored_flushed_and_fenced_is_durable() {
        assert_eq!(found(&[store(72, &INSERT), flush(64, 8), fence(0), end()]), []);
    }

    #[test]
    fn each_thing_that_is_missing_is_found() {
        assert_eq!(found(&[store(72, &INSERT), fence(0), end()]), [(72, false)]);
        assert_eq!(found(&[store(72, &INSERT), flush(64, 8), end()]), [(72, true)]);
        assert_eq!(found(&[store(72, &INSERT), flush(128, 8), fence(0), end()]), [(72, false)]);
        assert_eq!(found(&[flush(72, 8), store(72, &INSERT), fence(0), end()]), [(72, false)]);
        assert_eq!(found(&[store(72, &INSERT), flush(64, 8), fence(1), end()]), [(72, true)]);
        let again = [store(72, &INSERT), flush(72, 8), store(72, &INSERT), fence(0), end()];
        assert_eq!(found(&again), [(72, false)], "stored again after the flush");
    }

    #[test]
    fn volatile_words_beside_durable_ones_do_not_count() {
        let events = [store(64, &VOLATILE), store(72, &INSERT), flush(72, 8), fence(0)];
        let after = [store(64, &VOLATILE), end()];
        assert_eq!(found(&[&events[..], &after[..]].concat()), []);
    }

    #[test]
    fn a_volatile_store_does_not_excuse_the_durable_one_before_it() {
        assert_eq!(found(&[store(72, &INSERT), store(72, &VOLATILE), end()]), [(72, false)]);
    }
}
