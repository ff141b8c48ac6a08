//! `1f1b`, `interleaved` and `zero-bubble`: the order of a pipeline stage, and where it exchanges with others.
//!
//! A *slot* is what a stage does with one chunk and one micro-batch in one go: its forward, its backward, or the weight
//! gradients that were put off. Transfers are rendezvous: one is done when both ends have started it, and those before it between the
//! two stages are done. So what matters is at which borders between slots they are started and waited for.
//!
//! No two stages can wait for each other. The [`timetable`] gives every slot a start and a finish, such that it starts when what
//! it needs is finished. Then let every stage
//!
//! - start a send when the slot that made it finishes, at `t`;
//! - start the receive at its last border whose slot finishes at `t` or before, or earlier;
//! - wait for either no earlier than that.
//!
//! Whatever a stage waits for at a border is started by the other one at a border that is not later, and what that one must get
//! through before finishes earlier: by induction over the times, all get through. A transfer that [`hide_tails`] puts off until after
//! the first unit of the next slot depends on what that unit needs, which is finished at `t` too.

mod timetable;

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{BlockId, CollectiveId, Pass};
use crate::instruction::Instruction;
use crate::passes::split::{own_and_replicas, units};
use crate::passes::{Order, Request};
use crate::schedule::{CollectiveKind, Schedule, Scope};
use timetable::{Kind, Slot, Timed, Timetable};

/// The slots in the order of the stage. Every transfer stays where it is in its slot.
pub(super) fn order(schedule: &Schedule, request: &Request) -> Schedule {
    let pipeline = Pipeline::new(schedule, request);
    let mut slots: BTreeMap<Slot, Vec<Instruction>> = BTreeMap::new();
    let mut end = Vec::new();
    for unit in units(&schedule.instructions) {
        let Some(slot) = pipeline.slot(&unit[0]) else {
            end.extend_from_slice(unit);
            continue;
        };
        let (own, replicas) = own_and_replicas(unit);
        slots.entry(slot).or_default().extend_from_slice(own);
        // Behind a border stands also the sum of the gradients of the block before it, which may be put off.
        let of_border = matches!(unit[0], Instruction::Reshard { .. }) && request.order == Order::ZeroBubble;
        let summed = if of_border { Slot { kind: Kind::Weight, ..slot } } else { slot };
        slots.entry(summed).or_default().extend_from_slice(replicas);
    }
    let in_order =
        pipeline.slots().into_iter().flat_map(|timed| slots.remove(&timed.slot).unwrap_or_default());
    let mut instructions: Vec<Instruction> = in_order.collect();
    instructions.append(&mut end);
    schedule.with_instructions(instructions)
}

/// At every border between slots: start what is sent of the one, start what arrives there, and wait for both.
pub(super) fn exchange(schedule: &Schedule, request: &Request) -> Schedule {
    let pipeline = Pipeline::new(schedule, request);
    let mut borders = pipeline.borders(Ahead::Nothing);
    let mut sent: Vec<Instruction> = Vec::new();
    let mut received: BTreeMap<Slot, Vec<Instruction>> = BTreeMap::new();
    let mut instructions = Vec::with_capacity(schedule.instructions.len());
    let last = schedule.instructions.iter().rposition(|instruction| instruction.part().is_some());
    for (index, instruction) in schedule.instructions.iter().enumerate() {
        let slot = pipeline.slot(instruction);
        match (pipeline.transfer(instruction), *instruction, slot) {
            (Some(CollectiveKind::Recv), Instruction::Start { .. }, _) => {}
            (Some(CollectiveKind::Recv), sync, Some(slot)) => received.entry(slot).or_default().push(sync),
            (Some(_), sync @ Instruction::Sync { .. }, _) => sent.push(sync),
            (_, other, slot) => {
                if let Some(starts) = slot.and_then(|slot| borders.remove(&slot)) {
                    instructions.extend(starts);
                    instructions.append(&mut sent);
                }
                instructions.extend(slot.and_then(|slot| received.remove(&slot)).into_iter().flatten());
                instructions.push(other);
            }
        }
        if Some(index) == last {
            instructions.append(&mut sent);
        }
    }
    schedule.with_instructions(instructions)
}

/// Starts every receive a slot before the one that needs it, or earlier where the other side sends earlier.
pub(super) fn receive_early(schedule: &Schedule, request: &Request) -> Schedule {
    let pipeline = Pipeline::new(schedule, request);
    let mut borders = pipeline.borders(Ahead::OneSlot);
    let mut instructions = Vec::with_capacity(schedule.instructions.len());
    for instruction in &schedule.instructions {
        let starts = matches!(instruction, Instruction::Start { .. });
        if starts && pipeline.transfer(instruction) == Some(CollectiveKind::Recv) {
            continue;
        }
        let slot = pipeline.slot(instruction);
        instructions.extend(slot.and_then(|slot| borders.remove(&slot)).into_iter().flatten());
        instructions.push(*instruction);
    }
    schedule.with_instructions(instructions)
}

/// What ends a slot waits for the slot's last all-reduce: to complete and send the last part, or for the embedding's gradient. It
/// moves behind the first unit of the next slot, under which that all-reduce then runs.
pub(super) fn hide_tails(schedule: &Schedule, request: &Request) -> Schedule {
    let pipeline = Pipeline::new(schedule, request);
    let units: Vec<&[Instruction]> = units(&schedule.instructions).collect();
    let works =
        |unit: &&[Instruction]| !matches!(unit[0], Instruction::Start { .. } | Instruction::Sync { .. });
    // The units that compute, slot by slot.
    let mut slots: BTreeMap<Slot, Vec<usize>> = BTreeMap::new();
    for (index, unit) in units.iter().enumerate().filter(|(_, unit)| works(unit)) {
        if let Some(slot) = pipeline.slot(&unit[0]) {
            slots.entry(slot).or_default().push(index);
        }
    }
    let mut behind: BTreeMap<usize, usize> = BTreeMap::new();
    for pair in pipeline.slots().windows(2) {
        let [ends, begins] = [&slots[&pair[0].slot], &slots[&pair[1].slot]];
        if pipeline.has_tail(ends, &units) && pipeline.can_begin(units[begins[0]][0], pair[0], pair[1]) {
            behind.insert(begins[0], ends[ends.len() - 1]);
        }
    }
    let moved: Vec<usize> = behind.values().copied().collect();
    let mut instructions = Vec::with_capacity(schedule.instructions.len());
    for (index, unit) in units.iter().enumerate().filter(|(index, _)| !moved.contains(index)) {
        instructions.extend_from_slice(unit);
        instructions.extend(behind.get(&index).into_iter().flat_map(|&tail| units[tail]));
    }
    schedule.with_instructions(instructions)
}

/// How early receives are started.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ahead {
    /// Where the other side sends.
    Nothing,
    /// There, but at least one slot before they are needed.
    OneSlot,
}

/// A schedule among those of its pipeline.
struct Pipeline<'a> {
    schedule: &'a Schedule,
    order: Order,
    timetable: Timetable,
}

impl<'a> Pipeline<'a> {
    fn new(schedule: &'a Schedule, request: &Request) -> Pipeline<'a> {
        let order = request.order;
        let stages = &schedule.stage.stages;
        let timetable = Timetable::new(stages, order, request.micro_batches, schedule.trains());
        Pipeline { schedule, order, timetable }
    }

    /// The slots of this stage in which there is something to do, in their order.
    fn slots(&self) -> Vec<Timed> {
        let works = self.schedule.instructions.iter().filter_map(|instruction| self.slot(instruction));
        let works: BTreeSet<Slot> = works.collect();
        let slots = &self.timetable.slots[self.schedule.stage.index as usize];
        slots.iter().filter(|timed| works.contains(&timed.slot)).copied().collect()
    }

    /// The end of a transfer that an instruction starts or waits for.
    fn transfer(&self, instruction: &Instruction) -> Option<CollectiveKind> {
        match *instruction {
            Instruction::Start { collective: transfer @ CollectiveId::Transfer { .. }, .. }
            | Instruction::Sync { collective: transfer @ CollectiveId::Transfer { .. } } => {
                self.schedule.collective(transfer).map(|(kind, ..)| kind)
            }
            _ => None,
        }
    }

    /// The slot that an instruction belongs to.
    fn slot(&self, instruction: &Instruction) -> Option<Slot> {
        let micro = instruction.part()?.micro;
        let block = match *instruction {
            Instruction::Start { collective, .. } | Instruction::Sync { collective } => collective.block()?,
            Instruction::Loss { .. } => BlockId::Head,
            _ => instruction.block()?,
        };
        let completes = matches!(instruction, Instruction::Complete { .. });
        let end = if completes { Some(CollectiveKind::Send) } else { self.transfer(instruction) };
        let pass = instruction.pass().unwrap_or(Pass::Forward);
        // What crosses has the name of the block behind it.
        let before = match (end, pass) {
            (Some(CollectiveKind::Send), Pass::Forward) | (Some(CollectiveKind::Recv), Pass::Backward) => 1,
            _ => 0,
        };
        let chunk = self.schedule.stage.stages.chunk_of(self.schedule.position(block)?) - before;
        // Where the embedding is alone in its chunk, it is the backward.
        let alone = self.schedule.stage.stages.crosses(1);
        let put_off = match *instruction {
            Instruction::Backward { block: BlockId::Embed, .. } => !alone,
            Instruction::Backward { scope, .. } => scope == Scope::Weight,
            _ => false,
        };
        let kind = match pass {
            Pass::Forward => Kind::Forward,
            Pass::Backward if put_off && self.order == Order::ZeroBubble => Kind::Weight,
            Pass::Recompute | Pass::Backward => Kind::Backward,
        };
        Some(Slot { kind, chunk, micro })
    }

    /// The receives to start before each slot.
    fn borders(&self, ahead: Ahead) -> BTreeMap<Slot, Vec<Instruction>> {
        let slots = self.slots();
        let mut arriving: Vec<(Timed, usize)> = Vec::new();
        for (index, timed) in slots.iter().enumerate() {
            if let Some(producer) = self.timetable.producer(timed.slot) {
                let border = slots.partition_point(|slot| slot.finish <= producer.finish).min(index);
                let latest = if ahead == Ahead::OneSlot { index.saturating_sub(1) } else { index };
                arriving.push((producer, border.min(latest)));
            }
        }
        // In the order in which they are sent, none is started later than what is sent after it.
        arriving.sort_by_key(|(producer, _)| (producer.finish, producer.slot));
        for index in (1..arriving.len()).rev() {
            arriving[index - 1].1 = arriving[index - 1].1.min(arriving[index].1);
        }
        let mut borders: BTreeMap<Slot, Vec<Instruction>> =
            slots.iter().map(|timed| (timed.slot, Vec::new())).collect();
        for (producer, border) in arriving {
            let starts = borders.get_mut(&slots[border].slot).expect("a slot of this stage");
            starts.extend(self.receives(producer.slot));
        }
        borders
    }

    /// The starts of the receives of what a slot of another stage sends.
    fn receives(&self, producer: Slot) -> impl Iterator<Item = Instruction> {
        let Slot { kind, chunk, micro } = producer;
        let (pass, behind) =
            if kind == Kind::Forward { (Pass::Forward, chunk + 1) } else { (Pass::Backward, chunk) };
        let block = BlockId::at(self.schedule.stage.stages.starts()[behind], self.schedule.layers);
        let parts = self.schedule.parts.iter().map(|part| part.id).filter(move |part| part.micro == micro);
        parts.filter_map(move |part| {
            let collective = CollectiveId::Transfer { pass, block, part };
            let (kind, axis, grouping) = self.schedule.collective(collective)?;
            Some(Instruction::Start { collective, kind, axis, grouping })
        })
    }

    /// Whether the last unit of a slot waits for the all-reduce of the last that computes much before it.
    fn has_tail(&self, slot: &[usize], units: &[&[Instruction]]) -> bool {
        let ends = |unit: &[Instruction]| {
            matches!(
                unit[0],
                Instruction::Complete { .. } | Instruction::Backward { block: BlockId::Embed, .. }
            )
        };
        let Some((&last, before)) = slot.split_last() else { return false };
        let computes = before.iter().rev().find(|&&index| !ends(units[index]));
        let reduces = |&index: &usize| {
            let reduced = matches!(units[index].get(1), Some(Instruction::Start { .. }));
            reduced && units[index][0].part() == units[last][0].part()
        };
        ends(units[last]) && computes.is_some_and(reduces)
    }

    /// Whether the first unit of the second slot can run before the tail of the first is sent: what it needs does not depend on
    /// that, and it is of another micro-batch. With sub-batches, it needs a part that is not in a tail.
    fn can_begin(&self, first_unit: Instruction, ends: Timed, begins: Timed) -> bool {
        let needs = match first_unit {
            Instruction::Forward { block, .. } => block != BlockId::Embed,
            Instruction::Backward { block, scope, .. } => block != BlockId::Head && scope != Scope::Weight,
            _ => false,
        };
        let cut = self.schedule.parts.iter().any(|part| part.id.sub.is_some_and(|sub| sub > 0));
        let producer = self.timetable.producer(begins.slot).filter(|_| needs);
        let other = ends.slot.micro != begins.slot.micro || begins.slot.kind == Kind::Weight;
        other && producer.is_none_or(|producer| producer.finish < ends.finish + u64::from(cut))
    }
}
