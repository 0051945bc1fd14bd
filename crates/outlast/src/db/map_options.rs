//! Options for creating maps.

use super::open_map::MapRequest;
use super::roots::MapInfo;
use crate::error::{Error, Result};
use crate::index::{Config, RecordForm, Scheme};

/// Options for creating a map. An existing map keeps the options that it was created with. Options
/// given when it is opened are ignored, except three: the [scheme](MapOptions::scheme), the
/// [form](MapOptions::form) and [expiry](MapOptions::expiry) must be the map's own, if they are given.
/// Otherwise opening fails with [`Error::MapMismatch`](crate::Error::MapMismatch). A value out of range fails with
/// [`Error::Invalid`](crate::Error::Invalid), even if the map exists.
///
/// ```
/// # fn main() -> outlast::Result<()> {
/// use outlast::{MapOptions, PoolOptions, config};
///
/// let pool = PoolOptions::new().anonymous()?;
/// let options = MapOptions::new().config(config::Group { group_size: 64, ..Default::default() });
/// let ages = pool.map_with::<str, u64>("ages", &options)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct MapOptions {
    pub(crate) config: Option<Config>,
    pub(crate) form: Option<RecordForm>,
    pub(crate) expiry: bool,
}

impl MapOptions {
    /// Returns the defaults: Dash-EH with two stash buckets per segment (for an ordered map, PhaST
    /// with its paper's parameters), and the record form that suits the types.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the scheme, with its default settings.
    #[must_use]
    pub fn scheme(self, scheme: Scheme) -> Self {
        self.config(Config::of(scheme))
    }

    /// Sets the scheme and its settings: one of the types in [`config`](crate::config).
    #[must_use]
    pub fn config(mut self, config: impl Into<Config>) -> Self {
        self.config = Some(config.into());
        self
    }

    /// Sets the record form. By default, keys and values that both fit 8 bytes are stored inline,
    /// others in record blocks.
    #[must_use]
    pub fn form(mut self, form: RecordForm) -> Self {
        self.form = Some(form);
        self
    }

    /// Makes a map whose records can expire: [`Map::put_for`](crate::Map::put_for),
    /// [`put_until`](crate::Map::put_until) and others give them a time. Its records are always stored in
    /// blocks, with 8 more bytes each, and its values can have 8 bytes less.
    ///
    /// A record whose time has passed is absent for every operation. An operation that finds one
    /// removes it before it goes on, so it never comes back, whatever the clock does. The background
    /// thread removes others.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// use outlast::{MapOptions, PoolOptions};
    /// use std::time::Duration;
    ///
    /// let pool = PoolOptions::new().anonymous()?;
    /// let sessions = pool.map_with::<str, u64>("sessions", &MapOptions::new().expiry(true))?;
    /// sessions.put_for("4711", &7, Duration::from_secs(900))?;
    /// assert_eq!(sessions.get("4711")?, Some(7));
    /// sessions.put_for("4712", &8, Duration::ZERO)?;
    /// assert_eq!(sessions.get("4712")?, None);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn expiry(mut self, expiry: bool) -> Self {
        self.expiry = expiry;
        self
    }

    /// Returns the form of a map for which none is set, if its keys and values are words or not.
    pub(crate) fn form_of(&self, default: RecordForm) -> RecordForm {
        if self.expiry { RecordForm::Bytes } else { self.form.unwrap_or(default) }
    }

    /// Builds the store's request for a map of this name, form and schemas.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a value out of range.
    #[doc(hidden)]
    pub fn request(
        &self,
        name: &str,
        form: RecordForm,
        [key_schema, value_schema]: [&str; 2],
    ) -> Result<MapRequest> {
        let config = self.config.unwrap_or_else(|| Config::of(Scheme::DashEh));
        if self.expiry && self.form == Some(RecordForm::Inline) {
            let why = "records that expire are stored in blocks".into();
            return Err(Error::Invalid { what: "record form", why });
        }
        let info = MapInfo {
            name: name.into(),
            form,
            key_schema: key_schema.into(),
            value_schema: value_schema.into(),
            config: config.checked(key_schema)?,
            expires: self.expiry,
        };
        Ok(MapRequest { info, scheme_matters: self.config.is_some() })
    }
}
