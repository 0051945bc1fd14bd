//! The public handle of a pool.

use super::map_options::MapOptions;
use super::raw::RawMap;
use super::roots::MapInfo;
use super::store::{OpenMap, ReclaimState, Store};
use super::verify::Verification;
use super::worker::Worker;
use crate::error::{Damage, Error, Result};
use crate::index::RecordForm;
use crate::index::record::value_max;
use crate::pmem::{FlushMode, MediumKind, Real};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// An open pool: a file that holds many maps.
///
/// Handles are cheap to clone and can be shared between threads. The pool is closed by
/// [`close`](Pool::close), or when the last handle of it and of its maps is dropped.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Guarded>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("id", &format_args!("{:032x}", self.id())).finish()
    }
}

/// A store and its background thread; closed when it is dropped.
pub(crate) struct Guarded {
    store: Arc<Store<Real>>,
    worker: Option<Worker>,
}

impl Guarded {
    pub(super) fn new(store: Arc<Store<Real>>, worker: bool) -> Result<Arc<Self>> {
        let worker = worker.then(|| Worker::start(&store)).transpose()?;
        Ok(Arc::new(Guarded { store, worker }))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if !self.store.is_here() {
            // A forked child: the pool, its thread and its lock are the parent's.
            if let Some(worker) = self.worker.take() {
                worker.forget();
            }
            return;
        }
        self.worker = None;
        match self.store.close() {
            Ok(()) | Err(Error::NotOpen(_)) => {}
            Err(error) => tracing::warn!(%error, "closing the pool"),
        }
    }
}

/// What the pool's memory survives, and what an operation costs there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Durability {
    /// The medium; of a pool that is open read-only, the one that its last writer met.
    pub medium: MediumKind,
    /// What makes a store durable on it.
    pub flush: FlushMode,
    /// Whether what has returned survives the death of the process.
    pub survives_process_death: bool,
    /// Whether what has returned survives a power loss. If not, what was there at the
    /// last [`Pool::sync`] does, if nothing was changed since; [`Pool::snapshot`] is the
    /// restore point.
    pub survives_power_loss: bool,
    /// The disk may lack something of what was written, and nothing is made durable against a
    /// power loss before [`Pool::verify`] has found the pool sound: see [`Error::Suspect`].
    pub is_suspect: bool,
}

/// Figures of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Bytes of the file that belong to the pool.
    pub size: u64,
    /// Bytes that it may grow to.
    pub limit: u64,
    /// Bytes in pages that are free, as far as known.
    pub free_page_bytes: u64,
    /// Bytes that were unlinked, and that guards ([`Map::get_ref`]) keep from reuse.
    pub held_bytes: u64,
    /// Guards alive.
    pub guards: usize,
    /// How far the reclaim of space after a crash is.
    pub reclaim: ReclaimState,
    /// Blocks that could not be freed because of damage.
    pub unfreeable_blocks: u64,
    /// Bytes of the pool mapped by huge pages, where the system tells.
    pub huge_page_bytes: Option<u64>,
    /// Bytes of DRAM that this process keeps about the pool's blocks beside its heap (locks,
    /// bits and fingerprints of buckets): memory, not addresses, where the system tells.
    /// Whole pages, and so more than the sum of [`IndexStats::dram_bytes`] where those are
    /// large ones, and less where much was not touched yet.
    ///
    /// [`IndexStats::dram_bytes`]: crate::IndexStats::dram_bytes
    pub shadow_bytes: Option<u64>,
    /// What of them is in huge pages.
    pub shadow_huge_page_bytes: Option<u64>,
    /// log2 of the page size.
    pub page_bits: u32,
    /// What is wrong with one copy of the header, if the other one was used.
    pub damaged_header_copy: Option<Damage>,
}

impl Pool {
    pub(super) fn new(inner: Arc<Guarded>) -> Self {
        Pool { inner }
    }

    /// The store below, for tests.
    #[doc(hidden)]
    pub fn store(&self) -> &Arc<Store<Real>> {
        &self.inner.store
    }

    fn raw(&self, map: Arc<OpenMap>) -> RawMap {
        RawMap { map, pool: Arc::clone(&self.inner) }
    }

    /// The map `name` of this form and these schemas, created if there is none.
    pub(crate) fn map_of(
        &self,
        name: &str,
        form: RecordForm,
        schemas: [&str; 2],
        options: &MapOptions,
    ) -> Result<RawMap> {
        let map = self.inner.store.map(&options.request(name, form, schemas)?)?;
        match options.form {
            Some(form) if map.info().form != form => Err(Error::MapMismatch {
                name: map.info().name.clone(),
                what: "record form",
                stored: map.info().form.to_string(),
                asked: form.to_string(),
            }),
            _ => Ok(self.raw(map)),
        }
    }

    /// The map `name`, whatever its types.
    ///
    /// # Errors
    /// [`Error::NoSuchMap`], [`Error::DamagedRoot`].
    pub fn raw_map(&self, name: &str) -> Result<RawMap> {
        Ok(self.raw(self.inner.store.open_map(name)?))
    }

    /// As [`map_with`](Pool::map_with), with schemas that are not known before the
    /// program runs. Both `u8` to `u64` or `i8` to `i64` make an inline map.
    ///
    /// # Errors
    /// As [`map_with`](Pool::map_with).
    pub fn raw_map_with(
        &self,
        name: &str,
        key_schema: &str,
        value_schema: &str,
        options: &MapOptions,
    ) -> Result<RawMap> {
        let form = options.form.unwrap_or_else(|| RecordForm::of_schemas(key_schema, value_schema));
        self.map_of(name, form, [key_schema, value_schema], options)
    }

    /// Every map. A root that is damaged comes as the error that opening it gives.
    pub fn maps(&self) -> Vec<Result<MapInfo>> {
        self.inner.store.maps().into_iter().map(|(_, info)| info).collect()
    }

    /// Drops a map: it is gone when this returns, whole or not at all under a crash.
    /// Other handles of it get [`Error::MapDropped`]; its space is freed once they are
    /// gone.
    ///
    /// # Errors
    /// [`Error::NoSuchMap`], [`Error::ReadOnly`].
    pub fn drop_map(&self, name: &str) -> Result<()> {
        self.inner.store.drop_map(name)
    }

    /// What the pool's memory survives.
    pub fn durability(&self) -> Durability {
        let core = self.inner.store.core();
        let medium = core.options().medium;
        Durability {
            medium,
            flush: core.memory.seam().mode(),
            survives_process_death: medium != MediumKind::Bytes,
            survives_power_loss: medium.survives_power_loss() && !core.is_suspect(),
            is_suspect: core.is_suspect(),
        }
    }

    /// Makes everything that has returned durable against a power loss, on media that
    /// leave that to the kernel. Writers wait meanwhile; readers do not.
    ///
    /// # Errors
    /// [`Error::Io`] if the system could not write it all back; the pool is suspect from then
    /// on, and [`Error::Suspect`] is what further calls get until [`Pool::verify`] has found it
    /// sound. Nothing is lost as long as the system runs.
    pub fn sync(&self) -> Result<()> {
        self.inner.store.sync()
    }

    /// Copies the pool to `path`, as a closed one, durable when this returns; replaces
    /// what is there. Writers wait meanwhile, which is short where the file system can
    /// share blocks between files.
    ///
    /// # Errors
    /// [`Error::Locked`] if a pool at `path` is open, [`Error::Invalid`] if it is this one
    /// or no regular file; [`Error::Suspect`]; [`Error::Io`]. Nothing is changed at `path` then,
    /// but for the last step, the sync of its directory: if that fails, a power loss may bring
    /// back what was there before.
    pub fn snapshot(&self, path: impl AsRef<Path>) -> Result<()> {
        super::snapshot::snapshot(&self.inner.store, path.as_ref())
    }

    /// Checks every structure and every record, and accounts for every block. Writers
    /// wait meanwhile. Takes time linear in the pool's size. A pool that was clean before is
    /// clean afterwards. A suspect pool ([`Error::Suspect`]) that is found sound is not suspect
    /// any more: all of it is written back once more before it is read.
    ///
    /// # Errors
    /// Only where the check could not be made; what it finds is in its result.
    pub fn verify(&self) -> Result<Verification> {
        super::verify::verify(&self.inner.store)
    }

    /// Closes the pool: durable, and marked as closed cleanly. Calls through other
    /// handles fail with [`Error::NotOpen`] from now on.
    ///
    /// # Errors
    /// [`Error::Io`] if the system could not write it all back, [`Error::Suspect`] if it could
    /// not before. The pool is closed all the same, and opens as after a crash.
    pub fn close(self) -> Result<()> {
        if let Some(worker) = &self.inner.worker {
            worker.stop();
        }
        self.inner.store.close()
    }

    /// One step of background work, for pools opened without a thread for it. Returns
    /// whether there may be more to do.
    ///
    /// # Errors
    /// As any operation; the work goes on with the next call.
    pub fn step(&self) -> Result<bool> {
        self.inner.store.step()
    }

    /// Bytes of the longest value that a map of this pool takes, whatever its key:
    /// [`MAX_VALUE_BYTES`](crate::MAX_VALUE_BYTES), or less where pages are small
    /// ([`PoolOptions::page_bits`](crate::PoolOptions::page_bits)).
    pub fn max_value_bytes(&self) -> usize {
        value_max(self.inner.store.core().geometry)
    }

    /// The pool's id: random, given at creation.
    pub fn id(&self) -> u128 {
        self.inner.store.core().header().id()
    }

    /// Figures.
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
        }
    }
}
