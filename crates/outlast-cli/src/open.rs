//! Opening pools and choosing maps.

use crate::args::CreateArgs;
use crate::failure::Failure;
use crate::place;
use outlast::{Error, MapInfo, MapOptions, Pool, PoolOptions, RawMap};
use std::path::{Path, PathBuf};

/// Free space without which no pool is made.
const LEAST_SPACE_BYTES: u64 = 16 << 20;

/// The name of a map that is made without being named.
const DEFAULT_MAP: &str = "main";

/// The pool that is meant.
pub(crate) fn path(given: Option<&Path>) -> Result<PathBuf, Failure> {
    given.map_or_else(place::default_pool, |path| Ok(path.to_owned()))
}

/// Opens a pool for reading; nothing is written to it.
pub(crate) fn to_read(path: &Path, accept_possibly_torn: bool) -> Result<Pool, Failure> {
    let options = PoolOptions::new().accept_possibly_torn(accept_possibly_torn);
    // SAFETY: whoever names a file to this command leaves it alone while it runs; other
    // users of the library are kept out by the lock.
    let pool = unsafe { options.open_read_only(path) };
    pool.map_err(|e| about(path, e))
}

/// Opens a pool for reading and writing.
pub(crate) fn to_write(path: &Path) -> Result<Pool, Failure> {
    // SAFETY: as in `to_read`.
    let pool = unsafe { PoolOptions::new().open(path) };
    pool.map_err(|e| about(path, e))
}

/// Opens a pool for reading and writing, created if there is none.
pub(crate) fn to_fill(path: &Path) -> Result<Pool, Failure> {
    if path.symlink_metadata().is_err() {
        place::check_space(place::parent(path), LEAST_SPACE_BYTES)?;
    }
    // SAFETY: as in `to_read`.
    let pool = unsafe { PoolOptions::new().open_or_create(path) };
    pool.map_err(|e| about(path, e))
}

fn about(path: &Path, error: Error) -> Failure {
    match error {
        // They name the path themselves.
        Error::NoSuchPool { .. } | Error::Io { .. } => error.into(),
        error => Failure::from(error).within(path.display()),
    }
}

/// The names of all maps. One whose root is damaged has none.
fn names(pool: &Pool) -> Vec<String> {
    pool.maps().into_iter().flatten().map(|info: MapInfo| info.name).collect()
}

/// The pool's only map, if it has just one; else which there are.
fn only(pool: &Pool) -> Result<Option<String>, Failure> {
    let mut names = names(pool);
    match names.len() {
        0 | 1 => Ok(names.pop()),
        n => {
            let list = names.join(", ");
            Err(Failure::Usage(format!("the pool has {n} maps, name one with --map: {list}")))
        }
    }
}

/// The map of this name, or the only one.
pub(crate) fn map(pool: &Pool, name: Option<&str>) -> Result<RawMap, Failure> {
    let name = match name {
        Some(name) => name.to_owned(),
        None => match only(pool)? {
            Some(name) => name,
            None => match pool.maps().into_iter().find_map(Result::err) {
                Some(error) => return Err(error.into()),
                None => return Err(Failure::Failed("the pool has no maps".into())),
            },
        },
    };
    match pool.raw_map(&name) {
        Err(error @ Error::NoSuchMap { .. }) => {
            let there = names(pool).join(", ");
            Err(Failure::Failed(format!("{error}; the pool has: {there}")))
        }
        other => Ok(other?),
    }
}

/// The map of this name, or the only one; created if it is missing.
pub(crate) fn map_to_fill(pool: &Pool, args: &CreateArgs) -> Result<RawMap, Failure> {
    let name = match &args.which.map {
        Some(name) => name.clone(),
        None => only(pool)?.unwrap_or_else(|| DEFAULT_MAP.into()),
    };
    let there = pool.maps().into_iter().flatten().find(|info| info.name == name);
    let stored = |of: fn(&MapInfo) -> &String| there.as_ref().map(|info| of(info).as_str());
    let key = args.key_type.as_deref().or(stored(|info| &info.key_schema)).unwrap_or("str");
    let value = args.value_type.as_deref().or(stored(|info| &info.value_schema)).unwrap_or("str");
    let mut options = MapOptions::new();
    if let Some(scheme) = args.scheme {
        options = options.scheme(scheme);
    }
    if let Some(info) = &there {
        // A map whose form is not the usual one for its types.
        options = options.form(info.form);
    }
    Ok(pool.raw_map_with(&name, key, value, &options)?)
}
