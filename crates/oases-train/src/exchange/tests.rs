//! Folders made by transformers through an import and an export, and folders that are broken.

use std::collections::BTreeMap;

use super::tensors::encode;
use super::*;
use crate::checkpoint::Checkpoint;

const FOLDERS: [&str; 9] =
    ["gpt2", "llama", "llama-linear", "llama-scaled", "llama-yarn", "mistral", "qwen2", "qwen3", "bert"];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name)
}

fn options() -> ExportOptions {
    ExportOptions { dtype: None, shard_bytes: 1 << 30 }
}

fn latest(run: &Path) -> Checkpoint {
    Checkpoints::view(RunPaths::new(run).checkpoints()).latest().unwrap().unwrap().checkpoint
}

fn round_trip(from: &Path, dir: &Path, options: &ExportOptions) -> (Imported, PathBuf) {
    let (run, out) = (dir.join("run"), dir.join("out"));
    let imported = import(from, &run, |_| "[model]\n".to_owned()).unwrap();
    let source = source_of(&run, None);
    export(&latest(&run), imported.family, &imported.model, source.as_deref(), &out, options).unwrap();
    (imported, out)
}

/// The bytes of every tensor of a folder.
fn bytes_of(dir: &Path) -> BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> {
    let folder = Folder::open(dir).unwrap();
    let read = |(name, stored): (&String, &tensors::Stored)| {
        let mut bytes = Vec::new();
        folder
            .chunks(name, |chunk| {
                bytes.extend_from_slice(chunk);
                Ok(())
            })
            .unwrap();
        (name.clone(), (stored.dtype, stored.shape.clone(), bytes))
    };
    folder.tensors.iter().map(read).collect()
}

#[test]
fn import_and_export_are_inverse_to_the_byte() {
    for name in FOLDERS {
        for shard_bytes in [1 << 30, 3000] {
            let dir = tempfile::tempdir().unwrap();
            let (_, out) = round_trip(&folder(name), dir.path(), &ExportOptions { shard_bytes, ..options() });
            assert!(bytes_of(&folder(name)) == bytes_of(&out), "{name}");
            let config = |dir: &Path| fs::read_to_string(dir.join("config.json")).unwrap();
            assert_eq!(config(&folder(name)), config(&out), "{name}");
        }
    }
}

#[test]
fn sixteen_bits_and_what_is_no_parameter_come_back() {
    let whole = tempfile::tempdir().unwrap();
    for (dtype, prefix) in [(Dtype::BF16, ""), (Dtype::F16, "bert.")] {
        // A base model in 16 bits, with a pooler and a buffer, and without a head.
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        fs::create_dir(&from).unwrap();
        fs::copy(folder("bert").join("config.json"), from.join("config.json")).unwrap();
        let all = Folder::open(&folder("bert")).unwrap();
        let mut tensors: Vec<Wanted> = all
            .tensors
            .keys()
            .filter(|name| !name.starts_with("cls."))
            .map(|name| Wanted { dtype, name: name.replacen("bert.", prefix, 1), ..wanted(&all, name) })
            .collect();
        tensors.push(Wanted { name: format!("{prefix}pooler.dense.bias"), dtype, shape: vec![16] });
        tensors.push(Wanted {
            name: format!("{prefix}embeddings.position_ids"),
            dtype: Dtype::I64,
            shape: vec![1, 4],
        });
        write_file(&from.join("model.safetensors"), &tensors, |wanted, take| {
            let theirs = wanted.name.replacen(prefix, "bert.", usize::from(!prefix.is_empty()));
            let theirs = if prefix.is_empty() { format!("bert.{theirs}") } else { theirs };
            match all.tensors.contains_key(&theirs) {
                true => encode(&theirs, &all.values(&theirs)?, dtype, take),
                false => take(&vec![7; wanted.bytes()]),
            }
        })
        .unwrap();
        let (imported, out) = round_trip(&from, dir.path(), &options());
        assert_eq!(imported.fresh.len(), 5, "{:?}", imported.fresh);
        assert_eq!(imported.kept.len(), 2);
        let found = bytes_of(&out);
        for (name, tensor) in bytes_of(&from) {
            let name = match name.strip_prefix(prefix).unwrap_or(&name) {
                kept if kept.contains("pooler") || kept.contains("position_ids") => format!("{prefix}{kept}"),
                other => format!("bert.{other}"),
            };
            assert!(found[&name] == tensor, "{name}");
        }
        assert!(found.contains_key("cls.predictions.transform.dense.weight"));
        let again = import(&out, &whole.path().join(format!("{dtype:?}")), |_| String::new()).unwrap();
        assert!(again.fresh.is_empty());
    }
}

#[test]
fn a_model_of_ours_is_described_and_read_back() {
    for name in FOLDERS {
        let (family, model) = read_config(&folder(name)).unwrap();
        let text = config::write(family, &model).unwrap();
        let again = config::read(Path::new("config.json"), &text).unwrap();
        assert_eq!(again, (family, model), "{name}");
    }
    let odd = Model { head_norm: true, ..Model::gpt(1, 16, 4, 8, 30) };
    assert!(config::write(Family::Gpt2, &odd).unwrap_err().to_string().contains("none of the family gpt2"));
}

/// Copies a folder, changed by `change`, and imports it; nothing may be left of that.
fn refused(name: &str, change: impl Fn(&Path)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(folder(name).join(file), from.join(file)).unwrap();
    }
    change(&from);
    let error = import(&from, &dir.path().join("run"), |_| String::new()).unwrap_err();
    assert!(!error.to_string().contains('\n') && error.hint().is_some(), "{error}");
    assert_eq!(crate::replace_file::tests::names(dir.path()), ["from"], "{error}");
    error.to_string()
}

fn edit(dir: &Path, change: impl Fn(&mut serde_json::Map<String, serde_json::Value>)) {
    let path = dir.join("config.json");
    let mut json = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut json);
    fs::write(path, serde_json::to_string(&json).unwrap()).unwrap();
}

#[test]
fn broken_folders_are_refused_in_one_line() {
    let set = |name: &'static str, value: serde_json::Value| {
        move |dir: &Path| edit(dir, |json| drop(json.insert(name.into(), value.clone())))
    };
    let message = refused("llama", set("model_type", "mamba".into()));
    assert!(message.ends_with("the family \"mamba\" is unknown"), "{message}");
    let message = refused("llama", set("hidden_act", "gelu".into()));
    assert!(message.contains("`hidden_act` is \"gelu\""), "{message}");
    let message = refused("llama", set("num_key_value_heads", 3.into()));
    assert!(message.contains("4 heads cannot share 3 key/value heads"), "{message}");
    let message = refused("llama", set("num_hidden_layers", 3.into()));
    assert!(message.contains("model.layers.2.input_layernorm.weight is missing; "), "{message}");
    let message = refused("llama", set("num_hidden_layers", 1.into()));
    assert!(message.contains("model.layers.1.input_layernorm.weight is unknown; "), "{message}");
    let message = refused("gpt2", set("n_embd", 32.into()));
    assert!(message.contains("transformer.wte.weight has shape [43, 16], not [43, 32]"), "{message}");
    // All are listed.
    assert_eq!(message.matches("has shape").count(), 28, "{message}");
    let message = refused("llama", |dir| {
        let path = dir.join("model.safetensors");
        let bytes = fs::read(&path).unwrap();
        fs::write(path, &bytes[..bytes.len() - 5]).unwrap();
    });
    assert!(message.contains("is truncated"), "{message}");
    let message = refused("llama", |dir| fs::remove_file(dir.join("config.json")).unwrap());
    assert!(message.ends_with("has no config.json"), "{message}");
    let index = |map: &'static str| {
        move |dir: &Path| {
            fs::remove_file(dir.join("model.safetensors")).unwrap();
            fs::write(dir.join("model.safetensors.index.json"), map).unwrap();
        }
    };
    let message = refused("llama", index("{\"weight_map\": {\"lm_head.weight\": \"model-2.safetensors\"}}"));
    assert!(message.ends_with("names model-2.safetensors, which is missing"), "{message}");
    let message = refused("llama", index("{\"weight_map\": {\"lm_head.weight\": \"../model.safetensors\"}}"));
    assert!(message.contains("no name of a file"), "{message}");
    let message = refused("llama", |dir| fs::remove_file(dir.join("model.safetensors")).unwrap());
    assert!(message.ends_with("has no model.safetensors"), "{message}");
}

#[test]
fn a_slash_ends_the_name_of_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    import(&folder("llama"), &out.join(""), |_| String::new()).unwrap();
    assert!(out.join("source/config.json").is_file());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// A socket stands for whatever is no file: a pipe would be waited for.
#[cfg(unix)]
#[test]
fn what_is_no_file_is_no_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("config.json")).unwrap();
    let message = import(dir.path(), &dir.path().join("run"), |_| String::new()).unwrap_err();
    assert!(message.to_string().ends_with("has no config.json"), "{message}");
}

/// Bytes are changed, cut out and repeated at random places: whatever comes of it, nobody panics, and nothing is allocated by a length
/// that was not compared with the file.
#[test]
fn damaged_files_never_panic() {
    let dir = tempfile::tempdir().unwrap();
    let mut state = 1_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    let index = "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {\"a\": \"b.safetensors\", \"c\": \"model.safetensors\"}}";
    let original = |name: &str| fs::read(folder("bert").join(name)).unwrap();
    let files = [
        ("config.json", original("config.json")),
        ("model.safetensors", original("model.safetensors")),
        ("model.safetensors.index.json", index.as_bytes().to_vec()),
    ];
    for round in 0..600 {
        let from = dir.path().join("from");
        fs::create_dir_all(&from).unwrap();
        let (damaged, _) = &files[round % 3];
        for (name, bytes) in &files {
            let mut bytes = bytes.clone();
            if name == damaged {
                // The header of tensors is where a length could do harm.
                let most = bytes.len().min(4000);
                for _ in 0..=random(3) {
                    match random(3) {
                        0 => bytes[random(most)] = random(256) as u8,
                        1 => drop(bytes.drain(random(most)..).take(random(9)).count()),
                        _ => bytes.insert(random(most), b"0123456789\"{}[],:-eE\0"[random(21)]),
                    }
                    if bytes.len() < most {
                        break;
                    }
                }
            }
            fs::write(from.join(name), bytes).unwrap();
        }
        if *damaged == "model.safetensors.index.json" {
            fs::rename(from.join("model.safetensors"), from.join("b.safetensors")).unwrap();
        }
        let out = dir.path().join("run");
        if let Err(error) = import(&from, &out, |_| String::new()) {
            assert!(!error.to_string().starts_with("internal"), "{error}");
            assert!(!out.exists());
        }
        let _ = fs::remove_dir_all(&out);
        fs::remove_dir_all(&from).unwrap();
    }
}
