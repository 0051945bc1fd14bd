//! redb, LMDB and fjall, each used as its documentation recommends, all with their default caches.

use super::{Client, Found, SCANNED};
use crate::Fallible;
use crate::form::{Hand, spelled};
use heed::types::Bytes;
use heed::{CommitOrAbort, EnvFlags, EnvOpenOptions};
use redb::{Durability, ReadableDatabase, TableDefinition};
use std::ops::Bound;
use std::path::Path;

/// Number of records per transaction of a load.
const LOAD_BATCH: usize = 10_000;

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("bench");

/// redb: one write transaction per insert, one read transaction per lookup.
pub(super) struct Redb {
    database: redb::Database,
    durability: Durability,
}

impl Redb {
    pub(super) fn create(dir: &Path, durable: bool) -> Fallible<Self> {
        let database = redb::Database::create(dir.join("redb"))?;
        let durability = if durable { Durability::Immediate } else { Durability::None };
        Ok(Redb { database, durability })
    }
}

impl Client for Redb {
    fn load(&self, hand: &mut Hand, records: &mut dyn Iterator<Item = (u64, u64)>) -> Fallible {
        let mut more = true;
        while more {
            let mut transaction = self.database.begin_write()?;
            transaction.set_durability(Durability::None)?;
            {
                let mut table = transaction.open_table(TABLE)?;
                let mut batch = records.take(LOAD_BATCH).peekable();
                more = batch.peek().is_some();
                for (key, value) in batch {
                    let (key, value) = hand.pair_bytes(key, value);
                    table.insert(key, value)?;
                }
            }
            transaction.commit()?;
        }
        // A durable commit makes the earlier ones durable.
        Ok(self.database.begin_write()?.commit()?)
    }

    fn insert(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(self.durability)?;
        {
            let (key, value) = hand.pair_bytes(key, value);
            transaction.open_table(TABLE)?.insert(key, value)?;
        }
        Ok(transaction.commit()?)
    }

    fn get(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>> {
        let reading = hand.reading;
        let table = self.database.begin_read()?.open_table(TABLE)?;
        let found = table.get(hand.key_bytes(key))?;
        Ok(found.map(|value| reading.word(value.value())))
    }

    fn scan(&self, hand: &mut Hand, from: u64, found: &mut Found) -> Fallible<bool> {
        let reading = hand.reading;
        let table = self.database.begin_read()?.open_table(TABLE)?;
        for record in table.range(hand.key_bytes(from)..)?.take(SCANNED) {
            let (key, value) = record?;
            found.push((spelled(key.value()), reading.word(value.value())));
        }
        Ok(true)
    }
}

/// LMDB: one write transaction per insert, one read transaction per lookup.
struct Lmdb<'e> {
    env: &'e heed::Env,
    database: heed::Database<'e, Bytes, Bytes>,
}

/// The size of the address space into which the file can grow, in bytes. It takes no space on the
/// disk.
const LMDB_MAP_BYTES: usize = 64 << 30;

/// Creates an LMDB environment and runs a job with it.
pub(super) fn with_lmdb(
    dir: &Path,
    durable: bool,
    job: impl FnOnce(&dyn Client) -> Fallible,
) -> Fallible {
    let mut options = EnvOpenOptions::new();
    options.map_size(LMDB_MAP_BYTES);
    if !durable {
        // SAFETY: with this flag, a power loss can damage the file. That is the mode being
        // measured, and nobody reads the file after a power loss.
        unsafe { options.flags(EnvFlags::NO_SYNC) };
    }
    // SAFETY: the directory was made for this environment. No other process has the file, and it is
    // opened once.
    let env = unsafe { options.open(dir)? };
    let transaction = env.write_txn()?;
    let database = env
        .create_databases_and_commit(transaction, |opener, transaction| {
            opener.create_database(transaction, None).map(CommitOrAbort::<_, ()>::Commit)
        })?
        .unwrap_commit();
    job(&Lmdb { env: &env, database })
}

impl Client for Lmdb<'_> {
    fn load(&self, hand: &mut Hand, records: &mut dyn Iterator<Item = (u64, u64)>) -> Fallible {
        let mut more = true;
        while more {
            let mut transaction = self.env.write_txn()?;
            let mut batch = records.take(LOAD_BATCH).peekable();
            more = batch.peek().is_some();
            for (key, value) in batch {
                let (key, value) = hand.pair_bytes(key, value);
                self.database.put(&mut transaction, key, value)?;
            }
            transaction.commit()?;
        }
        Ok(())
    }

    fn insert(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible {
        let mut transaction = self.env.write_txn()?;
        let (key, value) = hand.pair_bytes(key, value);
        self.database.put(&mut transaction, key, value)?;
        Ok(transaction.commit()?)
    }

    fn get(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>> {
        let reading = hand.reading;
        let transaction = self.env.read_txn()?;
        let found = self.database.get(&transaction, hand.key_bytes(key))?;
        Ok(found.map(|value| reading.word(value)))
    }

    fn scan(&self, hand: &mut Hand, from: u64, found: &mut Found) -> Fallible<bool> {
        let reading = hand.reading;
        let transaction = self.env.read_txn()?;
        let bounds = (Bound::Included(hand.key_bytes(from)), Bound::Unbounded);
        for record in self.database.range(&transaction, &bounds)?.take(SCANNED) {
            let (key, value) = record?;
            found.push((spelled(key), reading.word(value)));
        }
        Ok(true)
    }
}

/// fjall: inserts and lookups without transactions. After an insert, the journal is synced if
/// `sync` is set.
pub(super) struct Fjall {
    database: fjall::Database,
    keyspace: fjall::Keyspace,
    sync: bool,
}

impl Fjall {
    pub(super) fn create(dir: &Path, sync: bool) -> Fallible<Self> {
        let database = fjall::Database::builder(dir.join("fjall")).open()?;
        let keyspace = database.keyspace("bench", fjall::KeyspaceCreateOptions::default)?;
        Ok(Fjall { database, keyspace, sync })
    }
}

impl Client for Fjall {
    fn load(&self, hand: &mut Hand, records: &mut dyn Iterator<Item = (u64, u64)>) -> Fallible {
        for (key, value) in records {
            let (key, value) = hand.pair_bytes(key, value);
            self.keyspace.insert(key, value)?;
        }
        Ok(self.database.persist(fjall::PersistMode::SyncAll)?)
    }

    fn insert(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible {
        let (key, value) = hand.pair_bytes(key, value);
        // An insert also writes the journal to the operating system, without a sync.
        self.keyspace.insert(key, value)?;
        if self.sync {
            self.database.persist(fjall::PersistMode::SyncData)?;
        }
        Ok(())
    }

    fn get(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>> {
        let reading = hand.reading;
        let found = self.keyspace.get(hand.key_bytes(key))?;
        Ok(found.map(|value| reading.word(&value)))
    }

    fn scan(&self, hand: &mut Hand, from: u64, found: &mut Found) -> Fallible<bool> {
        let reading = hand.reading;
        for record in self.keyspace.range(hand.key_bytes(from)..).take(SCANNED) {
            let (key, value) = record.into_inner()?;
            found.push((spelled(&key), reading.word(&value)));
        }
        Ok(true)
    }
}
