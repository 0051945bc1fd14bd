//! Directories that are removed when the program ends, even if SIGINT, SIGTERM or SIGHUP ends it.
//! Otherwise a pool that is left on an in-memory file system would go on occupying memory.
//!
//! The signals that ask a program to end are blocked in all threads but one. That thread waits for
//! them, removes the directories, and lets the signal do what it would have done. So no other
//! thread is interrupted, and the code being measured need not check for signals. SIGKILL cannot be
//! handled.

use crate::Fallible;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

/// The existing directories. The lock is held while one is created or removed, and by the thread
/// that ends the program.
static ALL: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<PathBuf>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A new directory for a pool or a store. Removed when dropped, or by a signal.
#[derive(Debug)]
pub struct Scratch(Option<TempDir>);

impl Scratch {
    /// Creates a directory in `dir`.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn create(dir: &Path) -> Fallible<Scratch> {
        let mut all = all();
        let made = tempfile::Builder::new()
            .prefix("outlast-bench-")
            .tempdir_in(dir)
            .map_err(|e| format!("{}: {e}", dir.display()))?;
        all.push(made.path().into());
        Ok(Scratch(Some(made)))
    }

    /// Returns the directory's path.
    pub fn path(&self) -> &Path {
        self.0.as_ref().map_or(Path::new(""), TempDir::path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut all = all();
        let path = self.path().to_owned();
        // A failure to remove it is not reported, because the results are still valid.
        self.0 = None;
        all.retain(|other| *other != path);
    }
}

/// The signals that ask a program to end.
const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// From now on, a thread waits for these signals; on the first one, it removes all directories and
/// ends the program. Must be called before there is any other thread, because threads inherit the
/// blocked signals.
///
/// # Errors
/// The system's error.
pub fn remove_on_signals() -> Fallible {
    let set = asked_for();
    // SAFETY: the set is valid, and the old mask is not requested.
    let answer = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    if answer != 0 {
        return Err(std::io::Error::from_raw_os_error(answer).into());
    }
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut signal = 0;
        // SAFETY: the set is valid, and `signal` has room for the result.
        while unsafe { libc::sigwait(&set, &mut signal) } != 0 {}
        // This lock is never released. So a thread that is about to end the program waits for it
        // until this thread does so, and no more directories are created.
        let all = all();
        for dir in all.iter() {
            remove(dir);
        }
        end_by(signal, &set);
    })?;
    Ok(())
}

/// Returns the signals that would end this program. `nohup`, for example, makes it ignore some.
fn asked_for() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call initializes the set.
    let mut set: libc::sigset_t = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for signal in SIGNALS {
        // SAFETY: all fields of a sigaction are numbers or nullable pointers, so zeros are valid.
        // The call changes no action, it only reads the present one into `action`, and the set is
        // valid.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut action);
            if action.sa_sigaction != libc::SIG_IGN {
                libc::sigaddset(&mut set, signal);
            }
        }
    }
    set
}

/// Removes a directory in which other threads may still create files. First renames it, after which
/// the paths that they use lead nowhere.
fn remove(dir: &Path) {
    let away = dir.with_extension("removed");
    let dir = if std::fs::rename(dir, &away).is_ok() { &away } else { dir };
    // A file that was being created during the renaming may appear too late for the first removal.
    let _ = std::fs::remove_dir_all(dir).or_else(|_| std::fs::remove_dir_all(dir));
}

/// Ends the program as the signal would have, so that the exit status tells the parent.
fn end_by(signal: libc::c_int, set: &libc::sigset_t) -> ! {
    // SAFETY: the handler is the default one, and the set is valid.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set, std::ptr::null_mut());
        libc::raise(signal);
    }
    std::process::exit(128 + signal)
}

/// Called before the program ends by itself. If a signal has come, this does not return: the
/// program ends by the signal, once everything is removed.
pub fn let_signals_finish() {
    drop(all());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_gone_with_its_owner() {
        let place = tempfile::tempdir().unwrap();
        let scratch = Scratch::create(place.path()).unwrap();
        let path = scratch.path().to_owned();
        std::fs::write(path.join("pool"), "bytes").unwrap();
        assert!(all().contains(&path));
        drop(scratch);
        assert!(!path.exists() && !all().contains(&path));
    }

    #[test]
    fn a_directory_with_files_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("outlast-bench-x");
        std::fs::create_dir_all(dir.join("inner")).unwrap();
        std::fs::write(dir.join("inner/pool"), "bytes").unwrap();
        remove(&dir);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn where_no_directory_can_be_made_its_name_is_told() {
        let failure = Scratch::create(Path::new("/no/such")).unwrap_err();
        assert!(failure.to_string().starts_with("/no/such: "), "{failure}");
    }
}
