//! `ttl`: prints or sets for how long a record lives on.

use crate::args::{SurviveArgs, TtlArgs};
use crate::failure::Failure;
use crate::open;
use crate::output::Output;
use crate::text;
use outlast::{Expiry, RawMap};
use serde_json::json;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

pub(crate) fn run(pool: Option<&Path>, args: &TtlArgs, out: &mut Output) -> Result<(), Failure> {
    let path = open::path(pool)?;
    let set = match args.lives {
        Some(lives) => Some(Expiry::At(SystemTime::now() + lives)),
        None => args.never.then_some(Expiry::Never),
    };
    let none = SurviveArgs { survive: None, journal: false };
    let pool = match set {
        Some(_) => open::to_write_with(&path, none)?,
        None => open::to_read(&path, false)?,
    };
    let map = open::map(&pool, args.of.map.map.as_deref())?;
    let (keys, _) = text::columns(map.info());
    let key = keys.parse(args.of.key.as_bytes(), args.of.notation.hex)?;
    let expiry = look(&map, &key, set)?;
    drop(map);
    if set.is_some() {
        open::close(pool)?;
    }
    let Some(expiry) = expiry else {
        return Err(Failure::NotFound(format!("no key {}", args.of.key.display())));
    };
    let left = match expiry {
        Expiry::At(time) => Some(time.duration_since(SystemTime::now()).unwrap_or_default()),
        Expiry::Never => None,
    };
    let seconds = left.map(|left| left.as_millis() as f64 / 1000.0);
    out.object(&json!({"event": "ttl", "key": keys.json(&key), "seconds": seconds}))?;
    out.line(seconds.map_or_else(|| "never expires".into(), |seconds| format!("{seconds}")))
}

/// Sets when a record expires, if that is wanted. Returns when it expires.
fn look(map: &RawMap, key: &[u8], set: Option<Expiry>) -> Result<Option<Expiry>, Failure> {
    if let Some(expiry) = set
        && !map.expire_at(key, expiry)?
    {
        return Ok(None);
    }
    Ok(map.expiry_of(key)?)
}
