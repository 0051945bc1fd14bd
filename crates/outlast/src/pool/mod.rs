//! The pool: a file that holds blocks, and the roots that lead to them. It knows nothing about what
//! the blocks hold.
//!
//! From the bottom up: [`layout`] (the on-media structs), [`geometry`] (pages, regions, size
//! classes), [`identity`] (which file is the pool's), [`header`], [`gate`] (which threads may store, and
//! when), [`alloc`] (space), [`core`] (all of these, combined for the indexes), [`unlinked`] (blocks
//! that are not linked yet), [`roots`] (the table of roots), [`batch`] (the log of a batch).

pub mod alloc;
pub mod backing;
pub mod batch;
pub mod bugs;
pub mod clock;
pub mod core;
pub mod gate;
pub mod geometry;
pub mod hash;
pub mod header;
pub mod identity;
pub mod layout;
pub mod points;
mod relocation;
pub mod roots;
pub mod unlinked;

pub use crate::reclaim::threads;
