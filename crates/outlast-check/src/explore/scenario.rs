//! Lists the scenarios, and records them.

use super::common;
use super::recording::Recording;
use crate::codec::SPECIAL;
use crate::model::Image;
use crate::parts::play::Play;
use crate::parts::scenario::Scenario;
use crate::random::Random;
use crate::schemes::parts;
use crate::session::{PAGE_BITS, PoolShape, Session, recorder};
use crate::state::{Checked, Fault};
use crate::structures::{Shape, structure};
use outlast::internals::pmem::{Alive, Point};
use outlast::internals::pool::points as pool;
use outlast::{RecordForm, Scheme};
use std::sync::Arc;

/// Keys that no run ever writes.
const ABSENT: [u64; 4] = [3, 999_999, SPECIAL + 999_999, u64::MAX - 7];

/// The distance between the keys of one round and the next. It exceeds the number of keys of a
/// scenario.
const STEP: u64 = 100_003;
/// Added to the keys of every round but the first, so that they are above the keys that only the
/// checks use.
const FIRST: u64 = 100_000_000;

/// The result of recording a scenario.
pub struct Played {
    /// The run.
    pub recording: Recording,
    /// The reason why the run ended early, if it did: the run itself went wrong.
    pub fault: Option<Fault>,
}

impl Scenario {
    /// Plays and records the scenario. Each round has other keys.
    ///
    /// # Errors
    /// If not even a pool could be created.
    pub fn record(&self, round: u64, alive: &Arc<Alive>) -> Checked<Played> {
        let seam = recorder(true);
        if (round + self.name.len() as u64).is_multiple_of(2) {
            seam.reuse_at_once();
        }
        let session = Session::create(self.pool, alive, seam)?;
        let random = Random::new(0x5eed + round);
        let base = (round * STEP) % (SPECIAL / 2);
        let base = if round == 0 { 0 } else { base + FIRST };
        let mut play = Play { session, shape: self.shape, random, base, from: 0 };
        let fault = (self.play)(&mut play).err();
        let from = play.from;
        let (mut steps, mut events, used) = play.session.finish();
        if fault.is_some() {
            // The steps before the fault are explored nevertheless.
            let ended = events.iter().filter(|e| is_end(e)).count();
            steps.truncate(ended);
            let last = events.iter().rposition(is_end).map_or(0, |i| i + 1);
            events.truncate(last);
        }
        let mut universe: Vec<u64> = used.into_iter().chain(ABSENT).collect();
        universe.sort_unstable();
        universe.dedup();
        let len = self.pool.pages << PAGE_BITS;
        let capacity = self.pool.max_pages << PAGE_BITS;
        let mut recording =
            Recording::new(&Image::default(), len, capacity, (steps, events), from, universe);
        if let Some(point) = self.begin {
            recording.begin_at(point);
        }
        Ok(Played { recording, fault })
    }
}

fn is_end(event: &outlast::internals::pmem::Event) -> bool {
    matches!(
        event.access,
        outlast::internals::pmem::Access::Mark(outlast::internals::pmem::Mark::End(_))
    )
}

/// Lists every scenario of a scheme for one record form: the ones that all schemes share, and its
/// own.
pub fn catalogue(scheme: Scheme, form: RecordForm) -> Vec<Scenario> {
    let (parts, structure) = (parts(scheme), structure(scheme));
    let usual = PoolShape::default();
    let colliding = PoolShape { hash_function: 0x7e57, max_pages: 160, ..usual };
    let small = PoolShape { pages: 34, ..usual };
    let smallest = Shape::smallest(scheme, form);
    let mut all = Vec::new();
    let mut add = |name: &str, about, pool_shape, play, reaches: &[&Point]| {
        let expected = (parts.expected)(name, form);
        let scenario = Scenario::new(name, about, smallest, play).in_pool(pool_shape);
        let mut scenario = scenario.expecting(expected);
        reaches.iter().for_each(|point| scenario.expect(point));
        all.push(scenario);
    };
    let maps_made = [&pool::ROOT_FIXED, &pool::ROOT_COMMIT, &pool::ROOT_DROP, structure.creation];
    let freed: &[&Point] = if form == RecordForm::Bytes { &[&pool::RELEASE] } else { &[] };
    add(
        "pool",
        "creation of a pool",
        usual,
        common::pool_creation,
        &[&pool::CREATE, &pool::HEADER],
    );
    add("maps", "creating and dropping maps", usual, common::maps, &maps_made);
    add("growth", "growth of the pool", small, common::growth, &[&pool::HEADER_SIZE]);
    add("sync", "sync, then more work", usual, common::sync, &[&pool::SAVED]);
    add("snapshot", "copies of the pool", usual, common::snapshot, &[&pool::SAVED]);
    add("reopen", "close and reopen", usual, common::reopen, &[&pool::SAVED]);
    let batches = [&pool::BATCH_LOG, &pool::BATCH_COMMIT, &pool::BATCH_DONE];
    add("batch", "changes of several maps", usual, common::batch, &batches);
    // The log is one block. If the pool had to grow for it, its free pages at the end would not count.
    let full = PoolShape { pages: 64, max_pages: 64, ..usual };
    add("batch-full", "a batch that the pool has no space for", full, common::batch_full, &batches);
    add("many", "changes of several keys with one call", usual, common::many, &[]);
    add("collide", "keys of one hash", colliding, common::collide, &[]);
    add("blocks", "blocks of all sizes, reused", usual, common::blocks, freed);
    for (number, &(ending, config)) in structure.shapes.iter().enumerate() {
        let shape = Shape { config, ..smallest };
        let mut add = |name: &str, about, play| {
            let scenario = Scenario::new(format!("{name}-{ending}"), about, shape, play);
            all.push(scenario.expecting((parts.expected)(name, form)));
        };
        add("fill", "inserts that make a map grow", common::fill);
        add("change", "changes wherever a record is", common::change);
        // Every second shape is enough, because the reclaim reads all shapes alike.
        if number % 2 == 0 {
            add("reclaim", "reclaim during operations", common::reclaim);
        }
    }
    all.extend((parts.scenarios)(form));
    all
}
