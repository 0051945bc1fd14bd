//! A set-associative cache that replaces the least recently used line of a set.

use super::LINE;

/// The size of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheSize {
    /// Bytes that it holds.
    pub bytes: u64,
    /// Lines of a set.
    pub ways: usize,
}

/// A line that made room for another.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Evicted {
    pub(super) line: u64,
    pub(super) dirty: bool,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    line: u64,
    dirty: bool,
}

/// The cache: for each set its lines, the least recently used first.
#[derive(Debug)]
pub(super) struct Cache {
    sets: Vec<Vec<Held>>,
    ways: usize,
}

impl Cache {
    pub(super) fn new(size: CacheSize) -> Cache {
        let sets = size.bytes / (LINE * size.ways as u64);
        assert!(sets > 0, "a cache of one set at least");
        Cache { sets: (0..sets).map(|_| Vec::with_capacity(size.ways)).collect(), ways: size.ways }
    }

    fn set(&mut self, line: u64) -> &mut Vec<Held> {
        let index = line % self.sets.len() as u64;
        &mut self.sets[index as usize]
    }

    /// Returns whether the cache holds a line, which then becomes the most recently used.
    pub(super) fn touch(&mut self, line: u64) -> bool {
        let set = self.set(line);
        let Some(at) = set.iter().position(|held| held.line == line) else { return false };
        set[at..].rotate_left(1);
        true
    }

    /// Puts a line into the cache, or marks it as dirty if it is there.
    pub(super) fn insert(&mut self, line: u64, dirty: bool) -> Option<Evicted> {
        if self.touch(line) {
            if dirty {
                self.make_dirty(line);
            }
            return None;
        }
        let ways = self.ways;
        let set = self.set(line);
        let evicted = (set.len() == ways).then(|| set.remove(0));
        set.push(Held { line, dirty });
        evicted.map(|Held { line, dirty }| Evicted { line, dirty })
    }

    /// Marks a line that the cache holds as dirty.
    pub(super) fn make_dirty(&mut self, line: u64) {
        let held = self.set(line).iter_mut().find(|held| held.line == line);
        held.expect("a line of the cache").dirty = true;
    }

    /// Marks a line as clean. Returns whether the cache held it dirty.
    pub(super) fn clean(&mut self, line: u64) -> bool {
        let held = self.set(line).iter_mut().find(|held| held.line == line);
        held.is_some_and(|held| std::mem::replace(&mut held.dirty, false))
    }

    /// Drops a line. Returns whether the cache held it dirty.
    pub(super) fn remove(&mut self, line: u64) -> bool {
        let set = self.set(line);
        let at = set.iter().position(|held| held.line == line);
        at.is_some_and(|at| set.remove(at).dirty)
    }
}
