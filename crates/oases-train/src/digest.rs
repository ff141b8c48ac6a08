//! A number that tells apart what should be equal on several ranks. Not for secrets: it finds accidents.

/// A digest under way: 64 bits, a word at a time. Equal words in equal order give equal digests on every machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Digest(u64);

impl Default for Digest {
    fn default() -> Digest {
        Digest(0x9E37_79B9_7F4A_7C15)
    }
}

impl Digest {
    /// The same with one more word. Each step is a bijection of the state, so a single changed word always changes the
    /// result.
    pub(crate) fn word(self, word: u32) -> Digest {
        Digest((self.0 ^ u64::from(word)).rotate_left(29).wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    /// The same with a text.
    pub(crate) fn text(self, text: &str) -> Digest {
        self.bytes(text.as_bytes())
    }

    /// The same with some bytes, which it matters how many there are.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Digest {
        let words =
            bytes.chunks(4).map(|bytes| bytes.iter().fold(1, |word: u32, byte| word << 8 | u32::from(*byte)));
        words.fold(self.word(bytes.len() as u32), Digest::word)
    }

    /// The number.
    pub(crate) fn finish(self) -> u64 {
        let mixed = self.0 ^ self.0 >> 32;
        mixed.wrapping_mul(0xD6E8_FEB8_6659_FD93)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_single_change_is_seen() {
        let of =
            |words: &[u32]| words.iter().fold(Digest::default(), |digest, word| digest.word(*word)).finish();
        let words: Vec<u32> = (0..200).collect();
        let mut seen = std::collections::BTreeSet::from([of(&words)]);
        for at in 0..words.len() {
            for bit in 0..32 {
                let mut changed = words.clone();
                changed[at] ^= 1 << bit;
                assert!(seen.insert(of(&changed)), "word {at}, bit {bit}");
            }
        }
        assert_ne!(of(&[1, 2]), of(&[2, 1]));
        assert_ne!(of(&[0]), of(&[0, 0]));
    }

    #[test]
    fn texts_differ_by_their_last_letter() {
        let of = |text| Digest::default().text(text).finish();
        assert_eq!(of("tensor = 2"), of("tensor = 2"));
        for other in ["tensor = 4", "tensor = 2\0", "tensor = ", "tensor =2"] {
            assert_ne!(of("tensor = 2"), of(other), "{other}");
        }
    }
}
