//! Objects of several types, each with its type beside it: the schema `any/1`.
//!
//! | object | encoding |
//! |---|---|
//! | `None`, `False`, `True` | `N`, `F`, `T` |
//! | `int` | `i` and 8 bytes, if it has 64 bits with its sign; otherwise `I`, the length, and its bytes. Little-endian, in two's complement |
//! | `float` | `f` and 8 bytes, little-endian |
//! | `str`, `bytes` | `s` or `b`, the length in bytes, and these |
//! | `tuple`, `list` | `(` or `[`, the number of parts, and these |
//! | `dict` | `{`, the number of records, and the key and the value of each |
//!
//! A length or a number is written in groups of seven bits, the lowest first; all bytes but the last have the highest
//! bit set. An object has one encoding, except that a `dict` keeps its order.

use crate::fail::{Fail, Result, invalid};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

/// How the type is recorded.
pub const SCHEMA: &str = "any/1";

/// How deep objects can be in each other.
const DEPTH: usize = 64;

/// Encodes an object.
pub fn encode(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let mut out = Vec::with_capacity(32);
    append(object, DEPTH, &mut out)?;
    Ok(out)
}

fn append(object: &Bound<'_, PyAny>, depth: usize, out: &mut Vec<u8>) -> PyResult<()> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(PyValueError::new_err("its parts are too deep in each other"));
    };
    if let Ok(text) = object.cast_exact::<PyString>() {
        append_bytes(b's', text.encode_utf8()?.as_bytes(), out);
    } else if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        append_bytes(b'b', bytes.as_bytes(), out);
    } else if let Ok(number) = object.cast_exact::<PyInt>() {
        append_integer(number, out)?;
    } else if let Ok(number) = object.cast_exact::<PyFloat>() {
        out.push(b'f');
        out.extend_from_slice(&number.value().to_le_bytes());
    } else if object.is_none() {
        out.push(b'N');
    } else if let Ok(truth) = object.cast_exact::<PyBool>() {
        out.push(if truth.is_true() { b'T' } else { b'F' });
    } else if let Ok(parts) = object.cast_exact::<PyTuple>() {
        append_number(b'(', parts.len(), out);
        parts.iter().try_for_each(|part| append(&part, depth, out))?;
    } else if let Ok(parts) = object.cast_exact::<PyList>() {
        // Another thread can change the list, so its length is that of a copy.
        let parts = parts.to_tuple();
        append_number(b'[', parts.len(), out);
        parts.iter().try_for_each(|part| append(&part, depth, out))?;
    } else if let Ok(records) = object.cast_exact::<PyDict>() {
        let records: Vec<_> = records.items().to_tuple().iter().collect();
        append_number(b'{', records.len(), out);
        for record in records {
            let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = record.extract()?;
            append(&key, depth, out)?;
            append(&value, depth, out)?;
        }
    } else {
        let name = object.get_type().name()?;
        return Err(PyTypeError::new_err(format!("not {name}")));
    }
    Ok(())
}

fn append_number(tag: u8, mut number: usize, out: &mut Vec<u8>) {
    out.push(tag);
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn append_bytes(tag: u8, bytes: &[u8], out: &mut Vec<u8>) {
    append_number(tag, bytes.len(), out);
    out.extend_from_slice(bytes);
}

fn append_integer(number: &Bound<'_, PyInt>, out: &mut Vec<u8>) -> PyResult<()> {
    if let Ok(small) = number.extract::<i64>() {
        out.push(b'i');
        out.extend_from_slice(&small.to_le_bytes());
        return Ok(());
    }
    // One bit more, for the sign.
    let len = number.call_method0("bit_length")?.extract::<usize>()? / 8 + 1;
    let signed = [("signed", true)].into_py_dict(number.py())?;
    let bytes = number.call_method("to_bytes", (len, "little"), Some(&signed))?;
    append_bytes(b'I', bytes.cast::<PyBytes>()?.as_bytes(), out);
    Ok(())
}

/// Decodes an object.
pub fn decode<'py>(py: Python<'py>, stored: &[u8]) -> Result<Bound<'py, PyAny>> {
    let mut rest = stored;
    let object = take(py, DEPTH, &mut rest)?;
    if rest.is_empty() { Ok(object) } else { Err(damaged()) }
}

fn take<'py>(py: Python<'py>, depth: usize, rest: &mut &[u8]) -> Result<Bound<'py, PyAny>> {
    let depth = depth.checked_sub(1).ok_or_else(damaged)?;
    let (&tag, after) = rest.split_first().ok_or_else(damaged)?;
    *rest = after;
    Ok(match tag {
        b'N' => py.None().into_bound(py),
        b'F' | b'T' => PyBool::new(py, tag == b'T').to_owned().into_any(),
        b'i' => {
            let Ok(number) = i64::from_le_bytes(take_array(rest)?).into_pyobject(py);
            number.into_any()
        }
        b'f' => PyFloat::new(py, f64::from_le_bytes(take_array(rest)?)).into_any(),
        b's' => {
            let text = std::str::from_utf8(take_bytes(rest)?).map_err(|_| damaged())?;
            PyString::new(py, text).into_any()
        }
        b'b' => PyBytes::new(py, take_bytes(rest)?).into_any(),
        b'I' => {
            let bytes = PyBytes::new(py, take_bytes(rest)?);
            let signed = [("signed", true)].into_py_dict(py)?;
            py.get_type::<PyInt>().call_method("from_bytes", (bytes, "little"), Some(&signed))?
        }
        b'(' => PyTuple::new(py, take_parts(py, depth, rest)?)?.into_any(),
        b'[' => PyList::new(py, take_parts(py, depth, rest)?)?.into_any(),
        b'{' => {
            let records = PyDict::new(py);
            for _ in 0..take_number(rest)? {
                let key = take(py, depth, rest)?;
                records.set_item(key, take(py, depth, rest)?)?;
            }
            records.into_any()
        }
        _ => return Err(damaged()),
    })
}

fn take_parts<'py>(
    py: Python<'py>,
    depth: usize,
    rest: &mut &[u8],
) -> Result<Vec<Bound<'py, PyAny>>> {
    // Each part has a byte at least, so no number of parts makes this run for long.
    (0..take_number(rest)?).map(|_| take(py, depth, rest)).collect()
}

fn take_array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N]> {
    let (array, after) = rest.split_first_chunk().ok_or_else(damaged)?;
    *rest = after;
    Ok(*array)
}

fn take_number(rest: &mut &[u8]) -> Result<usize> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let (&byte, after) = rest.split_first().ok_or_else(damaged)?;
        *rest = after;
        number |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(damaged())
}

fn take_bytes<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8]> {
    let len = take_number(rest)?;
    let (own, after) = rest.split_at_checked(len).ok_or_else(damaged)?;
    *rest = after;
    Ok(own)
}

#[cold]
fn damaged() -> Fail {
    invalid("record", "what is stored is not an object; verify the pool")
}
