//! Helpers that the tests of the command share.

use serde_json::Value;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A directory for a pool, which may not exist yet.
pub(crate) struct Place {
    /// The directory, which is removed when this value is dropped.
    pub(crate) dir: tempfile::TempDir,
}

/// The result of a run of the command.
pub(crate) struct Run {
    /// The exit code.
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) out: Vec<u8>,
    /// Standard error.
    pub(crate) err: String,
}

impl Run {
    /// Returns standard output as text.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.out).unwrap()
    }

    /// Returns standard output as JSON objects. Every line must be one.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let parse = |line| {
            let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
            assert!(value.is_object(), "{line}");
            value
        };
        self.text().lines().map(parse).collect()
    }

    /// Fails the test unless the exit code is `code`. An error must be one line.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        let (out, err) = (String::from_utf8_lossy(&self.out), &self.err);
        assert_eq!(self.code, code, "stdout: {out}\nstderr: {err}");
        if code == 1 || code == 3 {
            assert_eq!(err.lines().count(), 1, "{err}");
            assert!(err.starts_with("outlast: "), "{err}");
        }
        self
    }
}

/// Returns the command. Without another word, the pools that it makes have no journal: most tests are
/// of one file.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outlast"));
    command.env("OUTLAST_SURVIVE", "process-death");
    command
}

impl Place {
    /// Makes an empty directory.
    pub(crate) fn new() -> Self {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    /// Returns a path in it.
    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the path of the pool.
    pub(crate) fn pool(&self) -> PathBuf {
        self.path("test.pool")
    }

    /// Writes a file with this content.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Runs the command on the pool.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Run {
        self.run_with(args, b"")
    }

    /// Runs the command on the pool, with `input` on standard input.
    pub(crate) fn run_with<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
        input: &[u8],
    ) -> Run {
        let mut child = command()
            .arg("--pool")
            .arg(self.pool())
            .args(args)
            .env("TMPDIR", self.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that fails early does not read its input, so the write may fail.
        let _ = child.stdin.take().unwrap().write_all(input);
        finished(child.wait_with_output().unwrap())
    }
}

/// Starts a command, and stops it with SIGSTOP as soon as it has made the file `made`.
pub(crate) fn stopped(command: &mut Command, made: &Path) -> Child {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while !made.exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing is made");
        std::thread::sleep(Duration::from_micros(100));
    }
    signal(&child, libc::SIGSTOP);
    child
}

/// Sends a signal to a child that nobody has waited for.
pub(crate) fn signal(child: &Child, signal: i32) {
    // SAFETY: nobody has waited for the child, so its number is not another process's.
    assert_eq!(unsafe { libc::kill(child.id().cast_signed(), signal) }, 0);
}

/// Lets a stopped child finish.
pub(crate) fn resumed(child: Child) -> Run {
    signal(&child, libc::SIGCONT);
    finished(child.wait_with_output().unwrap())
}

/// Converts the output of a finished process.
pub(crate) fn finished(output: Output) -> Run {
    let Output { status, stdout, stderr } = output;
    Run {
        code: status.code().unwrap_or(-1),
        out: stdout,
        err: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

/// Starts a command that has loaded most of so many records and waits for more.
pub(crate) fn loading(place: &Place, records: u32) -> (Child, ChildStdin) {
    let mut load = command()
        .arg("--pool")
        .arg(place.pool())
        .arg("load")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = load.stdin.take().unwrap();
    // This must be more than a pipe holds. Then most of it is loaded once all of it is written.
    let lines: String = (0..records).map(|n| format!("k{n}\t{n}\n")).collect();
    input.write_all(lines.as_bytes()).unwrap();
    (load, input)
}

/// Salvages the pool into `new.pool`.
pub(crate) fn salvage(place: &Place, more: &[&str]) -> Run {
    let (from, to) = (place.pool(), place.path("new.pool"));
    let mut command = command();
    command.arg("salvage").arg(from).arg(to).args(more).env_remove("OUTLAST_POOL");
    finished(command.output().unwrap())
}

/// Runs a command on the pool that [`salvage`] has made.
pub(crate) fn in_new(place: &Place, args: &[&str]) -> Run {
    let mut command = command();
    command.arg("--pool").arg(place.path("new.pool")).args(args);
    finished(command.output().unwrap())
}

/// Returns the JSON object of this event that a run has printed.
pub(crate) fn told(run: &Run, event: &str) -> Value {
    let mut objects = run.objects().into_iter();
    objects.find(|object| object["event"] == event).unwrap_or_default()
}
