//! How well one list of numbers foretells another: Spearman's rank correlation, the median and the worst relative error.

use std::cmp::Ordering;

use serde::Serialize;

/// How predicted step times compare with measured ones, over all cells that have both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Cells compared.
    pub cells: usize,
    /// Spearman's rank correlation; none for fewer than two cells, or where all of one side are equal.
    pub spearman: Option<f64>,
    /// Median of |predicted − measured| / measured.
    pub median_error: f64,
    /// Largest of the same.
    pub worst_error: f64,
    /// Index, into the pairs compared, of the largest.
    #[serde(skip)]
    pub worst: usize,
}

impl Prediction {
    /// Compares pairs of measured and predicted values. Pairs that are not two positive numbers are left out of the
    /// figures, but keep their place in the count of `worst`. None if nothing is left.
    pub fn of(pairs: &[(f64, f64)]) -> Option<Prediction> {
        let usable = |&(_, (measured, predicted)): &(usize, (f64, f64))| {
            measured.is_finite() && predicted.is_finite() && measured > 0.0 && predicted > 0.0
        };
        let pairs: Vec<(usize, (f64, f64))> = pairs.iter().copied().enumerate().filter(usable).collect();
        let (measured, predicted): (Vec<f64>, Vec<f64>) = pairs.iter().map(|(_, pair)| *pair).unzip();
        let errors: Vec<f64> = pairs
            .iter()
            .map(|(_, (measured, predicted))| relative_error(*measured, *predicted).abs())
            .collect();
        let (worst, worst_error) = (0..errors.len())
            .map(|index| (pairs[index].0, errors[index]))
            .max_by(|(_, left), (_, right)| left.total_cmp(right))?;
        Some(Prediction {
            cells: pairs.len(),
            spearman: spearman(&measured, &predicted),
            median_error: median(&errors)?,
            worst_error,
            worst,
        })
    }
}

/// (predicted − measured) / measured: positive where the prediction is too slow.
pub fn relative_error(measured: f64, predicted: f64) -> f64 {
    (predicted - measured) / measured
}

/// The middle value, or the mean of the two middle ones. None for an empty list.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some(lower + (upper - lower) / 2.0)
}

/// Spearman's rank correlation: Pearson's correlation of the ranks, where equal values share the mean of their ranks.
///
/// None for fewer than two pairs, and where all values of one side are equal: there is no order to agree with.
pub fn spearman(left: &[f64], right: &[f64]) -> Option<f64> {
    assert_eq!(left.len(), right.len(), "values come in pairs");
    let (left, right) = (ranks(left), ranks(right));
    // Ranks with ties averaged have the mean (n + 1) / 2, as without ties.
    let mean = (left.len() as f64 + 1.0) / 2.0;
    let product =
        |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| (a - mean) * (b - mean)).sum() };
    let scale = (product(&left, &left) * product(&right, &right)).sqrt();
    (scale > 0.0).then(|| product(&left, &right) / scale)
}

/// Ranks from 1; equal values share the mean of the ranks they take together.
pub fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&left, &right| values[left].total_cmp(&values[right]));
    let mut ranks = vec![0.0; values.len()];
    for equal in
        order.chunk_by(|&left, &right| values[left].partial_cmp(&values[right]) == Some(Ordering::Equal))
    {
        let below = values.iter().filter(|value| **value < values[equal[0]]).count();
        for &index in equal {
            ranks[index] = below as f64 + (equal.len() as f64 + 1.0) / 2.0;
        }
    }
    ranks
}

/// The least and the greatest value; `None` of none.
pub fn range(values: impl IntoIterator<Item = f64>) -> Option<[f64; 2]> {
    values.into_iter().fold(None, |range, value| match range {
        None => Some([value; 2]),
        Some([low, high]) => Some([f64::min(low, value), f64::max(high, value)]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(left: Option<f64>, right: f64) {
        let left = left.expect("there is a value");
        assert!((left - right).abs() < 1e-12, "{left} is not {right}");
    }

    #[test]
    fn equal_values_share_the_mean_of_their_ranks() {
        assert_eq!(ranks(&[30.0, 10.0, 20.0]), [3.0, 1.0, 2.0]);
        assert_eq!(ranks(&[2.0, 1.0, 2.0, 2.0, 5.0]), [3.0, 1.0, 3.0, 3.0, 5.0]);
        assert_eq!(ranks(&[0.0, -0.0]), [1.5, 1.5]);
        assert_eq!(ranks(&[]), [0.0; 0]);
    }

    #[test]
    fn rank_correlations_computed_by_hand() {
        near(spearman(&[1.0, 2.0, 3.0], &[10.0, 400.0, 401.0]), 1.0);
        near(spearman(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), -1.0);
        // Without ties 1 − 6 Σd² / n(n² − 1): ranks 1 2 3 4 5 against 2 1 4 3 5 give Σd² = 4, so 1 − 24/120.
        near(spearman(&[1.0, 2.0, 3.0, 4.0, 5.0], &[2.0, 1.0, 4.0, 3.0, 5.0]), 0.8);
        // With ties: ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4. Around the mean 2.5 the product is 2.25 + 0 + 0 + 2.25 = 4.5,
        // the squares are 4.5 and 5, so 4.5 / √22.5 = √0.9.
        near(spearman(&[1.0, 2.0, 2.0, 7.0], &[1.0, 3.0, 4.0, 5.0]), 0.9f64.sqrt());
    }

    #[test]
    fn there_is_no_rank_correlation_without_an_order() {
        assert_eq!(spearman(&[], &[]), None);
        assert_eq!(spearman(&[1.0], &[1.0]), None);
        assert_eq!(spearman(&[1.0, 1.0], &[1.0, 2.0]), None);
    }

    #[test]
    fn medians_computed_by_hand() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 10.0]), Some(3.0));
        assert_eq!(median(&[5.0]), Some(5.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn a_prediction_computed_by_hand() {
        // Errors 10 %, 5 %, 0 %, 25 %; the third pair is not a measurement. Ranks 1 2 3 4 against 1 2 4 3: 1 − 12/60.
        let pairs = [(10.0, 11.0), (20.0, 19.0), (0.0, 5.0), (40.0, 40.0), (50.0, 37.5)];
        let prediction = Prediction::of(&pairs).unwrap();
        assert_eq!(prediction.cells, 4);
        near(prediction.spearman, 0.8);
        near(Some(prediction.median_error), 0.075);
        near(Some(prediction.worst_error), 0.25);
        assert_eq!(prediction.worst, 4);
        assert_eq!(Prediction::of(&[]), None);
        assert_eq!(Prediction::of(&[(f64::NAN, 1.0)]), None);
    }

    #[test]
    fn a_range_is_its_ends() {
        assert_eq!(range([2.0, 1.0, 3.0]), Some([1.0, 3.0]));
        assert_eq!(range([]), None);
    }
}
