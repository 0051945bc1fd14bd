//! Sessions that expire: several threads handle requests, which prolong sessions, while another
//! thread removes the expired ones. The value is a struct.
//!
//! ```text
//! cargo run --release --example sessions                  # in a temporary directory
//! cargo run --release --example sessions sessions.pool    # keeps the pool; run it again
//! ```

use outlast::{Map, PoolOptions};
use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const SESSIONS: u64 = 2_000;
const THREADS: usize = 2;
/// Seconds that a session lives without a request.
const LIFETIME: u64 = 15 * 60;

type Id = [u8; 16];

/// The struct is stored as its bytes in memory. `zerocopy`'s derives make sure that it has no
/// padding and that any bytes are a valid value.
#[derive(Debug, Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Session {
    user: u64,
    expires: u64,
    requests: u64,
}
// The name is stored in the file, and a map opens only with the same name. Change it when the
// layout changes.
outlast::fixed_record!(Session, "session/1");

struct Sessions(Map<Id, Session>);

impl Sessions {
    fn log_in(&self, user: u64, now: u64) -> Result<Id, Box<dyn Error>> {
        let mut id = Id::default();
        File::open("/dev/urandom")?.read_exact(&mut id)?;
        let session = Session { user, expires: now + LIFETIME, requests: 0 };
        assert!(self.0.insert(&id, &session)?, "a random id is new");
        Ok(id)
    }

    /// Prolongs a session and returns it. Returns `None` if there is no such session, or if it has
    /// expired; an expired one is removed.
    fn request(&self, id: &Id, now: u64) -> outlast::Result<Option<Session>> {
        // `alter` is atomic. The closure gets the value, if there is one, and returns the value to
        // replace it; `None` removes it. It runs again if another thread has changed the record
        // meanwhile, so it should have no side effects.
        self.0.alter(id, |session| {
            let session = session.filter(|session| session.expires > now)?;
            Some(Session { expires: now + LIFETIME, requests: session.requests + 1, ..*session })
        })
    }

    fn log_out(&self, id: &Id) -> outlast::Result<bool> {
        self.0.delete(id)
    }

    /// Removes the expired sessions, and returns how many there were.
    fn expire(&self, now: u64) -> outlast::Result<u64> {
        // If a request prolongs a session at the same moment, `retain` checks it again with its new
        // expiry time. A `get` followed by a `remove` could remove such a session.
        self.0.retain(|_, session| session.expires > now)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let temporary = tempfile::tempdir()?;
    let path = std::env::args_os().nth(1).map(PathBuf::from);
    let path = path.unwrap_or_else(|| temporary.path().join("sessions.pool"));
    // SAFETY: no other program writes this file while the pool is open.
    let pool =
        unsafe { PoolOptions::new().survive(outlast::Failure::ProcessDeath).open_or_create(path)? };
    let sessions = Sessions(pool.map("sessions")?);
    println!("found {} sessions of an earlier run", sessions.0.len()?);

    let start = Instant::now();
    let mut now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let ids =
        (0..SESSIONS).map(|user| sessions.log_in(user, now)).collect::<Result<Vec<_>, _>>()?;
    // The users of the first half go on sending requests. Those of the second half never come back.
    let (active, idle) = ids.split_at(ids.len() / 2);
    let (shared, mut expired) = (&sessions, 0);
    // An hour in steps of five minutes. (The program makes up the time, so that it need not wait.)
    for _ in 0..12 {
        now += 5 * 60;
        expired += thread::scope(|scope| {
            let reaper = scope.spawn(|| shared.expire(now));
            for ids in active.chunks(active.len() / THREADS) {
                scope.spawn(move || {
                    for id in ids {
                        let session = shared.request(id, now).expect("the pool works");
                        assert!(session.is_some(), "an active session never expires");
                    }
                });
            }
            reaper.join().expect("no thread panics")
        })?;
    }
    println!("{SESSIONS} sessions lived for an hour in {:.0?}", start.elapsed());

    for (user, id) in (0..).zip(active) {
        assert_eq!(
            sessions.0.get(id)?,
            Some(Session { user, expires: now + LIFETIME, requests: 12 })
        );
    }
    for id in idle {
        assert_eq!(sessions.request(id, now)?, None);
    }
    assert!(sessions.log_out(&active[0])? && !sessions.log_out(&active[0])?);
    println!("{expired} sessions expired, {} are left", sessions.0.len()?);
    Ok(pool.close()?)
}
