//! Small models of each family, made by `transformers` (`benches/reference/exported.py`): loss and every parameter's gradient against
//! its float64, over all schedules and TMP degrees.

use std::collections::BTreeMap;
use std::path::Path;

use oases_exec::operators::IGNORE;
use oases_schedule::passes::VARIANTS;
use oases_schedule::{Biases, Mask, Model, NormPlacement, Positions, Rotary, RotaryScaling, Variant};
use safetensors::{Dtype, SafeTensors};

use crate::harness::{Extras, HYPER, Outcome, Run, Tensors, request};

/// What a folder says, written once more by hand: `config.json` is read elsewhere.
fn model(name: &str) -> Model {
    let scaled = |scaling| Positions::Rotary(Rotary { base: 100.0, scaling });
    let llama = |vocabulary| Model {
        kv_heads: 2,
        ffn: 40,
        norm_epsilon: 3e-3,
        positions: Positions::Rotary(Rotary::new(100.0)),
        ..Model::llama(2, 24, 4, 12, vocabulary)
    };
    match name {
        "gpt2" => {
            Model { norm_epsilon: 2e-3, positions: Positions::Learned(16), ..Model::gpt(2, 16, 4, 10, 43) }
        }
        "llama" => llama(45),
        "llama-linear" => {
            Model { tied: true, positions: scaled(RotaryScaling::Linear { factor: 3.0 }), ..llama(45) }
        }
        "llama-scaled" => Model {
            tied: true,
            positions: scaled(RotaryScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 64 }),
            ..llama(46)
        },
        "llama-yarn" => Model {
            positions: scaled(RotaryScaling::Yarn {
                factor: 4.0,
                original: 16,
                fast: 2.0,
                slow: 0.25,
                attention: None,
                truncate: true,
            }),
            ..llama(46)
        },
        "mistral" => Model { mask: Mask::Sliding(5), ..llama(42) },
        "qwen2" => Model { tied: true, biases: Biases::Qkv, ..llama(49) },
        "qwen3" => Model { tied: true, head_dim: 8, head_norm: true, ..llama(45) },
        "bert" => Model {
            ffn: 40,
            norm_epsilon: 2e-3,
            positions: Positions::Learned(16),
            ..Model::bert(2, 16, 4, 12, 47)
        },
        _ => unreachable!("{name} is no folder"),
    }
}

/// A tensor of their file, whether it is stored transposed, and which third of it.
type Place = (String, bool, Option<usize>);

/// Where a parameter of ours is in their file.
fn theirs(model: &Model, name: &str) -> Place {
    let whole = |name: String| (name, false, None);
    let gpt2 = matches!(model.positions, Positions::Learned(_)) && model.placement == NormPlacement::Pre;
    let bert = model.placement == NormPlacement::Post;
    let (layer, rest) = match name.strip_prefix("layers.") {
        Some(rest) => {
            let (layer, rest) = rest.split_once('.').unwrap();
            (layer.parse::<usize>().unwrap(), rest)
        }
        None => (0, name),
    };
    let kind = if rest.ends_with("bias") || rest.ends_with("shift") { "bias" } else { "weight" };
    if gpt2 {
        let of = |what: &str| format!("transformer.h.{layer}.{what}.{kind}");
        let thirds = ["attn.query", "attn.key", "attn.value"];
        if let Some(third) = thirds.iter().position(|third| rest.starts_with(third)) {
            return (of("attn.c_attn"), kind == "weight", Some(third));
        }
        let transposed = kind == "weight";
        return match rest.rsplit_once('.').unwrap().0 {
            "embed" if rest == "embed.tokens" => whole("transformer.wte.weight".into()),
            "embed" => whole("transformer.wpe.weight".into()),
            "attn.norm" => whole(of("ln_1")),
            "mlp.norm" => whole(of("ln_2")),
            "attn.out" => (of("attn.c_proj"), transposed, None),
            "mlp.up" => (of("mlp.c_fc"), transposed, None),
            "mlp.down" => (of("mlp.c_proj"), transposed, None),
            "head.norm" => whole(format!("transformer.ln_f.{kind}")),
            other => unreachable!("{other}"),
        };
    }
    let table: BTreeMap<&str, String> = if bert {
        let layers = model.layers as usize;
        let at = |layer: usize, what: &str| format!("bert.encoder.layer.{layer}.{what}.{kind}");
        let opens = match layer {
            0 => format!("bert.embeddings.LayerNorm.{kind}"),
            layer => at(layer - 1, "output.LayerNorm"),
        };
        BTreeMap::from([
            ("embed.tokens", "bert.embeddings.word_embeddings.weight".into()),
            ("embed.positions", "bert.embeddings.position_embeddings.weight".into()),
            ("embed.types", "bert.embeddings.token_type_embeddings.weight".into()),
            ("attn.norm", opens),
            ("attn.query", at(layer, "attention.self.query")),
            ("attn.key", at(layer, "attention.self.key")),
            ("attn.value", at(layer, "attention.self.value")),
            ("attn.out", at(layer, "attention.output.dense")),
            ("mlp.norm", at(layer, "attention.output.LayerNorm")),
            ("mlp.up", at(layer, "intermediate.dense")),
            ("mlp.down", at(layer, "output.dense")),
            ("head.norm", at(layers - 1, "output.LayerNorm")),
            ("head.transform", format!("cls.predictions.transform.dense.{kind}")),
            ("head.transform.norm", format!("cls.predictions.transform.LayerNorm.{kind}")),
            ("head", "cls.predictions.bias".into()),
        ])
    } else {
        let at = |what: &str| format!("model.layers.{layer}.{what}.{kind}");
        BTreeMap::from([
            ("embed.tokens", "model.embed_tokens.weight".into()),
            ("attn.norm", at("input_layernorm")),
            ("attn.query", at("self_attn.q_proj")),
            ("attn.key", at("self_attn.k_proj")),
            ("attn.value", at("self_attn.v_proj")),
            ("attn.query.norm", at("self_attn.q_norm")),
            ("attn.key.norm", at("self_attn.k_norm")),
            ("attn.out", at("self_attn.o_proj")),
            ("mlp.norm", at("post_attention_layernorm")),
            ("mlp.gate", at("mlp.gate_proj")),
            ("mlp.up", at("mlp.up_proj")),
            ("mlp.down", at("mlp.down_proj")),
            ("head.norm", "model.norm.weight".into()),
            ("head", "lm_head.weight".into()),
        ])
    };
    let key = if rest.starts_with("embed") { rest } else { rest.rsplit_once('.').unwrap().0 };
    whole(table[key].clone())
}

struct Folder {
    model: Model,
    weights: Tensors,
    tokens: Vec<u32>,
    targets: Vec<u32>,
    extras: Extras,
    loss: f64,
    gradients: BTreeMap<String, Vec<f64>>,
}

/// The values of a tensor of 32- or 64-bit floating-point numbers, with its shape.
fn values(file: &SafeTensors<'_>, name: &str) -> (Vec<f64>, Vec<usize>) {
    let tensor = file.tensor(name).unwrap_or_else(|_| panic!("{name} is not in the file"));
    let data = tensor.data();
    let values = match tensor.dtype() {
        Dtype::F32 => data.as_chunks().0.iter().map(|&bytes| f64::from(f32::from_le_bytes(bytes))).collect(),
        _ => data.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect(),
    };
    (values, tensor.shape().to_vec())
}

/// Part of a tensor of theirs in our order.
fn ours(file: &SafeTensors<'_>, prefix: &str, place: &Place) -> Vec<f64> {
    let (name, transposed, third) = place;
    let (values, shape) = values(file, &format!("{prefix}{name}"));
    let (rows, columns) = if shape.len() == 2 { (shape[0], shape[1]) } else { (1, shape[0]) };
    let values = match transposed {
        true => (0..rows * columns).map(|at| values[at % rows * columns + at / rows]).collect(),
        false => values,
    };
    match third {
        Some(third) => values[third * values.len() / 3..(third + 1) * values.len() / 3].to_vec(),
        None => values,
    }
}

impl Folder {
    fn read(name: &str) -> Folder {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name);
        let read = |file: &str| std::fs::read(folder.join(file)).expect("it is part of the repository");
        let (weights, expected) = (read("model.safetensors"), read("expected.safetensors"));
        let weights = SafeTensors::deserialize(&weights).unwrap();
        let expected = SafeTensors::deserialize(&expected).unwrap();
        let integers = |name: &str| -> Vec<i64> {
            let tensor = expected.tensor(name).unwrap();
            tensor.data().as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect()
        };
        let tokens_of = |name: &str| -> Vec<u32> {
            integers(name).into_iter().map(|token| u32::try_from(token).unwrap_or(IGNORE)).collect()
        };
        let model = model(name);
        let places: Vec<(String, Place)> = model
            .parameters()
            .into_iter()
            .map(|parameter| (parameter.name.clone(), theirs(&model, &parameter.name)))
            .collect();
        let used: std::collections::BTreeSet<&str> =
            places.iter().map(|(_, (name, ..))| name.as_str()).collect();
        let there: std::collections::BTreeSet<&str> = weights.names().into_iter().collect();
        assert_eq!(used, there, "{name}: every tensor is a parameter");
        let narrow = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect();
        let extras = match model.token_types {
            0 => Extras::default(),
            _ => {
                let mask = integers("attention_mask");
                let lengths = mask.chunks(model.sequence).map(|row| row.iter().sum::<i64>() as u32);
                Extras { types: tokens_of("token_type_ids"), lengths: lengths.collect() }
            }
        };
        Folder {
            weights: places
                .iter()
                .map(|(name, place)| (name.clone(), narrow(ours(&weights, "", place))))
                .collect(),
            gradients: places
                .iter()
                .map(|(name, place)| (name.clone(), ours(&expected, "grad.", place)))
                .collect(),
            tokens: tokens_of("input_ids"),
            targets: tokens_of("labels"),
            extras,
            loss: values(&expected, "loss").0[0],
            model,
        }
    }

    fn run(&self, variant: &Variant, degrees: &str, micro: u32, sub: u32) -> Outcome {
        let sequences = (self.tokens.len() / self.model.sequence) as u32;
        let schedule = variant.build(&request(&self.model, degrees, sequences / micro, micro, sub));
        let batches = vec![(self.tokens.clone(), self.targets.clone())];
        let (model, layout, weights) = (self.model.clone(), schedule.layout.clone(), &self.weights);
        let (stages, extras) = (vec![schedule], self.extras.clone());
        Run { model, layout, stages, weights, batches, extras, hyper: HYPER }.run()
    }

    fn check(&self, outcome: &Outcome, what: &str) {
        let loss = outcome.losses[0];
        assert!((loss / self.loss - 1.0).abs() <= 1e-6, "{what}: loss {loss} instead of {}", self.loss);
        assert_eq!(outcome.arena_used, outcome.arena_planned, "{what}: the plan is used to the byte");
        let length = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
        let largest = self.gradients.values().map(|gradient| length(gradient)).fold(0.0, f64::max);
        for (name, expected) in &self.gradients {
            let found = &outcome.gradients[name];
            assert_eq!(found.len(), expected.len(), "{what}: {name}");
            let difference: Vec<f64> =
                found.iter().zip(expected).map(|(&found, expected)| f64::from(found) - expected).collect();
            // Without rotation a key bias moves all scores of a query alike: its gradient is zero in exact arithmetic. In GPT-2 it
            // is a third of one tensor.
            let zero = name.ends_with("key.bias") && matches!(self.model.positions, Positions::Learned(_));
            let scale = match theirs(&self.model, name).2 {
                Some(_) if zero => length(&self.gradients[&name.replace("key", "query")]),
                None if zero => 1e-3 * largest,
                _ => length(expected),
            };
            let error = length(&difference) / scale;
            assert!(error <= 1e-5, "{what}: gradient of {name} is off by {error:e}");
        }
    }
}

/// Over every schedule: TMP degree 4 is more than there are key heads, and three sub-batches are uneven.
fn every_schedule_matches(name: &str) {
    let folder = Folder::read(name);
    let sequences = folder.tokens.len() / folder.model.sequence;
    for variant in VARIANTS {
        for (degree, sub) in [("1", 1), ("2", 2), ("4", 2), ("4", 3.min(sequences as u32))] {
            let outcome = folder.run(variant, degree, 1, sub);
            folder.check(&outcome, &format!("{name} {} over {degree}, 1×{sub}", variant.name));
        }
    }
}

#[test]
fn gpt2_matches_float64() {
    every_schedule_matches("gpt2");
}

#[test]
fn llama_matches_float64() {
    every_schedule_matches("llama");
}

#[test]
fn scaled_rotary_positions_match_float64() {
    for name in ["llama-linear", "llama-scaled", "llama-yarn"] {
        let folder = Folder::read(name);
        for degree in ["1", "4"] {
            folder.check(&folder.run(Variant::find("oases").unwrap(), degree, 1, 2), name);
        }
    }
}

#[test]
fn mistral_matches_float64() {
    every_schedule_matches("mistral");
}

#[test]
fn qwen2_matches_float64() {
    every_schedule_matches("qwen2");
}

#[test]
fn qwen3_matches_float64() {
    every_schedule_matches("qwen3");
}

#[test]
fn bert_matches_float64() {
    every_schedule_matches("bert");
}

/// Borders between TMP degrees, and replicas, whose shares of a part must be whole sequences: BERT's four.
#[test]
fn mixed_degrees_match_float64() {
    let folder = Folder::read("bert");
    for degrees in ["1 of 2", "2 of 4", "2*1 1*2 2*3", "4*1 2*1 1*1 2*2 4*1", "1 of 4"] {
        for variant in ["oases", "decomposed", "megatron"] {
            let outcome = folder.run(Variant::find(variant).unwrap(), degrees, 1, 1);
            folder.check(&outcome, &format!("bert {variant} over {degrees}"));
        }
    }
}
