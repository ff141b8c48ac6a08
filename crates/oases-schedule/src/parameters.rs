//! The parameters of each block: name, shape, how it is sharded over a TMP group, and what its gradient is.
//!
//! Weights are `[out, in]`, row-major. Column-parallel weights are cut by rows (`out`), row-parallel weights by
//! columns (`in`); Shoeybi et al., arXiv 1909.08053, section 3.

use std::ops::Range;

use crate::ids::BlockId;
use crate::model::{Activation, Biases, HeadKind, Model, NormKind, Positions};

/// How a parameter is cut over the ranks of a TMP group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shard {
    /// Every rank holds all of it.
    Whole,
    /// Cut by rows; the last ranks hold fewer (down to none) where rows do not divide, and pad with zeros.
    Rows,
    /// Cut by columns.
    Columns,
    /// Keys or values of so many heads, one row (or element of a vector) for each feature: cut by heads where their number divides by
    /// the degree; otherwise every rank holds all.
    Heads(usize),
}

/// What each rank's gradient of a parameter is after backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientKind {
    /// That of its own shard: no reduction.
    Sharded,
    /// The whole gradient, the same on every rank: computed from what was reduced before.
    Full,
    /// A term of a sum over the TMP group: computed before the all-reduce (normalisation gain and shift), or of keys and values
    /// that all ranks hold and each uses for its own queries.
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
    /// Table of token types of the embedding.
    TokenTypes,
    /// Gain of the normalisation.
    NormGain,
    /// Shift of the normalisation.
    NormShift,
    /// Column-parallel weight.
    InWeight,
    /// Column-parallel bias.
    InBias,
    /// Weight of keys and values that all ranks hold.
    SharedWeight,
    /// Bias of keys and values that all ranks hold.
    SharedBias,
    /// Gain of the normalisation of each head's queries.
    QueryGain,
    /// Gain of the normalisation of each head's keys.
    KeyGain,
    /// Row-parallel weight.
    OutWeight,
    /// Bias added after the all-reduce.
    OutBias,
    /// Weight of an untied head.
    Logits,
    /// Bias of the logits.
    LogitsBias,
    /// Weight of the head's transform.
    TransformWeight,
    /// Bias of the head's transform.
    TransformBias,
    /// Gain of the normalisation behind the head's transform.
    TransformGain,
    /// Shift of the normalisation behind the head's transform.
    TransformShift,
}

impl Role {
    /// Number of roles.
    pub const COUNT: usize = Role::TransformShift as usize + 1;
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
    /// What it does there; see [`Parameter::role`].
    role: Role,
    /// Rows of the full tensor; 1 for a vector.
    pub rows: usize,
    /// Columns of the full tensor, or length of a vector.
    pub columns: usize,
    /// Whether it is a vector: its shape in files is `[columns]`, and it gets no weight decay.
    pub vector: bool,
    /// How it is cut.
    pub shard: Shard,
    /// What its gradient is; see [`Parameter::gradient`].
    gradient: GradientKind,
    /// Initial values.
    pub init: Init,
}

impl Parameter {
    /// Whether all ranks of a TMP group of this degree hold all of these keys or values.
    fn is_shared(&self, tensor: u32) -> bool {
        matches!(self.shard, Shard::Heads(heads) if !heads.is_multiple_of(tensor as usize))
    }

    /// What it does in its block, at this TMP degree: keys and values that all ranks hold are a product of their own.
    pub fn role(&self, tensor: u32) -> Role {
        match self.role {
            Role::InWeight if self.is_shared(tensor) => Role::SharedWeight,
            Role::InBias if self.is_shared(tensor) => Role::SharedBias,
            role => role,
        }
    }

    /// What its gradient is, at this TMP degree.
    pub fn gradient(&self, tensor: u32) -> GradientKind {
        if self.is_shared(tensor) { GradientKind::Partial } else { self.gradient }
    }

    /// Whether every rank of a TMP group of this degree holds all of it.
    pub fn is_whole(&self, tensor: u32) -> bool {
        self.shard == Shard::Whole || self.is_shared(tensor)
    }

    /// Whether it is the token table of the embedding, which a tied head shares.
    pub fn is_table(&self) -> bool {
        self.role == Role::Tokens
    }

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
        let shared = self.is_shared(tensor);
        let tensor = tensor as usize;
        match self.shard {
            Shard::Whole => (self.rows, self.columns),
            Shard::Heads(_) if shared => (self.rows, self.columns),
            Shard::Heads(_) if self.vector => (1, self.columns / tensor),
            Shard::Heads(_) => (self.rows / tensor, self.columns),
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
            Shard::Rows => (cut(self.rows, rows), 0..self.columns),
            Shard::Columns => (0..self.rows, cut(self.columns, columns)),
            Shard::Heads(_) if rows < self.rows => (cut(self.rows, rows), 0..self.columns),
            Shard::Heads(_) if columns < self.columns => (0..self.rows, cut(self.columns, columns)),
            Shard::Whole | Shard::Heads(_) => (0..self.rows, 0..self.columns),
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
        let Model { vocabulary, hidden, .. } = *self.model;
        self.matrix("embed.tokens", Role::Tokens, [vocabulary, hidden], Shard::Rows, self.model.init_std());
        if let Positions::Learned(rows) = self.model.positions {
            self.matrix(
                "embed.positions",
                Role::Positions,
                [rows, hidden],
                Shard::Whole,
                self.model.init_std(),
            );
        }
        let types = self.model.token_types;
        if types > 0 {
            let std = self.model.init_std();
            self.matrix("embed.types", Role::TokenTypes, [types, hidden], Shard::Whole, std);
        }
    }

    fn attention(&mut self, layer: u32) {
        self.block = BlockId::Attn(layer);
        let model = self.model;
        let prefix = format!("layers.{layer}.attn");
        self.norm(&prefix);
        let keys = (model.key_columns(), Shard::Heads(model.kv_heads));
        let fused = [
            ("query", model.query_columns(), Shard::Rows),
            ("key", keys.0, keys.1),
            ("value", keys.0, keys.1),
        ];
        self.column_parallel(&prefix, &fused, model.biases != Biases::None);
        if model.head_norm {
            for (name, role) in [("query", Role::QueryGain), ("key", Role::KeyGain)] {
                let gain = format!("{prefix}.{name}.norm.gain");
                self.vector(gain, role, model.head_dim, Shard::Whole, GradientKind::Partial);
            }
        }
        self.row_parallel(&format!("{prefix}.out"), model.query_columns());
    }

    fn mlp(&mut self, layer: u32) {
        self.block = BlockId::Mlp(layer);
        let model = self.model;
        let prefix = format!("layers.{layer}.mlp");
        self.norm(&prefix);
        let up = ("up", model.ffn, Shard::Rows);
        let gate = ("gate", model.ffn, Shard::Rows);
        let projections = if model.activation == Activation::SwiGlu { &[gate, up][..] } else { &[up] };
        self.column_parallel(&prefix, projections, model.biases == Biases::All);
        self.row_parallel(&format!("{prefix}.down"), model.ffn);
    }

    fn head(&mut self) {
        self.block = BlockId::Head;
        self.norm("head");
        let Model { vocabulary, hidden, .. } = *self.model;
        if self.model.head == HeadKind::Transform {
            let std = self.model.init_std();
            // Its gradients come from what a rank's part of the vocabulary says, so they are terms of a sum.
            let partial = GradientKind::Partial;
            let weight = "head.transform.weight";
            self.matrix(weight, Role::TransformWeight, [hidden, hidden], Shard::Whole, std);
            self.parameters.last_mut().expect("one was pushed").gradient = partial;
            for (name, role) in [
                ("bias", Role::TransformBias),
                ("norm.gain", Role::TransformGain),
                ("norm.shift", Role::TransformShift),
            ] {
                self.vector(format!("head.transform.{name}"), role, hidden, Shard::Whole, partial);
            }
            let sharded = GradientKind::Sharded;
            self.vector("head.bias".into(), Role::LogitsBias, vocabulary, Shard::Columns, sharded);
        }
        if !self.model.tied {
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
    fn column_parallel(&mut self, prefix: &str, projections: &[(&str, usize, Shard)], biases: bool) {
        let hidden = self.model.hidden;
        for &(name, out, shard) in projections {
            let weight = format!("{prefix}.{name}.weight");
            self.matrix(&weight, Role::InWeight, [out, hidden], shard, self.model.init_std());
        }
        for &(name, out, shard) in projections.iter().filter(|_| biases) {
            let bias = format!("{prefix}.{name}.bias");
            let shard = if shard == Shard::Rows { Shard::Columns } else { shard };
            self.vector(bias, Role::InBias, out, shard, GradientKind::Sharded);
        }
    }

    /// The bias of a row-parallel product is added once, after the all-reduce: whole on every rank.
    fn row_parallel(&mut self, name: &str, input: usize) {
        let hidden = self.model.hidden;
        // GPT-2 scales the projections onto the residual path by the root of their number.
        let std = self.model.init_std() / (2.0 * self.model.layers as f32).sqrt();
        self.matrix(&format!("{name}.weight"), Role::OutWeight, [hidden, input], Shard::Columns, std);
        if self.model.biases == Biases::All {
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
        let gain = matches!(role, Role::NormGain | Role::QueryGain | Role::KeyGain | Role::TransformGain);
        let init = if gain { Init::Ones } else { Init::Zeros };
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
    #[test]
    fn published_parameter_counts() {
        // GPT-2 small: 124,439,808 (Hugging Face `gpt2`).
        assert_eq!(Model::gpt(12, 768, 12, 1024, 50257).parameter_count(), 124_439_808);
        // LLaMA-7B: 6,738,415,616 (Hugging Face `huggyllama/llama-7b`).
        let llama = Model { ffn: 11008, ..Model::llama(32, 4096, 32, 2048, 32000) };
        assert_eq!(llama.parameter_count(), 6_738_415_616);
        // LLaMA-3-8B with grouped key/value heads: 8,030,261,248.
        let grouped = Model { ffn: 14336, kv_heads: 8, vocabulary: 128256, ..llama };
        assert_eq!(grouped.parameter_count(), 8_030_261_248);
        // BERT-base: 109,514,298 with its head for masked language modelling (`BertForMaskedLM` of `bert-base-uncased`), of which
        // 7,087,872 in each layer.
        let bert = Model::bert(12, 768, 12, 512, 30522);
        assert_eq!(bert.parameter_count(), 109_514_298);
        // Qwen2.5-0.5B: 494,032,768; Qwen3-0.6B: 596,049,920 (both tied).
        let qwen2 = Model {
            kv_heads: 2,
            ffn: 4864,
            tied: true,
            biases: Biases::Qkv,
            ..Model::llama(24, 896, 14, 32768, 151_936)
        };
        assert_eq!(qwen2.parameter_count(), 494_032_768);
        let qwen3 = Model {
            kv_heads: 8,
            head_dim: 128,
            ffn: 3072,
            tied: true,
            head_norm: true,
            ..Model::llama(28, 1024, 16, 40960, 151_936)
        };
        assert_eq!(qwen3.parameter_count(), 596_049_920);
    }

    #[test]
    fn shards_cover_every_parameter_once() {
        let gpt = Model::gpt(2, 24, 4, 8, 30);
        let qwen2 = Model { kv_heads: 2, biases: Biases::Qkv, ..Model::llama(2, 24, 4, 8, 30) };
        for (model, tensor) in [1, 2, 4].iter().flat_map(|&t| [(&gpt, t), (&qwen2, t)]) {
            for parameter in model.parameters() {
                let mut seen = vec![0; parameter.elements()];
                for tp_rank in 0..tensor {
                    let (rows, columns) = parameter.slice(tp_rank, tensor);
                    for row in rows {
                        columns.clone().for_each(|column| seen[row * parameter.columns + column] += 1);
                    }
                }
                let heads = matches!(parameter.shard, Shard::Heads(heads) if heads < tensor as usize);
                let whole = parameter.shard == Shard::Whole || heads;
                let expected = if whole { tensor } else { 1 };
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
