//! `space`: where every byte of a pool's file goes, after inserts alone.
//!
//! A pool is filled and closed. Then [`outlast_offline`] walks its file; that walk shares no code
//! with the allocator. The kinds of bytes add up to the file's size.

use crate::Fallible;
use crate::keys::{Keys, value};
use crate::report::{Report, Show, rounded};
use crate::run::Run;
use crate::scratch::Scratch;
use crate::systems::{Setup, create_map, create_pool};
use outlast::Scheme;
use outlast_offline as offline;
use serde::{Deserialize, Serialize};

/// Options of the command.
#[derive(Debug, Clone)]
pub struct Options {
    /// The setup of the pool.
    pub setup: Setup,
    /// Number of records inserted.
    pub records: u64,
}

/// The bytes of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The kind.
    pub what: String,
    /// Whether it counts towards `bytes_per_record/pool` of `micro`. Free pages and the state saved
    /// by a close do not.
    pub counted: bool,
    /// Number of bytes.
    pub bytes: u64,
    /// Bytes per record.
    pub bytes_per_record: f64,
}

/// Measures the pool, and prints a row for each kind of bytes, for their sum without free pages,
/// and for the file.
///
/// # Errors
/// If an option is invalid, if an insert fails, and if the walk finds damage or a different number
/// of records.
pub fn run(options: &Options, report: &mut Report) -> Fallible<Vec<Row>> {
    let Options { setup, records } = options;
    setup.check()?;
    setup.check_records(*records, 1)?;
    #[derive(Serialize)]
    struct Own {
        records: u64,
    }
    let run = Run::on_files("space", setup, &[setup.scheme])?;
    report.run(&run, &Own { records: *records })?;
    let rows = account(options)?;
    for row in &rows {
        report.row("space", row)?;
    }
    report.table(
        "space",
        &[
            ("what", "/what", Show::Text),
            ("bytes", "/bytes", Show::Count),
            ("B/record", "/bytes_per_record", Show::Decimal(3)),
        ],
    )?;
    Ok(rows)
}

fn account(options: &Options) -> Fallible<Vec<Row>> {
    let Options { setup, records } = options;
    let dir = Scratch::create(&setup.dir)?;
    let path = dir.path().join("pool");
    let pool = create_pool(setup, &path)?;
    let map = create_map(setup, &pool)?;
    let keys = Keys::new(setup.seed);
    let mut hand = setup.hand();
    for key in (0..*records).map(|number| keys.key(number)) {
        let (key, value) = hand.pair_bytes(key, value(key, 0));
        map.insert(key, value)?;
    }
    let stats = map.stats()?;
    drop(map);
    pool.close()?;
    let found = offline::walk(&path)?;
    if let Some(damage) = found.problems.first() {
        return Err(format!("the pool is damaged: {damage}").into());
    }
    if found.records != *records || found.maps.len() != 1 || found.leaked_bytes > 0 {
        return Err(format!("not what was made: {found:?}").into());
    }
    let slot = setup.scheme.row().slot_bytes;
    let slots = match setup.scheme {
        // The index's own count, because levels have different sizes, and chains different lengths.
        Scheme::Clevel | Scheme::EaPht | Scheme::EaPhtH | Scheme::EaPhtHpr => stats.slots,
        // The walk has counted the segments, while the index may have sampled them.
        _ => found.maps[0].segments * (stats.slots / stats.segments.max(1)),
    };
    let in_nodes = found.structure_bytes.checked_sub(slots * slot);
    let in_nodes = in_nodes.ok_or("more slots than the bytes of the structure")?;
    let free_pages = found.free_bytes - found.free_block_bytes;
    let kinds = [
        ("slots with a record", true, records * slot),
        ("empty slots", true, (slots - records.min(&slots)) * slot),
        ("headers, directory, overflow nodes", true, in_nodes),
        ("blocks of records", true, found.record_bytes),
        ("free blocks", true, found.free_block_bytes),
        ("ends of runs", true, found.unusable_bytes - found.saved_bytes),
        ("the pool's header and descriptors", true, found.header_bytes),
        ("saved free state", false, found.saved_bytes),
        ("free pages", false, free_pages),
    ];
    let row = |what: &str, counted: bool, bytes: u64| Row {
        what: what.into(),
        counted,
        bytes,
        bytes_per_record: rounded(bytes as f64 / *records as f64, 4),
    };
    let mut rows: Vec<Row> =
        kinds.iter().map(|(what, own, bytes)| row(what, *own, *bytes)).collect();
    let counted = kinds.iter().filter(|(_, counted, _)| *counted).map(|kind| kind.2).sum();
    rows.push(row("pool without free pages", true, counted));
    let file = kinds.iter().map(|kind| kind.2).sum();
    if file != std::fs::metadata(&path)?.len() {
        return Err(format!("{file} bytes accounted for, not those of the file").into());
    }
    rows.push(row("file", false, file));
    Ok(rows)
}
