//! Lets other processes read a pool while a program has it open.
//!
//! A pool that is open for writing is locked, because no other process can know what the owner's threads
//! are doing. With [`serve`], a thread of the owner answers: what a pool holds can be looked up, counted,
//! scanned and copied by the command `outlast`, or by a program with a [`Client`], without stopping the owner.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("ages.pool");
//! use outlast::PoolOptions;
//!
//! // In the program that has the pool:
//! // SAFETY: nobody else writes this file while the pool is open.
//! let pool = unsafe { PoolOptions::new().open_or_create(&path)? };
//! let ages = pool.map::<str, u64>("ages")?;
//! ages.put("Ada", &36)?;
//! let serving = outlast_live::serve(&pool, &path)?;
//!
//! // In another one; or on the command line: outlast get --pool ages.pool Ada
//! let client = outlast_live::Client::of(&path);
//! let age = client.map("ages")?.get(b"Ada")?;
//! assert_eq!(age, Some(36u64.to_le_bytes().to_vec()));
//! # drop(serving);
//! # Ok(())
//! # }
//! ```
//!
//! # What a reader sees
//!
//! The same as a thread of the owner: each lookup has the value of some moment during the call, and what it
//! returns has been acknowledged or will be, and survives the owner's death. A scan returns each record that is
//! present throughout exactly once, with a value that it had at some moment during the scan. [`Client::copy`]
//! is the pool at one moment, and holds the owner's writers back while it is made, as
//! [`Pool::snapshot`](outlast::Pool::snapshot) does.
//!
//! # Who may read
//!
//! The socket lies beside the pool, as `PATH.live`. Whoever may read the pool's file is answered: its owner,
//! its group (as the primary group of the process that asks), others, or root. Nobody can change anything.

mod client;
mod server;
mod wire;

pub use client::{Client, LiveMap, Records};
pub use server::{Serving, serve};

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// The directory and the name of the socket of the pool at `path`.
fn socket_of(path: &Path) -> std::io::Result<(File, OsString)> {
    // Through a link, the socket is beside the file itself, whatever the program's name for it.
    let path = path.canonicalize()?;
    let no_file = || std::io::Error::other("the path names no file");
    let directory = File::open(path.parent().ok_or_else(no_file)?)?;
    let mut name = path.file_name().ok_or_else(no_file)?.to_owned();
    name.push(".live");
    Ok((directory, name))
}

/// A path to a file in an open directory. It is short, because a socket's name may have 107 bytes at most.
fn inside(directory: &File, name: &std::ffi::OsStr) -> PathBuf {
    Path::new(&format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name)
}
