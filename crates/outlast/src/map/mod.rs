//! The typed maps of a pool: [`Map`] and [`OrderedMap`].

// First, so that rustdoc begins with `get` and `insert`.
mod typed;

mod batch;
mod cache;
mod change;
#[cfg(feature = "serde")]
pub mod encoded;
mod expiry;
pub mod fixed;
mod iter;
mod many;
mod ordered;
mod record;
pub mod schema;
mod tuples;
mod types;

pub use cache::Cache;
pub use fixed::{FixedSize, Integer};
pub use iter::{Iter, Keys, Values};
pub use ordered::{KeyBounds, OrderedMap, Range};
pub use record::FixedRecord;
pub use typed::{Map, Ref};
pub use types::{Key, OrderedKey, Value};

use crate::db::handle::Pool;
use crate::db::map_options::MapOptions;
use crate::error::{Error, Result};
use crate::index::{Config, RecordForm, Scheme};

impl Pool {
    /// Opens the map `name`, or creates it if there is none. Creation is atomic, also across a
    /// crash.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// ages.insert("Ada", &36)?;
    /// assert_eq!(pool.map::<str, u64>("ages")?.get("Ada")?, Some(36), "the same map");
    /// // A map opens as the types that it was created with, and as no others.
    /// assert!(matches!(pool.map::<u64, u64>("ages"), Err(outlast::Error::MapMismatch { .. })));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::MapMismatch`] if the map exists with other types; [`Error::TooManyMaps`],
    /// [`Error::PoolFull`] or [`Error::ReadOnly`] if it cannot be created.
    pub fn map<K: Key + ?Sized, V: Value + ?Sized>(&self, name: &str) -> Result<Map<K, V>> {
        self.map_with(name, &MapOptions::new())
    }

    /// Like [`map`](Pool::map), with options.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// use outlast::{MapOptions, Scheme};
    ///
    /// let options = MapOptions::new().scheme(Scheme::Clevel);
    /// let ages = pool.map_with::<str, u64>("ages", &options)?;
    /// assert_eq!(ages.info().scheme(), Scheme::Clevel);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`map`](Pool::map), and [`Error::Invalid`] for options that are out of range or do
    /// not fit the types.
    pub fn map_with<K: Key + ?Sized, V: Value + ?Sized>(
        &self,
        name: &str,
        options: &MapOptions,
    ) -> Result<Map<K, V>> {
        let words = K::WORD && V::WORD;
        if options.form == Some(RecordForm::Inline) && !words {
            return Err(Error::Invalid {
                what: "record form",
                why: format!("{} and {} do not both fit a word", K::SCHEMA, V::SCHEMA),
            });
        }
        let form = options.form_of(if words { RecordForm::Inline } else { RecordForm::Bytes });
        Ok(Map::new(self.map_of(name, form, [K::SCHEMA, V::SCHEMA], options)?))
    }

    /// Opens the ordered map `name`, or creates it if there is none. Creation is atomic, also
    /// across a crash. Opening an ordered map reads the header of each of its leaves, with
    /// [`PoolOptions::recovery_threads`] threads.
    ///
    /// [`PoolOptions::recovery_threads`]: crate::PoolOptions::recovery_threads
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let log = pool.ordered_map::<u64, str>("log")?;
    /// log.insert(&1700, "closed")?;
    /// log.insert(&900, "opened")?;
    /// assert_eq!(log.first()?, Some((900, "opened".into())));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`map`](Pool::map). Also [`Error::MapMismatch`] if the map exists and its scheme
    /// keeps no key order.
    pub fn ordered_map<K: OrderedKey + ?Sized, V: Value + ?Sized>(
        &self,
        name: &str,
    ) -> Result<OrderedMap<K, V>> {
        self.ordered_map_with(name, &MapOptions::new())
    }

    /// Like [`ordered_map`](Pool::ordered_map), with options.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// use outlast::{MapOptions, config};
    ///
    /// // Smaller leaves: more memory, and less work for each insert.
    /// let options = MapOptions::new().config(config::Phast { leaf_slots: 28, ..Default::default() });
    /// let log = pool.ordered_map_with::<u64, str>("log", &options)?;
    /// log.insert(&900, "opened")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`ordered_map`](Pool::ordered_map), and [`Error::Invalid`] for options that are out
    /// of range or do not fit the types.
    pub fn ordered_map_with<K: OrderedKey + ?Sized, V: Value + ?Sized>(
        &self,
        name: &str,
        options: &MapOptions,
    ) -> Result<OrderedMap<K, V>> {
        let config = options.config.unwrap_or_else(|| Config::of(Scheme::Phast));
        let scheme = config.scheme();
        if !scheme.is_ordered() {
            let ordered = Scheme::ALL.iter().filter(|scheme| scheme.is_ordered());
            let names = ordered.map(|scheme| scheme.name()).collect::<Vec<_>>().join(", ");
            let why = format!("{scheme} keeps no key order; schemes of ordered maps: {names}");
            return Err(Error::Invalid { what: "map options", why });
        }
        Ok(OrderedMap::new(self.map_with(name, &options.clone().config(config))?))
    }
}
