//! `accept`, `backup` and `restore` on journaled pools of which a part is gone.

use crate::common::{Place, command, finished, loading, told};
use outlast::PoolOptions;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

#[test]
fn an_incomplete_journal_is_told_with_all_ways_out() {
    let place = Place::new();
    place.run(["put", "k", "v", "--journal"]).expect(0);
    // SAFETY: the file belongs to this test.
    let pool = unsafe { PoolOptions::new().open(place.pool()).unwrap() };
    pool.map::<str, str>("main").unwrap().put("k", "w").unwrap();
    let copy = Place::new();
    std::fs::copy(place.pool(), copy.pool()).unwrap();
    for args in [&["get", "k"][..], &["put", "k", "x"], &["scan"], &["stat"], &["verify"]] {
        let err = copy.run(args).expect(3).err;
        for way in ["Put it back", "snapshot", "outlast accept", "--accept-possibly-torn"] {
            assert!(err.contains(way), "{args:?}: {err}");
        }
    }
    let args = ["get", "k", "--accept-possibly-torn"];
    assert_eq!(copy.run(args).expect(0).text(), "v\n");
    let refused = copy.run(["accept"]).expect(3).err;
    assert!(refused.contains("--without-journal") && refused.contains("checkpoint"), "{refused}");
    assert_eq!(copy.run(args).expect(0).text(), "v\n", "nothing was done");
    let accepted = copy.run(["--json", "accept", "--without-journal"]).expect(0);
    let old = PathBuf::from(told(&accepted, "accept")["old"].as_str().unwrap());
    assert_eq!(copy.run(["get", "k"]).expect(0).text(), "v\n");
    assert!(old.is_file());
    assert!(!copy.path("test.pool.accepted").exists());
}

/// Only the working file holds what a killed process had acknowledged but not yet made durable.
#[test]
fn a_pool_whose_working_file_is_gone_is_completed_only_when_asked() {
    let place = Place::new();
    place.run(["put", "k0", "v", "--journal"]).expect(0);
    let (mut load, _input) = loading(&place, 100_000);
    load.kill().unwrap();
    load.wait().unwrap();
    // `stat` names the file for a user who wants to delete the pool.
    let stat = place.run(["stat", "--json"]).expect(0).objects();
    assert_eq!(stat[0]["in_use"], false);
    std::fs::remove_file(stat[0]["working_file"].as_str().unwrap()).unwrap();
    let before = std::fs::read(place.pool()).unwrap();
    let writing = [&["put", "k", "x"][..], &["del", "k0"], &["load"]];
    for args in [&["get", "k0"][..], &["scan"], &["count"], &["verify"]].iter().chain(&writing) {
        let err = place.run(*args).expect(3).err;
        assert!(err.contains("working file") && err.contains("outlast accept"), "{args:?}: {err}");
    }
    let copy = place.path("copy.pool");
    let copied = place.run([OsStr::new("backup"), copy.as_os_str()]).expect(0);
    assert!(!copied.text().contains("in use"), "{}", copied.text());
    assert!(std::fs::read(place.pool()).unwrap() == before, "nothing was changed");
    assert!(place.run(["accept"]).expect(0).text().contains("completed from its journal"));
    place.run(["get", "k0"]).expect(0);
    place.run(["verify"]).expect(0);
}

/// Kills a process that has loaded records into a journaled pool.
fn killed() -> Place {
    let place = Place::new();
    place.run(["put", "k0", "v", "--journal"]).expect(0);
    let (mut load, _input) = loading(&place, 100_000);
    load.kill().unwrap();
    load.wait().unwrap();
    place
}

fn count(place: &Place) -> u64 {
    place.run(["count"]).expect(0).text().trim().parse().unwrap()
}

/// The journal is gone, and the working file has everything.
#[test]
fn a_pool_whose_journal_is_gone_is_kept_whole_by_its_working_file() {
    let place = killed();
    let records = count(&place);
    assert!(records > 1);
    let journal = place.path("test.pool.journal");
    std::fs::remove_dir_all(&journal).unwrap();
    let refused = place.run(["put", "k", "x"]).expect(3).err;
    assert!(refused.contains("outlast accept"), "{refused}");
    assert!(!journal.exists(), "an opening that fails leaves no directory");
    let stat = told(&place.run(["stat", "--json"]).expect(0), "pool");
    assert_eq!(stat["confirmed_survives_power_loss"], false);
    let accepted = place.run(["accept"]).expect(0);
    assert!(accepted.text().contains("everything that was stored"), "{}", accepted.text());
    assert_eq!(count(&place), records);
    place.run(["put", "k", "x"]).expect(0);
    // The pool that was kept still needs the working file.
    let listed = place.run(["working-files", "--json"]).expect(0).objects();
    let pool = place.pool();
    let ours = listed.iter().find(|file| file["pool"] == pool.to_str().unwrap()).unwrap();
    assert_eq!(ours["use"], "needed");
    std::fs::remove_file(ours["path"].as_str().unwrap()).unwrap();
}

/// A journal without its pool may belong to one that was moved for a moment. No pool is made beside it.
#[test]
fn no_pool_is_created_beside_the_journal_of_another() {
    let place = killed();
    let records = count(&place);
    let (pool, elsewhere) = (place.pool(), place.path("elsewhere"));
    let backup = place.path("backup");
    place.run([OsStr::new("backup"), backup.as_os_str()]).expect(0);
    std::fs::rename(&pool, &elsewhere).unwrap();
    for args in [&["put", "k", "x"][..], &["put", "k", "x", "--journal"], &["load"]] {
        let refused = place.run(args).expect(1).err;
        assert!(refused.contains("journal of a pool whose file is not there"), "{refused}");
        assert!(!pool.exists());
    }
    std::fs::rename(&elsewhere, &pool).unwrap();
    assert_eq!(count(&place), records);
    // A restored pool opens in spite of the journal, which is kept.
    std::fs::rename(&pool, &elsewhere).unwrap();
    place.run([OsStr::new("restore"), backup.as_os_str()]).expect(0);
    assert_eq!(count(&place), records);
    place.run(["put", "k", "x", "--journal"]).expect(0);
    let kept = place.path("test.pool.old");
    assert!(place.path("test.pool.old.journal").is_dir());
    std::fs::rename(&elsewhere, &kept).unwrap();
    let run = finished(command().arg("--pool").arg(&kept).arg("count").output().unwrap()).expect(0);
    assert_eq!(run.text().trim(), records.to_string());
}

#[test]
fn a_damaged_pool_does_not_replace_a_backup() {
    let place = Place::new();
    let backup = place.path("backup");
    let backup_with = |options: &[&str]| {
        let options = options.iter().map(OsStr::new);
        place.run([OsStr::new("backup"), backup.as_os_str()].into_iter().chain(options))
    };
    place.run(["put", "a", "1"]).expect(0);
    backup_with(&["--force"]).expect(0);
    let good = std::fs::read(&backup).unwrap();
    let mut bytes = std::fs::read(place.pool()).unwrap();
    // In the root of the only map.
    bytes[(16 << 10) + 80] ^= 1;
    std::fs::write(place.pool(), bytes).unwrap();
    backup_with(&["--force"]).expect(3);
    assert!(std::fs::read(&backup).unwrap() == good);
    assert!(!place.path("backup.unchecked").exists());
    backup_with(&["--no-verify", "--force"]).expect(2);
    std::fs::remove_file(&backup).unwrap();
    backup_with(&["--no-verify"]).expect(0);
    // Nor does a backup replace itself.
    let mut restore = command();
    restore.arg("restore").args([&backup, &backup]);
    let same = finished(restore.output().unwrap()).expect(2).err;
    assert!(same.contains("is the backup itself"), "{same}");
}

/// Returns the path of the working file of the pool that was killed.
fn working_file(place: &Place) -> PathBuf {
    let stat = told(&place.run(["stat", "--json"]).expect(0), "pool");
    PathBuf::from(stat["working_file"].as_str().unwrap())
}

/// Copies a working file, most of which is a hole.
fn copy_sparse(from: &std::path::Path, to: &std::path::Path) {
    let copied = std::process::Command::new("cp").arg("--sparse=always").args([from, to]).status();
    assert!(copied.unwrap().success());
}

fn flip(path: &std::path::Path, offset: usize, bit: u8) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[offset] ^= bit;
    std::fs::write(path, bytes).unwrap();
}

/// What cannot be completed from base and journal must not be lost: the working file may still be found.
#[test]
fn a_completion_that_fails_leaves_the_working_file_its_use() {
    let place = killed();
    place.run(["put", "k0", "x"]).expect(0);
    // The next life changes little: it leaves the frontier where it is, so the journal cannot mend it.
    let (mut load, _input) = loading(&place, 100);
    std::thread::sleep(std::time::Duration::from_secs(1));
    load.kill().unwrap();
    load.wait().unwrap();
    let records = count(&place);
    let (working, elsewhere) = (working_file(&place), place.path("elsewhere"));
    copy_sparse(&working, &elsewhere);
    std::fs::remove_file(&working).unwrap();
    flip(&place.pool(), 0x2000, 1);
    place.run(["accept"]).expect(3);
    copy_sparse(&elsewhere, &working);
    assert_eq!(count(&place), records);
    place.run(["put", "k", "x"]).expect(0);
    assert!(place.run(["verify"]).expect(0).text().ends_with("sound\n"));
}

/// A damaged working file is named, and what to do without it.
#[test]
fn a_working_file_with_a_damaged_frontier_is_named() {
    let place = killed();
    let working = working_file(&place);
    let file = std::fs::File::options().read(true).write(true).open(&working).unwrap();
    let mut word = [0; 1];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut word, 0x2000).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[word[0] ^ 1], 0x2000).unwrap();
    for args in [&["get", "k0"][..], &["put", "k", "x"], &["accept"]] {
        let refused = place.run(args).expect(3).err;
        assert!(refused.contains(working.to_str().unwrap()), "{refused}");
        assert!(refused.contains("outlast accept"), "{refused}");
    }
    std::fs::remove_file(&working).unwrap();
    place.run(["accept"]).expect(0);
    place.run(["get", "k0"]).expect(0);
}

#[test]
fn a_backup_replaces_no_pool_that_is_used_and_no_file_of_another_name() {
    let good = Place::new();
    good.run(["put", "a", "1"]).expect(0);
    let place = killed();
    let records = count(&place);
    let pool = place.pool();
    for command in ["backup", "snapshot"] {
        let args = [OsStr::new(command), pool.as_os_str(), OsStr::new("--force")];
        let refused = good.run(args).expect(1).err;
        assert!(refused.contains("outlast restore"), "{refused}");
        assert_eq!(count(&place), records);
    }
    let (mut load, input) = loading(&good, 100_000);
    let args = ["backup", good.pool().to_str().unwrap(), "--force"].map(OsString::from);
    let refused = place.run(args).expect(1).err;
    assert!(refused.contains("in use"), "{refused}");
    drop(input);
    assert!(load.wait().unwrap().success());
    // Files of similar names stay.
    let other = good.file("copy.unchecked", "precious");
    let copy = good.path("copy");
    good.run([OsStr::new("backup"), copy.as_os_str()]).expect(0);
    assert_eq!(std::fs::read(other).unwrap(), b"precious");
}

/// Restores over a place from which a pool was moved keep its journal, each under a name of its own.
#[test]
fn journals_of_pools_that_were_moved_are_kept() {
    let place = killed();
    let backup = place.path("backup");
    place.run([OsStr::new("backup"), backup.as_os_str()]).expect(0);
    let restore = |options: &[&str]| {
        let options = options.iter().map(OsStr::new);
        place.run([OsStr::new("restore"), backup.as_os_str()].into_iter().chain(options))
    };
    let (pool, first, second) = (place.pool(), place.path("first"), place.path("second"));
    let records = count(&place);
    std::fs::rename(&pool, &first).unwrap();
    // Nothing is removed that belongs to a pool which may still be put back.
    let told = restore(&["--remove-old"]).expect(0);
    assert!(told.text().contains("test.pool.old.journal"), "{}", told.text());
    place.run(["put", "k", "x", "--journal"]).expect(0);
    let (mut load, _input) = loading(&place, 100_000);
    load.kill().unwrap();
    load.wait().unwrap();
    let later = count(&place);
    std::fs::rename(&pool, &second).unwrap();
    let told = restore(&[]).expect(0);
    assert!(told.text().contains("test.pool.old2.journal"), "{}", told.text());
    for (moved, name, held) in
        [(first, "test.pool.old", records), (second, "test.pool.old2", later)]
    {
        let kept = place.path(name);
        std::fs::rename(moved, &kept).unwrap();
        let run = finished(command().arg("--pool").arg(&kept).arg("count").output().unwrap());
        assert_eq!(run.expect(0).text().trim(), held.to_string());
    }
}

#[test]
fn a_refused_name_leaves_nothing() {
    let place = Place::new();
    place.run(["put", "--journal", "--map", "", "k", "v"]).expect(1);
    assert_eq!(std::fs::read_dir(place.path("")).unwrap().count(), 0);
    place.run(["put", "k", "v"]).expect(0);
    place.run(["put", "--journal", "--map", "", "k", "v"]).expect(1);
    assert!(place.run(["stat"]).expect(0).text().contains("page-cache"));
}

/// A batch word that no batch has left hinders nobody who reads.
#[test]
fn a_damaged_batch_word_is_damage_and_not_a_batch_to_finish() {
    let place = Place::new();
    place.run(["put", "k", "v"]).expect(0);
    flip(&place.pool(), 0x2040, 1);
    assert_eq!(place.run(["get", "k"]).expect(0).text(), "v\n");
    place.run(["verify"]).expect(3);
    let new = place.path("new.pool");
    let mut salvage = command();
    salvage.arg("salvage").args([&place.pool(), &new]);
    assert!(finished(salvage.output().unwrap()).text().contains("1 record"));
}
