//! A step as it went on each rank, with what its collectives did meanwhile.

use std::io::{self, Write};

use oases_exec::comm::{Link, Operation};
use oases_exec::{Program, Timing};
use oases_schedule::{Axis, Bytes, CollectiveKind, Instruction, Plan, Schedule, collective_bytes};

use super::on_link::{Carried, OnLink, replay};
use super::trace::{Span, TraceWriter, Track, category, instruction_name};

/// A step of all ranks, on one clock.
pub struct MeasuredStep<'a> {
    /// The schedule and the memory plan of each pipeline stage.
    pub stages: Vec<(&'a Schedule, &'a Plan)>,
    /// The emulated link.
    pub link: Option<Link>,
    /// When each instruction ran, by rank, those of the first stage first.
    pub timings: &'a [Vec<Timing>],
}

impl MeasuredStep<'_> {
    /// When the step began.
    pub fn began_ns(&self) -> u64 {
        let firsts = self.timings.iter().filter_map(|timings| timings.first());
        firsts.map(|timing| timing.start_ns).min().unwrap_or(0)
    }

    /// Ranks of a stage.
    fn group(&self) -> usize {
        self.timings.len() / self.stages.len()
    }

    /// Time for which a `start` of a stage occupies the links of its ranks; none for another instruction, or without a link.
    fn duration_ns(&self, stage: usize, index: usize) -> Option<u64> {
        let (schedule, plan) = self.stages[stage];
        let Instruction::Start { kind, axis, grouping, .. } = schedule.instructions[index] else {
            return None;
        };
        let Bytes(bytes) = collective_bytes(schedule, plan, index)?;
        let members = match axis {
            Axis::Tensor | Axis::Data => grouping.size(self.group() as u32) as usize,
            Axis::Pipeline | Axis::Ends => 2,
            Axis::World => self.timings.len(),
        };
        Some(self.link?.duration(Operation::from(kind), bytes as usize, members).as_nanos() as u64)
    }

    /// Time for which the busier direction of a rank's link is occupied.
    pub fn occupied_ns(&self, stage: usize) -> u64 {
        let (schedule, _) = self.stages[stage];
        let of = |other: CollectiveKind| {
            let occupies = move |instruction: &Instruction| match *instruction {
                Instruction::Start { kind, .. } => kind != other,
                _ => false,
            };
            let starts = schedule.instructions.iter().enumerate();
            let starts = starts.filter(move |(_, instruction)| occupies(instruction));
            starts.filter_map(|(index, _)| self.duration_ns(stage, index)).sum::<u64>()
        };
        of(CollectiveKind::Send).max(of(CollectiveKind::Recv))
    }

    /// When each collective and transfer occupied the links, by rank.
    pub fn on_link(&self) -> Vec<Vec<OnLink>> {
        let ranks = self.timings.len();
        let mut carried = Vec::new();
        for (stage, (schedule, _)) in self.stages.iter().enumerate() {
            for start in 0..schedule.instructions.len() {
                carried.extend(self.started(stage, start));
            }
        }
        replay(carried, ranks)
    }

    /// What the ranks of a stage start by an instruction, one for each group; of what joins several stages, that of the
    /// first of them.
    fn started(&self, stage: usize, start: usize) -> Vec<Carried> {
        let instruction = self.stages[stage].0.instructions[start];
        let Instruction::Start { collective, kind, axis, grouping } = instruction else { return Vec::new() };
        let group = self.group();
        let place_of = |stage: usize| {
            let instructions = &self.stages[stage].0.instructions;
            let started = |other: &Instruction| matches!(other, Instruction::Start { collective: c, .. } if *c == collective);
            let sync = instructions.iter().position(|other| *other == Instruction::Sync { collective })?;
            Some((stage, instructions.iter().position(started)?, sync))
        };
        // Where stages meet: each of them, with its start and its sync.
        let meets: Vec<(usize, usize, usize)> = match axis {
            Axis::Tensor | Axis::Data => place_of(stage).into_iter().collect(),
            _ => (0..self.stages.len()).filter_map(place_of).collect(),
        };
        if meets.first().is_none_or(|(first, ..)| *first != stage) {
            return Vec::new();
        }
        let groups: Vec<Vec<usize>> = match axis {
            Axis::Tensor | Axis::Data => {
                let size = grouping.size(group as u32);
                let members = |at| (0..size).map(move |place| grouping.member(at, place) as usize);
                (0..grouping.groups(group as u32)).map(|at| members(at).collect()).collect()
            }
            Axis::Pipeline | Axis::Ends => (0..group).map(|place| vec![place]).collect(),
            Axis::World => vec![(0..group).collect()],
        };
        let carried = |places: Vec<usize>| {
            let members = meets.iter().flat_map(|&(stage, start, sync)| {
                places.iter().map(move |place| (stage * group + place, start, sync))
            });
            let members: Vec<(usize, usize, usize)> = members.collect();
            let times = |of: fn(&(usize, usize, usize)) -> usize| {
                members.iter().map(move |member| self.timings[member.0][of(member)].end_ns)
            };
            Carried {
                since_ns: times(|member| member.1).max().unwrap_or(0),
                had_ns: times(|member| member.2).min().unwrap_or(0),
                duration_ns: self.duration_ns(stage, start),
                // The first stage of a transfer may be the one that receives.
                sends_first: match kind {
                    CollectiveKind::Send => Some(true),
                    CollectiveKind::Recv => Some(false),
                    _ => None,
                },
                members: members.into_iter().map(|(rank, start, _)| (rank, start)).collect(),
            }
        };
        groups.into_iter().map(carried).collect()
    }

    /// The spans of a rank, since `began` on the clock of the timings.
    fn spans(&self, rank: usize, on_link: &[OnLink], began: u64) -> Vec<Span> {
        let (schedule, _) = self.stages[rank / self.group()];
        let process = rank as u32;
        let since = move |ns: u64| ns.saturating_sub(began);
        let on_compute = schedule.instructions.iter().zip(&self.timings[rank]);
        let on_compute =
            on_compute.filter(|(instruction, _)| !matches!(instruction, Instruction::Start { .. }));
        let on_compute = on_compute.map(|(instruction, timing)| Span {
            process,
            track: if instruction.operation().is_some() { Track::Compute } else { Track::Waiting },
            name: instruction_name(instruction),
            category: category(instruction),
            start_ns: since(timing.start_ns),
            end_ns: since(timing.end_ns),
        });
        let on_link = on_link.iter().filter_map(|&OnLink { start, begin_ns, end_ns }| {
            let Instruction::Start { collective, kind, .. } = schedule.instructions[start] else {
                return None;
            };
            let (name, category) = (collective.to_string(), kind.name().to_owned());
            let (start_ns, end_ns) = (since(begin_ns), since(end_ns));
            Some(Span { process, track: Track::of(kind), name, category, start_ns, end_ns })
        });
        on_compute.chain(on_link).collect()
    }
}

/// Writes a measured step as a trace: one process for each rank. `programs` are those of the pipeline stages.
pub fn write_measured_trace(
    out: impl Write,
    programs: &[Program],
    link: Option<Link>,
    timings: &[Vec<Timing>],
) -> io::Result<()> {
    let stages = programs.iter().map(|Program { schedule, plan, .. }| (schedule, plan)).collect();
    let step = MeasuredStep { stages, link, timings };
    let began = step.began_ns();
    let mut trace = TraceWriter::new(out)?;
    for (rank, on_link) in step.on_link().iter().enumerate() {
        let (schedule, _) = step.stages[rank / step.group()];
        trace.process(rank as u32, &format!("rank {rank}, {} (measured)", schedule.name))?;
        for span in step.spans(rank, on_link, began) {
            trace.span(&span)?;
        }
    }
    trace.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use oases_schedule::{Layout, Model, Purpose, Request, Statics, Variant, Workspace, plan};
    use std::time::Duration;

    /// Four ranks in two groups of two, whose second rank comes later to every instruction, and whose second group later
    /// still.
    #[test]
    fn a_collective_occupies_the_links_of_its_group_only() {
        let layout = Layout::new(4, vec![2; 4]);
        let request = Request { layout: layout.clone(), sub_batches: 1, ..Request::new(1, 2, 4) };
        let schedule = Variant::find("none").unwrap().build(&request);
        let model = Model::gpt(1, 16, 4, 8, 32);
        let statics = Statics::new(&model, &layout, Purpose::Training, 4, 1);
        let plan = plan(&schedule, &statics, Workspace::default());
        let timings: Vec<Vec<Timing>> = [0, 10, 100, 200]
            .map(|late| {
                let at =
                    |index: u64| Timing { start_ns: 1000 * index + late, end_ns: 1000 * index + late + 1 };
                (0..schedule.instructions.len() as u64).map(at).collect()
            })
            .to_vec();
        let link = Link { bandwidth_bytes_per_s: 1e9, latency: Duration::ZERO };
        let step = MeasuredStep { stages: vec![(&schedule, &plan)], link: Some(link), timings: &timings };
        let runs = step.on_link();
        let first = runs[0][0];
        let start = first.start as u64;
        // A rank has two of the four sequences: an all-reduce between two ranks carries 2 · 8 · 16 floats once, 1024 bytes.
        assert_eq!((first.begin_ns, first.end_ns), (1000 * start + 11, 1000 * start + 11 + 1024));
        assert_eq!((runs[1][0], runs[2][0], runs[3][0].begin_ns), (first, runs[3][0], 1000 * start + 201));
        // What joins all ranks waits for all of their links.
        let last = runs[0].last().unwrap();
        assert!(runs.iter().all(|run| run.last() == Some(last)));
        assert_eq!(last.begin_ns, 1000 * last.start as u64 + 201);
    }
}
