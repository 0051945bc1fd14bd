//! `snapshot`: makes a clean copy of the pool.

use crate::args::SnapshotArgs;
use crate::failure::Failure;
use crate::open;
use crate::output::Output;
use crate::place;
use crate::progress;
use serde_json::json;
use std::path::Path;
use std::time::Instant;

pub(crate) fn run(
    pool: Option<&Path>,
    args: &SnapshotArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let from = open::path(pool)?;
    place::check_copy(&from, &args.to, args.force)?;
    let pool = open::to_write(&from)?;
    let bytes = pool.stats().size;
    place::check_space(place::parent(&args.to), bytes, "")?;
    let bar = progress::spinner("copying");
    let start = Instant::now();
    pool.snapshot(&args.to)?;
    let seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    pool.close()?;
    out.object(&json!({
        "event": "snapshot",
        "from": from.to_string_lossy(),
        "to": args.to.to_string_lossy(),
        "bytes": bytes,
        "seconds": seconds,
    }))?;
    let size = indicatif::BinaryBytes(bytes);
    out.line(format!("{} is a copy of {}, {size}", args.to.display(), from.display()))
}
