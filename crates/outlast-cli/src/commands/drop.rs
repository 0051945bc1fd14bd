//! `drop`: drops a map.

use crate::args::DropArgs;
use crate::failure::Failure;
use crate::open;
use crate::output::Output;
use serde_json::json;
use std::path::Path;

pub(crate) fn run(pool: Option<&Path>, args: &DropArgs, out: &mut Output) -> Result<(), Failure> {
    let pool = open::to_write(&open::path(pool)?)?;
    let dropped =
        pool.drop_map(&args.map).map_err(|error| open::no_such_map(&open::names(&pool), error));
    // Close the pool even if the drop failed. A copy of a pool that was not closed would be refused
    // as possibly torn.
    let closed = open::close(pool);
    dropped?;
    closed?;
    out.object(&json!({"event": "drop", "name": args.map}))?;
    let name = out.shown(&args.map);
    out.line(format!("map {name} dropped"))
}
