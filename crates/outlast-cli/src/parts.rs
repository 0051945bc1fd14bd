//! Types whose encodings sort as their values do, recognized by their schemas: `bool`, floats,
//! numbers of 128 bits, arrays, tuples (also the empty one) and ordered structs. docs/format.md,
//! section 7, has the encodings. Parts of a tuple can be strings.

use crate::text::{from_hex, hex};
use serde_json::{Number, Value, json};
use std::fmt;

/// A type, or a part of one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Part {
    Unsigned {
        bytes: usize,
    },
    Signed {
        bytes: usize,
    },
    Bool,
    Float {
        bytes: usize,
    },
    Array {
        bytes: usize,
    },
    Tuple(Vec<Part>),
    /// A string, as a part of a tuple.
    Text,
    /// A byte string, as a part of a tuple.
    Bytes,
}

impl Part {
    /// Returns the type that a schema names, if all of its parts are known here.
    pub(crate) fn of(schema: &str) -> Option<Part> {
        let mut rest = schema;
        let part = Part::read(&mut rest)?;
        let is_fixed = |part: &Part| part.size().is_some();
        let is_known = match &part {
            Part::Tuple(parts) => parts.iter().all(|part| part.is_string() || is_fixed(part)),
            other => is_fixed(other),
        };
        (rest.is_empty() && is_known).then_some(part)
    }

    fn read(rest: &mut &str) -> Option<Part> {
        if let Some(after) = rest.strip_prefix("()") {
            *rest = after;
            return Some(Part::Tuple(Vec::new()));
        }
        if let Some(parts) = rest.strip_prefix('(') {
            *rest = parts;
            let mut tuple = vec![Part::read(rest)?];
            while let Some(more) = rest.strip_prefix(',') {
                *rest = more;
                tuple.push(Part::read(rest)?);
            }
            *rest = rest.strip_prefix(')')?;
            if rest.starts_with(' ') {
                // The name of an ordered struct.
                *rest = &rest[rest.find([',', ')']).unwrap_or(rest.len())..];
            }
            return Some(Part::Tuple(tuple));
        }
        if let Some(array) = rest.strip_prefix("[u8;") {
            let (bytes, after) = array.split_once(']')?;
            *rest = after;
            return Some(Part::Array { bytes: bytes.parse().ok()? });
        }
        let (name, after) = rest.split_at(rest.find([',', ')']).unwrap_or(rest.len()));
        *rest = after;
        let bytes = || match &name[1..] {
            "8" => Some(1),
            "16" => Some(2),
            "32" => Some(4),
            "64" => Some(8),
            "128" => Some(16),
            _ => None,
        };
        Some(match name {
            "bool" => Part::Bool,
            "str" => Part::Text,
            "bytes" => Part::Bytes,
            "f32" | "f64" => Part::Float { bytes: bytes()? },
            _ if name.starts_with('u') => Part::Unsigned { bytes: bytes()? },
            _ if name.starts_with('i') => Part::Signed { bytes: bytes()? },
            _ => return None,
        })
    }

    /// The size of an encoding, in bytes, if it is fixed.
    pub(crate) fn size(&self) -> Option<usize> {
        match self {
            Part::Unsigned { bytes }
            | Part::Signed { bytes }
            | Part::Float { bytes }
            | Part::Array { bytes } => Some(*bytes),
            Part::Bool => Some(1),
            Part::Tuple(parts) => parts.iter().map(Part::size).sum(),
            Part::Text | Part::Bytes => None,
        }
    }

    fn is_string(&self) -> bool {
        matches!(self, Part::Text | Part::Bytes)
    }

    /// Returns whether an encoding can be `len` bytes long.
    pub(crate) fn fits(&self, len: usize) -> bool {
        match (self, self.size()) {
            (_, Some(size)) => len == size,
            (Part::Tuple(parts), None) => {
                let (last, others) = parts.split_last().expect("an empty tuple has a size");
                let least = |part: &Part| part.size().unwrap_or(END.len());
                len >= others.iter().map(least).sum::<usize>() + last.size().unwrap_or(0)
            }
            (_, None) => true,
        }
    }

    /// Decodes an encoding, whose length must [fit](Part::fits). Returns `None` if it is not that of any
    /// value.
    pub(crate) fn decode(&self, bytes: &[u8]) -> Option<Value> {
        let number = || bytes.iter().fold(0, |number, &byte| number << 8 | u128::from(byte));
        Some(match self {
            Part::Unsigned { .. } => Number::from_u128(number()).map(Value::Number)?,
            Part::Signed { .. } => {
                let unused = 128 - 8 * bytes.len() as u32;
                let number = ((number() << unused ^ 1 << 127) as i128) >> unused;
                Number::from_i128(number).map(Value::Number)?
            }
            Part::Bool => match bytes {
                [0] => json!(false),
                [1] => json!(true),
                _ => return None,
            },
            Part::Float { bytes: 4 } => {
                let bits = from_order(bytes.try_into().ok()?);
                let float = f32::from_be_bytes(bits);
                // This prints as few digits as distinguish the float from every other `f32`.
                of_float(&float.to_string(), float.is_nan(), bits, F32_NAN.to_be_bytes())
            }
            Part::Float { .. } => {
                let bits = from_order(bytes.try_into().ok()?);
                let float = f64::from_be_bytes(bits);
                of_float(&float.to_string(), float.is_nan(), bits, F64_NAN.to_be_bytes())
            }
            Part::Array { .. } => as_hex(bytes),
            Part::Text => json!(std::str::from_utf8(bytes).ok()?),
            Part::Bytes => match std::str::from_utf8(bytes) {
                Ok(text) => json!(text),
                Err(_) => as_hex(bytes),
            },
            Part::Tuple(parts) => {
                let mut rest = bytes;
                let values = parts.iter().enumerate().map(|(index, part)| match part.size() {
                    Some(size) => part.decode(rest.split_off(..size)?),
                    None if index + 1 == parts.len() => part.decode(std::mem::take(&mut rest)),
                    None => part.decode(&take_string(&mut rest)?),
                });
                let values = values.collect::<Option<_>>()?;
                rest.is_empty().then_some(Value::Array(values))?
            }
        })
    }

    /// Appends the encoding of a value to `out`. Returns `None` if the type has no such value.
    pub(crate) fn encode(&self, value: &Value, out: &mut Vec<u8>) -> Option<()> {
        if let Value::Object(object) = value {
            let digits = object.get("hex").filter(|_| object.len() == 1)?.as_str()?;
            let bytes = from_hex(digits.as_bytes()).filter(|bytes| self.fits(bytes.len()))?;
            self.decode(&bytes)?;
            out.extend(bytes);
            return Some(());
        }
        // Numbers may be written as text.
        let text = || match value {
            Value::String(text) => Some(text.trim().to_string()),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(bool) => Some(bool.to_string()),
            _ => None,
        };
        match self {
            Part::Unsigned { bytes } => {
                let number = text()?.parse::<u128>().ok()?.to_be_bytes();
                let (above, low) = number.split_at(16 - bytes);
                out.extend(above.iter().all(|&byte| byte == 0).then_some(low)?);
            }
            Part::Signed { bytes } => {
                let number: i128 = text()?.parse().ok()?;
                let unused = 128 - 8 * *bytes as u32;
                // The unused highest bits must all equal the sign.
                (number << unused >> unused == number).then_some(())?;
                let ordered = number as u128 ^ 1 << (8 * bytes - 1);
                out.extend(&ordered.to_be_bytes()[16 - bytes..]);
            }
            Part::Bool => out.push(u8::from(text()?.parse::<bool>().ok()?)),
            Part::Float { bytes: 4 } => {
                let bits = to_float(&text()?, F32_NAN.to_be_bytes(), |text| {
                    let float = text.parse().ok()?;
                    finite_or_said(float, f32::is_finite, text).map(f32::to_be_bytes)
                });
                out.extend(to_order(bits?));
            }
            Part::Float { .. } => {
                let bits = to_float(&text()?, F64_NAN.to_be_bytes(), |text| {
                    let float = text.parse().ok()?;
                    finite_or_said(float, f64::is_finite, text).map(f64::to_be_bytes)
                });
                out.extend(to_order(bits?));
            }
            Part::Array { bytes } => {
                let digits = text().and_then(|text| from_hex(text.strip_prefix("0x")?.as_bytes()));
                out.extend(digits.filter(|digits| digits.len() == *bytes)?);
            }
            Part::Text | Part::Bytes => out.extend(value.as_str()?.as_bytes()),
            Part::Tuple(parts) => {
                let parsed = match value {
                    Value::String(text) => serde_json::from_str(text).ok()?,
                    other => other.clone(),
                };
                let values = parsed.as_array().filter(|values| values.len() == parts.len())?;
                for (index, (part, value)) in parts.iter().zip(values).enumerate() {
                    if part.is_string() && index + 1 < parts.len() {
                        let mut string = Vec::new();
                        part.encode(value, &mut string)?;
                        append_string(&string, out);
                    } else {
                        part.encode(value, out)?;
                    }
                }
            }
        }
        Some(())
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Unsigned { bytes } => write!(f, "u{}", 8 * bytes),
            Part::Signed { bytes } => write!(f, "i{}", 8 * bytes),
            Part::Bool => f.write_str("bool"),
            Part::Float { bytes } => write!(f, "f{}", 8 * bytes),
            Part::Text => f.write_str("text"),
            Part::Bytes => f.write_str("bytes"),
            Part::Array { bytes } => write!(f, "0x and {} hexadecimal digits", 2 * bytes),
            Part::Tuple(parts) => {
                f.write_str("a list [")?;
                for (index, part) in parts.iter().enumerate() {
                    write!(f, "{}{part}", if index == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
        }
    }
}

/// The bytes that end a string before the last part of a tuple. In it, a byte 0 is followed by 255.
const END: [u8; 2] = [0, 0];

fn append_string(string: &[u8], out: &mut Vec<u8>) {
    for &byte in string {
        out.push(byte);
        if byte == 0 {
            out.push(u8::MAX);
        }
    }
    out.extend(END);
}

/// Decodes such a string, and moves on to the bytes after it.
fn take_string(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let mut string = Vec::new();
    loop {
        let own = rest.split_off(..rest.iter().position(|&byte| byte == 0)?)?;
        string.extend_from_slice(own);
        match rest.split_off(..END.len())? {
            [_, 0] => return Some(string),
            [_, u8::MAX] => string.push(0),
            _ => return None,
        }
    }
}

fn as_hex(bytes: &[u8]) -> Value {
    json!({ "hex": hex(bytes) })
}

/// The bits of the NaN that is written `NaN`. Other NaNs are written as their bits.
const F32_NAN: u32 = 0x7fc0_0000;
const F64_NAN: u64 = 0x7ff8_0000_0000_0000;

/// Returns a float as JSON: a number if it is finite, otherwise text. `bits` are the float's bits,
/// and `nan` those of the NaN that is written `NaN`, both with the most significant byte first.
fn of_float<const N: usize>(text: &str, is_nan: bool, bits: [u8; N], nan: [u8; N]) -> Value {
    if is_nan && bits != nan {
        return json!(format!("0x{}", hex(&bits)));
    }
    let number = text.parse().ok().and_then(Number::from_f64);
    number.map_or_else(|| json!(text), Value::Number)
}

/// Parses a float, and returns its bits. The text can be 0x and all hexadecimal digits of the bits,
/// the most significant first. `NaN`, in upper or lower case, stands for `nan`, because it is not
/// specified which bits a parser returns for it. `parse` parses all other text.
fn to_float<const N: usize>(
    text: &str,
    nan: [u8; N],
    parse: impl FnOnce(&str) -> Option<[u8; N]>,
) -> Option<[u8; N]> {
    let bits = text.strip_prefix("0x").and_then(|digits| from_hex(digits.as_bytes()));
    match bits.and_then(|bits| bits.try_into().ok()) {
        Some(bits) => Some(bits),
        None if text.eq_ignore_ascii_case("nan") => Some(nan),
        None => parse(text),
    }
}

/// Converts the bits of a float to bytes that sort as the floats do.
fn to_order<const N: usize>(bits: [u8; N]) -> [u8; N] {
    with_order(bits, bits[0] >> 7 == 0)
}

/// The inverse of [`to_order`].
fn from_order<const N: usize>(ordered: [u8; N]) -> [u8; N] {
    with_order(ordered, ordered[0] >> 7 == 1)
}

fn with_order<const N: usize>(mut bytes: [u8; N], is_positive: bool) -> [u8; N] {
    if is_positive {
        bytes[0] ^= 1 << 7;
        return bytes;
    }
    bytes.map(|byte| !byte)
}

/// Refuses a number that is too large for its type, which the parser rounds to infinity. Allows
/// infinity where the text, which then has no digits, names it.
fn finite_or_said<F: Copy>(float: F, is_finite: fn(F) -> bool, text: &str) -> Option<F> {
    let says_so = !text.bytes().any(|byte| byte.is_ascii_digit());
    (is_finite(float) || says_so).then_some(float)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that decoding the encoding of a value returns the value.
    fn check(schema: &str, value: Value) -> Vec<u8> {
        let part = Part::of(schema).unwrap_or_else(|| panic!("{schema}"));
        let mut bytes = Vec::new();
        part.encode(&value, &mut bytes).unwrap_or_else(|| panic!("{schema}: {value}"));
        assert!(part.fits(bytes.len()));
        assert_eq!(part.decode(&bytes), Some(value), "{schema}");
        bytes
    }

    #[test]
    fn values_are_encoded_as_the_library_encodes_them() {
        use outlast::FixedSize;
        fn of<T: FixedSize>(value: T) -> Vec<u8> {
            let mut bytes = vec![0; T::BYTES];
            value.encode(&mut bytes);
            bytes
        }
        assert_eq!(check("u128", json!(7)), of(7u128));
        assert_eq!(check("u128", json!(u128::MAX)), of(u128::MAX));
        for number in [i64::MIN, -2, 0, 5, i64::MAX] {
            assert_eq!(check("i128", json!(number)), of(i128::from(number)));
            assert_eq!(check("(i64,u8)", json!([number, 1])), of((number, 1u8)));
        }
        for number in [i128::MIN, i128::MAX] {
            assert_eq!(check("i128", json!(number)), of(number));
        }
        for number in [-128i8, -1, 0, 127] {
            assert_eq!(check("(i8,bool)", json!([number, true])), of((number, true)));
        }
        for float in [-1.5, -0.0, 0.0, 0.1, f64::MAX, f64::MIN_POSITIVE] {
            assert_eq!(check("f64", json!(float)), of(float));
        }
        assert_eq!(check("f64", json!("-inf")), of(f64::NEG_INFINITY));
        assert_eq!(check("f32", json!(0.1)), of(0.1f32));
        assert_eq!(check("f32", json!("inf")), of(f32::INFINITY));
        let nan = f64::from_bits(f64::NAN.to_bits() | 5);
        assert_eq!(check("f64", json!("0x7ff8000000000005")), of(nan));
        assert_eq!(check("f64", json!("NaN")), of(f64::from_bits(F64_NAN)));
        assert_eq!(check("f64", json!("0xfff8000000000000")), of(f64::from_bits(!0 << 51)));
        assert_eq!(check("f32", json!("NaN")), of(f32::from_bits(F32_NAN)));
        assert_eq!(check("f32", json!("0x7fc00001")), of(f32::from_bits(F32_NAN + 1)));
        assert_eq!(check("[u8;3]", as_hex(&[1, 2, 255])), [1, 2, 255]);
        let nested = json!([1, [-2, false], { "hex": "0102" }, 2.5]);
        let schema = "(u8,(i16,bool) name/1,[u8;2],f64)";
        assert_eq!(check(schema, nested), of((1u8, (-2i16, false), [1u8, 2], 2.5)));
        assert_eq!(check("(u16,str)", json!([7, "text"])), b"\x00\x07text");
        assert_eq!(check("(u16,str)", json!([7, ""])), b"\x00\x07");
        assert_eq!(check("(u8,bytes)", json!([7, { "hex": "ff" }])), [7, 255]);
        assert_eq!(check("()", json!([])), of(()));
        fn of_key(key: &impl outlast::Value) -> Vec<u8> {
            key.with_bytes(<[u8]>::to_vec)
        }
        let key = ("a\0b".to_owned(), 7u16);
        assert_eq!(check("(str,u16)", json!(["a\0b", 7])), of_key(&key));
        let key = (true, vec![0, 255], "é".to_owned(), String::new());
        let json = json!([true, { "hex": "00ff" }, "é", ""]);
        assert_eq!(check("(bool,bytes,str,str)", json), of_key(&key));
    }

    #[test]
    fn what_is_no_value_of_a_type_is_refused() {
        for (schema, value) in [
            ("(u8,u8)", json!([256, 1])),
            ("(u8,u8)", json!([1])),
            ("(u8,u8)", json!("1, 2")),
            ("(i8,u8)", json!([128, 1])),
            ("(i8,u8)", json!([-129, 1])),
            ("bool", json!(2)),
            ("bool", json!({ "hex": "02" })),
            ("f64", json!("x")),
            ("f64", json!("1e400")),
            ("f64", json!("-1e400")),
            ("f32", json!(1e300)),
            ("f64", json!("0x7ff8")),
            ("[u8;2]", json!("0x01")),
            ("u128", json!(-1)),
            ("(u8,str)", json!([1, 2])),
            ("(u8,str)", json!([1, { "hex": "ff" }])),
            ("(u8,str)", json!({ "hex": "" })),
            ("(str,u8)", json!({ "hex": "610007" })),
            ("(str,u8)", json!({ "hex": "6100010007" })),
            ("(str,u8)", json!({ "hex": "ff000007" })),
            ("(str,u8)", json!({ "hex": "61000007ff" })),
            ("()", json!([1])),
        ] {
            assert_eq!(Part::of(schema).unwrap().encode(&value, &mut Vec::new()), None, "{value}");
        }
        assert_eq!(Part::Bool.decode(&[2]), None);
        for unknown in [
            "point/1",
            "(u8,point/1)",
            "(u8",
            "u7",
            "u",
            "",
            "[u8;x]",
            "u8)",
            "str",
            "(u8,(u8,str))",
            "(u8,)",
        ] {
            assert_eq!(Part::of(unknown), None, "{unknown}");
        }
    }
}
