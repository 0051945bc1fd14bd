//! The typed public interface: [`Map`] and [`OrderedMap`], and [`RawMap`] for tools that do not
//! know types.

mod ordered;
mod raw;
mod typed;
mod types;

pub use ordered::{KeyBounds, OrderedKey, OrderedMap, Range};
pub(crate) use raw::Form;
pub use raw::{RawIter, RawMap, RawRange};
pub use typed::{Iter, Map, Ref};
pub use types::{FixedRecord, Key, Value};

use crate::error::{Error, Result};
use crate::index::clevel::layout::GROUP_BITS;
use crate::index::phast::Shape;
use crate::index::{RecordForm, Scheme};

/// How a map is created. Ignored for a map that exists, but for the scheme, which must
/// be the same.
#[derive(Debug, Clone, Default)]
pub struct MapOptions {
    pub(crate) scheme: Option<Scheme>,
    pub(crate) stash_buckets: Option<u32>,
    pub(crate) bucket_bits: Option<u32>,
    pub(crate) leaf_slots: Option<u32>,
    pub(crate) node_leaves: Option<u32>,
    pub(crate) partitions: Option<u32>,
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
    pub fn stash_buckets(mut self, stash_buckets: u32) -> Self {
        self.stash_buckets = Some(stash_buckets);
        self
    }

    /// Dash: log2 of the buckets to a segment; clevel: of the buckets of the first level. From 1
    /// to 6 (the default). Small ones are for tests: a few inserts split or expand them.
    #[must_use]
    pub fn bucket_bits(mut self, bucket_bits: u32) -> Self {
        self.bucket_bits = Some(bucket_bits);
        self
    }

    /// PhaST: pairs of a leaf, a multiple of 4 up to 56 (the default). Small leaves are for
    /// tests: a few inserts split them.
    #[must_use]
    pub fn leaf_slots(mut self, leaf_slots: u32) -> Self {
        self.leaf_slots = Some(leaf_slots);
        self
    }

    /// PhaST: leaves of an inner node, from 4 to 1024. Default: 128.
    #[must_use]
    pub fn node_leaves(mut self, node_leaves: u32) -> Self {
        self.node_leaves = Some(node_leaves);
        self
    }

    /// PhaST: partitions at most, from 1 to 1024. They divide the keys that are there, not
    /// those that could be. More of them make the opening by many threads faster. Default: 128.
    #[must_use]
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.partitions = Some(partitions);
        self
    }

    /// The configuration of a map of this scheme, whose keys have this schema.
    pub(crate) fn config(&self, scheme: Scheme, key_schema: &str) -> Result<[u64; 3]> {
        match scheme {
            Scheme::DashEh | Scheme::Clevel => {
                let stash = self.stash_buckets.unwrap_or(2);
                let bits = self.bucket_bits.unwrap_or(6);
                if ![2, 4].contains(&stash) || !(1..=6).contains(&bits) {
                    return Err(Error::Invalid {
                        what: "map options",
                        why: format!("2^{bits} buckets and {stash} stash buckets to a segment"),
                    });
                }
                let second = if scheme == Scheme::Clevel { GROUP_BITS } else { stash };
                Ok([u64::from(bits), u64::from(second), 0])
            }
            Scheme::Phast => {
                let mut shape = Shape::of_schema(key_schema);
                shape.slots = self.leaf_slots.unwrap_or(shape.slots);
                shape.node_leaves = self.node_leaves.unwrap_or(shape.node_leaves);
                shape.partitions = self.partitions.unwrap_or(shape.partitions);
                let config = shape.to_config();
                match Shape::from_config(config) {
                    Some(_) => Ok(config),
                    None => Err(Error::Invalid {
                        what: "map options",
                        why: format!(
                            "{} pairs of a leaf (a multiple of 4, from 4 to 56), {} leaves of a \
                             node (from 4 to 1024), {} partitions (from 1 to 1024)",
                            shape.slots, shape.node_leaves, shape.partitions
                        ),
                    }),
                }
            }
        }
    }

    /// The record form. By default, keys and values that both fit 8 bytes are stored in
    /// place, others in record blocks.
    #[must_use]
    pub fn form(mut self, form: RecordForm) -> Self {
        self.form = Some(form);
        self
    }
}
