//! Checks of one run: its history, and crashes in it.

use super::act::{self, MAP};
use super::run::Run;
use crate::model::{Image, Kept, Timeline, windows};
use crate::random::Random;
use crate::response::{is_durable, undurable};
use crate::session::{Do, Session, recorder};
use crate::state::{Checked, Fault, Judge};
use outlast::internals::pmem::Alive;
use rapidhash::fast::RapidHasher;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The work done so far.
#[derive(Debug, Default)]
pub struct Counters {
    /// Schedules run.
    pub schedules: AtomicU64,
    /// Schedules with a thread that is held.
    pub held: AtomicU64,
    /// Schedules with at least one crash image.
    pub crashed: AtomicU64,
    /// Histories checked.
    pub histories: AtomicU64,
    /// Crash images reopened.
    pub images: AtomicU64,
    /// Crash images that differ in bytes or in the history before them.
    pub images_distinct: AtomicU64,
    /// Results whose durability was checked.
    pub responses: AtomicU64,
    /// Results for which an image had to be reopened to check that.
    pub responses_imaged: AtomicU64,
    /// Steps of all schedules.
    pub steps: AtomicU64,
    /// Violations.
    pub violations: AtomicU64,
    /// Hashes of the images that were checked, each with the history before it.
    pub(super) seen: Mutex<HashSet<u64>>,
}

pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// Where a violation shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The run itself: its history, its end, a panic.
    Run,
    /// No thread makes progress.
    Stuck,
    /// An operation's own stores are not durable when it returns.
    Undurable,
    /// The least that a power loss can leave after an operation has returned.
    Response,
    /// A crash at some moment.
    Crash,
}

/// Something wrong with a run, not yet minimized.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) kind: Kind,
    pub(super) crash: Option<usize>,
    pub(super) fault: String,
}

pub(super) fn caught<T>(check: impl FnOnce() -> Checked<T>) -> Checked<T> {
    catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Fault(format!("a panic: {}", text.unwrap_or("of an unknown kind"))))
    })
}

/// Builds the file in which each line of `kept` keeps that many stores, and every other open line
/// only what is durable.
fn kept(timeline: &Timeline<'_>, kept: &[Kept]) -> Vec<u8> {
    let mut image = Image::default();
    timeline.least_and(kept, &mut image);
    image.bytes
}

/// Builds the file in which everything survives.
fn all(timeline: &Timeline<'_>) -> Vec<u8> {
    let mut image = Image::default();
    timeline.all_but(&[], &mut image);
    image.bytes
}

/// Checks runs and crashes in them.
pub(super) struct Checker<'c> {
    pub(super) alive: &'c Arc<Alive>,
    pub(super) counters: &'c Counters,
    pub(super) crashes: usize,
    /// Only the crash at this moment.
    pub(super) only: Option<usize>,
    /// Whether a violation is minimized.
    pub(super) minimises: bool,
}

impl Checker<'_> {
    /// Checks a run and the crashes in it. Returns the first fault.
    pub(super) fn check(&self, run: &Run, seed: u64) -> Option<Found> {
        if let Some(fault) = &run.fault {
            let kind = if run.is_stuck() { Kind::Stuck } else { Kind::Run };
            return Some(Found { kind, crash: None, fault: fault.to_string() });
        }
        add(&self.counters.histories, 1);
        if let Some(found) = undurable(&run.events).first() {
            let fault = found.to_string();
            return Some(Found { kind: Kind::Undurable, crash: None, fault });
        }
        let mut random = Random::new(seed ^ 0xc4a5);
        let mut timeline = Timeline::new(
            &Image::of_file(&run.initial, run.initial.len() as u64),
            run.initial_len,
            &run.events,
        );
        let answers: HashMap<usize, usize> = run.answers().collect();
        let mut moments: Vec<usize> = match self.only {
            Some(only) => vec![only.min(run.events.len())],
            None => {
                let mut windows = windows(&run.events);
                random.shuffle(&mut windows);
                windows.truncate(self.crashes);
                // Add a crash at a random moment, for process death.
                windows.push(random.below(run.events.len() as u64 + 1) as usize);
                windows
            }
        };
        let chosen: HashSet<usize> = moments.iter().copied().collect();
        if self.only.is_none() {
            moments.extend(answers.keys());
        }
        moments.sort_unstable();
        moments.dedup();
        for moment in moments {
            timeline.advance(moment);
            let answered = answers.contains_key(&moment);
            if answered {
                add(&self.counters.responses, 1);
            }
            let is_open =
                timeline.open().any(|line| line.stores.iter().any(|store| is_durable(store.point)));
            if answered && is_open {
                add(&self.counters.responses_imaged, 1);
                let image = kept(&timeline, &[]);
                if self.is_new(run, moment, &image)
                    && let Err(fault) = self.check_image(run, moment, &image, &mut random)
                {
                    let fault = format!("a power loss that leaves the least:\n{fault}");
                    return Some(Found { kind: Kind::Response, crash: Some(moment), fault });
                }
            }
            if chosen.contains(&moment)
                && let Some(found) = self.check_moment(run, &timeline, &mut random)
            {
                return Some(found);
            }
        }
        None
    }

    fn check_moment(
        &self,
        run: &Run,
        timeline: &Timeline<'_>,
        random: &mut Random,
    ) -> Option<Found> {
        let moment = timeline.moment();
        let open: Vec<(u64, usize)> =
            timeline.open().map(|line| (line.line, line.stores.len())).collect();
        let mut cut = || {
            let kept: Vec<Kept> = open
                .iter()
                .map(|&(line, stores)| Kept {
                    line,
                    stores: match random.below(3) {
                        0 => 0,
                        1 => stores,
                        _ => random.below(stores as u64 + 1) as usize,
                    },
                })
                .collect();
            self::kept(timeline, &kept)
        };
        let mut images = vec![
            ("a power loss that leaves the least", kept(timeline, &[])),
            ("a process death", all(timeline)),
        ];
        if !open.is_empty() {
            images.push(("a power loss that leaves some of the open lines", cut()));
            images.push(("a power loss that leaves some of the open lines", cut()));
        }
        for (what, image) in images {
            if !self.is_new(run, moment, &image) {
                continue;
            }
            if let Err(fault) = self.check_image(run, moment, &image, random) {
                let fault = format!("{what}:\n{fault}");
                return Some(Found { kind: Kind::Crash, crash: Some(moment), fault });
            }
        }
        None
    }

    /// Returns whether this image has not been checked yet after this history.
    fn is_new(&self, run: &Run, moment: usize, image: &[u8]) -> bool {
        let mut hasher = RapidHasher::default();
        image.hash(&mut hasher);
        run.instance.workload.name.hash(&mut hasher);
        (run.instance.fill, &run.instance.others).hash(&mut hasher);
        run.hash_history(moment, &mut hasher);
        let new =
            self.counters.seen.lock().unwrap_or_else(|e| e.into_inner()).insert(hasher.finish());
        add(&self.counters.images_distinct, u64::from(new));
        new
    }

    /// Reopens an image. It must verify, hold what the history allows, and remain usable.
    fn check_image(&self, run: &Run, moment: usize, file: &[u8], random: &mut Random) -> Checked {
        add(&self.counters.images, 1);
        caught(|| {
            let mut universe = run.universe();
            random.shuffle(&mut universe);
            let capacity = run.instance.capacity();
            let seam = recorder(false);
            if random.below(2) == 0 {
                seam.reuse_at_once();
            }
            let opened = Session::open(file, capacity, self.alive, seam, None);
            let mut session = opened.map_err(|e| Fault(format!("opening: {e}")))?;
            // The first access after a crash recovers. It can be a verification, a lookup or an
            // iteration.
            let way = random.below(3);
            if way == 0 {
                let found = outlast::internals::db::verify::verify(session.store())?;
                let damage: Vec<_> = found.all_damage().map(ToString::to_string).collect();
                if !damage.is_empty() {
                    return Err(Fault(format!("damage: {}", damage.join("; "))));
                }
            }
            let found = Arc::new(session.observe(&universe, way == 1)?);
            add(&self.counters.histories, 1);
            run.left(moment).judge(&found)?;
            session.settle(&*found, &universe, true)?;
            work_on(&mut session, run, &universe, random)
                .map_err(|fault| Fault(format!("working on: {fault}")))
        })
    }
}

/// Does a little of everything, and verifies.
fn work_on(session: &mut Session, run: &Run, universe: &[u64], random: &mut Random) -> Checked {
    for i in 0..10 {
        let key = universe[random.below(universe.len() as u64) as usize];
        let value = 8_000_000 + i;
        let change = match random.below(4) {
            0 => Do::Remove,
            1 => Do::Put(value),
            2 => Do::Update(value),
            _ => Do::Insert(value),
        };
        session.change(MAP, key, change)?;
        if random.below(4) == 0 && session.has_work() {
            session.background()?;
        }
    }
    for n in 0..2 {
        if random.below(4) == 0 {
            session.create_map(&act::other(n), run.instance.shape)?;
        }
    }
    session.verify()?;
    session.check(universe, random.below(2) == 0)
}
