//! Records that expire, in every scheme, by a clock that the tests set.

use crate::files;
use outlast::{Error, Expiry, Map, MapOptions, Pool, PoolOptions, RecordForm, Scheme};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A clock that shows seconds since 1970.
#[derive(Clone)]
struct Seconds(Arc<AtomicU64>);

impl Seconds {
    fn new() -> Self {
        Seconds(Arc::new(AtomicU64::new(1_000_000)))
    }
    fn pass(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::SeqCst);
    }
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }
    fn after(&self, seconds: u64) -> SystemTime {
        self.now() + Duration::from_secs(seconds)
    }
    fn options(&self) -> PoolOptions {
        let clock = self.clone();
        PoolOptions::new().background(false).clock(move || clock.now())
    }
    fn pool(&self) -> Pool {
        self.options().anonymous().unwrap()
    }
}

fn schemes() -> impl Iterator<Item = MapOptions> {
    Scheme::ALL.iter().map(|&scheme| MapOptions::new().scheme(scheme).expiry(true))
}

const TEN: Duration = Duration::from_secs(10);

/// Keys are words, and so are values, but an expiring map keeps them in blocks.
fn map(pool: &Pool, options: &MapOptions) -> Map<u64, u64> {
    let map = pool.map_with::<u64, u64>("m", options).unwrap();
    assert_eq!((map.info().form, map.info().expires), (RecordForm::Bytes, true));
    map
}

/// The records that the map holds, expired or not.
fn held(map: &Map<u64, u64>) -> u64 {
    let (mut held, raw) = (0, map.raw());
    for key in 0..200u64 {
        held += u64::from(key.with_key(|key| raw.get_stored(key)).unwrap().is_some());
    }
    held
}

trait WithKey {
    fn with_key<T>(&self, with: impl FnOnce(&[u8]) -> T) -> T;
}

impl WithKey for u64 {
    fn with_key<T>(&self, with: impl FnOnce(&[u8]) -> T) -> T {
        outlast::Value::with_bytes(self, with)
    }
}

fn work(pool: &Pool) {
    while pool.step().unwrap() {}
}

/// Each operation is the first to meet a record whose time has passed.
#[test]
fn an_expired_record_is_absent_for_every_operation() {
    type Operation = fn(&Pool, &Map<u64, u64>) -> bool;
    let operations: [(&str, Operation); 22] = [
        ("get", |_, map| map.get(&1).unwrap().is_none()),
        ("get_ref", |_, map| map.get_ref(&1).unwrap().is_none()),
        ("contains_key", |_, map| !map.contains_key(&1).unwrap()),
        ("get_many", |_, map| map.get_many(&[&0, &1, &2]).unwrap() == [Some(0), None, None]),
        ("insert", |_, map| map.insert(&1, &2).unwrap() && map.get(&1).unwrap() == Some(2)),
        ("insert_many", |_, map| map.insert_many(&[(&0, &2), (&1, &2)]).unwrap() == [false, true]),
        ("put", |_, map| map.put(&1, &2).unwrap().is_none() && map.get(&1).unwrap() == Some(2)),
        ("put_many", |_, map| map.put_many(&[(&0, &0), (&1, &2)]).unwrap() == [true, false]),
        ("update", |_, map| !map.update(&1, &2).unwrap() && map.get(&1).unwrap().is_none()),
        ("update_many", |_, map| map.update_many(&[(&0, &0), (&1, &2)]).unwrap() == [true, false]),
        ("compare_swap", |_, map| !map.compare_swap(&1, &10, &2).unwrap()),
        ("compare_remove", |_, map| !map.compare_remove(&1, &10).unwrap()),
        ("remove", |_, map| map.remove(&1).unwrap().is_none()),
        ("remove_many", |_, map| map.remove_many(&[&0, &1]).unwrap() == [true, false]),
        ("delete", |_, map| !map.delete(&1).unwrap()),
        ("alter", |_, map| {
            map.alter(&1, |before| Some(before.map_or(7, |_| 8))).unwrap() == Some(7)
        }),
        ("add", |_, map| map.add(&1, 3).unwrap() == 3),
        ("expire_at", |_, map| {
            !map.expire_at(&1, UNIX_EPOCH + Duration::from_secs(1 << 32)).unwrap()
        }),
        ("persist", |_, map| !map.persist(&1).unwrap() && map.expiry_of(&1).unwrap().is_none()),
        ("iter", |_, map| {
            let all = map.iter().collect::<outlast::Result<Vec<_>>>().unwrap();
            all == [(0, 0)] && map.len().unwrap() == 1
        }),
        ("batch", |pool, map| {
            let mut batch = pool.batch();
            batch.require(map, &1, None).unwrap().put(map, &2, &2).unwrap();
            batch.commit().unwrap() && map.get(&2).unwrap() == Some(2)
        }),
        ("transaction", |pool, map| {
            let add = pool.transaction(|t| t.add(map, &1, 3));
            add.unwrap() == 3 && map.expiry_of(&1).unwrap() == Some(Expiry::Never)
        }),
    ];
    for options in schemes() {
        for (name, operation) in operations {
            let clock = Seconds::new();
            let pool = clock.pool();
            let map = map(&pool, &options);
            map.insert(&0, &0).unwrap();
            map.put_for(&1, &10, TEN).unwrap();
            clock.pass(9);
            assert_eq!(map.get(&1).unwrap(), Some(10), "{options:?}: {name}");
            assert_eq!((map.len().unwrap(), held(&map)), (2, 2));
            clock.pass(1);
            assert!(operation(&pool, &map), "{options:?}: {name}");
            pool.verify().unwrap().ensure_sound().unwrap();
        }
    }
}

/// What changes the value of a record keeps its time; what makes a new record does not.
#[test]
fn each_change_keeps_or_sets_the_time() {
    for options in schemes() {
        let clock = Seconds::new();
        let pool = clock.pool();
        let map = map(&pool, &options);
        let at = clock.after(10);
        let time = |key| map.expiry_of(&key).unwrap();
        map.put_until(&1, &10, at).unwrap();
        assert!(map.update(&1, &11).unwrap());
        assert!(map.compare_swap(&1, &11, &12).unwrap());
        assert_eq!(map.add(&1, 1).unwrap(), 13);
        assert_eq!(map.alter(&1, |value| value.map(|value| value + 1)).unwrap(), Some(14));
        assert_eq!(map.update_many(&[(&1, &15)]).unwrap(), [true]);
        pool.transaction(|t| t.add(&map, &1, 1)).unwrap();
        pool.transaction(|t| t.update(&map, &1, &17)).unwrap();
        assert_eq!((map.get(&1).unwrap(), time(1)), (Some(17), Some(Expiry::At(at))));
        assert!(map.persist(&1).unwrap());
        assert_eq!(time(1), Some(Expiry::Never));
        assert!(map.expire_at(&1, at).unwrap());
        assert_eq!(time(1), Some(Expiry::At(at)));
        assert_eq!(map.put(&1, &18).unwrap(), Some(17));
        assert_eq!(time(1), Some(Expiry::Never));
        assert_eq!(map.put_until(&1, &19, at).unwrap(), Some(18));
        assert_eq!(map.remove(&1).unwrap(), Some(19));
        let mut batch = pool.batch();
        batch.put_until(&map, &1, &20, at).unwrap().put(&map, &2, &21).unwrap();
        assert!(batch.commit().unwrap());
        assert_eq!((time(1), time(2)), (Some(Expiry::At(at)), Some(Expiry::Never)));
        let later = clock.after(20);
        pool.transaction(|t| {
            t.put_until(&map, &1, &22, later)?;
            t.add(&map, &1, 1)?;
            t.remove(&map, &2)?;
            t.add(&map, &2, 1)
        })
        .unwrap();
        assert_eq!((map.get(&1).unwrap(), time(1)), (Some(23), Some(Expiry::At(later))));
        assert_eq!((map.get(&2).unwrap(), time(2)), (Some(1), Some(Expiry::Never)));
        let prolonged = map.alter_until(&1, |found| {
            assert_eq!(found, Some((&23, Expiry::At(later))));
            Some((24, Expiry::Never))
        });
        assert_eq!(prolonged.unwrap(), Some((24, Expiry::Never)));
        // A time that has passed removes the key.
        assert_eq!(map.put_until(&1, &25, clock.now()).unwrap(), Some(24));
        assert!(map.expire_at(&2, clock.now()).unwrap());
        assert_eq!((map.len().unwrap(), held(&map)), (0, 0), "{options:?}");
    }
}

#[test]
fn the_background_step_removes_what_has_expired_and_frees_its_space() {
    for options in schemes() {
        let clock = Seconds::new();
        let pool = clock.pool();
        let map = pool.map_with::<u64, [u8]>("m", &options).unwrap();
        let stored = |key: u64| key.with_key(|key| map.raw().get_stored(key)).unwrap();
        let mut sizes = Vec::new();
        for _ in 0..8 {
            for key in 0..200 {
                map.put_for(&key, &[7; 5_000], TEN).unwrap();
            }
            map.put(&200, &[7; 5_000]).unwrap();
            map.put_for(&201, &[7; 5_000], 200 * TEN).unwrap();
            clock.pass(100);
            work(&pool);
            assert_eq!((0..202).filter(|&key| stored(key).is_some()).count(), 2, "{options:?}");
            sizes.push(pool.stats().size);
        }
        assert_eq!(sizes[1], *sizes.last().unwrap(), "{options:?}: the space is used again");
        // Nothing can have expired, so nothing is read.
        map.expire_at(&201, clock.after(1_000)).unwrap();
        clock.pass(100);
        work(&pool);
        assert!(!pool.step().unwrap());
    }
}

#[test]
fn ordered_maps_leave_out_what_has_expired() {
    for read_only in [false, true] {
        let clock = Seconds::new();
        let (_dir, path) = files::dir();
        let open = || {
            // SAFETY: nobody else writes the file.
            unsafe { clock.options().open_or_create(&path) }.unwrap()
        };
        let mut pool = open();
        let options = MapOptions::new().expiry(true);
        let mut map = pool.ordered_map_with::<u64, u64>("m", &options).unwrap();
        for key in 0..100 {
            let seconds = if (20..80).contains(&key) { 100 } else { 10 };
            map.put_for(&key, &key, Duration::from_secs(seconds)).unwrap();
        }
        if read_only {
            drop(map);
            pool.close().unwrap();
            // SAFETY: nobody else writes the file.
            pool = unsafe { clock.options().open_read_only(&path) }.unwrap();
            map = pool.ordered_map::<u64, u64>("m").unwrap();
        }
        clock.pass(10);
        assert_eq!(map.first().unwrap(), Some((20, 20)));
        assert_eq!(map.last().unwrap(), Some((79, 79)));
        let range = map.range(10..30).collect::<outlast::Result<Vec<_>>>().unwrap();
        assert_eq!(range, (20..30).map(|n| (n, n)).collect::<Vec<_>>());
        let back = map.range(..).rev().collect::<outlast::Result<Vec<_>>>().unwrap();
        assert_eq!(back, (20..80).rev().map(|n| (n, n)).collect::<Vec<_>>());
        assert_eq!(map.len().unwrap(), 60);
        clock.pass(90);
        assert_eq!((map.first().unwrap(), map.last().unwrap()), (None, None));
        if read_only {
            assert_eq!(held(&map), 100, "nothing was removed");
        }
    }
}

/// Random operations on a map and on a model of it, with a clock that moves; now and then the pool is
/// closed, or dropped as if its process had died, and opened again.
#[test]
fn maps_and_times_agree_with_a_model_across_openings() {
    for options in schemes() {
        let clock = Seconds::new();
        let (_dir, path) = files::dir();
        let mut model: BTreeMap<u64, (u64, Option<SystemTime>)> = BTreeMap::new();
        let mut state = 12345u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for _ in 0..12 {
            let pool = reopen(&clock, &path);
            let map = map(&pool, &options);
            for _ in 0..400 {
                clock.pass(u64::from(random(10) == 0));
                model.retain(|_, (_, time)| time.is_none_or(|time| time > clock.now()));
                let (key, value) = (random(150), random(1000));
                let time = clock.after(random(30));
                let had = model.get(&key).copied();
                let passed = time <= clock.now();
                match random(9) {
                    0 | 1 => {
                        assert_eq!(map.put_until(&key, &value, time).unwrap(), had.map(|h| h.0));
                        model.insert(key, (value, Some(time)));
                        if passed {
                            model.remove(&key);
                        }
                    }
                    2 => {
                        assert_eq!(map.insert(&key, &value).unwrap(), had.is_none());
                        model.entry(key).or_insert((value, None));
                    }
                    3 => {
                        assert_eq!(map.update(&key, &value).unwrap(), had.is_some());
                        model.entry(key).and_modify(|has| has.0 = value);
                    }
                    4 => {
                        assert_eq!(map.remove(&key).unwrap(), had.map(|h| h.0));
                        model.remove(&key);
                    }
                    5 => {
                        assert_eq!(map.expire_at(&key, time).unwrap(), had.is_some());
                        model.entry(key).and_modify(|has| has.1 = Some(time));
                        if passed {
                            model.remove(&key);
                        }
                    }
                    6 => {
                        let expected = had.map_or(0, |h| h.0);
                        let done = map.compare_swap(&key, &expected, &value).unwrap();
                        assert_eq!(done, had.is_some());
                        model.entry(key).and_modify(|has| has.0 = value);
                    }
                    7 => drop(pool.step().unwrap()),
                    _ => assert_eq!(map.get(&key).unwrap(), had.map(|h| h.0)),
                }
            }
            let mut all = map.iter().collect::<outlast::Result<Vec<_>>>().unwrap();
            all.sort_unstable();
            let expected: Vec<_> = model.iter().map(|(key, (value, _))| (*key, *value)).collect();
            assert_eq!(all, expected, "{options:?}");
            for (key, (_, time)) in &model {
                let expiry = time.map_or(Expiry::Never, Expiry::At);
                assert_eq!(map.expiry_of(key).unwrap(), Some(expiry), "{options:?}");
            }
            pool.verify().unwrap().ensure_sound().unwrap();
            if random(2) == 0 {
                drop(map);
                pool.close().unwrap();
            }
        }
    }
}

fn reopen(clock: &Seconds, path: &Path) -> Pool {
    let options = clock.options().survive(outlast::Failure::ProcessDeath);
    // SAFETY: nobody else writes the file.
    unsafe { options.open_or_create(path) }.unwrap()
}

/// Once a record was seen absent, it is gone, even if the clock goes back.
#[test]
fn a_record_that_was_seen_absent_never_comes_back() {
    for options in schemes() {
        let clock = Seconds::new();
        let pool = clock.pool();
        let map = map(&pool, &options);
        for key in 0..4 {
            map.put_for(&key, &10, TEN).unwrap();
        }
        clock.pass(10);
        assert_eq!(map.get(&0).unwrap(), None);
        assert_eq!(map.get_many(&[&1]).unwrap(), [None]);
        assert!(!map.contains_key(&2).unwrap());
        clock.0.fetch_sub(10, Ordering::SeqCst);
        let left = map.get_many(&[&0, &1, &2, &3]).unwrap();
        assert_eq!(left, [None, None, None, Some(10)], "{options:?}");
    }
}

/// One thread renews a record just before it expires, the others look it up and sweep. A renewal that
/// succeeded is never lost, and one that came too late never succeeds.
#[test]
fn renewals_and_expiry_do_not_mix() {
    for options in schemes() {
        let clock = Seconds::new();
        let pool = clock.pool();
        let map = map(&pool, &options);
        let renewed = AtomicU64::new(0);
        std::thread::scope(|s| {
            s.spawn(|| {
                for round in 0..3_000u64 {
                    map.put_for(&1, &round, Duration::from_secs(1)).unwrap();
                    if map.expire_at(&1, UNIX_EPOCH + Duration::from_secs(1 << 32)).unwrap() {
                        renewed.fetch_add(1, Ordering::Relaxed);
                        assert_eq!(map.get(&1).unwrap(), Some(round), "{options:?}");
                        assert!(map.delete(&1).unwrap(), "{options:?}");
                    } else {
                        assert_eq!(map.get(&1).unwrap(), None, "{options:?}");
                    }
                }
                clock.pass(1 << 40);
            });
            s.spawn(|| {
                while clock.0.load(Ordering::SeqCst) < 1 << 31 {
                    clock.pass(1);
                    map.get(&1).unwrap();
                    pool.step().unwrap();
                }
            });
        });
        assert!(renewed.into_inner() > 0, "{options:?}");
    }
}

#[test]
fn only_maps_made_with_expiry_have_it() {
    let clock = Seconds::new();
    let pool = clock.pool();
    let plain = pool.map::<str, u64>("plain").unwrap();
    let refused = plain.put_for("a", &1, TEN);
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    assert!(matches!(plain.expiry_of("a"), Err(Error::Invalid { .. })));
    assert!(pool.batch().put_until(&plain, "a", &1, clock.now()).is_err());
    let options = MapOptions::new().expiry(true);
    let refused = pool.map_with::<str, u64>("plain", &options);
    assert!(matches!(refused, Err(Error::MapMismatch { what: "expiry", .. })), "{refused:?}");
    let inline = options.clone().form(RecordForm::Inline);
    assert!(matches!(pool.map_with::<u64, u64>("m", &inline), Err(Error::Invalid { .. })));
    // A map keeps its expiry, whatever it is opened with.
    pool.map_with::<u64, u64>("m", &options).unwrap().put_for(&1, &1, TEN).unwrap();
    let again = pool.map::<u64, u64>("m").unwrap();
    assert!(again.info().expires);
    clock.pass(10);
    assert_eq!(again.get(&1).unwrap(), None);
    let longest = vec![0; outlast::MAX_VALUE_BYTES - 7];
    let blobs = pool.map_with::<u64, [u8]>("blobs", &options).unwrap();
    assert!(matches!(blobs.put(&1, &longest), Err(Error::ValueTooLarge { .. })));
}

/// Tools copy records as they are stored.
#[test]
fn scans_can_be_copied_with_their_times() {
    let clock = Seconds::new();
    let (old, new) = (clock.pool(), clock.pool());
    let options = MapOptions::new().expiry(true);
    let from = old.map_with::<u64, str>("m", &options).unwrap();
    from.put_until(&1, "a", clock.after(5)).unwrap();
    from.put(&2, "b").unwrap();
    let to = new.raw_map_like(from.info()).unwrap();
    for record in from.raw().iter().stored() {
        let (key, stored) = record.unwrap();
        assert!(to.insert_stored(&key, &stored).unwrap());
    }
    let to = new.map::<u64, str>("m").unwrap();
    assert_eq!(to.expiry_of(&1).unwrap(), Some(Expiry::At(clock.after(5))));
    assert_eq!(to.expiry_of(&2).unwrap(), Some(Expiry::Never));
    assert_eq!(to.get(&1).unwrap().as_deref(), Some("a"));
}
