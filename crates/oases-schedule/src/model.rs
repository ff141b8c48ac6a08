//! The description of a model: data from which every block derives its shapes, parameters, activations and costs.
//!
//! A family is a value of this type. GPT, LLaMA and BERT differ in fields, not in code paths; what a backend cannot
//! execute yet is refused by [`Model::check`], with the field that it would need.

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// A learned table, added to the embedding.
    Learned,
    /// Rotation of queries and keys.
    Rotary,
}

/// The non-linearity of the multi-layer perceptron.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `down(gelu(up(x)))`, GELU in its tanh form.
    Gelu,
    /// `down(silu(gate(x)) · up(x))`.
    SwiGlu,
}

/// Which keys a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// Those at its own position and before.
    Causal,
    /// All.
    Bidirectional,
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
    /// Whether projections have biases.
    pub bias: bool,
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
            ffn: 4 * hidden,
            sequence,
            vocabulary,
            dropout: 0.0,
            tied: true,
            bias: true,
            norm: NormKind::LayerNorm,
            placement: NormPlacement::Pre,
            norm_epsilon: 1e-5,
            positions: Positions::Learned,
            activation: Activation::Gelu,
            mask: Mask::Causal,
        }
    }

    /// Width of one attention head.
    pub fn head_dim(&self) -> usize {
        self.hidden / self.heads
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
        if !self.hidden.is_multiple_of(self.heads) {
            let fits = divisors(self.hidden, 64);
            return refuse(
                format!("hidden {} is not divisible by {} heads", self.hidden, self.heads),
                format!("numbers of heads that divide it: {fits}"),
            );
        }
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return refuse(
                format!("{} heads cannot share {} key/value heads", self.heads, self.kv_heads),
                format!("numbers of key/value heads that divide it: {}", divisors(self.heads, 64)),
            );
        }
        for (name, value) in [("heads", self.heads), ("kv_heads", self.kv_heads), ("ffn", self.ffn)] {
            if !value.is_multiple_of(tensor as usize) {
                return refuse(
                    format!("{name} {value} is not divisible by TMP degree {tensor}"),
                    format!("degrees that fit {name}: {}", divisors(value, 64)),
                );
            }
        }
        self.check_executable()
    }

    /// Fields that are described but that no backend executes yet.
    fn check_executable(&self) -> Result<(), ModelError> {
        let missing = [
            ("norm = \"rms_norm\"", self.norm == NormKind::RmsNorm),
            ("placement = \"post\"", self.placement == NormPlacement::Post),
            ("positions = \"rotary\"", self.positions == Positions::Rotary),
            ("activation = \"swiglu\"", self.activation == Activation::SwiGlu),
        ];
        match missing.iter().find(|(_, needed)| *needed) {
            Some((field, _)) => Err(ModelError {
                message: format!("no backend executes {field} yet"),
                hint: "the family \"gpt\" can be trained".into(),
            }),
            None => Ok(()),
        }
    }
}

/// The divisors of `value` up to `most`, as a list to show.
pub fn divisors(value: usize, most: usize) -> String {
    let list: Vec<String> =
        (1..=value.min(most)).filter(|&d| value.is_multiple_of(d)).map(|d| d.to_string()).collect();
    list.join(", ")
}
