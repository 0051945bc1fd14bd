//! Opens damaged pools and uses them, under a watchdog.
//!
//! A *case* is an image of a pool with some bytes changed. It is opened in memory of the
//! process (no file, no threads), read, walked, verified, changed and closed. Each of
//! these ends in an answer or a typed error. A panic is caught and reported with its
//! case; a case that does not end is printed by a watchdog that ends the process; a
//! signal prints the case of the thread that met it.
//!
//! Shared by `tests/hostile.rs` and `examples/fuzz_file.rs`.

#![allow(dead_code, unreachable_pub, reason = "each user needs another part of it")]

use outlast::index::{Bytes, Change, Cursor, Index, Inline, Record};
use outlast::offline::{self, Region, What};
use outlast::pmem::{Alive, FlushMode, Point, Real, Seam, Word};
use outlast::pool::backing::{Backing, Heap};
use outlast::pool::core::{Core, CoreOptions};
use outlast::pool::header::Header;
use outlast::pool::layout::{self, HEADER_WORDS, field};
use outlast::pool::roots::MapInfo;
use outlast::pool::store::{AnyIndex, MapRequest, Store};
use outlast::pool::verify::verify;
use outlast::{Error, RecordForm, Scheme};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

/// A small generator, so that a seed names a run.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

/// The shipped seam, with a short patience: what would wait for a minute waits for a
/// moment.
#[derive(Clone)]
pub struct Impatient(Real);

impl Seam for Impatient {
    fn load(&self, word: &Word, order: Ordering) -> u64 {
        self.0.load(word, order)
    }
    fn store(&self, word: &Word, value: u64, order: Ordering, at: &'static Point) {
        self.0.store(word, value, order, at);
    }
    fn compare_exchange(
        &self,
        word: &Word,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
        at: &'static Point,
    ) -> Result<u64, u64> {
        self.0.compare_exchange(word, current, new, success, failure, at)
    }
    fn store_nontemporal(&self, word: &Word, value: u64, at: &'static Point) {
        self.0.store_nontemporal(word, value, at);
    }
    fn flush(&self, words: &[Word], at: &'static Point) {
        self.0.flush(words, at);
    }
    fn fence(&self, at: &'static Point) {
        self.0.fence(at);
    }
    fn wait(&self, turn: &mut u32) {
        *turn = turn.saturating_add(1 << 14);
        std::thread::yield_now();
    }
}

pub type Pool = Arc<Store<Impatient>>;

fn seam() -> Impatient {
    Impatient(Real::new(FlushMode::None))
}

/// The content of a pool's memory.
pub fn bytes_of(store: &Store<Impatient>) -> Vec<u8> {
    let memory = &store.core().memory;
    let len = memory.len();
    let mut out = vec![0; len as usize];
    memory.read_bytes(memory.words(0, len).unwrap(), 0, &mut out);
    out
}

/// What is known of a map of an image.
#[derive(Clone)]
pub struct KnownMap {
    pub name: String,
    pub keys: Vec<Vec<u8>>,
}

/// A pool's bytes, and what stands where in them.
pub struct Image {
    pub name: &'static str,
    pub bytes: Vec<u8>,
    pub regions: Vec<Region>,
    pub maps: Vec<KnownMap>,
    pub clean: bool,
}

impl Image {
    fn new(name: &'static str, bytes: Vec<u8>, maps: Vec<KnownMap>) -> Image {
        let (report, regions) = offline::regions(&bytes).unwrap();
        assert_eq!(report.problems, [], "{name}");
        assert_eq!(report.leaked_bytes, 0, "{name}");
        Image { name, bytes, regions, maps, clean: report.clean }
    }

    pub fn word(&self, offset: u64) -> u64 {
        word_at(&self.bytes, offset)
    }
}

pub fn word_at(bytes: &[u8], offset: u64) -> u64 {
    u64::from_le_bytes(bytes[offset as usize..offset as usize + 8].try_into().unwrap())
}

pub fn set_word(bytes: &mut [u8], offset: u64, word: u64) {
    bytes[offset as usize..offset as usize + 8].copy_from_slice(&word.to_le_bytes());
}

pub fn map_info(scheme: Scheme, name: &str, form: RecordForm, bits: u64, other: u64) -> MapInfo {
    let schema = if form == RecordForm::Inline { "u64" } else { "bytes" };
    MapInfo {
        name: name.into(),
        scheme,
        form,
        key_schema: schema.into(),
        value_schema: schema.into(),
        config: match scheme {
            // Leaves of so many slots; nodes of four leaves.
            Scheme::Phast => [4 << bits, 4 | other << 32, 0],
            _ => [bits, other, 0],
        },
    }
}

fn open_map(store: &Pool, info: MapInfo) -> outlast::Result<Arc<outlast::pool::store::OpenMap>> {
    store.map(&MapRequest { info, scheme_matters: false })
}

fn create(hash_function: u32, page_bits: u32) -> Pool {
    let heap = Heap::new(&[], 4 << 20, 0xcd);
    let options = CoreOptions {
        page_bits,
        initial_size: 256 << 10,
        hash_function,
        identity: Some((0x5eed, 0x1d)),
        ..CoreOptions::default()
    };
    Store::new(Core::create(Backing::Heap(heap), seam(), options).unwrap()).unwrap()
}

/// Puts `count` records into a map, then removes every seventh.
fn fill(store: &Pool, info: &MapInfo, count: u64, key: impl Fn(u64) -> u64) -> KnownMap {
    let map = open_map(store, info.clone()).unwrap();
    let mut keys = Vec::new();
    for n in 0..count {
        let bytes = key(n).to_le_bytes().to_vec();
        match map.index() {
            AnyIndex::Inline(index) => {
                index.change(key(n), Change::Put(n << 32 | n), false).unwrap();
            }
            AnyIndex::Bytes(index) => {
                let len = if n % 101 == 100 { 3000 } else { (n * n % 120) as usize };
                index.change(&bytes[..], Change::Put(&vec![n as u8; len][..]), false).unwrap();
            }
        }
        keys.push(bytes);
    }
    for n in (0..count).step_by(7) {
        match map.index() {
            AnyIndex::Inline(index) => index.change(key(n), Change::Remove, false).unwrap().applied,
            AnyIndex::Bytes(index) => {
                index.change(&key(n).to_le_bytes()[..], Change::Remove, false).unwrap().applied
            }
        };
    }
    KnownMap { name: info.name.clone(), keys }
}

/// The images that are damaged: both forms with splits, stash records and a deep
/// directory; chains of overflow nodes; each as closed cleanly and as left by a kill;
/// one with a split that is half done. The same of levels, one of which is being emptied; and
/// of leaves, from some of which pairs are being moved.
pub fn images() -> Vec<Image> {
    let mut images = Vec::new();
    for (scheme, chains, clean_name, dirty_name) in [
        (Scheme::DashEh, false, "plain clean", "plain dirty"),
        (Scheme::DashEh, true, "chains clean", "chains dirty"),
        (Scheme::Clevel, false, "levels clean", "levels dirty"),
        (Scheme::Clevel, true, "chained levels clean", "chained levels dirty"),
        (Scheme::Phast, false, "leaves clean", "leaves dirty"),
        (Scheme::Phast, true, "leaves of one hash clean", "leaves of one hash dirty"),
    ] {
        let store = create(if chains { 0x7e57 } else { 1 }, 12);
        let mut maps = Vec::new();
        let count = if chains { 300 } else { 480 };
        // With function 0x7e57, keys of 2^32 and above share one hash.
        let key = |n: u64| match (chains, n) {
            (true, n) if n < 270 => (n + 1) << 32,
            (_, 0) => 0,
            (_, 1) => u64::MAX,
            (_, n) => n.wrapping_mul(0x1234_5678_9abc_def1) >> if chains { 40 } else { 0 },
        };
        for (form, bits, other, name) in [
            (RecordForm::Inline, 1, 2, "words"),
            (RecordForm::Bytes, 1, 4, "texts"),
            (RecordForm::Inline, 3, 4, "wider"),
        ] {
            maps.push(fill(&store, &map_info(scheme, name, form, bits, other), count, key));
        }
        fill(&store, &map_info(scheme, "doomed", RecordForm::Bytes, 2, 2), 40, key);
        store.drop_map("doomed").unwrap();
        if scheme == Scheme::DashEh {
            store.step().unwrap();
        }
        let found = verify(&store).unwrap();
        assert!(found.is_sound(), "{found:?}");
        let dirty = Image::new(dirty_name, bytes_of(&store), maps.clone());
        let depths: Vec<u32> = dirty
            .regions
            .iter()
            .filter_map(|r| match r.what {
                What::Directory { depth } => Some(depth),
                _ => None,
            })
            .collect();
        let levels = dirty.regions.iter().filter(|r| matches!(r.what, What::Level { .. })).count();
        assert!(scheme != Scheme::Clevel || levels > 6, "{levels} levels: one is being emptied");
        assert!(
            chains
                || scheme != Scheme::DashEh
                || depths.iter().filter(|&&depth| depth > 2).count() >= 2,
            "{depths:?}"
        );
        println!("{clean_name}: {} bytes, directories of depth {depths:?}", dirty.bytes.len());
        let nodes = dirty.regions.iter().filter(|r| matches!(r.what, What::Node | What::ChainNode));
        let nodes = nodes.count();
        assert!(!chains || scheme == Scheme::Phast || nodes > 4, "{nodes} nodes");
        match scheme {
            Scheme::DashEh if !chains => images.push(half_split(&dirty)),
            Scheme::Phast if !chains => images.push(moving(&dirty)),
            _ => {}
        }
        images.push(dirty);
        store.sync().unwrap();
        images.push(Image::new(clean_name, bytes_of(&store), maps));
    }
    images
}

/// As if the process had died between the commit of a split and its directory entries.
fn half_split(image: &Image) -> Image {
    let mut bytes = image.bytes.clone();
    let entries: Vec<Region> =
        image.regions.iter().filter(|r| r.what == What::Entry).copied().collect();
    let mut done = 0;
    for table in entries {
        let count = table.bytes / 8;
        let depth = count.trailing_zeros();
        // Two siblings whose depth is the directory's: a split could just have been.
        for index in (0..count).step_by(2) {
            let (old, new) = (
                word_at(&bytes, table.offset + index * 8),
                word_at(&bytes, table.offset + index * 8 + 8),
            );
            if old == new {
                continue;
            }
            let state = dash::State { depth, partner: new };
            set_word(&mut bytes, old + 16, state.pack(old));
            set_word(&mut bytes, table.offset + index * 8 + 8, old);
            done += 1;
        }
    }
    assert!(done > 3, "{done} splits");
    Image::new("half-split", bytes, image.maps.clone())
}

/// As if the process had died between the commit of splits, or before that of merges, and the
/// old leaves' bits: pairs of the next leaf have bits in the one before it as well.
fn moving(image: &Image) -> Image {
    let mut bytes = image.bytes.clone();
    let leaves = image.regions.iter().filter_map(|region| match region.what {
        What::LeafHead { slots } => Some((region.offset, u64::from(slots))),
        _ => None,
    });
    let mut done = 0;
    // Every other leaf, so that those that pairs come from are whole.
    for (leaf, slots) in leaves.step_by(2) {
        let word = word_at(&bytes, leaf + 72);
        let next = phast::Next::unpack(leaf, word).unwrap();
        if next.offset == 0 {
            continue;
        }
        let (own, other) = (word_at(&bytes, leaf), word_at(&bytes, next.offset));
        let free = (0..slots).filter(|slot| own >> slot & 1 == 0);
        let there = (0..slots).filter(|slot| other >> slot & 1 == 1);
        let mut bits = own;
        for (to, from) in free.zip(there) {
            let [target, source] = [(leaf, to), (next.offset, from)]
                .map(|(leaf, slot)| (leaf + phast::LEAF_HEADER + slot * 16) as usize);
            bytes.copy_within(source..source + 16, target);
            bytes[(leaf + 8 + to) as usize] = bytes[(next.offset + 8 + from) as usize];
            bits |= 1 << to;
        }
        set_word(&mut bytes, leaf, bits);
        let next = phast::Next { moving: true, ..next };
        set_word(&mut bytes, leaf + 72, next.pack(leaf));
        done += usize::from(bits != own);
    }
    assert!(done > 3, "{done} leaves with pairs of others");
    Image::new("moving", bytes, image.maps.clone())
}

use outlast::index::clevel::layout as clevel;
use outlast::index::dash_eh::layout as dash;
use outlast::index::phast::layout as phast;

// ---- One case ---------------------------------------------------------------------

/// What a case came to.
#[derive(Debug, Default, Clone)]
pub struct Found {
    /// The first damage that a call or a verification told of.
    pub damage: Option<String>,
    /// Whether the pool opened.
    pub opened: bool,
}

impl Found {
    fn note<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                // Other errors are answers too: a full pool, a map that cannot be made.
                if self.damage.is_none()
                    && (error.is_damage()
                        || matches!(
                            error,
                            Error::Version { .. }
                                | Error::UnknownFeature { .. }
                                | Error::Invalid { .. }
                                | Error::PossiblyTorn { .. }
                        ))
                {
                    self.damage = Some(error.to_string());
                }
                None
            }
        }
    }
}

/// Opens bytes as a pool.
pub fn open(bytes: &[u8], alive: &Arc<Alive>) -> outlast::Result<Pool> {
    let actual = bytes.len() as u64;
    let header = Header::read(actual, |offset| {
        let offset = offset as usize;
        let Some(bytes) = bytes.get(offset..offset + HEADER_WORDS * 8) else {
            return Err(Error::NotAPool { found: "its end".into() });
        };
        Ok(std::array::from_fn(|i| word_at(bytes, i as u64 * 8)))
    })?;
    let size = header.get(field::SIZE) as usize;
    let heap = Heap::new(&bytes[..size], size as u64 + (768 << 10), 0xcd);
    let core = Core::open(Backing::Heap(heap), seam(), header, CoreOptions::default())?;
    Ok(Store::with_alive(core, Arc::clone(alive)))
}

/// Opens an image, uses it, verifies and closes it. `verify_first` says whether it is
/// verified before it is changed; if not, operations are the first to touch it.
pub fn use_pool(
    bytes: &[u8],
    maps: &[KnownMap],
    alive: &Arc<Alive>,
    verify_first: bool,
    random: &mut Random,
) -> Found {
    let mut found = Found::default();
    let opened = open(bytes, alive);
    let Some(store) = found.note(opened) else { return found };
    found.opened = true;
    // Told at open only: the first store writes the copy anew.
    found.damage = store.core().header().copy_damaged.map(|damage| damage.to_string());
    if verify_first {
        verified(&store, &mut found);
    }
    for map in maps {
        let opened = store.open_map(&map.name);
        let Some(open) = found.note(opened) else { continue };
        let result = match open.index() {
            AnyIndex::Inline(index) => words(&**index, &map.keys, random),
            AnyIndex::Bytes(index) => texts(&**index, &map.keys, random),
        };
        for error in result {
            found.note::<()>(Err(error));
        }
    }
    for _ in 0..100 {
        let more = store.step();
        if !found.note(more).unwrap_or(false) {
            break;
        }
    }
    if random.below(4) == 0 {
        let dropped = store.drop_map(&maps[random.below(maps.len() as u64) as usize].name);
        found.note(dropped);
    }
    if random.below(4) == 0 {
        let info = map_info(
            Scheme::ALL[random.below(Scheme::ALL.len() as u64) as usize],
            "new",
            RecordForm::Bytes,
            1,
            2,
        );
        let made = open_map(&store, info);
        if let Some(map) = found.note(made)
            && let AnyIndex::Bytes(index) = map.index()
        {
            for n in 0..20u64 {
                let done = index.change(&n.to_le_bytes()[..], Change::Put(&[5; 70][..]), false);
                found.note(done);
            }
        }
    }
    verified(&store, &mut found);
    let again = random.below(8) == 0;
    if again {
        let synced = store.sync();
        found.note(synced);
        let bytes = bytes_of(&store);
        let closed = store.close();
        found.note(closed);
        drop(store);
        if let Ok(store) = open(&bytes, alive) {
            let mut later = Found::default();
            verified(&store, &mut later);
            let _ = store.close();
        }
    } else {
        let closed = store.close();
        found.note(closed);
    }
    found
}

fn verified(store: &Pool, found: &mut Found) {
    let result = verify(store);
    if let Some(verification) = found.note(result)
        && found.damage.is_none()
        && !verification.is_sound()
    {
        let first = verification.all_damage().next();
        found.damage = Some(first.map_or("leaked".into(), ToString::to_string));
    }
}

/// All operations on a map, whatever its form. Returns the errors.
fn operate<R: Record>(
    index: &dyn Index<R>,
    keys: &[R::OwnedKey],
    fresh: &[R::OwnedKey],
    value: &R::Owned,
    random: &mut Random,
) -> Vec<Error> {
    let mut errors = Vec::new();
    macro_rules! attempt {
        ($call:expr) => {
            match $call {
                Ok(value) => Some(value),
                Err(error) => {
                    errors.push(error);
                    None
                }
            }
        };
    }
    let reading_first = random.below(2) == 0;
    for round in 0..2 {
        if (round == 0) == reading_first {
            for key in keys {
                attempt!(index.get(R::key_of(key)));
            }
            for key in fresh {
                attempt!(index.get(R::key_of(key)));
            }
            let mut cursor = Cursor::start();
            let mut out = Vec::new();
            while !cursor.is_done() {
                if attempt!(index.scan(&mut cursor, &mut out)).is_none() {
                    break;
                }
            }
            attempt!(index.len_estimate());
            attempt!(index.stats());
        } else {
            for _ in 0..30 {
                let key = R::key_of(&keys[random.below(keys.len() as u64) as usize]);
                let value = R::value_of(value);
                let change = match random.below(5) {
                    0 => Change::Put(value),
                    1 => Change::Update(value),
                    2 => Change::Insert(value),
                    3 => Change::Swap { expected: value, new: value },
                    _ => Change::Remove,
                };
                attempt!(index.change(key, change, random.below(2) == 0));
                if let Some(Some(guard)) = attempt!(index.get_ref(key)) {
                    std::hint::black_box(guard.to_vec());
                }
            }
            for key in fresh {
                attempt!(index.change(R::key_of(key), Change::Insert(R::value_of(value)), false));
            }
            let some: Vec<_> = keys.iter().take(20).map(R::key_of).collect();
            attempt!(index.get_many(&some, &mut vec![None; some.len()]));
        }
    }
    errors
}

fn words(index: &dyn Index<Inline>, keys: &[Vec<u8>], random: &mut Random) -> Vec<Error> {
    let keys: Vec<u64> = keys.iter().map(|k| word_at(k, 0)).collect();
    let fresh: Vec<u64> = (0..24).map(|_| random.next()).collect();
    operate::<Inline>(index, &keys, &fresh, &7, random)
}

fn texts(index: &dyn Index<Bytes>, keys: &[Vec<u8>], random: &mut Random) -> Vec<Error> {
    let fresh: Vec<Vec<u8>> = (0..24).map(|_| random.next().to_le_bytes().to_vec()).collect();
    let len = [0, 8, 100, 5000][random.below(4) as usize];
    operate::<Bytes>(index, keys, &fresh, &vec![0x5a; len], random)
}

// ---- Watching ---------------------------------------------------------------------

/// Longest time that a case may take, in seconds. They take milliseconds.
const DEADLINE: Duration = Duration::from_secs(60);

thread_local! {
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
    /// The case in hand, for the signal handler.
    static CASE: Cell<[u8; 200]> = const { Cell::new([0; 200]) };
    static WORKER: Cell<u64> = const { Cell::new(0) };
}

static RUNNING: Mutex<Option<HashMap<u64, (Instant, String)>>> = Mutex::new(None);
static NEXT_WORKER: AtomicU64 = AtomicU64::new(1);
static WATCH: Once = Once::new();

extern "C" fn on_signal(signal: libc::c_int) {
    let case = CASE.get();
    let len = case.iter().position(|&b| b == 0).unwrap_or(case.len());
    // SAFETY: `write` and `_exit` may be called in a signal handler; the buffers are this
    // function's own.
    unsafe {
        let text = b"\nsignal in hostile case: ";
        libc::write(2, text.as_ptr().cast(), text.len());
        libc::write(2, case.as_ptr().cast(), len);
        libc::write(2, b"\n".as_ptr().cast(), 1);
        libc::_exit(128 + signal);
    }
}

fn watch() {
    WATCH.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if WORKER.get() == 0 {
                return usual(info);
            }
            PANIC.with_borrow_mut(|text| *text = info.to_string());
        }));
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGABRT] {
            // SAFETY: the handler does only what handlers may do.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                let handler: extern "C" fn(libc::c_int) = on_signal;
                action.sa_sigaction = handler as libc::sighandler_t;
                action.sa_flags = libc::SA_ONSTACK;
                libc::sigaction(signal, &action, std::ptr::null_mut());
            }
        }
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(Duration::from_secs(1));
                let running = RUNNING.lock().unwrap();
                for (started, case) in running.iter().flat_map(|r| r.values()) {
                    if started.elapsed() > DEADLINE {
                        eprintln!("\nhostile case does not end: {case}");
                        std::process::exit(99);
                    }
                }
            }
        });
    });
}

/// Runs one case under the watchdog. `Err`: it panicked.
pub fn watched<T>(case: &str, run: impl FnOnce() -> T) -> Result<T, String> {
    watch();
    if WORKER.get() == 0 {
        WORKER.set(NEXT_WORKER.fetch_add(1, Ordering::Relaxed));
    }
    let worker = WORKER.get();
    let mut text = [0; 200];
    let len = case.len().min(200);
    text[..len].copy_from_slice(&case.as_bytes()[..len]);
    CASE.set(text);
    let entry = (Instant::now(), case.to_string());
    RUNNING.lock().unwrap().get_or_insert_default().insert(worker, entry);
    let result = catch_unwind(AssertUnwindSafe(run));
    RUNNING.lock().unwrap().get_or_insert_default().remove(&worker);
    result.map_err(|_| format!("{case}: {}", PANIC.with_borrow(Clone::clone)))
}

/// Runs `count` cases on all processors; collects what `case` says went wrong.
pub fn in_parallel(count: u64, case: impl Fn(u64) -> Result<(), String> + Sync) -> Vec<String> {
    let next = AtomicU64::new(0);
    let failures = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(2, |n| n.get()).min(8);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    if let Err(failure) = case(number) {
                        println!("{failure}");
                        failures.lock().unwrap().push(failure);
                    }
                }
            });
        }
    });
    failures.into_inner().unwrap()
}

// ---- Checksums made good again -----------------------------------------------------

fn crc(words: &[u64]) -> u64 {
    let sum = words.iter().fold(0, |crc, w| crc32c::crc32c_append(crc, &w.to_le_bytes()));
    u64::from(sum)
}

fn words_at(bytes: &[u8], offset: u64, count: u64) -> Vec<u64> {
    (0..count).map(|i| word_at(bytes, offset + i * 8)).collect()
}

/// Recomputes the checksums of what stands in a region, so that its content is believed.
/// `slots`: where the record's slot stands is not needed, its checksum lies in the block.
pub fn repair(bytes: &mut [u8], region: &Region) {
    let at = region.offset;
    if at + region.bytes.max(8) > bytes.len() as u64 {
        return;
    }
    match region.what {
        What::Header => {
            let sum = crc(&words_at(bytes, at, field::CHECKSUM as u64));
            set_word(bytes, at + field::CHECKSUM as u64 * 8, sum);
        }
        What::Frontier => {
            let word = word_at(bytes, at);
            set_word(bytes, at, layout::pack_frontier(word as u32));
        }
        What::RootCommit | What::RootFixed => {
            let slot = at & !511;
            let fixed = words_at(bytes, slot + 64, 56);
            set_word(bytes, slot, 1 | crc(&fixed) << 32);
        }
        What::RootScheme => {
            let word = word_at(bytes, at);
            let depth = (word >> 48) as u32 & 0xff;
            set_word(bytes, at, dash::pack_root(word & ((1 << 48) - 1), depth));
        }
        What::Descriptor { page } => {
            let low = word_at(bytes, at) & ((1 << 48) - 1);
            let mut input = page.to_le_bytes().to_vec();
            input.extend_from_slice(&low.to_le_bytes());
            let sum = crc32c::crc32c(&input);
            let check = u64::from((sum ^ sum >> 16) & 0xffff);
            set_word(bytes, at, low | check << 48);
        }
        What::SavedState => {
            let words = words_at(bytes, at, region.bytes / 8);
            set_word(bytes, at + 16, crc(&words[3..]));
        }
        What::Directory { depth } => {
            let word = dash::identity(dash::Kind::Directory, at, u64::from(depth), 0);
            set_word(bytes, at, word);
        }
        What::Segment { shape } => {
            let low = word_at(bytes, at + 8);
            set_word(bytes, at, dash::identity(dash::Kind::Segment, at, low, shape));
            let bits = word_at(bytes, at + 16) & ((1 << 48) - 1);
            let sum = crc(&[bits, at]);
            set_word(bytes, at + 16, bits | ((sum ^ sum >> 16) & 0xffff) << 48);
        }
        What::Node => set_word(bytes, at, dash::identity(dash::Kind::Node, at, 0, 0)),
        What::Record => {
            let mut sum = crc32c::crc32c(&at.to_le_bytes());
            sum = crc32c::crc32c_append(sum, &bytes[at as usize..at as usize + 8]);
            let end = (at + region.bytes) as usize;
            sum = crc32c::crc32c_append(sum, &bytes[at as usize + 16..end]);
            set_word(bytes, at + 8, u64::from(sum));
        }
        What::ClevelRoot => {
            let word = word_at(bytes, at);
            let word = clevel::root::pack(word & ((1 << 48) - 1), word >> 49 & 0x7f);
            set_word(bytes, at, word);
        }
        What::Context { levels } => {
            let covered = words_at(bytes, at + 8, 1 + levels as u64);
            let sum = crc(&[&[at], &covered[..]].concat());
            set_word(bytes, at, sum);
        }
        What::Level { bits } => {
            set_word(bytes, at, clevel::identity(clevel::Kind::Level, at, bits));
        }
        What::ChainNode => set_word(bytes, at, clevel::identity(clevel::Kind::Node, at, 0)),
        What::ClevelRecord => {
            let lengths = word_at(bytes, at) & ((1 << 46) - 1);
            let mut sum = crc32c::crc32c(&at.to_le_bytes());
            sum = crc32c::crc32c_append(sum, &lengths.to_le_bytes());
            let end = (at + region.bytes) as usize;
            sum = crc32c::crc32c_append(sum, &bytes[at as usize + 16..end]);
            set_word(bytes, at + 8, u64::from(sum));
        }
        What::PhastRoot => {
            let word = phast::pack_root(word_at(bytes, at) & ((1 << 48) - 1));
            set_word(bytes, at, word);
        }
        What::Master { entries } => {
            set_word(bytes, at, phast::identity(phast::Kind::Master, entries, at, 0));
        }
        What::MasterEntries => {
            let master = at - phast::MASTER_HEADER;
            for index in 0..region.bytes / 8 {
                let place = at + index * 8;
                let leaf = word_at(bytes, place) & ((1 << 48) - 1);
                set_word(bytes, place, phast::pack_entry(master, index as usize, leaf));
            }
        }
        What::LeafHead { slots } => {
            let bits = word_at(bytes, at);
            set_word(bytes, at, bits & ((1 << slots) - 1));
        }
        What::LeafPlace { slots, .. } => {
            let leaf = at - 64;
            let low = word_at(bytes, at + 16);
            set_word(bytes, at, phast::identity(phast::Kind::Leaf, slots, leaf, low));
            let link = word_at(bytes, at + 8) & ((1 << 48) - 1) & !0x3e;
            let next = phast::Next { offset: link & !63, moving: link & 1 == 1 };
            set_word(bytes, at + 8, next.pack(leaf));
        }
        What::Entry
        | What::Bucket { .. }
        | What::LiveSlot { .. }
        | What::ClevelSlot
        | What::Pair { .. } => {}
    }
}

// ---- Many changes at once -----------------------------------------------------------

/// An image with several changes, made believable where that takes a checksum.
pub fn mutate(image: &Image, random: &mut Random) -> Vec<u8> {
    let mut bytes = image.bytes.clone();
    for _ in 0..=random.below(6) {
        mutate_once(image, &mut bytes, random);
    }
    if random.below(40) == 0 {
        bytes.truncate(random.below(bytes.len() as u64) as usize);
    }
    bytes
}

/// A word that means something somewhere.
fn telling_word(image: &Image, bytes: &[u8], random: &mut Random) -> u64 {
    let any = &image.regions[random.below(image.regions.len() as u64) as usize];
    match random.below(9) {
        0 => 0,
        1 => u64::MAX,
        2 => random.next(),
        3 => random.below(300),
        4 => any.offset,
        5 => any.offset & !255,
        6 => 1 << random.below(64),
        7 => word_at(bytes, random.below(bytes.len() as u64 / 8) * 8),
        _ => word_at(bytes, any.offset & !7).wrapping_add(random.below(5)).wrapping_sub(2),
    }
}

fn mutate_once(image: &Image, bytes: &mut [u8], random: &mut Random) {
    let len = bytes.len() as u64;
    // A kind of region first: there are more records than segments.
    let pivot = image.regions[random.below(image.regions.len() as u64) as usize];
    let kinds: Vec<_> = {
        let mut seen = Vec::new();
        for region in &image.regions {
            let kind = std::mem::discriminant(&region.what);
            if !seen.contains(&kind) {
                seen.push(kind);
            }
        }
        seen
    };
    let kind = kinds[random.below(kinds.len() as u64) as usize];
    let of_kind: Vec<&Region> =
        image.regions.iter().filter(|r| std::mem::discriminant(&r.what) == kind).collect();
    let region = *of_kind[random.below(of_kind.len() as u64) as usize];
    let word = (region.offset & !7) + 8 * random.below(region.bytes / 8);
    match random.below(12) {
        0 => bytes[random.below(len) as usize] ^= (1 + random.below(255)) as u8,
        1 => {
            let count = 8 << random.below(9);
            let from = random.below((len - count) / 8) * 8;
            let to = random.below((len - count) / 8) * 8;
            bytes.copy_within(from as usize..(from + count) as usize, to as usize);
        }
        // A structure over another one of its kind.
        2 => {
            let from = of_kind[random.below(of_kind.len() as u64) as usize];
            let count = from.bytes.min(region.bytes) as usize;
            let (from, to) = (from.offset as usize, region.offset as usize);
            bytes.copy_within(from..from + count, to);
            repair(bytes, &region);
        }
        // A node where none belongs, and a chain that leads to it.
        3 => {
            let at = match random.below(3) {
                0 => pivot.offset & !255,
                _ => random.below(len / 256) * 256,
            };
            let segments: Vec<u64> = image
                .regions
                .iter()
                .filter(|r| matches!(r.what, What::Segment { .. }))
                .map(|r| r.offset)
                .collect();
            let segment = segments[random.below(segments.len() as u64) as usize];
            let at = if random.below(3) == 0 { segment + 256 * random.below(12) } else { at };
            if at + 2048 <= len && at > 4608 {
                let next = match random.below(4) {
                    0 => word_at(bytes, segment + 24),
                    1 => at,
                    _ => 0,
                };
                set_word(bytes, at, dash::identity(dash::Kind::Node, at, 0, 0));
                set_word(bytes, at + 8, next);
                set_word(bytes, segment + 24, at);
            }
        }
        // A descriptor of something else.
        4 => {
            let pages = image.bytes.len() as u64 / 4096;
            let page = (33 + random.below(pages - 33)) as u32;
            let low = match random.below(3) {
                0 => (1 + random.below(5)) | random.below(48) << 8 | random.below(20) << 16,
                1 => 2 | 255 << 8 | random.below(20) << 16,
                _ => random.next() & ((1 << 48) - 1),
            };
            let at = 32 * 4096 + u64::from(page) * 8;
            set_word(bytes, at, low);
            repair(bytes, &Region { offset: at, bytes: 8, what: What::Descriptor { page } });
        }
        // A header field, in both copies or in one.
        5 => {
            let fields = HEADER_WORDS as u64;
            let index = if random.below(4) == 0 { random.below(fields) } else { random.below(24) };
            let value = telling_word(image, bytes, random);
            for copy in layout::HEADER_OFFSETS {
                if random.below(4) != 0 {
                    set_word(bytes, copy + index * 8, value);
                    let region = Region { offset: copy, bytes: 512, what: What::Header };
                    repair(bytes, &region);
                }
            }
        }
        6 => {
            let value = telling_word(image, bytes, random);
            set_word(bytes, word, value);
        }
        _ => {
            let value = match random.below(3) {
                0 => word_at(bytes, word) ^ 0xff << (8 * random.below(8)),
                1 => word_at(bytes, word) ^ 1 << random.below(64),
                _ => telling_word(image, bytes, random),
            };
            set_word(bytes, word, value);
            if random.below(5) != 0 {
                repair(bytes, &region);
            }
        }
    }
}

/// As [`use_pool`], by two threads at once.
pub fn use_pool_together(bytes: &[u8], maps: &[KnownMap], alive: &Arc<Alive>, random: &Random) {
    let Ok(store) = open(bytes, alive) else { return };
    let case = CASE.get();
    let panicked = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2u64)
            .map(|thread| {
                let store = &store;
                let mut random = Random(random.0 ^ thread);
                scope.spawn(move || {
                    CASE.set(case);
                    WORKER.set(u64::MAX);
                    catch_unwind(AssertUnwindSafe(|| {
                        for round in 0..3 {
                            for map in maps {
                                let Ok(open) = store.open_map(&map.name) else { continue };
                                match open.index() {
                                    AnyIndex::Inline(index) => {
                                        words(&**index, &map.keys, &mut random)
                                    }
                                    AnyIndex::Bytes(index) => {
                                        texts(&**index, &map.keys, &mut random)
                                    }
                                };
                                if thread == round {
                                    let _ = store.step();
                                }
                            }
                        }
                    }))
                    .map_err(|_| PANIC.with_borrow(Clone::clone))
                })
            })
            .collect();
        threads.into_iter().find_map(|t| t.join().unwrap().err())
    });
    let _ = verify(&store);
    let _ = store.close();
    if let Some(text) = panicked {
        panic!("in a second thread: {text}");
    }
}

/// One case of the fuzzer.
pub fn fuzz_case(
    images: &[Image],
    alive: &Arc<Alive>,
    seed: u64,
    number: u64,
) -> Result<(), String> {
    let mut random = Random(seed ^ number.wrapping_mul(0xd605_1b9d_4f3b_2c01));
    let image = &images[random.below(images.len() as u64) as usize];
    let bytes = mutate(image, &mut random);
    let case = format!("--seed {seed} --case {number} ({})", image.name);
    watched(&case, || offline::walk_bytes(&bytes).is_ok())?;
    if random.below(12) == 0 {
        watched(&case, || use_pool_together(&bytes, &image.maps, alive, &random))?;
    } else {
        let verify_first = random.below(3) == 0;
        watched(&case, || use_pool(&bytes, &image.maps, alive, verify_first, &mut random))?;
    }
    Ok(())
}
