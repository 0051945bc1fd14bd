//! Journaled pools at moments of two lives, as a dead process leaves them.

use super::evidence::heads;
use super::files::{BASE, Content, Files, JOURNAL, Place};
use outlast::{Error, JournalOptions, Pool, PoolOptions, Result};
use std::io;
use std::time::Duration;

/// A pool at a moment.
pub struct Image {
    /// What has happened so far.
    pub name: &'static str,
    /// The number of the life, from 1 on.
    pub life: u64,
    /// Its files.
    pub files: Files,
    /// How many records there are.
    pub acked: u64,
    /// How many were there at the end of each epoch that was waited for.
    pub waited: Vec<(u64, u64)>,
}

impl Image {
    /// Returns how many records were waited for.
    pub fn durable(&self) -> u64 {
        self.waited.last().map_or(0, |(_, count)| *count)
    }
}

/// Returns the options of the pool, for a process that runs in this boot.
pub fn options(place: &Place, boot: u64) -> PoolOptions {
    let journal = JournalOptions::new()
        .interval(Duration::from_secs(3_600))
        .limit(4 << 20)
        .directory(place.path(JOURNAL))
        .working_directory(place.path(""));
    PoolOptions::new().max_size(32 << 20).boot_id(boot.into()).journal(journal)
}

/// Opens the pool.
pub fn open(place: &Place, boot: u64) -> Result<Pool> {
    // SAFETY: no one else uses the files.
    unsafe { options(place, boot).open(place.path(BASE)) }
}

/// The value of a key.
pub fn value(key: u64) -> u64 {
    key * 3 + 1
}

/// Adds records after the first `from`.
pub fn insert(pool: &Pool, from: u64, count: u64) -> Result<()> {
    let map = pool.map::<u64, u64>("numbers")?;
    (from..from + count).try_for_each(|key| map.insert(&key, &value(key)).map(drop))
}

/// Returns the name of the working file among these.
pub fn working(files: &Files) -> Option<&String> {
    files.keys().find(|name| name.ends_with(".working"))
}

struct Maker<'p> {
    place: &'p Place,
    /// `None` while it is closed.
    pool: Option<Pool>,
    life: u64,
    count: u64,
    waited: Vec<(u64, u64)>,
    images: Vec<Image>,
}

fn failed(error: io::Error) -> Error {
    Error::Io { action: "making a pool to damage".into(), source: error }
}

impl Maker<'_> {
    fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("it is open")
    }

    fn close(&mut self) -> Result<()> {
        self.pool.take().map_or(Ok(()), Pool::close)
    }

    /// Makes an epoch with so many records.
    fn step(&mut self, count: u64) -> Result<()> {
        insert(self.pool(), self.count, count)?;
        self.count += count;
        self.pool().wait_durable()?;
        let facts = options(self.place, self.life).facts(self.place.path(BASE))?;
        let epoch = facts.journal.and_then(|journal| journal.durable);
        self.waited.push((epoch.expect("the pool is open"), self.count));
        Ok(())
    }

    fn steps(&mut self, steps: usize) -> Result<()> {
        (0..steps).try_for_each(|_| self.step(20))
    }

    /// Waits until a spare segment is ready.
    fn spare(&self) -> Result<()> {
        loop {
            let files = self.place.read().map_err(failed)?;
            if heads(&files).any(|head| head.spare) {
                return Ok(());
            }
            std::thread::yield_now();
        }
    }

    fn image(&mut self, name: &'static str) -> Result<()> {
        let files = self.place.settled().map_err(failed)?;
        let (life, acked, waited) = (self.life, self.count, self.waited.clone());
        self.images.push(Image { name, life, files, acked, waited });
        Ok(())
    }

    /// Goes on in another process, which finds these files.
    fn reopen(&mut self, boot: u64, keep_working: bool) -> Result<()> {
        let files = self.place.settled().map_err(failed)?;
        let kept = |(name, _): &(String, Content)| keep_working || !name.ends_with(".working");
        let files = files.into_iter().filter(kept).collect();
        // Dropping a pool closes it.
        self.close()?;
        self.place.write(&files).map_err(failed)?;
        self.pool = Some(open(self.place, boot)?);
        Ok(())
    }

    fn life(&mut self) -> Result<()> {
        self.image("begun")?;
        self.steps(4)?;
        self.spare()?;
        self.image("one segment")?;
        self.steps(1)?;
        insert(self.pool(), self.count, 7)?;
        self.count += 7;
        self.image("not all waited for")?;
        self.reopen(self.life, true)?;
        self.image("opened again")?;
        self.steps(3)?;
        self.spare()?;
        self.image("written again")?;
        for _ in 0..4 {
            self.step(2_500)?;
            self.spare()?;
        }
        self.steps(2)?;
        self.image("several segments")?;
        let core = self.pool().store().core();
        core.journal().map_or(Ok(()), |journal| journal.checkpoint(&**core, false))?;
        self.spare()?;
        self.image("a checkpoint")?;
        self.steps(3)?;
        self.image("after a checkpoint")
    }
}

/// Makes a pool, and copies its files at several moments.
pub fn images(place: &Place) -> Result<Vec<Image>> {
    // SAFETY: no one else uses the files.
    let pool = unsafe { options(place, 1).create(place.path(BASE))? };
    insert(&pool, 0, 10)?;
    pool.close()?;
    let pool = Some(open(place, 1)?);
    let waited = vec![(0, 10)];
    let mut maker = Maker { place, pool, life: 1, count: 10, waited, images: Vec::new() };
    maker.life()?;
    maker.reopen(2, false)?;
    maker.life = 2;
    maker.life()?;
    maker.close()?;
    maker.waited = vec![(u64::MAX, maker.count)];
    maker.image("closed")?;
    Ok(maker.images)
}
