//! Power cuts of a pool with a journal, whose disk loses what was not flushed.

use super::Stage;
use super::trial::{Pool, Trial};
use crate::state::ensure;
use crate::vm::ledger::Keeps;
use crate::vm::machine::{DEVICE_BYTES, Hardware};
use crate::vm::nbd::Server;
use crate::vm::volume::Volume;
use crate::vm::{Cuts, Ended, FileSystem, JournalCut};
use std::time::Instant;

/// From this many cuts on, each kind of event must have happened at least once.
const MANY: u64 = 10;

/// Begins a trial on an empty disk.
fn trial<'t>(stage: &'t Stage<'t>, options: &JournalCut) -> Result<Trial<'t>, Ended> {
    let place = match options.file_system {
        FileSystem::Ext4 => "disk",
        FileSystem::Xfs => "disk-xfs",
    };
    let socket = stage.factory.dir.join(format!("{place}.socket"));
    // An earlier trial may have left the socket.
    let _ = std::fs::remove_file(&socket);
    let server = Server::new(Volume::new(DEVICE_BYTES as usize), &socket)?;
    let hardware = Hardware { disk: Some(server.name()), ..Hardware::default() };
    let also = if options.without_sync { " --journal --without-sync" } else { " --journal" };
    let (medium, keeps, server) = ("journal", Keeps::Waited, Some(server));
    Ok(Trial::new(stage, options.cuts, Pool { place, medium, keeps, hardware, server, also }))
}

pub(super) fn cut(stage: &Stage<'_>, options: &JournalCut) -> Result<(), Ended> {
    let start = Instant::now();
    let mut trial = trial(stage, options)?;
    let done = trial.cut_all()?;
    let totals = trial.ledger.totals();
    let disk = trial.pool.server.as_ref().map(|server| server.volume().counts());
    let disk = disk.unwrap_or_default();
    let (place, seed) = (trial.pool.place, stage.args.seed);
    let ms = |micros: u64| micros as f64 / 1e3;
    stage.tell(&format!(
        "{} checks of all keys, {} cuts while opening, {} operations in flight found done, longest \
         open {:.1} ms, longest pause of the guest {:.1} ms, {} cuts that took back something \
         older than the interval and the longest commit; the disk did {} writes and {} flushes, \
         dropped {} sectors and kept {} that were not flushed; {} s",
        totals.checks,
        totals.cut_while_opening,
        totals.in_flight,
        ms(trial.opened_micros_max),
        ms(totals.gap_micros),
        totals.older,
        disk.writes,
        disk.flushes,
        disk.dropped,
        disk.kept,
        start.elapsed().as_secs()
    ));
    stage.result(
        &format!(
            "{done} power cuts on {place} with a journal, seed {seed}: {} operations acknowledged, \
             {} of them waited for, {} old enough, {} lost, {} torn; {} of the newest taken back, \
             the oldest of them {:.1} ms old; longest commit {:.1} ms, {} checkpoints",
            totals.acknowledged,
            totals.waited,
            totals.aged,
            totals.lost,
            totals.torn,
            totals.taken_back,
            ms(totals.oldest_micros),
            ms(totals.commit_micros),
            totals.checkpoints
        ),
        &format!(
            "{{\"scenario\":\"journal-cut\",\"place\":\"{place}\",\"seed\":{seed},\"cuts\":{done},\
             \"cut_while_opening\":{},\"acknowledged\":{},\"confirmed\":{},\"old_enough\":{},\"lost\":{},\"torn\":{},\
             \"taken_back\":{},\"oldest_taken_back_ms\":{:.1},\"older_than_promised\":{},\
             \"longest_commit_ms\":{:.1},\"longest_pause_ms\":{:.1},\"checkpoints\":{},\
             \"flushes\":{},\"sectors_dropped\":{},\"sectors_kept\":{}}}",
            totals.cut_while_opening,
            totals.acknowledged,
            totals.waited,
            totals.aged,
            totals.lost,
            totals.torn,
            totals.taken_back,
            ms(totals.oldest_micros),
            totals.older,
            ms(totals.commit_micros),
            ms(totals.gap_micros),
            totals.checkpoints,
            disk.flushes,
            disk.dropped,
            disk.kept
        ),
    );
    trial.verdict()?;
    // An event that never happened was not tested.
    let mut events = vec![("flush of the disk", disk.flushes)];
    if done >= MANY {
        events.extend([
            ("operation that was waited for", totals.waited),
            ("operation that was old enough", totals.aged),
            ("operation taken back", totals.taken_back),
            ("checkpoint", totals.checkpoints),
            ("sector dropped", disk.dropped),
            ("cut while opening", totals.cut_while_opening),
        ]);
    }
    for (event, count) in events {
        ensure(done == 0 || count > 0, || format!("not one {event}"))?;
    }
    Ok(())
}

/// Checks that a journal that does not sync loses something, and that this is noticed.
pub(super) fn mutant(stage: &Stage<'_>) -> Result<(), Ended> {
    let (file_system, without_sync) = (FileSystem::Ext4, true);
    let options = JournalCut { cuts: Cuts::default(), file_system, without_sync };
    trial(stage, &options)?.notices("journal-mutant", |_| true)
}
