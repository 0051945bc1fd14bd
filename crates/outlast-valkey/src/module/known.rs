//! The commands as the server knows them: their names and their keys.

use super::redirect::COMMON;
use crate::command::Command;
use crate::place::slot_of;
use std::ffi::CString;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use valkey_module::{Context, raw};

/// A command as the server knows it.
pub(super) struct Known {
    pub(super) command: &'static Command,
    /// Its name in the server, which begins with `ol.`.
    pub(super) name: CString,
    /// The name as one of the server's strings, for the filter.
    string: ServerString,
    /// Whether it is for keys of any type; see [`COMMON`].
    pub(super) is_common: bool,
}

/// A string of the server's that is never freed.
struct ServerString(*mut raw::RedisModuleString);

// SAFETY: only the server's thread uses the string.
unsafe impl Send for ServerString {}
// SAFETY: as above.
unsafe impl Sync for ServerString {}

impl Known {
    pub(super) fn new(command: &'static Command) -> Known {
        let name = CString::new(format!("ol.{}", command.name)).expect("no zeros");
        // SAFETY: the name lives during the call. The server frees a string at the end of a command only if it was made
        // with the command's context; this one has none.
        let string = unsafe {
            raw::RedisModule_CreateString.expect("all servers have it")(
                std::ptr::null_mut(),
                name.as_ptr(),
                name.as_bytes().len(),
            )
        };
        let is_common = COMMON.contains(&command.name);
        Known { command, name, string: ServerString(string), is_common }
    }

    /// Returns the name as an argument, which the server frees.
    pub(super) fn retain(&self) -> *mut raw::RedisModuleString {
        // SAFETY: the string is never freed, because this value keeps a reference to it.
        unsafe {
            raw::RedisModule_RetainString.expect("servers since 4.0 have it")(
                std::ptr::null_mut(),
                self.string.0,
            );
        }
        self.string.0
    }
}

/// Keys that are not ours, as far as is known, so that the server's own commands need not search for them. A command
/// of ours that may make a key takes it out first. Only the server's thread uses this.
pub(super) struct Absent {
    hasher: RandomState,
    hashes: Box<[AtomicU64]>,
}

impl Absent {
    /// How many keys are known at most.
    const ENTRIES: usize = 1 << 12;

    pub(super) fn new() -> Absent {
        let hashes = (0..Self::ENTRIES).map(|_| AtomicU64::new(0)).collect();
        Absent { hasher: RandomState::new(), hashes }
    }

    /// Returns the key's entry, and what it has if the key is known. No key's hash is 0.
    fn entry(&self, key: &[u8]) -> (&AtomicU64, u64) {
        let hash = self.hasher.hash_one(key) | 1 << 63;
        (&self.hashes[hash as usize % Self::ENTRIES], hash)
    }

    /// Returns whether a key is ours, which `find` finds out if it is not known.
    pub(super) fn is_ours(&self, key: &[u8], find: impl FnOnce() -> bool) -> bool {
        let (entry, hash) = self.entry(key);
        if entry.load(Ordering::Relaxed) == hash {
            return false;
        }
        let found = find();
        if !found {
            entry.store(hash, Ordering::Relaxed);
        }
        found
    }

    /// From now on, the key may be ours.
    pub(super) fn forget(&self, key: &[u8]) {
        let (entry, hash) = self.entry(key);
        if entry.load(Ordering::Relaxed) == hash {
            entry.store(0, Ordering::Relaxed);
        }
    }

    /// From now on, any key may be ours.
    pub(super) fn forget_all(&self) {
        self.hashes.iter().for_each(|entry| entry.store(0, Ordering::Relaxed));
    }
}

/// Returns those of a command's arguments that are keys.
pub(super) fn keys_of<'a, T>(command: &Command, args: &'a [T]) -> impl Iterator<Item = &'a T> {
    let (first, last, step) = command.keys;
    let first = usize::try_from(first - 1).unwrap_or(usize::MAX);
    let count = usize::try_from(last).unwrap_or(args.len());
    args.get(first..count).unwrap_or_default().iter().step_by(step.max(1) as usize)
}

/// Tells the server that a key has changed, for clients that watch or track it.
pub(super) fn signal(ctx: &Context, key: *mut raw::RedisModuleString) {
    // SAFETY: context and string are the server's, and live during the call.
    unsafe {
        raw::RedisModule_SignalModifiedKey.expect("servers since 6.0 have it")(ctx.ctx, key);
    }
}

/// Returns the slot of a command's keys, if it has keys, all of one slot.
pub(super) fn find_slot(command: &Command, args: &[&[u8]]) -> Option<u16> {
    let mut slots = keys_of(command, args).map(|key| slot_of(key));
    let slot = slots.next()?;
    slots.all(|other| other == slot).then_some(slot)
}
