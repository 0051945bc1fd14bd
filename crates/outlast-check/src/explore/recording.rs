//! A recorded run of one thread, and what a crash in it may leave.

use crate::model::{GARBAGE, Image, Timeline, stored, windows};
use crate::response::{self, Pending, is_relied_on};
use crate::session::{Kind, Step};
use crate::state::Allowed;
use outlast::internals::pmem::{Access, Event, Mark, Point};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

/// A run: where it began, its events, and its steps.
///
/// A moment of the run is given as the number of events that have happened.
pub struct Recording {
    initial: Image,
    initial_len: u64,
    /// The recorded events.
    pub events: Vec<Event>,
    /// The steps, in the order of their marks.
    pub steps: Vec<Step>,
    /// Every key that may be present, and some that never are.
    pub universe: Vec<u64>,
    /// First and last event of each step.
    spans: Vec<(usize, usize)>,
    /// The moment from which the run is explored.
    first: usize,
}

/// Finds the events that begin and end each step.
fn spans(events: &[Event]) -> Vec<(usize, usize)> {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for (i, event) in events.iter().enumerate() {
        match event.access {
            Access::Mark(Mark::Begin(_)) => spans.push((i, usize::MAX)),
            Access::Mark(Mark::End(_)) => {
                spans.last_mut().expect("a step ends after it began").1 = i;
            }
            _ => {}
        }
    }
    spans
}

impl Recording {
    /// Makes the recording of a run. `initial` is the pool's file before it; if the run creates the
    /// pool, `initial` is empty, and the pool is created with `created_len` bytes. The run is
    /// explored from step `from` on.
    pub fn new(
        initial: &Image,
        created_len: u64,
        capacity: u64,
        (steps, events): (Vec<Step>, Vec<Event>),
        from: usize,
        universe: Vec<u64>,
    ) -> Recording {
        let mut image = initial.clone();
        // The file of a journaled pool that has its greatest size is longer: the journal's `meta` follows the pool.
        image.bytes.resize(image.bytes.len().max(capacity as usize), GARBAGE);
        let spans = spans(&events);
        assert_eq!(spans.len(), steps.len(), "every step is marked");
        let first = spans.get(from).map_or(events.len(), |s| s.0);
        let initial_len = match initial.bytes.len() {
            0 => created_len,
            len => len as u64,
        };
        Recording { initial: image, initial_len, events, steps, universe, spans, first }
    }

    /// Returns the same run with another trace, in which flushes and fences are left out, moved or
    /// shortened. Every store and every mark must still be there, in the same order.
    pub fn with_events(&self, events: Vec<Event>) -> Recording {
        let rest = |events: &[Event], until: usize| {
            events[..until].iter().filter(|e| !is_flush_or_fence(e)).count()
        };
        let before = rest(&self.events, self.first);
        let spans = spans(&events);
        assert_eq!(spans.len(), self.spans.len(), "a mutated trace keeps its marks");
        let first = (0..=events.len()).find(|&m| rest(&events, m) == before).unwrap_or(0);
        Recording {
            initial: self.initial.clone(),
            initial_len: self.initial_len,
            events,
            steps: self.steps.clone(),
            universe: self.universe.clone(),
            spans,
            first,
        }
    }

    /// Returns this run as the second life after `life_before`, whose process died at the moment of
    /// `timeline` while the power stayed on. The run opens the pool, and if it `reads`, reads
    /// everything.
    ///
    /// A later power loss can also take what the first life left in the caches. Until everything is
    /// read, such a loss leaves one of the `allowed` states. After that, it leaves what was read.
    pub fn after_death(
        self,
        life_before: &Recording,
        timeline: &Timeline<'_>,
        allowed: Allowed,
        reads: bool,
    ) -> Self {
        let Recording { mut initial, events: life, mut steps, universe, spans: old, .. } = self;
        let mut left: Vec<usize> =
            timeline.open().flat_map(|line| line.stores).map(|store| store.event).collect();
        left.sort_unstable();
        // The first life's stores come after the mark that begins the opening, so that what they
        // leave is judged by the allowed states of the opening.
        let (begun, opened) = old[0];
        let mut events = life[..=begun].to_vec();
        events.extend(left.iter().map(|&event| life_before.events[event].clone()));
        events.push(Event { thread: 0, point: None, access: Access::Mark(Mark::Death) });
        let first = events.len();
        events.extend_from_slice(&life[begun + 1..opened]);
        if reads {
            // The opening and the reading become one step.
            events.extend_from_slice(&life[old[1].0 + 1..]);
            steps.remove(1);
        } else {
            events.extend_from_slice(&life[opened..]);
        }
        let found = Some(Arc::clone(&steps[0].after));
        let mut others = allowed.0.into_iter().filter(|state| *state != found);
        if let Some(other) = others.next() {
            steps[0].before = other;
        }
        steps[0].between.extend(others.flatten());
        let capacity = initial.bytes.len();
        timeline.least_and(&[], &mut initial);
        let initial_len = initial.bytes.len() as u64;
        initial.bytes.resize(capacity, GARBAGE);
        let spans = spans(&events);
        Recording { initial, initial_len, events, steps, universe, spans, first }
    }

    /// Starts the exploration at the first store at a commit point, if there is one.
    pub fn begin_at(&mut self, point: &'static Point) {
        let is_there =
            |&i: &usize| self.events[i].point == Some(point) && stored(&self.events[i]).is_some();
        if let Some(first) = (self.first..self.events.len()).find(is_there) {
            self.first = first;
        }
    }

    /// Returns the file before the run, padded to the size that the pool can grow to, and its
    /// length.
    pub fn initial(&self) -> (&Image, u64) {
        (&self.initial, self.initial_len)
    }

    /// Returns the beginning of the trace.
    pub fn timeline(&self) -> Timeline<'_> {
        Timeline::new(&self.initial, self.initial_len, &self.events)
    }

    /// Returns the moment from which the run is explored.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Lists the moments to crash at, in order: after each explored store (`false`), and the
    /// [`windows`] for line cuts (`true`). Of two kinds of stores, only one in `stride` is taken:
    /// stores to volatile words, and stores in the middle of a sequence to words that nothing links
    /// to yet.
    pub fn moments(&self, stride: usize) -> Vec<(usize, bool)> {
        let stores = (self.first..self.events.len())
            .filter(|&i| stored(&self.events[i]).is_some())
            .filter(|&i| {
                let is_volatile = !is_relied_on(self.events[i].point);
                i.is_multiple_of(stride) || !(is_volatile || self.is_midway(i + 1))
            })
            .map(|i| (i + 1, false));
        let windows = windows(&self.events).into_iter().filter(|&w| w >= self.first);
        let mut moments: Vec<_> = stores.chain(windows.map(|w| (w, true))).collect();
        moments.sort_unstable();
        moments
    }

    /// Counts the explored stores.
    pub fn stores(&self) -> usize {
        self.events[self.first..].iter().filter(|e| stored(e).is_some()).count()
    }

    /// Returns the size that the pool can grow to, in bytes.
    pub fn capacity(&self) -> u64 {
        self.initial.bytes.len() as u64
    }

    /// Returns whether a moment is in the middle of a sequence of stores at one commit point, such
    /// as the stores to a structure that nothing links to yet.
    fn is_midway(&self, moment: usize) -> bool {
        let point =
            |i: usize| self.events.get(i).filter(|e| stored(e).is_some()).and_then(|e| e.point);
        let Some(last) = moment.checked_sub(1).and_then(point) else { return false };
        moment >= 2 && point(moment - 2) == Some(last) && point(moment) == Some(last)
    }

    /// Returns the last step that has begun.
    pub fn begun(&self, moment: usize) -> Option<usize> {
        self.spans.partition_point(|s| s.0 < moment).checked_sub(1)
    }

    /// Returns the step in flight at a moment, if there is one.
    pub fn in_flight(&self, moment: usize) -> Option<&Step> {
        let step = self.begun(moment)?;
        (moment <= self.spans[step].1).then(|| &self.steps[step])
    }

    /// Returns the kind of the operation in flight at a moment, or of the last one.
    pub fn kind(&self, moment: usize) -> Kind {
        self.begun(moment).map_or(Kind::CreatePool, |step| self.steps[step].kind)
    }

    /// Returns the commit point of the last store before a moment, in the step in flight or the
    /// last one. Volatile stores do not count.
    pub fn phase(&self, moment: usize) -> Option<&'static Point> {
        let begin = self.begun(moment).map_or(0, |step| self.spans[step].0);
        let stores = self.events[begin..moment].iter().rev().filter(|e| stored(e).is_some());
        stores.filter_map(|e| e.point).find(|p| !p.volatile)
    }

    /// Returns what a pool may hold after a crash at a moment.
    pub fn allowed(&self, moment: usize) -> Allowed {
        if let Some(step) = self.in_flight(moment) {
            let mut allowed = vec![step.before.clone()];
            if !step.before.as_ref().is_some_and(|before| Arc::ptr_eq(before, &step.after)) {
                allowed.push(Some(Arc::clone(&step.after)));
            }
            allowed.extend(step.between.iter().cloned().map(Some));
            return Allowed(allowed);
        }
        Allowed(vec![match self.begun(moment) {
            Some(step) => Some(Arc::clone(&self.steps[step].after)),
            None => self.steps.first().and_then(|s| s.before.clone()),
        }])
    }

    /// Returns what was stored before a moment and had not become durable.
    pub fn pending(&self, moment: usize) -> BTreeMap<u64, Pending> {
        response::pending_after(&self.events[..moment])
    }

    /// Describes the last steps before a moment, for people.
    pub fn history(&self, moment: usize) -> Vec<String> {
        let Some(last) = self.begun(moment) else { return Vec::new() };
        (last.saturating_sub(7)..=last)
            .map(|step| {
                let answered = self.spans[step].1 < moment;
                let how = if answered { "answered" } else { "in flight" };
                format!("{} ({how})", self.steps[step].text)
            })
            .collect()
    }

    /// Formats the trace around a moment, for people.
    pub fn trace_around(&self, moment: usize) -> Vec<String> {
        let from = moment.saturating_sub(16);
        let to = (moment + 4).min(self.events.len());
        let mut lines = Vec::new();
        for number in from..to {
            if number == moment {
                lines.push("-------- the crash".into());
            }
            lines.push(show(number, &self.events[number]));
        }
        if moment >= to {
            lines.push("-------- the crash".into());
        }
        lines
    }
}

/// Returns whether an event is a flush or a fence, which a mutant may lack.
pub fn is_flush_or_fence(event: &Event) -> bool {
    matches!(event.access, Access::Flush { .. } | Access::Fence)
}

/// Formats an event in one line.
pub fn show(number: usize, event: &Event) -> String {
    let mut text = format!("{number:>8} t{} ", event.thread);
    if let Some(point) = event.point {
        let _ = write!(text, "[{}: {}] ", point.owner, point.name);
    }
    let _ = match &event.access {
        Access::Load { offset, value } => write!(text, "load {offset:#x} = {value:#x}"),
        Access::Store { offset, value, nontemporal } => {
            let past = if *nontemporal { " past the caches" } else { "" };
            write!(text, "store {offset:#x} = {value:#x}{past}")
        }
        Access::CompareExchange { offset, found, new, exchanged } => {
            let how = if *exchanged { "exchanged" } else { "failed" };
            write!(text, "compare-exchange {offset:#x} {found:#x} -> {new:#x} {how}")
        }
        Access::Flush { offset, bytes } => write!(text, "flush {offset:#x}, {bytes} bytes"),
        Access::Fence => write!(text, "fence"),
        Access::Dram => write!(text, "shared DRAM"),
        Access::Mark(mark) => write!(text, "{mark:?}"),
    };
    text
}
