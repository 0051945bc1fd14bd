//! MD5 (RFC 1321), for fingerprints of files. Not for anything that must be secure.

/// The amounts of the rotations, four for each round.
const ROTATIONS: [[u32; 4]; 4] =
    [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

/// A digest under way.
pub(super) struct Md5 {
    state: [u32; 4],
    /// The bytes of the block that is not full yet.
    block: Vec<u8>,
    bytes: u64,
    sines: [u32; 64],
}

impl Md5 {
    pub(super) fn new() -> Md5 {
        let sines =
            std::array::from_fn(|i| (((i + 1) as f64).sin().abs() * (1u64 << 32) as f64) as u32);
        let state = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
        Md5 { state, block: Vec::with_capacity(64), bytes: 0, sines }
    }

    pub(super) fn add(&mut self, mut bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min(64 - self.block.len()));
            self.block.extend_from_slice(part);
            bytes = rest;
            if self.block.len() == 64 {
                self.mix();
                self.block.clear();
            }
        }
    }

    fn mix(&mut self) {
        let mut words = [0; 16];
        for (word, bytes) in words.iter_mut().zip(self.block.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        let [mut a, mut b, mut c, mut d] = self.state;
        for step in 0..64 {
            let (function, word) = match step / 16 {
                0 => (b & c | !b & d, step),
                1 => (d & b | !d & c, 5 * step + 1),
                2 => (b ^ c ^ d, 3 * step + 5),
                _ => (c ^ (b | !d), 7 * step),
            };
            let sum = a
                .wrapping_add(function)
                .wrapping_add(self.sines[step])
                .wrapping_add(words[word % 16]);
            let next = b.wrapping_add(sum.rotate_left(ROTATIONS[step / 16][step % 4]));
            (a, d, c, b) = (d, c, b, next);
        }
        for (state, part) in self.state.iter_mut().zip([a, b, c, d]) {
            *state = state.wrapping_add(part);
        }
    }

    pub(super) fn finish(mut self) -> [u8; 16] {
        let bits = self.bytes * 8;
        self.add(&[0x80]);
        while self.block.len() != 56 {
            self.add(&[0]);
        }
        self.add(&bits.to_le_bytes());
        let mut digest = [0; 16];
        for (out, word) in digest.as_chunks_mut::<4>().0.iter_mut().zip(self.state) {
            *out = word.to_le_bytes();
        }
        digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_standard() {
        let digest = |text: &[u8], part: usize| {
            let mut md5 = Md5::new();
            text.chunks(part).for_each(|part| md5.add(part));
            md5.finish().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        let long =
            b"12345678901234567890123456789012345678901234567890123456789012345678901234567890";
        for part in [1, 7, 64, 1000] {
            assert_eq!(digest(b"", part), "d41d8cd98f00b204e9800998ecf8427e");
            assert_eq!(digest(b"abc", part), "900150983cd24fb0d6963f7d28e17f72");
            assert_eq!(digest(long, part), "57edf4a22be3c955ac49da2e2107b67a");
        }
    }
}
