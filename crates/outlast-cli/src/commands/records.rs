//! The records that `scan` and `count` read.

use crate::args::RangeArgs;
use crate::failure::Failure;
use crate::output::complain;
use crate::reader::MapReader;
use crate::text::{self, Column};
use outlast::{Error, RawIter, RawMap, RawRange};
use std::ffi::OsString;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;

pub(super) type Records = Box<dyn Iterator<Item = outlast::Result<(Vec<u8>, Vec<u8>)>>>;

/// What a command does about damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Care {
    /// It treats records whose checksum does not match like all others.
    Unchecked,
    /// It ends at the first damage.
    Checked,
    /// It steps over damage.
    Skip,
}

impl Care {
    fn all(self, map: &RawMap) -> RawIter {
        match self {
            Care::Unchecked => map.iter(),
            Care::Checked => map.iter().checked(),
            Care::Skip => map.salvage(),
        }
    }

    fn range(self, range: RawRange) -> RawRange {
        match self {
            Care::Unchecked => range,
            Care::Checked => range.checked(),
            Care::Skip => range.salvage(),
        }
    }
}

/// Returns the requested records.
pub(super) fn of(
    map: &MapReader,
    keys: &Column,
    args: &RangeArgs,
    hex: bool,
    reverse: bool,
    care: Care,
) -> Result<Records, Failure> {
    let key = |text: &Option<OsString>| {
        text.as_ref().map(|text| keys.parse(text.as_bytes(), hex)).transpose()
    };
    let prefix = key(&args.prefix)?;
    if prefix.is_some() && !keys.is_text() {
        let why = "--prefix is for keys that are text or bytes";
        return Err(Failure::Usage(format!("{why}, not {}", map.info().key_schema)));
    }
    let scheme = map.info().scheme();
    let is_part = args.from.is_some() || args.to.is_some() || reverse;
    if !scheme.is_ordered() {
        if is_part {
            let why = "has no order of keys: --from, --to and --reverse are for ordered maps";
            return Err(Failure::Usage(format!("a map of scheme {scheme} {why}")));
        }
        let all = all(map, care)?;
        return Ok(match prefix {
            // Report damage, whatever the record's key was.
            Some(prefix) => Box::new(all.filter(move |record| match record {
                Ok((key, _)) => key.starts_with(&prefix),
                Err(_) => true,
            })),
            None => all,
        });
    }
    if !is_part && prefix.is_none() {
        return all(map, care);
    }
    let (low, high) = match prefix {
        Some(prefix) => {
            let high = text::above_all_with(&prefix);
            (Bound::Included(prefix), high.map_or(Bound::Unbounded, Bound::Excluded))
        }
        None => (
            key(&args.from)?.map_or(Bound::Unbounded, Bound::Included),
            key(&args.to)?.map_or(Bound::Unbounded, Bound::Excluded),
        ),
    };
    let (low, high) = (low.as_ref().map(|k| &k[..]), high.as_ref().map(|k| &k[..]));
    Ok(match map {
        MapReader::Here(map) => {
            let range = care.range(map.range(low, high)?);
            if reverse { Box::new(range.rev()) } else { Box::new(range) }
        }
        MapReader::InUse(map) => {
            tell_in_use();
            Box::new(map.range(low, high, reverse)?)
        }
    })
}

/// Returns all records. A pool in use is read with checks, and as far as the first damage.
fn all(map: &MapReader, care: Care) -> Result<Records, Failure> {
    match map {
        MapReader::Here(map) => Ok(Box::new(care.all(map))),
        MapReader::InUse(_) if care == Care::Skip => {
            Err(Failure::Usage("--skip-damaged is for a pool that no process has open".into()))
        }
        MapReader::InUse(map) => {
            tell_in_use();
            Ok(Box::new(map.iter()?))
        }
    }
}

fn tell_in_use() {
    complain("the pool is in use; each record is as it was at some moment during this command");
}

/// Describes an error of a read. If it reports damage, adds `advice` on what the user can do.
pub(super) fn failed(error: Error, advice: &str) -> Failure {
    match Failure::from(error) {
        Failure::Damaged(text) => Failure::Damaged(format!("{text}; {advice}")),
        other => other,
    }
}
