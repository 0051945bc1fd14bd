//! Tests of the crash model.

use super::*;
use outlast::internals::index::dash_eh::points::INSERT;
use std::collections::BTreeSet;

fn event(thread: usize, access: Access) -> Event {
    Event { thread, point: Some(&INSERT), access }
}
fn store(thread: usize, offset: u64, value: u64) -> Event {
    event(thread, Access::Store { offset, value, nontemporal: false })
}
fn past_the_caches(thread: usize, offset: u64, value: u64) -> Event {
    event(thread, Access::Store { offset, value, nontemporal: true })
}
fn exchange(thread: usize, offset: u64, new: u64, exchanged: bool) -> Event {
    event(thread, Access::CompareExchange { offset, found: 0, new, exchanged })
}
fn flush(thread: usize, offset: u64, bytes: u64) -> Event {
    event(thread, Access::Flush { offset, bytes })
}
fn fence(thread: usize) -> Event {
    event(thread, Access::Fence)
}
fn mark(thread: usize, mark: Mark) -> Event {
    event(thread, Access::Mark(mark))
}
fn begin() -> Event {
    mark(0, Mark::Begin("op".into()))
}
fn end() -> Event {
    mark(0, Mark::End("op".into()))
}

const LEN: usize = 4 * LINE as usize;

fn at_end(events: &[Event]) -> Timeline<'_> {
    let initial = Image { bytes: vec![0; LEN], hash: 0 };
    let mut timeline = Timeline::new(&initial, LEN as u64, events);
    timeline.advance(events.len());
    timeline
}

fn word(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..][..8].try_into().unwrap())
}

/// Lists what the words at 64, 72 and 128 can be after a crash at the end, sorted.
fn left(events: &[Event]) -> Vec<[u64; 3]> {
    let timeline = at_end(events);
    let open: Vec<(u64, usize)> = timeline.open().map(|o| (o.line, o.stores.len())).collect();
    let mut choices = vec![Vec::new()];
    for (line, count) in open {
        let more = |kept: &Vec<Kept>| {
            let kept = kept.clone();
            (0..=count).map(move |stores| [&kept[..], &[Kept { line, stores }]].concat())
        };
        choices = choices.iter().flat_map(more).collect();
    }
    let (mut up, mut down) = (Image::default(), Image::default());
    let mut hashes = BTreeMap::new();
    let mut words = |kept: &Vec<Kept>| {
        timeline.least_and(kept, &mut up);
        timeline.all_but(kept, &mut down);
        assert_eq!(up, down, "both name every open line");
        let hash = hashes.entry(up.bytes.clone()).or_insert(up.hash);
        assert_eq!(*hash, up.hash);
        [64, 72, 128].map(|at| word(&up.bytes, at))
    };
    let mut left: Vec<_> = choices.iter().map(&mut words).collect();
    assert_eq!(hashes.values().collect::<BTreeSet<_>>().len(), hashes.len());
    left.sort_unstable();
    left.dedup();
    left
}

#[test]
fn stored_flushed_and_fenced_survives() {
    assert_eq!(left(&[store(0, 64, 1), flush(0, 64, 8), fence(0)]), [[1, 0, 0]]);
}

#[test]
fn without_a_flush_or_a_fence_it_may_or_may_not() {
    let both = [[0, 0, 0], [1, 0, 0]];
    assert_eq!(left(&[store(0, 64, 1)]), both);
    assert_eq!(left(&[store(0, 64, 1), fence(0)]), both);
    assert_eq!(left(&[store(0, 64, 1), flush(0, 64, 8)]), both);
    assert_eq!(left(&[store(0, 64, 1), flush(0, 128, 8), fence(0)]), both, "another line");
    assert_eq!(left(&[store(0, 64, 1), fence(0), flush(0, 64, 8)]), both, "the wrong order");
}

#[test]
fn a_flush_takes_what_was_stored_before_it() {
    assert_eq!(left(&[flush(0, 64, 8), store(0, 64, 1), fence(0)]), [[0, 0, 0], [1, 0, 0]]);
    let after = [store(0, 64, 1), flush(0, 64, 8), store(0, 64, 2), fence(0)];
    assert_eq!(left(&after), [[1, 0, 0], [2, 0, 0]]);
    let whole_line = [store(0, 64, 1), store(0, 72, 2), flush(0, 120, 8), fence(0)];
    assert_eq!(left(&whole_line), [[1, 2, 0]]);
    let range = [store(0, 64, 1), store(0, 128, 2), flush(0, 120, 16), fence(0)];
    assert_eq!(left(&range), [[1, 0, 2]]);
}

#[test]
fn a_flush_takes_the_stores_of_all_threads_and_completes_with_its_own() {
    let others = [store(1, 64, 1), flush(0, 64, 8), fence(0)];
    assert_eq!(left(&others), [[1, 0, 0]]);
    let wrong = [store(0, 64, 1), flush(0, 64, 8), fence(1)];
    assert_eq!(left(&wrong), [[0, 0, 0], [1, 0, 0]]);
    let late = [&wrong[..], &[fence(0)]].concat();
    assert_eq!(left(&late), [[1, 0, 0]]);
}

#[test]
fn stores_to_a_line_survive_in_order() {
    let line = [store(0, 64, 1), store(0, 72, 2), store(1, 64, 3)];
    assert_eq!(left(&line), [[0, 0, 0], [1, 0, 0], [1, 2, 0], [3, 2, 0]]);
}

#[test]
fn lines_are_independent() {
    let lines = [store(0, 64, 1), store(0, 128, 2)];
    assert_eq!(left(&lines), [[0, 0, 0], [0, 0, 2], [1, 0, 0], [1, 0, 2]]);
}

#[test]
fn a_store_past_the_caches_needs_a_fence_only() {
    assert_eq!(left(&[past_the_caches(0, 64, 1), fence(0)]), [[1, 0, 0]]);
    let both = [[0, 0, 0], [1, 0, 0]];
    assert_eq!(left(&[past_the_caches(0, 64, 1)]), both);
    assert_eq!(left(&[past_the_caches(0, 64, 1), fence(1)]), both);
}

#[test]
fn a_compare_exchange_is_a_store_if_it_succeeds_and_never_a_fence() {
    assert_eq!(left(&[exchange(0, 64, 1, true)]), [[0, 0, 0], [1, 0, 0]]);
    assert_eq!(left(&[exchange(0, 64, 1, false)]), [[0, 0, 0]]);
    assert_eq!(left(&[exchange(0, 64, 1, true), flush(0, 64, 8), fence(0)]), [[1, 0, 0]]);
    let no_fence = [store(0, 64, 1), flush(0, 64, 8), exchange(0, 128, 2, true)];
    assert_eq!(left(&no_fence).len(), 4);
}

#[test]
fn the_dead_complete_no_flush_and_leave_their_stores() {
    let dead = [store(0, 64, 1), flush(0, 64, 8), mark(0, Mark::Death), fence(0)];
    assert_eq!(left(&dead), [[0, 0, 0], [1, 0, 0]]);
    let again = [&dead[..], &[flush(0, 64, 8), fence(0)]].concat();
    assert_eq!(left(&again), [[1, 0, 0]]);
}

#[test]
fn a_line_that_was_closed_begins_anew() {
    let events =
        [store(0, 64, 1), flush(1, 64, 8), flush(0, 64, 8), fence(0), store(0, 64, 2), fence(1)];
    assert_eq!(left(&events), [[1, 0, 0], [2, 0, 0]], "a late fence of an old flush");
}

#[test]
fn an_older_flush_takes_nothing_back() {
    let events = [store(0, 64, 1), flush(1, 64, 8), store(0, 64, 2), flush(0, 64, 8), fence(0)];
    let late = [&events[..], &[fence(1)]].concat();
    assert_eq!(left(&late), [[2, 0, 0]]);
}

#[test]
fn with_persistent_caches_a_fence_covers_its_own_threads_stores() {
    assert_eq!(at_end(&[store(0, 64, 1)]).fenced(), 0);
    assert_eq!(at_end(&[store(0, 64, 1), fence(0)]).fenced(), 1);
    assert_eq!(at_end(&[store(0, 64, 1), fence(1)]).fenced(), 0);
    assert_eq!(at_end(&[store(0, 64, 1), store(1, 72, 1), fence(0)]).fenced(), 1);
    assert_eq!(at_end(&[store(0, 64, 1), mark(0, Mark::Death)]).fenced(), 1);
}

#[test]
fn windows_end_where_less_can_go_wrong() {
    let events = [
        begin(),
        store(0, 64, 1),
        flush(0, 64, 8),
        fence(0),
        fence(0),
        store(0, 72, 2),
        flush(0, 72, 8),
        fence(0),
        end(),
        begin(),
        end(),
    ];
    // Windows: before the first operation, at each fence that completes something, before the
    // second operation, and at the end.
    assert_eq!(windows(&events), [0, 3, 7, 9, 11]);
    assert_eq!(windows(&events[..9]), [0, 3, 7, 9]);
    assert_eq!(windows(&[begin(), store(0, 64, 1), fence(0), end()]), [0, 4]);
}

#[test]
fn what_any_moment_can_leave_some_window_can() {
    let mut random = crate::random::Random::new(7);
    for _ in 0..300 {
        let mut events = Vec::new();
        for _ in 0..12 {
            let (thread, offset) = (random.below(2) as usize, 64 + 8 * random.below(9));
            events.push(match random.below(6) {
                0 | 1 => store(thread, offset, random.below(3)),
                2 | 3 => flush(thread, offset, 8),
                4 => fence(thread),
                _ => mark(thread, Mark::Death),
            });
        }
        let windows = windows(&events);
        for moment in 0..=events.len() {
            // Each moment is dominated by the next window or, where that window was left out,
            // by an earlier one.
            let images = left(&events[..moment]);
            let holds = |&w: &usize| {
                let larger = left(&events[..w]);
                images.iter().all(|i| larger.contains(i))
            };
            assert!(windows.iter().any(holds), "moment {moment} of {events:?}");
        }
    }
}
