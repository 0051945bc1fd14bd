//! Checks that other threads make progress when one thread is stopped for ever.
//!
//! A thread is stopped before each of its steps in turn, and stays stopped. The others must
//! complete 1,000 operations, each within a bound of steps. A lock-free scheme
//! ([`Scheme::is_lock_free`]) must pass whichever thread is stopped. Every scheme must pass when
//! the stopped thread is a reader: it looks a key up, holds a reference or iterates.

use super::act::MAP;
use super::baton::Baton;
use super::strategy::Strategy;
use crate::codec::Form;
use crate::session::{Do, PoolShape, Session, alive};
use crate::state::{Checked, Fault, ensure};
use crate::structures::Shape;
use crate::with_form;
use outlast::internals::db::store::Store;
use outlast::internals::index::{Change, Cursor, Index, Previous};
use outlast::internals::pmem::Traced;
use outlast::internals::pool::threads;
use outlast::{RecordForm, Scheme};

/// The work of the thread that is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// Looks keys up.
    Get,
    /// Holds a reference.
    Reference,
    /// Iterates.
    Scan,
    /// Inserts or replaces.
    Change,
    /// Inserts a key that is not there.
    Insert,
    /// Replaces a record.
    Update,
    /// Removes a record.
    Remove,
    /// Makes steps of the index's background work.
    Step,
}

/// Operations that the other threads make, together.
pub const OPERATIONS: u64 = 1_000;
/// Steps of all threads together within which an operation must return.
const STEPS_MAX: u64 = 20_000;

impl Victim {
    /// Returns the victims that must not keep other threads waiting in this scheme.
    pub fn of(scheme: Scheme) -> &'static [Victim] {
        if scheme.is_lock_free() {
            &[
                Victim::Get,
                Victim::Reference,
                Victim::Scan,
                Victim::Change,
                Victim::Insert,
                Victim::Update,
                Victim::Remove,
                Victim::Step,
            ]
        } else {
            &[Victim::Get, Victim::Reference, Victim::Scan]
        }
    }

    /// Sets aside the blocks that the victim needs, so that it is not stopped while it takes blocks
    /// from the allocator's shared state.
    fn reserve<R: Form>(self, store: &Store<Traced>, index: &dyn Index<R>) -> outlast::Result<()> {
        for n in 60_000..60_003 {
            let (key, value) = (R::nth_key(n), R::nth_value(n + 1));
            index.change(R::key_of(&key), Change::Put(R::value_of(&value)), Previous::UNWANTED)?;
            index.change(R::key_of(&key), Change::Remove, Previous::UNWANTED)?;
        }
        let _writing = store.core().enter()?;
        // Allocate as much as a block of the index's structure takes. The run of pages has more
        // such blocks, which stay with this thread.
        store.core().allocate(256).map(|_| ())
    }

    fn act<R: Form>(self, store: &Store<Traced>, index: &dyn Index<R>) -> outlast::Result<()> {
        let key = |n| R::nth_key(n);
        let value = R::nth_value(77);
        let change =
            |n, change| index.change(R::key_of(&key(n)), change, Previous::UNWANTED).map(|_| ());
        match self {
            Victim::Get => {
                for n in [3, 9_999] {
                    index.get(R::key_of(&key(n)))?;
                }
            }
            Victim::Reference => {
                let reference = index.get_ref(R::key_of(&key(3)))?;
                drop(index.get(R::key_of(&key(5)))?);
                drop(reference);
            }
            Victim::Scan => {
                let (mut cursor, mut batch) = (Cursor::start(), Vec::new());
                // Scan only a part of the table. The rest would be more of the same.
                for _ in 0..3 {
                    index.scan(&mut cursor, &mut batch)?;
                }
            }
            Victim::Insert => change(50_001, Change::Insert(R::value_of(&value)))?,
            Victim::Update => change(3, Change::Update(R::value_of(&value)))?,
            Victim::Remove => change(3, Change::Remove)?,
            Victim::Step => {
                let _writing = store.core().enter()?;
                for _ in 0..4 {
                    index.step()?;
                }
            }
            Victim::Change => {
                for n in [3, 50_000] {
                    let value = R::nth_value(n + 1);
                    index.change(
                        R::key_of(&key(n)),
                        Change::Put(R::value_of(&value)),
                        Previous::WANTED,
                    )?;
                }
            }
        }
        Ok(())
    }
}

/// The work of the other threads: changes of the victim's keys, and inserts that cause splits.
fn others<R: Form>(index: &dyn Index<R>, thread: u64, baton: &Baton) -> outlast::Result<()> {
    for i in 0..OPERATIONS / 2 {
        let n = match i % 5 {
            0 => 3,
            1 => 5,
            // The key that a victim inserts.
            2 => 50_001,
            _ => 1_000 * (thread + 1) + i % 60,
        };
        let key = R::nth_key(n);
        let value = R::nth_value(10_000 + i);
        let change = match i % 7 {
            0 | 4 => Change::Remove,
            1 => Change::Update(R::value_of(&value)),
            _ => Change::Put(R::value_of(&value)),
        };
        index.change(R::key_of(&key), change, Previous::UNWANTED)?;
        if i % 9 == 0 {
            index.get(R::key_of(&key))?;
        }
        baton.answered();
    }
    Ok(())
}

/// Stops the victim before each `stride`-th of its steps. Returns how many steps were tried.
///
/// # Errors
/// Where the other threads made no progress.
pub fn check(scheme: Scheme, form: RecordForm, victim: Victim, stride: u64) -> Checked<u64> {
    let alive = alive();
    let shape = Shape::smallest(scheme, form);
    let mut tried = 0;
    for step in (0..).step_by(stride.max(1) as usize) {
        threads::number_this_thread(0);
        let baton = Baton::new(3, Strategy::InTurn);
        baton.stop(0, step);
        baton.limit(STEPS_MAX);
        let seam = Traced::with_control(Box::new(baton.clone()));
        let pool = PoolShape { pages: 64, max_pages: 512, ..PoolShape::default() };
        let mut session = Session::create(pool, &alive, seam.clone())?;
        session.create_map(MAP, shape)?;
        // Enough records that some of them are in an older level, from which they can be moved.
        for key in 0..60 {
            session.change(MAP, key, Do::Insert(key + 700))?;
        }
        let store = session.store();
        let map = store.open_map(MAP)?;
        let reserves = scheme.is_lock_free();
        // The victim is released once the other threads are done.
        let act = |thread: usize| {
            let (baton, seam, map) = (&baton, &seam, &map);
            let act = move || {
                threads::number_this_thread(1 + thread);
                seam.number_this_thread(1 + thread);
                with_form!(map.index(), R, index => match thread {
                    0 => victim.act::<R>(store, &**index),
                    _ => others::<R>(&**index, thread as u64, baton),
                })
            };
            Box::new(act) as Box<dyn FnOnce() -> outlast::Result<()> + Send>
        };
        if reserves {
            threads::number_this_thread(1);
            with_form!(map.index(), R, index => victim.reserve::<R>(store, &**index)?);
            threads::number_this_thread(0);
        }
        let ends = baton.play((0..3).map(act)).into_iter();
        let lost = || Fault("made no progress".into());
        let ends = ends.map(|end| end.map_err(|_| lost())?.map_err(Fault::from));
        for (thread, end) in ends.enumerate() {
            end.map_err(|fault| {
                Fault(format!("{victim:?} stopped before step {step}: thread {thread}: {fault}"))
            })?;
        }
        drop(map);
        session.crash()?;
        tried += 1;
        if !baton.has_stopped() {
            ensure(step > 0, || "the victim makes no step".into())?;
            return Ok(tried);
        }
    }
    unreachable!("the victim ends")
}
