//! Whether a file is the one that it is said to be, or a copy of it.
//!
//! A pool's header records the file that its last writer wrote to, and a working file records the
//! base that it belongs to. When the pool is opened, the recorded file is compared with the one that
//! is there. This module is the only place that does so.
//!
//! No number identifies a file for ever:
//!
//! | what | when it changes although the file is the same |
//! |---|---|
//! | device number | with each boot; also within a boot, when the file system is unmounted and mounted again (loop devices, USB disks, device mapper), and each time that a file system without a device of its own is mounted (overlayfs of a container, btrfs, NFS, FUSE) |
//! | inode number | never on disk file systems; with each mount on some others (FUSE). A copy can have the number of the original, on another file system or, after the original was removed, on the same one |
//! | time of birth | never. Some file systems do not report it |
//! | id of the file system | never, where it comes from the file system itself (ext4, btrfs, overlayfs). Some file systems report none, or only their device number, which says nothing |
//!
//! docs/model.md has the resulting table for users ("Which file is the pool's").

use crate::error::{Error, Result};
use rustix::fs::{AtFlags, StatxFlags};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What distinguishes a file from a copy of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Identity {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// When the file was created, in nanoseconds since 1970; 0 if the file system does not report
    /// it.
    pub born: u64,
    /// The id of the file system; 0 if it reports none that outlasts a mount.
    pub file_system: u64,
}

/// How a file is related to the file that was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// They are one file. Its file system may have been mounted again.
    Same,
    /// The file is a copy of the recorded one.
    Copy,
    /// The file system does not tell.
    Unknown,
}

impl Identity {
    /// Returns the identity of a file.
    pub fn of(file: &File) -> Result<Identity> {
        let meta = file.metadata().map_err(|e| Error::io("reading the pool's inode", e))?;
        let (device, inode) = (meta.dev(), meta.ino());
        // Neither the birth nor the file system's id is vital.
        let born = birth(file).unwrap_or(0);
        let found = rustix::fs::fstatvfs(file);
        let file_system = found.map_or(0, |found| id_beyond_mounts(found.f_fsid, device));
        Ok(Identity { device, inode, born, file_system })
    }

    /// Compares this file with the `recorded` one. `same_boot` says whether that was recorded under
    /// the current boot.
    pub fn compared_with(self, recorded: Identity, same_boot: bool) -> Relation {
        let relation = self.relation_to(recorded, same_boot);
        // A copy of a whole disk has the same files, with the same ids.
        let is_disk_copy = || self.is_mounted_twice(recorded.device);
        match relation {
            Relation::Same if same_boot && self.device != recorded.device && is_disk_copy() => {
                Relation::Copy
            }
            relation => relation,
        }
    }

    fn relation_to(self, recorded: Identity, same_boot: bool) -> Relation {
        let both = |a: u64, b: u64| a != 0 && b != 0;
        let births = both(self.born, recorded.born).then_some(self.born == recorded.born);
        let ids = both(self.file_system, recorded.file_system);
        let systems = ids.then_some(self.file_system == recorded.file_system);
        match (births, self.inode == recorded.inode) {
            (Some(false), _) | (Some(true), false) => Relation::Copy,
            // A file system without births may number its inodes anew with each mount.
            (None, false) => Relation::Unknown,
            (_, true) if !same_boot => Relation::Same,
            (_, true) if systems == Some(false) => Relation::Copy,
            (None, true) if systems.is_none() && self.device != recorded.device => {
                Relation::Unknown
            }
            (_, true) => Relation::Same,
        }
    }

    /// Returns whether the file system of this file is also mounted from device number `other`.
    fn is_mounted_twice(self, other: u64) -> bool {
        let device = format!("{}:{}", rustix::fs::major(other), rustix::fs::minor(other));
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        mounts.lines().any(|line| {
            let mut fields = line.split(' ');
            let is_other = fields.nth(2) == Some(&device);
            is_other
                && fields.nth(1).is_some_and(|place| {
                    let found = rustix::fs::statvfs(Path::new(&unescaped(place)));
                    let id = found.map_or(0, |found| id_beyond_mounts(found.f_fsid, other));
                    id != 0 && id == self.file_system
                })
        })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = (rustix::fs::major(self.device), rustix::fs::minor(self.device));
        write!(f, "inode {} on device {major}:{minor}", self.inode)?;
        match self.born {
            0 => write!(f, ", time of creation not known"),
            born => write!(f, ", created at {}.{:09}", born / 1_000_000_000, born % 1_000_000_000),
        }
    }
}

/// Returns the id of a file system on this device, or 0 if the id is only the device number in
/// another form.
fn id_beyond_mounts(id: u64, device: u64) -> u64 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    // The kernel's `huge_encode_dev`, which many file systems report as their id.
    let encoded = minor & 0xff | major << 8 | (minor & !0xff) << 12;
    if id == u64::from(encoded) || id == device { 0 } else { id }
}

/// Returns a path as it is, from the form in which `mountinfo` has it.
fn unescaped(text: &str) -> String {
    let mut path = text.to_string();
    for (escape, plain) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        path = path.replace(escape, plain);
    }
    path
}

/// Returns when a file was created, in nanoseconds since 1970, if the file system reports it.
fn birth(file: &File) -> Option<u64> {
    let found = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
    let told = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    let time = found.stx_btime;
    let seconds = u64::try_from(time.tv_sec).ok().filter(|_| told)?;
    seconds.checked_mul(1_000_000_000)?.checked_add(time.tv_nsec.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use Relation::{Copy, Same, Unknown};

    const FILE: Identity = Identity { device: 7, inode: 12, born: 1_000, file_system: 99 };

    #[test]
    fn a_file_is_told_from_its_copies_by_all_that_is_known_of_it() {
        let with = |device, inode, born, file_system| Identity { device, inode, born, file_system };
        // The recorded file, the one that is there, and the verdicts under the same boot and another.
        let cases = [
            (FILE, FILE, Same, Same),
            // Mounted again.
            (FILE, with(8, 12, 1_000, 99), Same, Same),
            (FILE, with(8, 12, 1_000, 0), Same, Same),
            (with(7, 12, 0, 99), with(8, 12, 0, 99), Same, Same),
            // Without birth and id, another device number leaves it open.
            (with(7, 12, 0, 0), with(8, 12, 0, 0), Unknown, Same),
            (with(7, 12, 0, 99), with(8, 12, 0, 0), Unknown, Same),
            (with(7, 12, 0, 0), with(7, 12, 0, 0), Same, Same),
            (FILE, with(7, 12, 0, 0), Same, Same),
            // Copies.
            (FILE, with(7, 13, 1_001, 99), Copy, Copy),
            (FILE, with(7, 12, 1_001, 99), Copy, Copy),
            (FILE, with(8, 12, 1_001, 98), Copy, Copy),
            (FILE, with(7, 13, 1_000, 99), Copy, Copy),
            // A snapshot of a btrfs subvolume, or another disk under the same number.
            (FILE, with(8, 12, 1_000, 98), Copy, Same),
            (with(7, 12, 0, 99), with(7, 12, 0, 98), Copy, Same),
            // Inodes that may have been numbered anew.
            (with(7, 12, 0, 0), with(7, 13, 0, 0), Unknown, Unknown),
            (FILE, with(8, 13, 0, 0), Unknown, Unknown),
        ];
        for (recorded, found, same_boot, other_boot) in cases {
            assert_eq!(found.relation_to(recorded, true), same_boot, "{found:?}, {recorded:?}");
            assert_eq!(found.relation_to(recorded, false), other_boot, "{found:?}, {recorded:?}");
        }
    }

    #[test]
    fn an_id_that_is_the_device_number_says_nothing() {
        let device = rustix::fs::makedev(8, 17);
        assert_eq!(id_beyond_mounts(0x811, device), 0);
        assert_eq!(id_beyond_mounts(device, device), 0);
        assert_eq!(id_beyond_mounts(0, device), 0);
        assert_eq!(id_beyond_mounts(0x812, device), 0x812);
        let large = rustix::fs::makedev(259, 300);
        assert_eq!(id_beyond_mounts(0x110_032c, large), 0x110_032c);
        assert_eq!(id_beyond_mounts((300 & 0xff) | 259 << 8 | (300 & !0xff) << 12, large), 0);
    }

    #[test]
    fn mount_points_are_read_as_they_are() {
        assert_eq!(unescaped("/mnt/a\\040b\\134c"), "/mnt/a b\\c");
    }

    #[test]
    fn files_of_one_file_system_have_different_identities() {
        let place = tempfile::tempdir().unwrap();
        let file = |name| File::create_new(place.path().join(name)).unwrap();
        let (one, other) = (file("a"), file("b"));
        let (one, other) = (Identity::of(&one).unwrap(), Identity::of(&other).unwrap());
        assert_ne!(one.inode, other.inode);
        assert_eq!((one.device, one.file_system), (other.device, other.file_system));
        assert_eq!(one.compared_with(one, true), Same);
        assert_ne!(one.compared_with(other, true), Same);
    }
}
