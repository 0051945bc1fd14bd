//! A recorded run, and the images that a crash in it leaves.

use crate::response::{self, Pending};
use crate::session::{GARBAGE, Step};
use crate::state::State;
use outlast::pmem::{Access, Event, Mark, Point};
use outlast::pool::layout::{HEADER_OFFSETS, field};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A run: where it began, what it stored, and what its steps were.
pub struct Recording {
    initial: Vec<u8>,
    initial_len: u64,
    /// What was recorded.
    pub events: Vec<Event>,
    /// The steps, in the order of their marks.
    pub steps: Vec<Step>,
    /// Every key that may be there, and some that never are.
    pub universe: Vec<u64>,
    /// First and last event of each step.
    spans: Vec<(usize, usize)>,
    /// The events that are stores, from the first that is explored.
    cuts: Vec<usize>,
    /// From which event on the file has which length.
    lengths: Vec<(usize, u64)>,
}

/// Offset and value, if the event is a store that took place.
pub fn stored(event: &Event) -> Option<(u64, u64)> {
    match event.access {
        Access::Store { offset, value, .. } => Some((offset, value)),
        Access::CompareExchange { offset, new, exchanged: true, .. } => Some((offset, new)),
        _ => None,
    }
}

/// The file's length over the run. The pool tells of a growth when it writes its header,
/// and the file must have grown before the first word of that.
fn lengths(events: &[Event], initial: u64) -> Vec<(usize, u64)> {
    let mut lengths = vec![(0, initial)];
    for (i, event) in events.iter().enumerate() {
        let Some((offset, size)) = stored(event) else { continue };
        let is_size = HEADER_OFFSETS.iter().any(|start| offset == start + field::SIZE as u64 * 8);
        if is_size && size > lengths.last().map_or(0, |l| l.1) {
            // The size is this many words after the first of its header copy.
            lengths.push((i - field::SIZE, size));
        }
    }
    lengths
}

impl Recording {
    /// A run on a pool whose file was `initial` (nothing, for a run that creates it),
    /// explored from its step `from` on.
    pub fn new(
        initial: &[u8],
        created_len: u64,
        capacity: u64,
        (steps, events): (Vec<Step>, Vec<Event>),
        from: usize,
        universe: Vec<u64>,
    ) -> Recording {
        let mut image = initial.to_vec();
        image.resize(capacity as usize, GARBAGE);
        let mut spans: Vec<(usize, usize)> = Vec::with_capacity(steps.len());
        for (i, event) in events.iter().enumerate() {
            match event.access {
                Access::Mark(Mark::Begin(_)) => spans.push((i, usize::MAX)),
                Access::Mark(Mark::End(_)) => {
                    spans.last_mut().expect("a step ends after it began").1 = i;
                }
                _ => {}
            }
        }
        assert_eq!(spans.len(), steps.len(), "every step is marked");
        let first = spans.get(from).map_or(events.len(), |s| s.0);
        let cuts = (first..events.len()).filter(|&i| stored(&events[i]).is_some()).collect();
        let initial_len = if initial.is_empty() { created_len } else { initial.len() as u64 };
        let lengths = lengths(&events, initial_len);
        Recording { initial: image, initial_len, events, steps, universe, spans, cuts, lengths }
    }

    /// Explores from the first store at a commit point on, if there is one.
    pub fn begin_at(&mut self, point: &'static Point) {
        let is_there = |&&event: &&usize| self.events[event].point == Some(point);
        if let Some(&first) = self.cuts.iter().find(is_there) {
            self.cuts.retain(|&event| event >= first);
        }
    }

    /// Stores that are explored. Cut `n` keeps the first `n` of them.
    pub fn cuts(&self) -> usize {
        self.cuts.len()
    }

    /// Bytes that the pool can grow to.
    pub fn capacity(&self) -> u64 {
        self.initial.len() as u64
    }

    /// The last event that cut `n` keeps; `None` if it keeps none at all.
    fn last_event(&self, cut: usize) -> Option<usize> {
        match cut {
            0 => self.cuts.first().map_or(self.events.len(), |&e| e).checked_sub(1),
            n => Some(self.cuts[n - 1]),
        }
    }

    /// Whether a cut is in the middle of a row of stores of one commit point: words of a
    /// structure, say, that nothing links to yet.
    pub fn is_midway(&self, cut: usize) -> bool {
        let point = |cut: usize| self.cuts.get(cut).and_then(|&e| self.events[e].point);
        (2..self.cuts.len()).contains(&cut)
            && point(cut - 1).is_some()
            && point(cut - 2) == point(cut - 1)
            && point(cut) == point(cut - 1)
    }

    /// The step in flight at a cut, if one is.
    pub fn in_flight(&self, cut: usize) -> Option<&Step> {
        let event = self.last_event(cut)?;
        let step = self.spans.partition_point(|s| s.0 <= event).checked_sub(1)?;
        (event < self.spans[step].1).then(|| &self.steps[step])
    }

    /// What a pool may hold after a crash at a cut; `None` means no pool at all.
    pub fn allowed(&self, cut: usize) -> Vec<Option<&Arc<State>>> {
        if let Some(step) = self.in_flight(cut) {
            let mut allowed = vec![step.before.as_ref(), Some(&step.after)];
            allowed.dedup();
            return allowed;
        }
        let begun = |event| self.spans.partition_point(|s| s.0 <= event);
        let done = self.last_event(cut).map_or(0, begun);
        match done.checked_sub(1) {
            Some(step) => vec![Some(&self.steps[step].after)],
            None => vec![self.steps.first().and_then(|s| s.before.as_ref())],
        }
    }

    /// What was stored before a cut and had not become durable.
    pub fn pending(&self, cut: usize) -> BTreeMap<u64, Pending> {
        let end = self.last_event(cut).map_or(0, |e| e + 1);
        response::pending_after(&self.events[..end])
    }

    /// The store before a cut and the next event after it, for a person.
    pub fn around(&self, cut: usize) -> (String, String) {
        let show = |index: Option<usize>| match index.and_then(|i| self.events.get(i)) {
            None => "nothing".into(),
            Some(event) => {
                let point = event.point.map_or("-".into(), |p| format!("{}/{}", p.owner, p.name));
                format!("[{point}] {:x?}", event.access)
            }
        };
        let last = self.last_event(cut);
        (show(last), show(Some(last.map_or(0, |e| e + 1))))
    }

    /// The image of cut `n`, from which later ones can be made.
    pub fn image(&self, cut: usize) -> RollingImage<'_> {
        let mut image =
            RollingImage { run: self, bytes: self.initial.clone(), next: 0, len: self.initial_len };
        image.advance(cut);
        image
    }
}

/// The file after a crash.
pub struct RollingImage<'r> {
    run: &'r Recording,
    bytes: Vec<u8>,
    /// The first event that is not applied.
    next: usize,
    len: u64,
}

impl RollingImage<'_> {
    /// Moves on to a later cut.
    pub fn advance(&mut self, cut: usize) {
        let end = self.run.last_event(cut).map_or(0, |e| e + 1);
        for event in &self.run.events[self.next..end] {
            if let Some((offset, value)) = stored(event) {
                self.bytes[offset as usize..][..8].copy_from_slice(&value.to_le_bytes());
            }
        }
        self.next = end;
        let at = end.saturating_sub(1);
        let known = self.run.lengths.partition_point(|l| l.0 <= at) - 1;
        self.len = self.run.lengths[known].1;
    }

    /// The file's bytes.
    pub fn file(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}
