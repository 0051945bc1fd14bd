//! Under which keys of the pool's maps things lie, and times as they are written there.

use crate::reply::{Fault, Result};
use crate::store::{HashInfo, Kind};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A cluster's slots.
pub const SLOTS: u64 = 16_384;
/// Bytes before the key in a key of `keys`.
pub const PREFIX: usize = 6;

/// The key of a field: the number of the hash, the hash of the field (0 in an ordered map), the field.
pub type FieldKey = (u64, u32, Vec<u8>);

/// Returns the key under which a key lies.
pub fn place_of(key: &[u8]) -> Vec<u8> {
    let mut place = Vec::with_capacity(PREFIX + key.len());
    place.extend_from_slice(&slot_of(key).to_be_bytes());
    place.extend_from_slice(&spread(key).to_be_bytes());
    place.extend_from_slice(key);
    place
}

/// Returns the position of a key: its slot and its hash.
pub fn position_of(place: &[u8]) -> Result<u64> {
    let Some(prefix) = place.first_chunk::<PREFIX>() else {
        return Err(Fault::new("the pool has a key without a slot"));
    };
    Ok(prefix.iter().fold(0, |position, &byte| position << 8 | u64::from(byte)))
}

/// Returns the least place at a position.
pub fn prefix_of(position: u64) -> Vec<u8> {
    let bytes = position.min(SLOTS << 32).to_be_bytes();
    bytes[bytes.len() - PREFIX..].to_vec()
}

/// Returns the key under which a field of a hash lies.
pub fn field_key(hash: HashInfo, field: &[u8]) -> FieldKey {
    let position = match hash.kind {
        Kind::Hash => spread(field),
        Kind::Ordered => 0,
    };
    (hash.number, position, field.to_vec())
}

/// A hash of 32 bits (FNV-1a, folded), never 0: a scan's cursor 0 is its beginning. It is on media.
fn spread(bytes: &[u8]) -> u32 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    ((hash ^ hash >> 32) as u32).max(1)
}

/// Returns the slot of a key in a cluster: CRC-16 (XMODEM) of the key, or of the part in its first braces.
pub fn slot_of(key: &[u8]) -> u16 {
    let tagged = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let len = rest.iter().position(|&byte| byte == b'}').filter(|&len| len > 0)?;
        Some(&rest[..len])
    });
    let crc = tagged
        .unwrap_or(key)
        .iter()
        .fold(0u16, |crc, &byte| crc << 8 ^ CRC[usize::from((crc >> 8) as u8 ^ byte)]);
    crc % SLOTS as u16
}

/// The CRC-16 (XMODEM) of each byte.
static CRC: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Returns a time as milliseconds since 1970, rounded up.
pub fn to_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The inverse of [`to_ms`].
pub fn from_ms(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_a_cluster() {
        // The check value of CRC-16/XMODEM, and examples of the cluster's specification.
        assert_eq!(slot_of(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"{user1000}.followers"));
        assert_eq!(slot_of(b"foo{}{bar}"), slot_of(b"foo{}{bar}"));
        assert_ne!(slot_of(b"foo{}{bar}"), slot_of(b"bar"));
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
    }

    #[test]
    fn places_are_in_the_order_of_positions() {
        let mut places: Vec<_> = (0..1_000u32).map(|n| place_of(&n.to_le_bytes())).collect();
        places.sort();
        let positions: Vec<_> = places.iter().map(|place| position_of(place).unwrap()).collect();
        assert!(positions.is_sorted() && positions.iter().all(|position| *position > 0));
        assert!(places.iter().zip(positions).all(|(place, at)| prefix_of(at)[..] <= place[..]));
    }
}
