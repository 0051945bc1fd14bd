//! When something is wrong, a pool returns a typed error and loses nothing.

use crate::files::{check_filled, create, dir, filled, open};
use outlast::{
    Config, Error, MAX_KEY_BYTES, MAX_VALUE_BYTES, MapOptions, PoolOptions, Scheme, TornReason,
    config,
};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

const HEADERS: [u64; 2] = [0, 4096];

/// Changes a word of both header copies and corrects their checksums.
fn set_header_word(path: &Path, index: usize, value: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    for offset in HEADERS {
        let mut bytes = [0; 512];
        file.read_exact_at(&mut bytes, offset).unwrap();
        bytes[index * 8..index * 8 + 8].copy_from_slice(&value.to_le_bytes());
        let sum = u64::from(crc32c::crc32c(&bytes[..504]));
        bytes[504..].copy_from_slice(&sum.to_le_bytes());
        file.write_all_at(&bytes, offset).unwrap();
    }
}

/// Returns a word of the valid header copy, the one with the greater sequence number.
fn header_word(path: &Path, index: usize) -> u64 {
    let file = File::open(path).unwrap();
    let word = |copy: u64, index: usize| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, copy + index as u64 * 8).unwrap();
        u64::from_le_bytes(bytes)
    };
    let valid = HEADERS.into_iter().max_by_key(|&copy| word(copy, 7)).unwrap();
    word(valid, index)
}

fn flip(path: &Path, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

#[test]
fn files_that_are_no_pools() {
    let (dir, path) = dir();
    assert!(matches!(open(&path), Err(Error::NoSuchPool { .. })));
    for content in [&b""[..], b"hello", &[0; 1 << 20], &[0xff; 300_000]] {
        fs::write(&path, content).unwrap();
        assert!(matches!(open(&path), Err(Error::NotAPool { .. })), "{} bytes", content.len());
        assert_eq!(fs::read(&path).unwrap(), content, "and it is left alone");
    }
    assert!(matches!(open(dir.path()), Err(Error::NotAPool { .. } | Error::Io { .. })));
    // SAFETY: the file belongs to this test.
    let exists =
        unsafe { PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(&path) };
    assert!(matches!(exists, Err(Error::Io { .. })));
    let nowhere = dir.path().join("no/such/directory/a.pool");
    // SAFETY: there is no file.
    let nowhere =
        unsafe { PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(nowhere) };
    assert!(matches!(nowhere, Err(Error::Io { .. })));
    // Failed creations leave nothing behind.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn other_versions_and_unknown_features() {
    let (_dir, path) = filled();
    set_header_word(&path, 1, 2 | 512 << 32);
    assert!(matches!(open(&path), Err(Error::Version { found: 2, supported: 1, .. })));
    set_header_word(&path, 1, 1 | 512 << 32);
    let features = header_word(&path, 4);
    set_header_word(&path, 4, features | 1 << 40);
    let unknown = open(&path);
    assert!(matches!(unknown, Err(Error::UnknownFeature { bits: 0x100_0000_0000, .. })));
    set_header_word(&path, 4, features);
    // Read-only compatible: readers may open it, writers may not. Compatible: both may.
    set_header_word(&path, 3, 1 << 40);
    let unknown = open(&path);
    assert!(matches!(unknown, Err(Error::UnknownFeature { bits: 0x100_0000_0000, .. })));
    // SAFETY: the file belongs to this test.
    check_filled(&unsafe { PoolOptions::new().open_read_only(&path).unwrap() });
    set_header_word(&path, 3, 0);
    set_header_word(&path, 2, 4);
    check_filled(&open(&path).unwrap());
    // A map whose records expire sets a read-only compatible bit: a build without expiry may not write.
    assert_eq!(header_word(&path, 3), 0);
    let pool = open(&path).unwrap();
    pool.map_with::<u64, u64>("expiring", &MapOptions::new().expiry(true)).unwrap();
    pool.close().unwrap();
    assert_eq!(header_word(&path, 3), 1);
    check_filled(&open(&path).unwrap());
}

/// Whoever prints an error, or returns it from `main`, learns which file it is of and what caused it.
#[test]
fn errors_name_the_file_and_their_cause() {
    let (dir, path) = filled();
    let named = |error: outlast::Error| {
        let text = error.to_string();
        assert!(text.starts_with(&format!("{}: ", path.display())), "{text}");
        assert_eq!(format!("{error:?}"), text);
    };
    // SAFETY: the file belongs to this test.
    let read_only = unsafe { PoolOptions::new().open_read_only(&path).unwrap() };
    named(open(&path).unwrap_err());
    named(read_only.drop_map("numbers").unwrap_err());
    named(read_only.map::<u64, u64>("other").unwrap_err());
    drop(read_only);
    let whole = fs::read(&path).unwrap();
    set_header_word(&path, 1, 2 | 512 << 32);
    named(open(&path).unwrap_err());
    fs::write(&path, &whole[..70_000]).unwrap();
    named(open(&path).unwrap_err());
    fs::write(&path, &whole).unwrap();
    for copy in HEADERS {
        flip(&path, copy + 100);
    }
    named(open(&path).unwrap_err());
    fs::write(&path, "no pool").unwrap();
    named(open(&path).unwrap_err());
    let live = dir.path().join("live");
    let pool = create(&live);
    pool.map::<u64, u64>("numbers").unwrap().insert(&1, &2).unwrap();
    fs::copy(&live, &path).unwrap();
    named(open(&path).unwrap_err());
    let exists = open(&dir.path().join("none/pool")).map(drop).unwrap_err();
    assert!(format!("{exists:?}").contains("no pool at"), "{exists:?}");
    // SAFETY: the file belongs to this test.
    let exists = unsafe { PoolOptions::new().create(&live) }.map(drop).unwrap_err();
    assert!(format!("{exists:?}").ends_with(": entity already exists"), "{exists:?}");
}

#[test]
fn truncated_and_damaged_headers() {
    let (_dir, path) = filled();
    let whole = fs::read(&path).unwrap();
    let pool = open(&path).unwrap();
    let size = pool.stats().size;
    drop(pool);
    for bytes in [whole.len() - 4096, 65_536, 4608, 4500] {
        fs::write(&path, &whole[..bytes]).unwrap();
        let actual = bytes as u64;
        assert!(
            matches!(open(&path), Err(Error::Truncated { expected, actual: found, .. })
                if (expected, found) == (size, actual)),
            "{bytes}"
        );
    }
    // If no copy of the header is intact, only the minimum size of a pool is known.
    flip(&path, 100);
    assert!(matches!(open(&path), Err(Error::Truncated { expected: 131_072, actual: 4500, .. })));
    // If one copy is damaged, the other one serves, and the damage is reported.
    for copy in HEADERS {
        fs::write(&path, &whole).unwrap();
        flip(&path, copy + 100);
        // SAFETY: the file belongs to this test.
        let reader = unsafe { PoolOptions::new().open_read_only(&path).unwrap() };
        check_filled(&reader);
        assert_eq!(reader.stats().damaged_header_copy.unwrap().offset(), copy);
        // A crash can leave such a copy, so it is reported but does not count as damage.
        let found = reader.verify().unwrap();
        assert_eq!(found.header_copy.as_ref().map(|damage| damage.offset()), Some(copy));
        assert!(found.is_sound(), "{found:?}");
        drop(reader);
        // The first write replaces the damaged copy.
        let pool = open(&path).unwrap();
        check_filled(&pool);
        assert_eq!(pool.stats().damaged_header_copy, None);
        let found = pool.verify().unwrap();
        found.ensure_sound().unwrap();
        assert_eq!(found.records(), 1000);
    }
    fs::write(&path, &whole).unwrap();
    flip(&path, 100);
    flip(&path, 4196);
    assert!(matches!(open(&path), Err(Error::DamagedHeader { .. })));
    fs::write(&path, &whole).unwrap();
    flip(&path, 8192);
    assert!(
        matches!(open(&path), Err(Error::DamagedHeader { damage: d, .. }) if d.offset() == 8192)
    );
}

/// After a close, one header copy says that the pool is clean, and the other is the earlier dirty
/// mark. If the clean copy is damaged, the pool looks exactly like one that was copied while a
/// writer was writing that header copy.
#[test]
fn a_damaged_header_copy_of_a_copied_pool() {
    let (dir, path) = filled();
    let copied = dir.path().join("copied.pool");
    let damage = |pool: &Path, offset| {
        fs::copy(pool, &copied).unwrap();
        flip(&copied, offset);
    };
    let words = fs::read(&path).unwrap();
    let sequence = |at: u64| &words[at as usize + 56..at as usize + 64];
    let number = |at| u64::from_le_bytes(sequence(at).try_into().unwrap());
    let [clean, dirty] =
        if number(0) > number(4096) { [HEADERS[0], HEADERS[1]] } else { [HEADERS[1], HEADERS[0]] };

    damage(&path, dirty);
    let pool = open(&copied).unwrap();
    check_filled(&pool);
    drop(pool);

    damage(&path, clean);
    let torn = open(&copied).unwrap_err();
    assert!(
        torn.to_string().contains(&format!("which may be newer, is damaged at offset {clean:#x}"))
    );
    let Error::PossiblyTorn { reason: TornReason::Copy, damaged_copy: Some(damage_found), .. } =
        torn
    else {
        panic!("{torn}");
    };
    assert_eq!(damage_found.offset(), clean);
    let options =
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).accept_possibly_torn(true);
    // SAFETY: the file belongs to this test.
    let reader = unsafe { options.open_read_only(&copied).unwrap() };
    let found = reader.verify().unwrap();
    assert_eq!(found.header_copy.as_ref().map(|damage| damage.offset()), Some(clean));
    drop(reader);
    // SAFETY: the file belongs to this test.
    let pool = unsafe { options.open(&copied).unwrap() };
    assert!(matches!(pool.sync(), Err(Error::Suspect)), "not clean before it is verified");
    assert!(pool.verify().unwrap().is_sound());
    pool.close().unwrap();
    check_filled(&open(&copied).unwrap());

    // Now damage the copy that says the pool was closed, and open the pool after a reboot.
    flip(&path, clean);
    // SAFETY: the file belongs to this test.
    let torn = unsafe { PoolOptions::new().boot_id(1).open(&path).unwrap_err() };
    let Error::PossiblyTorn {
        reason: TornReason::EarlierBoot,
        damaged_copy: Some(damage_found),
        ..
    } = torn
    else {
        panic!("{torn}");
    };
    assert_eq!(damage_found.offset(), clean);

    // In a pool that was never changed, both copies say that it is clean. So either one is enough.
    let unchanged = dir.path().join("unchanged.pool");
    create(&unchanged).close().unwrap();
    for offset in HEADERS {
        damage(&unchanged, offset);
        assert!(open(&copied).unwrap().verify().unwrap().is_sound());
    }
}

#[test]
fn damaged_roots_and_structures() {
    let (_dir, path) = filled();
    let pool = open(&path).unwrap();
    pool.map::<str, str>("texts").unwrap().insert("a", "b").unwrap();
    pool.close().unwrap();
    let whole = fs::read(&path).unwrap();
    let root = 16 << 10;
    flip(&path, root + 70);
    let pool = open(&path).unwrap();
    assert_eq!(pool.map::<str, str>("texts").unwrap().get("a").unwrap().as_deref(), Some("b"));
    let damaged = pool.map::<u64, u64>("numbers");
    assert!(matches!(damaged, Err(Error::DamagedRoot { slot: 0, .. })), "not made anew");
    assert!(pool.maps().iter().any(|m| matches!(m, Err(Error::DamagedRoot { .. }))));
    let verified = pool.verify().unwrap();
    assert!(!verified.is_sound());
    let first = verified.all_damage().next().unwrap().clone();
    assert!(matches!(verified.ensure_sound(), Err(Error::Damaged(damage)) if damage == first));
    drop(pool);
    // A damaged segment identity: only operations that need the segment report it.
    fs::write(&path, &whole).unwrap();
    let scheme =
        u64::from_le_bytes(whole[root as usize + 8..root as usize + 16].try_into().unwrap());
    let directory = (scheme & 0xffff_ffff_ffff) as usize;
    let first = &whole[directory + 64..directory + 72];
    let segment = u64::from_le_bytes(first.try_into().unwrap());
    flip(&path, segment + 3);
    let pool = open(&path).unwrap();
    let map = pool.map::<u64, u64>("numbers").unwrap();
    let answers: Vec<_> = (0..1000).map(|n| map.get(&n)).collect();
    let damage =
        answers.iter().filter(|a| matches!(a, Err(Error::Damaged(d)) if d.offset() == segment));
    assert!((100..900).contains(&damage.count()));
    assert!(answers.iter().filter_map(|a| a.as_ref().ok()).all(Option::is_some));
    let found = pool.verify().unwrap();
    assert!(found.all_damage().any(|d| d.offset() == segment), "{found:?}");
}

#[test]
fn keys_and_values_of_every_size_up_to_the_limit() {
    let pool = PoolOptions::new().anonymous().unwrap();
    let map = pool.map::<[u8], [u8]>("m").unwrap();
    let key = vec![7; MAX_KEY_BYTES + 1];
    let value = vec![9; MAX_VALUE_BYTES + 1];
    assert!(matches!(map.insert(&key, b""), Err(Error::KeyTooLarge { .. })));
    assert!(matches!(map.get(&key), Err(Error::KeyTooLarge { .. })));
    assert!(matches!(map.insert(b"", &value), Err(Error::ValueTooLarge { .. })));
    assert!(map.insert(&key[1..], b"").unwrap());
    assert!(map.insert(b"", &value[1..]).unwrap());
    assert_eq!(map.get(&key[1..]).unwrap().unwrap(), b"");
    assert!(map.get(b"").unwrap().unwrap() == value[1..]);
    assert!(map.remove(b"").unwrap().is_some());
    let found = pool.verify().unwrap();
    assert!(found.is_sound() && found.leaked_bytes == Some(0), "{found:?}");
}

#[test]
fn maps_are_what_they_were_created_as() {
    let (_dir, path) = filled();
    let pool = open(&path).unwrap();
    let mismatch = |e: Error, what: &str| {
        assert!(matches!(e, Error::MapMismatch { what: w, .. } if w == what), "{what}");
    };
    mismatch(pool.map::<u64, str>("numbers").unwrap_err(), "value schema");
    mismatch(pool.map::<i64, u64>("numbers").unwrap_err(), "key schema");
    let bytes = MapOptions::new().form(outlast::RecordForm::Bytes);
    mismatch(pool.map_with::<u64, u64>("numbers", &bytes).unwrap_err(), "record form");
    assert!(matches!(pool.raw_map("none"), Err(Error::NoSuchMap { .. })));
    assert!(matches!(pool.drop_map("none"), Err(Error::NoSuchMap { .. })));
    let wrong = |change: fn(&mut config::DashEh)| {
        let mut config = config::DashEh::default();
        change(&mut config);
        MapOptions::new().config(config)
    };
    for options in [wrong(|it| it.stash_buckets = 3), wrong(|it| it.bucket_bits = 7)] {
        let invalid = pool.map_with::<u64, u64>("new", &options);
        assert!(matches!(invalid, Err(Error::Invalid { .. })));
    }
    assert!(matches!(pool.map::<u64, u64>(""), Err(Error::Invalid { .. })));
    let long = "n".repeat(500);
    assert!(matches!(pool.map::<u64, u64>(&long), Err(Error::Invalid { .. })));
    let small = MapOptions::new().config(Config::small(Scheme::DashEh));
    for n in 1..128 {
        pool.map_with::<u64, u64>(&format!("map {n}"), &small).unwrap();
    }
    let many = pool.map::<u64, u64>("one more");
    assert!(matches!(many, Err(Error::TooManyMaps { max: 128 })));
    pool.drop_map("map 5").unwrap();
    pool.map::<u64, u64>("one more").unwrap();
    check_filled(&pool);
}

#[test]
fn small_integers_keep_their_values() {
    let pool = PoolOptions::new().anonymous().unwrap();
    let map = pool.map::<i8, i32>("m").unwrap();
    for n in i8::MIN..=i8::MAX {
        assert!(map.insert(&n, &(i32::from(n) * -7)).unwrap());
    }
    for n in i8::MIN..=i8::MAX {
        assert_eq!(map.get(&n).unwrap(), Some(i32::from(n) * -7));
    }
    let wide = pool.map::<i64, u8>("w").unwrap();
    wide.put(&i64::MIN, &255).unwrap();
    assert_eq!(wide.iter().collect::<Result<Vec<_>, _>>().unwrap(), [(i64::MIN, 255)]);
}

#[test]
fn read_only_pools_refuse_changes_and_leave_the_file_alone() {
    let (_dir, path) = filled();
    let before = fs::read(&path).unwrap();
    // SAFETY: the file belongs to this test.
    let reader = unsafe { PoolOptions::new().open_read_only(&path).unwrap() };
    // SAFETY: the file belongs to this test.
    let second = unsafe { PoolOptions::new().open_read_only(&path).unwrap() };
    check_filled(&reader);
    check_filled(&second);
    let map = reader.map::<u64, u64>("numbers").unwrap();
    assert!(matches!(map.insert(&5000, &1), Err(Error::ReadOnly { .. })));
    assert!(matches!(map.remove(&5), Err(Error::ReadOnly { .. })));
    assert!(matches!(map.delete(&5), Err(Error::ReadOnly { .. })));
    assert!(matches!(map.compare_remove(&5, &1), Err(Error::ReadOnly { .. })));
    assert!(matches!(map.add(&5, 1), Err(Error::ReadOnly { .. })));
    assert!(matches!(map.clear(), Err(Error::ReadOnly { .. })));
    assert!(matches!(reader.map::<u64, u64>("new"), Err(Error::ReadOnly { .. })));
    assert!(matches!(reader.drop_map("numbers"), Err(Error::ReadOnly { .. })));
    assert!(reader.verify().unwrap().is_sound());
    assert!(matches!(open(&path), Err(Error::Locked { .. })), "no writer beside readers");
    drop(map);
    reader.close().unwrap();
    second.close().unwrap();
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn closed_pools_and_dropped_maps() {
    let (_dir, path) = filled();
    let pool = open(&path).unwrap();
    let other = pool.clone();
    let map = pool.map::<u64, u64>("numbers").unwrap();
    pool.close().unwrap();
    assert!(matches!(map.get(&1), Err(Error::NotOpen(_))));
    assert!(matches!(map.put(&1, &1), Err(Error::NotOpen(_))));
    assert!(matches!(other.sync(), Err(Error::NotOpen(_))));
    drop((map, other));
    let pool = open(&path).unwrap();
    let map = pool.map::<u64, u64>("numbers").unwrap();
    pool.drop_map("numbers").unwrap();
    assert!(matches!(map.get(&1), Err(Error::MapDropped)));
    // A new map of the same name is a different map.
    let new = pool.map::<str, str>("numbers").unwrap();
    assert_eq!(new.len_estimate().unwrap(), 0);
    drop(map);
    // Dropping the last handle closes the pool as `close` does.
    drop((new, pool));
    let pool = open(&path).unwrap();
    assert_eq!(pool.verify().unwrap().leaked_bytes, Some(0));
}

/// The root slot of a dropped map looks like that of a lost map. Here the dropped map's slot comes
/// first.
#[test]
fn a_lost_root_is_told_from_a_dropped_map() {
    let (_dir, path) = dir();
    let pool = create(&path);
    for name in ["a", "b", "c"] {
        pool.map::<u64, u64>(name).unwrap().insert(&1, &2).unwrap();
    }
    pool.drop_map("a").unwrap();
    pool.close().unwrap();
    let roots = outlast::internals::pool::core::root_offset(0).raw();
    let lost = outlast::internals::pool::core::root_offset(1).raw();
    assert!(lost > roots);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0; 8], lost).unwrap();
    let pool = open(&path).unwrap();
    let told: Vec<_> = pool.maps().into_iter().filter_map(Result::err).collect();
    assert!(
        matches!(&told[..], [Error::DamagedRoot { slot: 1, damage }] if damage.offset() == lost),
        "{told:?}"
    );
    assert!(pool.map::<u64, u64>("d").is_err() && !pool.verify().unwrap().is_sound());
}

#[test]
fn the_slots_of_dropped_maps_are_free_once_their_handles_are_gone() {
    let pool = PoolOptions::new().background(false).anonymous().unwrap();
    let mut handles = Vec::new();
    let full = loop {
        match pool.map::<u64, u64>("m") {
            Ok(map) => handles.push(map),
            Err(error) => break error,
        }
        pool.drop_map("m").unwrap();
    };
    assert!(matches!(full, Error::TooManyMaps { max: 128 }), "{full}");
    assert_eq!(handles.len(), 128);
    drop(handles);
    pool.map::<u64, u64>("m").unwrap();
}

/// A reference blocks the reuse of replaced records, but not the reuse of the records of another
/// map that was dropped.
#[test]
fn the_space_of_a_dropped_map_waits_for_no_reference_to_another() {
    for &scheme in Scheme::ALL {
        let pool = PoolOptions::new().background(false).anonymous().unwrap();
        let kept = pool.map::<str, [u8]>("kept").unwrap();
        kept.insert("a", &[1; 100]).unwrap();
        let map = pool.map_with::<u64, [u8]>("m", &MapOptions::new().scheme(scheme)).unwrap();
        for n in 0..2_000u64 {
            map.insert(&n, &[2; 10_000]).unwrap();
        }
        drop(map);
        let reference = kept.get_ref("a").unwrap().unwrap();
        pool.drop_map("m").unwrap();
        // The records took 20 MB, which must be free now. Earlier tables that the map had retired
        // itself may still be held.
        let used = pool.stats().size - pool.stats().free_page_bytes;
        let held = pool.stats().held_bytes;
        assert!(used < 2 << 20 && held < 1 << 20, "{scheme}: {used} bytes in use, {held} wait");
        assert_eq!(reference.bytes().to_vec().unwrap(), [1; 100]);
    }
}

#[test]
fn opening_tells_how_far_it_is() {
    for &scheme in Scheme::ALL.iter().filter(|scheme| scheme.row().linear_recovery) {
        let (_dir, path) = dir();
        // SAFETY: the file belongs to this test.
        let pool = unsafe {
            PoolOptions::new()
                .survive(outlast::Failure::ProcessDeath)
                .background(false)
                .create(&path)
                .unwrap()
        };
        let map = pool.map_with::<u64, [u8]>("m", &MapOptions::new().scheme(scheme)).unwrap();
        for n in 0..60_000u64 {
            map.insert(&(n * 3), &n.to_be_bytes()).unwrap();
        }
        // A map that is being resized would report two tables.
        while pool.step().unwrap() {}
        drop(map);
        pool.close().unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let telling = Arc::clone(&told);
        let options =
            PoolOptions::new().survive(outlast::Failure::ProcessDeath).recovery_threads(2);
        let options = options.recovery_progress(move |p| telling.lock().unwrap().push(p));
        // SAFETY: the file belongs to this test.
        let pool = unsafe { options.open(&path).unwrap() };
        let map = pool.map::<u64, [u8]>("m").unwrap();
        assert_eq!(map.iter().count(), 60_000);
        let told = told.lock().unwrap();
        let parts = told[0].parts;
        assert!(parts >= 4 && told.len() == parts, "{scheme}: {told:?}");
        let mut done: Vec<usize> = told.iter().map(|progress| progress.parts_done).collect();
        done.sort_unstable();
        assert_eq!(done, (1..=parts).collect::<Vec<_>>(), "{scheme}");
        assert!(told.iter().any(|progress| progress.leaves > 4), "{scheme}: {told:?}");
    }
}
