//! What the blocks of a layer take at one TMP degree: read off a schedule of one layer, so that it is what will be executed.

use oases_schedule::{
    BlockId, Bytes, CollectiveId, Family, Instruction, Keeps, Layout, Model, Operation, Pass, Plan, Purpose,
    Request, Schedule, Slot, Statics, collective_bytes, plan,
};

use super::Task;
use crate::costs::{Costs, Reach};
use crate::error::Error;
use crate::simulate::durations;
use crate::time::Nanoseconds;

/// One block in one micro-batch, by sub-batch, on one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockTimes {
    pub forward: Vec<Nanoseconds>,
    /// What is left of the forward's collectives.
    pub forward_reduce: Vec<Nanoseconds>,
    pub recompute: Vec<Nanoseconds>,
    pub backward: Vec<Nanoseconds>,
    /// Collectives of recomputation and backward.
    pub backward_reduce: Vec<Nanoseconds>,
    /// The sum of the gradients over the block's replicas, once in a step.
    pub replicas: Nanoseconds,
    /// The block's share of norm and optimizer, once in a step.
    pub update: Nanoseconds,
    /// Weights, gradients and moments.
    pub parameter_bytes: Bytes,
    /// What lives from forward to backward.
    pub kept_bytes: Bytes,
}

impl BlockTimes {
    fn new(parts: usize) -> BlockTimes {
        let zeros = || vec![Nanoseconds::ZERO; parts];
        BlockTimes {
            forward: zeros(),
            forward_reduce: zeros(),
            recompute: zeros(),
            backward: zeros(),
            backward_reduce: zeros(),
            ..BlockTimes::default()
        }
    }
}

/// Every kind of block at one degree.
#[derive(Clone, Debug)]
pub(crate) struct LayerTimes {
    blocks: [BlockTimes; 4],
    /// Sequences of each sub-batch, over all ranks.
    pub parts: Vec<u32>,
}

impl LayerTimes {
    pub(crate) fn of(&self, family: Family) -> &BlockTimes {
        &self.blocks[family as usize]
    }

    /// Reads the times off the schedule of the task for a model of one layer, all of whose blocks have this degree and keep
    /// this much.
    pub(crate) fn measure(task: &Task<'_>, degree: u32, keep: &Keeps) -> Result<LayerTimes, Error> {
        let model = Model { layers: 1, ..task.model.clone() };
        let layout = Layout::new(task.request.layout.group(), vec![degree; Schedule::blocks(1)]);
        let request = Request {
            layers: 1,
            micro_batches: 1,
            layout: layout.clone(),
            keep: keep.clone(),
            ..task.request.clone()
        };
        let schedule = task.variant.build(&request);
        let statics =
            Statics::new(&model, &layout, Purpose::Training, schedule.batch(), schedule.parts.len());
        let memory = plan(&schedule, &statics, task.workspace);
        let mut blocks = [(); 4].map(|()| BlockTimes::new(schedule.parts.len()));
        add_times(&mut blocks, &schedule, &memory, task.costs)?;
        add_updates(&mut blocks, task, degree)?;
        add_kept(&mut blocks, &schedule, &memory);
        Ok(LayerTimes { blocks, parts: schedule.parts.iter().map(|part| part.sequences).collect() })
    }
}

fn add_times(
    blocks: &mut [BlockTimes; 4],
    schedule: &Schedule,
    memory: &Plan,
    costs: &dyn Costs,
) -> Result<(), Error> {
    let lasts = durations(schedule, memory, costs)?;
    let index_of =
        |part| schedule.parts.iter().position(|known| known.id == part).expect("a part of the batch");
    for (index, instruction) in schedule.instructions.iter().enumerate() {
        let Some(block) = block_of(instruction) else { continue };
        let times = &mut blocks[Family::from(block) as usize];
        let part = instruction.part().map(index_of);
        match (instruction, instruction.pass(), part) {
            (Instruction::Start { collective, kind, grouping, .. }, pass, part) => {
                let bytes = collective_bytes(schedule, memory, index).expect("a start has a buffer");
                let reach = Reach::of(*grouping, schedule.layout.group());
                let time = costs.named_collective(*collective, *kind, bytes, reach)?;
                let link = time.link.max(time.host);
                match (pass, part) {
                    (Some(Pass::Forward), Some(part)) => times.forward_reduce[part] += link,
                    (Some(_), Some(part)) => times.backward_reduce[part] += link,
                    _ => times.replicas += link,
                }
            }
            (Instruction::Sync { .. }, ..) | (_, _, None) => {}
            // The loss stands behind the head's forward.
            (_, None | Some(Pass::Forward), Some(part)) => times.forward[part] += lasts[index],
            (_, Some(Pass::Recompute), Some(part)) => times.recompute[part] += lasts[index],
            (_, Some(Pass::Backward), Some(part)) => times.backward[part] += lasts[index],
        }
    }
    Ok(())
}

fn block_of(instruction: &Instruction) -> Option<BlockId> {
    match *instruction {
        Instruction::Start { collective, .. } | Instruction::Sync { collective } => match collective {
            CollectiveId::Gradients(_) | CollectiveId::Norm => None,
            other => other.block(),
        },
        Instruction::Loss { .. } => Some(BlockId::Head),
        _ => instruction.block(),
    }
}

/// The optimizer passes over parameters: each block has the share that it has in those of the whole model.
fn add_updates(blocks: &mut [BlockTimes; 4], task: &Task<'_>, degree: u32) -> Result<(), Error> {
    let mut elements = [0_u64; 4];
    for parameter in task.model.parameters() {
        elements[Family::from(parameter.block) as usize] += parameter.local_elements(degree) as u64;
    }
    let total = elements.iter().sum::<u64>() as f64;
    let ends = [Operation::Norm, Operation::Step];
    let step = ends.iter().try_fold(0.0, |sum, &operation| {
        task.costs.compute(operation, 0, degree).map(|time| sum + time.0 as f64)
    })?;
    // Weights, gradients and two moments.
    let copies = 4 * size_of::<f32>() as u64;
    for (family, elements) in Family::ALL.into_iter().zip(elements) {
        let times = &mut blocks[family as usize];
        let in_model =
            if matches!(family, Family::Attn | Family::Mlp) { u64::from(task.model.layers) } else { 1 };
        times.update = Nanoseconds((step * elements as f64 / total / in_model as f64).round() as u64);
        times.parameter_bytes = Bytes(copies * elements / in_model);
    }
    Ok(())
}

/// What is alive when forward ends and backward begins: inputs belong to the block that reads them, and what lives inside a
/// block to that one.
fn add_kept(blocks: &mut [BlockTimes; 4], schedule: &Schedule, memory: &Plan) {
    let losses =
        schedule.instructions.iter().rposition(|instruction| matches!(instruction, Instruction::Loss { .. }));
    let turn = losses.unwrap_or(0);
    for buffer in memory.buffers.iter().filter(|buffer| buffer.birth < turn && buffer.death > turn) {
        let Some(born) = schedule.instructions[buffer.birth].block() else { continue };
        let owner = if buffer.slot == Slot::Output { schedule.after(born) } else { Some(born) };
        if let Some(owner) = owner {
            let kept = &mut blocks[Family::from(owner) as usize].kept_bytes;
            *kept = *kept + Bytes(buffer.span.bytes as u64);
        }
    }
}
