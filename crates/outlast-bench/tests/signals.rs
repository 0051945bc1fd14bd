//! A command that a signal ends, whatever it is doing, leaves no files and no processes, and its
//! exit status names that signal.
//!
//! Each command starts with more work than it can do during the test.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long the tests wait for anything: long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running command. Dropping it kills the command, so that a failed test leaves nothing running.
struct Bench(Child);

impl Bench {
    fn start(arguments: &[&str], dir: &Path) -> Bench {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outlast-bench"));
        command.args(arguments).arg("--pool-dir").arg(dir);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: between fork and exec, the closure only makes system calls.
        unsafe {
            command.pre_exec(|| {
                // The tests may themselves run with some of these signals ignored.
                for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                Ok(())
            });
        }
        Bench(command.spawn().unwrap())
    }

    fn id(&self) -> libc::pid_t {
        libc::pid_t::try_from(self.0.id()).unwrap()
    }

    fn send(&self, signal: libc::c_int) {
        // SAFETY: the child has not been waited for, so the id is still its own.
        assert_eq!(unsafe { libc::kill(self.id(), signal) }, 0);
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    /// Returns the ids of the command's children.
    fn children(&self) -> Vec<libc::pid_t> {
        let id = self.id();
        let text = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        text.split_ascii_whitespace().map(|id| id.parse().unwrap()).collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Counts files and directories in and under a directory.
fn entries(dir: &Path) -> usize {
    let Ok(list) = fs::read_dir(dir) else { return 0 };
    list.flatten().map(|entry| 1 + entries(&entry.path())).sum()
}

/// Returns whether a process is alive, and not a zombie.
fn lives(id: libc::pid_t) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{id}/stat")) else { return false };
    !matches!(stat.rsplit(") ").next().and_then(|rest| rest.chars().next()), Some('Z' | 'X'))
}

/// Waits for a process to end. The process must end sooner than it could complete its work.
fn ends(id: libc::pid_t) {
    let start = Instant::now();
    wait_for("the child's end", || (!lives(id)).then_some(()));
    assert!(start.elapsed() < Duration::from_secs(5), "it ended by itself");
}

/// Commands that create files.
const COMMANDS: [&[&str]; 5] = [
    &["micro", "--records", "50000000"],
    &["kv", "--records", "50000000", "--value-size", "8"],
    &["recovery", "--records", "50000000"],
    &["space", "--records", "50000000"],
    &["stalls", "--records", "50000000"],
];

#[test]
fn a_command_that_is_told_to_end_leaves_nothing() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        for arguments in COMMANDS {
            let dir = tempfile::tempdir().unwrap();
            let mut bench = Bench::start(arguments, dir.path());
            // Wait for the pool, in a directory of its own, and for some work on it. The command
            // first makes another pool to find out how it flushes.
            let pool = || (entries(dir.path()) > 1).then_some(());
            wait_for("a pool", pool);
            std::thread::sleep(Duration::from_millis(50));
            wait_for("a pool", pool);
            assert!(bench.ended().is_none(), "{arguments:?}");
            let recovery = arguments[0] == "recovery";
            let child = recovery.then(|| wait_for("a child", || bench.children().first().copied()));
            bench.send(signal);
            let status = wait_for("the end", || bench.ended());
            assert_eq!(status.signal(), Some(signal), "{arguments:?}: {status}");
            assert_eq!(entries(dir.path()), 0, "{arguments:?}");
            child.into_iter().for_each(ends);
        }
    }
}

#[test]
fn the_child_of_recovery_dies_with_its_parent() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Bench::start(COMMANDS[2], dir.path());
    let child = wait_for("a child", || bench.children().first().copied());
    wait_for("a pool", || (entries(dir.path()) > 1).then_some(()));
    assert!(lives(child));
    bench.send(libc::SIGKILL);
    assert_eq!(wait_for("the end", || bench.ended()).signal(), Some(libc::SIGKILL));
    ends(child);
}

#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_outlast-bench"));
    command.args(["space", "--records", "200000", "--pool-dir"]).arg(dir.path());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: between fork and exec, the closure only makes one system call.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
            Ok(())
        });
    }
    let mut bench = Bench(command.spawn().unwrap());
    wait_for("a pool", || (entries(dir.path()) > 1).then_some(()));
    bench.send(libc::SIGHUP);
    assert_eq!(wait_for("the end", || bench.ended()).code(), Some(0));
}
