//! How a map is created.

use super::roots::MapInfo;
use super::store::MapRequest;
use crate::error::Result;
use crate::index::{Config, RecordForm, Scheme, Settings};

/// How a map is created. A map that exists keeps what it was created with; only a scheme or
/// record form that is given must match.
///
/// An option of another scheme than the map's is refused with
/// [`Error::Invalid`](crate::Error::Invalid).
#[derive(Debug, Clone, Default)]
pub struct MapOptions {
    pub(crate) scheme: Option<Scheme>,
    pub(crate) settings: Settings,
    pub(crate) form: Option<RecordForm>,
}

impl MapOptions {
    /// The defaults: Dash-EH with two stash buckets to a segment (an ordered map: PhaST as
    /// its paper has it), the record form that the types ask for.
    pub fn new() -> Self {
        Self::default()
    }

    /// Which scheme.
    #[must_use]
    pub fn scheme(mut self, scheme: Scheme) -> Self {
        self.scheme = Some(scheme);
        self
    }

    /// Dash: stash buckets to a segment, 2 (the default) or 4. Four fill segments more
    /// before they split, at the price of slower misses in full ones.
    #[must_use]
    pub fn stash_buckets(self, stash_buckets: u32) -> Self {
        self.set("stash_buckets", stash_buckets)
    }

    /// Dash: log2 of the buckets to a segment; clevel: of the buckets of the first level. From 1
    /// to 6 (the default). Small ones are for tests: a few inserts split or expand them.
    #[must_use]
    pub fn bucket_bits(self, bucket_bits: u32) -> Self {
        self.set("bucket_bits", bucket_bits)
    }

    /// PhaST: pairs of a leaf, a multiple of 4 up to 56 (the default). Small leaves are for
    /// tests: a few inserts split them.
    #[must_use]
    pub fn leaf_slots(self, leaf_slots: u32) -> Self {
        self.set("leaf_slots", leaf_slots)
    }

    /// PhaST: leaves of an inner node, from 4 to 1024. Default: 128.
    #[must_use]
    pub fn node_leaves(self, node_leaves: u32) -> Self {
        self.set("node_leaves", node_leaves)
    }

    /// PhaST: partitions at most, from 1 to 1024. They divide the keys that are there, not
    /// those that could be. More of them make the opening by many threads faster. Default: 128.
    #[must_use]
    pub fn partitions(self, partitions: u32) -> Self {
        self.set("partitions", partitions)
    }

    /// The record form. By default, keys and values that both fit 8 bytes are stored in
    /// place, others in record blocks.
    #[must_use]
    pub fn form(mut self, form: RecordForm) -> Self {
        self.form = Some(form);
        self
    }

    /// What is asked of the store for a map of this name, form and schemas.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a value that cannot be, and for an option of
    /// another scheme.
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

    /// For tests: parts that are as small as they can be, where nothing else is set.
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
