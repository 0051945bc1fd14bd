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
//! | working file ([`Notes`](crate::pmem::Notes)) | the pool as it is now, and which lines have changed. It survives the death of the process, but no power loss |
//! | base ([`base`]) | the pool as it was at some checkpoint, or is becoming in the next one |
//! | [`meta`], in two pages of the base | from which epoch on the base needs the segments |
//! | segments ([`log`]) | the lines that changed since, epoch by epoch |
//!
//! [`running`] is what the threads of an open pool do with them.
//!
//! An *epoch* is what changed between two cuts. Epochs have consecutive numbers. An epoch is
//! durable once its blocks are in a segment and that segment is synced.
//!
//! A *life* begins when a working file is made. Its random id is in the working file, in `meta` and
//! in each segment. Files of another life are not used. It begins with an empty segment: without any
//! segment of its life, a base that was not closed is refused. `meta` is in the base, so that no base
//! is completed from the journal of another one: a snapshot in the place of a base has none.
//!
//! # Invariants
//!
//! 1. Every page of the base that differs from the pool at the end of epoch `checkpoint` does so
//!    only in lines that epochs after `checkpoint`, up to `reached`, contain. (Lines that are stored
//!    to and never flushed may have any content, as in any crash.)
//! 2. So the base with the epochs after `checkpoint`, up to any durable one that is at least
//!    `reached`, is the pool at the end of that epoch.
//! 3. Segments hold all epochs after `checkpoint` that were called durable.
//!
//! # What is asked of the disk
//!
//! What was synced stays, unless a later write goes to the same sector, of 4,096 bytes or less. If the
//! power fails during such a write, a sector of the base has old and new bytes. A sector of a segment
//! or of `meta` may be lost, whatever it held.
//!
//! # Steps
//!
//! An epoch:
//!
//! 1. Its blocks are written. A power loss leaves the epochs before: no block that shares a sector
//!    with theirs is written, and the epoch's last block is missing, or the checksum of one is wrong.
//! 2. fdatasync. The epoch is durable.
//!
//! A checkpoint:
//!
//! 1. Pages are copied, and an epoch that ended after that becomes durable.
//! 2. `meta` gets that epoch as `reached`, durably.
//! 3. The copies are written to the base. A power loss leaves pages that are old, new or torn, in
//!    lines that the epochs restore (invariant 1).
//! 4. After all pages, fdatasync of the base.
//! 5. `meta` gets `checkpoint`, durably, in both copies. Until then, the segments are needed.
//! 6. Segments whose epochs the base holds are deleted.
//!
//! A new segment: zeros are written under another name and synced, then the file is renamed and the
//! directory synced. Its header comes with its first epoch. Without a whole header, it is no segment.
//!
//! A failed write or fdatasync ends the use of its segment: the kernel reports a failure once, and
//! may have dropped the pages. The same lines are written again, into a new segment that continues
//! from the last durable epoch. What the failed segment holds after that epoch is void.
//!
//! A rebuild after a process has died may find in the page cache what the disk has refused, and syncs
//! that say nothing of it. It copies the last segment's epochs to a new one, and writes `meta` again.

pub mod backup;
pub mod base;
pub mod files;
pub mod log;
pub mod meta;
pub mod running;

#[cfg(test)]
mod tests;
