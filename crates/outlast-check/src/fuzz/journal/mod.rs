//! The fuzzer of journaled pools: damages base, entry, segments and working file together, and opens
//! what is left with the library.
//!
//! For each mutant ([`mutate`]) of a pool at some moment ([`images`]), after the death of its process
//! or after a power loss:
//!
//! 1. Opening it does not panic, and does not end by a signal or not at all.
//! 2. If it is refused, no segment and no working file was changed or removed.
//! 3. If it opens, it has the records of a moment, in the order in which they were inserted: all of
//!    them after process death, and all that was waited for after a power loss. Exceptions are the
//!    cases that docs/model.md lists ([`evidence::excuse`]). They are counted.
//! 4. What is then inserted and waited for survives a power loss.
//!
//! A seed and a number determine a mutant.

pub mod evidence;
pub mod files;
pub mod images;
pub mod mutate;

use super::watch;
use crate::random::Random;
use files::{BASE, Files, JOURNAL, Place};
use images::{Image, insert, open, value};
use outlast::Pool;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

/// Arguments of the command `fuzz-journal`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Number of mutants.
    #[arg(long, default_value_t = 2_000)]
    pub mutants: u64,
    /// The seed that determines the mutants.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Only the mutant with this number, as a failure reports it.
    #[arg(long)]
    pub mutant: Option<u64>,
    /// Number of threads.
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Prints the outcome as one line of JSON.
    #[arg(long)]
    pub json: bool,
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct Summary {
    /// How many mutants came to each end.
    pub ends: BTreeMap<&'static str, u64>,
    /// What went wrong.
    pub failures: Vec<String>,
}

/// What became of mutants that opened with everything.
pub const WHOLE: &str = "opened with everything";
/// What became of mutants that were refused.
pub const REFUSED: &str = "refused";

/// A directory, and the pools that were made in it. Their files know its inodes.
pub struct Fuzzer {
    place: Place,
    images: Vec<Image>,
    seed: u64,
}

/// Checks what a pool holds, and returns how many records.
fn check(pool: &Pool) -> Result<u64, String> {
    let failed = |what: &str, error: outlast::Error| format!("{what}: {error}");
    let sound = pool.verify().and_then(|found| found.ensure_sound());
    sound.map_err(|error| failed("it opens and is not sound", error))?;
    let map = pool.map::<u64, u64>("numbers").map_err(|error| failed("its map", error))?;
    let count = map.iter().count() as u64;
    for key in 0..count {
        match map.get(&key).map_err(|error| failed("a lookup", error))? {
            Some(found) if found == value(key) => {}
            found => return Err(format!("it has {count} records, and for {key} {found:?}")),
        }
    }
    Ok(count)
}

impl Fuzzer {
    /// Makes pools to damage. `seed` determines the mutants.
    ///
    /// # Panics
    /// If the pools cannot be made.
    pub fn new(seed: u64) -> Fuzzer {
        let place = Place::new().expect("a directory");
        let images = images::images(&place).expect("pools");
        Fuzzer { place, images, seed }
    }

    /// Tries one mutant. Returns what became of it.
    ///
    /// # Errors
    /// What the library did wrong, and how to try it again.
    pub fn try_one(&self, number: u64) -> Result<&'static str, String> {
        let mut random = Random::new(self.seed ^ number.wrapping_mul(0xd605_1b9d_4f3b_2c01));
        let image = &self.images[random.below(self.images.len() as u64) as usize];
        let died = random.below(2) == 0;
        let mut mutant = image.files.clone();
        if !died && random.below(2) == 0 {
            mutant.retain(|name, _| !name.ends_with(".working"));
        }
        let case = format!("fuzz-journal --seed {} --mutant {number}", self.seed);
        let done = watch::watched(&case, || {
            mutate::mutate(&mut mutant, image, &self.images, &mut random)
        })?;
        let tried = watch::watched(&case, || self.trial(image, &mutant, died));
        tried.and_then(|tried| tried).map_err(|what| {
            let (name, life) = (image.name, image.life);
            let how = if died { "process death" } else { "power loss" };
            format!(
                "outlast-check {case}\n  {name:?} of life {life}, {how}: {}\n  {what}",
                done.join("; ")
            )
        })
    }

    fn trial(&self, image: &Image, mutant: &Files, died: bool) -> Result<&'static str, String> {
        let io = |error| format!("the files: {error}");
        self.place.write(mutant).map_err(io)?;
        let boot = if died { image.life } else { 10 };
        let pool = match open(&self.place, boot) {
            Ok(pool) => pool,
            Err(error) => {
                let left = self.place.read().map_err(io)?;
                let lost = mutant
                    .iter()
                    .find(|(name, content)| *name != BASE && left.get(*name) != Some(*content));
                return match lost {
                    Some((name, _)) => Err(format!("refused ({error}), and {name} was changed")),
                    None => Ok(REFUSED),
                };
            }
        };
        let found = check(&pool)?;
        let needed = if died { image.acked } else { image.durable() };
        let end = match evidence::excuse(image, mutant, found, died) {
            _ if (needed..=image.acked).contains(&found) => WHOLE,
            Some(end) => end,
            None => {
                let named = evidence::last_named(image, mutant);
                let waited = image.waited.iter().rev().take(3).collect::<Vec<_>>();
                return Err(format!(
                    "{found} records, and not {needed}; files name epoch {named}; waits ended at {waited:?}"
                ));
            }
        };
        let failed = |error| format!("opened, and a change fails: {error}");
        insert(&pool, found, 5).and_then(|()| pool.wait_durable()).map_err(failed)?;
        let mut files = self.place.settled().map_err(io)?;
        files.retain(|name, _| name == BASE || name.starts_with(JOURNAL));
        pool.close().map_err(|error| format!("opened, and closing fails: {error}"))?;
        self.place.write(&files).map_err(io)?;
        let again = match open(&self.place, 11) {
            Err(outlast::Error::IncompleteJournal { .. })
                if died && evidence::has_damaged_lines(image, mutant) =>
            {
                return Ok("damaged lines in an earlier segment, noticed by the next rebuild");
            }
            again => again.map_err(|e| format!("after a power loss: {e}"))?,
        };
        match check(&again)? {
            kept if kept == found + 5 => Ok(end),
            kept => Err(format!("after a power loss {kept} records, and not {}", found + 5)),
        }
    }
}

/// Tries mutants from number 0 on, on `threads` threads. Calls `tell` after each.
pub fn run(seed: u64, mutants: u64, threads: usize, tell: impl Fn() + Sync) -> Summary {
    let threads = threads.max(1) as u64;
    let (ends, failures) = (Mutex::new(BTreeMap::new()), Mutex::new(Vec::new()));
    watch::in_parallel(threads, threads as usize, |thread| {
        let fuzzer = Fuzzer::new(seed);
        for number in (thread..mutants).step_by(threads as usize) {
            match fuzzer.try_one(number) {
                Ok(end) => *ends.lock().unwrap().entry(end).or_insert(0) += 1,
                Err(failure) => failures.lock().unwrap().push(failure),
            }
            tell();
            if failures.lock().unwrap().len() >= 40 {
                break;
            }
        }
        Ok(())
    });
    Summary { ends: ends.into_inner().unwrap(), failures: failures.into_inner().unwrap() }
}

/// Runs the command.
pub fn command(args: &Args) -> ExitCode {
    let Args { seed, mutants, threads, .. } = *args;
    if let Some(number) = args.mutant {
        return match Fuzzer::new(seed).try_one(number) {
            Ok(end) => {
                println!("{end}");
                ExitCode::SUCCESS
            }
            Err(failure) => {
                eprintln!("FOUND: {failure}");
                ExitCode::FAILURE
            }
        };
    }
    let started = Instant::now();
    let bar = indicatif::ProgressBar::new(mutants);
    let summary = run(seed, mutants, threads, || bar.inc(1));
    bar.finish_and_clear();
    summary.failures.iter().for_each(|failure| eprintln!("FOUND: {failure}"));
    let tried = summary.ends.values().sum::<u64>();
    if args.json {
        let line = serde_json::json!({
            "event": "fuzz-journal", "seed": seed, "mutants": tried, "ends": summary.ends,
            "failures": summary.failures.len(), "seconds": started.elapsed().as_secs_f64(),
        });
        println!("{line}");
    } else {
        println!("seed {seed}: {tried} mutants");
        summary.ends.iter().for_each(|(end, count)| println!("{count:>8} {end}"));
    }
    if summary.failures.is_empty() && tried == mutants {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
