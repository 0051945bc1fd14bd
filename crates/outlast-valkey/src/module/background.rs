//! Clients that are told later: those that wait until changes are durable, and those that wait for a copy
//! or a check.

use super::{SERVER, arguments, can_block, lock, send};
use crate::reply::{Fault, Reply};
use outlast::Pool;
use std::ffi::c_int;
use std::path::PathBuf;
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

// ---- Copies and checks ------------------------------------------------------------------

/// What the thread for long work does.
pub(super) enum Task {
    Backup(PathBuf),
    Verify,
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
                Task::Backup(path) => pool.snapshot(path).map(|()| Reply::OK),
                Task::Verify => pool.verify().and_then(|found| {
                    let records = found.records();
                    found.ensure_sound()?;
                    Ok(Reply::Bulk(format!("{records} records, sound").into_bytes()))
                }),
            };
            answer(client, result.map_err(Fault::from));
        }
    });
    send
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
    match unsafe { arguments(argv, argc) }.1[..] {
        [_, path] => {
            in_background(&context, Task::Backup(std::ffi::OsStr::from_bytes(path).into()))
        }
        _ => {
            let text = "wrong number of arguments for 'ol.backup' command";
            send(&context, Err(Fault::new(text)));
        }
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
