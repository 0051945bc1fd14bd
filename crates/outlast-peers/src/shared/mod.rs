//! What the structures share.

mod arena;
mod hash;
mod lock;
mod log;

pub use arena::{Arena, LINE};
pub use hash::{hash, second_hash};
pub use lock::{Locks, ReadGuard, RwLock, WriteGuard};
pub use log::UndoLog;
