//! The systems being measured: the library, and the maps in DRAM that one would use instead.
//!
//! A measurement is a [`Job`], written once over [`System`] and compiled for each system, so that
//! none pays for dynamic dispatch. No system is told how many records to expect: all begin empty
//! and grow.

mod library;
#[cfg(feature = "maps")]
mod maps;
#[cfg(feature = "maps")]
mod ordered;

pub use library::{Library, Medium, create_map, create_pool, map_options};

use crate::form::{Form, Hand, Reads, Strings, Words};
use crate::{Failure, Fallible, limits};
use outlast::{RecordForm, Scheme};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// A map under measurement. Its keys and values are words; the record form decides how they are
/// stored.
pub trait System: Send + Sync {
    /// Returns the value of a key.
    fn get(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>>;

    /// Inserts a key that should be absent. Returns whether it was.
    fn insert(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible<bool>;

    /// Replaces the value of a key that should be present. Returns whether it was.
    fn update(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible<bool>;

    /// Removes a key. Returns its value.
    fn remove(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>>;

    /// Appends the values of many keys to `found`. Systems without batched lookups look them up one
    /// by one.
    fn get_many(&self, hand: &mut Hand, keys: &[u64], found: &mut Vec<Option<u64>>) -> Fallible {
        for &key in keys {
            found.push(self.get(hand, key)?);
        }
        Ok(())
    }

    /// Changes many records, one after another, and appends to `done` whether each was changed.
    /// Systems without batched changes change them with one call each.
    fn change_many(
        &self,
        hand: &mut Hand,
        how: Many,
        records: &[(u64, u64)],
        done: &mut Vec<bool>,
    ) -> Fallible {
        for &(key, value) in records {
            done.push(match how {
                Many::Insert => self.insert(hand, key, value)?,
                Many::Update => self.update(hand, key, value)?,
                Many::Remove => self.remove(hand, key)?.is_some(),
            });
        }
        Ok(())
    }

    /// Appends up to `records` records to `found`, in key order from `from` on. Only for systems
    /// that keep a key order.
    fn scan(
        &self,
        hand: &mut Hand,
        from: u64,
        records: usize,
        found: &mut Vec<(u64, u64)>,
    ) -> Fallible {
        let _ = (hand, from, records, found);
        Err("range scan on an unordered system".into())
    }

    /// Returns the load factor with `records` records, and the space that the system uses outside
    /// the heap, if it can tell them.
    fn room(&self, records: u64) -> Fallible<Room> {
        let _ = records;
        Ok(Room::default())
    }
}

/// A change of many records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Many {
    /// Each is inserted.
    Insert,
    /// The value of each is replaced.
    Update,
    /// The key of each is removed.
    Remove,
}

/// The part of a system's space usage that only the system itself can report.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Room {
    /// Records per record slot.
    pub load_factor: Option<f64>,
    /// Size of the pool's file in bytes.
    pub file_bytes: Option<u64>,
    /// Size of the pool's file without its free pages, in bytes.
    pub pool_bytes: Option<u64>,
    /// Bytes of DRAM that the index reports.
    pub index_dram_bytes: Option<u64>,
    /// Bytes of DRAM outside the heap.
    pub shadow_bytes: Option<u64>,
    /// The part of those bytes in huge pages.
    pub shadow_huge_bytes: Option<u64>,
    /// Bytes of the pool mapped with huge pages.
    pub huge_bytes: Option<u64>,
}

/// A system to measure, or to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// outlast with the requested scheme.
    Outlast,
    /// outlast with this scheme, as a rival. If this is the requested scheme, the ratio shows how
    /// much equal systems vary.
    Scheme(Scheme),
    /// outlast with the requested scheme and a journal, as a rival.
    Journaled,
    /// Shards, each a hash table behind a lock.
    Dashmap,
    /// Like `Dashmap`, but always with pairs of words, whatever the record form of the other
    /// systems.
    DashmapU64,
    /// Lock-free open addressing; records in blocks of their own.
    Papaya,
    /// Buckets with locks, incremental resizing.
    Scc,
    /// A hash table behind one lock.
    Hashbrown,
    /// A lock-free skip list, in key order.
    Skiplist,
    /// A B-tree behind one lock, in key order.
    Btree,
}

impl Kind {
    /// The maps in DRAM of this build.
    pub const MAPS: &'static [Kind] = if cfg!(feature = "maps") {
        &[
            Kind::Dashmap,
            Kind::DashmapU64,
            Kind::Papaya,
            Kind::Scc,
            Kind::Hashbrown,
            Kind::Skiplist,
            Kind::Btree,
        ]
    } else {
        &[]
    };

    /// Returns the rivals of this build: maps in DRAM, and schemes.
    pub fn rivals() -> impl Iterator<Item = Kind> {
        let schemes = Scheme::ALL.iter().copied().map(Kind::Scheme);
        Kind::MAPS.iter().copied().chain(schemes).chain([Kind::Journaled])
    }

    /// Its name, as commands accept and print it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Outlast => "outlast",
            Kind::Scheme(scheme) => scheme.name(),
            Kind::Journaled => "outlast-journal",
            Kind::Dashmap => "dashmap",
            Kind::DashmapU64 => "dashmap-u64",
            Kind::Papaya => "papaya",
            Kind::Scc => "scc",
            Kind::Hashbrown => "hashbrown",
            Kind::Skiplist => "skiplist",
            Kind::Btree => "btree",
        }
    }

    /// Whether it keeps a key order and supports range scans.
    pub fn is_ordered(self, setup: &Setup) -> bool {
        match self.scheme(setup) {
            Some(scheme) => scheme.is_ordered(),
            None => matches!(self, Kind::Skiplist | Kind::Btree),
        }
    }

    /// Its scheme, if it is outlast.
    pub fn scheme(self, setup: &Setup) -> Option<Scheme> {
        match self {
            Kind::Outlast | Kind::Journaled => Some(setup.scheme),
            Kind::Scheme(scheme) => Some(scheme),
            _ => None,
        }
    }

    /// Returns the setup of this system in a run with `setup`.
    pub fn setup(self, setup: &Setup) -> Setup {
        let setup = setup.clone();
        match self {
            Kind::Scheme(scheme) => Setup { scheme, ..setup },
            Kind::Journaled => Setup { medium: Medium::Journal, ..setup },
            Kind::DashmapU64 => {
                Setup { form: RecordForm::Inline, key_bytes: 8, value_bytes: 8, ..setup }
            }
            _ => setup,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        Kind::rivals().find(|kind| kind.name() == text).ok_or_else(|| {
            let known: Vec<&str> = Kind::rivals().map(Kind::name).collect();
            let maps = if Kind::MAPS.is_empty() { " (no maps: feature `maps`)" } else { "" };
            format!("unknown rival {text:?}; known: {}{maps}", known.join(", "))
        })
    }
}

/// The setup of a system.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The scheme of the map.
    pub scheme: Scheme,
    /// The record form.
    pub form: RecordForm,
    /// Key size in bytes.
    pub key_bytes: usize,
    /// Value size in bytes.
    pub value_bytes: usize,
    /// How reads of byte strings return values.
    pub reads: Reads,
    /// The medium that the pool is treated as being on.
    pub medium: Medium,
    /// The directory of the pool's file.
    pub dir: PathBuf,
    /// Stash buckets per Dash segment.
    pub stash_buckets: u32,
    /// How many threads may help to move a table of EA-PHT, if not the scheme's default.
    pub helpers: Option<u32>,
    /// Sizes of an ordered map's nodes.
    pub nodes: NodeSizes,
    /// Seed of the hash function.
    pub seed: u64,
    /// Whether changes are made in batches, by systems that have such calls.
    pub batched: bool,
}

/// Sizes of the nodes of an ordered map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSizes {
    /// Pairs per leaf.
    pub leaf_slots: u32,
    /// Leaves per inner node.
    pub node_leaves: u32,
}

impl Default for NodeSizes {
    /// The library's defaults.
    fn default() -> NodeSizes {
        NodeSizes { leaf_slots: 56, node_leaves: 128 }
    }
}

impl Setup {
    /// Creates the buffers of a thread.
    pub fn hand(&self) -> Hand {
        Hand::new(self.key_bytes, self.value_bytes, self.reads)
    }

    /// A setup for records of 8-byte keys and values on the page cache.
    pub fn plain(scheme: Scheme, form: RecordForm, dir: PathBuf, seed: u64) -> Setup {
        Setup {
            scheme,
            form,
            key_bytes: 8,
            value_bytes: 8,
            reads: Reads::Owned,
            medium: Medium::PageCache,
            dir,
            stash_buckets: 2,
            helpers: None,
            nodes: NodeSizes::default(),
            seed,
            batched: false,
        }
    }

    /// Checks that records of these sizes are possible in such a table.
    pub fn check_form(&self) -> Fallible {
        let sizes = [
            ("key", self.key_bytes, crate::form::KEY_BYTES_MAX),
            ("value", self.value_bytes, crate::form::VALUE_BYTES_MAX),
        ];
        for (what, bytes, max) in sizes {
            if self.form == RecordForm::Inline && bytes != 8 {
                return Err(limits::refused(format!(
                    "--{what}-size {bytes}: inline records have keys and values of 8 bytes"
                )));
            }
            limits::range(&format!("{what}-size"), bytes, 8..=max)?;
        }
        if let Some(helpers) = self.helpers {
            if !has_helpers(self.scheme) {
                let why = format!("--helpers {helpers}: {} has no helpers", self.scheme.name());
                return Err(limits::refused(why));
            }
            limits::range("helpers", helpers, 1..=64)?;
        }
        check_stash(self.scheme, self.stash_buckets)
    }

    /// Checks that such pools can be created.
    pub fn check(&self) -> Fallible {
        self.check_form()?;
        if let Medium::EmulatedPm { line_ns, fence_ns } = self.medium {
            limits::range("line-ns", line_ns, 0..=limits::DELAY_NS_MAX)?;
            limits::range("fence-ns", fence_ns, 0..=limits::DELAY_NS_MAX)?;
        }
        if !self.dir.is_dir() {
            let why = format!("--pool-dir {}: no such directory", self.dir.display());
            return Err(limits::refused(why));
        }
        tempfile::tempfile_in(&self.dir)
            .map_err(|e| limits::refused(format!("--pool-dir {}: {e}", self.dir.display())))?;
        Ok(())
    }

    /// Checks that a pool can hold this many records, and that there are at least `least`.
    pub fn check_records(&self, records: u64, least: u64) -> Fallible {
        limits::range("records", records, least..=limits::RECORDS_MAX)?;
        limits::fits(&self.dir, records, self.key_bytes + self.value_bytes)
    }
}

/// Returns whether the segments of this scheme's maps have stash buckets.
pub fn has_stash(scheme: Scheme) -> bool {
    matches!(scheme, Scheme::DashEh | Scheme::DashLh)
}

/// Returns whether threads help each other to move the tables of this scheme's maps.
fn has_helpers(scheme: Scheme) -> bool {
    matches!(scheme, Scheme::EaPht | Scheme::EaPhtH | Scheme::EaPhtHpr)
}

/// Checks that a map of this scheme can have this many stash buckets. Schemes without a stash
/// accept only the default.
pub fn check_stash(scheme: Scheme, stash_buckets: u32) -> Fallible {
    let why = match (has_stash(scheme), stash_buckets) {
        (true, 2 | 4) | (false, 2) => return Ok(()),
        (true, _) => "2 or 4".into(),
        (false, _) => format!("{} has no stash", scheme.name()),
    };
    Err(limits::refused(format!("--stash {stash_buckets}: {why}")))
}

/// A job that runs on any system.
pub trait Job {
    /// The job's result.
    type Output;

    /// Runs the job.
    fn run<S: System>(self, system: &S) -> Fallible<Self::Output>;
}

/// What an operation of a system survives once it has returned.
pub fn guarantee(kind: Kind, setup: &Setup) -> String {
    match kind {
        Kind::Outlast | Kind::Scheme(_) => setup.medium.guarantee(),
        Kind::Journaled => Medium::Journal.guarantee(),
        _ => "nothing: gone with the process".into(),
    }
}

/// Creates a system with the setup of [`Kind::setup`], and runs a job on it.
pub fn with<J: Job>(kind: Kind, setup: &Setup, job: J) -> Fallible<J::Output> {
    let setup = &kind.setup(setup);
    match (kind, setup.form) {
        (Kind::Outlast | Kind::Scheme(_) | Kind::Journaled, RecordForm::Inline) => {
            job.run(&Library::<u64>::create(setup)?)
        }
        (Kind::Outlast | Kind::Scheme(_) | Kind::Journaled, RecordForm::Bytes) => {
            job.run(&Library::<[u8]>::create(setup)?)
        }
        (_, RecordForm::Inline) => with_map::<Words, J>(kind, setup, job),
        (_, RecordForm::Bytes) => with_map::<Strings, J>(kind, setup, job),
    }
}

#[cfg(feature = "maps")]
fn with_map<F: Form, J: Job>(kind: Kind, setup: &Setup, job: J) -> Fallible<J::Output> {
    let build = crate::form::OurBuild::new(setup.seed)?;
    match kind {
        Kind::Outlast | Kind::Scheme(_) | Kind::Journaled => {
            Err(Failure::from("outlast is not a map in DRAM"))
        }
        Kind::Dashmap | Kind::DashmapU64 => job.run(&maps::Dashmap::<F>::new(build)),
        Kind::Papaya => job.run(&maps::Papaya::<F>::new(build)),
        Kind::Scc => job.run(&maps::Scc::<F>::new(build)),
        Kind::Hashbrown => job.run(&maps::Hashbrown::<F>::new(build)),
        Kind::Skiplist => job.run(&ordered::Skiplist::<F>::new()),
        Kind::Btree => job.run(&ordered::Btree::<F>::new()),
    }
}

#[cfg(not(feature = "maps"))]
#[expect(clippy::extra_unused_type_parameters, reason = "the same call with and without maps")]
fn with_map<F: Form, J: Job>(kind: Kind, _: &Setup, _: J) -> Fallible<J::Output> {
    Err(Failure::from(format!("this build has no {kind} (feature `maps`)")))
}
