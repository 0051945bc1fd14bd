//! The files of a demonstration: the pool, with its journal if it has one, and a directory with the
//! plan, the list of items, the threads' journals and the pool's working file. All are removed when
//! the [`Workspace`] is dropped, except a pool that is to be kept or that it did not create.

use super::facts::FileFacts;
use super::items::{self, Item};
use super::plan::Plan;
use super::random;
use crate::failure::Failure;
use crate::place;
use outlast::{Error, FixedRecord, JournalOptions, Map, MapOptions, OrderedMap, Pool, PoolOptions};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The name of the map in a demonstration's pool.
const MAP: &str = "files";

/// Upper bound on the bytes that the pool takes per record, apart from the key: facts, slot,
/// half-full tables.
const RECORD_BYTES: u64 = 400;
/// Bytes of an entry in a thread's journal.
const NOTE_BYTES: u64 = 64;
/// The limit of the pool's journal, in bytes. It is small, so that at some kills a checkpoint is
/// under way.
const LIMIT: u64 = 4 << 20;
/// Bytes that the pool may take in addition, for the first pages and for growth ahead of use.
const SPARE_BYTES: u64 = 32 << 20;

/// The files of a demonstration; see the module's documentation.
pub(super) struct Workspace {
    /// The directory with the plan, the list of items and the journals.
    pub(super) dir: PathBuf,
    /// The pool.
    pub(super) pool: PathBuf,
    keep_pool: bool,
    pool_is_ours: bool,
}

impl Workspace {
    /// Creates a new directory for a demonstration with this pool.
    pub(super) fn new(pool: &Path, keep_pool: bool) -> Result<Self, Failure> {
        let name = format!("outlast-demo-{}-{:08x}", std::process::id(), random::seed() as u32);
        let dir = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .map_err(|e| Failure::io(format!("creating {}", dir.display()), &e))?;
        Ok(Workspace { dir, pool: pool.to_owned(), keep_pool, pool_is_ours: false })
    }

    /// Checks that there is enough space, and writes what the workers need.
    pub(super) fn fill(&mut self, plan: &Plan, items: &[Item]) -> Result<(), Failure> {
        let key_bytes: u64 = items.iter().map(|item| item.key().len() as u64).sum();
        let pool_bytes = u64::from(plan.items) * RECORD_BYTES + 2 * key_bytes + SPARE_BYTES;
        let advice = "; name a file elsewhere with --pool";
        let (journal, working) = if plan.journal { (2 * LIMIT, pool_bytes) } else { (0, 0) };
        place::check_space(place::parent(&self.pool), pool_bytes + journal, advice)?;
        let notes = plan.len() * NOTE_BYTES + key_bytes + working;
        let advice = "; set TMPDIR to keep the workers' journals in another directory";
        place::check_space(&self.dir, notes + SPARE_BYTES, advice)?;
        let text = serde_json::to_string(plan).expect("a plan is plain data");
        std::fs::write(plan_path(&self.dir), text)
            .and_then(|()| items::write(&items_path(&self.dir), items))
            .map_err(|e| Failure::io(format!("writing to {}", self.dir.display()), &e))
    }

    /// Creates the pool with its map. Replaces what an earlier demonstration left, but leaves any
    /// other file alone.
    pub(super) fn create_pool(&mut self, plan: &Plan) -> Result<(), Failure> {
        if self.pool.symlink_metadata().is_ok() {
            refuse_others(&self.pool)?;
            std::fs::remove_file(&self.pool)
                .map_err(|e| Failure::io(format!("removing {}", self.pool.display()), &e))?;
            remove_journal(&self.pool);
        }
        // SAFETY: only this process and its workers write the file.
        let pool = unsafe { options(&self.dir, plan).create(&self.pool)? };
        self.pool_is_ours = true;
        map(&pool, plan)?;
        Ok(pool.close()?)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
        if self.pool_is_ours && !self.keep_pool {
            let _ = std::fs::remove_file(&self.pool);
            remove_journal(&self.pool);
        }
    }
}

/// The directory of a pool's journal.
fn journal_of(pool: &Path) -> PathBuf {
    let mut path = pool.as_os_str().to_owned();
    path.push(".journal");
    path.into()
}

/// Removes the journal of a demonstration's pool, and its directory if nothing else is in it.
fn remove_journal(pool: &Path) {
    let directory = journal_of(pool);
    for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(b"segment-") {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    let _ = std::fs::remove_dir(directory);
}

/// Fails unless the file at `path` is a demonstration's pool that is not in use.
fn refuse_others(path: &Path) -> Result<(), Failure> {
    let refuse = |why: &str| {
        let path = path.display();
        Err(Failure::Failed(format!("{path} exists already and {why}; nothing was changed")))
    };
    // SAFETY: the file may be anything. It is only read, and a user who names it leaves it alone
    // meanwhile.
    let pool = unsafe { PoolOptions::new().accept_possibly_torn(true).open_read_only(path) };
    let pool = match pool {
        Ok(pool) => pool,
        Err(Error::Locked { .. }) => return refuse("is in use"),
        Err(error) => return refuse(&format!("is not a demonstration's pool ({error})")),
    };
    let maps = pool.maps();
    let is_ours = |info: &outlast::MapInfo| {
        info.name == MAP && info.value_schema == <FileFacts as FixedRecord>::SCHEMA
    };
    match &maps[..] {
        [Ok(info)] if is_ours(info) => Ok(()),
        _ => refuse("is a pool, but not a demonstration's"),
    }
}

/// The options of a demonstration's pool. `work` is the directory of the plan.
pub(super) fn options(work: &Path, plan: &Plan) -> PoolOptions {
    let journal = JournalOptions::new().working_directory(work).limit(LIMIT);
    match plan.journal {
        true => PoolOptions::new().journal(journal),
        false => PoolOptions::new().survive(outlast::Failure::ProcessDeath),
    }
}

/// Opens the pool of a demonstration. `work` is the directory of the plan.
pub(super) fn open_pool(path: &Path, work: &Path, plan: &Plan) -> Result<Pool, Failure> {
    // SAFETY: only the parent and the workers of a demonstration write the file, and never two of
    // them at a time.
    Ok(unsafe { options(work, plan).open(path)? })
}

/// Opens the map of a demonstration.
pub(super) fn map(pool: &Pool, plan: &Plan) -> Result<Map<[u8], FileFacts>, Failure> {
    let scheme = plan.scheme.parse().map_err(Failure::Usage)?;
    Ok(pool.map_with(MAP, &MapOptions::new().scheme(scheme))?)
}

/// Opens the same map as an ordered one. Its scheme must keep a key order.
pub(super) fn ordered_map(pool: &Pool) -> Result<OrderedMap<[u8], FileFacts>, Failure> {
    Ok(pool.ordered_map(MAP)?)
}

/// The path of the list of items.
pub(super) fn items_path(dir: &Path) -> PathBuf {
    dir.join("items")
}

fn plan_path(dir: &Path) -> PathBuf {
    dir.join("plan.json")
}

/// Reads the plan.
pub(super) fn read_plan(dir: &Path) -> Result<Plan, Failure> {
    let path = plan_path(dir);
    let action = || format!("reading {}", path.display());
    let text = std::fs::read_to_string(&path).map_err(|e| Failure::io(action(), &e))?;
    serde_json::from_str(&text).map_err(|e| Failure::Failed(format!("{}: {e}", action())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan { items: 10, threads: 1, scheme: "dash-eh".into(), journal: false }
    }

    #[test]
    fn only_a_demonstrations_pool_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("some.pool");
        let create = || {
            let mut workspace = Workspace::new(&path, true).unwrap();
            workspace.create_pool(&plan())
        };
        create().unwrap();
        create().unwrap();

        std::fs::write(&path, "precious").unwrap();
        assert!(create().is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");

        std::fs::remove_file(&path).unwrap();
        // SAFETY: the file is this test's own.
        let pool = unsafe {
            PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(&path).unwrap()
        };
        pool.map::<str, u64>(MAP).unwrap();
        assert!(create().is_err(), "in use");
        pool.close().unwrap();
        assert!(create().is_err(), "another's");
        assert!(path.exists());
    }

    #[test]
    fn nothing_stays_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("some.pool");
        let mut workspace = Workspace::new(&path, false).unwrap();
        workspace.fill(&plan(), &[Item::Generated(1)]).unwrap();
        workspace.create_pool(&plan()).unwrap();
        assert_eq!(read_plan(&workspace.dir).unwrap(), plan());
        let work = workspace.dir.clone();
        assert!(work.exists() && path.exists());
        drop(workspace);
        assert!(!work.exists() && !path.exists());
    }
}
