//! Which random numbers are whose: every use of the counter-based generator in this crate, so that no two share draws.

use oases_exec::philox::{key_from_seed, philox4x32};

/// A use of random numbers. The value is the last word of the generator's counter.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Stream {
    /// The order of the training windows within an epoch.
    DataOrder = 0xDA7A_0000,
    /// Where the first training window of an epoch starts.
    DataPhase = 0xDA7A_0001,
    /// The choice of the next token in generation.
    Sampling = 0xDA7A_0002,
    /// Which tokens of a training sample are hidden.
    Masking = 0xDA7A_0003,
    /// Which tokens of a validation window are hidden.
    ValidationMasking = 0xDA7A_0004,
}

/// Four random words, a pure function of its arguments.
pub(crate) fn draw(stream: Stream, seed: u64, counter: [u32; 3]) -> [u32; 4] {
    let [c0, c1, c2] = counter;
    philox4x32([c0, c1, c2, stream as u32], key_from_seed(seed))
}

/// The low and the high word.
pub(crate) fn words(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}
