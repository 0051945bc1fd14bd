//! Records that damage hides: `salvage` finds them without what led to them.

use crate::common::{Place, salvage};
use outlast::{MapOptions, Pool, PoolOptions, RawMap, RecordForm, Scheme};
use outlast_offline::{Region, What};
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// A generator of numbers; the same seed gives the same numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end
    }
}

/// Returns key or value `n` of a map of this form.
fn row(form: RecordForm, n: u64, of: &str) -> Vec<u8> {
    let kind = of.bytes().fold(0, |sum: u64, byte| sum * 31 + u64::from(byte));
    match form {
        RecordForm::Inline => ((n + 1) << 24 ^ kind).to_le_bytes().to_vec(),
        RecordForm::Bytes => format!("{of} {n} {}", "x".repeat((n % 40) as usize)).into_bytes(),
    }
}

pub(crate) fn map_of(pool: &Pool, name: &str, scheme: Scheme, form: RecordForm) -> RawMap {
    let schema = if form == RecordForm::Inline { "u64" } else { "bytes" };
    let options = MapOptions::new().scheme(scheme).form(form);
    pool.raw_map_with(name, schema, schema, &options).unwrap()
}

/// Fills a map with `rows` rows. Every tenth row is replaced, and as many others were removed.
pub(crate) fn fill(map: &RawMap, rows: u64) {
    let form = map.info().form;
    let text = |n: u64, of: &str| row(form, n, of);
    for n in 0..rows {
        let value = if n % 10 == 0 { "old value" } else { "value" };
        map.insert(&text(n, "key"), &text(n, value)).unwrap();
        if n % 10 == 0 {
            map.insert(&text(n, "other key"), &text(n, "removed")).unwrap();
        }
    }
    for n in (0..rows).step_by(10) {
        map.put(&text(n, "key"), &text(n, "value")).unwrap();
        map.remove(&text(n, "other key")).unwrap();
    }
}

/// Whether this is a part of a map's structure.
fn is_structure(region: &Region) -> bool {
    use What::{
        ClevelRecord, Descriptor, Frontier, Header, Record, RootCommit, RootFixed, SavedState,
    };
    !matches!(
        region.what,
        Header
            | Frontier
            | RootCommit
            | RootFixed
            | Descriptor { .. }
            | SavedState
            | Record
            | ClevelRecord
    )
}

/// Whether a structure is found through this line, or all of it is described there.
fn is_head(region: &Region) -> bool {
    use What::{Cell, LineDirectory, LineNode, LineSegment};
    use What::{
        ChainHead, ChainNode, Directory, Entry, GroupNode, GroupSegment, LeafHead, LeafPlace,
    };
    use What::{Level, Master, MasterEntries, Node, PhtArea, PhtTable, Segment};
    matches!(
        region.what,
        Directory { .. }
            | Entry
            | Segment { .. }
            | Node
            | Level { .. }
            | ChainHead
            | ChainNode
            | Master { .. }
            | MasterEntries
            | LeafHead { .. }
            | LeafPlace { .. }
            | GroupSegment { .. }
            | GroupNode { .. }
            | PhtTable
            | PhtArea
            | LineDirectory { .. }
            | Cell
            | LineSegment { .. }
            | LineNode
    )
}

/// Damages the line at this offset.
fn damage_line(bytes: &mut [u8], at: u64, numbers: &mut Numbers) {
    let line = &mut bytes[(at / 64 * 64) as usize..][..64];
    line.iter_mut().for_each(|byte| *byte ^= 1 + numbers.below(255) as u8);
}

/// Salvages the pool. Returns the report of it.
fn salvaged(place: &Place, more: &[&str]) -> Value {
    let args = [&["--json"], more].concat();
    let report = salvage(place, &args).expect(3).objects();
    report.into_iter().find(|object| object["event"] == "salvage").unwrap()
}

/// Checks the rows of the new pool. Returns the numbers of those that are missing.
fn missing(place: &Place, scheme: Scheme, form: RecordForm, rows: u64) -> HashSet<u64> {
    // SAFETY: no one else uses the file.
    let new = unsafe { PoolOptions::new().open(place.path("new.pool")).unwrap() };
    let map = map_of(&new, "rows", scheme, form);
    let mut missing = HashSet::new();
    for n in 0..rows {
        match map.get(&row(form, n, "key")).unwrap() {
            Some(value) => assert!(value == row(form, n, "value"), "{scheme} {form}, {n}"),
            None => _ = missing.insert(n),
        }
        assert_eq!(map.get(&row(form, n, "other key")).unwrap(), None, "{scheme} {form}, {n}");
    }
    let more = map.len().unwrap() - (rows - missing.len() as u64);
    // A record in place has no checksum, so what damage has made of it can look like a record.
    let most = if form == RecordForm::Inline { 80 } else { 0 };
    assert!(more <= most, "{scheme} {form}: {more} rows that were never there");
    missing
}

/// Makes a closed pool of so many rows, and returns its bytes.
fn closed(place: &Place, scheme: Scheme, form: RecordForm, rows: u64) -> Vec<u8> {
    // SAFETY: no one else uses the file.
    let pool = unsafe {
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(place.pool()).unwrap()
    };
    let map = map_of(&pool, "rows", scheme, form);
    fill(&map, rows);
    drop(map);
    pool.close().unwrap();
    std::fs::read(place.pool()).unwrap()
}

/// Damages 20 lines of a closed pool of so many rows, and salvages it. Of these lines, `structural`
/// are lines of the map's structure, and the others any lines. Returns how many rows are missing
/// and not listed.
fn lost((scheme, form): (Scheme, RecordForm), rows: u64, structural: usize, seed: u64) -> u64 {
    let place = Place::new();
    let mut bytes = closed(&place, scheme, form, rows);
    let (_, regions) = outlast_offline::regions(&bytes).unwrap();
    let structure: Vec<_> = regions.iter().filter(|region| is_structure(region)).collect();
    let mut numbers = Numbers(seed);
    // The first pages hold the header and the roots.
    let first = 2 << 16;
    for n in 0..20 {
        let at = if n < structural {
            let region = structure[numbers.below(structure.len() as u64) as usize];
            region.offset + numbers.below(region.bytes)
        } else {
            first + numbers.below(bytes.len() as u64 - first)
        };
        damage_line(&mut bytes, at, &mut numbers);
    }
    std::fs::write(place.pool(), bytes).unwrap();
    let list = place.path("list.ndjson");
    let sum = salvaged(&place, &["--unlinked", list.to_str().unwrap()]);
    let missing = missing(&place, scheme, form, rows);
    let listed = listed(&place, scheme, form);
    let are_listed = missing.iter().filter(|n| {
        listed.get(&row(form, **n, "key")).is_some_and(|all| all.contains(&row(form, **n, "value")))
    });
    let (lost, marked) = (missing.len() as u64, are_listed.count() as u64);
    println!(
        "{scheme} {form}, seed {seed}, {structural} structural: {lost} of {rows} missing, {marked} \
         of them listed, {sum}"
    );
    lost - marked
}

/// Reads the list of records that may have been removed or replaced: the values of each key.
fn listed(place: &Place, scheme: Scheme, form: RecordForm) -> HashMap<Vec<u8>, Vec<Vec<u8>>> {
    let text = std::fs::read_to_string(place.path("list.ndjson")).unwrap();
    let mut all: HashMap<_, Vec<_>> = HashMap::new();
    for line in text.lines() {
        let object: Value = serde_json::from_str(line).unwrap();
        assert_eq!(object["map"], "rows", "{scheme}");
        let bytes = |value: &Value| match form {
            RecordForm::Inline => value.as_u64().unwrap().to_le_bytes().to_vec(),
            RecordForm::Bytes => value.as_str().unwrap().as_bytes().to_vec(),
        };
        all.entry(bytes(&object["key"])).or_default().push(bytes(&object["value"]));
    }
    all
}

/// One damaged line hides no rows but its own, wherever it is. `OUTLAST_SALVAGE_ROWS` and
/// `OUTLAST_SALVAGE_POOLS` make it larger.
#[test]
fn a_damaged_line_costs_only_what_it_holds() {
    let number = |name, default| {
        std::env::var(name).map_or(default, |text: String| text.parse::<u64>().unwrap())
    };
    let rows = number("OUTLAST_SALVAGE_ROWS", 30_000);
    let pools = number("OUTLAST_SALVAGE_POOLS", 2);
    for &scheme in Scheme::ALL {
        for form in RecordForm::ALL {
            for seed in 0..pools {
                let structural = if seed % 2 == 0 { 0 } else { 10 };
                let lost = lost((scheme, form), rows, structural, seed);
                assert!(lost <= 100, "{scheme} {form}, seed {seed}: {lost} rows are missing");
            }
        }
    }
}

/// Of each kind of line that leads to other lines, one is damaged.
#[test]
fn a_damaged_head_hides_few_rows() {
    const ROWS: u64 = 30_000;
    for &scheme in Scheme::ALL {
        let form = RecordForm::Inline;
        let place = Place::new();
        // SAFETY: no one else uses the file.
        let pool = unsafe {
            PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(place.pool()).unwrap()
        };
        let map = map_of(&pool, "rows", scheme, form);
        fill(&map, ROWS);
        drop(map);
        pool.close().unwrap();
        let bytes = std::fs::read(place.pool()).unwrap();
        let (_, regions) = outlast_offline::regions(&bytes).unwrap();
        let mut kinds: HashMap<_, Vec<u64>> = HashMap::new();
        for region in regions.iter().filter(|region| is_head(region)) {
            let kind = std::mem::discriminant(&region.what);
            kinds.entry(kind).or_default().push(region.offset);
        }
        for (number, mut places) in (0..).zip(kinds.into_values()) {
            places.sort_unstable();
            let mut numbers = Numbers(number);
            let mut damaged = bytes.clone();
            let at = places[places.len() / 3];
            damage_line(&mut damaged, at, &mut numbers);
            std::fs::write(place.pool(), damaged).unwrap();
            let run = salvage(&place, &["--json"]);
            let what = regions.iter().find(|region| region.offset == at).unwrap().what;
            let lost = missing(&place, scheme, form, ROWS).len();
            println!("{scheme}: {what:?} at {at:#x}: {lost} missing, exit code {}", run.code);
            // What a line holds itself: 64 entries of a leaf's bitmap at most.
            assert!(lost <= 64, "{scheme}: {what:?} at {at:#x}: {lost} rows are missing");
            std::fs::remove_file(place.path("new.pool")).unwrap();
        }
    }
}

/// Without the saved free state, a record that was removed looks like one that damage hides.
#[test]
fn what_was_removed_is_only_listed_if_the_pool_was_not_closed() {
    const ROWS: u64 = 3_000;
    for &scheme in Scheme::ALL {
        for form in RecordForm::ALL {
            let place = Place::new();
            let options =
                PoolOptions::new().survive(outlast::Failure::ProcessDeath).background(false);
            // SAFETY: no one else uses the file.
            let pool = unsafe { options.create(place.pool()).unwrap() };
            let map = map_of(&pool, "rows", scheme, form);
            fill(&map, ROWS);
            // The same file, as its process would leave it if it were killed now.
            let mut bytes = std::fs::read(place.pool()).unwrap();
            drop((map, pool));
            let (_, regions) = outlast_offline::regions(&bytes).unwrap();
            let heads = regions.iter().filter(|region| {
                use What::{Cell, ChainHead, Entry, GroupSegment, LeafPlace, Level, PhtArea};
                matches!(
                    region.what,
                    Entry
                        | Cell
                        | LeafPlace { .. }
                        | GroupSegment { .. }
                        | PhtArea
                        | Level { .. }
                        | ChainHead
                )
            });
            let at = heads.map(|region| region.offset).next().unwrap();
            damage_line(&mut bytes, at, &mut Numbers(1));
            std::fs::write(place.pool(), bytes).unwrap();
            let what = format!("{scheme} {form}");
            let sum = salvaged(&place, &[]);
            assert_eq!(sum["unlinked"], 0, "{what}: {sum}");
            let left = sum["unlinked_left"].as_u64().unwrap();
            assert!(left > 0 && sum["reasons"].to_string().contains("--unlinked"), "{what}: {sum}");
            std::fs::remove_file(place.path("new.pool")).unwrap();

            let list = place.path("list.ndjson");
            let sum = salvaged(&place, &["--unlinked", list.to_str().unwrap()]);
            let missing = missing(&place, scheme, form, ROWS);
            let listed = listed(&place, scheme, form);
            assert_eq!(sum["unlinked"], 0, "{what}: {sum}");
            let count = listed.values().map(Vec::len).sum::<usize>();
            assert_eq!(sum["unlinked_listed"], count, "{what}: {sum}");
            // No key of the new pool is listed. The least key of a leaf looks like a record with an
            // empty value.
            let keys: HashSet<_> = missing.iter().map(|&n| row(form, n, "key")).collect();
            let others = listed.iter().filter(|(key, values)| {
                !keys.contains(*key) && values.iter().any(|value| !value.is_empty())
            });
            let others: HashSet<_> = others.map(|(key, _)| key.clone()).collect();
            let removed = (0..ROWS).step_by(10).map(|n| row(form, n, "other key"));
            assert!(others.is_subset(&removed.collect()), "{what}");
            let right = missing.iter().filter(|&&n| {
                let values = listed.get(&row(form, n, "key"));
                values.is_some_and(|values| values.contains(&row(form, n, "value")))
            });
            let (right, all) = (right.count(), missing.len());
            println!("{what}: {all} missing, {right} of them listed, {count} lines, {sum}");
            assert!(right + 100 >= all, "{what}: {all} missing, {right} of them listed");
            // An existing file is kept.
            std::fs::remove_file(place.path("new.pool")).unwrap();
            let refused = salvage(&place, &["--unlinked", list.to_str().unwrap()]).expect(1);
            assert!(refused.err.contains("exists already") && !place.path("new.pool").exists());
        }
    }
}

/// A block does not say of which map it is. If several maps can have it, none gets it.
#[test]
fn a_map_gets_no_records_of_another() {
    const ROWS: u64 = 2_000;
    let form = RecordForm::Bytes;
    for (case, args) in [("root", &[][..]), ("other", &["--map", "rows"]), ("both", &[])] {
        let place = Place::new();
        // SAFETY: no one else uses the file.
        let pool = unsafe {
            PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(place.pool()).unwrap()
        };
        let map = map_of(&pool, "rows", Scheme::Phast, form);
        let other = map_of(&pool, "lost", Scheme::Group, form);
        fill(&map, ROWS);
        (0..ROWS).for_each(|n| _ = other.insert(&row(form, n, "of another"), b"map").unwrap());
        drop((map, other));
        pool.close().unwrap();
        let mut bytes = std::fs::read(place.pool()).unwrap();
        let (_, regions) = outlast_offline::regions(&bytes).unwrap();
        let mut numbers = Numbers(3);
        let mut damage = |what: &dyn Fn(What) -> bool| {
            let all: Vec<_> = regions.iter().filter(|region| what(region.what)).collect();
            // Of the roots, the second one.
            damage_line(&mut bytes, all[all.len() / 2].offset, &mut numbers);
        };
        damage(&|what| match case {
            "root" => what == What::RootFixed,
            _ => matches!(what, What::GroupSegment { .. }),
        });
        if case == "both" {
            damage(&|what| matches!(what, What::LeafPlace { .. }));
        }
        std::fs::write(place.pool(), bytes).unwrap();
        let args = [&["--json"], args].concat();
        let report = salvage(&place, &args).objects();
        let sum = report.iter().find(|object| object["event"] == "salvage").unwrap();
        println!("{case}: {sum}");
        let missing = missing(&place, Scheme::Phast, form, ROWS);
        assert_eq!(missing.is_empty(), case != "both", "{case}: {}", missing.len());
        if case != "other" {
            assert!(sum["unlinked_left"].as_u64().unwrap() > 0, "{case}: {sum}");
        }
    }
}

/// The library opens no clevel map one of whose levels is damaged. The walk reads the others.
#[test]
fn a_damaged_level_hides_no_other() {
    const ROWS: u64 = 30_000;
    for form in RecordForm::ALL {
        let place = Place::new();
        let bytes = closed(&place, Scheme::Clevel, form, ROWS);
        let (_, regions) = outlast_offline::regions(&bytes).unwrap();
        let levels: Vec<_> =
            regions.iter().filter(|r| matches!(r.what, What::Level { .. })).collect();
        for level in &levels {
            let mut damaged = bytes.clone();
            damage_line(&mut damaged, level.offset, &mut Numbers(11));
            std::fs::write(place.pool(), damaged).unwrap();
            let sum = salvaged(&place, &[]);
            let missing = missing(&place, Scheme::Clevel, form, ROWS).len();
            assert_eq!(missing, 0, "{form}: {level:?} of {}: {sum}", levels.len());
            std::fs::remove_file(place.path("new.pool")).unwrap();
        }
    }
}

/// Loads the list into a map of a new pool, and checks that a value is there for each of these rows.
fn load_list(place: &Place, form: RecordForm, rows: impl Iterator<Item = (Vec<u8>, Vec<u8>)>) {
    let schema = if form == RecordForm::Inline { "u64" } else { "bytes" };
    let types = ["--key-type", schema, "--value-type", schema];
    let list = place.path("list.ndjson");
    let other = Place::new();
    let load = ["load", list.to_str().unwrap(), "--map", "rows", "--scheme", "dash-eh"];
    other.run(load.iter().chain(&types)).expect(0);
    // SAFETY: no one else uses the file.
    let pool = unsafe { PoolOptions::new().open(other.pool()).unwrap() };
    let map = pool.raw_map("rows").unwrap();
    for (key, value) in rows {
        assert_eq!(map.get(&key).unwrap(), Some(value), "{form}");
    }
}

/// A record that can be of several maps is listed without one, unless one of them has it.
#[test]
fn records_that_several_maps_can_have_are_listed() {
    const ROWS: u64 = 2_000;
    for &scheme in Scheme::ALL {
        for form in RecordForm::ALL {
            let place = Place::new();
            // SAFETY: no one else uses the file.
            let pool = unsafe {
                PoolOptions::new()
                    .survive(outlast::Failure::ProcessDeath)
                    .create(place.pool())
                    .unwrap()
            };
            let names = ["one", "two"];
            for name in names {
                let map = map_of(&pool, name, scheme, form);
                (0..ROWS).for_each(|n| _ = map.insert(&row(form, n, name), &row(form, n, "v")));
            }
            pool.close().unwrap();
            let mut bytes = std::fs::read(place.pool()).unwrap();
            let (_, regions) = outlast_offline::regions(&bytes).unwrap();
            // The line that leads to all others, in each of the two maps.
            let mut numbers = Numbers(7);
            for map in regions.split(|region| region.what == What::RootFixed).skip(1) {
                let is_first = |region: &&Region| {
                    is_head(region) || matches!(region.what, What::Context { .. })
                };
                damage_line(&mut bytes, map.iter().find(is_first).unwrap().offset, &mut numbers);
            }
            std::fs::write(place.pool(), bytes).unwrap();
            let list = place.path("list.ndjson");
            let sum = salvaged(&place, &["--unlinked", list.to_str().unwrap()]);
            let text = std::fs::read_to_string(&list).unwrap();
            let what = format!("{scheme} {form}: {sum}");
            println!("{what}");
            assert_eq!(sum["unlinked_listed"], text.lines().count(), "{what}");
            assert_eq!(sum["unlinked_left"], text.lines().count(), "{what}");
            // SAFETY: no one else uses the file.
            let new = unsafe { PoolOptions::new().open(place.path("new.pool")).unwrap() };
            let lacks = names.into_iter().flat_map(|name| {
                let map = map_of(&new, name, scheme, form);
                let lacks = move |n: &u64| map.get(&row(form, *n, name)).unwrap().is_none();
                (0..ROWS).filter(lacks).map(move |n| (row(form, n, name), row(form, n, "v")))
            });
            let lacks: HashMap<_, _> = lacks.collect();
            let mut found = HashMap::new();
            for line in text.lines() {
                let object: Value = serde_json::from_str(line).unwrap();
                let bytes = |value: &Value| match form {
                    RecordForm::Inline => value.as_u64().unwrap().to_le_bytes().to_vec(),
                    RecordForm::Bytes => value.as_str().unwrap().as_bytes().to_vec(),
                };
                found.insert(bytes(&object["key"]), bytes(&object["value"]));
            }
            // What the new pool has is not listed, and of what it lacks, nearly all is.
            let all = names
                .into_iter()
                .flat_map(|name| (0..ROWS).map(move |n| (row(form, n, name), row(form, n, "v"))));
            let known = all
                .filter(|(key, value)| !lacks.contains_key(key) && found.get(key) == Some(value));
            assert_eq!(known.count(), 0, "{what}");
            let listed: HashMap<_, _> =
                lacks.iter().filter(|(key, value)| found.get(*key) == Some(value)).collect();
            assert!(
                lacks.len() - listed.len() <= 130,
                "{what}: {} of {}",
                listed.len(),
                lacks.len()
            );
            if !text.is_empty() {
                let rows = listed.into_iter().map(|(key, value)| (key.clone(), value.clone()));
                load_list(&place, form, rows);
            }
        }
    }
}

/// Nothing says what types a map has whose root is damaged, so its records are listed as bytes.
#[test]
fn the_records_of_a_lost_map_are_listed() {
    const ROWS: u64 = 2_000;
    for &scheme in Scheme::ALL {
        for form in RecordForm::ALL {
            let place = Place::new();
            let mut bytes = closed(&place, scheme, form, ROWS);
            let (_, regions) = outlast_offline::regions(&bytes).unwrap();
            let root = regions.iter().find(|region| region.what == What::RootFixed).unwrap();
            damage_line(&mut bytes, root.offset, &mut Numbers(9));
            std::fs::write(place.pool(), bytes).unwrap();
            let what = format!("{scheme} {form}");
            let sum = salvaged(&place, &[]);
            // Records that are stored in place are found by their map only.
            let have_blocks = form == RecordForm::Bytes || scheme == Scheme::Clevel;
            let count = if have_blocks { ROWS } else { 0 };
            assert_eq!((&sum["lost_maps"], &sum["records"]), (&1.into(), &0.into()), "{what}");
            assert_eq!(sum["reasons"].to_string().contains("--unlinked"), have_blocks, "{sum}");
            std::fs::remove_file(place.path("new.pool")).unwrap();
            let list = place.path("list.ndjson");
            let sum = salvaged(&place, &["--unlinked", list.to_str().unwrap()]);
            let text = std::fs::read_to_string(&list).unwrap();
            assert!(text.lines().all(|line| line.contains("\"map\":null")), "{what}");
            let lines = text.lines().count() as u64;
            assert_eq!(
                (&sum["unlinked_listed"], &sum["unlinked_left"]),
                (&lines.into(), &lines.into())
            );
            // The least keys of leaves look like records.
            let more = if scheme.is_ordered() && have_blocks { 100 } else { 0 };
            assert!((count..=count + more).contains(&lines), "{what}: {lines}");
            if have_blocks && more == 0 {
                let rows = (0..ROWS).map(|n| (row(form, n, "key"), row(form, n, "value")));
                load_list(&place, form, rows);
            }
        }
    }
}

/// A run whose descriptor is damaged hides its own blocks. The saved free state still says which
/// other blocks are in use.
#[test]
fn a_damaged_descriptor_leaves_other_blocks_certain() {
    const ROWS: u64 = 30_000;
    let (scheme, form) = (Scheme::Group, RecordForm::Bytes);
    let place = Place::new();
    let mut bytes = closed(&place, scheme, form, ROWS);
    let (_, regions) = outlast_offline::regions(&bytes).unwrap();
    let of = |is: &dyn Fn(What) -> bool| {
        let all: Vec<_> = regions.iter().filter(|region| is(region.what)).collect();
        (all[0].offset, all[all.len() / 2].offset)
    };
    let (_, descriptor) = of(&|what| matches!(what, What::Descriptor { .. }));
    let (segment, _) = of(&|what| matches!(what, What::GroupSegment { .. }));
    bytes[descriptor as usize] ^= 1;
    damage_line(&mut bytes, segment, &mut Numbers(5));
    std::fs::write(place.pool(), bytes).unwrap();
    let sum = salvaged(&place, &[]);
    let missing = missing(&place, scheme, form, ROWS).len() as u64;
    // A page has room for 2,048 of the smallest records.
    assert!(missing <= 2_048, "{missing} rows are missing: {sum}");
    assert_eq!(sum["unlinked"], ROWS - missing, "{sum}");
}
