//! Reading the value of a key.

use crate::argument::{Buffer, borrow, outlast_bytes, slice};
use crate::code::{OUTLAST_NOT_FOUND, OUTLAST_OK, Result, answer, invalid, outlast_code};
use crate::element::Element;
use crate::map::{on_key, outlast_map};
use library::RecordRef;
use std::ffi::c_void;

/// A value in the pool, which has not been copied yet. It is valid during the call of an outlast_view_fn, in the
/// thread of that call.
pub struct outlast_view<'m>(Viewed<'m>);

enum Viewed<'m> {
    InPool(RecordRef<'m>),
    Decoded(Vec<u8>),
}

impl<'m> outlast_view<'m> {
    fn of(record: RecordRef<'m>, value: Element) -> Result<outlast_view<'m>> {
        if value.is_same() {
            return Ok(outlast_view(Viewed::InPool(record)));
        }
        let mut bytes = record.to_vec()?;
        value.decode(&mut bytes);
        Ok(outlast_view(Viewed::Decoded(bytes)))
    }

    fn len(&self) -> usize {
        match &self.0 {
            Viewed::InPool(record) => record.len(),
            Viewed::Decoded(bytes) => bytes.len(),
        }
    }

    /// Copies a part, which must be one.
    fn read(&self, start: usize, out: &mut [u8]) -> Result<()> {
        match &self.0 {
            Viewed::InPool(record) => record.read_at(start, out),
            Viewed::Decoded(bytes) => {
                out.copy_from_slice(&bytes[start..start + out.len()]);
                Ok(())
            }
        }
    }
}

/// Receives a value.
pub type outlast_view_fn =
    Option<unsafe extern "C" fn(view: *const outlast_view<'_>, context: *mut c_void)>;

/// Returns the length of the value. Null has 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_view_len(view: *const outlast_view<'_>) -> usize {
    // SAFETY: the header's rules.
    unsafe { view.as_ref() }.map_or(0, outlast_view::len)
}

/// Copies `len` bytes of the value, beginning with the byte at `offset`, to `to`. OUTLAST_ERROR_INVALID if it has not
/// that many; OUTLAST_ERROR_NOT_OPEN if the pool was closed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_view_read(
    view: *const outlast_view<'_>,
    offset: usize,
    to: *mut c_void,
    len: usize,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let (view, buffer) =
            unsafe { (borrow(view, "view")?, Buffer::new(to, len, std::ptr::null_mut())?) };
        if offset.checked_add(len).is_none_or(|end| end > view.len()) {
            return Err(invalid("range", format!("the value has {} bytes", view.len())));
        }
        buffer.fill(len, |out| view.read(offset, out))
    })
}

/// The capacity up to which outlast_get copies a value twice. A reference would pin it, and two atomic exchanges take
/// longer than to copy a short value once more.
const SHORT: usize = 4096;

/// Copies the value of `key` into `buffer`, and stores its length in `*len`, unless `len` is null. If the buffer's
/// `capacity` is less than that, nothing is copied, and the call returns OUTLAST_BUFFER_TOO_SMALL: the length is the
/// needed one, but another thread may replace the value before the next call. `buffer` may be null if `capacity` is
/// 0. OUTLAST_NOT_FOUND if the key is absent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_get(
    map: *const outlast_map,
    key: outlast_bytes,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let (map, key, buffer) = unsafe {
            (borrow(map, "map")?, slice(key, "key")?, Buffer::new(buffer, capacity, len)?)
        };
        let key = map.encoded_key(key)?;
        if (1..=SHORT).contains(&buffer.capacity()) {
            let Some(mut value) = map.raw.get(key.bytes())? else { return Ok(OUTLAST_NOT_FOUND) };
            map.value.decode(&mut value);
            return Ok(buffer.put(&value));
        }
        let Some(record) = map.raw.get_ref(key.bytes())? else { return Ok(OUTLAST_NOT_FOUND) };
        let view = outlast_view::of(record, map.value)?;
        buffer.fill(view.len(), |out| view.read(0, out))
    })
}

/// Calls `receive` with a view of the value of `key`, from which it can copy what it needs. While it runs, the value
/// stays as it is, even if another thread replaces or removes it, and the pool cannot reuse the space of other
/// records; so it must not wait for long. OUTLAST_NOT_FOUND, without a call, if the key is absent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_get_view(
    map: *const outlast_map,
    key: outlast_bytes,
    receive: outlast_view_fn,
    context: *mut c_void,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let (map, key) = unsafe { (borrow(map, "map")?, slice(key, "key")?) };
        let receive = receive.ok_or_else(|| invalid("receive", "it is null"))?;
        let Some(record) = map.raw.get_ref(map.encoded_key(key)?.bytes())? else {
            return Ok(OUTLAST_NOT_FOUND);
        };
        let view = outlast_view::of(record, map.value)?;
        // SAFETY: the header's rules for callbacks. The view lives until it returns.
        unsafe { receive(&view, context) };
        Ok(OUTLAST_OK)
    })
}

/// OUTLAST_OK if the map has a value for `key`, otherwise OUTLAST_NOT_FOUND.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_contains(
    map: *const outlast_map,
    key: outlast_bytes,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_key(map, key, |map, key| {
            Ok(if map.raw.contains_key(key)? { OUTLAST_OK } else { OUTLAST_NOT_FOUND })
        })
    }
}
