//! What a damaged journal still proves.

use super::super::epochs::{Fit, fit};
use super::super::segment::{SECTOR, remove_others};
use super::*;

const OWNER: Owner = Owner { pool: 1, life: 2 };
/// The first segment has the epochs up to this one.
const FIRST: u64 = 5;
/// This epoch is durable when the spare is made.
const SPARE: u64 = 7;
/// The last epoch. The second segment has room for two more.
const LAST: u64 = 8;
const NAMES: [&str; 3] =
    ["segment-0000000000000000", "segment-0000000000000001", "segment-0000000000000002"];

/// Epochs that fill one sector each, in two segments, and a spare.
fn journal(owner: Owner) -> (SimDisk, Writer) {
    let disk = SimDisk::new(1);
    let log = Writer::new(Arc::new(disk.clone()), owner, Attempt::unknown(0)).unwrap();
    let mut log = log.segment_bytes((1 + FIRST) * SECTOR);
    let preparer = log.preparer();
    for epoch in 1..=LAST {
        log.append(&lines(epoch)).unwrap();
        if epoch == SPARE {
            preparer.prepare((1 + FIRST) * SECTOR, log.last_attempt()).unwrap();
        }
    }
    assert_eq!(disk.names().unwrap(), NAMES);
    (disk, log)
}

fn lines(epoch: u64) -> Change {
    let mut change = Change::default();
    change.push(0..60, &[epoch as u8; 60 * LINE]);
    change
}

fn read(disk: &SimDisk, name: &str) -> Vec<u8> {
    let file = disk.open(name).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn write(disk: &SimDisk, name: &str, bytes: &[u8]) {
    disk.create(name, bytes, bytes.len() as u64).unwrap();
}

/// Returns the epoch that a rebuild comes to, or `None` if it refuses the journal. A refusal changes
/// nothing.
fn rebuilt(disk: &SimDisk) -> Option<u64> {
    let before = disk.digest();
    let epochs = Epochs::find(disk, needs(OWNER, 0)).unwrap();
    if epochs.is_gone() || epochs.damage().is_some() || epochs.last().epoch < epochs.least() {
        assert_eq!(disk.digest(), before);
        return None;
    }
    let mut number = 0;
    let apply = |change: &Change| {
        number += 1;
        assert_eq!(*change, lines(number));
        Ok(())
    };
    epochs.apply(apply).unwrap();
    assert_eq!(number, epochs.last().epoch);
    Some(number)
}

#[test]
fn a_damaged_header_costs_nothing() {
    for name in NAMES {
        for bit in 0..64 * 8 {
            let (disk, _) = journal(OWNER);
            let mut bytes = read(&disk, name);
            bytes[bit / 8] ^= 1 << (bit % 8);
            write(&disk, name, &bytes);
            let copied = disk.copy();
            assert_eq!(rebuilt(&copied), Some(LAST), "{name}, bit {bit}");
            let removed = remove_others(&disk, OWNER).unwrap();
            assert_eq!((removed.len(), disk.names().unwrap().len()), (1, 2), "{name}, bit {bit}");
            let closed = segment::has_others(&copied, Owner { life: 3, ..OWNER }, Some(0)).unwrap();
            let another = Owner { pool: 9, ..OWNER };
            assert!(closed && segment::has_others(&copied, another, None).unwrap(), "{bit}");
        }
    }
}

/// An epoch is written once the one before it is durable. So a damaged one that is followed by another
/// is not taken for the end of the journal.
#[test]
fn a_damaged_epoch_before_an_intact_one_is_noticed() {
    for epoch in 1..=LAST {
        let (name, sector) = match epoch {
            ..=FIRST => (NAMES[0], epoch),
            _ => (NAMES[1], epoch - FIRST),
        };
        for byte in (0..64).chain([64, 70, 80, 60 * 64]) {
            let (disk, _) = journal(OWNER);
            let mut bytes = read(&disk, name);
            bytes[(sector * SECTOR) as usize + byte] ^= 4;
            write(&disk, name, &bytes);
            // Nothing tells the last epoch from one that was not completely written.
            let allowed = (epoch == LAST).then_some(LAST - 1);
            assert_eq!(rebuilt(&disk), allowed, "epoch {epoch}, byte {byte}");
        }
    }
}

#[test]
fn a_file_that_was_cut_short_is_refused() {
    for name in NAMES {
        let len = read(&journal(OWNER).0, name).len();
        for cut in [0, 1, 63, 64, 4095, len - 1].into_iter().chain((1..6).map(|n| n * 4096)) {
            let (disk, _) = journal(OWNER);
            disk.cut_short(name, cut as u64);
            assert_eq!(rebuilt(&disk), None, "{name} of {cut} bytes");
            let closed = segment::has_others(&disk, Owner { life: 3, ..OWNER }, Some(0)).unwrap();
            assert!(closed, "{name} of {cut} bytes");
        }
    }
}

/// Nothing but the spare knows of the epochs at the end of the last segment.
#[test]
fn a_lost_end_is_noticed_up_to_the_epoch_that_a_spare_names() {
    for from in 0..=LAST - FIRST {
        let (disk, _) = journal(OWNER);
        let mut bytes = read(&disk, NAMES[1]);
        bytes[(from * SECTOR) as usize..].fill(0);
        write(&disk, NAMES[1], &bytes);
        let last = FIRST + from.max(1) - 1;
        assert_eq!(rebuilt(&disk), (last >= SPARE).then_some(last), "from sector {from}");
    }
    let (disk, _) = journal(OWNER);
    disk.remove(NAMES[1]).unwrap();
    assert_eq!(rebuilt(&disk), None);
    disk.remove(NAMES[2]).unwrap();
    assert_eq!(rebuilt(&disk), Some(FIRST));
    // A spare names it even if the first epoch is in it: then its header may not have been replaced yet.
    let (disk, _) = journal(OWNER);
    let (mut last, mut spare) = (read(&disk, NAMES[1]), read(&disk, NAMES[2]));
    let first = SECTOR as usize..2 * SECTOR as usize;
    spare[first.clone()].copy_from_slice(&last[first.clone()]);
    last[first.start..].fill(0);
    write(&disk, NAMES[1], &last);
    write(&disk, NAMES[2], &spare);
    assert_eq!(rebuilt(&disk), None);
}

#[test]
fn sectors_that_changed_places_are_noticed() {
    let sectors = 1 + FIRST as usize;
    let places = || NAMES.into_iter().flat_map(|name| (0..sectors).map(move |at| (name, at)));
    let mut refused = 0;
    for (one, from) in places() {
        for (other, to) in places() {
            let (disk, _) = journal(OWNER);
            let range = |at: usize| at * SECTOR as usize..(at + 1) * SECTOR as usize;
            let (mut first, mut second) = (read(&disk, one), read(&disk, other));
            let sector = first[range(from)].to_vec();
            if one == other {
                first.copy_within(range(to), from * SECTOR as usize);
                first[range(to)].copy_from_slice(&sector);
            } else {
                first[range(from)].copy_from_slice(&second[range(to)]);
                second[range(to)].copy_from_slice(&sector);
                write(&disk, other, &second);
            }
            write(&disk, one, &first);
            let found = rebuilt(&disk);
            assert!(found.is_none_or(|found| found == LAST), "{one}, {from}, {other}, {to}");
            refused += usize::from(found.is_none());
        }
    }
    assert!(refused > 100, "{refused}");
}

/// The header of an epoch that is damaged elsewhere still shows that the epoch before it was durable.
#[test]
fn the_last_epochs_are_not_lost_together_without_notice() {
    let long = |epoch: u64| {
        let mut change = Change::default();
        change.push(0..120, &[epoch as u8; 120 * LINE]);
        change
    };
    let disk = SimDisk::new(1);
    let mut log = Writer::new(Arc::new(disk.clone()), OWNER, Attempt::unknown(0)).unwrap();
    for epoch in 1..=3 {
        log.append(&long(epoch)).unwrap();
    }
    let intact = read(&disk, NAMES[0]);
    // Each has a block of two sectors. The second one of some epochs is damaged.
    for damaged in 0..8u64 {
        let mut bytes = intact.clone();
        for epoch in (1..=3).filter(|epoch| damaged >> (epoch - 1) & 1 == 1) {
            bytes[(2 * epoch * SECTOR) as usize + 100] ^= 1;
        }
        write(&disk, NAMES[0], &bytes);
        let epochs = Epochs::find(&disk.copy(), needs(OWNER, 0)).unwrap();
        let (last, least) = (epochs.last().epoch, epochs.least());
        match damaged {
            0 => assert_eq!((last, least), (3, 0)),
            // Nothing tells the last epoch from one that was not completely written.
            0b100 => assert_eq!((last, least), (2, 0)),
            _ => assert!(last < least && least >= 2, "{damaged:b}: {last}, {least}"),
        }
    }
}

#[test]
fn files_that_changed_places_are_noticed() {
    for one in NAMES {
        for other in NAMES {
            let (disk, _) = journal(OWNER);
            let (first, second) = (read(&disk, one), read(&disk, other));
            write(&disk, one, &second);
            write(&disk, other, &first);
            let found = rebuilt(&disk);
            assert_eq!(found, (one == other).then_some(LAST), "{one}, {other}");
        }
    }
}

/// A segment that is given up and the one that follows it continue from the same epoch. If both headers
/// are damaged, their order is still known from their numbers. If they changed places, it is not.
#[test]
fn segments_do_not_go_back() {
    let (disk, _) = journal(OWNER);
    let (mut first, mut second) = (read(&disk, NAMES[0]), read(&disk, NAMES[1]));
    first[0] ^= 1;
    second[0] ^= 1;
    write(&disk, NAMES[0], &second);
    write(&disk, NAMES[1], &first);
    assert_eq!(rebuilt(&disk), None);
}

/// Files are filled with zeros before they are used, so another life's block cannot be in one.
#[test]
fn a_block_of_another_life_is_noticed() {
    let other = journal(Owner { life: 3, ..OWNER }).0;
    for name in NAMES {
        for sector in 0..1 + FIRST as usize {
            let (disk, _) = journal(OWNER);
            let (mut bytes, others) = (read(&disk, name), read(&other, name));
            let range = sector * SECTOR as usize..(sector + 1) * SECTOR as usize;
            bytes[range.clone()].copy_from_slice(&others[range]);
            write(&disk, name, &bytes);
            let found = rebuilt(&disk);
            assert!(found.is_none_or(|found| found == LAST), "{name}, sector {sector}: {found:?}");
        }
    }
}

#[test]
fn a_working_file_is_compared_with_the_journal() {
    let (disk, log) = journal(OWNER);
    let meta = needs(OWNER, 0);
    let last = log.last_attempt();
    let attempt = |epoch| Attempt::unknown(epoch);
    let fits =
        |disk: &SimDisk, meta: &Meta, durable, begun| fit(disk, meta, durable, begun).unwrap();
    assert_eq!(fits(&disk, &meta, last, LAST), Fit::Whole);
    assert_eq!(fits(&disk, &meta, last, LAST + 1), Fit::Whole);
    // The process died when the epoch was written, before it could say so.
    assert_eq!(fits(&disk, &meta, attempt(LAST - 1), LAST), Fit::Whole);
    // Older copies.
    assert_eq!(fits(&disk, &meta, attempt(LAST - 1), LAST - 1), Fit::Older(LAST));
    for epoch in 0..LAST - 1 {
        for begun in [epoch, epoch + 1] {
            assert_eq!(fits(&disk, &meta, attempt(epoch), begun), Fit::Older(LAST), "{epoch}");
        }
    }
    let reached = Meta { reached: LAST + 1, ..meta };
    assert_eq!(fits(&disk, &reached, last, LAST), Fit::Older(LAST + 1));
    // A rebuild without the working file was cut short.
    assert_eq!(fits(&disk, &reached, last, LAST + 1), Fit::Short);
    let reached = Meta { reached: LAST, ..meta };
    assert_eq!(fits(&disk, &reached, attempt(LAST - 1), LAST), Fit::Whole);
    // The journal lacks something: the last epoch, the valid attempt at it, what comes before.
    assert_eq!(fits(&disk, &meta, attempt(LAST + 1), LAST + 1), Fit::Short);
    let void = Attempt { sum: !last.sum, ..last };
    assert_eq!(fits(&disk, &meta, void, LAST), Fit::Short);
    let without = disk.copy();
    without.remove(NAMES[0]).unwrap();
    assert_eq!(fits(&without, &meta, last, LAST), Fit::Short);
    assert_eq!(fits(&without, &needs(OWNER, FIRST), last, LAST), Fit::Whole);
    without.remove(NAMES[1]).unwrap();
    assert_eq!(fits(&without, &meta, last, LAST), Fit::Short);
    assert_eq!(fits(&without, &needs(OWNER, LAST), last, LAST), Fit::Whole);
    for name in NAMES {
        let cut = disk.copy();
        cut.cut_short(name, 5_000);
        assert_eq!(fits(&cut, &meta, last, LAST), Fit::Short, "{name}");
    }
    for from in 0..=LAST - FIRST {
        let zeroed = disk.copy();
        let mut bytes = read(&zeroed, NAMES[1]);
        bytes[(from * SECTOR) as usize..].fill(0);
        write(&zeroed, NAMES[1], &bytes);
        assert_eq!(fits(&zeroed, &meta, last, LAST), Fit::Short, "from sector {from}");
    }
}
