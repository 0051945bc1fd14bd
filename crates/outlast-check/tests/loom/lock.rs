// A version lock over one of loom's atomics. The modules that include this file import the protocol
// as `version`.

use super::version::LockWord;
use loom::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

/// Which ordering is taken away, if any.
#[derive(Clone, Copy)]
pub(crate) enum Orders {
    Kept,
    UnlockRelaxed,
    LockRelaxed,
}

pub(crate) struct Word(AtomicU64, Orders);

impl LockWord for Word {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        let weak = matches!(self.1, Orders::UnlockRelaxed);
        self.0.store(value, if weak { Ordering::Relaxed } else { order });
    }

    fn compare_exchange(&self, current: u64, new: u64, success: Ordering) -> bool {
        let weak = matches!(self.1, Orders::LockRelaxed);
        let success = if weak { Ordering::Relaxed } else { success };
        self.0.compare_exchange(current, new, success, Ordering::Relaxed).is_ok()
    }
}

impl LockWord for &Word {
    fn load(&self, order: Ordering) -> u64 {
        (**self).load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        (**self).store(value, order);
    }

    fn compare_exchange(&self, current: u64, new: u64, success: Ordering) -> bool {
        (**self).compare_exchange(current, new, success)
    }
}

impl Word {
    pub(crate) fn new(orders: Orders) -> Word {
        Word(AtomicU64::new(0), orders)
    }
    pub(crate) fn try_lock(&self) -> Option<u64> {
        version::try_lock(self)
    }
    pub(crate) fn set_changing(&self, held: u64) -> u64 {
        version::set_changing(self, held)
    }
    pub(crate) fn unlock(&self, held: u64) {
        version::unlock(self, held);
    }
    pub(crate) fn version(&self) -> Option<u64> {
        version::version(self)
    }
    pub(crate) fn is_unchanged(&self, before: u64) -> bool {
        version::is_unchanged(self, before)
    }
}

/// The fence of `version`'s module.
pub(crate) fn fence(order: Ordering) {
    super::sync::fence(order);
}
