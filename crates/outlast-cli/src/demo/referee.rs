//! The referee: compares the contents of the pool with what the journals say must be there.
//!
//! Each item belongs to one thread, so its operations have an order. The effect of the last
//! operation that returned must be found exactly. If another operation was in flight, its effect
//! may be found instead, and nothing else. The referee then settles which of the two it is: it
//! writes the outcome to the journal, from which the next worker continues.

use super::facts::{FileFacts, Observer};
use super::items::Item;
use super::journal::{Journal, State};
use super::plan::Kind;
use super::random::Random;
use outlast::Map;
use std::collections::HashMap;

/// The greatest number of errors that are described and not only counted.
const EXAMPLES_MAX: usize = 5;

/// The contents that the referee examines.
pub(super) trait Contents {
    fn get(&self, key: &[u8]) -> outlast::Result<Option<FileFacts>>;
    fn records(&self) -> impl Iterator<Item = outlast::Result<(Vec<u8>, FileFacts)>>;
}

impl Contents for Map<[u8], FileFacts> {
    fn get(&self, key: &[u8]) -> outlast::Result<Option<FileFacts>> {
        Map::get(self, key)
    }

    fn records(&self) -> impl Iterator<Item = outlast::Result<(Vec<u8>, FileFacts)>> {
        self.iter()
    }
}

/// What the journals say about one item.
#[derive(Debug, Clone, Default)]
struct Known {
    /// The record that the operations in effect leave.
    now: Option<FileFacts>,
    /// The record that the operation in flight, if there is one, leaves if it took effect.
    in_flight: Option<Option<FileFacts>>,
    /// Every value that some operation stored, or would have stored if it had taken effect.
    stored: Vec<FileFacts>,
}

/// An operation that was in flight at the kill, so its outcome is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct InFlight {
    journal: usize,
    entry: usize,
    item: u32,
    after: Option<FileFacts>,
}

/// What the journals say about all items.
#[derive(Debug, Default)]
pub(super) struct Account {
    known: Vec<Known>,
    in_flight: Vec<InFlight>,
    /// Counts of operations in effect: those that returned or are known to have taken effect, and
    /// that no power loss has undone.
    pub(super) inserts: u64,
    pub(super) updates: u64,
    pub(super) removals: u64,
    wrong_answers: u64,
}

impl Account {
    /// Reads the journals of all threads.
    pub(super) fn read(items: usize, journals: &[Journal]) -> Self {
        let mut account = Account { known: vec![Known::default(); items], ..Account::default() };
        for (number, journal) in journals.iter().enumerate() {
            for (entry_number, entry) in journal.entries().enumerate() {
                let known = &mut account.known[entry.item as usize];
                known.stored.extend(entry.after());
                account.wrong_answers += u64::from(entry.wrong_answer);
                match entry.state {
                    State::Acknowledged | State::Happened => {
                        known.now = entry.after();
                        match entry.kind {
                            Kind::Insert => account.inserts += 1,
                            Kind::Update => account.updates += 1,
                            Kind::Remove => account.removals += 1,
                        }
                    }
                    State::Begun => {
                        known.in_flight = Some(entry.after());
                        account.in_flight.push(InFlight {
                            journal: number,
                            entry: entry_number,
                            item: entry.item,
                            after: entry.after(),
                        });
                    }
                    State::Never | State::TakenBack => {}
                }
            }
        }
        account
    }

    /// Number of operations in effect.
    pub(super) fn operations(&self) -> u64 {
        self.inserts + self.updates + self.removals
    }

    /// Number of records that must be present.
    pub(super) fn records(&self) -> u64 {
        self.known.iter().filter(|known| known.now.is_some()).count() as u64
    }

    /// Returns the items whose record must be present with a known value.
    pub(super) fn certain(&self) -> impl Iterator<Item = (u32, FileFacts)> {
        self.known.iter().enumerate().filter_map(|(item, known)| match known {
            Known { now: Some(facts), in_flight: None, .. } => Some((item as u32, *facts)),
            _ => None,
        })
    }
}

/// The referee's findings.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Operations in flight at the kill.
    pub(super) in_flight: u64,
    /// How many of them took effect.
    pub(super) took_effect: u64,
    /// Records that are missing (in the scan, too) or older than acknowledged, and removed ones
    /// that are present.
    pub(super) lost: u64,
    /// Records with a value that no operation stored, and records that are damaged or disagree with
    /// the scan or with their files. A scan that fails counts as one more.
    pub(super) torn: u64,
    /// Keys that the scan over all records returns more than once.
    pub(super) duplicated: u64,
    /// Keys that no operation stored.
    pub(super) unknown: u64,
    /// Operations that returned a wrong result.
    pub(super) wrong_answers: u64,
    /// Records that were compared with their files.
    pub(super) compared: u64,
    /// Files that have changed since they were read, so that their records could not be compared
    /// with them.
    pub(super) changed_files: u64,
    /// Descriptions of some of the errors.
    pub(super) examples: Vec<String>,
}

impl Findings {
    /// Returns whether no error was found.
    pub(super) fn is_clean(&self) -> bool {
        [self.lost, self.torn, self.duplicated, self.unknown, self.wrong_answers] == [0; 5]
    }

    fn example(&mut self, item: &Item, what: &str) {
        self.example_of(&String::from_utf8_lossy(&item.key()), what);
    }

    fn example_of(&mut self, key: &str, what: &str) {
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(format!("{key}: {what}"));
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Right,
    Lost(&'static str),
    Torn(&'static str),
}

fn judge(known: &Known, found: Option<FileFacts>) -> Verdict {
    if found == known.now || known.in_flight == Some(found) {
        return Verdict::Right;
    }
    match found {
        None => Verdict::Lost("acknowledged but missing"),
        Some(found) if !known.stored.contains(&found) => Verdict::Torn("a value nobody stored"),
        Some(_) if known.now.is_none() => Verdict::Lost("removed but present again"),
        Some(_) => Verdict::Lost("a value that was replaced"),
    }
}

/// Compares the pool with the journals, and `sample` random records with their files. Decides the
/// outcome of each operation in flight, and records it in the journals.
pub(super) fn examine(
    contents: &impl Contents,
    items: &[Item],
    journals: &[Journal],
    account: &Account,
    sample: usize,
    random: &mut Random,
) -> outlast::Result<Findings> {
    let mut findings = Findings { wrong_answers: account.wrong_answers, ..Findings::default() };
    if findings.wrong_answers > 0 {
        findings.example_of("operations", "returned something other than they should have");
    }
    let mut verdicts = vec![Verdict::Right; items.len()];
    let mut found = Vec::with_capacity(items.len());
    for ((item, known), verdict) in items.iter().zip(&account.known).zip(&mut verdicts) {
        found.push(match contents.get(&item.key()) {
            Ok(facts) => {
                *verdict = judge(known, facts);
                facts
            }
            Err(error) if error.is_damage() => {
                *verdict = Verdict::Torn("damaged");
                None
            }
            Err(error) => return Err(error),
        });
    }
    walk(contents, items, &found, &mut verdicts, &mut findings)?;
    compare_with_files(items, &found, sample, random, &mut verdicts, &mut findings);
    for (item, verdict) in items.iter().zip(verdicts) {
        match verdict {
            Verdict::Right => {}
            Verdict::Lost(why) => {
                findings.lost += 1;
                findings.example(item, why);
            }
            Verdict::Torn(why) => {
                findings.torn += 1;
                findings.example(item, why);
            }
        }
    }
    findings.in_flight = account.in_flight.len() as u64;
    for open in &account.in_flight {
        let happened = found[open.item as usize] == open.after;
        findings.took_effect += u64::from(happened);
        journals[open.journal].resolve(open.entry, happened);
    }
    journals.iter().for_each(Journal::recount);
    Ok(findings)
}

/// Checks that the scan over all records agrees with the lookups.
fn walk(
    contents: &impl Contents,
    items: &[Item],
    found: &[Option<FileFacts>],
    verdicts: &mut [Verdict],
    findings: &mut Findings,
) -> outlast::Result<()> {
    let by_key: HashMap<Vec<u8>, usize> =
        items.iter().enumerate().map(|(number, item)| (item.key(), number)).collect();
    let mut times_seen = vec![0u32; items.len()];
    let mut whole = true;
    for record in contents.records() {
        let (key, facts) = match record {
            Ok(record) => record,
            Err(error) if error.is_damage() => {
                findings.torn += 1;
                findings.example_of("scan of all records", &error.to_string());
                // An error ends the scan, so the records that it did not reach are not missing.
                whole = false;
                continue;
            }
            Err(error) => return Err(error),
        };
        let Some(&number) = by_key.get(&key) else {
            findings.unknown += 1;
            findings.example_of(&String::from_utf8_lossy(&key), "a key nobody stored");
            continue;
        };
        times_seen[number] += 1;
        if times_seen[number] == 2 {
            findings.duplicated += 1;
            findings.example(&items[number], "returned more than once by the scan");
        }
        if found[number] != Some(facts) {
            let verdict = Verdict::Torn("lookup and scan disagree");
            verdicts[number] = verdicts[number].max(verdict);
        }
    }
    for (number, times) in times_seen.into_iter().enumerate() {
        if whole && times == 0 && found[number].is_some() {
            let verdict = Verdict::Lost("the scan of all records misses it");
            verdicts[number] = verdicts[number].max(verdict);
        }
    }
    Ok(())
}

fn compare_with_files(
    items: &[Item],
    found: &[Option<FileFacts>],
    sample: usize,
    random: &mut Random,
    verdicts: &mut [Verdict],
    findings: &mut Findings,
) {
    let mut observer = Observer::new();
    let there: Vec<usize> = (0..items.len()).filter(|&number| found[number].is_some()).collect();
    for _ in 0..sample.min(there.len()) {
        let number = there[random.below(there.len() as u64) as usize];
        let Some(facts) = found[number] else { continue };
        let seen = observer.observe(&items[number], facts.revision);
        if seen == facts {
            findings.compared += 1;
        } else if (seen.size, seen.modified_ns) != (facts.size, facts.modified_ns)
            && verdicts[number] == Verdict::Right
        {
            findings.changed_files += 1;
        } else {
            let verdict = Verdict::Torn("does not match its file");
            verdicts[number] = verdicts[number].max(verdict);
        }
    }
}

#[cfg(test)]
mod tests;
