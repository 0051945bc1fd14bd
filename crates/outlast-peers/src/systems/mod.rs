//! The structures, a module each.
//!
//! They are not crash-safe, and no tool of the library tests them for crashes. Each module says
//! which of the published crash bugs its structure has. Bugs that are not listed there are in the
//! published code, but not in its paper's description.

mod cceh;
mod cells;
mod clht;
mod cmap;
mod fast_fair;
mod fp_tree;
mod group;
mod leaf;
mod level;
mod linear;
mod nv_skip_list;
mod path;
mod pfht;
mod skip_list;
mod wb_tree;
mod wort;

use crate::shared::Arena;
use crate::{Full, Options, Peer};
use cceh::Cceh;
use clht::Clht;
use cmap::Cmap;
use fast_fair::FastFair;
use fp_tree::FpTree;
use group::Group;
use level::Level;
use linear::Linear;
use nv_skip_list::NvSkipList;
use outlast::internals::pmem::{FlushMode, Real, Seam};
use path::Path;
use pfht::Pfht;
use skip_list::SkipList;
use std::fmt;
use wb_tree::WbTree;
use wort::Wort;

/// A structure to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum System {
    /// Level hashing (OSDI 2018).
    Level,
    /// CCEH (FAST 2019), with MSB segment index and lazy deletion.
    Cceh,
    /// P-CLHT (RECIPE, SOSP 2019), with helping resize.
    Clht,
    /// The concurrent hash map of libpmemobj-cpp.
    Cmap,
    /// Linear probing, with an undo log or without.
    Linear {
        /// Whether it has the log.
        log: bool,
    },
    /// PFHT, with an undo log or without.
    Pfht {
        /// Whether it has the log.
        log: bool,
    },
    /// Path hashing, with an undo log or without.
    Path {
        /// Whether it has the log.
        log: bool,
    },
    /// Group hashing as its paper has it (ICPP 2018).
    Group,
    /// FAST-FAIR (FAST 2018).
    FastFair,
    /// NV-Skiplist: leaves in persistent memory under a skip list in DRAM.
    NvSkipList,
    /// wB+-Tree (VLDB 2015).
    WbTree,
    /// FPTree (SIGMOD 2016), with locks in the place of hardware transactions.
    FpTree,
    /// WORT (FAST 2017).
    Wort,
    /// A plain skip list.
    SkipList {
        /// Whether it lies in persistent memory. Otherwise, the seam sees nothing of it.
        durable: bool,
    },
}

impl System {
    /// All of them.
    pub const ALL: [System; 18] = [
        System::Level,
        System::Cceh,
        System::Clht,
        System::Cmap,
        System::Linear { log: false },
        System::Linear { log: true },
        System::Pfht { log: false },
        System::Pfht { log: true },
        System::Path { log: false },
        System::Path { log: true },
        System::Group,
        System::FastFair,
        System::NvSkipList,
        System::WbTree,
        System::FpTree,
        System::Wort,
        System::SkipList { durable: true },
        System::SkipList { durable: false },
    ];

    /// Creates an empty one in an arena of its own. A clone of the seam sees its accesses.
    ///
    /// # Errors
    /// [`Full`], if the arena is too small for the initial structure.
    pub fn create<S: Seam>(self, options: &Options, seam: S) -> Result<Box<dyn Peer>, Full> {
        let arena = Arena::new(seam, options.arena_bytes).touched(options.touched_bytes);
        Ok(match self {
            System::Level => Box::new(Level::create(arena, options)?),
            System::Cceh => Box::new(Cceh::create(arena, options)?),
            System::Clht => Box::new(Clht::create(arena, options)?),
            System::Cmap => Box::new(Cmap::create(arena, options)?),
            System::Linear { log } => Box::new(Linear::create(arena, log, options)?),
            System::Pfht { log } => Box::new(Pfht::create(arena, log, options)?),
            System::Group => Box::new(Group::create(arena, options)?),
            System::FastFair => Box::new(FastFair::create(arena, options)?),
            System::NvSkipList => Box::new(NvSkipList::create(arena, options)?),
            System::WbTree => Box::new(WbTree::create(arena, options)?),
            System::FpTree => Box::new(FpTree::create(arena, options)?),
            System::Wort => Box::new(Wort::create(arena, options)?),
            System::SkipList { durable: true } => Box::new(SkipList::create(arena, options)?),
            System::SkipList { durable: false } => {
                let dram = Arena::new(Real::new(FlushMode::None), options.arena_bytes);
                let dram = dram.touched(options.touched_bytes);
                Box::new(SkipList::create(dram, options)?)
            }
            System::Path { log } => Box::new(Path::create(arena, log, options)?),
        })
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            System::Level => "level",
            System::Cceh => "cceh",
            System::Clht => "p-clht",
            System::Cmap => "cmap",
            System::Linear { log: false } => "linear",
            System::Linear { log: true } => "linear-l",
            System::Pfht { log: false } => "pfht",
            System::Pfht { log: true } => "pfht-l",
            System::Path { log: false } => "path",
            System::Path { log: true } => "path-l",
            System::Group => "group",
            System::FastFair => "fast-fair",
            System::NvSkipList => "nv-skiplist",
            System::WbTree => "wb+-tree",
            System::FpTree => "fptree",
            System::Wort => "wort",
            System::SkipList { durable: true } => "skiplist",
            System::SkipList { durable: false } => "skiplist-dram",
        })
    }
}
