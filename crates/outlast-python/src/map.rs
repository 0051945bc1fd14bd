//! Maps.

use crate::codec::{Codec, Encoded};
use crate::expiry::{after, seconds_left};
use crate::fail::{Fail, Result, absent, invalid};
use crate::held::Held;
use crate::pool::Pool;
use crate::records::{Part, Records, Source};
use crate::schema::Type;
use library::{Error, Expiry, MapOptions, RawMap, RecordForm, Scheme};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyType;
use std::ops::Bound as Limit;
use std::sync::Arc;

/// How the records of a map are stored.
pub struct Codecs {
    pub key: Codec,
    pub value: Codec,
}

impl Codecs {
    pub fn encode_key<'py>(&self, key: &Bound<'py, PyAny>) -> Result<Encoded<'py>> {
        self.key.encode(key, "key")
    }

    pub fn encode_value<'py>(&self, value: &Bound<'py, PyAny>) -> Result<Encoded<'py>> {
        self.value.encode(value, "value")
    }

    /// Decodes a value, if there is one.
    pub fn decoded<'py>(
        &self,
        py: Python<'py>,
        stored: Option<Vec<u8>>,
    ) -> Result<Option<Bound<'py, PyAny>>> {
        stored.map(|stored| self.value.decode(py, &stored)).transpose()
    }
}

/// The native part of `outlast.Map`.
#[pyclass(frozen, subclass, mapping, module = "outlast._outlast")]
pub struct Map {
    pub raw: Held<RawMap>,
    pub codecs: Arc<Codecs>,
}

/// Records that are put detached, at most.
const ROW: usize = 512;
/// Their bytes, about.
const ROW_BYTES: usize = 1 << 20;

#[pymethods]
impl Map {
    /// Opens the map, or creates it. Without schemas, it must exist. `serializer` returns the functions for the
    /// values of a schema that the library does not know: one that makes bytes, and one that reads them.
    #[new]
    #[pyo3(signature = (pool, name, key, value, scheme, expiry, serializer))]
    fn new(
        pool: &Bound<'_, Pool>,
        name: &str,
        key: Option<&str>,
        value: Option<&str>,
        scheme: Option<&str>,
        expiry: bool,
        serializer: &Bound<'_, PyAny>,
    ) -> Result<Map> {
        let (py, pool) = (pool.py(), pool.get());
        let pool: &library::Pool = &pool.pool;
        let raw = match (key, value) {
            (Some(key), Some(value)) => {
                let is_any = matches!(key_codec(key, RecordForm::Bytes)?, Codec::Any);
                let is_word = |schema| Type::parse(schema).is_some_and(|of| of.is_word());
                let in_place = is_word(key) && is_word(value) && !expiry;
                let form = if in_place { RecordForm::Inline } else { RecordForm::Bytes };
                let mut options = MapOptions::new().form(form).expiry(expiry);
                if let Some(name) = scheme {
                    let scheme = scheme_of(name)?;
                    if is_any && scheme.is_ordered() {
                        return Err(invalid("type", "keys of several types have no order"));
                    }
                    options = options.scheme(scheme);
                }
                match py.detach(|| pool.raw_map_with(name, key, value, &options)) {
                    // The program that created the map chose another form, which makes no difference here.
                    Err(Error::MapMismatch { what: "record form", .. }) => pool.raw_map(name)?,
                    opened => opened?,
                }
            }
            (None, None) => py.detach(|| pool.raw_map(name))?,
            _ => {
                return Err(
                    PyTypeError::new_err("give the types of keys and values, or none").into()
                );
            }
        };
        let info = raw.info();
        if expiry && !info.expires {
            return Err(Fail::Library(Error::MapMismatch {
                name: info.name.clone(),
                what: "expiry",
                stored: "none".into(),
                asked: "expiry".into(),
            }));
        }
        if scheme
            .is_some_and(|scheme| scheme_of(scheme).is_ok_and(|scheme| scheme != info.scheme()))
        {
            return Err(Fail::Library(Error::MapMismatch {
                name: info.name.clone(),
                what: "scheme",
                stored: info.scheme().to_string(),
                asked: scheme.unwrap_or_default().into(),
            }));
        }
        let key = key_codec(&info.key_schema, info.form)?;
        let value = value_codec(&info.value_schema, info.form, serializer)?;
        Ok(Map { codecs: Arc::new(Codecs { key, value }), raw: Held::new(raw) })
    }

    /// Lets the package name the types of a map in the class that it derives from this one.
    #[classmethod]
    fn __class_getitem__<'py>(
        class: &Bound<'py, PyType>,
        _types: &Bound<'py, PyAny>,
    ) -> Bound<'py, PyType> {
        class.clone()
    }

    // ---- As a mapping -----------------------------------------------------------

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>> {
        self.value_of(key)?.ok_or_else(|| absent(key))
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> Result<()> {
        self.change(key, value, RawMap::set)
    }

    fn __delitem__(&self, key: &Bound<'_, PyAny>) -> Result<()> {
        if self.remove(key)? { Ok(()) } else { Err(absent(key)) }
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> Result<bool> {
        Ok(self.raw.contains_key(self.codecs.encode_key(key)?.bytes())?)
    }

    fn __len__(&self, py: Python<'_>) -> Result<usize> {
        Ok(self.raw.detached(py, RawMap::len)? as usize)
    }

    fn __bool__(&self, py: Python<'_>) -> Result<bool> {
        Ok(!self.raw.detached(py, RawMap::is_empty)?)
    }

    fn __iter__(&self) -> Records {
        self.all(Part::Keys)
    }

    /// Return the value of a key, or ``default``.
    #[pyo3(signature = (key, default = None))]
    fn get<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> Result<Option<Bound<'py, PyAny>>> {
        Ok(self.value_of(key)?.or(default))
    }

    /// Remove every record, one after another. ``Pool.drop_map`` removes a map in one step.
    fn clear(&self, py: Python<'_>) -> Result<()> {
        self.raw.detached(py, RawMap::clear).map(drop)
    }

    // ---- More than a mapping ----------------------------------------------------

    /// Put a value if the key is absent, and return whether it was. Of several threads, exactly one succeeds.
    fn insert(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> Result<bool> {
        self.change(key, value, RawMap::insert)
    }

    /// Put a value if the key is present, and return whether it was.
    fn replace(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> Result<bool> {
        self.change(key, value, RawMap::update)
    }

    /// Remove a key, and return whether it was present.
    fn remove(&self, key: &Bound<'_, PyAny>) -> Result<bool> {
        let encoded = self.codecs.encode_key(key)?;
        let bytes = encoded.bytes();
        self.raw.detached(key.py(), |raw| raw.delete(bytes))
    }

    /// Put a value, and return the one before, or ``default``.
    #[pyo3(signature = (key, value, default = None))]
    fn exchange<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> Result<Option<Bound<'py, PyAny>>> {
        let before = self.change(key, value, RawMap::put)?;
        Ok(self.codecs.decoded(key.py(), before)?.or(default))
    }

    /// Removes a key, and returns the value that it had, or `default`.
    fn _take<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Bound<'py, PyAny>,
    ) -> Result<Bound<'py, PyAny>> {
        let encoded = self.codecs.encode_key(key)?;
        let bytes = encoded.bytes();
        let before = self.raw.detached(key.py(), |raw| raw.remove(bytes))?;
        Ok(self.codecs.decoded(key.py(), before)?.unwrap_or(default))
    }

    /// Replace the value of a key if it is ``expected``, byte by byte as it is stored. Return whether it was.
    fn compare_swap(
        &self,
        key: &Bound<'_, PyAny>,
        expected: &Bound<'_, PyAny>,
        new: &Bound<'_, PyAny>,
    ) -> Result<bool> {
        let new = self.codecs.encode_value(new)?;
        let new = new.bytes();
        self.change(key, expected, |raw, key, expected| raw.compare_swap(key, expected, new))
    }

    /// Remove a key if its value is ``expected``, byte by byte as it is stored. Return whether it was.
    fn compare_remove(&self, key: &Bound<'_, PyAny>, expected: &Bound<'_, PyAny>) -> Result<bool> {
        self.change(key, expected, RawMap::compare_remove)
    }

    /// Replace the value of a key by what ``change`` returns for it, in one step.
    ///
    /// ``change`` gets ``None`` if the key is absent; if it returns ``None``, the key is removed. It runs again if
    /// another thread has changed the value meanwhile. Return the new value.
    fn alter<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        change: &Bound<'py, PyAny>,
    ) -> Result<Option<Bound<'py, PyAny>>> {
        let py = key.py();
        let encoded = self.codecs.encode_key(key)?;
        let key = encoded.bytes();
        loop {
            let before = self.raw.get(key)?;
            let given =
                before.as_deref().map(|stored| self.codecs.value.decode(py, stored)).transpose()?;
            let after = change.call1((given,))?;
            let new = if after.is_none() { None } else { Some(self.codecs.encode_value(&after)?) };
            let new_bytes = new.as_ref().map(Encoded::bytes);
            let done = self.raw.detached(py, |raw| match (&before, new_bytes) {
                (None, None) => Ok(true),
                (None, Some(new)) => raw.insert(key, new),
                (Some(before), Some(new)) => raw.compare_swap(key, before, new),
                (Some(before), None) => raw.compare_remove(key, before),
            })?;
            if done {
                return Ok(new.is_some().then_some(after));
            }
            py.check_signals()?;
        }
    }

    /// Add to an integer, in one step, and return the sum. An absent key counts as 0.
    #[pyo3(signature = (key, amount = None))]
    fn add<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        amount: Option<Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyAny>> {
        let py = key.py();
        if !matches!(&self.codecs.value, Codec::Typed { of: Type::Integer { .. }, .. }) {
            let why = format!("the values of this map are {}", self.codecs.value.name());
            return Err(PyTypeError::new_err(why).into());
        }
        let amount = match amount {
            Some(amount) => amount,
            None => 1i64.into_pyobject(py).map_err(PyErr::from)?.into_any(),
        };
        let encoded = self.codecs.encode_key(key)?;
        let key = encoded.bytes();
        loop {
            let before = self.raw.get(key)?;
            let sum = match before.as_deref() {
                Some(stored) => self.codecs.value.decode(py, stored)?.add(&amount)?,
                None => amount.clone(),
            };
            let new = self.codecs.encode_value(&sum)?;
            let new = new.bytes();
            let done = self.raw.detached(py, |raw| match &before {
                None => raw.insert(key, new),
                Some(before) => raw.compare_swap(key, before, new),
            })?;
            if done {
                return Ok(sum);
            }
        }
    }

    /// Put a value. Unless ``expire`` is ``None``, it expires after that many seconds; the map must be one with expiry.
    #[pyo3(signature = (key, value, expire = None))]
    fn put(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expire: Option<f64>,
    ) -> Result<()> {
        if expire.is_none() {
            return self.__setitem__(key, value);
        }
        let expiry = after(expire)?;
        self.change(key, value, |raw, key, value| raw.put_until(key, value, expiry).map(drop))
    }

    /// Let the record of a key expire after this many seconds, and return whether the key is present.
    fn expire(&self, key: &Bound<'_, PyAny>, seconds: f64) -> Result<bool> {
        self.set_expiry(key, after(Some(seconds))?)
    }

    /// Make the record of a key one that never expires, and return whether the key is present.
    fn persist(&self, key: &Bound<'_, PyAny>) -> Result<bool> {
        self.set_expiry(key, Expiry::Never)
    }

    /// Return the seconds until the record of a key expires, or ``None`` if it never does. An absent key is a
    /// ``KeyError``.
    fn ttl(&self, key: &Bound<'_, PyAny>) -> Result<Option<f64>> {
        match self.raw.expiry_of(self.codecs.encode_key(key)?.bytes())? {
            Some(expiry) => Ok(seconds_left(expiry)),
            None => Err(absent(key)),
        }
    }

    /// Whether the records of the map can expire.
    #[getter]
    fn expires(&self) -> bool {
        self.raw.info().expires
    }

    /// Puts every pair of an iterable.
    fn _put_all(&self, py: Python<'_>, pairs: &Bound<'_, PyAny>) -> Result<()> {
        let mut pairs = pairs.try_iter()?;
        loop {
            let (mut row, mut bytes) = (Vec::new(), 0);
            while row.len() < ROW && bytes < ROW_BYTES {
                let Some(pair) = pairs.next() else { break };
                let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair?.extract()?;
                let record = (self.codecs.encode_key(&key)?, self.codecs.encode_value(&value)?);
                bytes += record.0.bytes().len() + record.1.bytes().len();
                row.push(record);
            }
            if row.is_empty() {
                return Ok(());
            }
            let slices: Vec<_> =
                row.iter().map(|(key, value)| (key.bytes(), value.bytes())).collect();
            self.raw.detached(py, |raw| {
                slices.iter().try_for_each(|(key, value)| raw.set(key, value))
            })?;
            py.check_signals()?;
        }
    }

    /// Estimate the number of records from a sample of the map.
    fn len_estimate(&self, py: Python<'_>) -> Result<u64> {
        self.raw.detached(py, RawMap::len_estimate)
    }

    fn _values(&self) -> Records {
        self.all(Part::Values)
    }

    fn _items(&self) -> Records {
        self.all(Part::Items)
    }

    /// Returns the records that can be read, and the damaged places in between as exceptions.
    fn _salvage(&self) -> Records {
        let source = Source::Salvage(self.raw.salvage());
        Records::new(source, Arc::clone(&self.codecs), Part::Salvaged)
    }

    /// The name of the map.
    #[getter]
    fn name(&self) -> &str {
        &self.raw.info().name
    }

    /// The type of the keys, as the map records it.
    #[getter]
    fn key_type(&self) -> &str {
        &self.raw.info().key_schema
    }

    /// The type of the values, as the map records it.
    #[getter]
    fn value_type(&self) -> &str {
        &self.raw.info().value_schema
    }

    /// The scheme of the map, such as ``"dash-eh"``.
    #[getter]
    fn scheme(&self) -> &str {
        self.raw.info().scheme().name()
    }

    // ---- In order ---------------------------------------------------------------

    /// Returns the records of a range. A bound is a key, or `None`.
    fn _range(
        &self,
        bounds: [Option<Bound<'_, PyAny>>; 2],
        includes: [bool; 2],
        is_reverse: bool,
        part: &str,
    ) -> Result<Records> {
        let [low, high] = bounds.map(|key| key.map(|key| self.codecs.encode_key(&key)).transpose());
        let (low, high) = (low?, high?);
        let range = self.raw.range(limit(&low, includes[0]), limit(&high, includes[1]))?;
        let source = if is_reverse { Source::Backward(range) } else { Source::Forward(range) };
        Ok(Records::new(source, Arc::clone(&self.codecs), Part::named(part)))
    }

    /// Returns the first record of a range.
    fn _range_first<'py>(
        &self,
        py: Python<'py>,
        bounds: [Option<Bound<'py, PyAny>>; 2],
        is_reverse: bool,
    ) -> Result<Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
        let [low, high] = bounds.map(|key| key.map(|key| self.codecs.encode_key(&key)).transpose());
        let (low, high) = (low?, high?);
        let mut range = self.raw.range(limit(&low, true), limit(&high, true))?.with_batch(1);
        let first = if is_reverse { range.next_back() } else { range.next() };
        let Some((key, value)) = first.transpose()? else { return Ok(None) };
        Ok(Some((self.codecs.key.decode(py, &key)?, self.codecs.value.decode(py, &value)?)))
    }

    /// Returns the records whose keys begin with a string, or with the first parts of a tuple.
    fn _prefix(&self, prefix: &Bound<'_, PyAny>, is_reverse: bool) -> Result<Records> {
        let (low, high) = match self.codecs.key.encode_prefix(prefix)? {
            (bytes, Some(len)) => {
                let word = |fill| {
                    let mut word = vec![fill; len];
                    word[..bytes.len()].copy_from_slice(&bytes);
                    word.reverse();
                    word.resize(8, 0);
                    word
                };
                (word(0), Limit::Included(word(u8::MAX)))
            }
            (bytes, None) => {
                let above = above_all_with(&bytes).map_or(Limit::Unbounded, Limit::Excluded);
                (bytes, above)
            }
        };
        let range = self.raw.range(Limit::Included(&low), high.as_ref().map(Vec::as_slice))?;
        let source = if is_reverse { Source::Backward(range) } else { Source::Forward(range) };
        Ok(Records::new(source, Arc::clone(&self.codecs), Part::Items))
    }
}

impl Map {
    fn set_expiry(&self, key: &Bound<'_, PyAny>, expiry: Expiry) -> Result<bool> {
        let encoded = self.codecs.encode_key(key)?;
        let bytes = encoded.bytes();
        self.raw.detached(key.py(), |raw| raw.expire_at(bytes, expiry))
    }

    fn all(&self, part: Part) -> Records {
        Records::new(Source::All(self.raw.iter()), Arc::clone(&self.codecs), part)
    }

    /// Looks a key up, attached: a lookup takes less time than to detach, and waits for nobody but the writer of the
    /// same few records.
    #[inline]
    fn value_of<'py>(&self, key: &Bound<'py, PyAny>) -> Result<Option<Bound<'py, PyAny>>> {
        let encoded = self.codecs.encode_key(key)?;
        let Some(record) = self.raw.get_ref(encoded.bytes())? else { return Ok(None) };
        self.codecs.value.decode_ref(key.py(), &record).map(Some)
    }

    /// Encodes a record, and makes a change of it, detached.
    fn change<T: Send>(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        change: impl FnOnce(&RawMap, &[u8], &[u8]) -> library::Result<T> + Send,
    ) -> Result<T> {
        let (encoded_key, encoded_value) =
            (self.codecs.encode_key(key)?, self.codecs.encode_value(value)?);
        let (key_bytes, value_bytes) = (encoded_key.bytes(), encoded_value.bytes());
        self.raw.detached(key.py(), |raw| change(raw, key_bytes, value_bytes))
    }
}

fn limit<'a>(key: &'a Option<Encoded<'_>>, is_included: bool) -> Limit<&'a [u8]> {
    match key {
        None => Limit::Unbounded,
        Some(key) if is_included => Limit::Included(key.bytes()),
        Some(key) => Limit::Excluded(key.bytes()),
    }
}

/// Returns how keys of this schema are stored.
pub fn key_codec(schema: &str, form: RecordForm) -> Result<Codec> {
    Codec::typed(schema, form).ok_or_else(|| unknown(schema))
}

/// Returns how values of this schema are stored. `serializer` finds the functions for a schema that the library does
/// not know.
pub fn value_codec(schema: &str, form: RecordForm, serializer: &Bound<'_, PyAny>) -> Result<Codec> {
    if let Some(codec) = Codec::typed(schema, form) {
        return Ok(codec);
    }
    let (dumps, loads) = serializer.call1((schema,))?.extract()?;
    Ok(Codec::Serialized { schema: schema.into(), dumps, loads })
}

#[cold]
fn unknown(schema: &str) -> Fail {
    invalid(
        "type",
        format!("{schema:?} is not a type that Python has, too; docs/python.md lists these"),
    )
}

fn scheme_of(name: &str) -> Result<Scheme> {
    let found = Scheme::ALL.iter().copied().find(|scheme| scheme.name() == name);
    found.ok_or_else(|| invalid("scheme", format!("there is no scheme {name}")))
}

/// Returns the least byte string above all those that begin with `prefix`, if there is one.
fn above_all_with(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut above = prefix[..=last].to_vec();
    above[last] += 1;
    Some(above)
}
