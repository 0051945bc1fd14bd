//! Copies of a journaled pool while another process writes to it, step by step, between any two
//! reads.

use super::super::backup::{Copied, copy_looking};
use super::super::files::JournalFile;
use super::*;
use crate::pmem::MappingError;
use std::sync::Mutex;
use std::time::Duration;

/// Files that can be read as long as they are open, even after they are removed.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<BTreeMap<String, Open>>>);

#[derive(Clone)]
struct Open(Arc<Mutex<Vec<u8>>>);

impl Open {
    fn new(bytes: Vec<u8>) -> Box<Open> {
        Box::new(Open(Arc::new(Mutex::new(bytes))))
    }
}

impl Directory for Shared {
    fn create(&self, name: &str, head: &[u8], len: u64) -> io::Result<Box<dyn JournalFile>> {
        let mut bytes = head.to_vec();
        bytes.resize(len as usize, 0);
        let file = Open::new(bytes);
        self.0.lock().unwrap().insert(name.into(), (*file).clone());
        Ok(file)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn JournalFile>> {
        let files = self.0.lock().unwrap();
        Ok(Box::new(files.get(name).cloned().ok_or(io::ErrorKind::NotFound)?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let removed = self.0.lock().unwrap().remove(name);
        removed.map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().unwrap().keys().cloned().collect())
    }
}

impl JournalFile for Open {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().len() as u64)
    }

    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        let file = self.0.lock().unwrap();
        let from = file.get(offset as usize..).unwrap_or_default();
        let bytes = from.len().min(out.len());
        out[..bytes].copy_from_slice(&from[..bytes]);
        Ok(bytes)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut file = self.0.lock().unwrap();
        let end = offset as usize + bytes.len();
        let len = file.len().max(end);
        file.resize(len, 0);
        file[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn extend(&self, len: u64) -> Result<(), MappingError> {
        let mut file = self.0.lock().unwrap();
        let len = file.len().max(len as usize);
        file.resize(len, 0);
        Ok(())
    }
}

/// The process that writes.
struct Writing {
    files: Shared,
    base: Base,
    log: Writer,
    pages: Pages,
    checkpoint: Option<Checkpoint>,
    pool: Vec<u8>,
    /// Lines that changed since the last durable epoch.
    changed: Vec<bool>,
    /// The pool at the end of each epoch that was written, with the epoch's number. If the process
    /// died, the number occurs again.
    ends: Vec<(u64, Vec<u8>)>,
    counter: u64,
    draw: Draw,
    /// How many times the process died and another one continued.
    deaths: u64,
}

const OWNER: Owner = Owner { pool: 7, life: 1 };

impl Writing {
    fn new(seed: u64) -> Writing {
        let files = Shared::default();
        let size = (PAGES * PAGE) as u64;
        let meta = Meta { pool: 7, life: 1, checkpoint: 0, reached: 0, size, ..Meta::default() };
        let base = Base::create(files.create(BASE, &[], size).unwrap(), meta).unwrap();
        let pool = vec![0; PAGES * PAGE];
        Writing {
            log: Self::log(&files, 0),
            base,
            pages: Pages::none(0),
            checkpoint: None,
            changed: vec![false; LINES],
            ends: vec![(0, pool.clone())],
            pool,
            counter: 0,
            draw: Draw(seed),
            deaths: 0,
            files,
        }
    }

    fn log(files: &Shared, durable: u64) -> Writer {
        let log = Writer::new(Arc::new(files.clone()), OWNER, Attempt::unknown(durable)).unwrap();
        let mut log = log.segment_bytes(SEGMENT);
        log.begin().unwrap();
        log
    }

    fn change(&mut self) {
        for _ in 0..=self.draw.below(8) {
            let line = self.draw.below(LINES as u64) as usize;
            if META_OFFSETS.contains(&((line * LINE / PAGE * PAGE) as u64)) {
                continue;
            }
            self.counter += 1;
            self.changed[line] = true;
            self.pool[line * LINE..][..8].copy_from_slice(&self.counter.to_le_bytes());
        }
    }

    /// Writes an epoch. If the process `dies`, it does so before it records that the epoch is
    /// durable, so the next process continues from the epoch before this one.
    fn epoch(&mut self, dies: bool) {
        let mut change = Change::default();
        for line in (0..LINES).filter(|&line| self.changed[line]) {
            change.push(line as u64..line as u64 + 1, &self.pool[line * LINE..][..LINE]);
        }
        let durable = self.log.durable();
        self.log.append(&change).unwrap();
        self.ends.push((durable + 1, self.pool.clone()));
        if dies {
            self.deaths += 1;
            self.log = Self::log(&self.files, durable);
            self.base.replace(|meta| meta.closed = false).unwrap();
            self.pages = Pages::all(PAGES as u64, durable);
            self.checkpoint = None;
        } else {
            self.pages.add(durable + 1, &change);
            self.changed.fill(false);
        }
    }

    fn step(&mut self) {
        self.change();
        match (self.draw.below(12), self.checkpoint.take()) {
            (0, None) if self.draw.one_in(3) => self.epoch(true),
            (0..6, None) if !self.pages.is_empty() => {
                self.log.close_segment();
                self.checkpoint = Some(Checkpoint::begin(&mut self.pages, &self.base));
            }
            (1..10, Some(mut under_way)) => {
                let pool = &self.pool;
                let copied = under_way.copy(9, |page, out| {
                    out.copy_from_slice(&pool[page as usize * PAGE..][..PAGE]);
                });
                if copied {
                    self.change();
                    self.epoch(false);
                    under_way.write(self.log.last_attempt(), &self.base).unwrap();
                    self.checkpoint = Some(under_way);
                } else {
                    let epoch = under_way.finish(&self.base, false).unwrap();
                    self.log.forget(epoch).unwrap();
                }
            }
            (0, Some(_)) if self.draw.one_in(3) => self.epoch(true),
            (_, under_way) => {
                self.checkpoint = under_way;
                self.epoch(false);
            }
        }
    }

    fn steps(&mut self) {
        for _ in 0..self.draw.below(4).saturating_sub(1) {
            self.step();
        }
    }
}

/// The files as the copying process sees them: the writing process takes steps between its reads.
struct Watched<F>(F, Arc<Mutex<Writing>>);

impl Directory for Watched<Shared> {
    fn create(&self, _: &str, _: &[u8], _: u64) -> io::Result<Box<dyn JournalFile>> {
        unreachable!("a copy writes nothing")
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn JournalFile>> {
        if self.1.lock().unwrap().draw.one_in(8) {
            self.1.lock().unwrap().steps();
        }
        self.0.open(name)
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        unreachable!("a copy writes nothing")
    }

    fn sync(&self) -> io::Result<()> {
        unreachable!("a copy writes nothing")
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.1.lock().unwrap().steps();
        let names = self.0.names();
        // More can happen before any of the files is opened.
        self.1.lock().unwrap().steps();
        names
    }
}

impl JournalFile for Watched<Box<dyn JournalFile>> {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        self.1.lock().unwrap().steps();
        // A reader can get less than it asked for.
        let most = out.len().min(3 * PAGE);
        self.0.read_at(&mut out[..most], offset)
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        unreachable!("a copy writes nothing")
    }

    fn sync(&self) -> io::Result<()> {
        unreachable!("a copy writes nothing")
    }

    fn extend(&self, _: u64) -> Result<(), MappingError> {
        unreachable!("a copy writes nothing")
    }
}

#[test]
fn a_copy_is_the_pool_at_the_end_of_an_epoch_whatever_is_written_meanwhile() {
    let (mut whole, mut moved, mut deaths) = (0, 0, 0);
    for seed in 0..1_200 {
        let writing = Arc::new(Mutex::new(Writing::new(seed)));
        let (files, durable) = {
            let mut writing = writing.lock().unwrap();
            (0..20).for_each(|_| writing.step());
            writing.deaths = 0;
            (writing.files.clone(), writing.log.durable())
        };
        let base = Watched(files.open(BASE).unwrap(), Arc::clone(&writing));
        let to = Open::new(Vec::new());
        let directory = Watched(files, Arc::clone(&writing));
        let looks = if seed % 4 == 0 { Duration::MAX } else { Duration::ZERO };
        let copied = copy_looking(&base, &directory, to.clone(), |_, _| (), looks).unwrap();
        let writing = writing.lock().unwrap();
        match copied {
            Copied::Whole { .. } => {
                let mut found = to.0.lock().unwrap().clone();
                META_OFFSETS.iter().for_each(|&at| found[at as usize..][..PAGE].fill(0));
                let of = writing.ends.iter().filter(|(_, pool)| *pool == found);
                let epoch = of.map(|&(epoch, _)| epoch).max();
                assert!(epoch.is_some(), "seed {seed}: a mixture");
                assert!(epoch >= Some(durable), "seed {seed}: {epoch:?}, durable was {durable}");
                whole += 1;
                deaths += u64::from(writing.deaths > 0);
            }
            Copied::Moved => moved += 1,
            Copied::Incomplete(why) => panic!("seed {seed}: {why:?}, and nothing is missing"),
        }
    }
    assert!(whole > 300 && moved > 30 && deaths > 30, "{whole} {moved} {deaths}");
}
