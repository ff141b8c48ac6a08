//! The multi-layer perceptron, with a gate or without.

use oases_schedule::{Extent, Slot};

use super::BlockCall;
use crate::backend::Backend;

impl<B: Backend> BlockCall<'_, B> {
    pub(super) fn mlp(&mut self, extent: Extent) {
        self.norm();
        self.project_in(Slot::PreActivation, self.ffn_columns());
        if matches!(extent, Extent::Body | Extent::Output) {
            let (u, a) = (self.at(Slot::PreActivation), self.at(Slot::Activated));
            let (kind, width) = (self.model().activation, self.ffn());
            self.backend.activate(kind, u, a, width);
        }
        if extent == Extent::Output {
            self.project_out(Slot::Activated);
        }
    }

    /// Up to the gradient of the pre-activation. That is not needed again: the activation takes its place, for the weight's
    /// gradient.
    pub(super) fn mlp_backward(&mut self) {
        let branch = self.incoming_gradient();
        self.project_out_backward(branch, Slot::ActivationGradient);
        let (u, da) = (self.at(Slot::PreActivation), self.at(Slot::ActivationGradient));
        let (kind, width) = (self.model().activation, self.ffn());
        self.backend.activate_backward(kind, u, da, width);
    }

    /// Units of this rank.
    pub(super) fn ffn(&self) -> usize {
        self.model().ffn / self.operands.degree as usize
    }

    /// Columns of the product that opens the perceptron.
    pub(super) fn ffn_columns(&self) -> usize {
        self.model().ffn_columns() / self.operands.degree as usize
    }
}
