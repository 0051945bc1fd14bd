//! The module: how the commands meet the server.
//!
//! All commands run in the server's thread. Two threads of ours run as well: one waits until changes
//! are durable, for the clients of `OL.WAITDURABLE` and, with `durable-replies yes`, of every change; one
//! copies and verifies.
//!
//! *The server's own log* must not have our changes: after a restart the server replays what the log has,
//! which can be older than the pool. So they are replicated, but not logged (`A` in the format of
//! `RedisModule_Replicate`). A server that has had no log since the module was loaded replicates a call as it is, which
//! is faster.

mod background;
mod cluster;
mod eviction;
mod known;
mod redirect;
mod replication;

use crate::command::{COMMANDS, Call, Names, Replicate};
use crate::reply::{Fault, Reply};
use crate::store::Store;
use background::{Long, Waiting};
use known::{Known, find_slot, keys_of, signal};
use outlast::{Failure, PoolOptions};
use std::ffi::{CStr, CString, c_char, c_int, c_longlong};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use valkey_module::{Context, ContextFlags, Status, ValkeyString, raw};

/// Everything that the commands need.
struct Server {
    store: Arc<Store>,
    settings: Settings,
    commands: Names<Known>,
    /// To the thread that waits for durability.
    waiting: Mutex<Sender<Waiting>>,
    /// To the thread that copies and verifies.
    long: Mutex<Sender<Long>>,
    copies: replication::Copies,
    /// In a cluster.
    slots: Option<cluster::Slots>,
    /// Whether the server has written a log of its own since the module was loaded.
    has_log: AtomicBool,
    calls: AtomicU64,
    changes: AtomicU64,
    eviction: eviction::Eviction,
    absent: known::Absent,
    /// Whether the journal could not be written when it was last looked at.
    journal_fails: AtomicBool,
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
    evict: bool,
}

impl Settings {
    fn parse(args: &[String]) -> Result<Settings, String> {
        let mut settings = Settings {
            path: "outlast.pool".into(),
            redirect: false,
            durable_replies: false,
            survive: None,
            max_size: None,
            evict: false,
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
                "evict" => settings.evict = yes(value)?,
                "durable-replies" => settings.durable_replies = yes(value)?,
                "survive" => {
                    settings.survive = Some(match value.as_str() {
                        "power-loss" => Failure::PowerLoss,
                        "process-death" => Failure::ProcessDeath,
                        other => return Err(format!("unknown failure {other:?}")),
                    });
                }
                "max-size" => {
                    settings.max_size =
                        Some(value.parse().map_err(|_| "max-size is a number of bytes")?);
                }
                other => return Err(format!("unknown setting {other:?}")),
            }
        }
        if settings.evict && settings.max_size.is_none() {
            return Err("evict needs max-size".into());
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
        let mut store = Store::open(pool)?;
        if self.evict {
            store.note_uses();
        }
        Ok(store)
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
    let store = Arc::new(settings.open().map_err(|error| format!("{error:?}"))?);
    let took = start.elapsed();
    let commands = Names::new(COMMANDS.iter().map(|command| (command.name, Known::new(command))));
    let waiting = background::wait_in_background(store.pool().clone());
    let long = background::work_in_background(store.pool().clone());
    let copies = replication::Copies::start(&store).map_err(|error| error.to_string())?;
    let redirect = settings.redirect;
    let flags = ctx.get_flags();
    let is_cluster = flags.contains(ContextFlags::CLUSTER);
    let slots = is_cluster.then(cluster::Slots::new);
    let server = Server {
        store,
        settings,
        commands,
        waiting: Mutex::new(waiting),
        long: Mutex::new(long),
        copies,
        slots,
        has_log: AtomicBool::new(flags.contains(ContextFlags::AOF)),
        calls: AtomicU64::new(0),
        changes: AtomicU64::new(0),
        eviction: eviction::Eviction::default(),
        absent: known::Absent::new(),
        journal_fails: AtomicBool::new(false),
    };
    SERVER.set(server).map_err(|_| "the module is loaded already")?;
    for command in COMMANDS {
        create(ctx, &format!("ol.{}", command.name), command.flags, command.keys, dispatch)?;
        if is_cluster && command.keys.0 > 0 {
            let name = format!("olc.{}", command.name);
            create(ctx, &name, command.flags, (1, 1, 1), dispatch_in_slot)?;
        }
    }
    let none = (0, 0, 0);
    create(ctx, redirect::REFUSED, "readonly", none, redirect::refuse)?;
    create(ctx, "ol.waitdurable", "readonly", none, background::wait_durable)?;
    create(ctx, "ol.backup", "readonly admin", none, background::backup)?;
    create(ctx, "ol.verify", "readonly admin", none, background::verify)?;
    if redirect || is_cluster {
        let filter = raw::REDISMODULE_CMDFILTER_NOSELF;
        if ctx.register_command_filter(redirect::rename, filter).is_null() {
            return Err("the server refuses the filter of commands".into());
        }
    }
    replication::subscribe(ctx);
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
    // At once: in a cluster, it makes the stubs.
    ctx.create_timer(Duration::from_millis(1), clean, ());
    ctx.log_notice(&format!("outlast: the pool was opened in {took:.1?}"));
    if SERVER.get().is_some_and(|server| server.store.is_incomplete()) {
        ctx.log_warning("outlast: the pool has a part of a primary's data; commands wait for the rest, or for FLUSHALL");
    }
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
    let c_name = CString::new(name).expect("no zeros");
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
    if status == raw::Status::Ok as c_int { Ok(()) } else { Err(format!("{name} is refused")) }
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
        if let Some(slots) = &server.slots {
            slots.ensure_all(&server.store);
        }
        background::warn(ctx, server);
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

/// Returns the arguments of a command, as the server's strings and as bytes.
///
/// # Safety
/// They live as long as the result.
unsafe fn arguments<'a>(
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> (&'a [*mut raw::RedisModuleString], Vec<&'a [u8]>) {
    // SAFETY: the server passes `argc` strings.
    unsafe {
        let strings = std::slice::from_raw_parts(argv, argc as usize);
        (strings, strings.iter().map(|&string| bytes(string)).collect())
    }
}

extern "C" fn dispatch(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let context = Context::new(ctx);
    // SAFETY: the server keeps the arguments during the call.
    let (strings, args) = unsafe { arguments(argv, argc) };
    answer(&context, args[0].get(3..), &args[1..], &strings[1..])
}

/// The same for a command whose first argument is the [stub](cluster) of its slot.
extern "C" fn dispatch_in_slot(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let context = Context::new(ctx);
    // SAFETY: the server keeps the arguments during the call.
    let (strings, args) = unsafe { arguments(argv, argc) };
    answer(&context, args[0].get(4..), &args[2..], &strings[2..])
}

/// Answers a call of the command of this name. `args` and `strings` are its arguments, as bytes and as the server's
/// own.
fn answer(
    context: &Context,
    name: Option<&[u8]>,
    args: &[&[u8]],
    strings: &[*mut raw::RedisModuleString],
) -> c_int {
    // No panic may cross into the server.
    let done = catch_unwind(AssertUnwindSafe(|| {
        let server = SERVER.get().expect("loaded");
        let known = name.and_then(|name| server.commands.get(name)).expect("the server knows it");
        run(context, server, known, args, strings)
    }));
    match done {
        Ok(Some(result)) => send(context, result),
        Ok(None) => {}
        Err(_) => send(context, Err(Fault::new("a fault of the module; see the server's log"))),
    }
    raw::Status::Ok as c_int
}

/// Runs a command. Returns `None` if the client is told later.
fn run(
    ctx: &Context,
    server: &Server,
    known: &Known,
    args: &[&[u8]],
    strings: &[*mut raw::RedisModuleString],
) -> Option<crate::reply::Result> {
    let command = known.command;
    server.calls.fetch_add(1, Ordering::Relaxed);
    let mut call =
        Call { store: &server.store, args, now: SystemTime::now(), replicate: Replicate::Verbatim };
    let flushes = command.name.starts_with("flush");
    let mut result = match server.store.is_incomplete() && !flushes {
        true => Err(Fault::loading()),
        false if !cluster::has_come(ctx, server, command, args) => Err(Fault::try_again()),
        false => match redirect::meet_native(ctx, server, known, args, strings) {
            Some(result) => {
                call.replicate = Replicate::Nothing;
                result
            }
            None => {
                eviction::make_room(ctx, server, command, call.args);
                command.call(&mut call)
            }
        },
    };
    if matches!(&result, Err(fault) if fault.is_full()) {
        result = eviction::retry(ctx, server, command, &mut call, result);
    }
    // A replica that begins makes changes whose effect, and more, it may have already; see `copy`.
    if matches!(&result, Err(fault) if fault.is_wrong_type() && is_replicated(ctx)) {
        result = Ok(Reply::Null);
        call.replicate = Replicate::Verbatim;
    }
    let changed = command.is_write() && result.is_ok() && call.replicate != Replicate::Nothing;
    if changed {
        if let Some(slots) = &server.slots
            && let Some(slot) = find_slot(command, args)
        {
            slots.ensure(ctx.ctx, slot);
        }
        server.changes.fetch_add(1, Ordering::Relaxed);
        keys_of(command, strings).for_each(|key| signal(ctx, *key));
        match call.replicate {
            // What a client calls in a cluster has a stub, which replicas do not expect.
            Replicate::Verbatim
                if server.slots.is_none() && !server.has_log.load(Ordering::Relaxed) =>
            {
                ctx.replicate_verbatim();
            }
            Replicate::Verbatim => replicate(ctx, &known.name, strings),
            Replicate::Calls(calls) => {
                for call in calls {
                    replicate_call(ctx, &call);
                }
            }
            Replicate::Nothing => {}
        }
    }
    if server.settings.redirect {
        // Clients know the command by its own name.
        result = result.map_err(|fault| fault.replace("'ol.", "'"));
        result = redirect::with_native(ctx, command.name, args, result);
    }
    if changed && server.settings.durable_replies && can_block(ctx) {
        background::wait(ctx, result);
        return None;
    }
    Some(result)
}

/// Lets replicas make a call, which is given as bytes; see [`replicate`].
fn replicate_call(ctx: &Context, call: &[Vec<u8>]) {
    let args = call[1..].iter().map(|part| ValkeyString::create_from_slice(ctx.ctx, part));
    let args: Vec<ValkeyString> = args.collect();
    let strings: Vec<_> = args.iter().map(|arg| arg.inner).collect();
    replicate(ctx, &CString::new(&call[0][..]).unwrap_or_default(), &strings);
}

/// Lets replicas make a call, and keeps it out of the server's log.
fn replicate(ctx: &Context, name: &CStr, args: &[*mut raw::RedisModuleString]) {
    // SAFETY: the format says that a vector of strings and its length follow. The strings live during the
    // call, in which the server counts one more reference to each.
    unsafe {
        raw::RedisModule_Replicate.expect("all servers have it")(
            ctx.ctx,
            name.as_ptr(),
            c"Av".as_ptr(),
            args.as_ptr(),
            args.len(),
        );
    }
}

/// Returns whether a call comes from the primary.
fn is_replicated(ctx: &Context) -> bool {
    ctx.get_flags().contains(ContextFlags::REPLICATED)
}

/// Returns whether a client can be told later: not in a script or a transaction, and not on a replica.
fn can_block(ctx: &Context) -> bool {
    use ContextFlags as Flags;
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
                raw::RedisModule_ReplyWithSimpleString.expect("all servers have it")(
                    ctx,
                    text.as_ptr(),
                );
            }
            Reply::Int(number) => {
                raw::RedisModule_ReplyWithLongLong.expect("all servers have it")(ctx, *number);
            }
            Reply::Bulk(bytes) => send_bulk(ctx, bytes),
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
            Reply::Map(pairs) => {
                raw::RedisModule_ReplyWithMap.expect("servers since 7.0 have it")(
                    ctx,
                    pairs.len() as std::ffi::c_long,
                );
                for (field, value) in pairs {
                    send_bulk(ctx, field);
                    send_bulk(ctx, value);
                }
            }
            Reply::Pairs(pairs) => {
                let array = raw::RedisModule_ReplyWithArray.expect("all servers have it");
                let nests = Context::new(ctx).get_flags().contains(ContextFlags::FLAGS_RESP3);
                array(ctx, (if nests { pairs.len() } else { 2 * pairs.len() }) as std::ffi::c_long);
                for (field, value) in pairs {
                    if nests {
                        array(ctx, 2);
                    }
                    send_bulk(ctx, field);
                    send_bulk(ctx, value);
                }
            }
        }
    }
}

/// Sends a byte string.
///
/// # Safety
/// The context is that of a client.
unsafe fn send_bulk(ctx: *mut raw::RedisModuleCtx, bytes: &[u8]) {
    let start = bytes.as_ptr().cast::<c_char>();
    // SAFETY: as the caller says; the bytes live during the call.
    unsafe {
        raw::RedisModule_ReplyWithStringBuffer.expect("all servers have it")(
            ctx,
            start,
            bytes.len(),
        );
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
    number(c"journal_fails", background::journal_fails(server.store.pool()).into());
    number(c"calls", server.calls.load(Ordering::Relaxed));
    number(c"changes", server.changes.load(Ordering::Relaxed));
    number(c"evicted", server.eviction.count());
    number(c"redirect", server.settings.redirect.into());
}

/// The functions that the server calls to load and unload the module.
mod entry {
    use super::init;
    use super::replication::TYPE;
    use valkey_module::valkey_module;

    valkey_module! {
        name: "outlast",
        version: 1,
        allocator: (std::alloc::System, std::alloc::System),
        data_types: [TYPE],
        init: init,
        commands: [],
    }
}
