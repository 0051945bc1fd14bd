//! Pools that a power loss may have torn: what of them can be accepted, and what the process that
//! closes, syncs or accepts a pool leaves if it is killed.

use crate::files::dir;
use outlast::internals::pmem::{Call, Disk, DiskWatch, Fate, MediumKind};
use outlast::{Error, Pool, PoolOptions};
use outlast_offline as offline;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The part of the file that holds the two copies of the header, in bytes.
const HEADERS: usize = 8192;
/// Offset of the batch word.
const BATCH_WORD: usize = 8256;

fn options(boot: u128) -> PoolOptions {
    PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .medium(MediumKind::PageCache)
        .background(false)
        .boot_id(boot)
}

fn create(options: &PoolOptions, path: &Path) -> Pool {
    // SAFETY: the file belongs to this test.
    unsafe { options.create(path).unwrap() }
}

fn open(options: &PoolOptions, path: &Path) -> Result<Pool, Error> {
    // SAFETY: the file belongs to this test.
    unsafe { options.open(path) }
}

fn is_torn(opened: Result<Pool, Error>) -> bool {
    matches!(opened, Err(Error::PossiblyTorn { .. }))
}

/// Leaves the file with this content, whatever its last owner did after its supposed death.
fn kill(pool: Pool, path: &Path, content: &[u8]) {
    drop(pool);
    fs::write(path, content).unwrap();
}

#[test]
fn a_torn_pool_whose_growth_is_on_the_disk_but_not_in_its_header_is_accepted() {
    let (_dir, path) = dir();
    let pool = create(&options(1), &path);
    let map = pool.map::<u64, [u8]>("m").unwrap();
    map.put(&0, &[0; 1000]).unwrap();
    let headers = fs::read(&path).unwrap()[..HEADERS].to_vec();
    let before = pool.stats().size;
    let mut keys = 1;
    while pool.stats().size < 3 * before {
        map.put(&keys, &[keys as u8; 1000]).unwrap();
        keys += 1;
    }
    let mut content = fs::read(&path).unwrap();
    content[..HEADERS].copy_from_slice(&headers);
    drop(map);
    kill(pool, &path, &content);

    assert!(is_torn(open(&options(2), &path)));
    assert_eq!(offline::walk(&path).unwrap().problems, []);
    for read_only in [true, false] {
        let accepting = options(2).accept_possibly_torn(true);
        // SAFETY: the file belongs to this test.
        let read = || unsafe { accepting.open_read_only(&path) };
        let pool = if read_only { read() } else { open(&accepting, &path) }.unwrap();
        assert_eq!(pool.stats().size, content.len() as u64);
        assert!(pool.verify().unwrap().is_sound());
        let map = pool.map::<u64, [u8]>("m").unwrap();
        for key in 0..keys {
            assert_eq!(map.get(&key).unwrap().as_deref(), Some(&[key as u8; 1000][..]));
        }
        drop(map);
        pool.close().unwrap();
    }
    assert_eq!(open(&options(3), &path).unwrap().stats().size, content.len() as u64);
}

/// Counts write-backs. Keeps the content of the file at the first call at which a batch is under
/// way, and at each write-back of the header.
#[derive(Default)]
struct Watch {
    path: PathBuf,
    write_backs: Mutex<Vec<Call>>,
    in_batch: Mutex<Option<Vec<u8>>>,
    at_header: Mutex<Option<Vec<u8>>>,
}

impl Watch {
    fn new(path: &Path) -> Arc<Watch> {
        Arc::new(Watch { path: path.into(), ..Watch::default() })
    }

    fn options(self: &Arc<Self>, boot: u128) -> PoolOptions {
        options(boot).disk(Disk::watched(Arc::clone(self) as _))
    }
}

impl DiskWatch for Watch {
    fn before(&self, call: Call, _: &File) -> Fate {
        if call.makes_durable() {
            self.write_backs.lock().unwrap().push(call);
        }
        let content = fs::read(&self.path).unwrap_or_default();
        if call == Call::Msync {
            *self.at_header.lock().unwrap() = Some(content.clone());
        }
        if content.get(BATCH_WORD..BATCH_WORD + 8).is_some_and(|word| word != [0; 8]) {
            self.in_batch.lock().unwrap().get_or_insert(content);
        }
        Fate::Done
    }
}

#[test]
fn a_process_killed_while_it_accepts_a_torn_pool_leaves_no_batch_to_repeat() {
    let (_dir, path) = dir();
    let watch = Watch::new(&path);
    let pool = create(&watch.options(1), &path);
    let map = pool.map::<u64, [u8]>("m").unwrap();
    let mut batch = pool.batch();
    for key in 0..100 {
        batch.put(&map, &key, &[key as u8; 50_000]).unwrap();
    }
    batch.commit().unwrap();
    drop((map, batch));
    let content = watch.in_batch.lock().unwrap().take().expect("the pool grew during the batch");
    kill(pool, &path, &content);

    // Another process accepts the pool, and dies while it writes the header back.
    assert!(is_torn(open(&options(2), &path)));
    let pool = open(&watch.options(2).accept_possibly_torn(true), &path).unwrap();
    let accepted = fs::read(&path).unwrap();
    pool.map::<u64, u64>("other").unwrap();
    let marked = watch.at_header.lock().unwrap().take().expect("a dirty mark");
    fs::write(&path, &content).unwrap();
    drop(pool);
    for killed in [accepted, marked] {
        fs::write(&path, killed).unwrap();
        let opened = match open(&options(2), &path) {
            // The header does not name that process, so the pool still counts as torn.
            Err(Error::PossiblyTorn { .. }) => {
                open(&options(2).accept_possibly_torn(true), &path).unwrap()
            }
            opened => opened.unwrap(),
        };
        let map = opened.map::<u64, [u8]>("m").unwrap();
        assert!((0..100).any(|key| map.get(&key).unwrap().is_none()), "the batch was repeated");
    }
}

#[test]
fn a_sync_repeats_that_of_a_process_killed_while_it_closed_the_pool() {
    let (_dir, path) = dir();
    let watch = Watch::new(&path);
    let pool = create(&watch.options(1), &path);
    pool.map::<u64, u64>("m").unwrap().put(&1, &2).unwrap();
    pool.close().unwrap();
    // The header says that the pool is clean. The disk may not have it yet.
    let closed = watch.at_header.lock().unwrap().take().expect("a clean header");
    fs::write(&path, closed).unwrap();
    let pool = open(&watch.options(1), &path).unwrap();
    assert!(pool.store().core().is_clean());
    let synced = || {
        watch.write_backs.lock().unwrap().clear();
        pool.sync().unwrap();
        watch.write_backs.lock().unwrap().clone()
    };
    assert_eq!(synced(), [Call::Msync]);
    assert_eq!(synced(), [], "the disk has the header");
    pool.close().unwrap();
    // After a restart, the header was read from the disk.
    let pool = open(&watch.options(2), &path).unwrap();
    watch.write_backs.lock().unwrap().clear();
    pool.sync().unwrap();
    assert_eq!(*watch.write_backs.lock().unwrap(), []);
}
