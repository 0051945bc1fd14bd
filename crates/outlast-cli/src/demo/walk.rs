//! Finds the files below a directory.

use super::items::Item;
use crate::failure::Failure;
use crate::interrupt;
use indicatif::ProgressBar;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The result of a walk.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) files: Vec<Item>,
    /// Files and directories that could not be read.
    pub(super) unreadable: u64,
    /// Whether there are more files than requested.
    pub(super) more: bool,
}

/// Finds up to `max` regular files below `dir`, in a stable order. Stays on one file system and
/// follows no link. Names may contain any bytes.
pub(super) fn walk(dir: &Path, max: usize, bar: &ProgressBar) -> Result<Found, Failure> {
    let action = || format!("reading {}", dir.display());
    let dir = dir.canonicalize().map_err(|e| Failure::io(action(), &e))?;
    let root = dir.metadata().map_err(|e| Failure::io(action(), &e))?;
    if !root.is_dir() {
        return Err(Failure::Failed(format!("{} is not a directory", dir.display())));
    }
    let mut found = Found::default();
    let mut waiting = vec![dir];
    while let Some(dir) = waiting.pop() {
        interrupt::check()?;
        let Ok(entries) = std::fs::read_dir(&dir) else {
            found.unreadable += 1;
            continue;
        };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort_unstable();
        let first_below = waiting.len();
        for path in paths {
            let Ok(meta) = path.symlink_metadata() else { continue };
            if meta.dev() != root.dev() {
                continue;
            }
            if meta.is_dir() {
                waiting.push(path);
            } else if meta.is_file() {
                if found.files.len() == max {
                    found.more = true;
                    return Ok(found);
                }
                if is_readable(&path) {
                    found.files.push(Item::file(&path));
                    bar.inc(1);
                } else {
                    found.unreadable += 1;
                }
            }
        }
        // The stack returns the directory that was pushed last. Reverse the new ones, so that they
        // come in sorted order.
        waiting[first_below..].reverse();
    }
    Ok(found)
}

fn is_readable(path: &Path) -> bool {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    File::options().read(true).custom_flags(flags).open(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    fn names(found: &Found, dir: &Path) -> Vec<Vec<u8>> {
        let dir = dir.canonicalize().unwrap();
        found
            .files
            .iter()
            .map(|f| f.path().strip_prefix(&dir).unwrap().as_os_str().as_bytes().to_vec())
            .collect()
    }

    #[test]
    fn regular_files_are_found_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let odd = OsStr::from_bytes(b"odd \xff\t\n name");
        std::fs::create_dir_all(dir.path().join("b/c")).unwrap();
        for name in [Path::new("a"), Path::new("b/c/d"), Path::new("b/e"), Path::new(odd)] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        symlink("/etc/passwd", dir.path().join("link")).unwrap();
        symlink("..", dir.path().join("b/loop")).unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(dir.path().join("pipe")).status();
        assert!(pipe.unwrap().success());

        let found = walk(dir.path(), 100, &progress::none()).unwrap();
        assert_eq!(names(&found, dir.path()), [&b"a"[..], odd.as_bytes(), b"b/e", b"b/c/d"]);
        assert_eq!((found.unreadable, found.more), (0, false));
        let two = walk(dir.path(), 2, &progress::none()).unwrap();
        assert_eq!((two.files.len(), two.more), (2, true));
    }

    #[test]
    fn what_is_no_directory_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(walk(file.path(), 1, &progress::none()).is_err());
        assert!(walk(Path::new("/no/such/directory"), 1, &progress::none()).is_err());
    }
}
