//! `put`: inserts or replaces a record.

use crate::args::PutArgs;
use crate::failure::Failure;
use crate::open::{self, Target};
use crate::output::Output;
use serde_json::json;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub(crate) fn run(pool: Option<&Path>, args: &PutArgs, out: &mut Output) -> Result<(), Failure> {
    let target = Target::find(&open::path(pool)?, &args.create)?;
    let (keys, values) = target.columns();
    let key = keys.parse(args.key.as_bytes(), args.notation.hex)?;
    let value = values.parse(args.value.as_bytes(), args.notation.hex)?;
    target.check_size(&key, &value)?;
    let (pool, map) = target.make()?;
    let before = map.put(&key, &value)?;
    drop(map);
    open::close(pool)?;
    let before = before.map(|before| values.json(&before));
    out.object(&json!({"event": "put", "key": keys.json(&key), "before": before}))
}
