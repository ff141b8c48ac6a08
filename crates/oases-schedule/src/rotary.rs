//! Rotary positions: the angles by which queries and keys are rotated, with the usual ways to stretch them to longer sequences.
//!
//! Pair i of a head of width d turns by position · θᵢ, θᵢ = base^(−2i/d); Su et al., arXiv 2104.09864, equation 15. Everything is
//! computed in f64 once and rounded to f32.

use std::f64::consts::TAU;
use std::fmt;
use std::str::FromStr;

/// Rotation of queries and keys by their position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotary {
    /// Base of the frequencies.
    pub base: f64,
    /// How the frequencies are stretched.
    pub scaling: RotaryScaling,
}

/// How the frequencies of rotary positions are stretched, by the name that files have for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RotaryScaling {
    /// As they are: `default`.
    None,
    /// All divided by a factor (Chen et al., arXiv 2306.15595): `linear`.
    Linear {
        /// Divides every frequency.
        factor: f64,
    },
    /// A larger base for sequences longer than those of pre-training: `dynamic`.
    Dynamic {
        /// How many times longer sequences may get.
        factor: f64,
        /// Longest sequence of pre-training.
        original: usize,
    },
    /// Low frequencies are divided, high ones kept, those between blended (Grattafiori et al., arXiv 2407.21783): `llama3`.
    Llama3 {
        /// Divides the low frequencies.
        factor: f64,
        /// Frequencies with fewer turns than this in `original` positions are low.
        low: f64,
        /// Frequencies with more turns than this are high.
        high: f64,
        /// Longest sequence of pre-training.
        original: usize,
    },
    /// The same with a ramp over pairs, and a temperature (Peng et al., arXiv 2309.00071, section 3): `yarn`.
    Yarn {
        /// Divides the low frequencies.
        factor: f64,
        /// Longest sequence of pre-training.
        original: usize,
        /// Turns in `original` positions above which a frequency is kept.
        fast: f64,
        /// Turns below which it is divided.
        slow: f64,
        /// Factor on cosines and sines; `None` for 0.1·ln(factor) + 1.
        attention: Option<f64>,
        /// Whether the ends of the ramp are rounded to whole pairs.
        truncate: bool,
    },
}

impl Rotary {
    /// Unscaled rotation.
    pub fn new(base: f64) -> Rotary {
        Rotary { base, scaling: RotaryScaling::None }
    }

    /// θᵢ of each pair, in radians per position, for sequences of `sequence` tokens. `[head_dim / 2]`
    pub fn frequencies(&self, head_dim: usize, sequence: usize) -> Vec<f64> {
        let plain = |base: f64| {
            let pairs = head_dim / 2;
            (0..pairs).map(move |pair| base.powf(-2.0 * pair as f64 / head_dim as f64))
        };
        match self.scaling {
            RotaryScaling::None => plain(self.base).collect(),
            RotaryScaling::Linear { factor } => plain(self.base).map(|theta| theta / factor).collect(),
            RotaryScaling::Dynamic { factor, original } => {
                let longer = (sequence as f64 / original as f64).max(1.0);
                let exponent = head_dim as f64 / (head_dim as f64 - 2.0);
                plain(self.base * (factor * longer - (factor - 1.0)).powf(exponent)).collect()
            }
            RotaryScaling::Llama3 { factor, low, high, original } => plain(self.base)
                .map(|theta| {
                    let turns = original as f64 * theta / TAU;
                    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    (1.0 - kept) * theta / factor + kept * theta
                })
                .collect(),
            RotaryScaling::Yarn { factor, original, fast, slow, truncate, .. } => {
                // The pair that turns so often in the sequences of pre-training.
                let pair_of = |turns: f64| {
                    head_dim as f64 * (original as f64 / (turns * TAU)).ln() / (2.0 * self.base.ln())
                };
                let (first, last) = (pair_of(fast), pair_of(slow));
                let (first, last) = if truncate { (first.floor(), last.ceil()) } else { (first, last) };
                let (first, last) = (first.max(0.0), last.min(head_dim as f64 - 1.0));
                let width = if first == last { 0.001 } else { last - first };
                plain(self.base)
                    .enumerate()
                    .map(|(pair, theta)| {
                        let divided = ((pair as f64 - first) / width).clamp(0.0, 1.0);
                        divided * theta / factor + (1.0 - divided) * theta
                    })
                    .collect()
            }
        }
    }

    /// Factor on cosines and sines, and so its square on the scores of attention.
    pub fn attention_factor(&self) -> f64 {
        match self.scaling {
            RotaryScaling::Yarn { attention: Some(attention), .. } => attention,
            RotaryScaling::Yarn { factor, .. } if factor > 1.0 => 0.1 * factor.ln() + 1.0,
            _ => 1.0,
        }
    }

    /// For each position the cosines of all pairs, then their sines. `[sequence, head_dim]`
    pub fn table(&self, head_dim: usize, sequence: usize) -> Vec<f32> {
        let (frequencies, factor) = (self.frequencies(head_dim, sequence), self.attention_factor());
        let mut table = Vec::with_capacity(sequence * head_dim);
        for position in 0..sequence {
            let angle = |theta: &f64| position as f64 * theta;
            table.extend(frequencies.iter().map(|theta| (angle(theta).cos() * factor) as f32));
            table.extend(frequencies.iter().map(|theta| (angle(theta).sin() * factor) as f32));
        }
        table
    }
}

impl fmt::Display for RotaryScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            RotaryScaling::None => write!(f, "none"),
            RotaryScaling::Linear { factor } => write!(f, "linear factor={factor}"),
            RotaryScaling::Dynamic { factor, original } => {
                write!(f, "dynamic factor={factor} original={original}")
            }
            RotaryScaling::Llama3 { factor, low, high, original } => {
                write!(f, "llama3 factor={factor} low={low} high={high} original={original}")
            }
            RotaryScaling::Yarn { factor, original, fast, slow, attention, truncate } => {
                write!(f, "yarn factor={factor} original={original} fast={fast} slow={slow}")?;
                if let Some(attention) = attention {
                    write!(f, " attention={attention}")?;
                }
                if truncate { Ok(()) } else { write!(f, " truncate=0") }
            }
        }
    }
}

impl FromStr for RotaryScaling {
    type Err = String;

    /// Reads what `Display` writes: a name, then `key=number` in any order; `fast`, `slow` and `truncate` may be left out.
    fn from_str(text: &str) -> Result<RotaryScaling, String> {
        let mut words = text.split_whitespace();
        let name = words.next().unwrap_or("");
        let known: &[&str] = match name {
            "none" => &[],
            "linear" => &["factor"],
            "dynamic" => &["factor", "original"],
            "llama3" => &["factor", "low", "high", "original"],
            "yarn" => &["factor", "original", "fast", "slow", "attention", "truncate"],
            _ => return Err(format!("`{name}` is none of none, linear, dynamic, llama3 and yarn")),
        };
        let mut values = [None; 6];
        for word in words {
            let (key, number) = word.split_once('=').unwrap_or((word, ""));
            let at = known.iter().position(|&known| known == key);
            let at = at.ok_or_else(|| format!("`{name}` has no `{key}`, but {}", known.join(", ")))?;
            let number: f64 = number.parse().map_err(|_| format!("`{word}` is not `{key}=number`"))?;
            if !(number.is_finite() && (number > 0.0 || key == "truncate")) {
                return Err(format!("`{word}` must be above 0"));
            }
            values[at] = Some(number);
        }
        let value = |key: &str| {
            let at = known.iter().position(|&known| known == key);
            at.and_then(|at| values[at])
        };
        let needed = |key: &str| value(key).ok_or_else(|| format!("`{name}` needs `{key}=`"));
        let original = || needed("original").map(|original| original as usize);
        let scaling = match name {
            "linear" => RotaryScaling::Linear { factor: needed("factor")? },
            "dynamic" => RotaryScaling::Dynamic { factor: needed("factor")?, original: original()? },
            "llama3" => RotaryScaling::Llama3 {
                factor: needed("factor")?,
                low: needed("low")?,
                high: needed("high")?,
                original: original()?,
            },
            "yarn" => RotaryScaling::Yarn {
                factor: needed("factor")?,
                original: original()?,
                fast: value("fast").unwrap_or(32.0),
                slow: value("slow").unwrap_or(1.0),
                attention: value("attention"),
                truncate: value("truncate") != Some(0.0),
            },
            _ => RotaryScaling::None,
        };
        match scaling {
            RotaryScaling::Llama3 { low, high, .. } if low >= high => {
                Err(format!("`llama3` needs low={low} below high={high}"))
            }
            RotaryScaling::Dynamic { factor, .. } | RotaryScaling::Yarn { factor, .. } if factor < 1.0 => {
                Err(format!("`{name}` needs a factor of at least 1, not {factor}"))
            }
            scaling => Ok(scaling),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 1e-6, "{found} instead of {expected}");
        }
    }

    #[test]
    fn plain_frequencies_are_powers_of_the_base() {
        assert_close(&Rotary::new(10_000.0).frequencies(8, 16), &[1.0, 0.1, 0.01, 0.001]);
        let linear = Rotary { scaling: RotaryScaling::Linear { factor: 4.0 }, ..Rotary::new(10_000.0) };
        assert_close(&linear.frequencies(8, 16), &[0.25, 0.025, 0.0025, 0.00025]);
    }

    /// Llama 3.1 scales by 8 with 1 and 4 turns in 8192 positions: a frequency of 0.01 turns 13 times and is kept, one of 0.0001 turns
    /// 0.13 times and is divided, and one of two turns is a third of the way.
    #[test]
    fn llama3_divides_low_frequencies_only() {
        let scaling = RotaryScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192 };
        let scaled = Rotary { scaling, ..Rotary::new(1e8) }.frequencies(8, 16);
        assert_close(&scaled, &[1.0, 0.01, 0.000_012_5, 0.000_000_125]);
        let turns_twice = 2.0 * TAU / 8192.0;
        let scaled = Rotary { scaling, base: turns_twice.powi(-2) }.frequencies(4, 16);
        assert_close(&scaled, &[1.0, turns_twice * (1.0 / 3.0 + 2.0 / 3.0 / 8.0)]);
    }

    #[test]
    fn dynamic_scaling_leaves_short_sequences_alone() {
        let scaling = RotaryScaling::Dynamic { factor: 2.0, original: 64 };
        let rotary = Rotary { scaling, ..Rotary::new(10_000.0) };
        assert_close(&rotary.frequencies(8, 64), &[1.0, 0.1, 0.01, 0.001]);
        // Twice as long: the base grows by 3^(8/6), so that the last frequency is divided by 3.
        assert_close(&rotary.frequencies(8, 128)[3..], &[0.001 / 3.0]);
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let scaling = RotaryScaling::Yarn {
            factor: 4.0,
            original: 4096,
            fast: 32.0,
            slow: 1.0,
            attention: None,
            truncate: true,
        };
        let rotary = Rotary { scaling, ..Rotary::new(10_000.0) };
        let found = rotary.frequencies(128, 16);
        let plain = Rotary::new(10_000.0).frequencies(128, 16);
        // Pair 20 turns 36 times in 4096 positions, pair 46 0.9 times.
        assert_close(&found[..21], &plain[..21]);
        let divided: Vec<f64> = plain[46..].iter().map(|theta| theta / 4.0).collect();
        assert_close(&found[46..], &divided);
        assert!((rotary.attention_factor() - 1.138_629_436).abs() < 1e-8);
    }

    #[test]
    fn text_reads_back() {
        for text in [
            "none",
            "linear factor=2.5",
            "dynamic factor=2 original=2048",
            "llama3 factor=8 low=1 high=4 original=8192",
            "yarn factor=4 original=4096 fast=32 slow=1",
            "yarn factor=4 original=4096 fast=32 slow=1 attention=1.2 truncate=0",
        ] {
            assert_eq!(text.parse::<RotaryScaling>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "ntk",
            "linear",
            "linear factor=",
            "linear factor=-1",
            "linear factor=nan",
            "linear low=1",
            "llama3 factor=8 low=4 high=4 original=8192",
            "dynamic factor=0.5 original=8",
        ] {
            assert!(text.parse::<RotaryScaling>().is_err(), "{text}");
        }
    }
}
