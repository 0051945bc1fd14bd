//! One run of a workload.

use super::{Keys, value_of};
use crate::model::{Image, Timeline, stored};
use crate::parts::workload::{Concurrent, Start, Workload};
use crate::schedule::act::{Act, MAP, other};
use crate::session::{Do, Session};
use crate::state::{Checked, Fault, Records};
use crate::structures::Shape;
use outlast::RecordForm;
use outlast::internals::pmem::{Alive, Point};
use std::sync::Arc;

/// How threads of a directed schedule are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holding {
    /// The first thread is held until the others are done.
    First,
    /// The first thread is held, and then the second. Once the third is done, the first goes on.
    Two,
    /// The first thread is held until the second is done, and again until the third is done. One of
    /// the two stops is near an access at this commit point.
    Twice(&'static Point),
    /// The first thread is held near an access at this commit point. Then the second is held, until
    /// the first is held again and the third is done.
    Both(&'static Point),
}

/// A run: the pool that it begins with, and the script of each thread.
#[derive(Debug, Clone)]
pub struct Instance {
    /// The kind of workload.
    pub workload: Workload,
    /// The shape of the map.
    pub shape: Shape,
    pub(super) keys: Keys,
    /// How many records are inserted at first.
    pub fill: u64,
    /// How many of the first records are then removed.
    pub(super) removed: u64,
    /// The other maps that exist at first.
    pub others: Vec<u64>,
    /// Whether the process dies after the pool is filled, and where.
    pub(crate) crashed: Start,
    /// Whether freed blocks are reused immediately.
    pub reuses: bool,
    /// Chooses how the first operation looks a key up, or whether it wants the previous value.
    pub way: u64,
    /// How a directed schedule holds threads.
    pub holding: Holding,
    /// The process-wide number of the first thread. Gate and epochs treat high numbers differently.
    pub first_thread: usize,
    /// The script of each thread.
    pub scripts: Vec<Vec<Act>>,
}

impl Instance {
    /// Returns the records that exist at first.
    pub fn initial(&self) -> Records {
        self.workload
            .filled(self.fill, self.removed)
            .map(|n| (self.keys.key(n), value_of(n)))
            .collect()
    }

    /// Creates the pool and fills it.
    ///
    /// # Errors
    /// If an operation fails or returns something wrong.
    pub fn fill(
        &self,
        alive: &Arc<Alive>,
        seam: outlast::internals::pmem::Traced,
    ) -> Checked<Session> {
        let mut session = Session::create(self.workload.pool(), alive, seam.clone())?;
        session.create_map(MAP, self.shape)?;
        for &n in &self.others {
            session.create_map(&other(n), self.shape)?;
            for (key, value) in self.other_records() {
                session.change(&other(n), key, Do::Insert(value))?;
            }
        }
        if self.workload.concurrent == Concurrent::HoldDropped {
            // Drop the session's handles, so that the dropped map is freed once the threads have
            // dropped theirs.
            session.let_all_go();
        }
        if self.workload.concurrent == Concurrent::MapsFreed {
            session.create_map(&other(0), self.shape)?;
            session.drop_map(&other(0), true)?;
            session.let_go();
        }
        for number in 0..self.fill {
            self.workload.fill_in(&mut session, &self.keys, number)?;
        }
        for number in 0..self.removed {
            session.change(MAP, self.keys.key(number), Do::Remove)?;
        }
        match self.crashed {
            Start::Open => Ok(session),
            Start::Crashed => session.crash().map(|()| session),
            Start::CrashedIn(point) => self.crash_in(session, point, alive, seam),
        }
    }

    /// Opens the pool as it is after its process died in an update, just after the last store at
    /// `point`. The update stores the value that the record already has.
    fn crash_in(
        &self,
        mut session: Session,
        point: &'static Point,
        alive: &Arc<Alive>,
        seam: outlast::internals::pmem::Traced,
    ) -> Checked<Session> {
        let file = session.file();
        let initial = self.initial();
        let (&key, &value) = initial.iter().next_back().expect("a table that is filled");
        seam.start(false);
        session.change(MAP, key, Do::Update(value))?;
        let events = seam.take();
        let last = events.iter().rposition(|e| e.point == Some(point) && stored(e).is_some());
        let last = last.ok_or_else(|| Fault(format!("an update without {}", point.name)))?;
        let len = file.len() as u64;
        let mut timeline = Timeline::new(&Image::of_file(&file, self.capacity()), len, &events);
        timeline.advance(last + 1);
        let mut image = Image::default();
        timeline.all_but(&[], &mut image);
        Ok(Session::open(&image.bytes, self.capacity(), alive, seam, None)?)
    }

    /// Returns the size in bytes that the pool can grow to.
    pub fn capacity(&self) -> u64 {
        self.workload.pool().max_pages << crate::session::PAGE_BITS
    }

    /// Returns the number of operations of all threads.
    pub fn operations(&self) -> usize {
        self.scripts.iter().map(Vec::len).sum()
    }

    /// Returns the same run without some operations, numbered in the order of the scripts.
    #[must_use]
    pub fn without(&self, dropped: &[usize]) -> Instance {
        let mut instance = self.clone();
        let mut number = 0;
        for script in &mut instance.scripts {
            script.retain(|_| {
                number += 1;
                !dropped.contains(&(number - 1))
            });
        }
        instance
    }

    /// Returns the same run with one thread only.
    #[must_use]
    pub fn alone(&self, thread: usize) -> Instance {
        let mut instance = self.clone();
        let others = instance.scripts.iter_mut().enumerate().filter(|(other, _)| *other != thread);
        others.for_each(|(_, script)| script.clear());
        instance
    }

    /// Returns the record form.
    pub fn form(&self) -> RecordForm {
        self.shape.form
    }
}
