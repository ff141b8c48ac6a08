//! `config.json`: the description of a model in their words, in and out.

use std::path::Path;

use oases_schedule::{Activation, Biases, Mask, Model, Positions, Rotary, RotaryScaling};
use serde_json::{Map, Value, json};

use super::names::Family;
use crate::error::{Error, Result};

/// Tokens of a sequence that an imported model is set up for, where it could take more: a run can ask for others.
const SEQUENCE: usize = 1024;

/// Reads the family and the model that a `config.json` describes.
pub(super) fn read(path: &Path, text: &str) -> Result<(Family, Model)> {
    let json: Value = serde_json::from_str(text).map_err(|error| {
        Error::configuration(format!("{}: not a JSON object: {error}", path.display()))
            .with_hint("config.json is what `save_pretrained` of transformers writes")
    })?;
    let families = || {
        let names: Vec<&str> = Family::ALL.iter().map(|family| family.model_type()).collect();
        names.join(", ")
    };
    let named = json.get("model_type").and_then(Value::as_str).ok_or_else(|| {
        Error::configuration(format!("{}: there is no `model_type`", path.display()))
            .with_hint(format!("the families that can be imported: {}", families()))
    })?;
    let family = Family::ALL.into_iter().find(|family| family.model_type() == named).ok_or_else(|| {
        Error::configuration(format!("{}: the family \"{named}\" is unknown", path.display()))
            .with_hint(format!("the families that can be imported: {}", families()))
    })?;
    let fields = Fields { path, json: &json };
    let model = match family {
        Family::Gpt2 => fields.gpt2()?,
        Family::Bert => fields.bert()?,
        _ => fields.llama(family)?,
    };
    model.check(1).map_err(|error| {
        Error::configuration(format!("{}: {}", path.display(), error.message)).with_hint(error.hint)
    })?;
    Ok((family, model))
}

/// The fields of one file.
struct Fields<'a> {
    path: &'a Path,
    json: &'a Value,
}

impl Fields<'_> {
    fn refuse<T>(&self, what: String) -> Result<T> {
        Err(Error::configuration(format!("{}: {what}", self.path.display()))
            .with_hint("the model computes something that is not implemented here, or the file is damaged"))
    }

    /// A value that is there and not null.
    fn given(&self, name: &str) -> Option<&Value> {
        self.json.get(name).filter(|value| !value.is_null())
    }

    fn size(&self, name: &str) -> Result<usize> {
        match self.size_or(name, 0)? {
            0 => self.refuse(format!("`{name}` is missing, or 0")),
            size => Ok(size),
        }
    }

    fn size_or(&self, name: &str, default: usize) -> Result<usize> {
        let Some(value) = self.given(name) else { return Ok(default) };
        match value.as_u64().filter(|&size| size <= 1 << 30) {
            Some(size) => Ok(size as usize),
            None => self.refuse(format!("`{name}` is {value}, no whole number up to 2^30")),
        }
    }

    fn number_or(&self, name: &str, default: f64) -> Result<f64> {
        let Some(value) = self.given(name) else { return Ok(default) };
        match value.as_f64().filter(|number| number.is_finite() && *number >= 0.0) {
            Some(number) => Ok(number),
            None => self.refuse(format!("`{name}` is {value}, no number of at least 0")),
        }
    }

    fn flag_or(&self, name: &str, default: bool) -> Result<bool> {
        let Some(value) = self.given(name) else { return Ok(default) };
        value.as_bool().map_or_else(|| self.refuse(format!("`{name}` is {value}, not true or false")), Ok)
    }

    /// Refuses what would change the model and is not implemented.
    fn expect(&self, name: &str, usual: &[Value]) -> Result<()> {
        match self.given(name).filter(|value| !usual.contains(value)) {
            None => Ok(()),
            Some(value) => {
                let usual: Vec<String> = usual.iter().map(Value::to_string).collect();
                self.refuse(format!("`{name}` is {value}; only {} can be imported", usual.join(" or ")))
            }
        }
    }

    fn gelu(&self, name: &str, default: &str) -> Result<Activation> {
        match self.given(name).and_then(Value::as_str).unwrap_or(default) {
            "gelu_new" | "gelu_pytorch_tanh" => Ok(Activation::Gelu),
            "gelu" => Ok(Activation::GeluErf),
            other => self.refuse(format!("`{name}` is \"{other}\"; gelu_new and gelu can be imported")),
        }
    }

    fn dropout(&self, name: &str, default: f64) -> Result<f32> {
        let rate = self.number_or(name, default)?;
        if rate < 1.0 { Ok(rate as f32) } else { self.refuse(format!("`{name}` is {rate}, not below 1")) }
    }

    fn gpt2(&self) -> Result<Model> {
        self.expect("scale_attn_by_inverse_layer_idx", &[json!(false)])?;
        self.expect("scale_attn_weights", &[json!(true)])?;
        self.expect("add_cross_attention", &[json!(false)])?;
        let (hidden, positions) = (self.size("n_embd")?, self.size("n_positions")?);
        let sequence = positions.min(SEQUENCE);
        let gpt = Model::gpt(
            self.size("n_layer")? as u32,
            hidden,
            self.size("n_head")?,
            sequence,
            self.size("vocab_size")?,
        );
        Ok(Model {
            ffn: self.size_or("n_inner", 4 * hidden)?,
            dropout: self.dropout("resid_pdrop", 0.1)?,
            tied: self.flag_or("tie_word_embeddings", true)?,
            norm_epsilon: self.number_or("layer_norm_epsilon", 1e-5)? as f32,
            positions: Positions::Learned(positions),
            activation: self.gelu("activation_function", "gelu_new")?,
            ..gpt
        })
    }

    fn bert(&self) -> Result<Model> {
        self.expect("is_decoder", &[json!(false)])?;
        self.expect("position_embedding_type", &[json!("absolute")])?;
        let positions = self.size("max_position_embeddings")?;
        let bert = Model::bert(
            self.size("num_hidden_layers")? as u32,
            self.size("hidden_size")?,
            self.size("num_attention_heads")?,
            positions.min(SEQUENCE),
            self.size("vocab_size")?,
        );
        Ok(Model {
            ffn: self.size("intermediate_size")?,
            dropout: self.dropout("hidden_dropout_prob", 0.1)?,
            tied: self.flag_or("tie_word_embeddings", true)?,
            norm_epsilon: self.number_or("layer_norm_eps", 1e-12)? as f32,
            positions: Positions::Learned(positions),
            activation: self.gelu("hidden_act", "gelu")?,
            token_types: self.size_or("type_vocab_size", 2)?,
            ..bert
        })
    }

    fn llama(&self, family: Family) -> Result<Model> {
        self.expect("hidden_act", &[json!("silu")])?;
        self.expect("mlp_bias", &[json!(false)])?;
        self.expect("attention_bias", &[json!(false)])?;
        self.expect("partial_rotary_factor", &[json!(1), json!(1.0)])?;
        let (hidden, heads) = (self.size("hidden_size")?, self.size("num_attention_heads")?);
        let longest = match self.size_or("max_position_embeddings", 2048)? {
            0 => return self.refuse("`max_position_embeddings` is 0".into()),
            longest => longest,
        };
        let window = self.size_or("sliding_window", 0)?;
        let mask = match family {
            Family::Mistral if window > 0 => Mask::Sliding(window),
            _ if self.flag_or("use_sliding_window", false)? => {
                return self
                    .refuse("`use_sliding_window` is true: layers of two kinds cannot be imported".into());
            }
            _ => Mask::Causal,
        };
        let llama = Model::llama(
            self.size("num_hidden_layers")? as u32,
            hidden,
            heads,
            longest.min(SEQUENCE),
            self.size("vocab_size")?,
        );
        Ok(Model {
            kv_heads: self.size_or("num_key_value_heads", heads)?,
            head_dim: self.size_or("head_dim", hidden / heads)?,
            ffn: self.size("intermediate_size")?,
            tied: self.flag_or("tie_word_embeddings", false)?,
            biases: if family == Family::Qwen2 { Biases::Qkv } else { Biases::None },
            head_norm: family == Family::Qwen3,
            norm_epsilon: self.number_or("rms_norm_eps", 1e-6)? as f32,
            positions: Positions::Rotary(self.rotary(longest)?),
            mask,
            ..llama
        })
    }

    /// transformers 5 has one object, `rope_parameters`; before, there were `rope_theta` and `rope_scaling`.
    fn rotary(&self, longest: usize) -> Result<Rotary> {
        let nested = self.given("rope_parameters");
        let theta = match nested.and_then(|nested| nested.get("rope_theta")) {
            Some(_) => Fields { path: self.path, json: nested.unwrap_or(&Value::Null) }
                .number_or("rope_theta", 0.0)?,
            None => self.number_or("rope_theta", 10_000.0)?,
        };
        if theta <= 0.0 {
            return self.refuse(format!("`rope_theta` is {theta}"));
        }
        let Some(scaling) = nested.or(self.given("rope_scaling")) else { return Ok(Rotary::new(theta)) };
        let fields = Fields { path: self.path, json: scaling };
        let kind =
            fields.given("rope_type").or(fields.given("type")).and_then(Value::as_str).unwrap_or("default");
        let original = || fields.size_or("original_max_position_embeddings", longest);
        let number = |name: &str| match fields.number_or(name, 0.0)? {
            number if number > 0.0 => Ok(number),
            _ => self.refuse(format!("the scaling \"{kind}\" of rotary positions has no `{name}`")),
        };
        let scaling = match kind {
            "default" => RotaryScaling::None,
            "linear" => RotaryScaling::Linear { factor: number("factor")? },
            "dynamic" => RotaryScaling::Dynamic { factor: number("factor")?, original: original()? },
            "llama3" => RotaryScaling::Llama3 {
                factor: number("factor")?,
                low: number("low_freq_factor")?,
                high: number("high_freq_factor")?,
                original: original()?,
            },
            "yarn" => {
                fields.expect("mscale", &[])?;
                fields.expect("mscale_all_dim", &[])?;
                RotaryScaling::Yarn {
                    factor: number("factor")?,
                    original: original()?,
                    fast: fields.number_or("beta_fast", 32.0)?,
                    slow: fields.number_or("beta_slow", 1.0)?,
                    attention: match fields.number_or("attention_factor", 0.0)? {
                        0.0 => None,
                        factor => Some(factor),
                    },
                    truncate: fields.flag_or("truncate", true)?,
                }
            }
            other => {
                return self.refuse(format!(
                    "rotary positions are scaled by \"{other}\"; default, linear, dynamic, llama3 and yarn can be imported"
                ));
            }
        };
        // The same rules as for a configuration of ours.
        let checked: std::result::Result<RotaryScaling, String> = scaling.to_string().parse();
        let scaling = checked.or_else(|problem| self.refuse(problem))?;
        Ok(Rotary { base: theta, scaling })
    }
}

/// The `config.json` of a model that was not imported.
pub(super) fn write(family: Family, model: &Model) -> Result<String> {
    let mut json = Map::new();
    let mut put = |name: &str, value: Value| {
        json.insert(name.to_owned(), value);
    };
    put("architectures", json!([family.architecture()]));
    put("model_type", json!(family.model_type()));
    put("vocab_size", json!(model.vocabulary));
    put("tie_word_embeddings", json!(model.tied));
    put("torch_dtype", json!("float32"));
    let epsilon: f64 = model.norm_epsilon.to_string().parse().unwrap_or(1e-5);
    let dropout: f64 = model.dropout.to_string().parse().unwrap_or(0.0);
    let rows = if let Positions::Learned(rows) = model.positions { rows } else { model.sequence };
    let gelu = if model.activation == Activation::Gelu { "gelu_new" } else { "gelu" };
    match family {
        Family::Gpt2 => {
            put("n_embd", json!(model.hidden));
            put("n_head", json!(model.heads));
            put("n_layer", json!(model.layers));
            put("n_positions", json!(rows));
            put("n_inner", json!(model.ffn));
            put("activation_function", json!(gelu));
            put("layer_norm_epsilon", json!(epsilon));
            put("resid_pdrop", json!(dropout));
            put("embd_pdrop", json!(dropout));
            put("attn_pdrop", json!(0.0));
        }
        _ => {
            put("hidden_size", json!(model.hidden));
            put("num_attention_heads", json!(model.heads));
            put("num_hidden_layers", json!(model.layers));
            put("intermediate_size", json!(model.ffn));
            put("max_position_embeddings", json!(rows));
        }
    }
    match family {
        Family::Gpt2 => {}
        Family::Bert => {
            put("hidden_act", json!(gelu));
            put("layer_norm_eps", json!(epsilon));
            put("type_vocab_size", json!(model.token_types));
            put("hidden_dropout_prob", json!(dropout));
            put("attention_probs_dropout_prob", json!(0.0));
        }
        _ => {
            put("hidden_act", json!("silu"));
            put("rms_norm_eps", json!(epsilon));
            put("num_key_value_heads", json!(model.kv_heads));
            put("head_dim", json!(model.head_dim));
            put("attention_bias", json!(false));
            if let Mask::Sliding(window) = model.mask {
                put("sliding_window", json!(window));
            } else if family == Family::Mistral {
                put("sliding_window", Value::Null);
            }
            if let Positions::Rotary(rotary) = model.positions {
                put("rope_theta", json!(rotary.base));
                put("rope_scaling", scaling(rotary.scaling));
            }
        }
    }
    let text = serde_json::to_string_pretty(&json)
        .map_err(|error| Error::internal(format!("config.json: {error}")))?;
    // What cannot be said in the family's words reads back as another model.
    let own = Model { sequence: rows.min(SEQUENCE), ..model.clone() };
    match read(Path::new("config.json"), &text) {
        Ok((_, again)) if again == own => Ok(text + "\n"),
        _ => Err(Error::configuration(format!(
            "this model is none of the family {}: its files could not describe it",
            family.model_type()
        ))
        .with_hint("a model that only differs from its family in sizes can be exported")),
    }
}

fn scaling(scaling: RotaryScaling) -> Value {
    match scaling {
        RotaryScaling::None => Value::Null,
        RotaryScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RotaryScaling::Dynamic { factor, original } => {
            json!({"rope_type": "dynamic", "factor": factor, "original_max_position_embeddings": original})
        }
        RotaryScaling::Llama3 { factor, low, high, original } => json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": original,
        }),
        RotaryScaling::Yarn { factor, original, fast, slow, attention, truncate } => json!({
            "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original,
            "beta_fast": fast, "beta_slow": slow, "attention_factor": attention, "truncate": truncate,
        }),
    }
}
