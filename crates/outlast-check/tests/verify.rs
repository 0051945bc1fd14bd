//! Damage that verification once called sound.
//!
//! Goal: the pool opened for writing, the pool opened read-only and the offline walk all notice the
//! damage. They do in pools that were closed and, where it can be seen, in pools that a kill left.

use outlast::db::store::AnyIndex;
use outlast::index::ea_pht::layout::{self as ea_pht, Kind, Link};
use outlast::index::group::layout as group;
use outlast::index::{Change, Previous};
use outlast::offline::{Region, What};
use outlast::pmem::Alive;
use outlast::pool::layout::{DIRTY, HEADER_OFFSETS, LACKS_ROOT, field};
use outlast::{Error, RecordForm, Scheme};
use outlast_check::fuzz::images::{Image, images, small_images, with_level_ready};
use outlast_check::fuzz::pool::{open, set_word, word_at};
use outlast_check::fuzz::repair::repair;
use outlast_check::fuzz::trial::Verdicts;
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

/// Opening makes a directory for the deepest segment, so no file may make it believe in a depth that
/// takes all memory.
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
                    // Changing and closing the pool must not forget it.
                    let other = image.maps.iter().find(|m| m.name != known.name).unwrap();
                    let map = store.open_map(&other.name).unwrap();
                    drop(map);
                    store.sync().unwrap();
                    let _ = outlast::db::verify::verify(&store).unwrap();
                    store.sync().unwrap();
                    bytes = outlast_check::fuzz::pool::bytes_of(&store);
                    store.close().unwrap();
                }
                // A dirty mark that a crash cuts short must not forget the lost root.
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
                // Two process deaths in a row must not forget it.
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

/// A table that says that it has 2^33 buckets, in few chunks, where the shift overflowed 32 bits.
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
