//! Commands on strings.

use crate::command::{Call, Replicate};
use crate::parse::{self, is_word, need_integer};
use crate::place::{from_ms, to_ms};
use crate::reply::{Fault, Reply, Result};
use outlast::Expiry;
use std::time::SystemTime;

/// The longest string.
const MAX: usize = 256 << 20;

pub fn get(call: &mut Call<'_>) -> Result {
    Ok(Reply::bulk(call.store.text(call.arg(0))?))
}

/// What `SET` is asked for besides key and value.
#[derive(Default)]
struct SetOptions {
    /// The key must be there, or must not.
    present: Option<bool>,
    returns: bool,
    keeps_time: bool,
    expiry: Option<SystemTime>,
}

/// Parses a time: a number of units, from now on or since 1970.
pub fn time(
    call: &Call<'_>,
    argument: &[u8],
    unit_ms: i64,
    is_relative: bool,
    name: &str,
) -> Result<SystemTime> {
    let invalid = || Fault::new(format!("invalid expire time in '{name}' command"));
    let number = need_integer(argument)?;
    let base = if is_relative { to_ms(call.now) as i64 } else { 0 };
    let ms = number.checked_mul(unit_ms).and_then(|ms| ms.checked_add(base));
    let ms = ms.filter(|_| number > 0).ok_or_else(invalid)?;
    Ok(from_ms(ms as u64))
}

/// The options that set a time: their names, their unit, and whether they count from now on.
const TIMES: [(&str, i64, bool); 4] =
    [("ex", 1000, true), ("px", 1, true), ("exat", 1000, false), ("pxat", 1, false)];

fn time_option(
    call: &Call<'_>,
    option: &[u8],
    value: Option<&&[u8]>,
    name: &str,
) -> Result<Option<SystemTime>> {
    let Some((_, unit, is_relative)) = TIMES.iter().find(|(word, ..)| is_word(option, word)) else {
        return Ok(None);
    };
    let value = value.ok_or_else(Fault::syntax)?;
    time(call, value, *unit, *is_relative, name).map(Some)
}

fn set_options(call: &Call<'_>) -> Result<SetOptions> {
    let mut options = SetOptions::default();
    let mut rest = call.args[2..].iter();
    while let Some(option) = rest.next() {
        let is = |word| is_word(option, word);
        let has_time = options.keeps_time || options.expiry.is_some();
        if (is("nx") || is("xx")) && options.present.is_none_or(|present| present == is("xx")) {
            options.present = Some(is("xx"));
        } else if is("get") {
            options.returns = true;
        } else if is("keepttl") && options.expiry.is_none() {
            options.keeps_time = true;
        } else if !has_time && TIMES.iter().any(|(word, ..)| is(word)) {
            options.expiry = time_option(call, option, rest.next(), "set")?;
        } else {
            return Err(Fault::syntax());
        }
    }
    Ok(options)
}

pub fn set(call: &mut Call<'_>) -> Result {
    // Without options, the call is its own result, so replicas make the same one.
    if let [key, value] = call.args {
        check_len(value.len())?;
        call.store.set_text(key, value, Expiry::Never)?;
        return Ok(Reply::OK);
    }
    let options = set_options(call)?;
    let (key, value) = (call.arg(0), call.arg(1));
    let before = if options.returns { call.store.text(key)? } else { None };
    if let Some(present) = options.present
        && call.store.exists(key)? != present
    {
        call.unless(false);
        return Ok(Reply::bulk(before));
    }
    let expiry = match options.expiry {
        Some(time) => Expiry::At(time),
        None if options.keeps_time => call.store.expiry(key)?.unwrap_or(Expiry::Never),
        None => Expiry::Never,
    };
    put(call, key, value, expiry)?;
    Ok(if options.returns { Reply::bulk(before) } else { Reply::OK })
}

/// Makes a key a string, here and in replicas.
fn put(call: &mut Call<'_>, key: &[u8], value: &[u8], expiry: Expiry) -> Result<()> {
    check_len(value.len())?;
    call.store.set_text(key, value, expiry)?;
    replicate(call, value, expiry);
    Ok(())
}

/// Lets replicas make the key in the first argument this string, with its time. `KEEPTTL` would not do: in a replica
/// that is late, the time has passed and the key is gone.
fn replicate(call: &mut Call<'_>, text: &[u8], expiry: Expiry) {
    let key = call.arg(0);
    match expiry {
        Expiry::Never => call.replicate(&[b"ol.set", key, text]),
        Expiry::At(time) => {
            let ms = to_ms(time).to_string();
            call.replicate(&[b"ol.set", key, text, b"PXAT", ms.as_bytes()]);
        }
    }
}

fn check_len(len: usize) -> Result<()> {
    if len <= MAX {
        return Ok(());
    }
    Err(Fault::new("string exceeds maximum allowed size (256 MiB)"))
}

pub fn setnx(call: &mut Call<'_>) -> Result {
    if call.store.exists(call.arg(0))? {
        call.unless(false);
        return Ok(Reply::Int(0));
    }
    put(call, call.arg(0), call.arg(1), Expiry::Never)?;
    Ok(Reply::Int(1))
}

pub fn setex(call: &mut Call<'_>) -> Result {
    let time = time(call, call.arg(1), 1000, true, "setex")?;
    put(call, call.arg(0), call.arg(2), Expiry::At(time))?;
    Ok(Reply::OK)
}

pub fn psetex(call: &mut Call<'_>) -> Result {
    let time = time(call, call.arg(1), 1, true, "psetex")?;
    put(call, call.arg(0), call.arg(2), Expiry::At(time))?;
    Ok(Reply::OK)
}

pub fn getset(call: &mut Call<'_>) -> Result {
    let before = call.store.text(call.arg(0))?;
    put(call, call.arg(0), call.arg(1), Expiry::Never)?;
    Ok(Reply::bulk(before))
}

pub fn getdel(call: &mut Call<'_>) -> Result {
    let before = call.store.text(call.arg(0))?;
    if before.is_some() {
        call.store.remove(call.arg(0))?;
        call.replicate(&[b"ol.del", call.arg(0)]);
    }
    call.unless(before.is_some());
    Ok(Reply::bulk(before))
}

pub fn getex(call: &mut Call<'_>) -> Result {
    let (key, rest) = (call.arg(0), &call.args[1..]);
    let expiry = match rest {
        [] => None,
        [option] if is_word(option, "persist") => Some(Expiry::Never),
        [option, value] => match time_option(call, option, Some(value), "getex")? {
            Some(time) => Some(Expiry::At(time)),
            None => return Err(Fault::syntax()),
        },
        _ => return Err(Fault::syntax()),
    };
    let found = call.store.text(key)?;
    let Some(expiry) = expiry.filter(|_| found.is_some()) else {
        call.unless(false);
        return Ok(Reply::bulk(found));
    };
    call.store.set_expiry(key, expiry)?;
    match expiry {
        Expiry::Never => call.replicate(&[b"ol.persist", key]),
        Expiry::At(time) => {
            call.replicate(&[b"ol.pexpireat", key, to_ms(time).to_string().as_bytes()]);
        }
    }
    Ok(Reply::bulk(found))
}

pub fn mget(call: &mut Call<'_>) -> Result {
    // A key of another type counts as absent here.
    Ok(Reply::Array(call.store.texts(call.args)?.into_iter().map(Reply::bulk).collect()))
}

fn pairs<'a>(call: &Call<'a>, name: &str) -> Result<&'a [[&'a [u8]; 2]]> {
    match call.args.as_chunks() {
        (pairs, []) => Ok(pairs),
        _ => Err(Fault::new(format!("wrong number of arguments for 'ol.{name}' command"))),
    }
}

pub fn mset(call: &mut Call<'_>) -> Result {
    let pairs = pairs(call, "mset")?;
    set_all(call, pairs)?;
    Ok(Reply::OK)
}

fn set_all(call: &mut Call<'_>, pairs: &[[&[u8]; 2]]) -> Result<()> {
    for [_, value] in pairs {
        check_len(value.len())?;
    }
    call.store.set_texts(pairs)
}

pub fn msetnx(call: &mut Call<'_>) -> Result {
    let pairs = pairs(call, "msetnx")?;
    for [key, _] in pairs {
        if call.store.exists(key)? {
            call.unless(false);
            return Ok(Reply::Int(0));
        }
    }
    set_all(call, pairs)?;
    let same: Vec<&[u8]> = [&b"ol.mset"[..]].into_iter().chain(call.args.iter().copied()).collect();
    call.replicate(&same);
    Ok(Reply::Int(1))
}

pub fn incr(call: &mut Call<'_>) -> Result {
    add(call, 1)
}

pub fn decr(call: &mut Call<'_>) -> Result {
    add(call, -1)
}

pub fn incrby(call: &mut Call<'_>) -> Result {
    let amount = need_integer(call.arg(1))?;
    add(call, amount)
}

pub fn decrby(call: &mut Call<'_>) -> Result {
    let amount = need_integer(call.arg(1))?.checked_neg();
    add(call, amount.ok_or_else(|| Fault::new("decrement would overflow"))?)
}

fn add(call: &mut Call<'_>, amount: i64) -> Result {
    let key = call.arg(0);
    let (text, expiry) = call.store.alter_text(key, |before| {
        let before = before.map_or(Ok(0), need_integer)?;
        let sum = before.checked_add(amount);
        let sum = sum.ok_or_else(|| Fault::new("increment or decrement would overflow"))?;
        Ok(sum.to_string().into_bytes())
    })?;
    replicate(call, &text, expiry);
    Ok(Reply::Int(parse::integer(&text).expect("a number was stored")))
}

/// Adds to a float that is written as text.
pub fn add_float(
    before: Option<&[u8]>,
    amount: f64,
    not_one: impl Fn() -> Fault,
) -> Result<Vec<u8>> {
    let before = before.map_or(Some(0.0), parse::float).ok_or_else(not_one)?;
    let sum = before + amount;
    if !sum.is_finite() {
        return Err(Fault::new("increment would produce NaN or Infinity"));
    }
    Ok(parse::float_text(sum))
}

pub fn incrbyfloat(call: &mut Call<'_>) -> Result {
    let key = call.arg(0);
    let amount = parse::float(call.arg(1)).ok_or_else(Fault::not_a_float)?;
    let (text, expiry) =
        call.store.alter_text(key, |before| add_float(before, amount, Fault::not_a_float))?;
    replicate(call, &text, expiry);
    Ok(Reply::Bulk(text))
}

pub fn append(call: &mut Call<'_>) -> Result {
    let (key, more) = (call.arg(0), call.arg(1));
    let (text, expiry) = call.store.alter_text(key, |before| {
        let before = before.unwrap_or_default();
        check_len(before.len() + more.len())?;
        Ok([before, more].concat())
    })?;
    replicate(call, &text, expiry);
    Ok(Reply::Int(text.len() as i64))
}

pub fn strlen(call: &mut Call<'_>) -> Result {
    Ok(Reply::Int(call.store.text(call.arg(0))?.map_or(0, |text| text.len() as i64)))
}

pub fn getrange(call: &mut Call<'_>) -> Result {
    let (start, end) = (need_integer(call.arg(1))?, need_integer(call.arg(2))?);
    let text = call.store.text(call.arg(0))?.unwrap_or_default();
    let len = text.len() as i64;
    if start < 0 && end < 0 && start > end {
        return Ok(Reply::Bulk(Vec::new()));
    }
    // Counted from the end if negative.
    let at = |index: i64| if index < 0 { (len + index).max(0) } else { index };
    let (start, end) = (at(start), at(end).min(len - 1));
    let range = if start > end || len == 0 { 0..0 } else { start as usize..end as usize + 1 };
    Ok(Reply::Bulk(text[range].to_vec()))
}

pub fn setrange(call: &mut Call<'_>) -> Result {
    let (key, piece) = (call.arg(0), call.arg(2));
    let offset = need_integer(call.arg(1))?;
    let offset = usize::try_from(offset).map_err(|_| Fault::new("offset is out of range"))?;
    if piece.is_empty() {
        call.unless(false);
        return strlen(call);
    }
    let end = offset.saturating_add(piece.len());
    check_len(end)?;
    let (text, expiry) = call.store.alter_text(key, |before| {
        let mut text = before.unwrap_or_default().to_vec();
        text.resize(text.len().max(end), 0);
        text[offset..end].copy_from_slice(piece);
        Ok(text)
    })?;
    replicate(call, &text, expiry);
    Ok(Reply::Int(text.len() as i64))
}

/// Returns the byte and the mask of a bit, counted from the highest one of the first byte.
fn bit_place(argument: &[u8]) -> Result<(usize, u8)> {
    let bit = parse::integer(argument).and_then(|bit| usize::try_from(bit).ok());
    let bit = bit.filter(|bit| bit / 8 < MAX);
    let bit = bit.ok_or_else(|| Fault::new("bit offset is not an integer or out of range"))?;
    Ok((bit / 8, 0x80 >> (bit % 8)))
}

pub fn setbit(call: &mut Call<'_>) -> Result {
    let (byte, mask) = bit_place(call.arg(1))?;
    let is_set = match call.arg(2) {
        b"0" => false,
        b"1" => true,
        _ => return Err(Fault::new("bit is not an integer or out of range")),
    };
    let was_set = std::cell::Cell::new(false);
    let (text, expiry) = call.store.alter_text(call.arg(0), |before| {
        let mut text = before.unwrap_or_default().to_vec();
        text.resize(text.len().max(byte + 1), 0);
        was_set.set(text[byte] & mask != 0);
        text[byte] = if is_set { text[byte] | mask } else { text[byte] & !mask };
        Ok(text)
    })?;
    replicate(call, &text, expiry);
    Ok(Reply::flag(was_set.get()))
}

pub fn getbit(call: &mut Call<'_>) -> Result {
    let (byte, mask) = bit_place(call.arg(1))?;
    let text = call.store.text(call.arg(0))?.unwrap_or_default();
    Ok(Reply::flag(text.get(byte).is_some_and(|byte| byte & mask != 0)))
}

/// `CAS key expected new`: sets a string if it is `expected`, and keeps its time.
pub fn cas(call: &mut Call<'_>) -> Result {
    let (key, expected, new) = (call.arg(0), call.arg(1), call.arg(2));
    check_len(new.len())?;
    if call.store.text(key)?.as_deref() != Some(expected) {
        call.unless(false);
        return Ok(Reply::Int(0));
    }
    let (_, expiry) = call.store.alter_text(key, |_| Ok(new.to_vec()))?;
    replicate(call, new, expiry);
    debug_assert_ne!(call.replicate, Replicate::Verbatim);
    Ok(Reply::Int(1))
}
