//! Hidden states of an imported encoder beside those that transformers computed (`benches/reference/minilm.py`), over TMP degrees.
//!
//! `cargo run --release -p oases-train --example hidden_states -- RUN hidden.safetensors`

use std::error::Error;
use std::path::Path;

use oases_exec::CpuBackend;
use oases_schedule::Model;
use oases_train::checkpoint::Checkpoints;
use oases_train::data::{Batch, IGNORE};
use oases_train::exchange::{Family, read_config};
use oases_train::forward;
use oases_train::run_dir::RunPaths;
use safetensors::SafeTensors;

fn main() -> Result<(), Box<dyn Error>> {
    let [run, reference] = [1, 2].map(|at| std::env::args().nth(at));
    let (Some(run), Some(reference)) = (run, reference) else {
        return Err("give the folder of an import, and hidden.safetensors".into());
    };
    let (family, model) = read_config(&Path::new(&run).join("source"))?;
    assert_eq!(family, Family::Bert, "an encoder");
    let latest =
        Checkpoints::view(RunPaths::new(Path::new(&run)).checkpoints()).latest()?.ok_or("no checkpoint")?;
    let bytes = std::fs::read(reference)?;
    let file = SafeTensors::deserialize(&bytes)?;
    let integers = |name: &str| -> Result<Vec<u32>, Box<dyn Error>> {
        let data = file.tensor(name)?.data().as_chunks().0;
        Ok(data.iter().map(|&bytes| i64::from_le_bytes(bytes) as u32).collect())
    };
    let sequence = file.tensor("input_ids")?.shape()[1];
    let model = Model { sequence, ..model };
    let inputs = integers("input_ids")?;
    let lengths: Vec<u32> =
        integers("attention_mask")?.chunks(sequence).map(|row| row.iter().sum()).collect();
    let expected = file.tensor("last_hidden_state")?.data().as_chunks().0;
    let expected: Vec<f64> = expected.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect();
    let batch = Batch { targets: vec![IGNORE; inputs.len()], types: vec![0; inputs.len()], lengths, inputs };
    for tensor in [1, 2, 4] {
        let found =
            forward(&model, &latest.checkpoint, CpuBackend::workspace(&model), tensor, &batch)?.hidden;
        let mut worst = 0.0_f64;
        let rows = found.chunks(model.hidden).zip(expected.chunks(model.hidden));
        for (token, (found, expected)) in rows.enumerate() {
            if token % sequence < batch.lengths[token / sequence] as usize {
                let off =
                    found.iter().zip(expected).map(|(&found, expected)| (f64::from(found) - expected).abs());
                worst = off.fold(worst, f64::max);
            }
        }
        println!("TMP {tensor}: {} sentences, largest difference {worst:.1e}", batch.lengths.len());
    }
    Ok(())
}
