//! Workloads in which the pool is closed and opened again, or a thread holds a reference or an
//! iteration across later operations.

use super::{Instance, Keys, Maker, value_of};
use crate::history::Call;
use crate::parts::workload::{Aim, Before, Concurrent, PLAIN, Workload};
use crate::schedule::act::Act;
use crate::session::Do;
use crate::state::Records;

/// The workloads of every scheme.
pub(super) const ALL: [Workload; 3] = [
    Workload {
        name: "reopen",
        about: "the pool closed and opened again during operations",
        before: Before::Growth,
        concurrent: Concurrent::Reopen,
        ..PLAIN
    },
    Workload {
        name: "hold",
        about: "references and iterations held while records change and the pool is reopened",
        concurrent: Concurrent::Hold,
        ..PLAIN
    },
    Workload {
        name: "hold-dropped",
        about: "the same of another map, which is dropped",
        concurrent: Concurrent::HoldDropped,
        ..PLAIN
    },
];

/// Number of records of the other map, of which references and iterations are held.
const OTHER_RECORDS: u64 = 12;

impl Workload {
    /// Returns a factor: compared with other workloads, a thread is stopped up to this many times
    /// as often before accesses that are not at a commit point. Here these are the interesting
    /// ones, because a thread that reads through a reference or an iteration reaches no commit
    /// point.
    pub(in crate::schedule) fn held_share(&self) -> u64 {
        match self.concurrent {
            Concurrent::Hold | Concurrent::HoldDropped => 8,
            Concurrent::Reopen => 4,
            // The windows to hit have few accesses.
            _ if matches!(self.aim, Aim::Late { .. }) => 8,
            _ => 1,
        }
    }
}

impl Instance {
    /// Returns the records of each other map that exists at first.
    pub(in crate::schedule) fn other_records(&self) -> Records {
        match self.workload.concurrent {
            Concurrent::HoldDropped => (0..OTHER_RECORDS).map(|n| (n, value_of(n))).collect(),
            _ => Records::new(),
        }
    }
}

impl Maker<'_> {
    /// Makes the scripts of these workloads; `None` for all others.
    pub(super) fn closing(&mut self) -> Option<Vec<Vec<Act>>> {
        match self.workload.concurrent {
            Concurrent::Reopen => Some(self.reopened()),
            Concurrent::Hold => Some(self.holding()),
            Concurrent::HoldDropped => Some(self.holding_dropped()),
            _ => None,
        }
    }

    fn calls(&mut self, least: u64, more: u64) -> Vec<Act> {
        let count = least + self.random.below(more + 1);
        (0..count).map(|_| Act::Call(self.call())).collect()
    }

    /// Makes a script that closes the pool and opens it again.
    fn closer(&mut self) -> Vec<Act> {
        [self.calls(0, 1), vec![Act::Close, Act::Reopen], self.calls(1, 2)].concat()
    }

    fn reopened(&mut self) -> Vec<Vec<Act>> {
        let threads = 1 + self.random.below(2);
        let mut scripts: Vec<Vec<Act>> = (0..threads).map(|_| self.calls(2, 2)).collect();
        let value = self.fresh();
        scripts[0][self.random.below(2) as usize] = Act::Call(self.work(value));
        let mut closer = self.closer();
        if self.random.below(4) == 0 {
            // One thread closes it, and another one opens it.
            closer.retain(|act| *act != Act::Reopen);
            let at = self.random.below(scripts[0].len() as u64 + 1);
            scripts[0].insert(at as usize, Act::Reopen);
        }
        scripts.push(closer);
        scripts
    }

    /// Makes a script that holds a reference or an iteration during some operations.
    fn holder(&mut self, hold: impl Fn(Call) -> Act, keys: &Keys, records: u64) -> Vec<Act> {
        let call = match self.random.below(3) {
            0 => Call::Scan,
            _ => Call::Get(keys.key(self.random.below(records))),
        };
        [vec![hold(call)], self.calls(0, 2), vec![Act::Read]].concat()
    }

    fn holding(&mut self) -> Vec<Vec<Act>> {
        let (keys, fill) = (self.keys.clone(), self.fill);
        let holders = 1 + self.random.below(2);
        let mut scripts: Vec<Vec<Act>> =
            (0..holders).map(|_| self.holder(Act::Hold, &keys, fill)).collect();
        scripts.push(self.calls(2, 2));
        if self.random.below(4) != 0 {
            scripts.push(self.closer());
        }
        scripts
    }

    fn holding_dropped(&mut self) -> Vec<Vec<Act>> {
        let mut dropper = vec![Act::DropMap(0), Act::Background];
        dropper.extend(self.random.below(2).checked_sub(1).map(Act::CreateMap));
        dropper.extend(self.calls(2, 1));
        dropper.push(Act::Background);
        let holder = self.holder(|call| Act::HoldOther(0, call), &Keys::plain(), OTHER_RECORDS);
        let third = match self.random.below(3) {
            0 => self.closer(),
            1 => self.holder(|call| Act::HoldOther(0, call), &Keys::plain(), OTHER_RECORDS),
            _ => self.calls(2, 1),
        };
        vec![holder, dropper, third]
    }
}

/// The records, by number, that a directed schedule works on.
pub(super) struct Numbers<'k> {
    pub(super) keys: &'k Keys,
    /// How many records the table has at first. The next insert has this number.
    pub(super) records: u64,
    /// The first thread's record.
    pub(super) one: u64,
    /// Some others.
    pub(super) others: [u64; 2],
}

impl Numbers<'_> {
    pub(super) fn change(&self, number: u64, change: Do) -> Act {
        Act::Call(Call::Change(self.keys.key(number), change))
    }

    pub(super) fn get(&self, number: u64) -> Call {
        Call::Get(self.keys.key(number))
    }

    /// Returns changes that free the blocks of `one` and of `others`, and reuse them for records of
    /// the same length as record `length_of`.
    pub(super) fn reuse(&self, length_of: u64) -> Vec<Act> {
        let alike = |n: u64| 41 * (24 + n) + value_of(length_of) % 41;
        let [some, gone] = self.others;
        vec![
            self.change(self.one, Do::Put(alike(0))),
            self.change(some, Do::Update(alike(1))),
            self.change(gone, Do::Remove),
            self.change(self.records + 2, Do::Insert(alike(2))),
            self.change(some, Do::Update(alike(3))),
            self.change(self.one, Do::Update(alike(4))),
        ]
    }

    /// Makes the scripts of the directed schedules of these workloads; see [`Workload::held`].
    /// `None` for all others.
    pub(super) fn scripts(&self, concurrent: Concurrent) -> Option<Vec<[Vec<Act>; 3]>> {
        let look = vec![Act::Call(self.get(self.one)), Act::Call(Call::Scan)];
        let each = |victims: &[Vec<Act>], work: &[Act]| {
            let script = |victim: &Vec<Act>| [victim.clone(), work.to_vec(), look.clone()];
            victims.iter().map(script).collect::<Vec<_>>()
        };
        let reopened = |work: &[Act]| [&[Act::Close, Act::Reopen], work].concat();
        let reuse = self.reuse(self.one);
        Some(match concurrent {
            Concurrent::Reopen => {
                let insert = self.change(self.records, Do::Insert(1_000));
                let work = [vec![insert, Act::Background], reopened(&reuse)].concat();
                let opener = [&[Act::Reopen], &reuse[..]].concat();
                // In one schedule a close is held, in the other a change for which the close waits.
                // No thread can open the pool meanwhile.
                let update = self.change(self.one, Do::Update(2_000));
                let closing = [
                    [vec![Act::Close], opener.clone(), look.clone()],
                    [vec![update], vec![Act::Close], [opener, look.clone()].concat()],
                ];
                [closing.to_vec(), each(&self.victims(), &work)].concat()
            }
            Concurrent::Hold => {
                let one = self.get(self.one);
                let victims =
                    [one, one, one, Call::Scan].map(|call| vec![Act::Hold(call), Act::Read]);
                [each(&victims, &reuse), each(&victims, &reopened(&reuse))].concat()
            }
            Concurrent::HoldDropped => {
                let held = |call| vec![Act::HoldOther(0, call), Act::Read];
                let victims = [Call::Get(3), Call::Get(5), Call::Scan].map(held);
                let drop = [Act::DropMap(0), Act::Background, Act::Background];
                let after = [vec![Act::CreateMap(1)], self.reuse(3), self.reuse(5)].concat();
                let works = [after.clone(), reopened(&after)];
                works
                    .iter()
                    .flat_map(|after| each(&victims, &[&drop, &after[..]].concat()))
                    .collect()
            }
            _ => return None,
        })
    }

    /// Returns operations that a close and a reopening interrupt.
    fn victims(&self) -> Vec<Vec<Act>> {
        let changes = [Do::Update(2_000), Do::Remove, Do::Swap(value_of(self.one), 2_000)];
        let mut victims = vec![
            self.change(self.records, Do::Insert(2_000)),
            self.change(self.records + 3, Do::Insert(2_000)),
            Act::Background,
            Act::Sync,
            Act::CreateMap(1),
        ];
        victims.extend(changes.map(|by| self.change(self.one, by)));
        // Four lookups, because instances differ in how they look a key up: by reference, in a
        // batch, with `contains` before `get`, or with `get` alone.
        victims.extend([Act::Call(self.get(self.one)); 4]);
        victims.push(Act::Call(Call::Scan));
        victims.into_iter().map(|victim| vec![victim]).collect()
    }
}
