//! What each block allocates and computes: its activations by slot, and its floating-point operations.
//!
//! Sizes are those of one rank. Letters: n tokens of the part, h hidden, f ffn, V vocabulary, t TMP degree.

use crate::ids::BlockId;
use crate::model::{Mask, Model};
use crate::schedule::Extent;
use crate::units::{Bytes, Flops};

/// The role of a buffer in an instruction. An operand is found by its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Slot {
    /// `x[k]`, the input of the block. `[n, h]`
    Input,
    /// `x[k-1]`, read to complete the input. `[n, h]`
    Residual,
    /// The partial output; for the head, every rank's statistics. `[n, h]`, head `[t, n, 3]`
    Output,
    /// The normalised input. `[n, h]`
    Normalized,
    /// Mean and reciprocal standard deviation of each row. `[n, 2]`
    NormStats,
    /// Queries, keys and values of this rank's heads. `[n, (heads + 2 kv_heads)·d / t]`
    Qkv,
    /// Attention output of this rank's heads. `[n, h / t]`
    Context,
    /// Logarithm of each query's softmax denominator. `[n, heads / t]`
    LogSumExp,
    /// Input of the non-linearity. `[n, f / t]`
    PreActivation,
    /// Output of the non-linearity. `[n, f / t]`
    Activated,
    /// Logits of this rank's part of the vocabulary. `[n, ceil(V / t)]`
    Logits,
    /// Logarithm of each token's softmax denominator. `[n]`
    TokenLogSumExp,
    /// `G[k+2]`, the complete gradient that joins `G[k+1]`. `[n, h]`
    Upstream,
    /// `G[k+1]`, the gradient of the block's output. `[n, h]`
    Gradient,
    /// The partial gradient of the block's input. `[n, h]`
    InputGradient,
    /// `G[k+1]` behind dropout. `[n, h]`, absent without dropout
    BranchGradient,
    /// Gradient of queries, keys and values. Like `Qkv`
    QkvGradient,
    /// Gradient of the attention output. Like `Context`
    ContextGradient,
    /// Gradient of the output, then of the input, of the non-linearity. `[n, f / t]`
    ActivationGradient,
    /// Tiles of the attention kernel.
    Workspace,
}

impl Slot {
    /// Number of slots.
    pub const COUNT: usize = Slot::Workspace as usize + 1;
}

/// When in the life of a block a buffer is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Written by forward or recompute, read by backward.
    Saved,
    /// Only inside instructions of these kinds.
    Scratch(&'static [Moment]),
}

/// A kind of instruction on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// `forward`
    Forward,
    /// `recompute`
    RecomputeSaved,
    /// `recompute … output`
    RecomputeOutput,
    /// `backward`
    Backward,
}

impl From<Extent> for Moment {
    fn from(extent: Extent) -> Moment {
        match extent {
            Extent::Saved => Moment::RecomputeSaved,
            Extent::Output => Moment::RecomputeOutput,
        }
    }
}

/// Bytes that the attention kernels of a backend want as workspace, for one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Workspace {
    /// For the forward kernel.
    pub attention_forward: Bytes,
    /// For the backward kernel.
    pub attention_backward: Bytes,
}

const ELEMENT: usize = size_of::<f32>();

/// Internal buffers of each kind of block.
pub(crate) fn internals(block: BlockId) -> &'static [(Slot, Need)] {
    use Moment::{Backward, Forward, RecomputeOutput, RecomputeSaved};
    match block {
        BlockId::Embed => &[(Slot::BranchGradient, Need::Scratch(&[Backward]))],
        BlockId::Attn(_) => &[
            (Slot::Normalized, Need::Saved),
            (Slot::NormStats, Need::Saved),
            (Slot::Qkv, Need::Saved),
            (Slot::Context, Need::Saved),
            (Slot::LogSumExp, Need::Saved),
            (Slot::Workspace, Need::Scratch(&[Forward, RecomputeSaved, RecomputeOutput, Backward])),
            (Slot::ContextGradient, Need::Scratch(&[Backward])),
            (Slot::QkvGradient, Need::Scratch(&[Backward])),
            (Slot::BranchGradient, Need::Scratch(&[Backward])),
        ],
        BlockId::Mlp(_) => &[
            (Slot::Normalized, Need::Saved),
            (Slot::NormStats, Need::Saved),
            (Slot::PreActivation, Need::Saved),
            (Slot::Activated, Need::Scratch(&[Forward, RecomputeOutput])),
            (Slot::ActivationGradient, Need::Scratch(&[Backward])),
            (Slot::BranchGradient, Need::Scratch(&[Backward])),
        ],
        BlockId::Head => &[
            (Slot::Normalized, Need::Saved),
            (Slot::NormStats, Need::Saved),
            (Slot::Logits, Need::Saved),
            (Slot::TokenLogSumExp, Need::Saved),
        ],
    }
}

impl Model {
    /// Bytes of a slot of a block for `tokens` tokens on one rank of a TMP group of `tensor`.
    pub fn slot_bytes(
        &self,
        block: BlockId,
        slot: Slot,
        moment: Moment,
        tokens: usize,
        tensor: u32,
        workspace: Workspace,
    ) -> Bytes {
        let t = tensor as usize;
        let heads = self.heads / t;
        let kv_heads = (self.kv_heads / t).max(1);
        let d = self.head_dim();
        let elements = match slot {
            Slot::Output if block == BlockId::Head => t * tokens * 3,
            Slot::BranchGradient if self.dropout == 0.0 => 0,
            Slot::Input
            | Slot::Residual
            | Slot::Output
            | Slot::Normalized
            | Slot::Upstream
            | Slot::Gradient
            | Slot::InputGradient
            | Slot::BranchGradient => tokens * self.hidden,
            Slot::NormStats => tokens * 2,
            Slot::Qkv | Slot::QkvGradient => tokens * (heads + 2 * kv_heads) * d,
            Slot::Context | Slot::ContextGradient => tokens * heads * d,
            Slot::LogSumExp => tokens * heads,
            Slot::PreActivation | Slot::Activated | Slot::ActivationGradient => tokens * (self.ffn / t),
            Slot::Logits => tokens * self.vocabulary.div_ceil(t),
            Slot::TokenLogSumExp => tokens,
            Slot::Workspace => {
                return match moment {
                    Moment::Backward => workspace.attention_backward,
                    _ => workspace.attention_forward,
                };
            }
        };
        Bytes((elements * ELEMENT) as u64)
    }

    /// Floating-point operations of the matrix products of one instruction on one rank. Normalisation, softmax and
    /// other element-wise work is not counted. Backward is twice forward: one product for each operand's gradient.
    pub fn flops(&self, block: BlockId, moment: Moment, tokens: usize, tensor: u32) -> Flops {
        let n = tokens as u64;
        let t = u64::from(tensor);
        let [h, f, v] = [self.hidden as u64, self.ffn as u64, self.vocabulary as u64];
        let kv = (self.kv_heads * self.head_dim()) as u64;
        // Queries at position i see i + 1 keys under a causal mask: (S + 1) / 2 on average.
        let keys_doubled = match self.mask {
            Mask::Causal => self.sequence as u64 + 1,
            Mask::Bidirectional => 2 * self.sequence as u64,
        };
        let (inner, last) = match block {
            BlockId::Embed => (0, 0),
            BlockId::Attn(_) => {
                (2 * n * h * (h + 2 * kv) / t + 2 * n * keys_doubled * h / t, 2 * n * h * h / t)
            }
            BlockId::Mlp(_) => (2 * n * h * f / t, 2 * n * h * f / t),
            BlockId::Head => (2 * n * h * v / t, 0),
        };
        Flops(match moment {
            Moment::Forward | Moment::RecomputeOutput => inner + last,
            Moment::RecomputeSaved => inner,
            Moment::Backward => 2 * (inner + last),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flops_agree_with_the_count_by_parameters() {
        // Kaplan et al., arXiv 2001.08361, table 1: forward costs 2N + 2·layers·context·hidden per token (causal), where
        // N counts the weights of the matrix products.
        let model = Model::gpt(8, 512, 8, 256, 8192);
        let weights = 8 * 12 * 512 * 512 + 8192 * 512;
        let tokens = 1024;
        let forward: u64 = (0..8)
            .flat_map(|layer| [BlockId::Attn(layer), BlockId::Mlp(layer)])
            .chain([BlockId::Head])
            .map(|block| model.flops(block, Moment::Forward, tokens, 1).0)
            .sum();
        let expected = tokens as u64 * (2 * weights + 2 * 8 * 257 * 512);
        assert_eq!(forward, expected);
    }

    #[test]
    fn recomputing_an_mlp_costs_half_its_forward() {
        let model = Model::gpt(1, 64, 4, 32, 100);
        let of = |moment| model.flops(BlockId::Mlp(0), moment, 96, 2).0;
        assert_eq!(2 * of(Moment::RecomputeSaved), of(Moment::Forward));
        assert_eq!(of(Moment::Backward), 2 * of(Moment::RecomputeOutput));
    }
}
