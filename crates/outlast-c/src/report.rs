//! What a pool says about itself.

use crate::argument::{Buffer, Out, borrow, text};
use crate::code::{OUTLAST_OK, answer, outlast_code};
use crate::pool::{outlast_pool, with};
use std::ffi::{CString, c_char, c_int, c_void};

/// Which failures an open pool survives.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct outlast_durability {
    /// Whether the effect of every call that has returned survives the death of the process. Only a pool in memory
    /// does not.
    pub survives_process_death: bool,
    /// Whether it survives a power loss without outlast_wait_durable, as on persistent memory.
    pub survives_power_loss: bool,
    /// Whether what outlast_wait_durable confirms survives a power loss. False in memory and on a tmpfs, and as long
    /// as writes to the disk fail.
    pub confirmed_survives_power_loss: bool,
    /// Whether the disk may lack part of the pool; see OUTLAST_ERROR_SUSPECT.
    pub is_suspect: bool,
    /// With a journal: milliseconds until a change becomes durable if no thread waits for it. Otherwise 0.
    pub journal_interval_ms: u32,
}

/// Stores in `*durability` which failures the pool survives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_pool_durability(
    pool: *const outlast_pool,
    durability: *mut outlast_durability,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        with(pool, |pool| {
            let out = Out::needed(durability, "durability")?;
            let found = pool.durability();
            let interval = found.interval.unwrap_or_default().as_millis();
            out.set(outlast_durability {
                survives_process_death: found.survives_process_death,
                survives_power_loss: found.survives_power_loss,
                confirmed_survives_power_loss: found.confirmed_survives_power_loss,
                is_suspect: found.is_suspect,
                journal_interval_ms: interval.try_into().unwrap_or(u32::MAX),
            });
            Ok(())
        })
    }
}

/// Copies the pool's numbers into `buffer` as text for Prometheus, in which the pool is called `name`. The text does
/// not end with a 0. Buffers are described at outlast_get.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_pool_stats(
    pool: *const outlast_pool,
    name: *const c_char,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let (pool, name, buffer) = unsafe {
            (borrow(pool, "pool")?, text(name, "name")?, Buffer::new(buffer, capacity, len)?)
        };
        let stats = pool.pool.stats().prometheus(name);
        Ok(buffer.put(stats.as_bytes()))
    })
}

/// What verifying a pool has found.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct outlast_verification {
    /// Whether there is neither damage nor lost space.
    pub is_sound: bool,
    /// Records in all maps.
    pub records: u64,
    /// Damaged places.
    pub damaged: u64,
    /// Bytes that belong to maps.
    pub used_bytes: u64,
    /// Bytes that neither belong to a map nor are free. 0 if that is not known.
    pub leaked_bytes: u64,
}

/// Receives a damaged place: its offset in the pool, and a text that describes the damage, which is valid during the
/// call. If it returns something other than 0, it is not called again.
pub type outlast_damage_fn = Option<
    unsafe extern "C" fn(offset: u64, message: *const c_char, context: *mut c_void) -> c_int,
>;

/// Tells C about damage, as long as it wants to hear of it.
pub(crate) struct DamageListener {
    tell: outlast_damage_fn,
    context: *mut c_void,
    is_done: bool,
}

impl DamageListener {
    /// # Safety
    /// The header's rules for callbacks hold for `tell`.
    pub(crate) unsafe fn new(tell: outlast_damage_fn, context: *mut c_void) -> DamageListener {
        DamageListener { tell, context, is_done: false }
    }

    pub(crate) fn tell(&mut self, damage: &library::Damage) {
        let Some(tell) = self.tell.filter(|_| !self.is_done) else { return };
        let message = CString::new(damage.to_string().replace('\0', "\\0")).unwrap_or_default();
        // SAFETY: `new` demands it. The text lives until it returns.
        self.is_done = unsafe { tell(damage.offset(), message.as_ptr(), self.context) } != 0;
    }
}

/// Checks every structure and every record, and accounts for every block. Writers wait meanwhile. Stores what it has
/// found in `*found`, and calls `damage` for each damaged place; either may be null.
///
/// OUTLAST_OK if the pool is sound. OUTLAST_ERROR_DAMAGED if it is not; its message and its offset are those of the
/// first damaged place. Other errors say that the check could not be made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_verify(
    pool: *const outlast_pool,
    found: *mut outlast_verification,
    damage: outlast_damage_fn,
    context: *mut c_void,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let (pool, out, mut listener) = unsafe {
            (borrow(pool, "pool")?, Out::optional(found), DamageListener::new(damage, context))
        };
        let found = pool.pool.verify()?;
        found.all_damage().for_each(|damage| listener.tell(damage));
        out.set(outlast_verification {
            is_sound: found.is_sound(),
            records: found.records(),
            damaged: found.all_damage().count() as u64,
            used_bytes: found.used_bytes,
            leaked_bytes: found.leaked_bytes.unwrap_or(0),
        });
        found.ensure_sound()?;
        Ok(OUTLAST_OK)
    })
}
