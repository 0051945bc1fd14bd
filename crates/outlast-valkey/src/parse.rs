//! Numbers, options and patterns in arguments, as the servers read them.

use crate::reply::{Fault, Result};
use std::str::FromStr;

/// Parses an integer in the one form in which the servers write it.
pub fn integer(text: &[u8]) -> Option<i64> {
    let number = i64::from_str(std::str::from_utf8(text).ok()?).ok()?;
    (number.to_string().as_bytes() == text).then_some(number)
}

/// Parses an integer, or fails as the servers do.
pub fn need_integer(text: &[u8]) -> Result<i64> {
    integer(text).ok_or_else(Fault::not_an_integer)
}

/// Parses a finite or infinite float.
pub fn float(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let number = f64::from_str(text).ok()?;
    let is_plain = !text.starts_with(' ') && !number.is_nan();
    is_plain.then_some(number)
}

/// Writes a float without an exponent, and without zeros at its end.
pub fn float_text(number: f64) -> Vec<u8> {
    format!("{number}").into_bytes()
}

/// Returns whether an argument is this word, in upper or lower case.
pub fn is_word(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

/// Returns whether a text matches a pattern with `*`, `?`, `[a-z]`, `[^a]` and `\`.
pub fn matches(mut pattern: &[u8], mut text: &[u8]) -> bool {
    // Where to go on if a `*` has to stand for one byte more.
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        let matched = match pattern.split_first() {
            Some((b'*', rest)) => {
                retry = Some((rest, text));
                pattern = rest;
                continue;
            }
            Some((first, rest)) => {
                let step = text.split_first().and_then(|(byte, after)| {
                    let rest = one(*first, rest, *byte)?;
                    Some((rest, after))
                });
                step.map(|(rest, after)| (pattern, text) = (rest, after)).is_some()
            }
            None if text.is_empty() => return true,
            None => false,
        };
        if !matched {
            let Some((rest, [_, after @ ..])) = retry else { return false };
            retry = Some((rest, after));
            (pattern, text) = (rest, after);
        }
    }
}

/// Matches one byte with the part of a pattern that begins with `first`. Returns the rest of the pattern.
fn one(first: u8, rest: &[u8], byte: u8) -> Option<&[u8]> {
    match (first, rest) {
        (b'?', _) => Some(rest),
        (b'\\', [escaped, rest @ ..]) => (*escaped == byte).then_some(rest),
        (b'[', _) => {
            let (is_negated, mut set) = match rest {
                [b'^', set @ ..] => (true, set),
                set => (false, set),
            };
            let mut found = false;
            let rest = loop {
                match set {
                    [] => break set,
                    [b']', rest @ ..] => break rest,
                    [b'\\', one, rest @ ..] => {
                        found |= *one == byte;
                        set = rest;
                    }
                    [low, b'-', high, rest @ ..] if *high != b']' => {
                        let (low, high) = (low.min(high), low.max(high));
                        found |= (low..=high).contains(&&byte);
                        set = rest;
                    }
                    [one, rest @ ..] => {
                        found |= *one == byte;
                        set = rest;
                    }
                }
            };
            (found != is_negated).then_some(rest)
        }
        _ => (first == byte).then_some(rest),
    }
}

/// Reads `SCAN`'s cursor and options, `rest` being those after the cursor.
pub struct Scan<'a> {
    /// Where to begin.
    pub cursor: u64,
    /// Which keys or fields are wanted.
    pub pattern: Option<&'a [u8]>,
    /// About how many to look at.
    pub count: usize,
    /// Which type is wanted.
    pub of_type: Option<&'a [u8]>,
}

impl<'a> Scan<'a> {
    /// Parses the arguments from the cursor on.
    pub fn parse(args: &[&'a [u8]], with_type: bool) -> Result<Scan<'a>> {
        let cursor = std::str::from_utf8(args[0]).ok().and_then(|text| text.parse().ok());
        let cursor = cursor.ok_or_else(|| Fault::new("invalid cursor"))?;
        let mut scan = Scan { cursor, pattern: None, count: 10, of_type: None };
        let mut rest = args[1..].iter();
        while let Some(option) = rest.next() {
            let value = rest.next().ok_or_else(Fault::syntax)?;
            if is_word(option, "match") {
                scan.pattern = Some(value);
            } else if is_word(option, "count") {
                scan.count = match need_integer(value)? {
                    ..=0 => return Err(Fault::syntax()),
                    count => count as usize,
                };
            } else if with_type && is_word(option, "type") {
                scan.of_type = Some(value);
            } else {
                return Err(Fault::syntax());
            }
        }
        Ok(scan)
    }

    /// Returns whether the pattern matches.
    pub fn wants(&self, text: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| matches(pattern, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_one_form() {
        for (text, number) in [("0", 0), ("-7", -7), ("9223372036854775807", i64::MAX)] {
            assert_eq!(integer(text.as_bytes()), Some(number));
        }
        for text in ["", "+1", "01", "-0", " 1", "1 ", "1.0", "9223372036854775808", "a"] {
            assert_eq!(integer(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn floats_are_written_without_an_exponent() {
        assert_eq!(float_text(5.0), b"5");
        assert_eq!(float_text(-0.1), b"-0.1");
        assert_eq!(float_text(1e20), b"100000000000000000000");
        assert_eq!(float(b"3.0e3"), Some(3000.0));
        for text in ["", " 1", "nan", "x"] {
            assert_eq!(float(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn patterns_match_as_in_the_servers() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("h?llo", "hallo", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeello", true),
            ("*a*b*", "xxaxxb", true),
            ("*a*b", "abxb", true),
            ("*a*bc", "abxb", false),
            ("h[ae]llo", "hello", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[\\]]", "]", true),
            ("a[", "ab", false),
            ("foo*", "foobar", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
