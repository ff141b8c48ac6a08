//! What a family and a preset of models say: defaults for keys of `[model]` that were not given.

use toml::Value;

use super::document::{Document, Entry, Origin};
use crate::error::UserError;

/// A default: the name of a key of `[model]`, and its value as TOML.
type Default = (&'static str, &'static str);

/// What the families decide, in the order of [`super::keys::FAMILIES`]. What is not named here is as in a GPT.
const FAMILIES: &[(&str, &[&[Default]])] = &[
    ("gpt", &[]),
    ("llama", &[LLAMA]),
    ("mistral", &[LLAMA]),
    ("qwen2", &[&[("biases", "\"qkv\""), ("norm_epsilon", "1e-6"), ("rope_theta", "1000000.0")], LLAMA]),
    ("qwen3", &[&[("head_norm", "true"), ("norm_epsilon", "1e-6"), ("rope_theta", "1000000.0")], LLAMA]),
    (
        "bert",
        &[&[
            ("placement", "\"post\""),
            ("norm_epsilon", "1e-12"),
            ("activation", "\"gelu_erf\""),
            ("attention", "\"bidirectional\""),
            ("token_types", "2"),
            ("head", "\"transform\""),
        ]],
    ),
];

const LLAMA: &[Default] = &[
    ("tied", "false"),
    ("norm", "\"rms_norm\""),
    ("positions", "\"rotary\""),
    ("activation", "\"swiglu\""),
    ("biases", "\"none\""),
];

/// Known models. The first eleven are those of the paper (arXiv 2305.16121, section 5.1, and Narayanan et al., arXiv 2104.04473, table 1);
/// the others are as published on the hub under these names.
pub const PRESETS: &[(&str, &[Default])] = &[
    ("gpt-1024x24", &[GPT, ("layers", "24"), ("hidden", "1024"), ("heads", "16"), PAPER, WORDS]),
    ("gpt-2048x24", &[GPT, ("layers", "24"), ("hidden", "2048"), ("heads", "32"), PAPER, WORDS]),
    ("gpt-3072x24", &[GPT, ("layers", "24"), ("hidden", "3072"), ("heads", "48"), PAPER, WORDS]),
    ("gpt-4096x16", &[GPT, ("layers", "16"), ("hidden", "4096"), ("heads", "64"), PAPER, WORDS]),
    ("gpt-6144x16", &[GPT, ("layers", "16"), ("hidden", "6144"), ("heads", "96"), PAPER, WORDS]),
    ("gpt-8192x8", &[GPT, ("layers", "8"), ("hidden", "8192"), ("heads", "128"), PAPER, WORDS]),
    ("gpt-12288x4", &[GPT, ("layers", "4"), ("hidden", "12288"), ("heads", "192"), PAPER, WORDS]),
    (
        "gpt-7.5b",
        &[GPT, ("layers", "36"), ("hidden", "4096"), ("heads", "32"), ("sequence", "2048"), MEGATRON],
    ),
    (
        "gpt-18.4b",
        &[GPT, ("layers", "40"), ("hidden", "6144"), ("heads", "48"), ("sequence", "2048"), MEGATRON],
    ),
    (
        "gpt-39.1b",
        &[GPT, ("layers", "48"), ("hidden", "8192"), ("heads", "64"), ("sequence", "2048"), MEGATRON],
    ),
    (
        "llama-65b",
        &[
            ("family", "\"llama\""),
            ("layers", "80"),
            ("hidden", "8192"),
            ("heads", "64"),
            ("ffn", "22016"),
            ("sequence", "2048"),
            ("vocabulary", "32000"),
            ("norm_epsilon", "1e-6"),
        ],
    ),
    ("gpt2", &[GPT, ("layers", "12"), ("hidden", "768"), ("heads", "12"), ("sequence", "1024"), WORDS]),
    (
        "llama-2-7b",
        &[
            ("family", "\"llama\""),
            ("layers", "32"),
            ("hidden", "4096"),
            ("heads", "32"),
            ("ffn", "11008"),
            ("sequence", "4096"),
            ("vocabulary", "32000"),
        ],
    ),
    (
        "llama-3-8b",
        &[
            ("family", "\"llama\""),
            ("layers", "32"),
            ("hidden", "4096"),
            ("heads", "32"),
            ("kv_heads", "8"),
            ("ffn", "14336"),
            ("sequence", "8192"),
            ("vocabulary", "128256"),
            ("rope_theta", "500000.0"),
        ],
    ),
    (
        "mistral-7b",
        &[
            ("family", "\"mistral\""),
            ("layers", "32"),
            ("hidden", "4096"),
            ("heads", "32"),
            ("kv_heads", "8"),
            ("ffn", "14336"),
            ("sequence", "8192"),
            ("window", "4096"),
            ("vocabulary", "32000"),
        ],
    ),
    (
        "qwen2.5-0.5b",
        &[
            ("family", "\"qwen2\""),
            ("layers", "24"),
            ("hidden", "896"),
            ("heads", "14"),
            ("kv_heads", "2"),
            ("ffn", "4864"),
            ("sequence", "8192"),
            ("vocabulary", "151936"),
            ("tied", "true"),
        ],
    ),
    (
        "qwen3-0.6b",
        &[
            ("family", "\"qwen3\""),
            ("layers", "28"),
            ("hidden", "1024"),
            ("heads", "16"),
            ("kv_heads", "8"),
            ("head_dim", "128"),
            ("ffn", "3072"),
            ("sequence", "8192"),
            ("vocabulary", "151936"),
            ("tied", "true"),
        ],
    ),
    (
        "bert-base",
        &[
            ("family", "\"bert\""),
            ("layers", "12"),
            ("hidden", "768"),
            ("heads", "12"),
            ("sequence", "512"),
            ("vocabulary", "30522"),
        ],
    ),
];

const GPT: Default = ("family", "\"gpt\"");
const PAPER: Default = ("sequence", "1024");
const WORDS: Default = ("vocabulary", "50257");
/// Padded to a multiple of 1024, as in the paper that published these sizes.
const MEGATRON: Default = ("vocabulary", "51200");

/// Gives the keys of `[model]` that were not given the values that a preset or a family has for them.
pub(super) fn fill_in(document: &mut Document) -> Result<(), UserError> {
    if let Some(Value::String(name)) = document.entries.get("model.preset").map(|entry| &entry.value) {
        let Some((_, defaults)) = PRESETS.iter().find(|(known, _)| known == name) else {
            let known: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
            let place = document.place("model.preset");
            return Err(UserError::new(
                format!("{place}: `model.preset` = \"{name}\" is no known model"),
                format!("known are {}", known.join(", ")),
            ));
        };
        add(document, defaults);
    }
    let family = match document.entries.get("model.family").map(|entry| &entry.value) {
        Some(Value::String(family)) => family.clone(),
        _ => return Ok(()),
    };
    let layers = FAMILIES.iter().find(|(known, _)| *known == family).map_or(&[][..], |(_, layers)| layers);
    layers.iter().for_each(|defaults| add(document, defaults));
    Ok(())
}

fn add(document: &mut Document, defaults: &[Default]) {
    for (name, text) in defaults {
        let parsed: toml::Table = format!("value = {text}").parse().expect("the tables hold TOML");
        let entry = Entry { value: parsed["value"].clone(), origin: Origin::Family };
        document.entries.entry(format!("model.{name}")).or_insert(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys;
    use super::*;

    fn model_of(preset: &str) -> oases_schedule::Model {
        let text = format!(
            "[model]\npreset = \"{preset}\"\n[data]\ntext = \"x\"\n[train]\nsteps = 1\nbatch = 2\nlearning_rate = 1.0\n"
        );
        super::super::resolve("x.toml", &text, &[], "x").unwrap_or_else(|error| panic!("{error:?}")).model()
    }

    #[test]
    fn every_family_has_its_defaults_and_every_default_its_key() {
        let families: Vec<&str> = FAMILIES.iter().map(|(name, _)| *name).collect();
        assert_eq!(families, keys::FAMILIES);
        let of_families = FAMILIES.iter().flat_map(|(_, layers)| layers.iter().copied().flatten());
        let of_presets = PRESETS.iter().flat_map(|(_, defaults)| defaults.iter());
        for (name, text) in of_families.chain(of_presets) {
            assert!(keys::find(&format!("model.{name}")).is_some(), "{name}");
            assert!(format!("value = {text}").parse::<toml::Table>().is_ok(), "{name} = {text}");
        }
    }

    /// Of the hub's models the numbers that their pages give; of Megatron's the rounded ones of table 1; LLaMA-65B has 65.2 billion
    /// (Touvron et al., arXiv 2302.13971, table 2).
    #[test]
    fn presets_have_the_published_numbers_of_parameters() {
        for (preset, published) in [
            ("gpt2", 124_439_808),
            ("llama-2-7b", 6_738_415_616),
            ("llama-3-8b", 8_030_261_248),
            ("mistral-7b", 7_241_732_096),
            ("qwen2.5-0.5b", 494_032_768),
            ("qwen3-0.6b", 596_049_920),
            ("bert-base", 109_514_298),
        ] {
            assert_eq!(model_of(preset).parameter_count(), published, "{preset}");
        }
        for (preset, billions) in
            [("gpt-7.5b", 7.5), ("gpt-18.4b", 18.4), ("gpt-39.1b", 39.1), ("llama-65b", 65.2)]
        {
            let found = model_of(preset).parameter_count() as f64 / 1e9;
            assert!((found - billions).abs() <= 0.1, "{preset}: {found}");
        }
        PRESETS.iter().for_each(|(preset, _)| assert_eq!(model_of(preset).check(1), Ok(()), "{preset}"));
    }
}
