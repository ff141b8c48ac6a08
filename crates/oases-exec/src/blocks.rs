//! Each block's forward, recomputation and backward, as a sequence of operators.
//!
//! A block is a closed unit (DESIGN, "The arithmetic of a step"): from its input it makes a partial output, from the
//! gradient of its output a partial gradient of its input. What completes them is a collective, and the start of the next
//! instruction: `x[k+1] = x[k] + drop(AR(f(x[k])) + b)` and `G[k] = G[k+1] + AR(…)`.

use oases_schedule::{BlockId, Extent, Model, Operands, Role, Slot, Span, Statics};

use crate::backend::Backend;
use crate::inputs::StepInputs;
use crate::operators::{Accumulate, Attention, Dropout, Mat, Term, VocabularyShard};

/// An instruction on a block, about to be executed on one rank.
pub(crate) struct BlockCall<'a, B> {
    pub backend: &'a mut B,
    pub statics: &'a Statics,
    pub operands: &'a Operands,
    pub inputs: &'a StepInputs,
    pub tp_rank: u32,
    pub block: BlockId,
    /// The block whose output becomes this block's input.
    pub before: Option<BlockId>,
}

impl<B: Backend> BlockCall<'_, B> {
    pub(crate) fn forward(&mut self) {
        self.join();
        match self.block {
            BlockId::Embed => self.embed(),
            BlockId::Attn(_) => {
                self.attention_saved();
                self.project_out(Slot::Context);
            }
            BlockId::Mlp(_) => {
                self.mlp_saved();
                self.mlp_out();
            }
            BlockId::Head => self.head(),
        }
    }

    pub(crate) fn recompute(&mut self, extent: Extent) {
        self.join();
        match (self.block, extent) {
            (BlockId::Attn(_), Extent::Saved) => self.attention_saved(),
            (BlockId::Mlp(_), Extent::Saved) => self.mlp_saved(),
            (BlockId::Attn(_), Extent::Output) => {
                self.attention_saved();
                self.project_out(Slot::Context);
            }
            (BlockId::Mlp(_), Extent::Output) => {
                self.mlp_saved();
                self.mlp_out();
            }
            (BlockId::Embed | BlockId::Head, _) => {
                unreachable!("the verifier refuses `recompute {}`", self.block)
            }
        }
    }

    pub(crate) fn backward(&mut self) {
        match self.block {
            BlockId::Embed => self.embed_backward(),
            BlockId::Attn(_) => self.attention_backward(),
            BlockId::Mlp(_) => self.mlp_backward(),
            BlockId::Head => self.head_backward(),
        }
    }

    /// Loss of the part from the statistics of all ranks.
    pub(crate) fn loss(&mut self) {
        let losses = self.statics.losses;
        let loss =
            Span { offset: losses.offset + self.operands.part * size_of::<f32>(), bytes: size_of::<f32>() };
        let (statistics, lse) = (self.at(Slot::Output), self.at(Slot::TokenLogSumExp));
        let targets = self.tokens(self.statics.targets);
        self.backend.cross_entropy(statistics, targets, lse, loss);
    }

    // Places and shapes.

    fn at(&self, slot: Slot) -> Span {
        self.operands.span(slot)
    }

    fn model(&self) -> &Model {
        &self.statics.model
    }

    fn weight(&self, role: Role) -> Span {
        self.statics.role(self.block, role).weight
    }

    fn gradient(&self, role: Role) -> Span {
        self.statics.role(self.block, role).gradient
    }

    /// The first backward of a block in a step replaces the gradients of the step before.
    fn accumulate(&self) -> Accumulate {
        if self.operands.first { Accumulate::Overwrite } else { Accumulate::Add }
    }

    fn n(&self) -> usize {
        self.operands.sequences * self.model().sequence
    }

    /// The part's share of the step's tokens or targets.
    fn tokens(&self, all: Span) -> Span {
        let row = self.model().sequence * size_of::<u32>();
        Span { offset: all.offset + self.operands.first_sequence * row, bytes: self.operands.sequences * row }
    }

    fn dropout(&self, site: BlockId) -> Option<Dropout> {
        let rate = self.model().dropout;
        let site = match site {
            BlockId::Embed => 0,
            BlockId::Attn(layer) => 1 + 2 * layer,
            BlockId::Mlp(layer) => 2 + 2 * layer,
            BlockId::Head => unreachable!("the head has no dropout"),
        };
        (rate > 0.0 && self.inputs.dropout).then(|| Dropout {
            rate,
            key: self.inputs.dropout_key,
            site,
            step: self.inputs.step,
            first_sample: self.inputs.first_sample + self.operands.first_sequence as u32,
            sequence: self.model().sequence,
        })
    }

    fn vocabulary(&self) -> VocabularyShard {
        let vocabulary = self.model().vocabulary;
        let width = vocabulary.div_ceil(self.statics.tensor as usize);
        let first_row = (width * self.tp_rank as usize).min(vocabulary);
        VocabularyShard { first_row: first_row as u32, width, valid: width.min(vocabulary - first_row) }
    }

    fn attention_shape(&self) -> Attention {
        Attention::on_rank(self.model(), self.statics.tensor, self.operands.sequences)
    }

    /// Columns of queries, keys and values together.
    fn qkv_columns(&self) -> usize {
        let shape = self.attention_shape();
        (shape.heads + 2 * shape.kv_heads) * shape.head_size
    }

    fn ffn(&self) -> usize {
        self.model().ffn / self.statics.tensor as usize
    }

    // What blocks have in common.

    /// Completes the block's input, where it is not there yet, in place of the output of the block before.
    fn join(&mut self) {
        let Some(before) = self.before.filter(|_| self.operands.joins) else { return };
        let term = match before {
            BlockId::Embed => Term::Positions(self.statics.role(before, Role::Positions).weight),
            _ => match self.statics.role(before, Role::OutBias).weight {
                Span { bytes: 0, .. } => Term::None,
                bias => Term::Bias(bias),
            },
        };
        let (x, residual, hidden) = (self.at(Slot::Input), self.at(Slot::Residual), self.model().hidden);
        let dropout = self.dropout(before);
        self.backend.join(x, residual, term, hidden, dropout);
    }

    fn norm(&mut self) {
        let (gain, shift) = (self.weight(Role::NormGain), self.weight(Role::NormShift));
        let (x, y, stats) = (self.at(Slot::Input), self.at(Slot::Normalized), self.at(Slot::NormStats));
        let epsilon = self.model().norm_epsilon;
        self.backend.layer_norm(x, gain, shift, epsilon, y, stats);
    }

    /// Turns the gradient of the normalised input into that of the input, in place.
    fn norm_backward(&mut self) {
        let (gain, dgain, dshift) =
            (self.weight(Role::NormGain), self.gradient(Role::NormGain), self.gradient(Role::NormShift));
        let (x, stats, dy) = (self.at(Slot::Input), self.at(Slot::NormStats), self.at(Slot::InputGradient));
        let accumulate = self.accumulate();
        self.backend.layer_norm_backward(x, stats, gain, dy, dgain, dshift, accumulate);
    }

    /// Completes the gradient of the block's output; returns it behind dropout.
    fn incoming_gradient(&mut self) -> Span {
        let (gradient, upstream) = (self.at(Slot::Gradient), self.at(Slot::Upstream));
        let (branch, hidden) = (self.at(Slot::BranchGradient), self.model().hidden);
        let dropout = self.dropout(self.block);
        self.backend.join_backward(gradient, upstream, branch, hidden, dropout);
        if branch.bytes > 0 { branch } else { gradient }
    }

    /// `into = normalised · Wᵀ + b` for the column-parallel weights, `[n, columns]`.
    fn project_in(&mut self, into: Slot, columns: usize) {
        let (n, hidden) = (self.n(), self.model().hidden);
        let c = Mat::new(self.at(into), n, columns);
        let a = Mat::new(self.at(Slot::Normalized), n, hidden);
        let b = Mat::new(self.weight(Role::InWeight), columns, hidden).t();
        let bias = self.weight(Role::InBias);
        self.backend.matmul(c, a, b, bias, Accumulate::Overwrite);
    }

    /// Gradients of [`BlockCall::project_in`], then of the normalisation: the block's partial input gradient.
    fn project_in_backward(&mut self, gradient: Slot, columns: usize) {
        let (n, hidden, accumulate) = (self.n(), self.model().hidden, self.accumulate());
        let dy = Mat::new(self.at(gradient), n, columns);
        let x = Mat::new(self.at(Slot::Normalized), n, hidden);
        let weight = Mat::new(self.weight(Role::InWeight), columns, hidden);
        let dweight = Mat::new(self.gradient(Role::InWeight), columns, hidden);
        let dx = Mat::new(self.at(Slot::InputGradient), n, hidden);
        self.backend.matmul(dweight, dy.t(), x, Span::default(), accumulate);
        let dbias = self.gradient(Role::InBias);
        if dbias.bytes > 0 {
            self.backend.bias_backward(dy.span, dbias, accumulate);
        }
        self.backend.matmul(dx, dy, weight, Span::default(), Accumulate::Overwrite);
        self.norm_backward();
    }

    /// The partial output: `from · Wᵀ` for the row-parallel weight. Its bias is added after the all-reduce, once.
    fn project_out(&mut self, from: Slot) {
        let (n, hidden) = (self.n(), self.model().hidden);
        let columns = self.at(from).bytes / size_of::<f32>() / n;
        let c = Mat::new(self.at(Slot::Output), n, hidden);
        let a = Mat::new(self.at(from), n, columns);
        let b = Mat::new(self.weight(Role::OutWeight), hidden, columns).t();
        self.backend.matmul(c, a, b, Span::default(), Accumulate::Overwrite);
    }

    /// Gradient of the row-parallel product with respect to its input.
    fn project_out_backward(&mut self, branch: Span, into: Slot) {
        let (n, hidden) = (self.n(), self.model().hidden);
        let columns = self.at(into).bytes / size_of::<f32>() / n;
        let c = Mat::new(self.at(into), n, columns);
        let b = Mat::new(self.weight(Role::OutWeight), hidden, columns);
        self.backend.matmul(c, Mat::new(branch, n, hidden), b, Span::default(), Accumulate::Overwrite);
    }

    /// Gradients of the row-parallel weight and bias; `from` is what the product read.
    fn out_weight_backward(&mut self, branch: Span, from: Slot) {
        let (n, hidden, accumulate) = (self.n(), self.model().hidden, self.accumulate());
        let columns = self.at(from).bytes / size_of::<f32>() / n;
        let dweight = Mat::new(self.gradient(Role::OutWeight), hidden, columns);
        let input = Mat::new(self.at(from), n, columns);
        self.backend.matmul(dweight, Mat::new(branch, n, hidden).t(), input, Span::default(), accumulate);
        let dbias = self.gradient(Role::OutBias);
        if dbias.bytes > 0 {
            self.backend.bias_backward(branch, dbias, accumulate);
        }
    }

    // Embedding.

    fn embed(&mut self) {
        let (tokens, table) = (self.tokens(self.statics.tokens), self.weight(Role::Tokens));
        let (shard, out) = (self.vocabulary(), self.at(Slot::Output));
        self.backend.embed(tokens, table, shard, self.statics.model.hidden, out);
    }

    fn embed_backward(&mut self) {
        let branch = self.incoming_gradient();
        let (hidden, accumulate) = (self.model().hidden, self.accumulate());
        let positions = self.gradient(Role::Positions);
        self.backend.positions_backward(branch, positions, accumulate);
        // A tied table already holds the head's gradient: every part's head goes backward before its embedding.
        let accumulate = if self.model().tied { Accumulate::Add } else { accumulate };
        let (tokens, table) = (self.tokens(self.statics.tokens), self.gradient(Role::Tokens));
        let shard = self.vocabulary();
        self.backend.embed_backward(tokens, branch, shard, hidden, table, accumulate);
    }

    // Attention.

    fn attention_saved(&mut self) {
        self.norm();
        self.project_in(Slot::Qkv, self.qkv_columns());
        let (qkv, out, lse) = (self.at(Slot::Qkv), self.at(Slot::Context), self.at(Slot::LogSumExp));
        let (shape, workspace) = (self.attention_shape(), self.at(Slot::Workspace));
        self.backend.attention(shape, qkv, out, lse, workspace);
    }

    fn attention_backward(&mut self) {
        let branch = self.incoming_gradient();
        self.project_out_backward(branch, Slot::ContextGradient);
        self.out_weight_backward(branch, Slot::Context);
        let (qkv, out, lse) = (self.at(Slot::Qkv), self.at(Slot::Context), self.at(Slot::LogSumExp));
        let (dout, dqkv) = (self.at(Slot::ContextGradient), self.at(Slot::QkvGradient));
        let (shape, workspace) = (self.attention_shape(), self.at(Slot::Workspace));
        self.backend.attention_backward(shape, qkv, out, lse, dout, dqkv, workspace);
        self.project_in_backward(Slot::QkvGradient, self.qkv_columns());
    }

    // Multi-layer perceptron.

    fn mlp_saved(&mut self) {
        self.norm();
        self.project_in(Slot::PreActivation, self.ffn());
    }

    fn mlp_out(&mut self) {
        self.backend.gelu(self.operands.span(Slot::PreActivation), self.operands.span(Slot::Activated));
        self.project_out(Slot::Activated);
    }

    fn mlp_backward(&mut self) {
        let branch = self.incoming_gradient();
        self.project_out_backward(branch, Slot::ActivationGradient);
        // The pre-activation is not needed again: the activation takes its place, for the weight's gradient.
        self.backend.gelu_backward(
            self.operands.span(Slot::PreActivation),
            self.operands.span(Slot::ActivationGradient),
        );
        self.out_weight_backward(branch, Slot::PreActivation);
        self.project_in_backward(Slot::ActivationGradient, self.ffn());
    }

    // Head.

    fn head(&mut self) {
        self.norm();
        let (n, hidden, shard) = (self.n(), self.model().hidden, self.vocabulary());
        let logits = Mat::new(self.at(Slot::Logits), n, shard.width);
        let x = Mat::new(self.at(Slot::Normalized), n, hidden);
        let weight = Mat::new(self.statics.logits().weight, shard.width, hidden).t();
        self.backend.matmul(logits, x, weight, Span::default(), Accumulate::Overwrite);
        // This rank's slot of the statistics that are gathered.
        let all = self.at(Slot::Output);
        let slot = all.bytes / self.statics.tensor as usize;
        let own = Span { offset: all.offset + slot * self.tp_rank as usize, bytes: slot };
        let targets = self.tokens(self.statics.targets);
        self.backend.logit_statistics(logits.span, targets, shard, own);
    }

    fn head_backward(&mut self) {
        let (n, hidden, shard, accumulate) =
            (self.n(), self.model().hidden, self.vocabulary(), self.accumulate());
        let (lse, targets) = (self.at(Slot::TokenLogSumExp), self.tokens(self.statics.targets));
        let logits = Mat::new(self.at(Slot::Logits), n, shard.width);
        self.backend.cross_entropy_backward(logits.span, lse, targets, shard, self.inputs.loss_scale);
        let x = Mat::new(self.at(Slot::Normalized), n, hidden);
        let placed = self.statics.logits();
        let weight = Mat::new(placed.weight, shard.width, hidden);
        let dweight = Mat::new(placed.gradient, shard.width, hidden);
        self.backend.matmul(dweight, logits.t(), x, Span::default(), accumulate);
        let dx = Mat::new(self.at(Slot::InputGradient), n, hidden);
        self.backend.matmul(dx, logits, weight, Span::default(), Accumulate::Overwrite);
        self.norm_backward();
    }
}
