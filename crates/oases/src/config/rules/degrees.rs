//! The rules on TMP degrees: `parallel.tensor` ranks in a group, and `parallel.degrees` over the chain of blocks.

use std::collections::BTreeSet;

use oases_schedule::{Layout, Schedule};

use super::{BrokenRule, divides, divisors, near};
use crate::config::resolved::RunConfig;

/// The keys that a layout is read from.
const LAYOUT: [&str; 3] = ["parallel.degrees", "parallel.tensor", "model.layers"];

/// By how many replicas of blocks a micro-batch must be shared; 1 where the degrees break rules of their own.
pub(super) fn replicas(config: &RunConfig) -> usize {
    match (readable(config), of_the_group(config)) {
        (Some(layout), None) => layout.granularity() as usize,
        _ => 1,
    }
}

/// Rule 11.
pub(super) fn unreadable(config: &RunConfig) -> Option<BrokenRule> {
    let (parallel, layers) = (&config.parallel, config.model.layers);
    let problem = parallel.layout(layers).err()?;
    let (tensor, blocks) = (parallel.tensor, Schedule::blocks(layers as u32));
    Some(BrokenRule {
        keys: LAYOUT.to_vec(),
        message: format!("`parallel.degrees` = \"{}\": {problem}", parallel.degrees),
        hint: format!(
            "give runs over the {blocks} blocks embed, attn.0, mlp.0, …, head, such as \"{tensor}*1 1*{} {tensor}*1\", \
             or one degree for all",
            blocks - 2
        ),
    })
}

/// Rule 2: of the degrees that are used, not of the group.
pub(super) fn of_the_model(config: &RunConfig) -> Option<BrokenRule> {
    let (heads, ffn) = (config.model.heads, config.model.ffn);
    // Degrees that fit heads which do not fit the model would mislead; rule 1 has told about those.
    if super::heads(config).is_some() {
        return None;
    }
    let fits = |degree: usize| divides(degree, heads) && divides(degree, ffn);
    let misfit = distinct(&readable(config)?).into_iter().find(|degree| !fits(*degree))?;
    let mut keys = LAYOUT.to_vec();
    let mut whole = Vec::new();
    for (key, value) in [("model.heads", heads), ("model.ffn", ffn)] {
        if !divides(misfit, value) {
            keys.push(key);
            whole.push(format!("`{key}` = {value}"));
        }
    }
    let subject = match config.parallel.degrees.is_empty() {
        true => {
            keys.retain(|key| *key != "parallel.degrees");
            format!("`parallel.tensor` = {misfit}")
        }
        false => format!("degree {misfit} of `parallel.degrees`"),
    };
    let fitting: Vec<usize> = divisors(heads).into_iter().filter(|degree| fits(*degree)).collect();
    Some(BrokenRule {
        keys,
        message: format!("{subject} does not divide {}", whole.join(" and ")),
        hint: format!("degrees that fit this model: {}", near(&fitting, misfit)),
    })
}

/// Rule 12.
pub(super) fn of_the_group(config: &RunConfig) -> Option<BrokenRule> {
    let tensor = config.parallel.tensor;
    let misfit = distinct(&readable(config)?).into_iter().find(|degree| !divides(*degree, tensor))?;
    Some(BrokenRule {
        keys: LAYOUT.to_vec(),
        message: format!(
            "degree {misfit} of `parallel.degrees` does not divide `parallel.tensor` = {tensor}"
        ),
        hint: format!("degrees that do: {}", near(&divisors(tensor), misfit)),
    })
}

/// Rule 13.
pub(super) fn of_neighbours(config: &RunConfig) -> Option<BrokenRule> {
    let layout = readable(config)?;
    let nested = |pair: &&[u32]| pair[0].max(pair[1]).is_multiple_of(pair[0].min(pair[1]));
    let (position, pair) = layout.degrees().windows(2).enumerate().find(|(_, pair)| !nested(pair))?;
    let tensor = config.parallel.tensor;
    let between = |degree: &usize| {
        pair.iter().all(|&side| divides(*degree, side as usize) || divides(side as usize, *degree))
    };
    let fitting: Vec<usize> = divisors(tensor).into_iter().filter(between).collect();
    Some(BrokenRule {
        keys: LAYOUT.to_vec(),
        message: format!(
            "`parallel.degrees` gives the neighbouring blocks {} and {} the degrees {} and {}, of which neither divides the \
             other",
            name(position, layout.degrees().len()),
            name(position + 1, layout.degrees().len()),
            pair[0],
            pair[1]
        ),
        hint: format!("degrees that could stand next to both: {}", near(&fitting, pair[0] as usize)),
    })
}

/// Rule 14.
pub(super) fn of_the_ends(config: &RunConfig) -> Option<BrokenRule> {
    let layout = readable(config)?;
    let (first, last) = (layout.degree(0), layout.degree(layout.degrees().len() - 1));
    if first == last {
        return None;
    }
    Some(BrokenRule {
        keys: LAYOUT.to_vec(),
        message: format!("`parallel.degrees` gives the embedding degree {first} and the head degree {last}"),
        hint: format!(
            "both have the same, since they may share a table: begin with \"{last}*1\", or end with \"{first}*1\""
        ),
    })
}

/// Rule 15.
pub(super) fn of_replicas(config: &RunConfig) -> Option<BrokenRule> {
    let (batch, micro_batches) = (config.train.batch, config.schedule.micro_batches);
    let (replicas, parallel) = (replicas(config), &config.parallel);
    if !divides(micro_batches, batch) {
        return None;
    }
    let micro_batch = batch / micro_batches;
    if divides(replicas, micro_batch) {
        return None;
    }
    let unit = replicas.saturating_mul(micro_batches);
    let batches: Vec<String> =
        [batch / unit * unit, (batch / unit + 1).saturating_mul(unit)].iter().map(usize::to_string).collect();
    let batches = if batch < unit { batches[1].clone() } else { batches.join(" or ") };
    let shared = |degree: &usize| divides(parallel.group() / degree, micro_batch);
    let fitting: Vec<usize> = divisors(parallel.tensor).into_iter().filter(shared).collect();
    let instead = match fitting.is_empty() {
        false => format!("degrees with which this one can be shared: {}", near(&fitting, 1)),
        true => format!(
            "a `parallel.data` that divides a micro-batch: {}",
            near(&divisors(micro_batch), parallel.data)
        ),
    };
    Some(BrokenRule {
        keys: [&["train.batch", "schedule.micro_batches", "parallel.data"], &LAYOUT[..]].concat(),
        message: format!(
            "a micro-batch of {micro_batch} sequences cannot be shared equally by the {replicas} replicas of a block"
        ),
        hint: format!("a batch of {batches}, or {instead}"),
    })
}

/// The layout, if it can be read.
pub(super) fn readable(config: &RunConfig) -> Option<Layout> {
    config.parallel.layout(config.model.layers).ok()
}

fn distinct(layout: &Layout) -> BTreeSet<usize> {
    layout.degrees().iter().map(|&degree| degree as usize).collect()
}

/// A block by its place in a chain of `blocks`.
pub(super) fn name(position: usize, blocks: usize) -> String {
    match position {
        0 => "embed".to_owned(),
        last if last + 1 == blocks => "head".to_owned(),
        inner if inner % 2 == 1 => format!("attn.{}", inner / 2),
        inner => format!("mlp.{}", inner / 2 - 1),
    }
}
