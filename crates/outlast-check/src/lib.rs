//! The proof harness of outlast: what a crash can leave is built, reopened and checked.
//!
//! - [`prefix`]: for every store of a recorded run, the image of a crash right after it,
//!   and for a sample of those, every image of a second crash during recovery;
//! - [`model`]: what a crash can leave of a recorded run;
//! - [`response`]: at each answer, everything the operation stored is durable;
//! - [`history`]: whether what was answered, crashes included, is strictly linearizable;
//! - [`schedule`]: chosen interleavings of a few threads, and crashes in them;
//! - [`torture`]: a process killed with SIGKILL again and again, against expectations
//!   kept outside of the pool;
//! - [`growth`]: the size of a pool whose process is killed again and again; [`full`]: one
//!   that cannot grow and is killed when almost full; [`guard`]: references held for long.
//!
//! Everything works through the trait [`Index`](outlast::index::Index), for each scheme
//! and both record forms. Keys and values are named by numbers ([`codec`]), the contents
//! of a pool by a [`State`](state::State) of numbers, and operations on it are made by a
//! [`Session`](session::Session) that holds every answer against the state.

pub mod codec;
pub mod full;
pub mod growth;
pub mod guard;
pub mod history;
pub mod model;
pub mod prefix;
pub mod random;
pub mod response;
pub mod schedule;
pub mod session;
pub mod state;
pub mod torture;
