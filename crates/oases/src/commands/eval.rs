//! `oases eval`: the loss of a model over a text.

use oases_exec::CpuBackend;
use oases_schedule::Mask;
use oases_train::data::indexed;
use oases_train::{DataOptions, EvaluateOptions, evaluate};
use serde_json::json;

use super::{plan_run, run_folder};
use crate::args::{EvalArgs, Format};
use crate::environment::Environment;
use crate::error::UserError;
use crate::progress::Counter;
use crate::terminal::{self, Terminal};

/// Evaluates.
pub fn run(args: &EvalArgs, environment: &Environment, terminal: &Terminal) -> anyhow::Result<()> {
    if args.batch == 0 {
        return Err(UserError::new("`--batch` must be at least 1", "8 sequences at a time are usual").into());
    }
    let (folder, checkpoint) = run_folder::open(&args.run, environment, terminal)?;
    let model = folder.model.model();
    let tokenizer = args.tokenizer.clone().or(folder.tokenizer);
    let is_data_set = |input: &std::path::PathBuf| !input.is_file() && indexed::paths(input)[0].is_file();
    let (files, text) = args.inputs.iter().cloned().partition(is_data_set);
    let data = DataOptions { text, files, tokenizer, field: args.field.clone(), ..DataOptions::default() };
    let options = EvaluateOptions { data, mask_rate: folder.mask_rate, batch: args.batch };
    let mut counter: Option<Counter> = None;
    let workspace = CpuBackend::workspace(&model);
    let found = evaluate(&model, &checkpoint, workspace, &options, |_, all| {
        let batches = all.div_ceil(u64::from(args.batch));
        counter.get_or_insert_with(|| Counter::new(*terminal, batches)).step();
    });
    drop(counter);
    let found = found.map_err(plan_run::told)?;
    let (perplexity, bits) = (found.perplexity(), found.bits_per_byte());
    if args.format == Format::Json {
        let json = json!({
            "run": args.run, "step": checkpoint.metadata().step, "loss": found.loss, "perplexity": perplexity,
            "bits_per_byte": bits, "targets": found.targets, "tokens": found.tokens, "bytes": found.bytes,
        });
        return terminal::print(&format!("{json:#}\n"));
    }
    let masked = if model.mask == Mask::Bidirectional { " hidden" } else { "" };
    let mut text = format!(
        "loss {:.4}, perplexity {perplexity:.3} over {}{masked} tokens of {}\n",
        found.loss, found.targets, found.tokens
    );
    if let Some(bits) = bits.filter(|_| masked.is_empty()) {
        text += &format!("{bits:.4} bits per byte\n");
    }
    terminal::print(&text)
}
