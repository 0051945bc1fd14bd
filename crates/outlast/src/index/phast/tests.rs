//! The inner nodes while a thread changes them.

use super::{Config, Phast};
use crate::index::kit::change::change;
use crate::index::{Change, Inline, Previous};
use crate::pmem::{Control, FlushMode, Offset, Real, Traced, Word};
use crate::pool::backing::{Backing, Heap};
use crate::pool::core::{Core, CoreOptions, root_offset};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

type Index = Phast<Traced, Inline>;

/// Before each access, checks that no leaf is in two nodes that readers can use.
#[derive(Clone, Default)]
struct Watch(Arc<Watched>);

#[derive(Default)]
struct Watched {
    index: OnceLock<Index>,
    /// The most nodes that had leaves at any time.
    nodes: AtomicU64,
}

impl Control for Watch {
    fn before(&self, _: usize, _: bool) {
        let Some(index) = self.0.index.get() else { return };
        let (seam, mut seen, mut nodes) = (Real::new(FlushMode::None), HashMap::new(), 0);
        // The test makes no more nodes than this. The index's own accesses go on meanwhile, so this
        // takes none of its mutexes.
        for number in 0..32 {
            let Some(node) = index.nodes.made(&seam, number) else { continue };
            if node.is_changing(&seam) {
                continue;
            }
            nodes += u64::from(node.len(&seam) > 0);
            for entry in node.entries(&seam) {
                let other = seen.insert(entry.leaf, number);
                assert!(other.is_none(), "leaf {} is in nodes {other:?} and {number}", entry.leaf);
            }
        }
        self.0.nodes.fetch_max(nodes, Ordering::Relaxed);
    }
}

/// Two threads that come to a leaf through different nodes do not exclude each other. A thread can
/// come to any node at any time, because it can have an old hint, and numbers of nodes are reused.
#[test]
fn a_leaf_is_never_in_two_nodes_that_can_be_read() {
    let watch = Watch::default();
    let seam = Traced::with_control(Box::new(watch.clone()));
    let options = CoreOptions { page_bits: 12, ..CoreOptions::default() };
    let core = Core::create(Backing::Heap(Heap::new(&[], 4 << 20, 0)), seam, options).unwrap();
    let (core, shape) = (Arc::new(core), Config::new(4, 4, 2));
    let passed = core.enter().unwrap();
    let words = Index::create(&core, shape).unwrap();
    let root = core.memory.at(Offset::<Word>::new(root_offset(0).raw() + 8)).unwrap();
    core.memory.store(root, words[0], &super::points::CREATE);
    drop(passed);
    let index = Index::open(&core, 0, shape).unwrap();
    assert!(watch.0.index.set(index).is_ok());
    let index = watch.0.index.get().unwrap();
    for _ in 0..3 {
        for key in 0..60 {
            let key = key * 7 % 60;
            assert!(change(index, key, Change::Insert(key), Previous::UNWANTED).unwrap().applied);
        }
        for key in 0..60 {
            assert!(change(index, key, Change::Remove, Previous::UNWANTED).unwrap().applied);
        }
    }
    let (nodes, splits) =
        (watch.0.nodes.load(Ordering::Relaxed), index.counters.growth().doublings);
    assert!((4..32).contains(&nodes) && splits > nodes, "{nodes} nodes, {splits} splits");
}
