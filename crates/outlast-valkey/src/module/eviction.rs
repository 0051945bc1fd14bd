//! Eviction: a pool that is nearly full drops keys.
//!
//! The pool gives its space in pages, each to blocks of one size, so a full pool can lack blocks of the one
//! size that a change needs. So eviction begins before: from [`SHARE`] of the pool on, a change first drops
//! keys of as many bytes as it brings. The rest of the pool is for other sizes and for the map's nodes. If a
//! change still finds no room, neighbors go together, which frees nodes, too.
//!
//! A large value needs pages that lie side by side, which keys of small values do not free, however many go. So it
//! takes the place of other large values only, and if there are none, it is refused.

use super::{Server, is_replicated, replicate_call, signal};
use crate::command::{Call, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use valkey_module::{Context, ValkeyString};

/// Eviction begins when so many sixteenths of the pool are in use.
const SHARE: u64 = 14;
/// After so many changes it is looked at again how much is in use, and before each large one.
const CHANGES: u64 = 1 << 10;
/// The most keys that are evicted before a change, if the pool is not full.
const BEFORE: usize = 64;
/// How often a change is tried again in a full pool, and how many neighbors are looked at each time.
const TURNS: usize = 16;
const NEIGHBORS: usize = 512;
/// How many bytes of values go at most with the neighbors of one turn, beyond those of one of them.
const NEIGHBORS_BYTES: u64 = 4 << 20;
/// From so many bytes on, a change is large: its blocks have pages of their own.
const LARGE: u64 = 32 << 10;
/// The largest block that a full pool lacks for a change that is not large: pages for blocks of one size.
const LARGEST_RUN: u64 = 512 << 10;

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
        signal(ctx, ValkeyString::create_from_slice(ctx.ctx, &key).inner);
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
    let mut wanted = bytes_of(args);
    let large = Some(wanted).filter(|&wanted| wanted > LARGE);
    let changes = eviction.changes.fetch_add(1, Ordering::Relaxed);
    if changes.is_multiple_of(CHANGES) || large.is_some() {
        let stats = server.store.pool().stats();
        let in_use = stats.size - stats.free_page_bytes;
        eviction.is_due.store(in_use > max / 16 * SHARE, Ordering::Relaxed);
    }
    // A replica follows its primary, which has the same bound.
    if !eviction.is_due.load(Ordering::Relaxed) || is_replicated(ctx) || wanted > max / 2 {
        return;
    }
    for _ in 0..BEFORE {
        let evicted = match large {
            Some(wanted) => server.store.evict_large(wanted),
            None => server.store.evict(),
        };
        // If this fails, the change may fail too, and says why.
        let Ok(Some((key, bytes))) = evicted else { return };
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
    let needed = match &result {
        Err(fault) if fault.needed() > LARGEST_RUN => fault.needed(),
        _ => 0,
    };
    let wanted = bytes_of(call.args).max(needed);
    if wanted > max / 2 {
        return result;
    }
    for _ in 0..TURNS {
        let keys = match wanted > LARGE {
            true => server.store.evict_large(wanted)?.map(|(key, _)| key).into_iter().collect(),
            false => server.store.evict_neighbors(NEIGHBORS, NEIGHBORS_BYTES)?,
        };
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
