//! The objective of the plan: what each block adds to a step, and what neighbouring blocks add together.
//!
//! Letters: F and C forward and its all-reduce, R recomputation, B backward and C' its all-reduce, ρ and γ the arithmetic and
//! the all-gather where the degree changes; an index is a sub-batch, of which there are S; i a block, i+1 the next.
//!
//! **Overlapped.** While the last sub-batch of a block computes, the collective of the one before is on the link; both end
//! before the next pair begins, for F(i, s+1) needs the input that C(i-1, s+1) completes and C(i, s) stands behind it on the
//! link. So a forward of two sub-batches is exactly, and one of more at most,
//!
//! ```text
//! node  Σ_{s=1}^{S-1} max(F(i, s), C(i, s-1))           edge  max(F(i+1, 0), C(i, S-1))
//! ```
//!
//! and a backward the same with R + B and C', from the last block to the first (Li et al., arXiv 2305.16121, section 4, has
//! the sums over sub-batches, max(F, C) and max(R + B, C')). That one is not exact: where C' is longer, a recomputation runs
//! ahead, so the sum is too long by at most R at each change from one to the other.
//!
//! Where the degree changes, all ρ follow the last sub-batch, each behind its own all-reduce; the all-gathers queue behind
//! the last all-reduce:
//!
//! ```text
//! forward   max( max(C(S-1), Σ_{s<S-1} ρ(s)) + ρ(S-1),          max(C(S-1), ρ(0)) + γ(0) ) + max(F(i+1, 0), Σ_{s>0} γ(s))
//! backward  max( max(C'(S-1), Σ_{s<S-1} ρ(s)) + ρ(S-1) + R(0),   max(C'(S-1), ρ(0)) + γ(0) ) + max(B(i, 0),  Σ_{s>0} γ(s))
//! ```
//!
//! With one sub-batch nothing but a recomputation runs under an all-reduce.
//!
//! The replicas' sum of gradients runs under the block's last backward as far as its all-reduces leave room.
//!
//! Behind a block that has no all-reduce, degree 1, each ρ follows its own sub-batch, so that γ(s) runs under the work W of the
//! block's sub-batch s+1, which is F, or R + B:
//!
//! ```text
//! ρ(0) + Σ_{s>0} ( max(W(s) + ρ(s), γ(s-1)) - W(s) ) + max(F(i+1, 0) or R(0) + B(i, 0), γ(S-1))
//! ```
//!
//! Where computation is slower beside a collective, both max and sum take that into account, as the simulator does.
//!
//! **Blocking.** Everything after everything: the objective of planners that do not know of overlap (Zheng et al., "Alpa",
//! arXiv 2201.12023, section 4.2, has node costs and resharding edges of this form).

use oases_schedule::Variant;

use super::times::BlockTimes;
use crate::rank::stretched;
use crate::time::Nanoseconds;

/// How times add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// Collectives run under computation.
    Overlapped,
    /// Nothing runs under anything.
    Blocking,
}

impl Objective {
    /// That of a schedule.
    pub fn of(variant: &Variant) -> Objective {
        let overlaps = variant.passes.iter().any(|pass| pass.name == "overlap");
        if overlaps { Objective::Overlapped } else { Objective::Blocking }
    }
}

/// Where the degree changes between two blocks, by sub-batch: arithmetic, and the all-gather behind it (zero where rows are
/// sliced).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Crossing {
    pub forward: Vec<Nanoseconds>,
    pub forward_gather: Vec<Nanoseconds>,
    pub backward: Vec<Nanoseconds>,
    pub backward_gather: Vec<Nanoseconds>,
}

/// How a step adds up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub objective: Objective,
    pub micro_batches: u64,
    /// How many times longer computation takes under a collective.
    pub interference: f64,
}

impl Step {
    /// What a block adds by itself.
    pub(crate) fn node(self, block: &BlockTimes) -> Nanoseconds {
        let backward = recomputed(block);
        let [work, reduce] = [total(&backward), total(&block.backward_reduce)];
        match self.objective {
            Objective::Blocking => {
                let forward = total(&block.forward) + total(&block.forward_reduce);
                times(forward + work + reduce, self.micro_batches) + block.replicas + block.update
            }
            Objective::Overlapped => {
                let forward = self.phases(&block.forward, &block.forward_reduce);
                let phases = forward + self.phases(&backward, &block.backward_reduce);
                let exposed = self.beside(work, reduce + block.replicas) - self.beside(work, reduce);
                times(phases, self.micro_batches) + exposed + block.update
            }
        }
    }

    /// What two neighbours add, `before` and `after` in the chain.
    pub(crate) fn edge(
        self,
        before: &BlockTimes,
        after: &BlockTimes,
        crossing: Option<&Crossing>,
    ) -> Nanoseconds {
        let once = match (self.objective, crossing) {
            (Objective::Blocking, None) => Nanoseconds::ZERO,
            (Objective::Blocking, Some(crossing)) => {
                let Crossing { forward, forward_gather, backward, backward_gather } = crossing;
                [forward, forward_gather, backward, backward_gather]
                    .map(|times| total(times))
                    .into_iter()
                    .sum()
            }
            (Objective::Overlapped, None) if before.forward.len() == 1 => {
                let forward = after.forward[0] + before.forward_reduce[0];
                forward + self.beside(before.recompute[0], after.backward_reduce[0]) + before.backward[0]
            }
            (Objective::Overlapped, None) => {
                let backward = before.recompute[0] + before.backward[0];
                self.beside(after.forward[0], last(&before.forward_reduce))
                    + self.beside(backward, last(&after.backward_reduce))
            }
            (Objective::Overlapped, Some(crossing)) => {
                let Crossing { forward, forward_gather, backward, backward_gather } = crossing;
                let forward_then = [Nanoseconds::ZERO, after.forward[0]];
                let backward_then = [before.recompute[0], before.backward[0]];
                let backward_work = recomputed(after);
                let forward_from = [&before.forward, &before.forward_reduce].map(Vec::as_slice);
                let backward_from = [&backward_work, &after.backward_reduce].map(Vec::as_slice);
                self.border(forward_from, forward, forward_gather, forward_then)
                    + self.border(backward_from, backward, backward_gather, backward_then)
            }
        };
        times(once, self.micro_batches)
    }

    /// What the ends of the chain add that belongs to no pair: the first forward, and the first backward.
    pub(crate) fn turns(self, embed: &BlockTimes, head: &BlockTimes) -> Nanoseconds {
        let once = match self.objective {
            Objective::Blocking => Nanoseconds::ZERO,
            Objective::Overlapped => {
                embed.forward[0]
                    + last(&head.forward_reduce)
                    + head.backward[0]
                    + last(&embed.backward_reduce)
            }
        };
        times(once, self.micro_batches)
    }

    /// From the work and the all-reduces of the block that it comes from; `then` is what runs before the gathered is needed, and
    /// what needs it.
    fn border(
        self,
        [work, reduce]: [&[Nanoseconds]; 2],
        arithmetic: &[Nanoseconds],
        gather: &[Nanoseconds],
        then: [Nanoseconds; 2],
    ) -> Nanoseconds {
        let followed = total(reduce) == Nanoseconds::ZERO && work.len() > 1;
        if followed {
            let hidden =
                (1..work.len()).map(|s| self.beside(work[s] + arithmetic[s], gather[s - 1]) - work[s]);
            let last_gather = self.beside(then[0] + then[1], last(gather));
            return arithmetic[0] + hidden.sum() + last_gather;
        }
        let reduce = last(reduce);
        let (final_part, earlier) = arithmetic.split_last().expect("at least one part");
        if earlier.is_empty() {
            return reduce + *final_part + self.beside(then[0], gather[0]) + then[1];
        }
        let computed = reduce.max(total(earlier)) + *final_part + then[0];
        let gathered = reduce.max(arithmetic[0]) + gather[0];
        computed.max(gathered) + self.beside(then[1], total(&gather[1..]))
    }

    /// Each sub-batch's work beside the collective of the one before.
    fn phases(self, work: &[Nanoseconds], reduce: &[Nanoseconds]) -> Nanoseconds {
        work[1..].iter().zip(reduce).map(|(&work, &reduce)| self.beside(work, reduce)).sum()
    }

    /// Computation and a collective that begin together, until both have ended.
    fn beside(self, work: Nanoseconds, reduce: Nanoseconds) -> Nanoseconds {
        reduce.max(stretched(work, reduce, self.interference))
    }
}

fn recomputed(block: &BlockTimes) -> Vec<Nanoseconds> {
    block.recompute.iter().zip(&block.backward).map(|(&recompute, &backward)| recompute + backward).collect()
}

fn total(times: &[Nanoseconds]) -> Nanoseconds {
    times.iter().copied().sum()
}

fn last(times: &[Nanoseconds]) -> Nanoseconds {
    times.last().copied().unwrap_or(Nanoseconds::ZERO)
}

fn times(duration: Nanoseconds, count: u64) -> Nanoseconds {
    Nanoseconds(duration.0 * count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Step = Step { objective: Objective::Overlapped, micro_batches: 1, interference: 1.0 };

    /// A small deterministic sequence.
    struct Draw(u64);

    impl Draw {
        fn times(&mut self, count: usize) -> Vec<Nanoseconds> {
            let one = |_| {
                self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                Nanoseconds((self.0 >> 33) % 100)
            };
            (0..count).map(one).collect()
        }
    }

    fn blocks(draw: &mut Draw, count: usize, parts: usize) -> Vec<BlockTimes> {
        let zeros = vec![Nanoseconds::ZERO; parts];
        let block = |_| BlockTimes {
            forward: draw.times(parts),
            forward_reduce: draw.times(parts),
            recompute: zeros.clone(),
            backward: zeros.clone(),
            backward_reduce: zeros.clone(),
            ..BlockTimes::default()
        };
        (0..count).map(block).collect()
    }

    /// Two streams, event by event: each sub-batch of a block waits for its own collective of the block before.
    fn played(blocks: &[BlockTimes]) -> u64 {
        let parts = blocks[0].forward.len();
        let (mut computed, mut carried) = (0, 0);
        let mut ready = vec![0; parts];
        for block in blocks {
            for (part, ready) in ready.iter_mut().enumerate() {
                computed = computed.max(*ready) + block.forward[part].0;
                carried = carried.max(computed) + block.forward_reduce[part].0;
                *ready = carried;
            }
        }
        carried
    }

    fn summed(blocks: &[BlockTimes]) -> u64 {
        let nodes: Nanoseconds = blocks.iter().map(|block| STEP.node(block)).sum();
        let edges: Nanoseconds = blocks.windows(2).map(|pair| STEP.edge(&pair[0], &pair[1], None)).sum();
        let (first, last) = (&blocks[0], &blocks[blocks.len() - 1]);
        (nodes + edges + STEP.turns(first, last)).0
    }

    #[test]
    fn a_forward_is_exact() {
        let mut draw = Draw(3);
        for parts in [1, 2, 3, 4] {
            for _ in 0..100 {
                let blocks = blocks(&mut draw, 6, parts);
                assert!(parts > 2 || summed(&blocks) == played(&blocks), "{parts} parts: {blocks:?}");
                // With more sub-batches a collective can be late by more than one, and the sum is a bound.
                assert!(summed(&blocks) >= played(&blocks));
            }
        }
    }
}
