//! Commands on hashes.

use crate::command::{Call, Replicate};
use crate::parse::{self, Scan, is_word, need_integer};
use crate::place::to_ms;
use crate::reply::{Fault, Reply, Result};
use crate::store::{Kind, Pair};
use crate::strings::add_float;
use outlast::Expiry;
use std::hash::{BuildHasher, Hasher, RandomState};

/// Reads the fields and values after the key. If a field is given twice, the last value counts.
pub fn pairs<'a>(call: &Call<'a>, name: &str) -> Result<Vec<(&'a [u8], Vec<u8>)>> {
    let (pairs, []) = call.args[1..].as_chunks::<2>() else {
        return Err(Fault::new(format!("wrong number of arguments for 'ol.{name}' command")));
    };
    let mut fields: Vec<(&[u8], Vec<u8>)> = Vec::with_capacity(pairs.len());
    let mut known = std::collections::HashMap::new();
    for [field, value] in pairs {
        let number = *known.entry(*field).or_insert(fields.len());
        match fields.get_mut(number) {
            Some((_, there)) => *there = value.to_vec(),
            None => fields.push((field, value.to_vec())),
        }
    }
    Ok(fields)
}

/// After a change of fields, lets replicas also set the time of the key in the first argument. In a replica that is
/// late, the time has passed and the key is gone, so the change alone would make one without a time.
pub fn replicate_time(call: &mut Call<'_>, name: &str) -> Result<()> {
    if let Expiry::At(time) = call.store.hash_expiry(call.arg(0))? {
        if call.replicate == Replicate::Verbatim {
            let words = [name.as_bytes()].into_iter().chain(call.args.iter().copied());
            call.replicate(&words.collect::<Vec<_>>());
        }
        let ms = to_ms(time).to_string();
        call.replicate(&[b"ol.pexpireat", call.arg(0), ms.as_bytes()]);
    }
    Ok(())
}

pub fn hset(call: &mut Call<'_>) -> Result {
    let pairs = pairs(call, "hset")?;
    let new = call.store.set_fields(call.arg(0), Kind::Hash, &pairs)?;
    replicate_time(call, "ol.hset")?;
    Ok(Reply::Int(new as i64))
}

pub fn hmset(call: &mut Call<'_>) -> Result {
    let pairs = pairs(call, "hmset")?;
    call.store.set_fields(call.arg(0), Kind::Hash, &pairs)?;
    replicate_time(call, "ol.hmset")?;
    Ok(Reply::OK)
}

pub fn hsetnx(call: &mut Call<'_>) -> Result {
    let is_there = field(call, call.arg(1))?.is_some();
    if !is_there {
        call.store.set_fields(call.arg(0), Kind::Hash, &[(call.arg(1), call.arg(2).to_vec())])?;
        call.replicate(&[b"ol.hset", call.arg(0), call.arg(1), call.arg(2)]);
        replicate_time(call, "ol.hset")?;
    }
    call.unless(!is_there);
    Ok(Reply::flag(!is_there))
}

/// Returns the value of a field of the key in the first argument.
fn field(call: &Call<'_>, field: &[u8]) -> Result<Option<Vec<u8>>> {
    match call.store.hash(call.arg(0), Kind::Hash)? {
        Some(hash) => call.store.field(hash, field),
        None => Ok(None),
    }
}

pub fn hget(call: &mut Call<'_>) -> Result {
    Ok(Reply::bulk(field(call, call.arg(1))?))
}

pub fn hmget(call: &mut Call<'_>) -> Result {
    let hash = call.store.hash(call.arg(0), Kind::Hash)?;
    let one = |field: &&[u8]| match hash {
        Some(hash) => Ok(Reply::bulk(call.store.field(hash, field)?)),
        None => Ok(Reply::Null),
    };
    call.args[1..].iter().map(one).collect::<Result<_>>().map(Reply::Array)
}

/// Returns all fields of the key in the first argument, and their values.
fn all(call: &Call<'_>) -> Result<Vec<Pair>> {
    Ok(match call.store.hash(call.arg(0), Kind::Hash)? {
        Some(hash) => call.store.fields_from(hash, 0, usize::MAX)?.1,
        None => Vec::new(),
    })
}

pub fn hgetall(call: &mut Call<'_>) -> Result {
    all(call).map(Reply::Map)
}

pub fn hkeys(call: &mut Call<'_>) -> Result {
    Ok(Reply::Array(all(call)?.into_iter().map(|(field, _)| Reply::Bulk(field)).collect()))
}

pub fn hvals(call: &mut Call<'_>) -> Result {
    Ok(Reply::Array(all(call)?.into_iter().map(|(_, value)| Reply::Bulk(value)).collect()))
}

pub fn hdel(call: &mut Call<'_>) -> Result {
    let removed = call.store.remove_fields(call.arg(0), Kind::Hash, &call.args[1..])?;
    call.unless(removed > 0);
    Ok(Reply::Int(removed as i64))
}

pub fn hexists(call: &mut Call<'_>) -> Result {
    Ok(Reply::flag(field(call, call.arg(1))?.is_some()))
}

pub fn hlen(call: &mut Call<'_>) -> Result {
    Ok(Reply::Int(call.store.hash(call.arg(0), Kind::Hash)?.map_or(0, |hash| hash.fields as i64)))
}

pub fn hstrlen(call: &mut Call<'_>) -> Result {
    Ok(Reply::Int(field(call, call.arg(1))?.map_or(0, |value| value.len() as i64)))
}

fn change(call: &mut Call<'_>, value: &[u8]) -> Result<()> {
    let (key, field) = (call.arg(0), call.arg(1));
    call.store.set_fields(key, Kind::Hash, &[(field, value.to_vec())])?;
    call.replicate(&[b"ol.hset", key, field, value]);
    replicate_time(call, "ol.hset")
}

pub fn hincrby(call: &mut Call<'_>) -> Result {
    let amount = need_integer(call.arg(2))?;
    let before = field(call, call.arg(1))?;
    let before = before.as_deref().map_or(Some(0), parse::integer);
    let before = before.ok_or_else(|| Fault::new("hash value is not an integer"))?;
    let sum = before.checked_add(amount);
    let sum = sum.ok_or_else(|| Fault::new("increment or decrement would overflow"))?;
    change(call, sum.to_string().as_bytes())?;
    Ok(Reply::Int(sum))
}

pub fn hincrbyfloat(call: &mut Call<'_>) -> Result {
    let amount = parse::float(call.arg(2)).ok_or_else(Fault::not_a_float)?;
    if !amount.is_finite() {
        return Err(Fault::new("value is NaN or Infinity"));
    }
    let before = field(call, call.arg(1))?;
    let text = add_float(before.as_deref(), amount, || Fault::new("hash value is not a float"))?;
    change(call, &text)?;
    Ok(Reply::Bulk(text))
}

/// `HRANDFIELD key [count [WITHVALUES]]`: a negative count allows a field more than once.
pub fn hrandfield(call: &mut Call<'_>) -> Result {
    let count = call.args.get(1).map(|count| need_integer(count)).transpose()?;
    let with_values = match call.args.get(2) {
        None => false,
        Some(option) if is_word(option, "withvalues") => true,
        Some(_) => return Err(Fault::syntax()),
    };
    if count.is_some_and(|count| count.unsigned_abs() > i64::MAX as u64 / 2) {
        return Err(Fault::new("value is out of range"));
    }
    let mut fields = all(call)?;
    let Some(count) = count else {
        return Ok(Reply::bulk(
            (!fields.is_empty()).then(|| fields.swap_remove(random(fields.len())).0),
        ));
    };
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    let mut chosen = Vec::new();
    while chosen.len() < wanted && !fields.is_empty() {
        let at = random(fields.len());
        chosen.push(if count < 0 { fields[at].clone() } else { fields.swap_remove(at) });
    }
    Ok(match with_values {
        true => Reply::Pairs(chosen),
        false => Reply::Array(chosen.into_iter().map(|(field, _)| Reply::Bulk(field)).collect()),
    })
}

/// Returns a number below `end`.
fn random(end: usize) -> usize {
    // A hasher's keys are random.
    (RandomState::new().build_hasher().finish() % end as u64) as usize
}

pub fn hscan(call: &mut Call<'_>) -> Result {
    let scan = Scan::parse(&call.args[1..], false)?;
    let (next, fields) = match call.store.hash(call.arg(0), Kind::Hash)? {
        Some(hash) => call.store.fields_from(hash, scan.cursor, scan.count)?,
        None => (0, Vec::new()),
    };
    let found = fields.into_iter().filter(|(field, _)| scan.wants(field));
    let found = found.flat_map(|(field, value)| [Reply::Bulk(field), Reply::Bulk(value)]).collect();
    Ok(Reply::Array(vec![Reply::Bulk(next.to_string().into_bytes()), Reply::Array(found)]))
}
