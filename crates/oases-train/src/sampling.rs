//! Choosing the next token from logits.

use std::cmp::Ordering;

use crate::error::{Error, Result};
use crate::streams::{Stream, draw, words};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by this: below 1 sharpens, above 1 flattens, 0 takes the most likely token.
    pub temperature: f32,
    /// Only this many of the most likely tokens can be chosen.
    pub top_k: Option<usize>,
    /// Only the fewest of the most likely tokens that together have this probability can be chosen (nucleus sampling; Holtzman
    /// et al., arXiv 1904.09751), after `temperature` and `top_k`. From above 0 to 1, which keeps all.
    pub top_p: f32,
    /// The same seed, logits and settings give the same tokens.
    pub seed: u64,
}

/// Chooses tokens, one after the other.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    chosen: u64,
    candidates: Vec<Candidate>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    token: u32,
    logit: f32,
}

impl Candidate {
    /// The most likely first; among equals the lower token.
    fn by_likelihood(&self, other: &Candidate) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.token.cmp(&other.token))
    }

    /// Its probability, up to a factor that all share.
    fn weight(&self, highest: f32, temperature: f64) -> f64 {
        ((f64::from(self.logit) - f64::from(highest)) / temperature).exp()
    }
}

impl Sampler {
    /// Checks the settings: a finite temperature of at least 0, a `top_k` of at least 1, a `top_p` in (0, 1].
    pub fn new(sampling: Sampling) -> Result<Self> {
        let Sampling { temperature, top_k, top_p, .. } = sampling;
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(Error::configuration(format!("temperature {temperature} is not a number from 0 up"))
                .with_hint("0 takes the most likely token, 0.8 is usual, 1 follows the model"));
        }
        if top_k == Some(0) {
            return Err(Error::configuration("top-k of 0 leaves no token to choose from")
                .with_hint("leave top-k out to choose from all tokens"));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(Error::configuration(format!("top-p {top_p} is not above 0 and at most 1"))
                .with_hint("0.9 leaves the unlikely tail out, 1 chooses from all tokens"));
        }
        Ok(Self { sampling, chosen: 0, candidates: Vec::new() })
    }

    /// The next token. A logit of minus infinity forbids its token; among equals the lower token comes first.
    ///
    /// A choice depends on the settings, these logits and the number of choices before it, on nothing else.
    pub fn choose(&mut self, logits: &[f32]) -> Result<u32> {
        self.collect(logits)?;
        let [count_low, count_high] = words(self.chosen);
        self.chosen += 1;
        let Sampling { temperature, top_k, top_p, seed } = self.sampling;
        if temperature == 0.0 {
            return Ok(self.most_likely().token);
        }
        let temperature = f64::from(temperature);
        self.keep_top(top_k.unwrap_or(usize::MAX));
        self.keep_nucleus(f64::from(top_p), temperature);
        let [low, high, ..] = draw(Stream::Sampling, seed, [count_low, count_high, 0]);
        // 53 random bits: every number of [0, 1) that the mantissa can hold at this spacing.
        let uniform = (u64::from(high) << 21 | u64::from(low) >> 11) as f64 / (1u64 << 53) as f64;
        Ok(self.invert(uniform, temperature))
    }

    /// All tokens that are not forbidden, in order.
    fn collect(&mut self, logits: &[f32]) -> Result<()> {
        if let Some(token) = logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY) {
            return Err(Error::internal(format!("the logit of token {token} is {}", logits[token])));
        }
        self.candidates.clear();
        let allowed = (0..).zip(logits).filter(|(_, logit)| **logit != f32::NEG_INFINITY);
        self.candidates.extend(allowed.map(|(token, &logit)| Candidate { token, logit }));
        if self.candidates.is_empty() {
            return Err(Error::internal(format!("no token can be chosen from {} logits", logits.len())));
        }
        Ok(())
    }

    fn most_likely(&self) -> Candidate {
        // `collect` has left at least one.
        let first = self.candidates[0];
        self.candidates.iter().fold(first, |best, other| if other.logit > best.logit { *other } else { best })
    }

    /// Drops all but the `count` most likely candidates and puts them back in order.
    fn keep_top(&mut self, count: usize) {
        if count >= self.candidates.len() {
            return;
        }
        self.candidates.select_nth_unstable_by(count, Candidate::by_likelihood);
        self.candidates.truncate(count);
        self.candidates.sort_unstable_by_key(|candidate| candidate.token);
    }

    /// Drops all but the fewest most likely candidates that have the share `top_p` of the probability, and puts them back in order.
    fn keep_nucleus(&mut self, top_p: f64, temperature: f64) {
        if top_p >= 1.0 {
            return;
        }
        self.candidates.sort_unstable_by(Candidate::by_likelihood);
        let highest = self.candidates[0].logit;
        let weights = self.candidates.iter().map(|candidate| candidate.weight(highest, temperature));
        let mut left = top_p * weights.clone().sum::<f64>();
        let passes = |weight: f64| {
            left -= weight;
            left <= 0.0
        };
        let count =
            weights.map(passes).position(|passed| passed).map_or(self.candidates.len(), |last| last + 1);
        self.candidates.truncate(count);
        self.candidates.sort_unstable_by_key(|candidate| candidate.token);
    }

    /// The candidate at which the cumulative distribution passes `uniform`.
    fn invert(&self, uniform: f64, temperature: f64) -> u32 {
        let highest = self.most_likely().logit;
        let weight = |candidate: &Candidate| candidate.weight(highest, temperature);
        let mut left = uniform * self.candidates.iter().map(weight).sum::<f64>();
        for candidate in &self.candidates {
            left -= weight(candidate);
            if left < 0.0 {
                return candidate.token;
            }
        }
        // Rounding can leave a crumb at the very end of the distribution.
        self.most_likely().token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(temperature: f32, top_k: Option<usize>, seed: u64) -> Sampler {
        Sampler::new(Sampling { temperature, top_k, top_p: 1.0, seed }).unwrap()
    }

    fn nucleus(temperature: f32, top_k: Option<usize>, top_p: f32, seed: u64) -> Sampler {
        Sampler::new(Sampling { temperature, top_k, top_p, seed }).unwrap()
    }

    /// Chi-squared of 20,000 choices against softmax(logits / temperature) over the allowed tokens.
    fn chi_squared(sampler: &mut Sampler, logits: &[f32], temperature: f64, allowed: &[usize]) -> f64 {
        let mut counts = vec![0.0; logits.len()];
        for _ in 0..20_000 {
            counts[sampler.choose(logits).unwrap() as usize] += 1.0;
        }
        let weights: Vec<_> = allowed.iter().map(|&t| (f64::from(logits[t]) / temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        assert_eq!(allowed.iter().map(|&token| counts[token]).sum::<f64>(), 20_000.0);
        let expected = weights.iter().map(|weight| 20_000.0 * weight / total);
        allowed.iter().zip(expected).map(|(&token, wanted)| (counts[token] - wanted).powi(2) / wanted).sum()
    }

    const LOGITS: [f32; 6] = [1.0, -0.5, 2.0, 0.25, f32::NEG_INFINITY, 1.5];

    #[test]
    fn follows_the_distribution() {
        // 0.1 % points of chi-squared: 4 degrees of freedom 18.5, 2 degrees 13.8.
        for (temperature, seed) in [(1.0, 1), (0.5, 2), (2.0, 3)] {
            let allowed = [0, 1, 2, 3, 5];
            let found =
                chi_squared(&mut sampler(temperature, None, seed), &LOGITS, f64::from(temperature), &allowed);
            assert!(found < 18.5, "temperature {temperature}: {found}");
        }
        let found = chi_squared(&mut sampler(1.0, Some(3), 4), &LOGITS, 1.0, &[0, 2, 5]);
        assert!(found < 13.8, "{found}");
    }

    /// The probabilities of `LOGITS` at temperature 1 are 0.448 (token 2), 0.272 (5), 0.165 (0), 0.078 (3), 0.037 (1).
    #[test]
    fn the_nucleus_is_the_fewest_tokens_that_reach_its_share() {
        for (top_p, allowed) in
            [(0.4, &[2][..]), (0.46, &[2, 5]), (0.71, &[2, 5]), (0.73, &[0, 2, 5]), (0.95, &[0, 2, 3, 5])]
        {
            let found = chi_squared(&mut nucleus(1.0, None, top_p, 5), &LOGITS, 1.0, allowed);
            assert!(found < 16.3, "{top_p}: {found}");
        }
        // Behind the temperature: at 0.5 token 2 alone has 0.65. Behind top-k: of two, token 2 has 0.62.
        assert!((0..50).all(|_| nucleus(0.5, None, 0.6, 6).choose(&LOGITS).unwrap() == 2));
        assert!((0..50).all(|_| nucleus(1.0, Some(2), 0.6, 7).choose(&LOGITS).unwrap() == 2));
    }

    #[test]
    fn zero_temperature_and_top_1_take_the_most_likely() {
        for mut sampler in [sampler(0.0, None, 1), sampler(0.0, Some(3), 1), sampler(5.0, Some(1), 1)] {
            assert!((0..50).all(|_| sampler.choose(&LOGITS).unwrap() == 2));
        }
        assert_eq!(sampler(0.0, None, 0).choose(&[1.0, 3.0, 3.0]).unwrap(), 1);
        assert_eq!(sampler(1.0, Some(1), 0).choose(&[1.0, 3.0, 3.0]).unwrap(), 1);
    }

    #[test]
    fn extreme_logits_and_temperatures_do_not_overflow() {
        assert_eq!(sampler(1e-30, None, 0).choose(&[1.0, 3.0, -3.0]).unwrap(), 1);
        assert_eq!(sampler(1.0, None, 0).choose(&[f32::MAX, f32::MIN]).unwrap(), 0);
        assert!(sampler(f32::MAX, Some(100), 0).choose(&[f32::MAX, f32::MIN]).is_ok());
    }

    #[test]
    fn the_seed_decides() {
        let choices = |seed| {
            let mut sampler = sampler(1.0, None, seed);
            (0..200).map(|_| sampler.choose(&LOGITS).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(choices(1), choices(1));
        assert_ne!(choices(1), choices(2));
    }

    #[test]
    fn bad_settings_and_logits_are_refused() {
        let settings = [
            (-1.0, None, 1.0),
            (f32::NAN, None, 1.0),
            (f32::INFINITY, None, 1.0),
            (1.0, Some(0), 1.0),
            (1.0, None, 0.0),
            (1.0, None, 1.1),
            (1.0, None, f32::NAN),
        ];
        for (temperature, top_k, top_p) in settings {
            let error = Sampler::new(Sampling { temperature, top_k, top_p, seed: 0 }).unwrap_err();
            assert!(matches!(error, Error::Configuration { .. }) && error.hint().is_some());
        }
        for logits in [&[][..], &[f32::NAN], &[f32::INFINITY, 1.0], &[f32::NEG_INFINITY]] {
            assert!(matches!(sampler(1.0, None, 0).choose(logits), Err(Error::Internal { .. })));
        }
    }
}
