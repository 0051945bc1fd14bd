//! The table of the commands.

use crate::reply::{Fault, Reply, Result};
use crate::store::Store;
use crate::{hashes, keyspace, ordered, strings};
use std::time::SystemTime;

/// A call of a command.
pub struct Call<'a> {
    /// The data.
    pub store: &'a Store,
    /// The arguments, without the command's name.
    pub args: &'a [&'a [u8]],
    /// The time at which the command runs.
    pub now: SystemTime,
    /// What replicas do.
    pub replicate: Replicate,
}

/// The calls that replicas make after a command has changed something. A replica may apply a call twice
/// while it copies the data, so a call gives the new value, never the difference.
#[derive(Debug, Default, PartialEq)]
pub enum Replicate {
    /// The same call.
    #[default]
    Verbatim,
    /// Nothing, because nothing has changed.
    Nothing,
    /// These calls.
    Calls(Vec<Vec<Vec<u8>>>),
}

impl<'a> Call<'a> {
    /// Returns an argument.
    pub fn arg(&self, number: usize) -> &'a [u8] {
        self.args[number]
    }

    /// Lets replicas make this call instead.
    pub fn replicate(&mut self, call: &[&[u8]]) {
        let call = call.iter().map(|part| part.to_vec()).collect();
        match &mut self.replicate {
            Replicate::Calls(calls) => calls.push(call),
            other => *other = Replicate::Calls(vec![call]),
        }
    }

    /// Says that nothing has changed, unless something has.
    pub fn unless(&mut self, changed: bool) {
        if !changed {
            self.replicate = Replicate::Nothing;
        }
    }
}

/// A command.
pub struct Command {
    /// The name, as the servers have it. Ours begins with `ol.`.
    pub name: &'static str,
    /// The number of arguments, without the name.
    pub arguments: std::ops::RangeInclusive<usize>,
    /// `write` or `readonly`, and more flags that the server knows.
    pub flags: &'static str,
    /// The first key, the last key (from the end if negative) and the distance between keys.
    pub keys: (i32, i32, i32),
    /// What it does.
    pub run: fn(&mut Call<'_>) -> Result,
}

impl Command {
    /// Runs the command.
    ///
    /// # Errors
    /// What the client is told in place of a result.
    pub fn call(&self, call: &mut Call<'_>) -> Result {
        if !self.arguments.contains(&call.args.len()) {
            return Err(Fault::new(format!(
                "wrong number of arguments for 'ol.{}' command",
                self.name
            )));
        }
        (self.run)(call)
    }

    /// Returns whether the command changes anything.
    pub fn is_write(&self) -> bool {
        self.flags.starts_with("write")
    }
}

/// Any number of arguments.
const ANY: usize = usize::MAX;
const ONE: (i32, i32, i32) = (1, 1, 1);
const ALL: (i32, i32, i32) = (1, -1, 1);
const BOTH: (i32, i32, i32) = (1, 2, 1);
const PAIRS: (i32, i32, i32) = (1, -1, 2);
const NO_KEY: (i32, i32, i32) = (0, 0, 0);
const READ: &str = "readonly fast";
const LONG_READ: &str = "readonly";
const WRITE: &str = "write deny-oom fast";
/// For commands that free memory, or need none.
const REMOVE: &str = "write fast";

macro_rules! commands {
    ($($name:literal $arguments:expr, $flags:expr, $keys:expr, $run:path;)*) => {
        /// All commands that need nothing but the data.
        pub static COMMANDS: &[Command] = &[$(Command {
            name: $name,
            arguments: $arguments,
            flags: $flags,
            keys: $keys,
            run: $run,
        }),*];
    };
}

commands! {
    "get" 1..=1, READ, ONE, strings::get;
    "set" 2..=ANY, WRITE, ONE, strings::set;
    "setnx" 2..=2, WRITE, ONE, strings::setnx;
    "setex" 3..=3, WRITE, ONE, strings::setex;
    "psetex" 3..=3, WRITE, ONE, strings::psetex;
    "getset" 2..=2, WRITE, ONE, strings::getset;
    "getdel" 1..=1, REMOVE, ONE, strings::getdel;
    "getex" 1..=3, REMOVE, ONE, strings::getex;
    "mget" 1..=ANY, READ, ALL, strings::mget;
    "mset" 2..=ANY, WRITE, PAIRS, strings::mset;
    "msetnx" 2..=ANY, WRITE, PAIRS, strings::msetnx;
    "incr" 1..=1, WRITE, ONE, strings::incr;
    "decr" 1..=1, WRITE, ONE, strings::decr;
    "incrby" 2..=2, WRITE, ONE, strings::incrby;
    "decrby" 2..=2, WRITE, ONE, strings::decrby;
    "incrbyfloat" 2..=2, WRITE, ONE, strings::incrbyfloat;
    "append" 2..=2, WRITE, ONE, strings::append;
    "strlen" 1..=1, READ, ONE, strings::strlen;
    "getrange" 3..=3, LONG_READ, ONE, strings::getrange;
    "substr" 3..=3, LONG_READ, ONE, strings::getrange;
    "setrange" 3..=3, WRITE, ONE, strings::setrange;
    "cas" 3..=3, WRITE, ONE, strings::cas;
    "setbit" 3..=3, WRITE, ONE, strings::setbit;
    "getbit" 2..=2, READ, ONE, strings::getbit;
    "hset" 3..=ANY, WRITE, ONE, hashes::hset;
    "hmset" 3..=ANY, WRITE, ONE, hashes::hmset;
    "hsetnx" 3..=3, WRITE, ONE, hashes::hsetnx;
    "hget" 2..=2, READ, ONE, hashes::hget;
    "hmget" 2..=ANY, READ, ONE, hashes::hmget;
    "hgetall" 1..=1, LONG_READ, ONE, hashes::hgetall;
    "hkeys" 1..=1, LONG_READ, ONE, hashes::hkeys;
    "hvals" 1..=1, LONG_READ, ONE, hashes::hvals;
    "hdel" 2..=ANY, REMOVE, ONE, hashes::hdel;
    "hexists" 2..=2, READ, ONE, hashes::hexists;
    "hlen" 1..=1, READ, ONE, hashes::hlen;
    "hstrlen" 2..=2, READ, ONE, hashes::hstrlen;
    "hincrby" 3..=3, WRITE, ONE, hashes::hincrby;
    "hincrbyfloat" 3..=3, WRITE, ONE, hashes::hincrbyfloat;
    "hrandfield" 1..=3, LONG_READ, ONE, hashes::hrandfield;
    "hscan" 2..=ANY, LONG_READ, ONE, hashes::hscan;
    "oset" 3..=ANY, WRITE, ONE, ordered::oset;
    "oget" 2..=2, READ, ONE, ordered::oget;
    "odel" 2..=ANY, REMOVE, ONE, ordered::odel;
    "olen" 1..=1, READ, ONE, ordered::olen;
    "range" 3..=5, LONG_READ, ONE, ordered::range;
    "revrange" 3..=5, LONG_READ, ONE, ordered::revrange;
    "prefix" 2..=4, LONG_READ, ONE, ordered::prefix;
    "del" 1..=ANY, REMOVE, ALL, keyspace::del;
    "unlink" 1..=ANY, REMOVE, ALL, keyspace::del;
    "exists" 1..=ANY, READ, ALL, keyspace::exists;
    "touch" 1..=ANY, READ, ALL, keyspace::exists;
    "rename" 2..=2, WRITE, BOTH, keyspace::rename;
    "renamenx" 2..=2, WRITE, BOTH, keyspace::renamenx;
    "copy" 2..=ANY, WRITE, BOTH, keyspace::copy;
    "type" 1..=1, READ, ONE, keyspace::type_of;
    "expire" 2..=ANY, REMOVE, ONE, keyspace::expire;
    "pexpire" 2..=ANY, REMOVE, ONE, keyspace::pexpire;
    "expireat" 2..=ANY, REMOVE, ONE, keyspace::expireat;
    "pexpireat" 2..=ANY, REMOVE, ONE, keyspace::pexpireat;
    "persist" 1..=1, REMOVE, ONE, keyspace::persist;
    "ttl" 1..=1, READ, ONE, keyspace::ttl;
    "pttl" 1..=1, READ, ONE, keyspace::pttl;
    "expiretime" 1..=1, READ, ONE, keyspace::expiretime;
    "pexpiretime" 1..=1, READ, ONE, keyspace::pexpiretime;
    "scan" 1..=ANY, LONG_READ, NO_KEY, keyspace::scan;
    "keys" 1..=1, LONG_READ, NO_KEY, keyspace::keys;
    "dbsize" 0..=0, LONG_READ, NO_KEY, keyspace::dbsize;
    "randomkey" 0..=0, LONG_READ, NO_KEY, keyspace::randomkey;
    "flushall" 0..=1, "write", NO_KEY, keyspace::flush;
    "flushdb" 0..=1, "write", NO_KEY, keyspace::flush;
}

/// A value for each of some commands, found by the command's name in upper or lower case.
pub struct Names<T>(Vec<(u128, T)>);

impl<T> Names<T> {
    /// Makes the table.
    pub fn new<'n>(entries: impl IntoIterator<Item = (&'n str, T)>) -> Names<T> {
        let packed = |name: &str| pack(name.as_bytes()).expect("names are short");
        let mut table: Vec<_> =
            entries.into_iter().map(|(name, entry)| (packed(name), entry)).collect();
        table.sort_unstable_by_key(|(name, _)| *name);
        Names(table)
    }

    /// Returns the value of a command.
    pub fn get(&self, name: &[u8]) -> Option<&T> {
        let name = pack(name)?;
        let at = self.0.binary_search_by_key(&name, |(name, _)| *name).ok()?;
        Some(&self.0[at].1)
    }
}

/// Packs a name of less than 16 bytes, in lower case, and its length into a number.
fn pack(name: &[u8]) -> Option<u128> {
    let mut bytes = [0; 16];
    bytes[..15].get_mut(..name.len())?.copy_from_slice(name);
    bytes.make_ascii_lowercase();
    bytes[15] = name.len() as u8;
    Some(u128::from_le_bytes(bytes))
}

/// Returns the command of a name, in upper or lower case.
pub fn find(name: &[u8]) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| name.eq_ignore_ascii_case(command.name.as_bytes()))
}

/// What a test or a tool needs to run a command by its name.
///
/// # Errors
/// Those of the command, and one if there is none of this name.
pub fn run(store: &Store, name: &str, args: &[&[u8]], now: SystemTime) -> Result<Reply> {
    let command = find(name.as_bytes()).ok_or_else(|| Fault::new("unknown command"))?;
    command.call(&mut Call { store, args, now, replicate: Replicate::Verbatim })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_no_others_are() {
        let names = Names::new(COMMANDS.iter().map(|command| (command.name, command.name)));
        for command in COMMANDS {
            let upper = command.name.to_ascii_uppercase();
            assert_eq!(names.get(upper.as_bytes()), Some(&command.name));
            assert_eq!(names.get(command.name.as_bytes()), Some(&command.name));
        }
        for other in [&b""[..], b"ge", b"get\0", b"getx", b"getgetgetgetgetget", b"\xe7et"] {
            assert_eq!(names.get(other), None, "{other:?}");
        }
    }
}
