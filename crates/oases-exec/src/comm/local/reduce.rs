//! The arithmetic of collectives in shared memory, on one part of every rank's region.

use std::ops::DerefMut;

/// Elements that are summed over all ranks before the next ones: the first rank's stay in the nearest cache.
const TILE: usize = if cfg!(miri) { 64 } else { 2048 };

/// Makes every slice the sum of all, added in rank order: `((p0 + p1) + p2) + …`, element by element, so that
/// the bits do not depend on how regions are cut or who does it when.
pub(super) fn sum_in_rank_order(parts: &mut [impl DerefMut<Target = [f32]>]) {
    let Some((first, rest)) = parts.split_first_mut() else { return };
    if let [second] = rest {
        return add_both(first, second);
    }
    for start in (0..first.len()).step_by(TILE) {
        let tile = start..(start + TILE).min(first.len());
        let sum = &mut first[tile.clone()];
        for part in rest.iter() {
            add(sum, &part[tile.clone()]);
        }
        for part in rest.iter_mut() {
            part[tile.clone()].copy_from_slice(sum);
        }
    }
}

/// Makes the slice at `place` the sum of all, with the bits of [`sum_in_rank_order`]. What the others are then is not
/// specified.
pub(super) fn sum_in_rank_order_at(place: usize, parts: &mut [impl DerefMut<Target = [f32]>]) {
    let Some((first, rest)) = parts.split_first_mut() else { return };
    for start in (0..first.len()).step_by(TILE) {
        let tile = start..(start + TILE).min(first.len());
        let sum = &mut first[tile.clone()];
        for part in rest.iter() {
            add(sum, &part[tile.clone()]);
        }
        if let Some(own) = place.checked_sub(1) {
            rest[own][tile].copy_from_slice(sum);
        }
    }
}

/// Copies the slice of `source` to all others.
pub(super) fn copy_from_rank(source: usize, parts: &mut [impl DerefMut<Target = [f32]>]) {
    let (before, rest) = parts.split_at_mut(source);
    let (source, after) = rest.split_first_mut().expect("the source is a rank");
    for part in before.iter_mut().chain(after) {
        part.copy_from_slice(source);
    }
}

/// Two ranks: each element is read once and written once.
fn add_both(first: &mut [f32], second: &mut [f32]) {
    assert_eq!(first.len(), second.len(), "parts of a collective have one length");
    for (a, b) in first.iter_mut().zip(second) {
        let sum = *a + *b;
        *a = sum;
        *b = sum;
    }
}

/// `sum += part`
fn add(sum: &mut [f32], part: &[f32]) {
    assert_eq!(sum.len(), part.len(), "parts of a collective have one length");
    for (a, b) in sum.iter_mut().zip(part) {
        *a += *b;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values whose sum depends on the order of addition.
    fn ill_conditioned(rank: usize, element: usize) -> f32 {
        [1e8, 3.25, -1e8, 1.0, 7e-3][(rank + element) % 5] * (1 + element % 7) as f32
    }

    #[test]
    fn sums_in_rank_order_and_no_other() {
        for ranks in 1..=5 {
            for len in [0, 1, 15, TILE, TILE + 1, 3 * TILE + 5] {
                let mut parts: Vec<Vec<f32>> =
                    (0..ranks).map(|rank| (0..len).map(|i| ill_conditioned(rank, i)).collect()).collect();
                let expected: Vec<f32> = (0..len)
                    .map(|i| {
                        (1..ranks).fold(ill_conditioned(0, i), |sum, rank| sum + ill_conditioned(rank, i))
                    })
                    .collect();
                for place in 0..ranks {
                    let mut parts = parts.clone();
                    sum_in_rank_order_at(place, &mut parts);
                    assert_eq!(parts[place], expected, "place {place} of {ranks}, {len} elements");
                }
                sum_in_rank_order(&mut parts);
                assert!(parts.iter().all(|part| *part == expected), "{ranks} ranks, {len} elements");
            }
        }
        // The values are such that another order shows.
        let [a, b, c] = [0, 1, 2].map(|rank| ill_conditioned(rank, 0));
        assert_ne!((a + b) + c, (a + c) + b);
    }

    #[test]
    fn copies_from_any_rank() {
        for source in 0..3 {
            let mut parts = vec![vec![0.0; 9], vec![1.0; 9], vec![2.0; 9]];
            copy_from_rank(source, &mut parts);
            assert_eq!(parts, vec![vec![source as f32; 9]; 3]);
        }
    }
}
