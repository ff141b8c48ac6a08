//! The description of a model: data from which every block derives its shapes, parameters, activations and costs.
//!
//! A family is a value of this type: GPT, LLaMA and BERT differ in fields, not in code paths.

use std::fmt;

use crate::rotary::Rotary;

/// How activations are normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Gain and shift (GPT, BERT).
    LayerNorm,
    /// Gain only (LLaMA).
    RmsNorm,
}

/// Where a block normalises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// Before the block, off the residual path (GPT, LLaMA).
    Pre,
    /// On the residual path (original BERT).
    Post,
}

/// How a position enters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Positions {
    /// A learned table of so many rows, at least as many as a sequence has tokens, added to the embedding.
    Learned(usize),
    /// Rotation of queries and keys.
    Rotary(Rotary),
}

/// The non-linearity of the multi-layer perceptron.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `down(gelu(up(x)))`, GELU in its tanh form.
    Gelu,
    /// The same, GELU by the error function.
    GeluErf,
    /// `down(silu(gate(x)) · up(x))`.
    SwiGlu,
}

/// Which keys a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// Those at its own position and before.
    Causal,
    /// So many of them, the last ones: its own position and those before (Mistral).
    Sliding(usize),
    /// All.
    Bidirectional,
}

/// Which projections have biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Biases {
    /// All.
    All,
    /// Queries, keys and values (Qwen2).
    Qkv,
    /// None.
    None,
}

/// What stands between the last normalisation and the logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// Nothing.
    Plain,
    /// `norm(gelu(W·x + b))`, and the logits have a bias of their own: BERT's head for masked language modelling.
    Transform,
}

/// The words that configurations and checkpoints have for a choice.
macro_rules! words {
    ($choice:ident: $($value:ident = $word:literal),*) => {
        impl $choice {
            /// The words for all choices.
            pub const WORDS: &[&str] = &[$($word),*];

            /// The choice that a word names.
            pub fn parse(word: &str) -> Option<$choice> {
                match word {
                    $($word => Some($choice::$value),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $choice {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $($choice::$value => $word,)*
                })
            }
        }
    };
}

words!(NormKind: LayerNorm = "layer_norm", RmsNorm = "rms_norm");
words!(NormPlacement: Pre = "pre", Post = "post");
words!(Activation: Gelu = "gelu", GeluErf = "gelu_erf", SwiGlu = "swiglu");
words!(Biases: All = "all", Qkv = "qkv", None = "none");
words!(HeadKind: Plain = "plain", Transform = "transform");

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mask::Causal => write!(f, "causal"),
            Mask::Sliding(window) => write!(f, "causal, the last {window}"),
            Mask::Bidirectional => write!(f, "bidirectional"),
        }
    }
}

impl fmt::Display for Positions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Positions::Learned(rows) => write!(f, "{rows} learned"),
            Positions::Rotary(Rotary { base, scaling }) => {
                write!(f, "rotary, base {base}, scaling {scaling}")
            }
        }
    }
}

/// A transformer language model.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Transformer layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; equal to `heads` unless queries share them.
    pub kv_heads: usize,
    /// Width of a head; `hidden / heads` unless a family says otherwise.
    pub head_dim: usize,
    /// Width of the multi-layer perceptron.
    pub ffn: usize,
    /// Longest sequence, in tokens.
    pub sequence: usize,
    /// Number of tokens, without any padding.
    pub vocabulary: usize,
    /// Dropout rate on the embedding and on each block's output.
    pub dropout: f32,
    /// Whether the head shares the embedding's weight.
    pub tied: bool,
    /// Which projections have biases.
    pub biases: Biases,
    /// Whether each head's queries and keys are normalised before they meet (Qwen3).
    pub head_norm: bool,
    /// Kind of normalisation.
    pub norm: NormKind,
    /// Where it stands.
    pub placement: NormPlacement,
    /// Added to the variance under the root.
    pub norm_epsilon: f32,
    /// How positions enter.
    pub positions: Positions,
    /// Non-linearity.
    pub activation: Activation,
    /// Attention mask.
    pub mask: Mask,
    /// Rows of a table of token types that is added to the embedding (BERT); 0 for none.
    pub token_types: usize,
    /// What the head computes.
    pub head: HeadKind,
}

/// Why a model cannot be laid out or executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    /// What is wrong, with the values.
    pub message: String,
    /// What would do.
    pub hint: String,
}

impl Model {
    /// A GPT-2 like model: pre-norm, learned positions, GELU, biases, tied head, no dropout.
    pub fn gpt(layers: u32, hidden: usize, heads: usize, sequence: usize, vocabulary: usize) -> Model {
        Model {
            layers,
            hidden,
            heads,
            kv_heads: heads,
            head_dim: hidden / heads.max(1),
            ffn: 4 * hidden,
            sequence,
            vocabulary,
            dropout: 0.0,
            tied: true,
            biases: Biases::All,
            head_norm: false,
            norm: NormKind::LayerNorm,
            placement: NormPlacement::Pre,
            norm_epsilon: 1e-5,
            positions: Positions::Learned(sequence),
            activation: Activation::Gelu,
            mask: Mask::Causal,
            token_types: 0,
            head: HeadKind::Plain,
        }
    }

    /// A LLaMA-like model: RMS normalisation, rotary positions, SwiGLU, no biases, an untied head, no dropout.
    pub fn llama(layers: u32, hidden: usize, heads: usize, sequence: usize, vocabulary: usize) -> Model {
        Model {
            ffn: (8 * hidden / 3).next_multiple_of(64),
            tied: false,
            biases: Biases::None,
            norm: NormKind::RmsNorm,
            positions: Positions::Rotary(Rotary::new(10_000.0)),
            activation: Activation::SwiGlu,
            ..Model::gpt(layers, hidden, heads, sequence, vocabulary)
        }
    }

    /// A BERT: normalisation on the residual path, all keys seen, token types, a head for masked language modelling.
    pub fn bert(layers: u32, hidden: usize, heads: usize, sequence: usize, vocabulary: usize) -> Model {
        Model {
            placement: NormPlacement::Post,
            norm_epsilon: 1e-12,
            activation: Activation::GeluErf,
            mask: Mask::Bidirectional,
            token_types: 2,
            head: HeadKind::Transform,
            ..Model::gpt(layers, hidden, heads, sequence, vocabulary)
        }
    }

    /// Columns of all query heads.
    pub fn query_columns(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Columns of all key heads, or of all value heads.
    pub fn key_columns(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Whether a TMP group of this degree has more ranks than there are key/value heads. Every rank then has all of these, and
    /// their gradients are summed over the group.
    pub fn shares_keys(&self, tensor: u32) -> bool {
        !self.kv_heads.is_multiple_of(tensor as usize)
    }

    /// Key (or value) heads on a rank of a TMP group of this degree.
    pub fn local_kv_heads(&self, tensor: u32) -> usize {
        if self.shares_keys(tensor) { self.kv_heads } else { self.kv_heads / tensor as usize }
    }

    /// Columns of the product that opens the perceptron: one for each unit, or a gate and a value for each.
    pub fn ffn_columns(&self) -> usize {
        if self.activation == Activation::SwiGlu { 2 * self.ffn } else { self.ffn }
    }

    /// Everything that must hold before anything is allocated, for TMP degree `tensor`.
    pub fn check(&self, tensor: u32) -> Result<(), ModelError> {
        let refuse = |message: String, hint: String| Err(ModelError { message, hint });
        let extents = [
            ("layers", self.layers as usize),
            ("hidden", self.hidden),
            ("heads", self.heads),
            ("ffn", self.ffn),
            ("sequence", self.sequence),
            ("vocabulary", self.vocabulary),
            ("tensor", tensor as usize),
        ];
        for (name, value) in extents {
            if value == 0 || value > 1 << 30 {
                return refuse(format!("{name} is {value}"), format!("{name} must be between 1 and 2^30"));
            }
        }
        // A quotient that was rounded down is nobody's intention.
        if !self.hidden.is_multiple_of(self.heads) && self.head_dim == self.hidden / self.heads {
            let fits = divisors(self.hidden, 64);
            return refuse(
                format!("hidden {} is not divisible by {} heads", self.hidden, self.heads),
                format!("numbers of heads that divide it: {fits}"),
            );
        }
        let rotary = matches!(self.positions, Positions::Rotary(_));
        if self.head_dim == 0 || self.head_dim > 1 << 20 || rotary && !self.head_dim.is_multiple_of(2) {
            return refuse(
                format!("heads are {} wide", self.head_dim),
                "head_dim must be between 1 and 2^20, and even where rotary positions turn pairs".into(),
            );
        }
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return refuse(
                format!("{} heads cannot share {} key/value heads", self.heads, self.kv_heads),
                format!("numbers of key/value heads that divide it: {}", divisors(self.heads, 64)),
            );
        }
        for (name, value) in [("heads", self.heads), ("ffn", self.ffn)] {
            if !value.is_multiple_of(tensor as usize) {
                return refuse(
                    format!("{name} {value} is not divisible by TMP degree {tensor}"),
                    format!("degrees that fit {name}: {}", divisors(value, 64)),
                );
            }
        }
        if let Positions::Learned(rows) = self.positions
            && (rows < self.sequence || rows > 1 << 30)
        {
            return refuse(
                format!("sequences of {} tokens and {rows} positions", self.sequence),
                format!("a sequence of {rows} tokens at most, or more positions"),
            );
        }
        if self.mask == Mask::Sliding(0) {
            return refuse("a sliding window of 0 keys".into(), "a query sees at least itself".into());
        }
        Ok(())
    }
}

/// The divisors of `value` up to `most`, as a list to show.
pub fn divisors(value: usize, most: usize) -> String {
    let list: Vec<String> =
        (1..=value.min(most)).filter(|&d| value.is_multiple_of(d)).map(|d| d.to_string()).collect();
    list.join(", ")
}
