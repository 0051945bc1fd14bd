//! `put`: inserts or replaces a record.

use crate::args::PutArgs;
use crate::failure::Failure;
use crate::open::{self, Target};
use crate::output::Output;
use outlast::Expiry;
use serde_json::json;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

pub(crate) fn run(pool: Option<&Path>, args: &PutArgs, out: &mut Output) -> Result<(), Failure> {
    let target = Target::find(&open::path(pool)?, &args.create, args.lives.is_some())?;
    let (keys, values) = target.columns();
    let key = keys.parse(args.key.as_bytes(), args.notation.hex)?;
    let value = values.parse(args.value.as_bytes(), args.notation.hex)?;
    target.check_size(&key, &value)?;
    let (pool, map) = target.make()?;
    let before = match args.lives {
        Some(lives) => map.put_until(&key, &value, Expiry::At(SystemTime::now() + lives))?,
        None => map.put(&key, &value)?,
    };
    drop(map);
    open::close(pool)?;
    let before = before.map(|before| values.json(&before));
    out.object(&json!({"event": "put", "key": keys.json(&key), "before": before}))
}
