//! Damaged pools: what `scan` prints of them, and what `salvage` copies into a new one.

use crate::common::{Place, Run, in_new, salvage};
use outlast::internals::pmem::{Call, Disk, DiskWatch, Fate};
use outlast::{PoolOptions, Scheme};
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const RECORDS: usize = 2000;

/// Loads a map of byte strings.
fn fill(place: &Place, map: &str, scheme: &str) {
    let lines: String = (0..RECORDS).map(|n| format!("key {n}\tvalue {n} of {map}\n")).collect();
    place.run_with(["load", "--map", map, "--scheme", scheme], lines.as_bytes()).expect(0);
}

fn lines(run: &Run) -> HashSet<String> {
    let lines: Vec<_> = run.text().lines().map(str::to_owned).collect();
    let set: HashSet<_> = lines.iter().cloned().collect();
    assert_eq!(set.len(), lines.len(), "a record twice");
    set
}

/// Overwrites the 64-byte line of the file in which this text begins.
fn damage(pool: &Path, text: &str) {
    let mut bytes = std::fs::read(pool).unwrap();
    let at = bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
    bytes[at / 64 * 64..][..64].fill(0xa7);
    std::fs::write(pool, bytes).unwrap();
}

#[test]
fn damaged_records_are_not_printed_unless_asked_for() {
    for scheme in Scheme::ALL {
        let place = Place::new();
        fill(&place, "m", scheme.name());
        let all = lines(&place.run(["scan"]).expect(0));
        let mut bytes = std::fs::read(place.pool()).unwrap();
        let at = bytes.windows(12).position(|window| window == b"value 777 of").unwrap();
        bytes[at] = b'V';
        std::fs::write(place.pool(), bytes).unwrap();

        let ended = place.run(["scan"]).expect(3);
        assert!(ended.err.contains("--skip-damaged") && ended.err.contains("salvage"));
        assert!(lines(&ended).is_subset(&all), "{scheme}");
        let skipped = place.run(["scan", "--skip-damaged"]);
        assert_eq!((skipped.code, skipped.err.lines().count()), (3, 2), "{}", skipped.err);
        assert_eq!(lines(&skipped).len(), RECORDS - 1, "{scheme}");
        assert!(lines(&skipped).is_subset(&all), "{scheme}");
        let objects = place.run(["scan", "--skip-damaged", "--json"]).objects();
        assert_eq!(objects.iter().filter(|o| o["event"] == "damage").count(), 1, "{scheme}");
        let unchecked = place.run(["scan", "--unchecked"]).expect(0);
        assert!(unchecked.text().contains("\tValue 777 of m\n"), "{scheme}");
        assert!(place.run(["count"]).expect(3).err.contains("after"));
    }
}

#[test]
fn a_sound_pool_is_salvaged_whole() {
    let place = Place::new();
    for scheme in Scheme::ALL {
        fill(&place, scheme.name(), scheme.name());
        let map = format!("{scheme} numbers");
        let types = ["--key-type", "i64", "--value-type", "u8"];
        let numbers: String = (0..RECORDS).map(|n| format!("-{n}\t{}\n", n % 256)).collect();
        let load = ["load", "--map", &map, "--scheme", scheme.name()];
        place.run_with(load.iter().chain(&types), numbers.as_bytes()).expect(0);
    }
    let report = salvage(&place, &["--json"]).expect(0).objects();
    let sum = report.last().unwrap();
    assert_eq!((&sum["event"], &sum["complete"]), (&"salvage".into(), &true.into()));
    assert_eq!(sum["records"], 2 * RECORDS * Scheme::ALL.len());
    assert_eq!(place.run(["maps"]).expect(0).text(), in_new(&place, &["maps"]).expect(0).text());
    for map in place.run(["maps"]).expect(0).text().lines() {
        let scan = ["scan", "--map", map.split('\t').next().unwrap()];
        let (before, after) = (place.run(scan).expect(0), in_new(&place, &scan).expect(0));
        assert_eq!(lines(&before), lines(&after), "{map}");
    }
    in_new(&place, &["verify"]).expect(0);
    // Salvaging again does not replace the new pool.
    assert!(salvage(&place, &[]).expect(1).err.contains("exists"));
}

#[test]
fn what_can_be_read_of_a_damaged_pool_is_salvaged() {
    for scheme in Scheme::ALL {
        let place = Place::new();
        fill(&place, "m", scheme.name());
        fill(&place, "other", "dash-eh");
        let all = lines(&place.run(["scan", "--map", "m"]).expect(0));
        for n in [5, 500, 1500] {
            damage(&place.pool(), &format!("value {n} of m"));
        }
        let broken = std::fs::read(place.pool()).unwrap();
        let report = salvage(&place, &["--json"]).expect(3).objects();
        let sum = report.iter().find(|object| object["event"] == "salvage").unwrap();
        let places = sum["damaged_places"].as_u64().unwrap();
        assert!(sum["complete"] == false && places >= 3, "{scheme}: {report:?}");
        let m = report.iter().find(|object| object["name"] == "m").unwrap();
        assert_eq!(m["damage"].as_array().unwrap().len() as u64, places, "{scheme}");
        let new = lines(&in_new(&place, &["scan", "--map", "m"]).expect(0));
        assert!(new.is_subset(&all) && new.len() >= RECORDS - 9, "{scheme}: {}", new.len());
        assert_eq!(in_new(&place, &["count", "--map", "other"]).expect(0).text(), "2000\n");
        in_new(&place, &["verify"]).expect(0);
        assert_eq!(std::fs::read(place.pool()).unwrap(), broken, "the damaged pool is as it was");
    }
}

#[test]
fn one_damaged_root_does_not_hide_the_other_maps() {
    let place = Place::new();
    fill(&place, "first", "dash-eh");
    fill(&place, "second", "clevel");
    fill(&place, "third", "phast");
    damage(&place.pool(), "second");
    let report = salvage(&place, &["--json"]).expect(3).objects();
    assert_eq!(report.iter().filter(|object| object["event"] == "lost_map").count(), 1);
    let sum = report.iter().find(|object| object["event"] == "salvage").unwrap();
    assert_eq!((&sum["records"], &sum["lost_maps"]), (&(2 * RECORDS).into(), &1.into()));
    assert_eq!(in_new(&place, &["maps"]).expect(0).text().lines().count(), 2);
    std::fs::remove_file(place.path("new.pool")).unwrap();
    // Only the map that the option names is copied.
    salvage(&place, &["--map", "none"]).expect(1);
    assert!(!place.path("new.pool").exists());
    let third = salvage(&place, &["--map", "third"]).expect(3);
    assert!(third.text().contains("map third: 2,000 records, 0 damaged places"));
    assert_eq!(in_new(&place, &["count"]).expect(0).text(), "2000\n");
}

/// Salvages a pool in which no damaged place is found, but which may lack records for the reason
/// `why`. Returns the report.
fn incomplete(place: &Place, why: &str) -> serde_json::Value {
    let run = salvage(place, &[]).expect(3);
    assert!(run.err.contains(why) && run.text().contains("0 damaged places"), "{}", run.err);
    std::fs::remove_file(place.path("new.pool")).unwrap();
    let objects = salvage(place, &["--json"]).expect(3).objects();
    let sum = objects.iter().find(|object| object["event"] == "salvage").unwrap();
    assert_eq!((&sum["complete"], &sum["damaged_places"]), (&false.into(), &0.into()));
    assert!(sum["reasons"][0].as_str().unwrap().contains(why), "{sum}");
    in_new(place, &["verify"]).expect(0);
    sum.clone()
}

#[test]
fn a_pool_without_its_journal_is_not_salvaged_whole() {
    let place = Place::new();
    place.run(["put", "k", "v", "--journal"]).expect(0);
    // SAFETY: the file belongs to this test.
    let pool = unsafe { PoolOptions::new().open(place.pool()).unwrap() };
    pool.map::<str, str>("main").unwrap().put("later", "w").unwrap();
    let copy = Place::new();
    std::fs::copy(place.pool(), copy.pool()).unwrap();
    let told = incomplete(&copy, "the journal is incomplete");
    assert_eq!(told["records"], 1);
    pool.close().unwrap();
    let told = salvage(&place, &["--json"]).expect(0).objects();
    assert_eq!(told.last().unwrap()["records"], 2);
}

#[test]
fn a_record_that_nothing_leads_to_is_missed_and_found_by_its_block() {
    let place = Place::new();
    let lines: String = (0..100).map(|n| format!("key {n:02}\tvalue {n}\n")).collect();
    place.run_with(["load"], lines.as_bytes()).expect(0);
    salvage(&place, &[]).expect(0);
    std::fs::remove_file(place.path("new.pool")).unwrap();
    let mut bytes = std::fs::read(place.pool()).unwrap();
    let at = bytes.windows(6).position(|window| window == b"key 77").unwrap();
    let block = at as u64 / 32 * 32;
    for slot in bytes.as_chunks_mut::<8>().0 {
        if u64::from_le_bytes(*slot) << 16 >> 16 == block {
            *slot = [0; 8];
        }
    }
    std::fs::write(place.pool(), bytes).unwrap();
    assert!(place.run(["verify"]).expect(3).err.contains("32 bytes leaked"));
    // `snapshot` and `compact` also refuse the pool, so no copy without the record passes for it.
    let copy = place.path("copy.pool");
    let snapshot = [OsStr::new("snapshot"), copy.as_os_str()];
    assert!(place.run(snapshot).expect(3).err.contains("32 bytes leaked"));
    let compact = crate::common::command().arg("compact").arg(place.pool()).output().unwrap();
    assert!(crate::common::finished(compact).expect(3).err.contains("32 bytes leaked"));
    let told = incomplete(&place, "32 bytes leaked");
    assert_eq!((&told["records"], &told["unlinked"]), (&100.into(), &1.into()));
    assert_eq!(in_new(&place, &["get", "key 77"]).expect(0).text(), "value 77\n");
}

#[test]
fn a_pool_that_may_be_torn_is_salvaged() {
    let place = Place::new();
    fill(&place, "m", "dash-eh");
    let all = lines(&place.run(["scan"]).expect(0));
    // Salvage a copy of a pool that is in use.
    let live = place.path("live.pool");
    std::fs::rename(place.pool(), &live).unwrap();
    // SAFETY: the file belongs to this test.
    let pool = unsafe { PoolOptions::new().open(&live).unwrap() };
    let map = pool.map::<str, str>("m").unwrap();
    map.insert("late", "record").unwrap();
    std::fs::copy(&live, place.pool()).unwrap();
    drop(map);
    pool.close().unwrap();
    place.run(["scan"]).expect(3);
    let told = incomplete(&place, "possibly torn: a copy of a pool");
    assert!(told["records"] == RECORDS + 1, "{told}");
    let new = lines(&in_new(&place, &["scan"]).expect(0));
    assert!(all.is_subset(&new) && new.len() == RECORDS + 1);
    let pool_named = [OsStr::new("salvage"), OsStr::new("a"), OsStr::new("b")];
    place.run(pool_named).expect(2);
}

#[test]
fn a_salvaged_pool_that_is_not_complete_does_not_have_its_name() {
    let place = Place::new();
    let lines: String = (0..100_000).map(|n| format!("key {n}\tvalue {n}\n")).collect();
    place.run_with(["load"], lines.as_bytes()).expect(0);
    let (new, unfinished) = (place.path("new.pool"), place.path("new.pool.salvaging"));
    let mut command = crate::common::command();
    let mut killed =
        crate::common::stopped(command.arg("salvage").arg(place.pool()).arg(&new), &unfinished);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(unfinished.exists() && !new.exists());
    // The next run removes the unfinished file.
    salvage(&place, &[]).expect(0);
    assert!(!unfinished.exists());
    assert_eq!(in_new(&place, &["count"]).expect(0).text(), "100000\n");
}

/// Offset of the root in slot 0, whose first word says that the slot is in use.
const ROOT: usize = 16 << 10;

#[test]
fn two_maps_of_one_name_are_both_salvaged() {
    let place = Place::new();
    let live = place.path("live.pool");
    // SAFETY: the file belongs to this test.
    let pool = unsafe {
        PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .background(false)
            .create(&live)
            .unwrap()
    };
    let dropped = pool.map::<str, str>("m").unwrap();
    pool.map::<u64, u64>("m (2)").unwrap().insert(&7, &8).unwrap();
    dropped.insert("old", "record").unwrap();
    let root = std::fs::read(&live).unwrap()[ROOT..ROOT + 8].to_vec();
    // While there is a handle of the dropped map, its slot and its blocks stay as they are.
    pool.drop_map("m").unwrap();
    let map = pool.map::<u64, u64>("m").unwrap();
    (0..3).for_each(|key| assert!(map.insert(&key, &key).unwrap()));
    // A power loss undoes the drop, and keeps the new map.
    let mut torn = std::fs::read(&live).unwrap();
    assert_eq!(torn[ROOT..ROOT + 8], [0; 8]);
    torn[ROOT..ROOT + 8].copy_from_slice(&root);
    std::fs::write(place.pool(), torn).unwrap();
    drop((dropped, map));
    pool.close().unwrap();

    let found = place.run(["verify", "--accept-possibly-torn", "--json"]).expect(3).objects();
    let maps: Vec<_> = found.iter().filter(|object| object["event"] == "map").collect();
    let counts: Vec<_> = maps.iter().map(|map| (&map["name"], &map["records"])).collect();
    let named = [("m".into(), 1.into()), ("m (2)".into(), 1.into()), ("m".into(), 3.into())];
    assert_eq!(counts, named.each_ref().map(|(name, records)| (name, records)));
    place.run(["accept"]).expect(3);

    let report = salvage(&place, &["--json"]).expect(3).objects();
    let maps: Vec<_> = report.iter().filter(|object| object["event"] == "map").collect();
    let new = maps.iter().map(|map| (map["new_name"].as_str().unwrap(), &map["records"]));
    let named = [("m", 1.into()), ("m (2)", 1.into()), ("m (3)", 3.into())];
    assert!(new.eq(named.iter().map(|(name, records)| (*name, records))), "{report:?}");
    assert_eq!(in_new(&place, &["get", "--map", "m", "old"]).expect(0).text(), "record\n");
    assert_eq!(in_new(&place, &["count", "--map", "m (3)"]).expect(0).text(), "3\n");
    std::fs::remove_file(place.path("new.pool")).unwrap();
    let text = salvage(&place, &["--map", "m"]).expect(3);
    assert!(text.text().contains("called m (3) in the new pool"), "{}", text.text());
}

/// Keeps the content of a pool's file at the first call of the file system during a batch.
struct InBatch(PathBuf, Mutex<Option<Vec<u8>>>);

impl DiskWatch for InBatch {
    fn before(&self, _: Call, _: &File) -> Fate {
        let content = std::fs::read(&self.0).unwrap_or_default();
        // The word at 8256 leads to the batch that is under way.
        if content.get(8256..8264).is_some_and(|word| word != [0; 8]) {
            self.1.lock().unwrap().get_or_insert(content);
        }
        Fate::Done
    }
}

#[test]
fn a_batch_that_cannot_be_completed_does_not_keep_a_pool_from_being_salvaged() {
    let place = Place::new();
    let watch = Arc::new(InBatch(place.pool(), Mutex::default()));
    let options = PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .background(false)
        .max_size(27 << 20);
    let options = options.disk(Disk::watched(Arc::clone(&watch) as _));
    // SAFETY: the file belongs to this test.
    let pool = unsafe { options.create(place.pool()).unwrap() };
    let map = pool.map::<u64, str>("m").unwrap();
    let damaged = pool.map::<u64, str>("damaged").unwrap();
    let value = |of: &str| of.repeat(if of == "a" { 40_000 } else { 100_000 });
    (0..100).for_each(|key| assert!(map.insert(&key, &value("a")).unwrap()));
    let mut batch = pool.batch();
    for key in 0..100 {
        batch.put(&map, &key, &value("b")).unwrap();
    }
    let _ = batch.commit();
    let mut content = watch.1.lock().unwrap().take().expect("the pool grew during the batch");
    drop((map, damaged, batch, pool));
    // The process was killed in the middle of the batch. Damage keeps the space that it had set
    // aside from reuse, so the next process cannot set any aside.
    content[ROOT + 512 + 104] ^= 3;
    std::fs::write(place.pool(), content).unwrap();
    let refused = place.run(["get", "--map", "m", "1"]).expect(1);
    assert!(refused.err.contains("pool full"), "{}", refused.err);

    let report = salvage(&place, &["--json"]).expect(3).objects();
    let sum = report.iter().find(|object| object["event"] == "salvage").unwrap();
    assert_eq!((&sum["records"], &sum["lost_maps"]), (&100.into(), &1.into()));
    assert!(sum["reasons"].to_string().contains("a batch was cut short by a crash"), "{sum}");
    for key in ["0", "99"] {
        let found = in_new(&place, &["get", "--map", "m", key]).expect(0);
        assert!([value("a"), value("b")].contains(&found.text().trim().into()));
    }
}

#[test]
fn a_salvage_without_the_working_file_reads_base_and_journal() {
    let place = Place::new();
    place.run(["put", "k", "v", "--journal"]).expect(0);
    let (mut load, _input) = crate::common::loading(&place, 100_000);
    let facts = || PoolOptions::new().facts(place.pool()).unwrap().journal.unwrap();
    // Until the journal has nothing more to write, so that all that was loaded is durable.
    let mut durable = facts().durable;
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let before = std::mem::replace(&mut durable, facts().durable);
        if durable == before && durable > Some(facts().checkpoint) {
            break;
        }
    }
    load.kill().unwrap();
    load.wait().unwrap();
    let facts = facts();
    std::fs::remove_file(facts.working.unwrap()).unwrap();
    let files = || -> BTreeMap<PathBuf, Vec<u8>> {
        let journal = std::fs::read_dir(place.path("test.pool.journal")).unwrap();
        let journal = journal.map(|entry| entry.unwrap().path());
        let files = journal.chain([place.pool()]);
        files.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
    };
    let before = files();
    let copy = place.path("new.pool.copying");
    // What somebody else has under the name of the copy is kept.
    std::fs::write(&copy, "mine").unwrap();
    assert!(salvage(&place, &[]).expect(1).err.contains("exists"));
    assert_eq!(std::fs::read(&copy).unwrap(), b"mine");
    std::fs::remove_file(&copy).unwrap();
    let err = salvage(&place, &[]).expect(3).err;
    assert!(err.contains("the working file is gone"), "{err}");
    assert!(files() == before, "the pool is left as it is");
    assert!(!copy.exists());
    let records = lines(&in_new(&place, &["scan"]).expect(0));
    assert!(records.contains("k\tv") && records.len() > 1000, "{}", records.len());
}
