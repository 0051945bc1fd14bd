//! What every scheme does the same way, once.
//!
//! A scheme supplies its structure, its commit points and its concurrency protocol. The kit
//! supplies the rest, as parts that a scheme takes or leaves.

pub(crate) mod audit;
pub(crate) mod change;
pub(crate) mod lock;
pub(crate) mod lookup;
pub(crate) mod media;
pub(crate) mod open;
pub(crate) mod table;
pub(crate) mod unlinked;
pub(crate) mod walk;
