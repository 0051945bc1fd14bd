//! Commands on ordered maps: hashes whose fields lie in the order of their bytes.

use crate::command::Call;
use crate::hashes::{pairs, replicate_time};
use crate::parse::{is_word, need_integer};
use crate::reply::{Fault, Reply, Result};
use crate::store::Kind;
use std::ops::Bound;

const ORDERED: Kind = Kind::Ordered;

type Bounds<'b> = (Bound<&'b [u8]>, Bound<&'b [u8]>);

pub fn oset(call: &mut Call<'_>) -> Result {
    let pairs = pairs(call, "oset")?;
    let new = call.store.set_fields(call.arg(0), ORDERED, &pairs)?;
    replicate_time(call, "ol.oset")?;
    Ok(Reply::Int(new as i64))
}

pub fn oget(call: &mut Call<'_>) -> Result {
    Ok(Reply::bulk(match call.store.hash(call.arg(0), ORDERED)? {
        Some(hash) => call.store.field(hash, call.arg(1))?,
        None => None,
    }))
}

pub fn odel(call: &mut Call<'_>) -> Result {
    let removed = call.store.remove_fields(call.arg(0), ORDERED, &call.args[1..])?;
    call.unless(removed > 0);
    Ok(Reply::Int(removed as i64))
}

pub fn olen(call: &mut Call<'_>) -> Result {
    let hash = call.store.hash(call.arg(0), ORDERED)?;
    Ok(Reply::Int(hash.map_or(0, |hash| hash.fields as i64)))
}

/// Reads a bound as `ZRANGEBYLEX` has it: `-`, `+`, `[field`, `(field`.
fn bound(text: &[u8]) -> Result<Bound<&[u8]>> {
    match text {
        b"-" | b"+" => Ok(Bound::Unbounded),
        [b'[', field @ ..] => Ok(Bound::Included(field)),
        [b'(', field @ ..] => Ok(Bound::Excluded(field)),
        _ => Err(Fault::new("min or max not valid string range item")),
    }
}

/// Reads `LIMIT count`, or nothing.
fn limit(options: &[&[u8]]) -> Result<usize> {
    match options {
        [] => Ok(usize::MAX),
        [word, count] if is_word(word, "limit") => {
            let count = usize::try_from(need_integer(count)?);
            count.map_err(|_| Fault::new("LIMIT is negative"))
        }
        _ => Err(Fault::syntax()),
    }
}

fn between(call: &Call<'_>, bounds: Bounds<'_>, is_reverse: bool, options: &[&[u8]]) -> Result {
    let count = limit(options)?;
    let found = match call.store.hash(call.arg(0), ORDERED)? {
        Some(hash) => call.store.fields_between(hash, bounds, is_reverse, count)?,
        None => Vec::new(),
    };
    let words = found.into_iter().flat_map(|(field, value)| [field, value]);
    Ok(Reply::Array(words.map(Reply::Bulk).collect()))
}

/// Reads the two bounds of a range. `+` is no lower bound, and `-` no upper one.
fn bounds<'a>(min: &'a [u8], max: &'a [u8]) -> Result<Option<Bounds<'a>>> {
    let bounds = (bound(min)?, bound(max)?);
    Ok((min != b"+" && max != b"-").then_some(bounds))
}

pub fn range(call: &mut Call<'_>) -> Result {
    match bounds(call.arg(1), call.arg(2))? {
        Some(bounds) => between(call, bounds, false, &call.args[3..]),
        None => Ok(Reply::Array(Vec::new())),
    }
}

pub fn revrange(call: &mut Call<'_>) -> Result {
    match bounds(call.arg(2), call.arg(1))? {
        Some(bounds) => between(call, bounds, true, &call.args[3..]),
        None => Ok(Reply::Array(Vec::new())),
    }
}

pub fn prefix(call: &mut Call<'_>) -> Result {
    let prefix = call.arg(1);
    // The least that does not begin so: the prefix with its last byte below 255 raised by one.
    let end = prefix.iter().rposition(|&byte| byte < 255).map(|last| {
        let mut end = prefix[..=last].to_vec();
        end[last] += 1;
        end
    });
    let high = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    between(call, (Bound::Included(prefix), high), false, &call.args[2..])
}
