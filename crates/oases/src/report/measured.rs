//! A step as it went on each rank of a group, with what its collectives did meanwhile.

use std::io::{self, Write};

use oases_exec::comm::{Link, Operation};
use oases_exec::{Program, Timing};
use oases_schedule::{Bytes, Instruction, Plan, Schedule, collective_bytes};

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

/// When a collective occupied the link, in nanoseconds on the clock of the timings.
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

    /// Time for which a `start` occupies the link; none for another instruction, or without a link.
    pub fn duration_ns(&self, index: usize) -> Option<u64> {
        let Instruction::Start { kind, .. } = self.schedule.instructions[index] else { return None };
        let Bytes(bytes) = collective_bytes(self.schedule, self.plan, index)?;
        let ranks = self.timings.len();
        Some(self.link?.duration(Operation::from(kind), bytes as usize, ranks).as_nanos() as u64)
    }

    /// What the emulation makes of the moments at which the last rank has started each collective: one after another.
    /// Without a link, a collective is under way until the first rank has it.
    pub fn on_link(&self) -> Vec<OnLink> {
        let mut free = 0;
        let starts = (0..self.schedule.instructions.len()).filter_map(|index| {
            let Instruction::Start { collective, .. } = self.schedule.instructions[index] else {
                return None;
            };
            let started = self.timings.iter().map(|timings| timings[index].end_ns).max()?;
            let begin_ns = started.max(free);
            let end_ns = match self.duration_ns(index) {
                Some(duration) => begin_ns + duration,
                None => {
                    let sync = Instruction::Sync { collective };
                    let sync = self.schedule.instructions.iter().position(|other| *other == sync)?;
                    self.timings.iter().map(|timings| timings[sync].end_ns).min()?.max(begin_ns)
                }
            };
            free = end_ns;
            Some(OnLink { start: index, begin_ns, end_ns })
        });
        starts.collect()
    }

    fn spans(&self, rank: usize) -> impl Iterator<Item = Span> + use<'_> {
        let began = self.began_ns();
        let since = move |ns: u64| ns.saturating_sub(began);
        let process = rank as u32;
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
        let on_link = self.on_link().into_iter().filter_map(move |OnLink { start, begin_ns, end_ns }| {
            let Instruction::Start { collective, kind, .. } = self.schedule.instructions[start] else {
                return None;
            };
            let (name, category) = (collective.to_string(), kind.name().to_owned());
            let (start_ns, end_ns) = (since(begin_ns), since(end_ns));
            Some(Span { process, track: Track::Communication, name, category, start_ns, end_ns })
        });
        on_compute.chain(on_link)
    }
}

/// Writes a measured step as a trace: one process for each rank.
pub fn write_measured_trace(
    out: impl Write,
    program: &Program,
    link: Option<Link>,
    timings: &[Vec<Timing>],
) -> io::Result<()> {
    let step = MeasuredStep { schedule: &program.schedule, plan: &program.plan, link, timings };
    let mut trace = TraceWriter::new(out)?;
    for rank in 0..timings.len() {
        trace.process(rank as u32, &format!("rank {rank}, {} (measured)", program.schedule.name))?;
        for span in step.spans(rank) {
            trace.span(&span)?;
        }
    }
    trace.finish()
}
