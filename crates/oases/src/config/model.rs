//! The section `[model]`.

use oases_schedule::{
    Activation, Biases, HeadKind, Mask, Model, NormKind, NormPlacement, Positions, Rotary, RotaryScaling,
};

use super::reader::Reader;
use super::resolved::{Writer, integer};

/// The model. Words are those of [`super::keys`].
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The kind of transformer.
    pub family: String,
    /// Layers, each an attention and an MLP block.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width inside an MLP block.
    pub ffn: usize,
    /// Tokens in a sequence.
    pub sequence: usize,
    /// Tokens that exist.
    pub vocabulary: usize,
    /// Share of activations dropped in training, from 0 to below 1, in 32 bits too.
    pub dropout: f64,
    /// Whether the head uses the embedding's weights.
    pub tied: bool,
    /// Kind of normalisation.
    pub norm: String,
    /// Where it stands.
    pub placement: String,
    /// Added to the variance in a normalisation.
    pub norm_epsilon: f64,
    /// How positions enter.
    pub positions: String,
    /// Rows of a table of positions.
    pub max_positions: usize,
    /// Base of rotary frequencies.
    pub rope_theta: f64,
    /// How they are stretched, as [`RotaryScaling`] reads it.
    pub rope_scaling: String,
    /// Non-linearity.
    pub activation: String,
    /// Which projections have biases.
    pub biases: String,
    /// Whether queries and keys are normalised head by head.
    pub head_norm: bool,
    /// Which keys a query sees.
    pub attention: String,
    /// How many of them; 0 for all.
    pub window: usize,
    /// Token types; 0 for none.
    pub token_types: usize,
    /// What stands before the logits.
    pub head: String,
}

impl ModelConfig {
    pub(super) fn read(reader: &mut Reader<'_>) -> ModelConfig {
        let (family, layers) = (reader.word("model.family"), reader.size("model.layers"));
        let hidden = reader.size("model.hidden");
        let heads = reader.size("model.heads");
        let sequence = reader.size("model.sequence");
        let activation = reader.word("model.activation");
        let ffn = match Activation::parse(&activation) {
            Some(Activation::SwiGlu) => (8 * hidden / 3).next_multiple_of(64),
            _ => 4 * hidden,
        };
        let mut derived = |path: &'static str, value: usize, source: &'static str| {
            reader.integer_or(path, value as u64, source) as usize
        };
        let kv_heads = derived("model.kv_heads", heads, "model.heads");
        let head_dim = derived("model.head_dim", hidden / heads.max(1), "model.hidden");
        let ffn = derived("model.ffn", ffn, "model.hidden");
        let max_positions = derived("model.max_positions", sequence, "model.sequence");
        ModelConfig {
            family,
            layers,
            hidden,
            heads,
            kv_heads,
            head_dim,
            ffn,
            sequence,
            vocabulary: reader.size("model.vocabulary"),
            dropout: reader.number("model.dropout"),
            tied: reader.flag("model.tied"),
            norm: reader.word("model.norm"),
            placement: reader.word("model.placement"),
            norm_epsilon: reader.number("model.norm_epsilon"),
            positions: reader.word("model.positions"),
            max_positions,
            rope_theta: reader.number("model.rope_theta"),
            rope_scaling: reader.text("model.rope_scaling"),
            activation,
            biases: reader.word("model.biases"),
            head_norm: reader.flag("model.head_norm"),
            attention: reader.word("model.attention"),
            window: reader.size("model.window"),
            token_types: reader.size("model.token_types"),
            head: reader.word("model.head"),
        }
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.section("model");
        out.put("family", self.family.as_str());
        out.put("layers", integer(self.layers));
        out.put("hidden", integer(self.hidden));
        out.put("heads", integer(self.heads));
        out.put("kv_heads", integer(self.kv_heads));
        out.put("head_dim", integer(self.head_dim));
        out.put("ffn", integer(self.ffn));
        out.put("sequence", integer(self.sequence));
        out.put("vocabulary", integer(self.vocabulary));
        out.put("dropout", self.dropout);
        out.put("tied", self.tied);
        out.put("norm", self.norm.as_str());
        out.put("placement", self.placement.as_str());
        out.put("norm_epsilon", self.norm_epsilon);
        out.put("positions", self.positions.as_str());
        out.put("max_positions", integer(self.max_positions));
        out.put("rope_theta", self.rope_theta);
        out.put("rope_scaling", self.rope_scaling.as_str());
        out.put("activation", self.activation.as_str());
        out.put("biases", self.biases.as_str());
        out.put("head_norm", self.head_norm);
        out.put("attention", self.attention.as_str());
        out.put("window", integer(self.window));
        out.put("token_types", integer(self.token_types));
        out.put("head", self.head.as_str());
    }

    /// What `rope_scaling` says, or why it says nothing.
    pub(super) fn scaling(&self) -> Result<RotaryScaling, String> {
        self.rope_scaling.parse()
    }

    /// The model. Words that the reader has refused stand for those of a GPT.
    pub fn model(&self) -> Model {
        let gpt = Model::gpt(self.layers as u32, self.hidden, self.heads, self.sequence, self.vocabulary);
        let scaling = self.scaling().unwrap_or(RotaryScaling::None);
        Model {
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            ffn: self.ffn,
            dropout: self.dropout as f32,
            tied: self.tied,
            biases: Biases::parse(&self.biases).unwrap_or(gpt.biases),
            head_norm: self.head_norm,
            norm: NormKind::parse(&self.norm).unwrap_or(gpt.norm),
            placement: NormPlacement::parse(&self.placement).unwrap_or(gpt.placement),
            norm_epsilon: self.norm_epsilon as f32,
            positions: match self.positions.as_str() {
                "rotary" => Positions::Rotary(Rotary { base: self.rope_theta, scaling }),
                _ => Positions::Learned(self.max_positions),
            },
            activation: Activation::parse(&self.activation).unwrap_or(gpt.activation),
            mask: match (self.attention.as_str(), self.window) {
                ("bidirectional", _) => Mask::Bidirectional,
                (_, 0) => Mask::Causal,
                (_, window) => Mask::Sliding(window),
            },
            token_types: self.token_types,
            head: HeadKind::parse(&self.head).unwrap_or(gpt.head),
            ..gpt
        }
    }

    /// The section for a model of a family, as an import writes it.
    pub fn describing(family: &str, model: &Model) -> ModelConfig {
        let (positions, max_positions, rotary) = match model.positions {
            Positions::Learned(rows) => ("learned", rows, Rotary::new(10_000.0)),
            Positions::Rotary(rotary) => ("rotary", model.sequence, rotary),
        };
        let (attention, window) = match model.mask {
            Mask::Causal => ("causal", 0),
            Mask::Sliding(window) => ("causal", window),
            Mask::Bidirectional => ("bidirectional", 0),
        };
        ModelConfig {
            family: family.to_owned(),
            layers: model.layers as usize,
            hidden: model.hidden,
            heads: model.heads,
            kv_heads: model.kv_heads,
            head_dim: model.head_dim,
            ffn: model.ffn,
            sequence: model.sequence,
            vocabulary: model.vocabulary,
            dropout: shortest(model.dropout),
            tied: model.tied,
            norm: model.norm.to_string(),
            placement: model.placement.to_string(),
            norm_epsilon: shortest(model.norm_epsilon),
            positions: positions.to_owned(),
            max_positions,
            rope_theta: rotary.base,
            rope_scaling: rotary.scaling.to_string(),
            activation: model.activation.to_string(),
            biases: model.biases.to_string(),
            head_norm: model.head_norm,
            attention: attention.to_owned(),
            window,
            token_types: model.token_types,
            head: model.head.to_string(),
        }
    }

    /// The same as the text of a configuration.
    pub fn to_toml(&self) -> String {
        let mut out = Writer::default();
        self.write(&mut out);
        out.text
    }
}

/// The number in 64 bits that looks as it does in 32.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().expect("a number is a number")
}
