//! A simulated disk. It can lose power at any call, fail any call that writes, and tear what it is
//! writing.
//!
//! The journal's own tests and the proof harness run on it. It has one directory. The file named
//! [`BASE`] is the base; all others are segments. A power loss tears the two kinds of file
//! differently.

use super::files::{Directory, JournalFile};
use crate::pmem::MappingError;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The name of the base.
pub const BASE: &str = "base";
/// Bytes of a sector.
const SECTOR: usize = 512;

/// A small random generator.
#[derive(Debug, Clone)]
pub struct Draw(pub u64);

impl Draw {
    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// Returns `true` in one of `n` calls.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A file. Copies share their bytes until one is written to.
#[derive(Clone, Default)]
struct SimFile {
    /// What a read returns.
    visible: Arc<Vec<u8>>,
    /// What certainly survives a power loss.
    durable: Arc<Vec<u8>>,
    /// What was written since the last sync: parts of sectors, in order.
    pending: Vec<(usize, Vec<u8>)>,
}

impl SimFile {
    fn new(head: &[u8], len: usize) -> SimFile {
        let mut bytes = head.to_vec();
        bytes.resize(len, 0);
        let bytes = Arc::new(bytes);
        SimFile { visible: Arc::clone(&bytes), durable: bytes, pending: Vec::new() }
    }

    /// Makes all pending writes durable.
    fn settle(&mut self) {
        self.settle_where(|| true);
    }

    /// Makes nothing, everything or any part of the pending writes durable, and drops the others.
    fn settle_any(&mut self, draw: &mut Draw) {
        let kind = draw.below(4);
        self.settle_where(|| match kind {
            0 => false,
            1 => true,
            _ => draw.one_in(2),
        });
    }

    /// Makes the pending writes durable for which `survives` returns `true`, and drops the others.
    fn settle_where(&mut self, mut survives: impl FnMut() -> bool) {
        for (at, bytes) in std::mem::take(&mut self.pending) {
            if survives() {
                Arc::make_mut(&mut self.durable)[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }
    }
}

/// Called before some of the calls, chosen at random, while the power is on. Receives a copy of the
/// disk.
pub type Watch = Box<dyn FnMut(&SimDisk) + Send>;

struct Sim {
    files: BTreeMap<String, SimFile>,
    /// Files whose names were removed. After a power loss, a name may come back.
    removed: Vec<(String, SimFile)>,
    draw: Draw,
    /// Calls until the power fails, and whether it has.
    left: u64,
    off: bool,
    /// One in this many of the calls that write fails; 0: none fails.
    failing: u64,
    watch: Option<(u64, Watch)>,
}

impl Sim {
    fn copy(&mut self) -> SimDisk {
        let draw = Draw(self.draw.below(u64::MAX >> 33) << 31 | self.draw.below(1 << 31));
        let (files, removed) = (self.files.clone(), self.removed.clone());
        let sim = Sim { files, removed, draw, left: u64::MAX, off: false, failing: 0, watch: None };
        SimDisk(Arc::new(Mutex::new(sim)))
    }

    /// Counts a call.
    fn call(&mut self) -> io::Result<()> {
        if !self.off
            && let Some((every, mut watch)) = self.watch.take()
        {
            if self.draw.one_in(every) {
                watch(&self.copy());
            }
            self.watch = Some((every, watch));
        }
        let on = self.left.checked_sub(1);
        self.left = on.unwrap_or(0);
        self.off = on.is_none();
        on.map(drop).ok_or_else(|| io::Error::other("the power is off"))
    }

    /// Counts a call that the disk may refuse.
    fn refusable(&mut self) -> io::Result<()> {
        self.call()?;
        if self.failing != 0 && self.draw.one_in(self.failing) {
            return Err(io::Error::other("an error of the disk"));
        }
        Ok(())
    }
}

/// A disk. Clones are the same disk.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<Sim>>);

/// An open file.
struct Handle(SimDisk, String);

impl SimDisk {
    /// Makes an empty disk. `seed` decides which unsynced writes a power loss undoes, and which
    /// calls fail.
    pub fn new(seed: u64) -> SimDisk {
        let (files, removed) = (BTreeMap::new(), Vec::new());
        let draw = Draw(seed);
        let sim = Sim { files, removed, draw, left: u64::MAX, off: false, failing: 0, watch: None };
        SimDisk(Arc::new(Mutex::new(sim)))
    }

    fn sim(&self) -> MutexGuard<'_, Sim> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes another disk with the same content, synced and unsynced. Its power is on, and it
    /// refuses nothing.
    pub fn copy(&self) -> SimDisk {
        self.sim().copy()
    }

    /// Turns the power on, and lets it fail after `calls` calls. Until then, the disk refuses one
    /// in `failing` of the calls that write, chosen at random; none if that is 0.
    pub fn set(&self, calls: u64, failing: u64) {
        let mut sim = self.sim();
        (sim.left, sim.off, sim.failing) = (calls, false, failing);
    }

    /// Returns whether the power has failed.
    pub fn is_off(&self) -> bool {
        self.sim().off
    }

    /// Calls `watch` before one call in `every`, chosen at random.
    pub fn watch(&self, every: u64, watch: Watch) {
        self.sim().watch = Some((every, watch));
    }

    /// Simulates a power loss. Afterwards the power is on, and the disk refuses nothing.
    pub fn restart(&self) {
        let mut sim = self.sim();
        for (name, file) in std::mem::take(&mut sim.removed) {
            if sim.draw.one_in(2) {
                sim.files.entry(name).or_insert(file);
            }
        }
        let Sim { draw, files, .. } = &mut *sim;
        for (name, file) in files {
            // The last unsynced write of the file was under way, and its sector is torn. In the
            // base the sector then mixes old and new bytes; in a segment all of its content is
            // lost.
            let torn = file.pending.last().filter(|_| draw.one_in(2)).cloned();
            file.settle_any(draw);
            match torn {
                Some((at, bytes)) if name == BASE => {
                    let new = draw.below(bytes.len() as u64) as usize;
                    let durable = Arc::make_mut(&mut file.durable);
                    durable[at..at + new].copy_from_slice(&bytes[..new]);
                }
                Some((at, _)) => {
                    let durable = Arc::make_mut(&mut file.durable);
                    let (sector, len) = (at / SECTOR * SECTOR, durable.len());
                    durable[sector..len.min(sector + SECTOR)].fill(0xdb);
                }
                None => {}
            }
            file.visible = Arc::clone(&file.durable);
        }
        (sim.left, sim.off, sim.failing) = (u64::MAX, false, 0);
    }

    /// Shortens a file, which no crash can do.
    pub fn cut_short(&self, name: &str, len: u64) {
        if let Some(file) = self.sim().files.get_mut(name) {
            let bytes = Arc::new(file.visible[..len as usize].to_vec());
            *file = SimFile { visible: Arc::clone(&bytes), durable: bytes, pending: Vec::new() };
        }
    }

    /// Replaces a file with the one of the same name on another disk, which no crash can do.
    pub fn replace(&self, name: &str, from: &SimDisk) {
        let file = from.sim().files.get(name).cloned();
        self.sim().files.extend(file.map(|file| (name.to_owned(), file)));
    }

    /// Returns a hash of all that can be read.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (name, file) in &self.sim().files {
            name.hash(&mut hasher);
            crc64(&file.visible).hash(&mut hasher);
        }
        hasher.finish()
    }
}

/// Two checksums of some bytes: of all, and of every second block.
fn crc64(bytes: &[u8]) -> (u32, u32) {
    let odd = bytes.chunks(128).skip(1).step_by(2);
    (crc32c::crc32c(bytes), odd.fold(0, crc32c::crc32c_append))
}

impl Directory for SimDisk {
    fn create(&self, name: &str, head: &[u8], len: u64) -> io::Result<Box<dyn JournalFile>> {
        let mut sim = self.sim();
        sim.refusable()?;
        // Even if the call fails, the file may exist and its name may be durable.
        let unknown = sim.refusable();
        if unknown.is_ok() || sim.off {
            sim.files.insert(name.into(), SimFile::new(head, len as usize));
            sim.removed.clear();
        }
        unknown?;
        Ok(Box::new(Handle(self.clone(), name.into())))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn JournalFile>> {
        let mut sim = self.sim();
        sim.call()?;
        let known = sim.files.contains_key(name);
        let handle = || Box::new(Handle(self.clone(), name.into())) as Box<dyn JournalFile>;
        known.then(handle).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut sim = self.sim();
        sim.call()?;
        let file = sim.files.remove(name).ok_or(io::ErrorKind::NotFound)?;
        sim.removed.push((name.into(), file));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut sim = self.sim();
        sim.refusable()?;
        sim.removed.clear();
        Ok(())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut sim = self.sim();
        sim.call()?;
        Ok(sim.files.keys().cloned().collect())
    }
}

impl Handle {
    /// Counts a call that the disk may refuse. Also returns whether the power was off already.
    fn refusable(&self) -> (bool, io::Result<()>) {
        let mut sim = self.0.sim();
        (sim.off, sim.refusable())
    }

    fn with<T>(&self, f: impl FnOnce(&mut Sim, &mut SimFile) -> io::Result<T>) -> io::Result<T> {
        let mut sim = self.0.sim();
        // As on a real disk, a removed file stays accessible as long as it is open.
        let Sim { files, removed, .. } = &mut *sim;
        let of = |(_, file): &(String, SimFile)| file.clone();
        let gone = || removed.iter().rev().find(|(name, _)| *name == self.1).map(of);
        let known = files.get(&self.1).cloned().or_else(gone);
        let mut file = known.ok_or(io::ErrorKind::NotFound)?;
        let result = f(&mut sim, &mut file);
        if let Some(there) = sim.files.get_mut(&self.1) {
            *there = file;
        }
        result
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
        let (was_off, called) = self.refusable();
        self.with(|sim, file| {
            let end = offset as usize + bytes.len();
            assert!(end <= file.visible.len(), "a write beyond the end of {}", self.1);
            // A failure within a write leaves a part of it in the page cache.
            let written = match called {
                Ok(()) => bytes.len(),
                Err(_) if was_off => 0,
                Err(_) => sim.draw.below(bytes.len() as u64 + 1) as usize,
            };
            let mut at = offset as usize;
            let end = at + written;
            let visible = Arc::make_mut(&mut file.visible);
            while at < end {
                let next = ((at / SECTOR + 1) * SECTOR).min(end);
                let piece = &bytes[at - offset as usize..next - offset as usize];
                visible[at..next].copy_from_slice(piece);
                file.pending.push((at, piece.to_vec()));
                at = next;
            }
            called
        })
    }

    fn sync(&self) -> io::Result<()> {
        let (_, called) = self.refusable();
        self.with(|sim, file| {
            if called.is_err() {
                if !sim.off {
                    // As in the kernel, the pages now count as written, although some are not.
                    file.settle_any(&mut sim.draw);
                }
                return called;
            }
            file.settle();
            Ok(())
        })
    }

    fn extend(&self, len: u64) -> Result<(), MappingError> {
        let (_, called) = self.refusable();
        self.with(|_, file| {
            called?;
            for bytes in [&mut file.visible, &mut file.durable] {
                let longer = bytes.len().max(len as usize);
                Arc::make_mut(bytes).resize(longer, 0);
            }
            Ok(())
        })
        .map_err(Into::into)
    }
}
