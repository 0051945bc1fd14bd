//! Serves a [`Volume`] as a network block device, on a Unix socket.
//!
//! The protocol is that of <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>, as
//! much of it as qemu uses: the fixed newstyle handshake, and read, write, flush and disconnect.

use super::volume::Volume;
use crate::state::{Checked, Fault};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Begins the server's greeting.
const GREETING: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// Begins each option, and ends the greeting.
const OPTION: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// Begins the reply to an option.
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// These begin a request and the reply to it.
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;

/// The handshake's flags: *fixed newstyle*, and no zeros after the export's name.
const HANDSHAKE_FLAGS: u16 = 0b11;
/// The export's flags: the flags are valid, and the server takes flushes and force unit access.
const EXPORT_FLAGS: u16 = 1 | 1 << 2 | 1 << 3;
/// The flag of a request with force unit access.
const FORCE: u16 = 1;

/// Options of the handshake.
const ABORT: u32 = 2;
const GO: u32 = 7;
/// Replies to options.
const ACKNOWLEDGED: u32 = 1;
const INFORMATION: u32 = 3;
const UNSUPPORTED: u32 = 1 << 31 | 1;
/// Kinds of requests.
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
/// Error numbers of replies.
const INVALID: u32 = 22;

/// The longest option and the longest request, in bytes.
const OPTION_BYTES: u32 = 1 << 16;
const REQUEST_BYTES: u32 = 32 << 20;

/// A volume behind a socket, for one machine at a time.
#[derive(Debug)]
pub struct Server {
    volume: Arc<Mutex<Volume>>,
    listener: UnixListener,
    path: PathBuf,
}

impl Server {
    /// Makes a server with a new socket.
    ///
    /// # Errors
    /// The system's.
    pub fn new(volume: Volume, path: &Path) -> Checked<Server> {
        let listener = UnixListener::bind(path);
        let listener = listener.map_err(|e| Fault(format!("{}: {e}", path.display())))?;
        Ok(Server { volume: Arc::new(Mutex::new(volume)), listener, path: path.into() })
    }

    /// Returns the name by which qemu finds it.
    pub fn name(&self) -> PathBuf {
        format!("nbd:unix:{}", self.path.display()).into()
    }

    /// Returns the volume.
    pub fn volume(&self) -> MutexGuard<'_, Volume> {
        lock(&self.volume)
    }

    /// Serves one machine, in a thread. The thread ends when the machine has disconnected, or is
    /// dead, and all of its requests are done.
    ///
    /// # Errors
    /// The system's.
    pub fn serve(&self) -> Checked<JoinHandle<io::Result<()>>> {
        let listener = self.listener.try_clone();
        let listener = listener.map_err(|e| Fault(format!("the disk's server: {e}")))?;
        let volume = Arc::clone(&self.volume);
        Ok(std::thread::spawn(move || {
            let (stream, _) = listener.accept()?;
            match converse(stream, &volume) {
                // The machine was killed.
                Err(error) if is_end(&error) => Ok(()),
                other => other,
            }
        }))
    }
}

fn lock(volume: &Mutex<Volume>) -> MutexGuard<'_, Volume> {
    volume.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn bytes<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn body(from: &mut impl Read, len: u32, most: u32) -> io::Result<Vec<u8>> {
    if len > most {
        return Err(invalid("a request is too long"));
    }
    let mut bytes = vec![0; len as usize];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn converse(stream: UnixStream, volume: &Mutex<Volume>) -> io::Result<()> {
    let mut from = BufReader::new(stream.try_clone()?);
    let mut to = stream;
    if !shake_hands(&mut from, &mut to, lock(volume).bytes())? {
        return Ok(());
    }
    let mut replies = Vec::new();
    loop {
        from.fill_buf()?;
        let mut volume = lock(volume);
        // A machine that sends a request before it has the reply to an earlier one does not know
        // whether the earlier one is done. So requests that arrive together form one round.
        volume.begin_round();
        loop {
            let Some(request) = Request::read(&mut from)? else { return Ok(()) };
            request.answer(&mut volume, &mut replies);
            if volume.is_off() {
                drop(volume);
                // Wait until the machine is off as well.
                return io::copy(&mut from, &mut io::sink()).map(drop);
            }
            if from.buffer().is_empty() {
                break;
            }
        }
        drop(volume);
        to.write_all(&replies)?;
        replies.clear();
    }
}

/// Agrees on the export. Returns whether requests follow.
fn shake_hands(from: &mut impl Read, to: &mut impl Write, size: u64) -> io::Result<bool> {
    let greeting =
        [&GREETING.to_be_bytes()[..], &OPTION.to_be_bytes(), &HANDSHAKE_FLAGS.to_be_bytes()];
    to.write_all(&greeting.concat())?;
    bytes::<4>(from)?;
    loop {
        if u64::from_be_bytes(bytes(from)?) != OPTION {
            return Err(invalid("the handshake"));
        }
        let option = u32::from_be_bytes(bytes(from)?);
        let len = u32::from_be_bytes(bytes(from)?);
        body(from, len, OPTION_BYTES)?;
        let mut reply = |kind: u32, data: &[u8]| {
            let head = [option, kind, data.len() as u32].map(u32::to_be_bytes).concat();
            to.write_all(&[&OPTION_REPLY.to_be_bytes()[..], &head, data].concat())
        };
        match option {
            GO => {
                let export = [&[0; 2][..], &size.to_be_bytes(), &EXPORT_FLAGS.to_be_bytes()];
                reply(INFORMATION, &export.concat())?;
                reply(ACKNOWLEDGED, &[])?;
                return Ok(true);
            }
            ABORT => {
                reply(ACKNOWLEDGED, &[])?;
                return Ok(false);
            }
            _ => reply(UNSUPPORTED, &[])?,
        }
    }
}

/// A request of the machine.
struct Request {
    kind: u16,
    force: bool,
    /// The machine's name for it, which the reply repeats.
    cookie: [u8; 8],
    at: u64,
    len: u32,
    data: Vec<u8>,
}

impl Request {
    /// Reads a request. Returns `None` if the machine ends the connection.
    fn read(from: &mut impl BufRead) -> io::Result<Option<Request>> {
        if u32::from_be_bytes(bytes(from)?) != REQUEST {
            return Err(invalid("a request"));
        }
        let force = u16::from_be_bytes(bytes(from)?) & FORCE != 0;
        let kind = u16::from_be_bytes(bytes(from)?);
        let cookie = bytes(from)?;
        let at = u64::from_be_bytes(bytes(from)?);
        let len = u32::from_be_bytes(bytes(from)?);
        if kind == DISCONNECT {
            return Ok(None);
        }
        let data = if kind == WRITE { body(from, len, REQUEST_BYTES)? } else { Vec::new() };
        Ok(Some(Request { kind, force, cookie, at, len, data }))
    }

    /// Performs the request, and appends its reply.
    fn answer(&self, volume: &mut Volume, replies: &mut Vec<u8>) {
        let data = match self.kind {
            READ if self.len <= REQUEST_BYTES => volume.read(self.at, self.len as usize),
            WRITE => volume.write(self.at, &self.data, self.force).then_some(&[][..]),
            FLUSH => {
                volume.flush();
                Some(&[][..])
            }
            _ => None,
        };
        let error = if data.is_some() { 0 } else { INVALID };
        replies.extend_from_slice(&REPLY.to_be_bytes());
        replies.extend_from_slice(&u32::to_be_bytes(error));
        replies.extend_from_slice(&self.cookie);
        replies.extend_from_slice(data.unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const BYTES: usize = 1 << 20;

    /// A machine's side of the connection.
    struct Client {
        stream: UnixStream,
        serving: JoinHandle<io::Result<()>>,
    }

    impl Client {
        fn connect(server: &Server) -> Client {
            let serving = server.serve().unwrap();
            let mut stream = UnixStream::connect(&server.path).unwrap();
            let greeting: [u8; 18] = bytes(&mut stream).unwrap();
            assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
            stream.write_all(&3_u32.to_be_bytes()).unwrap();
            // An option that the server does not have, and one that it has.
            for option in [8_u32, GO] {
                stream.write_all(b"IHAVEOPT").unwrap();
                stream.write_all(&[option, 0].map(u32::to_be_bytes).concat()).unwrap();
            }
            let head = |stream: &mut UnixStream| {
                let head: [u8; 20] = bytes(stream).unwrap();
                [8, 12, 16].map(|at| u32::from_be_bytes(head[at..at + 4].try_into().unwrap()))
            };
            assert_eq!(head(&mut stream), [8, UNSUPPORTED, 0]);
            assert_eq!(head(&mut stream), [GO, INFORMATION, 12]);
            let export: [u8; 12] = bytes(&mut stream).unwrap();
            assert_eq!(export[2..10], (BYTES as u64).to_be_bytes());
            assert_eq!(head(&mut stream), [GO, ACKNOWLEDGED, 0]);
            Client { stream, serving }
        }

        fn send(&mut self, kind: u16, flags: u16, at: u64, len: u32, data: &[u8]) {
            let mut request = REQUEST.to_be_bytes().to_vec();
            request.extend([flags, kind].map(u16::to_be_bytes).concat());
            request.extend(7_u64.to_be_bytes());
            request.extend(at.to_be_bytes());
            request.extend(len.to_be_bytes());
            request.extend(data);
            self.stream.write_all(&request).unwrap();
        }

        /// Sends a request and returns the error number of its reply.
        fn call(&mut self, kind: u16, flags: u16, at: u64, len: u32, data: &[u8]) -> u32 {
            self.send(kind, flags, at, len, data);
            let reply: [u8; 16] = bytes(&mut self.stream).unwrap();
            assert_eq!(reply[..4], REPLY.to_be_bytes());
            assert_eq!(reply[8..], 7_u64.to_be_bytes());
            u32::from_be_bytes(reply[4..8].try_into().unwrap())
        }

        fn write(&mut self, flags: u16, at: u64, fill: u8) {
            assert_eq!(self.call(WRITE, flags, at, 4096, &[fill; 4096]), 0);
        }

        fn first_byte(&mut self, at: u64) -> u8 {
            assert_eq!(self.call(READ, 0, at, 512, &[]), 0);
            bytes::<512>(&mut self.stream).unwrap()[0]
        }

        /// Dies like a machine that is killed.
        fn die(self) {
            drop(self.stream);
            self.serving.join().unwrap().unwrap();
        }
    }

    #[test]
    fn a_power_cut_keeps_what_was_flushed_and_perhaps_more() {
        let place = tempfile::tempdir().unwrap();
        let (mut lost, mut survived) = (0, 0);
        for seed in 0..20 {
            let path = place.path().join(seed.to_string());
            let server = Server::new(Volume::new(BYTES), &path).unwrap();
            let mut client = Client::connect(&server);
            client.write(0, 0, 1);
            assert_eq!(client.call(FLUSH, 0, 0, 0, &[]), 0);
            client.write(0, 8192, 2);
            client.write(FORCE, 16384, 3);
            assert_eq!(client.first_byte(8192), 2);
            client.die();
            server.volume().cut(&mut Random::new(seed));
            let mut client = Client::connect(&server);
            assert_eq!([0, 16384].map(|at| client.first_byte(at)), [1, 3]);
            match client.first_byte(8192) {
                0 => lost += 1,
                2 => survived += 1,
                other => panic!("{other} was never written"),
            }
            client.die();
            let counts = server.volume().counts();
            assert_eq!((counts.writes, counts.forced, counts.flushes), (3, 1, 1));
        }
        assert!(lost > 0 && survived > 0, "{lost} lost, {survived} survived");
    }

    #[test]
    fn a_disk_without_power_does_nothing_more() {
        let place = tempfile::tempdir().unwrap();
        let server = Server::new(Volume::new(BYTES), &place.path().join("socket")).unwrap();
        let mut client = Client::connect(&server);
        client.write(0, 0, 1);
        assert_eq!(client.call(FLUSH, 0, 0, 0, &[]), 0);
        server.volume().off_after(2);
        client.write(0, 0, 2);
        assert!(!server.volume().is_off());
        // With this write the power goes off, so there is no reply to it, and no flush.
        client.send(WRITE, 0, 4096, 4096, &[3; 4096]);
        client.send(FLUSH, 0, 0, 0, &[]);
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(client.stream.read(&mut [0; 16]).unwrap(), 0);
        client.die();
        assert!(server.volume().is_off());
        server.volume().cut(&mut Random::new(1));
        let counts = server.volume().counts();
        assert_eq!((counts.writes, counts.flushes, counts.dropped + counts.kept), (3, 1, 16));
        let mut client = Client::connect(&server);
        client.write(0, 0, 1);
        client.die();
    }

    #[test]
    fn wrong_requests_are_refused_and_end_nothing() {
        let place = tempfile::tempdir().unwrap();
        let server = Server::new(Volume::new(BYTES), &place.path().join("socket")).unwrap();
        let mut client = Client::connect(&server);
        assert_eq!(client.call(READ, 0, BYTES as u64, 512, &[]), INVALID);
        assert_eq!(client.call(WRITE, 0, 1, 512, &[1; 512]), INVALID);
        assert_eq!(client.call(99, 0, 0, 0, &[]), INVALID);
        client.write(0, 0, 1);
        client.send(DISCONNECT, 0, 0, 0, &[]);
        client.serving.join().unwrap().unwrap();
    }
}
