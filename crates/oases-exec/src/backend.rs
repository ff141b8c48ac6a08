//! What a device must do: hold the arena, run the operators in order, and lend buffers to the communicator.
//!
//! The trait is shaped for an asynchronous device. An operator enqueues and returns; operators run in the order in which
//! they were called. The host waits only in [`Backend::read`]. [`Backend::lend`] marks the point in the compute stream
//! after which a collective may touch a buffer, and [`Backend::give_back`] the point before which it must be done.
//!
//! Operands are [`Span`]s of the arena; an empty span is an absent operand. Letters in shapes: n tokens, h hidden, S
//! sequence length, d head width, V rows of the vocabulary on this rank. Matrices are row-major.

use oases_schedule::{Activation, Bytes, Instruction, NormKind, Operands, Span};

use crate::operators::{
    Accumulate, AdamW, Attention, Dropout, Mat, ParameterState, Rotation, Term, VocabularyShard,
};

/// A device. See the [module](self) for the order of effects.
pub trait Backend {
    /// A buffer on loan to a communicator.
    type Region;

    /// Announces the instruction whose operators follow.
    fn begin(&mut self, index: usize, instruction: &Instruction, operands: &Operands);

    /// Highest byte of the arena that was touched since [`Backend::forget_touched`], or ever, plus one.
    fn touched(&self) -> Bytes;

    /// Counts what is touched from here on.
    fn forget_touched(&mut self);

    /// Hands a buffer to a communicator. Nothing may touch it until it is given back.
    fn lend(&mut self, span: Span) -> Self::Region;

    /// Takes a buffer back.
    fn give_back(&mut self, region: Self::Region);

    /// Copies host values in.
    fn write(&mut self, span: Span, values: &[f32]);

    /// Copies host tokens in.
    fn write_tokens(&mut self, span: Span, tokens: &[u32]);

    /// Waits for the device and copies values out.
    fn read(&mut self, span: Span, values: &mut [f32]);

    /// Fills with zeros.
    fn clear(&mut self, span: Span);

    /// Copies a span to another one of the same size.
    fn copy(&mut self, from: Span, to: Span);

    /// `c = a·b`, or `c += a·b`; with a bias (`[columns of c]`), `c = a·b + bias`.
    fn matmul(&mut self, c: Mat, a: Mat, b: Mat, bias: Span, accumulate: Accumulate);

    /// Rows of the table `[V, h]` for the tokens `[n]` of this shard, zeros for the others. Overwrites `out` `[n, h]`.
    fn embed(&mut self, tokens: Span, table: Span, shard: VocabularyShard, hidden: usize, out: Span);

    /// Gradient of [`Backend::embed`] with respect to the table.
    fn embed_backward(
        &mut self,
        tokens: Span,
        gradient: Span,
        shard: VocabularyShard,
        hidden: usize,
        table: Span,
        accumulate: Accumulate,
    );

    /// Puts the rows of `x` `[n, h]` together, which lies in `pieces` pieces `[n, h / pieces]` one behind the other, by way
    /// of `scratch` `[n, h]`. The pieces are those of [`oases_schedule::Piece::range`].
    fn columns_to_rows(&mut self, x: Span, scratch: Span, hidden: usize, pieces: u8);

    /// `x = residual + drop(x + term)`, in place of the reduced output `x` `[n, h]`.
    fn join(&mut self, x: Span, residual: Span, term: Term, hidden: usize, dropout: Option<Dropout>);

    /// `gradient += upstream`, then `branch = drop'(gradient)` where `branch` is present. All `[n, h]`.
    fn join_backward(
        &mut self,
        gradient: Span,
        upstream: Span,
        branch: Span,
        hidden: usize,
        dropout: Option<Dropout>,
    );

    /// Normalisation of `x` `[n, h]` into `y` `[n, h]`, with two numbers for each row in `stats`: its mean (0 where the kind has none)
    /// and the reciprocal of its deviation.
    #[allow(clippy::too_many_arguments, reason = "the operands of the operator")]
    fn norm(&mut self, kind: NormKind, x: Span, gain: Span, shift: Span, epsilon: f32, y: Span, stats: Span);

    /// Gradient of [`Backend::norm`]: replaces `dy` by the gradient of `x`.
    #[allow(clippy::too_many_arguments, reason = "the operands of the operator")]
    fn norm_backward(
        &mut self,
        kind: NormKind,
        x: Span,
        stats: Span,
        gain: Span,
        dy: Span,
        gain_gradient: Span,
        shift_gradient: Span,
        accumulate: Accumulate,
    );

    /// RMS normalisation of each head of queries and of keys, with a gain `[d]` for all of either; values are copied. `out` is like
    /// `qkv`.
    fn norm_heads(&mut self, shape: Attention, qkv: Span, gains: [Span; 2], epsilon: f32, out: Span);

    /// Gradient of [`Backend::norm_heads`], of what it read: replaces `dqkv`. `gains` are those of queries and keys, each with its
    /// gradient.
    fn norm_heads_backward(
        &mut self,
        shape: Attention,
        qkv: Span,
        gains: [(Span, Span); 2],
        epsilon: f32,
        dqkv: Span,
        accumulate: Accumulate,
    );

    /// Turns each pair (i, i + d/2) of the heads of queries and keys by its angle, in place; Su et al., arXiv 2104.09864, equation 34,
    /// with the pairs of `transformers`. `table` has for each position the cosines of all pairs, then their sines. `[S, d]`
    fn rotate(&mut self, shape: Attention, qkv: Span, table: Span, direction: Rotation);

    /// Attention of queries, keys and values (see [`Attention`]) into `out` `[n, heads·d]`. Of a sequence whose number of tokens is in
    /// `lengths` (`u32`, `[sequences]`), keys from there on are not seen.
    fn attention(
        &mut self,
        shape: Attention,
        qkv: Span,
        lengths: Span,
        out: Span,
        lse: Span,
        workspace: Span,
    );

    /// Gradient of [`Backend::attention`]. Overwrites `qkv_gradient`.
    #[allow(clippy::too_many_arguments, reason = "the operands of the operator")]
    fn attention_backward(
        &mut self,
        shape: Attention,
        qkv: Span,
        lengths: Span,
        out: Span,
        lse: Span,
        out_gradient: Span,
        qkv_gradient: Span,
        workspace: Span,
    );

    /// `a = f(u)`, `[n, width]`; with a gate, each row of `u` has the gate's `width` elements, then the others.
    fn activate(&mut self, kind: Activation, u: Span, a: Span, width: usize);

    /// Replaces `da` by `du`, and `u` by `a`. Where these have different shapes, both pairs begin at the same place.
    fn activate_backward(&mut self, kind: Activation, u: Span, da: Span, width: usize);

    /// Sums the rows of `dy` `[n, columns of bias]` into the gradient of a bias.
    fn bias_backward(&mut self, dy: Span, bias: Span, accumulate: Accumulate);

    /// Sums `dy` `[n, h]` over sequences into the first `used` = S·h elements of the gradient of the positions, which can have more
    /// rows.
    fn positions_backward(&mut self, dy: Span, positions: Span, used: usize, accumulate: Accumulate);

    /// This rank's maximum, sum of exponentials and target logit of each token, `[n, 3]`, from its logits `[n, width]`.
    fn logit_statistics(&mut self, logits: Span, targets: Span, shard: VocabularyShard, statistics: Span);

    /// Softmax denominators `[n]` and the sum of the losses `[1]`, from the statistics of all ranks `[t, n, 3]`.
    fn cross_entropy(&mut self, statistics: Span, targets: Span, lse: Span, loss: Span);

    /// Replaces the logits by `scale` times the gradient of the summed loss.
    fn cross_entropy_backward(
        &mut self,
        logits: Span,
        lse: Span,
        targets: Span,
        shard: VocabularyShard,
        scale: f32,
    );

    /// Sum of the squares of all elements of some spans, into `out` `[1]`.
    fn square_norm(&mut self, gradients: &[Span], out: Span);

    /// One AdamW update of one parameter, scaled by the clipping of `square_norm` `[1]`. Leaves everything as it is where
    /// the norm is not finite, so that no such step reaches the weights.
    fn adamw(&mut self, parameter: &ParameterState, square_norm: Span, hyper: &AdamW);
}
