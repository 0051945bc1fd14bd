//! Two threads and a crash, chosen instead of waited for: bugs that were there, each kept
//! out by a test.
//!
//! Method: thread A is stopped before its k-th access of memory, and thread B works until
//! it has its answer. Of that moment two images are made: the least that a power loss
//! leaves (each line cut at its last fenced flush), and all that a process death leaves.
//! Then the pool is opened from them, and must know what B was answered.

use outlast::db::store::{AnyIndex, MapRequest, OpenMap, Store};
use outlast::index::{Bytes, Change, Cursor, Index, Inline, dash_eh};
use outlast::pmem::{Access, Alive, Control, Event, MediumKind, Traced};
use outlast::pool::backing::{Backing, Heap};
use outlast::pool::core::{Core, CoreOptions};
use outlast::pool::header::Header;
use outlast::pool::layout::HEADER_WORDS;
use outlast::{MapInfo, RecordForm};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, Mutex};

static ALIVE: LazyLock<Arc<Alive>> = LazyLock::new(|| Arc::new(Alive::new().unwrap()));
thread_local! { static VICTIM: Cell<bool> = const { Cell::new(false) }; }
type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct HookState {
    count: AtomicU64,
    at: AtomicU64,
    job: Mutex<Option<Job>>,
    b_waits: AtomicU64,
    done: Arc<AtomicBool>,
    handle: Mutex<Option<std::thread::JoinHandle<()>>>,
}
#[derive(Clone, Default)]
struct Hook(Arc<HookState>);
impl Control for Hook {
    fn before(&self, _t: usize, waiting: bool) {
        let h = &self.0;
        if !VICTIM.with(Cell::get) {
            if waiting {
                h.b_waits.fetch_add(1, SeqCst);
                std::thread::yield_now();
            }
            return;
        }
        if waiting {
            std::thread::yield_now();
            return;
        }
        let n = h.count.fetch_add(1, SeqCst);
        if n == h.at.load(SeqCst)
            && let Some(job) = h.job.lock().unwrap().take()
        {
            let done = Arc::clone(&h.done);
            *h.handle.lock().unwrap() = Some(std::thread::spawn(move || {
                job();
                done.store(true, SeqCst);
            }));
            while !h.done.load(SeqCst) && h.b_waits.load(SeqCst) < 3000 {
                std::thread::yield_now();
            }
        }
    }
}
impl Hook {
    fn arm(&self, at: u64, job: Job) {
        self.0.count.store(0, SeqCst);
        self.0.at.store(at, SeqCst);
        *self.0.job.lock().unwrap() = Some(job);
        VICTIM.with(|v| v.set(true));
    }
    fn disarm(&self) {
        VICTIM.with(|v| v.set(false));
        self.0.job.lock().unwrap().take();
        if let Some(h) = self.0.handle.lock().unwrap().take() {
            h.join().unwrap();
        }
    }
}

fn opts(pages: u64, hash: u32) -> CoreOptions {
    CoreOptions {
        page_bits: 12,
        initial_size: pages << 12,
        hash_function: hash,
        identity: Some((0x5eed, 1)),
        medium: MediumKind::Bytes,
        ..CoreOptions::default()
    }
}
const CAP: u64 = 1024 << 12;
fn create(seam: &Traced, pages: u64, hash: u32) -> Arc<Store<Traced>> {
    Store::with_alive(
        Core::create(Backing::Heap(Heap::new(&[], CAP, 0)), seam.clone(), opts(pages, hash))
            .unwrap(),
        Arc::clone(&ALIVE),
    )
}
fn open(file: &[u8], seam: &Traced) -> outlast::Result<Arc<Store<Traced>>> {
    let header = Header::read(file.len() as u64, |o| {
        let b = &file[o as usize..][..HEADER_WORDS * 8];
        Ok(std::array::from_fn(|i| u64::from_le_bytes(b[i * 8..][..8].try_into().unwrap())))
    })?;
    Ok(Store::with_alive(
        Core::open(Backing::Heap(Heap::new(file, CAP, 0)), seam.clone(), header, opts(0, 1))?,
        Arc::clone(&ALIVE),
    ))
}
fn req(form: RecordForm, name: &str) -> MapRequest {
    let (k, v) = if form == RecordForm::Inline { ("u64", "u64") } else { ("[u8]", "[u8]") };
    MapRequest {
        info: MapInfo {
            name: name.into(),
            form,
            key_schema: k.into(),
            value_schema: v.into(),
            config: dash_eh::Config { bucket_bits: 1, stash: 2 }.into(),
        },
        scheme_matters: true,
    }
}
fn inl(m: &OpenMap) -> &dyn Index<Inline> {
    match m.index() {
        AnyIndex::Inline(i) => &**i,
        _ => unreachable!(),
    }
}
fn byt(m: &OpenMap) -> &dyn Index<Bytes> {
    match m.index() {
        AnyIndex::Bytes(i) => &**i,
        _ => unreachable!(),
    }
}

/// (least image, image with everything stored)
fn images(events: &[Event]) -> (Vec<u8>, Vec<u8>) {
    let mut log: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    let mut pending: HashMap<usize, HashMap<u64, usize>> = HashMap::new();
    let mut durable: HashMap<u64, usize> = HashMap::new();
    let mut all = vec![0u8; CAP as usize];
    for e in events {
        match &e.access {
            Access::Store { offset, value, .. }
            | Access::CompareExchange { offset, new: value, exchanged: true, .. } => {
                log.entry(offset / 64).or_default().push((*offset, *value));
                all[*offset as usize..][..8].copy_from_slice(&value.to_le_bytes());
            }
            Access::Flush { offset, bytes } => {
                for line in offset / 64..=(offset + bytes - 1) / 64 {
                    let n = log.get(&line).map_or(0, Vec::len);
                    pending.entry(e.thread).or_default().insert(line, n);
                }
            }
            Access::Fence => {
                for (line, n) in pending.remove(&e.thread).unwrap_or_default() {
                    let d = durable.entry(line).or_default();
                    *d = (*d).max(n);
                }
            }
            _ => {}
        }
    }
    let mut least = vec![0u8; CAP as usize];
    for (line, n) in durable {
        for (o, v) in &log.get(&line).map_or(&[][..], |l| &l[..n]).to_vec() {
            least[*o as usize..][..8].copy_from_slice(&v.to_le_bytes());
        }
    }
    (least, all)
}
/// index of the first access of thread 0 that satisfies `f`
fn find(events: &[Event], from: usize, f: impl Fn(&Event) -> bool) -> Option<u64> {
    events[from..]
        .iter()
        .filter(|e| !matches!(e.access, Access::Mark(_)))
        .position(f)
        .map(|p| p as u64)
}
fn is(e: &Event, name: &str, flush: bool) -> bool {
    e.point.is_some_and(|p| p.name == name) && matches!(e.access, Access::Flush { .. }) == flush
}

#[test]
fn an_overflow_node_is_used_once_its_link_is_durable() {
    let key = |i: u64| (1 << 32) + i;
    let setup = |n: u64, seam: &Traced| {
        let s = create(seam, 200, 0x7e57);
        let m = s.map(&req(RecordForm::Inline, "m")).unwrap();
        for i in 0..n {
            inl(&m).change(key(i), Change::Insert(i + 7), false).unwrap();
        }
        (s, m)
    };
    // dry run: which insert links a node, and when
    let seam = Traced::new();
    seam.start(true);
    let (_s, m) = setup(0, &seam);
    let mut hit = None;
    for i in 0..400 {
        seam.take();
        seam.start(true);
        inl(&m).change(key(i), Change::Insert(i + 7), false).unwrap();
        let ev = seam.take();
        if let Some(k) = find(&ev, 0, |e| is(e, "overflow: link", true)) {
            hit = Some((i, k));
            break;
        }
    }
    let (n, k) = hit.expect("a node");
    let hook = Hook::default();
    let seam = Traced::with_control(Box::new(hook.clone()));
    seam.start(false);
    let (_s, m) = setup(n, &seam);
    let got = Arc::new(Mutex::new(None));
    let (m2, seam2, got2) = (Arc::clone(&m), seam.clone(), Arc::clone(&got));
    hook.arm(
        k,
        Box::new(move || {
            let c = inl(&m2).change(key(5000), Change::Insert(99), false).unwrap();
            *got2.lock().unwrap() = Some((c.applied, seam2.take()));
        }),
    );
    let _ = inl(&m).change(key(n), Change::Insert(n + 7), false);
    hook.disarm();
    let (applied, events) = got.lock().unwrap().take().expect("B answered while A was stopped");
    assert!(applied);
    let (least, _) = images(&events);
    let s = open(&least, &Traced::new()).unwrap();
    let m = s.open_map("m").unwrap();
    assert_eq!(inl(&m).get(key(5000)).unwrap(), Some(99), "acknowledged insert lost");
}

#[test]
fn a_map_is_used_once_its_root_is_durable() {
    let seam = Traced::new();
    let s = create(&seam, 200, 1);
    seam.start(true);
    s.map(&req(RecordForm::Inline, "m")).unwrap();
    let k = find(&seam.take(), 0, |e| {
        e.point.is_some_and(|p| std::ptr::eq(p, &outlast::pool::points::ROOT_COMMIT))
            && matches!(e.access, Access::Flush { .. })
    })
    .unwrap();
    let hook = Hook::default();
    let seam = Traced::with_control(Box::new(hook.clone()));
    seam.start(false);
    let s = create(&seam, 200, 1);
    let got = Arc::new(Mutex::new(None));
    let (s2, seam2, got2) = (Arc::clone(&s), seam.clone(), Arc::clone(&got));
    hook.arm(
        k,
        Box::new(move || {
            let m = s2.map(&req(RecordForm::Inline, "m")).unwrap();
            let c = inl(&m).change(5, Change::Insert(99), false).unwrap();
            *got2.lock().unwrap() = Some((c.applied, seam2.take()));
        }),
    );
    s.map(&req(RecordForm::Inline, "m")).unwrap();
    hook.disarm();
    let (applied, events) = got.lock().unwrap().take().unwrap();
    assert!(applied);
    let s = open(&images(&events).0, &Traced::new()).unwrap();
    let m = s.open_map("m").expect("the map that acknowledged an insert");
    assert_eq!(inl(&m).get(5).unwrap(), Some(99));
}

#[test]
fn new_space_is_used_once_the_size_is_durable() {
    let setup = |seam: &Traced| {
        let s = create(seam, 40, 1);
        let m = s.map(&req(RecordForm::Inline, "m")).unwrap();
        (s, m)
    };
    let seam = Traced::new();
    let (_s, m) = setup(&seam);
    let mut hit = None;
    for i in 0..5000 {
        seam.take();
        seam.start(true);
        inl(&m).change(i, Change::Insert(i + 7), false).unwrap();
        let ev = seam.take();
        if i > 0
            && let Some(k) = find(&ev, 0, |e| {
                e.point.is_some_and(|p| std::ptr::eq(p, &outlast::pool::points::HEADER_SIZE))
            })
        {
            hit = Some((i, k));
            break;
        }
    }
    let (n, k) = hit.unwrap();
    let hook = Hook::default();
    let seam = Traced::with_control(Box::new(hook.clone()));
    seam.start(false);
    let (_s, m) = setup(&seam);
    for i in 0..n {
        inl(&m).change(i, Change::Insert(i + 7), false).unwrap();
    }
    let got = Arc::new(Mutex::new(None));
    let (m2, seam2, got2) = (Arc::clone(&m), seam.clone(), Arc::clone(&got));
    hook.arm(
        k,
        Box::new(move || {
            for i in 100_000..100_400u64 {
                inl(&m2).change(i, Change::Insert(i + 7), false).unwrap();
            }
            *got2.lock().unwrap() = Some(seam2.take());
        }),
    );
    let _ = inl(&m).change(n, Change::Insert(n + 7), false);
    hook.disarm();
    let events = got.lock().unwrap().take().expect("B answered");
    for (what, image) in [("power loss", images(&events).0), ("process death", images(&events).1)] {
        let s = open(&image, &Traced::new())
            .unwrap_or_else(|e| panic!("{what}: pool does not open: {e}"));
        let m = s.open_map("m").unwrap();
        for i in 100_000..100_400u64 {
            assert_eq!(inl(&m).get(i).unwrap(), Some(i + 7), "{what}");
        }
    }
}

#[test]
fn the_trace_misses_no_record_that_a_split_takes_back() {
    let key = |i: u64| format!("key {i}").into_bytes();
    let mut bad = 0;
    for fill in [40u64, 60, 80, 100] {
        let seam = Traced::new();
        seam.start(false);
        let s = create(&seam, 300, 1);
        let m = s.map(&req(RecordForm::Bytes, "m")).unwrap();
        for i in 0..fill {
            byt(&m).change(&key(i), Change::Insert(&[i as u8; 40][..]), false).unwrap();
        }
        let image = images(&seam.take()).1;
        let mut k = 0;
        loop {
            let hook = Hook::default();
            let seam = Traced::with_control(Box::new(hook.clone()));
            let s = open(&image, &seam).unwrap();
            let m = s.open_map("m").unwrap();
            for i in 0..fill {
                assert!(byt(&m).get(&key(i)).unwrap().is_some());
            } // first touches
            let m2 = Arc::clone(&m);
            hook.arm(
                k,
                Box::new(move || {
                    for i in 1000..1060 {
                        byt(&m2).change(&key(i), Change::Insert(&[7; 40][..]), false).unwrap();
                    }
                }),
            );
            while s.step().unwrap() {}
            let total = hook.0.count.load(SeqCst);
            hook.disarm();
            let found = outlast::db::verify::verify(&s).unwrap();
            if !found.is_sound() {
                bad += 1;
                if bad <= 3 {
                    eprintln!(
                        "fill {fill} access {k}: {:?}",
                        found.all_damage().take(2).collect::<Vec<_>>()
                    );
                }
            }
            k += 3;
            if k > total {
                eprintln!("fill {fill}: {total} accesses, bad so far {bad}");
                break;
            }
        }
    }
    assert_eq!(bad, 0, "linked records whose blocks were freed");
}

#[test]
fn what_was_found_after_a_kill_survives_a_power_loss() {
    let seam = Traced::new();
    let s = create(&seam, 200, 1);
    let m = s.map(&req(RecordForm::Inline, "m")).unwrap();
    seam.start(true);
    inl(&m).change(5, Change::Insert(99), false).unwrap();
    let k = find(&seam.take(), 0, |e| is(e, "insert: slot", true)).unwrap();
    let hook = Hook::default();
    let seam = Traced::with_control(Box::new(hook.clone()));
    seam.start(false);
    let s = create(&seam, 200, 1);
    let m = s.map(&req(RecordForm::Inline, "m")).unwrap();
    let got = Arc::new(Mutex::new(None));
    let (seam2, got2) = (seam.clone(), Arc::clone(&got));
    hook.arm(
        k,
        Box::new(move || {
            *got2.lock().unwrap() = Some(seam2.take());
        }),
    );
    inl(&m).change(5, Change::Insert(99), false).unwrap();
    hook.disarm();
    let mut events = got.lock().unwrap().take().unwrap();
    let visible = images(&events).1; // SIGKILL here: the caches live on
    let seam = Traced::new();
    seam.start(false);
    let s = open(&visible, &seam).unwrap();
    let m = s.open_map("m").unwrap();
    let c = inl(&m).change(5, Change::Insert(100), false).unwrap();
    let v = inl(&m).get(5).unwrap();
    eprintln!("second process: insert applied {}, get {v:?}", c.applied);
    let mut later = seam.take();
    for e in &mut later {
        e.thread += 1000;
    }
    events.append(&mut later);
    let s = open(&images(&events).0, &Traced::new()).unwrap();
    let m = s.open_map("m").unwrap();
    assert_eq!(
        inl(&m).get(5).unwrap(),
        v,
        "what the second process answered is gone after power loss"
    );
}

#[test]
fn a_free_state_that_lies_makes_no_endless_chain() {
    let key = |i: u64| (1 << 32) + i;
    let seam = Traced::new();
    seam.start(false);
    let s = create(&seam, 200, 0x7e57);
    let m = s.map(&req(RecordForm::Inline, "m")).unwrap();
    let mut n = 0;
    let mut links = 0;
    while links < 3 {
        inl(&m).change(key(n), Change::Insert(n), false).unwrap();
        n += 1;
        if n % 98 == 0 {
            links += 1;
        }
    }
    let g = s.core().geometry;
    drop(m);
    s.close().unwrap();
    let mut image = images(&seam.take()).1;
    let word = |im: &[u8], o: u64| u64::from_le_bytes(im[o as usize..][..8].try_into().unwrap());
    let off = (0..CAP / 8)
        .map(|i| i * 8)
        .find(|&o| word(&image, o) == u64::from_le_bytes(*b"freestat"))
        .unwrap();
    let len = word(&image, off + 8);
    let class = g.class_for(2048);
    let mut at = 3;
    let mut cleared = 0;
    while at < len {
        let page = word(&image, off + at * 8) as u32;
        let d = word(&image, g.descriptor_offset(page));
        let (kind, c, count) = (d as u8, (d >> 8) as u8, (d >> 16) as u32);
        let blocks = if kind == 2 { 1 } else { g.run_blocks(g.class_bytes(c).unwrap(), count) };
        let words = u64::from(blocks.div_ceil(64));
        if kind == 1 && c == class {
            for w in 1..=words {
                image[(off + (at + w) * 8) as usize..][..8].fill(0);
            }
            cleared += 1;
        }
        at += 1 + words;
    }
    let crc = (3..len)
        .fold(0, |crc, i| crc32c::crc32c_append(crc, &word(&image, off + i * 8).to_le_bytes()));
    image[(off + 16) as usize..][..8].copy_from_slice(&u64::from(crc).to_le_bytes());
    eprintln!("{n} keys, cleared {cleared}");
    let (tx, rx) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let s = open(&image, &Traced::new()).unwrap();
        let m = s.open_map("m").unwrap();
        for i in 0..300 {
            let _ = inl(&m).change(key(10_000 + i), Change::Insert(i), false);
        }
        let _ = inl(&m).get(key(77_777));
        let _ = tx.send(());
    });
    assert!(rx.recv_timeout(std::time::Duration::from_secs(20)).is_ok(), "loops for ever");
}

#[test]
fn a_scan_reports_no_record_twice_beside_changes_of_the_stash() {
    let key = |i: u64| format!("key {i}").into_bytes();
    let mut bad = 0;
    for fill in [44u64, 70, 90] {
        let setup = |seam: &Traced| {
            let s = create(seam, 300, 1);
            let m = s.map(&req(RecordForm::Bytes, "m")).unwrap();
            for i in 0..fill {
                byt(&m).change(&key(i), Change::Insert(&[i as u8; 40][..]), false).unwrap();
            }
            (s, m)
        };
        let mut k = 0;
        loop {
            let hook = Hook::default();
            let seam = Traced::with_control(Box::new(hook.clone()));
            let (_s, m) = setup(&seam);
            let m2 = Arc::clone(&m);
            // the latest keys are those most likely in the stash
            hook.arm(
                k,
                Box::new(move || {
                    for i in fill - 12..fill {
                        byt(&m2).change(&key(i), Change::Remove, false).unwrap();
                        byt(&m2)
                            .change(&key(i + 5000), Change::Insert(&[1; 40][..]), false)
                            .unwrap();
                    }
                }),
            );
            let (mut c, mut out) = (Cursor::start(), vec![]);
            while !c.is_done() {
                byt(&m).scan(&mut c, &mut out).unwrap();
            }
            let total = hook.0.count.load(SeqCst);
            hook.disarm();
            let mut keys: Vec<_> = out.iter().map(|(k, _)| k.clone()).collect();
            keys.sort();
            let n = keys.len();
            keys.dedup();
            if keys.len() != n {
                bad += 1;
                if bad < 3 {
                    eprintln!("fill {fill} access {k}: a key twice");
                }
            }
            k += 1;
            if k > total {
                break;
            }
        }
    }
    assert_eq!(bad, 0);
}
