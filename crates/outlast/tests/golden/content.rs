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
