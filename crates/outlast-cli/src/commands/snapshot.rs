//! `snapshot`: checks the pool, unless told not to, and copies it. The copy is cleanly closed.

use super::verify::require_sound;
use crate::args::CopyArgs;
use crate::failure::Failure;
use crate::open;
use crate::output::Output;
use crate::place;
use crate::progress;
use serde_json::json;
use std::path::Path;
use std::time::Instant;

pub(crate) fn run(pool: Option<&Path>, args: &CopyArgs, out: &mut Output) -> Result<(), Failure> {
    let from = open::path(pool)?;
    let (to, no_verify) = (&args.to, args.no_verify);
    place::check_target(&from, args)?;
    let pool = open::to_read(&from, false)?;
    let bytes = pool.stats().size;
    place::check_space(place::parent(to), bytes, "")?;
    if !no_verify {
        // A damaged copy must not pass for a backup.
        let so = "nothing was copied; --no-verify copies the pool as it is";
        require_sound(&from, &pool, so)?;
    }
    let bar = progress::spinner("copying");
    let start = Instant::now();
    pool.snapshot(to)?;
    let seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    out.object(&json!({
        "event": "snapshot",
        "from": from.to_string_lossy(),
        "to": to.to_string_lossy(),
        "bytes": bytes,
        "verified": !no_verify,
        "seconds": seconds,
    }))?;
    let size = indicatif::BinaryBytes(bytes);
    out.line(format!("{} is a copy of {}, {size}", to.display(), from.display()))
}
