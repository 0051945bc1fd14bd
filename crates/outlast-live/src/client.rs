//! The process that reads.

use crate::wire::{Ask, Fields, Message, REPLY_MAX, Reply, receive};
use crate::{inside, socket_of};
use outlast::{CacheStats, Config, Error, IndexStats, MapInfo, RecordForm, Result, Scheme};
use std::io::{self, BufReader, Read, Write};
use std::ops::Bound;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Reads a pool that another process has open and [serves](crate::serve).
///
/// Each call connects anew. It fails with [`Error::NoSuchPool`] if there is no pool, with [`Error::Locked`] if
/// nobody answers, and with [`Error::Io`] if the owner refuses, says why it cannot answer, or ends meanwhile.
#[derive(Debug, Clone)]
pub struct Client {
    path: PathBuf,
}

/// A map of the pool.
#[derive(Debug, Clone)]
pub struct LiveMap {
    client: Client,
    info: MapInfo,
}

impl Client {
    /// A reader of the pool at `path`. It connects only when it is used.
    pub fn of(path: impl AsRef<Path>) -> Client {
        Client { path: path.as_ref().into() }
    }

    /// Returns whether somebody answers.
    pub fn is_served(&self) -> bool {
        self.connect().is_ok()
    }

    /// Lists the maps.
    pub fn maps(&self) -> Result<Vec<MapInfo>> {
        let mut answer = self.ask(&Message::ask(Ask::Maps))?;
        let mut maps = Vec::new();
        while let Some(item) = answer.next()? {
            maps.push(answer.read(&item, map_info)?);
        }
        Ok(maps)
    }

    /// Returns the map of this name. Fails with [`Error::NoSuchMap`] if there is none.
    pub fn map(&self, name: &str) -> Result<LiveMap> {
        let found = self.maps()?.into_iter().find(|info| info.name == name);
        let info = found.ok_or_else(|| Error::NoSuchMap { name: name.into() })?;
        Ok(LiveMap { client: self.clone(), info })
    }

    /// Writes a copy of the pool to `to`: a closed pool without a journal, as it was at one moment. Returns
    /// how many bytes it has. The owner holds its writers back while it makes the copy, and needs space for
    /// it beside the pool.
    pub fn copy(&self, to: &mut impl Write) -> Result<u64> {
        let mut answer = self.ask(&Message::ask(Ask::Copy))?;
        let item = answer.one_of_more()?;
        let bytes = answer.read(&item, |fields| fields.number())?;
        let copied = io::copy(&mut (&mut answer.from).take(bytes), to);
        match copied {
            Ok(copied) if copied == bytes => {}
            Ok(_) => return Err(answer.failed(io::ErrorKind::UnexpectedEof.into())),
            Err(error) => return Err(answer.failed(error)),
        }
        answer.end()?;
        Ok(bytes)
    }

    fn failed(&self, error: io::Error) -> Error {
        let action = format!("reading {} from the process that has it open", self.path.display());
        Error::Io { action, source: error }
    }

    fn connect(&self) -> Result<UnixStream> {
        let connected = socket_of(&self.path).and_then(|(directory, name)| {
            UnixStream::connect(inside(&directory, &name)).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => io::ErrorKind::ConnectionRefused.into(),
                _ => error,
            })
        });
        connected.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::NoSuchPool { path: self.path.clone() },
            io::ErrorKind::ConnectionRefused => Error::Locked { path: self.path.clone() },
            _ => self.failed(error),
        })
    }

    fn ask(&self, request: &Message) -> Result<Answer> {
        let stream = self.connect()?;
        let answer =
            Answer { client: self.clone(), from: BufReader::with_capacity(1 << 16, stream) };
        // A refusal can come before the request was read.
        let _ = request.send(&mut answer.from.get_ref());
        Ok(answer)
    }
}

impl LiveMap {
    /// The map's description.
    pub fn info(&self) -> &MapInfo {
        &self.info
    }

    fn ask(&self, ask: Ask) -> Message {
        Message::ask(ask).bytes(self.info.name.as_bytes())
    }

    /// Returns the value of `key`. Keys and values are bytes as in [`RawMap`](outlast::RawMap).
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut answer = self.client.ask(&self.ask(Ask::Get).bytes(key))?;
        let Some(item) = answer.next()? else { return Ok(None) };
        answer.end()?;
        answer.read(&item, |fields| Ok(Some(fields.bytes()?.to_vec())))
    }

    /// Counts the records, in time linear in their number.
    pub fn len(&self) -> Result<u64> {
        let mut answer = self.client.ask(&self.ask(Ask::Count))?;
        let item = answer.one()?;
        answer.read(&item, |fields| fields.number())
    }

    /// Returns whether the map has no records.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.iter()?.next().transpose()?.is_none())
    }

    /// Returns the index's statistics. What happened since opening is 0 here.
    pub fn stats(&self) -> Result<IndexStats> {
        let mut answer = self.client.ask(&self.ask(Ask::Stats))?;
        let item = answer.one()?;
        answer.read(&item, |fields| {
            Ok(IndexStats {
                segments: fields.number()?,
                directory_entries: fields.number()?,
                records_estimate: fields.number()?,
                slots: fields.number()?,
                dram_bytes: fields.number()?,
                ..IndexStats::default()
            })
        })
    }

    /// Returns statistics of the cache that this map is. `None` if the owner has not opened it as one.
    pub fn cache_stats(&self) -> Result<Option<CacheStats>> {
        let mut answer = self.client.ask(&self.ask(Ask::Cache))?;
        let Some(item) = answer.next()? else { return Ok(None) };
        answer.end()?;
        answer.read(&item, |fields| {
            let mut stats = CacheStats::default();
            for field in [
                &mut stats.hits,
                &mut stats.misses,
                &mut stats.evictions,
                &mut stats.expired,
                &mut stats.records,
                &mut stats.bytes,
            ] {
                *field = fields.number()?;
            }
            Ok(Some(stats))
        })
    }

    /// Returns all records; in an ordered map, in key order.
    pub fn iter(&self) -> Result<Records> {
        self.range(Bound::Unbounded, Bound::Unbounded, false)
    }

    /// Returns the records of an ordered map whose keys lie between `low` and `high`, in key order or in
    /// reverse.
    pub fn range(&self, low: Bound<&[u8]>, high: Bound<&[u8]>, reverse: bool) -> Result<Records> {
        let request = bounded(bounded(self.ask(Ask::Scan), low), high).number(u64::from(reverse));
        Ok(Records { answer: Some(self.client.ask(&request)?) })
    }
}

fn bounded(request: Message, bound: Bound<&[u8]>) -> Message {
    match bound {
        Bound::Unbounded => request.number(0).bytes(&[]),
        Bound::Included(key) => request.number(1).bytes(key),
        Bound::Excluded(key) => request.number(2).bytes(key),
    }
}

fn map_info(fields: &mut Fields<'_>) -> io::Result<MapInfo> {
    let unknown = |what: &str, name: &str| {
        let why = format!("this build does not know the {what} {name}");
        io::Error::new(io::ErrorKind::InvalidData, why)
    };
    let name = fields.text()?.to_owned();
    let scheme = fields.text()?;
    let scheme: Scheme = scheme.parse().map_err(|_| unknown("scheme", scheme))?;
    let form = fields.number()?;
    let expires = form == 2;
    let form = if form == 1 { RecordForm::Inline } else { RecordForm::Bytes };
    let (key_schema, value_schema) = (fields.text()?.to_owned(), fields.text()?.to_owned());
    Ok(MapInfo { name, form, key_schema, value_schema, config: Config::of(scheme), expires })
}

/// An answer that is being received.
#[derive(Debug)]
struct Answer {
    client: Client,
    from: BufReader<UnixStream>,
}

impl Answer {
    /// Returns the next part, or `None` at the end.
    fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let message = receive(&mut self.from, REPLY_MAX).map_err(|error| self.failed(error))?;
        let (reply, mut fields) = Fields::of(&message);
        match Reply::from_byte(reply) {
            Some(Reply::Item) => Ok(Some(message)),
            Some(Reply::End) => Ok(None),
            Some(Reply::Failed) => {
                let why = fields.text().map_err(|error| self.failed(error))?;
                Err(self.failed(io::Error::other(why)))
            }
            None => Err(self.failed(io::ErrorKind::InvalidData.into())),
        }
    }

    /// Returns the only part.
    fn one(&mut self) -> Result<Vec<u8>> {
        let item = self.one_of_more()?;
        self.end()?;
        Ok(item)
    }

    fn one_of_more(&mut self) -> Result<Vec<u8>> {
        self.next()?.ok_or_else(|| self.failed(io::ErrorKind::UnexpectedEof.into()))
    }

    fn end(&mut self) -> Result<()> {
        match self.next()? {
            None => Ok(()),
            Some(_) => Err(self.failed(io::ErrorKind::InvalidData.into())),
        }
    }

    /// Reads the fields of a part.
    fn read<T>(
        &self,
        item: &[u8],
        read: impl FnOnce(&mut Fields<'_>) -> io::Result<T>,
    ) -> Result<T> {
        let (_, mut fields) = Fields::of(item);
        let found = read(&mut fields).and_then(|found| fields.end().map(|()| found));
        found.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: io::Error) -> Error {
        self.client.failed(error)
    }
}

/// The records of a map, as they arrive. An error ends them.
#[derive(Debug)]
pub struct Records {
    answer: Option<Answer>,
}

impl Iterator for Records {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        let answer = self.answer.as_mut()?;
        let found = answer.next().and_then(|item| {
            let pair = |item: Vec<u8>| {
                answer
                    .read(&item, |fields| Ok((fields.bytes()?.to_vec(), fields.bytes()?.to_vec())))
            };
            item.map(pair).transpose()
        });
        if !matches!(found, Ok(Some(_))) {
            self.answer = None;
        }
        found.transpose()
    }
}
