//! Tests of the notes.

use super::*;
use crate::pmem::alive::tests::in_forked_child;
use std::collections::BTreeSet;

const CAPACITY_BYTES: u64 = 64 << 20;
const LINES: u64 = CAPACITY_BYTES / LINE;

fn notes() -> (File, Notes) {
    let file = tempfile::tempfile().unwrap();
    let notes = Notes::create(&Disk::default(), &file, CAPACITY_BYTES).unwrap();
    notes.cover(&Disk::default(), &file, CAPACITY_BYTES).unwrap();
    (file, notes)
}

fn add(notes: &Notes, lines: Range<u64>) {
    notes.note((lines.start * LINE) as usize, ((lines.end - lines.start) * LINE) as usize);
}

/// Cuts, reports all lines of the cut as durable, and returns them.
fn taken(notes: &Notes) -> Vec<Range<u64>> {
    let mut runs = Vec::new();
    notes.take(|run| runs.push(run));
    notes.durable(runs.iter().cloned());
    runs
}

#[test]
fn a_cut_returns_what_was_noted_since_the_last_one_as_runs() {
    let (_file, notes) = notes();
    assert_eq!(taken(&notes), []);
    for range in [9_999..10_000, 60..70, 64..65, 5_000..5_000, 70..71, 4_095..4_097] {
        add(&notes, range);
    }
    assert!(notes.any());
    assert_eq!(taken(&notes), [60..71, 4_095..4_097, 9_999..10_000]);
    assert!(!notes.any());
    add(&notes, 60..61);
    assert_eq!(taken(&notes).first(), Some(&(60..61)));
    add(&notes, LINES - 1..LINES);
    add(&notes, 0..1);
    assert_eq!(taken(&notes), [0..1, LINES - 1..LINES]);
}

#[test]
fn bytes_are_noted_by_the_lines_that_hold_them() {
    let (_file, notes) = notes();
    for (at, bytes, lines) in
        [(0, 8, 0..1), (120, 8, 1..2), (120, 16, 1..3), (64, 64, 1..2), (8, 256, 0..5)]
    {
        notes.note(at, bytes);
        assert_eq!(taken(&notes), [lines]);
    }
    notes.note(8, 0);
    assert_eq!(taken(&notes), []);
}

#[test]
fn notes_agree_with_a_tree() {
    let (_file, notes) = notes();
    let (mut state, mut tree) = (1_u64, BTreeSet::new());
    for round in 0..2_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let start = (state >> 33) % 20_000;
        let end = (start + (state >> 20) % 300).min(20_000);
        add(&notes, start..end);
        tree.extend(start..end);
        if round % 100 == 99 {
            let found: Vec<_> = taken(&notes).into_iter().flatten().collect();
            assert_eq!(found, tree.iter().copied().collect::<Vec<_>>());
            tree.clear();
        }
    }
}

/// The next process finds everything that a process had noted, and everything that it had cut but
/// not made durable.
#[test]
fn both_sets_are_found_again() {
    let (file, notes) = notes();
    add(&notes, 3..5);
    let mut cut = Vec::new();
    notes.take(|run| cut.push(run));
    assert_eq!(cut.first(), Some(&(3..5)));
    add(&notes, 10_000..10_001);
    notes.control()[7].store(77, Ordering::Relaxed);
    drop(notes);
    let notes = Notes::open(&file).unwrap().expect("notes");
    assert_eq!(notes.control()[7].load(Ordering::Relaxed), 77);
    assert_eq!((notes.covered(), notes.capacity()), (CAPACITY_BYTES, CAPACITY_BYTES));
    assert!(notes.any());
    assert_eq!(taken(&notes), [3..5, 10_000..10_001]);
}

/// A lookup's note in the set that was just handed out is in the next cut.
#[test]
fn a_note_that_comes_late_is_kept() {
    let (_file, notes) = notes();
    add(&notes, 3..5);
    add(&notes, 70..71);
    let mut cut = Vec::new();
    notes.take(|run| cut.push(run));
    // The set that was current when the note began.
    let late = notes.set(1 - notes.word(CURRENT).load(Ordering::Relaxed), CAPACITY_BYTES);
    for lines in [4..6, 64..66, 9_000..9_001] {
        late.add(lines);
    }
    notes.durable(cut.into_iter());
    assert_eq!(taken(&notes), [5..6, 64..66, 9_000..9_001]);
    assert_eq!(taken(&notes), []);
}

/// Threads note lines at any time, while another thread cuts. Each note is in a cut that begins
/// after it, or in one that was under way.
#[test]
fn no_note_is_lost_beside_cuts() {
    const EACH: u64 = 40_000;
    let (_file, notes) = notes();
    let (told, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|s| {
        let (notes, told, done) = (&notes, &told, &done);
        let others: Vec<_> = (0..3)
            .map(|thread| {
                s.spawn(move || {
                    for i in 0..EACH {
                        // Neighboring lines share words with those of the other threads.
                        let line = (i * 7 % EACH) * 3 + thread;
                        add(notes, line..line + 1);
                        told.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        let cutting = s.spawn(move || {
            let mut seen = BTreeSet::new();
            loop {
                let last = done.load(Ordering::SeqCst);
                seen.extend(taken(notes).into_iter().flatten());
                if last {
                    return seen;
                }
            }
        });
        others.into_iter().for_each(|other| other.join().unwrap());
        done.store(true, Ordering::SeqCst);
        let seen = cutting.join().unwrap();
        assert_eq!(seen.len() as u64, 3 * EACH);
        assert_eq!(told.load(Ordering::SeqCst), 3 * EACH);
    });
    let empty = |word: &AtomicU64| word.load(Ordering::Relaxed) == 0;
    for set in 0..2 {
        let set = notes.set(set, CAPACITY_BYTES);
        // The summary can have an extra bit, of a word that was cut while its lines were added.
        assert!(set.bits.iter().all(empty), "nothing is left over");
    }
}

/// A thread may have added a line and lost its processor before it sets `any`. Another thread that
/// notes the same line, and then waits, must not find that nothing was noted.
#[test]
fn a_line_that_another_thread_is_noting_is_waited_for() {
    let (_file, notes) = notes();
    assert_eq!(taken(&notes), []);
    let current = notes.word(CURRENT).load(Ordering::Relaxed);
    notes.set(current, CAPACITY_BYTES).add(77..78);
    assert!(!notes.any());
    add(&notes, 77..78);
    assert!(notes.any());
    assert_eq!(taken(&notes).first(), Some(&(77..78)));
}

#[test]
fn a_file_without_notes_is_told() {
    let file = tempfile::tempfile().unwrap();
    assert!(Notes::open(&file).unwrap().is_none());
    file.set_len(NOTES_AT + (16 << 20)).unwrap();
    assert!(Notes::open(&file).unwrap().is_none());
}

/// If a process dies between the two stores of `add`, lines that are added later are found all the
/// same.
#[test]
fn a_line_that_was_being_added_hides_no_other() {
    let (_file, notes) = notes();
    // All that the first of the two stores leaves.
    notes.set(0, CAPACITY_BYTES).summary[0].fetch_or(1 << 7, Ordering::Relaxed);
    add(&notes, 7 * 64 + 3..7 * 64 + 4);
    assert_eq!(taken(&notes).first(), Some(&(451..452)));
}

#[test]
fn threads_note_at_the_same_time() {
    let (_file, notes) = notes();
    std::thread::scope(|s| {
        for thread in 0..4 {
            let notes = &notes;
            s.spawn(move || {
                (0..64 * 64).for_each(|i| add(notes, i * 4 + thread..i * 4 + thread + 1))
            });
        }
    });
    let all = 0..64 * 64 * 4;
    assert!(taken(&notes).into_iter().eq([all]));
}

#[test]
fn a_forked_child_does_not_unmap_what_it_has_at_these_addresses() {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
    let file = tempfile::tempfile().unwrap();
    let notes = Notes::create(&Disk::default(), &file, 1 << 20).unwrap();
    let start = notes.start.as_ptr();
    let child = move || {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: nothing is mapped there: the child has not inherited the notes. The page is the child's own.
        unsafe {
            let own = rustix::mm::mmap_anonymous(start.cast(), PAGE as usize, access, flags);
            drop(notes);
            own.is_ok_and(|own| rustix::mm::msync(own, PAGE as usize, MsyncFlags::ASYNC).is_ok())
        }
    };
    // SAFETY: the child makes system calls only.
    assert!(unsafe { in_forked_child(child) });
}
