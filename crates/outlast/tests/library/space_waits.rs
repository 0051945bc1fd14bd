//! How long a thread that needs space waits for operations that keep retired blocks from being
//! freed.
//!
//! Method: one thread allocates runs of pages until the pool grows, while another thread is in the
//! middle of an operation. The test counts the iterations of the first thread's wait (*turns*), and
//! in some tests acts in each of them.

use outlast::internals::pmem::{Control, MediumKind, Traced};
use outlast::internals::pool::backing::{Backing, Heap};
use outlast::internals::pool::core::{Core, CoreOptions};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

const RUN: u64 = 64 << 10;
/// The number of turns after which a thread counts as stopped forever.
const GRACE: u64 = 1 << 10;

type EachTurn = Box<dyn FnMut(u64) + Send>;

#[derive(Clone, Default)]
struct Turns {
    count: Arc<AtomicU64>,
    /// What the test does in each turn.
    each: Arc<Mutex<Option<EachTurn>>>,
}

impl Control for Turns {
    fn before(&self, _: usize, waiting: bool) {
        if waiting {
            let turn = self.count.fetch_add(1, SeqCst);
            if let Some(each) = &mut *self.each.lock().unwrap() {
                each(turn);
            }
        }
    }

    fn only_waiting(&self) -> bool {
        true
    }
}

fn core(turns: &Turns) -> Arc<Core<Traced>> {
    let options = CoreOptions {
        page_bits: 12,
        initial_size: 1 << 20,
        identity: Some((0x5eed, 1)),
        medium: MediumKind::Bytes,
        ..CoreOptions::default()
    };
    let heap = Backing::Heap(Heap::new(&[], 16 << 20, 0));
    let seam = Traced::with_control(Box::new(turns.clone()));
    Arc::new(Core::create(heap, seam, options).unwrap())
}

/// A thread in the middle of an operation, until it is told to continue.
struct Inside(Option<(Sender<()>, JoinHandle<()>)>);

impl Inside {
    fn begin(core: &Arc<Core<Traced>>) -> Inside {
        let (go_on, told) = channel();
        let (begin, begun) = channel();
        let core = Arc::clone(core);
        let thread = std::thread::spawn(move || {
            let _visit = core.visit();
            begin.send(()).unwrap();
            let _ = told.recv();
        });
        begun.recv().unwrap();
        Inside(Some((go_on, thread)))
    }

    fn end(&mut self) {
        if let Some((go_on, thread)) = self.0.take() {
            drop(go_on);
            thread.join().unwrap();
        }
    }
}

/// Allocates runs until the pool has grown. Returns the number of turns that the thread waited.
fn grow(core: &Core<Traced>, turns: &Turns) -> u64 {
    let (size, before) = (core.size(), turns.count.load(SeqCst));
    while core.size() == size {
        core.allocate(RUN).unwrap();
    }
    turns.count.load(SeqCst) - before
}

#[test]
fn who_is_stopped_inside_of_an_operation_is_waited_for_once() {
    let turns = Turns::default();
    let core = core(&turns);
    let _writing = core.enter().unwrap();
    let block = core.allocate(RUN).unwrap();
    let mut stopped = Inside::begin(&core);
    core.retire_visited(block.offset, RUN);
    assert_eq!(grow(&core, &turns), GRACE);
    for _ in 0..5 {
        assert_eq!(grow(&core, &turns), 0, "waited for again");
    }
    stopped.end();
    let mut other = Inside::begin(&core);
    // The stopped operation kept this block from being freed. The new one does not.
    let size = core.size();
    while core.size() == size {
        if core.allocate(RUN).unwrap().offset == block.offset {
            other.end();
            return;
        }
    }
    panic!("grew instead of using what was free");
}

#[test]
fn another_one_that_is_stopped_is_waited_for_as_well() {
    let turns = Turns::default();
    let core = core(&turns);
    let _writing = core.enter().unwrap();
    for _ in 0..3 {
        let block = core.allocate(RUN).unwrap();
        let mut stopped = Inside::begin(&core);
        core.retire_visited(block.offset, RUN);
        assert_eq!(grow(&core, &turns), GRACE);
        stopped.end();
        core.collect();
        core.collect();
    }
}

#[test]
fn who_goes_on_is_waited_for_until_then_and_the_pool_does_not_grow() {
    let turns = Turns::default();
    let core = core(&turns);
    let _writing = core.enter().unwrap();
    let block = core.allocate(RUN).unwrap();
    let mut inside = Inside::begin(&core);
    core.retire_visited(block.offset, RUN);
    *turns.each.lock().unwrap() = Some(Box::new(move |turn| {
        if turn == 100 {
            inside.end();
        }
    }));
    let size = core.size();
    while core.allocate(RUN).unwrap().offset != block.offset {
        assert_eq!(core.size(), size, "grew instead of waiting");
    }
    let turns = turns.count.load(SeqCst);
    assert!((101..110).contains(&turns), "{turns} turns");
}

/// Other threads retire small blocks all the time, from which no run of pages can be made.
#[test]
fn what_others_retire_meanwhile_is_not_waited_for() {
    let turns = Turns::default();
    let core = core(&turns);
    let _writing = core.enter().unwrap();
    let small = |_| core.allocate(64).unwrap().offset;
    let mut blocks: Vec<u64> = (0..2 * GRACE + 2).map(small).collect();
    // Keep one block in each of their runs, so that no run becomes empty.
    blocks.retain(|offset| offset % 4096 != 0);
    let mut inside = Inside::begin(&core);
    core.retire_visited(blocks.pop().unwrap(), 64);
    let weak = Arc::downgrade(&core);
    *turns.each.lock().unwrap() = Some(Box::new(move |turn| {
        let core = weak.upgrade().unwrap();
        for _ in 0..2 {
            core.retire_visited(blocks.pop().unwrap(), 64);
        }
        // At every moment some thread is in the middle of an operation, but that operation began
        // after the wait did.
        if turn >= 10 {
            let next = Inside::begin(&core);
            inside.end();
            inside = next;
        }
    }));
    let took = grow(&core, &turns);
    assert!((11..20).contains(&took), "{took} turns");
}
