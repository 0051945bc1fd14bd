//! `stat`: prints the properties of a pool and its maps.

use crate::args::StatArgs;
use crate::failure::Failure;
use crate::open;
use crate::output::Output;
use crate::place;
use crate::table::table;
use indicatif::{BinaryBytes, HumanCount};
use outlast::internals::pmem::Medium;
use outlast::{
    CacheStats, IndexStats, JournalFacts, MapInfo, MediumKind, Pool, PoolFacts, PoolOptions,
    ReclaimState,
};
use outlast_live::Client;
use serde_json::{Value, json};
use std::path::Path;

pub(crate) fn run(pool: Option<&Path>, args: &StatArgs, out: &mut Output) -> Result<(), Failure> {
    let path = open::path(pool)?;
    let Some(pool) = open::to_read_if_free(&path, args.accept_possibly_torn)? else {
        let facts = PoolOptions::new().facts(&path).map_err(|e| open::about(&path, e))?;
        return print_in_use(&path, facts, out);
    };
    print_pool(&path, &pool, out)?;
    let stats = |info: MapInfo| Ok((pool.raw_map(&info.name)?.stats()?, info));
    print_maps(pool.maps().into_iter().map(|info| info.and_then(stats)), out)
}

/// Prints a table of the maps, and then the first error.
fn print_maps(
    maps: impl Iterator<Item = outlast::Result<(IndexStats, MapInfo)>>,
    out: &mut Output,
) -> Result<(), Failure> {
    let mut damaged = None;
    let headings = [
        "map", "scheme", "form", "keys", "values", "records", "load", "segments", "entries", "DRAM",
    ];
    let mut table = table(headings, 5);
    for map in maps {
        match map {
            Ok((stats, info)) => {
                map_object(&info, &stats, out)?;
                table.add_row(map_row(&info, &stats, out));
            }
            Err(error) => damaged = damaged.or(Some(error)),
        }
    }
    if table.row_count() > 0 {
        out.line(table.to_string())?;
    }
    damaged.map_or(Ok(()), |error| Err(error.into()))
}

/// Prints a table of the caches that a process has open.
fn print_caches(
    caches: impl Iterator<Item = (CacheStats, MapInfo)>,
    out: &mut Output,
) -> Result<(), Failure> {
    let headings = ["cache", "records", "bytes", "hits", "misses", "evictions", "expired"];
    let mut table = table(headings, 1);
    for (stats, info) in caches {
        out.object(&json!({
            "event": "cache",
            "name": info.name,
            "records": stats.records,
            "bytes": stats.bytes,
            "hits": stats.hits,
            "misses": stats.misses,
            "evictions": stats.evictions,
            "expired": stats.expired,
        }))?;
        let count = |number| HumanCount(number).to_string();
        table.add_row([
            out.shown(&info.name),
            count(stats.records),
            BinaryBytes(stats.bytes).to_string(),
            count(stats.hits),
            count(stats.misses),
            count(stats.evictions),
            count(stats.expired),
        ]);
    }
    if table.row_count() > 0 {
        out.line(table.to_string())?;
    }
    Ok(())
}

fn reclaim(state: &ReclaimState) -> String {
    match state {
        ReclaimState::Done => "done".into(),
        // A read-only open cannot run the reclaim.
        ReclaimState::Running => "pending".into(),
        ReclaimState::Stopped(damage) => format!("stopped by damage {damage}"),
        other => format!("{other:?}"),
    }
}

/// The medium of a pool, and which failures the pool survives.
struct Survival {
    medium: Medium,
    /// Whether the effect of every call that returned survives a power loss.
    all: bool,
    /// Whether what was explicitly made durable survives a power loss: by closing or `sync`, or,
    /// with a journal, by `wait_durable`.
    confirmed: bool,
    text: &'static str,
}

impl Survival {
    /// `written` is the medium that the last writer found.
    fn of(path: &Path, written: MediumKind, journal: Option<&JournalFacts>, suspect: bool) -> Self {
        let kind = match (journal, written) {
            (Some(_), _) => MediumKind::Journal,
            // A snapshot of a pool with a journal still records that medium, but has no journal.
            (None, MediumKind::Journal) => MediumKind::PageCache,
            (None, written) => written,
        };
        let medium = Medium::detect(kind);
        let mut files = [Some(path), journal.map(|journal| &*journal.directory)].into_iter();
        let in_memory = files.any(|path| path.is_some_and(place::is_in_memory));
        let is_gone = journal.is_some_and(|journal| !journal.closed && journal.segments == 0);
        let confirmed = !in_memory && !suspect && !is_gone;
        let all = medium.survives_power_loss() && confirmed;
        let text = if in_memory {
            "process death, but no power loss, because the pool or its journal is on a file system in memory"
        } else if is_gone {
            "process death, but no power loss, because its journal is gone; `outlast accept` helps"
        } else if suspect {
            "process death; perhaps not a power loss, until `outlast accept` has found the pool sound"
        } else if all {
            "process death and power loss"
        } else if medium.kind == MediumKind::Journal {
            "process death; power loss, except for the newest changes that no thread waited for"
        } else {
            "process death; power loss only once closed or synced"
        };
        Survival { medium, all, confirmed, text }
    }
}

fn print_pool(path: &Path, pool: &Pool, out: &mut Output) -> Result<(), Failure> {
    let (stats, durability) = (pool.stats(), pool.durability());
    let journal = PoolOptions::new().facts(path).ok().and_then(|facts| facts.journal);
    let survival = Survival::of(path, durability.medium, journal.as_ref(), durability.is_suspect);
    let medium = survival.medium;
    let mut object = json!({
        "event": "pool",
        "path": path.to_string_lossy(),
        "id": format!("{:032x}", pool.id()),
        "in_use": false,
        "medium": medium.kind.to_string(),
        "flush": medium.flush.to_string(),
        "survives_process_death": true,
        "survives_power_loss": survival.all,
        "confirmed_survives_power_loss": survival.confirmed,
        "size_bytes": stats.size,
        "limit_bytes": stats.limit,
        "free_page_bytes": stats.free_page_bytes,
        "page_bytes": 1u64 << stats.page_bits,
        "huge_page_bytes": stats.huge_page_bytes,
        "reclaim": reclaim(&stats.reclaim),
        "unfreeable_blocks": stats.unfreeable_blocks,
        "damaged_header_copy": stats.damaged_header_copy.as_ref().map(ToString::to_string),
    });
    if let Some(journal) = &journal {
        // A killed process has left it.
        object["working_file"] = working_file(journal);
    }
    out.object(&object)?;
    let huge = match stats.huge_page_bytes {
        Some(bytes) => BinaryBytes(bytes).to_string(),
        None => "unknown".into(),
    };
    let size = BinaryBytes(stats.size);
    let (free, limit) = (BinaryBytes(stats.free_page_bytes), BinaryBytes(stats.limit));
    out.line(format!("pool        {}", path.display()))?;
    out.line(format!("id          {:032x}", pool.id()))?;
    out.line(format!("medium      {}, {}", medium.kind, medium.flush))?;
    out.line(format!("survives    {}", survival.text))?;
    out.line(format!("size        {size}, {free} of it in free pages, may grow to {limit}"))?;
    out.line(format!("pages       {} each", BinaryBytes(1 << stats.page_bits)))?;
    out.line(format!("huge pages  {huge}"))?;
    let goes_on = match stats.reclaim {
        ReclaimState::Running => ": the next command that writes finishes it",
        _ => "",
    };
    out.line(format!("reclaim     {}{goes_on}", reclaim(&stats.reclaim)))?;
    if let Some(damage) = &stats.damaged_header_copy {
        out.line(format!("header      one copy is damaged {damage}"))?;
    }
    Ok(())
}

fn working_file(journal: &JournalFacts) -> Value {
    json!(journal.working.as_ref().map(|path| path.to_string_lossy()))
}

/// Prints what can be read from a pool's files while another process uses it.
fn print_in_use(path: &Path, facts: PoolFacts, out: &mut Output) -> Result<(), Failure> {
    // Only the process that uses the pool knows whether a write-back has failed. Assume that none
    // has.
    let survival = Survival::of(path, facts.medium, facts.journal.as_ref(), false);
    let medium = survival.medium;
    let mut object = json!({
        "event": "pool",
        "path": path.to_string_lossy(),
        "id": format!("{:032x}", facts.id),
        "in_use": true,
        "medium": medium.kind.to_string(),
        "flush": medium.flush.to_string(),
        "survives_process_death": true,
        "survives_power_loss": survival.all,
        "confirmed_survives_power_loss": survival.confirmed,
        "size_bytes": facts.size,
        "disk_bytes": facts.disk_bytes,
        "page_bytes": 1u64 << facts.page_bits,
    });
    if let Some(journal) = &facts.journal {
        for (field, value) in [
            ("durable_epoch", json!(journal.durable)),
            ("checkpoint_epoch", json!(journal.checkpoint)),
            ("base_bytes", json!(facts.file_bytes)),
            ("journal_bytes", json!(journal.bytes)),
            ("segments", json!(journal.segments)),
            ("working_file", working_file(journal)),
        ] {
            object[field] = value;
        }
    }
    out.object(&object)?;
    let (size, disk) = (BinaryBytes(facts.size), BinaryBytes(facts.disk_bytes));
    out.line(format!("pool        {}, in use by another process", path.display()))?;
    out.line(format!("id          {:032x}", facts.id))?;
    out.line(format!("medium      {}, {}", medium.kind, medium.flush))?;
    out.line(format!("survives    {}", survival.text))?;
    out.line(format!("size        {size}, its file takes {disk} on the disk"))?;
    out.line(format!("pages       {} each", BinaryBytes(1 << facts.page_bits)))?;
    if let Some(journal) = &facts.journal {
        let (base, bytes) = (BinaryBytes(facts.file_bytes), BinaryBytes(journal.bytes));
        let durable = journal.durable.map(|epoch| HumanCount(epoch).to_string());
        let durable = durable.unwrap_or("unknown".into());
        let checkpoint = HumanCount(journal.checkpoint);
        out.line(format!("journal     {bytes} in {} segments, base of {base}", journal.segments))?;
        out.line(format!("epochs      {durable} durable, {checkpoint} of them in the base"))?;
    }
    let client = Client::of(path);
    if client.is_served() {
        let maps = client.maps()?;
        let stats = |info: MapInfo| Ok((client.map(&info.name)?.stats()?, info));
        print_maps(maps.iter().cloned().map(stats), out)?;
        // An older version of the owner does not know caches.
        let caches = maps.into_iter().filter(|info| info.expires);
        let stats = |info: MapInfo| Some((client.map(&info.name).ok()?.cache_stats().ok()??, info));
        return print_caches(caches.filter_map(stats), out);
    }
    let mut table = table(["map", "scheme", "form", "keys", "values"], 5);
    let mut damaged = None;
    for info in facts.maps.into_iter().flatten() {
        match info {
            Ok(info) => {
                let object = described(&info);
                out.object(&object)?;
                table.add_row([
                    out.shown(&info.name),
                    info.scheme().to_string(),
                    info.form.to_string(),
                    info.key_schema,
                    info.value_schema,
                ]);
            }
            Err(error) => damaged = Some(error),
        }
    }
    if table.row_count() > 0 {
        out.line(table.to_string())?;
    }
    damaged.map_or(Ok(()), |error| Err(error.into()))
}

/// Returns what a map's root says about it, as JSON.
pub(super) fn described(info: &MapInfo) -> Value {
    json!({
        "event": "map",
        "name": info.name,
        "scheme": info.scheme().name(),
        "form": info.form.to_string(),
        "expires": info.expires,
        "key_schema": info.key_schema,
        "value_schema": info.value_schema,
    })
}

/// Rounds an estimate to three significant digits.
fn rounded(count: u64) -> u64 {
    let unit = 10u64.pow(count.checked_ilog10().unwrap_or(0).saturating_sub(2));
    count.saturating_add(unit / 2) / unit * unit
}

fn load_factor(stats: &IndexStats) -> f64 {
    if stats.slots == 0 { 0.0 } else { stats.records_estimate as f64 / stats.slots as f64 }
}

fn map_object(info: &MapInfo, stats: &IndexStats, out: &mut Output) -> Result<(), Failure> {
    let mut object = described(info);
    for (field, value) in [
        ("records_estimate", json!(stats.records_estimate)),
        ("slots", json!(stats.slots)),
        ("load_factor", json!(load_factor(stats))),
        ("segments", json!(stats.segments)),
        ("directory_entries", json!(stats.directory_entries)),
        ("dram_bytes", json!(stats.dram_bytes)),
    ] {
        object[field] = value;
    }
    out.object(&object)
}

fn map_row(info: &MapInfo, stats: &IndexStats, out: &Output) -> [String; 10] {
    [
        out.shown(&info.name),
        info.scheme().to_string(),
        if info.expires { "expiring".into() } else { info.form.to_string() },
        info.key_schema.clone(),
        info.value_schema.clone(),
        format!("~{}", HumanCount(rounded(stats.records_estimate))),
        format!("{:.0}%", 100.0 * load_factor(stats)),
        HumanCount(stats.segments).to_string(),
        HumanCount(stats.directory_entries).to_string(),
        BinaryBytes(stats.dram_bytes).to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn an_estimate_has_three_digits() {
        let pairs = [
            (0, 0),
            (7, 7),
            (999, 999),
            (1234, 1230),
            (99_950, 100_000),
            (u64::MAX, 18_400_000_000_000_000_000),
        ];
        for (count, expected) in pairs {
            assert_eq!(rounded(count), expected);
        }
    }
}
