//! The program `sessions` of the library's examples, on redb.
//!
//! ```text
//! cargo run --release -p outlast-bench --features stores --example redb_sessions [sessions.redb]
//! ```

use redb::TableDefinition;
use redb::{Database, Durability, ReadableDatabase, ReadableTable, ReadableTableMetadata};
use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

const SESSIONS: u64 = 2_000;
const THREADS: usize = 2;
/// Seconds that a session lives without a request.
const LIFETIME: u64 = 15 * 60;

type Id = [u8; 16];
/// The user, when the session expires, and its number of requests. (A struct would have to
/// implement `redb::Value`.)
type Session = (u64, u64, u64);

const TABLE: TableDefinition<'_, &Id, Session> = TableDefinition::new("sessions");
/// Requests are not committed durably, because each commit would then sync the disk. A prolonged
/// session becomes durable with the next durable commit: a login, a logout or a run of the reaper.
const OF_REQUESTS: Durability = Durability::None;

type Fallible<T> = Result<T, redb::Error>;

struct Sessions(Database);

impl Sessions {
    fn log_in(&self, user: u64, now: u64) -> Result<Id, Box<dyn Error>> {
        let mut id = Id::default();
        File::open("/dev/urandom")?.read_exact(&mut id)?;
        let transaction = self.0.begin_write()?;
        let before =
            transaction.open_table(TABLE)?.insert(&id, (user, now + LIFETIME, 0))?.is_some();
        assert!(!before, "a random id is new");
        transaction.commit()?;
        Ok(id)
    }

    /// Prolongs a session and returns it, unless it has expired.
    fn request(&self, id: &Id, now: u64) -> Fallible<Option<Session>> {
        let mut transaction = self.0.begin_write()?;
        transaction.set_durability(OF_REQUESTS)?;
        let session = {
            let mut table = transaction.open_table(TABLE)?;
            let session = table.get(id)?.map(|session| session.value());
            match session.filter(|(_, expires, _)| *expires > now) {
                Some((user, _, requests)) => {
                    let session = (user, now + LIFETIME, requests + 1);
                    table.insert(id, session)?;
                    Some(session)
                }
                None => {
                    table.remove(id)?;
                    None
                }
            }
        };
        transaction.commit()?;
        Ok(session)
    }

    fn log_out(&self, id: &Id) -> Fallible<bool> {
        let transaction = self.0.begin_write()?;
        let was_there = transaction.open_table(TABLE)?.remove(id)?.is_some();
        transaction.commit()?;
        Ok(was_there)
    }

    /// Removes the expired sessions, and returns how many there were.
    fn expire(&self, now: u64) -> Fallible<u64> {
        let transaction = self.0.begin_write()?;
        let expired;
        {
            let mut table = transaction.open_table(TABLE)?;
            let before = table.len()?;
            table.retain(|_, (_, expires, _)| expires > now)?;
            expired = before - table.len()?;
        }
        transaction.commit()?;
        Ok(expired)
    }

    fn get(&self, id: &Id) -> Fallible<Option<Session>> {
        let table = self.0.begin_read()?.open_table(TABLE)?;
        Ok(table.get(id)?.map(|session| session.value()))
    }

    fn len(&self) -> Fallible<u64> {
        Ok(self.0.begin_read()?.open_table(TABLE)?.len()?)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let temporary = tempfile::tempdir()?;
    let path = std::env::args_os().nth(1).map(PathBuf::from);
    let path = path.unwrap_or_else(|| temporary.path().join("sessions.redb"));
    let sessions = Sessions(Database::create(path)?);
    // A reader fails on a table that does not exist yet.
    let transaction = sessions.0.begin_write()?;
    transaction.open_table(TABLE)?;
    transaction.commit()?;
    println!("found {} sessions of an earlier run", sessions.len()?);

    let start = Instant::now();
    let mut now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let ids =
        (0..SESSIONS).map(|user| sessions.log_in(user, now)).collect::<Result<Vec<_>, _>>()?;
    // The first half goes on, the second half never comes back.
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
                        let session = shared.request(id, now).expect("the database works");
                        assert!(session.is_some(), "an active session never expires");
                    }
                });
            }
            reaper.join().expect("no thread panics")
        })?;
    }
    println!("{SESSIONS} sessions lived for an hour in {:.0?}", start.elapsed());

    for (user, id) in (0..).zip(active) {
        assert_eq!(sessions.get(id)?, Some((user, now + LIFETIME, 12)));
    }
    for id in idle {
        assert_eq!(sessions.request(id, now)?, None);
    }
    assert!(sessions.log_out(&active[0])? && !sessions.log_out(&active[0])?);
    println!("{expired} sessions expired, {} are left", sessions.len()?);
    Ok(())
}
