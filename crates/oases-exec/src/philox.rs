//! Random numbers that are a pure function of (key, counter), so that any part of a tensor can be drawn anywhere.
//!
//! Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). A
//! sequential generator was refused: its values would depend on how a tensor is cut into shards.

/// Four random words from a counter and a key.
#[must_use]
#[inline(always)]
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        let p0 = u64::from(c0) * 0xD251_1F53;
        let p1 = u64::from(c2) * 0xCD9E_8D57;
        (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    [c0, c1, c2, c3]
}

/// The four words at position `index` of a stream: the counter is (index, stream), low words first.
#[must_use]
#[inline(always)]
pub fn block(key: [u32; 2], stream: u64, index: u64) -> [u32; 4] {
    philox4x32([index as u32, (index >> 32) as u32, stream as u32, (stream >> 32) as u32], key)
}

/// A key from a 64-bit seed, low word first.
#[must_use]
pub fn key_from_seed(seed: u64) -> [u32; 2] {
    [seed as u32, (seed >> 32) as u32]
}

/// A uniform number in [0, 1) from the upper 24 bits of a word, exact in f32.
#[must_use]
#[inline(always)]
pub fn unit_f32(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// A normal distribution, drawn by global element index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normal {
    /// The mean.
    pub mean: f32,
    /// The standard deviation.
    pub deviation: f32,
}

impl Normal {
    /// Overwrites `out` with the elements `first_element..` of the stream: a shard gets the same values as the
    /// same range of the whole tensor.
    pub fn fill(&self, key: [u32; 2], stream: u64, first_element: u64, out: &mut [f32]) {
        let mut element = first_element;
        let mut rest = out;
        while !rest.is_empty() {
            let lane = (element % 4) as usize;
            let count = rest.len().min(4 - lane);
            let (head, tail) = rest.split_at_mut(count);
            let normals = normals(block(key, stream, element / 4));
            for (out, normal) in head.iter_mut().zip(&normals[lane..]) {
                *out = (f64::from(self.mean) + f64::from(self.deviation) * normal) as f32;
            }
            element += count as u64;
            rest = tail;
        }
    }
}

/// Four standard normals from four words: two Box-Muller pairs (Box and Muller 1958), in f64 because a tail
/// computed in f32 is coarse.
fn normals(words: [u32; 4]) -> [f64; 4] {
    let pair = |a: u32, b: u32| {
        // In (0, 1], so that the logarithm is finite.
        let uniform = (f64::from(a) + 1.0) / 4_294_967_296.0;
        let angle = core::f64::consts::TAU * (f64::from(b) / 4_294_967_296.0);
        let radius = (-2.0 * uniform.ln()).sqrt();
        (radius * angle.cos(), radius * angle.sin())
    };
    let (n0, n1) = pair(words[0], words[1]);
    let (n2, n3) = pair(words[2], words[3]);
    [n0, n1, n2, n3]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known-answer tests of Random123's `kat_vectors` for philox4x32-10.
    #[test]
    fn known_answers() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn a_part_of_a_tensor_is_a_part_of_the_whole() {
        let normal = Normal { mean: 0.5, deviation: 0.02 };
        let mut whole = [0.0; 103];
        normal.fill([7, 8], 3, 0, &mut whole);
        for first in 0..30 {
            for length in 0..20 {
                let mut part = vec![0.0; length];
                normal.fill([7, 8], 3, first as u64, &mut part);
                assert_eq!(part, whole[first..first + length]);
            }
        }
        let mut far = [0.0; 8];
        normal.fill([7, 8], 3, 1 << 40, &mut far);
        assert_ne!(far, whole[..8]);
    }

    #[test]
    fn moments_of_the_normals() {
        let mut x = vec![0.0; 200_000];
        Normal { mean: 1.0, deviation: 2.0 }.fill([1, 2], 9, 5, &mut x);
        let moment = |power: i32| {
            x.iter().map(|&x| ((f64::from(x) - 1.0) / 2.0).powi(power)).sum::<f64>() / x.len() as f64
        };
        // Four standard errors of each mean: sqrt(1, 2, 15, 96 / 200 000).
        assert!(moment(1).abs() < 0.009, "{}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.013, "{}", moment(2));
        assert!(moment(3).abs() < 0.035, "{}", moment(3));
        assert!((moment(4) - 3.0).abs() < 0.088, "{}", moment(4));
    }

    #[test]
    fn uniforms_stay_below_one() {
        assert_eq!(unit_f32(0), 0.0);
        assert!(unit_f32(u32::MAX) < 1.0);
        assert_eq!(unit_f32(1 << 31), 0.5);
    }
}
