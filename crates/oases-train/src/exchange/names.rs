//! Under which names, and in which form, the families' files hold our parameters. Data, not code: a family is a table.

use oases_schedule::Model;

/// A family of models that can be exchanged, by the `model_type` of its `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// GPT-2.
    Gpt2,
    /// LLaMA.
    Llama,
    /// Mistral.
    Mistral,
    /// Qwen2.
    Qwen2,
    /// Qwen3.
    Qwen3,
    /// BERT.
    Bert,
}

impl Family {
    /// All families.
    pub const ALL: [Family; 6] =
        [Family::Gpt2, Family::Llama, Family::Mistral, Family::Qwen2, Family::Qwen3, Family::Bert];

    /// The `model_type` of `config.json`.
    pub fn model_type(self) -> &'static str {
        match self {
            Family::Gpt2 => "gpt2",
            Family::Llama => "llama",
            Family::Mistral => "mistral",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Bert => "bert",
        }
    }

    /// The name of the family in a configuration of ours.
    pub fn name(self) -> &'static str {
        if self == Family::Gpt2 { "gpt" } else { self.model_type() }
    }

    /// The family of that name in a configuration of ours.
    pub fn find(name: &str) -> Option<Family> {
        Family::ALL.into_iter().find(|family| family.name() == name)
    }

    /// The class of transformers that a file of ours is for.
    pub(super) fn architecture(self) -> &'static str {
        match self {
            Family::Gpt2 => "GPT2LMHeadModel",
            Family::Llama => "LlamaForCausalLM",
            Family::Mistral => "MistralForCausalLM",
            Family::Qwen2 => "Qwen2ForCausalLM",
            Family::Qwen3 => "Qwen3ForCausalLM",
            Family::Bert => "BertForMaskedLM",
        }
    }

    /// What stands before the names of all tensors but the head's, in files of the whole model. Files of the base model lack it.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Family::Gpt2 => "transformer.",
            Family::Bert => "bert.",
            _ => "model.",
        }
    }

    fn rows(self) -> &'static [Row] {
        match self {
            Family::Gpt2 => GPT2,
            Family::Bert => BERT,
            _ => LLAMA,
        }
    }

    /// Second names of what has another one in the file: a tied head stored once more.
    fn aliases(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Family::Bert => &[
                ("embed.tokens", "/cls.predictions.decoder.weight"),
                ("head.bias", "/cls.predictions.decoder.bias"),
            ],
            _ => &[("embed.tokens", "/lm_head.weight")],
        }
    }

    /// Whether a tensor that is no parameter of ours may be in a file: a buffer, or a part that language modelling does not use. It is
    /// kept, and written back by an export.
    pub(super) fn may_keep(self, name: &str) -> bool {
        let ends: &[&str] = match self {
            Family::Gpt2 => &[".attn.bias", ".attn.masked_bias"],
            Family::Bert => &["embeddings.position_ids", "embeddings.token_type_ids"],
            _ => &[".rotary_emb.inv_freq"],
        };
        let parts: &[&str] = if self == Family::Bert { &["pooler.", "cls.seq_relationship."] } else { &[] };
        ends.iter().any(|end| name.ends_with(end)) || parts.iter().any(|part| name.contains(part))
    }
}

/// How a tensor of theirs holds a parameter of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As it is.
    Same,
    /// `[in, out]` instead of `[out, in]`.
    Transposed,
    /// One of three, by columns of what is transposed, or one behind the other in a vector.
    Third(usize),
}

/// A parameter of ours, and theirs. `{n}` is a layer, `{before}` the one before, `{last}` the last; a name of theirs that begins with a slash
/// has no prefix.
struct Row(&'static str, &'static str, Form);

use Form::{Same, Third, Transposed};

#[rustfmt::skip] // One row a line.
const GPT2: &[Row] = &[
    Row("embed.tokens", "wte.weight", Same),
    Row("embed.positions", "wpe.weight", Same),
    Row("layers.{n}.attn.norm.gain", "h.{n}.ln_1.weight", Same),
    Row("layers.{n}.attn.norm.shift", "h.{n}.ln_1.bias", Same),
    Row("layers.{n}.attn.query.weight", "h.{n}.attn.c_attn.weight", Third(0)),
    Row("layers.{n}.attn.key.weight", "h.{n}.attn.c_attn.weight", Third(1)),
    Row("layers.{n}.attn.value.weight", "h.{n}.attn.c_attn.weight", Third(2)),
    Row("layers.{n}.attn.query.bias", "h.{n}.attn.c_attn.bias", Third(0)),
    Row("layers.{n}.attn.key.bias", "h.{n}.attn.c_attn.bias", Third(1)),
    Row("layers.{n}.attn.value.bias", "h.{n}.attn.c_attn.bias", Third(2)),
    Row("layers.{n}.attn.out.weight", "h.{n}.attn.c_proj.weight", Transposed),
    Row("layers.{n}.attn.out.bias", "h.{n}.attn.c_proj.bias", Same),
    Row("layers.{n}.mlp.norm.gain", "h.{n}.ln_2.weight", Same),
    Row("layers.{n}.mlp.norm.shift", "h.{n}.ln_2.bias", Same),
    Row("layers.{n}.mlp.up.weight", "h.{n}.mlp.c_fc.weight", Transposed),
    Row("layers.{n}.mlp.up.bias", "h.{n}.mlp.c_fc.bias", Same),
    Row("layers.{n}.mlp.down.weight", "h.{n}.mlp.c_proj.weight", Transposed),
    Row("layers.{n}.mlp.down.bias", "h.{n}.mlp.c_proj.bias", Same),
    Row("head.norm.gain", "ln_f.weight", Same),
    Row("head.norm.shift", "ln_f.bias", Same),
    Row("head.weight", "/lm_head.weight", Same),
];

#[rustfmt::skip] // One row a line.
const LLAMA: &[Row] = &[
    Row("embed.tokens", "embed_tokens.weight", Same),
    Row("layers.{n}.attn.norm.gain", "layers.{n}.input_layernorm.weight", Same),
    Row("layers.{n}.attn.query.weight", "layers.{n}.self_attn.q_proj.weight", Same),
    Row("layers.{n}.attn.key.weight", "layers.{n}.self_attn.k_proj.weight", Same),
    Row("layers.{n}.attn.value.weight", "layers.{n}.self_attn.v_proj.weight", Same),
    Row("layers.{n}.attn.query.bias", "layers.{n}.self_attn.q_proj.bias", Same),
    Row("layers.{n}.attn.key.bias", "layers.{n}.self_attn.k_proj.bias", Same),
    Row("layers.{n}.attn.value.bias", "layers.{n}.self_attn.v_proj.bias", Same),
    Row("layers.{n}.attn.query.norm.gain", "layers.{n}.self_attn.q_norm.weight", Same),
    Row("layers.{n}.attn.key.norm.gain", "layers.{n}.self_attn.k_norm.weight", Same),
    Row("layers.{n}.attn.out.weight", "layers.{n}.self_attn.o_proj.weight", Same),
    Row("layers.{n}.mlp.norm.gain", "layers.{n}.post_attention_layernorm.weight", Same),
    Row("layers.{n}.mlp.gate.weight", "layers.{n}.mlp.gate_proj.weight", Same),
    Row("layers.{n}.mlp.up.weight", "layers.{n}.mlp.up_proj.weight", Same),
    Row("layers.{n}.mlp.down.weight", "layers.{n}.mlp.down_proj.weight", Same),
    Row("head.norm.gain", "norm.weight", Same),
    Row("head.weight", "/lm_head.weight", Same),
];

/// A block of ours opens with the normalisation that closes the block before in BERT.
#[rustfmt::skip] // One row a line.
const BERT: &[Row] = &[
    Row("embed.tokens", "embeddings.word_embeddings.weight", Same),
    Row("embed.positions", "embeddings.position_embeddings.weight", Same),
    Row("embed.types", "embeddings.token_type_embeddings.weight", Same),
    Row("layers.0.attn.norm.gain", "embeddings.LayerNorm.weight", Same),
    Row("layers.0.attn.norm.shift", "embeddings.LayerNorm.bias", Same),
    Row("layers.{n}.attn.norm.gain", "encoder.layer.{before}.output.LayerNorm.weight", Same),
    Row("layers.{n}.attn.norm.shift", "encoder.layer.{before}.output.LayerNorm.bias", Same),
    Row("layers.{n}.attn.query.weight", "encoder.layer.{n}.attention.self.query.weight", Same),
    Row("layers.{n}.attn.key.weight", "encoder.layer.{n}.attention.self.key.weight", Same),
    Row("layers.{n}.attn.value.weight", "encoder.layer.{n}.attention.self.value.weight", Same),
    Row("layers.{n}.attn.query.bias", "encoder.layer.{n}.attention.self.query.bias", Same),
    Row("layers.{n}.attn.key.bias", "encoder.layer.{n}.attention.self.key.bias", Same),
    Row("layers.{n}.attn.value.bias", "encoder.layer.{n}.attention.self.value.bias", Same),
    Row("layers.{n}.attn.out.weight", "encoder.layer.{n}.attention.output.dense.weight", Same),
    Row("layers.{n}.attn.out.bias", "encoder.layer.{n}.attention.output.dense.bias", Same),
    Row("layers.{n}.mlp.norm.gain", "encoder.layer.{n}.attention.output.LayerNorm.weight", Same),
    Row("layers.{n}.mlp.norm.shift", "encoder.layer.{n}.attention.output.LayerNorm.bias", Same),
    Row("layers.{n}.mlp.up.weight", "encoder.layer.{n}.intermediate.dense.weight", Same),
    Row("layers.{n}.mlp.up.bias", "encoder.layer.{n}.intermediate.dense.bias", Same),
    Row("layers.{n}.mlp.down.weight", "encoder.layer.{n}.output.dense.weight", Same),
    Row("layers.{n}.mlp.down.bias", "encoder.layer.{n}.output.dense.bias", Same),
    Row("head.norm.gain", "encoder.layer.{last}.output.LayerNorm.weight", Same),
    Row("head.norm.shift", "encoder.layer.{last}.output.LayerNorm.bias", Same),
    Row("head.transform.weight", "/cls.predictions.transform.dense.weight", Same),
    Row("head.transform.bias", "/cls.predictions.transform.dense.bias", Same),
    Row("head.transform.norm.gain", "/cls.predictions.transform.LayerNorm.weight", Same),
    Row("head.transform.norm.shift", "/cls.predictions.transform.LayerNorm.bias", Same),
    Row("head.bias", "/cls.predictions.bias", Same),
    Row("head.weight", "/cls.predictions.decoder.weight", Same),
];

/// Where a parameter of ours is in their files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The tensor.
    pub tensor: String,
    /// How it holds the parameter.
    pub form: Form,
}

/// Their names for the parameters of a model.
pub(super) struct Names<'a> {
    pub family: Family,
    pub model: &'a Model,
    /// What stands before the names of all tensors but the head's.
    pub prefix: &'a str,
}

impl Names<'_> {
    /// Where a parameter of ours is, or `None` where the family has no such parameter.
    pub(super) fn place(&self, ours: &str) -> Option<Place> {
        let layer = ours.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
        let layer: Option<usize> = layer.and_then(|(layer, _)| layer.parse().ok());
        let general = layer.map(|layer| ours.replacen(&layer.to_string(), "{n}", 1));
        let row = self.family.rows().iter().find(|row| row.0 == ours || Some(row.0) == general.as_deref())?;
        let mut tensor = self.full(row.1).replace("{last}", &(self.model.layers.max(1) - 1).to_string());
        if let Some(layer) = layer {
            tensor = tensor.replace("{n}", &layer.to_string());
            tensor = tensor.replace("{before}", &layer.saturating_sub(1).to_string());
        }
        Some(Place { tensor, form: row.2 })
    }

    /// The second names of a tied head, each with the parameter of ours that it names.
    pub(super) fn aliases(&self) -> impl Iterator<Item = (&'static str, String)> {
        let tied = self.model.tied;
        let aliases = self.family.aliases().iter().filter(move |(ours, _)| tied || *ours != "embed.tokens");
        aliases.map(|(ours, theirs)| (*ours, self.full(theirs)))
    }

    fn full(&self, theirs: &str) -> String {
        match theirs.strip_prefix('/') {
            Some(bare) => bare.to_owned(),
            None => format!("{}{theirs}", self.prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use oases_schedule::Biases;

    use super::*;

    fn models() -> [(Family, Model); 4] {
        let qwen2 = Model { biases: Biases::Qkv, ..Model::llama(3, 16, 4, 8, 30) };
        let qwen3 = Model { head_norm: true, ..Model::llama(12, 16, 4, 8, 30) };
        [
            (Family::Gpt2, Model::gpt(11, 16, 4, 8, 30)),
            (Family::Qwen2, qwen2),
            (Family::Qwen3, qwen3),
            (Family::Bert, Model::bert(3, 16, 4, 8, 30)),
        ]
    }

    #[test]
    fn every_parameter_has_a_place_of_its_own() {
        for (family, model) in models() {
            let names = Names { family, model: &model, prefix: family.prefix() };
            let mut seen = BTreeMap::new();
            for parameter in model.parameters() {
                let place = names.place(&parameter.name);
                let place = place.unwrap_or_else(|| panic!("{family:?} has no {}", parameter.name));
                assert!(!place.tensor.contains('{'), "{place:?}");
                let third = if let Form::Third(third) = place.form { third } else { 0 };
                let other = seen.insert((place.tensor.clone(), third), parameter.name.clone());
                assert_eq!(other, None, "{place:?}");
            }
        }
    }

    #[test]
    fn bert_normalises_at_the_end_of_a_block_and_we_at_the_beginning() {
        let model = Model::bert(12, 16, 4, 8, 30);
        let names = Names { family: Family::Bert, model: &model, prefix: "" };
        let tensor = |ours: &str| names.place(ours).unwrap().tensor;
        assert_eq!(tensor("layers.0.attn.norm.gain"), "embeddings.LayerNorm.weight");
        assert_eq!(tensor("layers.0.mlp.norm.shift"), "encoder.layer.0.attention.output.LayerNorm.bias");
        assert_eq!(tensor("layers.10.attn.norm.gain"), "encoder.layer.9.output.LayerNorm.weight");
        assert_eq!(tensor("head.norm.gain"), "encoder.layer.11.output.LayerNorm.weight");
        assert_eq!(tensor("head.bias"), "cls.predictions.bias");
    }
}
