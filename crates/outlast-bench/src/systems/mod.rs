//! What is measured: the library, and the maps in DRAM that one would use instead.
//!
//! A measurement is a [`Job`], written once over [`System`] and compiled for each, so that
//! none pays for a call that another does not. No system is told how many records are to
//! come: all begin empty and grow.

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

/// A map under measurement. Keys and values are words; what is stored for them is the
/// record form's affair.
pub trait System: Send + Sync {
    /// The value of a key.
    fn get(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>>;

    /// Adds a key that is absent. Whether it was.
    fn insert(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible<bool>;

    /// Replaces the value of a key that is there. Whether it was.
    fn update(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible<bool>;

    /// Removes a key. The value that it had.
    fn remove(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>>;

    /// The values of many keys; those that have no batched lookup get them one by one.
    fn get_many(&self, hand: &mut Hand, keys: &[u64], found: &mut Vec<Option<u64>>) -> Fallible {
        for &key in keys {
            found.push(self.get(hand, key)?);
        }
        Ok(())
    }

    /// The records from a key on, in the order of keys: so many of them, or those that there are.
    /// Of systems that keep an order.
    fn scan(
        &self,
        hand: &mut Hand,
        from: u64,
        records: usize,
        found: &mut Vec<(u64, u64)>,
    ) -> Fallible {
        let _ = (hand, from, records, found);
        Err("a system that keeps no order was asked for a range".into())
    }

    /// What it keeps outside the heap, and how full it is, when it holds this many records.
    fn room(&self, records: u64) -> Fallible<Room>;
}

/// What a system takes, as far as only it can tell.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Room {
    /// Records to a record slot.
    pub load_factor: Option<f64>,
    /// Bytes of the pool's file.
    pub file_bytes: Option<u64>,
    /// Bytes of the pool's file less its free pages.
    pub pool_bytes: Option<u64>,
    /// Bytes of DRAM that an index says it keeps.
    pub index_dram_bytes: Option<u64>,
    /// Bytes of DRAM beside the heap.
    pub shadow_bytes: Option<u64>,
    /// What of them is in huge pages.
    pub shadow_huge_bytes: Option<u64>,
    /// Bytes of the pool that are mapped with huge pages.
    pub huge_bytes: Option<u64>,
}

/// Which system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// outlast, with the scheme that was asked for.
    Outlast,
    /// outlast with this scheme, as a rival. The same one again shows what the ratio of
    /// equal things is here.
    Scheme(Scheme),
    /// Shards, each a hash table behind a lock.
    Dashmap,
    /// The same over pairs of words, whatever the record form of the others.
    DashmapU64,
    /// Lock-free open addressing; records in blocks of their own.
    Papaya,
    /// Buckets with locks, incremental resizing.
    Scc,
    /// A hash table behind one lock.
    Hashbrown,
    /// A lock-free skip list: in the order of keys.
    Skiplist,
    /// A B-tree behind one lock: in the order of keys.
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

    /// The rivals of this build: maps in DRAM, and schemes.
    pub fn rivals() -> impl Iterator<Item = Kind> {
        Kind::MAPS.iter().copied().chain(Scheme::ALL.iter().copied().map(Kind::Scheme))
    }

    /// Its name, as commands take and print it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Outlast => "outlast",
            Kind::Scheme(scheme) => scheme.name(),
            Kind::Dashmap => "dashmap",
            Kind::DashmapU64 => "dashmap-u64",
            Kind::Papaya => "papaya",
            Kind::Scc => "scc",
            Kind::Hashbrown => "hashbrown",
            Kind::Skiplist => "skiplist",
            Kind::Btree => "btree",
        }
    }

    /// Whether it keeps an order, and can be asked for ranges.
    pub fn is_ordered(self, setup: &Setup) -> bool {
        match self.scheme(setup) {
            Some(scheme) => scheme.is_ordered(),
            None => matches!(self, Kind::Skiplist | Kind::Btree),
        }
    }

    /// The scheme, if it is outlast.
    pub fn scheme(self, setup: &Setup) -> Option<Scheme> {
        match self {
            Kind::Outlast => Some(setup.scheme),
            Kind::Scheme(scheme) => Some(scheme),
            _ => None,
        }
    }

    /// What it is made for, where a run is made for `setup`.
    pub fn setup(self, setup: &Setup) -> Setup {
        let setup = setup.clone();
        match self {
            Kind::Scheme(scheme) => Setup { scheme, ..setup },
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

/// What a system is made for.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The scheme of the map.
    pub scheme: Scheme,
    /// The record form.
    pub form: RecordForm,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// How reads of byte strings answer.
    pub reads: Reads,
    /// What the pool is treated as lying on.
    pub medium: Medium,
    /// Where the pool's file is made.
    pub dir: PathBuf,
    /// Stash buckets of a Dash segment.
    pub stash_buckets: u32,
    /// Sizes of an ordered map's nodes.
    pub nodes: NodeSizes,
    /// Of the hash function.
    pub seed: u64,
}

/// Sizes of the nodes of an ordered map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSizes {
    /// Pairs of a leaf.
    pub leaf_slots: u32,
    /// Leaves of an inner node.
    pub node_leaves: u32,
}

impl Default for NodeSizes {
    /// What maps have unless they are told otherwise.
    fn default() -> NodeSizes {
        NodeSizes { leaf_slots: 56, node_leaves: 128 }
    }
}

impl Setup {
    /// Buffers for a thread.
    pub fn hand(&self) -> Hand {
        Hand::new(self.key_bytes, self.value_bytes, self.reads)
    }

    /// For records of 8 and 8 bytes on the page cache.
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
            nodes: NodeSizes::default(),
            seed,
        }
    }

    /// Whether records of these sizes can be, in such a table.
    pub fn check_form(&self) -> Fallible {
        for (what, bytes) in [("key", self.key_bytes), ("value", self.value_bytes)] {
            if self.form == RecordForm::Inline && bytes != 8 {
                return Err(limits::refused(format!(
                    "--{what}-size {bytes}: inline records have keys and values of 8 bytes"
                )));
            }
            limits::range(&format!("{what}-size"), bytes, 8..=crate::form::BYTES_MAX)?;
        }
        check_stash(self.scheme, self.stash_buckets)
    }

    /// Whether such pools can be made.
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

    /// Whether a pool can hold so many records, of which there must be some.
    pub fn check_records(&self, records: u64, least: u64) -> Fallible {
        limits::range("records", records, least..=limits::RECORDS_MAX)?;
        limits::fits(&self.dir, records, self.key_bytes + self.value_bytes)
    }
}

/// Whether a map of this scheme can have so many stash buckets; those without a stash take the
/// default.
pub fn check_stash(scheme: Scheme, stash_buckets: u32) -> Fallible {
    let why = match (scheme.has_setting("stash_buckets"), stash_buckets) {
        (true, 2 | 4) | (false, 2) => return Ok(()),
        (true, _) => "2 or 4".into(),
        (false, _) => format!("{} has no stash", scheme.name()),
    };
    Err(limits::refused(format!("--stash {stash_buckets}: {why}")))
}

/// Something to be done with any system.
pub trait Job {
    /// What comes of it.
    type Output;

    /// Does it.
    fn run<S: System>(self, system: &S) -> Fallible<Self::Output>;
}

/// What the answers of a system survive.
pub fn guarantee(kind: Kind, setup: &Setup) -> String {
    match kind {
        Kind::Outlast | Kind::Scheme(_) => setup.medium.guarantee(),
        _ => "nothing: gone with the process".into(),
    }
}

/// Makes a system as [`Kind::setup`] has it, and does a job with it.
pub fn with<J: Job>(kind: Kind, setup: &Setup, job: J) -> Fallible<J::Output> {
    let setup = &kind.setup(setup);
    match (kind, setup.form) {
        (Kind::Outlast | Kind::Scheme(_), RecordForm::Inline) => {
            job.run(&Library::<u64>::create(setup)?)
        }
        (Kind::Outlast | Kind::Scheme(_), RecordForm::Bytes) => {
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
        Kind::Outlast | Kind::Scheme(_) => Err(Failure::from("outlast is no map in DRAM")),
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
