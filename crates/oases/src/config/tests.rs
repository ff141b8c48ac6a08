//! Configurations as they are typed, good and bad, and what becomes of them.

use super::*;

const QUICKSTART: &str = include_str!("../../../../configs/quickstart.toml");
const SLOW_LINK: &str = include_str!("../../../../configs/slow-link.toml");

fn resolve_with(text: &str, sets: &[&str]) -> Result<RunConfig, UserError> {
    let overrides: Vec<Override> = sets.iter().map(|set| set.parse().unwrap()).collect();
    resolve("x.toml", text, &overrides, "x")
}

/// The quickstart with these overrides, which break something.
fn problems(sets: &[&str]) -> String {
    resolve_with(QUICKSTART, sets).unwrap_err().to_string()
}

#[test]
fn what_is_saved_reads_back_as_the_same_configuration() {
    for (text, sets) in [
        (QUICKSTART, &[][..]),
        (SLOW_LINK, &[]),
        (QUICKSTART, &["link.bandwidth=1.23456789 GB/s", "link.latency=33.3 us"]),
        (
            QUICKSTART,
            &["train.learning_rate=0.1234567890123456789", "train.epsilon=3e-30", "data.validation=1e-5"],
        ),
        (
            QUICKSTART,
            &["train.seed=9223372036854775807", "run.dir=a \"b\" \\ ü", "data.text=[\"a\", 'b\"c']"],
        ),
        (QUICKSTART, &["parallel.degrees=2*3  1*4 2*3", "schedule.keep=input*6 all*2"]),
        (QUICKSTART, &["parallel.degrees=1"]),
        (
            QUICKSTART,
            &[
                "parallel.data=2",
                "parallel.pipeline=2",
                "parallel.stages=embed  attn.2",
                "parallel.order=zero-bubble",
                "parallel.zero=1",
            ],
        ),
        (QUICKSTART, &["model.tied=false", "model.ffn=600", "train.clip=1", "model.dropout=0"]),
    ] {
        let config = resolve_with(text, sets).unwrap();
        let saved = config.to_toml();
        assert_eq!(resolve("saved.toml", &saved, &[], "other"), Ok(config), "{saved}");
    }
}

#[test]
fn every_key_of_a_run_is_saved() {
    // What is nothing where it is not given is not saved either.
    let given = ["data.tokenizer=t.json", "data.files=[\"tokens\"]", "train.init_from=runs/other"];
    let saved: toml::Table = toml::from_str(&resolve_with(SLOW_LINK, &given).unwrap().to_toml()).unwrap();
    let mut paths = Vec::new();
    for (section, keys) in &saved {
        paths.extend(keys.as_table().unwrap().keys().map(|key| format!("{section}.{key}")));
    }
    // A preset is saved as what it says.
    let of_run = keys::KEYS.iter().filter(|key| key.section() != "bench" && key.path != "model.preset");
    let mut known: Vec<&str> = of_run.map(|key| key.path).collect();
    paths.sort();
    known.sort();
    assert_eq!(paths, known);
}

#[test]
fn every_example_and_default_is_accepted() {
    for key in keys::KEYS {
        let values = [
            Some(key.example),
            if let keys::WhenLeftOut::Value(text) = key.default { Some(text) } else { None },
        ];
        for value in values.into_iter().flatten() {
            let mut sets = vec![format!("{}={value}", key.path)];
            if key.path == "data.weights" {
                sets.push("data.files=[\"tokens\"]".to_string());
            }
            if key.section() == "link" && key.name() != "bandwidth" {
                sets.push("link.bandwidth=1 Gbit/s".to_string());
            }
            let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
            assert!(resolve_with(QUICKSTART, &sets).is_ok(), "{} = {value}", key.path);
        }
    }
}

#[test]
fn a_minimal_configuration_gets_the_defaults() {
    let text = "model = { layers = 2, hidden = 8, heads = 2, sequence = 4 }\ndata.text = \"t\"\n\
                train = { steps = 50, batch = 4, learning_rate = 1e-3 }\n";
    let config = resolve_with(text, &[]).unwrap();
    assert_eq!((config.model.ffn, config.model.vocabulary, config.model.tied), (32, 256, true));
    assert_eq!((config.train.warmup, config.train.eval_every, config.train.checkpoint_every), (5, 100, 100));
    assert_eq!((config.parallel.tensor, config.schedule.sub_batches), (1, 2));
    assert_eq!(config.schedule.name, "oases");
    assert_eq!(config.link, None);
    assert_eq!(config.run.dir, Path::new("runs/x"));
}

#[test]
fn all_problems_are_told_together_in_the_order_of_the_file() {
    let text = "[model]\nlayers = 2\nhiden = 8\nheads = \"two\"\nsequence = 4\ndropout = 1.5\n\
                [data]\ntext = []\n[trian]\nsteps = 1\n[train]\nsteps = 0\nbatch = 4\n";
    assert_eq!(
        resolve_with(text, &[]).unwrap_err().to_string().split("; ").collect::<Vec<_>>(),
        [
            "x.toml:3: unknown key `model.hiden`",
            "x.toml:9: unknown section `[trian]`",
            "x.toml:1: `model.hidden` is missing",
            "x.toml:4: `model.heads` must be a whole number from 1 to 65536, not \"two\"",
            "x.toml:6: `model.dropout` must be a number in [0, 0.999999], not 1.5",
            "x.toml:8: `data.text` must be a list of paths, not an empty list",
            "x.toml:12: `train.steps` must be a whole number from 1 to 1099511627776, not 0",
            "x.toml:11: `train.learning_rate` is missing",
        ]
    );
}

#[test]
fn rules_between_keys_name_the_place_of_the_first() {
    for (sets, expected) in [
        (&["model.heads=5"][..], "--set: `model.heads` = 5 does not divide `model.hidden` = 192"),
        (&["model.hidden=190"], "x.toml:6: `model.heads` = 6 does not divide `model.hidden` = 190"),
        (&["parallel.tensor=4"], "--set: `parallel.tensor` = 4 does not divide `model.heads` = 6"),
        (
            &["parallel.tensor=4", "model.ffn=770"],
            "--set: `parallel.tensor` = 4 does not divide `model.heads` = 6 and `model.ffn` = 770",
        ),
        (
            &["schedule.micro_batches=3"],
            "x.toml:25: `train.batch` = 16 cannot be cut into `schedule.micro_batches` = 3 equal parts",
        ),
        (
            &["schedule.micro_batches=16"],
            "x.toml:20: `schedule.sub_batches` = 2 is more than the sequences of a micro-batch, 1",
        ),
        (
            &["parallel.tensor=12", "parallel.degrees=2*3 4*4 2*3", "train.batch=24"],
            "--set: degree 4 of `parallel.degrees` does not divide `model.heads` = 6",
        ),
        (
            &["parallel.tensor=6", "parallel.degrees=2*3 6*1 3*3 6*1 2*2", "train.batch=15"],
            "--set: a micro-batch of 15 sequences cannot be shared equally by the 6 replicas of a block",
        ),
        (&["train.warmup=501"], "--set: `train.warmup` = 501 is more than `train.steps` = 500"),
    ] {
        assert_eq!(problems(sets), expected, "{sets:?}");
    }
}

#[test]
fn degrees_are_of_every_block_in_a_group() {
    let layout = |sets: &[&str]| resolve_with(QUICKSTART, sets).unwrap().layout().to_string();
    assert_eq!(layout(&[]), "2");
    assert_eq!(layout(&["parallel.degrees=1"]), "1 of 2");
    assert_eq!(layout(&["parallel.degrees=2*3 1*4 2*3"]), "2*3 1*4 2*3");
    // Six heads cannot be cut over four ranks, but over two of them.
    assert_eq!(layout(&["parallel.tensor=4", "parallel.degrees=2*3 1*4 2*3"]), "2*3 1*4 2*3 of 4");
}

#[test]
fn stages_are_pieces_of_the_chain() {
    let stages = |sets: &[&str]| {
        let config = resolve_with(QUICKSTART, sets).unwrap();
        (config.stages().count(), config.stages().starts().to_vec(), config.layout().to_string())
    };
    assert_eq!(stages(&[]), (1, vec![0], "2".to_owned()));
    assert_eq!(stages(&["parallel.stages=embed"]), stages(&[]));
    let named = ["parallel.pipeline=2", "parallel.data=3", "parallel.stages=embed mlp.1", "train.batch=6"];
    assert_eq!(stages(&named), (2, vec![0, 4], "2 of 6".to_owned()));
    // A token costs attention 8·192² + 2·129·192, an MLP 16·192² and the head 2·192·256 operations: 344448, 589824 and 98304.
    // The embedding and two layers before, two layers and the head behind; a block more or less on a side is worse.
    assert_eq!(stages(&["parallel.pipeline=2"]), (2, vec![0, 5], "2".to_owned()));
    let chunks = ["parallel.pipeline=5", "parallel.chunks=2", "schedule.micro_batches=5", "train.batch=10"];
    assert_eq!(stages(&chunks), (5, (0..10).collect(), "2".to_owned()));
    let degrees =
        ["parallel.pipeline=2", "parallel.tensor=6", "parallel.degrees=2*5 6*3 2*2", "train.batch=24"];
    assert!(
        problems(&degrees)
            .contains("mlp.1 and attn.2 are on different stages and have the TMP degrees 2 and 6")
    );
    let elsewhere = [&degrees[..], &["parallel.stages=embed mlp.1"]].concat();
    assert_eq!(stages(&elsewhere), (2, vec![0, 4], "2*5 6*3 2*2".to_owned()));
}

#[test]
fn pieces_of_the_chain_that_cannot_be_are_refused() {
    for (sets, expected) in [
        (
            &["parallel.chunks=2"][..],
            "--set: `parallel.chunks` = 2 needs several stages, and `parallel.pipeline` = 1",
        ),
        (
            &["parallel.pipeline=11"],
            "--set: `parallel.pipeline` = 11 stages of `parallel.chunks` = 1 are 11 pieces of a chain of 10 blocks",
        ),
        (
            &["parallel.pipeline=2", "parallel.stages=embed attn.4"],
            "--set: `parallel.stages` = \"embed attn.4\": there is no block attn.4",
        ),
        (
            &["parallel.pipeline=2", "parallel.stages=embed"],
            "--set: `parallel.stages` = \"embed\": it names 1 block for 2 pieces of the chain",
        ),
        (
            &["parallel.stages=attn.0"],
            "--set: `parallel.stages` = \"attn.0\": chunks begin with the embedding and follow each other along the chain",
        ),
        (
            &["parallel.stages=embed embed"],
            "--set: `parallel.stages` = \"embed embed\": it names 2 blocks for 1 piece of the chain",
        ),
        (
            &["parallel.pipeline=2", "parallel.stages=attn.0 mlp.0"],
            "--set: `parallel.stages` = \"attn.0 mlp.0\": chunks begin with the embedding and follow each other along the \
             chain",
        ),
        (
            &["parallel.pipeline=2", "parallel.chunks=2", "train.batch=18", "schedule.micro_batches=3"],
            "--set: with `parallel.chunks` = 2 micro-batches go round the stages in groups, and `schedule.micro_batches` = 3 \
             is no multiple of `parallel.pipeline` = 2",
        ),
        (
            &["parallel.data=5"],
            "x.toml:25: a micro-batch of 16 sequences cannot be shared equally by the 5 replicas of a block",
        ),
    ] {
        assert_eq!(problems(sets), expected, "{sets:?}");
    }
    let hint = |sets: &[&str]| format!("{:?}", resolve_with(QUICKSTART, sets).unwrap_err());
    assert!(hint(&["parallel.pipeline=11"]).contains("at most 10 stages"));
    assert!(
        hint(&["parallel.pipeline=4", "parallel.chunks=3"]).contains("at most 2 pieces on each of 4 stages")
    );
    assert!(hint(&["parallel.order=interleaved"]).contains("set `parallel.chunks` to 2 or more"));
    let round = ["parallel.pipeline=2", "parallel.chunks=2"];
    assert!(
        hint(&round).contains("`parallel.chunks` = 1, or micro-batches of this batch that are: 2, 4, 8, 16")
    );
    assert!(
        hint(&["parallel.data=5"]).contains("a `parallel.data` that divides a micro-batch: 1, 2, 4, 8, 16")
    );
    let typed = ["parallel.pipeline=2", "parallel.stages=embed layer.2"];
    assert!(hint(&typed).contains("such as \\\"embed attn.2\\\", or leave it out"), "{}", hint(&typed));
}

#[test]
fn absurd_sizes_are_errors_not_overflows() {
    let huge = i64::MAX.to_string();
    for key in keys::KEYS {
        if let keys::Accepts::Integer(_, high) = key.accepts {
            for value in
                [high.to_string(), huge.clone(), "-1".to_string(), "1e12".to_string(), "1e400".to_string()]
            {
                // Whether it is accepted does not matter here; that it comes to an end without a panic does.
                let _ = resolve_with(QUICKSTART, &[&format!("{}={value}", key.path)]);
            }
        }
    }
    assert!(problems(&["model.hidden=1000000000000"]).contains("from 1 to 16777216, not 1000000000000"));
    assert!(problems(&["model.hidden=1e12"]).contains("not 1000000000000.0"));
    assert!(problems(&["model.hidden=16777212"]).contains("more than any machine holds"));
    assert!(
        problems(&["train.batch=16777216", "model.sequence=16777216"])
            .contains("more than any machine holds")
    );
}

#[test]
fn numbers_that_are_none_are_refused() {
    for value in ["nan", "inf", "-inf", "1e999", "0", "-1", "true", "\"1\"", "[1]"] {
        let sets = format!("train.learning_rate={value}");
        assert!(
            problems(&[&sets]).contains("`train.learning_rate` must be a number above 0, not "),
            "{value}"
        );
    }
}

#[test]
fn numbers_at_the_ends_of_what_32_bits_tell_apart_are_refused() {
    for key in ["model.dropout", "train.beta1", "train.beta2"] {
        assert!(problems(&[&format!("{key}=0.99999999")]).contains("in [0, 0.999999]"), "{key}");
        assert!(resolve_with(QUICKSTART, &[&format!("{key}=0.999999")]).is_ok(), "{key}");
        assert!((0.999_999_f64 as f32) < 1.0);
    }
    for key in ["train.epsilon", "model.norm_epsilon"] {
        assert!(problems(&[&format!("{key}=1e-46")]).contains("of at least 1e-30"), "{key}");
        assert!(resolve_with(QUICKSTART, &[&format!("{key}=1e-30")]).is_ok(), "{key}");
        assert!((1e-30_f64 as f32) > 0.0);
    }
    for value in ["1e-20", "9e-7", "0.9999999"] {
        assert!(problems(&[&format!("data.validation={value}")]).contains("in [1e-6, 0.999999]"), "{value}");
    }
    assert!(resolve_with(QUICKSTART, &["data.validation=1e-6"]).is_ok());
    assert!(problems(&["run.timeout_s=1e-9"]).contains("in [0.001, 1000000]"));
    assert!(problems(&["parallel.tensor=65"]).contains("from 1 to 64"));
}

#[test]
fn a_schedule_is_no_longer_than_can_be_built() {
    let sets = ["model.layers=100", "train.batch=4096", "schedule.micro_batches=1024"];
    let long = resolve_with(QUICKSTART, &sets).unwrap_err();
    assert_eq!(
        long.to_string(),
        "--set: the schedule would be too long: `model.layers` = 100 × `schedule.micro_batches` = 1024 × \
         `schedule.sub_batches` = 2 is 204800, more than 200000"
    );
    assert!(format!("{long:?}").contains("set `schedule.micro_batches` to 512, or"), "{long:?}");
    assert!(
        resolve_with(QUICKSTART, &["model.layers=100", "train.batch=4000", "schedule.micro_batches=1000"])
            .is_ok()
    );
    let deep = resolve_with(QUICKSTART, &["model.layers=65536", "schedule.sub_batches=4"]).unwrap_err();
    assert!(format!("{deep:?}").contains("with 4 sub-batches a model can have 50000 layers"), "{deep:?}");
}

#[test]
fn the_warmup_that_is_suggested_works() {
    let sets = ["train.steps=6", "train.warmup=50"];
    let hint = format!("{:?}", resolve_with(QUICKSTART, &sets).unwrap_err());
    assert!(
        hint.contains("set `train.warmup` to at most 6, for example with `--set train.warmup=1`;"),
        "{hint}"
    );
    assert!(resolve_with(QUICKSTART, &["train.steps=6", "train.warmup=1"]).is_ok());
}

#[test]
fn unknown_names_lead_to_the_nearest() {
    let hint = |sets: &[&str]| format!("{:?}", resolve_with(QUICKSTART, sets).unwrap_err());
    for (set, expected) in [
        ("model.hiden=4", "did you mean `model.hidden`?"),
        ("model.batch=4", "did you mean `train.batch`?"),
        ("train.lr=1", "[train] has steps, batch, learning_rate"),
        ("layers=4", "it belongs under `[model]`"),
        ("modle.layers=4", "the nearest section is `[model]`"),
        ("model=4", "write its keys on lines below `[model]`"),
        ("hidden_size=4", "the nearest key is `model.hidden`"),
        ("schedule.name=megatorn", "did you mean \\\"megatron\\\"?"),
    ] {
        assert!(hint(&[set]).contains(expected), "{set}: {}", hint(&[set]));
    }
}

#[test]
fn any_text_is_an_error_or_a_configuration_but_no_panic() {
    // Every prefix of a good file, and the file with each of its lines left out.
    for end in (0..QUICKSTART.len()).filter(|end| QUICKSTART.is_char_boundary(*end)) {
        let _ = resolve_with(&QUICKSTART[..end], &[]);
    }
    let lines: Vec<&str> = QUICKSTART.lines().collect();
    for left_out in 0..lines.len() {
        let mut rest = lines.clone();
        rest.remove(left_out);
        let _ = resolve_with(&rest.join("\n"), &[]);
    }
    let _ = resolve_with(&"[".repeat(100_000), &[]);
    let _ = resolve_with(&format!("a = {}", "[".repeat(100_000)), &[]);
    let _ = resolve_with(&format!("a{} = 1", ".a".repeat(50_000)), &[]);
    assert!(format!("a.b={}", "[".repeat(100_000)).parse::<Override>().is_ok());
}

#[test]
fn a_family_decides_what_was_not_given() {
    let text = SLOW_LINK.replace("family = \"gpt\"\n", "family = \"llama\"\nnorm_epsilon = 1e-6\n");
    let config = resolve_with(&text, &[]).unwrap();
    let llama = oases_schedule::Model { norm_epsilon: 1e-6, ..config.model() };
    assert_eq!(config.model(), llama);
    let [hidden, layers] = [config.model.hidden, config.model.layers];
    let (heads, sequence, vocabulary) = (config.model.heads, config.model.sequence, config.model.vocabulary);
    let expected = oases_schedule::Model::llama(layers as u32, hidden, heads, sequence, vocabulary);
    assert_eq!(
        oases_schedule::Model {
            ffn: config.model.ffn,
            norm_epsilon: 1e-6,
            dropout: llama.dropout,
            ..expected
        },
        config.model()
    );
    let error = resolve_with(&text, &["model.family=gtp"]).unwrap_err();
    assert!(format!("{error:?}").contains("did you mean"), "{error:?}");
    let error = resolve_with(&text, &["model.preset=gpt3"]).unwrap_err();
    assert!(format!("{error:?}").contains("known are gpt-1024x24"), "{error:?}");
}
