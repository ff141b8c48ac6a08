//! Which steps hold everything that must be measured.

use std::collections::BTreeSet;

use oases_exec::comm::Link;
use oases_schedule::{
    Cut, Instruction, Layout, Model, Operation, Optimizer, Request, Schedule, Stage, Stages, Variant,
};

use super::ComputeKey;
use crate::trial::Contender;

/// What must be measured to predict schedules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// What their instructions do; those that reshard are in `borders`.
    pub compute: BTreeSet<ComputeKey>,
    /// Between which TMP degrees they reshard.
    pub borders: BTreeSet<Border>,
    /// At which TMP degrees replicas share the optimizer, which reduces and gathers by other collectives.
    pub sharded: BTreeSet<u32>,
    /// TMP degrees of blocks on one of several stages: buckets of gradients differ from those of a single stage, and the ends of the
    /// chain may share a table.
    pub staged: BTreeSet<u32>,
}

/// Two TMP degrees between which a part of the batch is resharded, in either direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Border {
    /// The lower degree and the higher one.
    pub degrees: [u32; 2],
    /// Sequences of the part, on all ranks together.
    pub sequences: u32,
}

impl Needs {
    /// What one schedule needs.
    pub fn of(schedule: &Schedule) -> Needs {
        let mut needs = Needs::default();
        let degrees: BTreeSet<u32> = schedule.layout.degrees().iter().copied().collect();
        if schedule.optimizer == Optimizer::Sharded {
            needs.sharded.clone_from(&degrees);
        }
        if schedule.stage.stages.count() > 1 {
            needs.staged.clone_from(&degrees);
        }
        for instruction in &schedule.instructions {
            match (*instruction, instruction.operation()) {
                (Instruction::Reshard { pass, block, part }, _) => {
                    let mut degrees = schedule.resharded(pass, block).map(|block| schedule.degree(block));
                    degrees.sort_unstable();
                    let sequences = schedule.sequences(part).unwrap_or(0);
                    needs.borders.insert(Border { degrees, sequences });
                }
                (_, Some(operation)) if !operation.is_on_part() => needs
                    .compute
                    .extend(degrees.iter().map(|&degree| ComputeKey::on_parameters(operation, degree))),
                _ => needs.compute.extend(ComputeKey::on_part(schedule, instruction)),
            }
        }
        needs
    }

    /// What the schedules of a variant need that differ from `request` in their layout only: any layout of these degrees in
    /// the group of the request's. Layouts that its micro-batches cannot be shared by are left out.
    pub fn of_any_layout(variant: &Variant, request: &Request, degrees: &BTreeSet<u32>) -> Needs {
        let (ranks, blocks) = (request.layout.group(), request.layout.degrees().len());
        let uniform = |degree: u32| {
            let layout = Layout::new(ranks, vec![degree; blocks]);
            variant.build(&Request { layout, ..request.clone() })
        };
        let mut needs = Needs::default();
        // How a micro-batch is cut into parts depends on how many replicas share it; what is done with a part does not.
        for granularity in granularities(ranks, degrees) {
            let shares = request.sequences / granularity;
            if !request.sequences.is_multiple_of(granularity) || request.sub_batches > shares {
                continue;
            }
            let parts = uniform(ranks / granularity).parts;
            let parts: BTreeSet<u32> = parts.iter().map(|part| part.sequences).collect();
            let fitting: Vec<u32> =
                degrees.iter().copied().filter(|degree| granularity.is_multiple_of(ranks / degree)).collect();
            for &degree in &fitting {
                let sizes: Vec<u32> = parts.iter().map(|sequences| sequences / (ranks / degree)).collect();
                needs.compute.extend(resized(Needs::of(&uniform(degree)).compute, &sizes));
            }
            for (low, high) in nested_pairs(&fitting) {
                needs
                    .borders
                    .extend(parts.iter().map(|&sequences| Border { degrees: [low, high], sequences }));
            }
        }
        needs
    }

    /// The same on these numbers of sequences of one rank instead.
    pub fn on_sequences(self, sizes: &[u32], ranks: u32) -> Needs {
        let mut borders = BTreeSet::new();
        for &Border { degrees: [low, high], .. } in &self.borders {
            for &size in sizes {
                // On a rank on the side of the lower degree, and on one on the other side.
                borders.insert(Border { degrees: [low, high], sequences: size * (ranks / low) });
                if (size * low).is_multiple_of(high) {
                    borders.insert(Border { degrees: [low, high], sequences: size * (ranks / high) });
                }
            }
        }
        Needs { compute: resized(self.compute, sizes), borders, ..self }
    }

    /// Takes in what others need.
    pub fn extend(&mut self, others: Needs) {
        self.compute.extend(others.compute);
        self.borders.extend(others.borders);
        self.sharded.extend(others.sharded);
        self.staged.extend(others.staged);
    }
}

/// By how many replicas layouts of these degrees may have to share a micro-batch: all least common multiples.
fn granularities(ranks: u32, degrees: &BTreeSet<u32>) -> BTreeSet<u32> {
    let mut all = BTreeSet::from([1]);
    for replicas in degrees.iter().map(|degree| ranks / degree) {
        let joint = |common: &u32| {
            (1..=replicas).map(|factor| factor * common).find(|multiple| multiple.is_multiple_of(replicas))
        };
        let joined: Vec<u32> = all.iter().filter_map(joint).collect();
        all.extend(joined);
    }
    all
}

/// Those of which one divides the other, the lower one first.
fn nested_pairs(degrees: &[u32]) -> impl Iterator<Item = (u32, u32)> {
    let pairs = degrees.iter().flat_map(|&low| degrees.iter().map(move |&high| (low, high)));
    pairs.filter(|(low, high)| low < high && high.is_multiple_of(*low))
}

/// The same operations at the same degrees on these numbers of sequences.
fn resized(keys: BTreeSet<ComputeKey>, sizes: &[u32]) -> BTreeSet<ComputeKey> {
    let all = |key: ComputeKey| {
        let sizes = if key.operation.is_on_part() { sizes.to_vec() } else { vec![0] };
        sizes.into_iter().map(move |sequences| ComputeKey { sequences, ..key })
    };
    keys.into_iter().flat_map(all).collect()
}

/// Steps of groups of `ranks` ranks that together hold all that is needed. What none of the schedules to choose from has is left out.
pub fn references(needs: &Needs, ranks: u32, model: &Model, link: Option<Link>) -> Vec<Contender> {
    let layers = model.layers;
    let blocks = Schedule::blocks(layers);
    let mut left = needs.compute.clone();
    let mut references = Vec::new();
    let on_parts = needs.compute.iter().filter(|key| key.operation.is_on_part());
    let sizes: BTreeSet<(u32, u32)> = on_parts.map(|key| (key.degree, key.sequences)).collect();
    for (degree, sequences) in sizes {
        let layout = Layout::new(ranks, vec![degree; blocks]);
        for (name, request) in uniform_requests(needs, layout, layers, sequences * (ranks / degree)) {
            let Some(variant) = Variant::find(name) else { continue };
            let schedule = waited_for_at_once(variant.build(&request));
            let before = left.len();
            let held = Needs::of(&schedule).compute;
            left.retain(|key| !held.contains(key));
            if left.len() < before {
                references.push(Contender::new(schedule, link));
            }
        }
    }
    let bordering = needs.borders.iter().filter_map(|&border| across(border, ranks, layers));
    references.extend(bordering.map(|schedule| Contender::new(schedule, link)));
    let crossing = left.iter().filter(|key| matches!(key.operation, Operation::Complete(_)));
    let mut crossings: BTreeSet<(u32, u32)> = crossing.map(|key| (key.degree, key.sequences)).collect();
    let crossed: BTreeSet<u32> = crossings.iter().map(|(degree, _)| *degree).collect();
    crossings.extend(needs.staged.difference(&crossed).map(|&degree| (degree, 1)));
    for (degree, sequences) in crossings {
        let optimizers =
            [Some(Optimizer::Whole), needs.sharded.contains(&degree).then_some(Optimizer::Sharded)];
        references.extend(optimizers.into_iter().flatten().map(|optimizer| {
            let layout = Layout::new(ranks, vec![degree; blocks]);
            let request =
                Request { layout, optimizer, ..Request::new(layers, 1, sequences * (ranks / degree)) };
            Contender { stages: two_stages(request, model), link, lasts: None }
        }));
    }
    let sharded = needs.sharded.iter().filter(|degree| **degree < ranks);
    references.extend(sharded.map(|&degree| {
        let layout = Layout::new(ranks, vec![degree; blocks]);
        let plain = Request { layout, sub_batches: 1, ..Request::new(layers, 1, ranks / degree) };
        let none = Variant::find("none").expect("the plainest schedule");
        let schedule = none.build(&Request { optimizer: Optimizer::Sharded, ..plain });
        Contender::new(waited_for_at_once(schedule), link)
    }));
    references
}

/// A blocking step of two stages, for what happens where the chain crosses from one to the other.
fn two_stages(request: Request, model: &Model) -> Vec<Schedule> {
    let stages = Stages::new(2, vec![0, model.layers as usize + 1], model.tied);
    let none = Variant::find("none").expect("the plainest schedule");
    none.build_stages(&Request { stage: Stage { stages, index: 0 }, sub_batches: 1, ..request })
}

/// The first backward of a step writes gradients, later ones add to them, which takes longer (measured: 5 to 9 % of a step).
/// Of three, two add, so the median is that of adding, as in a step of many parts.
const MICRO_BATCHES: u32 = 3;

/// Schedules of whole micro-batches.
fn uniform_requests(
    needs: &Needs,
    layout: Layout,
    layers: u32,
    sequences: u32,
) -> Vec<(&'static str, Request)> {
    let plain = Request {
        layout,
        micro_batches: MICRO_BATCHES,
        sub_batches: 1,
        ..Request::new(layers, 1, sequences)
    };
    let mut requests = vec![
        ("megatron", plain.clone()),
        ("oases", plain.clone()),
        ("megatron-ss", plain.clone()),
        ("oases-w", plain.clone()),
    ];
    let cuts: BTreeSet<(u8, Cut)> = needs
        .compute
        .iter()
        .filter_map(|key| match key.operation {
            Operation::Tail(_, _, pieces, cut) => Some((pieces, cut)),
            _ => None,
        })
        .collect();
    requests.extend(
        cuts.into_iter().map(|(pieces, cut)| ("decomposed", Request { pieces, cut, ..plain.clone() })),
    );
    requests
}

/// The same with each collective waited for where it is started, so that it is measured: those of pieces run under the next
/// piece otherwise.
fn waited_for_at_once(mut schedule: Schedule) -> Schedule {
    let mut instructions = Vec::with_capacity(schedule.instructions.len());
    for instruction in schedule.instructions {
        if matches!(instruction, Instruction::Sync { .. }) {
            continue;
        }
        instructions.push(instruction);
        if let Instruction::Start { collective, .. } = instruction {
            instructions.push(Instruction::Sync { collective });
        }
    }
    schedule.instructions = instructions;
    schedule
}

/// A blocking step whose attentions have the lower degree and all other blocks the higher one, so that it crosses the border
/// in both directions, in forward and in backward. `None` where the part cannot be shared so.
fn across(border: Border, ranks: u32, layers: u32) -> Option<Schedule> {
    let Border { degrees: [low, high], sequences } = border;
    let degree =
        |position: usize| if position % 2 == 1 && position <= 2 * layers as usize { low } else { high };
    let layout = Layout::new(ranks, (0..Schedule::blocks(layers)).map(degree).collect());
    if !sequences.is_multiple_of(layout.granularity()) {
        return None;
    }
    let request = Request { layout, sub_batches: 1, ..Request::new(layers, 1, sequences) };
    Variant::find("none").map(|variant| variant.build(&request))
}
