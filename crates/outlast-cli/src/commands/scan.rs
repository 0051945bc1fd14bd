//! `scan`: all records.

use crate::args::ScanArgs;
use crate::failure::Failure;
use crate::open;
use crate::output::Output;
use crate::progress;
use crate::text;
use serde_json::json;
use std::path::Path;

pub(crate) fn run(pool: Option<&Path>, args: &ScanArgs, out: &mut Output) -> Result<(), Failure> {
    let pool = open::to_read(&open::path(pool)?, args.accept_possibly_torn)?;
    let map = open::map(&pool, args.map.map.as_deref())?;
    let (keys, values) = text::columns(map.info());
    // Where records scroll by, they are the progress.
    let bar = if out.is_terminal() {
        progress::none()
    } else {
        progress::bar(map.len_estimate()?, "reading records")
    };
    let limit = args.limit.unwrap_or(u64::MAX);
    let mut line = Vec::new();
    for record in map.iter().take(usize::try_from(limit).unwrap_or(usize::MAX)) {
        let (key, value) = record?;
        if out.is_json() {
            out.object(&json!({"key": keys.json(&key), "value": values.json(&value)}))?;
        } else {
            line.clear();
            keys.tsv(&key, &mut line);
            line.push(b'\t');
            values.tsv(&value, &mut line);
            out.line(&line)?;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}
