//! The code that all schemes share.
//!
//! A scheme supplies its structure, its commit points and its concurrency protocol. The kit
//! supplies everything else, as parts that a scheme can take or leave.

pub(crate) mod arrays;
pub(crate) mod audit;
pub(crate) mod cells;
pub(crate) mod change;
pub(crate) mod collect;
pub(crate) mod directory;
#[cfg(test)]
pub(crate) mod interleaved;
pub(crate) mod lock;
pub(crate) mod lookup;
pub(crate) mod media;
pub(crate) mod open;
pub(crate) mod parallel;
pub(crate) mod row;
pub(crate) mod table;
pub(crate) mod unlinked;
pub(crate) mod walk;
