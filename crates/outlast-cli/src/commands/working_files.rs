//! `working-files`: lists the working files of journaled pools, and removes those that nobody needs.

use crate::args::WorkingFilesArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::table::table;
use outlast::{PoolOptions, WorkingFile, WorkingFileUse};
use serde_json::json;

pub(crate) fn run(args: &WorkingFilesArgs, out: &mut Output) -> Result<(), Failure> {
    let files = PoolOptions::new().working_files(&args.directories)?;
    let mut listed = table(["file", "takes", "user", "pool", "needed"], 5);
    for file in &files {
        let is_unwanted = match file.use_of {
            WorkingFileUse::Needless => args.remove || args.remove_gone,
            WorkingFileUse::PoolGone => args.remove_gone,
            _ => false,
        };
        let removed = is_unwanted && {
            let gone = std::fs::remove_file(&file.path);
            gone.map_err(|e| Failure::io(format!("removing {}", file.path.display()), &e))?;
            true
        };
        out.object(&json!({
            "event": "working_file",
            "path": file.path.to_string_lossy(),
            "bytes": file.bytes,
            "owner": file.owner,
            "pool_id": file.pool.map(|id| format!("{id:032x}")),
            "pool": file.base.as_ref().map(|path| path.to_string_lossy()),
            "use": word_for(file.use_of),
            "removed": removed,
        }))?;
        listed.add_row(row(file, removed));
    }
    if files.is_empty() {
        return out.line("There are no working files.");
    }
    out.line(listed.to_string())
}

fn row(file: &WorkingFile, removed: bool) -> Vec<String> {
    let said = match (file.use_of, removed) {
        (_, true) => "removed",
        (WorkingFileUse::InUse, _) => "in use",
        (WorkingFileUse::Needed, _) => "by the pool, which was not closed",
        (WorkingFileUse::Needless, _) => "by nobody (--remove)",
        (WorkingFileUse::PoolGone, _) => "if the pool is elsewhere now (--remove-gone)",
        _ => "not known",
    };
    let pool = file.base.as_ref().map_or("not known".into(), |base| base.display().to_string());
    vec![
        file.path.display().to_string(),
        indicatif::BinaryBytes(file.bytes).to_string(),
        file.owner.to_string(),
        pool,
        said.into(),
    ]
}

fn word_for(use_of: WorkingFileUse) -> &'static str {
    match use_of {
        WorkingFileUse::InUse => "in_use",
        WorkingFileUse::Needed => "needed",
        WorkingFileUse::Needless => "needless",
        WorkingFileUse::PoolGone => "pool_gone",
        _ => "unknown",
    }
}
