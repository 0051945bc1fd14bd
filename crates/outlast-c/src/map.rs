//! Maps: opening them, and changing the value of a key.

use crate::argument::{Out, borrow, give, outlast_bytes, slice, take_back, text};
use crate::code::{
    OUTLAST_DIFFERS, OUTLAST_EXISTS, OUTLAST_NOT_FOUND, OUTLAST_OK, Result, answer, invalid,
    outlast_code,
};
use crate::element::{Element, Encoded};
use crate::pool::outlast_pool;
use library::{Error, Map, MapOptions, Pool, RawMap, RecordForm, Scheme};
use std::ffi::{c_char, c_void};
use std::ptr::null;

/// An open map of a pool: a hash map or an ordered map. Any number of threads may use a handle at the same time.
pub struct outlast_map {
    pub(crate) raw: RawMap,
    pub(crate) key: Element,
    pub(crate) value: Element,
    /// The typed map, if keys and values are `u64`.
    pub(crate) words: Option<Map<u64, u64>>,
}

impl outlast_map {
    /// Makes the handle of a map.
    pub(crate) fn of(pool: &Pool, raw: RawMap) -> Result<outlast_map> {
        let info = raw.info();
        let is_words = (&*info.key_schema, &*info.value_schema) == ("u64", "u64");
        Ok(outlast_map {
            key: Element::of(&info.key_schema, info.form)?,
            value: Element::of(&info.value_schema, info.form)?,
            words: if is_words { Some(pool.map(&info.name)?) } else { None },
            raw,
        })
    }

    pub(crate) fn encoded_key<'a>(&self, key: &'a [u8]) -> Result<Encoded<'a>> {
        self.key.encode(key, "key")
    }

    pub(crate) fn encoded_value<'a>(&self, value: &'a [u8]) -> Result<Encoded<'a>> {
        self.value.encode(value, "value")
    }
}

/// What C asks for: a map of a name, types and a scheme. All but the name may be null.
pub(crate) struct Request {
    name: *const c_char,
    key_type: *const c_char,
    value_type: *const c_char,
    scheme: *const c_char,
    is_ordered: bool,
    /// Whether its records can expire.
    pub(crate) expires: bool,
}

impl Request {
    pub(crate) fn new(
        name: *const c_char,
        key_type: *const c_char,
        value_type: *const c_char,
        scheme: *const c_char,
    ) -> Request {
        Request { name, key_type, value_type, scheme, is_ordered: false, expires: false }
    }

    /// Opens the map.
    ///
    /// # Safety
    /// The rules of the header.
    pub(crate) unsafe fn open(
        self,
        pool: *const outlast_pool,
        map: *mut *mut outlast_map,
    ) -> outlast_code {
        answer(|| {
            // SAFETY: the header's rules.
            let (pool, out) = unsafe { (borrow(pool, "pool")?, Out::needed(map, "map")?) };
            out.set(std::ptr::null_mut());
            // SAFETY: the header's rules.
            let raw = unsafe { self.raw(&pool.pool)? };
            out.set(give(outlast_map::of(&pool.pool, raw)?));
            Ok(OUTLAST_OK)
        })
    }

    /// # Safety
    /// The rules of the header.
    unsafe fn raw(&self, pool: &Pool) -> Result<RawMap> {
        // SAFETY: the header's rules.
        let name = unsafe { text(self.name, "name")? };
        if self.key_type.is_null() && self.value_type.is_null() {
            return pool.raw_map(name);
        }
        // SAFETY: the header's rules.
        let (key, value) =
            unsafe { (text(self.key_type, "key_type")?, text(self.value_type, "value_type")?) };
        let mut options = MapOptions::new().expiry(self.expires);
        if !self.scheme.is_null() {
            // SAFETY: the header's rules.
            options = options.scheme(scheme_of(unsafe { text(self.scheme, "scheme")? })?);
        } else if self.is_ordered {
            options = options.scheme(Scheme::Phast);
        }
        // Refuses a type that this interface does not have before a map of that type is created.
        for schema in [key, value] {
            Element::of(schema, RecordForm::of_schemas(key, value))?;
        }
        pool.raw_map_with(name, key, value, &options)
    }
}

fn scheme_of(name: &str) -> Result<Scheme> {
    let found = Scheme::ALL.iter().copied().find(|scheme| scheme.name() == name);
    found.ok_or_else(|| invalid("scheme", format!("there is no scheme {name}")))
}

/// Opens the hash map `name`, or creates it if there is none. The types, which docs/guide.md compares with those of
/// other languages, are "bytes", "str" (UTF-8), "u8" to "u64", "i8" to "i64", "bool", "f32", "f64". A map opens only
/// with the types that it was created with, whatever language created it; with others, OUTLAST_ERROR_MAP_MISMATCH. If
/// both types are null, this opens an existing map with its own types. Stores a handle in `*map`, or null on an error.
/// Free it with outlast_map_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_map_open(
    pool: *const outlast_pool,
    name: *const c_char,
    key_type: *const c_char,
    value_type: *const c_char,
    map: *mut *mut outlast_map,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { Request::new(name, key_type, value_type, null()).open(pool, map) }
}

/// Opens the ordered map `name`, or creates it if there is none. Otherwise as outlast_map_open. Numbers are in the
/// order of their values, strings in that of their bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_ordered_map_open(
    pool: *const outlast_pool,
    name: *const c_char,
    key_type: *const c_char,
    value_type: *const c_char,
    map: *mut *mut outlast_map,
) -> outlast_code {
    let request = Request { is_ordered: true, ..Request::new(name, key_type, value_type, null()) };
    // SAFETY: the header's rules.
    unsafe { request.open(pool, map) }
}

/// As outlast_map_open, for a map of this scheme, such as "clevel". An existing map must have this scheme.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_map_open_scheme(
    pool: *const outlast_pool,
    name: *const c_char,
    key_type: *const c_char,
    value_type: *const c_char,
    scheme: *const c_char,
    map: *mut *mut outlast_map,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { Request::new(name, key_type, value_type, scheme).open(pool, map) }
}

/// Frees the handle of a map; null is ignored. The records stay in the pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_map_free(map: *mut outlast_map) {
    answer(|| {
        // SAFETY: the header's rules: the handle is valid, and is not used again.
        unsafe { take_back(map) };
        Ok(OUTLAST_OK)
    });
}

// ---- Changing -------------------------------------------------------------------

/// Inserts `value` if `key` is absent; otherwise OUTLAST_EXISTS. If several threads insert the same key at the same
/// time, exactly one of them gets OUTLAST_OK.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_insert(
    map: *const outlast_map,
    key: outlast_bytes,
    value: outlast_bytes,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_record(map, key, value, |map, key, value| {
            Ok(if map.raw.insert(key, value)? { OUTLAST_OK } else { OUTLAST_EXISTS })
        })
    }
}

/// Inserts `value`, or replaces the value of `key`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_put(
    map: *const outlast_map,
    key: outlast_bytes,
    value: outlast_bytes,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_record(map, key, value, |map, key, value| {
            map.raw.set(key, value)?;
            Ok(OUTLAST_OK)
        })
    }
}

/// Receives the value that a key had. The bytes are valid during the call.
pub type outlast_value_fn =
    Option<unsafe extern "C" fn(value: outlast_bytes, context: *mut c_void)>;

/// Puts `value` as outlast_put does, and then calls `before` with the value that was replaced, if the key had one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_exchange(
    map: *const outlast_map,
    key: outlast_bytes,
    value: outlast_bytes,
    before: outlast_value_fn,
    context: *mut c_void,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_record(map, key, value, |map, key, value| {
            let previous = map.raw.put(key, value)?;
            pass_on(map, previous, before, context);
            Ok(OUTLAST_OK)
        })
    }
}

/// Replaces the value of `key` if it is present; otherwise OUTLAST_NOT_FOUND.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_update(
    map: *const outlast_map,
    key: outlast_bytes,
    value: outlast_bytes,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_record(map, key, value, |map, key, value| {
            Ok(if map.raw.update(key, value)? { OUTLAST_OK } else { OUTLAST_NOT_FOUND })
        })
    }
}

/// Removes `key`; OUTLAST_NOT_FOUND if it is absent. A removal needs no space, so it works in a full pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_remove(
    map: *const outlast_map,
    key: outlast_bytes,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_key(map, key, |map, key| {
            Ok(if map.raw.delete(key)? { OUTLAST_OK } else { OUTLAST_NOT_FOUND })
        })
    }
}

/// Removes `key` as outlast_remove does, and then calls `before` with the value that it had.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_take(
    map: *const outlast_map,
    key: outlast_bytes,
    before: outlast_value_fn,
    context: *mut c_void,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_key(map, key, |map, key| {
            let previous = map.raw.remove(key)?;
            let code = if previous.is_some() { OUTLAST_OK } else { OUTLAST_NOT_FOUND };
            pass_on(map, previous, before, context);
            Ok(code)
        })
    }
}

/// Replaces the value of `key` by `desired` if its bytes are `expected`; otherwise, and if the key is absent,
/// OUTLAST_DIFFERS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_compare_swap(
    map: *const outlast_map,
    key: outlast_bytes,
    expected: outlast_bytes,
    desired: outlast_bytes,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_record(map, key, expected, |map, key, expected| {
            let desired = map.encoded_value(slice(desired, "desired")?)?;
            let swapped = map.raw.compare_swap(key, expected, desired.bytes())?;
            Ok(if swapped { OUTLAST_OK } else { OUTLAST_DIFFERS })
        })
    }
}

/// Removes `key` if the bytes of its value are `expected`; otherwise, and if it is absent, OUTLAST_DIFFERS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_compare_remove(
    map: *const outlast_map,
    key: outlast_bytes,
    expected: outlast_bytes,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_record(map, key, expected, |map, key, expected| {
            let removed = map.raw.compare_remove(key, expected)?;
            Ok(if removed { OUTLAST_OK } else { OUTLAST_DIFFERS })
        })
    }
}

/// Adds `amount` to the value of `key`, atomically, and stores the sum in `*sum`, unless that is null. An absent key
/// counts as 0 and is inserted. For maps whose values are u8 to u64. OUTLAST_ERROR_OVERFLOW, and no change, if the
/// sum is not a value of their type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_add(
    map: *const outlast_map,
    key: outlast_bytes,
    amount: u64,
    sum: *mut u64,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { calculate(map, key, 'u', amount.into(), |found| Out::optional(sum).set(found as u64)) }
}

/// Subtracts `amount` from the value of `key`. Otherwise as outlast_add.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_subtract(
    map: *const outlast_map,
    key: outlast_bytes,
    amount: u64,
    difference: *mut u64,
) -> outlast_code {
    let out = |found| {
        // SAFETY: the header's rules.
        unsafe { Out::optional(difference) }.set(found as u64);
    };
    // SAFETY: the header's rules.
    unsafe { calculate(map, key, 'u', -i128::from(amount), out) }
}

/// As outlast_add, for maps whose values are i8 to i64. `amount` may be negative.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_add_signed(
    map: *const outlast_map,
    key: outlast_bytes,
    amount: i64,
    sum: *mut i64,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { calculate(map, key, 'i', amount.into(), |found| Out::optional(sum).set(found as i64)) }
}

/// Adds `amount` to the value of a key. `sign` is the first letter of the types for which that is done.
///
/// # Safety
/// The rules of the header.
unsafe fn calculate(
    map: *const outlast_map,
    key: outlast_bytes,
    sign: char,
    amount: i128,
    out: impl Fn(i128),
) -> outlast_code {
    let calculate = |map: &outlast_map, key: &[u8]| {
        let schema = &map.raw.info().value_schema;
        let bytes = map.value.fixed_len().filter(|_| schema.starts_with(sign));
        let bytes = bytes.ok_or_else(|| invalid("map", format!("its values are {schema}")))?;
        loop {
            let before = map.raw.get(key)?;
            let old = match before.as_deref().map(|stored| stored.get(..bytes)) {
                None => 0,
                Some(Some(stored)) => number(stored, sign == 'i'),
                Some(None) => {
                    return Err(invalid("value", format!("it is not one of type {schema}")));
                }
            };
            let sum = old + amount;
            let native = sum.to_le_bytes();
            if number(&native[..bytes], sign == 'i') != sum {
                let schemas = ["u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64"];
                let schema = schemas.into_iter().find(|known| known == schema).unwrap_or("integer");
                return Err(Error::Overflow { schema });
            }
            let new = map.encoded_value(&native[..bytes])?;
            let done = match before {
                None => map.raw.insert(key, new.bytes())?,
                Some(before) => map.raw.compare_swap(key, &before, new.bytes())?,
            };
            if done {
                out(sum);
                return Ok(OUTLAST_OK);
            }
        }
    };
    // SAFETY: the header's rules.
    unsafe { on_key(map, key, calculate) }
}

/// Reads an integer of up to eight bytes.
fn number(bytes: &[u8], is_signed: bool) -> i128 {
    let is_negative = is_signed && bytes.last().is_some_and(|&last| last >= 0x80);
    let mut all = [if is_negative { 0xff } else { 0 }; 16];
    all[..bytes.len()].copy_from_slice(bytes);
    i128::from_le_bytes(all)
}

/// Removes every record that is present throughout the call, and stores their number in `*removed`, unless that is
/// null. A crash may leave some removed and others not. outlast_map_drop removes a map in one step.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_clear(map: *const outlast_map, removed: *mut u64) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { count(map, removed, RawMap::clear) }
}

/// Counts the records, and stores their number in `*records`. This goes through the whole map.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_count(map: *const outlast_map, records: *mut u64) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { count(map, records, RawMap::len) }
}

/// Estimates the number of records from a sample of the map. Much faster than outlast_count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_count_estimate(
    map: *const outlast_map,
    records: *mut u64,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { count(map, records, RawMap::len_estimate) }
}

// ---- What they share ------------------------------------------------------------

/// # Safety
/// The rules of the header.
unsafe fn count(
    map: *const outlast_map,
    out: *mut u64,
    count: impl FnOnce(&RawMap) -> Result<u64>,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let (map, out) = unsafe { (borrow(map, "map")?, Out::optional(out)) };
        out.set(count(&map.raw)?);
        Ok(OUTLAST_OK)
    })
}

/// Runs an operation on a key, which it gets as the map takes it.
///
/// # Safety
/// The rules of the header.
pub(crate) unsafe fn on_key(
    map: *const outlast_map,
    key: outlast_bytes,
    run: impl FnOnce(&outlast_map, &[u8]) -> Result<outlast_code>,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let (map, key) = unsafe { (borrow(map, "map")?, slice(key, "key")?) };
        run(map, map.encoded_key(key)?.bytes())
    })
}

/// Runs an operation on a key and a value, which it gets as the map takes them.
///
/// # Safety
/// The rules of the header.
pub(crate) unsafe fn on_record(
    map: *const outlast_map,
    key: outlast_bytes,
    value: outlast_bytes,
    run: impl FnOnce(&outlast_map, &[u8], &[u8]) -> Result<outlast_code>,
) -> outlast_code {
    let run = |map: &outlast_map, key: &[u8]| {
        // SAFETY: the header's rules.
        let value = unsafe { slice(value, "value")? };
        run(map, key, map.encoded_value(value)?.bytes())
    };
    // SAFETY: the header's rules.
    unsafe { on_key(map, key, run) }
}

/// # Safety
/// The header's rules for callbacks hold for `receive`.
unsafe fn pass_on(
    map: &outlast_map,
    value: Option<Vec<u8>>,
    receive: outlast_value_fn,
    context: *mut c_void,
) {
    if let (Some(mut value), Some(receive)) = (value, receive) {
        map.value.decode(&mut value);
        // SAFETY: the caller's promise. The bytes live until it returns.
        unsafe { receive(value.as_slice().into(), context) };
    }
}
