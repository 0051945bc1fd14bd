//! Makes mutants of a recorded trace.
//!
//! Under the recorder, a flush or fence has no effect except to be recorded. So the trace of a
//! library that lacks one of them is the recorded trace without it, and nothing needs to run again.
//! A mutated trace has as many events as the original, and the same stores in the same order.

use crate::model::stored;
use crate::parts::mutants::{Act, Wrong};
use crate::response::needed_flushes;
use outlast::internals::pmem::{Access, Event, LINE, Mark, Point};
use std::collections::BTreeSet;

/// A mutated trace.
pub struct Mutated {
    /// The events.
    pub events: Vec<Event>,
    /// The first event that differs from the original.
    pub first: usize,
    /// The lines, by number, that may become durable later than in the original.
    pub lines: BTreeSet<u64>,
}

/// Replaces an event that was left out.
const NOTHING: Access = Access::Flush { offset: 0, bytes: 0 };

/// Returns the lines that a flush writes back, by number.
pub fn lines_of(offset: u64, bytes: u64) -> std::ops::Range<u64> {
    offset / LINE..(offset + bytes).div_ceil(LINE)
}

/// Returns whether an event is a flush of more than one line.
fn has_lines(event: &Event) -> bool {
    match event.access {
        Access::Flush { offset, bytes } => lines_of(offset, bytes).count() > 1,
        _ => false,
    }
}

/// Mutates a trace from its event `from` on. Returns `None` if the trace has nothing that could be
/// done wrong in this way.
pub fn mutate(
    original: &[Event],
    from: usize,
    point: &'static Point,
    act: Act,
    wrong: Wrong,
) -> Option<Mutated> {
    let shortens = matches!(wrong, Wrong::WithoutLastLine | Wrong::WithoutFirstLine);
    let mut at: Vec<usize> = (from..original.len())
        .filter(|&i| original[i].point == Some(point) && act.is(&original[i]))
        .filter(|&i| !shortens || has_lines(&original[i]))
        .collect();
    // Most runs have little that could be done wrong, so return before reading the whole trace.
    if at.is_empty() {
        return None;
    }
    if wrong == Wrong::UnlessStored {
        let dies = |event: &Event| event.access == Access::Mark(Mark::Death);
        if !from.checked_sub(1).is_some_and(|last| dies(&original[last])) {
            return None;
        }
        retain_unstored(original, from, &mut at);
    }
    // Leaving out one flush of many only matters where it writes something back.
    if act == Act::Flush && matches!(wrong, Wrong::DroppedOnce(_) | Wrong::UnlessStored) {
        let needed = needed_flushes(original);
        at.retain(|i| needed.binary_search(i).is_ok());
    }
    let mut made =
        Mutated { events: original.to_vec(), first: original.len(), lines: BTreeSet::new() };
    match wrong {
        Wrong::Dropped | Wrong::UnlessStored => at.iter().for_each(|&i| made.drop(original, i)),
        Wrong::DroppedOnce(which) => made.drop(original, at[which.of(at.len())?]),
        Wrong::WithoutLastLine => at.iter().for_each(|&i| made.shorten(i, true)),
        Wrong::WithoutFirstLine => at.iter().for_each(|&i| made.shorten(i, false)),
        Wrong::BeforeStores => at.iter().for_each(|&i| made.hurry(original, from, i)),
    }
    (made.first < original.len()).then_some(made)
}

/// Keeps the flushes in `at` to whose lines nothing was stored between event `from` and the flush.
fn retain_unstored(original: &[Event], from: usize, at: &mut Vec<usize>) {
    let (mut lines, mut next) = (BTreeSet::new(), from);
    at.retain(|&i| {
        let stores = original[next..i].iter().filter_map(stored);
        lines.extend(stores.map(|(offset, _)| offset / LINE));
        next = i;
        let Access::Flush { offset, bytes } = original[i].access else { return false };
        lines.range(lines_of(offset, bytes)).next().is_none()
    });
}

impl Mutated {
    fn note(&mut self, index: usize, lines: impl Iterator<Item = u64>) {
        self.first = self.first.min(index);
        self.lines.extend(lines);
    }

    fn drop(&mut self, original: &[Event], index: usize) {
        match original[index].access {
            Access::Flush { offset, bytes } => self.note(index, lines_of(offset, bytes)),
            Access::Fence => self.note_fence(original, index),
            _ => {}
        }
        self.events[index].access = NOTHING;
    }

    /// Notes the lines whose flush a fence completes: those that its thread has flushed since its
    /// previous fence.
    fn note_fence(&mut self, original: &[Event], index: usize) {
        let own = |e: &&Event| e.thread == original[index].thread;
        let since = original[..index].iter().rev().filter(own);
        for event in since.take_while(|e| e.access != Access::Fence) {
            if let Access::Flush { offset, bytes } = event.access {
                self.note(index, lines_of(offset, bytes));
            }
        }
        self.first = self.first.min(index);
    }

    fn shorten(&mut self, index: usize, last: bool) {
        let Access::Flush { offset, bytes } = self.events[index].access else { return };
        let lines = lines_of(offset, bytes);
        if lines.end - lines.start < 2 {
            return;
        }
        let (lost, offset, bytes) = if last {
            (lines.end - 1, offset, (lines.end - 1) * LINE - offset)
        } else {
            let start = (lines.start + 1) * LINE;
            (lines.start, start, offset + bytes - start)
        };
        self.events[index].access = Access::Flush { offset, bytes };
        self.note(index, std::iter::once(lost));
    }

    /// Moves a flush, and the fence after it, before the stores that it should cover: the stores of
    /// its point since the point's previous flush or fence, in the same operation.
    fn hurry(&mut self, original: &[Event], from: usize, index: usize) {
        let Access::Flush { offset, bytes } = original[index].access else { return };
        let (thread, point) = (original[index].thread, original[index].point);
        let mut first = None;
        for i in (from..index).rev() {
            let event = &original[i];
            if event.thread != thread {
                continue;
            }
            match event.access {
                Access::Mark(Mark::Begin(_)) => break,
                _ if event.point != point => {}
                Access::Flush { .. } | Access::Fence => break,
                Access::Store { .. } | Access::CompareExchange { .. } => first = Some(i),
                _ => {}
            }
        }
        let Some(first) = first else { return };
        let fenced = original.get(index + 1).is_some_and(|next| {
            next.thread == thread && next.point == point && next.access == Access::Fence
        });
        let end = index + 1 + usize::from(fenced);
        self.events[first..end].rotate_right(end - index);
        if fenced {
            self.note_fence(original, index + 1);
        }
        self.note(first, lines_of(offset, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::mutants::Which;
    use outlast::internals::index::dash_eh::points::{INSERT, RECORD};

    fn event(point: &'static Point, access: Access) -> Event {
        Event { thread: 0, point: Some(point), access }
    }
    fn store(point: &'static Point, offset: u64) -> Event {
        event(point, Access::Store { offset, value: 1, nontemporal: false })
    }
    fn flush(point: &'static Point, offset: u64, bytes: u64) -> Event {
        event(point, Access::Flush { offset, bytes })
    }
    fn trace() -> Vec<Event> {
        vec![
            store(&RECORD, 64),
            store(&RECORD, 136),
            flush(&RECORD, 64, 80),
            event(&RECORD, Access::Fence),
            store(&INSERT, 256),
            flush(&INSERT, 256, 16),
            event(&INSERT, Access::Fence),
        ]
    }
    fn made(point: &'static Point, act: Act, wrong: Wrong) -> Mutated {
        mutate(&trace(), 0, point, act, wrong).unwrap()
    }

    #[test]
    fn each_fault_is_made_where_it_belongs() {
        let dropped = made(&RECORD, Act::Flush, Wrong::Dropped);
        assert_eq!(dropped.events[2].access, NOTHING);
        assert_eq!(dropped.events[5], trace()[5]);
        assert_eq!(Vec::from_iter(dropped.lines), [1, 2]);
        let unfenced = made(&RECORD, Act::Fence, Wrong::DroppedOnce(Which::First));
        assert_eq!(unfenced.events[3].access, NOTHING);
        assert_eq!((Vec::from_iter(unfenced.lines), unfenced.first), (vec![1, 2], 3));
        let short = made(&RECORD, Act::Flush, Wrong::WithoutLastLine);
        assert_eq!(short.events[2].access, Access::Flush { offset: 64, bytes: 64 });
        assert_eq!(Vec::from_iter(short.lines), [2]);
        let short = made(&RECORD, Act::Flush, Wrong::WithoutFirstLine);
        assert_eq!(short.events[2].access, Access::Flush { offset: 128, bytes: 16 });
        let early = made(&RECORD, Act::Flush, Wrong::BeforeStores);
        let order = [2, 3, 0, 1, 4, 5, 6].map(|i| trace()[i].clone());
        assert_eq!(early.events, order);
    }

    #[test]
    fn the_flush_left_out_once_is_one_that_writes_back() {
        let again = [flush(&INSERT, 256, 16), event(&INSERT, Access::Fence)];
        let twice: Vec<Event> = trace().into_iter().chain(again).collect();
        for which in [Which::First, Which::Second, Which::Last, Which::Seeded(1)] {
            let wrong = Wrong::DroppedOnce(which);
            assert_eq!(mutate(&twice, 0, &INSERT, Act::Flush, wrong).unwrap().first, 5);
            assert!(mutate(&twice, 7, &INSERT, Act::Flush, wrong).is_none());
        }
        assert!(mutate(&twice, 7, &INSERT, Act::Flush, Wrong::Dropped).is_some());
    }

    #[test]
    fn the_flush_of_what_a_dead_process_stored_is_left_out() {
        let death = event(&INSERT, Access::Mark(Mark::Death));
        let stored = [store(&INSERT, 256), store(&INSERT, 320), death];
        let life = [store(&INSERT, 264), flush(&INSERT, 256, 16), flush(&INSERT, 320, 8)];
        let both = [&stored[..], &life[..]].concat();
        let mutated = |from| mutate(&both, from, &INSERT, Act::Flush, Wrong::UnlessStored);
        let made = mutated(3).unwrap();
        assert_eq!((Vec::from_iter(made.lines), made.first), (vec![5], 5));
        assert!(mutated(0).is_none() && mutated(4).is_none(), "no process has just died");
        let again = [both.clone(), vec![flush(&INSERT, 384, 8)]].concat();
        assert_eq!(mutate(&again, 3, &INSERT, Act::Flush, Wrong::UnlessStored).unwrap().first, 5);
    }

    #[test]
    fn what_cannot_be_done_wrong_is_left_out() {
        let none = |act, wrong| mutate(&trace(), 0, &INSERT, act, wrong).is_none();
        assert!(none(Act::Flush, Wrong::WithoutLastLine), "one line");
        assert!(mutate(&trace(), 6, &RECORD, Act::Flush, Wrong::Dropped).is_none());
    }
}
