//! The pools that are damaged, and what is known of them.
//!
//! The images of each scheme have maps of both record forms. Together they contain half-done
//! splits and rebuilds, stash records and a deep directory, levels of which one is being emptied,
//! leaves from which pairs are being moved, chains of overflow nodes, and pages of three sizes. Each
//! pool exists as it was closed and as a kill left it, both with the file's content at an earlier time.

use super::pool::{Pool, bytes_of, create, map_info, open_map, set_word, word_at};
use outlast::internals::db::roots::MapInfo;
use outlast::internals::db::store::AnyIndex;
use outlast::internals::db::verify::verify;
use outlast::internals::index::dash_eh::layout as dash;
use outlast::internals::index::phast::layout as phast;
use outlast::internals::index::{Change, Previous};
use outlast::{RecordForm, Scheme};
use outlast_offline as offline;
use outlast_offline::{Region, What};
use std::collections::BTreeMap;

/// Records by key, as bytes: 8 bytes each in the inline form.
pub type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// What is known of a map of an image.
#[derive(Clone)]
pub struct KnownMap {
    /// Its name.
    pub name: String,
    /// Its record form.
    pub form: RecordForm,
    /// Every key that it has had.
    pub keys: Vec<Vec<u8>>,
    /// Its contents.
    pub records: Records,
    /// Its contents in the earlier version.
    pub earlier: Records,
}

/// A pool's bytes, and which region holds what.
#[derive(Clone)]
pub struct Image {
    /// Its name.
    pub name: String,
    /// The scheme of its maps.
    pub scheme: Scheme,
    /// log2 of its page size.
    pub page_bits: u32,
    /// The content of the file.
    pub bytes: Vec<u8>,
    /// The regions of the file.
    pub regions: Vec<Region>,
    /// For each word of the file, the region that it is in. If there are several, the smallest.
    pub region_of: Vec<Option<u32>>,
    /// Its maps.
    pub maps: Vec<KnownMap>,
    /// Whether it was closed.
    pub clean: bool,
    /// The content of the file at an earlier time.
    pub earlier: Vec<u8>,
}

impl Image {
    /// Returns the same pool with another content.
    fn with_bytes(&self, bytes: Vec<u8>) -> Image {
        let (report, regions) = offline::regions(&bytes).expect("a pool that can be read");
        assert_eq!(report.problems, [], "{}", self.name);
        assert_eq!(report.leaked_bytes, 0, "{}", self.name);
        let mut region_of = vec![None; bytes.len() / 8];
        let mut by_size: Vec<usize> = (0..regions.len()).collect();
        by_size.sort_by_key(|&index| std::cmp::Reverse(regions[index].bytes));
        for index in by_size {
            let Region { offset, bytes, .. } = regions[index];
            for word in offset / 8..(offset + bytes).div_ceil(8) {
                region_of[word as usize] = Some(index as u32);
            }
        }
        Image { bytes, regions, region_of, clean: report.clean, ..self.clone() }
    }

    /// Returns a word of the file.
    pub fn word(&self, offset: u64) -> u64 {
        word_at(&self.bytes, offset)
    }
}

/// Changes a map, and what is known of it.
fn put(index: &AnyIndex, known: &mut Records, key: Vec<u8>, value: Vec<u8>) {
    match index {
        AnyIndex::Inline(index) => {
            let (key, value) = (word_at(&key, 0), word_at(&value, 0));
            index.change(key, Change::Put(value), Previous::UNWANTED).expect("a sound pool");
        }
        AnyIndex::Bytes(index) => {
            index
                .change(&key[..], Change::Put(&value[..]), Previous::UNWANTED)
                .expect("a sound pool");
        }
    }
    known.insert(key, value);
}

fn remove(index: &AnyIndex, known: &mut Records, key: &[u8]) {
    match index {
        AnyIndex::Inline(index) => {
            index
                .change(word_at(key, 0), Change::Remove, Previous::UNWANTED)
                .expect("a sound pool");
        }
        AnyIndex::Bytes(index) => {
            index.change(key, Change::Remove, Previous::UNWANTED).expect("a sound pool");
        }
    }
    known.remove(key);
}

/// Returns the value that key number `n` gets in a round.
pub fn value_of(form: RecordForm, n: u64, round: u64) -> Vec<u8> {
    match form {
        RecordForm::Inline => (n << 32 | round << 24 | n).to_le_bytes().to_vec(),
        RecordForm::Bytes => {
            let len = if n % 101 == 100 { 3000 } else { (n * n % 120) as usize };
            vec![(n + round) as u8; len]
        }
    }
}

/// Returns the key of a number.
fn key_of(chains: bool, n: u64) -> u64 {
    // With hash function 0x7e57, keys from 2^32 on share one hash.
    match (chains, n) {
        (true, n) if n < 230 => (n + 1) << 32,
        (_, 0) => 0,
        (_, 1) => u64::MAX,
        (_, n) => n.wrapping_mul(0x1234_5678_9abc_def1) >> if chains { 40 } else { 0 },
    }
}

/// Puts the records with these numbers into a map.
fn fill(
    store: &Pool,
    info: &MapInfo,
    known: &mut KnownMap,
    numbers: std::ops::Range<u64>,
    chains: bool,
) {
    let map = open_map(store, info.clone()).expect("a sound pool");
    for n in numbers {
        let key = key_of(chains, n).to_le_bytes().to_vec();
        known.keys.push(key.clone());
        put(map.index(), &mut known.records, key, value_of(info.form, n, 0));
    }
}

/// Removes every seventh of a map's records, and updates every fifth.
fn revise(store: &Pool, info: &MapInfo, known: &mut KnownMap, count: u64, chains: bool) {
    let map = open_map(store, info.clone()).expect("a sound pool");
    for n in 0..count {
        let key = key_of(chains, n).to_le_bytes().to_vec();
        if n % 7 == 0 {
            remove(map.index(), &mut known.records, &key);
        } else if n % 5 == 0 {
            put(map.index(), &mut known.records, key, value_of(info.form, n, 1));
        }
    }
}

/// How to make a pool.
struct Plan {
    name: &'static str,
    scheme: Scheme,
    chains: bool,
    page_bits: u32,
    /// Whether to do steps of background work: for clevel, they keep a level ready.
    steps: bool,
}

impl Plan {
    /// Makes the pool as a kill left it, and as it was closed. Both images include the file's
    /// content at an earlier time.
    fn make(&self) -> [Image; 2] {
        let Plan { name, scheme, chains, page_bits, steps } = *self;
        let store = create(if chains { 0x7e57 } else { 1 }, page_bits);
        // Line hashing doubles its directory only for more records.
        let count = if scheme == Scheme::Line { 420 } else { 260 };
        let infos = [
            (RecordForm::Inline, 1, 2, "words"),
            (RecordForm::Bytes, 1, 4, "texts"),
            (RecordForm::Inline, 3, 4, "wider"),
        ];
        let infos =
            infos.map(|(form, bits, other, name)| map_info(scheme, name, form, bits, other));
        let mut maps = infos.clone().map(|info| KnownMap {
            name: info.name,
            form: info.form,
            keys: Vec::new(),
            records: Records::new(),
            earlier: Records::new(),
        });
        for (info, known) in infos.iter().zip(&mut maps) {
            fill(&store, info, known, 0..count * 2 / 3, chains);
            known.earlier = known.records.clone();
        }
        store.sync().expect("memory");
        let earlier = bytes_of(&store);
        for (info, known) in infos.iter().zip(&mut maps) {
            fill(&store, info, known, count * 2 / 3..count, chains);
            revise(&store, info, known, count, chains);
        }
        let doomed = map_info(scheme, "doomed", RecordForm::Bytes, 2, 2);
        let mut unknown = maps[1].clone();
        fill(&store, &doomed, &mut unknown, 0..40, chains);
        store.drop_map("doomed").expect("a sound pool");
        if scheme == Scheme::DashEh {
            store.step().expect("a sound pool");
        }
        let has_ready = |bytes: &[u8]| {
            let (_, regions) = offline::regions(bytes).expect("a sound pool");
            regions.iter().any(|region| region.what == What::ReadyLevel)
        };
        let mut more = count;
        while steps && !has_ready(&bytes_of(&store)) {
            for (info, known) in infos.iter().zip(&mut maps) {
                fill(&store, info, known, more..more + 4, chains);
            }
            more += 4;
            while store.step().expect("a sound pool") {}
        }
        let found = verify(&store).expect("a sound pool");
        assert!(found.is_sound(), "{found:?}");
        let image = Image {
            name: format!("{name} dirty"),
            scheme,
            page_bits,
            bytes: Vec::new(),
            regions: Vec::new(),
            region_of: Vec::new(),
            maps: maps.to_vec(),
            clean: false,
            earlier,
        };
        let dirty = image.with_bytes(bytes_of(&store));
        store.sync().expect("memory");
        let clean = Image { name: format!("{name} clean"), ..image.with_bytes(bytes_of(&store)) };
        [dirty, clean]
    }
}

/// Checks that an image has the structures that the mutations need.
fn check(image: &Image, chains: bool) {
    let count = |is: fn(&What) -> bool| image.regions.iter().filter(|r| is(&r.what)).count();
    let levels = count(|what| matches!(what, What::Level { .. }));
    let deep = count(|what| matches!(what, What::Directory { depth } if *depth > 2));
    let nodes = count(|what| {
        matches!(what, What::Node | What::ChainNode | What::GroupNode { .. } | What::LineNode)
    });
    let segments = count(|what| matches!(what, What::GroupSegment { .. }));
    let name = &image.name;
    match image.scheme {
        Scheme::Clevel => assert!(levels > 6, "{name}: {levels} levels, one is being emptied"),
        Scheme::DashEh => assert!(chains || deep >= 1, "{name}: {deep} deep directories"),
        Scheme::DashLh => {
            let arrays = count(|what| *what == What::Array);
            assert!(chains || arrays > 5, "{name}: {arrays} arrays");
        }
        Scheme::Group => assert!(segments > 30, "{name}: {segments} segments"),
        Scheme::EaPht | Scheme::EaPhtH | Scheme::EaPhtHpr => {
            let areas = count(|what| *what == What::PhtArea);
            assert!(areas > 10, "{name}: {areas} chunks and annexes");
        }
        Scheme::Line => {
            let deep = count(|what| matches!(what, What::LineDirectory { depth } if *depth > 1));
            let rebuilt = count(|what| *what == What::LineIntent);
            assert!(
                chains || (deep >= 1 && rebuilt >= 3),
                "{name}: {deep} deep, {rebuilt} rebuilt"
            );
        }
        _ => assert!(count(|what| matches!(what, What::LeafHead { .. })) > 50, "{name}"),
    }
    let has_nodes = matches!(
        image.scheme,
        Scheme::DashEh | Scheme::Clevel | Scheme::Group | Scheme::DashLh | Scheme::Line
    );
    assert!(!chains || !has_nodes || nodes > 4, "{name}: {nodes} nodes");
}

/// Makes the images of a scheme with pages of 4 KiB: as they were closed, and as a kill left them.
pub fn small_images(scheme: Scheme) -> Vec<Image> {
    let mut images = Vec::new();
    for (chains, name) in [(false, "plain"), (true, "chains")] {
        let [dirty, clean] = Plan { name, scheme, chains, page_bits: 12, steps: false }.make();
        check(&dirty, chains);
        match scheme {
            Scheme::DashEh if !chains => images.push(half_split(&dirty)),
            Scheme::Phast if !chains => images.push(moving(&dirty)),
            Scheme::Line if !chains => images.push(half_rebuilt(&dirty)),
            _ => {}
        }
        if scheme == Scheme::DashEh && !chains {
            images.push(marked(&clean));
        }
        images.extend([dirty, clean]);
    }
    images
}

/// Makes pools of clevel with a level that is kept ready.
pub fn with_level_ready() -> [Image; 2] {
    let (name, scheme) = ("a level ready", Scheme::Clevel);
    let images = Plan { name, scheme, chains: false, page_bits: 12, steps: true }.make();
    for image in &images {
        assert!(image.regions.iter().any(|r| r.what == What::ReadyLevel), "{}", image.name);
    }
    images
}

/// Makes all images of a scheme.
pub fn images(scheme: Scheme) -> Vec<Image> {
    let mut images = small_images(scheme);
    for (name, page_bits) in [("pages of 8 KiB", 13), ("pages of 64 KiB", 16)] {
        images.extend(Plan { name, scheme, chains: false, page_bits, steps: false }.make());
    }
    if scheme == Scheme::Clevel {
        images.extend(with_level_ready());
    }
    images
}

/// Returns the image with the marks of a cache on its records.
fn marked(image: &Image) -> Image {
    let mut bytes = image.bytes.clone();
    let records = image.regions.iter().filter(|region| region.what == What::Record);
    for (number, record) in records.enumerate() {
        let sum = word_at(&bytes, record.offset + 8);
        let mark = 0xc500_0000 | (number as u64).wrapping_mul(0x9e_3779) & 0xff_ffff;
        set_word(&mut bytes, record.offset + 8, sum | mark << 32);
    }
    Image { name: "marked clean".into(), ..image.with_bytes(bytes) }
}

/// Returns the image as if the process had died after the commit of a split and before its
/// directory entries.
fn half_split(image: &Image) -> Image {
    let mut bytes = image.bytes.clone();
    let entries: Vec<Region> =
        image.regions.iter().filter(|r| r.what == What::Entry).copied().collect();
    let mut done = 0;
    for table in entries {
        let count = table.bytes / 8;
        let depth = count.trailing_zeros();
        // Take two siblings whose depth is the directory's, because they could just have been
        // split.
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
    assert!(done > 2, "{done} splits");
    Image { name: format!("{} half-split", image.name), ..image.with_bytes(bytes) }
}

/// Returns the image as if the process had died after the commit of the last rebuild of each map, when
/// only some of its cells were durable. The others lead to a place where no segment is any more.
fn half_rebuilt(image: &Image) -> Image {
    const LOW48: u64 = (1 << 48) - 1;
    let mut bytes = image.bytes.clone();
    // A map's cells come before its intent.
    let (mut cells, mut done) = (0..0, 0);
    for region in &image.regions {
        match region.what {
            What::Cell => cells = region.offset..region.offset + region.bytes,
            What::LineIntent => {
                let mut segment = image.word(region.offset) & LOW48;
                let mut durable = 1;
                while segment != 0 {
                    let own = cells.clone().step_by(8).filter(|&cell| image.word(cell) == segment);
                    for cell in own.skip(durable) {
                        set_word(&mut bytes, cell, segment ^ 1024);
                        done += 1;
                    }
                    durable = 0;
                    segment = image.word(segment + 16) & LOW48;
                }
            }
            _ => {}
        }
    }
    assert!(done > 1, "{done} cells");
    Image { name: format!("{} half-rebuilt", image.name), ..image.with_bytes(bytes) }
}

/// Returns the image as if the process had died in splits, between the commit and the clearing of
/// the old leaves' bits, or in merges before the commit. Pairs of a leaf then also have bits in the
/// leaf before it.
fn moving(image: &Image) -> Image {
    let mut bytes = image.bytes.clone();
    let leaves = image.regions.iter().filter_map(|region| match region.what {
        What::LeafHead { slots } => Some((region.offset, u64::from(slots))),
        _ => None,
    });
    let mut done = 0;
    // Take every other leaf, so that the leaves that pairs come from are not changed themselves.
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
        set_word(&mut bytes, leaf, phast::seal(bits & ((1 << slots) - 1)));
        let next = phast::Next { moving: true, ..next };
        set_word(&mut bytes, leaf + 72, next.pack(leaf));
        done += usize::from(bits != own);
    }
    assert!(done > 3, "{done} leaves with pairs of others");
    Image { name: format!("{} moving", image.name), ..image.with_bytes(bytes) }
}
