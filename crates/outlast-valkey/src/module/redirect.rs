//! Redirection: the server's own commands become ours.

use super::{SERVER, bytes, cluster};
use crate::reply::{Fault, Reply};
use valkey_module::{Context, raw};

/// Turns the server's own command into ours of the same name, and in a cluster, ours into the one of its slot.
pub(super) extern "C" fn rename(filter: *mut raw::RedisModuleCommandFilterCtx) {
    // SAFETY: the server passes a context, whose first argument is the command's name.
    unsafe {
        let name =
            raw::RedisModule_CommandFilterArgGet.expect("servers since 5.0 have it")(filter, 0);
        let name = bytes(name).to_ascii_lowercase();
        let Some(server) = SERVER.get() else { return };
        let (stem, is_native) = match name.strip_prefix(b"ol.") {
            Some(stem) => (stem, false),
            None => (&name[..], true),
        };
        let Some(command) = server.commands.get(stem) else { return };
        // A primary tells its replicas that a stub has gone.
        if is_native && cluster::names_stub(filter) {
            return;
        }
        if is_native && server.settings.redirect {
            let ours = [b"ol.", &name[..]].concat();
            let create = raw::RedisModule_CreateString.expect("all servers have it");
            let ours = create(std::ptr::null_mut(), ours.as_ptr().cast(), ours.len());
            raw::RedisModule_CommandFilterArgReplace.expect("servers since 5.0 have it")(
                filter, 0, ours,
            );
        }
        if !is_native || server.settings.redirect {
            cluster::add_stub(filter, server, command);
        }
    }
}

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
        ("type", Reply::Simple("none")) => Ok(match native()? {
            Reply::Null => Reply::Simple("none"),
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

fn native(ctx: &Context, name: &str, args: &[&[u8]]) -> crate::reply::Result {
    use valkey_module::ValkeyValue as Value;
    fn convert(value: Value) -> Reply {
        match value {
            Value::Integer(number) => Reply::Int(number),
            Value::SimpleString(text) | Value::BulkString(text) => Reply::Bulk(text.into_bytes()),
            Value::StringBuffer(bytes) => Reply::Bulk(bytes),
            Value::BulkValkeyString(text) => Reply::Bulk(text.as_slice().to_vec()),
            Value::Array(list) => Reply::Array(list.into_iter().map(convert).collect()),
            _ => Reply::Null,
        }
    }
    match ctx.call(name, args) {
        Ok(value) => Ok(match (name, convert(value)) {
            ("flushall" | "flushdb", _) => Reply::OK,
            (_, reply) => reply,
        }),
        Err(error) => Err(Fault::new(error)),
    }
}
