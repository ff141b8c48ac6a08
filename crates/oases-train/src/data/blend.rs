//! Training samples from several sources, in given shares.
//!
//! Samples are dealt out in rounds of [`ROUND`]. In each, every source has a fixed number of samples, by its weight, at places that a
//! permutation of the round chooses. So which source a sample is from, and which of its samples, follows from the sample's number alone:
//! it depends neither on the layout nor on what was read before, and every sample of a source comes exactly once.

use std::ops::Range;

use super::{Batch, TrainData};
#[cfg(feature = "mpi")]
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::permutation::Permutation;

/// Samples of a round: weights are rounded to thousandths.
const ROUND: u64 = 1000;
/// Rounds have an order of their own, none of an epoch's.
const ORDER: u64 = 0xB1E4_D000_0000_0000;

/// The training parts of some sources.
#[derive(Clone, Debug)]
pub struct Blend {
    /// Each with its places in a round.
    sources: Vec<(TrainData, Range<u64>)>,
    sequence: usize,
    seed: u64,
}

impl Blend {
    /// Sources with their weights, at least one, which need not sum to anything.
    pub fn new(sources: Vec<(TrainData, f64)>, seed: u64) -> Result<Blend> {
        let sequence = sources.first().map_or(1, |(data, _)| data.sequence());
        let weights: Vec<f64> = sources.iter().map(|(_, weight)| *weight).collect();
        let shares = shares(&weights)?;
        let mut next = 0;
        let sources = sources.into_iter().zip(shares).map(|((data, _), share)| {
            let places = next..next + share;
            next += share;
            (data, places)
        });
        Ok(Blend { sources: sources.collect(), sequence, seed })
    }

    /// Of which source a sample is, and which of it.
    fn place(&self, sample: u64) -> (usize, u64) {
        if self.sources.len() == 1 {
            return (0, sample);
        }
        let (round, place) = (sample / ROUND, sample % ROUND);
        let place = Permutation::new(ROUND, self.seed ^ ORDER, round).apply(place);
        let source = self.sources.iter().position(|(_, places)| places.contains(&place));
        let source = source.expect("the places of a round are dealt out");
        let (_, places) = &self.sources[source];
        (source, round * (places.end - places.start) + place - places.start)
    }

    /// Fills the batch with these samples, one a row.
    pub fn fill(&self, samples: Range<u64>, batch: &mut Batch) -> Result<()> {
        batch.reset((samples.end - samples.start) as usize, self.sequence);
        for (row, sample) in samples.enumerate() {
            let (source, sample) = self.place(sample);
            self.sources[source].0.fill_row(row, sample, batch)?;
        }
        Ok(())
    }

    /// Tokens to train on, of all sources.
    pub fn length(&self) -> u64 {
        self.sources.iter().map(|(data, _)| data.length()).sum()
    }

    /// A digest of all sources and their shares.
    #[cfg(feature = "mpi")]
    pub(crate) fn digest(&self) -> Result<u64> {
        let mut digest = Digest::default();
        for (data, places) in &self.sources {
            digest = data.digest(digest.word((places.end - places.start) as u32))?;
        }
        Ok(digest.finish())
    }
}

/// How many samples of a round each source has: its share rounded, at least one, and together all.
fn shares(weights: &[f64]) -> Result<Vec<u64>> {
    let sum: f64 = weights.iter().sum();
    let sound = weights.iter().all(|weight| weight.is_finite() && *weight > 0.0);
    if !sound || !sum.is_finite() || weights.is_empty() || weights.len() as u64 > ROUND / 2 {
        return Err(Error::configuration(format!("data.weights are {weights:?}"))
            .with_hint("a weight above 0 for each source, of 500 sources at most"));
    }
    let exact: Vec<f64> = weights.iter().map(|weight| weight / sum * ROUND as f64).collect();
    let mut shares: Vec<u64> = exact.iter().map(|exact| (*exact as u64).max(1)).collect();
    // What rounding down has left goes to whom it took most from; what the least shares took comes from the largest.
    while shares.iter().sum::<u64>() != ROUND {
        let missing = |at: &usize| exact[*at] - shares[*at] as f64;
        let by_missing = |one: &usize, other: &usize| missing(one).total_cmp(&missing(other));
        let many = shares.iter().sum::<u64>() > ROUND;
        let at = match many {
            true => (0..shares.len()).filter(|&at| shares[at] > 1).min_by(by_missing),
            false => (0..shares.len()).max_by(by_missing),
        };
        let at = at.ok_or_else(|| Error::internal("shares of no source"))?;
        if many { shares[at] -= 1 } else { shares[at] += 1 }
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::super::{Tokens, split};
    use super::*;

    fn source(length: usize, first: u8) -> TrainData {
        let tokens = (0..length).map(|place| first + (place % 20) as u8).collect();
        split(Tokens::from_bytes(tokens), 0.0, 4, 3).unwrap().0
    }

    #[test]
    fn shares_follow_the_weights() {
        assert_eq!(shares(&[1.0]).unwrap(), [1000]);
        assert_eq!(shares(&[1.0, 1.0, 1.0]).unwrap().iter().sum::<u64>(), 1000);
        assert_eq!(shares(&[3.0, 1.0]).unwrap(), [750, 250]);
        assert_eq!(shares(&[1e9, 1e-9]).unwrap(), [999, 1]);
        for bad in [&[][..], &[0.0], &[-1.0, 2.0], &[f64::NAN], &[f64::INFINITY, 1.0]] {
            assert!(shares(bad).is_err(), "{bad:?}");
        }
    }

    /// Brute force over some rounds: every sample of each source comes once, in its share.
    #[test]
    fn every_sample_comes_once() {
        let blend = Blend::new(vec![(source(100, 0), 0.7), (source(300, 50), 0.3)], 9).unwrap();
        let mut seen = [Vec::new(), Vec::new()];
        (0..5 * ROUND).for_each(|sample| {
            let (source, of_source) = blend.place(sample);
            seen[source].push(of_source);
        });
        for (seen, share) in seen.iter_mut().zip([700, 300]) {
            assert!(!seen.is_sorted());
            seen.sort_unstable();
            assert_eq!(*seen, (0..5 * share).collect::<Vec<u64>>());
        }
    }

    /// Stopped in the middle of an epoch and gone on with by other ranks, in other parts: the same samples, none twice, none lost.
    #[test]
    fn a_stop_and_another_layout_change_no_sample() {
        let blend = Blend::new(vec![(source(400, 0), 1.0), (source(250, 50), 2.0)], 9).unwrap();
        let rows = |samples: Range<u64>| {
            let mut batch = Batch::default();
            blend.fill(samples, &mut batch).unwrap();
            let rows =
                batch.inputs.chunks(4).map(<[u32]>::to_vec).zip(batch.targets.chunks(4).map(<[u32]>::to_vec));
            rows.collect::<Vec<_>>()
        };
        let undisturbed: Vec<_> = (0..30).flat_map(|step| rows(step * 12..step * 12 + 12)).collect();
        let mut parts = Vec::new();
        for step in 0..30 {
            let replicas = if step < 13 { 4 } else { 3 };
            for replica in 0..replicas {
                let share = super::super::share(step * 12..step * 12 + 12, replica, replicas).unwrap();
                parts.extend(rows(share));
            }
        }
        assert!(parts == undisturbed);
    }
}
