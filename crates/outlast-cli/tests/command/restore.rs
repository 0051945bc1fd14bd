//! `restore` and `working-files`.

use crate::common::Place;

/// Returns what `get` prints of a key of this pool.
fn value(place: &Place, pool: &str, key: &str) -> Option<String> {
    let mut command = crate::common::command();
    command.arg("--pool").arg(place.path(pool)).args(["get", key]);
    let run = crate::common::finished(command.output().unwrap());
    (run.code == 0).then(|| run.text().trim().to_string())
}

#[test]
fn a_backup_is_restored_over_a_pool_that_had_a_journal() {
    let place = Place::new();
    let copy = place.path("copy");
    let copy = copy.to_str().unwrap();
    place.run(["put", "--journal", "a", "1"]).expect(0);
    place.run(["backup", copy]).expect(0);
    place.run(["put", "b", "2"]).expect(0);
    let restored = place.run(["restore", copy]).expect(0);
    assert!(restored.text().contains("test.pool.old"), "{}", restored.text());
    // It gets a journal again, and lacks the change that was made after the backup.
    place.run(["put", "--journal", "c", "3"]).expect(0);
    assert_eq!(value(&place, "test.pool", "b"), None);
    assert_eq!(value(&place, "test.pool.old", "b").as_deref(), Some("2"));
    // Once more, with nothing kept, and with the pool as an argument.
    let pool = place.pool();
    place.run(["restore", copy, pool.to_str().unwrap(), "--remove-old"]).expect(0);
    assert!(!place.path("test.pool.old2").exists());
    assert_eq!(value(&place, "test.pool", "a").as_deref(), Some("1"));
    assert_eq!(value(&place, "test.pool", "c"), None);
}

#[test]
fn a_damaged_backup_is_not_restored() {
    let place = Place::new();
    let copy = place.path("copy");
    place.run(["put", "a", "1"]).expect(0);
    place.run(["backup", copy.to_str().unwrap()]).expect(0);
    let mut bytes = std::fs::read(&copy).unwrap();
    // In the root of the only map.
    bytes[(16 << 10) + 80] ^= 1;
    std::fs::write(&copy, bytes).unwrap();
    place.run(["restore", copy.to_str().unwrap()]).expect(3);
    assert_eq!(value(&place, "test.pool", "a").as_deref(), Some("1"));
    assert!(!place.path("test.pool.old").exists());
}

#[test]
fn working_files_are_listed() {
    let place = Place::new();
    let dir = place.path("");
    let none = place.run(["--json", "working-files", dir.to_str().unwrap()]).expect(0);
    let here = |run: &crate::common::Run| {
        let dir = dir.to_str().unwrap().to_string();
        let is_here =
            move |file: &serde_json::Value| file["path"].as_str().unwrap().starts_with(&dir);
        run.objects().into_iter().filter(is_here).collect::<Vec<_>>()
    };
    assert!(here(&none).is_empty());
    let journal = outlast::JournalOptions::new().working_directory(&dir).keep_working_file(true);
    // SAFETY: no one else uses the file.
    let pool = unsafe { outlast::PoolOptions::new().journal(journal).create(place.pool()) };
    pool.unwrap().close().unwrap();
    let listed = here(&place.run(["--json", "working-files", dir.to_str().unwrap()]).expect(0));
    let [file] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!(file["use"], "needed");
    assert_eq!(file["pool"], place.pool().to_str().unwrap());
    // Once the pool is gone, its user can remove it.
    std::fs::remove_file(place.pool()).unwrap();
    for (option, is_left) in [("--remove", true), ("--remove-gone", false)] {
        place.run(["working-files", option, dir.to_str().unwrap()]).expect(0);
        let now = here(&place.run(["--json", "working-files", dir.to_str().unwrap()]).expect(0));
        assert_eq!(now.len() == 1, is_left, "{now:?}");
    }
}
