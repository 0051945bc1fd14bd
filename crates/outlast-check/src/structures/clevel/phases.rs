//! Finds the phases of clevel that a trace went through.

use crate::model::stored;
use crate::structures::Phase;
use outlast::Config;
use outlast::internals::index::clevel::layout::{Kind, slot};
use outlast::internals::index::clevel::points;
use outlast::internals::pmem::Event;
use std::collections::BTreeSet;

/// A level was added that is smaller than the newest one before it.
pub const SHRUNK: &str = "clevel/shrink: smaller level";
/// The oldest level was dropped.
pub const DROPPED: &str = "clevel/rehash: level dropped";
/// An expansion took the level that was kept ready.
pub const READY_TAKEN: &str = "clevel/expansion: level kept ready taken";

/// Finds the words of the slots that a trace copies from one level to another.
pub(super) fn moved(events: &[Event]) -> Vec<u64> {
    let copies = events.iter().filter(|event| event.point == Some(&points::COPY));
    let words = copies.filter_map(stored).map(|(_, word)| word);
    words.map(|word| slot::with_mark(word, slot::PLAIN)).collect()
}

/// Finds the phases above in a trace.
pub(super) fn found(events: &[Event], _: Config) -> BTreeSet<Phase> {
    let mut found = BTreeSet::new();
    // The log2 of the buckets of the last new level, and the number of levels of the last context.
    let (mut bits, mut levels) = (0, 0);
    for event in events {
        let (Some(point), Some((_, value))) = (event.point, stored(event)) else { continue };
        let made = [&points::CREATE, &points::LEVEL].contains(&point);
        let named = [&points::CREATE, &points::CONTEXT].contains(&point);
        if made && value & 0xffff == Kind::Level as u64 {
            let now = value >> 16 & 0xffff;
            if now < bits {
                found.insert(SHRUNK.into());
            }
            bits = now;
        } else if named && (1..=2).contains(&(value >> 8)) {
            // The word holds how many levels there are, and how many of them stay.
            let now = value & 0xff;
            if now < levels {
                found.insert(DROPPED.into());
            }
            levels = now;
        } else if point == &points::READY && value == 0 {
            found.insert(READY_TAKEN.into());
        }
    }
    found
}
