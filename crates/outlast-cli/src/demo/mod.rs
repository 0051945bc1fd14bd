//! The demonstration. It indexes a directory tree, repeatedly kills the indexing process in the
//! middle of its work, and checks each time that every acknowledged record is present exactly once,
//! and intact.
//!
//! The parent makes a list of files and a script of operations on them (inserts, updates,
//! removals), and starts a worker. The worker is a process that carries out the script from several
//! threads. Each thread records every operation in a journal of its own, outside the pool, before
//! the operation begins and after it has returned. When the worker is well under way, the parent
//! kills it with SIGKILL, opens the pool, and compares all of it with the threads' journals. Then
//! the next worker continues.
//!
//! This shows that a pool survives process death. It says nothing about a power loss, because the
//! page cache and the processor's caches survive SIGKILL. If the pool itself has a journal, a power
//! loss is simulated after some of the kills ([`power`]).

mod executioner;
mod facts;
mod items;
mod journal;
mod listing;
mod plan;
mod power;
mod random;
mod rates;
mod referee;
mod report;
mod shared;
mod walk;
pub(crate) mod worker;
mod workspace;

use crate::account::account;
use crate::args::DemoArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::{interrupt, place, progress};
use executioner::Executioner;
use items::Item;
use journal::Journal;
use listing::Listing;
use plan::Plan;
use random::Random;
use referee::{Account, Findings};
use report::{Report, Row, Start, Summary};
use std::path::Path;
use std::time::Instant;
use workspace::Workspace;

/// The greatest number of records that are compared with their files at each check.
const SAMPLE: usize = 500;

/// Runs the demonstration.
pub(crate) fn run(pool: Option<&Path>, args: &DemoArgs, out: &mut Output) -> Result<(), Failure> {
    interrupt::listen();
    let start = Instant::now();
    let seed = args.seed.unwrap_or_else(random::seed);
    let mut random = Random::new(seed);
    let keep = args.keep || pool.is_some();
    let path = pool.map_or_else(place::default_demo_pool, |path| Ok(path.to_owned()))?;
    let mut space = Workspace::new(&path, keep)?;

    let (items, found) = list(args)?;
    let plan = Plan {
        items: items.len() as u32,
        threads: args.threads.unwrap_or_else(processors),
        scheme: args.scheme.unwrap_or(outlast::Scheme::DashEh).name().into(),
        journal: args.journal,
    };
    space.fill(&plan, &items)?;
    space.create_pool(&plan)?;
    let journals = (0..plan.threads)
        .map(|thread| Journal::create(&space.dir, &plan, thread, args.kills))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| Failure::io("creating the journals", &e))?;
    let mut report = Report::new(out);
    report.start(&Start::new(args, &plan, &space, &found, &items, seed)?)?;

    let bar = progress::bar(plan.len(), "");
    let mut referee = Referee { items: &items, journals: &journals, random: random.clone() };
    let power_fails =
        if args.journal { power::choose(args.kills, &mut random) } else { Vec::new() };
    let executioner = Executioner::new(&space, &plan, &journals, args.kills, bar.clone());
    for kill in 1..=args.kills {
        executioner.kill(kill, &mut random)?;
        bar.set_message(format!("kill {kill} of {}: checking", args.kills));
        let power_loss = power_fails.get(kill as usize - 1) == Some(&true);
        if power_loss {
            power::fail(&space, &plan, &mut random)?;
        }
        let (row, _, _) = referee.check(&space, &plan, Some(kill), power_loss)?;
        bar.suspend(|| report.row(row))?;
    }
    executioner.finish()?;
    interrupt::check()?;
    bar.set_message("checking");
    let (row, pool, map) = referee.check(&space, &plan, None, false)?;
    bar.finish_and_clear();
    report.row(row)?;

    interrupt::check()?;
    let rates = rates::measure(&map, &items, plan.threads, &mut random)?;
    interrupt::check()?;
    let listing = Listing::make(&pool, map.info(), &items)?;
    let verification = pool.verify()?;
    let records = referee.account().records();
    drop(map);
    pool.close()?;
    let account = account(&space.pool, &mut |_| {})?;
    if let Some(listing) = listing {
        report.listing(listing)?;
    }
    report.summary(Summary::new(&plan, records, &rates, &verification, &account), start)
}

/// Compares the pool with the journals after each worker.
struct Referee<'d> {
    items: &'d [Item],
    journals: &'d [Journal],
    random: Random,
}

type Checked = (Row, outlast::Pool, outlast::Map<[u8], facts::FileFacts>);

impl Referee<'_> {
    fn account(&self) -> Account {
        Account::read(self.items.len(), self.journals)
    }

    /// Opens the pool after its worker was killed or has finished, and checks all of it. After a
    /// power loss, first determines which operations the power loss has undone.
    fn check(
        &mut self,
        space: &Workspace,
        plan: &Plan,
        kill: Option<u32>,
        power_loss: bool,
    ) -> Result<Checked, Failure> {
        interrupt::check()?;
        let mut account = self.account();
        let certain: Vec<_> = account.certain().collect();
        let probe = match certain.len() as u64 {
            0 => None,
            n => Some(certain[self.random.below(n) as usize]),
        };
        let start = Instant::now();
        let pool = workspace::open_pool(&space.pool, &space.dir, plan)?;
        let map = workspace::map(&pool, plan)?;
        if let Some((item, _)) = probe {
            // Only the time matters here. The check below looks up all keys, this one again.
            map.get(&self.items[item as usize].key()).ok();
        }
        let reopen_ms = start.elapsed().as_secs_f64() * 1000.0;
        let mut taken_back = None;
        if power_loss {
            taken_back = Some(power::take_back(&map, self.items, self.journals)?);
            account = self.account();
        }
        let random = &mut self.random;
        let findings: Findings =
            referee::examine(&map, self.items, self.journals, &account, SAMPLE, random)?;
        Ok((Row::new(kill, plan, &account, findings, reopen_ms, taken_back), pool, map))
    }
}

/// Returns the items, and the result of the walk for files.
fn list(args: &DemoArgs) -> Result<(Vec<Item>, walk::Found), Failure> {
    let bar = progress::spinner("looking for files");
    let mut found = walk::walk(&args.dir, args.files as usize, &bar)?;
    bar.finish_and_clear();
    let mut items = std::mem::take(&mut found.files);
    let needed = plan::items_for(args.records) as usize;
    let missing = needed.saturating_sub(items.len());
    items.extend((0..missing as u64).map(Item::Generated));
    Ok((items, found))
}

fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(256) as u32)
}
