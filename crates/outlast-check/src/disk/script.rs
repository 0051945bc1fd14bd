//! The script that runs while the file system fails, and the contents expected at each step.

use super::watch::{FaultAt, Watch};
use crate::codec::{key_bytes, value_bytes};
use crate::state::{Checked, Fault, ensure};
use outlast::internals::pmem::{Disk, MediumKind};
use outlast::{Config, Error, MapOptions, Pool, PoolOptions, RawMap, RecordForm, Scheme};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Records, as bytes.
pub type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// A step of the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Creates a pool.
    Create,
    /// Creates a map in it.
    MakeMap,
    /// Creates a map of another scheme, which needs a feature bit that the pool does not have.
    MakeOther,
    /// Inserts, updates and removes.
    Change,
    /// Inserts until the file has grown.
    Grow,
    /// Calls `sync`.
    Sync,
    /// Calls `snapshot`, over the previous snapshot.
    Snapshot,
    /// Calls `verify`.
    Verify,
    /// Calls `close`.
    Close,
    /// Opens the pool that was closed.
    Open,
    /// The process dies, and another process opens the pool.
    Kill,
}

/// All steps in order: each kind of call in each situation.
pub const STEPS: [Step; 20] = {
    use Step::{
        Change, Close, Create, Grow, Kill, MakeMap, MakeOther, Open, Snapshot, Sync, Verify,
    };
    [
        Create, MakeMap, Change, Sync, Change, Grow, Snapshot, Change, Snapshot, Close, Open,
        Change, MakeOther, Kill, Change, Kill, Sync, Verify, Change, Close,
    ]
};

/// The scheme, record form and medium of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject {
    /// The scheme.
    pub scheme: Scheme,
    /// The record form.
    pub form: RecordForm,
    /// The medium that the pool takes its file to be on.
    pub medium: MediumKind,
}

impl Subject {
    /// Returns options for a pool whose calls go to `disk`, under this boot id.
    pub fn options(self, disk: Disk, boot: u128) -> PoolOptions {
        PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .page_bits(12)
            .initial_size(160 << 10)
            .background(false)
            .recovery_threads(1)
            .identity(0x5eed, 0xd15c)
            .boot_id(boot)
            .medium(self.medium)
            .disk(disk)
    }

    /// Opens or creates the pool's map.
    pub fn map(self, pool: &Pool) -> Result<RawMap, Error> {
        let schema = match self.form {
            RecordForm::Inline => "u64",
            RecordForm::Bytes => "[u8]",
        };
        let mut config = Config::of(self.scheme);
        // A map as small as possible: only the calls matter, and there are hundreds of pools.
        match &mut config {
            Config::DashLh(config) => config.initial_depth = 1,
            Config::Group(config) => config.initial_depth = 1,
            Config::EaPht(config) => config.initial_depth = 1,
            Config::EaPhtH(config) => config.initial_depth = 1,
            Config::EaPhtHpr(config) => config.initial_depth = 1,
            _ => {}
        }
        let options = MapOptions::new().config(config).form(self.form);
        pool.raw_map_with("m", schema, schema, &options)
    }

    /// Opens or creates a map of another scheme in the pool.
    fn other_map(self, pool: &Pool) -> Result<RawMap, Error> {
        let mut others = Scheme::ALL.iter().copied();
        let other = others.find(|other| *other != self.scheme).expect("there are others");
        pool.raw_map_with("other", "u64", "u64", &MapOptions::new().scheme(other))
    }

    fn key(self, number: u64) -> Vec<u8> {
        match self.form {
            RecordForm::Inline => number.to_le_bytes().to_vec(),
            RecordForm::Bytes => key_bytes(number),
        }
    }

    fn value(self, number: u64) -> Vec<u8> {
        match self.form {
            RecordForm::Inline => (number ^ 0xabcd).to_le_bytes().to_vec(),
            RecordForm::Bytes => value_bytes(number),
        }
    }
}

/// The boot id under which the script runs.
pub const BOOT: u128 = 1;

/// What a pool must hold.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// The acknowledged contents.
    pub acknowledged: Content,
    /// The operation in flight: a key, and its value afterwards.
    pub under_way: Option<(Vec<u8>, Option<Vec<u8>>)>,
    /// Whether the pool may be refused after a power loss: it has changed since it was last made
    /// clean, or a write-back has failed.
    pub may_be_refused: bool,
    /// Whether creation has returned.
    pub exists: bool,
}

impl Expected {
    /// Returns the contents that the pool may have.
    pub fn allowed(&self) -> Vec<Content> {
        let mut allowed = vec![self.acknowledged.clone()];
        if let Some((key, value)) = &self.under_way {
            let mut after = self.acknowledged.clone();
            set(&mut after, key, value.as_ref());
            allowed.push(after);
        }
        allowed
    }
}

fn set(content: &mut Content, key: &[u8], value: Option<&Vec<u8>>) {
    match value {
        Some(value) => content.insert(key.to_vec(), value.clone()),
        None => content.remove(key),
    };
}

/// The script in progress on a pool.
pub struct Play<'p> {
    subject: Subject,
    /// The path of the pool's file.
    pub path: &'p Path,
    /// The file system.
    pub watch: Arc<Watch>,
    pool: Option<(Pool, Option<RawMap>)>,
    /// What the pool must hold.
    pub expected: Expected,
    /// What the pool had to hold when a fault first struck: as before the step or, in a step that
    /// changes records, with the change under way.
    pub at_fault: Option<Expected>,
    number: u64,
    /// Whether the pool must report that it is suspect.
    suspect: bool,
}

impl<'p> Play<'p> {
    /// Makes a play whose script has not begun, so there is no pool.
    pub fn new(subject: Subject, path: &'p Path, faults: Vec<FaultAt>) -> Self {
        let watch = Arc::new(Watch::new(faults));
        Play {
            subject,
            path,
            watch,
            pool: None,
            expected: Expected::default(),
            at_fault: None,
            number: 0,
            suspect: false,
        }
    }

    fn options(&self) -> PoolOptions {
        self.subject.options(Disk::watched(Arc::clone(&self.watch) as _), BOOT)
    }

    fn snapshot_path(&self) -> PathBuf {
        self.path.with_extension("snapshot")
    }

    fn pool(&self) -> Result<&Pool, Error> {
        let open = self.pool.as_ref();
        open.map(|(pool, _)| pool).ok_or(Error::NotOpen(outlast::NotOpen::Closed))
    }

    /// Makes a step, and returns whether it succeeded. An error that no fault excuses is a finding.
    pub fn step(&mut self, number: usize) -> Checked<bool> {
        let step = STEPS[number];
        self.watch.begin(number);
        let struck = self.watch.struck();
        let before = self.expected.clone();
        let done = self.make(step);
        self.expected.under_way = None;
        if self.watch.struck() > struck && self.at_fault.is_none() {
            self.at_fault = Some(before);
        }
        let write_back_failed = self.watch.take_failed_write_back();
        self.suspect |= write_back_failed;
        self.expected.may_be_refused |= write_back_failed;
        if let Ok(pool) = self.pool() {
            let told = pool.durability().is_suspect;
            if step == Step::Verify && done.is_ok() && !write_back_failed {
                self.suspect = told;
            }
            ensure(told == self.suspect, || {
                format!("after step {number} ({step:?}) the pool is suspect: {told}")
            })?;
        }
        if self.path.exists() {
            self.watch.note(std::fs::read(self.path).expect("the pool is read"));
        }
        match done {
            Ok(()) => self.after(step)?,
            Err(error) => {
                let excused = self.watch.struck() > 0
                    && matches!(
                        error,
                        Error::Io { .. }
                            | Error::DiskFull { .. }
                            | Error::Suspect
                            | Error::NotOpen(_)
                    );
                ensure(excused, || format!("step {number} ({step:?}) failed: {error}"))?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Checks what must hold after a step that succeeded.
    fn after(&mut self, step: Step) -> Checked {
        match step {
            Step::Sync | Step::Snapshot | Step::Close => {
                ensure(!self.suspect, || format!("{step:?} of a suspect pool succeeded"))?;
                self.expected.may_be_refused = false;
            }
            Step::Create => self.expected.exists = true,
            _ => {}
        }
        if step == Step::Snapshot {
            ensure(self.watch.snapshot_is_durable() || self.watch.struck() > 0, || {
                "a snapshot returned before its name was durable".into()
            })?;
        }
        Ok(())
    }

    fn make(&mut self, step: Step) -> Result<(), Error> {
        match step {
            Step::Create => {
                // SAFETY: the file belongs to this script alone.
                let pool = unsafe { self.options().create(self.path) }?;
                self.pool = Some((pool, None));
                Ok(())
            }
            Step::MakeMap => {
                self.expected.may_be_refused = true;
                let map = self.subject.map(self.pool()?)?;
                self.pool.as_mut().expect("it is open").1 = Some(map);
                Ok(())
            }
            Step::MakeOther => self.subject.other_map(self.pool()?).map(drop),
            Step::Change => self.change(),
            Step::Grow => self.grow(),
            Step::Sync => self.pool()?.sync(),
            Step::Snapshot => self.pool()?.snapshot(self.snapshot_path()),
            Step::Verify => self.pool()?.verify().map(|_| ()),
            Step::Close => {
                let (pool, map) =
                    self.pool.take().ok_or(Error::NotOpen(outlast::NotOpen::Closed))?;
                drop(map);
                pool.close()
            }
            Step::Open => self.open(),
            Step::Kill => {
                self.kill();
                self.open()
            }
        }
    }

    fn open(&mut self) -> Result<(), Error> {
        // SAFETY: the file belongs to this script alone.
        let pool = unsafe { self.options().open(self.path) }?;
        let map = pool.raw_map("m").ok();
        self.pool = Some((pool, map));
        Ok(())
    }

    /// Drops the pool, and leaves the file as if the process had died before.
    pub fn kill(&mut self) {
        let Some(open) = self.pool.take() else { return };
        let content = std::fs::read(self.path).expect("the pool is read");
        self.watch.set_dead(true);
        drop(open);
        // Undo whatever dropping the pool did to the file: a dead process does nothing.
        std::fs::write(self.path, content).expect("the pool is written");
        self.watch.set_dead(false);
    }

    fn apply(&mut self, key: u64, value: Option<u64>) -> Result<(), Error> {
        let (key, value) = (self.subject.key(key), value.map(|value| self.subject.value(value)));
        let map = self.pool.as_ref().and_then(|(_, map)| map.clone());
        let map = map.ok_or(Error::NotOpen(outlast::NotOpen::Closed))?;
        let struck = self.watch.struck();
        self.expected.may_be_refused = true;
        self.expected.under_way = Some((key.clone(), value.clone()));
        let done = match &value {
            Some(value) => map.put(&key, value).map(|_| ()),
            None => map.remove(&key).map(|_| ()),
        };
        if self.watch.struck() > struck && self.at_fault.is_none() {
            self.at_fault = Some(self.expected.clone());
        }
        self.expected.under_way = None;
        done?;
        set(&mut self.expected.acknowledged, &key, value.as_ref());
        Ok(())
    }

    fn change(&mut self) -> Result<(), Error> {
        for _ in 0..4 {
            self.number += 1;
            self.apply(self.number, Some(self.number * 3))?;
        }
        self.apply(self.number - 1, Some(self.number * 5))?;
        self.apply(self.number - 2, None)
    }

    fn grow(&mut self) -> Result<(), Error> {
        let size = self.pool()?.store().core().size();
        while self.pool()?.store().core().size() == size {
            self.number += 1;
            self.apply(self.number, Some(self.number * 3))?;
        }
        Ok(())
    }
}

/// Returns the contents of a map.
pub fn content_of(map: &RawMap) -> Checked<Content> {
    let mut content = Content::new();
    for record in map.iter() {
        let (key, value) = record?;
        let twice = content.insert(key, value);
        ensure(twice.is_none(), || "a key was listed twice".into())?;
    }
    Ok(content)
}

/// Describes how contents differ, as a fault.
pub fn differs(found: &Content, expected: &Content) -> Fault {
    let lost = expected.iter().filter(|(key, value)| found.get(*key) != Some(value)).count();
    let more = found.keys().filter(|key| !expected.contains_key(*key)).count();
    Fault(format!(
        "{} records found, {} expected: {lost} lost or changed, {more} that should not be there",
        found.len(),
        expected.len()
    ))
}
