//! What a power loss leaves of base and segments, and what a rebuild makes of it.

use super::Counts;
use super::Ledger;
use super::life::{At, pool_in};
use crate::explore::Recording;
use crate::model::Image;
use crate::random::Random;
use crate::state::{Checked, Fault, ensure};
use outlast::internals::journal::base::{Base, Rebuilt, complete};
use outlast::internals::journal::epoch::{Attempt, Change, LINE};
use outlast::internals::journal::files::Directory;
use outlast::internals::journal::log::Writer;
use outlast::internals::journal::segment::{Owner, has_others};
use outlast::internals::journal::sim::{BASE, SimDisk};
use std::io;
use std::sync::Arc;

/// In how many ways power is lost at one call.
const WAYS: u64 = 3;
/// The largest pool, in bytes.
const CAPACITY: u64 = 4 << 20;

/// The disk before a call, and what was promised by then.
pub(super) struct Fork {
    pub(super) disk: SimDisk,
    pub(super) ledger: Ledger,
    /// The runs so far.
    pub(super) runs: Vec<Arc<Recording>>,
    /// The disk before the life under way.
    pub(super) before: Option<SimDisk>,
}

impl Fork {
    /// Returns the moments at which the epoch can have been cut.
    pub(super) fn ends(&self, epoch: u64) -> Checked<Vec<At>> {
        let Ledger { ends, told, .. } = &self.ledger;
        let known = ends.get(&epoch);
        let known = known.ok_or_else(|| Fault(format!("epoch {epoch} was never begun")))?;
        let is_new = |end: &At| *end >= *told || self.is_same(*end, *told);
        let new: Vec<At> = known.iter().copied().filter(is_new).collect();
        ensure(!new.is_empty(), || {
            format!("epoch {epoch} ends at {known:?}, but everything before {told:?} was confirmed")
        })?;
        Ok(new)
    }

    /// Returns whether the contents were the same at two moments, so that there may have been
    /// nothing to cut in between.
    fn is_same(&self, earlier: At, later: At) -> bool {
        let state = |at: At| self.runs[at.stage].allowed(at.moment).0.first().cloned().flatten();
        matches!((state(earlier), state(later)), (Some(one), Some(other)) if one == other)
    }
}

/// Rebuilds of one fork.
pub(super) struct Rebuild<'r> {
    pub(super) fork: &'r Fork,
    pub(super) counts: &'r Counts,
    pub(super) seed: u64,
}

/// The base, the epoch that it holds, and its pool. There is no base if the file has no `meta` yet: it is
/// still a pool without a journal.
type Done = (Option<Base>, u64, Image);

impl Rebuild<'_> {
    /// Loses power in several ways, rebuilds, and has each result checked.
    pub(super) fn all(&self, check: &dyn Fn(&Image, &[At]) -> Checked) -> Checked {
        let mut random = Random::new(self.seed);
        for way in 0..WAYS {
            let disk = self.fork.disk.copy();
            if way > 0 || random.below(4) > 0 {
                // Without this, the process died and its working file is lost, but the page cache
                // survived.
                disk.restart();
            }
            // The rebuild loses power too.
            if random.below(2) == 0 {
                self.count(&disk);
                disk.set(random.below(30), if random.below(3) == 0 { 5 } else { 0 });
                if let Ok(done) = self.rebuild(&disk)
                    && !disk.is_off()
                {
                    done?;
                }
                disk.restart();
            }
            if let Some((_, epoch, image)) = self.once(&disk)? {
                check(&image, &self.fork.ends(epoch)?)?;
            }
        }
        self.damaged(&mut random, check)
    }

    fn count(&self, disk: &SimDisk) -> bool {
        Counts::add(&self.counts.images);
        Counts::is_new(&self.counts.seen, disk.digest())
    }

    /// Rebuilds a disk. After the first life, returns `None` if a disk with the same content was
    /// rebuilt before.
    pub(super) fn once(&self, disk: &SimDisk) -> Checked<Option<Done>> {
        let is_new = self.count(disk);
        let failed = |error| Fault(format!("a rebuild: {error}"));
        let done = self.rebuild(disk).map_err(failed)??;
        Ok(Some(done).filter(|_| is_new || self.fork.before.is_none()))
    }

    fn rebuild(&self, disk: &SimDisk) -> io::Result<Checked<Done>> {
        Counts::add(&self.counts.rebuilds);
        let base = match Base::open(disk.open(BASE)?)? {
            Ok(base) => base,
            // The pool was closed, and has no journal yet.
            Err(file) => return Ok(Ok((None, 0, pool_in(&*file, CAPACITY)?))),
        };
        let epoch = match base.meta().closed {
            true if has_others(disk, base.meta().owner(), base.meta().end())? => {
                let why = "the life has ended, but segments of another one are there";
                return Ok(Err(Fault(why.into())));
            }
            true => base.meta().checkpoint,
            false => match complete(disk, &base, |_, _| ())? {
                Rebuilt::Whole { epoch, .. } => epoch,
                other => return Ok(Err(Fault(format!("a rebuild: {other:?}")))),
            },
        };
        let image = pool_in(base.file(), CAPACITY)?;
        Ok(Ok((Some(base), epoch, image)))
    }

    /// Damages the disk as no crash can. A rebuild must refuse it, or find all that is still proven to
    /// have been there.
    fn damaged(&self, random: &mut Random, check: &dyn Fn(&Image, &[At]) -> Checked) -> Checked {
        let disk = self.fork.disk.copy();
        disk.restart();
        let failed = |error: io::Error| Fault(format!("a damaged disk: {error}"));
        let names = disk.names().map_err(failed)?;
        let segments: Vec<&String> = names.iter().filter(|name| *name != BASE).collect();
        let open = || disk.open(BASE).and_then(|file| Base::open(file));
        let Ok(base) = open().map_err(failed)? else { return Ok(()) };
        if base.meta().closed {
            return Ok(());
        }
        let (meta, mut least) = (base.meta(), 0);
        let kind = random.below(8);
        if kind > 3 && !segments.is_empty() {
            let Ok((_, whole, _)) = self.rebuild(&disk.copy()).map_err(failed)? else {
                return Ok(());
            };
            // Only the last epoch may go unnoticed, and only if a sector of it was hit.
            least = whole - u64::from(kind == 7).min(whole);
        }
        let refused = match (kind, &self.fork.before) {
            (4.., _) if !segments.is_empty() => {
                damage(&disk, &segments, kind, random).map_err(failed)?;
                false
            }
            (0, _) => {
                let len = base.meta().size.saturating_sub(1 + random.below(8_192));
                drop(base);
                disk.cut_short(BASE, len);
                true
            }
            (1, Some(before)) => {
                // An older base, with the segments of this life alone.
                for name in before.names().map_err(failed)? {
                    if segments.contains(&&name) {
                        disk.remove(&name).map_err(failed)?;
                    }
                }
                disk.replace(BASE, before);
                let Ok(older) = open().map_err(failed)? else { return Ok(()) };
                let is_of_this_life = older.meta().life == base.meta().life;
                if is_of_this_life || older.meta().closed {
                    return Ok(());
                }
                true
            }
            (2, _) => {
                // The segments of another life of the same pool, which began with the same base.
                let removed = segments.iter().try_for_each(|name| disk.remove(name));
                let mut change = Change::default();
                change.push(40..41, &[0xee; LINE]);
                let start = Attempt::unknown(meta.checkpoint);
                let another = Owner { pool: meta.pool, life: !meta.life };
                removed
                    .and_then(|()| Writer::new(Arc::new(disk.clone()), another, start))
                    .and_then(|mut writer| writer.append(&change))
                    .map_err(failed)?;
                true
            }
            _ if segments.is_empty() => return Ok(()),
            _ => {
                let gone = segments[random.below(segments.len() as u64) as usize];
                disk.remove(gone).map_err(failed)?;
                least = named(&disk, meta.life).map_err(failed)?;
                false
            }
        };
        match self.rebuild(&disk).map_err(failed)? {
            Err(_) => Counts::add(&self.counts.refused),
            Ok((_, epoch, _)) if refused => {
                return Err(Fault(format!("a damaged disk was rebuilt up to epoch {epoch}")));
            }
            Ok((_, epoch, image)) => {
                ensure(epoch >= least, || {
                    format!("damage {kind}: rebuilt up to epoch {epoch}, although {least} is known")
                })?;
                // The pool may be older than it should be, but it must be intact.
                let Ledger { tries, earlier, life, .. } = &self.fork.ledger;
                let tries = if meta.life < *life { earlier } else { tries };
                let ends = tries.get(&epoch);
                let ends = ends.ok_or_else(|| Fault(format!("epoch {epoch} was never begun")))?;
                let damaged = |fault: Fault| Fault(format!("damage {kind}: {fault}"));
                check(&image, ends).map_err(damaged)?;
            }
        }
        Ok(())
    }
}

/// Bytes of a sector in the sense of the journal.
const SECTOR: usize = 4096;

fn read(disk: &SimDisk, name: &str) -> io::Result<Vec<u8>> {
    let file = disk.open(name)?;
    let mut bytes = vec![0; file.len()? as usize];
    file.read_at(&mut bytes, 0).map(|_| bytes)
}

fn write(disk: &SimDisk, name: &str, bytes: &[u8]) -> io::Result<()> {
    disk.create(name, bytes, bytes.len() as u64).map(drop)
}

/// Damages segments: a bit of a header (4), a length (5), two files that changed places (6) or two
/// sectors (7).
fn damage(disk: &SimDisk, names: &[&String], kind: u64, random: &mut Random) -> io::Result<()> {
    let mut any = || names[random.below(names.len() as u64) as usize];
    let (one, other) = (any(), any());
    let (mut first, mut second) = (read(disk, one)?, read(disk, other)?);
    let mut sector = |bytes: &[u8]| random.below((bytes.len() / SECTOR) as u64) as usize * SECTOR;
    match kind {
        4 => {
            let bit = random.below(64 * 8) as usize;
            first[bit / 8] ^= 1 << (bit % 8);
            write(disk, one, &first)
        }
        5 => {
            let len = sector(&first) as u64;
            disk.cut_short(one, len);
            Ok(())
        }
        6 => {
            // Without intact headers, only the epochs tell.
            let flip = random.below(2) as u8;
            (first[0], second[0]) = (first[0] ^ flip, second[0] ^ flip);
            write(disk, one, &second)?;
            write(disk, other, &first)
        }
        _ => {
            let (from, to) = (sector(&first), sector(&second));
            if one == other {
                let (early, late) = (from.min(to), from.max(to));
                let (head, tail) = first.split_at_mut(late);
                if early < late {
                    head[early..early + SECTOR].swap_with_slice(&mut tail[..SECTOR]);
                }
            } else {
                first[from..from + SECTOR].swap_with_slice(&mut second[to..to + SECTOR]);
                write(disk, other, &second)?;
            }
            write(disk, one, &first)
        }
    }
}

/// Returns the last epoch that the intact header of a segment or of a spare names.
fn named(disk: &SimDisk, life: u128) -> io::Result<u64> {
    let mut last = 0;
    for name in disk.names()? {
        let bytes = read(disk, &name)?;
        let word =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        // A write that failed can leave a part of a header.
        let sum = u64::from(crc32c::crc32c(&bytes[..56]));
        let is_intact = sum | sum << 32 == word(56);
        if is_intact
            && [&b"OLJSEGM1"[..], b"OLJSPAR1"].contains(&&bytes[..8])
            && word(40) == life as u64
        {
            last = last.max(word(16));
        }
    }
    Ok(last)
}
