//! Uses a pool that may be damaged. Every call must end in a result or a typed error.

use super::images::KnownMap;
use super::pool::{Pool, bytes_of, map_info, open, open_map, word_at};
use super::watch::{CASE, PANIC, WORKER};
use crate::random::Random;
use outlast::internals::db::store::AnyIndex;
use outlast::internals::db::verify::verify;
use outlast::internals::index::{Bytes, Change, Cursor, Index, Inline, Previous, Record};
use outlast::internals::pmem::Alive;
use outlast::{Error, RecordForm, Scheme};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The outcome of a case.
#[derive(Debug, Default, Clone)]
pub struct Found {
    /// The first damage that a call or a verification reported.
    pub damage: Option<String>,
    /// Whether the pool opened.
    pub opened: bool,
}

impl Found {
    fn note<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                // Other errors are legitimate and report no damage, for example a full pool or a
                // map that cannot be created.
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

/// Opens an image, uses it, verifies and closes it. With `verify_first`, it is verified before it
/// is changed. Otherwise operations are the first to touch it.
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
    // Only opening reports a damaged header copy, because the first store rewrites the copy.
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
                let done = index.change(
                    &n.to_le_bytes()[..],
                    Change::Put(&[5; 70][..]),
                    Previous::UNWANTED,
                );
                found.note(done.map_err(Error::from));
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

/// Makes all operations on a map, whatever its form. Returns the errors.
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
                    errors.push(Error::from(error));
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
                let change = match random.below(6) {
                    0 => Change::Put(value),
                    1 => Change::Update(value),
                    2 => Change::Insert(value),
                    3 => Change::Swap { expected: value, new: value },
                    4 => Change::CompareRemove(value),
                    _ => Change::Remove,
                };
                attempt!(index.change(key, change, Previous::when(random.below(2) == 0)));
                if let Some(Some(guard)) = attempt!(index.get_ref(key)) {
                    let _ = std::hint::black_box(guard.to_vec());
                }
            }
            for key in fresh {
                attempt!(index.change(
                    R::key_of(key),
                    Change::Insert(R::value_of(value)),
                    Previous::UNWANTED
                ));
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

/// Does the same as [`use_pool`], with two threads together.
pub fn use_pool_together(bytes: &[u8], maps: &[KnownMap], alive: &Arc<Alive>, random: &Random) {
    let Ok(store) = open(bytes, alive) else { return };
    let case = CASE.get();
    let panicked = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2u64)
            .map(|thread| {
                let store = &store;
                let mut random = Random::new(random.clone().next() ^ thread);
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
