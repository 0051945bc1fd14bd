//! The module: how the commands meet the server.
//!
//! All commands run in the server's thread. Two threads of ours run beside it: one waits until changes
//! are durable, for the clients of `OL.WAITDURABLE` and, with `durable-replies yes`, of every change; one
//! copies and verifies.
//!
//! *The server's own log* must not have our changes: after a restart the server replays what the log has,
//! which can be older than the pool. So they are replicated, but not logged (`A` in the format of
//! `RedisModule_Replicate`).

mod background;

use crate::command::{COMMANDS, Call, Command, Replicate};
use crate::reply::{Fault, Reply};
use crate::store::Store;
use background::{Long, Waiting};
use outlast::{Failure, PoolOptions};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_longlong};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use valkey_module::{Context, Status, ValkeyString, raw};

/// Everything that the commands need.
struct Server {
    store: Store,
    settings: Settings,
    commands: HashMap<&'static [u8], &'static Command>,
    /// To the thread that waits for durability.
    waiting: Mutex<Sender<Waiting>>,
    /// To the thread that copies and verifies.
    long: Mutex<Sender<Long>>,
    calls: AtomicU64,
    changes: AtomicU64,
}

static SERVER: OnceLock<Server> = OnceLock::new();

/// The module's arguments.
#[derive(Debug)]
struct Settings {
    path: PathBuf,
    redirect: bool,
    durable_replies: bool,
    survive: Option<Failure>,
    max_size: Option<u64>,
}

impl Settings {
    fn parse(args: &[String]) -> Result<Settings, String> {
        let mut settings = Settings {
            path: "outlast.pool".into(),
            redirect: false,
            durable_replies: false,
            survive: None,
            max_size: None,
        };
        let yes = |value: &str| match value {
            "yes" => Ok(true),
            "no" => Ok(false),
            other => Err(format!("expected yes or no, found {other:?}")),
        };
        let (pairs, []) = args.as_chunks::<2>() else {
            return Err("each setting has a value".into());
        };
        for [name, value] in pairs {
            match name.as_str() {
                "path" => settings.path = value.into(),
                "redirect" => settings.redirect = yes(value)?,
                "durable-replies" => settings.durable_replies = yes(value)?,
                "survive" => {
                    settings.survive = Some(match value.as_str() {
                        "power-loss" => Failure::PowerLoss,
                        "process-death" => Failure::ProcessDeath,
                        other => return Err(format!("unknown failure {other:?}")),
                    });
                }
                "max-size" => {
                    settings.max_size = Some(value.parse().map_err(|_| "max-size is a number")?);
                }
                other => return Err(format!("unknown setting {other:?}")),
            }
        }
        Ok(settings)
    }

    fn open(&self) -> outlast::Result<Store> {
        let mut options = PoolOptions::new();
        if let Some(failure) = self.survive {
            options = options.survive(failure);
        }
        if let Some(bytes) = self.max_size {
            options = options.max_size(bytes);
        }
        // SAFETY: the path is the server's own, and no program but outlast writes to a pool, as
        // docs/server.md asks. The pool is locked against other processes.
        let pool = unsafe { options.open_or_create(&self.path) }?;
        Store::open(pool)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// ---- Loading ----------------------------------------------------------------------------

fn init(ctx: &Context, args: &[ValkeyString]) -> Status {
    let args: Vec<String> = args.iter().map(|arg| arg.to_string_lossy()).collect();
    match load(ctx, &args) {
        Ok(()) => Status::Ok,
        Err(why) => {
            ctx.log_warning(&format!("outlast: {why}"));
            Status::Err
        }
    }
}

fn load(ctx: &Context, args: &[String]) -> Result<(), String> {
    let settings = Settings::parse(args)?;
    let start = Instant::now();
    let store = settings.open().map_err(|error| format!("{error:?}"))?;
    let took = start.elapsed();
    let commands = COMMANDS
        .iter()
        .map(|command| (command.name.as_bytes(), command))
        .collect::<HashMap<_, _>>();
    let waiting = background::wait_in_background(store.pool().clone());
    let long = background::work_in_background(store.pool().clone());
    let redirect = settings.redirect;
    let server = Server {
        store,
        settings,
        commands,
        waiting: Mutex::new(waiting),
        long: Mutex::new(long),
        calls: AtomicU64::new(0),
        changes: AtomicU64::new(0),
    };
    SERVER.set(server).map_err(|_| "the module is loaded already")?;
    for command in COMMANDS {
        create(ctx, command.name, command.flags, command.keys, dispatch)?;
    }
    let none = (0, 0, 0);
    create(ctx, "waitdurable", "readonly", none, background::wait_durable)?;
    create(ctx, "backup", "readonly admin", none, background::backup)?;
    create(ctx, "verify", "readonly admin", none, background::verify)?;
    if redirect {
        let filter = raw::REDISMODULE_CMDFILTER_NOSELF;
        if ctx.register_command_filter(redirect_filter, filter).is_null() {
            return Err("the server refuses the filter of commands".into());
        }
    }
    // SAFETY: the server calls this with a context of its own.
    unsafe {
        raw::RedisModule_RegisterInfoFunc.expect("servers since 6.0 have it")(ctx.ctx, Some(info))
    };
    // SAFETY: as above; the event is one that the servers have.
    unsafe {
        let event = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_SHUTDOWN, dataver: 1 };
        raw::RedisModule_SubscribeToServerEvent.expect("servers since 6.0 have it")(
            ctx.ctx,
            event,
            Some(shut_down),
        );
    }
    ctx.create_timer(CLEANING, clean, ());
    ctx.log_notice(&format!("outlast: the pool was opened in {took:.1?}"));
    Ok(())
}

type Handler =
    extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int;

fn create(
    ctx: &Context,
    name: &str,
    flags: &str,
    (first, last, step): (i32, i32, i32),
    handler: Handler,
) -> Result<(), String> {
    let c_name = CString::new(format!("ol.{name}")).expect("no zeros");
    let c_flags = CString::new(flags).expect("no zeros");
    // SAFETY: the strings live during the call, and the handler has the signature of one.
    let status = unsafe {
        raw::RedisModule_CreateCommand.expect("all servers have it")(
            ctx.ctx,
            c_name.as_ptr(),
            Some(handler),
            c_flags.as_ptr(),
            first,
            last,
            step,
        )
    };
    if status == raw::Status::Ok as c_int { Ok(()) } else { Err(format!("ol.{name} is refused")) }
}

extern "C" fn shut_down(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    _: u64,
    _: *mut std::ffi::c_void,
) {
    if let Some(server) = SERVER.get() {
        // Whatever fails here, the next opening does.
        let _ = server.store.pool().clone().close();
    }
}

/// The time between steps of the cleaning, and that of one.
const CLEANING: Duration = Duration::from_millis(100);
const STEP: Duration = Duration::from_millis(5);

fn clean(ctx: &Context, (): ()) {
    if let Some(server) = SERVER.get() {
        let end = Instant::now() + STEP;
        loop {
            match server.store.clean(SystemTime::now()) {
                Ok(true) if Instant::now() < end => {}
                Ok(_) => break,
                Err(fault) => {
                    ctx.log_warning(&format!("outlast: cleaning: {fault}"));
                    break;
                }
            }
        }
    }
    ctx.create_timer(CLEANING, clean, ());
}

// ---- Commands ---------------------------------------------------------------------------

/// Returns the bytes of an argument.
///
/// # Safety
/// The string lives as long as the result.
unsafe fn bytes<'a>(string: *const raw::RedisModuleString) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: the string is one of the server's.
    unsafe {
        let start = raw::RedisModule_StringPtrLen.expect("all servers have it")(string, &mut len);
        std::slice::from_raw_parts(start.cast(), len)
    }
}

/// Returns the arguments of a command.
///
/// # Safety
/// They live as long as the result.
unsafe fn arguments<'a>(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Vec<&'a [u8]> {
    // SAFETY: the server passes `argc` strings.
    unsafe {
        let strings = std::slice::from_raw_parts(argv, argc as usize);
        strings.iter().map(|&string| bytes(string)).collect()
    }
}

extern "C" fn dispatch(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let context = Context::new(ctx);
    // SAFETY: the server keeps the arguments during the call.
    let args = unsafe { arguments(argv, argc) };
    // No panic may cross into the server.
    let done = catch_unwind(AssertUnwindSafe(|| run(&context, &args)));
    match done {
        Ok(Some(result)) => send(&context, result),
        Ok(None) => {}
        Err(_) => send(&context, Err(Fault::new("a fault of the module; see the server's log"))),
    }
    raw::Status::Ok as c_int
}

/// Runs a command. Returns `None` if the client is told later.
fn run(ctx: &Context, args: &[&[u8]]) -> Option<crate::reply::Result> {
    let server = SERVER.get().expect("loaded");
    let name = args[0].get(3..).unwrap_or_default().to_ascii_lowercase();
    let command = server.commands[&name[..]];
    server.calls.fetch_add(1, Ordering::Relaxed);
    let mut call = Call {
        store: &server.store,
        args: &args[1..],
        now: SystemTime::now(),
        replicate: Replicate::Verbatim,
    };
    let mut result = command.call(&mut call);
    let changed = command.is_write() && result.is_ok() && call.replicate != Replicate::Nothing;
    if changed {
        server.changes.fetch_add(1, Ordering::Relaxed);
        match call.replicate {
            Replicate::Verbatim => replicate(ctx, args),
            Replicate::Calls(calls) => {
                for call in calls {
                    let parts: Vec<&[u8]> = call.iter().map(Vec::as_slice).collect();
                    replicate(ctx, &parts);
                }
            }
            Replicate::Nothing => {}
        }
    }
    if server.settings.redirect {
        result = beside(ctx, command.name, &args[1..], result);
    }
    if changed && server.settings.durable_replies && can_block(ctx) {
        background::wait(ctx, result);
        return None;
    }
    Some(result)
}

/// Lets replicas make a call, and keeps it out of the server's log.
fn replicate(ctx: &Context, call: &[&[u8]]) {
    let name = CString::new(call[0]).unwrap_or_default();
    let args: Vec<ValkeyString> = call[1..].iter().map(|part| ctx.create_string(*part)).collect();
    let mut inner: Vec<_> = args.iter().map(|arg| arg.inner).collect();
    // SAFETY: the format says that a vector of strings and its length follow.
    unsafe {
        raw::RedisModule_Replicate.expect("all servers have it")(
            ctx.ctx,
            name.as_ptr(),
            c"Av".as_ptr(),
            inner.as_mut_ptr(),
            inner.len(),
        );
    }
}

/// Returns whether a client can be told later: not in a script or a transaction, and not on a replica.
fn can_block(ctx: &Context) -> bool {
    use valkey_module::ContextFlags as Flags;
    let flags = ctx.get_flags();
    !flags.intersects(Flags::LUA | Flags::MULTI | Flags::REPLICATED | Flags::DENY_BLOCKING)
}

fn send(ctx: &Context, result: crate::reply::Result) {
    // SAFETY: the context is the one of the client that is told; texts live during the calls.
    unsafe {
        match result {
            Ok(reply) => send_reply(ctx.ctx, &reply),
            Err(fault) => {
                let text = CString::new(fault.text().replace('\0', " ")).unwrap_or_default();
                raw::RedisModule_ReplyWithError.expect("all servers have it")(
                    ctx.ctx,
                    text.as_ptr(),
                );
            }
        }
    }
}

/// Sends a result.
///
/// # Safety
/// The context is that of a client.
unsafe fn send_reply(ctx: *mut raw::RedisModuleCtx, reply: &Reply) {
    // SAFETY: as the caller says; all pointers are to what lives during the calls.
    unsafe {
        match reply {
            Reply::Simple(text) => {
                let text = CString::new(*text).unwrap_or_default();
                raw::RedisModule_ReplyWithSimpleString.expect("all servers have it")(
                    ctx,
                    text.as_ptr(),
                );
            }
            Reply::Int(number) => {
                raw::RedisModule_ReplyWithLongLong.expect("all servers have it")(ctx, *number);
            }
            Reply::Bulk(bytes) => {
                let start = bytes.as_ptr().cast::<c_char>();
                raw::RedisModule_ReplyWithStringBuffer.expect("all servers have it")(
                    ctx,
                    start,
                    bytes.len(),
                );
            }
            Reply::Null => {
                raw::RedisModule_ReplyWithNull.expect("all servers have it")(ctx);
            }
            Reply::Array(list) => {
                raw::RedisModule_ReplyWithArray.expect("all servers have it")(
                    ctx,
                    list.len() as std::ffi::c_long,
                );
                for reply in list {
                    send_reply(ctx, reply);
                }
            }
        }
    }
}

// ---- Redirection ------------------------------------------------------------------------

/// Turns the server's own command into ours of the same name.
extern "C" fn redirect_filter(filter: *mut raw::RedisModuleCommandFilterCtx) {
    // SAFETY: the server passes a context, whose first argument is the command's name.
    unsafe {
        let name =
            raw::RedisModule_CommandFilterArgGet.expect("servers since 5.0 have it")(filter, 0);
        let name = bytes(name).to_ascii_lowercase();
        let Some(server) = SERVER.get() else { return };
        let is_ours = server.commands.contains_key(&name[..]);
        if is_ours {
            let ours = [b"ol.", &name[..]].concat();
            let create = raw::RedisModule_CreateString.expect("all servers have it");
            let ours = create(std::ptr::null_mut(), ours.as_ptr().cast(), ours.len());
            raw::RedisModule_CommandFilterArgReplace.expect("servers since 5.0 have it")(
                filter, 0, ours,
            );
        }
    }
}

/// Adds what the server has itself of keys that are not in the pool: lists, sets and other types.
fn beside(
    ctx: &Context,
    name: &str,
    args: &[&[u8]],
    ours: crate::reply::Result,
) -> crate::reply::Result {
    let native = || native(ctx, name, args);
    match (name, ours?) {
        ("del" | "unlink" | "exists" | "touch" | "dbsize", Reply::Int(ours)) => match native()? {
            Reply::Int(native) => Ok(Reply::Int(ours + native)),
            _ => Ok(Reply::Int(ours)),
        },
        ("type", Reply::Simple("none")) => native(),
        ("expire" | "pexpire" | "expireat" | "pexpireat" | "persist", Reply::Int(0)) => native(),
        ("ttl" | "pttl" | "expiretime" | "pexpiretime", Reply::Int(-2)) => native(),
        ("randomkey", Reply::Null) => native(),
        ("flushall" | "flushdb", _) => native(),
        ("keys", Reply::Array(mut ours)) => {
            if let Reply::Array(native) = native()? {
                ours.extend(native);
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

// ---- INFO -------------------------------------------------------------------------------

extern "C" fn info(ctx: *mut raw::RedisModuleInfoCtx, _: c_int) {
    let Some(server) = SERVER.get() else { return };
    let (stats, durability) = (server.store.pool().stats(), server.store.pool().durability());
    let number = |name: &CStr, value: u64| {
        // SAFETY: the context is the server's, the name lives during the call.
        unsafe {
            raw::RedisModule_InfoAddFieldLongLong.expect("servers since 6.0 have it")(
                ctx,
                name.as_ptr(),
                value as c_longlong,
            );
        }
    };
    // SAFETY: as above.
    unsafe {
        let add = raw::RedisModule_InfoAddSection.expect("servers since 6.0 have it");
        // The section is named after the module.
        add(ctx, std::ptr::null());
    }
    number(c"file_bytes", stats.size);
    number(c"journal", durability.interval.is_some().into());
    number(c"calls", server.calls.load(Ordering::Relaxed));
    number(c"changes", server.changes.load(Ordering::Relaxed));
    number(c"redirect", server.settings.redirect.into());
}

/// The functions that the server calls to load and unload the module.
mod entry {
    use super::init;
    use valkey_module::valkey_module;

    valkey_module! {
        name: "outlast",
        version: 1,
        allocator: (std::alloc::System, std::alloc::System),
        data_types: [],
        init: init,
        commands: [],
    }
}
