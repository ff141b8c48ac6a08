//! Cuts a chain into chunks of near-equal cost.

use super::Stages;

impl Stages {
    /// The chain of blocks with these costs, each at least 0, in `stages · chunks_per_stage` chunks whose greatest cost is as low as can
    /// be; of those cuts the one whose costs have the least sum of squares, and then the one whose chunks begin earlier. Panics for
    /// fewer blocks than chunks.
    pub fn balanced(costs: &[f64], stages: u32, chunks_per_stage: u32, tied: bool) -> Stages {
        if stages == 1 {
            return Stages { tied, ..Stages::single() };
        }
        let chunks = (stages * chunks_per_stage) as usize;
        assert!(chunks <= costs.len(), "{chunks} chunks of {} blocks", costs.len());
        let (_, greatest) = cut(costs, chunks, f64::max, f64::INFINITY);
        let (starts, _) = cut(costs, chunks, |cost, rest| cost * cost + rest, greatest);
        Stages::new(stages, starts, tied)
    }
}

/// Where chunks of at most `most` begin, so that their costs joined by `join` are least, and what they come to. Exact, by dynamic
/// programming over the blocks that are left to the last chunks.
fn cut(costs: &[f64], chunks: usize, join: impl Fn(f64, f64) -> f64, most: f64) -> (Vec<usize>, f64) {
    let blocks = costs.len();
    // For the blocks from each on in so many chunks: what they come to, and where the second chunk begins.
    let mut rows: Vec<Vec<(f64, usize)>> = Vec::with_capacity(chunks);
    for _ in 0..chunks {
        let best = |first: usize| {
            let mut best = (f64::INFINITY, blocks);
            let mut cost: f64 = costs[first..].iter().take(1).sum();
            for next in first + 1..=blocks {
                let rest = match rows.last() {
                    None if next == blocks => 0.0,
                    None => f64::INFINITY,
                    Some(row) => row[next].0,
                };
                let sum = if cost <= most { join(cost, rest) } else { f64::INFINITY };
                if sum < best.0 {
                    best = (sum, next);
                }
                cost += costs.get(next).copied().unwrap_or(0.0);
            }
            best
        };
        let row = (0..=blocks).map(best).collect();
        rows.push(row);
    }
    let mut starts = vec![0];
    for row in rows[1..].iter().rev() {
        starts.push(row[starts[starts.len() - 1]].1);
    }
    (starts, rows[chunks - 1][0].0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All cuts of `blocks` blocks into chunks.
    fn cuts(blocks: usize, chunks: usize) -> Vec<Vec<usize>> {
        let mut cuts = vec![vec![0]];
        for _ in 1..chunks {
            let longer = |cut: Vec<usize>| {
                (cut[cut.len() - 1] + 1..blocks).map(move |next| [cut.as_slice(), &[next]].concat())
            };
            cuts = cuts.into_iter().flat_map(longer).collect();
        }
        cuts
    }

    #[test]
    fn no_cut_is_better() {
        let mut state = 3_u64;
        let mut drawn = |most: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % most
        };
        for case in 0..300 {
            let blocks = 2 + drawn(9) as usize;
            let stages = 2 + drawn(3) as u32;
            let per_stage = 1 + drawn(2) as u32;
            if (stages * per_stage) as usize > blocks {
                continue;
            }
            let costs: Vec<f64> = (0..blocks).map(|_| drawn(6) as f64).collect();
            let key = |cut: &Vec<usize>| {
                let ends = cut[1..].iter().copied().chain([blocks]);
                let sums =
                    cut.iter().zip(ends).map(|(&start, end)| costs[start..end].iter().sum::<f64>() as u64);
                let sums: Vec<u64> = sums.collect();
                (sums.iter().max().copied(), sums.iter().map(|sum| sum * sum).sum::<u64>(), cut.clone())
            };
            let best = cuts(blocks, (stages * per_stage) as usize).into_iter().min_by_key(key).unwrap();
            let found = Stages::balanced(&costs, stages, per_stage, true);
            assert_eq!(found.starts(), best, "case {case}: {costs:?} over {stages} by {per_stage}");
            assert_eq!(found.check(blocks), Ok(()));
        }
    }

    #[test]
    fn a_heavy_head_gets_fewer_layers() {
        // Embedding 0, six blocks of 2, head 4: 8 and 8.
        let costs = [0.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 4.0];
        assert_eq!(Stages::balanced(&costs, 2, 1, false).starts(), [0, 5]);
        assert_eq!(Stages::balanced(&costs, 1, 1, false), Stages::new(1, vec![0], false));
    }
}
