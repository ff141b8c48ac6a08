//! The CPU as a backend: operators run at once, on the arena, by the kernels beside this file.

use oases_schedule::{Activation, Bytes, Instruction, Model, NormKind, Operands, Span, Workspace};

use super::activation::{gelu, gelu_backward, gelu_erf, gelu_erf_backward, swiglu, swiglu_backward};
use super::attention::{attention, attention_backward};
use super::cache::Cache;
use super::cross_entropy::{combine, cross_entropy_backward, statistics};
use super::embedding::{embed, embed_backward};
use super::heads::{norm_heads, norm_heads_backward, rotate};
use super::matmul::{Matrix, MatrixMut, matmul, matmul_bias};
use super::norm::{layer_norm, layer_norm_backward, rms_norm, rms_norm_backward};
use super::optimizer::{Update, adamw, sum_of_squares};
use super::residual::{RowTerm, bias_gradient, columns_to_rows, join, join_gradient, positions_gradient};
use crate::arena::{Arena, Region};
use crate::backend::Backend;
use crate::operators::{
    Accumulate, AdamW, Attention, Dropout, Mat, ParameterState, Rotation, Term, VocabularyShard,
};

/// One rank's memory and its processor.
#[derive(Debug)]
pub struct CpuBackend {
    arena: Arena,
    cache: Option<Cache>,
}

impl CpuBackend {
    /// A backend on this arena.
    pub fn new(arena: Arena) -> CpuBackend {
        CpuBackend { arena, cache: None }
    }

    /// From here on a step is one token of a text, at this position; see [`Cache`].
    pub fn at_position(&mut self, position: usize) {
        self.cache.get_or_insert_default().begin(position);
    }

    /// What the attention kernels want as workspace, for the memory plan.
    pub fn workspace(model: &Model) -> Workspace {
        let shape = Attention::on_rank(model, 1, 0, 1);
        let bytes = |elements: usize| Bytes((elements * size_of::<f32>()) as u64);
        Workspace {
            attention_forward: bytes(shape.forward_workspace()),
            attention_backward: bytes(shape.backward_workspace()),
        }
    }
}

fn present(span: Span) -> Option<Span> {
    (span.bytes > 0).then_some(span)
}

fn matrix<'a>(data: &'a [f32], shape: &Mat) -> Matrix<'a> {
    let matrix = Matrix::new(data, shape.rows, shape.columns);
    if shape.transposed { matrix.t() } else { matrix }
}

impl Backend for CpuBackend {
    type Region = Region;

    fn begin(&mut self, _: usize, _: &Instruction, _: &Operands) {}

    fn touched(&self) -> Bytes {
        Bytes(self.arena.touched_bytes() as u64)
    }

    fn forget_touched(&mut self) {
        self.arena.forget_touched();
    }

    fn lend(&mut self, span: Span) -> Region {
        self.arena.lend(span)
    }

    fn give_back(&mut self, region: Region) {
        self.arena.give_back(region);
    }

    fn write(&mut self, span: Span, values: &[f32]) {
        self.arena.write(span).copy_from_slice(values);
    }

    fn write_tokens(&mut self, span: Span, tokens: &[u32]) {
        self.arena.write(span).copy_from_slice(tokens);
    }

    fn read(&mut self, span: Span, values: &mut [f32]) {
        values.copy_from_slice(self.arena.read(span));
    }

    fn matmul(&mut self, c: Mat, a: Mat, b: Mat, bias: Span, accumulate: Accumulate) {
        assert!(!c.transposed, "a product is written as stored");
        let mut claims = self.arena.claims();
        let (a, b) = (matrix(claims.read(a.span), &a), matrix(claims.read(b.span), &b));
        let bias = claims.read_optional(present(bias));
        let c = MatrixMut::new(claims.write(c.span), c.rows, c.columns);
        match bias {
            Some(bias) => matmul_bias(c, a, b, bias),
            None => matmul(c, a, b, accumulate),
        }
    }

    fn embed(&mut self, tokens: Span, table: Span, shard: VocabularyShard, hidden: usize, out: Span) {
        let mut claims = self.arena.claims();
        let (tokens, table) = (claims.read(tokens), claims.read(table));
        embed(tokens, &table[..shard.valid * hidden], shard.first_row, hidden, claims.write(out));
    }

    fn embed_backward(
        &mut self,
        tokens: Span,
        gradient: Span,
        shard: VocabularyShard,
        hidden: usize,
        table: Span,
        accumulate: Accumulate,
    ) {
        let mut claims = self.arena.claims();
        let (tokens, gradient) = (claims.read(tokens), claims.read(gradient));
        let table: &mut [f32] = claims.write(table);
        embed_backward(
            tokens,
            gradient,
            shard.first_row,
            hidden,
            &mut table[..shard.valid * hidden],
            accumulate,
        );
    }

    fn clear(&mut self, span: Span) {
        self.arena.write::<f32>(span).fill(0.0);
    }

    fn copy(&mut self, from: Span, to: Span) {
        let mut claims = self.arena.claims();
        let from: &[f32] = claims.read(from);
        claims.write(to).copy_from_slice(from);
    }

    fn columns_to_rows(&mut self, x: Span, scratch: Span, hidden: usize, pieces: u8) {
        let mut claims = self.arena.claims();
        columns_to_rows(claims.write(x), claims.write(scratch), hidden, pieces);
    }

    fn join(&mut self, x: Span, residual: Span, term: Term, hidden: usize, dropout: Option<Dropout>) {
        let mut claims = self.arena.claims();
        let residual = claims.read_optional(present(residual));
        // The table's row of the token at hand.
        let row = self.cache.as_ref().map_or(0, |cache| cache.position() * hidden * size_of::<f32>());
        let term = match term {
            Term::None => RowTerm::None,
            Term::Bias(span) => RowTerm::Bias(claims.read(span)),
            Term::Positions(span) => {
                RowTerm::Positions(claims.read(Span { offset: span.offset + row, ..span }))
            }
            Term::PositionsAndTypes { positions, types, table } => RowTerm::PositionsAndTypes {
                positions: claims.read(positions),
                types: claims.read(types),
                table: claims.read(table),
            },
        };
        join(claims.write(x), hidden, residual, term, dropout);
    }

    fn join_backward(
        &mut self,
        gradient: Span,
        upstream: Span,
        branch: Span,
        hidden: usize,
        dropout: Option<Dropout>,
    ) {
        let mut claims = self.arena.claims();
        let upstream = claims.read_optional(present(upstream));
        let branch = claims.write_optional(present(branch));
        join_gradient(claims.write(gradient), hidden, upstream, branch, dropout);
    }

    fn norm(&mut self, kind: NormKind, x: Span, gain: Span, shift: Span, epsilon: f32, y: Span, stats: Span) {
        let mut claims = self.arena.claims();
        let (x, gain) = (claims.read(x), claims.read(gain));
        match kind {
            NormKind::LayerNorm => {
                let shift = claims.read(shift);
                layer_norm(x, gain, shift, epsilon, claims.write(y), claims.write(stats));
            }
            NormKind::RmsNorm => rms_norm(x, gain, epsilon, claims.write(y), claims.write(stats)),
        }
    }

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
    ) {
        let mut claims = self.arena.claims();
        let (x, stats, gain) = (claims.read(x), claims.read(stats), claims.read(gain));
        let (dgain, dy) = (claims.write(gain_gradient), claims.write(dy));
        match kind {
            NormKind::LayerNorm => {
                layer_norm_backward(x, stats, gain, dy, dgain, claims.write(shift_gradient), accumulate);
            }
            NormKind::RmsNorm => rms_norm_backward(x, stats, gain, dy, dgain, accumulate),
        }
    }

    fn norm_heads(&mut self, shape: Attention, qkv: Span, gains: [Span; 2], epsilon: f32, out: Span) {
        let mut claims = self.arena.claims();
        let (qkv, gains) = (claims.read(qkv), gains.map(|gain| claims.read(gain)));
        norm_heads(&shape, qkv, gains, epsilon, claims.write(out));
    }

    fn norm_heads_backward(
        &mut self,
        shape: Attention,
        qkv: Span,
        gains: [(Span, Span); 2],
        epsilon: f32,
        dqkv: Span,
        accumulate: Accumulate,
    ) {
        let mut claims = self.arena.claims();
        let qkv = claims.read(qkv);
        let gains = gains.map(|(gain, gradient)| (claims.read(gain), claims.write(gradient)));
        norm_heads_backward(&shape, qkv, gains, epsilon, claims.write(dqkv), accumulate);
    }

    fn rotate(&mut self, shape: Attention, qkv: Span, table: Span, direction: Rotation) {
        let mut claims = self.arena.claims();
        let table = claims.read(table);
        rotate(&shape, claims.write(qkv), table, direction);
    }

    fn attention(
        &mut self,
        shape: Attention,
        qkv: Span,
        lengths: Span,
        out: Span,
        lse: Span,
        workspace: Span,
    ) {
        let mut claims = self.arena.claims();
        let (qkv, lengths) = (claims.read(qkv), claims.read_optional(present(lengths)).unwrap_or(&[]));
        if let Some(cache) = &mut self.cache {
            return cache.attend(&shape, qkv, claims.write(out));
        }
        let (out, lse, workspace) = (claims.write(out), claims.write(lse), claims.write(workspace));
        attention(&shape, qkv, lengths, out, lse, workspace);
    }

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
    ) {
        let mut claims = self.arena.claims();
        let (qkv, out, lse, dout) =
            (claims.read(qkv), claims.read(out), claims.read(lse), claims.read(out_gradient));
        let lengths = claims.read_optional(present(lengths)).unwrap_or(&[]);
        let (dqkv, workspace) = (claims.write(qkv_gradient), claims.write(workspace));
        attention_backward(&shape, qkv, lengths, out, lse, dout, dqkv, workspace);
    }

    fn activate(&mut self, kind: Activation, u: Span, a: Span, width: usize) {
        let mut claims = self.arena.claims();
        let (u, a) = (claims.read(u), claims.write(a));
        match kind {
            Activation::Gelu => gelu(u, a),
            Activation::GeluErf => gelu_erf(u, a),
            Activation::SwiGlu => swiglu(u, a, width),
        }
    }

    fn activate_backward(&mut self, kind: Activation, u: Span, da: Span, width: usize) {
        let mut claims = self.arena.claims();
        let (u, da) = (claims.write(u), claims.write(da));
        match kind {
            Activation::Gelu => gelu_backward(u, da),
            Activation::GeluErf => gelu_erf_backward(u, da),
            Activation::SwiGlu => swiglu_backward(u, da, width),
        }
    }

    fn bias_backward(&mut self, dy: Span, bias: Span, accumulate: Accumulate) {
        let mut claims = self.arena.claims();
        bias_gradient(claims.read(dy), claims.write(bias), accumulate);
    }

    fn positions_backward(&mut self, dy: Span, positions: Span, used: usize, accumulate: Accumulate) {
        let mut claims = self.arena.claims();
        let (seen, rest) = claims.write::<f32>(positions).split_at_mut(used);
        if accumulate == Accumulate::Overwrite {
            rest.fill(0.0);
        }
        positions_gradient(claims.read(dy), seen, accumulate);
    }

    fn logit_statistics(&mut self, logits: Span, targets: Span, shard: VocabularyShard, stats: Span) {
        let mut claims = self.arena.claims();
        statistics(claims.read(logits), shard, claims.read(targets), claims.write(stats));
    }

    fn cross_entropy(&mut self, stats: Span, targets: Span, lse: Span, loss: Span) {
        let mut claims = self.arena.claims();
        let sum = combine(claims.read(stats), claims.read(targets), claims.write(lse));
        claims.write(loss)[0] = sum as f32;
    }

    fn cross_entropy_backward(
        &mut self,
        logits: Span,
        lse: Span,
        targets: Span,
        shard: VocabularyShard,
        scale: f32,
    ) {
        let mut claims = self.arena.claims();
        let (lse, targets) = (claims.read(lse), claims.read(targets));
        cross_entropy_backward(claims.write(logits), shard, lse, targets, scale);
    }

    fn square_norm(&mut self, gradients: &[Span], out: Span) {
        let mut claims = self.arena.claims();
        let sum: f64 = gradients.iter().map(|&span| sum_of_squares(claims.read(span))).sum();
        claims.write(out)[0] = sum as f32;
    }

    fn adamw(&mut self, parameter: &ParameterState, square_norm: Span, hyper: &AdamW) {
        let mut claims = self.arena.claims();
        let square_norm: &[f32] = claims.read(square_norm);
        let norm = square_norm[0].sqrt();
        if !norm.is_finite() {
            return;
        }
        let update = Update {
            learning_rate: hyper.learning_rate,
            beta1: hyper.beta1,
            beta2: hyper.beta2,
            epsilon: hyper.epsilon,
            weight_decay: if parameter.decays { hyper.weight_decay } else { 0.0 },
            step: hyper.update as u32,
            // PyTorch's `clip_grad_norm_` adds the same 1e-6.
            gradient_scale: (hyper.clip / (norm + 1e-6)).min(1.0),
        };
        let [m, v] = parameter.moments;
        let gradient = claims.read(parameter.gradient);
        adamw(claims.write(parameter.weight), gradient, claims.write(m), claims.write(v), &update);
    }
}
