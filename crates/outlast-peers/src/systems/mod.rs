//! The structures, a module each.
//!
//! They are not crash-safe, and no tool of the library tests them for crashes. Each module says
//! which of the published crash bugs its structure has. Bugs that are not listed there are in the
//! published code, but not in its paper's description.

mod cceh;
mod level;

use crate::shared::Arena;
use crate::{Full, Options, Peer};
use cceh::Cceh;
use level::Level;
use outlast::internals::pmem::Seam;
use std::fmt;

/// A structure to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum System {
    /// Level hashing (OSDI 2018).
    Level,
    /// CCEH (FAST 2019), with MSB segment index and lazy deletion.
    Cceh,
}

impl System {
    /// All of them.
    pub const ALL: [System; 2] = [System::Level, System::Cceh];

    /// Creates an empty one in an arena of its own. A clone of the seam sees its accesses.
    ///
    /// # Errors
    /// [`Full`], if the arena is too small for the initial structure.
    pub fn create<S: Seam>(self, options: &Options, seam: S) -> Result<Box<dyn Peer>, Full> {
        let arena = Arena::new(seam, options.arena_bytes);
        Ok(match self {
            System::Level => Box::new(Level::create(arena, options)?),
            System::Cceh => Box::new(Cceh::create(arena, options)?),
        })
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            System::Level => "level",
            System::Cceh => "cceh",
        })
    }
}
