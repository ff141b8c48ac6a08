//! The vocabulary-parallel token embedding: each rank holds the rows `first_row..` of the table and contributes zeros
//! for the other tokens, so that the sum over the ranks is the whole lookup.
//!
//! Shapes: n tokens, h hidden, v rows of this shard (padding rows included: no token names them).

use crate::operators::Accumulate;

/// `out_nh` = the rows of `table_vh` named by the tokens, zero for tokens of other shards. Overwrites `out_nh`.
pub fn embed(tokens_n: &[u32], table_vh: &[f32], first_row: u32, hidden: usize, out_nh: &mut [f32]) {
    check(tokens_n, table_vh, hidden, out_nh);
    for (&token, out_h) in tokens_n.iter().zip(out_nh.chunks_exact_mut(hidden)) {
        match row_of(token, first_row, table_vh.len() / hidden) {
            Some(row) => out_h.copy_from_slice(&table_vh[row * hidden..][..hidden]),
            None => out_h.fill(0.0),
        }
    }
}

/// The backward pass of [`embed`]: adds each row of `d_nh` to its token's row of `dtable_vh`, in the order of
/// the tokens; `Overwrite` begins from zero.
pub fn embed_backward(
    tokens_n: &[u32],
    d_nh: &[f32],
    first_row: u32,
    hidden: usize,
    dtable_vh: &mut [f32],
    accumulate: Accumulate,
) {
    check(tokens_n, dtable_vh, hidden, d_nh);
    if accumulate == Accumulate::Overwrite {
        dtable_vh.fill(0.0);
    }
    for (&token, d_h) in tokens_n.iter().zip(d_nh.chunks_exact(hidden)) {
        if let Some(row) = row_of(token, first_row, dtable_vh.len() / hidden) {
            for (sum, d) in dtable_vh[row * hidden..][..hidden].iter_mut().zip(d_h) {
                *sum += d;
            }
        }
    }
}

fn row_of(token: u32, first_row: u32, rows: usize) -> Option<usize> {
    let row = token.checked_sub(first_row)? as usize;
    (row < rows).then_some(row)
}

fn check(tokens_n: &[u32], table_vh: &[f32], hidden: usize, out_nh: &[f32]) {
    assert_eq!(out_nh.len(), tokens_n.len() * hidden, "tokens and rows differ in number");
    assert!(hidden > 0 && table_vh.len().is_multiple_of(hidden), "the table does not consist of whole rows");
}

#[cfg(test)]
mod tests {
    use super::super::reference::random;
    use super::*;

    #[test]
    fn the_shards_sum_to_the_whole_lookup() {
        let (vocabulary, h) = (10, 5);
        let table = random(1, vocabulary * h);
        let tokens = [0, 9, 3, 3, 7, 0];
        let mut whole = vec![9.0; tokens.len() * h];
        embed(&tokens, &table, 0, h, &mut whole);
        for (row, &token) in whole.chunks(h).zip(&tokens) {
            assert_eq!(row, &table[token as usize * h..][..h]);
        }
        let mut sum = vec![0.0; whole.len()];
        for (first, rows) in [(0, 4), (4, 4), (8, 2), (10, 0)] {
            let mut part = vec![9.0; whole.len()];
            embed(&tokens, &table[first * h..][..rows * h], first as u32, h, &mut part);
            sum.iter_mut().zip(&part).for_each(|(sum, part)| *sum += part);
        }
        assert_eq!(sum, whole);
    }

    /// The lookup is linear, so its gradient is its adjoint: a sum over the tokens of each row.
    #[test]
    fn backward_sums_the_duplicates() {
        let h = 3;
        let tokens = [5, 2, 5, 8, 2, 5];
        let d = random(2, tokens.len() * h);
        let (first, rows) = (2, 4);
        let mut expected = vec![0.0; rows * h];
        for (token, d) in tokens.iter().zip(d.chunks(h)) {
            if (2..6).contains(token) {
                (0..h).for_each(|j| expected[(*token as usize - first) * h + j] += d[j]);
            }
        }
        let mut actual = vec![9.0; rows * h];
        embed_backward(&tokens, &d, first as u32, h, &mut actual, Accumulate::Overwrite);
        assert_eq!(actual, expected);
        assert!(expected[3 * h..].iter().all(|&x| x != 0.0) && expected[h..3 * h].iter().all(|&x| x == 0.0));
        let mut actual = vec![0.5; rows * h];
        embed_backward(&tokens[..1], &d[..h], first as u32, h, &mut actual, Accumulate::Add);
        assert_eq!(actual[3 * h], 0.5 + d[0]);
        assert_eq!(actual[0], 0.5);
    }

    #[test]
    fn gradients_over_several_calls_have_the_bits_of_one() {
        let (h, rows) = (5, 4);
        let tokens = [0, 3, 1, 0, 0, 3, 0];
        let d = random(3, tokens.len() * h);
        let results = [&[7][..], &[3, 4], &[1; 7]].map(|cut: &[usize]| {
            let mut dtable = vec![9.0; rows * h];
            let (mut first, mut accumulate) = (0, Accumulate::Overwrite);
            for &count in cut {
                let d = &d[first * h..][..count * h];
                embed_backward(&tokens[first..][..count], d, 0, h, &mut dtable, accumulate);
                (first, accumulate) = (first + count, Accumulate::Add);
            }
            dtable
        });
        assert!(results.iter().all(|result| *result == results[0]));
    }
}
