//! `get`: prints the value of a key.

use crate::args::GetArgs;
use crate::failure::Failure;
use crate::open;
use crate::output::Output;
use crate::reader::Reader;
use crate::text;
use serde_json::json;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub(crate) fn run(pool: Option<&Path>, args: &GetArgs, out: &mut Output) -> Result<(), Failure> {
    let pool = Reader::open(&open::path(pool)?, args.accept_possibly_torn)?;
    let args = &args.of;
    let map = pool.map(args.map.map.as_deref())?;
    let (keys, values) = text::columns(map.info());
    let key = keys.parse(args.key.as_bytes(), args.notation.hex)?;
    let Some(value) = map.get(&key)? else {
        return Err(Failure::NotFound(format!("no key {}", args.key.display())));
    };
    out.object(&json!({"key": keys.json(&key), "value": values.json(&value)}))?;
    out.line(values.written(&value, args.notation.hex))
}
