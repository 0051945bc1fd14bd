//! Pool files for tests, and tests that run themselves again in a child process.

#![allow(dead_code, reason = "each test binary uses a part")]

use outlast::{Error, Pool, PoolOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

pub(crate) fn dir() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pool");
    (dir, path)
}

pub(crate) fn create(path: &Path) -> Pool {
    // SAFETY: the file belongs to this test.
    unsafe { PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(path).unwrap() }
}

pub(crate) fn open(path: &Path) -> Result<Pool, Error> {
    // SAFETY: the file belongs to this test.
    unsafe { PoolOptions::new().open(path) }
}

/// Makes a closed pool with a thousand records.
pub(crate) fn filled() -> (TempDir, PathBuf) {
    let (dir, path) = dir();
    let pool = create(&path);
    let map = pool.map::<u64, u64>("numbers").unwrap();
    for n in 0..1000 {
        assert!(map.insert(&n, &(n + 7)).unwrap());
    }
    pool.close().unwrap();
    (dir, path)
}

pub(crate) fn check_filled(pool: &Pool) {
    let map = pool.map::<u64, u64>("numbers").unwrap();
    for n in 0..1000 {
        assert_eq!(map.get(&n).unwrap(), Some(n + 7));
    }
    assert_eq!(map.get(&1000).unwrap(), None);
}

/// Runs one of this test program's tests again, in a child process.
pub(crate) fn in_child(test: &str, path: &Path) -> Command {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env("OUTLAST_TEST_CHILD", path);
    child
}

pub(crate) fn child_path() -> Option<PathBuf> {
    std::env::var_os("OUTLAST_TEST_CHILD").map(PathBuf::from)
}
