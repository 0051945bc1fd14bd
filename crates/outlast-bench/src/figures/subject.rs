//! The systems of the figures behind one small trait: the library's schemes, and the structures of
//! `outlast-peers`.
//!
//! The library's indexes are used without pool handles, as the peers are: no type check and no gate
//! comes before an operation, so both sides pay for the structure alone. Both lie in anonymous
//! memory whose first part is touched beforehand, and make every access through a seam. The library's
//! background work runs when [`Subject::step`] is called, and never in a thread of its own.

use crate::{Failure, Fallible};
use outlast::internals::db::store::{AnyIndex, MapSeam, OpenMap, Store};
use outlast::internals::index::{
    Bytes, Change, Index, IndexStats, Inline, KeyRange, Previous, Record,
};
use outlast::internals::pmem::{Alive, FlushInstruction, FlushMode, Latency, Mapping, MediumKind};
use outlast::internals::pmem::{Real, Traced};
use outlast::internals::pool::backing::Backing;
use outlast::internals::pool::core::{Core, CoreOptions};
use outlast::{Config, MapOptions, RecordForm, Scheme};
use outlast_peers::shared::{Keys, Locks, second_half};
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
    /// How often all of it was rebuilt while other changes waited.
    fn rebuilds(&self) -> u64;
    /// How many threads share the work of such a rebuild.
    fn rebuilders(&self) -> u64;
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
    Ours(Config, RecordForm),
    Peer(PeerSystem, Tuning),
}

/// What differs between variants of a peer.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Tuning {
    locks: Locks,
    bucket_slots: u64,
    unique: bool,
    directory_lock: bool,
    keys: Keys,
    cell_bytes: u64,
}

impl Tuning {
    const USUAL: Tuning = Tuning {
        locks: Locks::Sleeping,
        bucket_slots: 4,
        unique: true,
        directory_lock: false,
        keys: Keys::InSlots,
        cell_bytes: 16,
    };
}

/// At the end of a system's name: it has keys of 16 bytes behind pointers, or in a record of their own.
pub const LONG_KEYS: &str = ", 16-byte keys";
/// The same, in the variants that clevel hashing's authors have measured (4.1): CCEH has a lock for its
/// directory.
pub const PORTED: &str = ", ported";

/// Returns a system's name in the plots of a figure all of whose systems are of one of those variants.
pub fn plain_name(name: &str) -> &str {
    name.strip_suffix(LONG_KEYS).or(name.strip_suffix(PORTED)).unwrap_or(name)
}

/// Returns the instructions that this processor flushes lines with, the best one first, and at last
/// "fence": a medium that keeps the caches at a power loss.
pub fn flush_modes() -> Vec<(String, FlushMode)> {
    #[cfg(target_arch = "x86_64")]
    let all = [FlushInstruction::Clwb, FlushInstruction::ClflushOpt, FlushInstruction::Clflush];
    #[cfg(not(target_arch = "x86_64"))]
    let all = [FlushInstruction::detect()];
    let all = all.into_iter().filter(|instruction| instruction.is_available());
    let all = all.map(|instruction| (instruction.to_string(), FlushMode::Lines(instruction)));
    all.chain([("fence".into(), FlushMode::FenceOnly)]).collect()
}

/// What the memory of a system needs, and what is recorded.
#[derive(Clone)]
pub enum Memory {
    /// Nothing is flushed or fenced.
    NoFlush,
    /// Flushes and fences are executed.
    Flushes {
        /// The instruction, or a fence alone.
        mode: FlushMode,
        /// Nanoseconds added to each line.
        line_ns: u64,
    },
    /// Everything is recorded.
    Recorded(Traced),
}

impl Memory {
    /// Memory whose lines are flushed by the best instruction of the processor, without a delay.
    pub fn flushed() -> Memory {
        Memory::Flushes { mode: FlushMode::Lines(FlushInstruction::detect()), line_ns: 0 }
    }

    /// The same memory with a delay for each flushed line.
    #[must_use]
    pub fn slowed(self, line_ns: u64) -> Memory {
        match self {
            Memory::Flushes { mode, .. } => Memory::Flushes { mode, line_ns },
            other => other,
        }
    }

    /// The seam of memory beside a system's, for what lies outside of it.
    pub fn seam(&self) -> Real {
        match self {
            Memory::Flushes { mode, line_ns } => {
                let per_line = Duration::from_nanos(*line_ns);
                Real::with_latency(*mode, Latency { per_line, per_fence: Duration::ZERO })
            }
            _ => Real::new(FlushMode::None),
        }
    }
}

impl System {
    /// Returns a system of the catalogue.
    ///
    /// # Panics
    /// If there is none of that name: the names are those of the catalogue.
    pub fn named(name: &str) -> System {
        let mut what = Self::find(plain_name(name)).unwrap_or_else(|| panic!("a system {name:?}"));
        if plain_name(name) != name {
            match &mut what {
                What::Ours(_, form) => *form = RecordForm::Bytes,
                What::Peer(_, tuning) => {
                    tuning.keys = Keys::Behind;
                    tuning.directory_lock = name.ends_with(PORTED);
                }
            }
        }
        System { name: name.into(), what }
    }

    /// One of the library's schemes with a configuration of its own.
    pub fn ours(name: impl Into<String>, config: Config) -> System {
        System { name: name.into(), what: What::Ours(config, RecordForm::Inline) }
    }

    /// A table of group hashing's evaluation with cells of 32 bytes. Group hashing itself is the paper's,
    /// because the library's has no such cells.
    pub fn with_long_cells(name: &str) -> System {
        let mut system = Self::named(name);
        if let What::Ours(..) = system.what {
            let tuning = Tuning { unique: false, ..Tuning::USUAL };
            system.what = What::Peer(PeerSystem::Group, tuning);
        }
        if let What::Peer(_, tuning) = &mut system.what {
            tuning.cell_bytes = 32;
        }
        system
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
        let own = |config| What::Ours(config, RecordForm::Inline);
        let ours = |scheme| own(Config::of(scheme));
        Some(match name {
            "Dash-EH" | "Dash-EH (2)" => ours(Scheme::DashEh),
            "Dash-LH" | "Dash-LH (2)" => ours(Scheme::DashLh),
            "Dash-EH (4)" => {
                own(outlast::config::DashEh { stash_buckets: 4, ..Default::default() }.into())
            }
            "clevel" => ours(Scheme::Clevel),
            "EA-PHT" => ours(Scheme::EaPht),
            "EA-PHT-H" => ours(Scheme::EaPhtH),
            "EA-PHT-HPR" => ours(Scheme::EaPhtHpr),
            "group" => ours(Scheme::Group),
            "PhaST" => ours(Scheme::Phast),
            "PhaST, 1 partition" => {
                own(outlast::config::Phast { partitions: 1, ..Default::default() }.into())
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
            Memory::Recorded(seam) => self.create_on(seam.clone(), records, slots),
            _ => self.create_on(memory.seam(), records, slots),
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
            What::Ours(config, form) => {
                Box::new(Ours::create(with_slots(*config, slots), *form, seam, touched)?)
            }
            What::Peer(system, tuning) => {
                let options = Options {
                    arena_bytes: (records * 2048).max(1 << 30),
                    touched_bytes: touched,
                    initial_slots: slots,
                    locks: tuning.locks,
                    bucket_slots: tuning.bucket_slots,
                    unique: tuning.unique,
                    directory_lock: tuning.directory_lock,
                    keys: tuning.keys,
                    cell_bytes: tuning.cell_bytes,
                    ..Options::default()
                };
                let peer = system.create(&options, seam).map_err(Failure::from)?;
                Box::new(Theirs(peer))
            }
        })
    }
}

/// Returns a configuration whose map begins with about so many slots, in schemes that can be told.
fn with_slots(mut config: Config, slots: u64) -> Config {
    let depth = |slots_of_bucket: u64| (slots / slots_of_bucket).max(2).ilog2();
    match &mut config {
        Config::Clevel(config) => config.first_bits = depth(8).min(16),
        Config::EaPht(config) => config.initial_depth = depth(16).min(24),
        Config::EaPhtH(config) => config.initial_depth = depth(16).min(24),
        Config::EaPhtHpr(config) => config.initial_depth = depth(16).min(24),
        _ => {}
    }
    config
}

/// An index of the library.
struct Ours {
    config: Config,
    map: Arc<OpenMap>,
    step: Box<dyn Fn() -> outlast::Result<bool> + Send + Sync>,
}

impl Ours {
    fn create<S: MapSeam>(
        config: Config,
        form: RecordForm,
        seam: S,
        touched: u64,
    ) -> Fallible<Ours> {
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
        let schema = match form {
            RecordForm::Inline => "u64",
            RecordForm::Bytes => "bytes",
        };
        let map = store.map(&request.request("figure", form, [schema; 2])?)?;
        Ok(Ours { config, map, step: Box::new(move || store.step()) })
    }

    /// Runs the function for the index's record form.
    fn with<T>(
        &self,
        words: impl FnOnce(&dyn Index<Inline>) -> T,
        bytes: impl FnOnce(&dyn Index<Bytes>) -> T,
    ) -> T {
        match self.map.index() {
            AnyIndex::Inline(index) => words(&**index),
            AnyIndex::Bytes(index) => bytes(&**index),
        }
    }

    fn stats(&self) -> Fallible<IndexStats> {
        Ok(self.with(|index| index.stats(), |index| index.stats())?)
    }

    #[inline(always)]
    fn change(&self, key: u64, how: How, value: u64) -> Fallible<bool> {
        let applied = match self.map.index() {
            AnyIndex::Inline(index) => {
                index.change(key, how.change::<Inline>(value), Previous::UNWANTED)?.applied
            }
            AnyIndex::Bytes(index) => {
                let value = value.to_le_bytes();
                let change = how.change::<Bytes>(&value);
                index.change(&long_key(key), change, Previous::UNWANTED)?.applied
            }
        };
        Ok(applied)
    }
}

/// A kind of change.
#[derive(Clone, Copy)]
enum How {
    Insert,
    Update,
    Remove,
}

impl How {
    #[inline(always)]
    fn change<R: Record>(self, value: R::Value<'_>) -> Change<'_, R> {
        match self {
            How::Insert => Change::Insert(value),
            How::Update => Change::Update(value),
            How::Remove => Change::Remove,
        }
    }
}

/// The key of 16 bytes that a number stands for.
#[inline(always)]
fn long_key(key: u64) -> [u8; 16] {
    (u128::from(key) | u128::from(second_half(key)) << 64).to_le_bytes()
}

impl Subject for Ours {
    #[inline]
    fn get(&self, key: u64) -> Fallible<Option<u64>> {
        match self.map.index() {
            AnyIndex::Inline(index) => Ok(index.get(key)?),
            AnyIndex::Bytes(index) => {
                let Some(value) = index.get(&long_key(key))? else { return Ok(None) };
                Ok(Some(u64::from_le_bytes(value[..].try_into()?)))
            }
        }
    }
    #[inline]
    fn insert(&self, key: u64, value: u64) -> Fallible<bool> {
        self.change(key, How::Insert, value)
    }
    #[inline]
    fn update(&self, key: u64, value: u64) -> Fallible<bool> {
        self.change(key, How::Update, value)
    }
    #[inline]
    fn remove(&self, key: u64) -> Fallible<bool> {
        self.change(key, How::Remove, 0)
    }
    fn scan(&self, from: u64, records: usize, found: &mut Vec<(u64, u64)>) -> Fallible {
        let AnyIndex::Inline(index) = self.map.index() else {
            return Err("a scan of byte strings".into());
        };
        let index = index.ordered().ok_or("a scan of an index without order")?;
        let mut range = KeyRange::new(Bound::Included(from), Bound::Unbounded);
        let end = found.len() + records;
        while found.len() < end && !range.is_done() {
            index.next(&mut range, false, end - found.len(), found)?;
        }
        Ok(())
    }
    fn is_ordered(&self) -> bool {
        self.with(|index| index.ordered().is_some(), |index| index.ordered().is_some())
    }
    fn step(&self) -> Fallible<bool> {
        let step = self.with(
            |index| if index.has_work() { index.step() } else { Ok(false) },
            |index| if index.has_work() { index.step() } else { Ok(false) },
        );
        Ok(step?)
    }
    fn settle(&self) -> Fallible {
        while (self.step)()? {}
        Ok(())
    }
    fn slots(&self) -> Fallible<Option<u64>> {
        Ok(Some(self.stats()?.slots))
    }
    fn growths(&self) -> u64 {
        let growth = self.with(|index| index.growth(), |index| index.growth());
        growth.splits + growth.doublings
    }
    fn rebuilds(&self) -> u64 {
        // In EA-PHT-HPR, changes go on. A directory that doubles is a small part of its table.
        match self.config {
            Config::EaPht(_) | Config::EaPhtH(_) => {
                self.with(|index| index.growth(), |index| index.growth()).doublings
            }
            _ => 0,
        }
    }
    fn rebuilders(&self) -> u64 {
        1 + match self.config {
            Config::EaPht(config) => u64::from(config.helpers),
            Config::EaPhtH(config) => u64::from(config.helpers),
            _ => 0,
        }
    }
    fn dram_bytes(&self) -> Fallible<Option<u64>> {
        Ok(Some(self.stats()?.dram_bytes))
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
    fn rebuilds(&self) -> u64 {
        self.0.rebuilds()
    }
    fn rebuilders(&self) -> u64 {
        self.0.rebuilders()
    }
    fn dram_bytes(&self) -> Fallible<Option<u64>> {
        Ok(self.0.index_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_a_map(system: &System) {
        let subject = system.create(&Memory::flushed(), 2_000, 4_096).unwrap();
        let name = &system.name;
        for key in 1..=1_000 {
            assert!(subject.insert(key, !key).unwrap(), "{name}");
            assert_eq!(subject.get(key).unwrap(), Some(!key), "{name}");
        }
        for key in 1..=1_000 {
            assert!(subject.update(key, key ^ 5).unwrap(), "{name}");
            assert_eq!(subject.get(key).unwrap(), Some(key ^ 5), "{name}");
            assert!(subject.remove(key).unwrap() && !subject.remove(key).unwrap(), "{name}");
            assert_eq!(subject.get(key).unwrap(), None, "{name}");
        }
    }

    #[test]
    fn systems_with_long_keys_are_maps() {
        for name in ["Dash-EH", "Dash-LH", "clevel", "CCEH", "Level", "P-CLHT", "cmap"] {
            is_a_map(&System::named(&format!("{name}{LONG_KEYS}")));
            is_a_map(&System::named(&format!("{name}{PORTED}")));
        }
        for name in ["group", "linear-L", "PFHT-L", "path-L"] {
            is_a_map(&System::with_long_cells(name));
        }
        assert_eq!(plain_name("CCEH, ported"), "CCEH");
        assert_eq!(plain_name("PhaST, 1 partition"), "PhaST, 1 partition");
    }

    #[test]
    fn tables_begin_with_the_slots_that_they_are_told() {
        let slots = |name: &str, slots| {
            let subject = System::named(name).create(&Memory::NoFlush, 1_000, slots).unwrap();
            subject.slots().unwrap().unwrap()
        };
        // 128 buckets of 15 slots, as in the thesis (6.3).
        assert_eq!(slots("EA-PHT", 2048), 1920);
        assert_eq!(slots("clevel", 65_536), 65_536);
        assert_eq!(slots("P-CLHT", 768), 768);
    }

    #[test]
    fn each_way_to_flush_can_be_chosen() {
        let modes = flush_modes();
        assert_eq!(modes[0].1, FlushMode::Lines(FlushInstruction::detect()));
        assert_eq!(modes.last(), Some(&("fence".into(), FlushMode::FenceOnly)));
        for (_, mode) in modes {
            let memory = Memory::Flushes { mode, line_ns: 0 };
            let subject = System::named("CCEH").create(&memory, 1_000, 1024).unwrap();
            assert!(subject.insert(1, 2).unwrap());
        }
    }
}
