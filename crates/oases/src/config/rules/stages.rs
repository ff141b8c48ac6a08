//! The rules on pipeline stages: `parallel.pipeline` of them, with `parallel.chunks` pieces of the chain of blocks each.

use oases_schedule::{BlockId, Layout, Schedule, Stages};

use super::{BrokenRule, degrees, divides, divisors, near};
use crate::config::resolved::RunConfig;

/// The keys that stages are read from.
const STAGES: [&str; 4] = ["parallel.stages", "parallel.pipeline", "parallel.chunks", "model.layers"];

/// Rule 16.
pub(super) fn single(config: &RunConfig) -> Option<BrokenRule> {
    let chunks = config.parallel.chunks;
    (config.parallel.pipeline == 1 && chunks > 1).then(|| BrokenRule {
        keys: vec!["parallel.chunks", "parallel.pipeline"],
        message: format!("`parallel.chunks` = {chunks} needs several stages, and `parallel.pipeline` = 1"),
        hint: "leave `parallel.chunks` out, or set `parallel.pipeline` to 2 or more".to_owned(),
    })
}

/// Rule 17.
pub(super) fn too_many(config: &RunConfig) -> Option<BrokenRule> {
    let (parallel, blocks) = (&config.parallel, Schedule::blocks(config.model.layers as u32));
    let pieces = parallel.pipeline * parallel.chunks;
    if pieces <= blocks {
        return None;
    }
    let (pipeline, chunks) = (parallel.pipeline, parallel.chunks);
    let hint = match blocks / pipeline {
        0 | 1 => format!("at most {blocks} stages, of one piece each"),
        most => format!("at most {most} pieces on each of {pipeline} stages, or fewer stages"),
    };
    Some(BrokenRule {
        keys: vec!["parallel.pipeline", "parallel.chunks", "model.layers"],
        message: format!(
            "`parallel.pipeline` = {pipeline} stages of `parallel.chunks` = {chunks} are {pieces} pieces of a chain of \
             {blocks} blocks"
        ),
        hint,
    })
}

/// Rule 18.
pub(super) fn unreadable(config: &RunConfig) -> Option<BrokenRule> {
    if config.parallel.stages.is_empty() || single(config).or_else(|| too_many(config)).is_some() {
        return None;
    }
    let problem = config.parallel.stages(&config.model()).err()?;
    let pieces = config.parallel.pipeline * config.parallel.chunks;
    let blocks = Schedule::blocks(config.model.layers as u32);
    let example: Vec<String> = (0..pieces)
        .map(|piece| BlockId::at(piece * blocks / pieces, config.model.layers as u32).to_string())
        .take(8)
        .collect();
    Some(BrokenRule {
        keys: STAGES.to_vec(),
        message: format!("`parallel.stages` = \"{}\": {problem}", config.parallel.stages),
        hint: format!(
            "name the first block of {}, such as \"{}\", or leave it out",
            if pieces == 1 { "the only piece".to_owned() } else { format!("each of {pieces} pieces") },
            example.join(" ")
        ),
    })
}

/// Rule 19.
pub(super) fn interleaved(config: &RunConfig) -> Option<BrokenRule> {
    let (pipeline, micro_batches) = (config.parallel.pipeline, config.schedule.micro_batches);
    if config.parallel.chunks == 1 || divides(pipeline, micro_batches) || single(config).is_some() {
        return None;
    }
    let round: Vec<usize> =
        divisors(config.train.batch).into_iter().filter(|count| divides(pipeline, *count)).collect();
    let instead = match round.is_empty() {
        true => format!("a batch that is a multiple of {pipeline}"),
        false => format!("micro-batches of this batch that are: {}", near(&round, micro_batches)),
    };
    Some(BrokenRule {
        keys: vec!["schedule.micro_batches", "parallel.pipeline", "parallel.chunks", "train.batch"],
        message: format!(
            "with `parallel.chunks` = {} micro-batches go round the stages in groups, and `schedule.micro_batches` = \
             {micro_batches} is no multiple of `parallel.pipeline` = {pipeline}",
            config.parallel.chunks
        ),
        hint: format!("`parallel.chunks` = 1, or {instead}"),
    })
}

/// Rule 20.
pub(super) fn of_neighbours(config: &RunConfig) -> Option<BrokenRule> {
    let layout = degrees::readable(config)?;
    let other_rules = [single(config), too_many(config), super::size(config)];
    if layout.uniform_degree().is_some() || other_rules.iter().any(Option::is_some) {
        return None;
    }
    let stages = config.parallel.stages(&config.model()).ok()?;
    let position = cut_at_a_border(&layout, &stages)?;
    let blocks = layout.degrees().len();
    let side = |position: usize| (degrees::name(position, blocks), layout.degree(position));
    let ((before, left), (after, right)) = (side(position - 1), side(position));
    Some(BrokenRule {
        keys: [&["parallel.degrees", "parallel.tensor"], &STAGES[..]].concat(),
        message: format!(
            "{before} and {after} are on different stages and have the TMP degrees {left} and {right}"
        ),
        hint: "cut the chain where the degree stays: name the first block of each piece in `parallel.stages`"
            .to_owned(),
    })
}

/// The first position at which both the stage and the TMP degree change.
fn cut_at_a_border(layout: &Layout, stages: &Stages) -> Option<usize> {
    let differs = |position: &usize| layout.degree(*position - 1) != layout.degree(*position);
    (1..layout.degrees().len()).filter(|&position| stages.crosses(position)).find(differs)
}
