//! A journal of what one worker thread did, kept outside the pool. Every operation is recorded
//! before it begins and after it has returned. Stores to a shared mapping survive the death of the
//! process, in program order, so the outcome of at most one operation is open.
//!
//! | word | in the header | in an entry |
//! |---|---|---|
//! | 0 | operations done | bits 0 to 7: kind; from bit 8: item |
//! | 1 | limit: how many operations may be done | facts, in words 1 to 5 |
//! | 2 | whether an operation is under way | |
//! | 3 | entries that were confirmed to be durable | |
//! | 6 | | state |
//! | 7 | | 1 if the operation returned a wrong result |

use super::facts::{FACTS_WORDS, FileFacts};
use super::plan::{Kind, Plan};
use super::shared::SharedWords;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, compiler_fence};

/// In a pool with a journal, the greatest number of a thread's operations that have returned but
/// are not confirmed to be durable.
pub(super) const UNCONFIRMED_MAX: usize = 256;

/// Number of words in the header, and in an entry.
const ENTRY_WORDS: usize = 8;
const DONE: usize = 0;
const LIMIT: usize = 1;
const UNDER_WAY: usize = 2;
const CONFIRMED: usize = 3;

const KIND_ITEM: usize = 0;
const FACTS: usize = 1;
const STATE: usize = FACTS + FACTS_WORDS;
const ANSWER: usize = 7;
const _: () = assert!(STATE < ANSWER && ANSWER < ENTRY_WORDS);

/// The state of an operation. The numbers are stored in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum State {
    /// The operation has begun, and may or may not have taken effect.
    Begun = 1,
    /// The operation has returned, so it took effect.
    Acknowledged = 2,
    /// The operation was in flight at a kill, and had taken effect.
    Happened = 3,
    /// The operation was in flight at a kill, and did not take effect or was undone by a power
    /// loss.
    Never = 4,
    /// The operation had taken effect, but was not confirmed to be durable, and a power loss undid
    /// it.
    TakenBack = 5,
}

impl State {
    fn from_u64(number: u64) -> Option<Self> {
        use State::{Acknowledged, Begun, Happened, Never, TakenBack};
        let all = [Begun, Acknowledged, Happened, Never, TakenBack];
        all.into_iter().find(|state| *state as u64 == number)
    }

    /// Returns whether the operation is certainly in effect.
    pub(super) fn in_effect(self) -> bool {
        matches!(self, State::Acknowledged | State::Happened)
    }
}

/// The journal entry of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) kind: Kind,
    pub(super) item: u32,
    /// What the operation stores. Ignored for a removal.
    pub(super) facts: FileFacts,
    pub(super) state: State,
    /// Whether the operation returned a wrong result.
    pub(super) wrong_answer: bool,
}

impl Entry {
    /// The record as the operation leaves it.
    pub(super) fn after(&self) -> Option<FileFacts> {
        (self.kind != Kind::Remove).then_some(self.facts)
    }
}

/// The journal of one thread.
pub(super) struct Journal {
    words: SharedWords,
}

/// The path of a thread's journal.
pub(super) fn path(work: &Path, thread: u32) -> PathBuf {
    work.join(format!("journal-{thread}"))
}

impl Journal {
    /// Creates a thread's journal, with space for its script and for operations that are repeated
    /// after kills.
    pub(super) fn create(work: &Path, plan: &Plan, thread: u32, kills: u32) -> io::Result<Self> {
        // Operations that a kill interrupts or a power loss undoes are repeated.
        let again = 1 + if plan.journal { UNCONFIRMED_MAX } else { 0 };
        let entries = plan.len_of(thread) as usize + again * (kills as usize + 1);
        let words = SharedWords::create(&path(work, thread), (entries + 1) * ENTRY_WORDS)?;
        words[LIMIT].store(u64::MAX, Relaxed);
        Ok(Journal { words })
    }

    /// Opens a thread's journal.
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

    /// Returns all entries in order.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        (0..self.capacity()).map_while(|number| self.read(number))
    }

    fn read(&self, number: usize) -> Option<Entry> {
        let words = self.entry(number);
        // Acquire: pairs with the Release in `begin`, so that the other words are complete.
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

    /// Records in entry `number` that an operation begins.
    pub(super) fn begin(&self, number: usize, kind: Kind, item: u32, facts: FileFacts) {
        let words = self.entry(number);
        words[KIND_ITEM].store(kind as u64 | u64::from(item) << 8, Relaxed);
        for (word, value) in words[FACTS..].iter().zip(facts.words()) {
            word.store(value, Relaxed);
        }
        // Release: the stores above stay before this one. A kill keeps every store that was
        // executed, so only the compiler could move the operation's own stores before this one; the
        // fence below prevents that.
        words[STATE].store(State::Begun as u64, Release);
        self.words[UNDER_WAY].store(1, Relaxed);
        compiler_fence(SeqCst);
    }

    /// Records that the operation of entry `number` has returned.
    pub(super) fn acknowledge(&self, number: usize, right_answer: bool) {
        let words = self.entry(number);
        words[ANSWER].store(u64::from(!right_answer), Relaxed);
        // Release: this store stays after the operation's own stores.
        words[STATE].store(State::Acknowledged as u64, Release);
        self.words[UNDER_WAY].store(0, Relaxed);
        // Only this thread updates the count.
        let done = self.words[DONE].load(Relaxed);
        self.words[DONE].store(done + 1, Release);
    }

    /// Records the outcome of an operation that was in flight at a kill.
    pub(super) fn resolve(&self, number: usize, happened: bool) {
        let state = if happened { State::Happened } else { State::Never };
        self.entry(number)[STATE].store(state as u64, Release);
    }

    /// Records that a power loss took back the operation of entry `number`.
    pub(super) fn take_back(&self, number: usize) {
        self.entry(number)[STATE].store(State::TakenBack as u64, Release);
    }

    /// Records that the operations of the first `entries` entries are durable.
    pub(super) fn confirm(&self, entries: usize) {
        self.words[CONFIRMED].store(entries as u64, Release);
    }

    /// Number of entries, from the first, whose operations were confirmed to be durable.
    pub(super) fn confirmed(&self) -> usize {
        self.words[CONFIRMED].load(Acquire) as usize
    }

    /// Recounts the operations done, because a kill may have come after [`Journal::acknowledge`]
    /// stored the state but before it stored the count, and because the outcomes of operations in
    /// flight have been decided since.
    pub(super) fn recount(&self) {
        let done = self.entries().filter(|e| e.state.in_effect()).count();
        self.words[DONE].store(done as u64, Release);
        self.words[UNDER_WAY].store(0, Relaxed);
    }

    /// Returns whether an operation is under way at about this moment.
    pub(super) fn is_under_way(&self) -> bool {
        self.words[UNDER_WAY].load(Relaxed) != 0
    }

    /// Number of operations done.
    pub(super) fn done(&self) -> u64 {
        self.words[DONE].load(Acquire)
    }

    /// Number of operations that may be done.
    pub(super) fn limit(&self) -> u64 {
        self.words[LIMIT].load(Relaxed)
    }

    /// Sets the number of operations that may be done.
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
        let plan = Plan { items: 10, threads: 2, scheme: "dash-eh".into(), journal: false };
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
