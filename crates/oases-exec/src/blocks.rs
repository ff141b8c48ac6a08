//! Each block's forward, recomputation and backward, as a sequence of operators.
//!
//! A block is a closed unit (DESIGN, "The arithmetic of a step"): from its input it makes a partial output, from the
//! gradient of its output a partial gradient of its input. What completes them is a collective, and the start of the next
//! instruction: `x[k+1] = x[k] + drop(AR(f(x[k])) + b)` and `G[k] = G[k+1] + AR(…)`.
//!
//! A block opens with its normalisation. Where that stands on the residual path (BERT), what is passed on is the normalised input:
//! `x[k+1] = y[k] + drop(AR(f(y[k])) + b)` with `y[k] = norm(x[k])`. Its gradient comes through the normalisation too, so
//! `G[k] = AR(norm'(f'(…) + G[k+1]))`, where one rank of the group adds `G[k+1]`.

mod attention;
mod embedding;
mod head;
mod perceptron;

use std::ops::Range;

use oases_schedule::{
    BlockId, Cut, Extent, Family, Model, NormPlacement, Operands, Pass, Piece, Placed, Role, Scope, Slot,
    Span, Statics,
};

use crate::backend::Backend;
use crate::inputs::StepInputs;
use crate::operators::{Accumulate, Dropout, Mat, Term, VocabularyShard};

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
                let (gradient, upstream) = (self.at(Slot::Gradient), self.upstream());
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

    /// Whether normalisation stands on the residual path.
    fn post(&self) -> bool {
        self.model().placement == NormPlacement::Post
    }

    // What blocks have in common.

    /// Completes the block's input, where it is not there yet, in place of the output of the block before.
    fn join(&mut self) {
        let Some(before) = self.before.filter(|_| self.operands.joins > 0) else { return };
        let term = match before {
            BlockId::Embed => self.embedding_term(),
            _ => match self.statics.role(before, Role::OutBias).weight {
                Span { bytes: 0, .. } => Term::None,
                bias => Term::Bias(bias),
            },
        };
        let residual = match before {
            BlockId::Attn(_) | BlockId::Mlp(_) if self.post() => self.normalised_residual(before),
            _ => self.at(Slot::Residual),
        };
        let (x, hidden) = (self.at(Slot::Input), self.model().hidden);
        let dropout = self.dropout(before);
        if self.operands.joins > 1 {
            self.backend.columns_to_rows(x, self.operands.span(Slot::Joined), hidden, self.operands.joins);
        }
        self.backend.join(x, residual, term, hidden, dropout);
    }

    /// The input of the block before as that block normalised it, once more, where this block's own will be.
    fn normalised_residual(&mut self, before: BlockId) -> Span {
        let [gain, shift] =
            [Role::NormGain, Role::NormShift].map(|role| self.statics.role(before, role).weight);
        let (x, y, stats) = (self.at(Slot::Residual), self.at(Slot::Normalized), self.at(Slot::NormStats));
        let (kind, epsilon) = (self.model().norm, self.model().norm_epsilon);
        self.backend.norm(kind, x, gain, shift, epsilon, y, stats);
        y
    }

    fn norm(&mut self) {
        let (gain, shift) = (self.weight(Role::NormGain), self.weight(Role::NormShift));
        let (x, y, stats) = (self.at(Slot::Input), self.at(Slot::Normalized), self.at(Slot::NormStats));
        let (kind, epsilon) = (self.model().norm, self.model().norm_epsilon);
        self.backend.norm(kind, x, gain, shift, epsilon, y, stats);
    }

    /// What joins the gradient of the block's output: nothing where that has come through the next block's normalisation.
    fn upstream(&self) -> Span {
        if self.post() { Span::default() } else { self.at(Slot::Upstream) }
    }

    /// Completes the gradient of the block's output; the branch then has it behind dropout.
    fn incoming_gradient(&mut self) -> Span {
        let (gradient, upstream) = (self.at(Slot::Gradient), self.upstream());
        let (branch, hidden) = (self.at(Slot::BranchGradient), self.model().hidden);
        let dropout = self.dropout(self.block);
        self.backend.join_backward(gradient, upstream, branch, hidden, dropout);
        let stream = self.at(Slot::StreamGradient);
        if stream.bytes > 0 {
            self.backend.copy(gradient, stream);
        }
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
            Family::Attn => (Slot::QkvGradient, self.fused_columns(), own, Slot::Context),
            Family::Mlp => (Slot::ActivationGradient, self.ffn_columns(), own, Slot::PreActivation),
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
        let head = self.block == BlockId::Head;
        let (input, bias) = match head {
            true => (self.logits_operand(), Role::LogitsBias),
            false => (Slot::Normalized, Role::InBias),
        };
        let dy = Mat::new(self.some(gradient, columns), n, columns);
        let x = Mat::new(self.at(input), n, hidden);
        let dweight = Mat::new(placed.gradient, columns, hidden);
        self.backend.matmul(dweight, dy.t(), x, Span::default(), accumulate);
        let dbias = self.gradient(bias);
        if dbias.bytes > 0 {
            self.backend.bias_backward(dy.span, dbias, accumulate);
        }
        if self.gradient(Role::SharedWeight).bytes > 0 {
            self.shared_weight_backward();
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
        let transformed = self.at(Slot::TransformGradient).bytes > 0;
        let first =
            if transformed { Span { bytes: dx.bytes, ..self.at(Slot::TransformGradient) } } else { dx };
        self.backend.matmul(Mat::new(first, n, hidden), dy, weight, Span::default(), Accumulate::Overwrite);
        if transformed {
            self.transform_backward(dx, &rows);
        }
        if self.weight(Role::SharedWeight).bytes > 0 {
            self.shared_input_backward(dx, &rows);
        }
        if self.post() && self.block != BlockId::Head && self.place() == 0 {
            // In the pieces of a backward a copy stands for the gradient, which may be gone.
            let copy = self.at(Slot::StreamGradient).bytes > 0;
            let stream = if copy { Slot::StreamGradient } else { Slot::Gradient };
            let stream = self.rows(stream, hidden, &rows);
            self.backend.join_backward(dx, stream, Span::default(), hidden, None);
        }
        let (gain, dgain, dshift) =
            (self.weight(Role::NormGain), self.gradient(Role::NormGain), self.gradient(Role::NormShift));
        let (x, stats) = (self.rows(Slot::Input, hidden, &rows), self.rows(Slot::NormStats, 2, &rows));
        let kind = self.model().norm;
        self.backend.norm_backward(kind, x, stats, gain, dx, dgain, dshift, accumulate);
    }

    /// The first columns of a slot that holds several matrices with a row for each token, one behind the other.
    fn some(&self, slot: Slot, columns: usize) -> Span {
        Span { bytes: self.n() * columns * size_of::<f32>(), ..self.at(slot) }
    }

    /// Some rows of a slot.
    fn rows(&self, slot: Slot, columns: usize, rows: &Range<usize>) -> Span {
        let row = columns * size_of::<f32>();
        Span { offset: self.at(slot).offset + rows.start * row, bytes: rows.len() * row }
    }

    /// The partial output: `from · Wᵀ` for the row-parallel weight. Its bias is added after the all-reduce, once.
    fn project_out(&mut self, from: Slot) {
        let (n, hidden) = (self.n(), self.model().hidden);
        let columns = self.out_columns();
        let c = Mat::new(self.at(Slot::Output), n, hidden);
        let a = Mat::new(self.at(from), n, columns);
        let b = Mat::new(self.weight(Role::OutWeight), hidden, columns).t();
        self.backend.matmul(c, a, b, Span::default(), Accumulate::Overwrite);
    }

    /// Some rows or columns of [`BlockCall::project_out`].
    fn project_out_piece(&mut self, piece: Piece) {
        let from = if let BlockId::Attn(_) = self.block { Slot::Context } else { Slot::Activated };
        let (n, hidden, columns) = (self.n(), self.model().hidden, self.out_columns());
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

    /// Columns of the row-parallel weight on this rank.
    fn out_columns(&self) -> usize {
        if let BlockId::Attn(_) = self.block { self.attention_shape().output_columns() } else { self.ffn() }
    }

    /// Gradient of the row-parallel product with respect to its input.
    fn project_out_backward(&mut self, branch: Span, into: Slot) {
        let (n, hidden, columns) = (self.n(), self.model().hidden, self.out_columns());
        let c = Mat::new(self.some(into, columns), n, columns);
        let b = Mat::new(self.weight(Role::OutWeight), hidden, columns);
        self.backend.matmul(c, Mat::new(branch, n, hidden), b, Span::default(), Accumulate::Overwrite);
    }

    /// Gradients of the row-parallel weight and bias; `from` is what the product read.
    fn out_weight_backward(&mut self, from: Slot) {
        let branch = self.branch();
        let (n, hidden, accumulate) = (self.n(), self.model().hidden, self.accumulate());
        let columns = self.out_columns();
        let dweight = Mat::new(self.gradient(Role::OutWeight), hidden, columns);
        let input = Mat::new(self.some(from, columns), n, columns);
        self.backend.matmul(dweight, Mat::new(branch, n, hidden).t(), input, Span::default(), accumulate);
        let dbias = self.gradient(Role::OutBias);
        if dbias.bytes > 0 {
            self.backend.bias_backward(branch, dbias, accumulate);
        }
    }
}

/// One of the equal shares of a span, counted round and round.
fn share_of(whole: Span, bytes: usize, index: u32) -> Span {
    let shares = whole.bytes / bytes;
    Span { offset: whole.offset + index as usize % shares * bytes, bytes }
}
