//! Inner nodes and partitions follow the leaves: they are split and joined, and published in the
//! index caches.

use super::cache::Pointer;
use super::layout;
use super::nodes::{Content, Entry, LockedNode, Node, word_beside};
use super::resize::master_entries;
use super::state::DAMAGED;
use super::{OrderedRecord, Partition, Phast, Structure, points};
use crate::error::{Damage, Result};
use crate::pmem::{Point, Seam};

/// The most bytes of an index cache. If a partition has more nodes than fit, its cache leads to
/// every second node, every fourth, and so on.
const CACHE_BYTES: usize = 1 << 20;

impl<S: Seam, R: OrderedRecord> Phast<S, R> {
    // ---- Inner nodes ------------------------------------------------------------

    /// Adds a leaf to the node of its least key.
    pub(super) fn add_entry(&self, key: R::Key<'_>, entry: Entry) -> Result<()> {
        loop {
            {
                let (mut locked, place) = self.lock_node(key)?;
                if !locked.node.is_full(self.seam()) {
                    let (node, place) = (locked.node, place + 1);
                    match word_beside::<S, R>(&self.core, node, place, entry)? {
                        Some(word) => {
                            locked.changing();
                            locked.insert(place, word, entry);
                        }
                        None => {
                            let content =
                                Content::with_one_more::<S, R>(&self.core, node, place, entry)?;
                            locked.changing();
                            locked.set(&content);
                        }
                    }
                    return Ok(());
                }
            }
            self.split_node(key)?;
        }
    }

    /// Splits the node of a key, if it is full.
    fn split_node(&self, key: R::Key<'_>) -> Result<()> {
        let (core, seam) = (&*self.core, self.core.memory.seam());
        let mut structure = seam.lock(&self.structure);
        let (mut old, place) = self.lock_node(key)?;
        if !old.node.is_full(self.seam()) {
            return Ok(());
        }
        let mut entries = old.node.entries(self.seam());
        let ascending = place + 1 == entries.len();
        let middle =
            if ascending { entries.len() - entries.len() / 8 - 1 } else { entries.len() / 2 };
        let upper = entries.split_off(middle.max(1));
        let low = upper[0].low;
        let (lower, upper) =
            (Content::new::<S, R>(core, entries)?, Content::new::<S, R>(core, upper)?);
        let number = self.nodes.take(seam);
        let (next, high) = old.follows();
        // Numbers are reused, so a thread with an old hint can come to the new node at any time. It
        // must not find the upper leaves there while another thread finds them in the old node.
        let mut new = self.lock_number(number)?;
        new.changing();
        old.changing();
        new.set(&upper);
        new.set_next(next, high);
        old.set(&lower);
        old.set_next(number, low);
        let old_node = std::ptr::from_ref(old.node);
        drop(new);
        drop(old);
        self.counters.doublings.add_one();
        let (index, at) = self.node_in(&structure, old_node);
        structure.partitions[index].nodes.insert(at + 1, Pointer { low, number });
        self.publish(&structure, index);
        self.balance(&mut structure)
    }

    /// Removes the leaf with this least key from its node, and the node if that was its last leaf.
    pub(super) fn remove_entry(
        &self,
        structure: &mut Structure,
        key: R::Key<'_>,
        leaf: u32,
    ) -> Result<()> {
        let (core, seam) = (&*self.core, self.core.memory.seam());
        let (locked, place) = self.lock_node(key)?;
        if locked.node.leaf(self.seam(), place) != leaf {
            // `merge` has found the leaf by this key before. So the leaf's least key, which is
            // fixed, has changed since.
            let found = format!("{:?}", R::own(key));
            return Err(Damage::new(self.master, "a least key that stays", found).into());
        }
        let node = std::ptr::from_ref(locked.node);
        if place > 0 {
            let mut entries = locked.node.entries(self.seam());
            entries.remove(place);
            let left = entries.len();
            let content = Content::new::<S, R>(core, entries)?;
            let mut locked = locked;
            locked.changing();
            locked.set(&content);
            drop(locked);
            let most = self.shape.node_leaves as usize;
            // Checked at a few counts only, as for leaves.
            if left == 1 || left == most / 8 || left == most / 4 {
                self.join_node(structure, node);
            }
            return Ok(());
        }
        drop(locked);
        // The node is unlocked, because the previous node must be locked before it. Leaves may be
        // added to either node meanwhile.
        let (index, at) = self.node_in(structure, node);
        let before = match at.checked_sub(1) {
            Some(at) => structure.partitions[index].nodes[at].number,
            None => {
                let nodes = index.checked_sub(1).map(|index| &structure.partitions[index].nodes);
                let Some(node) = nodes.and_then(|nodes| nodes.last()) else {
                    let expected = "a first leaf that stays";
                    return Err(Damage::new(self.master, expected, "one to be taken out").into());
                };
                node.number
            }
        };
        let number = structure.partitions[index].nodes[at].number;
        let mut before = self.lock_number(before)?;
        let mut locked: LockedNode<'_, S> = self.lock_number(number)?;
        let mut entries = locked.node.entries(self.seam());
        entries.remove(0);
        if let Some(&Entry { low, .. }) = entries.first() {
            let content = Content::new::<S, R>(core, entries)?;
            before.changing();
            locked.changing();
            before.set_next(number, low);
            locked.set(&content);
            structure.partitions[index].nodes[at].low = low;
        } else {
            let (next, high) = locked.follows();
            before.changing();
            locked.changing();
            before.set_next(next, high);
            locked.clear();
            structure.partitions[index].nodes.remove(at);
        }
        let gone = locked.node.len(self.seam()) == 0;
        drop(locked);
        drop(before);
        self.publish(structure, index);
        if gone {
            self.nodes.give(seam, number);
        }
        Ok(())
    }

    /// Joins a node with a neighboring node of its partition, if one node has room for twice the
    /// leaves of both. If something is damaged, they stay separate.
    fn join_node(&self, structure: &mut Structure, node: *const Node) {
        let (index, at) = self.node_in(structure, node);
        for right in [at + 1, at] {
            match self.try_join(structure, index, right) {
                Ok(false) => {}
                Ok(true) => return,
                Err(error) => tracing::debug!(%error, "inner nodes could not be joined"),
            }
        }
    }

    /// Joins a node of a partition with the previous one in the partition. Returns whether they
    /// were joined.
    fn try_join(&self, structure: &mut Structure, index: usize, right: usize) -> Result<bool> {
        let nodes = &structure.partitions[index].nodes;
        let left = right.checked_sub(1).and_then(|left| nodes.get(left));
        let (Some(left), Some(&Pointer { number, .. })) = (left, nodes.get(right)) else {
            return Ok(false);
        };
        let mut left = self.lock_number(left.number)?;
        let mut gone = self.lock_number(number)?;
        let entries = [left.node.entries(self.seam()), gone.node.entries(self.seam())].concat();
        if 2 * entries.len() > self.shape.node_leaves as usize {
            return Ok(false);
        }
        let content = Content::new::<S, R>(&self.core, entries)?;
        let (next, high) = gone.follows();
        left.changing();
        gone.changing();
        left.set(&content);
        left.set_next(next, high);
        gone.clear();
        drop(gone);
        drop(left);
        structure.partitions[index].nodes.remove(right);
        self.publish(structure, index);
        self.nodes.give(self.core.memory.seam(), number);
        Ok(true)
    }

    /// Returns the partition that lists a node, and the node's place in it.
    pub(super) fn node_in(&self, structure: &Structure, node: *const Node) -> (usize, usize) {
        let listed = structure.partitions.iter().enumerate().find_map(|(index, partition)| {
            let is_it = |p: &Pointer| std::ptr::eq(self.node(p.number), node);
            partition.nodes.iter().position(is_it).map(|at| (index, at))
        });
        listed.expect("every node is listed in its partition")
    }

    // ---- Partitions -------------------------------------------------------------

    /// Splits the largest partition if it has at least twice its share of nodes. If there are as
    /// many partitions as allowed, it must have more than four times its share, and two small
    /// neighboring ones are joined first.
    fn balance(&self, structure: &mut Structure) -> Result<()> {
        let most = self.shape.partitions as usize;
        let total: usize = structure.partitions.iter().map(|p| p.nodes.len()).sum();
        let by_size = |(_, p): &(usize, &Partition)| p.nodes.len();
        let largest = structure.partitions.iter().enumerate().max_by_key(by_size);
        let Some((mut index, largest)) = largest else { return Ok(()) };
        let nodes = largest.nodes.len();
        if nodes < 2 || nodes * most < 2 * total {
            return Ok(());
        }
        if structure.free.is_empty() {
            let sums = structure.partitions.windows(2).map(|w| w[0].nodes.len() + w[1].nodes.len());
            let least = sums.enumerate().filter(|&(i, _)| i != index && i + 1 != index);
            let Some((first, sum)) = least.min_by_key(|&(_, sum)| sum) else { return Ok(()) };
            // The split must be worth a join. Otherwise two partitions could be split and joined
            // again and again.
            if nodes * most <= 4 * total || sum * most > 2 * total {
                return Ok(());
            }
            self.join_partition(structure, first + 1)?;
            index -= usize::from(first < index);
        }
        let Some(&entry) = structure.free.last() else { return Ok(()) };
        let at = structure.partitions[index].nodes.len() / 2;
        let node = self.node(structure.partitions[index].nodes[at].number);
        // The node's first leaf cannot be merged away meanwhile, because a merge takes the lock of
        // the structure.
        let leaf = self.leaf(node.leaf(self.seam(), 0)).offset(self.core.memory.seam());
        if leaf & DAMAGED != 0 {
            return Ok(());
        }
        self.write_entry(entry, leaf, &points::MASTER_NEW)?;
        structure.free.pop();
        let nodes = structure.partitions[index].nodes.split_off(at);
        structure.partitions.insert(index + 1, Partition { entry, nodes });
        self.publish(structure, index + 1);
        self.publish(structure, index);
        self.publish_all(structure);
        Ok(())
    }

    /// Joins a partition to the one before it.
    pub(super) fn join_partition(&self, structure: &mut Structure, index: usize) -> Result<()> {
        let at = &points::MASTER_GONE;
        self.write_entry(structure.partitions[index].entry, 0, at)?;
        self.core.memory.fence(at);
        let mut gone = structure.partitions.remove(index);
        structure.partitions[index - 1].nodes.append(&mut gone.nodes);
        structure.free.push(gone.entry);
        self.publish(structure, index - 1);
        self.publish_all(structure);
        Ok(())
    }

    /// Sets an entry of the master array and flushes it, without a fence.
    fn write_entry(&self, entry: u32, leaf: u64, at: &'static Point) -> Result<()> {
        let memory = &self.core.memory;
        let word = &master_entries(&self.core, self.shape, self.master)?[entry as usize];
        let value = layout::pack_entry(self.master, entry as usize, leaf);
        memory.store_release(word, value, at);
        memory.flush(word, at);
        Ok(())
    }

    // ---- Index caches -----------------------------------------------------------

    /// Publishes a partition's nodes in its index cache. If something is damaged, readers continue
    /// with the old cache, which still leads them to their nodes.
    fn publish(&self, structure: &Structure, index: usize) {
        let partition = &structure.partitions[index];
        let element = if R::EMPTY.is_some() { 24 } else { 16 };
        let most = CACHE_BYTES / element;
        let step = partition.nodes.len().div_ceil(most).max(1).next_power_of_two();
        let content: Vec<_> = partition.nodes.iter().copied().step_by(step).collect();
        let cache = &self.caches[partition.entry as usize];
        if let Err(damage) = cache.replace::<S, R>(&self.core, &content) {
            tracing::debug!(%damage, "an index cache is not brought up to date");
        }
    }

    /// Publishes the list of partitions.
    pub(super) fn publish_all(&self, structure: &Structure) {
        let lead = |p: &Partition| Pointer { low: p.nodes[0].low, number: p.entry };
        let content: Vec<_> = structure.partitions.iter().map(lead).collect();
        if let Err(damage) = self.top.replace::<S, R>(&self.core, &content) {
            tracing::debug!(%damage, "the list of partitions is not brought up to date");
        }
    }

    /// Publishes the index caches of all partitions, and the list of partitions.
    pub(super) fn publish_each(&self, structure: &Structure) {
        (0..structure.partitions.len()).for_each(|index| self.publish(structure, index));
        self.publish_all(structure);
    }
}
