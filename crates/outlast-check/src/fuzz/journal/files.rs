//! The files of a journaled pool: sparse copies of them, and the directory that they are in.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a page, and of a sector in the sense of the journal.
pub const PAGE: u64 = 4096;
/// The name of the pool's file.
pub const BASE: &str = "a.pool";
/// The name of the journal's directory.
pub const JOURNAL: &str = "journal";

/// A file's content: its length, and its pages that are not all zeros.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// The length in bytes.
    pub len: u64,
    pages: BTreeMap<u64, Arc<Vec<u8>>>,
}

/// The files by their names.
pub type Files = BTreeMap<String, Content>;

impl Content {
    /// Reads a file. Reads no holes.
    fn read(path: &Path) -> io::Result<Content> {
        let file = File::open(path)?;
        let mut content = Content { len: file.metadata()?.len(), pages: BTreeMap::new() };
        let mut at = 0;
        // SAFETY: this only moves the position of a file that is open.
        let seek = |at: u64, whence| unsafe { libc::lseek(file.as_raw_fd(), at as i64, whence) };
        while let Ok(begin) = u64::try_from(seek(at, libc::SEEK_DATA)) {
            let end = seek(begin, libc::SEEK_HOLE) as u64;
            at = begin / PAGE * PAGE;
            if at >= content.len {
                break;
            }
            // The library may be making the file longer.
            while at < end.min(content.len) {
                let mut page = vec![0; (content.len - at).min(PAGE) as usize];
                file.read_exact_at(&mut page, at)?;
                page.resize(PAGE as usize, 0);
                content.put(at / PAGE, page);
                at += PAGE;
            }
        }
        Ok(content)
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        // The file keeps its inode, by which the working file knows the base.
        let file = File::options().write(true).create(true).truncate(true).open(path)?;
        file.set_len(self.len)?;
        for (page, bytes) in self.pages.range(..self.len.div_ceil(PAGE)) {
            let some = (self.len - page * PAGE).min(PAGE) as usize;
            file.write_all_at(&bytes[..some], page * PAGE)?;
        }
        Ok(())
    }

    fn put(&mut self, page: u64, bytes: Vec<u8>) {
        match bytes.iter().all(|&byte| byte == 0) {
            true => self.pages.remove(&page),
            false => self.pages.insert(page, Arc::new(bytes)),
        };
    }

    /// Returns `len` bytes from `at` on.
    pub fn get(&self, at: u64, len: u64) -> Vec<u8> {
        let byte = |at: u64| self.pages.get(&(at / PAGE)).map_or(0, |p| p[(at % PAGE) as usize]);
        (at..at + len).map(byte).collect()
    }

    /// Returns the word at `at`.
    pub fn word(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.get(at, 8).try_into().expect("eight bytes"))
    }

    /// Overwrites bytes within a page, as far as the file goes.
    pub fn set(&mut self, at: u64, bytes: &[u8]) {
        let bytes = &bytes[..self.len.saturating_sub(at).min(bytes.len() as u64) as usize];
        let from = (at % PAGE) as usize;
        let mut page = self.get(at / PAGE * PAGE, PAGE);
        page[from..from + bytes.len()].copy_from_slice(bytes);
        self.put(at / PAGE, page);
    }

    /// Fills pages with zeros.
    pub fn zero(&mut self, from: u64, to: u64) {
        self.pages.retain(|&page, _| page < from || page >= to);
    }

    /// Shortens the file.
    pub fn cut(&mut self, len: u64) {
        self.len = self.len.min(len);
        let page = self.len / PAGE;
        let rest = self.get(page * PAGE, self.len % PAGE);
        self.zero(page, u64::MAX);
        self.set(page * PAGE, &rest);
    }

    /// Returns the number of pages up to the last one that is not all zeros.
    pub fn used(&self) -> u64 {
        self.pages.keys().next_back().map_or(0, |last| last + 1)
    }
}

/// A directory with the files of one pool.
pub struct Place(tempfile::TempDir);

impl Place {
    /// Makes an empty one, in memory if the system allows it.
    pub fn new() -> io::Result<Place> {
        let made = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
        fs::create_dir(made.path().join(JOURNAL))?;
        Ok(Place(made))
    }

    /// Returns the path of a file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for prefix in ["", "journal/"] {
            for entry in fs::read_dir(self.path(prefix))? {
                let entry = entry?;
                let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
                // The journal's thread may be making a file.
                if entry.path().is_file() && !name.ends_with(".new") {
                    names.push(name);
                }
            }
        }
        Ok(names)
    }

    /// Copies the files. A segment may be deleted meanwhile.
    pub fn read(&self) -> io::Result<Files> {
        let mut files = Files::new();
        for name in self.names()? {
            match Content::read(&self.path(&name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                content => _ = files.insert(name, content?),
            }
        }
        Ok(files)
    }

    /// Copies the files of an open pool, at a moment when its threads change none of them.
    pub fn settled(&self) -> io::Result<Files> {
        let mut before = self.read()?;
        loop {
            let now = self.read()?;
            if now == before {
                return Ok(now);
            }
            before = now;
        }
    }

    /// Replaces the files, which nobody has open.
    pub fn write(&self, files: &Files) -> io::Result<()> {
        fs::create_dir_all(self.path(JOURNAL))?;
        for name in self.names()?.iter().filter(|name| !files.contains_key(*name)) {
            // An empty base keeps the inode.
            match name == BASE {
                true => Content::default().write(&self.path(name))?,
                false => fs::remove_file(self.path(name))?,
            }
        }
        files.iter().try_for_each(|(name, content)| content.write(&self.path(name)))
    }
}
