//! Calls that go through many records.

use crate::argument::{borrow, outlast_bytes, slice};
use crate::code::{
    OUTLAST_NOT_FOUND, OUTLAST_OK, OUTLAST_STOPPED, Result, answer, invalid, outlast_code,
};
use crate::map::outlast_map;
use crate::report::{DamageListener, outlast_damage_fn};
use library::{Error, RawRange};
use std::ffi::{c_int, c_void};
use std::ops::Bound;

/// Receives a record. The bytes are valid during the call. It may call outlast, and change the map. If it returns
/// something other than 0, no more records follow, and the call that goes through them returns OUTLAST_STOPPED.
pub type outlast_record_fn = Option<
    unsafe extern "C" fn(key: outlast_bytes, value: outlast_bytes, context: *mut c_void) -> c_int,
>;

/// A bound of a range: there is none.
pub const OUTLAST_UNBOUNDED: u32 = 0;
/// A bound of a range: a key that belongs to it.
pub const OUTLAST_INCLUDED: u32 = 1;
/// A bound of a range: a key that does not belong to it.
pub const OUTLAST_EXCLUDED: u32 = 2;

/// A range of keys. `outlast_range range = {0};` is all keys.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct outlast_range {
    /// The lower bound, unless it is unbounded.
    pub low: outlast_bytes,
    /// The upper bound, unless it is unbounded.
    pub high: outlast_bytes,
    /// OUTLAST_UNBOUNDED, OUTLAST_INCLUDED or OUTLAST_EXCLUDED.
    pub low_bound: u32,
    /// The same, for the upper bound.
    pub high_bound: u32,
    /// Whether the greatest key comes first: 0 or 1.
    pub is_reverse: u32,
}

/// A function of C that receives records, and its context.
struct Receiver {
    receive: unsafe extern "C" fn(outlast_bytes, outlast_bytes, *mut c_void) -> c_int,
    context: *mut c_void,
}

impl Receiver {
    /// # Safety
    /// The header's rules for callbacks hold for `receive`.
    unsafe fn new(receive: outlast_record_fn, context: *mut c_void) -> Result<Receiver> {
        let receive = receive.ok_or_else(|| invalid("receive", "it is null"))?;
        Ok(Receiver { receive, context })
    }

    /// Passes a record on. Returns whether C wants more.
    fn pass_on(&self, map: &outlast_map, (mut key, mut value): (Vec<u8>, Vec<u8>)) -> bool {
        map.key.decode(&mut key);
        map.value.decode(&mut value);
        // SAFETY: `new` demands it. The bytes live until it returns.
        unsafe { (self.receive)(key.as_slice().into(), value.as_slice().into(), self.context) == 0 }
    }

    /// Passes the records of a range on, in order or in reverse.
    fn pass_on_range(
        &self,
        map: &outlast_map,
        records: RawRange,
        is_reverse: bool,
    ) -> Result<outlast_code> {
        if is_reverse {
            self.pass_on_all(map, records.rev())
        } else {
            self.pass_on_all(map, records)
        }
    }

    /// Passes all records on.
    fn pass_on_all(
        &self,
        map: &outlast_map,
        records: impl Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>,
    ) -> Result<outlast_code> {
        for record in records {
            if !self.pass_on(map, record?) {
                return Ok(OUTLAST_STOPPED);
            }
        }
        Ok(OUTLAST_OK)
    }
}

/// Calls `receive` for every record. A record that is present throughout the call is received exactly once; one that
/// is inserted or removed meanwhile, once or not at all. An ordered map has its records in order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_each(
    map: *const outlast_map,
    receive: outlast_record_fn,
    context: *mut c_void,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let (map, receiver) = unsafe { (borrow(map, "map")?, Receiver::new(receive, context)?) };
        receiver.pass_on_all(map, map.raw.iter())
    })
}

/// Calls `receive` for the records of an ordered map whose keys are in `*range`, in the order of the keys or against
/// it. A null range is all keys. `receive` gets the same as from outlast_each. OUTLAST_ERROR_INVALID if the map has no
/// order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_range_each(
    map: *const outlast_map,
    range: *const outlast_range,
    receive: outlast_record_fn,
    context: *mut c_void,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let (map, receiver) = unsafe { (borrow(map, "map")?, Receiver::new(receive, context)?) };
        // SAFETY: the header's rules.
        let (records, is_reverse) = unsafe { read(map, range)? };
        receiver.pass_on_range(map, records, is_reverse)
    })
}

/// As outlast_range_each, for the keys that begin with `prefix`. The keys must be "bytes" or "str".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_prefix_each(
    map: *const outlast_map,
    prefix: outlast_bytes,
    is_reverse: bool,
    receive: outlast_record_fn,
    context: *mut c_void,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let (map, prefix, receiver) = unsafe {
            (borrow(map, "map")?, slice(prefix, "prefix")?, Receiver::new(receive, context)?)
        };
        if map.key.fixed_len().is_some() {
            return Err(invalid("map", "its keys are not strings"));
        }
        let above = above_all_with(prefix);
        let high = above.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let records = map.raw.range(Bound::Included(prefix), high)?;
        receiver.pass_on_range(map, records, is_reverse)
    })
}

/// Calls `receive` for the first record, in its order, whose key is in `*range`; OUTLAST_NOT_FOUND if there is none.
/// With a null range, that is the record with the least key. With an upper bound and is_reverse, it is the record at
/// or below a key. What `receive` returns does not matter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_range_first(
    map: *const outlast_map,
    range: *const outlast_range,
    receive: outlast_record_fn,
    context: *mut c_void,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let (map, receiver) = unsafe { (borrow(map, "map")?, Receiver::new(receive, context)?) };
        // SAFETY: the header's rules.
        let (records, is_reverse) = unsafe { read(map, range)? };
        let mut records = records.with_batch(1);
        let first = if is_reverse { records.next_back() } else { records.next() };
        let Some(record) = first.transpose()? else { return Ok(OUTLAST_NOT_FOUND) };
        receiver.pass_on(map, record);
        Ok(OUTLAST_OK)
    })
}

/// Calls `receive` for every record that can be read, and `damage`, unless it is null, for every damaged place, and
/// goes on after it. OUTLAST_OK even if there was damage.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_salvage(
    map: *const outlast_map,
    receive: outlast_record_fn,
    damage: outlast_damage_fn,
    context: *mut c_void,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let (map, receiver, mut listener) = unsafe {
            let receiver = Receiver::new(receive, context)?;
            (borrow(map, "map")?, receiver, DamageListener::new(damage, context))
        };
        for record in map.raw.salvage() {
            match record {
                Ok(record) => {
                    if !receiver.pass_on(map, record) {
                        return Ok(OUTLAST_STOPPED);
                    }
                }
                Err(Error::Damaged(damage)) => listener.tell(&damage),
                Err(error) => return Err(error),
            }
        }
        Ok(OUTLAST_OK)
    })
}

/// Reads a range. Returns its records, and whether C wants them in reverse.
///
/// # Safety
/// If `range` is not null, it points to a range whose keys can be read.
unsafe fn read(map: &outlast_map, range: *const outlast_range) -> Result<(RawRange, bool)> {
    if range.is_null() {
        return Ok((map.raw.range(Bound::Unbounded, Bound::Unbounded)?, false));
    }
    // SAFETY: the caller's promise.
    let range = unsafe { borrow(range, "range")? };
    let bound = |kind, key, what| {
        if kind == OUTLAST_UNBOUNDED {
            return Ok(Bound::Unbounded);
        }
        // SAFETY: the caller's promise.
        let key = map.encoded_key(unsafe { slice(key, what)? })?;
        match kind {
            OUTLAST_INCLUDED => Ok(Bound::Included(key)),
            OUTLAST_EXCLUDED => Ok(Bound::Excluded(key)),
            other => Err(invalid(what, format!("there is no kind {other} of bounds"))),
        }
    };
    let low = bound(range.low_bound, range.low, "low")?;
    let high = bound(range.high_bound, range.high, "high")?;
    if range.is_reverse > 1 {
        return Err(invalid("is_reverse", "it is neither 0 nor 1"));
    }
    let records = map.raw.range(as_bytes(&low), as_bytes(&high))?;
    Ok((records, range.is_reverse == 1))
}

fn as_bytes<'a>(bound: &'a Bound<crate::element::Encoded<'_>>) -> Bound<&'a [u8]> {
    bound.as_ref().map(|key| key.bytes())
}

/// Returns the least byte string above all those that begin with `prefix`, if there is one.
fn above_all_with(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut above = prefix[..=last].to_vec();
    above[last] += 1;
    Some(above)
}
