//! What C passes in: each function checks what can be checked, and trusts C for the rest.

use crate::code::{OUTLAST_BUFFER_TOO_SMALL, OUTLAST_OK, Result, invalid, outlast_code};
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes that belong to somebody else. `data` may be null if `len` is 0.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct outlast_bytes {
    /// The first byte.
    pub data: *const c_void,
    /// Their number.
    pub len: usize,
}

impl From<&[u8]> for outlast_bytes {
    fn from(bytes: &[u8]) -> Self {
        outlast_bytes { data: bytes.as_ptr().cast(), len: bytes.len() }
    }
}

/// Returns the bytes of an argument.
///
/// # Safety
/// If `bytes.data` is not null, `bytes.len` bytes are readable there as long as the result is used.
#[inline]
pub unsafe fn slice<'a>(bytes: outlast_bytes, what: &'static str) -> Result<&'a [u8]> {
    if bytes.len == 0 {
        return Ok(&[]);
    }
    if bytes.data.is_null() {
        return Err(invalid(what, "it is null, and its length is not 0"));
    }
    if isize::try_from(bytes.len).is_err() {
        return Err(invalid(what, format!("no object has {} bytes", bytes.len)));
    }
    // SAFETY: the pointer is not null, the length is possible, and the caller vouches for the bytes.
    Ok(unsafe { std::slice::from_raw_parts(bytes.data.cast(), bytes.len) })
}

/// Returns what a handle or another input points to.
///
/// # Safety
/// If `pointer` is not null, it points to a `T` that is alive, and not changed, as long as the result is used.
pub unsafe fn borrow<'a, T>(pointer: *const T, what: &'static str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| invalid(what, "it is null"))
}

/// Returns a text.
///
/// # Safety
/// If `text` is not null, it points to bytes that end with a 0, and are readable as long as the result is used.
pub unsafe fn text<'a>(text: *const c_char, what: &'static str) -> Result<&'a str> {
    // SAFETY: the caller's promise.
    let text = unsafe { c_text(text, what)? };
    text.to_str().map_err(|error| invalid(what, format!("it is not UTF-8: {error}")))
}

/// Returns a path.
///
/// # Safety
/// That of [`text`].
pub unsafe fn path<'a>(path: *const c_char, what: &'static str) -> Result<&'a Path> {
    // SAFETY: the caller's promise.
    let path = unsafe { c_text(path, what)? };
    Ok(Path::new(OsStr::from_bytes(path.to_bytes())))
}

unsafe fn c_text<'a>(text: *const c_char, what: &'static str) -> Result<&'a CStr> {
    if text.is_null() {
        return Err(invalid(what, "it is null"));
    }
    // SAFETY: it is not null, and the caller vouches for the rest.
    Ok(unsafe { CStr::from_ptr(text) })
}

/// A place for a result.
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Takes a place that must be there.
    ///
    /// # Safety
    /// If `place` is not null, a `T` can be written there until the `Out` is used.
    pub unsafe fn needed(place: *mut T, what: &'static str) -> Result<Out<T>> {
        if place.is_null() {
            return Err(invalid(what, "it is null"));
        }
        Ok(Out(place))
    }

    /// Takes a place that may be null; the result is then dropped.
    ///
    /// # Safety
    /// That of [`needed`](Out::needed).
    pub unsafe fn optional(place: *mut T) -> Out<T> {
        Out(place)
    }

    /// Stores the result.
    pub fn set(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: both constructors demand that a `T` can be written here.
            unsafe { self.0.write(value) };
        }
    }
}

/// A caller's buffer for something whose length the caller may not know.
pub struct Buffer {
    data: *mut u8,
    capacity: usize,
    len: Out<usize>,
}

impl Buffer {
    /// Takes a buffer. It may be null if its capacity is 0.
    ///
    /// # Safety
    /// If `data` is not null, `capacity` bytes can be written there until the `Buffer` is used, and nobody else uses
    /// them meanwhile. If `len` is not null, a `usize` can be written there.
    pub unsafe fn new(data: *mut c_void, capacity: usize, len: *mut usize) -> Result<Buffer> {
        if data.is_null() && capacity > 0 {
            return Err(invalid("buffer", "it is null, and its capacity is not 0"));
        }
        // SAFETY: the caller's promise.
        let len = unsafe { Out::optional(len) };
        Ok(Buffer { data: data.cast(), capacity: capacity.min(isize::MAX as usize), len })
    }

    /// How many bytes there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Stores the length of what belongs in the buffer. Returns whether there is room for it.
    fn has_room(&self, len: usize) -> bool {
        self.len.set(len);
        len <= self.capacity
    }

    /// Stores the length of `bytes`, and copies them to the buffer if there is room.
    pub fn put(self, bytes: &[u8]) -> outlast_code {
        if !self.has_room(bytes.len()) {
            return OUTLAST_BUFFER_TOO_SMALL;
        }
        if !bytes.is_empty() {
            // SAFETY: there is room for them, so `data` is not null, and whoever made the buffer vouches for the
            // bytes there, which nobody else uses.
            unsafe { self.data.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        OUTLAST_OK
    }

    /// Stores the length of what belongs in the buffer, and lets `fill` write it there if there is room.
    pub fn fill(
        self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<outlast_code> {
        if !self.has_room(len) {
            return Ok(OUTLAST_BUFFER_TOO_SMALL);
        }
        if len > 0 {
            // SAFETY: there is room for `len` bytes, so `data` is not null, and whoever made the buffer vouches for
            // the bytes. They may be uninitialized, so they are zeroed before they become a slice.
            let bytes = unsafe {
                self.data.write_bytes(0, len);
                std::slice::from_raw_parts_mut(self.data, len)
            };
            fill(bytes)?;
        }
        Ok(OUTLAST_OK)
    }
}

/// Gives a new handle to C.
pub fn give<T>(handle: T) -> *mut T {
    Box::into_raw(Box::new(handle))
}

/// Takes a handle back from C, and drops it. Null is ignored.
///
/// # Safety
/// If `handle` is not null, it comes from [`give`], and nobody uses it any more.
pub unsafe fn take_back<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(handle) });
    }
}
