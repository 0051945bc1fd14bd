//! The route from a key to its leaf.

use super::nodes::{LockedNode, NONE, Node, Side};
use super::{OrderedRecord, Phast};
use crate::error::{Boxed, Damage, Result};
use crate::index::phast::bugs;
use crate::index::version::{is_unchanged, version};
use crate::pmem::Seam;

/// Where a key was found to belong. The node can change meanwhile, so after reading the leaf or
/// announcing itself there, a thread must check that this [is still right](Phast::is_current).
#[derive(Clone, Copy)]
pub(crate) struct Located<'n> {
    pub(super) node: &'n Node,
    /// The node's version.
    pub(super) version: u64,
    /// The leaf's place in the node.
    pub(super) place: usize,
    /// The leaf's handle.
    pub(super) leaf: u32,
    /// A hint; see [`Entry`](super::nodes::Entry).
    pub(super) line: u32,
}

impl<'n> Located<'n> {
    #[inline(always)]
    pub(super) fn new(seam: &impl Seam, node: &'n Node, version: u64, place: usize) -> Self {
        let (leaf, line) = node.leaf_and_line(seam, place);
        Located { node, version, place, leaf, line }
    }
}

/// The number of hints that may lead past a key's node before a search goes through all nodes from
/// the first one.
const HINTS: u32 = 64;

impl<S: Seam, R: OrderedRecord> Phast<S, R> {
    /// Finds the leaf that a key belongs to.
    #[inline(always)]
    pub(super) fn locate(&self, key: R::Key<'_>) -> Boxed<Located<'_>> {
        match self.try_locate(key, false) {
            Some(located) => Ok(located),
            None => self.locate_again(key, false)?.ok_or_else(|| self.bounded_first().into()),
        }
    }

    /// Returns the damage to report if a key seems to be below the first leaf. Opening has checked
    /// that no key can be.
    #[cold]
    fn bounded_first(&self) -> Damage {
        Damage::new(self.master, "a first leaf that begins with the least key", "one above it")
    }

    /// Finds the last leaf that can hold keys below this one. Returns `None` if there can be none.
    pub(super) fn locate_below(&self, key: R::Key<'_>) -> Boxed<Option<Located<'_>>> {
        match self.try_locate(key, true) {
            Some(located) => Ok(Some(located)),
            None => self.locate_again(key, true),
        }
    }

    /// Returns the node that the arrays above the nodes lead to.
    #[inline(always)]
    fn hint(&self, key: R::Key<'_>, below: bool) -> u32 {
        let partition = self.top.find::<S, R>(&self.core, key, below);
        let cache = partition.and_then(|entry| self.caches.get(entry as usize));
        cache.and_then(|cache| cache.find::<S, R>(&self.core, key, below)).unwrap_or(self.first)
    }

    /// Returns the node that a key probably belongs to, and prefetches what a search of it reads
    /// first.
    #[inline(always)]
    pub(super) fn likely_node(&self, key: R::Key<'_>, below: bool) -> &Node {
        self.nodes.get_to_search(self.core.memory.seam(), self.hint(key, below))
    }

    /// Makes one attempt to locate a key.
    #[inline(always)]
    fn try_locate(&self, key: R::Key<'_>, below: bool) -> Option<Located<'_>> {
        self.locate_in(self.likely_node(key, below), key, below)
    }

    /// Locates a key in a node. Returns `None` if the node is changing, if the key does not belong to
    /// it, or if the search met damage. The caller must validate the result.
    #[inline(always)]
    pub(super) fn locate_in<'t>(
        &'t self,
        node: &'t Node,
        key: R::Key<'_>,
        below: bool,
    ) -> Option<Located<'t>> {
        let seam = self.core.memory.seam();
        let version = version(&node.lock(seam))?;
        match node.search::<S, R>(&self.core, key, below) {
            // If the version has changed since, the place may be wrong, and the caller's check of
            // the version notices.
            Ok(Side::At(place)) => Some(Located::new(seam, node, version, place)),
            _ => None,
        }
    }

    /// Does what [`locate`](Self::locate) does, and retries until it succeeds.
    #[cold]
    fn locate_again(&self, key: R::Key<'_>, below: bool) -> Boxed<Option<Located<'_>>> {
        let seam = self.core.memory.seam();
        let (mut turn, mut astray) = (0, 0);
        'hint: loop {
            let mut number = if astray < HINTS { self.hint(key, below) } else { self.first };
            loop {
                let node = self.node(number);
                let lock = node.lock(seam);
                let Some(version) = version(&lock) else {
                    self.core.wait(&mut turn)?;
                    continue;
                };
                let side = node.search::<S, R>(&self.core, key, below);
                if !is_unchanged(&lock, version) {
                    self.core.wait(&mut turn)?;
                    continue 'hint;
                }
                match side? {
                    Side::At(place) => {
                        return Ok(Some(Located::new(seam, node, version, place)));
                    }
                    Side::After(next) => number = next,
                    Side::Before if number == self.first => return Ok(None),
                    Side::Before => {
                        astray += 1;
                        if astray > 1 {
                            self.core.wait(&mut turn)?;
                        }
                        continue 'hint;
                    }
                }
            }
        }
    }

    /// Returns whether the located place is still the right one.
    #[inline(always)]
    pub(super) fn is_current(&self, at: &Located<'_>) -> bool {
        is_unchanged(&at.node.lock(self.core.memory.seam()), at.version)
    }

    /// Does what [`is_current`](Self::is_current) does, after a read of the leaf.
    #[inline(always)]
    pub(super) fn is_still(&self, at: &Located<'_>) -> bool {
        self.is_current(at) || self.seeded(&bugs::LEAF_NOT_RECHECKED)
    }

    /// Locks the node of a key. Returns it, and the key's place in it. The thread has passed the
    /// gate.
    pub(super) fn lock_node(&self, key: R::Key<'_>) -> Result<(LockedNode<'_, S>, usize)> {
        let seam = self.core.memory.seam();
        let mut turn = 0;
        loop {
            let at = self.locate(key)?;
            if let Some(locked) = LockedNode::try_new(at.node, seam)
                && let Side::At(place) = at.node.search::<S, R>(&self.core, key, false)?
            {
                return Ok((locked, place));
            }
            self.core.wait_for_lock(&mut turn, 1, || (self.master, at.version))?;
        }
    }

    /// Locks a node by its number.
    pub(super) fn lock_number(&self, number: u32) -> Result<LockedNode<'_, S>> {
        debug_assert_ne!(number, NONE);
        let node = self.node(number);
        let mut turn = 0;
        loop {
            if let Some(locked) = LockedNode::try_new(node, self.core.memory.seam()) {
                return Ok(locked);
            }
            self.core.wait_for_lock(&mut turn, 1, || (self.master, u64::from(number)))?;
        }
    }
}
