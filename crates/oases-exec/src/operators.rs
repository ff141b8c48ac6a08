//! Operands of the operators that every backend has: matrices, shapes, sites and constants.
//!
//! Operands are [`Span`]s of the arena; an empty span is an absent operand.

use oases_schedule::{Mask, Model, Span};

/// A matrix in the arena, possibly seen transposed.
#[derive(Clone, Copy, Debug)]
pub struct Mat {
    /// Where it lies, row-major and without gaps.
    pub span: Span,
    /// Rows as stored.
    pub rows: usize,
    /// Columns as stored.
    pub columns: usize,
    /// Whether the product uses its transpose.
    pub transposed: bool,
}

impl Mat {
    /// A matrix as stored.
    pub fn new(span: Span, rows: usize, columns: usize) -> Mat {
        Mat { span, rows, columns, transposed: false }
    }

    /// Its transpose.
    pub fn t(self) -> Mat {
        Mat { transposed: !self.transposed, ..self }
    }
}

/// Which way heads are turned by their position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// Queries and keys.
    Forward,
    /// Their gradients: the transpose.
    Backward,
}

/// What happens to what an output gradient holds already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulate {
    /// It is replaced.
    Overwrite,
    /// It is added to.
    Add,
}

/// What is added to a reduced output before dropout.
#[derive(Clone, Copy, Debug)]
pub enum Term {
    /// Nothing.
    None,
    /// A vector, to every row. `[h]`
    Bias(Span),
    /// A row per position. `[S, h]`
    Positions(Span),
    /// A row per position, and a row per token type.
    PositionsAndTypes {
        /// `[S, h]`
        positions: Span,
        /// The type of each token, `u32`. `[n]`
        types: Span,
        /// `[T, h]`
        table: Span,
    },
}

/// Dropout (Srivastava et al. 2014), scaled by 1/(1 − rate) while training. The mask is a function of what is named here and
/// of the *global* sample, the position and the feature, so it does not depend on how the batch is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The probability that an element is dropped, in [0, 1).
    pub rate: f32,
    /// The seed of the run.
    pub key: [u32; 2],
    /// The place in the model: a block.
    pub site: u32,
    /// The training step.
    pub step: u32,
    /// The global number of the first sample here.
    pub first_sample: u32,
    /// Tokens of one sample.
    pub sequence: usize,
}

/// The shape of an attention call.
///
/// Its operand has queries, keys and values of the rank's heads in one matrix, `[n, (heads + 2 kv_heads)·d]`, each in the order of
/// heads. Where every rank has all keys and values, it is two matrices one behind the other: queries `[n, heads·d]`, then keys and
/// values `[n, 2 kv_heads·d]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    /// Sequences, each of `length` tokens.
    pub sequences: usize,
    /// Tokens of a sequence.
    pub length: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Query heads that share a key head.
    pub group: usize,
    /// Features of a head.
    pub head_size: usize,
    /// What a query may look at.
    pub mask: Mask,
    /// Whether every rank has all keys and values, in a matrix of their own.
    pub separate: bool,
    /// How many query heads of those that share the keys here come before the rank's first.
    pub first_head: usize,
}

impl Attention {
    /// The attention of the rank at a place of a TMP group.
    pub fn on_rank(model: &Model, tensor: u32, place: u32, sequences: usize) -> Attention {
        let (heads, separate) = (model.heads / tensor as usize, model.shares_keys(tensor));
        Attention {
            sequences,
            length: model.sequence,
            heads,
            kv_heads: model.local_kv_heads(tensor),
            group: model.heads / model.kv_heads,
            head_size: model.head_dim,
            mask: model.mask,
            separate,
            first_head: if separate { heads * place as usize } else { 0 },
        }
    }

    /// The key head of a query head of this rank.
    #[must_use]
    pub fn key_head(&self, head: usize) -> usize {
        (self.first_head + head) / self.group
    }

    /// Columns of queries, keys and values together.
    #[must_use]
    pub fn columns(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_size
    }

    /// Columns of `o_ne`.
    #[must_use]
    pub fn output_columns(&self) -> usize {
        self.heads * self.head_size
    }

    /// Elements between the rows of queries, and between those of keys and values.
    #[must_use]
    pub fn strides(&self) -> (usize, usize) {
        match self.separate {
            false => (self.columns(), self.columns()),
            true => (self.output_columns(), 2 * self.kv_heads * self.head_size),
        }
    }

    /// Where the first key head begins.
    #[must_use]
    pub fn first_key(&self) -> usize {
        if self.separate { self.tokens() * self.output_columns() } else { self.output_columns() }
    }

    /// Tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.sequences * self.length
    }

    /// Elements of `lse`, the logarithm of the softmax denominator of each [sequence, head, query].
    #[must_use]
    pub fn lse_elements(&self) -> usize {
        self.tokens() * self.heads
    }
}

/// The target of a token that has no loss.
pub const IGNORE: u32 = u32::MAX;

/// The part of the vocabulary that a rank's logits cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VocabularyShard {
    /// The vocabulary index of the first column.
    pub first_row: u32,
    /// Columns, padding included.
    pub width: usize,
    /// Columns that are real; 0 where a rank holds padding only.
    pub valid: usize,
}

/// Hyper-parameters of AdamW for one step; Loshchilov and Hutter, arXiv 1711.05101, algorithm 2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub learning_rate: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Decoupled decay of matrices.
    pub weight_decay: f32,
    /// Number of the update, from 1, for the bias corrections.
    pub update: u64,
    /// Largest norm of the gradient; larger ones are scaled down to it. Infinite for none.
    pub clip: f32,
}

/// The four tensors of a parameter.
#[derive(Clone, Copy, Debug)]
pub struct ParameterState {
    /// Values.
    pub weight: Span,
    /// Gradient.
    pub gradient: Span,
    /// First and second moment.
    pub moments: [Span; 2],
    /// Whether weight decay applies.
    pub decays: bool,
}
