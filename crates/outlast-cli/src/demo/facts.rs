//! The data stored about a file, and how it is collected.

use super::items::Item;
use super::random::mix;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The greatest number of bytes that are read from a file.
pub(super) const READ_BYTES_MAX: usize = 64 << 10;

/// The data stored about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct FileFacts {
    pub(super) size: u64,
    pub(super) modified_ns: i64,
    /// A fingerprint of the bytes that were read, seeded with the revision. Both halves change with
    /// every update, so a torn update is noticed.
    pub(super) fingerprint: [u64; 2],
    /// How many operations of the script the record's item has had, including the one that stored
    /// this.
    pub(super) revision: u64,
}
outlast::fixed_record!(FileFacts, "outlast-demo-file/1");

/// The number of words that the facts take in a journal.
pub(super) const FACTS_WORDS: usize = size_of::<FileFacts>() / 8;

impl FileFacts {
    pub(super) fn words(&self) -> [u64; FACTS_WORDS] {
        let [low, high] = self.fingerprint;
        [self.size, self.modified_ns as u64, low, high, self.revision]
    }

    pub(super) fn from_words(words: [u64; FACTS_WORDS]) -> Self {
        let [size, modified_ns, low, high, revision] = words;
        FileFacts { size, modified_ns: modified_ns as i64, fingerprint: [low, high], revision }
    }
}

/// Collects the facts of items.
pub(super) struct Observer {
    buffer: Vec<u8>,
}

impl Observer {
    pub(super) fn new() -> Self {
        Observer { buffer: Vec::with_capacity(READ_BYTES_MAX) }
    }

    /// Returns the facts of `item`. If a file can no longer be read, its size and time are 0.
    pub(super) fn observe(&mut self, item: &Item, revision: u64) -> FileFacts {
        self.buffer.clear();
        let (size, modified_ns) = match item {
            Item::File(_) => self.read(item).unwrap_or_default(),
            Item::Generated(number) => {
                generate(*number, &mut self.buffer);
                (self.buffer.len() as u64, *number as i64)
            }
        };
        let fingerprint = [1, 2].map(|half| {
            let secrets = RapidSecrets::seed_cpp(mix(revision << 2 | half));
            rapidhash_v3_seeded(&self.buffer, &secrets)
        });
        FileFacts { size, modified_ns, fingerprint, revision }
    }

    fn read(&mut self, item: &Item) -> std::io::Result<(u64, i64)> {
        // The file may be a pipe by now, and opening it must not block.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(item.path(), flags, Mode::empty())?);
        let meta = file.metadata()?;
        if meta.is_file() {
            file.take(READ_BYTES_MAX as u64).read_to_end(&mut self.buffer)?;
        }
        Ok((meta.len(), meta.mtime().wrapping_mul(1_000_000_000).wrapping_add(meta.mtime_nsec())))
    }
}

/// Appends the content of the generated record `number`: 64 bytes to 4 KiB.
fn generate(number: u64, buffer: &mut Vec<u8>) {
    let words = 8 + mix(number) % 505;
    buffer.extend((0..words).flat_map(|i| mix(number << 16 | i).to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn facts_come_back_from_words() {
        let facts = Observer::new().observe(&Item::Generated(7), 3);
        assert_eq!(FileFacts::from_words(facts.words()), facts);
        let bytes: Vec<u8> = facts.words().iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(bytes, facts.as_bytes());
    }

    #[test]
    fn a_revision_changes_both_halves_of_the_fingerprint() {
        let mut observer = Observer::new();
        let [one, two] = [1, 2].map(|r| observer.observe(&Item::Generated(7), r).fingerprint);
        assert!(one[0] != two[0] && one[1] != two[1] && one[0] != one[1]);
    }

    #[test]
    fn no_more_than_the_limit_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let facts_of = |path: &Path| Observer::new().observe(&Item::file(path), 1);
        std::fs::write(&path, vec![1; READ_BYTES_MAX + 1]).unwrap();
        let before = facts_of(&path);
        assert_eq!(before.size, READ_BYTES_MAX as u64 + 1);
        let mut changed = vec![1; READ_BYTES_MAX + 1];
        changed[READ_BYTES_MAX] = 2;
        std::fs::write(&path, &changed).unwrap();
        assert_eq!(facts_of(&path).fingerprint, before.fingerprint);
        changed[READ_BYTES_MAX - 1] = 2;
        std::fs::write(&path, &changed).unwrap();
        assert_ne!(facts_of(&path).fingerprint, before.fingerprint);
        assert_eq!(facts_of(&dir.path().join("none")).size, 0);
    }
}
