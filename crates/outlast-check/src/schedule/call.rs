//! Calls on an index, with numbers for keys and values.

use crate::codec::{Form, SPECIAL};
use crate::history::{Answer, Call};
use crate::session::Do;
use outlast::internals::index::record::RecordRef;
use outlast::internals::index::{Cursor, Index, Previous};
use outlast::{Error, NotOpen};

/// Why an operation has no result.
pub(super) enum Asked {
    /// The pool has been closed.
    Refused,
    Failed(Error),
    Wrong(String),
}

impl From<Error> for Asked {
    fn from(error: Error) -> Self {
        match error {
            Error::NotOpen(NotOpen::Closed | NotOpen::Closing) => Asked::Refused,
            error => Asked::Failed(error),
        }
    }
}

impl From<Box<Error>> for Asked {
    fn from(error: Box<Error>) -> Self {
        Asked::from(*error)
    }
}

/// Returns the number of a value. A value that no thread wrote is an error.
fn number<R: Form>(value: &R::Owned) -> Result<u64, Asked> {
    R::value_number(value).ok_or_else(|| Asked::Wrong(format!("nobody wrote {value:?}")))
}

/// Reads the next records of an iteration.
pub(super) fn scanned<R: Form>(
    index: &dyn Index<R>,
    cursor: &mut Cursor,
) -> Result<Vec<(u64, u64)>, Asked> {
    let mut batch = Vec::new();
    index.scan(cursor, &mut batch)?;
    let record = |(key, value): &(R::OwnedKey, R::Owned)| {
        let key =
            R::key_number(key).ok_or_else(|| Asked::Wrong(format!("nobody wrote key {key:?}")))?;
        Ok((key, number::<R>(value)?))
    };
    batch.iter().map(record).collect()
}

/// Returns a reference to the value of a key, and the value.
pub(super) fn reference<R: Form>(
    index: &dyn Index<R>,
    key: u64,
) -> Result<Option<(RecordRef<'_>, u64)>, Asked> {
    let key = R::nth_key(key);
    let Some(reference) = index.get_ref(R::key_of(&key))? else { return Ok(None) };
    let bytes = reference.to_vec()?;
    let value = R::raw_number(&bytes);
    let value = value.ok_or_else(|| Asked::Wrong(format!("a reference to {bytes:02x?}")))?;
    Ok(Some((reference, value)))
}

/// Looks up a key in the way that `way` chooses.
fn look_up<R: Form>(index: &dyn Index<R>, key: u64, way: u64) -> Result<Answer, Asked> {
    let bytes = R::nth_key(key);
    let asked = R::key_of(&bytes);
    let get = || index.get(asked)?.as_ref().map(number::<R>).transpose();
    Ok(match way % 4 {
        0 => Answer::Value(reference(index, key)?.map(|(_, value)| value)),
        1 => {
            let mut found = [const { None }];
            index.get_many(&[asked], &mut found)?;
            Answer::Value(found[0].as_ref().map(number::<R>).transpose()?)
        }
        2 if index.contains(asked)? => match get()? {
            // The value tells more than the key's presence.
            Some(value) => Answer::Value(Some(value)),
            // Another thread removed the key in between.
            None => Answer::Present(true),
        },
        2 => Answer::Present(false),
        _ => Answer::Value(get()?),
    })
}

/// Makes a call on an index. `way` chooses how a lookup is made, and whether a change wants the
/// previous value.
///
/// # Errors
/// If the index fails or returns a value that no thread wrote, or if a change of a present key does
/// not return the previous value although that was asked for.
pub(super) fn ask<R: Form>(
    index: &dyn Index<R>,
    call: Call,
    way: u64,
    still: &[(u64, u64)],
) -> Result<Answer, Asked> {
    let (key, change) = match call {
        Call::Get(key) => return look_up(index, key, way),
        Call::Scan => {
            let (mut cursor, mut records) = (Cursor::start(), Vec::new());
            while !cursor.is_done() {
                records.extend(scanned(index, &mut cursor)?);
            }
            return Ok(Answer::Records(records));
        }
        Call::Change(key, change) => (key, change),
    };
    if way.is_multiple_of(4) {
        let at = (way / 4) as usize;
        let still = still.iter().cycle().skip(at).step_by(3).take(still.len().min(at % 3));
        return change_with_others(index, (key, change), way.is_multiple_of(8), still);
    }
    let operands = change.operands::<R>();
    let wanted = !way.is_multiple_of(3);
    let key = R::nth_key(key);
    let done =
        index.change(R::key_of(&key), change.with::<R>(&operands), Previous::when(wanted))?;
    let before = done.before.as_ref().map(number::<R>).transpose()?;
    if wanted && done.present && before.is_none() {
        return Err(Asked::Wrong(format!("{call}: the previous value was not returned")));
    }
    Ok(Answer::Changed { applied: done.applied, present: Some(done.present), before })
}

/// Changes a key with one call that also gives keys that no operation changes the values that they
/// have, before it. These changes are made, and nobody can tell. Another change, `before` or after
/// it, never applies, because no key has such a value.
///
/// No change that may need space comes after the one in question: if it failed, that one would be
/// made, and would seem to have failed.
fn change_with_others<'s, R: Form>(
    index: &dyn Index<R>,
    (key, change): (u64, Do),
    before: bool,
    still: impl Iterator<Item = &'s (u64, u64)>,
) -> Result<Answer, Asked> {
    let mut changes: Vec<_> = still.map(|&(key, value)| (key, Do::Update(value))).collect();
    let stored = changes.len();
    changes.push((key, change));
    changes.insert(changes.len() - usize::from(before), (key + 1, Do::CompareRemove(NO_VALUE)));
    let keys: Vec<_> = changes.iter().map(|&(key, _)| R::nth_key(key)).collect();
    let operands: Vec<_> = changes.iter().map(|(_, change)| change.operands::<R>()).collect();
    let changes = changes.iter().zip(&operands).map(|((_, change), with)| change.with::<R>(with));
    let mut done = Vec::new();
    index.change_many(
        &keys.iter().map(R::key_of).collect::<Vec<_>>(),
        &changes.collect::<Vec<_>>(),
        &mut done,
    )?;
    if let Some(lost) = done[..stored].iter().position(|done| !done.applied) {
        return Err(Asked::Wrong(format!(
            "change {lost} of a call, of a key that is there, failed"
        )));
    }
    let last = &done[stored..];
    let (done, other) = (&last[usize::from(before)], &last[usize::from(!before)]);
    if other.applied {
        return Err(Asked::Wrong(format!("a value of key {} that nobody wrote", key + 1)));
    }
    Ok(Answer::Changed { applied: done.applied, present: Some(done.present), before: None })
}

/// The number of a value that no operation writes.
const NO_VALUE: u64 = SPECIAL - 9;
