//! Ordered maps and keys of several parts, and the ways to name a pool.

use crate::common::{Place, command, finished};

#[test]
fn maps_of_tuples_are_made_and_read_in_order() {
    let place = Place::new();
    let put = |key: &str| {
        let types = ["--ordered", "--key-type", "(u32, str)", "--value-type", "u64"];
        place.run(["put", key, "1"].into_iter().chain(types)).expect(0);
    };
    for key in [r#"[7,"b"]"#, r#"[300,""]"#, r#"[7,"a"]"#, r#"[2,"z"]"#] {
        put(key);
    }
    let scanned = place.run(["scan"]).expect(0);
    assert_eq!(scanned.text(), "[2,\"z\"]\t1\n[7,\"a\"]\t1\n[7,\"b\"]\t1\n[300,\"\"]\t1\n");
    assert_eq!(place.run(["get", r#"[300, ""]"#]).expect(0).text(), "1\n");
    let range = place.run(["scan", "--from", r#"[7,"b"]"#]).expect(0);
    assert_eq!(range.text(), "[7,\"b\"]\t1\n[300,\"\"]\t1\n");
    // A program finds the same map.
    // SAFETY: the file belongs to this test.
    let pool = unsafe { outlast::PoolOptions::new().open(place.pool()).unwrap() };
    let map = pool.ordered_map::<(u32, String), u64>("main").unwrap();
    let keys = map.prefix(&7).map(|record| record.unwrap().0.1).collect::<Vec<_>>();
    assert_eq!(keys, ["a", "b"]);
    // Short tuples are stored in place, as those of a program are.
    drop(map);
    pool.close().unwrap();
    let short = ["--map", "short", "--key-type", "(u16,u16)", "--value-type", "bool"];
    place.run(["put", "[1,2]", "true"].into_iter().chain(short)).expect(0);
    // SAFETY: as above.
    let pool = unsafe { outlast::PoolOptions::new().open(place.pool()).unwrap() };
    let map = pool.map::<(u16, u16), bool>("short").unwrap();
    assert_eq!(map.get(&(1, 2)).unwrap(), Some(true));
}

#[test]
fn types_that_no_map_can_have_are_refused() {
    let place = Place::new();
    for name in ["(u8,(str,u8))", "text", "(u8", "(u8,Point/1)"] {
        let refused = place.run(["put", "k", "v", "--key-type", name]).expect(2);
        assert!(refused.err.contains("tuples of these"), "{name}: {}", refused.err);
    }
    let both = ["put", "k", "v", "--ordered", "--scheme", "clevel"];
    assert!(place.run(both).expect(2).err.contains("cannot be used with"));
    assert!(!place.pool().exists());
}

#[test]
fn a_set_has_keys_of_strings_and_numbers() {
    let place = Place::new();
    let types = ["--ordered", "--key-type", "(str, u16)", "--value-type", "()"];
    for key in [r#"["b", 1]"#, r#"["a", 2]"#, r#"["aa", 1]"#, r#"["a", 10]"#] {
        place.run(["put", key, "[]"].into_iter().chain(types)).expect(0);
    }
    let scanned = place.run(["scan"]).expect(0);
    let keys: Vec<_> =
        scanned.text().lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(keys, [r#"["a",2]"#, r#"["a",10]"#, r#"["aa",1]"#, r#"["b",1]"#]);
    assert_eq!(place.run(["get", r#"["a", 2]"#]).expect(0).text(), "[]\n");
}

#[test]
fn every_command_takes_the_pool_from_the_option() {
    let place = Place::new();
    place.run(["put", "k", "v"]).expect(0);
    place.run(["compact"]).expect(0);
    let copy = place.path("copy.pool");
    place.run(["compact".as_ref(), copy.as_os_str()]).expect(0);
    assert!(copy.exists());
    let saved = place.path("saved.pool");
    place.run(["salvage".as_ref(), saved.as_os_str()]).expect(0);
    assert!(saved.exists());
    let two = place.run(["compact".as_ref(), copy.as_os_str(), saved.as_os_str()]).expect(2);
    assert!(two.err.contains("two pools are named"), "{}", two.err);
    let by_variable = command().env("OUTLAST_POOL", place.pool()).arg("compact").output();
    finished(by_variable.unwrap()).expect(0);
    let alone = command().env_remove("OUTLAST_POOL").arg("salvage").arg(place.pool()).output();
    assert!(finished(alone.unwrap()).expect(2).err.contains("no new pool is named"));
    // A file where none belongs: the message says how to name it.
    let hint = command().arg("stat").arg(place.pool()).output().unwrap();
    assert!(finished(hint).expect(2).err.contains("named by --pool"));
}
