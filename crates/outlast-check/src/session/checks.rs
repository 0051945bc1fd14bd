//! The checks of operations, of a map's contents, and of a closed pool.

use super::Do;
use crate::codec::Form;
use crate::state::{Checked, Fault, Records, State, ensure};
use crate::structures::structure;
use outlast::internals::index::{Cursor, Index, Previous};
use outlast::{Scheme, Verification};
use std::cell::Cell;

pub(super) fn set(state: &mut State, name: &str, key: u64, value: Option<u64>) {
    if let Some(map) = state.maps.get_mut(name) {
        match value {
            Some(value) => map.records.insert(key, value),
            None => map.records.remove(&key),
        };
    }
}

/// Checks a closed pool's file with a walk that shares no code with the allocator.
pub(super) fn check_closed(file: &[u8], records: u64) -> Checked {
    let report = outlast_offline::walk_bytes(file)?;
    let held = report.records == records && report.leaked_bytes == 0 && report.problems.is_empty();
    ensure(held && report.sum() == report.file_bytes, || {
        format!("offline walk: {records} records expected, {report:?}")
    })?;
    report.maps.iter().try_for_each(|map| {
        let scheme: Scheme = map.scheme.parse().map_err(Fault)?;
        (structure(scheme).closed)(map)
    })
}

/// Checks that a verification of a pool found nothing wrong, and as many records as expected.
pub fn check_verification(found: &Verification, records: u64) -> Checked {
    let damage: Vec<_> = found.all_damage().map(ToString::to_string).collect();
    ensure(damage.is_empty(), || format!("damage: {}", damage.join("; ")))?;
    ensure(found.leaked_bytes == Some(0), || format!("leaked: {:?}", found.leaked_bytes))?;
    ensure(found.is_sound(), || format!("not sound: {found:?}"))?;
    let count = found.records();
    ensure(count == records, || format!("{count} records, {records} expected"))
}

pub(super) fn apply<R: Form>(
    index: &dyn Index<R>,
    key: u64,
    change: Do,
    before: Option<u64>,
    applies: bool,
) -> Checked {
    let key = R::nth_key(key);
    let operands = change.operands::<R>();
    let change = change.with::<R>(&operands);
    let done = index.change(R::key_of(&key), change, Previous::WANTED)?;
    ensure(done.applied == applies, || {
        format!("returned applied: {}, expected {applies}", done.applied)
    })?;
    ensure(done.present == before.is_some(), || {
        format!("returned present: {}, the value was {before:?}", done.present)
    })?;
    // A change that did not apply returns the previous value only if it had to read it.
    let told = done.before.as_ref().map(|value| R::value_number(value).ok_or(value));
    ensure(told.is_none() || told == before.map(Ok), || {
        format!("returned the previous value {told:?}, it was {before:?}")
    })?;
    ensure(told.is_some() || before.is_none() || !applies, || {
        format!("returned no previous value, it was {before:?}")
    })
}

/// Makes changes with one call. `expected` says for each whether it applies, and whether its key is
/// present. Adds to `made` the number of the changes that were made.
pub(super) fn apply_many<R: Form>(
    index: &dyn Index<R>,
    changes: &[(u64, Do)],
    expected: &[(bool, bool)],
    made: &Cell<usize>,
) -> Checked {
    let keys: Vec<_> = changes.iter().map(|&(key, _)| R::nth_key(key)).collect();
    let operands: Vec<_> = changes.iter().map(|(_, change)| change.operands::<R>()).collect();
    let keys: Vec<_> = keys.iter().map(R::key_of).collect();
    let changes =
        changes.iter().zip(&operands).map(|((_, change), operands)| change.with::<R>(operands));
    let mut done = Vec::new();
    let result = index.change_many(&keys, &changes.collect::<Vec<_>>(), &mut done);
    made.set(made.get() + done.len());
    let expected = if result.is_ok() { expected } else { &expected[..done.len()] };
    let done: Vec<_> = done.iter().map(|done| (done.applied, done.present)).collect();
    ensure(done == expected, || format!("returned {done:?}, expected {expected:?}"))?;
    Ok(result?)
}

pub(super) fn number<R: Form>(value: &R::Owned) -> Checked<u64> {
    R::value_number(value).ok_or_else(|| Fault(format!("a value that nobody wrote: {value:?}")))
}

pub(super) fn read<R: Form>(index: &dyn Index<R>, key: u64) -> Checked<Option<u64>> {
    let key = R::nth_key(key);
    let found = index.get(R::key_of(&key))?;
    let reference = index.get_ref(R::key_of(&key))?;
    let contains = index.contains(R::key_of(&key))?;
    let mut many = [const { None }];
    index.get_many(&[R::key_of(&key)], &mut many)?;
    ensure(many[0] == found, || format!("get {found:?}, get_many {many:?}"))?;
    ensure(reference.is_some() == found.is_some(), || {
        format!("get {found:?}, get_ref {reference:?}")
    })?;
    ensure(contains == found.is_some(), || format!("get {found:?}, contains {contains}"))?;
    found.as_ref().map(number::<R>).transpose()
}

/// Reads everything by iteration.
pub(super) fn walk<R: Form>(index: &dyn Index<R>) -> Checked<Records> {
    let mut found = Records::new();
    let mut cursor = Cursor::start();
    let mut batch = Vec::new();
    while !cursor.is_done() {
        index.scan(&mut cursor, &mut batch)?;
    }
    for (key, value) in batch {
        let n = R::key_number(&key)
            .ok_or_else(|| Fault(format!("a key that nobody wrote: {key:?}")))?;
        let twice = found.insert(n, number::<R>(&value)?);
        ensure(twice.is_none(), || format!("iteration gives key {n} twice"))?;
    }
    Ok(found)
}

pub(super) fn contents<R: Form>(
    index: &dyn Index<R>,
    universe: &[u64],
    gets_first: bool,
) -> Checked<Records> {
    let gets = || -> Checked<Records> {
        let mut found = Records::new();
        for &n in universe {
            let key = R::nth_key(n);
            if let Some(value) = index.get(R::key_of(&key))? {
                found.insert(n, number::<R>(&value)?);
            }
        }
        Ok(found)
    };
    let scan = || walk::<R>(index);
    let (got, walked) = if gets_first {
        let got = gets()?;
        (got, scan()?)
    } else {
        let walked = scan()?;
        (gets()?, walked)
    };
    ensure(got == walked, || {
        let differs = |a: &Records, b: &Records| -> Vec<(u64, u64)> {
            a.iter().filter(|(k, v)| b.get(*k) != Some(*v)).map(|(k, v)| (*k, *v)).collect()
        };
        format!(
            "only by get: {:?}; only by iteration: {:?}",
            differs(&got, &walked),
            differs(&walked, &got)
        )
    })?;
    Ok(got)
}
