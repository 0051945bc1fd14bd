//! A damaged map can be dropped: it is gone then, and the next open reclaims its space.

use outlast::{Config, MapOptions, PoolOptions, RecordForm, Scheme};
use outlast_offline as offline;
use outlast_offline::What;

#[test]
fn the_space_of_a_damaged_map_that_is_dropped_is_reclaimed() {
    Scheme::ALL.iter().for_each(|&scheme| is_reclaimed(scheme, false));
}

/// After a crash, the damage stops the reclaim. Without the map, the next open can reclaim all space.
#[test]
fn the_space_of_a_damaged_map_that_is_dropped_after_a_crash_is_reclaimed() {
    Scheme::ALL.iter().for_each(|&scheme| is_reclaimed(scheme, true));
}

fn is_reclaimed(scheme: Scheme, killed: bool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged.pool");
    let options =
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).page_bits(12).background(false);
    // SAFETY: the file belongs to this test.
    let pool = unsafe { options.create(&path).unwrap() };
    let small = MapOptions::new().config(Config::small(scheme));
    let small = small.form(RecordForm::Bytes);
    let map = pool.map_with::<u64, u64>("m", &small).unwrap();
    for n in 0..300 {
        map.insert(&n, &n).unwrap();
    }
    // What is in the file now is what a kill leaves.
    let open = std::fs::read(&path).unwrap();
    drop(map);
    pool.close().unwrap();
    let mut bytes = if killed { open } else { std::fs::read(&path).unwrap() };
    let (_, regions) = offline::regions(&bytes).unwrap();
    let part = |what| match scheme {
        Scheme::DashEh | Scheme::DashLh => matches!(what, What::Segment { .. }),
        Scheme::Clevel => matches!(what, What::ClevelSlot),
        Scheme::Phast => matches!(what, What::LeafPlace { .. }),
        Scheme::Group => matches!(what, What::GroupSegment { .. }),
        Scheme::Line => matches!(what, What::LineSegment { .. }),
        Scheme::EaPht | Scheme::EaPhtH | Scheme::EaPhtHpr => matches!(what, What::PhtArea),
        _ => unreachable!("{scheme}"),
    };
    let part = regions.iter().rfind(|r| part(r.what)).unwrap();
    bytes[part.offset as usize] ^= 1;
    std::fs::write(&path, &bytes).unwrap();

    // SAFETY: as above.
    let pool = unsafe { options.open(&path).unwrap() };
    assert!(!pool.verify().unwrap().is_sound());
    pool.drop_map("m").unwrap();
    assert!(pool.maps().is_empty());
    pool.close().unwrap();
    assert!(!offline::walk(&path).unwrap().free_state);
    // SAFETY: as above.
    let pool = unsafe { options.open(&path).unwrap() };
    let found = pool.verify().unwrap();
    assert!(found.is_sound(), "{found:?}");
    assert_eq!((found.used_bytes, found.leaked_bytes), (0, Some(0)));
    pool.close().unwrap();
}
