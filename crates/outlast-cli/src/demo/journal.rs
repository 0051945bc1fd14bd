//! What a worker's thread did, kept outside of the pool: every operation is noted before
//! it begins and after it has returned. Stores to a shared mapping outlive the process
//! that is killed, in the order of the program, so the notes are never behind or ahead of
//! what was done by more than one operation.
//!
//! | word | of the header | of an entry |
//! |---|---|---|
//! | 0 | operations done | kind, and the item from bit 8 |
//! | 1 | operations to stop before | 5 words of facts, to word 5 |
//! | 2 | whether one is under way | |
//! | 6 | | state |
//! | 7 | | 1 if the operation answered something else than it had to |

use super::facts::{FACTS_WORDS, FileFacts};
use super::plan::{Kind, Plan};
use super::shared::SharedWords;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, compiler_fence};

/// Words of the header, and of an entry.
const ENTRY_WORDS: usize = 8;
const DONE: usize = 0;
const LIMIT: usize = 1;
const UNDER_WAY: usize = 2;

const KIND_ITEM: usize = 0;
const FACTS: usize = 1;
const STATE: usize = FACTS + FACTS_WORDS;
const ANSWER: usize = 7;
const _: () = assert!(STATE < ANSWER && ANSWER < ENTRY_WORDS);

/// How far an operation is. The numbers stand in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum State {
    /// It has begun; whether it took effect is open.
    Begun = 1,
    /// It has returned: it took effect.
    Acknowledged = 2,
    /// It was in flight at a kill, and had taken effect.
    Happened = 3,
    /// It was in flight at a kill, and never took effect.
    Never = 4,
}

impl State {
    fn from_u64(number: u64) -> Option<Self> {
        [State::Begun, State::Acknowledged, State::Happened, State::Never]
            .into_iter()
            .find(|state| *state as u64 == number)
    }

    /// Whether the operation is in effect for certain.
    pub(super) fn in_effect(self) -> bool {
        matches!(self, State::Acknowledged | State::Happened)
    }
}

/// A note of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) kind: Kind,
    pub(super) item: u32,
    /// What it stores; nothing is stored by a removal.
    pub(super) facts: FileFacts,
    pub(super) state: State,
    /// Whether it answered something else than it had to.
    pub(super) wrong_answer: bool,
}

impl Entry {
    /// The record that the operation leaves.
    pub(super) fn after(&self) -> Option<FileFacts> {
        (self.kind != Kind::Remove).then_some(self.facts)
    }
}

/// The journal of one thread.
pub(super) struct Journal {
    words: SharedWords,
}

/// The file of a thread's journal.
pub(super) fn path(work: &Path, thread: u32) -> PathBuf {
    work.join(format!("journal-{thread}"))
}

impl Journal {
    /// Makes the journal of a thread: with space for its script, and for what is done
    /// again after kills.
    pub(super) fn create(work: &Path, plan: &Plan, thread: u32, kills: u32) -> io::Result<Self> {
        let entries = plan.len_of(thread) as usize + kills as usize + 1;
        let words = SharedWords::create(&path(work, thread), (entries + 1) * ENTRY_WORDS)?;
        words[LIMIT].store(u64::MAX, Relaxed);
        Ok(Journal { words })
    }

    /// Opens the journal of a thread.
    pub(super) fn open(work: &Path, thread: u32) -> io::Result<Self> {
        Ok(Journal { words: SharedWords::open(&path(work, thread))? })
    }

    /// The words of an entry.
    fn entry(&self, number: usize) -> &[AtomicU64] {
        let start = (number + 1) * ENTRY_WORDS;
        &self.words[start..start + ENTRY_WORDS]
    }

    fn capacity(&self) -> usize {
        (self.words.len() / ENTRY_WORDS).saturating_sub(1)
    }

    /// All notes, in their order.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        (0..self.capacity()).map_while(|number| self.read(number))
    }

    fn read(&self, number: usize) -> Option<Entry> {
        let words = self.entry(number);
        // Acquire: with the Release of `begin`, so that the other words are whole.
        let state = State::from_u64(words[STATE].load(Acquire))?;
        let kind_item = words[KIND_ITEM].load(Relaxed);
        let kind = [Kind::Insert, Kind::Update, Kind::Remove]
            .into_iter()
            .find(|kind| *kind as u64 == kind_item & 0xff)?;
        let facts = std::array::from_fn(|i| words[FACTS + i].load(Relaxed));
        Some(Entry {
            kind,
            item: (kind_item >> 8) as u32,
            facts: FileFacts::from_words(facts),
            state,
            wrong_answer: words[ANSWER].load(Relaxed) != 0,
        })
    }

    /// Notes that an operation begins, as entry `number`.
    pub(super) fn begin(&self, number: usize, kind: Kind, item: u32, facts: FileFacts) {
        let words = self.entry(number);
        words[KIND_ITEM].store(kind as u64 | u64::from(item) << 8, Relaxed);
        for (word, value) in words[FACTS..].iter().zip(facts.words()) {
            word.store(value, Relaxed);
        }
        // Release: no store above may come after it. A kill keeps every store that was
        // executed, so nothing but the compiler could move the operation's before it.
        words[STATE].store(State::Begun as u64, Release);
        self.words[UNDER_WAY].store(1, Relaxed);
        compiler_fence(SeqCst);
    }

    /// Notes that it has returned.
    pub(super) fn acknowledge(&self, number: usize, right_answer: bool) {
        let words = self.entry(number);
        words[ANSWER].store(u64::from(!right_answer), Relaxed);
        // Release: not before the operation's own stores.
        words[STATE].store(State::Acknowledged as u64, Release);
        self.words[UNDER_WAY].store(0, Relaxed);
        // This thread is the only one that counts here.
        let done = self.words[DONE].load(Relaxed);
        self.words[DONE].store(done + 1, Release);
    }

    /// Decides what became of an operation in flight at a kill.
    pub(super) fn resolve(&self, number: usize, happened: bool) {
        let state = if happened { State::Happened } else { State::Never };
        self.entry(number)[STATE].store(state as u64, Release);
    }

    /// Counts again what is done: a kill may have come between the two stores of
    /// [`Journal::acknowledge`], and what was in flight is decided now.
    pub(super) fn recount(&self) {
        let done = self.entries().filter(|e| e.state.in_effect()).count();
        self.words[DONE].store(done as u64, Release);
        self.words[UNDER_WAY].store(0, Relaxed);
    }

    /// Whether an operation is under way, about now.
    pub(super) fn is_under_way(&self) -> bool {
        self.words[UNDER_WAY].load(Relaxed) != 0
    }

    /// How many operations are done.
    pub(super) fn done(&self) -> u64 {
        self.words[DONE].load(Acquire)
    }

    /// How many operations may be done.
    pub(super) fn limit(&self) -> u64 {
        self.words[LIMIT].load(Relaxed)
    }

    /// Sets how many operations may be done.
    pub(super) fn set_limit(&self, limit: u64) {
        self.words[LIMIT].store(limit, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::facts::Observer;
    use crate::demo::items::Item;

    #[test]
    fn notes_come_back_as_they_were_made() {
        let dir = tempfile::tempdir().unwrap();
        let plan = Plan { items: 10, threads: 2, scheme: "dash-eh".into() };
        let journal = Journal::create(dir.path(), &plan, 1, 5).unwrap();
        assert_eq!(journal.entries().count(), 0);
        let facts = Observer::new().observe(&Item::Generated(1), 1);
        journal.begin(0, Kind::Insert, 7, facts);
        journal.acknowledge(0, true);
        journal.begin(1, Kind::Remove, 7, facts);
        journal.acknowledge(1, false);
        journal.begin(2, Kind::Update, u32::MAX, facts);
        drop(journal);

        let journal = Journal::open(dir.path(), 1).unwrap();
        let entries: Vec<Entry> = journal.entries().collect();
        assert_eq!(entries.len(), 3);
        assert_eq!(entries[0].after(), Some(facts));
        assert_eq!(entries[1].after(), None);
        assert!(entries[1].wrong_answer && !entries[0].wrong_answer);
        assert_eq!((entries[2].item, entries[2].state), (u32::MAX, State::Begun));
        assert_eq!(journal.done(), 2);
        journal.resolve(2, true);
        journal.recount();
        assert_eq!(journal.done(), 3);
        assert_eq!(journal.limit(), u64::MAX);
    }
}
