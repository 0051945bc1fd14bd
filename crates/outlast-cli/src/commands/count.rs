//! `count`: counts records.

use super::records::{self, Care};
use crate::args::CountArgs;
use crate::failure::Failure;
use crate::open;
use crate::output::Output;
use crate::progress;
use crate::reader::Reader;
use crate::text;
use serde_json::json;
use std::path::Path;

pub(crate) fn run(pool: Option<&Path>, args: &CountArgs, out: &mut Output) -> Result<(), Failure> {
    let pool = Reader::open(&open::path(pool)?, args.accept_possibly_torn)?;
    let map = pool.map(args.map.map.as_deref())?;
    let (keys, _) = text::columns(map.info());
    let bar = progress::spinner("counting");
    let mut count = 0u64;
    for record in records::of(&map, &keys, &args.range, args.hex, false, Care::Checked)? {
        record.map_err(|error| {
            let advice = "`outlast salvage` copies what can be read into a new pool";
            records::failed(error, advice)
                .within(format!("after {}", text::counted(count, "record")))
        })?;
        count += 1;
        bar.inc(1);
    }
    bar.finish_and_clear();
    out.object(&json!({"event": "count", "name": map.info().name, "records": count}))?;
    out.line(count.to_string())
}
