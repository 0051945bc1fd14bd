//! The proof harness of outlast. It builds what a crash can leave, reopens it and checks it.
//!
//! - [`explore`]: crash images of every moment of recorded runs, and, for a sample of the images,
//!   what a second crash during recovery leaves. [`tally`] counts the images and tells distinct
//!   ones apart.
//! - [`model`]: the model of what a crash can leave of a recorded run.
//! - [`mutants`]: mutation testing. Each flush and fence is done wrong, one at a time, and the suite
//!   must notice.
//! - [`seeded`]: seeded bugs. Published bugs are put into the shipped operations, and the harness
//!   must find each.
//! - [`response`]: whether everything that an operation stored is durable when it returns.
//! - [`history`]: whether the results of operations, across crashes, are strictly linearizable.
//! - [`schedule`]: chosen interleavings of a few threads, with crashes in them.
//! - [`disk`]: a file system that fails, or loses power, at each of a pool's calls. [`journal`]:
//!   what a power loss leaves of a pool with a journal.
//! - [`endings`]: a pool with a journal that is closed, dropped or killed while its background threads work.
//! - [`suite`]: all of the above for one scheme and record form, with a one-line summary.
//! - [`torture`]: a process killed with SIGKILL again and again, checked against expectations that
//!   are kept outside the pool.
//! - [`vm`]: a kernel in a virtual machine, a real DAX file system, and power cuts.
//! - [`growth`]: the size of a pool whose process is killed again and again. [`full`]: a pool that
//!   cannot grow and is killed when almost full. [`guard`]: references held for a long time.
//! - [`expiry`]: records that expire, by a clock of the harness's own.
//! - [`fuzz`]: pools with damaged structure, and whether verification tells the truth about them.
//!
//! Everything works through the trait [`Index`](outlast::internals::index::Index), for each scheme and both
//! record forms. A scheme's folder in [`structures`] describes its maps, and its folder in
//! [`schemes`] has what it adds to the tests. Numbers stand for keys and values ([`codec`]), and a
//! [`State`](state::State) of numbers stands for the contents of a pool. A
//! [`Session`](session::Session) runs operations on a pool and checks every result against its
//! state.

pub mod blocks;
pub mod codec;
pub mod disk;
pub mod endings;
pub mod expiry;
pub mod explore;
pub mod full;
pub mod fuzz;
pub mod growth;
pub mod guard;
pub mod history;
pub mod journal;
pub mod maps;
pub mod model;
pub mod mutants;
pub mod parts;
pub mod random;
pub mod response;
pub mod schedule;
pub mod schemes;
pub mod seeded;
pub mod session;
pub mod state;
pub mod stop;
pub mod structures;
pub mod suite;
pub mod tally;
pub mod torture;
pub mod vm;
