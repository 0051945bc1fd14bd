//! `scan`: prints all records, or a range of them.

use super::records::{self, Care};
use crate::args::ScanArgs;
use crate::failure::Failure;
use crate::open;
use crate::output::Output;
use crate::progress;
use crate::reader::Reader;
use crate::text;
use outlast::Error;
use serde_json::json;
use std::path::Path;

pub(crate) fn run(pool: Option<&Path>, args: &ScanArgs, out: &mut Output) -> Result<(), Failure> {
    let pool = Reader::open(&open::path(pool)?, args.accept_possibly_torn)?;
    let map = pool.map(args.map.map.as_deref())?;
    let (keys, values) = text::columns(map.info());
    let care = match (args.skip_damaged, args.unchecked) {
        (true, _) => Care::Skip,
        (_, true) => Care::Unchecked,
        _ => Care::Checked,
    };
    let records = records::of(&map, &keys, &args.range, args.notation.hex, args.reverse, care)?;
    // On a terminal, the records that scroll by are progress enough.
    let bar = if out.is_terminal() {
        progress::none()
    } else {
        // In a damaged map there may be no estimate.
        progress::bar(map.len_estimate().unwrap_or(0), "reading records")
    };
    let limit = args.limit.unwrap_or(u64::MAX);
    let (mut printed, mut skipped) = (0, 0u64);
    let mut line = Vec::new();
    for record in records {
        if printed == limit {
            break;
        }
        let (key, value) = match record {
            Ok(record) => record,
            Err(Error::Damaged(damage)) if args.skip_damaged => {
                skipped += 1;
                out.skipped(&damage)?;
                continue;
            }
            Err(error) => {
                let advice = "`outlast scan --skip-damaged` skips the damage, and `outlast \
                              salvage` copies what can be read into a new pool";
                return Err(records::failed(error, advice));
            }
        };
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
        printed += 1;
        bar.inc(1);
    }
    bar.finish_and_clear();
    if skipped == 0 {
        return Ok(());
    }
    out.flush()?;
    let skipped = text::counted(skipped, "damaged place");
    Err(Failure::Damaged(format!("{skipped} skipped; records may be missing")))
}
