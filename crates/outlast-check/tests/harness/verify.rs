//! Damage that verification used to call sound.
//!
//! Goal: the pool opened for writing, the pool opened read-only and the offline walk all notice the
//! damage. They must notice it in pools that were closed and, if it can be seen there, in pools
//! that a kill left.

use outlast::internals::db::batch::BatchRecord;
use outlast::internals::db::store::{AnyIndex, OpenMap};
use outlast::internals::index::ea_pht::layout::{self as ea_pht, Kind, Link};
use outlast::internals::index::group::layout as group;
use outlast::internals::index::{Change, Previous};
use outlast::internals::pmem::Alive;
use outlast::internals::pool::layout::{
    BATCH_MAGIC, BATCH_OFFSET, DIRTY, HEADER_OFFSETS, LACKS_ROOT, field, pack_batch,
};
use outlast::{Error, RecordForm, Scheme};
use outlast_check::fuzz::images::{Image, images, small_images, with_level_ready};
use outlast_check::fuzz::pool::{
    Pool, bytes_of, create, map_info, open, open_map, set_word, word_at,
};
use outlast_check::fuzz::repair::repair;
use outlast_check::fuzz::trial::Verdicts;
use outlast_offline::{Region, What};
use std::sync::{Arc, LazyLock};

static ALIVE: LazyLock<Arc<Alive>> = LazyLock::new(|| Arc::new(Alive::new().unwrap()));

/// Checks that all three verifications notice what was done to an image.
fn noticed(image: &Image, what: &str, damage: impl FnOnce(&mut [u8])) {
    let mut bytes = image.bytes.clone();
    damage(&mut bytes);
    assert_ne!(bytes, image.bytes, "{}: {what}", image.name);
    let verdicts = Verdicts::of(&bytes, &ALIVE).unwrap();
    assert!(verdicts.all_damaged(), "{}: {what}: {verdicts}", image.name);
}

fn regions(image: &Image, is: impl Fn(&What) -> bool) -> Vec<Region> {
    image.regions.iter().filter(|region| is(&region.what)).copied().collect()
}

#[test]
fn sound_pools_are_called_sound() {
    for &scheme in Scheme::ALL {
        for image in images(scheme) {
            let verdicts = Verdicts::of(&image.bytes, &ALIVE).unwrap();
            assert!(verdicts.all_sound(), "{}: {verdicts}", image.name);
        }
    }
}

#[test]
fn anything_in_a_level_kept_ready_is_noticed() {
    for image in with_level_ready() {
        let ready = regions(&image, |what| *what == What::ReadyLevel);
        for (n, region) in ready.into_iter().enumerate().step_by(2) {
            let at = region.offset + region.bytes * (n as u64 % 3) / 24 * 8;
            for word in [1, 1 << 63, 0x0123_4567_8000] {
                noticed(&image, &format!("{at:#x} = {word:#x}"), |b| set_word(b, at, word));
            }
        }
    }
}

#[test]
fn the_header_of_a_level_kept_ready_is_checked() {
    for image in with_level_ready() {
        // The header is the last thing before the level's content.
        let ready = regions(&image, |what| *what == What::ReadyLevel);
        let levels = regions(&image, |what| matches!(what, What::Level { .. }));
        let headers = levels.iter().filter(|l| ready.iter().any(|r| r.offset == l.offset + 64));
        let headers: Vec<_> = headers.collect();
        assert!(!headers.is_empty());
        for header in headers {
            for bit in [0, 20, 33, 63] {
                let at = header.offset;
                let word = image.word(at) ^ 1 << bit;
                noticed(&image, &format!("{at:#x} = {word:#x}"), |b| set_word(b, at, word));
            }
        }
    }
}

/// A crash can leave closed chains in a level that is being emptied, and in no other.
#[test]
fn a_closed_chain_of_the_newest_level_is_noticed() {
    for image in small_images(Scheme::Clevel) {
        let mut noticed = 0;
        for head in regions(&image, |what| *what == What::ChainHead) {
            let mut bytes = image.bytes.clone();
            if image.word(head.offset) == 0 {
                set_word(&mut bytes, head.offset, 1);
            }
            let verdicts = Verdicts::of(&bytes, &ALIVE).unwrap();
            assert!(verdicts.all_sound() || verdicts.all_damaged(), "{:#x}{verdicts}", head.offset);
            noticed += u32::from(verdicts.all_damaged());
        }
        assert!(noticed >= 3, "one for each map, not {noticed}");
    }
}

#[test]
fn a_changed_bit_of_a_leaf_is_noticed() {
    for image in small_images(Scheme::Phast) {
        let heads = regions(&image, |what| matches!(what, What::LeafHead { .. }));
        for (n, head) in heads.into_iter().enumerate().step_by(7) {
            let What::LeafHead { slots } = head.what else { unreachable!() };
            let word = image.word(head.offset);
            let bits = (0..slots).filter(|bit| word >> bit & 1 == 1);
            for bit in bits.chain([n as u32 % slots, 56 + n as u32 % 8]) {
                let at = head.offset;
                noticed(&image, &format!("bit {bit} at {at:#x}"), |b| {
                    set_word(b, at, word ^ 1 << bit)
                });
            }
        }
    }
}

/// Opening allocates a directory for the deepest segment, so no file may make it believe in a depth
/// that takes all memory.
#[test]
fn a_forged_depth_is_noticed() {
    for image in small_images(Scheme::Group) {
        let segments = regions(&image, |what| matches!(what, What::GroupSegment { .. }));
        for segment in segments.into_iter().step_by(9) {
            for depth in [20, 31, 40] {
                let at = segment.offset + 16;
                let link = group::Link { offset: segment.offset, depth }.pack(at);
                noticed(&image, &format!("depth {depth} at {at:#x}"), |b| set_word(b, at, link));
            }
        }
    }
}

#[test]
fn a_slot_copied_to_where_it_does_not_belong_is_noticed() {
    for image in small_images(Scheme::Clevel) {
        let slots = regions(&image, |what| *what == What::ClevelSlot);
        let mut damaged = 0;
        for (from, to) in slots.iter().zip(slots.iter().skip(37)).step_by(9) {
            let mut bytes = image.bytes.clone();
            set_word(&mut bytes, to.offset, image.word(from.offset));
            let verdicts = Verdicts::of(&bytes, &ALIVE).unwrap();
            // If the record may be in the other slot, a crash in rehashing can leave it in both.
            let agree = verdicts.all_damaged() || (verdicts.all_sound() && !image.clean);
            assert!(agree, "{}: {:#x} to {:#x}: {verdicts}", image.name, from.offset, to.offset);
            damaged += usize::from(verdicts.all_damaged());
        }
        assert!(damaged > 2, "{}: {damaged}", image.name);
    }
}

#[test]
fn the_descriptor_of_a_later_page_is_checked() {
    for &scheme in Scheme::ALL {
        for image in small_images(scheme) {
            let later = regions(&image, |what| matches!(what, What::Descriptor { .. }));
            let later: Vec<_> =
                later.into_iter().filter(|r| image.word(r.offset) & 0xff == 4).collect();
            assert!(!later.is_empty(), "{}", image.name);
            for region in later {
                let at = region.offset;
                let damaged = |word: u64| {
                    noticed(&image, &format!("{at:#x} = {word:#x}"), |bytes| {
                        set_word(bytes, at, word);
                        repair(bytes, &region);
                    });
                };
                // Put another distance, another class, or nothing there.
                damaged(image.word(at) ^ 1 << 17);
                damaged(image.word(at) ^ 1 << 8);
                noticed(&image, &format!("{at:#x} = 0"), |bytes| set_word(bytes, at, 0));
            }
        }
    }
}

#[test]
fn a_state_with_unknown_bits_is_noticed() {
    for image in small_images(Scheme::Clevel) {
        for record in regions(&image, |what| *what == What::ClevelRecord).iter().step_by(41) {
            for word in [5 << 60 | 1 << 46, 5 << 60 | 1 << 59, 4 << 60 | 1 << 50, 3 << 60 | 1 << 59]
            {
                let at = record.offset;
                noticed(&image, &format!("{at:#x} = {word:#x}"), |b| set_word(b, at, word));
            }
        }
    }
}

#[test]
fn a_key_twice_in_one_bucket_is_noticed() {
    for image in small_images(Scheme::DashEh) {
        let is_slot = |what: &What| matches!(what, What::LiveSlot { form: RecordForm::Bytes, .. });
        let mut tried = 0;
        for slot in regions(&image, is_slot).into_iter().step_by(5) {
            let bucket = slot.offset & !255;
            let free = (0..16).map(|n| bucket + n * 16).find(|&at| image.word(at) == 0);
            let Some(free) = free else { continue };
            noticed(&image, &format!("{:#x} again at {free:#x}", slot.offset), |bytes| {
                for at in [8, 0] {
                    let word = word_at(bytes, slot.offset + at);
                    set_word(bytes, free + at, word);
                }
            });
            tried += 1;
        }
        assert!(tried > 5, "{}: {tried}", image.name);
    }
}

#[test]
fn a_slot_that_was_cleared_is_noticed_where_the_free_state_tells() {
    for image in small_images(Scheme::Clevel).iter().filter(|image| image.clean) {
        for slot in regions(image, |what| *what == What::ClevelSlot).iter().step_by(19) {
            // If two slots lead to one record, losing one of them is no damage.
            let alike = |r: &Region| (image.word(r.offset) ^ image.word(slot.offset)) << 16 == 0;
            if regions(image, |what| *what == What::ClevelSlot).iter().filter(|r| alike(r)).count()
                == 1
            {
                noticed(image, &format!("no slot at {:#x}", slot.offset), |b| {
                    set_word(b, slot.offset, 0)
                });
            }
        }
    }
}

/// A slot that came back after its record was removed. The block is free, and the slot would lead
/// to whatever uses the block next.
#[test]
fn a_slot_that_leads_to_a_removed_record_is_noticed_in_a_closed_pool() {
    const DEAD: u64 = 5 << 60 | 8 << 17 | 8;
    for image in small_images(Scheme::Clevel).iter().filter(|image| image.clean) {
        let dead: Vec<u64> = (0..image.bytes.len() as u64)
            .step_by(16)
            .filter(|&at| image.word(at) == DEAD)
            .collect();
        let mut tried = 0;
        for slot in regions(image, |what| *what == What::ClevelSlot).iter().step_by(11) {
            let line = slot.offset & !63;
            let Some(free) = (0..8).map(|n| line + 8 * n).find(|&at| image.word(at) == 0) else {
                continue;
            };
            let Some(&record) = dead.get(tried) else { break };
            noticed(image, &format!("{free:#x} leads to {record:#x}"), |bytes| {
                set_word(bytes, free, 0x123 << 48 | record);
            });
            tried += 1;
        }
        assert!(tried > 2, "{}: {tried}, {} removed", image.name, dead.len());
    }
}

#[test]
fn a_root_that_a_closed_pool_has_lost_is_told() {
    for &scheme in Scheme::ALL {
        for image in small_images(scheme).iter().filter(|image| image.clean) {
            let roots = regions(image, |what| *what == What::RootCommit);
            let roots = roots.into_iter().filter(|root| image.word(root.offset) != 0);
            for (root, known) in roots.zip(&image.maps) {
                let at = root.offset;
                noticed(image, &format!("no root at {at:#x}"), |b| set_word(b, at, 0));
                let mut bytes = image.bytes.clone();
                set_word(&mut bytes, at, 0);
                for _ in 0..2 {
                    let store = open(&bytes, &ALIVE).unwrap();
                    let lost = store.open_map(&known.name).map(|_| ());
                    let slot = (at - 16384) as usize / 512;
                    assert!(
                        matches!(&lost, Err(Error::DamagedRoot { slot: s, .. }) if *s == slot),
                        "{lost:?}"
                    );
                    // Opening another map, syncs and a verification must not make the pool forget
                    // the lost root.
                    let other = image.maps.iter().find(|m| m.name != known.name).unwrap();
                    let map = store.open_map(&other.name).unwrap();
                    drop(map);
                    store.sync().unwrap();
                    let _ = outlast::internals::db::verify::verify(&store).unwrap();
                    store.sync().unwrap();
                    bytes = outlast_check::fuzz::pool::bytes_of(&store);
                    store.close().unwrap();
                }
                // The lost root must also be reported if a crash tore the write of the dirty mark.
                let mut torn = image.bytes.clone();
                set_word(&mut torn, at, 0);
                let sequence = |at: u64| word_at(&torn, at + 8 * field::SEQUENCE as u64);
                let older = HEADER_OFFSETS.into_iter().min_by_key(|&at| sequence(at)).unwrap();
                set_word(&mut torn, older + 8 * field::DIRTY as u64, DIRTY | LACKS_ROOT);
                let verdicts = Verdicts::of(&torn, &ALIVE).unwrap();
                assert!(verdicts.all_damaged(), "{}: {verdicts}", image.name);
                let store = open(&torn, &ALIVE).unwrap();
                let copy = store.core().header().copy_damaged;
                assert!(copy.is_some(), "{}: the mark is torn", image.name);
                let lost = store.open_map(&known.name).map(|_| ());
                assert!(matches!(&lost, Err(Error::DamagedRoot { .. })), "{lost:?}");
                // After two process deaths in a row, the lost root must still be reported.
                let other = image.maps.iter().find(|m| m.name != known.name).unwrap();
                for _ in 0..2 {
                    let store = open(&bytes, &ALIVE).unwrap();
                    let map = store.open_map(&other.name).unwrap();
                    match map.index() {
                        AnyIndex::Inline(index) => {
                            index.change(1, Change::Put(2), Previous::UNWANTED).map(drop)
                        }
                        AnyIndex::Bytes(index) => {
                            index.change(b"1", Change::Put(&b"2"[..]), Previous::UNWANTED).map(drop)
                        }
                    }
                    .unwrap();
                    drop(map);
                    bytes = outlast_check::fuzz::pool::bytes_of(&store);
                    assert!(!store.core().is_clean());
                    let lost = store.open_map(&known.name).map(|_| ());
                    assert!(matches!(&lost, Err(Error::DamagedRoot { .. })), "{lost:?}");
                    let verdicts = Verdicts::of(&bytes, &ALIVE).unwrap();
                    assert!(verdicts.all_damaged(), "{}: {verdicts}", image.name);
                }
            }
        }
    }
}

/// A table that claims to have too many buckets for its chunks, up to 2^40. The shift that computes
/// their number used to overflow 32 bits.
#[test]
fn a_table_of_too_many_buckets_is_noticed() {
    let mut tables = 0;
    for scheme in [Scheme::EaPht, Scheme::EaPhtH, Scheme::EaPhtHpr] {
        for image in small_images(scheme) {
            for region in regions(&image, |what| *what == What::PhtTable) {
                let identity =
                    |depth| ea_pht::identity(Kind::Table, region.offset, 0, depth | 1 << 8);
                let is_small =
                    (1..10).any(|depth| word_at(&image.bytes, region.offset) == identity(depth));
                if !is_small {
                    continue;
                }
                tables += 1;
                for depth in [31, 32, 33, 40] {
                    noticed(&image, &format!("2^{depth} buckets"), |bytes| {
                        let root = (0..bytes.len() as u64 / 8).map(|word| 8 * word).find(|&at| {
                            let link = Link::unpack(0, word_at(bytes, at));
                            link.is_some_and(|link| link.offset == region.offset && link.depth > 0)
                        });
                        let link = Link { offset: region.offset, depth };
                        if let Some(root) = root {
                            set_word(bytes, root, link.pack(0));
                        }
                        set_word(bytes, region.offset, identity(depth));
                    });
                }
            }
        }
    }
    assert!(tables >= 3, "{tables}");
}

/// Returns a pool that a kill left with the log of an unfinished batch. Its maps `a` (inline) and
/// `b` (byte strings) are in the slots 0 and 1, and have the key 1 with the value 10.
fn with_log(scheme: Scheme, changes: &[u8], edit: impl FnOnce(&mut [u8], u64)) -> Vec<u8> {
    let store = create(1, 12);
    for (name, form) in [("a", RecordForm::Inline), ("b", RecordForm::Bytes)] {
        let map = open_map(&store, map_info(scheme, name, form, 1, 2)).unwrap();
        change(&map, Some(10));
    }
    let core = store.core();
    let at = core.allocate(24 + changes.len() as u64).unwrap().offset;
    let mut bytes = bytes_of(&store);
    let crc = crc32c::crc32c(&core.header().id().to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &at.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &(changes.len() as u64).to_le_bytes());
    let crc = crc32c::crc32c_append(crc, changes);
    let head = [BATCH_MAGIC, changes.len() as u64, u64::from(crc)];
    head.iter().zip(0..).for_each(|(word, n)| set_word(&mut bytes, at + 8 * n, *word));
    bytes[at as usize + 24..][..changes.len()].copy_from_slice(changes);
    set_word(&mut bytes, BATCH_OFFSET, pack_batch(at));
    edit(&mut bytes, at);
    bytes
}

fn change(map: &OpenMap, value: Option<u64>) {
    match map.index() {
        AnyIndex::Inline(index) => {
            let change = value.map_or(Change::Remove, Change::Put);
            index.change(1, change, Previous::UNWANTED).unwrap();
        }
        AnyIndex::Bytes(index) => {
            let value = value.map(u64::to_le_bytes);
            let change = match &value {
                Some(value) => Change::Put(&value[..]),
                None => Change::Remove,
            };
            index.change(&[1], change, Previous::UNWANTED).unwrap();
        }
    }
}

fn value(store: &Pool, name: &str) -> Option<u64> {
    match store.open_map(name).unwrap().index() {
        AnyIndex::Inline(index) => index.get(1).unwrap(),
        AnyIndex::Bytes(index) => {
            let found = index.get(&[1]).unwrap();
            found.map(|value| u64::from_le_bytes(value.try_into().unwrap()))
        }
    }
}

/// Encodes a change as in a batch's log.
fn logged(slot: u32, key: &[u8], values: [Option<u64>; 2]) -> Vec<u8> {
    let mut bytes = [&slot.to_le_bytes()[..], &(key.len() as u32).to_le_bytes(), key].concat();
    for value in values {
        match value {
            None => bytes.extend([0; 4]),
            Some(value) => bytes.extend([&9u32.to_le_bytes()[..], &value.to_le_bytes()].concat()),
        }
    }
    bytes
}

#[test]
fn a_batch_that_a_kill_has_cut_short_is_made() {
    for &scheme in Scheme::ALL {
        let a = logged(0, &1u64.to_le_bytes(), [Some(20), Some(10)]);
        let whole = [a, logged(1, &[1], [None, Some(10)])].concat();
        let bytes = with_log(scheme, &whole, |_, _| ());
        assert!(Verdicts::of(&bytes, &ALIVE).unwrap().all_sound(), "{scheme}");
        let store = open(&bytes, &ALIVE).unwrap();
        assert_eq!((value(&store, "a"), value(&store, "b")), (Some(20), None), "{scheme}");
        // The next open does not apply the batch again.
        change(&store.open_map("a").unwrap(), Some(30));
        let store = open(&bytes_of(&store), &ALIVE).unwrap();
        assert_eq!(value(&store, "a"), Some(30), "{scheme}");
    }
}

/// The pool opens and works, and a verification reports the batch once.
#[test]
fn a_batch_whose_log_is_damaged_is_reported() {
    let key = 1u64.to_le_bytes();
    let good = || logged(0, &key, [Some(20), Some(10)]);
    let with = |other: Vec<u8>| [good(), other].concat();
    let far = |n: u32| [&0u32.to_le_bytes()[..], &n.to_le_bytes(), &[7; 8]].concat();
    for (what, changes) in [
        ("a slot beyond all", with(logged(128, &key, [Some(20), None]))),
        ("a slot without a map", with(logged(2, &key, [Some(20), None]))),
        ("a key that is no word", with(logged(0, &[1], [Some(20), None]))),
        ("half a change", with(good()[..20].to_vec())),
        ("a key beyond the end", with(far(100))),
        ("a key of 4 GiB", with(far(u32::MAX))),
        ("a key that is too long", with(logged(1, &vec![1; 70_000], [Some(20), None]))),
    ] {
        for &scheme in Scheme::ALL {
            given_up(scheme, what, &with_log(scheme, &changes, |_, _| ()));
        }
    }
    type Edit = fn(&mut [u8], u64);
    let edits: [(&str, Edit); 6] = [
        ("another magic", |bytes, at| bytes[at as usize] ^= 1),
        ("a length beyond all", |bytes, at| set_word(bytes, at + 8, 1 << 40)),
        ("another checksum", |bytes, at| bytes[at as usize + 16] ^= 1),
        ("a change that was changed", |bytes, at| bytes[at as usize + 30] ^= 1),
        ("a word that leads between blocks", |bytes, at| {
            set_word(bytes, BATCH_OFFSET, pack_batch(at + 8));
        }),
        ("a word with another checksum", |bytes, _| bytes[BATCH_OFFSET as usize + 6] ^= 1),
    ];
    for (what, edit) in edits {
        for &scheme in Scheme::ALL {
            given_up(scheme, what, &with_log(scheme, &good(), edit));
        }
    }
}

fn given_up(scheme: Scheme, what: &str, bytes: &[u8]) {
    let store = open(bytes, &ALIVE).unwrap();
    assert_eq!((value(&store, "a"), value(&store, "b")), (Some(10), Some(10)), "{scheme}: {what}");
    let record = |value| BatchRecord {
        map: store.open_map("b").unwrap(),
        key: vec![1],
        value: Some(vec![value; 8]),
        time: None,
    };
    let refused = store.make_batch(&[], &[record(1)]);
    assert!(matches!(refused, Err(Error::Damaged(_))), "{scheme}: {what}: {refused:?}");
    change(&store.open_map("a").unwrap(), Some(11));
    let found = outlast::internals::db::verify::verify(&store).unwrap();
    assert_eq!(found.all_damage().count(), 1, "{scheme}: {what}: {found:?}");
    let found = outlast::internals::db::verify::verify(&store).unwrap();
    assert!(found.is_sound(), "{scheme}: {what}: {found:?}");
    assert_eq!(store.make_batch(&[], &[record(2)]).unwrap(), None, "{scheme}: {what}");
    let store = open(&bytes_of(&store), &ALIVE).unwrap();
    assert_eq!(value(&store, "b"), Some(u64::from_le_bytes([2; 8])), "{scheme}: {what}");
    assert_eq!(value(&store, "a"), Some(11), "{scheme}: {what}");
}
