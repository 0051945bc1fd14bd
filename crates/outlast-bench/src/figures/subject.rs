//! The systems of the figures behind one small trait: the library's schemes, and the structures of
//! `outlast-peers`.
//!
//! The library's indexes are used without pool handles, as the peers are: no type check and no gate
//! comes before an operation, so both sides pay for the structure alone. Both lie in anonymous
//! memory whose first part is touched beforehand, and make every access through a seam. The library's
//! background work runs when [`Subject::step`] is called, and never in a thread of its own.

use crate::{Failure, Fallible};
use outlast::internals::db::store::{AnyIndex, MapSeam, OpenMap, Store};
use outlast::internals::index::{Change, Index, Inline, KeyRange, Previous};
use outlast::internals::pmem::{Alive, FlushInstruction, FlushMode, Latency, Mapping, MediumKind};
use outlast::internals::pmem::{Real, Traced};
use outlast::internals::pool::backing::Backing;
use outlast::internals::pool::core::{Core, CoreOptions};
use outlast::{Config, MapOptions, RecordForm, Scheme};
use outlast_peers::shared::Locks;
use outlast_peers::{Options, Peer, System as PeerSystem};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

/// A map from words to words.
pub trait Subject: Send + Sync {
    /// Returns the value of a key.
    fn get(&self, key: u64) -> Fallible<Option<u64>>;
    /// Inserts a record unless the key is present. Returns whether it was absent.
    fn insert(&self, key: u64, value: u64) -> Fallible<bool>;
    /// Replaces the value of a key. Returns whether it was present.
    fn update(&self, key: u64, value: u64) -> Fallible<bool>;
    /// Removes a key. Returns whether it was present.
    fn remove(&self, key: u64) -> Fallible<bool>;
    /// Appends up to `records` records from a key on, in key order.
    fn scan(&self, from: u64, records: usize, found: &mut Vec<(u64, u64)>) -> Fallible;
    /// Whether it keeps its keys in order.
    fn is_ordered(&self) -> bool;
    /// Does a piece of the index's background work, if it has any. Returns whether there may be more.
    fn step(&self) -> Fallible<bool>;
    /// Number of record slots; `None` if each record is allocated on its own.
    fn slots(&self) -> Fallible<Option<u64>>;
    /// How often it has grown.
    fn growths(&self) -> u64;
    /// How often all of it was rebuilt: doublings of the directory or of the table.
    fn doublings(&self) -> u64;
    /// Bytes of the index in DRAM, if it knows them.
    fn dram_bytes(&self) -> Fallible<Option<u64>>;

    /// Does background work, of the index and of its memory, until there is none.
    ///
    /// # Errors
    /// Those of [`step`](Self::step).
    fn settle(&self) -> Fallible {
        while self.step()? {}
        Ok(())
    }
}

/// A system under a name.
#[derive(Debug, Clone, PartialEq)]
pub struct System {
    /// Its name in plots and tables.
    pub name: String,
    what: What,
}

#[derive(Debug, Clone, PartialEq)]
enum What {
    Ours(Config),
    Peer(PeerSystem, Tuning),
}

/// What differs between variants of a peer.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Tuning {
    locks: Locks,
    bucket_slots: u64,
    unique: bool,
}

impl Tuning {
    const USUAL: Tuning = Tuning { locks: Locks::Sleeping, bucket_slots: 4, unique: true };
}

/// What the memory of a system needs, and what is recorded.
#[derive(Clone)]
pub enum Memory {
    /// Flushes and fences have no effect.
    NoFlush,
    /// Each flush is executed, with the best instruction of the processor and this delay a line.
    Flushes {
        /// Nanoseconds added to each line.
        line_ns: u64,
    },
    /// Everything is recorded.
    Recorded(Traced),
}

impl Memory {
    /// Memory whose flushes are executed without a delay.
    pub const FLUSHED: Memory = Memory::Flushes { line_ns: 0 };
}

impl System {
    /// Returns a system of the catalogue.
    ///
    /// # Panics
    /// If there is none of that name: the names are those of the catalogue.
    pub fn named(name: &str) -> System {
        let what = Self::find(name).unwrap_or_else(|| panic!("a system {name:?}"));
        System { name: name.into(), what }
    }

    /// One of the library's schemes with a configuration of its own.
    pub fn ours(name: impl Into<String>, config: Config) -> System {
        System { name: name.into(), what: What::Ours(config) }
    }

    /// A peer with so many slots in a bucket.
    pub fn peer_with_slots(
        name: impl Into<String>,
        system: PeerSystem,
        bucket_slots: u64,
    ) -> System {
        let tuning = Tuning { bucket_slots, ..Tuning::USUAL };
        System { name: name.into(), what: What::Peer(system, tuning) }
    }

    fn find(name: &str) -> Option<What> {
        let peer = |system| What::Peer(system, Tuning::USUAL);
        let spinning =
            |system| What::Peer(system, Tuning { locks: Locks::Spinning, ..Tuning::USUAL });
        let ours = |scheme| What::Ours(Config::of(scheme));
        Some(match name {
            "Dash-EH" | "Dash-EH (2)" => ours(Scheme::DashEh),
            "Dash-LH" | "Dash-LH (2)" => ours(Scheme::DashLh),
            "Dash-EH (4)" => What::Ours(
                outlast::config::DashEh { stash_buckets: 4, ..Default::default() }.into(),
            ),
            "clevel" => ours(Scheme::Clevel),
            "EA-PHT" => ours(Scheme::EaPht),
            "EA-PHT-H" => ours(Scheme::EaPhtH),
            "EA-PHT-HPR" => ours(Scheme::EaPhtHpr),
            "group" => ours(Scheme::Group),
            "PhaST" => ours(Scheme::Phast),
            "PhaST, 1 partition" => {
                What::Ours(outlast::config::Phast { partitions: 1, ..Default::default() }.into())
            }
            "Level" => peer(PeerSystem::Level),
            "Level-TBB" => spinning(PeerSystem::Level),
            "CCEH" => peer(PeerSystem::Cceh),
            "CCEH without the check" => {
                What::Peer(PeerSystem::Cceh, Tuning { unique: false, ..Tuning::USUAL })
            }
            "CCEH-TBB" => spinning(PeerSystem::Cceh),
            "cmap" => peer(PeerSystem::Cmap),
            "cmap-TBB" => spinning(PeerSystem::Cmap),
            "P-CLHT" => peer(PeerSystem::Clht),
            "linear" => peer(PeerSystem::Linear { log: false }),
            "linear-L" => peer(PeerSystem::Linear { log: true }),
            "PFHT" => peer(PeerSystem::Pfht { log: false }),
            "PFHT-L" => peer(PeerSystem::Pfht { log: true }),
            "path" => peer(PeerSystem::Path { log: false }),
            "path-L" => peer(PeerSystem::Path { log: true }),
            "FAST-FAIR" => peer(PeerSystem::FastFair),
            "NV-Skiplist" => peer(PeerSystem::NvSkipList),
            "wB+-Tree" => peer(PeerSystem::WbTree),
            "FPTree" => peer(PeerSystem::FpTree),
            "WORT" => peer(PeerSystem::Wort),
            "skip list in PM" => peer(PeerSystem::SkipList { durable: true }),
            "skip list in DRAM" => peer(PeerSystem::SkipList { durable: false }),
            _ => return None,
        })
    }

    /// Creates an empty one for so many records. It begins with `slots` slots, if it can be told.
    ///
    /// # Errors
    /// If memory is missing.
    pub fn create(&self, memory: &Memory, records: u64, slots: u64) -> Fallible<Box<dyn Subject>> {
        match memory {
            Memory::NoFlush => self.create_on(Real::new(FlushMode::None), records, slots),
            Memory::Flushes { line_ns } => {
                let mode = FlushMode::Lines(FlushInstruction::detect());
                let per_line = Duration::from_nanos(*line_ns);
                let latency = Latency { per_line, per_fence: Duration::ZERO };
                self.create_on(Real::with_latency(mode, latency), records, slots)
            }
            Memory::Recorded(seam) => self.create_on(seam.clone(), records, slots),
        }
    }

    fn create_on<S: MapSeam>(
        &self,
        seam: S,
        records: u64,
        slots: u64,
    ) -> Fallible<Box<dyn Subject>> {
        /// Bytes a record that are touched before the first operation.
        const TOUCHED: u64 = 96;
        let touched = (records * TOUCHED).next_multiple_of(2 << 20) + (32 << 20);
        Ok(match &self.what {
            What::Ours(config) => Box::new(Ours::create(*config, seam, touched)?),
            What::Peer(system, tuning) => {
                let options = Options {
                    arena_bytes: (records * 2048).max(1 << 30),
                    touched_bytes: touched,
                    initial_slots: slots,
                    locks: tuning.locks,
                    bucket_slots: tuning.bucket_slots,
                    unique: tuning.unique,
                    ..Options::default()
                };
                let peer = system.create(&options, seam).map_err(Failure::from)?;
                Box::new(Theirs(peer))
            }
        })
    }
}

/// An index of the library.
struct Ours {
    map: Arc<OpenMap>,
    step: Box<dyn Fn() -> outlast::Result<bool> + Send + Sync>,
}

impl Ours {
    fn create<S: MapSeam>(config: Config, seam: S, touched: u64) -> Fallible<Ours> {
        let options = CoreOptions {
            medium: MediumKind::Bytes,
            initial_size: touched,
            identity: Some((1, 3)),
            ..CoreOptions::default()
        };
        let mapping = Mapping::anonymous(touched, touched.max(1 << 30) * 16)?;
        mapping.populate(0..touched);
        let core = Core::create(Backing::Mapped(mapping), seam, options)?;
        let store = Store::with_alive(core, Arc::new(Alive::new()?))?;
        let request = MapOptions::new().config(config);
        let map = store.map(&request.request("figure", RecordForm::Inline, ["u64"; 2])?)?;
        Ok(Ours { map, step: Box::new(move || store.step()) })
    }

    #[inline(always)]
    fn index(&self) -> Fallible<&dyn Index<Inline>> {
        match self.map.index() {
            AnyIndex::Inline(index) => Ok(&**index),
            AnyIndex::Bytes(_) => Err("a map of words".into()),
        }
    }

    #[inline(always)]
    fn change(&self, key: u64, change: Change<'_, Inline>) -> Fallible<bool> {
        Ok(self.index()?.change(key, change, Previous::UNWANTED)?.applied)
    }
}

impl Subject for Ours {
    #[inline]
    fn get(&self, key: u64) -> Fallible<Option<u64>> {
        Ok(self.index()?.get(key)?)
    }
    #[inline]
    fn insert(&self, key: u64, value: u64) -> Fallible<bool> {
        self.change(key, Change::Insert(value))
    }
    #[inline]
    fn update(&self, key: u64, value: u64) -> Fallible<bool> {
        self.change(key, Change::Update(value))
    }
    #[inline]
    fn remove(&self, key: u64) -> Fallible<bool> {
        self.change(key, Change::Remove)
    }
    fn scan(&self, from: u64, records: usize, found: &mut Vec<(u64, u64)>) -> Fallible {
        let index = self.index()?.ordered().ok_or("a scan of an index without order")?;
        let mut range = KeyRange::new(Bound::Included(from), Bound::Unbounded);
        let end = found.len() + records;
        while found.len() < end && !range.is_done() {
            index.next(&mut range, false, end - found.len(), found)?;
        }
        Ok(())
    }
    fn is_ordered(&self) -> bool {
        self.index().is_ok_and(|index| index.ordered().is_some())
    }
    fn step(&self) -> Fallible<bool> {
        let index = self.index()?;
        Ok(index.has_work() && index.step()?)
    }
    fn settle(&self) -> Fallible {
        while (self.step)()? {}
        Ok(())
    }
    fn slots(&self) -> Fallible<Option<u64>> {
        Ok(Some(self.index()?.stats()?.slots))
    }
    fn growths(&self) -> u64 {
        self.index().map_or(0, |index| {
            let growth = index.growth();
            growth.splits + growth.doublings
        })
    }
    fn doublings(&self) -> u64 {
        self.index().map_or(0, |index| index.growth().doublings)
    }
    fn dram_bytes(&self) -> Fallible<Option<u64>> {
        Ok(Some(self.index()?.stats()?.dram_bytes))
    }
}

/// A peer.
struct Theirs(Box<dyn Peer>);

impl Subject for Theirs {
    #[inline]
    fn get(&self, key: u64) -> Fallible<Option<u64>> {
        Ok(self.0.get(key))
    }
    #[inline]
    fn insert(&self, key: u64, value: u64) -> Fallible<bool> {
        Ok(self.0.insert(key, value)?)
    }
    #[inline]
    fn update(&self, key: u64, value: u64) -> Fallible<bool> {
        Ok(self.0.update(key, value)?)
    }
    #[inline]
    fn remove(&self, key: u64) -> Fallible<bool> {
        Ok(self.0.remove(key))
    }
    fn scan(&self, from: u64, records: usize, found: &mut Vec<(u64, u64)>) -> Fallible {
        if !self.0.promises().ordered {
            return Err("a scan of a structure without order".into());
        }
        self.0.scan(from, records, found);
        Ok(())
    }
    fn is_ordered(&self) -> bool {
        self.0.promises().ordered
    }
    fn step(&self) -> Fallible<bool> {
        Ok(false)
    }
    fn slots(&self) -> Fallible<Option<u64>> {
        Ok(self.0.slots())
    }
    fn growths(&self) -> u64 {
        self.0.growths()
    }
    fn doublings(&self) -> u64 {
        self.0.growths()
    }
    fn dram_bytes(&self) -> Fallible<Option<u64>> {
        Ok(self.0.index_bytes())
    }
}
