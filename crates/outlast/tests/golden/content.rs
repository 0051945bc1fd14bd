//! The content of the golden pools.

/// Returns number key `n`: the lowest, the highest, then keys that spread over all hashes.
pub(crate) fn word(n: u64) -> u64 {
    match n {
        0 => 0,
        1 => u64::MAX,
        n => n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
    }
}

pub(crate) fn text(n: u64) -> String {
    format!("key {n} {}", "é".repeat(n as usize % 7))
}

pub(crate) fn value(n: u64) -> Vec<u8> {
    let len = if n == 17 { 5000 } else { n as usize * 3 % 200 };
    (0..len).map(|i| (i as u64 * 31 + n) as u8).collect()
}

/// Returns whether record `n` was put and then removed.
pub(crate) fn removed(n: u64) -> bool {
    n % 5 == 3
}

pub(crate) const WORDS: u64 = 150;
pub(crate) const TEXTS: u64 = 60;

/// Lengths of values that take 5 to 28 eighths of a page, in classes of their own, and one that takes a
/// whole page. The pool of Dash-EH has a map `large` of them, by their lengths.
pub(crate) const LARGE: [usize; 9] =
    [2_500, 3_000, 3_500, 4_000, 5_000, 6_000, 7_000, 10_000, 14_000];

pub(crate) fn large(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + len) as u8).collect()
}
