//! `load`: loads records from a file.

use super::input::{How, Named, Record, Records};
use crate::args::{CreateArgs, Format, LoadArgs};
use crate::failure::Failure;
use crate::interrupt;
use crate::open::{self, Target};
use crate::output::Output;
use crate::progress;
use crate::text::{self, Column, counted};
use indicatif::{HumanCount, ProgressBar};
use outlast::{Pool, RawMap};
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
    let path = open::path(pool)?;
    let mut maps = Maps::find(&path, &args.create)?;
    let how = How { format, raw: args.raw, unterminated: args.unterminated };
    let mut records = Records::new(from, how);
    let mut first = maps.next(&mut records).map_err(|failure| failure.within(&name))?;
    let pool = match &first {
        Some((number, _)) => maps.make(*number)?,
        // The map is made all the same.
        None => {
            let number = maps.number(&Named::Not)?;
            maps.make(number)?
        }
    };
    let start = Instant::now();
    let done = Arc::new(Mutex::new(Loaded::default()));
    interrupt::close(&pool, &done, |loaded| format!("{} loaded", counted(loaded.all(), "record")));
    let result = loop {
        let next = first.take().map_or_else(|| maps.next(&mut records), |record| Ok(Some(record)));
        let (number, (key, value)) = match next {
            Ok(Some(record)) => record,
            Ok(None) => break Ok(()),
            Err(failure) => break Err(failure),
        };
        let mut loaded = interrupt::go_on(&done);
        match maps.put(number, &key, &value) {
            Ok(None) => loaded.inserted += 1,
            Ok(Some(_)) => loaded.replaced += 1,
            Err(failure) => {
                let place = format!("line {}", records.line_number());
                break Err(failure.within(place));
            }
        }
    };
    bar.finish_and_clear();
    // From here on, a signal only makes closing the pool quicker.
    let loaded = interrupt::go_on(&done);
    drop(maps);
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

/// The maps into which the records go. None is made before there is a record for it.
struct Maps<'a> {
    path: &'a Path,
    args: &'a CreateArgs,
    pool: Option<Pool>,
    /// The map of lines that name none, or why there is none.
    chosen: Option<Result<String, Failure>>,
    list: Vec<Destination>,
}

struct Destination {
    name: String,
    columns: (Column, Column),
    /// What makes the map, until it is made.
    target: Option<Target>,
    map: Option<RawMap>,
}

impl<'a> Maps<'a> {
    fn find(path: &'a Path, args: &'a CreateArgs) -> Result<Self, Failure> {
        let pool = open::existing(path, args)?;
        let chosen = open::chosen(pool.as_ref(), args);
        Ok(Maps { path, args, pool, chosen: Some(chosen), list: Vec::new() })
    }

    /// Reads the next record. Returns it with the number of its map.
    fn next(
        &mut self,
        records: &mut Records<impl BufRead>,
    ) -> Result<Option<(usize, Record)>, Failure> {
        let Some(named) = records.next()? else { return Ok(None) };
        let place = |failure: Failure| failure.within(format!("line {}", records.line_number()));
        let number = self.number(&named).map_err(place)?;
        let Destination { columns, target, .. } = &self.list[number];
        let record = records.record(columns)?;
        if let Some(target) = target {
            target.check_size(&record.0, &record.1).map_err(place)?;
        }
        Ok(Some((number, record)))
    }

    /// Returns the number of a map in the list.
    fn number(&mut self, named: &Named) -> Result<usize, Failure> {
        let given = &self.args.which.map;
        let name = match (named, given) {
            (Named::Map(name), Some(given)) if name != given => {
                return Err(Failure::Failed(format!(
                    "the record is of map {}, and --map names {}; without --map, each line goes \
                     into the map that it names",
                    text::name(name),
                    text::name(given)
                )));
            }
            (Named::Map(name), _) => name,
            (Named::Unknown, None) => {
                let why = "the line does not know of which map the record is; name one with --map";
                return Err(Failure::Failed(why.into()));
            }
            (Named::Not | Named::Unknown, _) => match &self.chosen {
                Some(Ok(name)) => name,
                _ => return Err(self.chosen.take().and_then(Result::err).expect("no name")),
            },
        };
        if let Some(number) = self.list.iter().position(|there| there.name == *name) {
            return Ok(number);
        }
        let target = Target::named(self.path, self.pool.clone(), name.clone(), self.args)?;
        let (name, columns) = (name.clone(), target.columns());
        self.list.push(Destination { name, columns, target: Some(target), map: None });
        Ok(self.list.len() - 1)
    }

    /// Makes a map, unless it was made before, and its pool. Returns the pool.
    fn make(&mut self, number: usize) -> Result<Pool, Failure> {
        let there = &mut self.list[number];
        if let Some(target) = there.target.take() {
            let (pool, map) = target.make()?;
            there.map = Some(map);
            self.pool = Some(pool);
        }
        Ok(self.pool.clone().expect("a map was made"))
    }

    fn put(&mut self, number: usize, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        if self.list[number].map.is_none() {
            self.make(number)?;
        }
        let map = self.list[number].map.as_ref().expect("it was made");
        Ok(map.put(key, value)?)
    }
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
