//! The proof harness of outlast: what a crash can leave is built, reopened and checked.
//!
//! - [`explore`]: what a crash can leave at any moment of recorded runs is built, reopened
//!   and checked, and for a sample of the images, what a second crash during recovery
//!   leaves; [`tally`] counts the images and keeps them distinct;
//! - [`model`]: what a crash can leave of a recorded run;
//! - [`canary`]: every flush and fence done wrong, one at a time: the suite must notice;
//! - [`planted`]: published bugs, patched into the shipped operations: all must be found;
//! - [`response`]: at each answer, everything the operation stored is durable;
//! - [`history`]: whether what was answered, crashes included, is strictly linearizable;
//! - [`schedule`]: chosen interleavings of a few threads, and crashes in them;
//! - [`disk`]: a file system that fails, or loses power, at each of a pool's calls;
//! - [`suite`]: all of the above for one scheme and record form, and one line of summary;
//! - [`torture`]: a process killed with SIGKILL again and again, against expectations
//!   kept outside of the pool;
//! - [`vm`]: a kernel in a virtual machine, a real DAX file system, and power cuts;
//! - [`growth`]: the size of a pool whose process is killed again and again; [`full`]: one
//!   that cannot grow and is killed when almost full; [`guard`]: references held for long;
//! - [`fuzz`]: pools damaged in their structure, and whether verification tells the truth.
//!
//! Everything works through the trait [`Index`](outlast::index::Index), for each scheme
//! and both record forms; what a scheme adds to it stands in its folder of [`schemes`]. Keys and values are named by numbers ([`codec`]), the contents
//! of a pool by a [`State`](state::State) of numbers, and operations on it are made by a
//! [`Session`](session::Session) that holds every answer against the state.

pub mod blocks;
pub mod canary;
pub mod codec;
pub mod disk;
pub mod explore;
pub mod full;
pub mod fuzz;
pub mod growth;
pub mod guard;
pub mod history;
pub mod model;
pub mod planted;
pub mod random;
pub mod response;
pub mod schedule;
pub mod schemes;
pub mod session;
pub mod state;
pub mod stop;
pub mod suite;
pub mod tally;
pub mod torture;
pub mod vm;
