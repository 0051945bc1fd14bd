//! The default locations of files, and checks for free space.

use crate::args::CopyArgs;
use crate::failure::Failure;
use outlast::PoolOptions;
use outlast::internals::pmem::{Mapping, free_bytes};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file that is removed when this is dropped.
pub(crate) struct RemovedAtEnd(pub(crate) PathBuf);

impl Drop for RemovedAtEnd {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The default pool of the demonstration.
pub(crate) fn default_demo_pool() -> Result<PathBuf, Failure> {
    let uid = rustix::process::geteuid().as_raw();
    own(std::env::temp_dir().join(format!("outlast-demo-{uid}.pool")))
}

/// Returns the path, unless something other than a regular file of this user's is there. Other
/// users can create a file with a predictable name in the temporary directory, and write to it
/// while it is mapped here.
fn own(path: PathBuf) -> Result<PathBuf, Failure> {
    match path.symlink_metadata() {
        Ok(meta) if !meta.is_file() || meta.uid() != rustix::process::geteuid().as_raw() => {
            let path = path.display();
            Err(Failure::Failed(format!("{path} is not a file of yours; name one with --pool")))
        }
        _ => Ok(path),
    }
}

/// The directory that holds `path`.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether a file or directory is on a file system that exists only in memory.
pub(crate) fn is_in_memory(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| Mapping::is_tmpfs(&file))
}

/// Fails if there is no directory `dir`, or if its file system says that it has less than `needed`
/// bytes free. The message of the latter failure ends with `advice`.
pub(crate) fn check_space(dir: &Path, needed: u64, advice: &str) -> Result<(), Failure> {
    if !dir.is_dir() {
        let dir = dir.display();
        return Err(Failure::Failed(format!("there is no directory {dir}; create it first")));
    }
    let free = free_bytes(dir)
        .map_err(|e| Failure::io(format!("reading the free space of {}", dir.display()), &e))?;
    // If the file system does not say what is free, the command finds out.
    if let Some(free) = free.filter(|&free| free < needed) {
        return Err(Failure::Failed(format!(
            "{} has {} free, {} are needed{advice}",
            dir.display(),
            indicatif::BinaryBytes(free),
            indicatif::BinaryBytes(needed),
        )));
    }
    Ok(())
}

/// Checks the path `to`, to which the pool `from` is to be copied. Fails if it is `-` or the pool
/// itself, or if anything exists there, except that `Some(true)` for `force` allows a regular file.
/// `None` is for a command without `--force`.
pub(crate) fn check_copy(from: &Path, to: &Path, force: Option<bool>) -> Result<(), Failure> {
    if to.as_os_str() == "-" {
        let why = "a copy cannot be written to standard output; for a file of this name, write ./-";
        return Err(Failure::Usage(why.into()));
    }
    let Ok(there) = to.symlink_metadata() else { return Ok(()) };
    let same = from.metadata().is_ok_and(|f| (f.dev(), f.ino()) == (there.dev(), there.ino()));
    let to = to.display();
    if same {
        return Err(Failure::Usage(format!("{to} is the pool itself")));
    }
    if !there.is_file() {
        return Err(Failure::Failed(format!("{to} exists and is not a regular file")));
    }
    match force {
        Some(true) => Ok(()),
        Some(false) => Err(Failure::Failed(format!("{to} exists already; --force replaces it"))),
        None => Err(Failure::Failed(format!("{to} exists already"))),
    }
}

/// Checks the path to which a pool is to be copied. Only a copy that is checked replaces a file, and only
/// a file that is no pool, or one that was closed.
pub(crate) fn check_target(from: &Path, args: &CopyArgs) -> Result<(), Failure> {
    check_copy(from, &args.to, Some(args.force))?;
    let to = args.to.display();
    if args.to.symlink_metadata().is_err() {
        return Ok(());
    }
    if args.no_verify {
        let why = "is not replaced by a pool that was not checked: name another file";
        return Err(Failure::Usage(format!("{to} {why}, or leave out --no-verify")));
    }
    let there = File::open(&args.to).map_err(|e| Failure::io(format!("opening {to}"), &e))?;
    if rustix::fs::flock(&there, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(Failure::Failed(format!("{to}: in use: another process has it open")));
    }
    let facts = PoolOptions::new().facts(&args.to).ok();
    if facts.and_then(|facts| facts.journal).is_some_and(|journal| !journal.closed) {
        let why =
            "is a pool that was not closed; its journal and its working file have what it lacks";
        return Err(Failure::Failed(format!("{to} {why}. `outlast restore` keeps all of it")));
    }
    Ok(())
}

/// Returns a name for a file that is to take the place of `path` once it is complete.
pub(crate) fn unfinished(path: &Path, suffix: &str) -> Result<RemovedAtEnd, Failure> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!("{suffix}-{}", std::process::id()));
    let name = PathBuf::from(name);
    match name.symlink_metadata() {
        Ok(_) => Err(Failure::Failed(format!("{} exists; remove it first", name.display()))),
        Err(_) => Ok(RemovedAtEnd(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_that_no_disk_has_is_missing() {
        assert!(check_space(Path::new("/"), 0, "").is_ok());
        assert!(check_space(Path::new("/"), u64::MAX, "").is_err());
        assert!(check_space(Path::new("/no/such/directory"), 0, "").is_err());
    }

    #[test]
    fn a_link_under_the_default_name_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        assert!(own(link).is_err());
        assert!(own(dir.path().join("nothing yet")).is_ok());
    }
}
