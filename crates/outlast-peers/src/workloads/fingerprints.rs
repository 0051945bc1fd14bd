//! Fingerprints of a file tree: group hashing's trace `Fingerprint` (4.1).
//!
//! The paper takes 16-byte MD5 fingerprints from snapshots of a server that are no longer public.
//! Here, they are those of the files of any tree at hand. A structure with 8-byte keys takes the
//! first half of each.

use super::md5::Md5;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The MD5 of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 16]);

impl Fingerprint {
    /// The first half, as a key.
    pub fn key(self) -> u64 {
        self.0.first_chunk().map_or(0, |half| u64::from_be_bytes(*half))
    }

    /// Computes the fingerprint of a file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn of(path: &Path) -> io::Result<Fingerprint> {
        let mut file = File::open(path)?;
        let (mut md5, mut part) = (Md5::new(), vec![0; 1 << 16]);
        loop {
            match file.read(&mut part)? {
                0 => return Ok(Fingerprint(md5.finish())),
                bytes => md5.add(&part[..bytes]),
            }
        }
    }
}

/// Returns the paths of the regular files of a tree, in an order that depends only on their names.
/// Symbolic links are not followed.
///
/// # Errors
/// If a directory cannot be read.
pub fn files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut found, mut left) = (Vec::new(), vec![root.to_owned()]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                left.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_tree_has_a_fingerprint_for_each_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let files = files(root).unwrap();
        assert!(files.is_sorted() && files.iter().all(|file| file.starts_with(root)));
        assert!(files.contains(&root.join("src/workloads/md5.rs")), "in a folder of a folder");
        let keys: HashSet<u64> =
            files.iter().map(|file| Fingerprint::of(file).unwrap().key()).collect();
        assert_eq!(keys.len(), files.len(), "no two files here are equal");
        assert!(Fingerprint::of(&root.join("none")).is_err());
        let digest = *b"\x01\x02\x03\x04\x05\x06\x07\x08\x09aaaaaaa";
        assert_eq!(Fingerprint(digest).key(), 0x0102_0304_0506_0708);
    }
}
