//! A small GPT against golden values of an independent float64 implementation (`testdata/golden/make_gpt.py`).

use std::path::Path;

use oases_schedule::passes::VARIANTS;
use oases_schedule::{Model, Variant};
use safetensors::SafeTensors;

use crate::harness::{Extras, HYPER, Outcome, Run, Tensors, request};

struct Golden {
    model: Model,
    weights: Tensors,
    tokens: Vec<u32>,
    targets: Vec<u32>,
    file: Vec<u8>,
}

impl Golden {
    fn read(name: &str, tied: bool) -> Golden {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden").join(name);
        let file = std::fs::read(path).expect("the golden file is part of the repository");
        let tensors = SafeTensors::deserialize(&file).unwrap();
        // 2 layers, hidden 16, 4 heads, sequence 8, vocabulary 30.
        let model = Model { tied, ..Model::gpt(2, 16, 4, 8, 30) };
        let weights = model
            .parameters()
            .into_iter()
            .map(|parameter| {
                let data = tensors.tensor(&parameter.name).unwrap().data();
                let values =
                    data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
                (parameter.name, values)
            })
            .collect();
        let rows: Vec<u32> = tensors
            .tensor("tokens")
            .unwrap()
            .data()
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        let tokens = rows.chunks(9).flat_map(|row| row[..8].to_vec()).collect();
        let targets = rows.chunks(9).flat_map(|row| row[1..].to_vec()).collect();
        Golden { model, weights, tokens, targets, file }
    }

    fn f64s(&self, name: &str) -> Vec<f64> {
        let tensors = SafeTensors::deserialize(&self.file).unwrap();
        let tensor = tensors.tensor(name).unwrap_or_else(|_| panic!("{name} is not in the golden file"));
        tensor.data().chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
    }

    fn run(&self, variant: &Variant, tensor: u32, micro: u32, sub: u32, steps: usize) -> Outcome {
        let schedule = variant.build(&request(&self.model, &tensor.to_string(), 3 / micro, micro, sub));
        let batches = vec![(self.tokens.clone(), self.targets.clone()); steps];
        let (model, layout, weights) = (self.model.clone(), schedule.layout.clone(), &self.weights);
        Run {
            model,
            layout,
            stages: vec![schedule],
            weights,
            batches,
            extras: Extras::default(),
            hyper: HYPER,
        }
        .run()
    }
}

fn distance(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(&f, &e)| (f64::from(f) - e).powi(2)).sum::<f64>().sqrt()
}

fn length(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// Degrees, micro-batches and sub-batches that 3 sequences, 4 heads and 30 tokens allow; uneven ones among them.
const CUTS: &[(u32, u32, u32)] = &[(1, 1, 1), (1, 1, 2), (2, 1, 2), (2, 3, 1), (4, 1, 3), (4, 1, 1)];

#[test]
fn every_gradient_matches_float64() {
    for (file, tied) in [("gpt.safetensors", true), ("gpt_untied.safetensors", false)] {
        let golden = Golden::read(file, tied);
        let loss = golden.f64s("loss")[0];
        let names: Vec<String> = golden.weights.keys().cloned().collect();
        let expected: Vec<Vec<f64>> = names.iter().map(|name| golden.f64s(&format!("grad.{name}"))).collect();
        let largest = expected.iter().map(|gradient| length(gradient)).fold(0.0, f64::max);
        for variant in VARIANTS {
            for &(tensor, micro, sub) in CUTS {
                let outcome = golden.run(variant, tensor, micro, sub, 1);
                let what = format!("{file} {} over {tensor}, {micro}×{sub}", variant.name);
                assert!((outcome.losses[0] / loss - 1.0).abs() <= 1e-6, "{what}: loss {}", outcome.losses[0]);
                for (name, expected) in names.iter().zip(&expected) {
                    // Key biases move all scores of a query alike: their gradient is zero in exact arithmetic.
                    let zero = name.ends_with("key.bias");
                    let scale = if zero { 1e-3 * largest } else { length(expected) };
                    let error = distance(&outcome.gradients[name], expected) / scale;
                    assert!(error <= 1e-5, "{what}: gradient of {name} is off by {error:e}");
                }
            }
        }
    }
}

#[test]
fn three_steps_of_adamw_match_float64() {
    let golden = Golden::read("gpt.safetensors", true);
    let (losses, norms) = (golden.f64s("losses3"), golden.f64s("norms3"));
    for &(tensor, micro, sub) in CUTS {
        let outcome = golden.run(Variant::find("oases").unwrap(), tensor, micro, sub, 3);
        for step in 0..3 {
            assert!((outcome.losses[step] / losses[step] - 1.0).abs() <= 1e-5, "loss of step {step}");
            assert!((outcome.norms[step] / norms[step] - 1.0).abs() <= 1e-5, "norm of step {step}");
        }
        for (name, weights) in &outcome.weights {
            // Adam divides the noise of a zero gradient by its own size: those steps have no right direction.
            if !name.ends_with("key.bias") {
                let expected = golden.f64s(&format!("after3.{name}"));
                let error = distance(weights, &expected) / length(&expected);
                assert!(error <= 2e-5, "{name} over {tensor}, {micro}×{sub} is off by {error:e}");
            }
        }
    }
}
