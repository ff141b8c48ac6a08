//! What a schedule computes, found by executing it on numbers, on all ranks of the group at once, and the stages of a pipeline
//! in turn, each until it waits for another. Shares no code with the verifier.
//!
//! Every sequence is a row of its own and has a number that tells how its content came about. Two schedules of one layout that
//! end in the same numbers compute the same, rounding included, for any weights and any batch; two of different layouts the
//! same up to rounding. What no executor could do (read a buffer that is not there, wait for what was not started) is an
//! error; what it could do by mistake (read a sum before it is complete) as well. What it would do without noticing (add up the
//! wrong ranks, take the rows of others) ends in other numbers.

mod algebra;
mod blocks;
mod collectives;
mod wire;

use std::collections::BTreeMap;
use std::ops::Range;

use oases_schedule::{
    BlockId, CollectiveId, CollectiveKind, Cut, Instruction, PartId, Pass, Schedule, Scope, Stage,
};

use algebra::{Number, Rows};
use wire::Wire;

/// What the batch and the weights become.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Meaning {
    /// Of every sequence of a part.
    losses: BTreeMap<PartId, Vec<Number>>,
    step: Option<Number>,
    /// In which order the gradients were added up, on every rank.
    rounding: Vec<Number>,
}

impl Meaning {
    /// Whether it is the same up to rounding. Does not depend on the layout.
    pub(crate) fn agrees(&self, other: &Meaning) -> bool {
        (&self.losses, self.step) == (&other.losses, other.step)
    }
}

/// Executes a schedule on numbers.
pub(crate) fn meaning(schedule: &Schedule) -> Result<Meaning, String> {
    meaning_of_stages(std::slice::from_ref(schedule))
}

/// Executes the schedules of all stages of a pipeline.
pub(crate) fn meaning_of_stages(schedules: &[Schedule]) -> Result<Meaning, String> {
    let mut wire = Wire::new(schedules.len());
    let mut machines: Vec<Machine> = schedules.iter().map(Machine::new).collect();
    let mut next = vec![0; schedules.len()];
    loop {
        let mut moved = false;
        for (stage, machine) in machines.iter_mut().enumerate() {
            while let Some(&instruction) = schedules[stage].instructions.get(next[stage]) {
                let done = machine.execute(instruction, &mut wire);
                if !done.map_err(|message| format!("stage {stage}, `{instruction}`: {message}"))? {
                    break;
                }
                next[stage] += 1;
                moved = true;
            }
        }
        if next.iter().zip(schedules).all(|(&next, schedule)| next == schedule.instructions.len()) {
            break;
        }
        if !moved {
            return Err("the stages wait for each other".into());
        }
    }
    result(machines)
}

/// What all stages come to together.
fn result(machines: Vec<Machine>) -> Result<Meaning, String> {
    let mut losses = BTreeMap::new();
    let (mut rounding, mut steps) = (Vec::new(), Vec::new());
    for machine in machines {
        let ended = machine.result()?;
        losses.extend(ended.losses);
        rounding.extend(ended.rounding);
        steps.extend(ended.step);
    }
    let mut all = BTreeMap::new();
    for (gradients, norm) in &steps {
        if *norm != steps[0].1 {
            return Err("stages disagree about the norm".into());
        }
        for (&place, &gradient) in gradients {
            if *all.entry(place).or_insert(gradient) != gradient {
                return Err("stages disagree about the table".into());
            }
        }
    }
    let step = steps.first().map(|(_, norm)| algebra::number(("step", all, norm)));
    Ok(Meaning { losses, step, rounding })
}

/// What one stage has come to.
struct Ended {
    losses: BTreeMap<PartId, Vec<Number>>,
    /// The gradients of its parameters, and the norm of all.
    step: Option<(BTreeMap<Place, Number>, Number)>,
    rounding: Vec<Number>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// This rank's own contribution.
    Own,
    /// A collective works on it.
    Moving(CollectiveId),
    /// The same on all ranks that it concerns, or private to this one for good.
    Done,
}

#[derive(Clone, Debug)]
struct Buffer {
    rows: Rows,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    /// `x[k]`.
    X(usize, PartId),
    /// What block k adds to `x[k]`.
    Y(usize, PartId),
    /// What the backward of block k needs besides `x[k]` and what its attention core puts out.
    Activations(usize, PartId),
    /// What the attention core of block k puts out.
    Core(usize, PartId),
    /// What the weight gradients of block k are made of.
    Delta(usize, PartId),
    /// `dLoss/dx[k]`, of the sequences of block k.
    Dx(usize, PartId),
    /// The same, of the sequences of block k - 1, where these are others.
    Dealt(usize, PartId),
    Norm,
}

/// A value that is made piece by piece. Each piece carries the rows of the whole.
struct Pieces {
    of: u8,
    cut: Cut,
    made: Vec<Buffer>,
}

/// A pass through a block that has stopped before its last product.
#[derive(Clone)]
struct Body {
    rows: Rows,
    /// What the product reads, where that is a buffer that others read too.
    operand: Option<Name>,
}

/// The gradients that a backward adds to: of the normalisation, and of everything else in a block.
type Place = (usize, bool);

/// Gradients of one place, rank by rank: of a normalisation one number, of everything else one for each replica's slot.
#[derive(Clone)]
struct Sum {
    values: Rows,
    /// What was added after what.
    orders: Vec<Number>,
}

#[derive(Default)]
struct Machine {
    chain: Vec<BlockId>,
    stage: Option<Stage>,
    ranks: usize,
    degrees: Vec<usize>,
    parts: BTreeMap<PartId, usize>,
    buffers: BTreeMap<Name, Buffer>,
    /// Inputs to drop as soon as the next block has been fed.
    dropped: Vec<Name>,
    pieces: BTreeMap<Name, Pieces>,
    bodies: BTreeMap<(Pass, usize, PartId), Body>,
    /// Backwards whose weight gradients are still to come, and whether they alone hold the gradient of their output.
    owed: BTreeMap<(usize, PartId), bool>,
    /// The accumulated gradients of every block; of the embedding's and the head's, the weights are in common.
    gradients: BTreeMap<Place, Sum>,
    /// Reductions of gradients, and whether they have arrived.
    reductions: BTreeMap<CollectiveId, State>,
    /// The part whose rows are being added to a normalisation's gradients.
    adding: BTreeMap<usize, PartId>,
    forwarded: Vec<(usize, PartId)>,
    started: Vec<CollectiveId>,
    /// What is under way between stages: its kind, and its place in its queue.
    across: BTreeMap<CollectiveId, (CollectiveKind, usize)>,
    /// Tables that were summed with other stages, or are being: those stages, and the place in their queue.
    joined: BTreeMap<CollectiveId, (Vec<usize>, usize)>,
    losses: BTreeMap<PartId, Vec<Option<Number>>>,
    step: Option<(BTreeMap<Place, Number>, Number)>,
}

impl Machine {
    fn new(schedule: &Schedule) -> Machine {
        let blocks = Schedule::blocks(schedule.layers);
        Machine {
            chain: (0..blocks).map(|position| BlockId::at(position, schedule.layers)).collect(),
            stage: Some(schedule.stage.clone()),
            ranks: schedule.layout.group() as usize,
            degrees: schedule.layout.degrees().iter().map(|&degree| degree as usize).collect(),
            parts: schedule.parts.iter().map(|part| (part.id, part.sequences as usize)).collect(),
            ..Machine::default()
        }
    }

    fn stage(&self) -> &Stage {
        self.stage.as_ref().expect("every machine is one of a stage")
    }

    /// Whether block k is another stage's neighbour of block k - 1.
    fn crosses(&self, k: usize) -> bool {
        self.stage().stages.crosses(k)
    }

    /// Whether block k does not find its input where block k - 1 left it.
    fn apart(&self, k: usize) -> bool {
        self.border(k) || self.crosses(k)
    }

    /// The position of a block that this stage runs.
    fn own(&self, block: BlockId) -> Result<usize, String> {
        let k = self.position(block)?;
        if self.stage().runs(k) { Ok(k) } else { Err(format!("{block} is another stage's")) }
    }

    fn head(&self) -> usize {
        self.chain.len() - 1
    }

    fn position(&self, block: BlockId) -> Result<usize, String> {
        self.chain.iter().position(|&found| found == block).ok_or_else(|| format!("no {block}"))
    }

    /// Whether block k has other sequences than the block before.
    fn border(&self, k: usize) -> bool {
        k > 0 && self.degrees[k - 1] != self.degrees[k]
    }

    /// Which sequences of a part a rank has in block k.
    fn share(&self, k: usize, rank: usize, part: PartId) -> Result<Range<usize>, String> {
        let sequences = *self.parts.get(&part).ok_or_else(|| format!("no {part}"))?;
        let (replica, replicas) = (rank / self.degrees[k], self.ranks / self.degrees[k]);
        if !sequences.is_multiple_of(replicas) {
            return Err(format!("{replicas} replicas cannot share {sequences} sequences"));
        }
        let share = sequences / replicas;
        Ok(replica * share..(replica + 1) * share)
    }

    /// One row per sequence of block k on every rank, from rank, its place in the replica, and the sequence.
    fn rows(
        &self,
        k: usize,
        part: PartId,
        row: impl Fn(usize, usize, usize) -> Number,
    ) -> Result<Rows, String> {
        let of_rank = |rank: usize| {
            let share = self.share(k, rank, part)?;
            Ok(share.map(|sequence| row(rank, rank % self.degrees[k], sequence)).collect())
        };
        (0..self.ranks).map(of_rank).collect()
    }

    fn read(&self, name: Name) -> Result<Rows, String> {
        if let Some(pieces) = self.pieces.get(&name) {
            let whole = pieces.made.len() == usize::from(pieces.of)
                && pieces.made.iter().all(|piece| piece.state == State::Done);
            return match whole && pieces.made.windows(2).all(|pair| pair[0].rows == pair[1].rows) {
                true => Ok(pieces.made[0].rows.clone()),
                false => Err(format!("{name:?} is in pieces")),
            };
        }
        match self.buffers.get(&name) {
            Some(buffer) if buffer.state == State::Done => Ok(buffer.rows.clone()),
            Some(buffer) => Err(format!("{name:?} is {:?}", buffer.state)),
            None => Err(format!("{name:?} is not there")),
        }
    }

    fn take(&mut self, name: Name) -> Result<Rows, String> {
        let rows = self.read(name)?;
        self.buffers.remove(&name);
        self.pieces.remove(&name);
        Ok(rows)
    }

    /// Writing over a partial sum or over a complete value loses it.
    fn write(&mut self, name: Name, rows: Rows, state: State) -> Result<(), String> {
        let lost =
            self.pieces.contains_key(&name) || self.buffers.insert(name, Buffer { rows, state }).is_some();
        if lost { Err(format!("{name:?} is overwritten")) } else { Ok(()) }
    }

    /// The state of what a rank computed alone and a collective in groups of `ranks` completes.
    fn alone(ranks: usize) -> State {
        if ranks == 1 { State::Done } else { State::Own }
    }

    /// Executes an instruction; returns whether it could, or has to wait for another stage.
    fn execute(&mut self, instruction: Instruction, wire: &mut Wire) -> Result<bool, String> {
        let weights = matches!(
            instruction,
            Instruction::Start { collective: CollectiveId::Weights(_), .. }
                | Instruction::Sync { collective: CollectiveId::Weights(_) }
        );
        if self.step.is_some() != weights {
            return Err("it is on the wrong side of the step".into());
        }
        match instruction {
            Instruction::Forward { block, part, keep, extent } => {
                self.forward(self.own(block)?, part, keep, extent)?;
            }
            Instruction::Recompute { block, part, extent } => {
                self.recompute(self.own(block)?, part, extent)?;
            }
            Instruction::Loss { part } => self.loss(part)?,
            Instruction::Tail { pass, block, part, piece } => {
                self.tail(pass, self.own(block)?, part, piece)?;
            }
            Instruction::Backward { block, part, scope: Scope::Weight } => {
                self.weights(self.own(block)?, part)?;
            }
            Instruction::Backward { block, part, scope } => self.backward(self.own(block)?, part, scope)?,
            Instruction::Reshard { pass, block, part } => self.reshard(pass, self.own(block)?, part)?,
            Instruction::Complete { pass, block, part } => {
                self.complete(pass, self.position(block)?, part)?;
            }
            Instruction::Start { collective, kind, axis, grouping } => {
                self.start(collective, kind, (axis, grouping), wire)?;
            }
            Instruction::Sync { collective } => return self.sync(collective, wire),
            Instruction::Norm => self.norm()?,
            Instruction::Step => self.step()?,
        }
        Ok(true)
    }

    fn result(self) -> Result<Ended, String> {
        let moving = |state: &State| matches!(state, State::Moving(_));
        let pieces = self.pieces.values().flat_map(|pieces| &pieces.made);
        let flying = self.buffers.values().chain(pieces).any(|buffer| moving(&buffer.state))
            || self.reductions.values().any(moving);
        let lost = |(part, losses): (PartId, Vec<Option<Number>>)| {
            losses.into_iter().collect::<Option<Vec<Number>>>().map(|losses| (part, losses))
        };
        if (self.step.is_none() && !self.gradients.is_empty()) || flying || !self.bodies.is_empty() {
            return Err("the step is not complete".into());
        }
        self.replicas_agree()?;
        let last = self.stage().runs(self.head());
        let losses: Option<BTreeMap<_, _>> = self.losses.into_iter().map(lost).collect();
        let losses =
            losses.filter(|losses| !last || losses.len() == self.parts.len()).ok_or("losses are missing")?;
        let orders = |rank: usize| {
            algebra::number(self.gradients.values().map(|sum| sum.orders[rank]).collect::<Vec<_>>())
        };
        let rounding = (0..self.ranks).map(orders).collect();
        Ok(Ended { losses, step: self.step, rounding })
    }
}
