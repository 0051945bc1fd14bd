//! The journal: what makes a pool on an ordinary disk survive a power loss.
//!
//! Operations on a journaled pool work on a *working file*, by default in memory. On this medium, a
//! flush of a cache line only notes that the line has changed. At intervals the journal makes a
//! *cut*: it holds all writers back for a moment and copies the lines that were noted since the
//! last cut. Then it writes the copies to the disk. So a power loss leaves the pool as it was
//! between two operations, and every scheme recovers from that state as from any crash.
//!
//! # Files
//!
//! | file | what it holds |
//! |---|---|
//! | working file ([`Notes`](crate::pmem::Notes)) | the pool as it is now, and which lines have changed. It survives process death, but not a power loss |
//! | base ([`base`]) | the pool as of the last checkpoint, or on its way to the next one |
//! | [`meta`], in two pages of the base | the epoch after which the base needs the segments |
//! | segments ([`segment`], [`log`], [`epochs`]) | the lines that changed since, epoch by epoch |
//!
//! [`running`] has what the threads of an open pool do: cuts, commits and checkpoints. [`backup`]
//! copies a pool that another process has open.
//!
//! An *epoch* is the set of lines that changed between two cuts. Epochs have consecutive numbers. An
//! epoch is durable once its blocks are in a segment and that segment is synced.
//!
//! A *life* begins when a working file is built. It ends when the pool is closed: the base is the pool
//! then, and needs no segments. The life's random id is in the working file, in
//! `meta` and in each segment. Files of another life are not used. Every life begins with a durable
//! empty segment. So if a base was not closed and there is no segment of its life, its journal has
//! been removed, and the base is refused. `meta` is in the base itself, so that a base is never
//! completed from another base's journal: a snapshot that has been put in the place of a base has
//! no `meta`. A life ends only after the removal of earlier lives' segments is durable. So if the life
//! has ended, this file needs none of the segments that hold epochs of other lives or later epochs of
//! its own (a kept working file continues its life). They belong to a base of which this file is an
//! older copy. Then the file is refused, because opening it would delete them.
//!
//! # Invariants
//!
//! `checkpoint` and `reached` are the epochs that `meta` names.
//!
//! 1. The base equals the pool at the end of epoch `checkpoint`, except in lines that changed in the
//!    epochs after `checkpoint`, up to and including `reached`. (Lines that were stored to but never
//!    flushed may hold anything, as after any crash.)
//! 2. So for any durable epoch *n* that is at least `reached`, applying the epochs after `checkpoint`
//!    up to *n* to the base gives the pool at the end of epoch *n*.
//! 3. The segments hold every epoch after `checkpoint` that was reported durable.
//!
//! # What the disk must do
//!
//! The disk must keep what was synced, except in a sector (of 4,096 bytes or less) that is being
//! written when the power fails. In the base, each byte of such a sector must be old or new. In a
//! segment or in `meta`, the sector may lose everything that it held.
//!
//! # Steps
//!
//! An epoch:
//!
//! 1. Write its blocks. A power loss leaves all earlier epochs intact, because no block shares a
//!    sector with them. It leaves this epoch complete or void: if anything is missing, either the
//!    last block is missing or a block's checksum is wrong.
//! 2. fdatasync. The epoch is durable.
//!
//! A checkpoint repeats steps 1 to 3, some of the pages each time, until every page that the base needs
//! is written:
//!
//! 1. Copy pages of the pool. Then make a cut, and wait until the epoch that it ends is durable.
//! 2. Set `reached` in `meta` to the last durable epoch, durably.
//! 3. Write the copies to the base. A power loss leaves pages that are old, new or torn, but only in
//!    lines that the epochs restore (invariant 1).
//! 4. Once all pages are written, fdatasync the base.
//! 5. Set `checkpoint` in `meta`, durably, in both copies. Until then, the segments are needed.
//!    If the life ends here, `closed` is set with it. Before step 1, the directory was synced, so that
//!    the segments of earlier lives cannot come back. From before step 4 on, no epoch can become
//!    durable, so that this life leaves no epoch after `checkpoint`.
//! 6. Delete the segments that hold no epoch after `checkpoint`, except for the last one.
//!
//! A new segment: write a spare's header and zeros under another name and sync them, rename the file,
//! and sync the directory. The segment's header is written later, with the segment's first epoch. (A
//! life's first segment gets its header immediately.)
//!
//! A failed write or fdatasync ends the use of its segment, because the kernel reports a failure
//! only once and may have dropped the pages. The next attempt writes the same lines to a new
//! segment, which continues from the last durable epoch. Anything in the failed segment after that
//! epoch is void. Segments name the checksum of the epoch from which they continue, and `meta` that of
//! `reached`. So if the segment with the valid attempt at such an epoch is lost, a void attempt does
//! not take its place.
//!
//! # Evidence
//!
//! What has provably existed must not vanish. A rebuild comes to an epoch that is no older than any
//! that the files name, or it is refused and changes nothing. These name epochs that were durable:
//!
//! - `meta`: `reached`, as of each round of a checkpoint, each opening and each rebuild.
//! - A segment: the epoch from which it continues.
//! - A spare: the last durable epoch when it was made. So the loss of the last segment is noticed,
//!   except for epochs since then.
//! - A block: the epoch before its own.
//!
//! And these show that a file is not as it was, because no crash leaves it so. Files get their length
//! before they get their names, their headers never change except from a spare's to a segment's, and
//! nothing is written to a segment after a failure:
//!
//! - It is shorter than its header says.
//! - Its header names another number than its name, or an earlier epoch than the segment before it.
//! - A block is behind the place where the epochs end, other than of the epoch that was being written.
//! - A block names another owner than the header.
//!
//! A damaged header is made again: the first block of a segment names the owner, the epoch and the
//! checksum of the block before it. A header that a power loss tore is the same case. Its epoch was
//! not confirmed yet, and is used if it is complete.
//!
//! Nothing can show, after a power loss, that epochs at the end of the last segment are lost that only
//! this segment named: a record of them elsewhere would have to be synced with each epoch, too.
//!
//! After process death, the working file says which epoch was durable ([`epochs::fit`]). If the journal
//! has a later one, other than the one that the process has said to begin, the working file is an
//! older copy of itself. The real one may be elsewhere, so opening is refused. If the journal lacks an
//! epoch, the working file has it: the process begins a segment that continues from the working file's
//! epoch, so that a power loss is not taken for the end of the journal, and completes a checkpoint
//! before it confirms anything. The checkpoint deletes the damaged files.
//!
//! After process death, a rebuild may find data in the page cache that could not be written to the
//! disk. The kernel reported that only to the dead process, and a sync that succeeds now proves
//! nothing about that data. So the rebuild copies the last segment's epochs to a new segment, and
//! writes `meta` again.

pub mod backup;
pub mod base;
pub mod bugs;
pub mod epoch;
pub mod epochs;
pub mod files;
pub mod log;
pub mod meta;
pub mod running;
pub mod segment;
#[cfg(any(test, feature = "traced"))]
pub mod sim;

#[cfg(test)]
mod tests;
