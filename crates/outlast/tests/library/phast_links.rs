//! PhaST in files with misleading links: to least keys in space that is used for something else,
//! and to leaves beyond the end of the file. Operations return a result or report the damage. None
//! panics, or reads outside the file. (`hostile.rs` in outlast-check changes one byte at a time,
//! which cannot make such links, because they have checksums.)

use outlast::internals::index::phast::layout::{
    self, Kind, LEAF_HEADER, MASTER_HEADER, Next, unpack_entry,
};
use outlast::{Error, MapOptions, OrderedMap, Pool, PoolOptions, RecordForm, config};
use outlast_offline as offline;
use outlast_offline::What;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

fn options() -> PoolOptions {
    PoolOptions::new().survive(outlast::Failure::ProcessDeath).page_bits(12).background(false)
}

fn create(path: &Path) -> Pool {
    // SAFETY: the file belongs to this test.
    unsafe { options().create(path).unwrap() }
}

/// Opens a pool with this content.
fn open(path: &Path, bytes: &[u8]) -> Pool {
    std::fs::write(path, bytes).unwrap();
    // SAFETY: as above.
    unsafe { options().open(path).unwrap() }
}

fn word(bytes: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(bytes[at as usize..at as usize + 8].try_into().unwrap())
}

fn set(bytes: &mut [u8], at: u64, word: u64) {
    bytes[at as usize..at as usize + 8].copy_from_slice(&word.to_le_bytes());
}

/// Returns the map's leaves, in order.
fn leaves(bytes: &[u8]) -> Vec<u64> {
    let (_, regions) = offline::regions(bytes).unwrap();
    let entries = regions.iter().find(|r| r.what == What::MasterEntries).unwrap();
    let first = word(bytes, entries.offset);
    let first = unpack_entry(entries.offset - MASTER_HEADER, 0, first).unwrap();
    let next = |&at: &u64| Next::unpack(at, word(bytes, at + 72)).unwrap().offset;
    std::iter::successors(Some(first), |at| Some(next(at)).filter(|&at| at != 0)).collect()
}

/// Sets a leaf's least key to the one to which `link` leads.
fn set_low(bytes: &mut [u8], leaf: u64, slots: u32, link: u64) {
    set(bytes, leaf + 80, link);
    set(bytes, leaf + 64, layout::identity(Kind::Leaf, slots, leaf, link));
}

fn key(n: u64) -> Vec<u8> {
    format!("{n:05}").into_bytes()
}

#[test]
fn a_leaf_behind_the_file_is_damage_however_it_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = create(&path);
    let config =
        config::Phast { leaf_slots: 8, node_leaves: 4, partitions: 1, ..Default::default() };
    let small = MapOptions::new().form(RecordForm::Inline).config(config);
    let map: OrderedMap<u64, u64> = pool.ordered_map_with("m", &small).unwrap();
    (0..100).for_each(|n| assert!(map.insert(&n, &(n + 1000)).unwrap()));
    drop(map);
    pool.close().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let last = *leaves(&bytes).last().unwrap();
    let far = Next { offset: (1 << 47) + 64, moving: false };
    set(&mut bytes, last + 72, far.pack(last));
    let pool = open(&path, &bytes);
    let map: OrderedMap<u64, u64> = pool.ordered_map("m").unwrap();
    assert!(matches!(map.get(&u64::MAX), Err(Error::Damaged(_))));
    assert!(matches!(map.get_many(&[&u64::MAX]), Err(Error::Damaged(_))));
    assert!(matches!(map.get_many(&[&5, &u64::MAX]), Err(Error::Damaged(_))));
    assert!(matches!(map.insert(&u64::MAX, &1), Err(Error::Damaged(_))));
    assert!(matches!(map.last(), Err(Error::Damaged(_))));
    assert_eq!(map.get_many(&[&5, &7]).unwrap(), [Some(1005), Some(1007)]);
}

#[test]
fn a_least_key_that_changes_under_a_merge_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = create(&path);
    let config = config::Phast { node_leaves: 4, partitions: 1, ..Default::default() };
    let small = MapOptions::new().config(config);
    let map: OrderedMap<[u8], [u8]> = pool.ordered_map_with("m", &small).unwrap();
    (0..100).for_each(|n| assert!(map.insert(&key(n), &[7; 3]).unwrap()));
    (0..100).filter(|n| n % 3 != 0).for_each(|n| assert!(map.remove(&key(n)).unwrap().is_some()));
    drop(map);
    pool.close().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let [first, second, ..] = leaves(&bytes)[..] else { panic!("it was to be split") };
    let separator = word(&bytes, second + 80);
    let record = separator & ((1 << 48) - 1);
    let mut tried = 0;
    // The copy goes to free slots of the first leaf: two of them for the separator's 32 bytes. A
    // merge writes to them.
    for slot in (0..55).filter(|slot| word(&bytes, first) >> slot & 3 == 0) {
        let mut bytes = bytes.clone();
        let at = first + LEAF_HEADER + slot * 16;
        for i in 0..4 {
            let copied = word(&bytes, record + i * 8);
            set(&mut bytes, at + i * 8, copied);
        }
        set_low(&mut bytes, second, 56, separator >> 48 << 48 | at);
        let pool = open(&path, &bytes);
        let Ok(map) = pool.ordered_map::<[u8], [u8]>("m") else { continue };
        tried += 1;
        for n in (0..100).rev() {
            let _ = map.remove(&key(n));
        }
        for n in 0..400 {
            let _ = map.insert(&key(n), &[8; 3]);
        }
        drop(map);
        let _ = pool.close();
    }
    assert!(tried > 10, "{tried}");
}

#[test]
fn a_first_leaf_whose_least_key_is_a_link_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = create(&path);
    let map: OrderedMap<[u8], [u8]> = pool.ordered_map("m").unwrap();
    (0..40).for_each(|n| assert!(map.insert(&key(n), &[7; 3]).unwrap()));
    let before = std::fs::read(&path).unwrap();
    (0..10).for_each(|n| assert!(map.remove(&key(n)).unwrap().is_some()));
    drop(map);
    pool.close().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let leaf = leaves(&bytes)[0];
    // Take a free block that held a record, and overwrite its first word, so that its key is empty
    // until the block is used again.
    let freed = word(&before, leaf) & !word(&bytes, leaf);
    let link = word(&before, leaf + LEAF_HEADER + u64::from(freed.trailing_zeros()) * 16);
    set(&mut bytes, link & ((1 << 48) - 1), 0);
    set_low(&mut bytes, leaf, 56, link);
    let pool = open(&path, &bytes);
    let map = pool.ordered_map::<[u8], [u8]>("m").unwrap();
    for n in 0..40 {
        assert!(matches!(map.put(&key(99_000 + n), &[1; 3]), Err(Error::Damaged(_))));
        assert!(matches!(map.get(b"0"), Err(Error::Damaged(_))));
    }
}

/// If a read were valid only if nothing in the leaf was replaced meanwhile, it would never end
/// where reading a value takes longer than replacing a neighbor.
#[test]
fn a_long_value_is_read_beside_a_neighbour_that_is_replaced_all_the_time() {
    let pool = PoolOptions::new().anonymous().unwrap();
    let map: OrderedMap<[u8], [u8]> = pool.ordered_map("m").unwrap();
    let long = vec![5; 256 << 10];
    map.put(b"long", &long).unwrap();
    map.put(b"hot", &[0; 8]).unwrap();
    let (stop, replaced, in_vain) =
        (AtomicBool::new(false), AtomicU64::new(0), AtomicBool::default());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let start = Instant::now();
            while !stop.load(SeqCst) {
                map.put(b"hot", &replaced.fetch_add(1, SeqCst).to_le_bytes()).unwrap();
                if start.elapsed() > Duration::from_secs(60) {
                    // Give up, so that the reader and the test end.
                    return in_vain.store(true, SeqCst);
                }
            }
        });
        while replaced.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        for _ in 0..20 {
            assert_eq!(map.get(b"long").unwrap().as_deref(), Some(&long[..]));
            assert_eq!(map.prefix(b"").count(), 2);
            assert_eq!(map.last().unwrap().unwrap().1, long);
        }
        stop.store(true, SeqCst);
    });
    assert!(!in_vain.load(SeqCst), "only when nothing was replaced any more");
}
