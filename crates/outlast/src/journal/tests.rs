//! A journal on a disk whose power fails at any call.

use super::base::{Base, Checkpoint, PAGE, Pages, Rebuilt, complete};
use super::epoch::{Attempt, Change, LINE};
use super::epochs::Epochs;
use super::files::{Directory, JournalFile};
use super::log::Writer;
use super::meta::{META_OFFSETS, Meta};
use super::segment::{self, Owner};
use super::sim::{BASE, Draw, SimDisk};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

mod backup;
mod evidence;

/// A pool, and the journal's view of it.
struct Model {
    directory: SimDisk,
    pool: Vec<u8>,
    /// Lines that changed since the last durable epoch.
    changed: Vec<bool>,
    /// The contents that the pool can have at the end of each epoch, by the epoch's number.
    ends: BTreeMap<u64, Vec<Vec<u8>>>,
    counter: u64,
}

/// Pages of the base, two of which hold `meta`.
const PAGES: usize = 26;
/// Lines of the first pages, the only ones that change. One of those pages holds `meta`.
const LINES: usize = 12 * PAGE / LINE;
/// Bytes of a segment: a few epochs.
const SEGMENT: u64 = 24_000;

impl Model {
    fn change(&mut self, draw: &mut Draw) {
        for _ in 0..=draw.below(12) {
            let line = draw.below(LINES as u64) as usize;
            if META_OFFSETS.contains(&((line * LINE / PAGE * PAGE) as u64)) {
                continue;
            }
            self.counter += 1;
            self.changed[line] = true;
            self.pool[line * LINE..][..8].copy_from_slice(&self.counter.to_le_bytes());
        }
    }

    /// Returns the lines that have changed.
    fn cut(&self) -> Change {
        let mut change = Change::default();
        let mut line = 0;
        while line < LINES {
            let start = line;
            while line < LINES && self.changed[line] {
                line += 1;
            }
            if line > start {
                change.push(start as u64..line as u64, &self.pool[start * LINE..line * LINE]);
            }
            line += 1;
        }
        change
    }

    /// Writes an epoch. Returns `false` if the disk failed and the power is on.
    fn epoch(&mut self, log: &mut Writer, pages: &mut Pages) -> Result<bool, PowerOff> {
        let change = self.cut();
        let epoch = log.durable() + 1;
        self.ends.entry(epoch).or_default().push(self.pool.clone());
        match log.append(&change) {
            Ok(()) => {
                // From now on, no earlier attempt may come back.
                self.ends.insert(epoch, vec![self.pool.clone()]);
                pages.add(epoch, &change);
                self.changed.fill(false);
                Ok(true)
            }
            Err(_) => self.power(),
        }
    }

    /// Fails if the power is off, and returns `false` otherwise.
    fn power(&self) -> Result<bool, PowerOff> {
        if self.directory.is_off() { Err(PowerOff) } else { Ok(false) }
    }
}

struct PowerOff;

/// Changes the pool, writes epochs and makes checkpoints, for `turns` turns or until the power fails.
fn live(
    model: &mut Model,
    draw: &mut Draw,
    base: &Base,
    log: &mut Writer,
    mut pages: Pages,
    turns: u64,
) -> Result<(), PowerOff> {
    let mut checkpoint: Option<Checkpoint> = None;
    for _ in 0..turns {
        model.change(draw);
        model.power()?;
        match (draw.below(4), checkpoint.take()) {
            (0, None) if !pages.is_empty() => {
                checkpoint = Some(Checkpoint::begin(&mut pages, base));
            }
            (0..=2, Some(mut under_way)) => {
                let pool = &model.pool;
                let copied = under_way.copy(5, |page, out| {
                    out.copy_from_slice(&pool[page as usize * PAGE..][..PAGE]);
                });
                model.change(draw);
                let result = if !copied {
                    under_way.finish(base, false).map(|epoch| {
                        // If this fails, the segments stay for longer.
                        let _ = log.forget(epoch);
                        true
                    })
                } else if model.epoch(log, &mut pages)? {
                    under_way.write(log.last_attempt(), base).map(|_| false)
                } else {
                    Err(io::Error::other("no epoch"))
                };
                match result {
                    Ok(true) => {}
                    Ok(false) => checkpoint = Some(under_way),
                    Err(_) => {
                        model.power()?;
                        under_way.abandon(&mut pages);
                    }
                }
            }
            (_, under_way) => {
                checkpoint = under_way;
                model.epoch(log, &mut pages)?;
            }
        }
    }
    Ok(())
}

fn new_base(directory: &SimDisk) -> Base {
    let size = (PAGES * PAGE) as u64;
    let file = directory.create(BASE, &[], size).unwrap();
    let meta = Meta { pool: 7, life: 1, checkpoint: 0, reached: 0, size, ..Meta::default() };
    begin(directory, Owner { pool: 7, life: 1 }, 0).unwrap();
    Base::create(file, meta).unwrap()
}

/// Returns the `meta` of a base that needs the epochs after `checkpoint`.
fn needs(Owner { pool, life }: Owner, checkpoint: u64) -> Meta {
    Meta { pool, life, checkpoint, ..Meta::default() }
}

fn begin(directory: &SimDisk, owner: Owner, epoch: u64) -> io::Result<Writer> {
    let log = Writer::new(Arc::new(directory.clone()), owner, Attempt::unknown(epoch))?;
    let mut log = log.segment_bytes(SEGMENT);
    log.begin()?;
    Ok(log)
}

fn open_base(directory: &SimDisk) -> io::Result<Base> {
    Ok(Base::open(directory.open(BASE)?)?.unwrap_or_else(|_| panic!("no copy is whole")))
}

/// One trial: four lives. Each begins with a rebuild, which a power loss may cut short and which is
/// then repeated, and ends with a power loss or the loss of the working file. Returns the number of
/// rebuilds and of epochs.
fn trial(seed: u64, failing: u64) -> (u64, u64) {
    let mut draw = Draw(seed);
    let directory = SimDisk::new(!seed);
    new_base(&directory);
    let mut model = Model {
        directory: directory.clone(),
        pool: vec![0; PAGES * PAGE],
        changed: vec![false; LINES],
        ends: BTreeMap::from([(0, vec![vec![0; PAGES * PAGE]])]),
        counter: 0,
    };
    let (mut durable, mut rebuilds, mut epochs) = (0, 0, 0);
    for _ in 0..4 {
        // Repeat the rebuild until one is not cut short. That one begins a new life.
        let (mut base, mut log) = loop {
            let cut = if draw.one_in(2) { draw.below(40) } else { u64::MAX };
            let fails = if draw.one_in(4) { 4 } else { 0 };
            directory.set(cut, fails);
            rebuilds += 1;
            let done = rebuild(&directory, &mut model, durable);
            let off = directory.is_off();
            directory.set(u64::MAX, 0);
            match done {
                Ok((base, log)) if !off => {
                    durable = log.durable();
                    break (base, log);
                }
                _ if off => directory.restart(),
                _ => {}
            }
        };
        let cut = draw.below(500);
        directory.set(cut, failing);
        let turns = 10 + draw.below(150);
        let mut pages = Pages::default();
        loop {
            let lived = live(&mut model, &mut draw, &base, &mut log, pages, turns);
            if lived.is_err() || draw.one_in(2) {
                break;
            }
            // The process dies, and the next one finds its working file. It does not know which pages
            // have changed since the checkpoint.
            let Ok(found) = open_base(&directory) else { break };
            let owner = Owner { pool: found.meta().pool, life: found.meta().life };
            let next = Writer::new(Arc::new(directory.clone()), owner, log.last_attempt());
            let Ok(next) = next else { break };
            (base, log) = (found, next.segment_bytes(SEGMENT));
            pages = Pages::all(PAGES as u64, log.durable());
        }
        epochs += log.durable() - durable;
        durable = log.durable();
        directory.set(u64::MAX, 0);
        // After one life in three, the process has died and its working file is lost, but the page
        // cache is not. After the others, the power has failed.
        if !draw.one_in(3) {
            directory.restart();
        }
    }
    (rebuilds, epochs)
}

/// Completes the base, checks it, and begins a new life.
fn rebuild(directory: &SimDisk, model: &mut Model, durable: u64) -> io::Result<(Base, Writer)> {
    let base = open_base(directory)?;
    let rebuilt = complete(directory, &base, |_, _| ())?;
    let Rebuilt::Whole { epoch, .. } = rebuilt else { panic!("{rebuilt:?}") };
    let mut pool = vec![0; PAGES * PAGE];
    base.file().read_at(&mut pool, 0)?;
    META_OFFSETS.iter().for_each(|&at| pool[at as usize..][..PAGE].fill(0));
    assert!(epoch >= durable, "epoch {epoch}, durable were {durable}");
    let ends = model.ends.get(&epoch).expect("an epoch that was begun");
    assert!(ends.contains(&pool), "the pool at the end of epoch {epoch}");
    model.pool = pool.clone();
    model.changed.fill(false);
    // Other attempts at this epoch, and all later epochs, are lost.
    model.ends = BTreeMap::from([(epoch, vec![pool])]);
    let owner = Owner { pool: base.meta().pool, life: base.meta().life + 1 };
    let log = begin(directory, owner, epoch)?;
    base.replace(|meta| {
        (meta.life, meta.checkpoint) = (owner.life, epoch);
        meta.reach(Attempt::unknown(epoch));
    })?;
    let place = Path::new("/a/directory");
    base.note_place(place)?;
    assert_eq!(Base::place(base.file(), owner.life)?.as_deref(), Some(place));
    segment::remove_others(directory, owner)?;
    Ok((base, log))
}

#[test]
fn a_power_loss_at_any_call_leaves_a_whole_epoch_that_is_no_older_than_the_last_durable_one() {
    let trials = |seeds: std::ops::Range<u64>| {
        seeds.fold((0, 0), |(rebuilds, epochs), seed| {
            let counts = trial(seed, if seed % 3 == 0 { 0 } else { 5 + seed % 20 });
            (rebuilds + counts.0, epochs + counts.1)
        })
    };
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| trials(600..1_200));
        (trials(0..600), second.join().unwrap())
    });
    let (rebuilds, epochs) = (first.0 + second.0, first.1 + second.1);
    assert!(rebuilds > 4_800 && epochs > 12_000, "{rebuilds} rebuilds, {epochs} epochs");
}

#[test]
fn blocks_are_divided_and_read_again() {
    let directory = SimDisk::new(1);
    let owner = Owner { pool: 1, life: 2 };
    let mut log = Writer::new(Arc::new(directory.clone()), owner, Attempt::unknown(8)).unwrap();
    let mut large = Change::default();
    let images: Vec<u8> = (0..40_000 * LINE as u32).map(|i| (i * 7) as u8).collect();
    large.push(5..40_005, &images);
    large.push(1 << 40..(1 << 40) + 1, &[9; LINE]);
    let empty = Change::default();
    for change in [&large, &empty, &large] {
        log.append(change).unwrap();
    }
    let find = |owner| Epochs::find(&directory, needs(owner, 8)).unwrap();
    let epochs = find(owner);
    assert_eq!(epochs.last(), log.last_attempt());
    assert_eq!(epochs.last().epoch, 11);
    let mut found = Vec::new();
    epochs
        .apply(|change| {
            let mut lines = Vec::new();
            for (run, images) in change.runs() {
                lines.extend(run.zip(images.chunks(LINE).map(<[u8]>::to_vec)));
            }
            found.push(lines);
            Ok(())
        })
        .unwrap();
    assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [40_001, 0, 40_001]);
    assert_eq!(found[0], found[2]);
    assert_eq!(found[0][40_000], (1 << 40, vec![9; LINE]));
    assert_eq!(found[0][39_999].1, images[39_999 * LINE..]);
    let other = Owner { life: 3, ..owner };
    assert_eq!(find(other).last(), Attempt::unknown(8));
}

/// A base that may hold lines of an epoch is refused if that epoch is missing. A journal that lacks
/// a segment between others is refused, too.
#[test]
fn a_journal_with_epochs_missing_is_refused() {
    for (how, missing) in [("checkpoint", 2), ("rebuild", 2), ("neither", 1)] {
        let directory = SimDisk::new(1);
        let base = new_base(&directory);
        let owner = Owner { pool: 7, life: 1 };
        let mut log = Writer::new(Arc::new(directory.clone()), owner, Attempt::unknown(0))
            .unwrap()
            .segment_bytes(1);
        let mut pages = Pages::default();
        for line in 0..3 {
            let mut change = Change::default();
            change.push(line..line + 1, &[1; LINE]);
            log.append(&change).unwrap();
            pages.add(log.durable(), &change);
        }
        match how {
            "checkpoint" => {
                let mut checkpoint = Checkpoint::begin(&mut pages, &base);
                assert!(checkpoint.copy(1, |_, out| out.fill(1)));
                checkpoint.write(log.last_attempt(), &base).unwrap();
                checkpoint.abandon(&mut pages);
            }
            "rebuild" => drop(complete(&directory, &base, |_, _| ()).unwrap()),
            _ => {}
        }
        let base = open_base(&directory).unwrap();
        let reached = if how == "neither" { 0 } else { 3 };
        assert_eq!((base.meta().checkpoint, base.meta().reached), (0, reached));
        let names = directory.names().unwrap().into_iter().filter(|n| n.starts_with("segment"));
        // The first one is the empty segment with which the life began.
        let names: Vec<_> = names.skip(1).collect();
        // If there was a rebuild, it has copied the last segment, so all later ones are removed,
        // too.
        let end = if how == "neither" { missing + 1 } else { names.len() };
        names[missing..end].iter().for_each(|name| directory.remove(name).unwrap());
        let rebuilt = complete(&directory, &base, |_, _| ()).unwrap();
        let needed = if how == "neither" { 2 } else { 3 };
        assert_eq!(rebuilt, Rebuilt::Missing { found: missing as u64, needed }, "{how}");
    }
}

/// A failed sync can leave a whole epoch on the disk, whose next attempt is in another segment. If that
/// segment is lost, the void attempt does not take its place: the next segment or the base names the
/// valid one.
#[test]
fn a_void_attempt_takes_the_place_of_no_lost_epoch() {
    for (dies, base_knows) in [(false, false), (true, false), (false, true)] {
        let directory = SimDisk::new(1);
        let base = new_base(&directory);
        let owner = Owner { pool: 7, life: 1 };
        let writer = |durable| Writer::new(Arc::new(directory.clone()), owner, durable).unwrap();
        let mut pages = Pages::default();
        let mut write = |log: &mut Writer, number: u8| {
            let mut change = Change::default();
            change.push(0..4, &[number; 4 * LINE]);
            log.append(&change).unwrap();
            pages.add(log.durable(), &change);
        };
        let mut log = writer(Attempt::unknown(0));
        write(&mut log, 1);
        let first = log.last_attempt();
        // This attempt at epoch 2 has reached the disk, but its sync failed.
        write(&mut log, 2);
        let mut log = writer(first).segment_bytes(1);
        write(&mut log, 3);
        let lost = directory.names().unwrap().pop().unwrap();
        if dies {
            log = writer(log.last_attempt());
        }
        if base_knows {
            let mut checkpoint = Checkpoint::begin(&mut pages, &base);
            assert!(checkpoint.copy(1, |_, out| out.fill(3)));
            checkpoint.write(log.last_attempt(), &base).unwrap();
            checkpoint.abandon(&mut pages);
        } else {
            write(&mut log, 4);
        }
        directory.remove(&lost).unwrap();
        let rebuilt = complete(&directory, &base, |_, _| ()).unwrap();
        assert_eq!(rebuilt, Rebuilt::Missing { found: 1, needed: 2 }, "{dies} {base_knows}");
    }
}

/// Once an opening has read `meta`, a power loss brings no older content back, even if the process that
/// wrote `meta` met an error.
#[test]
fn what_an_opening_reads_is_durable() {
    let mut seen_both = [false; 2];
    for seed in 0..50 {
        let directory = SimDisk::new(seed);
        let base = new_base(&directory);
        directory.set(u64::MAX, 2);
        let _ = base.update(|meta| meta.reached = 5);
        directory.set(u64::MAX, 0);
        let read = open_base(&directory).unwrap().meta();
        seen_both[usize::from(read.reached == 5)] = true;
        directory.restart();
        let again = open_base(&directory).unwrap().meta();
        assert_eq!(again, read);
    }
    assert_eq!(seen_both, [true; 2]);
}

#[test]
fn a_base_that_is_too_short_is_refused() {
    let directory = SimDisk::new(1);
    let base = new_base(&directory);
    let (found, needed) = (base.meta().size, base.meta().size + 1);
    base.replace(|meta| meta.size = needed).unwrap();
    let rebuilt = complete(&directory, &base, |_, _| ()).unwrap();
    assert_eq!(rebuilt, Rebuilt::Short { found, needed });
}

/// If a disk fails every write for a while, the repeated attempts leave no files behind.
#[test]
fn errors_that_last_fill_no_disk() {
    let directory = SimDisk::new(1);
    let owner = Owner { pool: 1, life: 2 };
    let mut log = Writer::new(Arc::new(directory.clone()), owner, Attempt::unknown(0))
        .unwrap()
        .segment_bytes(SEGMENT);
    let mut change = Change::default();
    change.push(0..1, &[3; LINE]);
    log.append(&change).unwrap();
    directory.set(u64::MAX, 1);
    for _ in 0..100 {
        log.append(&change).unwrap_err();
    }
    directory.set(u64::MAX, 2);
    while log.append(&change).is_err() {}
    directory.set(u64::MAX, 0);
    assert!(directory.names().unwrap().len() < 6, "{:?}", directory.names());
    let epochs = Epochs::find(&directory, needs(owner, 0)).unwrap();
    assert_eq!(epochs.last().epoch, 2);
}

/// A disk that has no room for a file longer than this.
struct Nearly(SimDisk, u64);

impl Directory for Nearly {
    fn create(&self, name: &str, head: &[u8], len: u64) -> io::Result<Box<dyn JournalFile>> {
        if len > self.1 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.create(name, head, len)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn JournalFile>> {
        self.0.open(name)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        Directory::sync(&self.0)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.0.names()
    }
}

/// A disk that has no room for a usual segment can still have room for an epoch.
#[test]
fn an_epoch_fits_where_a_segment_does_not() {
    let disk = Nearly(SimDisk::new(1), SEGMENT / 2);
    let owner = Owner { pool: 1, life: 2 };
    let mut log =
        Writer::new(Arc::new(disk), owner, Attempt::unknown(0)).unwrap().segment_bytes(SEGMENT);
    let mut change = Change::default();
    change.push(0..1, &[3; LINE]);
    for epoch in 1..10 {
        log.append(&change).unwrap();
        assert_eq!(log.durable(), epoch);
    }
    let long: Vec<u8> = vec![3; SEGMENT as usize / LINE * LINE];
    change.push(4..4 + SEGMENT / LINE as u64, &long);
    assert_eq!(log.append(&change).unwrap_err().kind(), io::ErrorKind::StorageFull);
}
