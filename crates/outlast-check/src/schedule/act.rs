//! One step of a thread's script, and the names of the maps.

use crate::history::Call;
use crate::session::Do;
use std::fmt;

/// The map that the threads work on.
pub const MAP: &str = "m";
/// The name under which histories record the creating and dropping of maps, as changes of one map:
/// its key `n` is present as long as the map [`other(n)`](other) exists.
pub const MAPS: &str = "(maps)";

/// Returns the name of another map.
pub fn other(number: u64) -> String {
    format!("other {number}")
}

/// One step of a thread's script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// An operation on the map.
    Call(Call),
    /// Puts a value with a batch, which holds the gate meanwhile.
    Batch(u64, u64),
    /// Does the same if the key has the first of these values, as a requirement of the batch.
    BatchIf(u64, u64, u64),
    /// Does a step of the pool's background work.
    Background,
    /// Makes the pool clean and durable.
    Sync,
    /// Closes the pool. Later operations are refused.
    Close,
    /// Opens the memory of the closed pool again. Later operations go there.
    Reopen,
    /// Gets a reference (`Get`), or reads the first part of an iteration (`Scan`), and keeps it
    /// until [`Act::Read`].
    Hold(Call),
    /// The same for another map.
    HoldOther(u64, Call),
    /// Reads through the reference that the thread keeps, or the rest of the iteration, and drops
    /// it.
    Read,
    /// Opens another map, or creates it.
    CreateMap(u64),
    /// Drops another map.
    DropMap(u64),
    /// Drops another map while the thread has a handle to it, and then drops the handle.
    DropHeld(u64),
}

impl Act {
    /// Returns the call that stands for this in a history, and its map.
    pub fn call(self) -> Option<(&'static str, Call)> {
        match self {
            Act::Call(call) | Act::Hold(call) => Some((MAP, call)),
            Act::Batch(key, value) => Some((MAP, Call::Change(key, Do::Put(value)))),
            Act::BatchIf(key, old, new) => Some((MAP, Call::Change(key, Do::Swap(old, new)))),
            Act::CreateMap(n) => Some((MAPS, Call::Change(n, Do::Put(1)))),
            Act::DropMap(n) | Act::DropHeld(n) => Some((MAPS, Call::Change(n, Do::Remove))),
            Act::HoldOther(..) | Act::Read => None,
            Act::Background | Act::Sync | Act::Close | Act::Reopen => None,
        }
    }

    /// Returns the kind of operation, for counting.
    pub fn kind(self) -> &'static str {
        match self {
            Act::Call(Call::Get(_)) => "get",
            Act::Call(Call::Scan) => "scan",
            Act::Call(Call::Change(_, change)) => match change {
                Do::Insert(_) => "insert",
                Do::Put(_) => "put",
                Do::Update(_) => "update",
                Do::Swap(..) => "swap",
                Do::Remove => "remove",
                Do::CompareRemove(_) => "compare and remove",
            },
            Act::Batch(..) | Act::BatchIf(..) => "batch",
            Act::Background => "background",
            Act::Sync => "sync",
            Act::Close => "close",
            Act::Reopen => "reopen",
            Act::Hold(_) | Act::HoldOther(..) => "hold",
            Act::Read => "read what is held",
            Act::CreateMap(_) => "create",
            Act::DropMap(_) => "drop",
            Act::DropHeld(_) => "drop held",
        }
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Act::Call(call) => write!(f, "{call}"),
            Act::Batch(key, value) => write!(f, "batch: put {value} at {key}"),
            Act::BatchIf(key, old, new) => write!(f, "batch: put {new} at {key} if {old}"),
            Act::CreateMap(n) => write!(f, "create {:?}", other(*n)),
            Act::DropMap(n) => write!(f, "drop {:?}", other(*n)),
            Act::DropHeld(n) => write!(f, "drop held {:?}", other(*n)),
            Act::Hold(call) => write!(f, "hold {call}"),
            Act::HoldOther(n, call) => write!(f, "hold {call} of {:?}", other(*n)),
            Act::Background | Act::Sync | Act::Close | Act::Reopen | Act::Read => {
                f.write_str(self.kind())
            }
        }
    }
}
