//! A disk that loses what was not synced, and a journal on it whose power fails at any call.

use super::base::{Base, Checkpoint, PAGE, Pages, Rebuilt, complete};
use super::files::{Directory, JournalFile};
use super::log::{self, Change, LINE, Owner, Writer};
use super::meta::{META_OFFSETS, Meta};
use crate::pmem::MappingError;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

mod backup;

const SECTOR: usize = 512;
const BASE: &str = "base";

/// A small random generator.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone, Default)]
struct SimFile {
    /// What a read returns.
    visible: Vec<u8>,
    /// What certainly survives a power loss.
    durable: Vec<u8>,
    /// What was written since the last sync: sectors, in order.
    pending: Vec<(usize, Vec<u8>)>,
}

impl SimFile {
    /// Makes some of the pending sectors durable.
    fn settle(&mut self, mut survives: impl FnMut() -> bool) {
        for (at, bytes) in std::mem::take(&mut self.pending) {
            if survives() {
                self.durable[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }
    }
}

/// The disk.
struct Sim {
    files: BTreeMap<String, SimFile>,
    /// Files whose name was removed. It may come back.
    removed: Vec<(String, SimFile)>,
    draw: Draw,
    /// Calls until the power fails.
    left: u64,
    calls: u64,
    /// One call in this many fails, of those that write; 0 for none.
    failing: u64,
}

impl Sim {
    /// Counts a call.
    fn call(&mut self) -> io::Result<()> {
        self.calls += 1;
        self.left = self.left.checked_sub(1).ok_or_else(|| io::Error::other("the power is off"))?;
        Ok(())
    }

    /// Counts a call that the disk may refuse.
    fn refusable(&mut self) -> io::Result<()> {
        self.call()?;
        if self.failing != 0 && self.draw.one_in(self.failing) {
            return Err(io::Error::other("an error of the disk"));
        }
        Ok(())
    }

    /// Loses what a power loss loses. Then the power is on for `left` calls.
    fn restart(&mut self, left: u64) {
        for (name, file) in std::mem::take(&mut self.removed) {
            if self.draw.one_in(2) {
                self.files.entry(name).or_insert(file);
            }
        }
        let draw = &mut self.draw;
        for (name, file) in &mut self.files {
            // Nothing, everything, or any part.
            let kind = draw.below(4);
            // The sector that was being written is torn: in the base, old and new bytes are mixed;
            // elsewhere, all that it held is lost.
            let torn = file.pending.last().filter(|_| draw.one_in(2)).cloned();
            file.settle(|| match kind {
                0 => false,
                1 => true,
                _ => draw.one_in(2),
            });
            match torn {
                Some((at, bytes)) if name == BASE => {
                    let new = draw.below(bytes.len() as u64) as usize;
                    file.durable[at..at + new].copy_from_slice(&bytes[..new]);
                }
                Some((at, _)) => {
                    let (sector, len) = (at / SECTOR * SECTOR, file.durable.len());
                    file.durable[sector..len.min(sector + SECTOR)].fill(0xdb);
                }
                None => {}
            }
            file.visible.clone_from(&file.durable);
        }
        (self.left, self.calls) = (left, 0);
    }
}

#[derive(Clone)]
struct SimDirectory(Arc<Mutex<Sim>>);

struct Handle(SimDirectory, String);

impl SimDirectory {
    fn with<T>(&self, f: impl FnOnce(&mut Sim) -> T) -> T {
        f(&mut self.0.lock().unwrap())
    }
}

impl Directory for SimDirectory {
    fn create(&self, name: &str, len: u64) -> io::Result<Box<dyn JournalFile>> {
        self.with(|sim| {
            sim.refusable()?;
            let bytes = vec![0; len as usize];
            let file = SimFile { visible: bytes.clone(), durable: bytes, pending: Vec::new() };
            // The name may be durable, and the caller does not know it.
            let unknown = sim.refusable();
            if unknown.is_ok() || sim.left == 0 {
                sim.files.insert(name.into(), file);
                sim.removed.clear();
            }
            unknown
        })?;
        Ok(Box::new(Handle(self.clone(), name.into())))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn JournalFile>> {
        self.with(|sim| {
            sim.call()?;
            let known = sim.files.contains_key(name);
            known.then_some(()).ok_or_else(|| io::ErrorKind::NotFound.into())
        })
        .map(|()| Box::new(Handle(self.clone(), name.into())) as Box<dyn JournalFile>)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.with(|sim| {
            sim.call()?;
            let file = sim.files.remove(name).ok_or(io::ErrorKind::NotFound)?;
            sim.removed.push((name.into(), file));
            Ok(())
        })
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.with(|sim| {
            sim.call()?;
            Ok(sim.files.keys().cloned().collect())
        })
    }
}

impl Handle {
    fn with<T>(&self, f: impl FnOnce(&mut Sim, &mut SimFile) -> io::Result<T>) -> io::Result<T> {
        self.0.with(|sim| {
            let mut file = sim.files.remove(&self.1).ok_or(io::ErrorKind::NotFound)?;
            let result = f(sim, &mut file);
            sim.files.insert(self.1.clone(), file);
            result
        })
    }
}

impl JournalFile for Handle {
    fn len(&self) -> io::Result<u64> {
        self.with(|_, file| Ok(file.visible.len() as u64))
    }

    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        self.with(|_, file| {
            let from = file.visible.get(offset as usize..).unwrap_or_default();
            let bytes = from.len().min(out.len());
            out[..bytes].copy_from_slice(&from[..bytes]);
            Ok(bytes)
        })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.with(|sim, file| {
            let end = offset as usize + bytes.len();
            assert!(end <= file.visible.len(), "a write beyond the end of {}", self.1);
            // A failure within a write leaves a part of it in the page cache.
            let called = sim.refusable();
            let written = if called.is_ok() {
                bytes.len()
            } else {
                sim.draw.below(bytes.len() as u64 + 1) as usize
            };
            let mut at = offset as usize;
            let end = at + written;
            while at < end {
                let next = ((at / SECTOR + 1) * SECTOR).min(end);
                let piece = &bytes[at - offset as usize..next - offset as usize];
                file.visible[at..next].copy_from_slice(piece);
                file.pending.push((at, piece.to_vec()));
                at = next;
            }
            called
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|sim, file| {
            if let Err(error) = sim.refusable() {
                if sim.left > 0 {
                    // The pages count as written from now on, and some are not.
                    let draw = &mut sim.draw;
                    file.settle(|| draw.one_in(2));
                }
                return Err(error);
            }
            file.settle(|| true);
            Ok(())
        })
    }

    fn extend(&self, _: u64) -> Result<(), MappingError> {
        unreachable!("no base grows here")
    }
}

/// A pool, and the journal's view of it.
struct Model {
    directory: SimDirectory,
    pool: Vec<u8>,
    /// Lines that changed since the last durable epoch.
    changed: Vec<bool>,
    /// The pools that an epoch can have left, by its number.
    ends: BTreeMap<u64, Vec<Vec<u8>>>,
    counter: u64,
}

/// Two of them are `meta`.
const PAGES: usize = 26;
/// The first pages, which change, and among which one is `meta`.
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

    /// Takes what has changed.
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

    /// Writes an epoch. `Ok(false)` if the disk failed and the power is on.
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

    /// After an error: was it the power?
    fn power(&self) -> Result<bool, PowerOff> {
        if self.directory.with(|sim| sim.left == 0) { Err(PowerOff) } else { Ok(false) }
    }
}

struct PowerOff;

/// Lives until the power fails or `turns` are over. Returns the last durable epoch.
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
                    under_way.write(log.durable(), base).map(|_| false)
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

fn new_disk(seed: u64) -> SimDirectory {
    let (files, removed) = (BTreeMap::new(), Vec::new());
    let sim = Sim { files, removed, draw: Draw(seed), left: u64::MAX, calls: 0, failing: 0 };
    SimDirectory(Arc::new(Mutex::new(sim)))
}

fn new_base(directory: &SimDirectory) -> Base {
    let size = (PAGES * PAGE) as u64;
    let file = directory.create(BASE, size).unwrap();
    let meta = Meta { pool: 7, life: 1, checkpoint: 0, reached: 0, size, closed: false };
    begin(directory, Owner { pool: 7, life: 1 }, 0).unwrap();
    Base::create(file, meta).unwrap()
}

fn begin(directory: &SimDirectory, owner: Owner, epoch: u64) -> io::Result<Writer> {
    let log = Writer::new(Arc::new(directory.clone()), owner, epoch)?;
    let mut log = log.segment_bytes(SEGMENT);
    log.begin()?;
    Ok(log)
}

fn open_base(directory: &SimDirectory) -> io::Result<Base> {
    Ok(Base::open(directory.open(BASE)?)?.unwrap_or_else(|_| panic!("no copy is whole")))
}

/// One trial: lives that a power loss ends, each followed by a rebuild, which it may end too.
fn trial(seed: u64, failing: u64) -> (u64, u64) {
    let mut draw = Draw(seed);
    let directory = new_disk(!seed);
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
        // Rebuild until one rebuild is not cut short. It ends with a new life.
        let (mut base, mut log) = loop {
            let cut = if draw.one_in(2) { draw.below(40) } else { u64::MAX };
            let fails = if draw.one_in(4) { 4 } else { 0 };
            directory.with(|sim| (sim.left, sim.failing) = (cut, fails));
            rebuilds += 1;
            let done = rebuild(&directory, &mut model, durable);
            let off = directory.with(|sim| sim.left == 0);
            directory.with(|sim| (sim.left, sim.failing) = (u64::MAX, 0));
            match done {
                Ok((base, log)) if !off => {
                    durable = log.durable();
                    break (base, log);
                }
                _ if off => directory.with(|sim| sim.restart(u64::MAX)),
                _ => {}
            }
        };
        let cut = draw.below(500);
        directory.with(|sim| (sim.left, sim.failing) = (cut, failing));
        let turns = 10 + draw.below(150);
        let mut pages = Pages::default();
        loop {
            let lived = live(&mut model, &mut draw, &base, &mut log, pages, turns);
            if lived.is_err() || draw.one_in(2) {
                break;
            }
            // The process dies, and the next one finds its working file. Which pages have changed
            // since the checkpoint is not known any more.
            let Ok(found) = open_base(&directory) else { break };
            let owner = Owner { pool: found.meta().pool, life: found.meta().life };
            let next = Writer::new(Arc::new(directory.clone()), owner, log.durable());
            let Ok(next) = next else { break };
            (base, log) = (found, next.segment_bytes(SEGMENT));
            pages = Pages::all(PAGES as u64, log.durable());
        }
        epochs += log.durable() - durable;
        durable = log.durable();
        directory.with(|sim| {
            (sim.failing, sim.left) = (0, u64::MAX);
            // In one trial of three, the process died and its working file is lost, but the page
            // cache is not. In the others, the power failed.
            if !draw.one_in(3) {
                sim.restart(u64::MAX);
            }
        });
    }
    (rebuilds, epochs)
}

/// Completes the base, checks it, and begins a new life.
fn rebuild(
    directory: &SimDirectory,
    model: &mut Model,
    durable: u64,
) -> io::Result<(Base, Writer)> {
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
    // Later attempts at this epoch and at later ones were lost.
    model.ends = BTreeMap::from([(epoch, vec![pool])]);
    let owner = Owner { pool: base.meta().pool, life: base.meta().life + 1 };
    let log = begin(directory, owner, epoch)?;
    base.replace(|meta| {
        (meta.life, meta.checkpoint, meta.reached) = (owner.life, epoch, epoch);
    })?;
    log::remove_others(directory, owner)?;
    Ok((base, log))
}

#[test]
fn a_power_loss_at_any_call_leaves_a_whole_epoch_that_is_no_older_than_the_last_durable_one() {
    let (mut rebuilds, mut epochs) = (0, 0);
    for seed in 0..3_000 {
        let counts = trial(seed, if seed % 3 == 0 { 0 } else { 5 + seed % 20 });
        (rebuilds, epochs) = (rebuilds + counts.0, epochs + counts.1);
    }
    assert!(rebuilds > 12_000 && epochs > 30_000, "{rebuilds} rebuilds, {epochs} epochs");
}

#[test]
fn blocks_are_divided_and_read_again() {
    let directory = new_disk(1);
    let owner = Owner { pool: 1, life: 2 };
    let mut log = Writer::new(Arc::new(directory.clone()), owner, 8).unwrap();
    let mut large = Change::default();
    let images: Vec<u8> = (0..40_000 * LINE as u32).map(|i| (i * 7) as u8).collect();
    large.push(5..40_005, &images);
    large.push(1 << 40..(1 << 40) + 1, &[9; LINE]);
    let empty = Change::default();
    for change in [&large, &empty, &large] {
        log.append(change).unwrap();
    }
    let epochs = log::Epochs::find(&directory, owner, 8).unwrap();
    assert_eq!(epochs.last(), 11);
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
    assert_eq!(log::Epochs::find(&directory, other, 8).unwrap().last(), 8);
}

/// A base that may hold lines of an epoch is not used without that epoch, nor is a journal of which a
/// segment is missing.
#[test]
fn a_journal_with_epochs_missing_is_refused() {
    for (how, missing) in [("checkpoint", 2), ("rebuild", 2), ("neither", 1)] {
        let directory = new_disk(1);
        let base = new_base(&directory);
        let owner = Owner { pool: 7, life: 1 };
        let mut log = Writer::new(Arc::new(directory.clone()), owner, 0).unwrap().segment_bytes(1);
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
                checkpoint.write(log.durable(), &base).unwrap();
                checkpoint.abandon(&mut pages);
            }
            "rebuild" => drop(complete(&directory, &base, |_, _| ()).unwrap()),
            _ => {}
        }
        let base = open_base(&directory).unwrap();
        let reached = if how == "neither" { 0 } else { 3 };
        assert_eq!((base.meta().checkpoint, base.meta().reached), (0, reached));
        let names = directory.names().unwrap().into_iter().filter(|n| n.starts_with("segment"));
        // The first one is that with which the life began.
        let names: Vec<_> = names.skip(1).collect();
        // A rebuild has copied the last one.
        let end = if how == "neither" { missing + 1 } else { names.len() };
        names[missing..end].iter().for_each(|name| directory.remove(name).unwrap());
        let rebuilt = complete(&directory, &base, |_, _| ()).unwrap();
        let needed = if how == "neither" { 2 } else { 3 };
        assert_eq!(rebuilt, Rebuilt::Missing { found: missing as u64, needed }, "{how}");
    }
}

/// What was read of `meta` does not go back, even if the process that wrote it met an error.
#[test]
fn what_an_opening_reads_is_durable() {
    let mut seen_both = [false; 2];
    for seed in 0..50 {
        let directory = new_disk(seed);
        let base = new_base(&directory);
        directory.with(|sim| sim.failing = 2);
        let _ = base.update(|meta| meta.reached = 5);
        directory.with(|sim| sim.failing = 0);
        let read = open_base(&directory).unwrap().meta();
        seen_both[usize::from(read.reached == 5)] = true;
        directory.with(|sim| sim.restart(u64::MAX));
        let again = open_base(&directory).unwrap().meta();
        assert_eq!(again, read);
    }
    assert_eq!(seen_both, [true; 2]);
}

#[test]
fn a_base_that_is_too_short_is_refused() {
    let directory = new_disk(1);
    let base = new_base(&directory);
    let (found, needed) = (base.meta().size, base.meta().size + 1);
    base.replace(|meta| meta.size = needed).unwrap();
    let rebuilt = complete(&directory, &base, |_, _| ()).unwrap();
    assert_eq!(rebuilt, Rebuilt::Short { found, needed });
}

/// A disk that refuses every write for a while takes no space for that, and then goes on.
#[test]
fn errors_that_last_fill_no_disk() {
    let directory = new_disk(1);
    let owner = Owner { pool: 1, life: 2 };
    let mut log =
        Writer::new(Arc::new(directory.clone()), owner, 0).unwrap().segment_bytes(SEGMENT);
    let mut change = Change::default();
    change.push(0..1, &[3; LINE]);
    log.append(&change).unwrap();
    directory.with(|sim| sim.failing = 1);
    for _ in 0..100 {
        log.append(&change).unwrap_err();
    }
    directory.with(|sim| sim.failing = 2);
    while log.append(&change).is_err() {}
    directory.with(|sim| sim.failing = 0);
    assert!(directory.names().unwrap().len() < 6, "{:?}", directory.names());
    assert_eq!(log::Epochs::find(&directory, owner, 0).unwrap().last(), 2);
}
