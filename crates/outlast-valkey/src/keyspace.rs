//! Commands on keys of any type.

use crate::command::{Call, Replicate};
use crate::copy;
use crate::parse::{Scan, is_word, need_integer};
use crate::place::{from_ms, to_ms};
use crate::reply::{Fault, Reply, Result};
use outlast::Expiry;
use std::ffi::CStr;

pub fn del(call: &mut Call<'_>) -> Result {
    let mut removed = 0;
    for key in call.args {
        removed += i64::from(call.store.remove(key)?);
    }
    call.unless(removed > 0);
    Ok(Reply::Int(removed))
}

pub fn exists(call: &mut Call<'_>) -> Result {
    let mut found = 0;
    for key in call.args {
        found += i64::from(call.store.exists(key)?);
    }
    Ok(Reply::Int(found))
}

pub fn rename(call: &mut Call<'_>) -> Result {
    move_to(call, true)
}

pub fn renamenx(call: &mut Call<'_>) -> Result {
    move_to(call, false)
}

fn move_to(call: &mut Call<'_>, replaces: bool) -> Result {
    let (from, to) = (call.arg(0), call.arg(1));
    let done = if replaces { Reply::OK } else { Reply::Int(1) };
    if !call.store.exists(from)? {
        return Err(Fault::no_such_key());
    }
    if from == to || !replaces && call.store.exists(to)? {
        call.unless(false);
        return Ok(if replaces { done } else { Reply::Int(0) });
    }
    if !call.store.rename(from, to)? {
        return Err(Fault::no_such_key());
    }
    let mut calls = calls_for(call, to)?;
    calls.push(vec![b"ol.del".to_vec(), from.to_vec()]);
    call.replicate = Replicate::Calls(calls);
    Ok(done)
}

pub fn copy(call: &mut Call<'_>) -> Result {
    let (from, to) = (call.arg(0), call.arg(1));
    let replaces = copy_replaces(&call.args[2..])?;
    if from == to {
        return Err(Fault::new("source and destination objects are the same"));
    }
    let is_free = replaces || !call.store.exists(to)?;
    if !is_free || !call.store.copy(from, to)? {
        call.unless(false);
        return Ok(Reply::Int(0));
    }
    call.replicate = Replicate::Calls(calls_for(call, to)?);
    Ok(Reply::Int(1))
}

/// Reads the options of `COPY`. Returns whether it may replace an existing key.
pub fn copy_replaces(options: &[&[u8]]) -> Result<bool> {
    let (mut replaces, mut rest) = (false, options);
    loop {
        rest = match rest {
            [] => return Ok(replaces),
            [option, rest @ ..] if is_word(option, "replace") => {
                replaces = true;
                rest
            }
            [option, number, rest @ ..] if is_word(option, "db") => match need_integer(number)? {
                0 => rest,
                _ => return Err(Fault::new("DB index is out of range")),
            },
            _ => return Err(Fault::syntax()),
        };
    }
}

/// Returns what replicas do so that a key, whatever it was, stands for what it stands for now.
fn calls_for(call: &Call<'_>, key: &[u8]) -> Result<Vec<Vec<Vec<u8>>>> {
    let mut calls = vec![vec![b"ol.del".to_vec(), key.to_vec()]];
    let expiry = call.store.expiry(key)?.unwrap_or(Expiry::Never);
    if let Some(content) = call.store.get(key)? {
        copy::export_key(call.store, key, content, expiry, &mut |words| {
            let mut call: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
            call[0].splice(0..0, *b"ol.");
            calls.push(call);
            Ok(())
        })?;
    }
    Ok(calls)
}

pub fn type_of(call: &mut Call<'_>) -> Result {
    let found = call.store.get(call.arg(0))?;
    Ok(Reply::Simple(found.map_or(c"none", |content| content.type_name())))
}

pub fn expire(call: &mut Call<'_>) -> Result {
    expire_by(call, 1000, true, "expire")
}

pub fn pexpire(call: &mut Call<'_>) -> Result {
    expire_by(call, 1, true, "pexpire")
}

pub fn expireat(call: &mut Call<'_>) -> Result {
    expire_by(call, 1000, false, "expireat")
}

pub fn pexpireat(call: &mut Call<'_>) -> Result {
    expire_by(call, 1, false, "pexpireat")
}

/// The conditions of `EXPIRE`.
#[derive(Default)]
struct Conditions {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

impl Conditions {
    fn parse(options: &[&[u8]]) -> Result<Conditions> {
        let mut of = Conditions::default();
        for option in options {
            match option {
                _ if is_word(option, "nx") => of.nx = true,
                _ if is_word(option, "xx") => of.xx = true,
                _ if is_word(option, "gt") => of.gt = true,
                _ if is_word(option, "lt") => of.lt = true,
                _ => {
                    let option = String::from_utf8_lossy(option);
                    return Err(Fault::new(format!("Unsupported option {option}")));
                }
            }
        }
        if of.nx && (of.xx || of.gt || of.lt) {
            let why = "NX and XX, GT or LT options at the same time are not compatible";
            return Err(Fault::new(why));
        }
        if of.gt && of.lt {
            return Err(Fault::new("GT and LT options at the same time are not compatible"));
        }
        Ok(of)
    }

    /// Returns whether a key with this time gets a new one, in ms.
    fn allow(&self, before: Expiry, ms: i64) -> bool {
        // A key without a time lives longer than any.
        let before = match before {
            Expiry::At(time) => Some(i64::try_from(to_ms(time)).unwrap_or(i64::MAX)),
            Expiry::Never => None,
        };
        !(self.nx && before.is_some()
            || self.xx && before.is_none()
            || self.gt && before.is_none_or(|before| ms <= before)
            || self.lt && before.is_some_and(|before| ms >= before))
    }
}

fn expire_by(call: &mut Call<'_>, unit_ms: i64, is_relative: bool, name: &str) -> Result {
    let number = need_integer(call.arg(1))?;
    let conditions = Conditions::parse(&call.args[2..])?;
    let base = if is_relative { to_ms(call.now) as i64 } else { 0 };
    let ms = number.checked_mul(unit_ms).and_then(|ms| ms.checked_add(base));
    let ms = ms.ok_or_else(|| Fault::new(format!("invalid expire time in '{name}' command")))?;
    let key = call.arg(0);
    let allowed = call.store.expiry(key)?.is_some_and(|before| conditions.allow(before, ms));
    if !allowed {
        call.unless(false);
        return Ok(Reply::Int(0));
    }
    if ms <= to_ms(call.now) as i64 {
        let removed = call.store.remove(key)?;
        call.replicate(&[b"ol.del", key]);
        return Ok(Reply::flag(removed));
    }
    let done = call.store.set_expiry(key, Expiry::At(from_ms(ms as u64)))?;
    call.replicate(&[b"ol.pexpireat", key, ms.to_string().as_bytes()]);
    Ok(Reply::flag(done))
}

pub fn persist(call: &mut Call<'_>) -> Result {
    let key = call.arg(0);
    let has_time = matches!(call.store.expiry(key)?, Some(Expiry::At(_)));
    let done = has_time && call.store.set_expiry(key, Expiry::Never)?;
    call.unless(done);
    Ok(Reply::flag(done))
}

pub fn ttl(call: &mut Call<'_>) -> Result {
    left(call, 1000, true)
}

pub fn pttl(call: &mut Call<'_>) -> Result {
    left(call, 1, true)
}

pub fn expiretime(call: &mut Call<'_>) -> Result {
    left(call, 1000, false)
}

pub fn pexpiretime(call: &mut Call<'_>) -> Result {
    left(call, 1, false)
}

fn left(call: &mut Call<'_>, unit_ms: i64, is_relative: bool) -> Result {
    Ok(Reply::Int(match call.store.expiry(call.arg(0))? {
        None => -2,
        Some(Expiry::Never) => -1,
        Some(Expiry::At(time)) => {
            let base = if is_relative { to_ms(call.now) } else { 0 };
            let ms = to_ms(time).saturating_sub(base) as i64;
            if is_relative { (ms + unit_ms / 2) / unit_ms } else { ms / unit_ms }
        }
    }))
}

pub fn scan(call: &mut Call<'_>) -> Result {
    let scan = Scan::parse(call.args, true)?;
    let (next, found) = call.store.scan(&scan)?;
    let wanted = |name: &CStr| {
        scan.of_type.is_none_or(|wanted| wanted.eq_ignore_ascii_case(name.to_bytes()))
    };
    let keys = found.into_iter().filter(|(_, content)| wanted(content.type_name()));
    let keys = keys.map(|(key, _)| Reply::Bulk(key)).collect();
    Ok(Reply::Array(vec![Reply::Bulk(next.to_string().into_bytes()), Reply::Array(keys)]))
}

pub fn keys(call: &mut Call<'_>) -> Result {
    let pattern = Some(call.arg(0));
    let scan = Scan { cursor: 0, pattern, count: usize::MAX, of_type: None };
    let (_, found) = call.store.scan(&scan)?;
    Ok(Reply::Array(found.into_iter().map(|(key, _)| Reply::Bulk(key)).collect()))
}

pub fn dbsize(call: &mut Call<'_>) -> Result {
    Ok(Reply::Int(call.store.count()? as i64))
}

pub fn randomkey(call: &mut Call<'_>) -> Result {
    Ok(Reply::bulk(call.store.random_key()?))
}

pub fn flush(call: &mut Call<'_>) -> Result {
    match call.args {
        [] => {}
        [mode] if is_word(mode, "sync") || is_word(mode, "async") => {}
        _ => return Err(Fault::syntax()),
    }
    call.store.clear()?;
    call.store.set_incomplete(false)?;
    debug_assert_eq!(call.replicate, Replicate::Verbatim);
    Ok(Reply::OK)
}
