//! The rules between keys. Each broken one says which values would do.
//!
//! 1. `model.heads` divides `model.hidden`, where no other width of a head is given.
//! 2. Every TMP degree divides `model.heads` and `model.ffn`: every rank gets whole heads and whole columns.
//! 3. `schedule.micro_batches` divides `train.batch`.
//! 4. A micro-batch has at least one sequence for each of its sub-batches, on every replica of a block.
//! 5. `train.warmup` is at most `train.steps`.
//! 6. A step is of at most 200,000 layers × micro-batches × sub-batches: it is built as a value before anything runs.
//! 7. `schedule.keep` is something that the schedule can be asked for; runs of it cover the blocks of the layers.
//! 8. The schedule `oases-dual` has at least two micro-batches to interleave.
//! 9. `schedule.pieces` is at most `model.hidden` and the tokens of the smallest sub-batch on a replica, so that no piece is empty.
//! 10. The model and a sequence's activations are of a size that some machine could hold.
//! 11. `parallel.degrees` can be read, and covers the chain of blocks.
//! 12. Each of its degrees divides `parallel.tensor`.
//! 13. Of the degrees of two neighbours, one divides the other.
//! 14. Embedding and head have the same degree.
//! 15. The replicas of a block get equally many sequences of a micro-batch.
//! 16. A single stage has one piece of the chain.
//! 17. There are at least as many blocks as pieces of the chain.
//! 18. `parallel.stages` can be read: blocks of the chain in its order, the embedding first, one for each piece.
//! 19. With several pieces on each stage, the stages divide the micro-batches, which go round in groups of as many.
//! 20. Neighbours on different stages have the same TMP degree.
//! 21. `model.kv_heads` divides `model.heads`.
//! 22. `model.rope_scaling` can be read, and the width of a rotated head is even.
//! 23. There are at least as many learned positions as tokens in a sequence.
//! 24. There is a source of data, and a weight for each or for none.

mod degrees;
mod stages;

use oases_schedule::{Keep, Keeps, Variant};

use super::resolved::RunConfig;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenRule {
    /// The keys that it is about; it is told at the place of the first.
    pub keys: Vec<&'static str>,
    /// What is wrong.
    pub message: String,
    /// Which values would do.
    pub hint: String,
}

/// All rules that this configuration breaks. Any values are safe to ask about.
pub fn broken_rules(config: &RunConfig) -> Vec<BrokenRule> {
    [
        sources(config),
        weights(config),
        heads(config),
        key_heads(config),
        rotation(config),
        positions(config),
        degrees::unreadable(config),
        degrees::of_the_model(config),
        degrees::of_the_group(config),
        degrees::of_neighbours(config),
        degrees::of_the_ends(config),
        micro_batches(config),
        stages::single(config),
        stages::too_many(config),
        stages::unreadable(config),
        stages::interleaved(config),
        stages::of_neighbours(config),
        degrees::of_replicas(config),
        sub_batches(config),
        warmup(config),
        length(config),
        keep(config),
        dual(config),
        pieces(config),
        size(config),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn heads(config: &RunConfig) -> Option<BrokenRule> {
    let (heads, hidden) = (config.model.heads, config.model.hidden);
    // A width that was given is meant as it is.
    if divides(heads, hidden) || config.model.head_dim != hidden / heads.max(1) {
        return None;
    }
    Some(BrokenRule {
        keys: vec!["model.heads", "model.hidden"],
        message: format!("`model.heads` = {heads} does not divide `model.hidden` = {hidden}"),
        hint: format!("heads that do: {}", near(&divisors(hidden), heads)),
    })
}

fn sources(config: &RunConfig) -> Option<BrokenRule> {
    (config.data.text.is_empty() && config.data.files.is_empty()).then(|| BrokenRule {
        keys: vec!["data.text", "data.files"],
        message: "`data.text` is missing".to_owned(),
        hint: super::keys::find("data.text").map(super::keys::Key::hint).unwrap_or_default(),
    })
}

fn weights(config: &RunConfig) -> Option<BrokenRule> {
    let sources = config.data.files.len() + usize::from(!config.data.text.is_empty());
    let weights = config.data.weights.len();
    (weights > 0 && weights != sources).then(|| BrokenRule {
        keys: vec!["data.weights", "data.files", "data.text"],
        message: format!("`data.weights` has {weights} weights for {sources} sources"),
        hint: "a weight for each of `data.files`, and one more for `data.text` if there is any".to_owned(),
    })
}

fn key_heads(config: &RunConfig) -> Option<BrokenRule> {
    let (heads, kv_heads) = (config.model.heads, config.model.kv_heads);
    if divides(kv_heads, heads) {
        return None;
    }
    Some(BrokenRule {
        keys: vec!["model.kv_heads", "model.heads"],
        message: format!("`model.kv_heads` = {kv_heads} does not divide `model.heads` = {heads}"),
        hint: format!("key and value heads that do: {}", near(&divisors(heads), kv_heads)),
    })
}

fn rotation(config: &RunConfig) -> Option<BrokenRule> {
    let model = &config.model;
    if let Err(problem) = model.scaling() {
        return Some(BrokenRule {
            keys: vec!["model.rope_scaling"],
            message: format!("`model.rope_scaling` = \"{}\": {problem}", model.rope_scaling),
            hint: "for example \"linear factor=4\" or \"llama3 factor=8 low=1 high=4 original=8192\""
                .to_owned(),
        });
    }
    if model.positions != "rotary" || model.head_dim.is_multiple_of(2) {
        return None;
    }
    let width = model.head_dim;
    Some(BrokenRule {
        keys: vec!["model.head_dim", "model.hidden", "model.heads", "model.positions"],
        message: format!("heads are {width} wide, which is odd, and rotary positions turn pairs"),
        hint: format!("`model.head_dim` = {} or {}", width - 1, width + 1),
    })
}

fn positions(config: &RunConfig) -> Option<BrokenRule> {
    let (sequence, rows) = (config.model.sequence, config.model.max_positions);
    if config.model.positions != "learned" || rows >= sequence {
        return None;
    }
    Some(BrokenRule {
        keys: vec!["model.sequence", "model.max_positions"],
        message: format!("`model.sequence` = {sequence} is more than `model.max_positions` = {rows}"),
        hint: format!("sequences of at most {rows} tokens; a table of positions has no more"),
    })
}

fn micro_batches(config: &RunConfig) -> Option<BrokenRule> {
    let (batch, micro_batches) = (config.train.batch, config.schedule.micro_batches);
    if divides(micro_batches, batch) {
        return None;
    }
    let counts = near(&divisors(batch), micro_batches);
    let multiple = |factor: usize| factor.checked_mul(micro_batches).filter(|multiple| *multiple > 0);
    let quotient = batch.checked_div(micro_batches).unwrap_or(0);
    let batches: Vec<String> =
        [multiple(quotient), multiple(quotient + 1)].into_iter().flatten().map(|n| n.to_string()).collect();
    Some(BrokenRule {
        keys: vec!["train.batch", "schedule.micro_batches"],
        message: format!(
            "`train.batch` = {batch} cannot be cut into `schedule.micro_batches` = {micro_batches} equal parts"
        ),
        hint: format!("a batch of {}, or micro-batches of this one: {counts}", batches.join(" or ")),
    })
}

fn sub_batches(config: &RunConfig) -> Option<BrokenRule> {
    let (batch, micro_batches) = (config.train.batch, config.schedule.micro_batches);
    let (sub_batches, micro_batch) = (config.schedule.sub_batches, batch.checked_div(micro_batches)?);
    let replicas = degrees::replicas(config);
    if sub_batches <= micro_batch / replicas || !divides(micro_batches.saturating_mul(replicas), batch) {
        return None;
    }
    let most = micro_batch / replicas;
    let at_least = sub_batches.saturating_mul(micro_batches).saturating_mul(replicas);
    let sequences = match replicas {
        1 => format!("the sequences of a micro-batch, {micro_batch}"),
        _ => format!("the sequences of a micro-batch on each of {replicas} replicas of a block, {most}"),
    };
    Some(BrokenRule {
        keys: vec![
            "schedule.sub_batches",
            "train.batch",
            "schedule.micro_batches",
            "parallel.degrees",
            "parallel.tensor",
            "parallel.data",
        ],
        message: format!("`schedule.sub_batches` = {sub_batches} is more than {sequences}"),
        hint: format!(
            "at most {most} sub-batch{}, or a batch of at least {at_least}",
            if most == 1 { "" } else { "es" }
        ),
    })
}

fn warmup(config: &RunConfig) -> Option<BrokenRule> {
    let (warmup, steps) = (config.train.warmup, config.train.steps);
    if warmup <= steps {
        return None;
    }
    Some(BrokenRule {
        keys: vec!["train.warmup", "train.steps"],
        message: format!("`train.warmup` = {warmup} is more than `train.steps` = {steps}"),
        hint: format!(
            "set `train.warmup` to at most {steps}, for example with `--set train.warmup={}`; a tenth of the steps \
             is usual",
            (steps / 10).max(1)
        ),
    })
}

/// Layers × micro-batches × sub-batches of a step whose schedule is built and planned in seconds.
const MAX_LENGTH: usize = 200_000;

fn length(config: &RunConfig) -> Option<BrokenRule> {
    let layers = config.model.layers;
    let (micro_batches, sub_batches) = (config.schedule.micro_batches, config.schedule.sub_batches);
    let of_a_micro_batch = layers.saturating_mul(sub_batches);
    let length = of_a_micro_batch.saturating_mul(micro_batches);
    if length <= MAX_LENGTH {
        return None;
    }
    let most = MAX_LENGTH / of_a_micro_batch;
    let fitting = divisors(config.train.batch).into_iter().take_while(|count| *count <= most).last();
    let hint = match fitting {
        Some(fitting) => format!("set `schedule.micro_batches` to {fitting}, or make `model.layers` smaller"),
        None => {
            format!(
                "with {sub_batches} sub-batches a model can have {} layers",
                MAX_LENGTH / sub_batches.max(1)
            )
        }
    };
    Some(BrokenRule {
        keys: vec!["schedule.micro_batches", "model.layers", "schedule.sub_batches", "train.batch"],
        message: format!(
            "the schedule would be too long: `model.layers` = {layers} × `schedule.micro_batches` = {micro_batches} × \
             `schedule.sub_batches` = {sub_batches} is {length}, more than {MAX_LENGTH}"
        ),
        hint,
    })
}

fn keep(config: &RunConfig) -> Option<BrokenRule> {
    let (name, keep, layers) = (&config.schedule.name, &config.schedule.keep, config.model.layers);
    let keys = vec!["schedule.keep", "schedule.name", "model.layers"];
    let wanted = match Keeps::parse(keep, layers as u32) {
        Ok(wanted) => wanted,
        Err(problem) => {
            return Some(BrokenRule {
                keys,
                message: format!("`schedule.keep` = \"{keep}\": {problem}"),
                hint: format!(
                    "give runs over attn.0, mlp.0, attn.1, …, such as \"input*{layers} all*{layers}\", or one word for all"
                ),
            });
        }
    };
    let variant = Variant::find(name)?;
    if wanted.kinds().iter().all(|&kept| variant.can_keep(kept)) {
        return None;
    }
    let own = variant.keeps_always().map_or("schedule", Keep::name);
    Some(BrokenRule {
        keys,
        message: format!("`schedule.keep` = \"{keep}\" is not possible: {name} always keeps \"{own}\""),
        hint: format!("leave `schedule.keep` out, or choose another schedule than {name}"),
    })
}

fn dual(config: &RunConfig) -> Option<BrokenRule> {
    if config.schedule.name != "oases-dual" || config.schedule.micro_batches > 1 {
        return None;
    }
    Some(BrokenRule {
        keys: vec!["schedule.micro_batches", "schedule.name"],
        message: "`oases-dual` interleaves micro-batches, and `schedule.micro_batches` = 1".to_string(),
        hint: "give it at least 2 micro-batches, better 8, or choose \"oases\"".to_string(),
    })
}

fn pieces(config: &RunConfig) -> Option<BrokenRule> {
    let (schedule, model) = (&config.schedule, &config.model);
    let micro_batch = config.train.batch.checked_div(schedule.micro_batches)?;
    let smallest = (micro_batch / degrees::replicas(config)).checked_div(schedule.sub_batches)?;
    let most = model.hidden.min(smallest.saturating_mul(model.sequence));
    if schedule.name != "decomposed" || schedule.pieces <= most || smallest == 0 {
        return None;
    }
    Some(BrokenRule {
        keys: vec![
            "schedule.pieces",
            "model.hidden",
            "model.sequence",
            "train.batch",
            "schedule.micro_batches",
            "schedule.sub_batches",
            "parallel.degrees",
            "parallel.tensor",
            "parallel.data",
        ],
        message: format!("`schedule.pieces` = {} leaves pieces empty", schedule.pieces),
        hint: format!("at most {} here", counted(most, "piece")),
    })
}

/// Beyond any machine, and well below where a byte count overflows.
const MAX_BYTES: u128 = 1 << 50;

fn size(config: &RunConfig) -> Option<BrokenRule> {
    let model = &config.model;
    let wide = |value: usize| value as u128;
    let (hidden, ffn) = (wide(model.hidden), wide(model.ffn));
    // No product here can overflow: each factor is below 2^64 only in theory, and below 2^25 by `keys`.
    let layer =
        hidden.saturating_mul(hidden).saturating_mul(4) + hidden.saturating_mul(ffn).saturating_mul(2);
    let tables = wide(model.vocabulary).saturating_mul(if model.tied { 1 } else { 2 }) + wide(model.sequence);
    let parameters = layer.saturating_mul(wide(model.layers)).saturating_add(tables.saturating_mul(hidden));
    // Weight, gradient and two moments of four bytes each.
    if parameters.saturating_mul(16) > MAX_BYTES {
        return Some(BrokenRule {
            keys: vec!["model.hidden", "model.layers", "model.ffn", "model.vocabulary", "model.sequence"],
            message: format!(
                "the model would have {:.1e} parameters, more than any machine holds",
                parameters as f64
            ),
            hint: "make `model.hidden`, `model.ffn`, `model.layers` or `model.vocabulary` smaller"
                .to_string(),
        });
    }
    let micro_batch = wide(config.train.batch.checked_div(config.schedule.micro_batches)?);
    let tokens = micro_batch.saturating_mul(wide(model.sequence));
    let kept_per_token = hidden.saturating_mul(2 * wide(model.layers)) + ffn + wide(model.vocabulary);
    let activations = tokens.saturating_mul(kept_per_token).saturating_mul(4);
    if activations > MAX_BYTES {
        return Some(BrokenRule {
            keys: vec![
                "train.batch",
                "schedule.micro_batches",
                "model.sequence",
                "model.hidden",
                "model.layers",
                "model.ffn",
                "model.vocabulary",
            ],
            message: format!(
                "the activations of a micro-batch would take {:.1e} bytes, more than any machine holds",
                activations as f64
            ),
            hint: "make `train.batch` or `model.sequence` smaller, or raise `schedule.micro_batches`"
                .to_string(),
        });
    }
    None
}

/// `1 block`, `2 blocks`
pub(super) fn counted(count: usize, unit: &str) -> String {
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

fn divides(divisor: usize, value: usize) -> bool {
    value.checked_rem(divisor) == Some(0)
}

/// All divisors, in order. Values here are at most 2^26 or so: a few thousand trials.
fn divisors(value: usize) -> Vec<usize> {
    let mut small: Vec<usize> =
        (1usize..).take_while(|d| d.saturating_mul(*d) <= value).filter(|d| divides(*d, value)).collect();
    let large: Vec<usize> = small.iter().rev().map(|d| value / d).filter(|d| !small.contains(d)).collect();
    small.extend(large);
    small
}

/// The values as a list; of a long one, those around `wanted`.
fn near(values: &[usize], wanted: usize) -> String {
    const SHOWN: usize = 8;
    let below = values.partition_point(|value| *value < wanted);
    let last_start = values.len().saturating_sub(SHOWN);
    let start = below.saturating_sub(SHOWN / 2).min(last_start);
    let shown = &values[start..values.len().min(start + SHOWN)];
    shown.iter().map(|value| value.to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_are_complete_and_sorted() {
        assert_eq!(divisors(1), [1]);
        assert_eq!(divisors(36), [1, 2, 3, 4, 6, 9, 12, 18, 36]);
        assert_eq!(divisors(13), [1, 13]);
        assert_eq!(divisors(0), [0; 0]);
    }

    #[test]
    fn long_lists_show_the_values_around_the_wanted_one() {
        assert_eq!(near(&[1, 2, 3], 9), "1, 2, 3");
        assert_eq!(near(&divisors(192), 5), "1, 2, 3, 4, 6, 8, 12, 16");
        assert_eq!(near(&divisors(192), 100), "12, 16, 24, 32, 48, 64, 96, 192");
        assert_eq!(near(&[], 1), "");
    }
}
