//! A step as it went on each rank of a group, with what its collectives did meanwhile.

use std::io::{self, Write};

use oases_exec::comm::{Link, Operation};
use oases_exec::{Program, Timing};
use oases_schedule::{Axis, Bytes, Instruction, Plan, Schedule, collective_bytes};

use super::trace::{Span, TraceWriter, Track, category, instruction_name};

/// A step of all ranks, on one clock.
pub struct MeasuredStep<'a> {
    pub schedule: &'a Schedule,
    pub plan: &'a Plan,
    /// The emulated link.
    pub link: Option<Link>,
    /// When each instruction ran, by rank.
    pub timings: &'a [Vec<Timing>],
}

/// When a collective occupied the link of a rank, in nanoseconds on the clock of the timings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnLink {
    /// Index of its `start`.
    pub start: usize,
    pub begin_ns: u64,
    pub end_ns: u64,
}

impl MeasuredStep<'_> {
    /// When the step began.
    pub fn began_ns(&self) -> u64 {
        let firsts = self.timings.iter().filter_map(|timings| timings.first());
        firsts.map(|timing| timing.start_ns).min().unwrap_or(0)
    }

    /// Time for which a `start` occupies the links of its ranks; none for another instruction, or without a link.
    pub fn duration_ns(&self, index: usize) -> Option<u64> {
        let Instruction::Start { kind, grouping, .. } = self.schedule.instructions[index] else {
            return None;
        };
        let Bytes(bytes) = collective_bytes(self.schedule, self.plan, index)?;
        let ranks = grouping.size(self.timings.len() as u32) as usize;
        Some(self.link?.duration(Operation::from(kind), bytes as usize, ranks).as_nanos() as u64)
    }

    /// What the emulation makes of the moments at which the last rank of each group has started a collective: on every link
    /// one after another. Without a link, a collective is under way until the first rank of its group has it. By rank.
    pub fn on_link(&self) -> Vec<Vec<OnLink>> {
        let ranks = self.timings.len() as u32;
        let mut free = vec![0; self.timings.len()];
        let mut runs = vec![Vec::new(); self.timings.len()];
        for (start, instruction) in self.schedule.instructions.iter().enumerate() {
            let Instruction::Start { collective, grouping, axis: Axis::Tensor | Axis::Data, .. } =
                *instruction
            else {
                continue;
            };
            let sync = Instruction::Sync { collective };
            let Some(sync) = self.schedule.instructions.iter().position(|other| *other == sync) else {
                continue;
            };
            for group in 0..grouping.groups(ranks) {
                let members = (0..grouping.size(ranks)).map(|place| grouping.member(group, place) as usize);
                let begin =
                    members.clone().map(|rank| self.timings[rank][start].end_ns.max(free[rank])).max();
                let begin_ns = begin.unwrap_or(0);
                let end_ns = match self.duration_ns(start) {
                    Some(duration) => begin_ns + duration,
                    None => {
                        let had = members.clone().map(|rank| self.timings[rank][sync].end_ns).min();
                        had.unwrap_or(0).max(begin_ns)
                    }
                };
                for rank in members {
                    free[rank] = end_ns;
                    runs[rank].push(OnLink { start, begin_ns, end_ns });
                }
            }
        }
        runs
    }

    /// The spans of a rank, which is shown as `process`, since `began` on the clock of the timings.
    fn spans(&self, rank: usize, process: u32, began: u64) -> impl Iterator<Item = Span> + use<'_> {
        let since = move |ns: u64| ns.saturating_sub(began);
        let on_compute = self.schedule.instructions.iter().zip(&self.timings[rank]);
        let on_compute =
            on_compute.filter(|(instruction, _)| !matches!(instruction, Instruction::Start { .. }));
        let on_compute = on_compute.map(move |(instruction, timing)| Span {
            process,
            track: if instruction.operation().is_some() { Track::Compute } else { Track::Waiting },
            name: instruction_name(instruction),
            category: category(instruction),
            start_ns: since(timing.start_ns),
            end_ns: since(timing.end_ns),
        });
        let on_link = self.on_link().swap_remove(rank).into_iter().filter_map(
            move |OnLink { start, begin_ns, end_ns }| {
                let Instruction::Start { collective, kind, .. } = self.schedule.instructions[start] else {
                    return None;
                };
                let (name, category) = (collective.to_string(), kind.name().to_owned());
                let (start_ns, end_ns) = (since(begin_ns), since(end_ns));
                Some(Span { process, track: Track::of(kind), name, category, start_ns, end_ns })
            },
        );
        on_compute.chain(on_link)
    }
}

/// Writes a measured step as a trace: one process for each rank. `programs` are those of the pipeline stages.
pub fn write_measured_trace(
    out: impl Write,
    programs: &[Program],
    link: Option<Link>,
    timings: &[Vec<Timing>],
) -> io::Result<()> {
    let group = timings.len() / programs.len();
    let stages: Vec<MeasuredStep<'_>> = programs
        .iter()
        .zip(timings.chunks(group))
        .map(|(Program { schedule, plan, .. }, timings)| MeasuredStep { schedule, plan, link, timings })
        .collect();
    let began = stages.iter().map(MeasuredStep::began_ns).min().unwrap_or(0);
    let mut trace = TraceWriter::new(out)?;
    for (process, (rank, step)) in
        stages.iter().flat_map(|step| (0..group).map(move |rank| (rank, step))).enumerate()
    {
        let process = process as u32;
        trace.process(process, &format!("rank {process}, {} (measured)", step.schedule.name))?;
        for span in step.spans(rank, process, began) {
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
        let step = MeasuredStep { schedule: &schedule, plan: &plan, link: Some(link), timings: &timings };
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
