//! A copy of everything, as a stream of calls: what a replica gets when it begins. Also of a slot, if it moves.
//!
//! The calls set values and never depend on earlier ones. So the copy may be made while the data change: whoever
//! makes its calls, and then every call that was replicated since it was begun, has what the primary has. A key's
//! last change decides, and of each key that did not change, the copy is exact. A call that came before a change of
//! the key's type, which the copy has already, finds a value of another type. It does nothing then, and need not: the
//! change of the type comes later.
//!
//! | a call | on the wire |
//! |---|---|
//! | a frame | its length (4 bytes), the call |
//! | the call | for each word its length (4 bytes) and its bytes |
//! | the end | a frame of no bytes |

use crate::command;
use crate::place::to_ms;
use crate::reply::{Fault, Result};
use crate::store::{Content, Kind, Store};
use outlast::Expiry;
use std::io::{self, Read, Write};
use std::ops::Bound;
use std::time::SystemTime;

/// Fields of a hash that one call sets.
const FIELDS: usize = 500;
/// The longest frame that is read: a value of the greatest size with its key.
const FRAME_MAX: usize = 512 << 20;

/// Returns a call as it is stored and sent.
pub fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut call = Vec::with_capacity(words.iter().map(|word| 4 + word.len()).sum());
    for word in words {
        call.extend_from_slice(&(word.len() as u32).to_le_bytes());
        call.extend_from_slice(word);
    }
    call
}

/// Returns the words of a call.
pub fn decode(mut call: &[u8]) -> Result<Vec<&[u8]>> {
    let mut words = Vec::new();
    while let Some((len, rest)) = call.split_first_chunk() {
        let len = u32::from_le_bytes(*len) as usize;
        let word = rest.get(..len).ok_or_else(damaged)?;
        words.push(word);
        call = &rest[len..];
    }
    if call.is_empty() && !words.is_empty() { Ok(words) } else { Err(damaged()) }
}

fn damaged() -> Fault {
    Fault::new("the copy of the primary's data is damaged")
}

/// Passes the calls that make a copy of all keys, or of those of a slot, to `sink`. Other threads may change them
/// meanwhile.
pub fn export(
    store: &Store,
    slot: Option<u16>,
    sink: &mut dyn FnMut(&[&[u8]]) -> Result<()>,
) -> Result<()> {
    store.each(slot, &mut |key, content, expiry| export_key(store, key, content, expiry, sink))
}

/// Passes the calls that make a copy of one key to `sink`.
pub fn export_key(
    store: &Store,
    key: &[u8],
    content: Content,
    expiry: Expiry,
    sink: &mut dyn FnMut(&[&[u8]]) -> Result<()>,
) -> Result<()> {
    let ms = match expiry {
        Expiry::At(time) => Some(to_ms(time).to_string().into_bytes()),
        Expiry::Never => None,
    };
    let hash = match content {
        Content::Text(text) => {
            return match &ms {
                Some(ms) => sink(&[b"set", key, &text, b"pxat", ms]),
                None => sink(&[b"set", key, &text]),
            };
        }
        Content::Hash(hash) => hash,
    };
    let (mut cursor, mut last, mut found) = (0, None::<Vec<u8>>, false);
    let name: &[u8] = if hash.kind == Kind::Hash { b"hset" } else { b"oset" };
    loop {
        let pairs = match hash.kind {
            Kind::Hash => {
                let (next, pairs) = store.fields_from(hash, cursor, FIELDS)?;
                cursor = next;
                pairs
            }
            Kind::Ordered => {
                let low = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                store.fields_between(hash, (low, Bound::Unbounded), false, FIELDS)?
            }
        };
        let mut call: Vec<&[u8]> = vec![name, key];
        call.extend(pairs.iter().flat_map(|(field, value)| [&field[..], &value[..]]));
        if !pairs.is_empty() {
            sink(&call)?;
            found = true;
        }
        last = pairs.last().map(|(field, _)| field.clone());
        if cursor == 0 && (hash.kind == Kind::Hash || last.is_none()) {
            break;
        }
    }
    match ms {
        Some(ms) if found => sink(&[b"pexpireat", key, &ms]),
        _ => Ok(()),
    }
}

/// Makes a call of a copy.
pub fn import(store: &Store, call: &[u8]) -> Result<()> {
    let words = decode(call)?;
    let name = std::str::from_utf8(words[0]).map_err(|_| damaged())?;
    command::run(store, name, &words[1..], SystemTime::now()).map(drop)
}

/// Writes a copy of all keys, or of those of a slot.
///
/// # Errors
/// Those of the store and of `out`.
pub fn write(store: &Store, slot: Option<u16>, out: &mut impl Write) -> Result<()> {
    export(store, slot, &mut |words| frame(out, &encode(words)).map_err(Fault::new))?;
    frame(out, &[]).and_then(|()| out.flush()).map_err(Fault::new)
}

fn frame(out: &mut impl Write, call: &[u8]) -> io::Result<()> {
    out.write_all(&(call.len() as u32).to_le_bytes())?;
    out.write_all(call)
}

/// Reads the next call of a copy. Returns `None` at its end.
///
/// # Errors
/// If the copy ends without an end, or what is read is none.
pub fn read(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut len = [0; 4];
    input.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > FRAME_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no frame of a copy"));
    }
    let mut call = vec![0; len];
    input.read_exact(&mut call)?;
    Ok((len > 0).then_some(call))
}
