//! Journaled pools whose files were moved, copied, removed or replaced.

use super::places::{assert_holds_all, journal, left_by_a_kill, without_working_directory};
use super::*;
use outlast::OldPool;

fn rename(from: PathBuf, to: PathBuf) {
    std::fs::rename(from, to).unwrap();
}

/// Puts a copy, which has another inode and another time of creation, in the place of a file.
fn replace_by_copy(path: &Path) {
    let copy = path.with_extension("copy");
    std::fs::copy(path, &copy).unwrap();
    std::fs::rename(copy, path).unwrap();
}

#[test]
fn a_pool_that_was_moved_to_another_disk_after_a_kill_has_all_that_was_acknowledged() {
    let place = tempfile::tempdir().unwrap();
    let returned = left_by_a_kill(place.path());
    replace_by_copy(&place.path().join("a.pool"));
    let options = without_working_directory(place.path()).require_working_file(true);
    let facts = options.facts(place.path().join("a.pool")).unwrap().journal.unwrap();
    assert_eq!(facts.working.as_deref(), Some(&*working_files(place.path())[0]));
    assert_holds_all(place.path(), returned);
    // From then on, the working file belongs to the file that was moved.
    let returned = killed(place.path(), 900).0;
    assert_holds_all(place.path(), returned);
}

#[test]
fn a_copy_beside_its_original_leaves_the_working_file_alone() {
    let (place, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (returned, durable) = {
        create(place.path()).close().unwrap();
        killed(place.path(), 900)
    };
    try_copy(place.path(), other.path()).unwrap();
    let at = other.path().join("a.pool");
    let required = options(other.path()).require_working_file(true);
    // SAFETY: no one else uses the file.
    let refused = unsafe { required.open(&at) };
    let Err(Error::CopyOfPool { original, working }) = refused else { panic!("{refused:?}") };
    assert_eq!(original, place.path().join("a.pool"));
    assert_eq!(working, working_files(place.path())[0]);
    let copy = open(other.path()).unwrap();
    let held = map(&copy).len().unwrap();
    assert!(held > durable, "{held} of {durable}");
    assert_holds(&copy, 0..held);
    assert_holds_all(place.path(), returned);
}

#[test]
fn a_working_file_that_does_not_match_is_neither_used_nor_left_out() {
    let place = tempfile::tempdir().unwrap();
    left_by_a_kill(place.path());
    // A copy of base and journal, and later the original goes on and is lost.
    let other = tempfile::tempdir().unwrap();
    try_copy(place.path(), other.path()).unwrap();
    let returned = killed(place.path(), 2_000).0;
    let working = working_files(place.path()).remove(0);
    rename(place.path().join("a.pool"), place.path().join("original"));
    rename(journal(place.path()), place.path().join("original.journal"));
    rename(other.path().join("a.pool"), place.path().join("a.pool"));
    rename(journal(other.path()), journal(place.path()));
    let before = std::fs::read(place.path().join("a.pool")).unwrap();
    for read_only in [false, true] {
        let (options, path) = (options(place.path()), place.path().join("a.pool"));
        // SAFETY: no one else uses the file.
        let refused =
            unsafe { if read_only { options.open_read_only(path) } else { options.open(path) } };
        let Err(Error::OtherWorkingFile { working: named, pool, why }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!((named, pool), (working.clone(), place.path().join("a.pool")));
        assert!(why.contains("epoch") && why.contains("inode"), "{why}");
    }
    assert_eq!(std::fs::read(place.path().join("a.pool")).unwrap(), before);
    // The original in its place again has everything.
    rename(place.path().join("a.pool"), place.path().join("copy"));
    rename(journal(place.path()), place.path().join("copy.journal"));
    rename(place.path().join("original"), place.path().join("a.pool"));
    rename(place.path().join("original.journal"), journal(place.path()));
    assert_holds_all(place.path(), returned);
}

#[test]
fn a_damaged_working_file_is_not_left_out() {
    use std::os::unix::fs::FileExt;
    // Each word of the record of what the file belongs to.
    for word in [0, 1, 32, 34, 36, 38, 39, 40, 41, 42] {
        let place = tempfile::tempdir().unwrap();
        let returned = left_by_a_kill(place.path());
        let working = File::options().read(true).write(true).open(&working_files(place.path())[0]);
        let (working, at) = (working.unwrap(), (1 << 41) + word * 8);
        let mut bytes = [0; 8];
        working.read_exact_at(&mut bytes, at).unwrap();
        working.write_all_at(&(u64::from_le_bytes(bytes) ^ 4).to_le_bytes(), at).unwrap();
        let refused = open(place.path());
        assert!(matches!(refused, Err(Error::OtherWorkingFile { .. })), "{word}: {refused:?}");
        working.write_all_at(&bytes, at).unwrap();
        assert_holds_all(place.path(), returned);
    }
}

#[test]
fn a_file_that_is_removed_or_replaced_under_an_open_pool_is_noticed() {
    for replaced in [false, true] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.pool");
        let pool = create(place.path());
        insert(&pool, 0..1_000);
        let copy = place.path().join("copy");
        pool.snapshot(&copy).unwrap();
        insert(&pool, 1_000..2_000);
        pool.wait_durable().unwrap();
        match replaced {
            true => rename(copy, path.clone()),
            false => std::fs::remove_file(&path).unwrap(),
        }
        assert!(matches!(pool.wait_durable(), Err(Error::FileGone { .. })));
        assert!(matches!(pool.sync(), Err(Error::FileGone { .. })));
        insert(&pool, 2_000..3_000);
        assert!(matches!(pool.wait_durable(), Err(Error::FileGone { .. })));
        // It can still be saved.
        let saved = place.path().join("saved");
        pool.snapshot(&saved).unwrap();
        let failed = pool.close();
        assert!(matches!(failed, Err(Error::FileGone { .. })), "{failed:?}");
        assert_eq!(working_files(place.path()).len(), 1);
        assert!(std::fs::read_dir(journal(place.path())).unwrap().count() > 0);
        // SAFETY: no one else uses the file.
        let read = unsafe { PoolOptions::new().open_read_only(&saved).unwrap() };
        assert_holds(&read, 0..3_000);
    }
}

#[test]
fn a_checkpoint_under_a_replaced_file_deletes_no_segment() {
    let place = tempfile::tempdir().unwrap();
    let small = JournalOptions::new().interval(Duration::from_millis(1)).limit(1);
    let small = small.working_directory(place.path()).directory(journal(place.path()));
    let path = place.path().join("a.pool");
    // SAFETY: no one else uses the file.
    let pool = unsafe { PoolOptions::new().journal(small).create(&path).unwrap() };
    insert(&pool, 0..1_000);
    std::fs::remove_file(&path).unwrap();
    let before = pool.stats().journal.unwrap();
    // A checkpoint under way may have passed the check.
    let most = before.checkpoints + 1;
    for round in 1..40 {
        insert(&pool, round * 1_000..(round + 1) * 1_000);
        assert!(matches!(pool.wait_durable(), Err(Error::FileGone { .. })));
    }
    assert!(pool.stats().journal.unwrap().checkpoints <= most);
    assert!(matches!(pool.close(), Err(Error::FileGone { .. })));
}

/// The file of a pool without a journal, too.
#[test]
fn a_plain_pool_notices_that_its_file_was_removed() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a.pool");
    // SAFETY: no one else uses the file.
    let pool = unsafe {
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(&path).unwrap()
    };
    insert(&pool, 0..10);
    pool.sync().unwrap();
    rename(path.clone(), place.path().join("b.pool"));
    insert(&pool, 10..20);
    pool.sync().unwrap();
    std::fs::remove_file(place.path().join("b.pool")).unwrap();
    assert!(matches!(pool.sync(), Err(Error::FileGone { .. })));
    assert!(matches!(pool.wait_durable(), Err(Error::FileGone { .. })));
    assert!(matches!(pool.close(), Err(Error::FileGone { .. })));
}

/// Restores a copy of a pool with 10 records, and returns where the old pool is now.
fn restore(place: &Path, old: OldPool) -> Option<PathBuf> {
    let options = without_working_directory(place).journal(JournalOptions::new());
    // SAFETY: no one else uses the files.
    let restored = unsafe { options.restore(place.join("copy"), place.join("a.pool"), old) };
    let old = restored.unwrap().old;
    // SAFETY: as above.
    let pool = unsafe { options.open(place.join("a.pool")).unwrap() };
    assert_holds(&pool, 0..10);
    insert(&pool, 10..20);
    pool.wait_durable().unwrap();
    pool.close().unwrap();
    old
}

/// A pool with 10 records of which there is a copy, and which then goes on, and is killed.
fn killed_after_a_copy(place: &Path) -> u64 {
    let options = PoolOptions::new().journal(JournalOptions::new().working_directory(place));
    // SAFETY: no one else uses the file.
    let pool = unsafe { options.create(place.join("a.pool")).unwrap() };
    insert(&pool, 0..10);
    pool.snapshot(place.join("copy")).unwrap();
    pool.close().unwrap();
    // The child uses another directory.
    std::fs::remove_dir(place.join("a.pool.journal")).unwrap();
    std::os::unix::fs::symlink(journal(place), place.join("a.pool.journal")).unwrap();
    std::fs::create_dir(journal(place)).unwrap();
    killed(place, 900).0
}

#[test]
fn a_backup_is_restored_and_the_old_pool_is_kept() {
    let place = tempfile::tempdir().unwrap();
    let returned = killed_after_a_copy(place.path());
    let old = restore(place.path(), OldPool::Kept).unwrap();
    assert_eq!(old, place.path().join("a.pool.old"));
    // SAFETY: no one else uses the file.
    let pool = unsafe { PoolOptions::new().open(&old).unwrap() };
    let held = map(&pool).len().unwrap();
    assert!(held > returned, "{held} of {returned}");
    assert_holds(&pool, 0..held);
    pool.close().unwrap();
    // Once more, over a closed pool.
    assert_eq!(restore(place.path(), OldPool::Kept).unwrap(), place.path().join("a.pool.old2"));
    // And with the old one removed.
    assert_eq!(restore(place.path(), OldPool::Removed), None);
    assert!(!place.path().join("a.pool.old3").exists());
}

#[test]
fn a_pool_that_cannot_be_completed_is_kept_as_it_is() {
    let place = tempfile::tempdir().unwrap();
    let returned = killed_after_a_copy(place.path());
    let working = working_files(place.path()).remove(0);
    let hidden = place.path().join("hidden");
    rename(working.clone(), hidden.clone());
    let old = restore(place.path(), OldPool::Kept).unwrap();
    // With its working file back in its place, it is complete.
    rename(hidden, working);
    let options =
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).require_working_file(true);
    // SAFETY: no one else uses the file.
    let pool = unsafe { options.open(&old).unwrap() };
    let held = map(&pool).len().unwrap();
    assert!(held > returned, "{held} of {returned}");
    assert_holds(&pool, 0..held);
}

#[test]
fn a_restore_leaves_nothing_of_an_old_pool_that_is_not_kept() {
    let place = tempfile::tempdir().unwrap();
    killed_after_a_copy(place.path());
    assert_eq!(working_files(place.path()).len(), 1);
    assert_eq!(restore(place.path(), OldPool::Removed), None);
    assert_eq!(working_files(place.path()), [] as [PathBuf; 0]);
    assert_eq!(std::fs::read_dir(journal(place.path())).unwrap().count(), 0);
}

#[test]
fn a_restore_over_an_open_pool_or_from_a_damaged_backup_changes_nothing() {
    let place = tempfile::tempdir().unwrap();
    let pool = create(place.path());
    insert(&pool, 0..10);
    let (path, copy) = (place.path().join("a.pool"), place.path().join("copy"));
    pool.snapshot(&copy).unwrap();
    let options = options(place.path());
    // SAFETY: no one else writes the files.
    let refused = unsafe { options.restore(&copy, &path, OldPool::Kept) };
    assert!(matches!(refused, Err(Error::Locked { .. })), "{refused:?}");
    // SAFETY: as above.
    let refused = unsafe { options.restore(&path, &copy, OldPool::Kept) };
    assert!(matches!(refused, Err(Error::Locked { .. })), "{refused:?}");
    insert(&pool, 10..20);
    pool.close().unwrap();
    std::fs::write(&copy, b"not a pool").unwrap();
    // SAFETY: as above.
    let refused = unsafe { options.restore(&copy, &path, OldPool::Removed) };
    assert!(matches!(refused, Err(Error::NotAPool { .. })), "{refused:?}");
    let names = std::fs::read_dir(place.path()).unwrap().count();
    assert_eq!(names, 3, "pool, journal and copy");
    assert_holds(&open(place.path()).unwrap(), 0..20);
}
