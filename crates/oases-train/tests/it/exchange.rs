//! Folders made by transformers, imported: logits over TMP degrees against its float64, and losses of texts.

use std::path::{Path, PathBuf};

use oases_exec::CpuBackend;
use oases_schedule::Model;
use oases_train::checkpoint::{Checkpoint, Checkpoints};
use oases_train::data::{Batch, IGNORE};
use oases_train::exchange::import;
use oases_train::run_dir::RunPaths;
use oases_train::{DataOptions, EvaluateOptions, Generator, evaluate, forward};
use safetensors::SafeTensors;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name)
}

fn imported(name: &str, dir: &Path) -> (Model, Checkpoint) {
    let run = dir.join("run");
    let imported = import(&folder(name), &run, |_| String::new()).unwrap();
    let latest = Checkpoints::view(RunPaths::new(&run).checkpoints()).latest().unwrap().unwrap();
    (imported.model, latest.checkpoint)
}

/// Relative to the length of all logits of a token, as gradients are to theirs.
#[test]
fn logits_match_float64_at_every_degree() {
    for name in
        ["gpt2", "llama", "llama-scaled", "llama-yarn", "llama-linear", "mistral", "qwen2", "qwen3", "bert"]
    {
        let dir = tempfile::tempdir().unwrap();
        let (model, checkpoint) = imported(name, dir.path());
        let bytes = std::fs::read(folder(name).join("expected.safetensors")).unwrap();
        let expected = SafeTensors::deserialize(&bytes).unwrap();
        let integers = |name: &str| -> Vec<i64> {
            let data = expected.tensor(name).unwrap().data();
            data.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect()
        };
        let sequence = expected.tensor("input_ids").unwrap().shape()[1];
        let model = Model { sequence, ..model };
        let unsigned = |values: Vec<i64>| {
            values.into_iter().map(|value| u32::try_from(value).unwrap_or(IGNORE)).collect()
        };
        let inputs: Vec<u32> = unsigned(integers("input_ids"));
        let mut batch = Batch {
            targets: unsigned(integers("labels")),
            types: vec![0; inputs.len()],
            lengths: vec![sequence as u32; inputs.len() / sequence],
            inputs,
        };
        if name == "bert" {
            batch.types = unsigned(integers("token_type_ids"));
            let mask = integers("attention_mask");
            batch.lengths = mask.chunks(sequence).map(|row| row.iter().sum::<i64>() as u32).collect();
        }
        let logits = expected.tensor("logits").unwrap().data();
        let logits: Vec<f64> = logits.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect();
        let loss = f64::from_le_bytes(expected.tensor("loss").unwrap().data().try_into().unwrap());
        for tensor in [1, 2, 4] {
            let found = forward(&model, &checkpoint, CpuBackend::workspace(&model), tensor, &batch).unwrap();
            let mean = found.loss / batch.predicted() as f64;
            assert!((mean / loss - 1.0).abs() < 1e-6, "{name} over {tensor}: loss {mean} instead of {loss}");
            let rows = found.logits.chunks(model.vocabulary).zip(logits.chunks(model.vocabulary));
            for (token, (found, expected)) in rows.enumerate() {
                // What stands in place of padding means nothing.
                if token % sequence >= batch.lengths[token / sequence] as usize {
                    continue;
                }
                let length = expected.iter().map(|logit| logit * logit).sum::<f64>().sqrt();
                let off = found
                    .iter()
                    .zip(expected)
                    .map(|(&found, expected)| (f64::from(found) - expected).powi(2));
                let error = off.sum::<f64>().sqrt() / length;
                assert!(error <= 1e-5, "{name} over {tensor}, token {token}: {error:e}");
            }
        }
    }
}

/// The loss of a text is the mean over its tokens, whatever is evaluated at a time.
#[test]
fn a_text_is_evaluated_token_by_token() {
    let dir = tempfile::tempdir().unwrap();
    let (model, checkpoint) = imported("gpt2", dir.path());
    // Bytes below the vocabulary of 43, in two windows and a short one.
    let text: Vec<u8> = (0..40).map(|place| (place * 7 % 43) as u8).collect();
    let path = dir.path().join("text.txt");
    std::fs::write(&path, &text).unwrap();
    let workspace = CpuBackend::workspace(&model);
    let options = |batch| EvaluateOptions {
        data: DataOptions { text: vec![path.clone()], ..DataOptions::default() },
        mask_rate: 0.15,
        batch,
    };
    let found = evaluate(&model, &checkpoint, workspace, &options(2), |_, _| {}).unwrap();
    let (mut loss, sequence) = (0.0, model.sequence);
    for first in (0..text.len() - 1).step_by(sequence) {
        let targets = sequence.min(text.len() - 1 - first);
        let mut inputs = vec![0; sequence];
        inputs[..targets].copy_from_slice(
            &text[first..first + targets].iter().map(|&byte| u32::from(byte)).collect::<Vec<_>>(),
        );
        let batch = Batch {
            inputs,
            targets: vec![IGNORE; sequence],
            types: vec![0; sequence],
            lengths: vec![sequence as u32],
        };
        let logits = forward(&model, &checkpoint, workspace, 1, &batch).unwrap().logits;
        for at in 0..targets {
            let row: Vec<f64> =
                logits[at * 43..(at + 1) * 43].iter().map(|&logit| f64::from(logit)).collect();
            let sum: f64 = row.iter().map(|logit| logit.exp()).sum();
            loss += sum.ln() - row[usize::from(text[first + at + 1])];
        }
    }
    let mean = loss / 39.0;
    assert_eq!((found.targets, found.tokens, found.bytes), (39, 40, Some(40)));
    assert!((found.loss / mean - 1.0).abs() < 1e-6, "{} instead of {mean}", found.loss);
    assert!((found.perplexity() / mean.exp() - 1.0).abs() < 1e-5);
    assert!((found.bits_per_byte().unwrap() / (loss / 40.0 / 2_f64.ln()) - 1.0).abs() < 1e-6);
    let again = evaluate(&model, &checkpoint, workspace, &options(1), |_, _| {}).unwrap();
    assert!((again.loss / found.loss - 1.0).abs() < 1e-6);
}

/// With keys and values kept, a text that grows has the logits of one that is read as a whole; beyond a window, those of its latter half.
#[test]
fn a_growing_text_has_the_logits_of_a_whole_one() {
    for name in ["gpt2", "llama", "llama-scaled", "mistral", "qwen2", "qwen3"] {
        let dir = tempfile::tempdir().unwrap();
        let (model, checkpoint) = imported(name, dir.path());
        let workspace = CpuBackend::workspace(&model);
        let mut generator = Generator::load(&model, &checkpoint, workspace).unwrap();
        let sequence = model.sequence;
        let tokens: Vec<u32> = (0..sequence as u32 + 9).map(|place| place * place * 7 % 41).collect();
        let whole = |seen: &[u32], last: usize| {
            let mut batch = Batch {
                inputs: seen.to_vec(),
                targets: vec![IGNORE; sequence],
                types: vec![0; sequence],
                lengths: vec![sequence as u32],
            };
            batch.inputs.resize(sequence, 0);
            let logits = forward(&model, &checkpoint, workspace, 1, &batch).unwrap().logits;
            logits[last * model.vocabulary..][..model.vocabulary].to_vec()
        };
        let (mut logits, mut first) = (Vec::new(), 0);
        // A text that grows, one of its earlier forms once more, another text, and on.
        let lengths: Vec<usize> = [3, 4, 5, 9, 7, 8].into_iter().chain(10..=tokens.len()).collect();
        for length in lengths {
            if length - first > sequence {
                first = length - sequence.div_ceil(2);
            }
            generator.logits(&tokens[..length], &mut logits).unwrap();
            let expected = whole(&tokens[first..length], length - first - 1);
            let off = logits.iter().zip(&expected).map(|(found, expected)| (found - expected).abs());
            let most = expected.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
            assert!(off.fold(0.0, f32::max) <= 1e-5 * most, "{name}, {length} tokens");
        }
    }
}
