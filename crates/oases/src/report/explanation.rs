//! What `oases explain` shows: how a schedule is built, what it communicates, and what fills its memory.

use std::collections::BTreeMap;
use std::fmt;

use oases_schedule::{
    BlockId, Bytes, CollectiveId, Instruction, PartId, Pass, Plan, Purpose, Request, Schedule, Statics,
    Variant, Workspace, collective_bytes, plan,
};
use oases_schedule::{BufferKind, Flops, Model};
use serde::Serialize;

/// A schedule, explained.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// Its name.
    pub schedule: String,
    /// Whose method it is.
    pub description: String,
    /// Parameters of the model.
    pub parameters: u64,
    /// TMP degree.
    pub tensor: u32,
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
    /// All-reduces of one layer for one part, in the forward pass.
    pub per_layer_forward: usize,
    /// The same, in recomputation.
    pub per_layer_recompute: usize,
    /// The same, in the backward pass.
    pub per_layer_backward: usize,
    /// All of a layer and part.
    pub per_layer: usize,
    /// All of all layers and parts.
    pub in_layers: usize,
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

/// Bytes of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryKind {
    /// What they hold.
    pub kind: &'static str,
    /// How many.
    pub bytes: u64,
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
        let tensor = request.layout.uniform_degree().expect("a layout of one degree");
        let statics =
            Statics::new(model, &request.layout, Purpose::Training, schedule.batch(), schedule.parts.len());
        let plan = plan(schedule, &statics, workspace);
        Explanation {
            schedule: schedule.name.clone(),
            description: variant.description.to_owned(),
            parameters: model.parameter_count(),
            tensor,
            parts: schedule
                .parts
                .iter()
                .map(|part| PartSize { part: part.id.to_string(), sequences: part.sequences })
                .collect(),
            flops_per_rank: flops(model, schedule, tensor).0,
            collectives: Collectives::count(schedule, &plan),
            memory: Memory::at_peak(schedule, &statics, &plan),
            passes,
            text: annotated(schedule),
        }
    }
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
                let comment = if under.is_empty() {
                    "exposed".to_owned()
                } else {
                    format!("ran under {}", under.join(", "))
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
        let of_layer = |pass| schedule.instructions.iter().filter(|i| starts_in_layer(i, pass, part)).count();
        let [forward, recompute, backward] = [Pass::Forward, Pass::Recompute, Pass::Backward].map(of_layer);
        let all =
            || (0..schedule.instructions.len()).filter_map(|index| collective_bytes(schedule, plan, index));
        Collectives {
            per_layer_forward: forward,
            per_layer_recompute: recompute,
            per_layer_backward: backward,
            per_layer: forward + recompute + backward,
            in_layers: schedule.instructions.iter().filter(|i| starts_in_some_layer(i)).count(),
            per_step: all().count(),
            bytes_per_step: all().sum::<Bytes>().0,
        }
    }
}

/// Whether the instruction starts a collective of layer 0 for this part, in this pass.
fn starts_in_layer(instruction: &Instruction, wanted: Pass, of: PartId) -> bool {
    let Instruction::Start { collective: CollectiveId::Block { pass, block, part, .. }, .. } = *instruction
    else {
        return false;
    };
    pass == wanted && part == of && matches!(block, BlockId::Attn(0) | BlockId::Mlp(0))
}

fn starts_in_some_layer(instruction: &Instruction) -> bool {
    let Instruction::Start { collective: CollectiveId::Block { block, .. }, .. } = instruction else {
        return false;
    };
    matches!(block, BlockId::Attn(_) | BlockId::Mlp(_))
}

fn flops(model: &Model, schedule: &Schedule, tensor: u32) -> Flops {
    let of = |instruction: &Instruction| {
        let (Some(operation), Some(part)) = (instruction.operation(), instruction.part()) else { return 0 };
        let sequences = schedule.sequences(part).unwrap_or(0) as usize;
        model.flops(operation, sequences * model.sequence, tensor).0
    };
    Flops(schedule.instructions.iter().map(of).sum())
}

impl Memory {
    fn at_peak(schedule: &Schedule, statics: &Statics, plan: &Plan) -> Memory {
        let region = statics.region_bytes() as u64;
        let inputs = statics.bytes as u64 - 4 * region;
        let alive = plan.alive(plan.peak_instruction);
        let mut at_peak = vec![
            MemoryKind { kind: "weights", bytes: region },
            MemoryKind { kind: "weight gradients", bytes: region },
            MemoryKind { kind: "optimizer moments", bytes: 2 * region },
            MemoryKind { kind: "tokens and losses", bytes: inputs },
        ];
        at_peak.extend(BufferKind::ALL.iter().map(|kind| MemoryKind {
            kind: kind.name(),
            bytes: alive.get(kind).copied().unwrap_or_default().0,
        }));
        Memory {
            arena_bytes: plan.bytes.0,
            at_peak,
            peak_instruction: schedule.instructions[plan.peak_instruction].to_string(),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "; {}: {}", self.schedule, self.description)?;
        writeln!(f, ";")?;
        for pass in &self.passes {
            writeln!(
                f,
                ";   {:<18} {:>6} instructions   {}",
                pass.name, pass.instructions, pass.description
            )?;
        }
        let Collectives { per_layer_forward, per_layer_recompute, per_layer_backward, .. } = self.collectives;
        writeln!(f, ";\n; collectives")?;
        writeln!(
            f,
            ";   {} all-reduces per layer and sub-batch: {per_layer_forward} forward, {per_layer_recompute} recompute, \
             {per_layer_backward} backward",
            self.collectives.per_layer
        )?;
        let Collectives { per_step, in_layers, bytes_per_step, .. } = self.collectives;
        writeln!(
            f,
            ";   {per_step} collectives per step: {in_layers} of layers, {} of embedding, head, gradients and norm; {} from \
             each rank",
            per_step - in_layers,
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
            ";\n; {} parameters, TMP degree {}, {:.3} TFLOP per step and rank\n;\n\
             ; m0.a is sub-batch a of micro-batch 0. `forward … keep=` says what stays for backward, `recompute` rebuilds the\n\
             ; rest (`output`: up to the block's output), `sync` waits for the collective that `start` began.\n",
            self.parameters,
            self.tensor,
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
}
