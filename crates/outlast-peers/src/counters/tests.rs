//! Known sequences of accesses, counted by hand.

use super::*;

fn load(line: u64) -> Access {
    Access::Load { offset: line * LINE + 8, value: 0 }
}

fn store(line: u64) -> Access {
    Access::Store { offset: line * LINE, value: 0, nontemporal: false }
}

fn stream(line: u64, word: u64) -> Access {
    Access::Store { offset: line * LINE + word * 8, value: 0, nontemporal: true }
}

fn flush(line: u64) -> Access {
    Access::Flush { offset: line * LINE, bytes: 8 }
}

/// A first cache of two sets with two lines each, and a second one of four sets with two lines.
fn small(flush: Flush, buffer_blocks: usize) -> Machine {
    Machine::new(&Sizes {
        caches: vec![CacheSize { bytes: 256, ways: 2 }, CacheSize { bytes: 512, ways: 2 }],
        flush,
        buffer_blocks,
    })
}

fn run(machine: &mut Machine, accesses: impl IntoIterator<Item = Access>) {
    let events = accesses.into_iter().map(|access| Event { thread: 0, point: None, access });
    machine.run(&events.collect::<Vec<_>>());
}

#[test]
fn the_least_recently_used_line_of_a_set_leaves_it() {
    let mut machine = small(Flush::Keeps, 1);
    // Lines 0, 2 and 4 share a set of the first cache; 0 and 4 share one of the second.
    run(&mut machine, [0, 2, 0, 4].map(load));
    assert_eq!(machine.counts().misses, [3, 3]);
    run(&mut machine, [load(0)]);
    assert_eq!(machine.counts().misses, [3, 3], "0 was used after 2");
    run(&mut machine, [load(2)]);
    assert_eq!(machine.counts().misses, [4, 3], "2 has left the first cache");
    run(&mut machine, [load(1), load(3)]);
    assert_eq!(machine.counts().misses, [6, 5], "another set");
    // 8 takes the place of 0 in the second cache, where 4 came later.
    run(&mut machine, [load(8)]);
    run(&mut machine, [load(4)]);
    assert_eq!(machine.counts().misses, [8, 6]);
    assert_eq!((machine.counts().accesses, machine.counts().medium.lines_read), (10, 6));
}

#[test]
fn a_larger_cache_and_more_ways_miss_less() {
    // A random trace over 64 lines: an LRU stack never misses more if it is larger.
    let mut number = 1u64;
    let trace: Vec<u64> = (0..5000)
        .map(|_| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (number >> 33) % 64
        })
        .collect();
    let misses = |lines: u64| {
        let size = CacheSize { bytes: lines * LINE, ways: lines as usize };
        let sizes = Sizes { caches: vec![size], flush: Flush::Keeps, buffer_blocks: 1 };
        let mut machine = Machine::new(&sizes);
        run(&mut machine, trace.iter().map(|&line| load(line)));
        machine.counts().misses[0]
    };
    let counts = [8, 16, 32, 64].map(misses);
    assert!(counts.is_sorted_by(|a, b| a > b), "{counts:?}");
    assert_eq!(counts[3], 64, "each line once");
    // Uniform draws hit with the probability that the line is held.
    assert!((2300..2700).contains(&counts[2]), "{counts:?}");
}

#[test]
fn a_flush_writes_a_dirty_line_once_and_may_drop_it() {
    for (flushes, misses) in [(Flush::Keeps, 1), (Flush::Drops, 2)] {
        let mut machine = small(flushes, 1);
        run(&mut machine, [store(5), store(5), flush(5), flush(5), Access::Fence, load(5)]);
        let counts = machine.counts();
        assert_eq!((counts.flushed, counts.fences, counts.misses[0]), (2, 1, misses));
        assert_eq!(counts.medium.lines_written, 1);
    }
}

#[test]
fn dirty_lines_are_written_when_they_leave_the_last_cache() {
    let mut machine = small(Flush::Keeps, 1);
    run(&mut machine, [store(0), load(4), load(8)]);
    assert_eq!(machine.counts().medium.lines_written, 0, "0 is dirty in the second cache");
    // It went there last, so 4 leaves first. (8 entered before 0 was evicted from the first.)
    run(&mut machine, [load(12), load(16), load(20), load(24)]);
    assert_eq!(machine.counts().medium.lines_written, 1);
    run(&mut machine, [flush(0)]);
    assert_eq!(machine.counts().medium.lines_written, 1, "nobody has it");
}

#[test]
fn streamed_words_of_a_line_are_written_together() {
    let mut machine = small(Flush::Keeps, 4);
    run(&mut machine, (0..8).map(|word| stream(3, word)));
    assert_eq!(machine.counts().medium.lines_written, 0, "not before a fence");
    run(&mut machine, [Access::Fence]);
    let counts = machine.counts();
    assert_eq!((counts.medium.lines_written, counts.medium.lines_read), (1, 0));
    assert_eq!(counts.misses, [0, 0]);
}

#[test]
fn the_medium_reads_and_writes_blocks() {
    // Neighbours are read at once, and a block that is written in part is read before.
    let mut machine = small(Flush::Drops, 2);
    run(&mut machine, [load(0), load(1), load(2), load(3)]);
    assert_eq!(machine.counts().medium.blocks_read, 1);
    let mut machine = small(Flush::Drops, 2);
    run(&mut machine, (0..8).map(|word| stream(8, word)).chain([Access::Fence]));
    let counts = machine.counts().medium;
    assert_eq!((counts.blocks_written, counts.blocks_read), (1, 1), "a quarter of a block");
    let mut machine = small(Flush::Drops, 2);
    let lines = (8..12).flat_map(|line| (0..8).map(move |word| stream(line, word)));
    run(&mut machine, lines.chain([Access::Fence]));
    let counts = machine.counts().medium;
    assert_eq!((counts.blocks_written, counts.blocks_read), (1, 0), "a whole block");
    // A buffer of two blocks merges writes to two blocks in turn, but not to three.
    for (blocks, written) in [(2, 2), (3, 12)] {
        let mut machine = small(Flush::Drops, 2);
        let lines = (0..4).flat_map(|line| (0..blocks).map(move |block| block * 4 + line));
        run(&mut machine, lines.map(|line| stream(line, 0)).chain([Access::Fence]));
        assert_eq!(machine.counts().medium.blocks_written, written);
    }
}

#[test]
fn counts_begin_anew_and_the_caches_stay() {
    let mut machine = small(Flush::Keeps, 1);
    run(&mut machine, [load(1), Access::Fence]);
    machine.reset();
    assert_eq!(machine.counts().misses, [0, 0]);
    run(&mut machine, [load(1)]);
    let expected = MachineCounts { accesses: 1, misses: vec![0, 0], ..MachineCounts::default() };
    assert_eq!(machine.counts(), expected);
}
