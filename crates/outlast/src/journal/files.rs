//! The files of a journal, behind traits, so that tests can put them on a simulated disk that loses
//! what was not synced.

use crate::pmem::{Call, Disk, MappingError};
use rustix::fs::OFlags;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file of the journal.
pub trait JournalFile: Send + Sync {
    /// Returns the file's length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Returns whether the file is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads from `offset` until `out` is full or the file ends. Returns the number of bytes read.
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all bytes at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes everything written durable (`fdatasync`).
    fn sync(&self) -> io::Result<()>;

    /// Makes the file at least `len` bytes long, durably, and allocates disk space for all of them.
    fn extend(&self, len: u64) -> Result<(), MappingError>;
}

/// The directory of a journal.
pub trait Directory: Send + Sync {
    /// Creates a file of `len` bytes, which begins with `head`; the rest is zeros. Once this returns,
    /// the file and its name are durable, and so are all earlier removals. A crash or an error before
    /// that leaves the complete file or none.
    fn create(&self, name: &str, head: &[u8], len: u64) -> io::Result<Box<dyn JournalFile>>;

    /// Opens a file.
    fn open(&self, name: &str) -> io::Result<Box<dyn JournalFile>>;

    /// Removes a file. Until the directory is synced or another file is created, a power loss may
    /// bring the name back.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes all earlier removals durable.
    fn sync(&self) -> io::Result<()>;

    /// Lists the names of all files.
    fn names(&self) -> io::Result<Vec<String>>;
}

/// A directory of the file system.
#[derive(Debug, Clone)]
pub struct DiskDirectory {
    path: PathBuf,
    disk: Disk,
    /// Whether its files are opened only for reading.
    read_only: bool,
    /// The permissions of the files that are created in it.
    mode: u32,
    /// The user and the group that are to own them, if this process may say so.
    owner: Option<(u32, u32)>,
}

/// A file of the file system.
#[derive(Debug)]
pub struct DiskFile {
    file: File,
    disk: Disk,
}

impl DiskFile {
    /// Wraps a file that is open for reading, and for writing if anything is to be written.
    pub fn new(file: File, disk: Disk) -> DiskFile {
        DiskFile { file, disk }
    }
}

/// Bytes written at a time where a file is filled with zeros. A kernel with large folios keeps them
/// in pieces of this size, and larger ones make the small writes that follow more expensive.
const PIECE: usize = 64 << 10;
/// Bytes synced at a time where a file is filled with zeros. The sync of an epoch may have to wait
/// until the disk has written these.
const SYNCED: u64 = 8 << 20;
/// The permissions of a file that only its owner can read.
const PRIVATE: u32 = 0o600;
/// The suffix of a file's name while the file is being created. A file that a crash has left under
/// such a name is overwritten.
pub(super) const UNFINISHED: &str = ".new";

impl DiskDirectory {
    /// Returns the directory at `path`, without checking that it exists.
    pub fn at(path: PathBuf, disk: Disk) -> Self {
        DiskDirectory { path, disk, read_only: false, mode: PRIVATE, owner: None }
    }

    /// Opens the directory at `path`, or creates it. `mode` has the permissions of the pool's file:
    /// the journal holds the same keys and values, so its files get no others.
    pub fn open_or_create(path: PathBuf, disk: Disk, mode: u32) -> io::Result<Self> {
        let mode = mode & 0o666;
        // Whoever can read or write the files can also search the directory.
        let search = (mode | mode << 1) >> 2 & 0o111;
        match fs::DirBuilder::new().mode(mode | search).create(&path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
            // Syncs the parent even if the directory exists: a process that died may have created
            // it without making its name durable.
            _ => {
                let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
                disk.fsync_directory(&File::open(parent.unwrap_or_else(|| ".".as_ref()))?)?;
                Ok(DiskDirectory { path, disk, read_only: false, mode, owner: None })
            }
        }
    }

    /// Gives the directory and the files that are created in it to the owner of the pool, if another
    /// user such as root opens the pool. Otherwise the owner could not open the pool any more after
    /// this process was killed.
    #[must_use]
    pub fn owned_by(mut self, user: u32, group: u32) -> Self {
        self.owner = (rustix::process::geteuid().as_raw() != user).then_some((user, group));
        if let Some((user, group)) = self.owner {
            // A directory with something in it may be another's.
            let is_new = fs::read_dir(&self.path).is_ok_and(|mut files| files.next().is_none());
            if is_new {
                let _ = std::os::unix::fs::chown(&self.path, Some(user), Some(group));
            }
        }
        self
    }

    /// Returns the directory at `path`, whose files are then opened only for reading.
    pub fn read_only(path: PathBuf) -> Self {
        DiskDirectory { path, disk: Disk::default(), read_only: true, mode: PRIVATE, owner: None }
    }

    /// Returns whether its files are opened only for reading.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Opens the directory itself, to lock it.
    pub fn file(&self) -> io::Result<File> {
        File::open(&self.path)
    }

    /// Fills a new file with `head` and zeros, durably, and gives it its name.
    fn create_in(&self, unfinished: &Path, path: &Path, head: &[u8], len: u64) -> io::Result<File> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true).mode(self.mode);
        let file = options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(unfinished)?;
        if let Some((user, group)) = self.owner {
            let _ = std::os::unix::fs::fchown(&file, Some(user), Some(group));
        }
        // Writes zeros, because allocating blocks is not enough: the first fdatasync after a write
        // to an allocated block also has to mark the block as written, which changes the file's
        // metadata.
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        while at < len {
            let bytes = (len - at).min(PIECE as u64);
            let rest = head.get(at as usize..).unwrap_or_default();
            let some = rest.len().min(PIECE);
            piece[..some].copy_from_slice(&rest[..some]);
            piece[some..].fill(0);
            self.disk.write(&file, &piece[..bytes as usize], at)?;
            at += bytes;
            if at == len || at.is_multiple_of(SYNCED) {
                self.disk.fsync(&file)?;
            }
        }
        self.disk.call(Call::Rename, &file, || fs::rename(unfinished, path))?;
        Directory::sync(self)?;
        Ok(file)
    }
}

impl Directory for DiskDirectory {
    fn create(&self, name: &str, head: &[u8], len: u64) -> io::Result<Box<dyn JournalFile>> {
        let path = self.path.join(name);
        let unfinished = self.path.join(format!("{name}{UNFINISHED}"));
        let created = self.create_in(&unfinished, &path, head, len);
        if created.is_err() {
            // Either of the two files may exist.
            let _ = fs::remove_file(unfinished);
            let _ = fs::remove_file(path);
        }
        Ok(Box::new(DiskFile::new(created?, self.disk.clone())))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn JournalFile>> {
        let mut options = File::options();
        let file = options.read(true).write(!self.read_only).open(self.path.join(name))?;
        Ok(Box::new(DiskFile::new(file, self.disk.clone())))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.fsync_directory(&self.file()?)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        // Unlike other calls of the standard library, this one is not repeated.
        let entries = loop {
            match fs::read_dir(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                opened => break opened?,
            }
        };
        for entry in entries {
            // The journal's own names are all UTF-8.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }
}

impl JournalFile for DiskFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < out.len() {
            match self.file.read_at(&mut out[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.disk.write(&self.file, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.call(Call::Fsync, &self.file, || self.file.sync_data())
    }

    fn extend(&self, len: u64) -> Result<(), MappingError> {
        let old = self.len()?;
        if old < len {
            return self.disk.allocate_durably(&self.file, old, len);
        }
        // A process that died may have lengthened the file without making that durable.
        self.sync().map_err(MappingError::WriteBack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn files_are_created_whole_and_keep_what_is_written() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("journal");
        let directory =
            DiskDirectory::open_or_create(path.clone(), Disk::default(), 0o640).unwrap();
        let len = PIECE as u64 + 5;
        let file = directory.create("a", b"head", len).unwrap();
        file.write_at(b"end", len - 3).unwrap();
        file.sync().unwrap();
        assert_eq!(directory.names().unwrap(), ["a"]);
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&path) & !0o750, 0, "{:o}", mode(&path));
        assert_eq!(mode(&path.join("a")) & !0o640, 0, "{:o}", mode(&path.join("a")));
        let again = DiskDirectory::open_or_create(path, Disk::default(), 0o640).unwrap();
        let again = again.open("a").unwrap();
        let mut bytes = vec![1; PIECE + 10];
        assert_eq!(again.len().unwrap(), len);
        assert_eq!(again.read_at(&mut bytes, 0).unwrap(), PIECE + 5);
        assert_eq!(bytes[..4], *b"head");
        assert!(bytes[4..PIECE + 2].iter().all(|&byte| byte == 0));
        assert_eq!(&bytes[PIECE + 2..PIECE + 5], b"end");
        directory.remove("a").unwrap();
        let gone = directory.open("a").map(|_| ()).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }
}
