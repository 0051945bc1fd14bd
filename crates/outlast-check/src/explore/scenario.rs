//! The runs whose crashes are explored.

use super::phases::{BACKWARD, FORWARD, Phase, SPLIT_STASH, phase};
use super::recording::Recording;
use crate::codec::SPECIAL;
use crate::model::Image;
use crate::random::Random;
use crate::rows::{self, Row};
use crate::session::{Do, PAGE_BITS, PoolShape, Session, Shape, recorder};
use crate::state::{Checked, Fault};
use outlast::index::dash_eh::layout::{NODE_BUCKETS, SLOTS};
use outlast::index::dash_eh::points as dash;
use outlast::pmem::{Alive, Point};
use outlast::pool::points as pool;
use outlast::{RecordForm, Scheme};
use std::sync::Arc;

/// Keys that no run ever writes.
const ABSENT: [u64; 4] = [3, 999_999, SPECIAL + 999_999, u64::MAX - 7];

/// By how much the keys of one round differ from those of the one before; more than a
/// scenario has.
const STEP: u64 = 100_003;
/// Where the keys of the second round begin: those of the checks lie before.
const FIRST: u64 = 100_000_000;

/// A named run.
#[derive(Clone)]
pub struct Scenario {
    /// Its name, with the shape of its maps where it is run for several.
    pub name: String,
    /// What it is for.
    pub about: &'static str,
    /// What its maps are.
    pub shape: Shape,
    /// What its pool is.
    pub pool: PoolShape,
    /// Phases that it must go through.
    pub reaches: Vec<Phase>,
    /// Phases that the recovery of some of its images must go through.
    pub mends: Vec<Phase>,
    /// Whether one second run is enough, because each image takes long.
    pub costly: bool,
    /// Where its exploration begins, if not with the first step that is no preparation.
    pub begin: Option<&'static Point>,
    play: fn(&mut Play) -> Checked,
}

/// A run in progress.
struct Play {
    session: Session,
    shape: Shape,
    random: Random,
    /// What is added to the keys that are no special ones.
    base: u64,
    /// The first step that is explored.
    from: usize,
}

/// What a scenario recorded.
pub struct Played {
    /// The run.
    pub recording: Recording,
    /// Why it ended early, if it did: the run itself went wrong.
    pub fault: Option<Fault>,
}

impl Scenario {
    /// Plays it, recording. Each round has other keys.
    ///
    /// # Errors
    /// If not even a pool could be made.
    pub fn record(&self, round: u64, alive: &Arc<Alive>) -> Checked<Played> {
        let session = Session::create(self.pool, alive, recorder(true))?;
        let random = Random::new(0x5eed + round);
        let base = (round * STEP) % (SPECIAL / 2);
        let base = if round == 0 { 0 } else { base + FIRST };
        let mut play = Play { session, shape: self.shape, random, base, from: 0 };
        let fault = (self.play)(&mut play).err();
        let from = play.from;
        let (mut steps, mut events, used) = play.session.finish();
        if fault.is_some() {
            // What led up to it is explored all the same.
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

fn is_end(event: &outlast::pmem::Event) -> bool {
    matches!(event.access, outlast::pmem::Access::Mark(outlast::pmem::Mark::End(_)))
}

/// The shapes of maps that every scenario of an index is run for.
const SHAPES: [(u32, u32); 4] = [(1, 2), (1, 4), (2, 2), (2, 4)];

/// Every scenario of a scheme, for one record form.
pub fn catalogue(scheme: Scheme, form: RecordForm) -> Vec<Scenario> {
    let at = |bucket_bits, stash| Shape { scheme, form, bucket_bits, stash };
    let mut all = Vec::new();
    let mut add = |name: &str, about, shape, pool, play, reaches: &[&Point], extra: &[&str]| {
        let phases = reaches.iter().copied().map(phase).chain(extra.iter().map(|s| (*s).into()));
        all.push(Scenario {
            name: name.into(),
            about,
            shape,
            pool,
            play,
            reaches: phases.collect(),
            mends: Vec::new(),
            costly: name == "carry",
            begin: (name == "carry").then_some(&dash::SPLIT_NEW),
        });
    };
    let usual = PoolShape::default();
    let colliding = PoolShape { hash_function: 0x7e57, max_pages: 160, ..usual };
    let small = PoolShape { pages: 34, ..usual };
    let bytes = form == RecordForm::Bytes;
    let small_shape = at(1, 2);
    add("pool", "creation of a pool", small_shape, usual, pool_creation, POOL, &[]);
    add("maps", "creating and dropping maps", small_shape, usual, maps, MAPS, &[]);
    add("growth", "growth of the pool", small_shape, small, growth, &[&pool::HEADER_SIZE], &[]);
    add("sync", "sync, then more work", small_shape, usual, sync, &[&pool::SAVED], &[]);
    add("snapshot", "copies of the pool", small_shape, usual, snapshot, &[&pool::SAVED], &[]);
    add("reopen", "close and reopen", small_shape, usual, reopen, &[&pool::SAVED], &[]);
    for (bits, stash) in SHAPES {
        let name = |what: &str| format!("{what}-b{bits}s{stash}");
        let shape = at(bits, stash);
        add(&name("fill"), "inserts, splits, doublings", shape, usual, fill, FILL, &[SPLIT_STASH]);
        add(&name("change"), "changes wherever a record is", shape, usual, change, CHANGE, &[]);
        // Reclaim does not care for the number of stash buckets.
        if stash == 2 {
            add(&name("reclaim"), "reclaim beside operations", shape, usual, reclaim, &[], &[]);
        }
    }
    add("collide", "keys of one hash", small_shape, colliding, collide, COLLIDE, &[]);
    let ways: &[&str] = &[FORWARD[0], BACKWARD[0]];
    add("displace", "displacement both ways", at(2, 2), usual, displace, DISPLACE, ways);
    let long = at(rows::BUCKET_BITS, 2);
    let about = "displacement of records in a row";
    add("displace-row", about, long, usual, row_forward, DISPLACE, &FORWARD[1..]);
    add("displace-row-back", about, long, usual, row_back, DISPLACE, &BACKWARD[1..]);
    add("carry", "splits of chained segments", small_shape, colliding, carry, SPLIT, &[]);
    add("blocks", "blocks of all sizes, reused", small_shape, usual, blocks, &[], &[]);
    for scenario in &mut all {
        let named = |name: &str| scenario.name.starts_with(name);
        let mut more = Vec::new();
        if named("fill") || named("reclaim") {
            more.push(phase(&dash::PULL_CLEAR));
        }
        if bytes && !named("pool") && !named("maps") {
            more.push(phase(&dash::RECORD));
        }
        if named("change") || named("collide") {
            more.push(phase(if bytes { &dash::UPDATE_LINK } else { &dash::UPDATE }));
        }
        if bytes && named("blocks") {
            more.push(phase(&pool::RELEASE));
        }
        if named("fill") || named("carry") {
            scenario.mends.push(phase(&dash::REPAIR_DIRECTORY));
        }
        if named("fill") || named("displace") {
            scenario.mends.push(phase(&dash::REPAIR_DUPLICATE));
        }
        scenario.reaches.append(&mut more);
    }
    all
}

const POOL: &[&Point] = &[&pool::CREATE, &pool::HEADER];
const MAPS: &[&Point] = &[&pool::ROOT_FIXED, &pool::ROOT_COMMIT, &pool::ROOT_DROP, &dash::CREATE];
const SPLIT: &[&Point] =
    &[&dash::SPLIT_NEW, &dash::SPLIT_NODE, &dash::SPLIT_COMMIT, &dash::SPLIT_DIRECTORY];
const FILL: &[&Point] = &[
    &dash::INSERT,
    &dash::INSERT_OVERFLOW,
    &dash::SPLIT_NEW,
    &dash::SPLIT_COMMIT,
    &dash::SPLIT_DIRECTORY,
    &dash::PULL_COPY,
    &dash::DOUBLE_NEW,
    &dash::DOUBLE_COMMIT,
];
const CHANGE: &[&Point] = &[&dash::REMOVE, &dash::INSERT];
const DISPLACE: &[&Point] = &[&dash::DISPLACE_COPY, &dash::DISPLACE_FILL];
const COLLIDE: &[&Point] =
    &[&dash::NODE_NEW, &dash::NODE_COMMIT, &dash::INSERT_OVERFLOW, &dash::REMOVE];

impl Play {
    /// Everything up to here is preparation.
    fn prepared(&mut self) {
        self.from = self.session.logged();
    }

    fn map(&mut self) -> Checked {
        self.session.create_map("m", self.shape)
    }

    /// The key of this round that stands for `key` of the first.
    fn key(&self, key: u64) -> u64 {
        if (3..SPECIAL).contains(&key) { key + self.base } else { key }
    }

    fn change(&mut self, key: u64, change: Do) -> Checked {
        self.change_in("m", key, change)
    }

    fn change_in(&mut self, name: &str, key: u64, change: Do) -> Checked {
        self.session.change(name, self.key(key), change)
    }

    fn get(&mut self, key: u64) -> Checked {
        self.session.get("m", self.key(key))
    }

    /// Inserts keys from `first` on until the map was split `splits` times.
    fn insert_until_split(&mut self, first: u64, splits: u64) -> Checked<u64> {
        let mut key = first;
        while self.session.splits("m")? < splits {
            self.change(key, Do::Insert(key + 100_000))?;
            key += 1;
            if key - first > 600 {
                return Err(Fault(format!("no {splits} splits in {} inserts", key - first)));
            }
        }
        Ok(key)
    }

    /// Inserts keys until the map was split `splits` times, and removes them again:
    /// segments stay.
    fn insert_and_remove_until_split(&mut self, first: u64, splits: u64) -> Checked {
        let mut key = first;
        while self.session.splits("m")? < splits {
            for _ in 0..16 {
                self.change(key, Do::Insert(key + 100_000))?;
                key += 1;
            }
        }
        for key in first..key {
            self.change(key, Do::Remove)?;
        }
        self.session.forget_used();
        Ok(())
    }

    /// Inserts keys as long as the map is not split.
    fn insert_to_the_brim(&mut self, count: u64) -> Checked {
        // Both extremes are keys like others.
        for key in (0..3).chain(10..count + 7) {
            self.change(key, Do::Insert(key + 100_000))?;
        }
        Ok(())
    }

    /// Keys by their home bucket, in one of the two segments that a map begins with.
    fn keys_by_home(&self, half: u64) -> Vec<Vec<u64>> {
        let buckets = 1 << self.shape.bucket_bits;
        let mut homes = vec![Vec::new(); buckets];
        for key in 10..2_000 {
            let hash = self.session.hash(self.shape.form, self.key(key));
            if hash >> 63 == half {
                homes[(hash >> 8) as usize % buckets].push(key);
            }
        }
        homes
    }

    /// Records that a map with two segments of this shape takes without a split.
    fn brim(&self) -> u64 {
        let slots = ((1 << self.shape.bucket_bits) + self.shape.stash) as u64 * SLOTS as u64;
        // Not all: keys do not spread evenly.
        slots * 2 * 7 / 10
    }
}

fn pool_creation(_: &mut Play) -> Checked {
    Ok(())
}

fn maps(play: &mut Play) -> Checked {
    let other = match play.shape.form {
        RecordForm::Inline => RecordForm::Bytes,
        RecordForm::Bytes => RecordForm::Inline,
    };
    let (this, other) = (play.shape, Shape { form: other, ..play.shape });
    play.prepared();
    for (name, shape) in [("a", this), ("b", other), ("c", this)] {
        play.session.create_map(name, shape)?;
        for key in 10..14 {
            play.change_in(name, key, Do::Insert(key + 500))?;
        }
    }
    play.session.drop_map("a", false)?;
    // In the slot that was freed.
    play.session.create_map("d", other)?;
    play.change_in("d", 12, Do::Insert(700))?;
    // Someone still reads it: neither slot nor space is reused.
    play.session.drop_map("b", true)?;
    play.session.create_map("e", this)?;
    play.change_in("e", 10, Do::Insert(701))?;
    play.session.let_go();
    play.session.background()?;
    play.session.create_map("b", this)?;
    play.change_in("b", 11, Do::Insert(702))?;
    play.session.create_map("b", this)?;
    // The same while space from before a crash is not accounted for.
    play.session.crash()?;
    play.session.drop_map("c", true)?;
    play.session.create_map("f", this)?;
    play.session.drop_map("d", false)?;
    play.session.create_map("g", other)?;
    play.change_in("g", 12, Do::Insert(703))?;
    while play.session.is_reclaiming() {
        play.session.background()?;
    }
    play.session.let_go();
    play.session.background()?;
    play.change_in("e", 10, Do::Remove)?;
    play.session.verify()
}

fn growth(play: &mut Play) -> Checked {
    play.map()?;
    play.prepared();
    let large = if play.shape.form == RecordForm::Bytes { SPECIAL } else { 0 };
    for key in 0..2 {
        play.change(key, Do::Insert(key + 100_000 + large))?;
    }
    let next = play.insert_until_split(10, 2)?;
    // While space is not accounted for, growth is limited, and helps the reclaim along.
    play.session.crash()?;
    play.change(next, Do::Insert(next + 100_000 + large))?;
    play.insert_until_split(next + 1, 1)?;
    Ok(())
}

fn sync(play: &mut Play) -> Checked {
    play.map()?;
    play.insert_to_the_brim(12)?;
    play.prepared();
    play.session.sync()?;
    play.change(20, Do::Insert(1))?;
    play.session.sync()?;
    play.session.sync()?;
    play.get(20)?;
    play.change(10, Do::Remove)?;
    play.change(11, Do::Update(2))?;
    play.session.sync()?;
    play.insert_until_split(30, 1)?;
    play.session.sync()?;
    // With a dropped map that someone still reads, no free state is saved.
    play.session.create_map("n", play.shape)?;
    play.session.drop_map("n", true)?;
    play.session.sync()?;
    play.session.let_go();
    play.change(11, Do::Remove)?;
    play.session.sync()
}

fn snapshot(play: &mut Play) -> Checked {
    play.map()?;
    play.insert_to_the_brim(12)?;
    play.prepared();
    play.session.snapshot()?;
    play.change(20, Do::Put(1))?;
    play.change(11, Do::Remove)?;
    play.session.snapshot()?;
    play.session.snapshot()?;
    play.session.crash()?;
    // While space from before the crash is not accounted for, and once it is.
    play.session.snapshot()?;
    play.change(10, Do::Update(2))?;
    while play.session.is_reclaiming() {
        play.session.background()?;
        play.session.snapshot()?;
    }
    play.change(21, Do::Insert(3))?;
    play.session.snapshot()?;
    play.insert_until_split(30, 1)?;
    play.session.snapshot()?;
    play.session.reopen()?;
    play.session.snapshot()
}

fn reopen(play: &mut Play) -> Checked {
    play.map()?;
    play.insert_to_the_brim(40)?;
    for key in 12..20 {
        play.change(key, Do::Remove)?;
    }
    play.prepared();
    play.session.reopen()?;
    play.get(10)?;
    // What was freed before is handed out again.
    for key in 12..16 {
        play.change(key, Do::Insert(key))?;
    }
    play.session.reopen()?;
    play.session.reopen()?;
    play.change(12, Do::Update(5))?;
    play.session.crash()?;
    play.change(13, Do::Update(6))?;
    // Closed before the reclaim has ended.
    play.session.reopen()?;
    play.change(14, Do::Update(7))?;
    play.session.verify()?;
    play.session.reopen()?;
    play.insert_until_split(50, 1)?;
    play.session.reopen()?;
    play.get(50)
}

fn fill(play: &mut Play) -> Checked {
    play.map()?;
    // What the first inserts into empty buckets leave is the same for every shape.
    if play.shape.bucket_bits > 1 {
        let count = play.brim() * 3 / 4;
        play.insert_to_the_brim(count)?;
    }
    play.prepared();
    let splits = if (play.shape.bucket_bits, play.shape.stash) == SHAPES[0] { 3 } else { 2 };
    play.insert_until_split(500, splits)?;
    Ok(())
}

/// Keys are chosen by their home bucket. A record goes there while there is room in its line,
/// or no less room than in the next bucket.
fn displace(play: &mut Play) -> Checked {
    play.map()?;
    let insert = |play: &mut Play, keys: &[u64]| -> Checked {
        keys.iter().try_for_each(|&key| play.change(key, Do::Insert(key + 100_000)))
    };
    // Keys of bucket 0 fill it, and the last ones are guests of bucket 1. Those of bucket 1
    // fill it and bucket 2, where all are guests. Then the first keys, which bucket 0 was
    // empty for, go again: a guest of bucket 1 goes back to its home.
    let mut low = play.keys_by_home(0);
    let first: Vec<u64> = low[0].drain(..SLOTS + 5).collect();
    insert(play, &first)?;
    let middle: Vec<u64> = low[1].drain(..2 * SLOTS - 5).collect();
    insert(play, &middle)?;
    for &key in &first[..4] {
        play.change(key, Do::Remove)?;
    }
    // Keys of bucket 2 fill it and bucket 3, and the last of them, guests there, go again.
    // Once bucket 1 is full, a record that is at home in bucket 2 moves on to bucket 3.
    let mut high = play.keys_by_home(1);
    let pairs: Vec<u64> = high[2].drain(..2 * SLOTS).collect();
    insert(play, &pairs)?;
    for &key in &pairs[2 * SLOTS - 6..] {
        play.change(key, Do::Remove)?;
    }
    let ones: Vec<u64> = high[1].drain(..SLOTS).collect();
    insert(play, &ones)?;
    play.prepared();
    let forward: Vec<u64> = low[1].drain(..2).chain(high[1].drain(..4)).collect();
    insert(play, &forward)?;
    // As well while the reclaim runs, for which moved records are marked.
    play.session.crash()?;
    for key in low[1].drain(..2).chain(high[1].drain(..2)) {
        play.change(key, Do::Insert(key + 100_000))?;
        play.session.background()?;
    }
    play.session.verify()
}

fn row_forward(play: &mut Play) -> Checked {
    row(play, true)
}

fn row_back(play: &mut Play) -> Checked {
    row(play, false)
}

/// Inserts that move two records, in one segment, and three, in the other.
fn row(play: &mut Play, forward: bool) -> Checked {
    play.map()?;
    let mut last = Vec::new();
    for (half, moves) in [(0, 2), (1, 3)] {
        let row = Row { forward, moves };
        let keys = row.keys(|key| play.session.hash(play.shape.form, play.key(key)), half);
        for (number, &key) in keys[..row.filled()].iter().enumerate() {
            play.change(key, Do::Insert(key + 100_000))?;
            for &key in &keys[row.removed_after(number)] {
                play.change(key, Do::Remove)?;
            }
        }
        last.push(keys[row.filled()..].to_vec());
    }
    play.prepared();
    for keys in &last {
        for &key in &keys[..2] {
            play.change(key, Do::Insert(key + 100_000))?;
        }
    }
    // As well while the reclaim runs, for which moved records are marked.
    play.session.crash()?;
    for keys in &last {
        play.change(keys[2], Do::Insert(keys[2] + 100_000))?;
        play.session.background()?;
        play.change(keys[3], Do::Insert(keys[3] + 100_000))?;
    }
    play.session.verify()
}

fn change(play: &mut Play) -> Checked {
    play.map()?;
    let count = play.brim();
    play.insert_to_the_brim(count)?;
    play.prepared();
    for key in 0..count {
        let value = 200_000 + key * 7;
        let large = if key % 16 == 0 { SPECIAL } else { 0 };
        match play.random.below(6) {
            0 => play.change(key, Do::Update(value + large))?,
            1 => play.change(key, Do::Put(value + large))?,
            2 => play.change(key, Do::Swap(key + 100_000, value))?,
            3 => {
                play.change(key, Do::Remove)?;
                play.change(key, Do::Update(value))?;
                play.change(key, Do::Remove)?;
            }
            4 => {
                play.change(key, Do::Remove)?;
                play.change(key, Do::Put(value))?;
                play.change(key, Do::Swap(value + 1, value + 2))?;
            }
            _ => play.change(key, Do::Insert(value))?,
        }
    }
    Ok(())
}

fn reclaim(play: &mut Play) -> Checked {
    play.map()?;
    let count = play.brim();
    play.insert_to_the_brim(count)?;
    for key in 20..24 {
        play.change(key, Do::Put(SPECIAL + key))?;
    }
    play.prepared();
    for life in 0..3 {
        play.session.crash()?;
        // In every life, the reclaim is at another place when the operations begin.
        for _ in 0..life {
            play.session.background()?;
        }
        for i in 0..14 {
            let key = 10 + (i * 13 + life * 5) % count;
            let value = 300_000 + life * 1_000 + i;
            match (i + life) % 4 {
                0 => play.change(key, Do::Put(value))?,
                1 => play.change(key, Do::Remove)?,
                2 => play.change(400 + life * 100 + i, Do::Insert(value))?,
                _ => play.change(key, Do::Update(value))?,
            }
            if i % 3 == 2 {
                play.session.background()?;
            }
        }
        if life == 1 {
            play.insert_until_split(1_000, 1)?;
        }
    }
    while play.session.is_reclaiming() {
        play.session.background()?;
    }
    play.insert_until_split(2_000, 2)?;
    play.session.verify()
}

/// Keys of one hash that fit a home bucket, the next one and two stash buckets.
const CROWD: u64 = 4 * SLOTS as u64;

fn collide(play: &mut Play) -> Checked {
    play.map()?;
    // Fills a home bucket, the next one and the stash, and splits as long as that may
    // help, which it does not.
    for key in 0..CROWD - 2 {
        play.change(SPECIAL + key, Do::Insert(key))?;
    }
    play.prepared();
    for key in CROWD - 2..CROWD + 8 {
        play.change(SPECIAL + key, Do::Insert(key))?;
    }
    for key in (0..CROWD + 8).step_by(3) {
        play.change(SPECIAL + key, Do::Update(key + 600))?;
        play.change(SPECIAL + key + 1, Do::Remove)?;
    }
    play.session.crash()?;
    for key in (CROWD - 6..CROWD + 8).step_by(2) {
        play.change(SPECIAL + key, Do::Put(key + 700))?;
        play.session.background()?;
        play.change(SPECIAL + key, Do::Swap(key + 700, key + 800))?;
    }
    Ok(())
}

fn carry(play: &mut Play) -> Checked {
    play.map()?;
    // And a whole node.
    let chained = CROWD + u64::from(NODE_BUCKETS) * SLOTS as u64;
    // The chain must begin at a depth whose next bit is set in the hash that all the keys
    // have: 10. How far the directory is doubled depends on the number of segments.
    play.insert_and_remove_until_split(10, 10)?;
    for key in 0..CROWD + 8 {
        play.change(SPECIAL + key, Do::Insert(key))?;
    }
    play.insert_and_remove_until_split(2_000, 36)?;
    // Now it may be doubled again: once the chain is full, it is carried over.
    for key in CROWD + 8..chained - 1 {
        play.change(SPECIAL + key, Do::Insert(key))?;
    }
    play.prepared();
    for key in chained - 1..chained + 2 {
        play.change(SPECIAL + key, Do::Insert(key))?;
    }
    for key in (0..chained + 2).step_by(50) {
        play.change(SPECIAL + key, Do::Remove)?;
    }
    Ok(())
}

fn blocks(play: &mut Play) -> Checked {
    play.map()?;
    play.insert_to_the_brim(30)?;
    play.prepared();
    for round in 0..4 {
        for key in 10..16 {
            let value = 1_000 * (round + 1) + key * 5;
            let large = SPECIAL * (1 + (round + key) % 2);
            play.change(key, Do::Update(if key % 3 == 0 { value + large } else { value }))?;
            play.change(key + 10, Do::Remove)?;
            play.change(key + 10, Do::Insert(value + 77))?;
        }
        match round {
            1 => play.session.crash()?,
            2 => play.session.reopen()?,
            _ => {}
        }
        play.session.background()?;
    }
    for key in 10..30 {
        play.change(key, Do::Remove)?;
    }
    play.session.verify()
}
