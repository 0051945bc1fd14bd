//! What the structures share.

mod arena;
mod hash;
mod keys;
mod lock;
mod log;

pub use arena::{Arena, LINE};
pub use hash::{hash, second_hash};
pub use keys::{Keys, second_half};
pub use lock::{Locks, ReadGuard, RwLock, WideLock, WriteGuard};
pub use log::UndoLog;
