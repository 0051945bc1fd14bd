//! Eviction: a pool that is nearly full drops keys.
//!
//! The pool gives its space in pages, each to blocks of one size, so a full pool can lack blocks of the one
//! size that a change needs. So eviction begins before: from [`SHARE`] of the pool on, a change first drops
//! keys of as many bytes as it brings. The rest of the pool is for other sizes and for the map's nodes. If a
//! change still finds no room, neighbors go together, which frees nodes, too.

use super::{Server, is_replicated, replicate_call};
use crate::command::{Call, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use valkey_module::Context;

/// Eviction begins when so many sixteenths of the pool are in use.
const SHARE: u64 = 14;
/// After so many changes it is looked at again how much is in use.
const CHANGES: u64 = 1 << 10;
/// The most keys that are evicted before a change, if the pool is not full.
const BEFORE: usize = 64;
/// How often a change is tried again in a full pool, and how many neighbors are looked at each time.
const TURNS: usize = 16;
const NEIGHBORS: usize = 512;

/// Whether keys are evicted now.
#[derive(Default)]
pub(super) struct Eviction {
    changes: AtomicU64,
    is_due: AtomicBool,
    evicted: AtomicU64,
}

impl Eviction {
    /// How many keys were evicted.
    pub(super) fn count(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    fn note(&self, ctx: &Context, key: Vec<u8>) {
        self.evicted.fetch_add(1, Ordering::Relaxed);
        replicate_call(ctx, &[b"ol.del".to_vec(), key]);
    }
}

fn bytes_of(args: &[&[u8]]) -> u64 {
    args.iter().map(|arg| arg.len() as u64).sum()
}

/// Drops keys before a command that may need room.
pub(super) fn make_room(ctx: &Context, server: &Server, command: &Command, args: &[&[u8]]) {
    let Some(max) = server.settings.max_size.filter(|_| server.settings.evict) else { return };
    let eviction = &server.eviction;
    if !command.flags.contains("deny-oom") {
        return;
    }
    if eviction.changes.fetch_add(1, Ordering::Relaxed).is_multiple_of(CHANGES) {
        let stats = server.store.pool().stats();
        let in_use = stats.size - stats.free_page_bytes;
        eviction.is_due.store(in_use > max / 16 * SHARE, Ordering::Relaxed);
    }
    // A replica follows its primary, which has the same bound.
    if !eviction.is_due.load(Ordering::Relaxed) || is_replicated(ctx) {
        return;
    }
    let mut wanted = bytes_of(args).min(max / 2);
    for _ in 0..BEFORE {
        // If this fails, the change may fail too, and says why.
        let Ok(Some((key, bytes))) = server.store.evict() else { return };
        eviction.note(ctx, key);
        wanted = wanted.saturating_sub(bytes);
        if wanted == 0 {
            return;
        }
    }
}

/// Tries a command again that found no room, and so has changed nothing, after keys were dropped.
pub(super) fn retry(
    ctx: &Context,
    server: &Server,
    command: &Command,
    call: &mut Call<'_>,
    mut result: crate::reply::Result,
) -> crate::reply::Result {
    let Some(max) = server.settings.max_size.filter(|_| server.settings.evict) else {
        return result;
    };
    if bytes_of(call.args) > max / 2 {
        return result;
    }
    for _ in 0..TURNS {
        let keys = server.store.evict_neighbors(NEIGHBORS)?;
        if keys.is_empty() {
            break;
        }
        keys.into_iter().for_each(|key| server.eviction.note(ctx, key));
        call.replicate = crate::command::Replicate::Verbatim;
        result = command.call(call);
        if !matches!(&result, Err(fault) if fault.is_full()) {
            break;
        }
    }
    result
}
