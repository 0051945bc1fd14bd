//! What the hash tables of group hashing's evaluation share: cells of 16 or 32 bytes, of a fixed number,
//! with or without an undo log.

use crate::shared::{Arena, LINE, Locks, RwLock, UndoLog, second_half};
use crate::{Full, Options, Peer, Promises};
use outlast::internals::pmem::Seam;

/// Words that an undo log has room for. A change that needs more is logged in parts.
const LOGGED: u64 = 512;

/// An array of cells. A cell has a key, 0 if it is empty, and a value. In a cell of 32 bytes both have two
/// words: the second one of the key follows from the first, and that of the value is 0.
///
/// Group hashing's evaluation has one thread. Here, a lock for the whole table admits more.
pub(super) struct Cells<S> {
    arena: Arena<S>,
    first: u64,
    count: u64,
    bytes: u64,
    lock: u64,
    locks: Locks,
    log: Option<UndoLog>,
}

impl<S: Seam> Cells<S> {
    pub(super) fn new(
        arena: Arena<S>,
        count: u64,
        log: bool,
        options: &Options,
    ) -> Result<Self, Full> {
        let Options { locks, cell_bytes: bytes, .. } = *options;
        assert!(bytes == 16 || bytes == 32, "bytes of a cell");
        let lock = arena.alloc(LINE)?;
        let log = if log { Some(UndoLog::new(&arena, LOGGED)?) } else { None };
        let first = arena.alloc(count * bytes)?;
        Ok(Cells { arena, first, count, bytes, lock, locks, log })
    }

    pub(super) fn arena(&self) -> &Arena<S> {
        &self.arena
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The lock of the whole table.
    pub(super) fn lock(&self) -> RwLock<'_, S> {
        RwLock::at(&self.arena, self.lock, self.locks)
    }

    fn at(&self, cell: u64) -> u64 {
        debug_assert!(cell < self.count);
        self.first + cell * self.bytes
    }

    /// Returns the first word of a cell's key: 0 if the cell is empty.
    pub(super) fn key(&self, cell: u64) -> u64 {
        self.arena.load(self.at(cell))
    }

    /// Whether a cell holds the record of a key.
    pub(super) fn is(&self, cell: u64, key: u64) -> bool {
        let is_long = self.bytes == 32;
        self.key(cell) == key
            && (!is_long || self.arena.load(self.at(cell) + 8) == second_half(key))
    }

    pub(super) fn value(&self, cell: u64) -> u64 {
        self.arena.load(self.value_at(cell))
    }

    fn value_at(&self, cell: u64) -> u64 {
        self.at(cell) + self.bytes / 2
    }

    /// Stores a record, or empties the cell if the key is 0: saves the cell in the log, if there is
    /// one, stores the value, then the key, and makes them durable.
    pub(super) fn set(&self, cell: u64, key: u64, value: u64) {
        let at = self.at(cell);
        if let Some(log) = self.log {
            let words = self.bytes / 8;
            if log.is_full(&self.arena, words) {
                log.clear(&self.arena);
            }
            let places = [at, at + 8, at + 16, at + 24];
            log.save(&self.arena, &places[..words as usize]);
        }
        self.set_all_but_key(cell, key, value);
        self.arena.store_release(at, key);
        self.arena.persist(at, self.bytes);
    }

    fn set_all_but_key(&self, cell: u64, key: u64, value: u64) {
        let at = self.at(cell);
        if self.bytes == 32 {
            self.arena.store(at + 8, second_half(key));
            self.arena.store(at + 24, 0);
        }
        self.arena.store(self.value_at(cell), value);
    }

    /// Does what [`set`](Self::set) does in two steps without a log: makes a record durable, then the
    /// first word of its key, which says that the cell is in use; or empties the cell in the opposite order.
    pub(super) fn commit_by_key(&self, cell: u64, key: u64, value: u64) {
        let at = self.at(cell);
        if key == 0 {
            self.arena.store_durably(at, 0);
        }
        self.set_all_but_key(cell, key, value);
        self.arena.persist(at, self.bytes);
        if key != 0 {
            self.arena.store_durably(at, key);
        }
    }

    /// Replaces a value with one store, which needs no log.
    pub(super) fn set_value(&self, cell: u64, value: u64) {
        self.arena.store_durably(self.value_at(cell), value);
    }

    /// Ends a change of one or more cells: clears the log, if there is one.
    pub(super) fn commit(&self) {
        if let Some(log) = self.log {
            log.clear(&self.arena);
        }
    }
}

/// A table of cells: what it adds is where a key's cell is.
pub(super) trait CellTable: Send + Sync {
    type Seam: Seam;

    fn cells(&self) -> &Cells<Self::Seam>;

    /// Returns the cell of a key.
    fn find(&self, key: u64) -> Option<u64>;

    /// Returns the cell for the record of a key, moving others if necessary, or `None` if the key is
    /// present.
    fn room_for(&self, key: u64) -> Result<Option<u64>, Full>;

    /// Stores a record in an empty cell.
    fn fill(&self, cell: u64, key: u64, value: u64) {
        self.cells().set(cell, key, value);
    }

    /// Empties the cell of a record.
    fn empty(&self, cell: u64) {
        self.cells().set(cell, 0, 0);
    }
}

impl<T: CellTable> Peer for T {
    fn promises(&self) -> Promises {
        Promises { grows: false, ..Promises::HASH }
    }

    fn get(&self, key: u64) -> Option<u64> {
        let _guard = self.cells().lock().read();
        self.find(key).map(|cell| self.cells().value(cell))
    }

    fn insert(&self, key: u64, value: u64) -> Result<bool, Full> {
        let _guard = self.cells().lock().write();
        let Some(cell) = self.room_for(key)? else { return Ok(false) };
        self.fill(cell, key, value);
        self.cells().commit();
        Ok(true)
    }

    fn update(&self, key: u64, value: u64) -> Result<bool, Full> {
        let _guard = self.cells().lock().write();
        Ok(self.find(key).map(|cell| self.cells().set_value(cell, value)).is_some())
    }

    fn remove(&self, key: u64) -> bool {
        let _guard = self.cells().lock().write();
        let Some(cell) = self.find(key) else { return false };
        self.empty(cell);
        self.cells().commit();
        true
    }

    fn slots(&self) -> Option<u64> {
        Some(self.cells().count())
    }

    fn growths(&self) -> u64 {
        0
    }

    fn bytes(&self) -> u64 {
        self.cells().arena().allocated()
    }
}
