//! In a cluster: how the records of a slot move with it.
//!
//! A server moves a slot key by key: it lists the slot's keys, sends each (`MIGRATE`), and while a slot moves, it
//! serves the keys that it has and sends clients of others to the slot's new place. It knows nothing of our keys.
//! So each slot that has some of ours has one key of a type of ours, its *stub*, whose name has the slot in braces.
//!
//! - *Commands name the stub.* The filter turns `SET key value` or `OL.SET key value` into
//!   `OLC.SET stub key value`, whose only key, for the server, is the stub. So the server decides with the stub
//!   whether the slot is here, has moved, or has left already. Commands of scripts do not: the server has decided with
//!   the script's own keys.
//! - *Saving a stub saves the slot*: a copy of its records (see [`copy`](crate::copy)). Loading one, in the new
//!   place, loads them. In a snapshot the stubs are empty, because our part of it has everything.
//! - *When a stub goes, the records of its slot go*: the server removes it once the new place has it, and so do
//!   its replicas.
//!
//! *Valkey also moves slots at once* (`CLUSTER MIGRATESLOTS`): a child of the old place writes calls that make the
//! slots' keys, and then come the changes since the fork, as for a replica. For a stub, the calls are those of a copy
//! of its slot, for which the child asks its parent. The new place removes what it has of the slots when
//! it hears that they come, and if the move fails, the server removes the stubs that were made for it.
//!
//! *A crash* of the old place after the new one has the slot leaves some of the slot's records there, behind the
//! server's back: it sends clients to the new place. If the slot comes back, what is left is removed before the
//! records are loaded. A crash of the new place while it loads leaves a part there, and everything in
//! the old one. Records that are left of a slot get no stub while another server has the slot.
//!
//! A change that finds no stub makes it; when the server starts, and when slots are added to it, those of all other
//! slots in the pool are made. A stub takes about 100 bytes of the server's memory, an empty slot nothing.

use super::known::find_slot;
use super::{SERVER, Server, bytes, lock, redirect, replication};
use crate::command::Command;
use crate::copy;
use crate::place::{SLOTS, slot_of};
use crate::reply::Reply;
use crate::store::Store;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use valkey_module::{Context, ContextFlags, raw};

/// What the names of stubs begin with. A slot in braces follows.
const STUB: &[u8] = b"ol:stub:{";

/// What a cluster's server knows of the slots.
pub(super) struct Slots {
    /// The names of the stubs.
    names: Vec<Vec<u8>>,
    /// Which slots have a stub.
    stubs: Mutex<Vec<bool>>,
    /// The newest stub of each slot. The end of an older one removes nothing.
    newest: Vec<AtomicU64>,
    /// Whether the slots that were in the pool at the start have their stubs.
    ready: AtomicBool,
}

/// The value of a stub.
struct Stub {
    slot: u16,
    number: u64,
}

impl Slots {
    pub(super) fn new() -> Slots {
        let mut names = vec![Vec::new(); SLOTS as usize];
        let mut left = names.len();
        for number in 0_u64.. {
            let name = [STUB, number.to_string().as_bytes(), b"}"].concat();
            let of_slot = &mut names[usize::from(slot_of(&name))];
            if of_slot.is_empty() {
                *of_slot = name;
                left -= 1;
                if left == 0 {
                    break;
                }
            }
        }
        Slots {
            names,
            stubs: Mutex::new(vec![false; SLOTS as usize]),
            newest: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            ready: AtomicBool::new(false),
        }
    }

    fn new_stub(&self, slot: u16) -> *mut c_void {
        let number = self.newest[usize::from(slot)].fetch_add(1, Ordering::Relaxed) + 1;
        lock(&self.stubs)[usize::from(slot)] = true;
        Box::into_raw(Box::new(Stub { slot, number })).cast()
    }

    /// How many stubs there are.
    pub(super) fn count(&self) -> i64 {
        lock(&self.stubs).iter().filter(|&&has| has).count() as i64
    }

    /// Makes the stub of a slot, if it has none.
    pub(super) fn ensure(&self, ctx: *mut raw::RedisModuleCtx, slot: u16) {
        if lock(&self.stubs)[usize::from(slot)] {
            return;
        }
        let name = &self.names[usize::from(slot)];
        let mode = (raw::REDISMODULE_READ | raw::REDISMODULE_WRITE) as c_int;
        // SAFETY: the context is the server's, in its thread; name and key are given back.
        unsafe {
            let create = raw::RedisModule_CreateString.expect("all servers have it");
            let name = create(ctx, name.as_ptr().cast(), name.len());
            let key = raw::RedisModule_OpenKey.expect("all servers have it")(ctx, name, mode);
            let kind = raw::RedisModule_KeyType.expect("all servers have it")(key);
            if kind == raw::REDISMODULE_KEYTYPE_EMPTY as c_int {
                raw::RedisModule_ModuleTypeSetValue.expect("servers since 4.0 have it")(
                    key,
                    *replication::TYPE.raw_type.borrow(),
                    self.new_stub(slot),
                );
            } else {
                lock(&self.stubs)[usize::from(slot)] = true;
            }
            raw::RedisModule_CloseKey.expect("all servers have it")(key);
            raw::RedisModule_FreeString.expect("all servers have it")(ctx, name);
        }
    }

    /// Makes the stubs of all slots that have records, and that no other server has.
    pub(super) fn ensure_all(&self, store: &Store) {
        if self.ready.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: this is the server's thread; the context is given back.
        unsafe {
            let ctx = raw::RedisModule_GetThreadSafeContext.expect("servers since 4.0 have it")(
                null_mut(),
            );
            let flags = ContextFlags::LOADING;
            if !Context::new(ctx).get_flags().intersects(flags) {
                match store.slots() {
                    Ok(slots) => {
                        let taken = taken(&Context::new(ctx));
                        let ours = slots.into_iter().filter(|&slot| !taken[usize::from(slot)]);
                        ours.for_each(|slot| self.ensure(ctx, slot));
                        self.ready.store(true, Ordering::Relaxed);
                    }
                    Err(fault) => log(&format!("the slots cannot be listed: {fault}")),
                }
            }
            raw::RedisModule_FreeThreadSafeContext.expect("servers since 4.0 have it")(ctx);
        }
    }

    /// The server has emptied its database.
    pub(super) fn forget(&self) {
        lock(&self.stubs).fill(false);
        self.ready.store(false, Ordering::Relaxed);
    }
}

/// Returns which slots other servers have, and neither this one nor its primary. An interrupted move can have left
/// records of such a slot. It gets no stub: Valkey dies if it is to take a slot of which it has keys.
fn taken(ctx: &Context) -> Vec<bool> {
    let mut taken = vec![false; SLOTS as usize];
    let Ok(Reply::Array(ranges)) = redirect::native(ctx, "cluster", &[b"slots"]) else {
        return taken;
    };
    // SAFETY: the servers of a cluster have an id of 40 letters, which lives as long as they.
    let me = unsafe {
        let id = raw::RedisModule_GetMyClusterID.expect("servers since 5.0 have it")();
        std::slice::from_raw_parts(id.cast::<u8>(), 40)
    };
    let is_me = |node: &Reply| match node {
        Reply::Array(parts) => matches!(parts.get(2), Some(Reply::Bulk(id)) if id == me),
        _ => false,
    };
    for range in &ranges {
        let Reply::Array(parts) = range else { continue };
        let [Reply::Int(first), Reply::Int(last), nodes @ ..] = &parts[..] else { continue };
        if !nodes.iter().any(is_me) {
            taken[*first as usize..=*last as usize].fill(true);
        }
    }
    taken
}

/// Returns whether the keys of a command are here. While a slot is moved key by key, the server runs scripts in the new
/// place, because it knows nothing of our keys: they have to wait until the stub has come.
pub(super) fn has_come(ctx: &Context, server: &Server, command: &Command, args: &[&[u8]]) -> bool {
    let Some(slots) = &server.slots else { return true };
    let flags = ctx.get_flags();
    if !flags.contains(ContextFlags::LUA) || flags.contains(ContextFlags::REPLICATED) {
        return true;
    }
    find_slot(command, args)
        .is_none_or(|slot| lock(&slots.stubs)[usize::from(slot)] || !taken(ctx)[usize::from(slot)])
}

fn log(text: &str) {
    valkey_module::logging::log_warning(format!("outlast: {text}"));
}

/// Returns whether a key of the server is a stub.
pub(super) fn is_stub(key: &[u8]) -> bool {
    key.starts_with(STUB)
}

/// Returns whether the first argument of a command is a stub.
///
/// # Safety
/// The filter's context is the server's.
pub(super) unsafe fn names_stub(filter: *mut raw::RedisModuleCommandFilterCtx) -> bool {
    // SAFETY: as the caller says; there is an argument if it is not null.
    unsafe {
        let arg = raw::RedisModule_CommandFilterArgGet.expect("servers have it")(filter, 1);
        !arg.is_null() && is_stub(bytes(arg))
    }
}

/// Looks at a call of `CLUSTER`. Slots that it adds to this server get their stubs soon, if it has records of them.
///
/// # Safety
/// The filter's context is the server's.
pub(super) unsafe fn notice(filter: *mut raw::RedisModuleCommandFilterCtx, server: &Server) {
    // SAFETY: as the caller says; there is an argument if it is not null.
    unsafe {
        let arg = raw::RedisModule_CommandFilterArgGet.expect("servers have it")(filter, 1);
        if let Some(slots) = server.slots.as_ref().filter(|_| !arg.is_null())
            && bytes(arg).to_ascii_lowercase().starts_with(b"addslots")
        {
            slots.ready.store(false, Ordering::Relaxed);
        }
    }
}

/// Gives a command of ours, at the beginning of its arguments, the stub of its keys' slot. Does nothing to a
/// command without keys, with keys of several slots, which the server refuses, or in a script: Valkey's scripts keep
/// the array of arguments, which an insertion moves.
///
/// # Safety
/// The filter's context is the server's.
pub(super) unsafe fn add_stub(
    filter: *mut raw::RedisModuleCommandFilterCtx,
    server: &Server,
    command: &Command,
) {
    let Some(slots) = &server.slots else { return };
    // SAFETY: without a context, the flags are those of the server.
    let flags =
        unsafe { raw::RedisModule_GetContextFlags.expect("servers since 4.0 have it")(null_mut()) };
    if flags & raw::REDISMODULE_CTX_FLAGS_LUA as c_int != 0 {
        return;
    }
    // SAFETY: as the caller says; the server keeps the arguments during the call, and takes new ones.
    unsafe {
        let count = raw::RedisModule_CommandFilterArgsCount.expect("servers have it")(filter);
        let get = raw::RedisModule_CommandFilterArgGet.expect("servers have it");
        let args: Vec<&[u8]> = (1..count).map(|n| bytes(get(filter, n))).collect();
        let Some(slot) = find_slot(command, &args) else { return };
        let create = raw::RedisModule_CreateString.expect("all servers have it");
        let name = [b"olc.", command.name.as_bytes()].concat();
        let name = create(null_mut(), name.as_ptr().cast(), name.len());
        let stub = &slots.names[usize::from(slot)];
        let stub = create(null_mut(), stub.as_ptr().cast(), stub.len());
        raw::RedisModule_CommandFilterArgReplace.expect("servers have it")(filter, 0, name);
        raw::RedisModule_CommandFilterArgInsert.expect("servers have it")(filter, 1, stub);
    }
}

// ---- The type ---------------------------------------------------------------------------

/// Saves a stub: the slot's records, if it is sent to another server.
pub(super) extern "C" fn save(rdb: *mut raw::RedisModuleIO, value: *mut c_void) {
    let Some(server) = SERVER.get() else { return };
    // SAFETY: the server passes a value of ours.
    let slot = unsafe { &*value.cast::<Stub>() }.slot;
    raw::save_unsigned(rdb, slot.into());
    let has_records = !server.copies.is_snapshot();
    raw::save_unsigned(rdb, has_records.into());
    if has_records {
        let done = copy::export(&server.store, Some(slot), &mut |words| {
            raw::save_slice(rdb, &copy::encode(words));
            Ok(())
        });
        if let Err(fault) = done {
            log(&format!("slot {slot} cannot be read: {fault}"));
            // The other server refuses what has no end, and nothing is removed here.
            raw::save_slice(rdb, b"?");
            return;
        }
    }
    raw::save_slice(rdb, &[]);
}

/// Loads a stub, and the records that come with it.
pub(super) extern "C" fn load(rdb: *mut raw::RedisModuleIO, _: c_int) -> *mut c_void {
    match read(rdb) {
        Ok(stub) => stub,
        Err(why) => {
            log(&format!("a slot's records are refused: {why}"));
            null_mut()
        }
    }
}

fn read(rdb: *mut raw::RedisModuleIO) -> Result<*mut c_void, String> {
    let server = SERVER.get().ok_or("the module is not loaded")?;
    let slots = server.slots.as_ref().ok_or("this is no server of a cluster")?;
    let text = |error: valkey_module::error::Error| error.to_string();
    let slot = raw::load_unsigned(rdb).map_err(text)?;
    let slot = u16::try_from(slot).ok().filter(|&slot| u64::from(slot) < SLOTS);
    let slot = slot.ok_or("there is no such slot")?;
    if raw::load_unsigned(rdb).map_err(text)? != 0 {
        // What an earlier move has left here, if the server died before all of it was removed.
        server.store.clear_slot(slot).map_err(|fault| fault.to_string())?;
    }
    server.absent.forget_all();
    loop {
        let call = raw::load_string_buffer(rdb).map_err(text)?;
        if call.as_ref().is_empty() {
            break;
        }
        copy::import(&server.store, call.as_ref()).map_err(|fault| fault.to_string())?;
    }
    Ok(slots.new_stub(slot))
}

/// A stub has gone, and so do the slot's records.
pub(super) extern "C" fn unlink(_: *mut raw::RedisModuleString, value: *const c_void) {
    let Some(server) = SERVER.get() else { return };
    let Some(slots) = &server.slots else { return };
    // SAFETY: the server passes a value of ours.
    let stub = unsafe { &*value.cast::<Stub>() };
    let number = usize::from(stub.slot);
    if slots.newest[number].load(Ordering::Relaxed) != stub.number {
        return;
    }
    lock(&slots.stubs)[number] = false;
    if let Err(fault) = server.store.clear_slot(stub.slot) {
        log(&format!("records of slot {number} are left here: {fault}"));
    }
}

// ---- Atomic slot migration --------------------------------------------------------------

/// The option that says that the module can handle it, in Valkey since 9.0.
pub(super) const MIGRATION_OPTION: c_int = if cfg!(feature = "redis") { 0 } else { 1 << 5 };
/// The event that tells of it. Redis has another one of this number, later than 7.0.
pub(super) const MIGRATION_EVENT: u64 = if cfg!(feature = "redis") { u64::MAX } else { 19 };
/// Its first kind: another server begins to send slots.
const IMPORT_STARTED: u64 = 0;

/// What the server tells of it.
#[repr(C)]
struct Migration {
    _version: u64,
    _name: [c_char; 41],
    ranges: *const SlotRange,
    count: u32,
}

/// The first and the last slot of a range.
#[repr(C)]
struct SlotRange {
    first: c_int,
    last: c_int,
}

/// Slots come from another server, or have come, or do not come.
pub(super) extern "C" fn migration(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    which: u64,
    data: *mut c_void,
) {
    let Some(server) = SERVER.get().filter(|_| which == IMPORT_STARTED) else { return };
    // SAFETY: the server passes this structure, which lives during the call, with so many ranges.
    let ranges = unsafe {
        let migration = &*data.cast::<Migration>();
        std::slice::from_raw_parts(migration.ranges, migration.count as usize)
    };
    for slot in ranges.iter().flat_map(|range| range.first..=range.last) {
        // What an earlier move has left here, if the server died before all of it was removed.
        if let Err(fault) = server.store.clear_slot(slot as u16) {
            log(&format!("old records of slot {slot} are left here: {fault}"));
        }
    }
}

/// In a child, writes the calls that make a slot's records elsewhere. The server's log gets none.
pub(super) extern "C" fn rewrite(
    aof: *mut raw::RedisModuleIO,
    _: *mut raw::RedisModuleString,
    value: *mut c_void,
) {
    let Some(server) = SERVER.get().filter(|server| !server.copies.is_log()) else { return };
    // SAFETY: the server passes a value of ours.
    let slot = unsafe { &*value.cast::<Stub>() }.slot;
    if let Err(error) = server.copies.ask(Some(slot), |call| emit(aof, call)) {
        log(&format!("slot {slot} cannot be read: {error}"));
        // The server takes the move for failed.
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(1) }
    }
}

/// Writes a call of a copy.
fn emit(aof: *mut raw::RedisModuleIO, call: &[u8]) {
    let words = copy::decode(call).expect("a call of the parent");
    let name = CString::new([b"ol.", words[0]].concat()).expect("a name without zeros");
    // SAFETY: the format says that a vector of strings and its length follow. The strings are freed after the call.
    unsafe {
        let create = raw::RedisModule_CreateString.expect("all servers have it");
        let free = raw::RedisModule_FreeString.expect("all servers have it");
        let args =
            words[1..].iter().map(|word| create(null_mut(), word.as_ptr().cast(), word.len()));
        let args: Vec<_> = args.collect();
        let emit = raw::RedisModule_EmitAOF.expect("all servers have it");
        emit(aof, name.as_ptr(), c"v".as_ptr(), args.as_ptr(), args.len());
        args.into_iter().for_each(|arg| free(null_mut(), arg));
    }
}

pub(super) extern "C" fn free(value: *mut c_void) {
    // SAFETY: `new_stub` has made it, and the server gives it back once.
    drop(unsafe { Box::from_raw(value.cast::<Stub>()) });
}
