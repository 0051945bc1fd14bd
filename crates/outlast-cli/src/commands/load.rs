//! `load`: loads records from a file.

use super::input::{How, Records};
use crate::args::{Format, LoadArgs};
use crate::failure::Failure;
use crate::interrupt;
use crate::open::{self, Target};
use crate::output::Output;
use crate::progress;
use crate::text::counted;
use indicatif::{HumanCount, ProgressBar};
use serde_json::json;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// What was loaded so far.
#[derive(Default)]
struct Loaded {
    inserted: u64,
    replaced: u64,
}

impl Loaded {
    fn all(&self) -> u64 {
        self.inserted + self.replaced
    }
}

pub(crate) fn run(pool: Option<&Path>, args: &LoadArgs, out: &mut Output) -> Result<(), Failure> {
    let format = args.format.unwrap_or_else(|| format_of(&args.file));
    if args.raw && format != Format::Tsv {
        return Err(Failure::Usage("--raw is for tab-separated lines, not for ndjson".into()));
    }
    // Open the input first, so that no pool is created for an input that cannot be read.
    let (from, bar) = input(&args.file)?;
    let name = args.file.display();
    let target = Target::find(&open::path(pool)?, &args.create)?;
    let how = How { format, raw: args.raw, unterminated: args.unterminated };
    let mut records = Records::new(from, how, target.columns());
    let mut first = records.next().map_err(|failure| failure.within(&name))?;
    if let Some((key, value)) = &first {
        let place = || format!("{name}, line {}", records.line_number());
        target.check_size(key, value).map_err(|failure| failure.within(place()))?;
    }
    let (pool, map) = target.make()?;
    let start = Instant::now();
    let done = Arc::new(Mutex::new(Loaded::default()));
    interrupt::close(&pool, &done, |loaded| format!("{} loaded", counted(loaded.all(), "record")));
    let result = loop {
        let next = first.take().map_or_else(|| records.next(), |record| Ok(Some(record)));
        let (key, value) = match next {
            Ok(Some(record)) => record,
            Ok(None) => break Ok(()),
            Err(failure) => break Err(failure),
        };
        let mut loaded = interrupt::go_on(&done);
        match map.put(&key, &value) {
            Ok(None) => loaded.inserted += 1,
            Ok(Some(_)) => loaded.replaced += 1,
            Err(error) => {
                let place = format!("line {}", records.line_number());
                break Err(Failure::from(error).within(place));
            }
        }
    };
    bar.finish_and_clear();
    // From here on, a signal only makes closing the pool quicker.
    let loaded = interrupt::go_on(&done);
    drop(map);
    let closed = open::close(pool);
    let seconds = start.elapsed().as_secs_f64();
    let ended = match (result, closed) {
        // Report both: the first says why the next record was not loaded, the second what went
        // wrong with closing the pool, and so what the records before it still need.
        (Err(failure), Err(other)) => Err(failure.and(&other)),
        (result, closed) => result.and(closed),
    };
    let (inserted, replaced) = (loaded.inserted, loaded.replaced);
    if let Err(failure) = ended {
        let loaded = counted(loaded.all(), "record");
        return Err(failure.within(format!("{name}: {loaded} loaded, then")));
    }
    out.object(&json!({
        "event": "load",
        "records": loaded.all(),
        "inserted": inserted,
        "replaced": replaced,
        "seconds": seconds,
    }))?;
    let (loaded, replaced) = (counted(loaded.all(), "record"), HumanCount(replaced));
    out.line(format!(
        "{loaded} loaded in {seconds:.2} s, {replaced} of them replaced existing records"
    ))
}

fn input(path: &Path) -> Result<(Box<dyn BufRead>, ProgressBar), Failure> {
    if path.as_os_str() == "-" {
        let bar = progress::bytes(0, "loading");
        bar.unset_length();
        return Ok((Box::new(BufReader::new(bar.wrap_read(io::stdin()))), bar));
    }
    let action = || format!("opening {}", path.display());
    let file = File::open(path).map_err(|e| Failure::io(action(), &e))?;
    let meta = file.metadata().map_err(|e| Failure::io(action(), &e))?;
    if meta.is_dir() {
        return Err(Failure::Failed(format!("{} is a directory", path.display())));
    }
    let bar = progress::bytes(meta.len(), "loading");
    Ok((Box::new(BufReader::with_capacity(1 << 18, bar.wrap_read(file))), bar))
}

fn format_of(path: &Path) -> Format {
    match path.extension().and_then(|e| e.to_str()) {
        Some("ndjson" | "jsonl" | "json") => Format::Ndjson,
        _ => Format::Tsv,
    }
}
