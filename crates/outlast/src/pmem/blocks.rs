//! Allocation of a file's blocks. A store to a mapped page without a block raises SIGBUS on a full
//! disk.

use super::disk::{Call, Disk};
use super::reserve::HUGE_PAGE;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fstatfs, seek};
use rustix::io::Errno;
use rustix::process::Resource;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

/// `f_type` of tmpfs.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Makes the file at least `len` bytes long, and gets blocks for its bytes from `from` up to `len`;
/// if asked to, `durably`. For a growing file, `from` is its old length: looking at every block
/// again would make each growth more expensive than the one before.
///
/// On an error, the file keeps the length that it had.
pub(super) fn allocate(
    disk: &Disk,
    file: &File,
    from: u64,
    len: u64,
    durably: bool,
) -> Result<(), NoBlocks> {
    let old_len = file.metadata()?.len();
    if from >= len || (old_len >= len && has_no_holes(file)?) {
        return Ok(());
    }
    // Beyond this limit, the kernel would kill the process with SIGXFSZ.
    if rustix::process::getrlimit(Resource::Fsize).current.is_some_and(|limit| len > limit) {
        return Err(NoBlocks::Refused(Errno::FBIG.into()));
    }
    or_shorten_to(disk, old_len, file, || {
        let mut filled = false;
        disk.call(Call::Fallocate, file, || {
            match in_pieces(from..len, |at, len| fallocate(file, FallocateFlags::empty(), at, len))
            {
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    filled = true;
                    fill(file, from, old_len, len)
                }
                answer => Ok(answer?),
            }
        })?;
        // The size is durable before it is published: a pool whose header names a greater size than
        // the file has does not open. A process that died may have lengthened the file without
        // making that durable.
        let synced = match durably && (old_len < len || from > 0) {
            false => Ok(()),
            // The zeros of all pages must be on the disk, to have their blocks.
            true if filled || old_len >= len => disk.fsync(file),
            true => disk.write_end(file, old_len, len),
        };
        synced.map_err(NoBlocks::WriteBack)
    })
}

/// Why a file did not get its blocks.
#[derive(Debug)]
pub(super) enum NoBlocks {
    /// The file system refused them.
    Refused(io::Error),
    /// The system could not write the file back.
    WriteBack(io::Error),
}

impl From<io::Error> for NoBlocks {
    fn from(error: io::Error) -> Self {
        NoBlocks::Refused(error)
    }
}

/// Runs `lengthen`, and cuts the file back to its old length if that fails.
fn or_shorten_to<E>(
    disk: &Disk,
    old_len: u64,
    file: &File,
    lengthen: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    let answer = lengthen();
    if answer.is_err() && file.metadata().is_ok_and(|m| m.len() > old_len) {
        // If this fails too, the first error is the one to report.
        let _ = disk.set_len(file, old_len);
    }
    answer
}

/// Returns whether the file certainly has no hole, without a walk over it.
///
/// On tmpfs, fallocate visits every page, which would make opening a large pool slow. There the
/// block count equals that of the file's pages, provided that the file does not end inside a huge
/// page. On other file systems the count includes more than data, and fallocate is quick.
fn has_no_holes(file: &File) -> io::Result<bool> {
    let metadata = file.metadata()?;
    let len = metadata.len();
    Ok(is_on_tmpfs(file)? && len.is_multiple_of(HUGE_PAGE) && metadata.blocks() * 512 >= len)
}

/// Returns whether the file is on tmpfs, so that its pages exist only in memory.
pub(super) fn is_on_tmpfs(file: &File) -> io::Result<bool> {
    Ok(fstatfs(file)?.f_type as u64 == TMPFS_MAGIC)
}

/// Gets blocks for a range that lies inside the file. Unlike [`allocate`], this neither changes the file's
/// length nor looks at how many blocks it has: another thread may be lengthening it just now.
pub(super) fn fill_holes(disk: &Disk, file: &File, range: Range<u64>) -> Result<(), NoBlocks> {
    if range.is_empty() {
        return Ok(());
    }
    disk.call(Call::Fallocate, file, || {
        let flags = FallocateFlags::KEEP_SIZE;
        match in_pieces(range.clone(), |at, len| fallocate(file, flags, at, len)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let limit = rustix::process::getrlimit(Resource::Fsize).current;
                if limit.is_some_and(|limit| range.end > limit) {
                    // A write would kill the process with SIGXFSZ.
                    return Err(NoBlocks::Refused(Errno::FBIG.into()));
                }
                Ok(fill(file, range.start, range.end, range.end)?)
            }
            answer => Ok(answer.map_err(io::Error::from)?),
        }
    })
}

/// Gives back the blocks of a range of the file.
pub(super) fn punch_hole(file: &File, range: Range<u64>) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(in_pieces(range, |at, len| fallocate(file, flags, at, len))?)
}

/// The least piece of a range, in bytes, for which a call that a signal has interrupted is
/// repeated. It takes microseconds.
const LEAST_PIECE: u64 = 64 << 10;

/// Makes a call for a whole range, given offset and length. If a signal interrupts the call, it may
/// have to begin again: on tmpfs, the kernel first undoes what it has done. So the piece is halved
/// each time, until it fits between two signals, and the call goes on from where it stands.
fn in_pieces(
    range: Range<u64>,
    mut call: impl FnMut(u64, u64) -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    let (mut at, mut piece) = (range.start, range.end - range.start);
    while at < range.end {
        let len = piece.min(range.end - at);
        match call(at, len) {
            Err(Errno::INTR) => piece = (len / 2).next_multiple_of(4096).max(LEAST_PIECE),
            done => {
                done?;
                at += len;
            }
        }
    }
    Ok(())
}

/// The number of holes after which [`holes`] stops looking.
const HOLES_MAX: usize = 1 << 16;

/// Returns the parts of the first `len` bytes that may lack blocks. Blocks that were allocated and never
/// written count as holes on most file systems. Returns `None` if the file system cannot tell.
pub(super) fn holes(file: &File, len: u64) -> io::Result<Option<Vec<Range<u64>>>> {
    let mut holes = Vec::new();
    if has_no_holes(file)? {
        return Ok(Some(holes));
    }
    let mut at = 0;
    while at < len {
        let hole = match seek(file, SeekFrom::Hole(at)) {
            Ok(hole) if hole < len => hole,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let data = match seek(file, SeekFrom::Data(hole)) {
            Ok(data) => data.min(len),
            Err(Errno::NXIO) => len,
            Err(e) => return Err(e.into()),
        };
        if data <= hole {
            // Another process changes the file, or the file system errs.
            return Ok(None);
        }
        if holes.len() == HOLES_MAX {
            // All that follows may lack blocks.
            holes.push(hole..len);
            break;
        }
        holes.push(hole..data);
        at = data;
    }
    // A file system that cannot tell reports no holes.
    let untold = holes.is_empty() && file.metadata()?.blocks() * 512 < len;
    Ok((!untold).then_some(holes))
}

/// Does what fallocate does, for file systems that do not support it.
fn fill(file: &File, from: u64, old_len: u64, len: u64) -> io::Result<()> {
    let end = old_len.min(len);
    let mut at = from;
    while at < end {
        let hole = match seek(file, SeekFrom::Hole(at)) {
            Ok(hole) if hole < end => hole,
            // There is no hole before the end, or the file system cannot tell. In that case the
            // existing part stays as it is.
            Ok(_) | Err(Errno::NXIO | Errno::INVAL) => break,
            Err(e) => return Err(e.into()),
        };
        let data = match seek(file, SeekFrom::Data(hole)) {
            Ok(data) => data.clamp(hole, end),
            Err(Errno::NXIO) => end,
            Err(e) => return Err(e.into()),
        };
        write_zeros(file, hole, data)?;
        // Moves past an empty hole, to guarantee progress.
        at = data.max(at + 1);
    }
    write_zeros(file, old_len.max(from), len)
}

fn write_zeros(file: &File, mut from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    while from < to {
        let count = (to - from).min(zeros.len() as u64);
        file.write_all_at(&zeros[..count as usize], from)?;
        from += count;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A file of 4 MiB that is one hole except for a page in the middle.
    fn sparse_file() -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 4096], 2 * MIB).unwrap();
        file.set_len(4 * MIB).unwrap();
        assert!(file.metadata().unwrap().blocks() * 512 < MIB, "the test needs holes");
        file
    }

    fn assert_filled(file: &File, len: u64) {
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.len(), len);
        assert!(metadata.blocks() * 512 >= len);
        let mut bytes = vec![1; len as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let is_data = |i: usize| (2 * MIB as usize..2 * MIB as usize + 4096).contains(&i);
        assert!(bytes.iter().enumerate().all(|(i, &b)| b == if is_data(i) { 7 } else { 0 }));
    }

    #[test]
    fn allocation_fills_holes_and_keeps_what_is_there() {
        for len in [4 * MIB, 5 * MIB] {
            let file = sparse_file();
            allocate(&Disk::default(), &file, 0, len, true).unwrap();
            assert_filled(&file, len);
            allocate(&Disk::default(), &file, 0, len, true).unwrap();
            assert_filled(&file, len);
        }
    }

    #[test]
    fn the_write_that_makes_a_length_durable_changes_nothing() {
        for old_len in [0, 1, 4095, 4096, 5000, 8191, 3 * 4096] {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&vec![7; old_len as usize], 0).unwrap();
            for len in [old_len + 1, 4 * 4096, MIB + 5] {
                let from = file.metadata().unwrap().len();
                allocate(&Disk::default(), &file, from, len, true).unwrap();
                let mut bytes = vec![1; len.max(from) as usize];
                file.read_exact_at(&mut bytes, 0).unwrap();
                let (old, new) = bytes.split_at(old_len as usize);
                assert!(old.iter().all(|&b| b == 7) && new.iter().all(|&b| b == 0), "{old_len}");
                assert_eq!(file.metadata().unwrap().len(), len.max(from));
            }
        }
    }

    #[test]
    fn a_file_system_without_fallocate_gets_the_same() {
        for len in [4 * MIB, 5 * MIB] {
            let file = sparse_file();
            fill(&file, 0, 4 * MIB, len).unwrap();
            assert_filled(&file, len);
        }
    }

    #[test]
    fn what_lies_before_the_start_is_left_alone() {
        for by_hand in [false, true] {
            let file = sparse_file();
            if by_hand {
                fill(&file, 3 * MIB, 4 * MIB, 5 * MIB).unwrap();
            } else {
                allocate(&Disk::default(), &file, 3 * MIB, 5 * MIB, true).unwrap();
            }
            let metadata = file.metadata().unwrap();
            assert_eq!(metadata.len(), 5 * MIB);
            assert!((2 * MIB..3 * MIB).contains(&(metadata.blocks() * 512)));
        }
    }

    #[test]
    fn what_was_added_before_an_error_is_cut_off() {
        let file = sparse_file();
        let failed: io::Result<()> = or_shorten_to(&Disk::default(), 4 * MIB, &file, || {
            file.set_len(5 * MIB)?;
            Err(Errno::NOSPC.into())
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.metadata().unwrap().len(), 4 * MIB);
        let lengthen = || file.set_len(5 * MIB);
        or_shorten_to(&Disk::default(), 4 * MIB, &file, lengthen).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 5 * MIB);
    }

    /// Signals come so often that only short calls are not interrupted.
    #[test]
    fn a_call_that_signals_interrupt_is_made_in_pieces() {
        for (range, longest) in [(0..4 * MIB, MIB), (4096..64 * MIB + 4096, 100 << 10), (5..6, 1)] {
            let (mut done, mut calls) = (range.start, 0);
            in_pieces(range.clone(), |at, len| {
                calls += 1;
                assert!(calls < 2_000, "the call is repeated for ever");
                assert!(at == done && len > 0 && at + len <= range.end, "{at}, {len}");
                if len > longest {
                    return Err(Errno::INTR);
                }
                done += len;
                Ok(())
            })
            .unwrap();
            assert_eq!(done, range.end);
        }
        let refused = in_pieces(0..MIB, |at, _| if at == 0 { Ok(()) } else { Err(Errno::NOSPC) });
        assert_eq!(refused, Ok(()));
        let mut calls = 0;
        let refused = in_pieces(0..MIB, |_, _| {
            calls += 1;
            Err(if calls == 1 { Errno::INTR } else { Errno::NOSPC })
        });
        assert_eq!((refused, calls), (Err(Errno::NOSPC), 2));
    }

    #[test]
    fn a_hole_on_tmpfs_is_seen() {
        let Ok(file) = tempfile::tempfile_in("/dev/shm") else {
            println!("skipped: no /dev/shm");
            return;
        };
        file.set_len(4 * MIB).unwrap();
        file.write_all_at(&[7; 4096], 2 * MIB).unwrap();
        assert!(!has_no_holes(&file).unwrap());
        allocate(&Disk::default(), &file, 0, 4 * MIB, true).unwrap();
        assert_filled(&file, 4 * MIB);
        assert!(has_no_holes(&file).unwrap());
    }
}
