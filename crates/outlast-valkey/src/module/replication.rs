//! Full synchronization: how a replica gets everything.
//!
//! The server forks, and its child writes what the replica loads, with a part of ours (`aux_save`). In a child, a
//! pool is closed, so the child asks its parent: a pair of sockets is there before each fork, and a thread of the
//! parent writes a [copy](crate::copy) into it each time that the child asks. The copy is made while the data change,
//! after the fork. The server sends all changes since the fork to the replica afterwards, and those give new values,
//! never differences.
//!
//! *The replica* loads the copy only if the server says that it comes from a primary. A snapshot that a server loads
//! at its start, or a log, can be older than the pool, so what it has of ours is passed over. While a copy is
//! loaded, and if it was not completed, also after a crash, the pool is *incomplete*: commands are refused. The
//! mark that says so is set before the first old key goes, and removed after the last new one is there. What
//! survives a crash is a prefix of the changes in their order, so no crash leaves a mixture without the mark.

use super::{SERVER, cluster, lock};
use crate::copy;
use crate::store::Store;
use std::ffi::{c_int, c_void};
use std::io::{BufReader, BufWriter, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use valkey_module::native_types::ValkeyType;
use valkey_module::{Context, ContextFlags, raw};

/// The format of our part of a snapshot.
const FORMAT: u64 = 1;
/// What a child asks for that wants the records of all slots.
const ALL: u16 = u16::MAX;

/// The type that has a part in snapshots, and in a cluster the [stubs](cluster).
pub(super) static TYPE: ValkeyType = ValkeyType::new(
    "outlast-s",
    1,
    raw::RedisModuleTypeMethods {
        version: raw::REDISMODULE_TYPE_METHOD_VERSION as u64,
        rdb_load: Some(cluster::load),
        rdb_save: Some(cluster::save),
        aof_rewrite: Some(cluster::rewrite),
        mem_usage: None,
        digest: None,
        free: Some(cluster::free),
        aux_load: Some(load),
        aux_save: Some(save),
        aux_save_triggers: raw::REDISMODULE_AUX_AFTER_RDB as c_int,
        free_effort: None,
        unlink: Some(cluster::unlink),
        copy: None,
        defrag: None,
        mem_usage2: None,
        free_effort2: None,
        unlink2: None,
        copy2: None,
        aux_save2: None,
    },
);

/// What full synchronizations need.
pub(super) struct Copies {
    /// The process that has the pool.
    process: u32,
    /// Whether what is loaded now comes from a primary.
    from_primary: AtomicBool,
    /// Whether the server itself, without a child, writes a snapshot now.
    saves: AtomicBool,
    /// Whether the server, or in a child this process, rewrites its log now.
    logs: AtomicBool,
    /// The ends of the pair of sockets: the parent's, the child's.
    ends: [AtomicI32; 2],
    /// The child's end, as long as the pair is used.
    child: Mutex<Option<UnixStream>>,
    /// In a child, its end.
    end: OnceLock<UnixStream>,
    /// To the thread that writes copies.
    pairs: Mutex<Sender<UnixStream>>,
}

impl Copies {
    /// Starts the thread that writes copies.
    pub(super) fn start(store: &Arc<Store>) -> std::io::Result<Copies> {
        let (send, receive) = mpsc::channel::<UnixStream>();
        let store = Arc::clone(store);
        std::thread::Builder::new().name("outlast-copies".into()).spawn(move || {
            for mut end in receive {
                let mut slot = [0; 2];
                while end.read_exact(&mut slot).is_ok() {
                    let slot = Some(u16::from_le_bytes(slot)).filter(|&slot| slot != ALL);
                    let mut out = BufWriter::with_capacity(1 << 16, &end);
                    // Whatever fails here, the child misses the end of the copy.
                    if copy::write(&store, slot, &mut out).is_err() {
                        break;
                    }
                }
                let _ = end.shutdown(Shutdown::Both);
            }
        })?;
        let copies = Copies {
            process: std::process::id(),
            from_primary: AtomicBool::new(false),
            saves: AtomicBool::new(false),
            logs: AtomicBool::new(false),
            ends: [const { AtomicI32::new(-1) }; 2],
            child: Mutex::new(None),
            end: OnceLock::new(),
            pairs: Mutex::new(send),
        };
        copies.renew()?;
        Ok(copies)
    }

    /// Makes the pair of sockets for the next child.
    fn renew(&self) -> std::io::Result<()> {
        let mut child = lock(&self.child);
        if let Some(old) = child.take() {
            // Also ends a copy that nobody reads any more.
            let _ = old.shutdown(Shutdown::Both);
        }
        let (ours, new) = UnixStream::pair()?;
        self.ends[0].store(ours.as_raw_fd(), Ordering::Relaxed);
        self.ends[1].store(new.as_raw_fd(), Ordering::Relaxed);
        *child = Some(new);
        let _ = lock(&self.pairs).send(ours);
        Ok(())
    }

    /// Returns whether what is saved now is a part of a snapshot.
    pub(super) fn is_snapshot(&self) -> bool {
        self.saves.load(Ordering::Relaxed) || std::process::id() != self.process
    }

    /// Returns whether the server is rewriting its log.
    pub(super) fn is_log(&self) -> bool {
        self.logs.load(Ordering::Relaxed)
    }

    /// In a child, asks the parent for a copy of everything, or of a slot, and passes its calls to `sink`.
    pub(super) fn ask(
        &self,
        slot: Option<u16>,
        mut sink: impl FnMut(&[u8]),
    ) -> std::io::Result<()> {
        // The parent has no use for this, so no thread can have been about to set it at the fork.
        let mut end = self.end.get_or_init(|| self.take());
        end.write_all(&slot.unwrap_or(ALL).to_le_bytes())?;
        let mut input = BufReader::with_capacity(1 << 16, end);
        while let Some(call) = copy::read(&mut input)? {
            sink(&call);
        }
        Ok(())
    }

    /// In a child, returns its end of the pair. Takes no lock: another thread may have held it at the fork.
    fn take(&self) -> UnixStream {
        // SAFETY: the child has a copy of both descriptors, and nothing in it uses them but this, once.
        let [ours, end] = [0, 1]
            .map(|n| unsafe { UnixStream::from_raw_fd(self.ends[n].load(Ordering::Relaxed)) });
        drop(ours);
        end
    }
}

pub(super) fn subscribe(ctx: &Context) {
    let events: [(u64, raw::RedisModuleEventCallback); 6] = [
        (raw::REDISMODULE_EVENT_CONFIG, Some(configured)),
        (raw::REDISMODULE_EVENT_LOADING, Some(loading)),
        (raw::REDISMODULE_EVENT_FORK_CHILD, Some(forked)),
        (raw::REDISMODULE_EVENT_PERSISTENCE, Some(saving)),
        (raw::REDISMODULE_EVENT_FLUSHDB, Some(flushed)),
        // Servers that do not have it refuse this one.
        (cluster::MIGRATION_EVENT, Some(cluster::migration)),
    ];
    for (id, callback) in events {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the context is the server's, and the callback lives as long as the module.
        let status = unsafe {
            raw::RedisModule_SubscribeToServerEvent.expect("servers since 6.0 have it")(
                ctx.ctx, event, callback,
            )
        };
        if id == raw::REDISMODULE_EVENT_CONFIG && status != raw::Status::Ok as c_int {
            note_log();
        }
    }
    // A primary that dies while it sends a copy ends the loading, not the server.
    let handled = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS as c_int | cluster::MIGRATION_OPTION;
    // SAFETY: as above.
    unsafe {
        raw::RedisModule_SetModuleOptions.expect("servers since 6.0 have it")(ctx.ctx, handled);
    }
}

/// Notes that the server writes a log of its own. That holds from now on, since the server stops and continues its
/// log at times without telling.
fn note_log() {
    if let Some(server) = SERVER.get() {
        server.has_log.store(true, Ordering::Relaxed);
    }
}

extern "C" fn configured(
    ctx: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    _: u64,
    _: *mut c_void,
) {
    if Context::new(ctx).get_flags().contains(ContextFlags::AOF) {
        note_log();
    }
}

extern "C" fn forked(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    which: u64,
    _: *mut c_void,
) {
    if which == raw::REDISMODULE_SUBEVENT_FORK_CHILD_DIED
        && let Some(server) = SERVER.get()
        && let Err(error) = server.copies.renew()
    {
        valkey_module::logging::log_warning(format!("outlast: no pair of sockets: {error}"));
    }
}

extern "C" fn saving(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    which: u64,
    _: *mut c_void,
) {
    if let Some(server) = SERVER.get() {
        let starts = [
            raw::REDISMODULE_SUBEVENT_PERSISTENCE_SYNC_RDB_START,
            raw::REDISMODULE_SUBEVENT_PERSISTENCE_SYNC_AOF_START,
        ];
        server.copies.saves.store(starts.contains(&which), Ordering::Relaxed);
        let logs = [
            raw::REDISMODULE_SUBEVENT_PERSISTENCE_AOF_START,
            raw::REDISMODULE_SUBEVENT_PERSISTENCE_SYNC_AOF_START,
        ];
        server.copies.logs.store(logs.contains(&which), Ordering::Relaxed);
    }
}

extern "C" fn flushed(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    which: u64,
    _: *mut c_void,
) {
    if which == raw::REDISMODULE_SUBEVENT_FLUSHDB_START
        && let Some(slots) = SERVER.get().and_then(|server| server.slots.as_ref())
    {
        slots.forget();
    }
}

extern "C" fn loading(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    which: u64,
    _: *mut c_void,
) {
    let Some(server) = SERVER.get() else { return };
    let from_primary = &server.copies.from_primary;
    match which {
        raw::REDISMODULE_SUBEVENT_LOADING_REPL_START => {
            from_primary.store(true, Ordering::Relaxed);
        }
        raw::REDISMODULE_SUBEVENT_LOADING_ENDED | raw::REDISMODULE_SUBEVENT_LOADING_FAILED => {
            from_primary.store(false, Ordering::Relaxed);
        }
        _ => {}
    }
}

/// Writes our part of a snapshot.
extern "C" fn save(rdb: *mut raw::RedisModuleIO, _: c_int) {
    let Some(server) = SERVER.get() else { return };
    raw::save_unsigned(rdb, FORMAT);
    let done = if std::process::id() == server.copies.process {
        copy::export(&server.store, None, &mut |words| {
            raw::save_slice(rdb, &copy::encode(words));
            Ok(())
        })
        .map_err(|fault| fault.to_string())
    } else {
        let copies = &server.copies;
        copies.ask(None, |call| raw::save_slice(rdb, call)).map_err(|error| error.to_string())
    };
    if let Err(why) = done {
        valkey_module::logging::log_warning(format!("outlast: no copy: {why}"));
        if std::process::id() != server.copies.process {
            // The server takes the snapshot of a child that ends so for failed.
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(1) }
        }
    }
    raw::save_slice(rdb, &[]);
}

/// Reads our part of a snapshot, and makes its calls if it comes from a primary.
extern "C" fn load(rdb: *mut raw::RedisModuleIO, _: c_int, _: c_int) -> c_int {
    let done = read(rdb);
    // Not before: the server answers clients while it loads.
    if let Some(server) = SERVER.get() {
        server.absent.forget_all();
    }
    match done {
        Ok(()) => raw::Status::Ok as c_int,
        Err(why) => {
            valkey_module::logging::log_warning(format!("outlast: the copy is refused: {why}"));
            raw::Status::Err as c_int
        }
    }
}

fn read(rdb: *mut raw::RedisModuleIO) -> Result<(), String> {
    let server = SERVER.get().ok_or("the module is not loaded")?;
    let text = |error: valkey_module::error::Error| error.to_string();
    let format = raw::load_unsigned(rdb).map_err(text)?;
    if format != FORMAT {
        return Err(format!("it has format {format}"));
    }
    let store = &server.store;
    let from_primary = server.copies.from_primary.load(Ordering::Relaxed);
    if from_primary {
        store
            .set_incomplete(true)
            .and_then(|()| store.clear())
            .map_err(|fault| fault.to_string())?;
    }
    loop {
        let call = raw::load_string_buffer(rdb).map_err(text)?;
        if call.as_ref().is_empty() {
            break;
        }
        if from_primary {
            copy::import(store, call.as_ref()).map_err(|fault| fault.to_string())?;
        }
    }
    if from_primary {
        store.set_incomplete(false).map_err(|fault| fault.to_string())?;
    }
    Ok(())
}
