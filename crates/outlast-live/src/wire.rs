//! What goes over a socket: one request, and messages until the end of the answer.
//!
//! A message is its length, of 4 bytes, and as many bytes; fields in it are numbers of 8 bytes, and byte strings
//! of 4 bytes of length and their content. All numbers are little-endian. The first byte of a request is an [`Ask`],
//! that of an answer's message a [`Reply`].

use std::io::{self, Read, Write};

/// What a reader asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// The maps: for each, its name, scheme, form and schemas.
    Maps = 1,
    /// The value of a key in a map.
    Get = 2,
    /// How many records a map has.
    Count = 3,
    /// The records of a map, all or those between two bounds.
    Scan = 4,
    /// The statistics of a map's index.
    Stats = 5,
    /// A copy of the pool: its length, and then its bytes, outside of messages.
    Copy = 6,
    /// The statistics of the cache that a map is, if it is one.
    Cache = 7,
}

impl Ask {
    pub(crate) fn from_byte(byte: u8) -> Option<Ask> {
        [Ask::Maps, Ask::Get, Ask::Count, Ask::Scan, Ask::Stats, Ask::Copy, Ask::Cache]
            .into_iter()
            .find(|ask| *ask as u8 == byte)
    }
}

/// What a message of an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The end of the answer.
    End = 0,
    /// A part of the answer.
    Item = 1,
    /// Why there is no more.
    Failed = 2,
}

impl Reply {
    pub(crate) fn from_byte(byte: u8) -> Option<Reply> {
        [Reply::End, Reply::Item, Reply::Failed].into_iter().find(|reply| *reply as u8 == byte)
    }
}

/// The greatest length of a request: two keys, a name, and what else it has.
pub(crate) const REQUEST_MAX: usize = 2 * outlast::MAX_KEY_BYTES + 4096;

/// The greatest length of a message of an answer: a record.
pub(crate) const REPLY_MAX: usize = outlast::MAX_KEY_BYTES + outlast::MAX_VALUE_BYTES + 64;

/// A message that is put together.
pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn ask(ask: Ask) -> Self {
        Message(vec![ask as u8])
    }

    pub(crate) fn reply(reply: Reply) -> Self {
        Message(vec![reply as u8])
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend((bytes.len() as u32).to_le_bytes());
        self.0.extend(bytes);
        self
    }

    pub(crate) fn number(mut self, number: u64) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    pub(crate) fn send(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&(self.0.len() as u32).to_le_bytes())?;
        to.write_all(&self.0)
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Receives a message of at most `max` bytes.
pub(crate) fn receive(from: &mut impl Read, max: usize) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len == 0 || len > max {
        return Err(invalid("a message of an impossible length"));
    }
    // Memory is taken as the bytes come, and not as their number is announced.
    let mut message = Vec::new();
    from.take(len as u64).read_to_end(&mut message)?;
    if message.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(message)
}

/// The fields of a message.
pub(crate) struct Fields<'m>(&'m [u8]);

impl<'m> Fields<'m> {
    /// Splits a message into its first byte and its fields.
    pub(crate) fn of(message: &'m [u8]) -> (u8, Fields<'m>) {
        // `receive` returns no empty message.
        let (first, rest) = message.split_first().unwrap_or((&0, &[]));
        (*first, Fields(rest))
    }

    pub(crate) fn number(&mut self) -> io::Result<u64> {
        let (bytes, rest) =
            self.0.split_first_chunk().ok_or_else(|| invalid("a field is missing"))?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*bytes))
    }

    pub(crate) fn bytes(&mut self) -> io::Result<&'m [u8]> {
        let short = || invalid("a field is cut short");
        let (len, rest) = self.0.split_first_chunk().ok_or_else(short)?;
        let (bytes, rest) =
            rest.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or_else(short)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn text(&mut self) -> io::Result<&'m str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| invalid("a name is not UTF-8"))
    }

    /// Checks that nothing is left.
    pub(crate) fn end(self) -> io::Result<()> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(invalid("a message has more fields than it may"))
        }
    }
}
