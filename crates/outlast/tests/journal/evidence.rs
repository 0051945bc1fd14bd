//! Journaled pools whose files are damaged, or older copies of themselves.

use super::*;
use std::os::unix::fs::FileExt;

/// Bytes of a sector in the sense of the journal.
const SECTOR: usize = 4096;

/// How many records a child process inserts before it dies.
const RECORDS: &str = "OUTLAST_TEST_RECORDS";

/// A child process that makes changes in several epochs, each of which is waited for, and dies.
#[test]
fn works_and_dies() {
    let Some(place) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let Some(count) = std::env::var(RECORDS).ok().and_then(|count| count.parse::<u64>().ok())
    else {
        return;
    };
    let pool = if place.join("a.pool").exists() { open(&place).unwrap() } else { create(&place) };
    let from = map(&pool).iter().count() as u64;
    for key in from..from + count {
        insert(&pool, key..key + 1);
        pool.wait_durable().unwrap();
    }
    std::process::abort();
}

/// Inserts `count` records in a process that dies.
fn work_and_die(place: &Path, count: u64) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "evidence::works_and_dies", "--test-threads", "1"]);
    child.env(CHILD, place).env(RECORDS, count.to_string());
    assert_eq!(child.output().unwrap().status.code(), None);
}

fn left_after_epochs(place: &Path) -> u64 {
    work_and_die(place, 30);
    30
}

/// Returns the segments, without a spare.
fn segments(place: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(place.join("journal")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_one = |path: &PathBuf| std::fs::read(path).unwrap().starts_with(b"OLJSEGM");
    let mut found: Vec<_> = paths.filter(is_one).collect();
    found.sort();
    found
}

/// Returns the offsets of the epochs in a segment, and where the last one ends.
fn epochs_in(segment: &Path) -> (Vec<usize>, usize) {
    let bytes = std::fs::read(segment).unwrap();
    let sectors = (1..bytes.len() / SECTOR).map(|sector| sector * SECTOR);
    let begins = sectors.filter(|&at| bytes[at..].starts_with(b"OLJBLOK")).collect();
    (begins, bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1)
}

fn flip(file: &Path, bit: usize) {
    let file = File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, bit as u64 / 8).unwrap();
    file.write_all_at(&[byte[0] ^ 1 << (bit % 8)], bit as u64 / 8).unwrap();
}

/// Copies a file of which most takes no space.
pub(super) fn copy_sparse(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("--sparse=always").args([from, to]).status().unwrap();
    assert!(done.success());
}

#[test]
fn a_damaged_header_of_the_last_segment_loses_nothing() {
    let place = tempfile::tempdir().unwrap();
    let end = left_after_epochs(place.path());
    for bit in (0..64 * 8).step_by(5) {
        let copied = tempfile::tempdir().unwrap();
        try_copy(place.path(), copied.path()).unwrap();
        flip(segments(copied.path()).last().unwrap(), bit);
        assert_holds(&open(copied.path()).unwrap(), 0..end);
    }
}

#[test]
fn a_last_segment_that_was_cut_short_is_refused_after_a_power_loss() {
    let place = tempfile::tempdir().unwrap();
    left_after_epochs(place.path());
    let (begins, _) = epochs_in(segments(place.path()).last().unwrap());
    assert!(begins.len() >= 20, "{begins:?}");
    for at in begins {
        let copied = tempfile::tempdir().unwrap();
        try_copy(place.path(), copied.path()).unwrap();
        let name = segments(copied.path()).pop().unwrap();
        File::options().write(true).open(&name).unwrap().set_len(at as u64).unwrap();
        let opened = open(copied.path());
        let told = name.file_name().unwrap().to_str().unwrap();
        let refused =
            matches!(&opened, Err(Error::IncompleteJournal { why, .. }) if why.contains(told));
        assert!(refused, "{opened:?}");
        assert_eq!(segments(copied.path()).pop().unwrap(), name);
    }
}

/// While the working file is there, it has what the journal has lost. The pool's file gets that before
/// anything else is confirmed.
#[test]
fn what_the_journal_has_lost_comes_from_the_working_file() {
    for how in ["cut", "zeroed", "removed", "flipped"] {
        let place = tempfile::tempdir().unwrap();
        let end = left_after_epochs(place.path());
        let last = segments(place.path()).pop().unwrap();
        let (begins, len) = epochs_in(&last);
        let from = begins[begins.len() / 2];
        let file = File::options().write(true).open(&last).unwrap();
        match how {
            "cut" => file.set_len(from as u64).unwrap(),
            "zeroed" => file.write_all_at(&vec![0; len - from], from as u64).unwrap(),
            "removed" => std::fs::remove_file(&last).unwrap(),
            _ => flip(&last, (from + 8) * 8),
        }
        if how == "removed" {
            // Otherwise the journal is in another directory.
            let first = place.path().join("journal/segment-0000000000000000");
            assert!(first.exists() || segments(place.path()).is_empty());
        }
        let opened = open(place.path());
        if how == "removed" && segments(place.path()).is_empty() {
            assert!(matches!(opened, Err(Error::IncompleteJournal { .. })), "{opened:?}");
            continue;
        }
        let pool = opened.unwrap_or_else(|error| panic!("{how}: {error}"));
        assert_holds(&pool, 0..end);
        let copied = copy(&pool, place.path());
        assert_holds(&open(copied.path()).unwrap(), 0..end);
        insert(&pool, end..end + 10);
        pool.wait_durable().unwrap();
        let copied = copy(&pool, place.path());
        assert_holds(&open(copied.path()).unwrap(), 0..end + 10);
        drop(pool);
        assert_holds(&open(place.path()).unwrap(), 0..end + 10);
    }
}

/// The journal has everything that was waited for since the copy was made.
#[test]
fn an_older_copy_of_the_working_file_is_not_taken_for_the_pool() {
    let place = tempfile::tempdir().unwrap();
    work_and_die(place.path(), 38);
    let working = working_files(place.path()).remove(0);
    let older = place.path().join("older");
    copy_sparse(&working, &older);
    work_and_die(place.path(), 22);
    let latest = place.path().join("latest");
    std::fs::rename(&working, &latest).unwrap();
    copy_sparse(&older, &working);
    // SAFETY: no one else uses the file.
    let read = unsafe { options(place.path()).open_read_only(place.path().join("a.pool")) };
    for opened in [open(place.path()), read] {
        let refused =
            matches!(&opened, Err(Error::OtherWorkingFile { why, .. }) if why.contains("older"));
        assert!(refused, "{opened:?}");
    }
    // It does not pass for a newer one either.
    let durable = (1 << 41) + 16 * 8;
    flip(&working, durable * 8 + 21);
    let opened = open(place.path());
    let refused =
        matches!(&opened, Err(Error::OtherWorkingFile { why, .. }) if why.contains("damaged"));
    assert!(refused, "{opened:?}");
    // Either of the remedies that the message names.
    let rebuilt = tempfile::tempdir().unwrap();
    try_copy(place.path(), rebuilt.path()).unwrap();
    assert_holds(&open(rebuilt.path()).unwrap(), 0..60);
    std::fs::rename(&latest, &working).unwrap();
    assert_holds(&open(place.path()).unwrap(), 0..60);
}
