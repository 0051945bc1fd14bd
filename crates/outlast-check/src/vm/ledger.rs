//! The host's account of a pool in the guest: what was acknowledged over the serial port, and
//! whether the next boot finds what it may find.
//!
//! A thread of the guest works through a [`Script`]. It reports how many operations have returned,
//! each time before it starts the next batch. So at a power cut the host knows, for each thread,
//! that A operations have returned and that at most one batch more was done. The next boot must
//! find each thread's keys as they are after exactly n operations, for one n from A to A plus a
//! batch: nothing acknowledged is lost, and the operations in flight are there in order, each
//! completely or not at all. A journal may take back the newest of the A operations (`promises`).

mod promises;

use super::script::{Script, batch};
use super::wire::{Held, Said};
use crate::state::{Checked, Fault, ensure};
use crate::torture::life::Subject;
use promises::Promises;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// How many findings are described. All are counted.
const TOLD: usize = 20;

/// The values of all keys of all maps.
type Contents = Vec<Vec<Option<u64>>>;

/// What a medium keeps through a power loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// Operations that have returned.
    Returned,
    /// Operations that were waited for, and all but the newest of the others.
    Waited,
    /// Pools that were closed or synced.
    Closed,
}

/// Whether a pool on a medium that a power loss can tear must open at the next boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The pool is clean, so it must open.
    Clean,
    /// The pool is modified, so it must be refused.
    Dirty,
    /// The pool is changing between clean and modified, so it may open or be refused.
    Between,
}

/// The contents at the beginning of a life, and the work that was done on them.
#[derive(Debug, Clone)]
struct Base {
    contents: Contents,
    life: u64,
    acknowledged: Vec<u64>,
    promises: Promises,
    /// Whether more may have been done than was acknowledged.
    open_end: bool,
}

/// The totals of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Operations acknowledged.
    pub acknowledged: u64,
    /// Keys that do not hold what was acknowledged.
    pub lost: u64,
    /// Keys that hold something nobody wrote there.
    pub torn: u64,
    /// Operations found done beyond what was acknowledged.
    pub in_flight: u64,
    /// Number of times that the contents were checked.
    pub checks: u64,
    /// Number of opens that were refused, as they had to be.
    pub refused: u64,
    /// Number of cuts while the pool was being opened and read.
    pub cut_while_opening: u64,
    /// Operations that a thread has waited for, so that they are durable.
    pub waited: u64,
    /// Operations so old that they must be durable even if no thread waited.
    pub aged: u64,
    /// Operations acknowledged that a journal has taken back.
    pub taken_back: u64,
    /// How long before its cut the oldest operation taken back had returned, at least, in
    /// microseconds.
    pub oldest_micros: u64,
    /// Number of cuts that took back something older than an interval plus the longest commit.
    pub older: u64,
    /// The longest group commit, in microseconds.
    pub commit_micros: u64,
    /// The longest time between two pulses, in microseconds.
    pub gap_micros: u64,
    /// Checkpoints of the journal.
    pub checkpoints: u64,
}

/// The account; see the module's documentation.
#[derive(Debug)]
pub struct Ledger {
    subject: Subject,
    seed: u64,
    keeps: Keeps,
    life: u64,
    bases: Vec<Base>,
    snapshots: Vec<Base>,
    phase: Phase,
    /// The values that the guest reported in this opening, and in earlier ones that were cut.
    seen: BTreeMap<(usize, u64), Held>,
    refused: bool,
    working: bool,
    totals: Totals,
    findings: Vec<String>,
}

impl Ledger {
    /// Starts the account of a pool that is about to be created.
    pub fn new(subject: Subject, seed: u64, keeps: Keeps) -> Ledger {
        let contents = vec![vec![None; subject.keys as usize]; subject.shapes().len()];
        let base = Base::fixed(contents, &subject);
        Ledger {
            subject,
            seed,
            keeps,
            life: 0,
            bases: vec![base.clone()],
            snapshots: vec![base],
            phase: Phase::Between,
            seen: BTreeMap::new(),
            refused: false,
            working: false,
            totals: Totals::default(),
            findings: Vec::new(),
        }
    }

    /// Returns the totals so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Describes what was lost or torn, for people.
    pub fn findings(&self) -> &[String] {
        &self.findings
    }

    /// Returns whether the guest is at work, and not still opening the pool.
    pub fn is_working(&self) -> bool {
        self.working
    }

    /// Notes a power cut: the next line comes from the next boot.
    pub fn cut(&mut self) {
        self.totals.cut_while_opening += u64::from(!self.working);
        if let ([base], true) = (&self.bases[..], self.working) {
            base.promises.total(&mut self.totals);
        }
        self.working = false;
    }

    /// Takes a line from the guest into account. Losses are counted, not returned as errors.
    ///
    /// # Errors
    /// If the guest reports what it must not: a fault of its own, a pool that opens or is refused
    /// where it must not, or lines in an impossible order.
    pub fn hear(&mut self, said: &Said) -> Checked {
        match said {
            Said::Life(life) => {
                self.life = *life;
                self.refused = false;
                self.working = false;
            }
            Said::Opened { .. } => {
                // The guest may open a pool after it was refused, to look at it.
                let may_tear = self.keeps == Keeps::Closed;
                let torn = may_tear && self.phase == Phase::Dirty && !self.refused;
                ensure(!torn, || "a pool that a power loss can have torn was opened".into())?;
                // The first lookup may modify the pool.
                self.phase = Phase::Between;
            }
            Said::Refused { reason, .. } => {
                ensure(self.keeps == Keeps::Closed, || format!("a whole pool, refused: {reason}"))?;
                ensure(self.phase != Phase::Clean, || format!("a clean pool, refused: {reason}"))?;
                ensure(reason == "EarlierBoot", || format!("refused for a reason: {reason}"))?;
                self.refused = true;
                self.totals.refused += 1;
            }
            Said::Restoring => {
                ensure(self.refused, || "a pool was restored that was not refused".into())?;
                self.bases = self.snapshots.clone();
                self.seen.clear();
                self.phase = Phase::Between;
            }
            Said::Has { map, first, values } => {
                for (key, held) in (*first..).zip(values) {
                    self.see(*map, key, *held)?;
                }
            }
            Said::Held { records } => self.settle(*records)?,
            Said::Done { thread, operations } => self.acknowledge(*thread, *operations)?,
            Said::Waiting { thread } => {
                let base = self.at_work()?;
                base.promises.waits(*thread, &base.acknowledged)?;
            }
            Said::Waited { thread } => self.at_work()?.promises.waited(*thread)?,
            Said::Pulse(pulse) => {
                let base = self.at_work()?;
                base.promises.pulse(*pulse, &base.acknowledged)?;
            }
            Said::Snapshotting => {
                let now = Base::fixed(self.at_rest()?, &self.subject);
                self.snapshots.push(now);
            }
            Said::Snapshotted => {
                self.snapshots.drain(..self.snapshots.len() - 1);
            }
            Said::Cleaning => self.phase = Phase::Between,
            Said::Clean => {
                ensure(self.working, || "a guest that does not work has closed the pool".into())?;
                self.phase = Phase::Clean;
                // After a sync, the guest goes on working only on a medium that keeps its contents.
                for base in &mut self.bases {
                    base.open_end = self.keeps == Keeps::Returned;
                    base.promises.all(&base.acknowledged);
                }
            }
            Said::Fault(text) => return Err(Fault(format!("in the guest: {text}"))),
            Said::Medium { .. } | Said::Note(_) | Said::Json(_) | Said::End(_) => {}
        }
        Ok(())
    }

    fn see(&mut self, map: usize, key: u64, held: Held) -> Checked {
        let known = map < self.subject.shapes().len() && key < self.subject.keys;
        ensure(known && !self.working, || format!("key {key} of map {map}, out of turn"))?;
        match self.seen.insert((map, key), held) {
            Some(earlier) if earlier != held => {
                self.totals.lost += 1;
                self.tell(format!(
                    "map {map}, key {key}: held {earlier} at one opening and {held} at the next, \
                     with nothing done between"
                ));
            }
            _ => {}
        }
        Ok(())
    }

    fn tell(&mut self, finding: String) {
        if self.findings.len() < TOLD {
            self.findings.push(finding);
        }
    }

    /// Compares all keys with what they may hold, once all of them are reported.
    fn settle(&mut self, records: u64) -> Checked {
        let all = self.subject.cells();
        ensure(self.seen.len() == all, || {
            format!("{} keys of {all} were reported", self.seen.len())
        })?;
        let best = self
            .bases
            .iter()
            .map(|base| self.judge(base))
            .min_by_key(|verdict| verdict.lost + verdict.torn);
        let Some(verdict) = best else { return Err(Fault("nothing is expected".into())) };
        self.totals.checks += 1;
        self.totals.lost += verdict.lost;
        self.totals.torn += verdict.torn;
        self.totals.in_flight += verdict.in_flight;
        self.totals.taken_back += verdict.taken_back;
        self.totals.oldest_micros = self.totals.oldest_micros.max(verdict.oldest_micros);
        self.totals.older += u64::from(verdict.older);
        verdict.findings.into_iter().for_each(|finding| self.tell(finding));
        let present = self.seen.values().filter(|held| **held != Held::Value(None)).count();
        if present as u64 != records {
            self.totals.torn += 1;
            self.tell(format!("{present} keys are there by lookup, {records} by iteration"));
        }
        let contents = (0..self.subject.shapes().len())
            .map(|map| {
                (0..self.subject.keys)
                    .map(|key| match self.seen[&(map, key)] {
                        Held::Value(value) => value,
                        Held::Strange => None,
                    })
                    .collect()
            })
            .collect();
        let base = Base::fixed(contents, &self.subject);
        self.bases = vec![Base { life: self.life, open_end: true, ..base }];
        self.seen.clear();
        self.working = true;
        Ok(())
    }

    /// Returns the state on which the guest works.
    fn at_work(&mut self) -> Checked<&mut Base> {
        ensure(self.working, || "a report of work by a guest that does not work".into())?;
        match &mut self.bases[..] {
            [base] => Ok(base),
            _ => Err(Fault("a report of work, and the contents are not known".into())),
        }
    }

    fn acknowledge(&mut self, thread: u64, operations: u64) -> Checked {
        let journaled = self.keeps == Keeps::Waited;
        let base = self.at_work()?;
        base.open_end = true;
        let acknowledged = base
            .acknowledged
            .get_mut(thread as usize)
            .ok_or_else(|| Fault(format!("an acknowledgement of thread {thread}")))?;
        let expected = *acknowledged + batch(thread);
        ensure(operations == expected, || {
            format!("thread {thread} acknowledges {operations} operations, not {expected}")
        })?;
        *acknowledged = operations;
        match journaled {
            true => base.promises.begins(thread, &base.acknowledged),
            false => base.promises.all(&base.acknowledged),
        }
        self.phase = Phase::Dirty;
        self.totals.acknowledged += batch(thread);
        Ok(())
    }

    /// Returns the contents while all threads rest: exactly what was acknowledged.
    fn at_rest(&self) -> Checked<Contents> {
        let [base] = &self.bases[..] else {
            return Err(Fault("the guest rests, and the contents are not known".into()));
        };
        let mut contents = base.contents.clone();
        for thread in 0..self.subject.threads {
            let script = self.script(base, thread, base.acknowledged[thread as usize]);
            for ((map, key), value) in script.held() {
                contents[map][key as usize] = value;
            }
        }
        Ok(contents)
    }

    /// Returns the script of a thread, after this many operations.
    fn script(&self, base: &Base, thread: u64, operations: u64) -> Script {
        let mut script = base.script(&self.subject, self.seed, thread);
        for _ in 0..operations {
            script.next();
        }
        script
    }

    /// Compares the values of all keys with those of a base, changed by the operations that may have
    /// followed it.
    fn judge(&self, base: &Base) -> Verdict {
        let mut verdict = Verdict::default();
        // For each thread, the numbers of operations that lead to what was seen.
        let mut seen = Vec::new();
        for thread in 0..self.subject.threads {
            let (kept, most) = base.bounds(thread);
            let script = self.script(base, thread, kept);
            seen.push(self.operations_seen(script.clone(), kept..=most));
            if seen.last().is_none_or(Vec::is_empty) {
                self.explain(base, thread, script, most - kept, &mut verdict);
            }
        }
        if seen.iter().all(|numbers| !numbers.is_empty()) {
            match base.promises.one_moment(&seen) {
                Ok(found) => verdict.count(base, &found),
                Err(finding) => {
                    verdict.torn += 1;
                    verdict.findings.push(finding);
                }
            }
        }
        verdict
    }

    /// Lists the numbers of operations that lead to what was seen. `script` has done as many
    /// operations as the first of `numbers`.
    fn operations_seen(&self, mut script: Script, numbers: RangeInclusive<u64>) -> Vec<u64> {
        let differs = |at: (usize, u64), value| self.seen[&at] != Held::Value(value);
        let mut different = script.held().filter(|&(at, value)| differs(at, value)).count();
        let mut found = Vec::new();
        for number in numbers {
            if different == 0 {
                found.push(number);
            }
            let step = script.next();
            let at = (step.map, step.key);
            different += usize::from(differs(at, step.after));
            different -= usize::from(differs(at, step.before));
        }
        found
    }

    /// Describes what is wrong with the keys of a thread.
    fn explain(&self, base: &Base, thread: u64, kept: Script, more: u64, verdict: &mut Verdict) {
        // By key: every value it had in this life, and every value it may have now.
        let mut ever: BTreeMap<(usize, u64), Vec<Option<u64>>> = BTreeMap::new();
        let mut script = base.script(&self.subject, self.seed, thread);
        for (at, value) in script.held() {
            ever.entry(at).or_default().push(value);
        }
        for _ in 0..base.bounds(thread).0 {
            let step = script.next();
            ever.entry((step.map, step.key)).or_default().push(step.after);
        }
        let mut allowed: BTreeMap<(usize, u64), Vec<Option<u64>>> =
            kept.held().map(|(at, value)| (at, vec![value])).collect();
        let mut script = kept;
        for _ in 0..more {
            let step = script.next();
            allowed.entry((step.map, step.key)).or_default().push(step.after);
        }
        let names = self.subject.shapes();
        let before = verdict.lost + verdict.torn;
        for (at, allowed) in allowed {
            let held = self.seen[&at];
            let (lost, what) = match held {
                Held::Value(value) if allowed.contains(&value) => continue,
                Held::Value(value) if value.is_none() || ever[&at].contains(&value) => {
                    (true, "lost")
                }
                _ => (false, "torn"),
            };
            verdict.lost += u64::from(lost);
            verdict.torn += u64::from(!lost);
            let expected: Vec<_> =
                allowed.into_iter().map(|v| Held::Value(v).to_string()).collect();
            verdict.findings.push(format!(
                "{what}: map {:?}, key {}, thread {thread}: holds {held}, expected {}",
                names[at.0].name,
                at.1,
                expected.join(" or ")
            ));
        }
        if verdict.lost + verdict.torn == before {
            verdict.lost += 1;
            verdict.findings.push(format!(
                "lost: thread {thread}: a later operation is there and an earlier one is not"
            ));
        }
    }
}

impl Base {
    /// Makes a base on which no work has been done.
    fn fixed(contents: Contents, subject: &Subject) -> Base {
        let acknowledged = vec![0; subject.threads as usize];
        let promises = Promises::new(acknowledged.len());
        Base { contents, life: 0, acknowledged, promises, open_end: false }
    }

    /// Returns how many operations of a thread must be there, and how many may be.
    fn bounds(&self, thread: u64) -> (u64, u64) {
        let more = if self.open_end { batch(thread) } else { 0 };
        (self.promises.kept(thread), self.acknowledged[thread as usize] + more)
    }

    fn script(&self, subject: &Subject, seed: u64, thread: u64) -> Script {
        let held = |map: usize, key| self.contents[map][key as usize];
        Script::new(subject, seed, self.life, thread, held)
    }
}

/// The comparison of contents with one state.
#[derive(Debug, Default)]
struct Verdict {
    lost: u64,
    torn: u64,
    in_flight: u64,
    taken_back: u64,
    oldest_micros: u64,
    older: bool,
    findings: Vec<String>,
}

impl Verdict {
    /// Counts how the operations found of each thread differ from those acknowledged.
    fn count(&mut self, base: &Base, found: &[u64]) {
        for (found, acknowledged) in found.iter().zip(&base.acknowledged) {
            self.in_flight += found.saturating_sub(*acknowledged);
            self.taken_back += acknowledged.saturating_sub(*found);
        }
        (self.oldest_micros, self.older) = base.promises.oldest(found);
    }
}

#[cfg(test)]
mod tests;
