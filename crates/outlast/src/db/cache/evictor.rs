//! Which records are evicted next.

use super::mark::{Mark, age};
use crate::error::Result;
use crate::index::{Bytes, Cursor, EvictingIndex, Sampled, Verdict};
use std::collections::VecDeque;

/// The share of all records that the queue of young ones holds. The oldest of the queue goes if it holds more.
const YOUNG: f32 = 0.03;
/// The share of all records that the queue can hold while the cache fills. What it forgets becomes a *stray*: a
/// young record that only a sample finds.
const QUEUED: f32 = 0.1;
/// The share of strays above which those go first.
const STRAYS: f32 = 0.01;
/// What a sample counts in the moving average of that share.
const LATEST: f32 = 0.1;
/// Buckets in a sample.
const PARTS: u32 = 8;
/// Of this many records in a sample, one proved one goes.
const ONE_IN: usize = 12;
/// Of this many strays in a sample, one goes; but up to [`STRAYS_FEW`] go in any case.
const STRAYS_ONE_IN: usize = 4;
const STRAYS_FEW: usize = 16;

/// A record that is to be evicted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Victim {
    /// The hash of its key.
    pub(super) hash: u64,
    /// Its mark if it is from a sample. It stays if it has been used since.
    mark: Option<u32>,
}

impl Victim {
    /// Returns what becomes of the record now.
    pub(super) fn verdict(self, word: u32, now: u32) -> Verdict {
        let mark = Mark::of(word, now);
        match self.mark {
            Some(sampled) if sampled != word => Verdict::Keep,
            None if mark.proved => Verdict::Keep,
            None if mark.visits > 0 => Verdict::Mark(proved(now).word()),
            _ => Verdict::Evict,
        }
    }
}

/// The mark of a record that becomes proved.
fn proved(now: u32) -> Mark {
    Mark { visits: 0, proved: true, stamp: now }
}

/// The queue of young records, the victims of the latest sample, and where the hand is.
pub(super) struct Evictor {
    hand: Cursor,
    /// The hashes and stamps of records in the order of their insertion. Some may not be young any more.
    young: VecDeque<(u64, u32)>,
    /// The share of young records that are not in the queue.
    strays: f32,
    /// The first to go is the last.
    victims: Vec<Victim>,
    /// The latest sample, and its order. They keep their memory.
    sampled: Vec<Sampled>,
    order: Vec<u64>,
}

impl Evictor {
    /// Begins where `strays` is the share of young records.
    pub(super) fn new(strays: f32) -> Evictor {
        Evictor {
            hand: Cursor::start(),
            young: VecDeque::new(),
            strays,
            victims: Vec::new(),
            sampled: Vec::new(),
            order: Vec::new(),
        }
    }

    /// Notes the insertion of young records, hashes and stamps, into a cache with this many. `full` says
    /// whether others were evicted for them.
    pub(super) fn inserted(
        &mut self,
        young: impl Iterator<Item = (u64, u32)>,
        records: u64,
        full: bool,
    ) {
        self.young.extend(young);
        // While the cache fills, the queue would get as long as the cache.
        let most = (records as f32 * QUEUED) as usize + 16;
        while !full && self.young.len() > most {
            self.young.pop_front();
            self.strays = (self.strays + 1.0 / records.max(1) as f32).min(1.0);
        }
    }

    fn few(records: u64) -> usize {
        (records as f32 * YOUNG) as usize
    }

    /// Returns the next victim. `None` if there are no records.
    pub(super) fn next(
        &mut self,
        index: &dyn EvictingIndex<Bytes>,
        records: u64,
        now: u32,
    ) -> Result<Option<Victim>> {
        let mut rounds = 0;
        loop {
            let many = self.young.len() > Self::few(records);
            if many && self.strays <= STRAYS {
                let young = self.young.pop_front();
                return Ok(young.map(|(hash, _)| Victim { hash, mark: None }));
            }
            if let Some(victim) = self.victims.pop() {
                return Ok(Some(victim));
            }
            if self.hand == Cursor::start() {
                rounds += 1;
                match rounds {
                    1 => {}
                    // A whole round has found no stray, whatever the average says.
                    2 => {
                        self.strays = 0.0;
                        continue;
                    }
                    3 => {}
                    _ => return Ok(None),
                }
            }
            self.sample(index, now)?;
        }
    }

    /// Chooses victims among the records at the hand, and moves the hand on. If strays are to go and there
    /// are none, there are no victims.
    fn sample(&mut self, index: &dyn EvictingIndex<Bytes>, now: u32) -> Result<()> {
        let Evictor { hand, young, strays, victims, sampled, order } = self;
        // Every record since then is in the queue.
        let queue = young.front().map_or(0, |&(_, stamp)| age(stamp, now));
        let has_queue = !young.is_empty();
        index.sample(hand, PARTS, sampled, &mut |records| {
            if records.is_empty() {
                return;
            }
            order.clear();
            for (number, record) in records.iter_mut().enumerate() {
                let mark = Mark::of(record.mark, now);
                // A record without a mark counts as the oldest.
                let age = if record.mark == 0 { u32::MAX } else { mark.age(now) };
                let queued = has_queue && age <= queue;
                if !mark.proved && !queued {
                    if mark.visits == 0 {
                        order.push(u64::from(age) << 32 | number as u64);
                        continue;
                    }
                    record.mark = Mark { visits: 0, proved: true, ..mark }.word();
                }
            }
            let share = order.len() as f32 / records.len() as f32;
            *strays += LATEST * (share - *strays);
            if !order.is_empty() {
                order.sort_unstable_by(|a, b| b.cmp(a));
                let taken = (order.len() / STRAYS_ONE_IN).max(STRAYS_FEW);
                order.truncate(taken);
                victims
                    .extend(order.iter().rev().map(|&key| victim(&records[key as u32 as usize])));
                return;
            }
            if *strays <= STRAYS {
                choose_proved(records, order, victims, now);
            }
        })?;
        if hand.is_done() {
            *hand = Cursor::start();
        }
        Ok(())
    }
}

fn victim(record: &Sampled) -> Victim {
    Victim { hash: record.hash, mark: Some(record.mark) }
}

/// Chooses the oldest proved records without a visit. Those that are older than one of them lose a visit
/// and count as new.
fn choose_proved(
    records: &mut [Sampled],
    order: &mut Vec<u64>,
    victims: &mut Vec<Victim>,
    now: u32,
) {
    for (number, record) in records.iter().enumerate() {
        let mark = Mark::of(record.mark, now);
        if mark.proved {
            order.push(u64::from(mark.age(now)) << 32 | number as u64);
        }
    }
    order.sort_unstable_by(|a, b| b.cmp(a));
    let (wanted, first) = ((records.len() / ONE_IN).max(1), victims.len());
    for &key in &*order {
        let record = &mut records[key as u32 as usize];
        let mark = Mark::of(record.mark, now);
        if mark.visits > 0 {
            record.mark = Mark { visits: mark.visits - 1, stamp: now, ..mark }.word();
            continue;
        }
        victims.push(victim(record));
        if victims.len() - first == wanted {
            break;
        }
    }
    if victims.len() == first {
        // All of them were used. The oldest goes; without proved ones, any.
        let oldest = order.first().map_or(0, |&key| key as u32 as usize);
        victims.extend(records.get(oldest).map(victim));
    }
    victims[first..].reverse();
}

/// Returns the newest stamp in a sample of the records, and the share of young ones.
pub(super) fn look_around(index: &dyn EvictingIndex<Bytes>) -> Result<(u32, f32)> {
    let (mut cursor, mut newest, mut seen, mut young) = (Cursor::start(), None::<u32>, 0, 0);
    let mut sampled = Vec::new();
    while !cursor.is_done() && seen < 1_000 {
        index.sample(&mut cursor, PARTS, &mut sampled, &mut |records| {
            for record in records {
                let mark = Mark::of(record.mark, 0);
                seen += 1;
                young += u32::from(!mark.proved && mark.visits == 0);
                if record.mark == 0 {
                    continue;
                }
                newest = Some(match newest {
                    Some(newest) if mark.age(newest) > 0 || mark.stamp == newest => newest,
                    _ => mark.stamp,
                });
            }
        })?;
    }
    let share = if seen == 0 { 0.0 } else { young as f32 / seen as f32 };
    Ok((newest.unwrap_or(0), share))
}
