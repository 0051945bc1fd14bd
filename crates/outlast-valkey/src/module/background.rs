//! Clients that are told later: those that wait until changes are durable, and those that wait for a copy
//! or a check.

use super::{SERVER, Server, arguments, can_block, lock, send};
use crate::parse::is_word;
use crate::reply::{Fault, Reply};
use outlast::{Pool, PoolOptions};
use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Sender};
use valkey_module::{Context, raw};

/// A client that is told later. It is unblocked by [`answer`], which is called once.
struct Blocked(*mut raw::RedisModuleBlockedClient);

// SAFETY: the servers allow to answer a blocked client from any thread.
unsafe impl Send for Blocked {}

fn block(ctx: &Context) -> Blocked {
    // SAFETY: the context is that of the client. There is no time limit, and no callback.
    unsafe {
        let block = raw::RedisModule_BlockClient.expect("servers since 4.0 have it");
        Blocked(block(ctx.ctx, None, None, None, 0))
    }
}

/// Tells a client that has waited.
fn answer(client: Blocked, result: crate::reply::Result) {
    // SAFETY: the client is blocked until the last call. Replies to it need no lock of the server.
    unsafe {
        let ctx =
            raw::RedisModule_GetThreadSafeContext.expect("servers since 4.0 have it")(client.0);
        send(&Context::new(ctx), result);
        raw::RedisModule_FreeThreadSafeContext.expect("servers since 4.0 have it")(ctx);
        raw::RedisModule_UnblockClient.expect("servers since 4.0 have it")(
            client.0,
            std::ptr::null_mut(),
        );
    }
}

/// A client that waits until everything before it is durable.
pub(super) struct Waiting {
    client: Blocked,
    result: crate::reply::Result,
}

pub(super) fn wait_in_background(pool: Pool) -> Sender<Waiting> {
    let (send, receive) = mpsc::channel::<Waiting>();
    std::thread::spawn(move || {
        while let Ok(first) = receive.recv() {
            // One wait is for all who have come meanwhile.
            let all: Vec<Waiting> = std::iter::once(first).chain(receive.try_iter()).collect();
            let durable = pool.wait_durable();
            for Waiting { client, result } in all {
                let result = match &durable {
                    Ok(()) => result,
                    Err(error) => Err(Fault::new(format!("not durable: {error:?}"))),
                };
                answer(client, result);
            }
        }
    });
    send
}

/// Lets a client wait until everything is durable before it gets its result.
pub(super) fn wait(ctx: &Context, result: crate::reply::Result) {
    let server = SERVER.get().expect("loaded");
    let waiting = Waiting { client: block(ctx), result };
    let _ = lock(&server.waiting).send(waiting);
}

pub(super) extern "C" fn wait_durable(
    ctx: *mut raw::RedisModuleCtx,
    _: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let context = Context::new(ctx);
    let server = SERVER.get().expect("loaded");
    if argc != 1 {
        let text = "wrong number of arguments for 'ol.waitdurable' command";
        send(&context, Err(Fault::new(text)));
    } else if can_block(&context) {
        wait(&context, Ok(Reply::OK));
    } else {
        // In a script or a transaction the server waits, too.
        let durable = server.store.pool().wait_durable();
        send(&context, durable.map(|()| Reply::OK).map_err(Fault::from));
    }
    raw::Status::Ok as c_int
}

/// Returns whether the journal of a pool cannot be written, so that nothing survives a power loss for now.
pub(super) fn journal_fails(pool: &Pool) -> bool {
    let durability = pool.durability();
    durability.interval.is_some() && !durability.confirmed_survives_power_loss
}

/// Writes into the server's log when the journal begins to fail, and when it no longer does.
pub(super) fn warn(ctx: &Context, server: &Server) {
    let fails = journal_fails(server.store.pool());
    if server.journal_fails.swap(fails, Ordering::Relaxed) != fails {
        ctx.log_warning(match fails {
            true => "outlast: the journal cannot be written: changes do not survive a power loss",
            false => "outlast: the journal can be written again",
        });
    }
}

// ---- Copies and checks ------------------------------------------------------------------

/// What the thread for long work does.
pub(super) enum Task {
    Backup { path: PathBuf, replaces: bool },
    Verify,
}

/// Writes a copy of the pool, which replaces nothing but another pool.
fn back_up(pool: &Pool, path: &Path, replaces: bool) -> crate::reply::Result {
    let server = SERVER.get().expect("loaded");
    let mut journal = server.settings.path.clone().into_os_string();
    journal.push(".journal");
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new(".")).canonicalize();
    if directory.is_ok_and(|directory| {
        Path::new(&journal).canonicalize().is_ok_and(|journal| directory.starts_with(journal))
    }) {
        return Err(Fault::new("this is a place in the journal of the pool"));
    }
    if path.symlink_metadata().is_ok() {
        if !replaces {
            return Err(Fault::new("there is a file of this name; REPLACE replaces another pool"));
        }
        // SAFETY: the pool is closed at once, and outlast locks it against its writers.
        let found = unsafe { PoolOptions::new().accept_possibly_torn(true).open_read_only(path) };
        found.map_err(|error| Fault::new(format!("not replaced: {error:?}")))?;
    }
    pool.snapshot(path)?;
    Ok(Reply::OK)
}

pub(super) struct Long {
    client: Blocked,
    task: Task,
}

pub(super) fn work_in_background(pool: Pool) -> Sender<Long> {
    let (send, receive) = mpsc::channel::<Long>();
    std::thread::spawn(move || {
        while let Ok(Long { client, task }) = receive.recv() {
            let result = match task {
                Task::Backup { path, replaces } => back_up(&pool, &path, replaces),
                Task::Verify => verified(&pool).map_err(Fault::from),
            };
            answer(client, result);
        }
    });
    send
}

fn verified(pool: &Pool) -> outlast::Result<Reply> {
    let found = pool.verify()?;
    let records = found.records();
    found.ensure_sound()?;
    Ok(Reply::Bulk(format!("{records} records, sound").into_bytes()))
}

fn in_background(ctx: &Context, task: Task) {
    if !can_block(ctx) {
        return send(ctx, Err(Fault::new("not in a script or a transaction")));
    }
    let server = SERVER.get().expect("loaded");
    let _ = lock(&server.long).send(Long { client: block(ctx), task });
}

pub(super) extern "C" fn backup(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    use std::os::unix::ffi::OsStrExt;
    let context = Context::new(ctx);
    // SAFETY: the server keeps the arguments during the call.
    let (path, options) = match unsafe { arguments(argv, argc) }.1[..] {
        [_, path, ref options @ ..] => (path, options.to_vec()),
        _ => (&b""[..], Vec::new()),
    };
    let replaces = match options[..] {
        _ if !(2..=3).contains(&argc) => Err("wrong number of arguments for 'ol.backup' command"),
        [] => Ok(false),
        [option] if is_word(option, "replace") => Ok(true),
        _ => Err("syntax error"),
    };
    match replaces {
        Ok(replaces) => {
            let path = std::ffi::OsStr::from_bytes(path).into();
            in_background(&context, Task::Backup { path, replaces });
        }
        Err(why) => send(&context, Err(Fault::new(why))),
    }
    raw::Status::Ok as c_int
}

pub(super) extern "C" fn verify(
    ctx: *mut raw::RedisModuleCtx,
    _: *mut *mut raw::RedisModuleString,
    _: c_int,
) -> c_int {
    in_background(&Context::new(ctx), Task::Verify);
    raw::Status::Ok as c_int
}
