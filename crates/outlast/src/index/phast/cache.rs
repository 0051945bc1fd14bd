//! The arrays above the inner nodes: index caches, and the list of partitions. They are hints; see
//! the parent module.

use super::lines::{Extent, Head, LINE_WORDS, Piece};
use super::nodes::{Words, behind};
use crate::error::Damage;
use crate::index::ordered::OrderedRecord;
use crate::pmem::{Seam, Shared, SharedWord};
use crate::pool::core::Core;
use std::cmp::Ordering as Order;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The number of sizes of a cache's buffers.
const SIZES: usize = 28;
/// The elements of the smallest buffer.
const SMALLEST: usize = 16;

/// A sorted array that leads from keys to numbers: an index cache, or the list of partitions.
///
/// The content is replaced as a whole: the new content is written into a second buffer, and then
/// the two are swapped. A reader that is still in the old buffer when the next replacement begins
/// may read a mixture of two contents. It may then reach a wrong node, but that node says where the
/// key belongs.
pub(super) struct Cache {
    /// The buffer in use; null if there is none yet.
    current: Shared<AtomicPtr<BufferHead>>,
    /// How often the content was replaced. Only the replacing thread uses it.
    turn: SharedWord,
    /// Two of each size, made when they are needed and kept when larger ones take their place.
    buffers: [[Shared<OnceLock<Box<Buffer>>>; SIZES]; 2],
}

/// One content of a cache. For each element except the first, the words have eight bytes of its
/// least key, from byte `skip` on. The links have the first words of the least keys, and the
/// numbers have what the elements lead to.
type Buffer = Piece<BufferHead>;

#[repr(C, align(64))]
struct BufferHead {
    len: Shared<AtomicU32>,
    skip: Shared<AtomicU32>,
    extent: Extent,
}

// SAFETY: one line of atomics and numbers; `extent` never changes.
unsafe impl Head for BufferHead {
    fn with_extent(extent: Extent) -> Self {
        BufferHead { len: Shared::default(), skip: Shared::default(), extent }
    }
    #[inline(always)]
    fn extent(&self) -> Extent {
        self.extent
    }
}

impl Buffer {
    #[inline(always)]
    fn len(&self, seam: &impl Seam) -> usize {
        // A buffer has no more elements than words.
        let Extent { words, numbers, .. } = self.head.extent;
        let most = usize::from(numbers - words) * LINE_WORDS;
        (self.head.len.load(seam, Ordering::Relaxed) as usize).min(most)
    }

    /// Returns what the element at a place leads to.
    #[inline(always)]
    fn target(&self, seam: &impl Seam, place: usize) -> u32 {
        self.number(seam, place) as u32
    }
}

/// An element of a cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pointer {
    /// The first word of the least key.
    pub(super) low: u64,
    /// What it leads to.
    pub(super) number: u32,
}

impl Cache {
    pub(super) fn new() -> Cache {
        Cache {
            current: Shared::default(),
            turn: Shared::default(),
            buffers: [const { [const { Shared::once() }; SIZES] }; 2],
        }
    }

    /// Replaces the content. One thread at a time does this.
    pub(super) fn replace<S: Seam, R: OrderedRecord>(
        &self,
        core: &Core<S>,
        content: &[Pointer],
    ) -> Result<(), Damage> {
        let seam = core.memory.seam();
        let lows = content.iter().map(|p| p.low);
        let Words { skip, prefix, words } = Words::new::<S, R>(core, lows)?;
        let links = R::EMPTY.is_some();
        let turn = self.turn.load(seam, Ordering::Relaxed).wrapping_add(1);
        self.turn.store(seam, turn, Ordering::Relaxed);
        let size = content.len().div_ceil(SMALLEST).max(1).next_power_of_two().ilog2() as usize;
        let buffer = self.buffers[turn as usize & 1][size]
            .get_or_init(seam, || Buffer::new((SMALLEST << size) as u32, links));
        let words = content.iter().zip(&words);
        buffer.set_prefix(seam, &prefix);
        buffer.set(
            seam,
            words.map(|(pointer, &word)| (word, u64::from(pointer.number), pointer.low)),
        );
        buffer.head.skip.store(seam, skip as u32, Ordering::Relaxed);
        buffer.head.len.store(seam, content.len() as u32, Ordering::Relaxed);
        // Release: pairs with the Acquire in `current`.
        self.current.store(
            seam,
            ptr::from_ref::<Buffer>(buffer).cast_mut().cast(),
            Ordering::Release,
        );
        Ok(())
    }

    /// Returns the buffer in use.
    #[inline(always)]
    fn current(&self, seam: &impl Seam) -> Option<&Buffer> {
        // Acquire: pairs with the Release in `replace`.
        let current = self.current.load(seam, Ordering::Acquire);
        // SAFETY: if it is not null, it points to one of the buffers, each of which is complete and
        // is not dropped before the cache.
        (!current.is_null()).then(|| unsafe { Buffer::reach(current) })
    }

    /// Returns the number that a key or, if `below` is set, the keys just below it lead to, as a
    /// hint. Returns `None` if the cache has no content yet.
    #[inline(always)]
    pub(super) fn find<S: Seam, R: OrderedRecord>(
        &self,
        core: &Core<S>,
        key: R::Key<'_>,
        below: bool,
    ) -> Option<u32> {
        let seam = core.memory.seam();
        let buffer = self.current(seam)?;
        let len = buffer.len(seam);
        if len <= 1 {
            return Some(buffer.target(seam, 0));
        }
        let skip = buffer.head.skip.load(seam, Ordering::Relaxed) as usize;
        if skip > 0 {
            match buffer.compare_prefix::<S, R>(core, key, skip) {
                Ok(Order::Less) => return Some(buffer.target(seam, 0)),
                Ok(Order::Greater) => return Some(buffer.target(seam, len - 1)),
                // The result is only a hint. If there is damage, the search of the nodes reports
                // it.
                Ok(Order::Equal) | Err(_) => {}
            }
        }
        let word = R::word(key, skip);
        if R::EMPTY.is_none() && !below {
            return Some(buffer.target(seam, buffer.count_up_to(seam, len - 1, word)));
        }
        let mut place = buffer.count_below(seam, len - 1, word);
        while R::EMPTY.is_some() && place + 1 < len && buffer.word(seam, place) == word {
            let order = R::compare_with(core, key, buffer.link(seam, place + 1));
            if !order.is_ok_and(|order| behind(order, below)) {
                break;
            }
            place += 1;
        }
        Some(buffer.target(seam, place))
    }

    /// Returns the number that the greatest keys lead to, as a hint.
    pub(super) fn last(&self, seam: &impl Seam) -> Option<u32> {
        let buffer = self.current(seam)?;
        Some(buffer.target(seam, buffer.len(seam).saturating_sub(1)))
    }

    /// Returns the bytes of DRAM that the cache takes.
    pub(super) fn bytes(&self, seam: &impl Seam) -> u64 {
        let made = self.buffers.iter().flatten().filter_map(|buffer| buffer.get(seam));
        made.map(|buffer| buffer.head.extent.bytes()).sum()
    }
}
