//! Attention: normalised and rotated heads, and keys and values that every rank has where there are fewer heads of them than ranks.

use std::ops::Range;

use oases_schedule::{Extent, Role, Slot, Span};

use super::BlockCall;
use crate::backend::Backend;
use crate::operators::{Accumulate, Attention, Mat, Rotation};

impl<B: Backend> BlockCall<'_, B> {
    pub(super) fn attention_shape(&self) -> Attention {
        let (model, degree) = (self.model(), self.operands.degree);
        Attention::on_rank(model, degree, self.place(), self.operands.sequences)
    }

    /// Columns of queries, keys and values together, as far as they are one product.
    pub(super) fn fused_columns(&self) -> usize {
        let shape = self.attention_shape();
        if shape.separate { shape.output_columns() } else { shape.columns() }
    }

    /// Queries, and the keys and values that every rank has in full: the two matrices of `slot`, one behind the other.
    fn separate(&self, slot: Slot) -> [Span; 2] {
        let whole = self.at(slot);
        let bytes = self.n() * self.attention_shape().output_columns() * size_of::<f32>();
        let rest = Span { offset: whole.offset + bytes, bytes: whole.bytes - bytes };
        [Span { bytes, ..whole }, rest]
    }

    /// The real tokens of this rank's sequences, where a query sees what follows it.
    fn lengths(&self) -> Span {
        let all = self.statics.lengths;
        if all.bytes == 0 {
            return all;
        }
        let row = size_of::<u32>();
        Span { offset: all.offset + self.first_sequence() * row, bytes: self.operands.sequences * row }
    }

    /// What the attention core reads: queries, keys and values, or these with normalised heads.
    fn core_operand(&self) -> Slot {
        if self.model().head_norm { Slot::NormalizedHeads } else { Slot::Qkv }
    }

    pub(super) fn attention(&mut self, extent: Extent) {
        if extent != Extent::Core {
            self.norm();
            self.project_qkv();
        }
        self.position_heads(extent != Extent::Core);
        let (qkv, out, lse) =
            (self.at(self.core_operand()), self.at(Slot::Context), self.at(Slot::LogSumExp));
        let (shape, lengths, workspace) = (self.attention_shape(), self.lengths(), self.at(Slot::Workspace));
        self.backend.attention(shape, qkv, lengths, out, lse, workspace);
        if extent == Extent::Output {
            self.project_out(Slot::Context);
        }
    }

    fn project_qkv(&mut self) {
        let shape = self.attention_shape();
        if !shape.separate {
            return self.project_in(Slot::Qkv, shape.columns());
        }
        let (n, hidden) = (self.n(), self.model().hidden);
        let roles = [(Role::InWeight, Role::InBias), (Role::SharedWeight, Role::SharedBias)];
        for (to, (weight, bias)) in self.separate(Slot::Qkv).into_iter().zip(roles) {
            let columns = to.bytes / size_of::<f32>() / n;
            let a = Mat::new(self.at(Slot::Normalized), n, hidden);
            let b = Mat::new(self.weight(weight), columns, hidden).t();
            let bias = self.weight(bias);
            self.backend.matmul(Mat::new(to, n, columns), a, b, bias, Accumulate::Overwrite);
        }
    }

    /// Normalises heads and rotates them, where the model does. `fresh` queries and keys have not been rotated in their place.
    fn position_heads(&mut self, fresh: bool) {
        let (shape, to) = (self.attention_shape(), self.at(self.core_operand()));
        if self.model().head_norm {
            let gains = [self.weight(Role::QueryGain), self.weight(Role::KeyGain)];
            let (qkv, epsilon) = (self.at(Slot::Qkv), self.model().norm_epsilon);
            self.backend.norm_heads(shape, qkv, gains, epsilon, to);
        }
        let table = self.statics.rotations;
        if table.bytes > 0 && (fresh || self.model().head_norm) {
            self.backend.rotate(shape, to, table, Rotation::Forward);
        }
    }

    /// Up to the gradient of queries, keys and values.
    pub(super) fn attention_backward(&mut self) {
        let branch = self.incoming_gradient();
        self.project_out_backward(branch, Slot::ContextGradient);
        if self.model().head_norm {
            self.position_heads(false);
        }
        let (qkv, out, lse) =
            (self.at(self.core_operand()), self.at(Slot::Context), self.at(Slot::LogSumExp));
        let (dout, dqkv) = (self.at(Slot::ContextGradient), self.at(Slot::QkvGradient));
        let (shape, lengths, workspace) = (self.attention_shape(), self.lengths(), self.at(Slot::Workspace));
        self.backend.attention_backward(shape, qkv, lengths, out, lse, dout, dqkv, workspace);
        let table = self.statics.rotations;
        if table.bytes > 0 {
            self.backend.rotate(shape, dqkv, table, Rotation::Backward);
        }
        if self.model().head_norm {
            let gains = [Role::QueryGain, Role::KeyGain].map(|role| (self.weight(role), self.gradient(role)));
            let (raw, epsilon) = (self.at(Slot::Qkv), self.model().norm_epsilon);
            let accumulate = self.accumulate();
            self.backend.norm_heads_backward(shape, raw, gains, epsilon, dqkv, accumulate);
        }
    }

    /// What keys and values that every rank has add to the gradients of their weights, from the queries of this rank.
    pub(super) fn shared_weight_backward(&mut self) {
        let (n, hidden, accumulate) = (self.n(), self.model().hidden, self.accumulate());
        let [_, dkv] = self.separate(Slot::QkvGradient);
        let columns = dkv.bytes / size_of::<f32>() / n;
        let dweight = Mat::new(self.gradient(Role::SharedWeight), columns, hidden);
        let x = Mat::new(self.at(Slot::Normalized), n, hidden);
        self.backend.matmul(dweight, Mat::new(dkv, n, columns).t(), x, Span::default(), accumulate);
        let dbias = self.gradient(Role::SharedBias);
        if dbias.bytes > 0 {
            self.backend.bias_backward(dkv, dbias, accumulate);
        }
    }

    /// Adds what comes through the keys and values that every rank has to the gradient `dx` of some rows of the normalised input.
    pub(super) fn shared_input_backward(&mut self, dx: Span, rows: &Range<usize>) {
        let (n, hidden) = (self.n(), self.model().hidden);
        let [_, dkv] = self.separate(Slot::QkvGradient);
        let columns = dkv.bytes / size_of::<f32>() / n;
        let row = columns * size_of::<f32>();
        let dkv = Span { offset: dkv.offset + rows.start * row, bytes: rows.len() * row };
        let (dx, weight) = (Mat::new(dx, rows.len(), hidden), self.weight(Role::SharedWeight));
        let weight = Mat::new(weight, columns, hidden);
        self.backend.matmul(dx, Mat::new(dkv, rows.len(), columns), weight, Span::default(), Accumulate::Add);
    }
}
