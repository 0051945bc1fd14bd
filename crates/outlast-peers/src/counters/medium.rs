//! A medium that reads and writes blocks of 256 bytes, with a small buffer of its own, like Optane.

use std::collections::VecDeque;

/// Lines of a block.
const LINES: u64 = 4;

/// What the medium did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MediumCounts {
    /// Lines that the caches read.
    pub lines_read: u64,
    /// Lines that the caches wrote.
    pub lines_written: u64,
    /// Blocks that the medium read: for lines, and to complete blocks of which only a part was
    /// written.
    pub blocks_read: u64,
    /// Blocks that the medium wrote.
    pub blocks_written: u64,
}

#[derive(Debug)]
struct Block {
    number: u64,
    /// The lines that were written, one bit each.
    written: u8,
    /// Whether the whole block was read.
    whole: bool,
}

/// The medium. Its buffer holds the blocks that were used last, the least recently used first.
#[derive(Debug)]
pub(super) struct Medium {
    buffer: VecDeque<Block>,
    blocks: usize,
    counts: MediumCounts,
}

impl Medium {
    pub(super) fn new(blocks: usize) -> Medium {
        assert!(blocks > 0, "a block under way");
        Medium { buffer: VecDeque::new(), blocks, counts: MediumCounts::default() }
    }

    /// The counts, as if the blocks in the buffer were written now.
    pub(super) fn counts(&self) -> MediumCounts {
        let mut counts = self.counts;
        self.buffer.iter().for_each(|block| leave(block, &mut counts));
        counts
    }

    /// Sets the counts to 0, and the buffer is written before.
    pub(super) fn reset(&mut self) {
        self.buffer.clear();
        self.counts = MediumCounts::default();
    }

    pub(super) fn read(&mut self, line: u64) {
        self.counts.lines_read += 1;
        let block = self.block(line);
        let is_known = block.whole || block.written & bit(line) != 0;
        block.whole = true;
        self.counts.blocks_read += u64::from(!is_known);
    }

    pub(super) fn write(&mut self, line: u64) {
        self.counts.lines_written += 1;
        self.block(line).written |= bit(line);
    }

    /// Returns the block of a line, as the most recently used.
    fn block(&mut self, line: u64) -> &mut Block {
        let number = line / LINES;
        let block = match self.buffer.iter().position(|block| block.number == number) {
            Some(at) => self.buffer.remove(at).expect("a block of the buffer"),
            None => {
                if self.buffer.len() == self.blocks
                    && let Some(oldest) = self.buffer.pop_front()
                {
                    leave(&oldest, &mut self.counts);
                }
                Block { number, written: 0, whole: false }
            }
        };
        self.buffer.push_back(block);
        self.buffer.back_mut().expect("the block")
    }
}

/// Counts what it takes for a block to leave the buffer.
fn leave(block: &Block, counts: &mut MediumCounts) {
    if block.written != 0 {
        counts.blocks_written += 1;
        counts.blocks_read += u64::from(!block.whole && block.written != (1 << LINES) - 1);
    }
}

fn bit(line: u64) -> u8 {
    1 << (line % LINES)
}
