//! `oases import` and `oases export`: models in the form of transformers.

use std::path::Path;

use oases_train::exchange::{self, Dtype, ExportOptions, Exported, Family, Imported, source_of};
use serde_json::json;

use super::{plan_run, run_folder};
use crate::args::{ExportArgs, Format, ImportArgs, WeightType};
use crate::config::ModelConfig;
use crate::environment::Environment;
use crate::error::UserError;
use crate::terminal::{self, Terminal};

/// Makes a run folder out of a folder of theirs.
pub fn import(args: &ImportArgs) -> anyhow::Result<()> {
    let describe = |imported: &Imported| configuration(imported, &args.output);
    let imported = exchange::import(&args.folder, &args.output, describe).map_err(plan_run::told)?;
    let Imported { family, model, kept, fresh, tokenizer } = &imported;
    let parameters = model.parameter_count();
    if args.format == Format::Json {
        let json = json!({
            "run": args.output, "family": family.name(), "parameters": parameters, "kept": kept, "fresh": fresh,
            "tokenizer": tokenizer,
        });
        return terminal::print(&format!("{json:#}\n"));
    }
    let mut text = format!(
        "imported {} as {}: {} with {} layers of width {}, {parameters} parameters\n",
        args.folder.display(),
        args.output.display(),
        family.name(),
        model.layers,
        model.hidden
    );
    if !kept.is_empty() {
        text += &format!("kept for an export, not used in training: {}\n", kept.join(", "));
    }
    if !fresh.is_empty() {
        text += &format!("not there, so begun anew: {}\n", fresh.join(", "));
    }
    if !tokenizer {
        text += "there is no tokenizer.json: text must be tokenised before\n";
    }
    terminal::print(&text)
}

/// The configuration of an imported model: to train it on, what is missing can be given with `--set`.
fn configuration(imported: &Imported, run: &Path) -> String {
    let model = ModelConfig::describing(imported.family.name(), &imported.model);
    let quoted = |path: &Path| toml::Value::String(path.to_string_lossy().into_owned());
    let mut text = model.to_toml();
    if imported.tokenizer {
        text += &format!("\n[data]\ntokenizer = {}\n", quoted(&run.join("source/tokenizer.json")));
    }
    text += &format!("\n[train]\ninit_from = {}\n", quoted(run));
    text
}

/// Writes a run's model for transformers.
pub fn export(args: &ExportArgs, environment: &Environment, terminal: &Terminal) -> anyhow::Result<()> {
    if !(args.shard_size.is_finite() && args.shard_size > 0.0) {
        return Err(UserError::new(
            format!("`--shard-size` must be above 0, not {}", args.shard_size),
            "5 GB is usual",
        )
        .into());
    }
    let (folder, checkpoint) = run_folder::open(&args.run, environment, terminal)?;
    let name = &folder.model.family;
    let family = Family::find(name).ok_or_else(|| {
        UserError::new(
            format!("the family \"{name}\" cannot be exported"),
            "gpt, llama, bert and their like can",
        )
    })?;
    let source = source_of(&args.run, folder.init_from.as_deref());
    let options = ExportOptions {
        dtype: args.dtype.map(|dtype| match dtype {
            WeightType::F32 => Dtype::F32,
            WeightType::Bf16 => Dtype::BF16,
            WeightType::F16 => Dtype::F16,
        }),
        shard_bytes: (args.shard_size * 1e9) as usize,
    };
    let model = folder.model.model();
    let exported = exchange::export(&checkpoint, family, &model, source.as_deref(), &args.folder, &options)
        .map_err(plan_run::told)?;
    let Exported { files, tensors, carried } = exported;
    if args.format == Format::Json {
        let json = json!({
            "folder": args.folder, "files": files, "tensors": tensors, "carried": carried,
            "step": checkpoint.metadata().step,
        });
        return terminal::print(&format!("{json:#}\n"));
    }
    let of_import = if carried.is_empty() { String::new() } else { format!(", with {}", carried.join(", ")) };
    let plural = if files == 1 { "file" } else { "files" };
    terminal::print(&format!(
        "exported step {} as {}: {tensors} tensors in {files} {plural}{of_import}\n",
        checkpoint.metadata().step,
        args.folder.display()
    ))
}
