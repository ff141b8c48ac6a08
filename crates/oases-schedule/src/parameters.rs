//! The parameters of each block: name, shape, how it is sharded over a TMP group, and what its gradient is.
//!
//! Weights are `[out, in]`, row-major. Column-parallel weights are cut by rows (`out`), row-parallel weights by
//! columns (`in`); Shoeybi et al., arXiv 1909.08053, section 3.

use std::ops::Range;

use crate::ids::BlockId;
use crate::model::{Activation, Model, NormKind, Positions};

/// How a parameter is cut over the ranks of a TMP group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shard {
    /// Every rank holds all of it.
    Whole,
    /// Cut by rows; the last ranks hold fewer (down to none) where rows do not divide, and pad with zeros.
    Rows,
    /// Cut by columns.
    Columns,
}

/// What each rank's gradient of a parameter is after backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientKind {
    /// That of its own shard: no reduction.
    Sharded,
    /// The whole gradient, the same on every rank: computed from what was reduced before.
    Full,
    /// A term of a sum over the TMP group: computed before the all-reduce (normalisation gain and shift).
    Partial,
}

/// What a parameter does in its block. Parameters of one role in one block lie side by side and are one operand: the
/// weights of queries, keys and values are a single matrix to the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Role {
    /// Token table of the embedding.
    Tokens,
    /// Position table of the embedding.
    Positions,
    /// Gain of the normalisation.
    NormGain,
    /// Shift of the normalisation.
    NormShift,
    /// Column-parallel weight.
    InWeight,
    /// Column-parallel bias.
    InBias,
    /// Row-parallel weight.
    OutWeight,
    /// Bias added after the all-reduce.
    OutBias,
    /// Weight of an untied head.
    Logits,
}

impl Role {
    /// Number of roles.
    pub const COUNT: usize = Role::Logits as usize + 1;
}

/// Initial values, drawn by the index of the element in the full tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// Normal with mean 0.
    Normal {
        /// Standard deviation.
        std: f32,
    },
}

/// One named parameter of the full model.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Name in checkpoints.
    pub name: String,
    /// The block that owns it.
    pub block: BlockId,
    /// What it does there.
    pub role: Role,
    /// Rows of the full tensor; 1 for a vector.
    pub rows: usize,
    /// Columns of the full tensor, or length of a vector.
    pub columns: usize,
    /// Whether it is a vector: its shape in files is `[columns]`, and it gets no weight decay.
    pub vector: bool,
    /// How it is cut.
    pub shard: Shard,
    /// What its gradient is.
    pub gradient: GradientKind,
    /// Initial values.
    pub init: Init,
}

impl Parameter {
    /// Elements of the full tensor.
    pub fn elements(&self) -> usize {
        self.rows * self.columns
    }

    /// Shape in files.
    pub fn shape(&self) -> Vec<usize> {
        if self.vector { vec![self.columns] } else { vec![self.rows, self.columns] }
    }

    /// Rows and columns that every rank has room for.
    pub fn local_shape(&self, tensor: u32) -> (usize, usize) {
        let tensor = tensor as usize;
        match self.shard {
            Shard::Whole => (self.rows, self.columns),
            Shard::Rows => (self.rows.div_ceil(tensor), self.columns),
            Shard::Columns => (self.rows, self.columns.div_ceil(tensor)),
        }
    }

    /// Elements that every rank has room for.
    pub fn local_elements(&self, tensor: u32) -> usize {
        let (rows, columns) = self.local_shape(tensor);
        rows * columns
    }

    /// The rows and columns of the full tensor that `tp_rank` holds. Only the row range can be shorter than
    /// [`Parameter::local_shape`]: the rest of the room is padding.
    pub fn slice(&self, tp_rank: u32, tensor: u32) -> (Range<usize>, Range<usize>) {
        let (rows, columns) = self.local_shape(tensor);
        let cut = |length: usize, share: usize| {
            let start = (share * tp_rank as usize).min(length);
            start..(start + share).min(length)
        };
        match self.shard {
            Shard::Whole => (0..self.rows, 0..self.columns),
            Shard::Rows => (cut(self.rows, rows), 0..self.columns),
            Shard::Columns => (0..self.rows, cut(self.columns, columns)),
        }
    }
}

impl Model {
    /// All parameters, block by block in the order of the chain.
    pub fn parameters(&self) -> Vec<Parameter> {
        let mut list = List { model: self, block: BlockId::Embed, parameters: Vec::new() };
        list.embedding();
        for layer in 0..self.layers {
            list.attention(layer);
            list.mlp(layer);
        }
        list.head();
        list.parameters
    }

    /// Standard deviation of initial weights: √(2 / 5h), "SmallInit" of Nguyen and Salazar, arXiv 1910.05895, section 2.2.
    /// At h = 1000 it is the 0.02 of GPT-2; at smaller widths 0.02 leaves attention near uniform for hundreds of steps.
    fn init_std(&self) -> f32 {
        (2.0 / (5.0 * self.hidden as f32)).sqrt()
    }

    /// Number of parameters of the full model.
    pub fn parameter_count(&self) -> u64 {
        self.parameters().iter().map(|parameter| parameter.elements() as u64).sum()
    }
}

/// Collects the parameters of one block after another.
struct List<'a> {
    model: &'a Model,
    block: BlockId,
    parameters: Vec<Parameter>,
}

impl List<'_> {
    fn embedding(&mut self) {
        let Model { vocabulary, hidden, sequence, .. } = *self.model;
        self.matrix("embed.tokens", Role::Tokens, [vocabulary, hidden], Shard::Rows, self.model.init_std());
        if self.model.positions == Positions::Learned {
            self.matrix(
                "embed.positions",
                Role::Positions,
                [sequence, hidden],
                Shard::Whole,
                self.model.init_std(),
            );
        }
    }

    fn attention(&mut self, layer: u32) {
        self.block = BlockId::Attn(layer);
        let model = self.model;
        let prefix = format!("layers.{layer}.attn");
        self.norm(&prefix);
        let kv = model.kv_heads * model.head_dim();
        let fused = [("query", model.hidden), ("key", kv), ("value", kv)];
        self.column_parallel(&prefix, &fused);
        self.row_parallel(&format!("{prefix}.out"), model.hidden);
    }

    fn mlp(&mut self, layer: u32) {
        self.block = BlockId::Mlp(layer);
        let model = self.model;
        let prefix = format!("layers.{layer}.mlp");
        self.norm(&prefix);
        match model.activation {
            Activation::Gelu => self.column_parallel(&prefix, &[("up", model.ffn)]),
            Activation::SwiGlu => self.column_parallel(&prefix, &[("gate", model.ffn), ("up", model.ffn)]),
        }
        self.row_parallel(&format!("{prefix}.down"), model.ffn);
    }

    fn head(&mut self) {
        self.block = BlockId::Head;
        self.norm("head");
        if !self.model.tied {
            let Model { vocabulary, hidden, .. } = *self.model;
            self.matrix(
                "head.weight",
                Role::Logits,
                [vocabulary, hidden],
                Shard::Rows,
                self.model.init_std(),
            );
        }
    }

    fn norm(&mut self, prefix: &str) {
        let hidden = self.model.hidden;
        let gain = format!("{prefix}.norm.gain");
        self.vector(gain, Role::NormGain, hidden, Shard::Whole, GradientKind::Partial);
        if self.model.norm == NormKind::LayerNorm {
            let shift = format!("{prefix}.norm.shift");
            self.vector(shift, Role::NormShift, hidden, Shard::Whole, GradientKind::Partial);
        }
    }

    /// Weights that are one matrix to the product, then their biases, likewise.
    fn column_parallel(&mut self, prefix: &str, projections: &[(&str, usize)]) {
        let hidden = self.model.hidden;
        for (name, out) in projections {
            let weight = format!("{prefix}.{name}.weight");
            self.matrix(&weight, Role::InWeight, [*out, hidden], Shard::Rows, self.model.init_std());
        }
        for (name, out) in projections.iter().filter(|_| self.model.bias) {
            let bias = format!("{prefix}.{name}.bias");
            self.vector(bias, Role::InBias, *out, Shard::Columns, GradientKind::Sharded);
        }
    }

    /// The bias of a row-parallel product is added once, after the all-reduce: whole on every rank.
    fn row_parallel(&mut self, name: &str, input: usize) {
        let hidden = self.model.hidden;
        // GPT-2 scales the projections onto the residual path by the root of their number.
        let std = self.model.init_std() / (2.0 * self.model.layers as f32).sqrt();
        self.matrix(&format!("{name}.weight"), Role::OutWeight, [hidden, input], Shard::Columns, std);
        if self.model.bias {
            self.vector(format!("{name}.bias"), Role::OutBias, hidden, Shard::Whole, GradientKind::Full);
        }
    }

    fn matrix(&mut self, name: &str, role: Role, [rows, columns]: [usize; 2], shard: Shard, std: f32) {
        let gradient = if shard == Shard::Whole { GradientKind::Full } else { GradientKind::Sharded };
        let (name, block, init) = (name.to_owned(), self.block, Init::Normal { std });
        self.parameters.push(Parameter {
            name,
            block,
            role,
            rows,
            columns,
            vector: false,
            shard,
            gradient,
            init,
        });
    }

    fn vector(&mut self, name: String, role: Role, columns: usize, shard: Shard, gradient: GradientKind) {
        let init = if role == Role::NormGain { Init::Ones } else { Init::Zeros };
        let block = self.block;
        self.parameters.push(Parameter {
            name,
            block,
            role,
            rows: 1,
            columns,
            vector: true,
            shard,
            gradient,
            init,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Mask, NormPlacement};

    #[test]
    fn published_parameter_counts() {
        // GPT-2 small: 124,439,808 (Hugging Face `gpt2`).
        assert_eq!(Model::gpt(12, 768, 12, 1024, 50257).parameter_count(), 124_439_808);
        // LLaMA-7B: 6,738,415,616 (Hugging Face `huggyllama/llama-7b`).
        let llama = Model {
            ffn: 11008,
            tied: false,
            bias: false,
            norm: NormKind::RmsNorm,
            positions: Positions::Rotary,
            activation: Activation::SwiGlu,
            ..Model::gpt(32, 4096, 32, 2048, 32000)
        };
        assert_eq!(llama.parameter_count(), 6_738_415_616);
        // LLaMA-3-8B with grouped key/value heads: 8,030,261,248.
        let grouped = Model { ffn: 14336, kv_heads: 8, vocabulary: 128256, ..llama };
        assert_eq!(grouped.parameter_count(), 8_030_261_248);
        // A BERT encoder layer: 7,087,872 (BERT-base; 85,054,464 in 12 layers).
        let bert = Model {
            mask: Mask::Bidirectional,
            placement: NormPlacement::Post,
            ..Model::gpt(12, 768, 12, 512, 30522)
        };
        let layers = bert.parameters().into_iter().filter(|p| p.name.starts_with("layers."));
        assert_eq!(layers.map(|p| p.elements()).sum::<usize>(), 85_054_464);
    }

    #[test]
    fn shards_cover_every_parameter_once() {
        let model = Model::gpt(2, 24, 4, 8, 30);
        for tensor in [1, 2, 4] {
            for parameter in model.parameters() {
                let mut seen = vec![0; parameter.elements()];
                for tp_rank in 0..tensor {
                    let (rows, columns) = parameter.slice(tp_rank, tensor);
                    for row in rows {
                        columns.clone().for_each(|column| seen[row * parameter.columns + column] += 1);
                    }
                }
                let expected = if parameter.shard == Shard::Whole { tensor } else { 1 };
                assert!(seen.iter().all(|&count| count == expected), "{} over {tensor}", parameter.name);
            }
        }
    }

    #[test]
    fn vocabulary_smaller_than_the_group_leaves_ranks_empty() {
        let tokens = &Model::gpt(1, 8, 4, 4, 5).parameters()[0];
        let rows: Vec<_> = (0..4).map(|tp_rank| tokens.slice(tp_rank, 4).0).collect();
        assert_eq!(rows, [0..2, 2..4, 4..5, 5..5]);
        assert_eq!(tokens.local_shape(4), (2, 8));
    }
}
