//! The typed public interface: [`Map`], and [`RawMap`] for tools that do not know types.

mod raw;
mod typed;
mod types;

pub(crate) use raw::Form;
pub use raw::{RawIter, RawMap};
pub use typed::{Iter, Map, Ref};
pub use types::{FixedRecord, Key, Value};

use crate::index::{RecordForm, Scheme};

/// How a map is created. Ignored for a map that exists, but for the scheme, which must
/// be the same.
#[derive(Debug, Clone, Default)]
pub struct MapOptions {
    pub(crate) scheme: Option<Scheme>,
    pub(crate) stash_buckets: Option<u32>,
    pub(crate) bucket_bits: Option<u32>,
    pub(crate) form: Option<RecordForm>,
}

impl MapOptions {
    /// The defaults: Dash-EH, two stash buckets to a segment, the record form that the
    /// types ask for.
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

    /// The record form. By default, keys and values that both fit 8 bytes are stored in
    /// place, others in record blocks.
    #[must_use]
    pub fn form(mut self, form: RecordForm) -> Self {
        self.form = Some(form);
        self
    }
}
