//! The offline check: every structure, every slot, every record.

use super::layout::SLOTS;
use super::notes::BucketRef;
use super::{DashEh, Segment};
use crate::error::{Damage, Error, Result};
use crate::index::record::Record;
use crate::index::version::LockWord;
use crate::index::{Cursor, Verified, Visitor};
use crate::pmem::Seam;
use std::collections::HashSet;
use std::sync::atomic::Ordering;

impl<S: Seam, R: Record> DashEh<S, R> {
    /// Checks everything. The caller holds the gate: nothing else runs.
    pub(super) fn verify_all(&self, visit: &mut Visitor<'_>) -> Result<Verified> {
        let mut verified = Verified::default();
        let mut cursor = Cursor::start();
        while !cursor.is_done() {
            // First touch checks header, directory range and slots; the trace follows
            // the links. What cannot be read is reported, and the rest still checked.
            let at = cursor.low;
            let step = self.trace_next(&mut cursor, visit);
            match step {
                Ok(()) => self.verify_segment(at, &mut verified)?,
                Err(Error::Damaged(damage)) => {
                    verified.damage.push(damage);
                    self.skip(at, &mut cursor);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(verified)
    }

    /// Past the directory entry that could not be followed.
    fn skip(&self, at: u64, cursor: &mut Cursor) {
        let depth = self.directory().depth;
        let last = at | (u64::MAX >> depth);
        cursor.high = last;
        match last.checked_add(1) {
            Some(low) => {
                cursor.low = low;
                cursor.state = crate::index::CursorState::Start;
            }
            None => cursor.finish(),
        }
    }

    fn verify_segment(&self, at: u64, verified: &mut Verified) -> Result<()> {
        let segment = self.route_inside(at)?.segment;
        let mut keys = HashSet::new();
        let own = self.shape.buckets();
        let buckets = (0..own + self.shape.stash)
            .map(|i| Ok((self.bucket(segment, i), (i < own).then_some(i))));
        let nodes = self.node_buckets(segment).map(|bucket| Ok((bucket?, None)));
        for place in buckets.chain(nodes) {
            let (bucket, index) = match place {
                Ok(place) => place,
                Err(damage) => {
                    verified.damage.push(damage);
                    break;
                }
            };
            self.verify_bucket(segment, bucket, index, &mut keys, verified);
        }
        Ok(())
    }

    fn verify_bucket(
        &self,
        segment: Segment,
        bucket: BucketRef<'_>,
        index: Option<u32>,
        keys: &mut HashSet<R::OwnedKey>,
        verified: &mut Verified,
    ) {
        let allocated = self.meta(bucket).allocated();
        for slot in 0..SLOTS {
            let offset = self.core.memory.offset_of(&bucket.slots[slot]).raw();
            let record = match self.record_in(segment, bucket, slot, index) {
                Ok(record) => record,
                Err(damage) => {
                    verified.damage.push(damage);
                    continue;
                }
            };
            let listed = allocated & 1 << slot != 0;
            if listed != record.is_some() {
                verified.damage.push(Damage::new(
                    offset,
                    format!("a slot that is {}", if listed { "in use" } else { "free" }),
                    format!("{record:?}"),
                ));
            }
            let Some((words, _)) = record else { continue };
            verified.records += 1;
            match R::is_whole(&self.core, words)
                .and_then(|whole| Ok(if whole { Some(R::key(&self.core, words)?) } else { None }))
            {
                Ok(Some(key)) => {
                    if !keys.insert(key.clone()) {
                        verified.duplicated += 1;
                        let found = format!("key {key:?} a second time");
                        verified.damage.push(Damage::new(offset, "each key once", found));
                    }
                    // What stands in the slot must be what a lookup finds.
                    let hash = self.hash_of(words);
                    let home = self.home(hash);
                    let notes = self.bucket(segment, home).notes;
                    let lock = notes.lock(self.seam()).load(Ordering::Relaxed);
                    let found = self.search(segment, home, lock, R::key_of(&key), hash);
                    if !matches!(found, Ok(Some(place)) if place.words == words) {
                        verified.damage.push(Damage::new(
                            offset,
                            "a record that lookups find",
                            "one that they do not",
                        ));
                    }
                }
                Ok(None) => {
                    verified.torn += 1;
                    let found = "one whose checksum or hash does not match";
                    verified.damage.push(Damage::new(offset, "a whole record", found));
                }
                Err(damage) => {
                    verified.torn += 1;
                    verified.damage.push(damage);
                }
            }
        }
    }
}
