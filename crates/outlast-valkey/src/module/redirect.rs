//! Redirection: the server's own commands become ours.

use super::known::{Known, keys_of};
use super::{SERVER, Server, bytes, cluster};
use crate::keyspace;
use crate::parse::is_word;
use crate::reply::{Fault, Reply};
use std::ffi::c_int;
use valkey_module::{CallOptionsBuilder, CallReply, CallResult, Context, ValkeyError, raw};

/// Turns the server's own command into ours of the same name, and in a cluster, ours into the one of its slot.
pub(super) extern "C" fn rename(filter: *mut raw::RedisModuleCommandFilterCtx) {
    // SAFETY: the server passes a context, whose first argument is the command's name.
    unsafe {
        let name =
            raw::RedisModule_CommandFilterArgGet.expect("servers since 5.0 have it")(filter, 0);
        let name = bytes(name);
        let Some(server) = SERVER.get() else { return };
        let (stem, is_native) = match name.split_at_checked(3) {
            Some((prefix, stem)) if is_word(prefix, "ol.") => (stem, false),
            _ => (name, true),
        };
        let Some(known) = server.commands.get(stem) else {
            if is_word(name, "cluster") {
                cluster::notice(filter, server);
            }
            if is_native && server.settings.redirect {
                refuse_ours(filter, server, &name.to_ascii_lowercase());
            }
            return;
        };
        // A primary tells its replicas that a stub has gone.
        if is_native && server.slots.is_some() && cluster::names_stub(filter) {
            return;
        }
        if is_native && server.settings.redirect {
            rename_to(filter, known.retain());
        }
        if !is_native || server.settings.redirect {
            cluster::add_stub(filter, server, known.command);
        }
    }
}

/// Gives a command another name, which the server frees.
///
/// # Safety
/// The filter's context is the server's, the string one that it may free.
unsafe fn rename_to(
    filter: *mut raw::RedisModuleCommandFilterCtx,
    name: *mut raw::RedisModuleString,
) {
    // SAFETY: as the caller says.
    unsafe {
        raw::RedisModule_CommandFilterArgReplace.expect("servers since 5.0 have it")(
            filter, 0, name,
        );
    }
}

// ---- Keys of ours and of the server's of one name -------------------------------------------

/// The command that replies that a key has another type.
pub(super) const REFUSED: &str = "ol.refused";

/// The server's commands that we do not have, whose first argument is their only key.
#[rustfmt::skip]
const OTHERS: &[&str] = &[
    "bitcount", "bitfield", "bitfield_ro", "bitpos", "dump", "geoadd", "geodist", "geohash", "geopos",
    "georadius_ro", "georadiusbymember_ro", "geosearch", "lindex", "linsert", "llen", "lpop", "lpos", "lpush",
    "lpushx", "lrange", "lrem", "lset", "ltrim", "move", "pfadd", "restore", "rpop", "rpush", "rpushx", "sadd", "scard",
    "sismember", "smembers", "smismember", "spop", "srandmember", "srem", "sscan", "xack", "xadd", "xautoclaim", "xclaim",
    "xdel", "xlen", "xpending", "xrange", "xrevrange", "xsetid", "xtrim", "zadd", "zcard", "zcount", "zincrby", "zlexcount",
    "zmscore", "zpopmax", "zpopmin", "zrandmember", "zrange", "zrangebylex", "zrangebyscore", "zrank", "zrem",
    "zremrangebylex", "zremrangebyrank", "zremrangebyscore", "zrevrange", "zrevrangebylex", "zrevrangebyscore",
    "zrevrank", "zscan", "zscore",
];

/// Those with more keys: the first and the last argument that are keys, the last one from the end if it is negative.
/// [`ASK`] is for those of which only the server knows it.
#[rustfmt::skip]
const SEVERAL: &[(&str, c_int, c_int)] = &[
    ("bitop", 2, -1), ("blmove", 1, 2), ("blmpop", ASK, 0), ("blpop", 1, -2), ("brpop", 1, -2), ("brpoplpush", 1, 2),
    ("bzmpop", ASK, 0), ("bzpopmax", 1, -2), ("bzpopmin", 1, -2), ("georadius", ASK, 0), ("georadiusbymember", ASK, 0),
    ("geosearchstore", 1, 2), ("lcs", 1, 2), ("lmove", 1, 2), ("lmpop", ASK, 0), ("pfcount", 1, -1), ("pfmerge", 1, -1),
    ("rpoplpush", 1, 2), ("sdiff", 1, -1), ("sdiffstore", 1, -1), ("sinter", 1, -1), ("sintercard", ASK, 0),
    ("sinterstore", 1, -1), ("smove", 1, 2), ("sort", ASK, 0), ("sort_ro", 1, 1), ("sunion", 1, -1),
    ("sunionstore", 1, -1), ("xgroup", 2, 2), ("xread", ASK, 0), ("xreadgroup", ASK, 0), ("zdiff", ASK, 0),
    ("zdiffstore", ASK, 0), ("zinter", ASK, 0), ("zintercard", ASK, 0), ("zinterstore", ASK, 0), ("zmpop", ASK, 0),
    ("zrangestore", 1, 2), ("zunion", ASK, 0), ("zunionstore", ASK, 0),
];
const ASK: c_int = 0;

/// Refuses a command of the server's own if one of its keys is ours.
///
/// # Safety
/// The filter's context is the server's.
unsafe fn refuse_ours(filter: *mut raw::RedisModuleCommandFilterCtx, server: &Server, name: &[u8]) {
    let (first, last) = match SEVERAL.binary_search_by(|(other, ..)| other.as_bytes().cmp(name)) {
        Ok(at) => (SEVERAL[at].1, SEVERAL[at].2),
        Err(_) if OTHERS.binary_search_by(|other| other.as_bytes().cmp(name)).is_ok() => (1, 1),
        Err(_) => return,
    };
    // SAFETY: as the caller says; there is an argument if it is not null.
    unsafe {
        let get = raw::RedisModule_CommandFilterArgGet.expect("servers have it");
        let is_ours = |key: *mut raw::RedisModuleString| {
            if key.is_null() {
                return false;
            }
            let key = bytes(key);
            server.absent.is_ours(key, || server.store.exists(key).unwrap_or(true))
        };
        let count = raw::RedisModule_CommandFilterArgsCount.expect("servers have it")(filter);
        let meets_ours = if first == ASK {
            let mut args: Vec<_> = (0..count).map(|n| get(filter, n)).collect();
            keys_by_server(&mut args).into_iter().any(is_ours)
        } else {
            let last = if last < 0 { count + last } else { last };
            (first..=last).any(|n| is_ours(get(filter, n)))
        };
        if meets_ours {
            let create = raw::RedisModule_CreateString.expect("all servers have it");
            let name = create(std::ptr::null_mut(), REFUSED.as_ptr().cast(), REFUSED.len());
            rename_to(filter, name);
        }
    }
}

/// Asks the server which arguments of a call are keys. There are none if it is not a correct one.
///
/// # Safety
/// The arguments are the server's, the first of them the command's name.
unsafe fn keys_by_server(
    args: &mut [*mut raw::RedisModuleString],
) -> Vec<*mut raw::RedisModuleString> {
    let mut found = 0;
    // SAFETY: as the caller says. The server needs no context for this, and we free the list.
    unsafe {
        let places = raw::RedisModule_GetCommandKeysWithFlags.expect("servers since 7.0 have it")(
            std::ptr::null_mut(),
            args.as_mut_ptr(),
            args.len() as c_int,
            &mut found,
            std::ptr::null_mut(),
        );
        if places.is_null() {
            return Vec::new();
        }
        let list = std::slice::from_raw_parts(places, found as usize);
        let keys = list.iter().map(|&place| args[place as usize]).collect();
        raw::RedisModule_Free.expect("all servers have it")(places.cast());
        keys
    }
}

/// Replies that a key has another type.
pub(super) extern "C" fn refuse(
    ctx: *mut raw::RedisModuleCtx,
    _: *mut *mut raw::RedisModuleString,
    _: c_int,
) -> c_int {
    super::send(&Context::new(ctx), Err(Fault::wrong_type()));
    raw::Status::Ok as c_int
}

/// With redirection, looks whether the server has a key of the same name, such as a list. A command that would
/// replace it removes it first. Another one must not run: returns its result.
pub(super) fn meet_native(
    ctx: &Context,
    server: &Server,
    known: &Known,
    args: &[&[u8]],
    strings: &[*mut raw::RedisModuleString],
) -> Option<crate::reply::Result> {
    let command = known.command;
    if command.is_write() {
        keys_of(command, args).for_each(|key| server.absent.forget(key));
    }
    let is_complete = command.arguments.contains(&args.len());
    if !server.settings.redirect || !is_complete || known.is_common {
        return None;
    }
    // SAFETY: the context is the server's.
    let keys = unsafe { raw::RedisModule_DbSize.expect("servers since 6.2 have it")(ctx.ctx) };
    if keys as i64 <= server.slots.as_ref().map_or(0, cluster::Slots::count) {
        return None;
    }
    let is_native = |key: *mut raw::RedisModuleString| {
        // SAFETY: the string is an argument of the call; the key is given back.
        unsafe {
            let mode = raw::REDISMODULE_READ as c_int;
            let key = raw::RedisModule_OpenKey.expect("all servers have it")(ctx.ctx, key, mode);
            let kind = raw::RedisModule_KeyType.expect("all servers have it")(key);
            raw::RedisModule_CloseKey.expect("all servers have it")(key);
            kind != raw::REDISMODULE_KEYTYPE_EMPTY as c_int
        }
    };
    let native: Vec<&[u8]> = keys_of(command, strings)
        .zip(keys_of(command, args))
        .filter(|(string, _)| is_native(**string))
        .map(|(_, key)| *key)
        .collect();
    if native.is_empty() {
        return None;
    }
    let has = |option| args.iter().skip(2).any(|arg| is_word(arg, option));
    match command.name {
        "rename" | "renamenx" | "copy" => {
            move_native(ctx, server, command.name, args, &native).transpose()
        }
        "setnx" | "msetnx" => Some(Ok(Reply::Int(0))),
        "set" if has("get") => Some(Err(Fault::wrong_type())),
        "set" if has("nx") => Some(Ok(Reply::Null)),
        // What these set takes the place of whatever was there.
        "set" | "setex" | "psetex" | "mset" => {
            native.iter().find_map(|key| self::native(ctx, "del", &[key]).err().map(Err))
        }
        _ => Some(Err(Fault::wrong_type())),
    }
}

/// Moves or copies a key of the server's own, or makes room for one of ours. Returns `None` if the command is to run.
fn move_native(
    ctx: &Context,
    server: &Server,
    name: &str,
    args: &[&[u8]],
    native: &[&[u8]],
) -> Result<Option<Reply>, Fault> {
    let (from, to) = (args[0], args[1]);
    let replaces = match name {
        "rename" => true,
        "renamenx" => false,
        _ if native.contains(&from) => args[2..].iter().any(|option| is_word(option, "replace")),
        _ => keyspace::copy_replaces(&args[2..])?,
    };
    if !native.contains(&from) {
        return Ok(match server.store.exists(from)? {
            true if replaces => {
                self::native(ctx, "del", &[to])?;
                None
            }
            true => Some(Reply::Int(0)),
            false => None,
        });
    }
    let meets_ours = server.store.exists(to)?;
    if meets_ours && !replaces {
        return Ok(Some(Reply::Int(0)));
    }
    if !meets_ours {
        return self::native(ctx, name, args).map(Some);
    }
    // Our key is removed only once the native command has succeeded. Replicas make the two changes in the other order,
    // because `OL.DEL` there also removes a native key of that name.
    let reply = native_with(ctx, name, args, CallOptionsBuilder::new())?;
    if reply != Reply::Int(0) {
        if server.store.remove(to)? {
            super::replicate_call(ctx, &[b"ol.del".to_vec(), to.to_vec()]);
        }
        ctx.replicate(name, args);
    }
    Ok(Some(reply))
}

/// Commands on keys of any type, which [`with_native`] completes, and one that passes over other types.
#[rustfmt::skip]
pub(super) const COMMON: &[&str] = &[
    "del", "unlink", "exists", "touch", "type", "expire", "pexpire", "expireat", "pexpireat", "persist", "ttl", "pttl",
    "expiretime", "pexpiretime", "mget",
];

/// Adds what the server has itself of keys that are not in the pool: lists, sets and other types.
pub(super) fn with_native(
    ctx: &Context,
    name: &str,
    args: &[&[u8]],
    ours: crate::reply::Result,
) -> crate::reply::Result {
    let slots = SERVER.get().and_then(|server| server.slots.as_ref());
    let native = || match native(ctx, name, args) {
        // The server may have to ask another one, which this client has no reason to do: it asked for ours.
        Err(_) if slots.is_some() => Ok(Reply::Null),
        result => result,
    };
    // Clients do not see the stubs of slots.
    let is_shown = |key: &Reply| !matches!(key, Reply::Bulk(key) if cluster::is_stub(key));
    match (name, ours?) {
        ("del" | "unlink" | "exists" | "touch", Reply::Int(ours)) => match native()? {
            Reply::Int(native) => Ok(Reply::Int(ours + native)),
            _ => Ok(Reply::Int(ours)),
        },
        ("dbsize", Reply::Int(ours)) => match native()? {
            Reply::Int(native) => {
                Ok(Reply::Int(ours + native - slots.map_or(0, cluster::Slots::count)))
            }
            _ => Ok(Reply::Int(ours)),
        },
        ("type", Reply::Simple(text)) if text == c"none" => Ok(match native()? {
            Reply::Null => Reply::Simple(text),
            reply => reply,
        }),
        ("expire" | "pexpire" | "expireat" | "pexpireat" | "persist", Reply::Int(0)) => {
            Ok(match native()? {
                Reply::Null => Reply::Int(0),
                reply => reply,
            })
        }
        ("ttl" | "pttl" | "expiretime" | "pexpiretime", Reply::Int(-2)) => Ok(match native()? {
            Reply::Null => Reply::Int(-2),
            reply => reply,
        }),
        ("randomkey", Reply::Null) => Ok(Some(native()?).filter(is_shown).unwrap_or(Reply::Null)),
        ("flushall" | "flushdb", _) => native(),
        ("keys", Reply::Array(mut ours)) => {
            if let Reply::Array(native) = native()? {
                ours.extend(native.into_iter().filter(is_shown));
            }
            Ok(Reply::Array(ours))
        }
        (_, ours) => Ok(ours),
    }
}

/// Calls a command of the server's own. What it changes goes to the server's replicas and its log, as if a client had
/// called it.
pub(super) fn native(ctx: &Context, name: &str, args: &[&[u8]]) -> crate::reply::Result {
    native_with(ctx, name, args, CallOptionsBuilder::new().replicate())
}

fn native_with(
    ctx: &Context,
    name: &str,
    args: &[&[u8]],
    options: CallOptionsBuilder,
) -> crate::reply::Result {
    // The conversion of the crate fails if a text is not UTF-8.
    fn convert(reply: &CallReply<'_>) -> Reply {
        match reply {
            CallReply::I64(number) => Reply::Int(number.to_i64()),
            CallReply::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
            CallReply::Array(list) => Reply::Array(
                list.iter()
                    .map(|reply| reply.map_or(Reply::Null, |reply| convert(&reply)))
                    .collect(),
            ),
            _ => Reply::Null,
        }
    }
    let result: CallResult<'_> = ctx.call_ext(name, &options.build(), args);
    match result {
        Ok(value) => Ok(match (name, convert(&value)) {
            ("flushall" | "flushdb" | "rename", _) => Reply::OK,
            (_, reply) => reply,
        }),
        Err(error) => Err(Fault::new(ValkeyError::from(error))),
    }
}
