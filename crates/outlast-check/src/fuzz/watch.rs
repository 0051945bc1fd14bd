//! A watchdog over cases. It catches panics. If a case does not end, or a signal ends it, the
//! watchdog prints the name of the case before the process ends.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

/// The longest time that a case may take. Cases take milliseconds.
const DEADLINE: Duration = Duration::from_secs(60);

thread_local! {
    pub(super) static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
    /// The current case, for the signal handler.
    pub(super) static CASE: Cell<[u8; 200]> = const { Cell::new([0; 200]) };
    pub(super) static WORKER: Cell<u64> = const { Cell::new(0) };
}

static RUNNING: Mutex<Option<HashMap<u64, (Instant, String)>>> = Mutex::new(None);
static NEXT_WORKER: AtomicU64 = AtomicU64::new(1);
static WATCH: Once = Once::new();

extern "C" fn on_signal(signal: libc::c_int) {
    let case = CASE.get();
    let len = case.iter().position(|&b| b == 0).unwrap_or(case.len());
    // SAFETY: `write` and `_exit` may be called in a signal handler, and the buffers belong to this
    // function.
    unsafe {
        let text = b"\nsignal in hostile case: ";
        libc::write(2, text.as_ptr().cast(), text.len());
        libc::write(2, case.as_ptr().cast(), len);
        libc::write(2, b"\n".as_ptr().cast(), 1);
        libc::_exit(128 + signal);
    }
}

fn watch() {
    WATCH.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if WORKER.get() == 0 {
                return usual(info);
            }
            PANIC.with_borrow_mut(|text| *text = info.to_string());
        }));
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGABRT] {
            // SAFETY: the handler only calls functions that a handler may call.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                let handler: extern "C" fn(libc::c_int) = on_signal;
                action.sa_sigaction = handler as libc::sighandler_t;
                action.sa_flags = libc::SA_ONSTACK;
                libc::sigaction(signal, &action, std::ptr::null_mut());
            }
        }
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(Duration::from_secs(1));
                let running = RUNNING.lock().unwrap();
                for (started, case) in running.iter().flat_map(|r| r.values()) {
                    if started.elapsed() > DEADLINE {
                        eprintln!("\ncase does not end: {case}");
                        std::process::exit(99);
                    }
                }
            }
        });
    });
}

/// Runs one case under the watchdog. Returns `Err` if it panicked.
pub fn watched<T>(case: &str, run: impl FnOnce() -> T) -> Result<T, String> {
    watch();
    if WORKER.get() == 0 {
        WORKER.set(NEXT_WORKER.fetch_add(1, Ordering::Relaxed));
    }
    let worker = WORKER.get();
    let mut text = [0; 200];
    let len = case.len().min(200);
    text[..len].copy_from_slice(&case.as_bytes()[..len]);
    CASE.set(text);
    let entry = (Instant::now(), case.to_string());
    RUNNING.lock().unwrap().get_or_insert_default().insert(worker, entry);
    let result = catch_unwind(AssertUnwindSafe(run));
    RUNNING.lock().unwrap().get_or_insert_default().remove(&worker);
    result.map_err(|_| format!("{case}: {}", PANIC.with_borrow(Clone::clone)))
}

/// Runs `count` cases on `workers` threads, and collects what went wrong.
pub fn in_parallel(
    count: u64,
    workers: usize,
    case: impl Fn(u64) -> Result<(), String> + Sync,
) -> Vec<String> {
    let next = AtomicU64::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    if let Err(failure) = case(number) {
                        failures.lock().unwrap().push(failure);
                    }
                }
            });
        }
    });
    failures.into_inner().unwrap()
}
