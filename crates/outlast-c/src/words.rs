//! The operations on maps whose keys and values are `u64`, without pointers to them.

use crate::argument::{Out, borrow};
use crate::code::{
    OUTLAST_DIFFERS, OUTLAST_EXISTS, OUTLAST_NOT_FOUND, OUTLAST_OK, Result, answer, invalid,
    outlast_code,
};
use crate::map::outlast_map;
use library::Map;

/// Runs an operation on a map of `u64` pairs.
///
/// # Safety
/// The rules of the header.
unsafe fn on_words(
    map: *const outlast_map,
    run: impl FnOnce(&Map<u64, u64>) -> Result<outlast_code>,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let map = unsafe { borrow(map, "map")? };
        let words = map.words.as_ref();
        run(words.ok_or_else(|| invalid("map", "its keys and values are not both u64"))?)
    })
}

fn either(done: bool, otherwise: outlast_code) -> Result<outlast_code> {
    Ok(if done { OUTLAST_OK } else { otherwise })
}

/// Stores the value of `key` in `*value`. OUTLAST_NOT_FOUND if the key is absent. This and the other functions for
/// u64 are for maps whose keys and values are both "u64"; the functions for all types work on these maps, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_u64_get(
    map: *const outlast_map,
    key: u64,
    value: *mut u64,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_words(map, |map| {
            let out = Out::needed(value, "value")?;
            let found = map.get(&key)?;
            found.into_iter().for_each(|value| out.set(value));
            either(found.is_some(), OUTLAST_NOT_FOUND)
        })
    }
}

/// As outlast_contains.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_u64_contains(map: *const outlast_map, key: u64) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { on_words(map, |map| either(map.contains_key(&key)?, OUTLAST_NOT_FOUND)) }
}

/// As outlast_insert.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_u64_insert(
    map: *const outlast_map,
    key: u64,
    value: u64,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { on_words(map, |map| either(map.insert(&key, &value)?, OUTLAST_EXISTS)) }
}

/// As outlast_put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_u64_put(
    map: *const outlast_map,
    key: u64,
    value: u64,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_words(map, |map| {
            map.put(&key, &value)?;
            Ok(OUTLAST_OK)
        })
    }
}

/// As outlast_update.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_u64_update(
    map: *const outlast_map,
    key: u64,
    value: u64,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { on_words(map, |map| either(map.update(&key, &value)?, OUTLAST_NOT_FOUND)) }
}

/// As outlast_remove.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_u64_remove(map: *const outlast_map, key: u64) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { on_words(map, |map| either(map.delete(&key)?, OUTLAST_NOT_FOUND)) }
}

/// As outlast_compare_swap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_u64_compare_swap(
    map: *const outlast_map,
    key: u64,
    expected: u64,
    desired: u64,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_words(map, |map| either(map.compare_swap(&key, &expected, &desired)?, OUTLAST_DIFFERS))
    }
}

/// As outlast_compare_remove.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_u64_compare_remove(
    map: *const outlast_map,
    key: u64,
    expected: u64,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { on_words(map, |map| either(map.compare_remove(&key, &expected)?, OUTLAST_DIFFERS)) }
}

/// As outlast_add.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_u64_add(
    map: *const outlast_map,
    key: u64,
    amount: u64,
    sum: *mut u64,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_words(map, |map| {
            Out::optional(sum).set(map.add(&key, amount)?);
            Ok(OUTLAST_OK)
        })
    }
}
