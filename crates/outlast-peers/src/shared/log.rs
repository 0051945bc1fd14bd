//! An undo log, as the variants "-L" of group hashing's evaluation have it.
//!
//! Before a word changes, its place and its old value are appended and made durable. After a crash,
//! recovery would put back the old values of a log that was not cleared. A log belongs to one
//! structure, whose lock excludes other writers.

use super::{Arena, LINE};
use crate::Full;
use outlast::internals::pmem::Seam;

/// The log: a word with the number of entries, and the entries of two words each, place and old
/// value.
#[derive(Debug, Clone, Copy)]
pub struct UndoLog {
    at: u64,
    entries: u64,
}

impl UndoLog {
    /// Creates an empty log that has room for this many words.
    ///
    /// # Errors
    /// [`Full`]
    pub fn new<S: Seam>(arena: &Arena<S>, entries: u64) -> Result<UndoLog, Full> {
        Ok(UndoLog { at: arena.alloc(16 + entries * 16)?, entries })
    }

    /// Whether the log has no room for this many more words.
    pub fn is_full<S: Seam>(self, arena: &Arena<S>, more: u64) -> bool {
        arena.load(self.at) + more > self.entries
    }

    /// Saves words before they change: appends them, and then their number, and makes both durable.
    /// This costs one fence if they lie in one line, because of the stores to one line a crash
    /// keeps the first ones; otherwise two.
    ///
    /// # Panics
    /// If the log has no room.
    pub fn save<S: Seam>(self, arena: &Arena<S>, places: &[u64]) {
        let used = arena.load(self.at);
        assert!(used + places.len() as u64 <= self.entries, "room in the undo log");
        let first = self.at + 16 + used * 16;
        for (entry, &place) in (first..).step_by(16).zip(places) {
            arena.store(entry, place);
            arena.store(entry + 8, arena.load(place));
        }
        let end = first + places.len() as u64 * 16;
        if end > self.at + LINE {
            arena.persist(first, end - first);
        }
        arena.store_durably(self.at, used + places.len() as u64);
    }

    /// Clears the log once the changes are durable.
    pub fn clear<S: Seam>(self, arena: &Arena<S>) {
        arena.store_durably(self.at, 0);
    }

    /// Puts back the old values, as recovery would, the last one first, and clears the log.
    pub fn undo<S: Seam>(self, arena: &Arena<S>) {
        for entry in (0..arena.load(self.at)).rev().map(|i| self.at + 16 + i * 16) {
            arena.store_durably(arena.load(entry), arena.load(entry + 8));
        }
        self.clear(arena);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast::internals::pmem::{Counts, Traced};

    #[test]
    fn undoing_puts_the_oldest_values_back() {
        let arena = Arena::new(Traced::new(), 2 << 20);
        let log = UndoLog::new(&arena, 4).unwrap();
        let at = arena.alloc(64).unwrap();
        arena.store(at, 1);
        arena.seam().start(false);
        log.save(&arena, &[at, at + 8]);
        let counts = Counts::of(&arena.seam().take());
        assert_eq!((counts.lines, counts.fences), (1, 1), "the count and two entries");
        arena.store(at, 2);
        log.save(&arena, &[at]);
        arena.seam().start(false);
        log.save(&arena, &[at + 16]);
        let counts = Counts::of(&arena.seam().take());
        assert_eq!((counts.lines, counts.fences), (2, 2), "the fourth entry has another line");
        arena.store(at, 3);
        arena.store(at + 8, 4);
        log.undo(&arena);
        assert_eq!((arena.load(at), arena.load(at + 8)), (1, 0));

        log.save(&arena, &[at]);
        arena.store(at, 5);
        log.clear(&arena);
        log.undo(&arena);
        assert_eq!(arena.load(at), 5, "a cleared log undoes nothing");
    }
}
