//! Checks that everything an operation stored is durable when it returns.
//!
//! The check reads a trace and builds no image. When an operation returns, the last store to each
//! word that it changed must have been flushed afterwards, and a fence of the same thread must have
//! completed the flush. Flushes work on lines, but the check is for words, because words that are
//! volatile by design share lines with durable ones.
//!
//! A process that died leaves its stores in the caches, where the next process finds them. Nothing
//! that the next process returns may depend on such a store before it is durable; [`resting_on`]
//! checks that.
//!
//! Whether a word is volatile depends on the store that wrote it. A durable store that is followed
//! by a volatile one to the same word must still become durable.

use outlast::internals::pmem::{Access, Event, LINE, Mark, Point};
use outlast::internals::pool;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// A word that was not durable when an operation returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undurable {
    /// The operation.
    pub operation: String,
    /// The offset of the word.
    pub offset: u64,
    /// The commit point of the store.
    pub point: &'static Point,
    /// Whether the word was at least flushed.
    pub flushed: bool,
}

impl fmt::Display for Undurable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Undurable { operation, offset, point, flushed } = self;
        let what = if *flushed { "flushed but not fenced" } else { "not flushed" };
        write!(
            f,
            "{operation}: the word at {offset:#x}, stored at {}/{}, was {what}",
            point.owner, point.name
        )
    }
}

/// Returns whether stores at this commit point are meant to become durable.
pub fn is_durable(point: Option<&'static Point>) -> bool {
    point.is_some_and(|p| !p.volatile)
}

/// Returns whether a later opening relies on stores at this commit point, so that it matters
/// whether a crash keeps them.
pub fn is_relied_on(point: Option<&'static Point>) -> bool {
    point.is_some_and(|p| !p.volatile || p.relied_on)
}

/// A word that is not durable yet.
#[derive(Debug, Clone)]
pub struct Pending {
    thread: usize,
    point: &'static Point,
    /// The threads whose next fence completes a flush of the word.
    flushed_by: Vec<usize>,
}

/// Returns the words that were stored and had not become durable when the trace ended.
pub fn pending_after(events: &[Event]) -> BTreeMap<u64, Pending> {
    let mut pending = BTreeMap::new();
    for event in events {
        track(&mut pending, event);
    }
    pending
}

/// Lists the flushes of a trace that write back a word that is not durable yet. The other flushes
/// make no difference to what a crash can leave.
pub fn needed_flushes(events: &[Event]) -> Vec<usize> {
    let mut pending = BTreeMap::new();
    let mut needed = Vec::new();
    for (number, event) in events.iter().enumerate() {
        if let Access::Flush { offset, bytes } = event.access
            && pending.range(flushed(offset, bytes)).next().is_some()
        {
            needed.push(number);
        }
        track(&mut pending, event);
    }
    needed
}

/// Finds the operations of a second run whose results depend on a store of the first run that could
/// still be lost. The first process died before such a store was durable, and left it in the
/// caches. If it is still not durable when the operation returns, a power loss can undo it.
///
/// The same holds for what the second run stores: a repair must not outlive the state that made it
/// necessary. Once a word has become durable, later stores to it are like any others. Reads of
/// words that the second run stored itself do not count.
///
/// `events` must include the loads.
pub fn resting_on(mut pending: BTreeMap<u64, Pending>, events: &[Event]) -> Vec<Undurable> {
    let mut first: BTreeMap<u64, &'static Point> =
        pending.iter().map(|(&offset, word)| (offset, word.point)).collect();
    // The flushes of the dead process may or may not have completed, and no fence waits for them.
    pending.values_mut().for_each(|word| word.flushed_by.clear());
    let mut read = BTreeMap::new();
    let mut operation = String::new();
    let mut found = Vec::new();
    for event in events {
        // A repair's store can become durable while the state that made it necessary is lost, if
        // that state is in another line. The dirty mark is not a repair: it only announces that
        // something will be stored.
        let repairs = |p: &'static Point| is_relied_on(Some(p)) && p != &pool::points::HEADER_DIRTY;
        let repaired = match event.access {
            Access::Store { offset, .. }
            | Access::CompareExchange { offset, exchanged: true, .. }
                if event.point.is_some_and(repairs) =>
            {
                Some(offset / LINE)
            }
            _ => None,
        };
        match &event.access {
            Access::Load { offset, .. } => {
                if let Some(&point) = first.get(offset) {
                    read.insert(*offset, point);
                }
            }
            Access::Mark(Mark::Begin(text)) => {
                operation.clone_from(text);
                read.clear();
            }
            Access::Mark(Mark::End(_)) => rests(&read, None, &pending, &operation, &mut found),
            _ => {
                if repaired.is_some() {
                    rests(&read, repaired, &pending, &operation, &mut found);
                }
                track(&mut pending, event);
                if let Access::Store { offset, .. } = &event.access {
                    first.remove(offset);
                }
                if event.access == Access::Fence {
                    first.retain(|offset, _| pending.contains_key(offset));
                    read.retain(|offset, _| pending.contains_key(offset));
                }
            }
        }
    }
    found
}

/// Reports the words that were read and are not durable, except those in `line`.
fn rests(
    read: &BTreeMap<u64, &'static Point>,
    line: Option<u64>,
    pending: &BTreeMap<u64, Pending>,
    operation: &str,
    found: &mut Vec<Undurable>,
) {
    for (&offset, &point) in read {
        if let Some(word) = pending.get(&offset)
            && word.point == point
            && line != Some(offset / LINE)
        {
            let flushed = !word.flushed_by.is_empty();
            let operation = format!("{operation} (depends on an earlier life)");
            found.push(Undurable { operation, offset, point, flushed });
        }
    }
}

/// Returns every word that was not durable when the operation that stored it returned.
pub fn undurable(events: &[Event]) -> Vec<Undurable> {
    let mut pending: BTreeMap<u64, Pending> = BTreeMap::new();
    let mut found = Vec::new();
    for event in events {
        match &event.access {
            Access::Mark(Mark::End(operation)) => pending.retain(|&offset, word| {
                let own = word.thread == event.thread;
                if own {
                    found.push(Undurable {
                        operation: operation.clone(),
                        offset,
                        point: word.point,
                        flushed: !word.flushed_by.is_empty(),
                    });
                }
                !own
            }),
            _ => track(&mut pending, event),
        }
    }
    found
}

/// Applies an event to the words that are not durable yet.
fn track(pending: &mut BTreeMap<u64, Pending>, event: &Event) {
    match &event.access {
        Access::Store { offset, nontemporal, .. } => {
            note(pending, event, *offset, *nontemporal);
        }
        Access::CompareExchange { offset, exchanged: true, .. } => {
            note(pending, event, *offset, false);
        }
        Access::Flush { offset, bytes } => {
            for (_, word) in pending.range_mut(flushed(*offset, *bytes)) {
                word.flushed_by.push(event.thread);
            }
        }
        Access::Fence => pending.retain(|_, word| !word.flushed_by.contains(&event.thread)),
        // No fence waits for the dead process's flushes any more.
        Access::Mark(Mark::Death) => pending.values_mut().for_each(|word| word.flushed_by.clear()),
        Access::Load { .. } | Access::CompareExchange { .. } | Access::Dram | Access::Mark(_) => {}
    }
}

/// Returns the range of offsets that a flush writes back, which consists of entire lines.
fn flushed(offset: u64, bytes: u64) -> Range<u64> {
    offset / LINE * LINE..(offset + bytes).next_multiple_of(LINE)
}

fn note(pending: &mut BTreeMap<u64, Pending>, event: &Event, offset: u64, nontemporal: bool) {
    let Some(point) = event.point else { return };
    if point.volatile {
        return;
    }
    let flushed_by = nontemporal.then_some(event.thread).into_iter().collect();
    pending.insert(offset, Pending { thread: event.thread, point, flushed_by });
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast::internals::index::dash_eh::points::{INSERT, SPLIT_DONE as VOLATILE};

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
        let found = undurable(events);
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

    /// Two threads flush a line. The fence of either completes the write-back.
    #[test]
    fn a_later_flush_does_not_take_an_earlier_one_back() {
        let by_other = Event {
            thread: 1,
            point: Some(&INSERT),
            access: Access::Flush { offset: 64, bytes: 8 },
        };
        let both = [store(72, &INSERT), flush(64, 8), by_other];
        assert_eq!(found(&[&both[..], &[fence(0), end()]].concat()), []);
        assert_eq!(found(&[&both[..], &[fence(1), end()]].concat()), []);
        assert_eq!(found(&[&both[..], &[end()]].concat()), [(72, true)]);
    }

    #[test]
    fn an_answer_may_not_rest_on_the_caches_of_a_dead_process() {
        let begin =
            Event { thread: 0, point: None, access: Access::Mark(Mark::Begin("op".into())) };
        let load = Event { thread: 0, point: None, access: Access::Load { offset: 72, value: 1 } };
        let unfenced = pending_after(&[store(72, &INSERT), flush(72, 8)]);
        let rests = |events: &[Event]| resting_on(unfenced.clone(), events).len();
        assert_eq!(rests(&[begin.clone(), load.clone(), end()]), 1);
        assert_eq!(rests(&[begin.clone(), load.clone(), fence(0), end()]), 1, "not flushed again");
        assert_eq!(rests(&[begin.clone(), load.clone(), flush(64, 8), fence(0), end()]), 0);
        assert_eq!(rests(&[flush(64, 8), fence(0), begin.clone(), load.clone(), end()]), 0);
        assert_eq!(rests(&[begin.clone(), end()]), 0);
        // The second run stores the word again, and then a word of another line, which can become
        // durable first.
        let again = |events: [Event; 2]| [vec![begin.clone()], events.to_vec()].concat();
        let own = [again([store(72, &INSERT), load.clone()]), vec![flush(72, 8)]].concat();
        let again = [again([load, store(72, &INSERT)]), vec![flush(72, 8)]].concat();
        let [own, again] = [own, again].map(|events| [events, vec![store(192, &INSERT)]].concat());
        let ends = [flush(192, 8), fence(0), end()];
        assert_eq!(rests(&[&again[..], &ends].concat()), 1);
        assert_eq!(rests(&[&own[..], &ends].concat()), 0, "it reads what it has stored");
        assert_eq!(rests(&[&[flush(64, 8), fence(0)], &again[..], &ends].concat()), 0);
        let fenced = [store(72, &INSERT), flush(72, 8), fence(0)];
        assert!(pending_after(&fenced).is_empty());
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
