//! The process that is killed. It continues the script where the journals end.

use super::facts::{FileFacts, Observer};
use super::items::{self, Item};
use super::journal::{Journal, UNCONFIRMED_MAX};
use super::plan::{Kind, Step};
use super::workspace;
use crate::args::WorkerArgs;
use crate::failure::Failure;
use outlast::{Map, Pool};
use std::os::unix::process::parent_id;
use std::thread;
use std::time::Duration;

/// Runs the script of all threads to its end, or until it is killed.
pub(crate) fn run(args: &WorkerArgs) -> Result<(), Failure> {
    // However the parent dies, its death also ends this process.
    let kill = Some(rustix::process::Signal::KILL);
    rustix::process::set_parent_process_death_signal(kill)
        .map_err(|e| Failure::io("tying the worker to its parent", &e.into()))?;
    if parent_id() != args.parent {
        return Err(Failure::Failed("the demonstration process is gone".into()));
    }
    let plan = workspace::read_plan(&args.work)?;
    let items = items::read(&workspace::items_path(&args.work))
        .map_err(|e| Failure::io("reading the list of items", &e))?;
    let pool = workspace::open_pool(&args.target, &args.work, &plan)?;
    let map = workspace::map(&pool, &plan)?;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.threads)
            .map(|thread| {
                let (map, items, plan) = (&map, &items, &plan);
                let pool = plan.journal.then_some(&pool);
                scope.spawn(move || {
                    let journal = Journal::open(&args.work, thread)
                        .map_err(|e| Failure::io("opening a journal", &e))?;
                    Hand { pool, ..Hand::new(map, items, &journal) }.work(&plan.script(thread))
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => Err(Failure::Failed("a thread of the worker panicked".into())),
        })
    })?;
    drop(map);
    Ok(pool.close()?)
}

/// The work of one thread.
pub(super) struct Hand<'w> {
    map: &'w Map<[u8], FileFacts>,
    items: &'w [Item],
    journal: &'w Journal,
    /// The pool, if it has a journal. The thread then waits from time to time until its operations
    /// are durable, and confirms that.
    pool: Option<&'w Pool>,
    /// The record in effect for each item, according to the journal.
    now: Vec<Option<FileFacts>>,
    /// Number of the script's operations that are in effect.
    done: usize,
    /// Number of entries in the journal.
    entries: usize,
}

impl<'w> Hand<'w> {
    pub(super) fn new(
        map: &'w Map<[u8], FileFacts>,
        items: &'w [Item],
        journal: &'w Journal,
    ) -> Self {
        let mut hand = Hand {
            map,
            items,
            journal,
            pool: None,
            now: vec![None; items.len()],
            done: 0,
            entries: 0,
        };
        for entry in journal.entries() {
            if entry.state.in_effect() {
                hand.now[entry.item as usize] = entry.after();
                hand.done += 1;
            }
            hand.entries += 1;
        }
        hand
    }

    /// Does the rest of the script.
    pub(super) fn work(&mut self, script: &[Vec<Step>]) -> Result<(), Failure> {
        self.confirm()?;
        let mut skip = self.done;
        let mut observer = Observer::new();
        for chunk in script {
            let skipped = skip.min(chunk.len());
            skip -= skipped;
            let chunk = &chunk[skipped..];
            // Read the chunk's files first, so that the operations follow each other closely and a
            // kill most likely hits one of them.
            let prepared: Vec<(Vec<u8>, FileFacts)> = chunk
                .iter()
                .map(|step| {
                    let item = &self.items[step.item as usize];
                    let facts = match step.kind {
                        Kind::Remove => self.now[step.item as usize].unwrap_or(NOTHING),
                        _ => observer.observe(item, step.revision.into()),
                    };
                    (item.key(), facts)
                })
                .collect();
            for (step, (key, facts)) in chunk.iter().zip(&prepared) {
                while self.done as u64 >= self.journal.limit() {
                    thread::sleep(Duration::from_micros(200));
                }
                self.step(step, key, *facts)?;
                if self.entries >= self.journal.confirmed() + UNCONFIRMED_MAX {
                    self.confirm()?;
                }
            }
        }
        Ok(())
    }

    /// If the pool has a journal, waits until all operations so far are durable, and records that.
    fn confirm(&self) -> Result<(), Failure> {
        if let Some(pool) = self.pool {
            pool.wait_durable()?;
            self.journal.confirm(self.entries);
        }
        Ok(())
    }

    fn step(&mut self, step: &Step, key: &[u8], facts: FileFacts) -> Result<(), Failure> {
        let item = step.item as usize;
        self.journal.begin(self.entries, step.kind, step.item, facts);
        let right = match step.kind {
            Kind::Insert => self.map.insert(key, &facts)?,
            Kind::Update => self.map.put(key, &facts)? == self.now[item],
            Kind::Remove => self.map.remove(key)? == self.now[item],
        };
        self.journal.acknowledge(self.entries, right);
        self.now[item] = (step.kind != Kind::Remove).then_some(facts);
        self.entries += 1;
        self.done += 1;
        Ok(())
    }
}

const NOTHING: FileFacts = FileFacts { size: 0, modified_ns: 0, fingerprint: [0; 2], revision: 0 };
