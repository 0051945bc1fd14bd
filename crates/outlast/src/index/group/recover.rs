//! Opening: follows the list of segments and builds their DRAM state.

use super::layout::{self, Kind, Link, NodeHeader, SegmentHeader};
use super::resize::{FREE_DEPTH, SPARSE};
use super::{Cell, Group, Missing, Segment, bugs, points};
use crate::error::Damage;
use crate::index::bugs as index_bugs;
use crate::index::kit::directory::DramDirectory;
use crate::index::kit::media::{check_block, check_identity};
use crate::index::kit::parallel::read_parts;
use crate::index::record::{RecordForm, SlotRecord, SlotWords};
use crate::index::version::LockWord;
use crate::pmem::{Offset, Seam};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// The number of segments that a thread reads at a time.
const PART: usize = 64;

impl<S: Seam, R: SlotRecord> Group<S, R> {
    /// Builds the directory and the marks of the map whose root is in `slot`. No operation runs yet.
    pub(super) fn recover(&mut self, slot: usize) {
        let (found, broken) = self.follow_list();
        let deepest = found.iter().map(|segment| segment.depth).max().unwrap_or(1);
        self.directory = DramDirectory::new(&self.core, slot, deepest);
        let missing = Mutex::new(Vec::from_iter(broken));
        let parts: Vec<_> = found.chunks(PART).collect();
        let read = |part: usize| {
            for &segment in parts[part] {
                match self.make_ready(segment) {
                    Ok(()) => self.directory.fill(self.seam(), segment),
                    Err(damage) => {
                        let (low, high) = (segment.low, segment.high());
                        let range = Missing { low, high, damage, segment: Some(segment) };
                        self.seam().lock(&missing).push(range);
                    }
                }
            }
            parts[part].len() as u64
        };
        read_parts(&self.core, parts.len(), read, || {
            if self.is_after_crash() {
                // Covers everything that this thread has flushed.
                self.core.memory.fence(&points::OPENING);
            }
        });
        *self.segments.get_mut().unwrap_or_else(|e| e.into_inner()) = found.len() as u64;
        self.missing = missing.into_inner().unwrap_or_else(|e| e.into_inner());
        for Missing { low, high, damage, .. } in &self.missing {
            tracing::warn!(%damage, low, high, "hashes that cannot be served");
        }
    }

    /// Follows the list. Returns the segments and, if the list cannot be followed to its end, the
    /// hashes that are missing.
    pub(super) fn follow_list(&self) -> (Vec<Segment>, Option<Missing>) {
        let (mut found, mut next, mut low) = (Vec::new(), self.first, Some(0));
        // Each segment's range begins where the last one ends, so the list ends.
        while let Some(begin) = low {
            match self.check_segment(next, begin) {
                Ok((segment, after)) => {
                    low = segment.high().checked_add(1);
                    next = after;
                    found.push(segment);
                }
                Err(damage) => {
                    let (low, high, segment) = (begin, u64::MAX, None);
                    return (found, Some(Missing { low, high, damage, segment }));
                }
            }
        }
        (found, None)
    }

    /// Checks the header of a segment whose range begins with `low`. Returns the segment, and the
    /// offset of the next one.
    fn check_segment(&self, offset: u64, low: u64) -> Result<(Segment, u64), Damage> {
        let core = &self.core;
        let header = core.memory.at(Offset::<SegmentHeader>::new(offset))?;
        check_block(core, offset, layout::segment_bytes(self.group))?;
        let expected = layout::identity(Kind::Segment, offset, low, self.group);
        let what = format!("a segment that begins with hash {low:#x}");
        check_identity(&core.memory, &header.identity, expected, &what)?;
        let link = Link::read(&core.memory, &header.next)?;
        // Bounds the depth: only in a table of many segments does a segment get deep; see
        // `may_split`.
        let most = core.memory.len() / layout::segment_bytes(self.group) * SPARSE * 2;
        let fits = link.depth >= 1
            && 1 << link.depth <= most.max(1 << FREE_DEPTH)
            && low << link.depth == 0
            && core.memory.load(&header.low) == low;
        let segment = Segment { offset, depth: link.depth, low };
        if !fits || (link.offset == 0) != (segment.high() == u64::MAX) {
            let expected = format!("a range from {low:#x} on");
            return Err(Damage::new(offset + 16, expected, format!("{link:?}")));
        }
        Ok((segment, link.offset))
    }

    /// Returns whether stores of an earlier process may still be only in the caches.
    fn is_after_crash(&self) -> bool {
        self.core.alloc().old_frontier() != 0 && !self.core.options().read_only
    }

    /// Clears the DRAM state of a segment: no records, not locked.
    pub(super) fn forget(&self, segment: Segment) {
        unless_seeded!(self, index_bugs::LOCKS_KEPT => self.lock_of(segment).store(0, Ordering::Relaxed));
        self.state(segment).has_nodes.store(self.seam(), 0, Ordering::Relaxed);
        // Without nodes, these are the chunks of both levels.
        self.all_cells(segment).flatten().for_each(|cells| cells.clear(self.seam()));
    }

    /// Builds the marks of a segment from its cells. After a crash, flushes the segment and its
    /// overflow nodes.
    fn make_ready(&self, segment: Segment) -> Result<(), Damage> {
        let (memory, at) = (&self.core.memory, &points::OPENING);
        if self.is_after_crash() {
            // A segment is flushed even if its cells are damaged, because its link leads to the
            // next one.
            memory
                .flush_words(memory.words(segment.offset, layout::segment_bytes(self.group))?, at);
        }
        self.forget(segment);
        self.check_nodes(segment)?;
        for cells in self.all_cells(segment) {
            for cell in cells?.all() {
                if let Some((_, hash)) = self.record_in(segment, cell)? {
                    self.publish(segment, cell, hash);
                }
            }
        }
        if self.is_after_crash() {
            for node in self.nodes(segment) {
                memory.flush_words(memory.words(node?, layout::node_bytes(self.group))?, at);
            }
        }
        Ok(())
    }

    /// Checks that the chain consists of overflow nodes, and marks their cells as free.
    fn check_nodes(&self, segment: Segment) -> Result<(), Damage> {
        let has_nodes = &self.state(segment).has_nodes;
        has_nodes.store(self.seam(), 1, Ordering::Relaxed);
        let mut count = 0;
        for node in self.nodes(segment) {
            let node = node?;
            self.check_node(node)?;
            self.clear_node(node);
            count += 1;
        }
        has_nodes.store(self.seam(), count, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn check_node(&self, node: u64) -> Result<(), Damage> {
        check_block(&self.core, node, layout::node_bytes(self.group))?;
        let identity = &self.core.memory.at(Offset::<NodeHeader>::new(node))?.identity;
        let expected = layout::identity(Kind::Node, node, 0, self.group);
        check_identity(&self.core.memory, identity, expected, "an overflow node")
    }

    /// Returns the words and the hash of the record in a cell, by invariant 1.
    pub(super) fn record_in(
        &self,
        segment: Segment,
        cell: Cell<'_>,
    ) -> Result<Option<(SlotWords, u64)>, Damage> {
        let words = cell.slot().read(&self.core.memory);
        if words.first == self.empty(segment.low) {
            return Ok(None);
        }
        let hash = self.hash_of(words);
        let here = segment.holds(hash);
        // In the first level, a record that a split has left behind is in its home, too. For inline
        // records this is checked, because a damaged key can look like such a record.
        let elsewhere = cell.home().is_some() && cell.home() != self.home(segment, hash).home();
        if elsewhere && (here || R::FORM == RecordForm::Inline) {
            let at = self.core.memory.offset_of(cell.slot()).raw();
            let found = format!("{:#x} {:#x}", words.first, words.second);
            return Err(Damage::new(at, "an empty cell, or a record at home there", found));
        }
        if !here && !self.seeded(&bugs::LEFT_BEHIND_KEPT) {
            return Ok(None);
        }
        R::check_link(&self.core, words)?;
        Ok(Some((words, hash)))
    }
}
