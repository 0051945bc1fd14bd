//! The commands, one per file.

pub(crate) mod accept;
pub(crate) mod backup;
pub(crate) mod compact;
pub(crate) mod completions;
pub(crate) mod count;
pub(crate) mod del;
pub(crate) mod drop;
pub(crate) mod get;
mod input;
pub(crate) mod load;
pub(crate) mod maps;
pub(crate) mod put;
mod records;
pub(crate) mod restore;
pub(crate) mod salvage;
pub(crate) mod scan;
pub(crate) mod snapshot;
pub(crate) mod stat;
pub(crate) mod ttl;
mod unfinished;
pub(crate) mod verify;
pub(crate) mod working_files;
