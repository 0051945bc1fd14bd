//! The pool of a life, as the journal sees it: memory to which the events of a recorded run are
//! applied.

use super::{At, DURABLE, io_fault, lock};
use crate::explore::Recording;
use crate::journal::Ledger;
use crate::journal::mutants::Wrong;
use crate::model::{Image, stored};
use crate::random::Random;
use crate::state::{Checked, Fault};
use outlast::Error;
use outlast::internals::journal::base::PAGE;
use outlast::internals::journal::epoch::{Attempt, Change, LINE};
use outlast::internals::journal::running::{Journal, Source};
use outlast::internals::pmem::{Access, Disk, Event, Mark, Notes};
use std::cell::RefCell;
use std::fs::File;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The working file and its notes.
pub(super) struct Working {
    pub(super) notes: Arc<Notes>,
    pub(super) file: File,
}

impl Working {
    pub(super) fn create(capacity: u64, len: u64, epoch: u64) -> Checked<Arc<Working>> {
        // The file is in memory if the system allows it. There, a hole of terabytes costs nothing.
        let file = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile());
        let file = file.map_err(io_fault("a file for the notes"))?;
        let disk = Disk::default();
        let made = Notes::create(&disk, &file, capacity).and_then(|notes| {
            notes.cover(&disk, &file, len)?;
            Ok(notes)
        });
        let notes = made.map_err(|e| Fault(format!("notes: {e:?}")))?;
        Attempt::unknown(epoch).store(&notes, DURABLE);
        Ok(Arc::new(Working { notes: Arc::new(notes), file }))
    }

    /// Opens the file again, as the next process does: that one does not know whether any line was
    /// noted since the last cut.
    pub(super) fn reopen(&self) -> Checked<Arc<Working>> {
        let failed = io_fault("the working file again");
        let notes = Notes::open(&self.file).map_err(&failed)?;
        let notes = notes.ok_or_else(|| Fault("the working file has no notes".into()))?;
        let file = self.file.try_clone().map_err(&failed)?;
        Ok(Arc::new(Working { notes: Arc::new(notes), file }))
    }

    pub(super) fn durable(&self) -> u64 {
        Attempt::load(&self.notes, DURABLE).epoch
    }
}

/// The state that a life changes.
pub(super) struct Now {
    pub(super) memory: Vec<u8>,
    pub(super) moment: usize,
    /// The growths of the file that are still to come: each moment, and the length from then on.
    pub(super) growths: Vec<(usize, u64)>,
    pub(super) len: u64,
    pub(super) random: Random,
    pub(super) journal: Option<Arc<Journal>>,
    /// The file could not grow, so nothing more happens.
    pub(super) stuck: bool,
}

/// The pool of a life, as the journal sees it.
pub(super) struct Pool {
    pub(super) at: usize,
    pub(super) run: Arc<Recording>,
    pub(super) working: Arc<Working>,
    pub(super) ledger: Arc<Mutex<Ledger>>,
    pub(super) wrong: Option<Wrong>,
    pub(super) now: RefCell<Now>,
}

impl Pool {
    pub(super) fn at(&self) -> At {
        At { stage: self.at, moment: self.now.borrow().moment }
    }

    pub(super) fn is_over(&self) -> bool {
        let now = self.now.borrow();
        now.stuck || now.moment >= self.run.events.len()
    }

    /// Lets this many events happen.
    pub(super) fn advance(&self, events: usize) {
        for _ in 0..events {
            let (moment, journal) = {
                let now = self.now.borrow();
                (now.moment, now.journal.clone())
            };
            let Some(event) = self.run.events.get(moment) else { return };
            let due = self.now.borrow().growths.first().copied().filter(|g| g.0 <= moment);
            if let Some((_, len)) = due {
                if !self.grow(journal.as_deref(), len) {
                    self.now.borrow_mut().stuck = true;
                    return;
                }
                let mut now = self.now.borrow_mut();
                now.growths.remove(0);
                now.len = len;
            }
            let mut now = self.now.borrow_mut();
            apply(&mut now.memory, &self.working.notes, event, self.wrong);
            now.moment += 1;
        }
    }

    /// Lets this many events happen, or fewer if the recorded process dies. Returns whether it did.
    pub(super) fn advance_to_death(&self, events: usize) -> bool {
        let from = self.at().moment;
        let until = (from + events).min(self.run.events.len());
        let is_death = |e: &Event| matches!(e.access, Access::Mark(Mark::Death));
        let death = self.run.events[from..until].iter().position(is_death);
        self.advance(death.map_or(until - from, |at| at + 1));
        death.is_some()
    }

    /// Grows the base and the notes. Retries what the disk refuses, so that the run continues as
    /// recorded. Returns whether both have grown.
    pub(super) fn grow(&self, journal: Option<&Journal>, len: u64) -> bool {
        let extended = self.wrong == Some(Wrong::GrownLate)
            || journal.is_none_or(|j| (0..30).any(|_| j.extend_base(len).is_ok()));
        let Working { notes, file } = &*self.working;
        extended && notes.cover(&Disk::default(), file, len).is_ok()
    }

    /// Goes on until no operation is in flight.
    pub(super) fn come_to_rest(&self) {
        loop {
            let At { moment, .. } = self.at();
            let is_at_rest = self.run.in_flight(moment).is_none();
            if is_at_rest || self.is_over() {
                return;
            }
            self.advance(1);
        }
    }

    pub(super) fn some_events(&self, most: u64) {
        let events = self.now.borrow_mut().random.below(most.max(1));
        self.advance(events as usize);
    }

    pub(super) fn image(&self) -> Image {
        let now = self.now.borrow();
        Image { bytes: now.memory[..now.len as usize].to_vec(), hash: now.moment as u64 }
    }
}

/// Lets an event happen.
fn apply(memory: &mut [u8], notes: &Notes, event: &Event, wrong: Option<Wrong>) {
    if let Some((offset, value)) = stored(event)
        && let Some(word) = memory.get_mut(offset as usize..offset as usize + 8)
    {
        word.copy_from_slice(&value.to_le_bytes());
    }
    match event.access {
        Access::Flush { offset, bytes } => {
            let all = if wrong == Some(Wrong::OneLineNoted) { bytes.min(1) } else { bytes };
            notes.note(offset as usize, all as usize);
        }
        Access::Store { offset, nontemporal: true, .. } => notes.note(offset as usize, 8),
        _ => {}
    }
}

impl Source for Pool {
    fn cut(&self, _: bool, begin: &mut dyn FnMut(), change: &mut Change) -> outlast::Result<bool> {
        begin();
        if self.wrong != Some(Wrong::GateNotHeld) {
            self.come_to_rest();
        }
        let stuck = Error::NotOpen(outlast::NotOpen::ThreadExiting);
        if self.now.borrow().stuck {
            return Err(stuck);
        }
        change.clear();
        let notes = &self.working.notes;
        notes.take(|lines| change.announce(lines));
        let now = self.now.borrow();
        change.fill(|line, image, _| {
            image.copy_from_slice(&now.memory[line as usize * LINE..][..LINE]);
        });
        drop(now);
        let durable = self.working.durable();
        let mut ledger = lock(&self.ledger);
        ledger.settle(durable);
        // An empty cut needs no epoch of its own: the last durable epoch holds everything.
        let epoch = durable + u64::from(!change.is_empty());
        ledger.add(epoch, self.at());
        ledger.settle(durable);
        Ok(true)
    }

    fn pause(&self, _: Duration) {}

    fn read(&self, page: u64, out: &mut [u8]) {
        // Operations go on while a page is copied.
        let half = out.len() / 2;
        for part in [0..half, half..out.len()] {
            self.some_events(3);
            let now = self.now.borrow();
            let from = page as usize * PAGE + part.start;
            let bytes = now.memory.get(from..from + part.len()).unwrap_or_default();
            out[part.start..part.start + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn bytes(&self) -> u64 {
        self.now.borrow().len
    }
}
