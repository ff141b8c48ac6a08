//! Each block's forward, recomputation and backward, as a sequence of operators.
//!
//! A block is a closed unit (DESIGN, "The arithmetic of a step"): from its input it makes a partial output, from the
//! gradient of its output a partial gradient of its input. What completes them is a collective, and the start of the next
//! instruction: `x[k+1] = x[k] + drop(AR(f(x[k])) + b)` and `G[k] = G[k+1] + AR(…)`.

use std::ops::Range;

use oases_schedule::{
    BlockId, Cut, Extent, Family, Model, Operands, Pass, Piece, Placed, Role, Schedule, Scope, Slot, Span,
    Statics,
};

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
    pub(crate) fn forward(&mut self, extent: Extent) {
        self.join();
        match self.block {
            BlockId::Embed => self.embed(),
            BlockId::Attn(_) => self.attention(extent),
            BlockId::Mlp(_) => self.mlp(extent),
            BlockId::Head => self.head(),
        }
    }

    pub(crate) fn recompute(&mut self, extent: Extent) {
        self.join();
        match self.block {
            BlockId::Attn(_) => self.attention(extent),
            BlockId::Mlp(_) => self.mlp(extent),
            BlockId::Embed | BlockId::Head => {
                unreachable!("the verifier refuses `recompute {}`", self.block)
            }
        }
    }

    /// Completes what crosses to another TMP degree, and copies this rank's rows of it: all that it has into its slot of what
    /// is then gathered, or those of its new share.
    pub(crate) fn reshard(&mut self, pass: Pass) {
        let from = self.complete(pass);
        let to = self.at(Slot::Resharded);
        let (from, to) = match from.bytes < to.bytes {
            true => (from, share_of(to, from.bytes, self.tp_rank / self.operands.degree)),
            false => {
                let shares = (from.bytes / to.bytes) as u32;
                (share_of(from, to.bytes, self.tp_rank / (self.operands.degree / shares)), to)
            }
        };
        self.backend.copy(from, to);
    }

    /// Completes the block's input, or in backward its gradient, in place; returns where it is.
    pub(crate) fn complete(&mut self, pass: Pass) -> Span {
        match pass {
            Pass::Forward | Pass::Recompute => {
                self.join();
                self.at(Slot::Input)
            }
            Pass::Backward => {
                let (gradient, upstream) = (self.at(Slot::Gradient), self.at(Slot::Upstream));
                let hidden = self.model().hidden;
                self.backend.join_backward(gradient, upstream, Span::default(), hidden, None);
                gradient
            }
        }
    }

    /// A piece of the product that ends a pass through the block.
    pub(crate) fn tail(&mut self, pass: Pass, piece: Piece) {
        match pass {
            Pass::Forward | Pass::Recompute => self.project_out_piece(piece),
            Pass::Backward => self.input_backward(piece.range(self.n())),
        }
    }

    pub(crate) fn backward(&mut self, scope: Scope) {
        if self.block == BlockId::Embed {
            self.embed_backward();
            return;
        }
        if scope != Scope::Weight {
            match self.block {
                BlockId::Attn(_) => self.attention_backward(),
                BlockId::Mlp(_) => self.mlp_backward(),
                BlockId::Embed | BlockId::Head => self.head_backward(),
            }
        }
        if scope != Scope::Input {
            self.weight_backward();
        }
        if matches!(scope, Scope::All | Scope::Input) {
            self.input_backward(0..self.n());
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

    /// Tokens of the part on this rank.
    fn n(&self) -> usize {
        self.operands.sequences * self.model().sequence
    }

    /// The rank's place in its replica of the block.
    fn place(&self) -> u32 {
        self.tp_rank % self.operands.degree
    }

    /// The first sequence of the part on this rank, in the step.
    fn first_sequence(&self) -> usize {
        let replica = self.tp_rank / self.operands.degree;
        self.operands.first_sequence + replica as usize * self.operands.sequences
    }

    /// The rank's share of the step's tokens or targets.
    fn tokens(&self, all: Span) -> Span {
        let row = self.model().sequence * size_of::<u32>();
        Span { offset: all.offset + self.first_sequence() * row, bytes: self.operands.sequences * row }
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
            first_sample: self.inputs.first_sample + self.first_sequence() as u32,
            sequence: self.model().sequence,
        })
    }

    fn vocabulary(&self) -> VocabularyShard {
        let vocabulary = self.model().vocabulary;
        let width = vocabulary.div_ceil(self.operands.degree as usize);
        let first_row = (width * self.place() as usize).min(vocabulary);
        VocabularyShard { first_row: first_row as u32, width, valid: width.min(vocabulary - first_row) }
    }

    fn attention_shape(&self) -> Attention {
        Attention::on_rank(self.model(), self.operands.degree, self.operands.sequences)
    }

    /// Columns of queries, keys and values together.
    fn qkv_columns(&self) -> usize {
        let shape = self.attention_shape();
        (shape.heads + 2 * shape.kv_heads) * shape.head_size
    }

    fn ffn(&self) -> usize {
        self.model().ffn / self.operands.degree as usize
    }

    // What blocks have in common.

    /// Completes the block's input, where it is not there yet, in place of the output of the block before.
    fn join(&mut self) {
        let Some(before) = self.before.filter(|_| self.operands.joins > 0) else { return };
        let term = match before {
            BlockId::Embed => Term::Positions(self.statics.role(before, Role::Positions).weight),
            _ => match self.statics.role(before, Role::OutBias).weight {
                Span { bytes: 0, .. } => Term::None,
                bias => Term::Bias(bias),
            },
        };
        let (x, residual, hidden) = (self.at(Slot::Input), self.at(Slot::Residual), self.model().hidden);
        let dropout = self.dropout(before);
        if self.operands.joins > 1 {
            self.backend.columns_to_rows(x, self.operands.span(Slot::Joined), hidden, self.operands.joins);
        }
        self.backend.join(x, residual, term, hidden, dropout);
    }

    fn norm(&mut self) {
        let (gain, shift) = (self.weight(Role::NormGain), self.weight(Role::NormShift));
        let (x, y, stats) = (self.at(Slot::Input), self.at(Slot::Normalized), self.at(Slot::NormStats));
        let epsilon = self.model().norm_epsilon;
        self.backend.layer_norm(x, gain, shift, epsilon, y, stats);
    }

    /// Completes the gradient of the block's output; the branch then has it behind dropout.
    fn incoming_gradient(&mut self) -> Span {
        let (gradient, upstream) = (self.at(Slot::Gradient), self.at(Slot::Upstream));
        let (branch, hidden) = (self.at(Slot::BranchGradient), self.model().hidden);
        let dropout = self.dropout(self.block);
        self.backend.join_backward(gradient, upstream, branch, hidden, dropout);
        self.branch()
    }

    /// Gradient of the block's output behind dropout.
    fn branch(&self) -> Span {
        match self.at(Slot::BranchGradient) {
            Span { bytes: 0, .. } => self.at(Slot::Gradient),
            branch => branch,
        }
    }

    /// The column-parallel product of the block: what its gradient is in, its columns, its weight, and the row-parallel
    /// product's operand.
    fn products(&self) -> (Slot, usize, Placed, Slot) {
        let own = self.statics.role(self.block, Role::InWeight);
        match Family::from(self.block) {
            Family::Attn => (Slot::QkvGradient, self.qkv_columns(), own, Slot::Context),
            Family::Mlp => (Slot::ActivationGradient, self.ffn(), own, Slot::PreActivation),
            Family::Embed | Family::Head => {
                (Slot::Logits, self.vocabulary().width, self.statics.logits(), Slot::Output)
            }
        }
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

    /// Gradients of all parameters but the normalisation's.
    fn weight_backward(&mut self) {
        let (gradient, columns, placed, operand) = self.products();
        if self.block != BlockId::Head {
            self.out_weight_backward(operand);
        }
        let (n, hidden, accumulate) = (self.n(), self.model().hidden, self.accumulate());
        let dy = Mat::new(self.at(gradient), n, columns);
        let x = Mat::new(self.at(Slot::Normalized), n, hidden);
        let dweight = Mat::new(placed.gradient, columns, hidden);
        self.backend.matmul(dweight, dy.t(), x, Span::default(), accumulate);
        let dbias = self.gradient(Role::InBias);
        if dbias.bytes > 0 {
            self.backend.bias_backward(dy.span, dbias, accumulate);
        }
    }

    /// The block's partial input gradient, for some rows: the gradient of the normalised input, then in place that of the
    /// input, with the gradients of gain and shift.
    fn input_backward(&mut self, rows: Range<usize>) {
        let (gradient, columns, placed, _) = self.products();
        let (n, hidden, accumulate) = (rows.len(), self.model().hidden, self.accumulate());
        let dy = Mat::new(self.rows(gradient, columns, &rows), n, columns);
        let weight = Mat::new(placed.weight, columns, hidden);
        let dx = self.at(Slot::InputGradient);
        self.backend.matmul(Mat::new(dx, n, hidden), dy, weight, Span::default(), Accumulate::Overwrite);
        let (gain, dgain, dshift) =
            (self.weight(Role::NormGain), self.gradient(Role::NormGain), self.gradient(Role::NormShift));
        let (x, stats) = (self.rows(Slot::Input, hidden, &rows), self.rows(Slot::NormStats, 2, &rows));
        self.backend.layer_norm_backward(x, stats, gain, dx, dgain, dshift, accumulate);
    }

    /// Some rows of a slot.
    fn rows(&self, slot: Slot, columns: usize, rows: &Range<usize>) -> Span {
        let row = columns * size_of::<f32>();
        Span { offset: self.at(slot).offset + rows.start * row, bytes: rows.len() * row }
    }

    /// The partial output: `from · Wᵀ` for the row-parallel weight. Its bias is added after the all-reduce, once.
    fn project_out(&mut self, from: Slot) {
        let (n, hidden) = (self.n(), self.model().hidden);
        let columns = self.columns(from);
        let c = Mat::new(self.at(Slot::Output), n, hidden);
        let a = Mat::new(self.at(from), n, columns);
        let b = Mat::new(self.weight(Role::OutWeight), hidden, columns).t();
        self.backend.matmul(c, a, b, Span::default(), Accumulate::Overwrite);
    }

    /// Some rows or columns of [`BlockCall::project_out`].
    fn project_out_piece(&mut self, piece: Piece) {
        let from = if let BlockId::Attn(_) = self.block { Slot::Context } else { Slot::Activated };
        let (n, hidden, columns) = (self.n(), self.model().hidden, self.columns(from));
        let weight = self.weight(Role::OutWeight);
        let (a, b, rows, width) = match piece.cut {
            Cut::Rows => {
                let rows = piece.range(n);
                (self.rows(from, columns, &rows), Mat::new(weight, hidden, columns), rows.len(), hidden)
            }
            Cut::Columns => {
                let features = piece.range(hidden);
                let row = columns * size_of::<f32>();
                let offset = weight.offset + features.start * row;
                let some = Span { offset, bytes: features.len() * row };
                (self.at(from), Mat::new(some, features.len(), columns), n, features.len())
            }
        };
        let c = Mat::new(self.at(Slot::Output), rows, width);
        self.backend.matmul(c, Mat::new(a, rows, columns), b.t(), Span::default(), Accumulate::Overwrite);
    }

    /// Columns of a slot with a row for each token.
    fn columns(&self, slot: Slot) -> usize {
        self.at(slot).bytes / size_of::<f32>() / self.n()
    }

    /// Gradient of the row-parallel product with respect to its input.
    fn project_out_backward(&mut self, branch: Span, into: Slot) {
        let (n, hidden) = (self.n(), self.model().hidden);
        let columns = self.columns(into);
        let c = Mat::new(self.at(into), n, columns);
        let b = Mat::new(self.weight(Role::OutWeight), hidden, columns);
        self.backend.matmul(c, Mat::new(branch, n, hidden), b, Span::default(), Accumulate::Overwrite);
    }

    /// Gradients of the row-parallel weight and bias; `from` is what the product read.
    fn out_weight_backward(&mut self, from: Slot) {
        let branch = self.branch();
        let (n, hidden, accumulate) = (self.n(), self.model().hidden, self.accumulate());
        let columns = self.columns(from);
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
        // A tied table already holds the head's gradient, if on this stage: every part's head goes backward before its embedding.
        let head = Schedule::blocks(self.model().layers) - 1;
        let shared = self.model().tied && self.statics.stage.runs(head);
        let accumulate = if shared { Accumulate::Add } else { accumulate };
        let (tokens, table) = (self.tokens(self.statics.tokens), self.gradient(Role::Tokens));
        let shard = self.vocabulary();
        self.backend.embed_backward(tokens, branch, shard, hidden, table, accumulate);
    }

    // Attention.

    fn attention(&mut self, extent: Extent) {
        if extent != Extent::Core {
            self.norm();
            self.project_in(Slot::Qkv, self.qkv_columns());
        }
        let (qkv, out, lse) = (self.at(Slot::Qkv), self.at(Slot::Context), self.at(Slot::LogSumExp));
        let (shape, workspace) = (self.attention_shape(), self.at(Slot::Workspace));
        self.backend.attention(shape, qkv, out, lse, workspace);
        if extent == Extent::Output {
            self.project_out(Slot::Context);
        }
    }

    /// Up to the gradient of queries, keys and values.
    fn attention_backward(&mut self) {
        let branch = self.incoming_gradient();
        self.project_out_backward(branch, Slot::ContextGradient);
        let (qkv, out, lse) = (self.at(Slot::Qkv), self.at(Slot::Context), self.at(Slot::LogSumExp));
        let (dout, dqkv) = (self.at(Slot::ContextGradient), self.at(Slot::QkvGradient));
        let (shape, workspace) = (self.attention_shape(), self.at(Slot::Workspace));
        self.backend.attention_backward(shape, qkv, out, lse, dout, dqkv, workspace);
    }

    // Multi-layer perceptron.

    fn mlp(&mut self, extent: Extent) {
        self.norm();
        self.project_in(Slot::PreActivation, self.ffn());
        if matches!(extent, Extent::Body | Extent::Output) {
            self.backend.gelu(self.at(Slot::PreActivation), self.at(Slot::Activated));
        }
        if extent == Extent::Output {
            self.project_out(Slot::Activated);
        }
    }

    /// Up to the gradient of the pre-activation. That is not needed again: the activation takes its place, for the weight's
    /// gradient.
    fn mlp_backward(&mut self) {
        let branch = self.incoming_gradient();
        self.project_out_backward(branch, Slot::ActivationGradient);
        self.backend.gelu_backward(self.at(Slot::PreActivation), self.at(Slot::ActivationGradient));
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
        let own = share_of(all, all.bytes / self.operands.degree as usize, self.place());
        let targets = self.tokens(self.statics.targets);
        self.backend.logit_statistics(logits.span, targets, shard, own);
    }

    /// The gradient of the logits, in their place.
    fn head_backward(&mut self) {
        let (lse, targets) = (self.at(Slot::TokenLogSumExp), self.tokens(self.statics.targets));
        let (logits, shard) = (self.at(Slot::Logits), self.vocabulary());
        self.backend.cross_entropy_backward(logits, lse, targets, shard, self.inputs.loss_scale);
    }
}

/// One of the equal shares of a span, counted round and round.
fn share_of(whole: Span, bytes: usize, index: u32) -> Span {
    let shares = whole.bytes / bytes;
    Span { offset: whole.offset + index as usize % shares * bytes, bytes }
}
