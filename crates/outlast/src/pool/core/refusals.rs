//! How often a full file system is asked for space.

use crate::error::{Error, Result};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a file system that has refused space again and again is not asked again.
const BACK_OFF: Duration = Duration::from_millis(50);
/// The number of operations that have to fail in a row before that applies. Until then, every
/// operation that needs space asks.
const PATIENCE: u32 = 16;

/// Remembers that the file system has refused space. A refusal costs up to some milliseconds: the
/// file system may search for space, and a file that was lengthened is cut back. Without this, each
/// operation on a full disk would pay that.
#[derive(Default)]
pub(super) struct Refusals(Mutex<Option<Last>>);

/// The last refusal.
struct Last {
    when: Instant,
    /// The least number of bytes that was refused within the last [`BACK_OFF`].
    bytes: u64,
    needed: u64,
    errno: i32,
    /// The number of operations that have failed since space was last obtained.
    failed: u32,
}

impl Refusals {
    /// Asks for `bytes` with this call, unless as much or less was refused a moment ago: then fails
    /// in the same way.
    pub(super) fn ask(&self, bytes: u64, call: impl FnOnce() -> Result<()>) -> Result<()> {
        if let Some(last) = self.last().as_ref().filter(|last| {
            let again = last.failed >= PATIENCE && bytes >= last.bytes;
            again && last.when.elapsed() < BACK_OFF
        }) {
            let source = io::Error::from_raw_os_error(last.errno);
            return Err(Error::disk_full(last.needed, source));
        }
        let done = call();
        match &done {
            Ok(()) => self.forget(),
            Err(Error::DiskFull { needed, source, .. }) => self.note(bytes, *needed, source),
            Err(_) => {}
        }
        done
    }

    fn note(&self, bytes: u64, needed: u64, source: &io::Error) {
        let mut last = self.last();
        let before = last.as_ref();
        let recent = before.filter(|last| last.when.elapsed() < BACK_OFF);
        *last = Some(Last {
            when: Instant::now(),
            bytes: recent.map_or(bytes, |last| last.bytes.min(bytes)),
            needed,
            errno: source.raw_os_error().unwrap_or(libc::ENOSPC),
            failed: before.map_or(0, |last| last.failed),
        });
    }

    /// Notes that an operation fails because space was refused. One operation can be refused several
    /// times: it asks for less, or waits for other threads and asks again.
    pub(super) fn note_failure(&self) {
        if let Some(last) = &mut *self.last() {
            last.failed = last.failed.saturating_add(1);
        }
    }

    /// Forgets all refusals, because there may be space again.
    pub(super) fn forget(&self) {
        *self.last() = None;
    }

    fn last(&self) -> MutexGuard<'_, Option<Last>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Result<()> {
        let source = io::Error::from_raw_os_error(libc::EDQUOT);
        Err(Error::disk_full(7, source))
    }

    #[test]
    fn a_disk_that_is_full_is_asked_now_and_then() {
        let refusals = Refusals::default();
        let begin = Instant::now();
        for _ in 0..PATIENCE {
            let mut asked = false;
            let refused = refusals.ask(100, || {
                asked = true;
                full()
            });
            assert!(asked && refused.is_err());
            refusals.note_failure();
        }
        let never = || -> Result<()> { panic!("asked") };
        // More than what was refused is refused as well; less may be there.
        let refused =
            refusals.ask(200, || if begin.elapsed() < BACK_OFF { never() } else { full() });
        let Err(Error::DiskFull { needed: 7, source, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(source.raw_os_error(), Some(libc::EDQUOT));
        let mut asked = false;
        let _ = refusals.ask(99, || {
            asked = true;
            full()
        });
        assert!(asked);
        refusals.forget();
        refusals.ask(100, || Ok(())).unwrap();
    }
}
