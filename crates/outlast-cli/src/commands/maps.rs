//! `maps`: lists the maps.

use super::stat::described;
use crate::args::MapsArgs;
use crate::failure::Failure;
use crate::open;
use crate::output::Output;
use crate::reader::Reader;
use std::path::Path;

pub(crate) fn run(pool: Option<&Path>, args: &MapsArgs, out: &mut Output) -> Result<(), Failure> {
    let pool = Reader::open(&open::path(pool)?, args.accept_possibly_torn)?;
    let mut damaged = None;
    for info in pool.maps()? {
        match info {
            Ok(info) => {
                out.object(&described(&info))?;
                let scheme = info.scheme();
                let (name, keys, values) =
                    (out.shown(&info.name), &info.key_schema, &info.value_schema);
                out.line(format!("{name}\t{scheme}\t{keys}\t{values}"))?;
            }
            Err(error) => damaged = damaged.or(Some(error)),
        }
    }
    damaged.map_or(Ok(()), |error| Err(error.into()))
}
