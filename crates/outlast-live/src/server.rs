//! The thread of the process that has the pool.

use crate::wire::{Ask, Fields, Message, REQUEST_MAX, Reply, receive};
use crate::{inside, socket_of};
use outlast::{Error, Pool, RawMap};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::Shutdown;
use std::ops::Bound;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How many readers are answered at a time.
const READERS: usize = 16;

/// How long a reader may take to ask, or to take a piece of the answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often the thread looks whether it is to end.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Lets other processes read the pool, which was opened at `path`, until this is dropped.
///
/// Dropping it ends the requests of slow readers, but waits for what the pool is just doing for one: counting
/// records, or making a copy. It holds a handle of the pool. So drop it before you close the pool, or call
/// [`close`](Pool::close), after which readers get an error.
#[derive(Debug)]
#[must_use = "readers are answered until it is dropped"]
pub struct Serving {
    stop: Arc<AtomicBool>,
    directory: File,
    name: OsString,
    /// Device and inode of the socket.
    number: (u64, u64),
    thread: Option<JoinHandle<()>>,
    process: u32,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if std::process::id() != self.process {
            // In a fork, the thread does not exist, and the socket is the parent's.
            std::mem::forget(thread);
            return;
        }
        self.stop.store(true, Ordering::Relaxed);
        // It may not panic: it returns errors to those who ask.
        let _ = thread.join();
        let path = inside(&self.directory, &self.name);
        // Another process may have opened the pool meanwhile.
        if path.symlink_metadata().is_ok_and(|now| (now.dev(), now.ino()) == self.number) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Begins to answer other processes that want to read `pool`, which was opened at `path`. A socket that a dead
/// process has left is replaced.
///
/// It starts a thread, and one more for each reader while it is answered, sixteen at most. Until somebody asks,
/// it costs nothing but that the thread wakes ten times a second.
///
/// # Errors
/// Those of the system: `path` names no file, the socket cannot be made beside it, or no thread can be started.
pub fn serve(pool: &Pool, path: impl AsRef<Path>) -> io::Result<Serving> {
    let path = path.as_ref().canonicalize()?;
    let (directory, name) = socket_of(&path)?;
    // A socket is made under another name first, and so replaces that of a dead process at once.
    static MADE: AtomicU64 = AtomicU64::new(0);
    let mut made = OsString::from(".");
    made.push(&name);
    made.push(format!(".{}.{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed)));
    let temporary = inside(&directory, &made);
    let _ = std::fs::remove_file(&temporary);
    let listener = UnixListener::bind(&temporary)?;
    let ready = || {
        // Who may read is decided by the pool's file, for each that connects.
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        std::fs::set_permissions(&temporary, all)?;
        listener.set_nonblocking(true)?;
        let found = temporary.symlink_metadata()?;
        std::fs::rename(&temporary, inside(&directory, &name))?;
        Ok((found.dev(), found.ino()))
    };
    let number = ready().inspect_err(|_: &io::Error| {
        let _ = std::fs::remove_file(&temporary);
    })?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut serving = Serving {
        stop: Arc::clone(&stop),
        directory,
        name,
        number,
        thread: None,
        process: std::process::id(),
    };
    let served = Served { pool: pool.clone(), path };
    let wait = move || listen(&listener, &served, &stop);
    let started = std::thread::Builder::new().name("outlast-live".into()).spawn(wait);
    match started {
        Ok(thread) => serving.thread = Some(thread),
        Err(error) => {
            let _ = std::fs::remove_file(inside(&serving.directory, &serving.name));
            return Err(error);
        }
    }
    Ok(serving)
}

/// What readers read.
struct Served {
    pool: Pool,
    path: PathBuf,
}

/// The connections of the readers that are being answered, by number.
type Readers = Mutex<HashMap<u64, UnixStream>>;

fn listen(listener: &UnixListener, served: &Served, stop: &AtomicBool) {
    let readers = Readers::default();
    let readers = || readers.lock().unwrap_or_else(PoisonError::into_inner);
    // It ends once all readers are answered.
    std::thread::scope(|threads| {
        for number in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let mut events = [PollFd::new(listener, PollFlags::IN)];
            // An error is looked at by `accept`; a signal interrupts the wait.
            let _ = poll(&mut events, Some(&LOOK));
            let Ok((stream, _)) = listener.accept() else { continue };
            if readers().len() >= READERS {
                let busy =
                    Message::reply(Reply::Failed).bytes(b"too many read it at the same time");
                // As in `answer`, the request is read first.
                let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
                let _ = receive(&mut &stream, REQUEST_MAX);
                let _ = busy.send(&mut &stream);
                continue;
            }
            let Ok(kept) = stream.try_clone() else { continue };
            readers().insert(number, kept);
            let answer = move || {
                // An error of the connection ends it; there is nobody to tell.
                let _ = answer(served, &stream, stop);
                readers().remove(&number);
            };
            let thread = std::thread::Builder::new().name("outlast-live".into());
            if thread.spawn_scoped(threads, answer).is_err() {
                readers().remove(&number);
            }
        }
        // Readers that are slow are not waited for.
        for stream in readers().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    });
}

/// Returns whether the process at the other end may read the pool's file.
fn may_read(stream: &UnixStream, file: &Metadata) -> io::Result<bool> {
    let who = socket_peercred(stream)?;
    let (user, group) = (who.uid.as_raw(), who.gid.as_raw());
    let mode = file.mode();
    Ok(match () {
        () if user == 0 => true,
        () if user == file.uid() => mode & 0o400 != 0,
        () if group == file.gid() => mode & 0o040 != 0,
        () => mode & 0o004 != 0,
    })
}

/// Why there is no answer.
enum Stop {
    /// The reader is told.
    Refused(String),
    /// The connection has failed.
    Lost(io::Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Refused(error.to_string())
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        match error.kind() {
            io::ErrorKind::InvalidData => Stop::Refused(error.to_string()),
            _ => Stop::Lost(error),
        }
    }
}

fn answer(served: &Served, stream: &UnixStream, stop: &AtomicBool) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut out = BufWriter::with_capacity(1 << 16, stream);
    // The request is read in any case: where it is not, the reader gets an error instead of the reason.
    let request = receive(&mut BufReader::new(stream), REQUEST_MAX).map_err(Stop::from);
    let done = request.and_then(|request| match may_read(stream, &served.path.metadata()?)? {
        true => served.answer(&request, &mut out, stop),
        false => Err(Stop::Refused("you may not read the pool's file".into())),
    });
    match done {
        Ok(()) => Message::reply(Reply::End).send(&mut out)?,
        Err(Stop::Refused(why)) => {
            Message::reply(Reply::Failed).bytes(why.as_bytes()).send(&mut out)?;
        }
        Err(Stop::Lost(error)) => return Err(error),
    }
    out.flush()
}

impl Served {
    fn map(&self, fields: &mut Fields<'_>) -> Result<RawMap, Stop> {
        Ok(self.pool.raw_map(fields.text()?)?)
    }

    fn answer(&self, request: &[u8], out: &mut impl Write, stop: &AtomicBool) -> Result<(), Stop> {
        let (ask, mut fields) = Fields::of(request);
        let ask = Ask::from_byte(ask)
            .ok_or_else(|| Stop::Refused("this is asked by a newer version of outlast".into()))?;
        let item = || Message::reply(Reply::Item);
        match ask {
            Ask::Maps => {
                fields.end()?;
                for info in self.pool.maps() {
                    let info = info?;
                    item()
                        .bytes(info.name.as_bytes())
                        .bytes(info.scheme().name().as_bytes())
                        .number(match info.form {
                            outlast::RecordForm::Inline => 1,
                            outlast::RecordForm::Bytes => {
                                if info.expires {
                                    2
                                } else {
                                    0
                                }
                            }
                        })
                        .bytes(info.key_schema.as_bytes())
                        .bytes(info.value_schema.as_bytes())
                        .send(out)?;
                }
            }
            Ask::Get => {
                let (map, key) = (self.map(&mut fields)?, fields.bytes()?);
                fields.end()?;
                if let Some(value) = map.get(key)? {
                    item().bytes(&value).send(out)?;
                }
            }
            Ask::Count => {
                let map = self.map(&mut fields)?;
                fields.end()?;
                item().number(map.len()?).send(out)?;
            }
            Ask::Scan => self.scan(fields, out, stop)?,
            Ask::Stats => {
                let map = self.map(&mut fields)?;
                fields.end()?;
                let stats = map.stats()?;
                item()
                    .number(stats.segments)
                    .number(stats.directory_entries)
                    .number(stats.records_estimate)
                    .number(stats.slots)
                    .number(stats.dram_bytes)
                    .send(out)?;
            }
            Ask::Cache => {
                let map = self.map(&mut fields)?;
                fields.end()?;
                if let Some(stats) = map.cache_stats()? {
                    item()
                        .number(stats.hits)
                        .number(stats.misses)
                        .number(stats.evictions)
                        .number(stats.expired)
                        .number(stats.records)
                        .number(stats.bytes)
                        .send(out)?;
                }
            }
            Ask::Copy => {
                fields.end()?;
                self.copy(out)?;
            }
        }
        Ok(())
    }

    fn scan(
        &self,
        mut fields: Fields<'_>,
        out: &mut impl Write,
        stop: &AtomicBool,
    ) -> Result<(), Stop> {
        let map = self.map(&mut fields)?;
        let (low, high) = (bound(&mut fields)?, bound(&mut fields)?);
        let reverse = fields.number()? != 0;
        fields.end()?;
        let all = !reverse && matches!((low, high), (Bound::Unbounded, Bound::Unbounded));
        let records: Box<dyn Iterator<Item = outlast::Result<Pair>>> = match (all, reverse) {
            (true, _) => Box::new(map.iter().checked()),
            (_, false) => Box::new(map.range(low, high)?.checked()),
            (_, true) => Box::new(map.range(low, high)?.checked().rev()),
        };
        for record in records {
            let (key, value) = record?;
            Message::reply(Reply::Item).bytes(&key).bytes(&value).send(out)?;
            if stop.load(Ordering::Relaxed) {
                return Err(Stop::Refused("the program does not serve readers any more".into()));
            }
        }
        Ok(())
    }

    /// Sends a copy of the pool, which takes as much space beside the pool until it is sent.
    fn copy(&self, out: &mut impl Write) -> Result<(), Stop> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let mut path = self.path.clone().into_os_string();
        path.push(format!(".live.{}.{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed)));
        self.pool.snapshot(&path)?;
        let refused = |error: io::Error| Stop::Refused(format!("reading the copy: {error}"));
        let copy = File::open(&path).map_err(refused);
        let removed = std::fs::remove_file(&path).map_err(refused);
        let (mut copy, ()) = (copy?, removed?);
        let bytes = copy.metadata().map_err(refused)?.len();
        Message::reply(Reply::Item).number(bytes).send(out)?;
        let sent = io::copy(&mut (&mut copy).take(bytes), out)?;
        if sent < bytes { Err(Stop::Lost(io::ErrorKind::UnexpectedEof.into())) } else { Ok(()) }
    }
}

/// A key and its value.
type Pair = (Vec<u8>, Vec<u8>);

fn bound<'m>(fields: &mut Fields<'m>) -> io::Result<Bound<&'m [u8]>> {
    let kind = fields.number()?;
    let key = fields.bytes()?;
    Ok(match kind {
        1 => Bound::Included(key),
        2 => Bound::Excluded(key),
        _ => Bound::Unbounded,
    })
}
