//! A machine whose system calls fail.
//!
//! A seccomp filter reports each call of one kind to a thread of this process, before the kernel
//! makes it. That thread lets it go on, or makes it fail. The filter holds for the thread that
//! installs it and for all threads that it starts from then on. So every call of the library is
//! met, whichever way it is made.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};

/// Which of the calls fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    /// One, after this many others.
    Once(i64),
    /// All, after this many.
    From(i64),
    /// Every second one.
    Alternate,
}

/// A kind of calls, and how they fail.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) calls: &'static [libc::c_long],
    pub(crate) errno: i32,
    /// Whether a call with these arguments is of the kind.
    pub(crate) is_one: fn(&libc::seccomp_data) -> bool,
}

/// The part of the state that the thread shares that decides about calls.
#[derive(Default)]
struct Armed {
    /// Calls that still succeed; negative: all.
    left: AtomicI64,
    /// 0: the next call after those fails; 1: all after those; 2: every second one.
    how: AtomicI64,
    failed: AtomicU64,
}

/// Decides about the calls of the thread that made it, and of those that it starts.
pub(crate) struct Machine(Arc<Armed>);

impl Machine {
    /// Installs the filter. All calls succeed until [`Machine::arm`].
    pub(crate) fn new(kind: Kind) -> Machine {
        let armed = Arc::new(Armed { left: AtomicI64::new(-1), ..Armed::default() });
        let (send, receive) = std::sync::mpsc::channel();
        let shared = Arc::clone(&armed);
        // Started before the filter, which therefore does not hold for it.
        std::thread::spawn(move || serve(&receive.recv().unwrap(), kind, &shared));
        send.send(install(kind.calls)).unwrap();
        Machine(armed)
    }

    pub(crate) fn arm(&self, how: How) {
        let (how, left) = match how {
            How::Once(left) => (0, left),
            How::From(left) => (1, left),
            How::Alternate => (2, 0),
        };
        self.0.failed.store(0, SeqCst);
        self.0.how.store(how, SeqCst);
        self.0.left.store(left, SeqCst);
    }

    /// Lets all calls succeed again. Returns how many have failed.
    pub(crate) fn disarm(&self) -> u64 {
        self.0.left.store(-1, SeqCst);
        self.0.failed.load(SeqCst)
    }
}

impl Armed {
    fn fails(&self) -> bool {
        let fails = match (self.left.load(SeqCst), self.how.load(SeqCst)) {
            (..0, _) => false,
            (0, 0) => self.left.swap(-1, SeqCst) == 0,
            (0, 1) => true,
            (left, 2) => {
                self.left.store(1 - left, SeqCst);
                left == 0
            }
            (left, _) => {
                self.left.store(left - 1, SeqCst);
                false
            }
        };
        self.failed.fetch_add(u64::from(fails), SeqCst);
        fails
    }
}

/// Installs a filter that reports these calls, and returns where.
fn install(calls: &[libc::c_long]) -> OwnedFd {
    let stmt = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    // The number of the call is the first word of what a filter can load.
    let mut filter = vec![stmt(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for &call in calls {
        filter.push(stmt(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 1));
        filter.push(stmt(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_USER_NOTIF, 0));
    }
    filter.push(stmt(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program is valid during the call, which returns a new descriptor.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let listener = libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        );
        assert!(listener >= 0, "seccomp: {}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(listener as i32)
    }
}

fn serve(listener: &OwnedFd, kind: Kind, armed: &Armed) {
    let fd = listener.as_raw_fd();
    loop {
        // SAFETY: zeros are a valid value of both, and both calls get what they take.
        unsafe {
            let mut told: libc::seccomp_notif = std::mem::zeroed();
            if libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_RECV as _, &raw mut told) != 0 {
                // The thread was interrupted by a signal, or has ended.
                continue;
            }
            let mut answer: libc::seccomp_notif_resp = std::mem::zeroed();
            answer.id = told.id;
            match (kind.is_one)(&told.data) && armed.fails() {
                true => answer.error = -kind.errno,
                false => answer.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
            }
            // Fails if the thread has ended meanwhile.
            libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_SEND as _, &raw mut answer);
        }
    }
}

fn any(_: &libc::seccomp_data) -> bool {
    true
}

pub(crate) const THREADS: Kind =
    Kind { calls: &[libc::SYS_clone, libc::SYS_clone3], errno: libc::EAGAIN, is_one: any };

pub(crate) const DESCRIPTORS: Kind = Kind {
    calls: &[libc::SYS_openat, libc::SYS_dup, libc::SYS_fcntl],
    errno: libc::EMFILE,
    is_one: |data| {
        let copies = [libc::F_DUPFD as u64, libc::F_DUPFD_CLOEXEC as u64];
        i64::from(data.nr) != libc::SYS_fcntl || copies.contains(&data.args[1])
    },
};

/// Not the mappings of the allocator and of the standard library's threads: those two end the process.
pub(crate) const MAPPINGS: Kind = Kind {
    calls: &[libc::SYS_mmap, libc::SYS_mremap, libc::SYS_mprotect],
    errno: libc::ENOMEM,
    is_one: |data| {
        let [_, len, access, flags, ..] = data.args;
        let is_writable = access & libc::PROT_WRITE as u64 != 0;
        match i64::from(data.nr) {
            libc::SYS_mprotect => is_writable,
            libc::SYS_mmap if flags & libc::MAP_ANONYMOUS as u64 != 0 => {
                !is_writable || len == 4096
            }
            _ => true,
        }
    },
};

/// The calls that write to files or change directories, and so find a disk full.
pub(crate) const DISK: Kind = Kind {
    calls: &[
        libc::SYS_fallocate,
        libc::SYS_ftruncate,
        libc::SYS_pwrite64,
        libc::SYS_pwritev2,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_msync,
        libc::SYS_linkat,
        libc::SYS_renameat2,
        libc::SYS_mkdirat,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_mkdir,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_link,
    ],
    errno: libc::ENOSPC,
    is_one: any,
};

/// The calls that a signal can interrupt.
pub(crate) const INTERRUPTED: Kind = Kind {
    calls: &[
        libc::SYS_openat,
        libc::SYS_read,
        libc::SYS_pread64,
        libc::SYS_write,
        libc::SYS_pwrite64,
        libc::SYS_pwritev2,
        libc::SYS_fallocate,
        libc::SYS_ftruncate,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_flock,
    ],
    errno: libc::EINTR,
    is_one: any,
};

/// Sends signals to all threads of the process, one after the other, without pause.
pub(crate) struct Signals(Arc<std::sync::atomic::AtomicBool>);

impl Signals {
    pub(crate) fn new() -> Signals {
        extern "C" fn handle(_: i32) {}
        // SAFETY: the handler does nothing. Without SA_RESTART, interrupted calls fail with EINTR.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as extern "C" fn(i32) as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
        }
        let on = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let told = Arc::clone(&on);
        std::thread::spawn(move || {
            // SAFETY: both calls only take numbers.
            let (own, process) = unsafe { (libc::gettid(), libc::getpid()) };
            loop {
                std::thread::sleep(std::time::Duration::from_micros(200));
                if !told.load(SeqCst) {
                    continue;
                }
                for entry in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
                    let thread = entry.file_name().to_str().and_then(|name| name.parse().ok());
                    if let Some(thread) = thread.filter(|&thread: &i32| thread != own) {
                        // SAFETY: the signal has a handler. A thread that has ended gets none.
                        unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) };
                    }
                }
            }
        });
        Signals(on)
    }

    pub(crate) fn begin(&self) {
        self.0.store(true, SeqCst);
    }

    pub(crate) fn end(&self) {
        self.0.store(false, SeqCst);
    }
}

fn limit() -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    limit
}

/// Returns how many descriptors this process may have.
pub(crate) fn descriptors() -> u64 {
    limit().rlim_cur
}

/// Sets how many descriptors this process may have.
pub(crate) fn limit_descriptors(count: u64) {
    let limit = libc::rlimit { rlim_cur: count, ..limit() };
    // SAFETY: `limit` is valid.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
}
