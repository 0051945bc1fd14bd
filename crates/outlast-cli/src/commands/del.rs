//! `del`: removes a record.

use crate::args::{DelArgs, SurviveArgs};
use crate::failure::Failure;
use crate::open;
use crate::output::Output;
use crate::text;
use serde_json::json;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub(crate) fn run(pool: Option<&Path>, args: &DelArgs, out: &mut Output) -> Result<(), Failure> {
    let pool = open::to_write_with(
        &open::path(pool)?,
        SurviveArgs { survive: None, journal: args.journal },
    )?;
    let args = &args.of;
    let map = open::map(&pool, args.map.map.as_deref())?;
    let (keys, values) = text::columns(map.info());
    let key = keys.parse(args.key.as_bytes(), args.notation.hex)?;
    let before = map.remove(&key)?;
    drop(map);
    open::close(pool)?;
    let Some(before) = before else {
        return Err(Failure::NotFound(format!("no key {}", args.key.display())));
    };
    let before = values.json(&before);
    out.object(&json!({"event": "del", "key": keys.json(&key), "before": before}))
}
