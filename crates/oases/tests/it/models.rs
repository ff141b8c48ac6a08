//! Models of transformers and data of users through the program: import, tokenize, train, evaluate, generate, export.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::Folder;

fn golden(name: &str) -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name);
    fs::canonicalize(path).unwrap().to_str().unwrap().to_owned()
}

/// Words of the text as a `tokenizer.json`, at most 45 as the models have.
fn tokenizer() -> String {
    let words = ["<unk>", "</s>", "call", "me", "ishmael", ".", "some", "years", "ago"];
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        words.iter().zip(0..).map(|(word, id)| ((*word).to_owned(), serde_json::Value::from(id))).collect();
    serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "post_processor": null, "decoder": null,
        "added_tokens": [{"id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    })
    .to_string()
}

#[track_caller]
fn succeeds(folder: &Folder, arguments: &[&str]) -> String {
    let outcome = folder.oases(arguments);
    assert_eq!(outcome.code, 0, "oases {}\n{}", arguments.join(" "), outcome.stderr);
    outcome.stdout
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// From a folder of theirs and a pile of text back to a folder of theirs.
#[test]
fn a_model_goes_in_is_trained_and_comes_out() {
    let folder = Folder::new();
    fs::create_dir(folder.path().join("theirs")).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(Path::new(&golden("llama")).join(file), folder.path().join("theirs").join(file)).unwrap();
    }
    folder.write("theirs/tokenizer.json", tokenizer());
    folder.write("theirs/generation_config.json", "{}");
    let lines: String = (0..200)
        .map(|line| format!("{{\"body\": \"{}\"}}\n", "Call me Ishmael. Some years ago. ".repeat(line % 7)))
        .collect();
    folder.write("text.jsonl", lines);
    folder.write("valid.txt", "Call me Ishmael. Some years ago. ".repeat(50));

    let imported = json(&succeeds(&folder, &["import", "theirs", "-o", "run", "--format", "json"]));
    assert_eq!((imported["family"].as_str(), imported["tokenizer"].as_bool()), (Some("llama"), Some(true)));
    let tokens =
        ["tokenize", "text.jsonl", "-o", "data", "--field", "body", "--tokenizer", "theirs/tokenizer.json"];
    let report = json(&succeeds(&folder, &[&tokens[..], &["--format", "json"]].concat()));
    let documents = (0..200).filter(|line| line % 7 > 0).count();
    let words: usize = (0..200).map(|line| 8 * (line % 7)).sum::<usize>() + documents;
    assert_eq!(report["documents"], documents);
    assert_eq!(report["tokens"], words);
    assert_eq!(report["empty"], 200 - documents);
    let shown = json(&succeeds(
        &folder,
        &[
            "data",
            "inspect",
            "data",
            "--tokenizer",
            "theirs/tokenizer.json",
            "--samples",
            "1",
            "--format",
            "json",
        ],
    ));
    assert_eq!(shown["documents"], documents);
    assert_eq!(shown["length"]["least"], 9);
    assert_eq!(shown["samples"][0], "call me ishmael . some years ago . </s>");
    let text = succeeds(&folder, &["data", "inspect", "data"]);
    assert!(text.contains("document 0: 2 3 4 5 6 7 8 5 1\n"), "{text}");

    let loss = |run: &str| {
        json(&succeeds(&folder, &["eval", run, "valid.txt", "--format", "json"]))["loss"].as_f64().unwrap()
    };
    let before = loss("run");
    let mut train = vec!["train", "run/config.toml", "--format", "json"];
    for set in [
        "data.files=[\"data\"]",
        "model.sequence=16",
        "train.steps=30",
        "train.batch=8",
        "train.learning_rate=1e-2",
        "parallel.tensor=2",
        "run.dir=mine",
    ] {
        train.extend(["--set", set]);
    }
    succeeds(&folder, &train);
    let after = loss("mine");
    assert!(after < before - 1.0, "{before} became {after}");
    assert!(succeeds(&folder, &["eval", "mine", "data"]).contains("perplexity"));
    let said = succeeds(
        &folder,
        &["generate", "mine", "--prompt", "call me", "--temperature", "0", "--tokens", "6"],
    );
    assert!(said.starts_with("call me ishmael . some years ago"), "{said}");

    let exported =
        json(&succeeds(&folder, &["export", "mine", "back", "--dtype", "bf16", "--format", "json"]));
    assert_eq!(exported["step"], 30);
    let config = json(&fs::read_to_string(folder.path().join("back/config.json")).unwrap());
    assert_eq!((&config["torch_dtype"], &config["num_key_value_heads"]), (&"bfloat16".into(), &2.into()));
    assert!(folder.path().join("back/generation_config.json").is_file());
    let again = json(&succeeds(&folder, &["import", "back", "-o", "again", "--format", "json"]));
    assert_eq!(again["parameters"], imported["parameters"]);
}

#[test]
fn a_bad_folder_or_text_is_one_line_and_leaves_nothing() {
    let folder = Folder::new();
    let fits = "the families that can be imported: gpt2, llama, mistral, qwen2, qwen3, bert";
    fs::create_dir(folder.path().join("theirs")).unwrap();
    folder.write("theirs/config.json", "{\"model_type\": \"mamba\"}");
    folder.refuses(
        &["import", "theirs", "-o", "run"],
        &format!("error: theirs/config.json: the family \"mamba\" is unknown\n\nhint: {fits}\n"),
    );
    folder.refuses(
        &["import", "nowhere", "-o", "run"],
        "error: nowhere has no config.json\n\nhint: give a folder as `save_pretrained` of transformers writes it, with \
         config.json and model.safetensors\n",
    );
    fs::create_dir(folder.path().join("there")).unwrap();
    folder.refuses(
        &["import", &golden("llama"), "-o", "there"],
        "error: there exists already\n\nhint: give the name of a new folder, or remove that one\n",
    );
    folder.write("bad.jsonl", "{\"text\": \"call\"}\n{\"text\": \"me\"\n");
    folder.refuses(
        &["tokenize", "bad.jsonl", "-o", "data"],
        "error: data file bad.jsonl: line 2 is not a JSON object: EOF while parsing an object, column 13\n\nhint: a line \
         is one JSON object such as {\"text\": \"Call me Ishmael.\"}; data.field, or --field, names another field\n",
    );
    folder.write("bad.txt", b"abc\xFF");
    folder.refuses(
        &["tokenize", "bad.txt", "-o", "data"],
        "error: data file bad.txt: not UTF-8 at byte 3\n\nhint: convert it, with iconv for example; text for a tokenizer is UTF-8\n",
    );
    folder.refuses(
        &["data", "inspect", "data"],
        "error: cannot read data file data.bin: No such file or directory (os error 2)\n\nhint: data.files names the two files \
         that `oases tokenize` writes without their ends, .bin and .idx\n",
    );
    let left: Vec<String> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("run") || name.ends_with(".bin") || name.ends_with(".idx"))
        .collect();
    assert_eq!(left, [""; 0]);
}

/// Refused before anything is written: the model has fewer tokens than the tokenizer, or no mask to hide tokens behind.
#[test]
fn a_tokenizer_must_fit_the_model() {
    let folder = Folder::with_good_configuration();
    folder.write("tokenizer.json", tokenizer());
    let train = |sets: &[&str]| {
        let mut arguments = vec!["train", "good.toml"];
        arguments.extend(sets.iter().flat_map(|set| ["--set", set]));
        let outcome = folder.oases(&arguments);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (2, ""), "{}", outcome.stderr);
        outcome.stderr
    };
    let told = train(&["data.tokenizer=tokenizer.json", "model.vocabulary=8"]);
    assert!(told.contains("the tokenizer has 9 tokens, and model.vocabulary is 8"), "{told}");
    let told = train(&["data.tokenizer=tokenizer.json", "model.family=bert"]);
    assert!(told.contains("the tokenizer has no mask token"), "{told}");
    let told = train(&["model.family=bert"]);
    assert!(told.contains("text that is read as bytes has no mask token"), "{told}");
    let told = train(&["train.freeze=[\"layers.9\"]"]);
    assert!(told.contains("train.freeze names layers.9"), "{told}");
    let told = train(&["train.init_from=nowhere"]);
    assert!(told.contains("nowhere"), "{told}");
}
