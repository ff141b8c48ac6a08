//! Rule 16, *pipeline*, between the schedules of all stages of one pipeline:
//!
//! - They are of the same step: layers, layout, parts, stages and optimizer are equal, and all train or none does.
//! - Between any two stages, what one sends the other receives, in the same order.
//! - What several stages join (`@ends`, `@world`) all of them start.
//! - Executed together, they come to their ends.
//!
//! The last is found by executing them once, each stage as far as it gets: a `start` never waits; a `sync` waits until its
//! collective is done. A transfer is done when both ends have started it and those before it between the two stages; the group
//! collectives of a stage one after another, and one that several stages join when it is the next on all of them.
//!
//! One such execution stands for all. Whether a stage can go on depends only on which collectives have been started, and on nothing
//! that another stage could take away: no order of two starts on different stages is a choice that matters, because each queue has
//! one stage at either end. So a stage that can go on still can after any other has gone on, and two executions that stop have
//! stopped at the same place: were one of them further on some stage, the first instruction that it alone got past waited for
//! starts that the other had made as well. If one execution comes to the end, every one does; if it does not, none does.
//! Nor does it matter that a stage has many ranks: they run the same list, and each meets the rank at its own place.

use std::collections::BTreeMap;

use super::{Rule, Violation};
use crate::ids::{BlockId, CollectiveId, Pass};
use crate::instruction::Instruction;
use crate::mesh::Axis;
use crate::schedule::{CollectiveKind, Schedule};
use crate::text::printed_line;

/// Checks the rules between the stages of a pipeline, whose schedules [`verify`](super::verify()) has found sound. Lines are those
/// of the schedule of the stage that a message names first.
pub fn verify_stages(schedules: &[Schedule]) -> Vec<Violation> {
    let headers = headers(schedules);
    if !headers.is_empty() {
        return headers;
    }
    let starts = starts(schedules);
    let mut violations = transfers(schedules, &starts);
    violations.extend(joined(schedules, &starts));
    if violations.is_empty() {
        violations = Execution::new(schedules).stuck();
    }
    violations
}

fn violation(schedule: &Schedule, instruction: usize, message: String) -> Violation {
    let line = printed_line(schedule, instruction);
    Violation { line, rule: Rule::Pipeline, message: format!("stage {} {message}", schedule.stage.index) }
}

fn headers(schedules: &[Schedule]) -> Vec<Violation> {
    let message = |line, message: String| Violation { line, rule: Rule::Pipeline, message };
    let Some(first) = schedules.first() else {
        return vec![message(1, "a pipeline has at least one stage".to_owned())];
    };
    let count = first.stage.stages.count();
    if schedules.len() != count as usize {
        return vec![message(4, format!("there are {} schedules for {count} stages", schedules.len()))];
    }
    let mut violations = Vec::new();
    for (index, schedule) in schedules.iter().enumerate() {
        let differences = [
            (2, "layers", schedule.layers != first.layers),
            (3, "TMP degrees", schedule.layout != first.layout),
            (4, "stages", schedule.stage.stages != first.stage.stages),
            (5, "optimizer", schedule.optimizer != first.optimizer),
            (5, "parts", schedule.parts != first.parts),
            (6, "purpose", schedule.trains() != first.trains()),
        ];
        let different = differences.into_iter().filter(|&(.., differs)| differs);
        violations.extend(different.map(|(line, what, _)| {
            message(line, format!("stage {index} differs from stage 0 in its {what}"))
        }));
        if schedule.stage.index as usize != index {
            violations
                .push(message(4, format!("stage {} stands where {index} should", schedule.stage.index)));
        }
    }
    violations
}

/// What a stage starts, in its order, with the index of the instruction.
type Starts = BTreeMap<Queue, Vec<(CollectiveId, usize)>>;

/// Where a collective stands in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Queue {
    /// Transfers from the stage of the schedule to another.
    To(u32),
    /// Transfers from another.
    From(u32),
    /// What it joins with others.
    Joined,
    /// What it does alone.
    Own,
}

fn queue(schedule: &Schedule, collective: CollectiveId) -> Queue {
    match (collective, schedule.collective(collective)) {
        (CollectiveId::Transfer { pass, block, .. }, Some((kind, ..))) => {
            let other = other_end(schedule, pass, block, kind);
            if kind == CollectiveKind::Send { Queue::To(other) } else { Queue::From(other) }
        }
        (_, Some((_, Axis::Ends | Axis::World, _))) => Queue::Joined,
        _ => Queue::Own,
    }
}

/// The stage with which a transfer exchanges. Panics where the chain does not cross before the block.
fn other_end(schedule: &Schedule, pass: Pass, block: BlockId, kind: CollectiveKind) -> u32 {
    let behind = schedule.position(block).expect("a block of the chain");
    let forward = pass != Pass::Backward;
    let position = if forward == (kind == CollectiveKind::Send) { behind } else { behind - 1 };
    schedule.stage.stages.stage_of(position)
}

fn starts(schedules: &[Schedule]) -> Vec<Starts> {
    let of_stage = |schedule: &Schedule| {
        let mut starts = Starts::new();
        for (index, instruction) in schedule.instructions.iter().enumerate() {
            if let Instruction::Start { collective, .. } = *instruction {
                starts.entry(queue(schedule, collective)).or_default().push((collective, index));
            }
        }
        starts
    };
    schedules.iter().map(of_stage).collect()
}

fn transfers(schedules: &[Schedule], starts: &[Starts]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let none = Vec::new();
    let pairs = (0..schedules.len()).flat_map(|from| (0..schedules.len()).map(move |to| (from, to)));
    for (from, to) in pairs.filter(|(from, to)| from != to) {
        let sends = starts[from].get(&Queue::To(to as u32)).unwrap_or(&none);
        let receives = starts[to].get(&Queue::From(from as u32)).unwrap_or(&none);
        let different = sends.iter().zip(receives).find(|(send, receive)| send.0 != receive.0);
        if let Some(((sent, _), (received, at))) = different {
            let message = format!("receives {received} where stage {from} sends {sent}");
            violations.push(violation(&schedules[to], *at, message));
        } else if let Some((sent, at)) = sends.get(receives.len()) {
            let message = format!("sends {sent}, which stage {to} does not receive");
            violations.push(violation(&schedules[from], *at, message));
        } else if let Some((received, at)) = receives.get(sends.len()) {
            let message = format!("receives {received}, which stage {from} does not send");
            violations.push(violation(&schedules[to], *at, message));
        }
    }
    violations
}

fn joined(schedules: &[Schedule], starts: &[Starts]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let started = |stage: usize| starts[stage].get(&Queue::Joined).map_or(&[][..], Vec::as_slice);
    let pairs = (0..schedules.len()).flat_map(|one| (0..schedules.len()).map(move |other| (one, other)));
    for (one, other) in pairs {
        for &(collective, at) in started(one) {
            let joins = schedules[other].collective(collective).is_some();
            if joins && !started(other).iter().any(|&(found, _)| found == collective) {
                let message = format!("joins {collective}, which stage {other} does not start");
                violations.push(violation(&schedules[one], at, message));
            }
        }
    }
    violations
}

/// How far an execution has come.
struct Execution<'a> {
    schedules: &'a [Schedule],
    stages: Vec<Progress>,
}

#[derive(Default)]
struct Progress {
    /// The next instruction.
    next: usize,
    /// Started transfers of each queue.
    transfers: BTreeMap<Queue, Vec<CollectiveId>>,
    /// Started group collectives.
    group: Vec<CollectiveId>,
    /// How many of them are done.
    done: usize,
}

impl Execution<'_> {
    fn new(schedules: &[Schedule]) -> Execution<'_> {
        Execution { schedules, stages: schedules.iter().map(|_| Progress::default()).collect() }
    }

    /// Executes as far as it goes; returns where each stage waits for ever.
    fn stuck(mut self) -> Vec<Violation> {
        let all = 0..self.schedules.len();
        loop {
            // Not short-circuited: every stage goes on as far as it gets.
            let advanced = all.clone().filter(|&stage| self.advance(stage)).count();
            let finished = all.clone().filter(|&stage| self.finish(stage)).count();
            if advanced + finished == 0 {
                break;
            }
        }
        let waiting = |(schedule, progress): (&Schedule, &Progress)| {
            let Some(Instruction::Sync { collective }) = schedule.instructions.get(progress.next) else {
                return None;
            };
            Some(violation(schedule, progress.next, format!("waits for {collective} for ever")))
        };
        self.schedules.iter().zip(&self.stages).filter_map(waiting).collect()
    }

    /// Runs one stage until it waits; whether it came any further.
    fn advance(&mut self, stage: usize) -> bool {
        let schedule = &self.schedules[stage];
        let from = self.stages[stage].next;
        while let Some(instruction) = schedule.instructions.get(self.stages[stage].next) {
            match *instruction {
                Instruction::Sync { collective } if !self.is_done(stage, collective) => break,
                Instruction::Start { collective, .. } => {
                    let queue = queue(schedule, collective);
                    let progress = &mut self.stages[stage];
                    match queue {
                        Queue::To(_) | Queue::From(_) => {
                            progress.transfers.entry(queue).or_default().push(collective);
                        }
                        Queue::Joined | Queue::Own => progress.group.push(collective),
                    }
                }
                _ => {}
            }
            self.stages[stage].next += 1;
        }
        self.stages[stage].next > from
    }

    /// Finishes the group collectives of a stage that nothing holds up; whether there were any.
    fn finish(&mut self, stage: usize) -> bool {
        let from = self.stages[stage].done;
        while let Some(&collective) = self.stages[stage].group.get(self.stages[stage].done) {
            if queue(&self.schedules[stage], collective) == Queue::Own {
                self.stages[stage].done += 1;
                continue;
            }
            let joins = |other: &usize| self.schedules[*other].collective(collective).is_some();
            let members: Vec<usize> = (0..self.schedules.len()).filter(joins).collect();
            let is_next = |&other: &usize| {
                let progress = &self.stages[other];
                progress.group.get(progress.done) == Some(&collective)
            };
            if !members.iter().all(is_next) {
                break;
            }
            members.into_iter().for_each(|member| self.stages[member].done += 1);
        }
        self.stages[stage].done > from
    }

    fn is_done(&self, stage: usize, collective: CollectiveId) -> bool {
        let progress = &self.stages[stage];
        let here = queue(&self.schedules[stage], collective);
        let (other, there) = match here {
            Queue::To(other) => (other, Queue::From(stage as u32)),
            Queue::From(other) => (other, Queue::To(stage as u32)),
            Queue::Joined | Queue::Own => {
                return progress.group[..progress.done].contains(&collective);
            }
        };
        let place = |progress: &Progress, queue| {
            progress.transfers.get(&queue)?.iter().position(|&found| found == collective)
        };
        place(progress, here).is_some() && place(&self.stages[other as usize], there).is_some()
    }
}
