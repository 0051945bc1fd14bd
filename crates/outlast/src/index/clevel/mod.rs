//! clevel.

mod change;
pub mod layout;
mod levels;
mod ops;
pub mod points;
mod recover;
mod resize;
mod scan;
mod verify;

use crate::error::{Damage, Error, Result};
use crate::index::record::{Record, RecordRef};
use crate::index::{Change, Changed, Cursor, Growth, Index, IndexStats, Scheme, Verified, Visitor};
use crate::pmem::{Offset, Point, Seam, Word};
use crate::pool::core::{Core, root_offset};
use crate::pool::layout::ROOT_SCHEME_WORDS;
use layout::root;
use levels::{Context, Discards};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// How a map's levels begin, and how they are divided. Part of its root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    /// log2 of the buckets of the first level, and of the smallest one.
    first_bits: u32,
    /// log2 of the buckets of a group.
    group_bits: u32,
}

impl Shape {
    fn from_config(config: [u64; 3]) -> Option<Shape> {
        let [first, group, rest] = config;
        let known = (1..=16).contains(&first)
            && (1..=u64::from(layout::GROUP_BITS)).contains(&group)
            && rest == 0;
        known.then_some(Shape { first_bits: first as u32, group_bits: group as u32 })
    }
}

/// A hash table. See the module's documentation.
pub struct Clevel<S: Seam, R: Record> {
    core: Arc<Core<S>>,
    /// The root's scheme words.
    root: u64,
    shape: Shape,
    /// The present context, made of a box; never null.
    context: AtomicPtr<Context>,
    /// Those before it that may still be read.
    discards: Discards,
    /// The threads that are rehashing, a bit each: see [`slot::MAKERS`](layout::slot::MAKERS).
    makers: AtomicU32,
    /// Records removed since the table was last looked at for being too large.
    removed: AtomicU64,
    expansions: AtomicU64,
    emptied: AtomicU64,
    repaired: AtomicU64,
    form: PhantomData<R>,
}

impl<S: Seam, R: Record> Clevel<S, R> {
    /// Opens the table whose root is in a slot. Takes constant time.
    pub fn open(core: &Arc<Core<S>>, slot: usize, config: [u64; 3]) -> Result<Self> {
        let root = root_offset(slot).raw() + 8;
        let damaged_root = |damage| Error::DamagedRoot { slot, damage };
        let shape = Shape::from_config(config).ok_or_else(|| {
            damaged_root(Damage::new(root, "a shape of levels", format!("{config:?}")))
        })?;
        let mut table = Clevel {
            core: Arc::clone(core),
            root,
            shape,
            context: AtomicPtr::default(),
            discards: Discards::new(),
            makers: AtomicU32::new(0),
            removed: AtomicU64::new(0),
            expansions: AtomicU64::new(0),
            emptied: AtomicU64::new(0),
            repaired: AtomicU64::new(0),
            form: PhantomData,
        };
        core.memory.words(root, ROOT_SCHEME_WORDS as u64 * 8)?;
        let word = table.look(table.root(root::CONTEXT)) & !root::PENDING;
        if root::unpack(word).is_none() {
            let found = format!("{word:#x}");
            return Err(damaged_root(Damage::new(root, "a context's offset and turn", found)));
        }
        let context = table.read_context(word, &[], false)?;
        if let Some(level) = context.draining() {
            let mark = table.look(table.root(root::PROGRESS));
            let part = root::progress(mark, level.offset).min(level.parts());
            level.next.store(part, Ordering::Relaxed);
        }
        *table.context.get_mut() = Box::into_raw(Box::new(context));
        Ok(table)
    }

    /// Makes the first level and context of a new map, durable before the root that will name
    /// them. Returns the root's words.
    pub fn create(core: &Arc<Core<S>>, config: [u64; 3]) -> Result<[u64; ROOT_SCHEME_WORDS]> {
        let shape = Shape::from_config(config).ok_or_else(|| Error::Invalid {
            what: "map options",
            why: format!("levels of shape {config:?}"),
        })?;
        resize::create(core, shape)
    }

    /// One of the root's words.
    #[inline(always)]
    fn root(&self, index: usize) -> &Word {
        debug_assert!(index < ROOT_SCHEME_WORDS);
        let offset = Offset::new(self.root + index as u64 * 8);
        // SAFETY: checked when the table was opened.
        unsafe { self.core.memory.at_unchecked(offset) }
    }

    /// Reads a word that other threads exchange. SeqCst, with [`exchange`](Self::exchange): of
    /// two threads that each exchange a word and then look at the other's, one sees the other.
    #[inline(always)]
    fn look(&self, word: &Word) -> u64 {
        self.core.memory.seam().load(word, Ordering::SeqCst)
    }

    /// Exchanges a word; `Err` is what it holds instead. See [`look`](Self::look).
    #[inline(always)]
    fn exchange(&self, word: &Word, old: u64, new: u64, at: &'static Point) -> Result<u64, u64> {
        let order = Ordering::SeqCst;
        self.core.memory.seam().compare_exchange(word, old, new, order, order, at)
    }

    /// Sets bits of a note, if they are not.
    #[inline(always)]
    fn set_note(&self, note: &AtomicU64, bits: u64) {
        self.core.memory.seam().dram();
        // SeqCst: as `look`.
        if note.load(Ordering::SeqCst) & bits != bits {
            note.fetch_or(bits, Ordering::SeqCst);
        }
    }
}

impl<S: Seam, R: Record> Drop for Clevel<S, R> {
    fn drop(&mut self) {
        let context = *self.context.get_mut();
        if !context.is_null() {
            // SAFETY: made of a box, and nobody uses the table any more.
            drop(unsafe { Box::from_raw(context) });
        }
    }
}

impl<S: Seam, R: Record> Index<R> for Clevel<S, R> {
    fn scheme(&self) -> Scheme {
        Scheme::Clevel
    }

    fn get(&self, key: R::Key<'_>) -> Result<Option<R::Owned>> {
        self.get_of(key)
    }

    fn get_ref(&self, key: R::Key<'_>) -> Result<Option<RecordRef>> {
        self.get_ref_of(key)
    }

    fn get_many(&self, keys: &[R::Key<'_>], found: &mut [Option<R::Owned>]) -> Result<()> {
        self.get_many_of(keys, found)
    }

    fn change(
        &self,
        key: R::Key<'_>,
        change: Change<'_, R>,
        want_before: bool,
    ) -> Result<Changed<R>> {
        self.change_of(key, change, want_before)
    }

    fn scan(&self, cursor: &mut Cursor, out: &mut Vec<(R::OwnedKey, R::Owned)>) -> Result<()> {
        self.scan_next(cursor, out)
    }

    fn trace(&self, cursor: &mut Cursor, visit: &mut Visitor<'_>) -> Result<()> {
        self.trace_next(cursor, visit)
    }

    fn has_work(&self) -> bool {
        self.has_background_work()
    }

    fn step(&self) -> Result<bool> {
        self.background_step()
    }

    fn len_estimate(&self) -> Result<u64> {
        Ok(self.sample()?.records_estimate)
    }

    fn stats(&self) -> Result<IndexStats> {
        self.sample()
    }

    fn growth(&self) -> Growth {
        Growth {
            splits: self.expansions.load(Ordering::Relaxed),
            doublings: self.emptied.load(Ordering::Relaxed),
        }
    }

    fn verify(&self, visit: &mut Visitor<'_>) -> Result<Verified> {
        self.verify_all(visit)
    }
}
