//! The header: the pool's fixed parameters, and its changing state.

use super::geometry::Geometry;
use super::identity::{Identity, Relation};
use super::layout::{self, HEADER_OFFSETS, HEADER_WORDS, HeaderCopy, field};
use crate::error::{Damage, Error, Result, TornReason};
use crate::pmem::{MediumKind, Memory, Offset, Point, Seam};

/// The header as kept in DRAM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    words: [u64; HEADER_WORDS],
    /// The damage in a copy that was found damaged at open and has not been rewritten since. That
    /// copy may have been the newer one.
    pub copy_damaged: Option<Damage>,
    /// Whether a written header is in the page cache, from which the kernel writes it back later.
    is_cached: bool,
    /// Whether the copy written last may not be on the disk yet.
    unsynced: bool,
}

impl Header {
    /// Builds the header of a new pool.
    pub fn new(geometry: Geometry, hash_function: u32, seed: u64, id: u128) -> Self {
        let mut h = Header {
            words: [0; HEADER_WORDS],
            copy_damaged: None,
            is_cached: false,
            unsynced: false,
        };
        h.set(field::MAGIC, layout::MAGIC);
        let version = u64::from(layout::FORMAT_VERSION) | (HEADER_WORDS as u64 * 8) << 32;
        h.set(field::VERSION, version);
        h.set(field::COMPATIBLE, layout::COMPATIBLE);
        h.set(field::ID_LOW, id as u64);
        h.set(field::ID_HIGH, (id >> 64) as u64);
        h.set(field::GEOMETRY, u64::from(geometry.page_bits()) | u64::from(hash_function) << 32);
        h.set(field::SEED, seed);
        h
    }

    /// Returns a field, by its index in [`field`].
    pub fn get(&self, index: usize) -> u64 {
        self.words[index]
    }

    /// Sets a field. [`write`](Header::write) puts it on media.
    pub fn set(&mut self, index: usize, value: u64) {
        self.words[index] = value;
    }

    /// The pool's id.
    pub fn id(&self) -> u128 {
        u128::from(self.get(field::ID_HIGH)) << 64 | u128::from(self.get(field::ID_LOW))
    }

    /// Number of the hash function.
    pub fn hash_function(&self) -> u32 {
        (self.get(field::GEOMETRY) >> 32) as u32
    }

    /// The boot id of the last writer.
    pub fn boot(&self) -> u128 {
        u128::from(self.get(field::BOOT_HIGH)) << 64 | u128::from(self.get(field::BOOT_LOW))
    }

    /// Records the writer that makes the pool dirty: its file and the current boot.
    pub fn set_writer(&mut self, file: Identity, boot: u128) {
        self.set(field::BOOT_LOW, boot as u64);
        self.set(field::BOOT_HIGH, (boot >> 64) as u64);
        self.set(field::DEVICE, file.device);
        self.set(field::INODE, file.inode);
        self.set(field::FILE_SYSTEM, file.file_system);
        self.set(field::BORN, file.born);
    }

    /// Whether the pool was modified since it was last made clean.
    pub fn is_dirty(&self) -> bool {
        self.get(field::DIRTY) != 0
    }

    /// Whether the disk may lack something that was written; see [`SUSPECT`](layout::SUSPECT).
    pub fn is_suspect(&self) -> bool {
        self.get(field::DIRTY) & layout::SUSPECT != 0
    }

    /// Records, with the next write, that the pool is clean only because it was idle. The pool may
    /// be in use again while its file is copied, so a copy does not count as clean.
    pub fn set_synced_idle(&mut self) {
        self.set(field::SYNCED_IDLE, self.next_sequence());
    }

    /// Whether the pool is clean only because it was idle.
    pub fn is_synced_idle(&self) -> bool {
        !self.is_dirty() && self.get(field::SYNCED_IDLE) == self.get(field::SEQUENCE)
    }

    /// Whether the pool lacked a root when it was last clean.
    pub fn lacks_root(&self) -> bool {
        self.get(field::DIRTY) & layout::LACKS_ROOT != 0
    }

    /// Records that the dirty mark is on the disk. If this process dies, the next one has the same
    /// page cache below it and need not wait for the disk again.
    pub fn confirm(&mut self) {
        self.set(field::CONFIRMED, 1);
    }

    /// Whether the dirty mark is on the disk already and names this writer.
    pub fn is_confirmed(&self, file: Identity, boot: u128) -> bool {
        let mut ours = self.clone();
        ours.set_writer(file, boot);
        self.is_dirty() && ours.words == self.words && self.get(field::CONFIRMED) == 1
    }

    /// Returns whether the pool may be torn: by a power loss since its last sync, or because it is a
    /// copy that was made while the pool was being changed. `file` is the file that it is in now.
    pub fn possibly_torn(&self, file: Identity, boot: u128) -> Option<TornReason> {
        if !self.is_dirty() {
            return self.is_synced_idle().then(|| self.apart(file, boot))?;
        }
        // The recorded medium decides, not the current one.
        let recorded = MediumKind::from_u64(self.get(field::MEDIUM));
        if recorded == Some(MediumKind::Bytes) {
            return None;
        }
        if recorded == Some(MediumKind::Journal) {
            return Some(TornReason::JournalGone);
        }
        if self.boot() != boot && !recorded.is_some_and(MediumKind::survives_power_loss) {
            return Some(TornReason::EarlierBoot);
        }
        self.apart(file, boot)
    }

    /// Returns why `file` may not be the file that the last writer wrote to.
    fn apart(&self, file: Identity, boot: u128) -> Option<TornReason> {
        let recorded = self.writer();
        match file.compared_with(recorded, self.boot() == boot) {
            Relation::Same => None,
            Relation::Copy => Some(TornReason::Copy),
            Relation::Unknown => Some(TornReason::Unknown {
                recorded: recorded.to_string(),
                found: file.to_string(),
            }),
        }
    }

    /// Returns the identity of the file that the last writer wrote to.
    fn writer(&self) -> Identity {
        Identity {
            device: self.get(field::DEVICE),
            inode: self.get(field::INODE),
            born: self.get(field::BORN),
            file_system: self.get(field::FILE_SYSTEM),
        }
    }

    /// Whether these are the words of an intact header that belongs in the place of copy number
    /// `copy`.
    fn is_whole(words: &[u64; HEADER_WORDS], copy: usize) -> bool {
        // The sequence number tells which copy this is: the next write goes to the other one.
        let sequence = words[field::SEQUENCE];
        let own = sequence % 2 == copy as u64 && sequence < 1 << 63;
        words[field::MAGIC] == layout::MAGIC
            && words[field::CHECKSUM] == Self::checksum(words)
            && own
    }

    fn checksum(words: &[u64; HEADER_WORDS]) -> u64 {
        u64::from(super::alloc::checksum(&words[..field::CHECKSUM]))
    }

    /// Sets the medium of a header that was just read, or created under this boot.
    ///
    /// If a process of this boot has written the pool, the newer copy may be only in the page cache:
    /// that process may have died before it synced the copy. The older copy is on the disk. If the
    /// pool was left dirty or has just been closed, that is a dirty mark.
    #[must_use]
    pub fn of_medium(mut self, medium: MediumKind, boot: u128) -> Self {
        self.is_cached = medium.needs_fsync();
        let left = self.boot() == boot && self.copy_damaged.is_none();
        self.unsynced = self.is_cached && left;
        self
    }

    /// Records that the write with this sequence number is on the disk.
    pub fn now_durable(&mut self, sequence: u64) {
        self.unsynced &= self.get(field::SEQUENCE) != sequence;
    }

    /// Whether the copy written last may not be on the disk yet.
    pub fn is_unsynced(&self) -> bool {
        self.unsynced
    }

    /// Returns the sequence number of the next write. It decides which copy the write goes to.
    pub fn next_sequence(&self) -> u64 {
        self.get(field::SEQUENCE) + if self.unsynced { 2 } else { 1 }
    }

    /// Writes the header over the older of its copies, and makes it durable as far as flushes can.
    /// If the newer copy may not be on the disk yet, writes over that one instead.
    ///
    /// A crash during the write leaves the written copy with a wrong checksum, and the other copy
    /// intact. That other copy is the newest one known to be on the disk. If it were an older one,
    /// a power loss could hide a dirty mark: the pool would open with a copy from before the mark,
    /// which says that the pool is clean. If a process that died has left the other copy intact
    /// only in the processor's caches, a power loss could destroy both. So opening flushes the
    /// copies before any write.
    pub fn write<S: Seam>(&mut self, memory: &Memory<S>, at: &'static Point) -> Result<()> {
        let sequence = self.next_sequence();
        self.unsynced = self.is_cached;
        self.set(field::SEQUENCE, sequence);
        self.set(field::CHECKSUM, Self::checksum(&self.words));
        let offset = HEADER_OFFSETS[(sequence % 2) as usize];
        let copy = memory.at(Offset::<HeaderCopy>::new(offset))?;
        for (word, value) in copy.words.iter().zip(&self.words) {
            memory.store(word, *value, at);
        }
        memory.persist(copy, at);
        // The copy is intact again, so it no longer matters what an interrupted write had left
        // there.
        self.copy_damaged.take_if(|damage| damage.offset() == offset);
        Ok(())
    }

    /// Reads the header of a pool of which `actual` bytes are present.
    ///
    /// `read` returns the header words at an offset.
    pub fn read(
        actual: u64,
        mut read: impl FnMut(u64) -> Result<[u64; HEADER_WORDS]>,
    ) -> Result<Header> {
        if actual < layout::SYSTEM_BYTES {
            let magic = if actual >= 8 + HEADER_OFFSETS[1] { read(0)?[0] } else { 0 };
            if magic != layout::MAGIC {
                return Err(Error::not_a_pool(format!("a file of {actual} bytes")));
            }
            let mut expected = layout::SYSTEM_BYTES;
            for (copy, offset) in HEADER_OFFSETS.into_iter().enumerate() {
                if offset + size_of::<HeaderCopy>() as u64 <= actual {
                    let words = read(offset)?;
                    if Self::is_whole(&words, copy) {
                        // A pool never shrinks.
                        expected = expected.max(words[field::SIZE]);
                    }
                }
            }
            return Err(Error::Truncated { path: Default::default(), expected, actual });
        }
        let mut copies = Vec::new();
        let mut damage = None;
        let mut magics = 0;
        let mut first = 0;
        for (copy, offset) in HEADER_OFFSETS.into_iter().enumerate() {
            let words = read(offset)?;
            if offset == 0 {
                first = words[0];
            }
            magics += u32::from(words[field::MAGIC] == layout::MAGIC);
            if Self::is_whole(&words, copy) {
                copies.push(Header {
                    words,
                    copy_damaged: None,
                    is_cached: false,
                    unsynced: false,
                });
            } else {
                let found = format!(
                    "magic {:#x}, checksum {:#x}, sequence number {}",
                    words[field::MAGIC],
                    words[field::CHECKSUM],
                    words[field::SEQUENCE]
                );
                let sum = Self::checksum(&words);
                let expected = format!("copy {copy} of the header, with checksum {sum:#x}");
                damage = Some(Damage::new(offset, expected, found));
            }
        }
        let newest = copies.into_iter().max_by_key(|c| c.get(field::SEQUENCE));
        let Some(mut header) = newest else {
            return Err(match damage {
                Some(damage) if magics > 0 => Error::damaged_header(damage),
                _ => Error::not_a_pool(format!("first word {first:#018x}")),
            });
        };
        header.copy_damaged = damage;
        header.validate(actual)?;
        Ok(header)
    }

    fn validate(&mut self, actual: u64) -> Result<()> {
        let version = self.get(field::VERSION) as u32;
        if version != layout::FORMAT_VERSION {
            return Err(Error::Version {
                path: Default::default(),
                found: version,
                supported: layout::FORMAT_VERSION,
            });
        }
        let unknown = self.get(field::INCOMPATIBLE) & !layout::INCOMPATIBLE;
        if unknown != 0 {
            return Err(Error::UnknownFeature {
                path: Default::default(),
                bits: unknown,
                set: "incompatible",
            });
        }
        let bad = |what: &str, index: usize| {
            Error::damaged_header(Damage::new(
                HEADER_OFFSETS[(self.get(field::SEQUENCE) % 2) as usize] + index as u64 * 8,
                what,
                format!("{:#x}", self.get(index)),
            ))
        };
        if self.get(field::VERSION) >> 32 != HEADER_WORDS as u64 * 8 {
            return Err(bad("a header copy of 512 bytes", field::VERSION));
        }
        let geometry = self
            .read_geometry()
            .ok_or_else(|| bad("log2 of a page size from 12 to 20", field::GEOMETRY))?;
        let size = self.get(field::SIZE);
        let least = geometry.offset_of(geometry.first_page());
        if !size.is_multiple_of(geometry.page_bytes()) || size < least || size >= 1 << 48 {
            return Err(bad("a size in whole pages", field::SIZE));
        }
        if actual < size {
            return Err(Error::Truncated { path: Default::default(), expected: size, actual });
        }
        if self.copy_damaged.is_some() {
            // The damaged copy may be the newer one, and record a growth.
            self.take_size_of_file(actual);
        }
        Ok(())
    }

    /// Sets the pool's size to that of its file, `actual` bytes, in whole pages. The size that the
    /// header has may be from before a growth.
    pub fn take_size_of_file(&mut self, actual: u64) {
        let page = self.geometry().page_bytes();
        self.set(field::SIZE, (actual & !(page - 1)).min((1 << 48) - page));
    }

    /// Checks that the feature bits allow writing.
    pub fn check_writable(&self) -> Result<()> {
        let unknown = self.get(field::READ_ONLY_COMPATIBLE) & !layout::READ_ONLY_COMPATIBLE;
        if unknown != 0 {
            return Err(Error::UnknownFeature {
                path: Default::default(),
                bits: unknown,
                set: "read-only compatible",
            });
        }
        Ok(())
    }

    /// The pool's geometry.
    pub fn geometry(&self) -> Geometry {
        self.read_geometry().expect("validated when it was read")
    }

    fn read_geometry(&self) -> Option<Geometry> {
        Geometry::new(self.get(field::GEOMETRY) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::geometry::DEFAULT_PAGE_BITS;
    use TornReason::{Copy, EarlierBoot, JournalGone};

    const ORIGINAL: Identity = Identity { device: 7, inode: 12, born: 1_000, file_system: 0 };

    /// A pool that was made dirty in the file `ORIGINAL`, under boot 1.
    fn dirty(medium: MediumKind) -> Header {
        let geometry = Geometry::new(DEFAULT_PAGE_BITS).unwrap();
        let mut header = Header::new(geometry, 1, 2, 3);
        header.set(field::MEDIUM, medium as u64);
        header.set(field::DIRTY, 1);
        header.set_writer(ORIGINAL, 1);
        header
    }

    #[test]
    fn a_copy_of_a_dirty_pool_is_told_from_the_original() {
        use MediumKind::{Bytes, Dax, Journal, PageCache};
        let file = |device, inode, born| Identity { device, inode, born, file_system: 0 };
        let cases = [
            // Medium, boot, file in which the pool is found, verdict.
            (Dax, 1, ORIGINAL, None),
            (Dax, 2, ORIGINAL, None),
            (PageCache, 1, ORIGINAL, None),
            (PageCache, 2, ORIGINAL, Some(EarlierBoot)),
            // A boot changes the device number, and so does another mount.
            (Dax, 2, file(8, 12, 1_000), None),
            (Dax, 1, file(8, 12, 1_000), None),
            (PageCache, 1, file(8, 12, 1_000), None),
            // Another inode.
            (Dax, 1, file(7, 13, 1_001), Some(Copy)),
            (Dax, 2, file(7, 13, 1_001), Some(Copy)),
            (PageCache, 1, file(7, 13, 1_001), Some(Copy)),
            // The same inode number, on another file system or in place of the original.
            (Dax, 2, file(9, 12, 1_001), Some(Copy)),
            (Dax, 1, file(7, 12, 1_001), Some(Copy)),
            (PageCache, 1, file(7, 12, 1_001), Some(Copy)),
            // A file system that does not report when a file was created.
            (Dax, 1, file(7, 12, 0), None),
            (Bytes, 2, file(9, 99, 5), None),
            // Only its journal could say which of its pages are old.
            (Journal, 1, ORIGINAL, Some(JournalGone)),
        ];
        for (medium, boot, file, verdict) in cases {
            let found = dirty(medium).possibly_torn(file, boot);
            assert_eq!(found, verdict, "{medium}, boot {boot}, {file:?}");
        }
    }

    #[test]
    fn a_copy_of_a_pool_that_was_synced_idle_is_told_from_the_original() {
        let mut header = dirty(MediumKind::PageCache);
        header.set(field::DIRTY, 0);
        header.set(field::SEQUENCE, 7);
        let copy = Identity { inode: 13, born: 1_001, ..ORIGINAL };
        assert_eq!(header.possibly_torn(copy, 1), None, "closed");
        header.set_synced_idle();
        header.set(field::SEQUENCE, header.next_sequence());
        assert_eq!(header.possibly_torn(copy, 1), Some(Copy));
        assert_eq!(header.possibly_torn(Identity { device: 8, ..copy }, 2), Some(Copy));
        // Where the file is still in its place, it is clean after a reboot as well.
        assert_eq!(header.possibly_torn(ORIGINAL, 1), None);
        assert_eq!(header.possibly_torn(Identity { device: 8, ..ORIGINAL }, 2), None);
        // Any later write ends that.
        header.set(field::SEQUENCE, header.next_sequence());
        assert_eq!(header.possibly_torn(copy, 1), None);
    }

    #[test]
    fn a_write_spares_the_dirty_mark_that_is_on_the_disk() {
        let copy = |header: &Header| header.get(field::SEQUENCE) % 2;
        let next = |header: &Header| header.next_sequence() % 2;
        let mut header = dirty(MediumKind::PageCache).of_medium(MediumKind::PageCache, 1);
        assert_eq!(next(&header), copy(&header), "the newer copy may be in the page cache alone");
        header.now_durable(header.get(field::SEQUENCE) + 1);
        assert_eq!(next(&header), copy(&header), "another write was made durable");
        header.now_durable(header.get(field::SEQUENCE));
        assert_ne!(next(&header), copy(&header));
        // The mark "clean" of a pool that was just closed may be in the page cache alone, too.
        let mut closed = dirty(MediumKind::PageCache);
        closed.set(field::DIRTY, 0);
        let closed = closed.of_medium(MediumKind::PageCache, 1);
        assert_eq!(next(&closed), copy(&closed));
        // What an earlier boot left was read from the disk, and flushes make it durable on DAX.
        for (medium, boot) in [(MediumKind::PageCache, 2), (MediumKind::Dax, 1)] {
            let header = dirty(medium).of_medium(medium, boot);
            assert_ne!(next(&header), copy(&header), "{medium}, boot {boot}");
        }
    }

    #[test]
    fn a_file_without_a_birth_time_is_told_by_its_other_marks() {
        let mut header = dirty(MediumKind::Dax);
        header.set(field::BORN, 0);
        assert_eq!(header.possibly_torn(Identity { born: 9, ..ORIGINAL }, 1), None);
    }
}
