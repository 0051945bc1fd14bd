//! Sets `OUTLAST_COMMIT`: the commit of the sources of this program and of the library.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The sources of the program, relative to the root of the workspace.
const SOURCES: [&str; 5] =
    ["Cargo.lock", "Cargo.toml", "crates/outlast", "crates/outlast-bench", "crates/outlast-peers"];

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    // Git must not take locks, which would disturb someone who works in the tree meanwhile.
    let mut command = Command::new("git");
    let output = command.arg("--no-optional-locks").args(arguments).current_dir(root).output();
    let output = output.ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn commit(root: &Path) -> Option<String> {
    // If the sources were unpacked inside another repository, its commit is not theirs.
    let top = PathBuf::from(git(root, &["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    // These files change when another commit becomes the current one.
    for name in ["HEAD", "logs/HEAD"] {
        let path = root.join(git(root, &["rev-parse", "--git-path", name])?);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    let commit = git(root, &["rev-parse", "--short=12", "HEAD"])?;
    let changes = git(root, &[&["status", "--porcelain", "--"], &SOURCES[..]].concat())?;
    Some(if changes.is_empty() { commit } else { commit + "-dirty" })
}

fn main() {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    let root = root.join("../..");
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    let commit = commit(&root).unwrap_or_else(|| "unknown".into());
    println!("cargo::rustc-env=OUTLAST_COMMIT={commit}");
}
