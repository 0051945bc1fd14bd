//! Options for creating maps.

use super::roots::MapInfo;
use super::store::MapRequest;
use crate::error::Result;
use crate::index::{Config, RecordForm, Scheme, Settings};

/// Options for creating a map. An existing map keeps the options that it was created with. Options
/// given when it is opened are ignored, except two: a [`scheme`](MapOptions::scheme) or a
/// [`form`](MapOptions::form) must be the map's own. Otherwise opening fails with
/// [`Error::MapMismatch`](crate::Error::MapMismatch).
///
/// A value out of range, or an option that the scheme given here does not have (Dash-EH, if none is
/// given), fails with [`Error::Invalid`](crate::Error::Invalid), even if the map exists.
#[derive(Debug, Clone, Default)]
pub struct MapOptions {
    pub(crate) scheme: Option<Scheme>,
    pub(crate) settings: Settings,
    pub(crate) form: Option<RecordForm>,
}

impl MapOptions {
    /// Returns the defaults: Dash-EH with two stash buckets per segment (for an ordered map, PhaST
    /// with its paper's parameters), and the record form that suits the types.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the scheme.
    #[must_use]
    pub fn scheme(mut self, scheme: Scheme) -> Self {
        self.scheme = Some(scheme);
        self
    }

    /// Dash-EH and Dash-LH: sets the stash buckets per segment, 2 (the default) or 4. With four, segments fill
    /// further before they split, but misses in full segments are slower.
    #[must_use]
    pub fn stash_buckets(self, stash_buckets: u32) -> Self {
        self.set("stash_buckets", stash_buckets)
    }

    /// Sets the log2 of the number of buckets in a segment of Dash, or in the first level of
    /// clevel. At least 1, at most 6. Default: 6. Small values are for tests: a few inserts then
    /// cause a split or an expansion.
    #[must_use]
    pub fn bucket_bits(self, bucket_bits: u32) -> Self {
        self.set("bucket_bits", bucket_bits)
    }

    /// PhaST: sets the records per leaf, a multiple of 4, at most 56. Default: 56. Small leaves
    /// are for tests: a few inserts then cause a split.
    #[must_use]
    pub fn leaf_slots(self, leaf_slots: u32) -> Self {
        self.set("leaf_slots", leaf_slots)
    }

    /// PhaST: sets the leaves per inner node, from 4 to 1024. Default: 128.
    #[must_use]
    pub fn node_leaves(self, node_leaves: u32) -> Self {
        self.set("node_leaves", node_leaves)
    }

    /// PhaST: sets the greatest number of partitions, from 1 to 1024. Partitions divide the keys
    /// that are present, not the key space. More of them make opening with many threads faster.
    /// Default: 128.
    #[must_use]
    pub fn partitions(self, partitions: u32) -> Self {
        self.set("partitions", partitions)
    }

    /// Group hashing: sets the cells of a group, a power of two from 16 to 1024. Larger groups fill
    /// further before they split, but inserts, misses and splits take longer. Default: 256.
    #[must_use]
    pub fn group_size(self, group_size: u32) -> Self {
        self.set("group_size", group_size)
    }

    /// Group hashing and Dash-LH: sets the log2 of the number of segments that a new map has.
    /// EA-PHT: sets the log2 of the number of buckets in a new map's table.
    ///
    /// - Group hashing: at least 1, at most 20. Default: 1. A segment is two groups: with groups of
    ///   256 cells, 8 KiB and about 400 records.
    /// - Dash-LH: at least 1, at most 10. Default: 6, which is 1.1 MB with segments of the usual
    ///   size. The map allocates its segments in arrays, each in one block, and the first arrays
    ///   have this many segments. In a pool without space for such a block, use a smaller value:
    ///   otherwise creating the map fails with [`Error::PoolFull`](crate::Error::PoolFull), or with
    ///   [`Error::Invalid`](crate::Error::Invalid) where the pool's pages are too small for it.
    /// - EA-PHT: at least 1, at most 24. Default: 4. A bucket is 256 bytes and about ten records.
    #[must_use]
    pub fn initial_depth(self, initial_depth: u32) -> Self {
        self.set("initial_depth", initial_depth)
    }

    /// EA-PHT: sets the log2 of the number of buckets in a block of the table, from 1 to 16 (the
    /// default, 18 MB). Small values are for tests.
    #[must_use]
    pub fn chunk_bits(self, chunk_bits: u32) -> Self {
        self.set("chunk_bits", chunk_bits)
    }

    /// EA-PHT: sets how many threads may help to resize the table, from 1 to 64. Default: 1, and 32
    /// in EA-PHT-HPR.
    #[must_use]
    pub fn helpers(self, helpers: u32) -> Self {
        self.set("helpers", helpers)
    }

    /// Sets the record form. By default, keys and values that both fit 8 bytes are stored inline,
    /// others in record blocks.
    #[must_use]
    pub fn form(mut self, form: RecordForm) -> Self {
        self.form = Some(form);
        self
    }

    /// Builds the store's request for a map of this name, form and schemas.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a value out of range, and for an option that
    /// the scheme does not have.
    #[doc(hidden)]
    pub fn request(
        &self,
        name: &str,
        form: RecordForm,
        [key_schema, value_schema]: [&str; 2],
    ) -> Result<MapRequest> {
        let scheme = self.scheme.unwrap_or(Scheme::DashEh);
        let info = MapInfo {
            name: name.into(),
            form,
            key_schema: key_schema.into(),
            value_schema: value_schema.into(),
            config: Config::of_settings(scheme, &self.settings, key_schema)?,
        };
        Ok(MapRequest { info, scheme_matters: self.scheme.is_some() })
    }

    /// For tests: uses the smallest possible structures wherever nothing else is set.
    #[doc(hidden)]
    #[must_use]
    pub fn small(mut self) -> Self {
        self.settings.make_small();
        self
    }

    fn set(mut self, name: &'static str, value: u32) -> Self {
        self.settings.set(name, value);
        self
    }
}
