use super::*;
use crate::pmem::alive::tests::in_forked_child;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::slice;

const MIB: u64 = 1 << 20;
const RESERVE: u64 = 64 * MIB;

fn bytes(mapping: &Mapping) -> &[u8] {
    // SAFETY: these tests write only through `write`, and never while they hold this slice.
    unsafe { slice::from_raw_parts(mapping.base(), mapping.len() as usize) }
}

fn write(mapping: &Mapping, at: u64, byte: u8) {
    assert!(at < mapping.len());
    // SAFETY: checked above. No other thread knows the mapping.
    unsafe { mapping.base().cast_mut().add(at as usize).write_volatile(byte) }
}

fn read_file(file: &File) -> Vec<u8> {
    let mut content = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut content, 0).unwrap();
    content
}

fn temp_mapping(len: u64) -> (File, Mapping) {
    let file = tempfile::tempfile().unwrap();
    let mapped = file.try_clone().unwrap();
    (file, Mapping::file(mapped, Access::ReadWrite, len, RESERVE).unwrap())
}

#[test]
fn growth_keeps_content_and_base() {
    let (file, mapping) = temp_mapping(MIB);
    let base = mapping.base();
    assert_eq!(base as u64 % HUGE_PAGE, 0);
    assert_eq!((mapping.len(), mapping.reserved()), (MIB, RESERVE));
    write(&mapping, 0, 1);
    write(&mapping, MIB - 1, 2);

    for len in [MIB + PAGE, 3 * MIB, RESERVE] {
        mapping.grow(len).unwrap();
        assert_eq!((mapping.base(), mapping.len()), (base, len));
        assert_eq!(file.metadata().unwrap().len(), len);
        assert!(file.metadata().unwrap().blocks() * 512 >= len, "no page without a block");
        write(&mapping, len - 1, 3);
    }
    let content = read_file(&file);
    assert_eq!(content, bytes(&mapping));
    assert_eq!((content[0], content[MIB as usize - 1]), (1, 2));
    assert_eq!(content[RESERVE as usize - 1], 3);

    let beyond = mapping.grow(RESERVE + PAGE);
    assert!(matches!(
        beyond,
        Err(MappingError::AddressSpace { needed, reserved: RESERVE }) if needed == RESERVE + PAGE
    ));
    mapping.grow(MIB).unwrap();
    assert_eq!(mapping.len(), RESERVE, "never shrinks");
    mapping.sync().unwrap();
}

#[test]
fn anonymous_memory_grows_the_same() {
    let mapping = Mapping::anonymous(PAGE, RESERVE).unwrap();
    let base = mapping.base();
    write(&mapping, 5, 9);
    mapping.grow(MIB).unwrap();
    write(&mapping, MIB - 1, 10);
    mapping.grow(RESERVE).unwrap();
    assert_eq!(mapping.base(), base);
    let content = bytes(&mapping);
    assert_eq!((content[5], content[MIB as usize - 1]), (9, 10));
    assert_eq!(content.iter().filter(|&&byte| byte != 0).count(), 2, "the rest is zero");
    assert_eq!(mapping.medium(), MediumKind::Bytes);
    assert!(mapping.as_file().is_none());
    mapping.sync().unwrap();
}

#[test]
fn an_empty_mapping_can_grow() {
    let (_, mapping) = temp_mapping(0);
    assert!(mapping.is_empty());
    mapping.sync().unwrap();
    mapping.grow(PAGE).unwrap();
    write(&mapping, 0, 1);
}

#[test]
fn a_length_of_half_a_page_is_refused() {
    let refused = |r| match r {
        Err(MappingError::Io(e)) => e.kind() == io::ErrorKind::InvalidInput,
        _ => false,
    };
    assert!(refused(Mapping::anonymous(100, RESERVE).map(drop)));
    assert!(refused(Mapping::anonymous(PAGE, RESERVE).unwrap().grow(PAGE + 8)));
}

#[test]
fn private_access_does_not_change_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    std::fs::write(&path, vec![7; MIB as usize]).unwrap();
    let before = std::fs::metadata(&path).unwrap();

    let read_only = File::open(&path).unwrap();
    let mapping = Mapping::file(read_only, Access::Private, MIB, RESERVE).unwrap();
    assert_eq!(mapping.medium(), MediumKind::Bytes);
    mapping.populate(0..MIB);
    write(&mapping, 100, 8);
    assert_eq!((bytes(&mapping)[99], bytes(&mapping)[100]), (7, 8));
    mapping.sync().unwrap();
    assert!(matches!(mapping.grow(2 * MIB), Err(MappingError::Io(_))));
    drop(mapping);

    assert_eq!(std::fs::read(&path).unwrap(), vec![7; MIB as usize]);
    let after = std::fs::metadata(&path).unwrap();
    assert_eq!((before.len(), before.mtime_nsec()), (after.len(), after.mtime_nsec()));
}

#[test]
fn private_access_to_a_file_that_is_too_short_is_refused() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(PAGE).unwrap();
    let refused = Mapping::file(file, Access::Private, 2 * PAGE, RESERVE);
    assert!(
        matches!(refused, Err(MappingError::Io(e)) if e.kind() == io::ErrorKind::UnexpectedEof)
    );
}

#[test]
fn writing_to_a_file_that_is_open_for_reading_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(PAGE).unwrap();
    let read_only = File::open(file.path()).unwrap();
    let refused = Mapping::file(read_only, Access::ReadWrite, PAGE, RESERVE);
    assert!(matches!(refused, Err(MappingError::Io(_))));
}

#[test]
fn a_file_longer_than_its_mapping_stays_as_long() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(4 * MIB).unwrap();
    let mapped = file.try_clone().unwrap();
    let mapping = Mapping::file(mapped, Access::ReadWrite, MIB, RESERVE).unwrap();
    mapping.grow(2 * MIB).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 4 * MIB);
}

#[test]
fn a_file_in_the_page_cache_is_told_from_persistent_memory() {
    let (_, mapping) = temp_mapping(PAGE);
    assert_eq!(mapping.medium(), MediumKind::PageCache, "the temporary files are not on DAX");
    if let Ok(file) = tempfile::tempfile_in("/dev/shm") {
        let mapping = Mapping::file(file, Access::ReadWrite, PAGE, RESERVE).unwrap();
        assert_eq!(mapping.medium(), MediumKind::PageCache);
    }
}

/// Runs `test` on a file system of `size` that only this call's thread sees.
fn on_small_tmpfs(size: &'static str, test: impl FnOnce(&std::path::Path) + Send) {
    let dir = tempfile::tempdir().unwrap();
    let target = std::ffi::CString::new(dir.path().to_str().unwrap()).unwrap();
    let options = std::ffi::CString::new(format!("size={size}")).unwrap();
    let mount = || {
        // SAFETY: all pointers are to C strings or null. The mount namespace belongs to this thread
        // and disappears with it, mounts included.
        unsafe {
            let none = ptr::null();
            let private = libc::MS_REC | libc::MS_PRIVATE;
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(none, c"/".as_ptr(), none, private, ptr::null()) == 0
                && libc::mount(
                    c"tmpfs".as_ptr(),
                    target.as_ptr(),
                    c"tmpfs".as_ptr(),
                    0,
                    options.as_ptr().cast(),
                ) == 0
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if mount() {
                test(dir.path());
            } else {
                println!("skipped: may not mount a tmpfs: {}", io::Error::last_os_error());
            }
        });
    });
}

#[test]
fn a_full_disk_is_a_typed_error_and_changes_nothing() {
    on_small_tmpfs("4m", |dir| {
        let full = |result, more| match result {
            Err(MappingError::DiskFull { needed, .. }) => needed == more,
            _ => false,
        };
        let file = tempfile::tempfile_in(dir).unwrap();
        let mapped = file.try_clone().unwrap();
        let mapping = Mapping::file(mapped, Access::ReadWrite, MIB, RESERVE).unwrap();
        write(&mapping, 0, 1);
        mapping.grow(2 * MIB).unwrap();
        write(&mapping, 2 * MIB - 1, 2);

        assert!(full(mapping.grow(32 * MIB), 30 * MIB));
        assert_eq!(mapping.len(), 2 * MIB);
        assert_eq!(file.metadata().unwrap().len(), 2 * MIB);
        assert_eq!((bytes(&mapping)[0], bytes(&mapping)[2 * MIB as usize - 1]), (1, 2));

        mapping.grow(3 * MIB).unwrap();
        write(&mapping, 3 * MIB - 1, 3);

        let second = tempfile::tempfile_in(dir).unwrap();
        let mapped = second.try_clone().unwrap();
        let created = Mapping::file(mapped, Access::ReadWrite, 2 * MIB, RESERVE);
        assert!(full(created.map(drop), 2 * MIB));
        assert_eq!(second.metadata().unwrap().len(), 0, "no half-made file is left");
    });
}

#[test]
fn a_sparse_file_on_a_full_disk_is_refused_and_not_a_signal() {
    on_small_tmpfs("1m", |dir| {
        let file = tempfile::tempfile_in(dir).unwrap();
        file.set_len(4 * MIB).unwrap();
        let refused = Mapping::file(file, Access::ReadWrite, 4 * MIB, RESERVE);
        assert!(matches!(refused, Err(MappingError::DiskFull { .. })));
    });
}

#[test]
fn a_fill_that_fails_while_the_file_grows_does_not_cut_the_file() {
    use crate::pmem::{Call, Disk, DiskWatch, Fate};
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, OnceLock, Weak};

    /// Lets the mapping grow while a fill is under way, and then fails the fill.
    #[derive(Default)]
    struct GrowsFirst {
        mapping: OnceLock<Weak<Mapping>>,
        armed: AtomicBool,
    }
    impl DiskWatch for GrowsFirst {
        fn before(&self, call: Call, _: &File) -> Fate {
            if call != Call::Fallocate || !self.armed.swap(false, Ordering::SeqCst) {
                return Fate::Done;
            }
            let mapping = self.mapping.get().and_then(Weak::upgrade).unwrap();
            std::thread::scope(|scope| scope.spawn(|| mapping.grow(2 * MIB)).join())
                .unwrap()
                .unwrap();
            write(&mapping, 2 * MIB - 1, 7);
            Fate::Fails(libc::ENOSPC)
        }
    }

    let watch = Arc::new(GrowsFirst::default());
    let disk = Disk::watched(Arc::clone(&watch) as _);
    let file = tempfile::tempfile().unwrap();
    file.set_len(MIB).unwrap();
    let mapped = file.try_clone().unwrap();
    let mapping = Mapping::file_on(disk, mapped, Access::Sparse, MIB, RESERVE).unwrap();
    let mapping = Arc::new(mapping);
    watch.mapping.set(Arc::downgrade(&mapping)).unwrap();
    watch.armed.store(true, Ordering::SeqCst);
    let full = mapping.fill(64 << 10..128 << 10);
    assert!(matches!(full, Err(MappingError::DiskFull { needed: 0x1_0000, .. })), "{full:?}");
    assert_eq!((mapping.len(), file.metadata().unwrap().len()), (2 * MIB, 2 * MIB));
    assert_eq!(bytes(&mapping)[2 * MIB as usize - 1], 7);
}

#[test]
fn a_fill_while_the_file_grows_gets_its_blocks() {
    use rustix::fs::{FallocateFlags, fallocate};

    on_small_tmpfs("8m", |dir| {
        let file = tempfile::tempfile_in(dir).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, 2 * MIB).unwrap();
        let mapped = file.try_clone().unwrap();
        let mapping = Mapping::file(mapped, Access::Sparse, 2 * MIB, RESERVE).unwrap();
        mapping.punch(64 << 10..128 << 10).unwrap();
        // This is how far another thread's growth has come: tmpfs sets the length last.
        fallocate(&file, FallocateFlags::KEEP_SIZE, 2 * MIB, MIB).unwrap();
        assert_eq!(file.metadata().unwrap().blocks() * 512, 3 * MIB - (64 << 10));
        mapping.fill(64 << 10..128 << 10).unwrap();
        assert_eq!(file.metadata().unwrap().blocks() * 512, 3 * MIB);
        assert_eq!(file.metadata().unwrap().len(), 2 * MIB);
    });
}

fn is_mapped(page: *const u8) -> bool {
    // SAFETY: asks about an address without touching it.
    unsafe { libc::msync(page.cast_mut().cast(), PAGE as usize, libc::MS_ASYNC) == 0 }
}

#[test]
fn a_forked_child_does_not_get_the_mapping() {
    let (file, mapping) = temp_mapping(MIB);
    mapping.grow(2 * MIB).unwrap();
    let anonymous = Mapping::anonymous(MIB, RESERVE).unwrap();
    anonymous.grow(2 * MIB).unwrap();
    let last = |mapping: &Mapping| mapping.base().wrapping_add(2 * MIB as usize - PAGE as usize);
    assert!(is_mapped(mapping.base()) && is_mapped(last(&anonymous)));
    // SAFETY: the child makes only system calls, and one allocation for an error's text.
    let absent = unsafe {
        in_forked_child(|| {
            let absent =
                |mapping: &Mapping| !is_mapped(mapping.base()) && !is_mapped(last(mapping));
            let refuses = |mapping: &Mapping| {
                !mapping.alive().is_here()
                    && mapping.grow(4 * MIB).is_err()
                    && mapping.huge_pages().is_none()
                    && mapping.shadow_resident().is_none()
                    && !mapping.collapse(0..2 * MIB)
            };
            absent(&mapping)
                && absent(&anonymous)
                && refuses(&mapping)
                && refuses(&anonymous)
                && mapping.sync().is_err()
        })
    };
    assert!(absent);
    assert_eq!(file.metadata().unwrap().len(), 2 * MIB, "the child has not grown the file");
}

#[test]
fn dropping_the_mapping_in_a_child_leaves_what_lives_there_now() {
    let (_, mapping) = temp_mapping(MIB);
    let mut mapping = Some(mapping);
    // SAFETY: the child makes only system calls. It maps where nothing is mapped, since it did not
    // inherit the range, and drops its own copy of the handle.
    let left = unsafe {
        in_forked_child(|| {
            let base = mapping.as_ref().unwrap().base();
            let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
            let access = ProtFlags::READ;
            let at = base.cast_mut().cast();
            let own = rustix::mm::mmap_anonymous(at, PAGE as usize, access, flags);
            mapping = None;
            own == Ok(at) && is_mapped(base)
        })
    };
    assert!(left);
    assert!(is_mapped(mapping.unwrap().base()), "the parent still has it");
}

#[test]
fn dropping_the_mapping_gives_all_its_addresses_back() {
    // Runs in a child, where no other thread can be given the addresses before they are checked.
    // SAFETY: the child makes only system calls.
    let given_back = unsafe {
        in_forked_child(|| {
            let mapping = Mapping::anonymous(MIB, RESERVE).unwrap();
            let base = mapping.base();
            let last = base.wrapping_add((RESERVE - PAGE) as usize);
            let had = is_mapped(base) && is_mapped(last);
            drop(mapping);
            had && !is_mapped(base) && !is_mapped(last)
        })
    };
    assert!(given_back);
}

#[test]
fn advice_is_taken_anywhere_and_changes_nothing() {
    let (_, mapping) = temp_mapping(5 * MIB);
    let anonymous = Mapping::anonymous(5 * MIB, RESERVE).unwrap();
    for mapping in [&mapping, &anonymous] {
        write(mapping, 3 * MIB, 3);
        #[allow(clippy::reversed_empty_ranges)]
        for range in [0..5 * MIB, 100..200, 7 * MIB..9 * MIB, 3..1, 0..u64::MAX, u64::MAX..0] {
            mapping.populate(range.clone());
            mapping.collapse(range);
        }
        assert!(!mapping.collapse(1..HUGE_PAGE), "no whole piece");
        assert_eq!(bytes(mapping)[3 * MIB as usize], 3);
        assert!(mapping.huge_pages().is_some());
    }
}

#[test]
fn collapsed_pages_are_counted() {
    let mapping = Mapping::anonymous(8 * MIB, RESERVE).unwrap();
    mapping.populate(0..8 * MIB);
    if mapping.collapse(0..8 * MIB) {
        assert_eq!(mapping.huge_pages(), Some(8 * MIB));
    } else {
        println!("skipped: this kernel does not collapse");
    }
}

#[test]
fn a_shadow_takes_the_memory_of_what_was_stored_to() {
    let (_, of_file) = temp_mapping(256 * MIB);
    for mapping in [of_file, Mapping::anonymous(256 * MIB, RESERVE).unwrap()] {
        mapping.use_huge_pages();
        write(&mapping, 3 * MIB, 3);
        assert_eq!(mapping.shadow_resident(), Some(Resident::default()), "not what it is of");
        let stored = [0, 5 * MIB, 32 * MIB - 1];
        for at in stored {
            // SAFETY: the shadow is accessible for an eighth of the mapping's length.
            unsafe { mapping.shadow().cast_mut().add(at as usize).write_volatile(1) };
        }
        let pages = stored.len() as u64;
        let Resident { bytes, huge } = mapping.shadow_resident().unwrap();
        assert!((pages * PAGE..=pages * HUGE_PAGE).contains(&bytes), "{bytes}");
        assert!(huge <= bytes, "{huge} of {bytes}");
    }
}

#[test]
fn a_shadow_that_was_touched_has_its_memory_and_its_content() {
    let (_, of_file) = temp_mapping(256 * MIB);
    for mapping in [of_file, Mapping::anonymous(256 * MIB, RESERVE).unwrap()] {
        // SAFETY: the shadow is accessible for an eighth of the mapping's length.
        unsafe { mapping.shadow().cast_mut().write_volatile(7) };
        mapping.touch_shadow(0..16 * MIB);
        assert_eq!(mapping.shadow_resident().unwrap().bytes, 2 * MIB);
        mapping.touch_shadow(16 * MIB..18 * MIB);
        assert_eq!(mapping.shadow_resident().unwrap().bytes, 4 * MIB, "to its large page's end");
        mapping.touch_shadow(255 * MIB..257 * MIB);
        assert_eq!(mapping.shadow_resident().unwrap().bytes, 4 * MIB, "not past the end");
        // SAFETY: as above.
        assert_eq!(unsafe { mapping.shadow().read_volatile() }, 7);
    }
}

#[test]
fn memory_is_counted_where_entry_and_range_overlap() {
    let smaps = "\
1000-5000 rw-p 00000000 00:00 0
Rss:                 12 kB
Pss:                 12 kB
5000-7000 rw-p 00000000 00:00 0
Rss:                  4 kB
";
    let sum = |range| resident(smaps.as_bytes(), range).unwrap().bytes;
    assert_eq!(sum(0x1000..0x7000), 16 * 1024);
    assert_eq!(sum(0x1000..0x5000), 12 * 1024);
    assert_eq!(sum(0x4000..0x7000), 8 * 1024, "no more than they have in common");
    assert_eq!(sum(0x7000..0x8000), 0);
}

#[test]
fn large_pages_are_summed_up_over_the_entries_in_the_range() {
    let smaps = "\
1000-3000 rw-s 00000000 00:01 1 /pool
Size:                 8 kB
AnonHugePages:        2 kB
ShmemPmdMapped:       4 kB
FilePmdMapped:        1 kB
VmFlags: rd wr sh
3000-4000 rw-s 00002000 00:01 1 /pool
ShmemPmdMapped:       8 kB
4000-5000 rw-p 00000000 00:00 0
AnonHugePages:        100 kB
";
    let sum = |range| resident(smaps.as_bytes(), range).unwrap().huge;
    assert_eq!(sum(0x1000..0x4000), 15 * 1024);
    assert_eq!(sum(0x1000..0x3000), 7 * 1024);
    assert_eq!(sum(0..0x1000), 0);
    assert_eq!(sum(0x5000..0x6000), 0);
}
