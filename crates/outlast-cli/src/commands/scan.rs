//! `scan`: prints all records, or a range of them.

use crate::args::ScanArgs;
use crate::failure::Failure;
use crate::open;
use crate::output::Output;
use crate::progress;
use crate::text::{self, Column};
use outlast::RawMap;
use serde_json::json;
use std::ffi::OsString;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

type Records = Box<dyn Iterator<Item = outlast::Result<(Vec<u8>, Vec<u8>)>>>;

pub(crate) fn run(pool: Option<&Path>, args: &ScanArgs, out: &mut Output) -> Result<(), Failure> {
    let pool = open::to_read(&open::path(pool)?, args.accept_possibly_torn)?;
    let map = open::map(&pool, args.map.map.as_deref())?;
    let (keys, values) = text::columns(map.info());
    // On a terminal, the records that scroll by are progress enough.
    let bar = if out.is_terminal() {
        progress::none()
    } else {
        progress::bar(map.len_estimate()?, "reading records")
    };
    let limit = args.limit.unwrap_or(u64::MAX);
    let mut line = Vec::new();
    let records = records(&map, keys, args)?;
    for record in records.take(usize::try_from(limit).unwrap_or(usize::MAX)) {
        let (key, value) = record?;
        if out.is_json() {
            out.object(&json!({"key": keys.json(&key), "value": values.json(&value)}))?;
        } else {
            line.clear();
            if args.notation.hex {
                line.extend(keys.written(&key, true));
                line.push(b'\t');
                line.extend(values.written(&value, true));
            } else {
                keys.tsv(&key, &mut line);
                line.push(b'\t');
                values.tsv(&value, &mut line);
            }
            out.line(&line)?;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

/// Returns the requested records.
fn records(map: &RawMap, keys: Column, args: &ScanArgs) -> Result<Records, Failure> {
    if args.from.is_none() && args.to.is_none() && !args.reverse {
        return Ok(Box::new(map.iter()));
    }
    if !map.info().scheme().is_ordered() {
        let why = "has no order of keys: --from, --to and --reverse are for ordered maps";
        return Err(Failure::Usage(format!("a map of scheme {} {why}", map.info().scheme())));
    }
    let key = |text: &Option<OsString>| {
        let key = text.as_ref().map(|text| keys.parse(text.as_bytes(), args.notation.hex));
        key.transpose()
    };
    let (from, to) = (key(&args.from)?, key(&args.to)?);
    let low = from.as_deref().map_or(Bound::Unbounded, Bound::Included);
    let high = to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let range = map.range(low, high)?;
    Ok(if args.reverse { Box::new(range.rev()) } else { Box::new(range) })
}
