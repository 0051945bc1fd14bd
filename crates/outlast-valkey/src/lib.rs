//! outlast inside Valkey and Redis.
//!
//! A module for both servers, whose commands (`OL.SET`, `OL.GET`, ...) keep their data in a pool of
//! outlast: after kill -9, the server is back within milliseconds, and nothing is lost. With `redirect`,
//! the servers' own commands of the same names use the pool.
//!
//! | file | what |
//! |---|---|
//! | `store`, `place`, `content` | what lies in which map of the pool, under which keys, in which form |
//! | `command` | the table of the commands, and how they are called |
//! | `strings`, `hashes`, `ordered`, `keyspace` | the commands |
//! | `copy` | a copy of everything, for replicas |
//! | `parse`, `reply` | arguments, results and errors, as the servers have them |
//! | `module` | the module: loading, settings, replies, replication, redirection |
//!
//! Only `module` knows the server. So the commands can be tested without one.

pub mod command;
pub mod content;
pub mod copy;
mod hashes;
mod keyspace;
#[cfg(feature = "valkey")]
mod module;
mod ordered;
mod parse;
pub mod place;
pub mod reply;
pub mod store;
mod strings;
