//! A map that is open.

use super::raw::Form;
use super::roots::MapInfo;
use crate::error::{Error, Result};
use crate::index::{Bytes, Cursor, Index, Inline, Visitor};
use crate::pmem::Alive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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

    pub(super) fn has_work(&self) -> bool {
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

/// An open map. A process has at most one per root.
pub struct OpenMap {
    pub(super) info: MapInfo,
    pub(super) slot: usize,
    pub(super) dropped: AtomicBool,
    pub(super) alive: Arc<Alive>,
    pub(super) index: AnyIndex,
}

impl OpenMap {
    /// The map's description in its root.
    pub fn info(&self) -> &MapInfo {
        &self.info
    }

    /// Returns the index, if the map and the pool are still open.
    #[inline(always)]
    pub(crate) fn form(&self) -> Result<Form<'_>> {
        if self.dropped.load(Ordering::Acquire) {
            return Err(Error::MapDropped);
        }
        if !self.alive.is_here() {
            return Err(Error::NotOpen("this process is a fork of the one that opened it"));
        }
        Ok(match &self.index {
            AnyIndex::Inline(index) => Form::Inline(&**index),
            AnyIndex::Bytes(index) => Form::Bytes(&**index),
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
