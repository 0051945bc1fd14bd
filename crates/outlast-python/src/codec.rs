//! How Python's objects are stored: exactly as the library stores the values of Rust's types.
//!
//! | type | in place (a word) | in a block |
//! |---|---|---|
//! | integers up to 64 bits | the number, without its sign extended | little-endian |
//! | floats, `bool`, arrays, tuples, larger integers | the bytes beside, read as a big-endian number | the encoding of a part |
//! | `str`, `bytes`, tuples with one | | the string; the encodings of the parts, one after another |
//!
//! The encoding of a part keeps the order of the values: integers are big-endian, with the sign bit inverted if they
//! have one; of floats, all bits are inverted if the sign bit is 1, otherwise only the sign bit. A string before the
//! last part of a tuple has a byte 255 after each byte 0, and ends with two bytes 0.

use crate::any;
use crate::fail::{Result, invalid};
use crate::schema::Type;
use library::{RecordForm, RecordRef};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyFloat, PyInt, PyMemoryView, PyString, PyTuple};

/// How the keys or the values of a map are stored.
pub enum Codec {
    /// As a type of the library.
    Typed { of: Type, is_word: bool },
    /// With its type beside it.
    Any,
    /// As the bytes that a function of Python makes of them, and another one reads.
    Serialized { schema: String, dumps: Py<PyAny>, loads: Py<PyAny> },
}

/// An object as the map takes it.
pub enum Encoded<'py> {
    /// Bytes of which only the first ones count.
    Small([u8; 16], usize),
    /// Bytes of their own.
    Owned(Vec<u8>),
    /// Bytes that belong to an object.
    Object(Bound<'py, PyBytes>),
}

impl Encoded<'_> {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Encoded::Small(bytes, len) => &bytes[..*len],
            Encoded::Owned(bytes) => bytes,
            Encoded::Object(object) => object.as_bytes(),
        }
    }
}

impl Codec {
    /// Returns the codec of a type that the library and Python have.
    pub fn typed(schema: &str, form: RecordForm) -> Option<Codec> {
        if schema == any::SCHEMA {
            return Some(Codec::Any);
        }
        Some(Codec::Typed { of: Type::parse(schema)?, is_word: form == RecordForm::Inline })
    }

    /// What a user calls the type.
    pub fn name(&self) -> String {
        match self {
            Codec::Typed { of, .. } => of.to_string(),
            Codec::Any => {
                "None, bool, int, float, str, bytes, or a tuple, list or dict of them".into()
            }
            Codec::Serialized { schema, .. } => schema.clone(),
        }
    }

    /// Encodes an object. `what` is what it is to be: a key or a value.
    #[inline]
    pub fn encode<'py>(&self, object: &Bound<'py, PyAny>, what: &str) -> Result<Encoded<'py>> {
        match self {
            Codec::Typed { of, is_word } => encode(of, *is_word, object)
                .map_err(|error| self.explain(error, object, what).into()),
            Codec::Any => any::encode(object)
                .map(Encoded::Owned)
                .map_err(|error| self.explain(error, object, what).into()),
            Codec::Serialized { dumps, .. } => {
                let bytes = dumps.bind(object.py()).call1((object,))?;
                Ok(Encoded::Object(bytes.cast_into::<PyBytes>().map_err(PyErr::from)?))
            }
        }
    }

    /// Names the type that was expected, in place of what the conversion says.
    #[cold]
    fn explain(&self, error: PyErr, object: &Bound<'_, PyAny>, what: &str) -> PyErr {
        let py = object.py();
        let named = |why: String| {
            let message = format!("a {what} of this map is {}: {why}", self.name());
            let class = error.get_type(py);
            PyErr::from_type(class, message)
        };
        if error.is_instance_of::<PyTypeError>(py) {
            let found =
                object.get_type().name().map_or_else(|_| "another".into(), |name| name.to_string());
            return named(format!("not {found}"));
        }
        if error.get_type(py).is(py.get_type::<PyOverflowError>())
            || error.get_type(py).is(py.get_type::<PyValueError>())
        {
            return named(error.value(py).to_string());
        }
        error
    }

    /// Decodes what the map has.
    #[inline]
    pub fn decode<'py>(&self, py: Python<'py>, stored: &[u8]) -> Result<Bound<'py, PyAny>> {
        match self {
            Codec::Typed { of, is_word } => decode(py, of, *is_word, stored),
            Codec::Any => any::decode(py, stored),
            Codec::Serialized { loads, .. } => {
                Ok(loads.bind(py).call1((PyBytes::new(py, stored),))?)
            }
        }
    }

    /// Decodes a value that is still in the pool.
    #[inline]
    pub fn decode_ref<'py>(
        &self,
        py: Python<'py>,
        record: &RecordRef<'_>,
    ) -> Result<Bound<'py, PyAny>> {
        const SMALL: usize = 64;
        match self {
            Codec::Typed { of: Type::Bytes, .. } => self.copy_ref(py, record).map(Bound::into_any),
            Codec::Serialized { loads, .. } => {
                Ok(loads.bind(py).call1((self.copy_ref(py, record)?,))?)
            }
            Codec::Typed { .. } | Codec::Any if record.len() <= SMALL => {
                let mut small = [0; SMALL];
                let bytes = &mut small[..record.len()];
                record.read_at(0, bytes)?;
                self.decode(py, bytes)
            }
            Codec::Typed { .. } | Codec::Any => self.decode(py, &record.to_vec()?),
        }
    }

    /// Copies a value into an object, once.
    fn copy_ref<'py>(
        &self,
        py: Python<'py>,
        record: &RecordRef<'_>,
    ) -> Result<Bound<'py, PyBytes>> {
        let mut read = Ok(());
        let bytes = PyBytes::new_with(py, record.len(), |bytes| {
            read = record.read_at(0, bytes);
            Ok(())
        })?;
        read?;
        Ok(bytes)
    }

    /// Encodes the first parts of a tuple, or the beginning of a string. Returns the bytes, and whether they are the
    /// beginning of a word.
    pub fn encode_prefix(&self, prefix: &Bound<'_, PyAny>) -> Result<(Vec<u8>, Option<usize>)> {
        let Codec::Typed { of, is_word } = self else {
            return Err(invalid("prefix", "of keys that have no order"));
        };
        match of {
            Type::Text | Type::Bytes => Ok((self.encode(prefix, "prefix")?.bytes().to_vec(), None)),
            Type::Tuple(parts) => {
                let mut bytes = Vec::new();
                let given = match prefix.cast::<PyTuple>() {
                    Ok(tuple) if !matches!(parts[0], Type::Tuple(_)) => tuple.iter().collect(),
                    _ => vec![prefix.clone()],
                };
                if given.len() >= parts.len() {
                    return Err(invalid("prefix", format!("it has fewer parts than {of}")));
                }
                for (part, given) in parts.iter().zip(&given) {
                    encode_part(part, given, false, &mut bytes)
                        .map_err(|error| self.explain(error, given, "part of a key"))?;
                }
                let word = is_word.then(|| of.fixed_len().expect("a word has a length"));
                Ok((bytes, word))
            }
            _ => Err(invalid("prefix", format!("keys that are {of} have none"))),
        }
    }
}

// ---- Encoding -------------------------------------------------------------------

fn encode<'py>(of: &Type, is_word: bool, object: &Bound<'py, PyAny>) -> PyResult<Encoded<'py>> {
    match of {
        Type::Text => Ok(Encoded::Object(object.cast::<PyString>()?.encode_utf8()?)),
        Type::Bytes => bytes_of(object).map(Encoded::Object),
        Type::Integer { bytes: bytes @ 1..=8, is_signed } => {
            let number = small_integer(*bytes, *is_signed, object)?;
            let mut small = [0; 16];
            small[..*bytes].copy_from_slice(&number.to_le_bytes()[..*bytes]);
            Ok(Encoded::Small(small, if is_word { 8 } else { *bytes }))
        }
        _ => {
            let mut bytes = Vec::with_capacity(of.fixed_len().unwrap_or(32));
            encode_part(of, object, true, &mut bytes)?;
            if !is_word {
                return Ok(Encoded::Owned(bytes));
            }
            bytes.reverse();
            let mut small = [0; 16];
            small[..bytes.len()].copy_from_slice(&bytes);
            Ok(Encoded::Small(small, 8))
        }
    }
}

/// Appends the encoding that a value has as a part of a tuple; `is_last` says whether nothing follows.
fn encode_part(
    of: &Type,
    object: &Bound<'_, PyAny>,
    is_last: bool,
    out: &mut Vec<u8>,
) -> PyResult<()> {
    match of {
        Type::Text => {
            append_string(object.cast::<PyString>()?.encode_utf8()?.as_bytes(), is_last, out);
        }
        Type::Bytes => append_string(bytes_of(object)?.as_bytes(), is_last, out),
        Type::Array(len) => {
            let bytes = bytes_of(object)?;
            if bytes.as_bytes().len() != *len {
                let found = bytes.as_bytes().len();
                return Err(PyValueError::new_err(format!("this one has {found}")));
            }
            out.extend_from_slice(bytes.as_bytes());
        }
        Type::Integer { bytes: 16, is_signed } => {
            let ordered = if *is_signed {
                object.extract::<i128>()? as u128 ^ 1 << 127
            } else {
                object.extract::<u128>()?
            };
            out.extend_from_slice(&ordered.to_be_bytes());
        }
        Type::Integer { bytes, is_signed } => {
            let sign = u64::from(*is_signed) << (8 * bytes - 1);
            let ordered = small_integer(*bytes, *is_signed, object)? ^ sign;
            out.extend_from_slice(&ordered.to_be_bytes()[8 - bytes..]);
        }
        Type::Float { bytes: 4 } => {
            let wide: f64 = object.extract()?;
            let narrow = wide as f32;
            if narrow.is_infinite() && wide.is_finite() {
                return Err(PyOverflowError::new_err("it would be rounded to infinity"));
            }
            let bits = narrow.to_bits();
            let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
            out.extend_from_slice(&ordered.to_be_bytes());
        }
        Type::Float { .. } => {
            let bits = object.extract::<f64>()?.to_bits();
            let ordered = if bits >> 63 == 0 { bits | 1 << 63 } else { !bits };
            out.extend_from_slice(&ordered.to_be_bytes());
        }
        Type::Bool => out.push(object.cast::<PyBool>()?.is_true().into()),
        Type::Tuple(parts) => {
            let tuple = object.cast::<PyTuple>()?;
            if tuple.len() != parts.len() {
                return Err(PyValueError::new_err(format!("this one has {} parts", tuple.len())));
            }
            for (number, (part, object)) in parts.iter().zip(tuple.iter()).enumerate() {
                encode_part(part, &object, is_last && number + 1 == parts.len(), out)?;
            }
        }
    }
    Ok(())
}

fn append_string(string: &[u8], is_last: bool, out: &mut Vec<u8>) {
    if is_last {
        out.extend_from_slice(string);
        return;
    }
    for &byte in string {
        out.push(byte);
        if byte == 0 {
            out.push(u8::MAX);
        }
    }
    out.extend_from_slice(&[0, 0]);
}

/// Returns the low bytes of an integer, after checking that it has no others.
#[inline]
fn small_integer(bytes: usize, is_signed: bool, object: &Bound<'_, PyAny>) -> PyResult<u64> {
    let unused = 64 - 8 * bytes as u32;
    let refuse = || Err(PyOverflowError::new_err("it is out of range"));
    if is_signed {
        let number: i64 = object.extract()?;
        if number << unused >> unused != number {
            return refuse();
        }
        Ok((number as u64) << unused >> unused)
    } else {
        let number: u64 = object.extract()?;
        if number << unused >> unused != number {
            return refuse();
        }
        Ok(number)
    }
}

fn bytes_of<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(bytes.clone());
    }
    if let Ok(bytes) = object.cast::<PyByteArray>() {
        return Ok(PyBytes::new(object.py(), &bytes.to_vec()));
    }
    let view = object.cast::<PyMemoryView>()?;
    Ok(view.call_method0("tobytes")?.cast_into::<PyBytes>()?)
}

// ---- Decoding -------------------------------------------------------------------

fn decode<'py>(
    py: Python<'py>,
    of: &Type,
    is_word: bool,
    stored: &[u8],
) -> Result<Bound<'py, PyAny>> {
    let small_integer = of.is_small_integer();
    Ok(match of {
        Type::Text => text(py, stored)?,
        Type::Bytes => PyBytes::new(py, stored).into_any(),
        Type::Integer { bytes, is_signed } if small_integer => {
            integer(py, word_of(stored, *bytes)?, *bytes, *is_signed)
        }
        _ => {
            let mut reversed = Vec::new();
            let mut rest = stored;
            if is_word {
                let bytes = of.fixed_len().filter(|&bytes| bytes <= stored.len());
                reversed.extend(stored[..bytes.ok_or_else(not_one)?].iter().rev());
                rest = &reversed;
            }
            let object = decode_part(py, of, true, &mut rest)?;
            if !rest.is_empty() {
                return Err(not_one());
            }
            object
        }
    })
}

/// Decodes a part, and moves on to the bytes after it; `is_last` says whether nothing follows.
fn decode_part<'py>(
    py: Python<'py>,
    of: &Type,
    is_last: bool,
    rest: &mut &[u8],
) -> Result<Bound<'py, PyAny>> {
    if !is_last && matches!(of, Type::Text | Type::Bytes) {
        let string = take_string(rest)?;
        let is_text = matches!(of, Type::Text);
        return if is_text { text(py, &string) } else { Ok(PyBytes::new(py, &string).into_any()) };
    }
    let len = match of {
        Type::Text | Type::Bytes => rest.len(),
        Type::Tuple(_) => 0,
        fixed => fixed.fixed_len().expect("all others have a length"),
    };
    let (own, after) = rest.split_at_checked(len).ok_or_else(not_one)?;
    *rest = after;
    Ok(match of {
        Type::Text => text(py, own)?,
        Type::Bytes | Type::Array(_) => PyBytes::new(py, own).into_any(),
        Type::Integer { bytes: 16, is_signed } => {
            let ordered = u128::from_be_bytes(own.try_into().expect("it has 16 bytes"));
            if *is_signed {
                ((ordered ^ 1 << 127) as i128).into_pyobject(py).map_err(PyErr::from)?.into_any()
            } else {
                ordered.into_pyobject(py).map_err(PyErr::from)?.into_any()
            }
        }
        Type::Integer { bytes, is_signed } => {
            let sign = u64::from(*is_signed) << (8 * bytes - 1);
            integer(py, big_endian(own) ^ sign, *bytes, *is_signed)
        }
        Type::Float { bytes: 4 } => {
            let ordered = big_endian(own) as u32;
            let bits = if ordered >> 31 == 0 { !ordered } else { ordered & !(1 << 31) };
            PyFloat::new(py, f32::from_bits(bits).into()).into_any()
        }
        Type::Float { .. } => {
            let ordered = big_endian(own);
            let bits = if ordered >> 63 == 0 { !ordered } else { ordered & !(1 << 63) };
            PyFloat::new(py, f64::from_bits(bits)).into_any()
        }
        Type::Bool => match own {
            [0] => PyBool::new(py, false).to_owned().into_any(),
            [1] => PyBool::new(py, true).to_owned().into_any(),
            _ => return Err(not_one()),
        },
        Type::Tuple(parts) => {
            let (last, first) = parts.split_last().expect("a tuple has parts");
            let mut decode = |part, is_last| decode_part(py, part, is_last, rest);
            let mut objects: Vec<_> =
                first.iter().map(|part| decode(part, false)).collect::<Result<_>>()?;
            objects.push(decode(last, is_last)?);
            PyTuple::new(py, objects)?.into_any()
        }
    })
}

/// Decodes a string before the last part of a tuple, and moves on to the bytes after it.
fn take_string(rest: &mut &[u8]) -> Result<Vec<u8>> {
    let mut string = Vec::new();
    loop {
        let zero = rest.iter().position(|&byte| byte == 0).ok_or_else(not_one)?;
        let mark = *rest.get(zero + 1).ok_or_else(not_one)?;
        string.extend_from_slice(&rest[..zero]);
        *rest = &rest[zero + 2..];
        match mark {
            0 => return Ok(string),
            u8::MAX => string.push(0),
            _ => return Err(not_one()),
        }
    }
}

fn text<'py>(py: Python<'py>, bytes: &[u8]) -> Result<Bound<'py, PyAny>> {
    let text = std::str::from_utf8(bytes).map_err(|error| invalid("string", error.to_string()))?;
    Ok(PyString::new(py, text).into_any())
}

/// Makes an `int` of the low bytes of a word.
#[inline]
fn integer(py: Python<'_>, word: u64, bytes: usize, is_signed: bool) -> Bound<'_, PyAny> {
    let unused = 64 - 8 * bytes as u32;
    let object: Bound<'_, PyInt> = if is_signed {
        let Ok(object) = ((word << unused) as i64 >> unused).into_pyobject(py);
        object
    } else {
        let Ok(object) = word.into_pyobject(py);
        object
    };
    object.into_any()
}

/// Reads the number in the first bytes of what is stored.
#[inline]
fn word_of(stored: &[u8], bytes: usize) -> Result<u64> {
    let mut word = [0; 8];
    let stored = stored.get(..bytes).ok_or_else(not_one)?;
    word[..bytes].copy_from_slice(stored);
    Ok(u64::from_le_bytes(word))
}

fn big_endian(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cold]
fn not_one() -> crate::fail::Fail {
    invalid("record", "what is stored is not a value of the map's type; verify the pool")
}
