//! What each block allocates and computes: its activations by slot, and its floating-point operations.
//!
//! Sizes are those of one rank. Letters: n tokens of the part, h hidden, f ffn, V vocabulary, t TMP degree.

use crate::model::{HeadKind, Mask, Model, NormPlacement};
use crate::operation::{Direction, Family, Operation};
use crate::schedule::{Extent, Scope};
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
    /// Queries, keys and values of this rank's heads. `[n, (heads + 2 kv_heads)·d / t]`, or where all ranks hold all keys and values
    /// `[n, heads·d / t]` and behind it `[n, 2 kv_heads·d]`
    Qkv,
    /// The same with normalised heads, where the model has these. Like `Qkv`
    NormalizedHeads,
    /// Attention output of this rank's heads. `[n, heads·d / t]`
    Context,
    /// Logarithm of each query's softmax denominator. `[n, heads / t]`
    LogSumExp,
    /// Input of the non-linearity. `[n, f / t]`, with a gate `[n, 2 f / t]`
    PreActivation,
    /// Output of the non-linearity. `[n, f / t]`
    Activated,
    /// The head's transform before its non-linearity, absent without a transform. `[n, h]`
    TransformInput,
    /// The head's transform behind its non-linearity. `[n, h]`
    Transformed,
    /// Like `NormStats`, of the normalisation behind the head's transform. `[n, 2]`
    TransformStats,
    /// What the logits are made of where the head has a transform. `[n, h]`
    LogitsOperand,
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
    /// `G[k+1]` for the pieces of a backward whose residual path is normalised, absent elsewhere. `[n, h]`
    StreamGradient,
    /// Gradient of queries, keys and values. Like `Qkv`
    QkvGradient,
    /// Gradient of the attention output. Like `Context`
    ContextGradient,
    /// Gradient of the output, then of the input, of the non-linearity. Like `PreActivation`
    ActivationGradient,
    /// A reduced output whose pieces are columns, put together. `[n, h]`
    Joined,
    /// The block's input, or in backward its gradient, for the other TMP degree. `[n', h]`
    Resharded,
    /// Gradient of `LogitsOperand`, then of `Normalized`. `[n, h]`
    TransformGradient,
    /// Tiles of the attention kernel.
    Workspace,
}

impl Slot {
    /// Number of slots.
    pub const COUNT: usize = Slot::Workspace as usize + 1;
}

/// A value that lives inside a block, from one of its instructions to another. Each has buffers of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Inside {
    /// What backward reads besides the input and the core's output.
    Saved,
    /// What the attention core puts out; empty in other blocks.
    Core,
    /// What the pieces of the last product read and nobody saved.
    Operand,
    /// What is left of a backward for `backward_weight` or for the pieces of its last product.
    Delta,
}

/// The buffers of a value inside a kind of block.
pub(crate) fn inside(family: Family, value: Inside) -> &'static [Slot] {
    match (family, value) {
        (Family::Attn, Inside::Saved) => &[Slot::Normalized, Slot::NormStats, Slot::Qkv],
        (Family::Attn, Inside::Core) => &[Slot::Context, Slot::LogSumExp],
        (Family::Attn, Inside::Operand) => &[Slot::Context],
        (Family::Attn, Inside::Delta) => &[Slot::QkvGradient, Slot::BranchGradient, Slot::StreamGradient],
        (Family::Mlp, Inside::Saved) => &[Slot::Normalized, Slot::NormStats, Slot::PreActivation],
        (Family::Mlp, Inside::Operand) => &[Slot::Activated],
        (Family::Mlp, Inside::Delta) => {
            &[Slot::ActivationGradient, Slot::BranchGradient, Slot::StreamGradient]
        }
        (Family::Head, Inside::Saved) => &[
            Slot::Normalized,
            Slot::NormStats,
            Slot::TransformInput,
            Slot::Transformed,
            Slot::TransformStats,
            Slot::LogitsOperand,
            Slot::Logits,
            Slot::TokenLogSumExp,
        ],
        (Family::Mlp | Family::Head, Inside::Core)
        | (Family::Head, Inside::Operand | Inside::Delta)
        | (Family::Embed, _) => &[],
    }
}

/// Every internal buffer that an operation works with, whether it is given, left behind or scratch.
pub(crate) fn internals(operation: Operation) -> &'static [Slot] {
    use Slot::{
        Activated, ActivationGradient, BranchGradient, Context, ContextGradient, LogSumExp, Logits,
        LogitsOperand, NormStats, Normalized, NormalizedHeads, PreActivation, Qkv, QkvGradient,
        StreamGradient, TokenLogSumExp, TransformGradient, TransformInput, TransformStats, Transformed,
        Workspace,
    };
    match operation {
        Operation::Forward(Family::Attn, _)
        | Operation::Recompute(Family::Attn, Extent::Saved | Extent::Body | Extent::Output) => {
            &[Normalized, NormStats, Qkv, NormalizedHeads, Context, LogSumExp, Workspace]
        }
        Operation::Recompute(Family::Attn, Extent::Core) => {
            &[Qkv, NormalizedHeads, Context, LogSumExp, Workspace]
        }
        Operation::Forward(Family::Mlp, _)
        | Operation::Recompute(Family::Mlp, Extent::Body | Extent::Output) => {
            &[Normalized, NormStats, PreActivation, Activated]
        }
        Operation::Recompute(Family::Mlp, Extent::Saved | Extent::Core) => {
            &[Normalized, NormStats, PreActivation]
        }
        Operation::Forward(Family::Head, _) => &[
            Normalized,
            NormStats,
            TransformInput,
            Transformed,
            TransformStats,
            LogitsOperand,
            Logits,
            TokenLogSumExp,
        ],
        // Where the residual path is normalised, so is what they complete with.
        Operation::Complete(Direction::Forward) | Operation::Reshard(Direction::Forward) => {
            &[Normalized, NormStats]
        }
        Operation::Tail(Direction::Forward, Family::Attn, _, _) => &[Context],
        Operation::Tail(Direction::Forward, Family::Mlp, _, _) => &[Activated],
        Operation::Tail(Direction::Backward, Family::Attn, _, _) => &[NormStats, QkvGradient],
        Operation::Tail(Direction::Backward, Family::Mlp, _, _) => &[NormStats, ActivationGradient],
        Operation::Tail(Direction::Backward, Family::Head, _, _) => {
            &[Normalized, NormStats, TransformInput, Transformed, TransformStats, Logits, TransformGradient]
        }
        Operation::Backward(Family::Embed, _) => &[BranchGradient],
        Operation::Backward(Family::Attn, Scope::Weight) => {
            &[Normalized, Context, QkvGradient, BranchGradient]
        }
        Operation::Backward(Family::Attn, _) => &[
            Normalized,
            NormStats,
            Qkv,
            NormalizedHeads,
            Context,
            LogSumExp,
            Workspace,
            ContextGradient,
            QkvGradient,
            BranchGradient,
            StreamGradient,
        ],
        Operation::Backward(Family::Mlp, Scope::Weight) => {
            &[Normalized, PreActivation, ActivationGradient, BranchGradient]
        }
        Operation::Backward(Family::Mlp, _) => {
            &[Normalized, NormStats, PreActivation, ActivationGradient, BranchGradient, StreamGradient]
        }
        Operation::Backward(Family::Head, Scope::Weight) => &[Normalized, LogitsOperand, Logits],
        Operation::Backward(Family::Head, _) => &[
            Normalized,
            NormStats,
            TransformInput,
            Transformed,
            TransformStats,
            LogitsOperand,
            Logits,
            TokenLogSumExp,
            TransformGradient,
        ],
        Operation::Loss => &[Logits, TokenLogSumExp],
        _ => &[],
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

impl Model {
    /// Bytes of a slot in an operation on `tokens` tokens, on one rank of a TMP group of `tensor`.
    pub fn slot_bytes(
        &self,
        operation: Operation,
        slot: Slot,
        tokens: usize,
        tensor: u32,
        workspace: Workspace,
    ) -> Bytes {
        let t = tensor as usize;
        let heads = self.heads / t;
        let qkv = (heads + 2 * self.local_kv_heads(tensor)) * self.head_dim;
        let post = self.placement == NormPlacement::Post;
        let border = matches!(operation, Operation::Complete(_) | Operation::Reshard(_));
        let elements = match slot {
            Slot::Output if operation.family() == Some(Family::Head) => t * tokens * 3,
            Slot::BranchGradient if self.dropout == 0.0 => 0,
            Slot::Normalized | Slot::NormStats if border && !post => 0,
            Slot::NormalizedHeads if !self.head_norm => 0,
            Slot::StreamGradient if !post || !matches!(operation, Operation::Backward(_, Scope::Body)) => 0,
            Slot::TransformInput
            | Slot::Transformed
            | Slot::TransformStats
            | Slot::LogitsOperand
            | Slot::TransformGradient
                if self.head == HeadKind::Plain =>
            {
                0
            }
            Slot::Input
            | Slot::Residual
            | Slot::Output
            | Slot::Joined
            | Slot::Resharded
            | Slot::Normalized
            | Slot::Upstream
            | Slot::Gradient
            | Slot::InputGradient
            | Slot::BranchGradient
            | Slot::StreamGradient
            | Slot::TransformInput
            | Slot::Transformed
            | Slot::LogitsOperand
            | Slot::TransformGradient => tokens * self.hidden,
            Slot::NormStats | Slot::TransformStats => tokens * 2,
            Slot::Qkv | Slot::NormalizedHeads | Slot::QkvGradient => tokens * qkv,
            Slot::Context | Slot::ContextGradient => tokens * heads * self.head_dim,
            Slot::LogSumExp => tokens * heads,
            Slot::PreActivation | Slot::ActivationGradient => tokens * (self.ffn_columns() / t),
            Slot::Activated => tokens * (self.ffn / t),
            Slot::Logits => tokens * self.vocabulary.div_ceil(t),
            Slot::TokenLogSumExp => tokens,
            Slot::Workspace => {
                return match operation {
                    Operation::Backward(..) => workspace.attention_backward,
                    _ => workspace.attention_forward,
                };
            }
        };
        Bytes((elements * ELEMENT) as u64)
    }

    /// Floating-point operations of the matrix products of one operation on `tokens` tokens, on one rank. Normalisation,
    /// softmax and other element-wise work is not counted. Backward is twice forward: one product for each operand's
    /// gradient.
    pub fn flops(&self, operation: Operation, tokens: usize, tensor: u32) -> Flops {
        let Some(family) = operation.family() else { return Flops(0) };
        let products = self.products(family, tokens, tensor);
        let Products { first, core, last } = products;
        let forward = |extent| match extent {
            Extent::Core => core,
            Extent::Saved | Extent::Body => first + core,
            Extent::Output => first + core + last,
        };
        Flops(match operation {
            Operation::Forward(_, extent) | Operation::Recompute(_, extent) => forward(extent),
            Operation::Tail(Direction::Forward, _, of, _) => last / u64::from(of),
            Operation::Tail(Direction::Backward, _, of, _) => first / u64::from(of),
            Operation::Backward(_, Scope::All) => 2 * (first + core + last),
            Operation::Backward(_, Scope::Input) => first + 2 * core + last,
            Operation::Backward(_, Scope::Weight) => first + last,
            Operation::Backward(_, Scope::Body) => first + 2 * core + 2 * last,
            Operation::Reshard(_)
            | Operation::Complete(_)
            | Operation::Loss
            | Operation::Norm
            | Operation::Step => 0,
        })
    }

    /// Operations of the matrix products in the forward of a kind of block.
    pub fn products(&self, family: Family, tokens: usize, tensor: u32) -> Products {
        let n = tokens as u64;
        let t = u64::from(tensor);
        let [h, f, v] = [self.hidden as u64, self.ffn as u64, self.vocabulary as u64];
        let queries = self.query_columns() as u64 / t;
        let keys = (self.local_kv_heads(tensor) * self.head_dim) as u64;
        // Queries at position i see i + 1 keys under a causal mask: (S + 1) / 2 on average.
        let length = self.sequence as u64;
        let seen_doubled = match self.mask {
            Mask::Causal => length + 1,
            Mask::Sliding(window) => {
                let window = length.min(window as u64);
                (window * (window + 1) + 2 * (length - window) * window) / length
            }
            Mask::Bidirectional => 2 * length,
        };
        match family {
            Family::Embed => Products::default(),
            Family::Attn => Products {
                first: 2 * n * h * (queries + 2 * keys),
                core: 2 * n * seen_doubled * queries,
                last: 2 * n * h * queries,
            },
            Family::Mlp => Products {
                first: 2 * n * h * self.ffn_columns() as u64 / t,
                core: 0,
                last: 2 * n * h * f / t,
            },
            Family::Head => {
                let transform = if self.head == HeadKind::Transform { 2 * n * h * h } else { 0 };
                Products { first: 2 * n * h * v / t + transform, core: 0, last: 0 }
            }
        }
    }
}

/// Floating-point operations of the matrix products in a block's forward, on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Products {
    /// The column-parallel product: queries, keys and values; the inside of a perceptron; logits.
    pub first: u64,
    /// The attention core: scores and their products with the values.
    pub core: u64,
    /// The row-parallel product, behind which the all-reduce stands.
    pub last: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Cut;

    #[test]
    fn flops_agree_with_the_count_by_parameters() {
        // Kaplan et al., arXiv 2001.08361, table 1: forward costs 2N + 2·layers·context·hidden per token (causal), where
        // N counts the weights of the matrix products.
        let model = Model::gpt(8, 512, 8, 256, 8192);
        let weights = 8 * 12 * 512 * 512 + 8192 * 512;
        let tokens = 1024;
        let of = |family| model.flops(Operation::Forward(family, Extent::Output), tokens, 1).0;
        let forward = 8 * (of(Family::Attn) + of(Family::Mlp)) + of(Family::Head);
        let expected = tokens as u64 * (2 * weights + 2 * 8 * 257 * 512);
        assert_eq!(forward, expected);
    }

    #[test]
    fn a_sliding_window_sees_what_a_loop_counts() {
        for (sequence, window) in [(32, 1), (32, 7), (32, 32), (32, 99)] {
            let mask = Mask::Sliding(window);
            let model = Model { mask, ..Model::gpt(1, 64, 4, sequence, 100) };
            let seen: usize = (0..sequence).map(|query| (query + 1).min(window)).sum();
            let core = model.products(Family::Attn, sequence, 2).core;
            let exact = (4 * seen * 64 / 2) as u64;
            assert!(exact - core < 2 * 64 * sequence as u64, "{core} instead of {exact}");
        }
    }

    #[test]
    fn recomputing_an_mlp_costs_half_its_forward() {
        let model = Model::gpt(1, 64, 4, 32, 100);
        let of = |operation| model.flops(operation, 96, 2).0;
        let forward = of(Operation::Forward(Family::Mlp, Extent::Output));
        assert_eq!(2 * of(Operation::Recompute(Family::Mlp, Extent::Saved)), forward);
        assert_eq!(of(Operation::Backward(Family::Mlp, Scope::All)), 2 * forward);
    }

    #[test]
    fn cutting_an_instruction_changes_no_work() {
        let model = Model::gpt(1, 64, 4, 32, 100);
        let of = |operation| model.flops(operation, 96, 2).0;
        for family in [Family::Attn, Family::Mlp, Family::Head] {
            let whole = of(Operation::Backward(family, Scope::All));
            let halves = [Scope::Input, Scope::Weight].map(|scope| of(Operation::Backward(family, scope)));
            assert_eq!(halves[0] + halves[1], whole);
            let tail = of(Operation::Tail(Direction::Backward, family, 4, Cut::Rows));
            assert_eq!(of(Operation::Backward(family, Scope::Body)) + 4 * tail, whole);
            let tail = of(Operation::Tail(Direction::Forward, family, 2, Cut::Columns));
            let body = of(Operation::Forward(family, Extent::Body));
            assert_eq!(body + 2 * tail, of(Operation::Forward(family, Extent::Output)));
        }
    }
}
