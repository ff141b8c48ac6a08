//! Every way to spread a run over ranks trains alike: data × pipeline × tensor, each order, sharded optimizers, checkpoints between them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use oases_exec::CpuBackend;
use oases_schedule::passes::VARIANTS;
use oases_schedule::{Biases, Cut, Keeps, Layout, Model, Optimizer, Order, Schedule, Stages, Variant};
use oases_train::checkpoint::Checkpoint;
use oases_train::{DataOptions, Event, Job, OptimizerOptions, Options};

const STEPS: u64 = 20;
const LAYERS: u32 = 3;

/// How a run is spread.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Data, pipeline, tensor.
    mesh: [u32; 3],
    schedule: &'static str,
    order: Order,
    chunks: u32,
    moments: Optimizer,
}

impl Case {
    fn new(mesh: [u32; 3], schedule: &'static str) -> Case {
        Case { mesh, schedule, order: Order::default(), chunks: 1, moments: Optimizer::Whole }
    }

    /// Four micro-batches of eight sequences, or of two for each replica.
    fn batch(self) -> u32 {
        let [data, ..] = self.mesh;
        if 8 % data == 0 { 32 } else { 8 * data }
    }

    /// Eight heads, or one for each rank of a TMP group.
    fn heads(self) -> usize {
        let [.., tensor] = self.mesh;
        if 8 % tensor == 0 { 8 } else { tensor as usize }
    }

    fn model(self) -> Model {
        Model { dropout: 0.1, ..Model::gpt(LAYERS, 4 * self.heads(), self.heads(), 8, 256) }
    }
}

/// Near-equal chunks; whether the first and the last share a table.
fn stages(count: u32, chunks: u32, tied: bool) -> Stages {
    let (blocks, all) = (Schedule::blocks(LAYERS), (count * chunks) as usize);
    Stages::new(count, (0..all).map(|chunk| chunk * blocks / all).collect(), tied)
}

fn options(folder: &Path, case: Case, steps: u64) -> Options {
    let [data, pipeline, tensor] = case.mesh;
    let text = folder.join("text.txt");
    if !text.exists() {
        let sentence = |n: u32| format!("The whale number {n} swam {} leagues to the east. ", n * n % 97);
        std::fs::write(&text, (0..200).map(sentence).collect::<String>()).unwrap();
    }
    Options {
        model: case.model(),
        layout: Layout::new(data * tensor, vec![tensor; Schedule::blocks(LAYERS)]),
        stages: stages(pipeline, case.chunks, true),
        order: case.order,
        moments: case.moments,
        variant: Variant::find(case.schedule).unwrap(),
        sub_batches: if data == 8 { 1 } else { 2 },
        keep: Keeps::AsScheduled,
        pieces: 2,
        cut: Cut::Rows,
        micro_batches: 4,
        batch: case.batch(),
        data: DataOptions {
            text: vec![text],
            validation: 0.1,
            field: "text".into(),
            ..DataOptions::default()
        },
        mask_rate: 0.3,
        init_from: None,
        freeze: Vec::new(),
        link: None,
        optimizer: OptimizerOptions {
            learning_rate: 1e-2,
            warmup: 2,
            final_share: 0.1,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.1,
            clip: 1.0,
        },
        steps,
        seed: 3,
        eval_every: 10,
        checkpoint_every: 10,
        check_every: 3,
        keep_checkpoints: 4,
        timeout: Duration::from_secs(60),
        dir: folder.join("run"),
        config: String::new(),
        resume: false,
        trace: false,
        fault: None,
    }
}

/// The losses of the steps, and the last validation loss.
fn losses(options: Options) -> Vec<f64> {
    let workspace = CpuBackend::workspace(&options.model);
    let job = Job::prepare(options, workspace).unwrap();
    let mut losses = Vec::new();
    let mut listen = |event: &Event| {
        if let Event::Step(metrics) = event {
            losses.push(metrics.loss);
            losses.extend(metrics.val_loss);
        }
    };
    oases_train::train(job, &mut listen).unwrap();
    losses
}

fn run(case: Case) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    losses(options(folder.path(), case, STEPS))
}

#[track_caller]
fn assert_close(found: &[f64], expected: &[f64], what: &dyn std::fmt::Debug) {
    assert_eq!(found.len(), expected.len(), "{what:?}");
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() < 2e-5, "{what:?} at {step}: {found} instead of {expected}");
    }
}

/// Every layout of up to 8 ranks, each with another schedule; with `OASES_ALL` in the environment, each with every schedule.
#[test]
fn every_layout_gives_the_losses_of_one_rank() {
    let all = std::env::var_os("OASES_ALL").is_some();
    let mut references: BTreeMap<(u32, usize), Vec<f64>> = BTreeMap::new();
    let mut turns = VARIANTS.iter().cycle();
    let (mut runs, mut worst) = (0, 0.0_f64);
    for data in 1..=8 {
        for pipeline in 1..=8 {
            for tensor in (1..=8).filter(|tensor| data * pipeline * tensor <= 8) {
                let case = Case::new([data, pipeline, tensor], "none");
                let expected = references.entry((case.batch(), case.heads())).or_insert_with(|| {
                    let folder = tempfile::tempdir().unwrap();
                    let alone = Case { mesh: [1, 1, 1], ..case };
                    losses(Options {
                        batch: case.batch(),
                        model: case.model(),
                        ..options(folder.path(), alone, STEPS)
                    })
                });
                assert!(expected[0] - expected[STEPS as usize - 1] > 0.5, "{expected:?}");
                for variant in turns.by_ref().take(if all { VARIANTS.len() } else { 1 }) {
                    let case = Case::new([data, pipeline, tensor], variant.name);
                    let found = run(case);
                    assert_close(&found, expected, &case);
                    let differences =
                        found.iter().zip(expected.iter()).map(|(found, expected)| (found - expected).abs());
                    worst = differences.fold(worst, f64::max);
                    runs += 1;
                }
            }
        }
    }
    println!("{runs} runs, no loss more than {worst:.1e} from that of one rank");
}

#[test]
fn orders_of_a_pipeline_change_no_loss() {
    let plain = run(Case::new([1, 2, 1], "oases"));
    for schedule in ["oases", "none", "megatron", "oases-w"] {
        let case = Case { order: Order::ZeroBubble, ..Case::new([1, 2, 1], schedule) };
        assert_close(&run(case), &plain, &case);
        let case = Case { chunks: 2, ..Case::new([1, 2, 1], schedule) };
        assert_close(&run(case), &plain, &case);
    }
}

#[test]
fn sharded_moments_change_no_bit() {
    for mesh in [[2, 1, 1], [2, 2, 1], [3, 1, 2], [2, 2, 2]] {
        let whole = Case::new(mesh, "oases");
        let sharded = Case { moments: Optimizer::Sharded, ..whole };
        let [whole, sharded] = [whole, sharded].map(|case| {
            let folder = tempfile::tempdir().unwrap();
            losses(options(folder.path(), case, STEPS))
        });
        assert_eq!(whole.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>(), bits(&sharded), "{mesh:?}");
    }
}

fn bits(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

/// A checkpoint does not know the layout that it was written at.
#[test]
fn a_checkpoint_goes_on_at_any_layout() {
    let written = Case { moments: Optimizer::Sharded, ..Case::new([2, 2, 2], "oases") };
    let whole = run(written);
    for mesh in [[2, 2, 2], [1, 1, 1], [4, 1, 2], [1, 4, 2]] {
        for moments in [Optimizer::Whole, Optimizer::Sharded] {
            let folder = tempfile::tempdir().unwrap();
            let first = Options { steps: STEPS, ..options(folder.path(), written, STEPS) };
            losses(first);
            std::fs::remove_file(folder.path().join("run/checkpoints/step-00000020.safetensors")).unwrap();
            let case = Case { mesh, moments, ..written };
            let resumed = losses(Options { resume: true, ..options(folder.path(), case, STEPS) });
            // Ten steps and a validation loss were done.
            assert_close(&resumed, &whole[11..], &case);
            if mesh == written.mesh {
                assert_eq!(bits(&resumed), bits(&whole[11..]), "{case:?}");
            }
        }
    }
}

/// Who asks for an end shall not wait for an evaluation.
#[test]
fn a_stop_is_not_kept_waiting_by_an_evaluation() {
    let folder = tempfile::tempdir().unwrap();
    let case = Case::new([1, 2, 1], "oases");
    let options = Options { eval_every: 1, ..options(folder.path(), case, STEPS) };
    let workspace = CpuBackend::workspace(&options.model);
    let job = Job::prepare(options, workspace).unwrap();
    job.stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut validated = Vec::new();
    let mut listen = |event: &Event| {
        if let Event::Step(metrics) = event {
            validated.push(metrics.val_loss);
        }
    };
    let outcome = oases_train::train(job, &mut listen).unwrap();
    assert!(matches!(outcome, oases_train::Outcome::Stopped { step: 1 }), "{outcome:?}");
    assert_eq!(validated, [None]);
    assert!(folder.path().join("run/checkpoints/step-00000001.safetensors").exists());
}

/// A `tokenizer.json` whose tokens are the letters of the text, with a mask.
fn letters(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("letters.json");
    let letters = ["[UNK]", "[MASK]", "[SEP]"].into_iter().map(str::to_owned);
    let letters = letters.chain(" .0123456789Tabcdefghijklmnopqrstuvwxyz".chars().map(String::from));
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        letters.zip(0..).map(|(letter, id)| (letter, serde_json::Value::from(id))).collect();
    let special = |id: u32, content: &str| {
        serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null, "decoder": null,
        "added_tokens": [special(0, "[UNK]"), special(1, "[MASK]"), special(2, "[SEP]")],
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": false},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    });
    std::fs::write(&path, json.to_string()).unwrap();
    path
}

fn families() -> [(&'static str, Model); 3] {
    let sizes = |family: fn(u32, usize, usize, usize, usize) -> Model| Model {
        dropout: 0.1,
        ..family(LAYERS, 32, 8, 8, 256)
    };
    let qwen2 = Model { kv_heads: 2, tied: true, biases: Biases::Qkv, ..sizes(Model::llama) };
    let qwen3 = Model { kv_heads: 4, head_dim: 6, head_norm: true, ..sizes(Model::llama) };
    [("qwen2", qwen2), ("qwen3", qwen3), ("bert", sizes(Model::bert))]
}

fn of_family(folder: &Path, case: Case, model: &Model) -> Options {
    let options = options(folder, case, STEPS);
    let tokenizer = (model.token_types > 0).then(|| letters(folder));
    let data = DataOptions { tokenizer, ..options.data };
    let stages = stages(case.mesh[1], case.chunks, model.tied);
    Options { model: model.clone(), data, stages, ..options }
}

/// Two key heads over four ranks are shared; BERT normalises on the residual path, across borders of stages too.
#[test]
fn every_family_loses_the_same_at_any_layout() {
    for (name, model) in families() {
        let run = |case: Case| {
            let folder = tempfile::tempdir().unwrap();
            losses(of_family(folder.path(), case, &model))
        };
        let alone = run(Case::new([1, 1, 1], "none"));
        // Of masked letters few can be told from the others, in as few steps.
        assert!(alone[0] - alone[STEPS as usize - 1] > 0.3, "{name}: {alone:?}");
        for (mesh, schedule) in [
            ([1, 1, 4], "oases"),
            ([2, 2, 2], "oases"),
            ([1, 4, 1], "megatron"),
            ([1, 2, 4], "oases-dual"),
            ([2, 1, 4], "decomposed"),
        ] {
            let case = Case::new(mesh, schedule);
            assert_close(&run(case), &alone, &(name, case));
            let sharded = Case { moments: Optimizer::Sharded, ..case };
            if mesh[0] > 1 {
                assert_eq!(bits(&run(sharded)), bits(&run(case)), "{name}: {sharded:?}");
            }
        }
    }
}

fn weights(folder: &Path) -> BTreeMap<String, Vec<u32>> {
    let checkpoint = Checkpoint::open(&folder.join("run/checkpoints/step-00000020.safetensors")).unwrap();
    let of_model = checkpoint.tensors().filter(|tensor| tensor.name.starts_with("model."));
    of_model
        .map(|tensor| {
            let mut values = vec![0.0; tensor.elements().unwrap()];
            checkpoint.read(&tensor.name, &mut values).unwrap();
            (tensor.name, values.into_iter().map(f32::to_bits).collect())
        })
        .collect()
}

/// Training goes on from the weights of another run, and what is frozen keeps every bit at any layout.
#[test]
fn frozen_parts_stay_and_the_rest_learns() {
    let (_, model) = families()[0].clone();
    let first = tempfile::tempdir().unwrap();
    let learnt = losses(of_family(first.path(), Case::new([1, 1, 2], "oases"), &model));
    let before = weights(first.path());
    let mut outcomes = Vec::new();
    for (mesh, moments) in
        [([1, 1, 1], Optimizer::Whole), ([2, 2, 2], Optimizer::Sharded), ([1, 1, 4], Optimizer::Whole)]
    {
        let folder = tempfile::tempdir().unwrap();
        let case = Case { moments, ..Case::new(mesh, "oases") };
        let options = Options {
            init_from: Some(first.path().join("run")),
            freeze: vec!["embed".into(), "layers.0-1.attn".into(), "layers.1-2".into()],
            ..of_family(folder.path(), case, &model)
        };
        let refused = Options { freeze: vec!["layers.7".into()], ..options.clone() };
        let workspace = CpuBackend::workspace(&model);
        assert!(Job::prepare(refused, workspace).is_err());
        let options = Options { freeze: vec!["embed".into(), "layers.1-2".into()], ..options };
        let found = losses(options);
        assert!(found[0] < learnt[0] - 0.5, "{found:?} begins where {learnt:?} has ended");
        for (name, values) in weights(folder.path()) {
            let frozen = ["model.embed.", "model.layers.1.", "model.layers.2."]
                .iter()
                .any(|part| name.starts_with(part));
            assert_eq!(values == before[&name], frozen, "{name} at {mesh:?}");
        }
        outcomes.push(found);
    }
    outcomes.iter().for_each(|found| assert_close(found, &outcomes[0], &"frozen"));
}
