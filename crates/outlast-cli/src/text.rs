//! Converts keys and values from and to text, according to the schemas of their map.

use crate::failure::Failure;
use crate::parts::Part;
use indicatif::HumanCount;
use outlast::{MapInfo, RecordForm};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Reads the name of a type on the command line. It can have spaces, as in Rust.
pub(crate) fn type_name(text: &str) -> Result<String, String> {
    let schema: String = text.chars().filter(|letter| *letter != ' ').collect();
    match Kind::of(&schema) {
        Kind::Opaque => {
            Err("the types are str, bytes, u8 to u128, i8 to i128, bool, f32, f64, [u8;N], () \
                             and tuples of these, with strings only as parts of the outer tuple"
                .into())
        }
        _ => Ok(schema),
    }
}

/// The byte order mark, which some programs write before text in UTF-8.
pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// How the bytes of keys or values are interpreted.
#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Unsigned {
        bytes: usize,
    },
    Signed {
        bytes: usize,
    },
    Str,
    Bytes,
    /// A type whose encodings sort as its values do.
    Ordered(Part),
    /// A type that only the program that made the map knows.
    Opaque,
}

/// The keys or the values of a map.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Column {
    kind: Kind,
    /// Whether they are stored inline, as words of 8 bytes.
    word: bool,
    /// `key` or `value`, for messages.
    what: &'static str,
}

/// Returns the columns for the keys and values of a map.
pub(crate) fn columns(info: &MapInfo) -> (Column, Column) {
    columns_of(&info.key_schema, &info.value_schema, info.form)
}

/// Returns the columns for keys and values of these types, in a map of this form.
pub(crate) fn columns_of(keys: &str, values: &str, form: RecordForm) -> (Column, Column) {
    let word = form == RecordForm::Inline;
    let column = |schema: &str, what| Column { kind: Kind::of(schema), word, what };
    (column(keys, "key"), column(values, "value"))
}

impl Kind {
    fn of(schema: &str) -> Kind {
        match schema {
            "str" => Kind::Str,
            "bytes" => Kind::Bytes,
            "u8" => Kind::Unsigned { bytes: 1 },
            "u16" => Kind::Unsigned { bytes: 2 },
            "u32" => Kind::Unsigned { bytes: 4 },
            "u64" => Kind::Unsigned { bytes: 8 },
            "i8" => Kind::Signed { bytes: 1 },
            "i16" => Kind::Signed { bytes: 2 },
            "i32" => Kind::Signed { bytes: 4 },
            "i64" => Kind::Signed { bytes: 8 },
            _ => Part::of(schema).map_or(Kind::Opaque, Kind::Ordered),
        }
    }
}

impl Column {
    /// Parses text, and returns the bytes that the map stores. If `hex` is set, the text is those
    /// bytes in hexadecimal.
    pub(crate) fn parse(&self, text: &[u8], hex: bool) -> Result<Vec<u8>, Failure> {
        if hex {
            return self.digits(text);
        }
        match &self.kind {
            Kind::Str => match std::str::from_utf8(text) {
                Ok(_) => Ok(text.to_vec()),
                Err(_) => Err(self.no("UTF-8", text)),
            },
            Kind::Bytes => Ok(text.to_vec()),
            Kind::Unsigned { .. } | Kind::Signed { .. } => {
                let number = std::str::from_utf8(text).ok().and_then(|t| t.trim().parse().ok());
                self.number(number.ok_or_else(|| self.no(&self.kind_name(), text))?)
            }
            Kind::Ordered(_) => {
                let text = std::str::from_utf8(text).map_err(|_| self.no("UTF-8", text))?;
                self.parse_json(&json!(text))
            }
            Kind::Opaque => {
                let bytes = text.strip_prefix(b"0x").and_then(from_hex);
                self.raw(bytes.ok_or_else(|| self.no("0x and hexadecimal digits", text))?)
            }
        }
    }

    /// Parses a JSON value.
    pub(crate) fn parse_json(&self, value: &Value) -> Result<Vec<u8>, Failure> {
        let no = || match value {
            Value::String(text) => self.no(&self.kind_name(), text.as_bytes()),
            other => self.no(&self.kind_name(), other.to_string().as_bytes()),
        };
        if let Kind::Ordered(part) = &self.kind {
            let mut bytes = Vec::new();
            part.encode(value, &mut bytes).ok_or_else(no)?;
            if self.word {
                bytes.reverse();
            }
            return Ok(self.padded(bytes));
        }
        match value {
            Value::String(text) => self.parse(text.as_bytes(), false),
            Value::Number(number) if !matches!(self.kind, Kind::Opaque) => {
                match (&self.kind, number.as_i128()) {
                    (Kind::Str | Kind::Bytes, _) => Ok(number.to_string().into_bytes()),
                    (_, Some(number)) => self.number(number),
                    (_, None) => Err(no()),
                }
            }
            Value::Object(object) if object.len() == 1 && object.contains_key("hex") => {
                let digits = object.get("hex").and_then(Value::as_str).ok_or_else(no)?;
                self.digits(digits.as_bytes())
            }
            Value::Object(_) | Value::Array(_) | Value::Bool(_) | Value::Null => {
                Err(Failure::Usage(format!(
                    "the {} is a JSON {}: only strings, numbers and {{\"hex\": ...}} are stored; to \
                     store JSON, write it as a string",
                    self.what,
                    match value {
                        Value::Object(_) => "object",
                        Value::Array(_) => "array",
                        Value::Null => "null",
                        _ => "boolean",
                    }
                )))
            }
            _ => Err(no()),
        }
    }

    /// Returns whether the column holds strings, so that it makes sense to select by a prefix.
    pub(crate) fn is_text(&self) -> bool {
        !self.word && matches!(self.kind, Kind::Str | Kind::Bytes)
    }

    fn number(&self, number: i128) -> Result<Vec<u8>, Failure> {
        let (bytes, fits) = match &self.kind {
            Kind::Unsigned { bytes } => (*bytes, (0..1 << (8 * bytes)).contains(&number)),
            Kind::Signed { bytes } => {
                let end = 1 << (8 * bytes - 1);
                (*bytes, (-end..end).contains(&number))
            }
            _ => unreachable!("only called for numbers"),
        };
        if !fits {
            return Err(self.no(&self.kind_name(), number.to_string().as_bytes()));
        }
        Ok(self.padded(number.to_le_bytes()[..bytes].to_vec()))
    }

    /// Parses stored bytes in hexadecimal.
    fn digits(&self, text: &[u8]) -> Result<Vec<u8>, Failure> {
        self.raw(from_hex(text).ok_or_else(|| self.no("pairs of hexadecimal digits", text))?)
    }

    /// Checks bytes that were given in hexadecimal, and pads them as the map stores them.
    fn raw(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Failure> {
        let fits = match self.len() {
            Some(len) => bytes.len() == len || (self.word && bytes.len() == 8),
            None => !self.word || bytes.len() <= 8,
        };
        let is_text = self.kind != Kind::Str || std::str::from_utf8(&bytes).is_ok();
        if fits && is_text {
            Ok(self.padded(bytes))
        } else {
            Err(self.no(&self.kind_name(), hex(&bytes).as_bytes()))
        }
    }

    /// The size of the type's values, if it is fixed.
    fn len(&self) -> Option<usize> {
        match &self.kind {
            Kind::Unsigned { bytes } | Kind::Signed { bytes } => Some(*bytes),
            Kind::Ordered(part) => part.size(),
            Kind::Str | Kind::Bytes | Kind::Opaque => None,
        }
    }

    fn padded(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        if self.word && bytes.len() < 8 {
            bytes.resize(8, 0);
        }
        bytes
    }

    fn kind_name(&self) -> String {
        match &self.kind {
            Kind::Unsigned { bytes } => format!("u{}", 8 * bytes),
            Kind::Signed { bytes } => format!("i{}", 8 * bytes),
            Kind::Str => "UTF-8".into(),
            Kind::Bytes => "bytes".into(),
            Kind::Ordered(part) => part.to_string(),
            Kind::Opaque => "this map's type".into(),
        }
    }

    fn no(&self, expected: &str, found: &[u8]) -> Failure {
        let mut shown: String = String::from_utf8_lossy(found).chars().take(60).collect();
        if shown.len() < found.len() && shown.chars().count() == 60 {
            shown.push_str("...");
        }
        Failure::Usage(format!("the {} {shown:?} is not {expected}", self.what))
    }

    /// Decodes `bytes` as a number, if the type is a number.
    fn to_number(&self, bytes: &[u8]) -> Option<i128> {
        let (len, signed) = match &self.kind {
            Kind::Unsigned { bytes } => (*bytes, false),
            Kind::Signed { bytes } => (*bytes, true),
            _ => return None,
        };
        let (used, padding) = bytes.split_at_checked(len)?;
        let padding_expected = if self.word { 8 - len } else { 0 };
        if padding.len() != padding_expected || padding.iter().any(|&b| b != 0) {
            return None;
        }
        let fill = if signed && used[len - 1] >= 0x80 { 0xff } else { 0 };
        let mut wide = [fill; 16];
        wide[..len].copy_from_slice(used);
        Some(i128::from_le_bytes(wide))
    }

    /// Extracts the encoding of a value of type `part` from the bytes that the map stores. Returns
    /// `None` if they have the wrong length or padding.
    fn encoding(&self, part: &Part, bytes: &[u8]) -> Option<Vec<u8>> {
        if !self.word {
            return part.fits(bytes.len()).then(|| bytes.to_vec());
        }
        let (used, padding) = bytes.split_at_checked(part.size()?)?;
        // Written with the most significant byte first, a word ends with the encoding.
        padding.iter().all(|&byte| byte == 0).then(|| used.iter().rev().copied().collect())
    }

    /// Formats bytes as text. Strings are returned as they are, whether they are UTF-8 or not. For
    /// other types, bytes that are not a value of the type are shown in hexadecimal.
    pub(crate) fn plain(&self, bytes: &[u8]) -> Vec<u8> {
        match &self.kind {
            Kind::Str | Kind::Bytes => bytes.to_vec(),
            Kind::Ordered(_) => match self.json(bytes) {
                Value::String(text) => text.into_bytes(),
                Value::Object(_) => self.written(bytes, true),
                other => other.to_string().into_bytes(),
            },
            _ => match self.to_number(bytes) {
                Some(number) => number.to_string().into_bytes(),
                None => format!("0x{}", hex(bytes)).into_bytes(),
            },
        }
    }

    /// Formats bytes as text, or entirely in hexadecimal, without the padding of a word.
    pub(crate) fn written(&self, bytes: &[u8], as_hex: bool) -> Vec<u8> {
        if !as_hex {
            return self.plain(bytes);
        }
        let unpadded = self.len().and_then(|len| bytes.split_at_checked(len));
        let shown = match unpadded {
            Some((used, padding)) if padding.iter().all(|&byte| byte == 0) => used,
            _ => bytes,
        };
        format!("0x{}", hex(shown)).into_bytes()
    }

    /// Appends bytes to `line` as a field of a tab-separated line.
    pub(crate) fn tsv(&self, bytes: &[u8], line: &mut Vec<u8>) {
        let text = self.plain(bytes);
        let mut rest = &text[..];
        if text.starts_with(BYTE_ORDER_MARK) {
            // At the beginning of a file, a byte order mark would be skipped, not read as part of
            // the key.
            line.extend(b"\\xef");
            rest = &text[1..];
        }
        escape(rest, line);
    }

    /// Formats bytes as JSON.
    pub(crate) fn json(&self, bytes: &[u8]) -> Value {
        let as_hex = || json!({ "hex": hex(bytes) });
        match &self.kind {
            Kind::Str | Kind::Bytes => match std::str::from_utf8(bytes) {
                Ok(text) => json!(text),
                Err(_) => as_hex(),
            },
            Kind::Ordered(part) => {
                let value = self.encoding(part, bytes).and_then(|bytes| part.decode(&bytes));
                value.unwrap_or_else(as_hex)
            }
            _ => match self.to_number(bytes) {
                // The number fits in 64 bits in either case.
                Some(number) if number < 0 => json!(number as i64),
                Some(number) => json!(number as u64),
                None => as_hex(),
            },
        }
    }
}

/// Appends text to `line` as a field of a tab-separated line.
fn escape(text: &[u8], line: &mut Vec<u8>) {
    for &byte in text {
        match byte {
            b'\t' => line.extend(b"\\t"),
            b'\n' => line.extend(b"\\n"),
            b'\r' => line.extend(b"\\r"),
            b'\\' => line.extend(b"\\\\"),
            other => line.push(other),
        }
    }
}

/// Returns a map's name with the escapes of a tab-separated field.
pub(crate) fn name(name: &str) -> String {
    let mut line = Vec::with_capacity(name.len());
    escape(name.as_bytes(), &mut line);
    String::from_utf8_lossy(&line).into_owned()
}

/// Undoes the escapes of a tab-separated field. Returns `None` if an escape is invalid.
pub(crate) fn unescape(field: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field.iter().copied();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        out.push(match rest.next()? {
            b't' => b'\t',
            b'n' => b'\n',
            b'r' => b'\r',
            b'\\' => b'\\',
            b'x' => digit(rest.next()?)? << 4 | digit(rest.next()?)?,
            _ => return None,
        });
    }
    Some(out)
}

/// Returns the least byte string above all those that begin with `prefix`, if there is one.
pub(crate) fn above_all_with(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut above = prefix[..=last].to_vec();
    above[last] += 1;
    Some(above)
}

/// Formats a number of things: "1 record", "2,000 records".
pub(crate) fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", HumanCount(count))
}

/// Formats bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(crate) fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.strip_prefix(b"0x").unwrap_or(text);
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect()
}

fn digit(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|d| d as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(schema: &str, word: bool) -> Column {
        Column { kind: Kind::of(schema), word, what: "key" }
    }

    #[test]
    fn numbers_come_back_at_the_ends_of_their_ranges() {
        for (schema, numbers) in [
            ("u8", ["0", "255"]),
            ("u16", ["0", "65535"]),
            ("u32", ["0", "4294967295"]),
            ("u64", ["0", "18446744073709551615"]),
            ("i8", ["-128", "127"]),
            ("i16", ["-32768", "32767"]),
            ("i32", ["-2147483648", "2147483647"]),
            ("i64", ["-9223372036854775808", "9223372036854775807"]),
        ] {
            for word in [false, true] {
                let column = column(schema, word);
                for number in numbers {
                    let bytes = column.parse(number.as_bytes(), false).unwrap();
                    assert_eq!(column.plain(&bytes), number.as_bytes(), "{schema}");
                    assert_eq!(column.json(&bytes).to_string(), number, "{schema}");
                    assert_eq!(column.parse_json(&column.json(&bytes)).unwrap(), bytes);
                    assert_eq!(bytes.len() == 8, word || schema.ends_with("64"));
                }
            }
        }
    }

    #[test]
    fn numbers_are_stored_as_the_library_stores_them() {
        let minus_two = column("i32", true).parse(b"-2", false).unwrap();
        assert_eq!(minus_two, u64::from(-2i32 as u32).to_le_bytes());
        assert_eq!(column("i32", false).parse(b"-2", false).unwrap(), (-2i32).to_le_bytes());
    }

    #[test]
    fn what_is_out_of_range_or_no_number_is_refused() {
        for (schema, text) in [
            ("u8", "256"),
            ("u8", "-1"),
            ("i8", "128"),
            ("u64", "18446744073709551616"),
            ("u64", "x"),
        ] {
            assert!(column(schema, false).parse(text.as_bytes(), false).is_err(), "{text}");
        }
        assert!(column("str", false).parse(b"\xff", false).is_err());
        assert!(column("bytes", false).parse(b"\xff", false).is_ok());
        assert!(column("bytes", false).parse(b"0x1", true).is_err());
        assert!(column("mine/1", false).parse(b"plain", false).is_err());
    }

    #[test]
    fn bytes_that_are_not_text_come_back_through_json_and_tabs() {
        let bytes = b"a\tb\nc\\d\re\xff\x00";
        let column = column("bytes", false);
        assert_eq!(column.parse_json(&column.json(bytes)).unwrap(), bytes);
        let mut line = Vec::new();
        column.tsv(bytes, &mut line);
        assert!(!line.contains(&b'\n') && !line.contains(&b'\t'));
        assert_eq!(unescape(&line).unwrap(), bytes);
        assert_eq!(unescape(br"\x00\xfF").unwrap(), [0, 255]);
        line.clear();
        column.tsv("\u{feff}a".as_bytes(), &mut line);
        assert!(!line.starts_with(BYTE_ORDER_MARK));
        assert_eq!(unescape(&line).unwrap(), "\u{feff}a".as_bytes());
        for bad in [&br"\"[..], br"\q", br"\x1"] {
            assert_eq!(unescape(bad), None);
        }
    }

    #[test]
    fn unknown_types_are_hexadecimal() {
        let column = column("mine/1", false);
        assert_eq!(column.plain(&[0, 255]), b"0x00ff");
        assert_eq!(column.parse(b"0x00ff", false).unwrap(), [0, 255]);
        assert_eq!(column.json(&[0, 255]).to_string(), r#"{"hex":"00ff"}"#);
    }
}
