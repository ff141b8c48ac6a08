//! What `oases explain` shows: how a schedule is built, what it communicates, and what fills its memory.

use std::collections::BTreeMap;
use std::fmt;

use oases_schedule::{
    BlockId, Bytes, CollectiveId, Instruction, Operands, PartId, Pass, Plan, Purpose, Request, Schedule,
    Stage, Statics, Variant, Workspace, collective_bytes, plan,
};
use oases_schedule::{Flops, Model};
use serde::Serialize;

use super::layout::{self, Border, DegreeRun};
use super::memory::{self, MemoryKind};

/// A schedule, explained.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// Its name.
    pub schedule: String,
    /// Whose method it is.
    pub description: String,
    /// The pipeline stage that it is for, and its blocks; left out where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Parameters of the model.
    pub parameters: u64,
    /// Ranks of the group.
    pub tensor: u32,
    /// The TMP degree of every block, in words.
    pub layout: String,
    /// The same, run by run.
    pub degrees: Vec<DegreeRun>,
    /// Where it changes.
    pub borders: Vec<Border>,
    /// Sequences of each part of the batch.
    pub parts: Vec<PartSize>,
    /// Floating-point operations of the matrix products of a step, on one rank; recomputation included.
    pub flops_per_rank: u64,
    /// Collectives.
    pub collectives: Collectives,
    /// Memory of one rank.
    pub memory: Memory,
    /// The passes that built it.
    pub passes: Vec<PassResult>,
    /// The step, in the text form, with a comment at each `sync`.
    pub text: String,
}

/// A part of the batch.
#[derive(Clone, Debug, Serialize)]
pub struct PartSize {
    /// Its name.
    pub part: String,
    /// Its sequences.
    pub sequences: u32,
}

/// How often a step communicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Collectives {
    /// All-reduces of one layer for one part, in the forward pass; of the layer with most of them.
    pub per_layer_forward: usize,
    /// The same, in recomputation.
    pub per_layer_recompute: usize,
    /// The same, in the backward pass.
    pub per_layer_backward: usize,
    /// All of a layer and part.
    pub per_layer: usize,
    /// All of all layers and parts.
    pub in_layers: usize,
    /// Where the TMP degree changes, of all passes and parts.
    pub at_borders: usize,
    /// Reductions of gradients over the replicas of a block, and gathers of its parameters.
    pub of_replicas: usize,
    /// What is sent to other pipeline stages, and received from them.
    pub between_stages: usize,
    /// All collectives of a step.
    pub per_step: usize,
    /// Bytes that each rank hands over in a step.
    pub bytes_per_step: u64,
}

/// What fills a rank's arena.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Bytes of the arena: the highest byte that the step touches.
    pub arena_bytes: u64,
    /// Bytes alive at the peak, by kind; what is missing to `arena_bytes` is lost between buffers.
    pub at_peak: Vec<MemoryKind>,
    /// The instruction at which most is alive.
    pub peak_instruction: String,
}

/// A schedule after one pass.
#[derive(Clone, Debug, Serialize)]
pub struct PassResult {
    /// The pass.
    pub name: &'static str,
    /// What it does.
    pub description: &'static str,
    /// Instructions after it.
    pub instructions: usize,
    /// The text form after it; only where all passes are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl Explanation {
    /// Explains the schedule of a variant; `every_pass` keeps the text after each pass.
    pub fn new(
        model: &Model,
        variant: &Variant,
        request: &Request,
        workspace: Workspace,
        every_pass: bool,
    ) -> Explanation {
        let trace = variant.trace(request);
        let passes = trace.iter().map(|(pass, schedule)| PassResult {
            name: pass.name,
            description: pass.description,
            instructions: schedule.instructions.len(),
            text: every_pass.then(|| annotated(schedule)),
        });
        let passes = passes.collect();
        let (_, schedule) = trace.last().expect("a variant has passes");
        let statics = Statics::of(model, schedule, Purpose::Training, schedule.batch());
        let plan = plan(schedule, &statics, workspace);
        Explanation {
            schedule: schedule.name.clone(),
            description: variant.description.to_owned(),
            stage: stage(schedule),
            parameters: model.parameter_count(),
            tensor: request.layout.group(),
            layout: layout::words(&request.layout),
            degrees: layout::runs(schedule),
            borders: layout::borders(schedule),
            parts: schedule
                .parts
                .iter()
                .map(|part| PartSize { part: part.id.to_string(), sequences: part.sequences })
                .collect(),
            flops_per_rank: flops(model, schedule, &plan).0,
            collectives: Collectives::count(schedule, &plan),
            memory: Memory::at_peak(schedule, &statics, &plan),
            passes,
            text: annotated(schedule),
        }
    }
}

/// `1 of 2: attn.2 to head`; `None` where there is one stage.
fn stage(schedule: &Schedule) -> Option<String> {
    let Stage { stages, index } = &schedule.stage;
    let block = |position| BlockId::at(position, schedule.layers);
    let chunk = |chunk| {
        let range = stages.range(chunk, Schedule::blocks(schedule.layers));
        match range.len() {
            1 => block(range.start).to_string(),
            _ => format!("{} to {}", block(range.start), block(range.end - 1)),
        }
    };
    let chunks: Vec<String> = schedule.stage.chunks().map(chunk).collect();
    (stages.count() > 1).then(|| format!("{index} of {}: {}", stages.count(), chunks.join(", ")))
}

/// How many instructions are named that a collective ran under.
const NAMED: usize = 4;

/// One line for each stage of a pipeline: its blocks, what its ranks hold, and how much it does.
pub fn overview(stages: &[Explanation]) -> String {
    let rows: Vec<[String; 3]> = stages
        .iter()
        .map(|stage| {
            let instructions = stage.passes.last().map_or(0, |pass| pass.instructions);
            let blocks = stage.stage.clone().unwrap_or_default();
            [blocks, Bytes(stage.memory.arena_bytes).to_string(), format!("{instructions} instructions")]
        })
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let [blocks, bytes, instructions] = [0, 1, 2].map(width);
    let line = |row: &[String; 3]| {
        format!(";   stage {:<blocks$}   arena {:>bytes$}   {:>instructions$}\n", row[0], row[1], row[2])
    };
    rows.iter().map(line).collect()
}

/// The text form, with a comment at each `sync`: what the collective ran under.
fn annotated(schedule: &Schedule) -> String {
    let mut started = BTreeMap::new();
    let mut comments = BTreeMap::new();
    for (index, instruction) in schedule.instructions.iter().enumerate() {
        match *instruction {
            Instruction::Start { collective, .. } => drop(started.insert(collective, index)),
            Instruction::Sync { collective } => {
                let start = started.get(&collective).copied().unwrap_or(index);
                let under: Vec<String> = schedule.instructions[start..index]
                    .iter()
                    .filter(|i| !matches!(i, Instruction::Start { .. } | Instruction::Sync { .. }))
                    .map(without_options)
                    .collect();
                let others = under.len().saturating_sub(NAMED);
                let comment = if under.is_empty() {
                    "exposed".to_owned()
                } else {
                    let named = under[..under.len() - others].join(", ");
                    let others = if others > 0 { format!(" and {others} others") } else { String::new() };
                    format!("ran under {named}{others}")
                };
                comments.insert(index, comment);
            }
            _ => {}
        }
    }
    let text = schedule.to_string();
    let header = text.lines().count() - schedule.instructions.len();
    let lines = text.lines().enumerate().map(|(line, text)| {
        match line.checked_sub(header).and_then(|index| comments.get(&index)) {
            Some(comment) => format!("{text:<36} ; {comment}\n"),
            None => format!("{text}\n"),
        }
    });
    lines.collect()
}

/// `forward attn.0 m0.a`
fn without_options(instruction: &Instruction) -> String {
    let text = instruction.to_string();
    let words = text.split_whitespace().filter(|word| !word.starts_with("keep=") && *word != "output");
    words.collect::<Vec<_>>().join(" ")
}

impl Collectives {
    fn count(schedule: &Schedule, plan: &Plan) -> Collectives {
        let part = schedule.parts[0].id;
        let passes = [Pass::Forward, Pass::Recompute, Pass::Backward];
        let of_layer = |layer| {
            passes.map(|pass| schedule.instructions.iter().filter(|i| starts(i, pass, layer, part)).count())
        };
        // Of layers with equally many, the first.
        let layers = (0..schedule.layers).rev().map(of_layer);
        let [forward, recompute, backward] =
            layers.max_by_key(|counts| counts.iter().sum::<usize>()).unwrap_or_default();
        let named = |of: fn(&CollectiveId) -> bool| {
            let collectives = schedule.instructions.iter().filter_map(|instruction| match instruction {
                Instruction::Start { collective, .. } => Some(collective),
                _ => None,
            });
            collectives.filter(|collective| of(collective)).count()
        };
        let all =
            || (0..schedule.instructions.len()).filter_map(|index| collective_bytes(schedule, plan, index));
        Collectives {
            per_layer_forward: forward,
            per_layer_recompute: recompute,
            per_layer_backward: backward,
            per_layer: forward + recompute + backward,
            in_layers: named(|collective| {
                matches!(collective, CollectiveId::Block { block: BlockId::Attn(_) | BlockId::Mlp(_), .. })
            }),
            at_borders: named(|collective| matches!(collective, CollectiveId::Reshard { .. })),
            of_replicas: named(|collective| {
                matches!(collective, CollectiveId::Replicas(_) | CollectiveId::Weights(_))
            }),
            between_stages: named(|collective| matches!(collective, CollectiveId::Transfer { .. })),
            per_step: all().count(),
            bytes_per_step: all().sum::<Bytes>().0,
        }
    }
}

/// Whether the instruction starts a collective of a layer for a part, in a pass.
fn starts(instruction: &Instruction, wanted: Pass, layer: u32, of: PartId) -> bool {
    let Instruction::Start { collective: CollectiveId::Block { pass, block, part, .. }, .. } = *instruction
    else {
        return false;
    };
    pass == wanted && part == of && (block == BlockId::Attn(layer) || block == BlockId::Mlp(layer))
}

fn flops(model: &Model, schedule: &Schedule, plan: &Plan) -> Flops {
    let of = |(instruction, operands): (&Instruction, &Operands)| match instruction.operation() {
        Some(operation) if operation.is_on_part() => {
            model.flops(operation, operands.sequences * model.sequence, operands.degree).0
        }
        _ => 0,
    };
    Flops(schedule.instructions.iter().zip(&plan.operands).map(of).sum())
}

impl Memory {
    fn at_peak(schedule: &Schedule, statics: &Statics, plan: &Plan) -> Memory {
        let statics =
            [statics.region_bytes(), statics.moment_bytes(), statics.bytes].map(|bytes| Bytes(bytes as u64));
        let at_peak = memory::kinds(statics, &plan.alive(plan.peak_instruction));
        Memory {
            arena_bytes: plan.bytes.0,
            at_peak,
            peak_instruction: schedule.instructions[plan.peak_instruction].to_string(),
        }
    }
}

impl Explanation {
    /// Which blocks have which TMP degree, and what happens where it changes.
    fn write_layout(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, ";\n; TMP degrees in a group of {} ranks", self.tensor)?;
        for DegreeRun { degree, replicas, first, last, blocks } in &self.degrees {
            let (span, unit) = match blocks {
                1 => (first.clone(), "block"),
                _ => (format!("{first} to {last}"), "blocks"),
            };
            let replicas = if *replicas > 1 { format!(", each {replicas} times") } else { String::new() };
            writeln!(f, ";   {degree:>2}   {span:<18} {blocks:>3} {unit}{replicas}")?;
        }
        for border in &self.borders {
            let Border { before, from, to } = border;
            writeln!(f, ";   before {before}, {from} to {to}: {}", border.meaning())?;
        }
        Ok(())
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "; {}: {}", self.schedule, self.description)?;
        if let Some(stage) = &self.stage {
            writeln!(f, "; stage {stage}")?;
        }
        writeln!(f, ";")?;
        for pass in &self.passes {
            writeln!(
                f,
                ";   {:<18} {:>6} instructions   {}",
                pass.name, pass.instructions, pass.description
            )?;
        }
        if !self.borders.is_empty() {
            self.write_layout(f)?;
        }
        let Collectives { per_layer_forward, per_layer_recompute, per_layer_backward, .. } = self.collectives;
        writeln!(f, ";\n; collectives")?;
        writeln!(
            f,
            ";   {}{} all-reduces per layer and sub-batch: {per_layer_forward} forward, {per_layer_recompute} recompute, \
             {per_layer_backward} backward",
            if self.borders.is_empty() { "" } else { "up to " },
            self.collectives.per_layer
        )?;
        let Collectives {
            per_step, in_layers, at_borders, of_replicas, between_stages, bytes_per_step, ..
        } = self.collectives;
        write!(f, ";   {per_step} collectives per step: {in_layers} of layers, ")?;
        for (count, of) in
            [(at_borders, "at borders"), (of_replicas, "of replicas"), (between_stages, "between stages")]
        {
            if count > 0 {
                write!(f, "{count} {of}, ")?;
            }
        }
        writeln!(
            f,
            "{} of embedding, head, gradients and norm; {} from each rank",
            per_step - in_layers - at_borders - of_replicas - between_stages,
            Bytes(bytes_per_step)
        )?;
        writeln!(f, ";\n; memory of one rank, at `{}`", collapse(&self.memory.peak_instruction))?;
        for MemoryKind { kind, bytes } in &self.memory.at_peak {
            writeln!(f, ";   {kind:<22} {:>12}", Bytes(*bytes).to_string())?;
        }
        let sum: u64 = self.memory.at_peak.iter().map(|kind| kind.bytes).sum();
        let gaps = self.memory.arena_bytes.saturating_sub(sum);
        writeln!(f, ";   {:<22} {:>12}", "gaps between buffers", Bytes(gaps).to_string())?;
        writeln!(
            f,
            ";   {:<22} {:>12}   ({} B)",
            "arena",
            Bytes(self.memory.arena_bytes).to_string(),
            self.memory.arena_bytes
        )?;
        writeln!(
            f,
            ";\n; {} parameters, {}, {:.3} TFLOP per step and rank\n;\n\
             ; m0.a is sub-batch a of micro-batch 0. `forward … keep=` says what stays for backward, `recompute` rebuilds the\n\
             ; rest (`output`: up to the block's output), `sync` waits for the collective that `start` began.\n",
            self.parameters,
            self.layout,
            self.flops_per_rank as f64 / 1e12
        )?;
        for pass in &self.passes {
            if let Some(text) = &pass.text {
                writeln!(f, "; after `{}`\n\n{text}", pass.name)?;
            }
        }
        if self.passes.iter().all(|pass| pass.text.is_none()) {
            f.write_str(&self.text)?;
        }
        Ok(())
    }
}

/// Several spaces as one.
fn collapse(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use oases_schedule::Stages;

    fn schedule(variant: &str) -> Schedule {
        let request = Request::new(2, 2, 4);
        Variant::find(variant).unwrap().build(&request)
    }

    #[test]
    fn the_commented_text_is_the_schedule() {
        let schedule = schedule("oases");
        assert_eq!(Schedule::parse(&annotated(&schedule)), Ok(schedule));
    }

    #[test]
    fn comments_say_what_a_collective_ran_under() {
        let text = annotated(&schedule("oases"));
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap().to_owned();
        assert!(line("sync      f.attn.0.m0.a").ends_with("; ran under forward attn.0 m0.b"));
        assert!(
            line("sync      b.mlp.1.m0.a")
                .ends_with("; ran under recompute mlp.1 m0.b, backward mlp.1 m0.b, recompute attn.1 m0.a")
        );
        assert!(line("sync      g.0").ends_with("; exposed"));
        let blocking = annotated(&schedule("megatron"));
        let syncs = blocking.lines().filter(|line| line.starts_with("sync"));
        assert!(syncs.into_iter().all(|line| line.ends_with("; exposed")));
    }

    /// Of the twelve forwards between start and sync, four are named.
    #[test]
    fn of_many_instructions_a_comment_names_the_first() {
        let request = Request { micro_batches: 1, sub_batches: 1, ..Request::new(6, 2, 4) };
        let mut schedule = Variant::find("none").unwrap().build(&request);
        let embed = |i: &Instruction| i.to_string().starts_with("sync") && i.to_string().contains("f.embed");
        let from = schedule.instructions.iter().position(embed).unwrap();
        let sync = schedule.instructions.remove(from);
        let loss = schedule
            .instructions
            .iter()
            .position(|i| matches!(i, Instruction::Forward { block: BlockId::Head, .. }));
        schedule.instructions.insert(loss.unwrap(), sync);
        let text = annotated(&schedule);
        let line = text.lines().find(|line| line.starts_with("sync      f.embed")).unwrap();
        assert!(
            line.ends_with(
                "; ran under forward attn.0 m0, forward mlp.0 m0, forward attn.1 m0, forward mlp.1 m0 and 8 others"
            ),
            "{line}"
        );
    }

    /// Two layers on two stages of two pieces: embed and attn.0, mlp.0, attn.1, and mlp.1 and the head.
    #[test]
    fn a_stage_names_its_blocks() {
        let explained = |index| {
            let stages = Stages::new(2, vec![0, 2, 3, 4], true);
            let request =
                Request { stage: Stage { stages, index }, micro_batches: 2, ..Request::new(2, 2, 2) };
            let variant = Variant::find("none").unwrap();
            Explanation::new(&Model::gpt(2, 16, 4, 8, 32), variant, &request, Workspace::default(), false)
        };
        let stages = [0, 1].map(explained);
        let overview = overview(&stages);
        assert_eq!(overview.lines().count(), 2);
        assert!(
            overview.lines().next().unwrap().starts_with(";   stage 0 of 2: embed to attn.0, attn.1   arena")
        );
        assert_eq!(stages[0].stage.as_deref(), Some("0 of 2: embed to attn.0, attn.1"));
        assert_eq!(stages[1].stage.as_deref(), Some("1 of 2: mlp.0, mlp.1 to head"));
        // Four parts of the batch cross three times in each direction; each stage has an end of every crossing.
        assert_eq!(stages.map(|stage| stage.collectives.between_stages), [24; 2]);
        assert_eq!(stage(&schedule("none")), None);
    }
}
