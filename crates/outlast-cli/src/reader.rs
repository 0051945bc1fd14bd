//! What the commands that only read read from: a pool, or the process that has it open.

use crate::failure::Failure;
use crate::open;
use outlast::{Error, MapInfo, Pool, RawMap};
use outlast_live::{Client, LiveMap};
use std::path::Path;

/// A pool that is open here, or one that another process has open and serves.
pub(crate) enum Reader {
    Here(Pool),
    InUse(Client),
}

/// A map of a [`Reader`].
pub(crate) enum MapReader {
    Here(RawMap),
    InUse(LiveMap),
}

impl Reader {
    /// Opens a pool for reading, or finds the process that has it open and serves it.
    pub(crate) fn open(path: &Path, accept_possibly_torn: bool) -> Result<Reader, Failure> {
        if let Some(pool) = open::to_read_if_free(path, accept_possibly_torn)? {
            return Ok(Reader::Here(pool));
        }
        let client = Client::of(path);
        if !client.is_served() {
            return Err(open::about(path, Error::Locked { path: path.into() }));
        }
        Ok(Reader::InUse(client))
    }

    /// Lists the maps.
    pub(crate) fn maps(&self) -> Result<Vec<outlast::Result<MapInfo>>, Failure> {
        match self {
            Reader::Here(pool) => Ok(pool.maps()),
            Reader::InUse(client) => Ok(client.maps()?.into_iter().map(Ok).collect()),
        }
    }

    /// Opens the map of this name, or the only one.
    pub(crate) fn map(&self, name: Option<&str>) -> Result<MapReader, Failure> {
        match self {
            Reader::Here(pool) => open::map(pool, name).map(MapReader::Here),
            Reader::InUse(client) => {
                let maps = client.maps()?;
                let names: Vec<String> = maps.into_iter().map(|info| info.name).collect();
                let name = match (name, &names[..]) {
                    (Some(name), _) => name,
                    (None, names) => open::only_of(names)?.ok_or_else(open::no_maps)?,
                };
                let map = client.map(name).map_err(|error| open::no_such_map(&names, error))?;
                Ok(MapReader::InUse(map))
            }
        }
    }
}

impl MapReader {
    pub(crate) fn info(&self) -> &MapInfo {
        match self {
            MapReader::Here(map) => map.info(),
            MapReader::InUse(map) => map.info(),
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> outlast::Result<Option<Vec<u8>>> {
        match self {
            MapReader::Here(map) => map.get(key),
            MapReader::InUse(map) => map.get(key),
        }
    }

    /// Estimates the number of records.
    pub(crate) fn len_estimate(&self) -> outlast::Result<u64> {
        match self {
            MapReader::Here(map) => map.len_estimate(),
            MapReader::InUse(map) => map.stats().map(|stats| stats.records_estimate),
        }
    }
}
