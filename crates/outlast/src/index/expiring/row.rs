//! Changes of several keys.
//!
//! Each change is decided by what one lookup of all keys has found. The map below then makes them in one row,
//! so that they share fences as those of a map without expiry do; each compares with what was found. What
//! another thread has changed meanwhile is decided again, alone.
//!
//! What a crash leaves is what it leaves of the row below: each change has been made, or not. A row is no batch.

use super::{Expiring, Next, join};
use crate::error::Result;
use crate::index::{Bytes, Change, Changed, Previous};
use crate::pmem::Seam;
use crate::pool::clock::NEVER;

/// A change in a row: what was decided, and what the map below is to do.
struct Decided {
    /// The change's place in the row of the map below; `None` if nothing has to be done.
    place: Option<usize>,
    /// The time of the new record.
    time: u64,
    /// Whether the change applies, rather than removing what has expired.
    applies: bool,
    /// Whether the key was present.
    present: bool,
}

impl<S: Seam> Expiring<S> {
    /// Makes changes of different keys, whose values are short enough, as
    /// [`Index::change_many`](crate::index::Index::change_many) does.
    pub(super) fn change_row(
        &self,
        keys: &[&[u8]],
        changes: &[Change<'_, Bytes>],
        done: &mut Vec<Changed<Bytes>>,
    ) -> Result<()> {
        let mut found = vec![None; keys.len()];
        self.stored.get_many(keys, &mut found)?;
        let (mut decided, mut news) = (Vec::with_capacity(keys.len()), Vec::new());
        for (change, found) in changes.iter().zip(&found) {
            let live = found.as_deref().map(|stored| self.split(stored)).transpose()?;
            let live = live.filter(|(time, _)| !self.has_passed(*time));
            let (mut time, present) = (NEVER, live.is_some());
            let (applies, new) = match self.next(*change, live) {
                Next::Keep => (false, None),
                Next::Remove => (true, None),
                Next::Store(at, value) => {
                    time = at;
                    (true, Some(join(at, value)))
                }
            };
            // A record that has expired goes, whatever the change is.
            let makes = applies || (found.is_some() && !present);
            let place = makes.then_some(news.len());
            if makes {
                news.push(new);
            }
            decided.push(Decided { place, time, applies, present });
        }
        let (mut row_keys, mut row) = (Vec::new(), Vec::new());
        for (number, Decided { place, .. }) in decided.iter().enumerate() {
            let Some(place) = *place else { continue };
            row_keys.push(keys[number]);
            row.push(match (found[number].as_deref(), news[place].as_deref()) {
                (None, new) => Change::Insert(new.unwrap_or_default()),
                (Some(expected), Some(new)) => Change::Swap { expected, new },
                (Some(expected), None) => Change::CompareRemove(expected),
            });
        }
        let mut made = Vec::with_capacity(row.len());
        let all = self.stored.change_many(&row_keys, &row, &mut made);
        for ((key, change), made) in row_keys.iter().zip(&row).zip(&made) {
            self.note(key, *change, made);
        }
        all?;
        for (number, Decided { place, time, applies, present }) in decided.into_iter().enumerate() {
            if place.is_none_or(|place| made[place].applied) {
                self.expect(time);
                self.count.note_expired(place.is_some() && !applies);
                done.push(Changed { applied: applies, before: None, present });
            } else {
                done.push(self.change_one(keys[number], changes[number], Previous::UNWANTED)?);
            }
        }
        Ok(())
    }
}
