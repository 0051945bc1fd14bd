//! The journal: what makes a pool on an ordinary disk survive a power loss.
//!
//! A journaled pool is worked on in memory, in a *working file*. Every flush of a cache line tells
//! the journal which line has changed. At intervals, while no operation is under way, the journal
//! takes the changed lines and writes them to the disk. So what a power loss leaves is a state that
//! lies between operations, and every scheme recovers from it as from any crash.
//!
//! # Files
//!
//! | file | what it holds |
//! |---|---|
//! | working file | the pool as it is now, and which lines have changed. It survives the death of the process, but no power loss |
//! | base | the pool as it was at some checkpoint, or is becoming in the next one |
//! | segments (`log`) | the lines that changed since, epoch by epoch |
//! | `meta` (`meta`) | from which epoch on the base needs the segments |
//!
//! An *epoch* is what changed between two cuts. Epochs have consecutive numbers. An epoch is
//! durable once its blocks are in a segment and that segment is synced.
//!
//! A *life* begins when a working file is made. Its random id is in the working file, in `meta` and
//! in each segment. Files of another life are not used.
//!
//! # Invariants
//!
//! 1. Every page of the base that differs from the pool at the end of epoch `checkpoint` does so
//!    only in lines that durable epochs after `checkpoint` contain.
//! 2. So the base with the epochs after `checkpoint`, up to any durable one that is at least
//!    `reached`, is the pool at the end of that epoch.
//! 3. Segments hold all epochs after `checkpoint` that were called durable.
//!
//! # Steps
//!
//! | step | writes, in order | a power loss in between leaves |
//! |---|---|---|
//! | epoch | blocks; fdatasync | the epochs before: the last block of the epoch is missing or its checksum is wrong |
//! | checkpoint | wait until all copied pages are of durable epochs; `meta` with `reached`; fdatasync; base pages; fdatasync; `meta` with `checkpoint`; fdatasync; segments deleted | by invariant 1, pages old, new or torn in lines that the epochs restore |
//! | new segment | zeros under another name; fsync; rename; fsync of the directory; header and first epoch; fdatasync | no such segment, or one without a whole header, which is none, or without a whole epoch |
//!
//! A failed write or fdatasync ends the use of its segment: the kernel reports a failure once, and
//! may have dropped the pages. The same lines are written again, into a new segment that continues
//! from the last durable epoch. What the failed segment holds after that epoch is void.

pub mod base;
pub mod files;
pub mod lines;
pub mod log;
pub mod meta;

#[cfg(test)]
mod tests;
