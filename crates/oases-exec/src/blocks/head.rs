//! The head: the last normalisation, a transform where the model has one, logits, and the gradient of the loss.

use std::ops::Range;

use oases_schedule::{Activation, HeadKind, Role, Slot, Span};

use super::{BlockCall, share_of};
use crate::backend::Backend;
use crate::operators::{Accumulate, Mat};

impl<B: Backend> BlockCall<'_, B> {
    pub(super) fn head(&mut self) {
        self.norm();
        let operand = self.logits_operand();
        if operand == Slot::LogitsOperand {
            self.transform();
        }
        let (n, hidden, shard) = (self.n(), self.model().hidden, self.vocabulary());
        let logits = Mat::new(self.at(Slot::Logits), n, shard.width);
        let x = Mat::new(self.at(operand), n, hidden);
        let weight = Mat::new(self.statics.logits().weight, shard.width, hidden).t();
        let bias = self.weight(Role::LogitsBias);
        self.backend.matmul(logits, x, weight, bias, Accumulate::Overwrite);
        // This rank's slot of the statistics that are gathered.
        let all = self.at(Slot::Output);
        let own = share_of(all, all.bytes / self.operands.degree as usize, self.place());
        let targets = self.tokens(self.statics.targets);
        self.backend.logit_statistics(logits.span, targets, shard, own);
    }

    /// What the logits are made of.
    pub(super) fn logits_operand(&self) -> Slot {
        match self.model().head {
            HeadKind::Plain => Slot::Normalized,
            HeadKind::Transform => Slot::LogitsOperand,
        }
    }

    /// `norm(gelu(W·y + b))`, on every rank in full.
    fn transform(&mut self) {
        let (n, hidden, epsilon) = (self.n(), self.model().hidden, self.model().norm_epsilon);
        let (kind, activation) = (self.model().norm, self.transform_activation());
        let y = Mat::new(self.at(Slot::Normalized), n, hidden);
        let weight = Mat::new(self.weight(Role::TransformWeight), hidden, hidden).t();
        let (u, a) = (self.at(Slot::TransformInput), self.at(Slot::Transformed));
        let bias = self.weight(Role::TransformBias);
        self.backend.matmul(Mat::new(u, n, hidden), y, weight, bias, Accumulate::Overwrite);
        self.backend.activate(activation, u, a, hidden);
        let (gain, shift) = (self.weight(Role::TransformGain), self.weight(Role::TransformShift));
        let (stats, z) = (self.at(Slot::TransformStats), self.at(Slot::LogitsOperand));
        self.backend.norm(kind, a, gain, shift, epsilon, z, stats);
    }

    fn transform_activation(&self) -> Activation {
        match self.model().activation {
            Activation::Gelu => Activation::Gelu,
            Activation::GeluErf | Activation::SwiGlu => Activation::GeluErf,
        }
    }

    /// The gradient of the logits, in their place.
    pub(super) fn head_backward(&mut self) {
        let (lse, targets) = (self.at(Slot::TokenLogSumExp), self.tokens(self.statics.targets));
        let (logits, shard) = (self.at(Slot::Logits), self.vocabulary());
        self.backend.cross_entropy_backward(logits, lse, targets, shard, self.inputs.loss_scale);
    }

    /// From the gradient of some rows of what the logits are made of, in `TransformGradient`, to that of the normalised input `dx`. What
    /// arrives is a term of a sum over ranks, and all of this is linear in it.
    pub(super) fn transform_backward(&mut self, dx: Span, rows: &Range<usize>) {
        let (n, hidden, accumulate) = (rows.len(), self.model().hidden, self.accumulate());
        let (kind, activation) = (self.model().norm, self.transform_activation());
        let dz = Span { bytes: dx.bytes, ..self.at(Slot::TransformGradient) };
        let (a, stats) =
            (self.rows(Slot::Transformed, hidden, rows), self.rows(Slot::TransformStats, 2, rows));
        let gain = self.weight(Role::TransformGain);
        let (dgain, dshift) = (self.gradient(Role::TransformGain), self.gradient(Role::TransformShift));
        self.backend.norm_backward(kind, a, stats, gain, dz, dgain, dshift, accumulate);
        let u = self.rows(Slot::TransformInput, hidden, rows);
        self.backend.activate_backward(activation, u, dz, hidden);
        let y = Mat::new(self.rows(Slot::Normalized, hidden, rows), n, hidden);
        let dweight = Mat::new(self.gradient(Role::TransformWeight), hidden, hidden);
        let dz = Mat::new(dz, n, hidden);
        self.backend.matmul(dweight, dz.t(), y, Span::default(), accumulate);
        self.backend.bias_backward(dz.span, self.gradient(Role::TransformBias), accumulate);
        let weight = Mat::new(self.weight(Role::TransformWeight), hidden, hidden);
        self.backend.matmul(Mat::new(dx, n, hidden), dz, weight, Span::default(), Accumulate::Overwrite);
    }
}
