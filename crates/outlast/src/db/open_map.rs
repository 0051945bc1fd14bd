//! A map that is open.

use super::roots::MapInfo;
use crate::error::{Error, NotOpen, Result};
use crate::index::{
    Bytes, Cursor, Expiring, ExpiringIndex, Index, Inline, Record, RecordForm, Visitor,
};
#[cfg(all(feature = "traced", not(test)))]
use crate::pmem::Traced;
use crate::pmem::{Alive, Real, Seam};
use crate::pool::core::Core;
use crate::pool::layout::ROOT_SCHEME_WORDS;
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// An index of either record form.
pub enum AnyIndex {
    /// 8-byte keys and values.
    Inline(Box<dyn Index<Inline>>),
    /// Byte strings.
    Bytes(Box<dyn Index<Bytes>>),
}

macro_rules! each_form {
    ($any:expr, $index:ident => $body:expr) => {
        match $any {
            AnyIndex::Inline($index) => $body,
            AnyIndex::Bytes($index) => $body,
        }
    };
}

impl AnyIndex {
    pub(super) fn trace(&self, cursor: &mut Cursor, visit: &mut Visitor<'_>) -> Result<()> {
        each_form!(self, index => index.trace(cursor, visit))
    }

    /// Returns whether there is background work; see [`Index::has_work`].
    pub fn has_work(&self) -> bool {
        each_form!(self, index => index.has_work())
    }

    pub(super) fn step(&self) -> Result<bool> {
        each_form!(self, index => index.step())
    }

    pub(super) fn use_huge_pages(&self) {
        each_form!(self, index => index.use_huge_pages());
    }

    /// Verifies the index; see [`Index::verify`].
    pub fn verify(&self, visit: &mut Visitor<'_>) -> Result<crate::index::Verified> {
        each_form!(self, index => index.verify(visit))
    }

    /// Returns the index's statistics; see [`Index::stats`].
    pub fn stats(&self) -> Result<crate::index::IndexStats> {
        each_form!(self, index => index.stats())
    }
}

/// The index of a map, by its record form.
pub(crate) enum Form<'m> {
    Inline(&'m dyn Index<Inline>),
    Bytes(&'m dyn Index<Bytes>),
}

/// A seam that maps can be opened through.
///
/// The schemes are generic over the seam, and their code is large. Because these functions are not
/// generic, the schemes' code is compiled in this crate, once for each seam, and not again in each
/// crate that opens a map.
pub trait MapSeam: Seam {
    /// Opens the index of the map in this slot of the roots.
    ///
    /// # Errors
    /// Those of opening the map.
    fn open(core: &Arc<Core<Self>>, slot: usize, info: &MapInfo) -> Result<AnyIndex>;

    /// Makes the first blocks of a new map. Returns the scheme's words of its root.
    ///
    /// # Errors
    /// Those of creating the map.
    fn create(core: &Arc<Core<Self>>, info: &MapInfo) -> Result<[u64; ROOT_SCHEME_WORDS]>;
}

macro_rules! map_seams {
    ($($(#[$condition:meta])? $seam:ty;)*) => {$(
        $(#[$condition])?
        impl MapSeam for $seam {
            fn open(core: &Arc<Core<Self>>, slot: usize, info: &MapInfo) -> Result<AnyIndex> {
                let config = info.config;
                Ok(match info.form {
                    RecordForm::Inline => {
                        AnyIndex::Inline(config.open(core, slot, info.schemas())?)
                    }
                    RecordForm::Bytes => {
                        let index = config.open(core, slot, info.stored_schemas())?;
                        AnyIndex::Bytes(match info.expires {
                            true => Box::new(Expiring::new(Arc::clone(core), slot, index)),
                            false => index,
                        })
                    }
                })
            }

            fn create(core: &Arc<Core<Self>>, info: &MapInfo) -> Result<[u64; ROOT_SCHEME_WORDS]> {
                match info.form {
                    RecordForm::Inline => info.config.create::<Self, Inline>(core),
                    RecordForm::Bytes => info.config.create::<Self, Bytes>(core),
                }
            }
        }
    )*};
}

map_seams! {
    Real;
    // The unit tests do without: it would double what they compile.
    #[cfg(all(feature = "traced", not(test)))]
    Traced;
}

/// An open map. A process has at most one per root.
pub struct OpenMap {
    pub(super) info: MapInfo,
    pub(super) slot: usize,
    pub(super) dropped: AtomicBool,
    pub(super) alive: Arc<Alive>,
    pub(super) index: AnyIndex,
    /// The state of the cache that is kept in this map, if it was opened as one. This module need not know
    /// its type.
    pub(super) cache: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl OpenMap {
    /// The map's description in its root.
    pub fn info(&self) -> &MapInfo {
        &self.info
    }

    /// Returns the index, unless the map was dropped or this process is a fork of the one that
    /// opened the pool. The operations themselves check whether the pool is closed.
    #[inline(always)]
    pub(crate) fn form(&self) -> Result<Form<'_>> {
        if self.dropped.load(Ordering::Acquire) {
            return Err(Error::MapDropped);
        }
        if !self.alive.is_here() {
            return Err(Error::NotOpen(NotOpen::Forked));
        }
        Ok(match &self.index {
            AnyIndex::Inline(index) => Form::Inline(&**index),
            AnyIndex::Bytes(index) => Form::Bytes(&**index),
        })
    }

    /// Returns the index of a map of byte strings.
    pub(super) fn bytes(&self) -> Result<&dyn Index<Bytes>> {
        match self.form()? {
            Form::Bytes(index) => Ok(index),
            Form::Inline(_) => Err(Error::Invalid { what: "map", why: "it has words".into() }),
        }
    }

    /// Returns the interface for records that expire, or an error if those of this map do not.
    pub(crate) fn expiring(&self) -> Result<&dyn ExpiringIndex> {
        let expiring = match self.form()? {
            Form::Inline(_) => None,
            Form::Bytes(index) => index.expiring(),
        };
        expiring.ok_or_else(|| {
            let why = format!("the map {:?} was made without expiry", self.info.name);
            Error::Invalid { what: "expiry", why }
        })
    }

    /// Returns the index of the values as they are stored: of a map whose records expire, with their times.
    pub(super) fn stored_form(&self) -> Result<Form<'_>> {
        Ok(match self.form()? {
            Form::Bytes(index) => {
                Form::Bytes(index.expiring().map_or(index, ExpiringIndex::stored))
            }
            form @ Form::Inline(_) => form,
        })
    }

    /// Returns the index, even if the map was dropped.
    pub fn index(&self) -> &AnyIndex {
        &self.index
    }
}

/// A request to open or create a map.
#[derive(Debug, Clone)]
pub struct MapRequest {
    /// What the map must be, or is created as. The configuration applies to a new map only.
    pub info: MapInfo,
    /// Whether the caller named a scheme, which then must match.
    pub scheme_matters: bool,
}

/// Fails if the schemas of a map do not allow the key and the new value.
pub(super) fn check_types<R: Record>(
    info: &MapInfo,
    key: R::Key<'_>,
    value: Option<R::Value<'_>>,
) -> Result<()> {
    let allowed = info.schemas::<R>();
    let refuse = |what, schema: &str| {
        Err(Error::Invalid { what, why: format!("it is not one of type {schema}") })
    };
    // A removal may name any key, so that a damaged record can be removed.
    if let Some(value) = value {
        if !allowed.allows_key(key) {
            return refuse("key", &info.key_schema);
        }
        if !allowed.allows_value(value) {
            return refuse("value", &info.value_schema);
        }
    }
    Ok(())
}

pub(super) fn word(bytes: &[u8], what: &'static str) -> Result<u64> {
    let why = || format!("{} bytes, this map's take 8", bytes.len());
    let bytes = bytes.try_into().map_err(|_| Error::Invalid { what, why: why() })?;
    Ok(u64::from_le_bytes(bytes))
}

pub(super) fn bytes_of(word: u64) -> Vec<u8> {
    word.to_le_bytes().to_vec()
}
