//! Opening a journaled pool: its options, its working file, the rebuild, and the threads of the journal.

mod base;
mod leftovers;
mod opening;
mod options;
mod threads;
mod undo;
mod working;

pub(super) use base::{incomplete, leave, peek};
pub use leftovers::{WorkingFile, WorkingFileUse};
pub use options::JournalOptions;
pub(super) use threads::JournalThreads;
pub(super) use working::{Found, Owned, Search, Working, user_of, working_path};
