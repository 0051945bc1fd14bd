//! The public handle of a pool.

use super::batch::Batch;
use super::map_options::MapOptions;
use super::open_map::{MapRequest, OpenMap};
use super::opened::Guarded;
use super::raw::RawMap;
use super::roots::MapInfo;
use super::stats::{Durability, PoolStats};
use super::store::Store;
use super::transaction::{self, Transaction};
use super::verify::Verification;
use crate::error::{Error, Result};
use crate::index::RecordForm;
use crate::index::record::value_max;
use crate::pmem::{MediumKind, Real};
use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// An open pool: one file that holds many maps.
///
/// Handles are cheap to clone and can be shared between threads. The pool closes on
/// [`close`](Pool::close), or when the last handle to it and its maps is dropped.
///
/// # Complexity
///
/// Opening a map reads the roots of all maps in the pool, to find the name. Schemes that read a
/// whole map when it is opened ([`linear_recovery`](crate::Scheme::has_linear_recovery)) take
/// time linear in its size. Creating a map makes its first blocks; dropping one finds all of its
/// blocks. The [crate's documentation](crate#the-contract) says how long opening a pool takes after
/// a crash. [`sync`](Pool::sync) and [`close`](Pool::close) write back what was modified;
/// [`verify`](Pool::verify) and [`snapshot`](Pool::snapshot) read all of the pool.
///
/// # Durability
///
/// [`durability`](Pool::durability) tells which changes survive which failures. Once a change of a
/// map returns, it survives the death of the process, unless the pool is [in memory
/// only](crate::PoolOptions::anonymous). On an ordinary file without a journal, it survives a power
/// loss once the pool is synced, until the next modification. With a journal,
/// [`wait_durable`](Pool::wait_durable) waits until the change survives a power loss.
///
/// # Errors
///
/// After [`close`](Pool::close), and in a fork of the process, operations fail with
/// [`Error::NotOpen`]. [`Error::is_full`] tells whether an error means that there was no space. No
/// error loses data.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Guarded>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("id", &format_args!("{:032x}", self.id())).finish()
    }
}

impl Pool {
    pub(super) fn new(inner: Arc<Guarded>) -> Self {
        Pool { inner }
    }

    pub(super) fn guarded(&self) -> &Arc<Guarded> {
        &self.inner
    }

    /// The underlying store, for tests.
    #[doc(hidden)]
    pub fn store(&self) -> &Arc<Store<Real>> {
        &self.inner.store
    }

    /// Begins a batch: changes of several records, of which a crash leaves all or none.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let names = pool.map::<u64, str>("names")?;
    /// let numbers = pool.map::<str, u64>("numbers")?;
    /// let mut batch = pool.batch();
    /// batch.put(&names, &1, "Ada")?.put(&numbers, "Ada", &1)?;
    /// batch.commit()?;
    /// assert_eq!(names.get(&1)?.as_deref(), Some("Ada"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn batch(&self) -> Batch {
        Batch::new(Arc::clone(&self.inner))
    }

    /// Runs a transaction: `run` reads and changes records of any maps of the pool, and then all of its
    /// changes are made as one, or none. If another thread has meanwhile changed a record that `run`
    /// has read, or removed or inserted it, `run` runs again. So what it returns, and what it has
    /// changed, is as if nothing else had happened during the call.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let accounts = pool.map::<str, u64>("accounts")?;
    /// let transfers = pool.ordered_map::<u64, str>("transfers")?;
    /// accounts.put("ada", &100)?;
    ///
    /// let pay = |number: u64, from: &str, to: &str, amount: u64| {
    ///     pool.transaction(|t| {
    ///         let has = t.get(&accounts, from)?.unwrap_or(0);
    ///         if has < amount {
    ///             return Ok(false);
    ///         }
    ///         t.put(&accounts, from, &(has - amount))?;
    ///         t.add(&accounts, to, amount)?;
    ///         t.put(&transfers, &number, &format!("{amount} from {from} to {to}"))?;
    ///         Ok::<_, outlast::Error>(true)
    ///     })
    /// };
    /// assert!(pay(1, "ada", "bob", 30)?);
    /// assert!(!pay(2, "bob", "ada", 31)?);
    /// assert_eq!(accounts.get("bob")?, Some(30));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A transaction that only reads sees the records as they were together at one moment.
    ///
    /// While it runs, `run` can see records as of different moments. What it makes of them is thrown
    /// away, so it must not have effects elsewhere, and must not loop until they match. It runs
    /// under no lock. What it does with the maps directly is not part of the transaction; if it changes
    /// a record that way which it has read through `t`, the transaction never ends.
    ///
    /// # Complexity
    ///
    /// That of a [`Batch`] of the changes which requires the records that were read, also if there are
    /// no changes: other threads change nothing while the records are compared. A transaction of many
    /// reads can be overtaken again and again by threads that change them all the time.
    ///
    /// # Errors
    /// Those of `run`, after which nothing is changed; those of [`Batch::commit`].
    pub fn transaction<T, E: From<Error>>(
        &self,
        run: impl FnMut(&mut Transaction) -> Result<T, E>,
    ) -> Result<T, E> {
        transaction::run(&self.inner, run)
    }

    pub(super) fn raw(&self, map: Arc<OpenMap>) -> RawMap {
        RawMap { map, pool: Arc::clone(&self.inner) }
    }

    /// Opens the map `name` with this form and these schemas, or creates it if there is none.
    pub(crate) fn map_of(
        &self,
        name: &str,
        form: RecordForm,
        schemas: [&str; 2],
        options: &MapOptions,
    ) -> Result<RawMap> {
        self.opened(self.inner.store.map(&options.request(name, form, schemas)?)?, options)
    }

    /// Returns the handle of an open map, or an error if the options ask for another record form.
    pub(super) fn opened(&self, map: Arc<OpenMap>, options: &MapOptions) -> Result<RawMap> {
        match options.form {
            Some(form) if map.info().form != form => Err(Error::MapMismatch {
                name: map.info().name.clone(),
                what: "record form",
                stored: map.info().form.to_string(),
                asked: form.to_string(),
            }),
            _ if options.expiry && !map.info().expires => Err(Error::MapMismatch {
                name: map.info().name.clone(),
                what: "expiry",
                stored: "none".into(),
                asked: "expiry".into(),
            }),
            _ => Ok(self.raw(map)),
        }
    }

    /// Lists every map. A damaged root appears as the error that opening the map would return.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// pool.map::<str, u64>("ages")?;
    /// pool.ordered_map::<u64, str>("log")?;
    /// for info in pool.maps() {
    ///     let info = info?;
    ///     println!("{}: {} to {}, {}", info.name, info.key_schema, info.value_schema, info.scheme());
    /// }
    /// assert_eq!(pool.maps().len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn maps(&self) -> Vec<Result<MapInfo>> {
        self.inner.store.maps().into_iter().map(|(_, info)| info).collect()
    }

    /// Drops a map. Once this returns, the map is gone; a crash before that leaves it either intact
    /// or gone. Other handles to it fail with [`Error::MapDropped`], and its space is freed once
    /// they are gone.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// pool.drop_map("ages")?;
    /// assert!(pool.maps().is_empty());
    /// assert!(matches!(ages.get("Ada"), Err(outlast::Error::MapDropped)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchMap`], [`Error::ReadOnly`].
    pub fn drop_map(&self, name: &str) -> Result<()> {
        self.inner.store.drop_map(name)
    }

    /// Returns which failures the pool's memory survives.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("index.pool");
    /// use outlast::{JournalOptions, PoolOptions};
    ///
    /// let options = PoolOptions::new().journal(JournalOptions::new());
    /// // SAFETY: no one else writes this file while the pool is open.
    /// let pool = unsafe { options.create(&path)? };
    /// let durability = pool.durability();
    /// assert!(durability.survives_process_death);
    /// println!("a power loss loses {:?} at most", durability.interval);
    /// # Ok(())
    /// # }
    /// ```
    pub fn durability(&self) -> Durability {
        let core = self.inner.store.core();
        let medium = core.options().medium;
        Durability {
            medium,
            flush: core.memory.seam().mode(),
            interval: core.journal().map(|journal| journal.settings().interval),
            survives_process_death: medium != MediumKind::Bytes,
            survives_power_loss: medium.survives_power_loss() && !core.is_suspect(),
            confirmed_survives_power_loss: !core.is_suspect()
                && core.backing().keeps_after_power_loss(),
            is_suspect: core.is_suspect(),
        }
    }

    /// Makes the effects of all calls that have returned durable against a power loss, on media
    /// where returning does not imply that. Writers wait meanwhile; readers do not.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("index.pool");
    /// # // SAFETY: no one else writes this file while the pool is open.
    /// # let pool = unsafe { outlast::PoolOptions::new().create(&path)? };
    /// let ages = pool.map::<str, u64>("ages")?;
    /// ages.insert("Ada", &36)?;
    /// pool.sync()?; // A power loss between here and the next change loses nothing.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`] if the system could not write everything back. Without a journal, the pool is
    /// suspect from then on: `sync` and [`snapshot`](Pool::snapshot) fail with [`Error::Suspect`]
    /// until [`Pool::verify`] has found the pool sound. Operations on maps go on, and nothing is lost
    /// as long as the system runs. [`Error::FileGone`].
    pub fn sync(&self) -> Result<()> {
        self.inner.store.sync()
    }

    /// Copies the pool to `path` as a cleanly closed pool, and replaces any file there. Once this
    /// returns, the copy is durable. Writers wait meanwhile; that wait is short where the file
    /// system can share blocks between files.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("index.pool");
    /// use outlast::PoolOptions;
    ///
    /// let pool = PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// ages.insert("Ada", &36)?;
    /// pool.snapshot(&path)?;
    /// ages.insert("Bob", &40)?;
    ///
    /// // SAFETY: no one else writes this file while the pool is open.
    /// let copy = unsafe { PoolOptions::new().open(&path)? };
    /// assert_eq!(copy.map::<str, u64>("ages")?.len()?, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Locked`] if the pool at `path` is open; [`Error::Invalid`] if `path` is this pool
    /// or not a regular file; [`Error::Suspect`]; [`Error::Io`]. On an error, nothing changes at
    /// `path`, with one exception: if the last step, the sync of the directory, fails, a power loss
    /// may bring back the previous file.
    pub fn snapshot(&self, path: impl AsRef<Path>) -> Result<()> {
        self.snapshot_with(path.as_ref(), |_| Ok(()))
    }

    /// Like [`snapshot`](Self::snapshot). `then` gets the file of the complete copy before it gets its
    /// name.
    pub(super) fn snapshot_with(
        &self,
        path: &Path,
        then: impl FnOnce(&File) -> Result<()>,
    ) -> Result<()> {
        super::snapshot::snapshot(&self.inner.store, self.inner.locked.as_ref(), path, then)
    }

    /// Reports all damage in the pool. A damaged pool is no error: this returns `Ok`, and the
    /// damage is in the report. `pool.verify()?.ensure_sound()?` fails if there is any.
    ///
    /// Checks every structure and every record, and accounts for every block. Writers wait
    /// meanwhile. Takes time linear in the pool's size.
    ///
    /// A clean pool stays clean. A suspect pool ([`Error::Suspect`]) is written back in full before
    /// it is read, and is no longer suspect if it is found sound.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let pool = outlast::PoolOptions::new().anonymous()?;
    /// let found = pool.verify()?;
    /// found.ensure_sound()?;
    /// println!("{} records, all sound", found.records());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Only if the check itself could not be made.
    pub fn verify(&self) -> Result<Verification> {
        super::verify::verify(&self.inner.store)
    }

    /// Closes the pool: makes it durable and marks it as closed cleanly. From then on, calls
    /// through other handles fail with [`Error::NotOpen`].
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// ages.insert("Ada", &36)?;
    /// pool.close()?;
    /// assert!(matches!(ages.get("Ada"), Err(outlast::Error::NotOpen(_))));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`] if the system could not write everything back, [`Error::Suspect`] if an
    /// earlier attempt failed or the pool may be torn, and it has not been verified since,
    /// [`Error::FileGone`]. The pool is closed all the same, and opens as after a crash.
    pub fn close(self) -> Result<()> {
        if let Some(worker) = &self.inner.worker {
            worker.stop();
        }
        self.inner.close()
    }

    /// Does one step of background work, for pools opened without a background thread. Returns
    /// whether there may be more to do.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().background(false).anonymous()?;
    /// while pool.step()? {}
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Same as for any operation. The next call continues the work.
    pub fn step(&self) -> Result<bool> {
        self.inner.store.step()
    }

    /// Returns the length, in bytes, of the longest value that every map of this pool accepts with
    /// any key. This is [`MAX_VALUE_BYTES`](crate::MAX_VALUE_BYTES), or less if pages are small
    /// ([`PoolOptions::page_bits`](crate::PoolOptions::page_bits)).
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// assert_eq!(pool.max_value_bytes(), outlast::MAX_VALUE_BYTES);
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_value_bytes(&self) -> usize {
        value_max(self.inner.store.core().geometry)
    }

    /// The pool's id: a random number, chosen at creation.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let other = outlast::PoolOptions::new().anonymous()?;
    /// assert_ne!(pool.id(), other.id());
    /// # Ok(())
    /// # }
    /// ```
    pub fn id(&self) -> u128 {
        self.inner.store.core().header().id()
    }

    /// Returns the pool's statistics.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let stats = pool.stats();
    /// println!("{} of at most {} bytes", stats.size, stats.limit);
    /// assert!(stats.free_page_bytes < stats.size);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stats(&self) -> PoolStats {
        let store = &self.inner.store;
        let core = store.core();
        let header = core.header();
        let alloc = core.alloc().stats(core);
        let max = core.options().max_size;
        let reserved = core.backing().reserved();
        let shadow = core.backing().shadow_resident();
        PoolStats {
            size: core.memory.len(),
            max_size: max,
            limit: if max == 0 { reserved } else { max.min(reserved) },
            free_page_bytes: core.geometry.offset_of(alloc.free_pages)
                + core.memory.len().saturating_sub(core.geometry.offset_of(alloc.frontier_pages)),
            held_bytes: core.epochs().limbo_bytes(),
            guards: core.epochs().pins(),
            reclaim: store.reclaim_state(),
            unfreeable_blocks: core.unfreeable(),
            huge_page_bytes: core.backing().mapping().and_then(|m| m.huge_pages()),
            shadow_bytes: shadow.map(|resident| resident.bytes),
            shadow_huge_page_bytes: shadow.map(|resident| resident.huge),
            page_bits: core.geometry.page_bits(),
            damaged_header_copy: header.copy_damaged,
            journal: core.journal().map(|journal| journal.stats()),
        }
    }
}

/// Maps whose types are not known at compile time.
impl Pool {
    /// Opens the map `name`, whatever its types.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// pool.map::<str, u64>("ages")?.insert("Ada", &36)?;
    /// let ages = pool.raw_map("ages")?;
    /// assert_eq!(ages.info().value_schema, "u64");
    /// assert_eq!(ages.get(b"Ada")?, Some(36u64.to_le_bytes().to_vec()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchMap`], [`Error::DamagedRoot`].
    pub fn raw_map(&self, name: &str) -> Result<RawMap> {
        Ok(self.raw(self.store().open_map(name)?))
    }

    /// Like [`map_with`](Pool::map_with), for schemas known only at run time. Unless the options
    /// set a [form](MapOptions::form), the map is inline if both schemas are `u8` to `u64`, `i8` to
    /// `i64`, `bool`, `f32` or `f64`. A program that opens a map with tuple, array or struct types
    /// of up to 8 bytes may use another form, so set that form here.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.raw_map_with("ages", "str", "u64", &outlast::MapOptions::new())?;
    /// ages.put(b"Ada", &36u64.to_le_bytes())?;
    /// assert_eq!(pool.map::<str, u64>("ages")?.get("Ada")?, Some(36));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Same as for [`map_with`](Pool::map_with).
    pub fn raw_map_with(
        &self,
        name: &str,
        key_schema: &str,
        value_schema: &str,
        options: &MapOptions,
    ) -> Result<RawMap> {
        let form = options.form_of(RecordForm::of_schemas(key_schema, value_schema));
        self.map_of(name, form, [key_schema, value_schema], options)
    }

    /// Opens the map that `info` describes, or creates it with the same name, types, record form,
    /// scheme and settings. With this, a program can copy a map from one pool to another.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// pool.map::<str, u64>("ages")?.insert("Ada", &36)?;
    /// let other = outlast::PoolOptions::new().anonymous()?;
    /// for info in pool.maps() {
    ///     let info = info?;
    ///     let copy = other.raw_map_like(&info)?;
    ///     for record in pool.raw_map(&info.name)?.iter() {
    ///         let (key, value) = record?;
    ///         copy.put(&key, &value)?;
    ///     }
    /// }
    /// assert_eq!(other.map::<str, u64>("ages")?.get("Ada")?, Some(36));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Same as for [`map_with`](Pool::map_with).
    pub fn raw_map_like(&self, info: &MapInfo) -> Result<RawMap> {
        let options = MapOptions::new().scheme(info.scheme()).form(info.form).expiry(info.expires);
        let request = MapRequest { info: info.clone(), scheme_matters: true };
        self.opened(self.store().map(&request)?, &options)
    }

    /// Opens every map, in the order of [`maps`](Pool::maps). A damaged root appears as the error that
    /// opening the map would return. In a damaged or torn pool, two maps can have the same name; only
    /// this function opens the second one.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// pool.map::<str, u64>("ages")?.insert("Ada", &36)?;
    /// for opened in pool.raw_maps() {
    ///     let (info, map) = opened?;
    ///     println!("{} has {} records", info.name, map?.len()?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn raw_maps(&self) -> Vec<Result<(MapInfo, Result<RawMap>)>> {
        let open = |slot, info: &MapInfo| match self.store().open(slot, info.clone(), false)? {
            Some(map) => Ok(self.raw(map)),
            None => Err(Error::NoSuchMap { name: info.name.clone() }),
        };
        let maps = self.store().maps().into_iter();
        maps.map(|(slot, info)| info.map(|info| (info.clone(), open(slot, &info)))).collect()
    }
}
