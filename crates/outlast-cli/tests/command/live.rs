//! Reading a pool that another process has open.

use crate::common::Place;
use outlast::{CacheOptions, Failure, MapOptions, Pool, PoolOptions};

fn owner(place: &Place) -> Pool {
    let options = PoolOptions::new().survive(Failure::ProcessDeath);
    // SAFETY: the file belongs to this test.
    unsafe { options.create(place.pool()).unwrap() }
}

#[test]
fn a_pool_that_is_served_is_read_while_it_is_in_use() {
    let place = Place::new();
    let pool = owner(&place);
    let ages = pool.map::<str, u64>("ages").unwrap();
    ages.insert("Ada", &36).unwrap();
    ages.insert("Grace", &85).unwrap();
    let log = pool.ordered_map::<u64, str>("log").unwrap();
    for n in 0..100 {
        log.insert(&n, &format!("line {n}")).unwrap();
    }
    let refused = place.run(["count", "--map", "log"]).expect(1).err;
    assert!(refused.contains("in use") && refused.contains("outlast_live::serve"), "{refused}");
    let serving = outlast_live::serve(&pool, place.pool()).unwrap();
    let got = place.run(["get", "Ada", "--map", "ages"]).expect(0);
    assert_eq!((got.text(), &*got.err), ("36\n", ""));
    place.run(["get", "Alan", "--map", "ages"]).expect(1);
    assert_eq!(place.run(["count", "--map", "log"]).expect(0).text(), "100\n");
    let scanned = place.run(["scan", "--map", "log", "--from", "97", "--reverse"]).expect(0);
    assert!(scanned.err.contains("is in use"), "{}", scanned.err);
    assert_eq!(scanned.text(), "99\tline 99\n98\tline 98\n97\tline 97\n");
    let prefixed = place.run(["scan", "--map", "ages", "--prefix", "G"]).expect(0);
    assert_eq!(prefixed.text(), "Grace\t85\n");
    let maps = place.run(["maps"]).expect(0).text().to_owned();
    assert!(maps.contains("ages\tdash-eh\tstr\tu64") && maps.contains("log\tphast"), "{maps}");
    let two = place.run(["count"]).expect(2).err;
    assert!(two.contains("2 maps") && two.contains("ages, log"), "{two}");
    let none = place.run(["count", "--map", "x"]).expect(1).err;
    assert!(none.contains("the pool has: ages, log"), "{none}");
    let stat = place.run(["stat"]).expect(0).text().to_owned();
    assert!(stat.contains("in use by another process") && stat.contains("~100"), "{stat}");
    place.run(["scan", "--map", "log", "--skip-damaged"]).expect(2);
    place.run(["put", "k", "1", "--map", "ages"]).expect(1);
    let copy = place.path("copy.pool");
    place.run(["backup".as_ref(), copy.as_os_str()]).expect(0);
    // SAFETY: the file belongs to this test.
    let copied = unsafe { PoolOptions::new().open_read_only(&copy).unwrap() };
    assert_eq!(copied.map::<str, u64>("ages").unwrap().get("Grace").unwrap(), Some(85));
    drop(copied);
    place.run(["backup".as_ref(), copy.as_os_str()]).expect(1);
    let forced = ["backup".as_ref(), copy.as_os_str(), "--force".as_ref()];
    place.run(forced).expect(0);
    drop(serving);
    place.run(["get", "Ada", "--map", "ages"]).expect(1);
    assert!(!place.path("test.pool.live").exists());
}

#[test]
fn statistics_of_a_cache_come_from_the_process_that_has_it_open() {
    let place = Place::new();
    let pool = owner(&place);
    let pages = pool.cache::<str, u64>("pages", &CacheOptions::records(100)).unwrap();
    for n in 0..130 {
        pages.insert(&format!("page {n}"), &n).unwrap();
    }
    // An expiring map that is no cache has no such statistics.
    let sessions = MapOptions::new().expiry(true);
    pool.map_with::<str, u64>("sessions", &sessions).unwrap().insert("Ada", &36).unwrap();
    assert_eq!(pages.get("page 129").unwrap(), Some(129));
    assert_eq!(pages.get("no page").unwrap(), None);
    assert_eq!(pages.get("nothing").unwrap(), None);
    let _serving = outlast_live::serve(&pool, place.pool()).unwrap();
    let stat = place.run(["stat", "--json"]).expect(0);
    let caches: Vec<&str> = stat.text().lines().filter(|line| line.contains("\"cache\"")).collect();
    let [cache] = &caches[..] else { panic!("{caches:?}") };
    for field in [
        "\"name\":\"pages\"",
        "\"records\":100",
        "\"hits\":1",
        "\"misses\":2",
        "\"evictions\":30",
        "\"expired\":0",
    ] {
        assert!(cache.contains(field), "{field} is not in {cache}");
    }
    assert!(place.run(["stat"]).expect(0).text().contains("evictions"));
}
