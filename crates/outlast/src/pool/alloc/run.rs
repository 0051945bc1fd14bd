//! Runs of pages, and the blocks in them.

use crate::error::{Damage, Result};
use crate::pool::geometry::{Geometry, LARGE};

/// The state of one page.
pub(super) enum Slot {
    /// Not loaded yet; its descriptor says what it is.
    Unknown,
    /// Belongs to no run.
    Free,
    /// A later page of a run, with the distance in pages to the first.
    Continued(u32),
    /// The first page of a run.
    Run(Box<Run>),
}

pub(super) struct Run {
    pub(super) class: u8,
    pub(super) pages: u32,
    pub(super) block_bytes: u64,
    pub(super) blocks: u32,
    pub(super) free: u32,
    pub(super) used: Box<[u64]>,
    /// This many of the first words of `used` have no free block.
    pub(super) full_words: usize,
    /// Empty unless the run is old.
    pub(super) retired: Box<[u64]>,
    pub(super) old: bool,
    /// Whether the run is in the list of its class.
    pub(super) listed: bool,
}

pub(super) fn bit(index: u32) -> (usize, u64) {
    ((index / 64) as usize, 1 << (index % 64))
}

impl Run {
    pub(super) fn new(geometry: Geometry, class: u8, pages: u32) -> Option<Run> {
        let (block_bytes, blocks) = if class == LARGE {
            (geometry.offset_of(pages), 1)
        } else {
            let bytes = geometry.class_bytes(class)?;
            (bytes, geometry.run_blocks(bytes, pages))
        };
        let words = blocks.div_ceil(64) as usize;
        Some(Run {
            class,
            pages,
            block_bytes,
            blocks,
            free: blocks,
            used: vec![0; words].into(),
            full_words: 0,
            retired: Box::default(),
            old: false,
            listed: false,
        })
    }

    pub(super) fn is_used(&self, index: u32) -> bool {
        let (word, mask) = bit(index);
        self.used[word] & mask != 0
    }

    /// Takes up to `want` free blocks and passes their indexes to `give`.
    pub(super) fn take(&mut self, want: usize, mut give: impl FnMut(u32)) {
        let mut left = want.min(self.free as usize);
        self.free -= left as u32;
        for (w, word) in self.used.iter_mut().enumerate().skip(self.full_words) {
            let in_word = (self.blocks - w as u32 * 64).min(64);
            let all = if in_word == 64 { u64::MAX } else { (1 << in_word) - 1 };
            while left > 0 && *word != all {
                let free = (!*word).trailing_zeros();
                *word |= 1 << free;
                give(w as u32 * 64 + free);
                left -= 1;
            }
            if left == 0 {
                return;
            }
            self.full_words = w + 1;
        }
        debug_assert_eq!(left, 0, "free count and bitmap agree");
    }
}

#[cold]
pub(super) fn no_block(offset: u64) -> Damage {
    Damage::new(offset, "a block in use", "space that belongs to nothing")
}

#[cold]
pub(super) fn freed_twice(offset: u64) -> Damage {
    Damage::new(offset, "a block in use", "a free block")
}

/// The locked slot of a run.
pub(super) struct RunGuard<'a> {
    pub(super) slot: std::sync::MutexGuard<'a, Slot>,
    pub(super) head: u32,
}

impl RunGuard<'_> {
    pub(super) fn run(&mut self) -> &mut Run {
        match &mut *self.slot {
            Slot::Run(run) => run,
            _ => unreachable!("a RunGuard is made of a run"),
        }
    }

    pub(super) fn clear(&mut self) {
        *self.slot = Slot::Free;
    }

    /// Returns the run's first page, and the index within the run of the block at `offset`.
    pub(super) fn index(&mut self, geometry: Geometry, offset: u64) -> Result<(u32, u32), Damage> {
        let head = self.head;
        let run = self.run();
        let inside = offset - geometry.offset_of(head);
        let index = inside / run.block_bytes;
        if !inside.is_multiple_of(run.block_bytes) || index >= u64::from(run.blocks) {
            return Err(no_block(offset));
        }
        Ok((head, index as u32))
    }
}
