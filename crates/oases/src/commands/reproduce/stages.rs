//! Steps of several pipeline stages or replicas, which figures 7 and 10 compare.

use anyhow::Context;
use oases_plan::{Machine, PublishedCosts, simulate_stages};
use oases_schedule::{
    Keeps, Layout, Order, Plan, Purpose, Request, Schedule, Stage, Stages, Statics, Variant, Workspace, plan,
};

use super::methods::Method;
use super::setting::{Case, Setting};

/// A model over all three axes.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// The model, its TMP degree, and the micro-batch of a TMP group.
    pub case: Case,
    /// Replicas.
    pub data: u32,
    /// Stages of equally many layers.
    pub pipeline: u32,
    /// Micro-batches of a step.
    pub micro_batches: u32,
}

impl Spread {
    /// Ranks of all axes.
    pub fn ranks(&self) -> u32 {
        self.data * self.pipeline * self.case.degree
    }

    /// Time of a step by a method, on devices like those of the setting and over the links of `machine`.
    pub fn step_ms(&self, method: Method, setting: &Setting, machine: &Machine) -> anyhow::Result<f64> {
        let model = self.case.model();
        let costs = PublishedCosts::new(setting.table.as_ref(), machine, &model, None)?;
        let schedules = self.build(method)?;
        let planned = |schedule: &Schedule| {
            let statics = Statics::of(&model, schedule, Purpose::Training, schedule.batch());
            plan(schedule, &statics, Workspace::default())
        };
        let plans: Vec<Plan> = schedules.iter().map(planned).collect();
        let timelines = simulate_stages(&schedules, &plans, &costs)
            .with_context(|| format!("cannot simulate `{}`", method.schedule))?;
        let steps = timelines.iter().map(|timeline| timeline.step.milliseconds());
        Ok(steps.fold(0.0, f64::max))
    }

    fn build(&self, method: Method) -> anyhow::Result<Vec<Schedule>> {
        let Case { layers, degree, micro_batch, .. } = self.case;
        let variant =
            Variant::find(method.schedule).with_context(|| format!("no schedule `{}`", method.schedule))?;
        let start =
            |stage: u32| if stage == 0 { 0 } else { 1 + (2 * layers * stage / self.pipeline) as usize };
        let stages = match self.pipeline {
            1 => Stages::single(),
            count => Stages::new(count, (0..count).map(start).collect(), true),
        };
        let request = Request {
            layout: Layout::new(self.data * degree, vec![degree; Schedule::blocks(layers)]),
            stage: Stage { stages, index: 0 },
            order: Order::OneForwardOneBackward,
            micro_batches: self.micro_batches,
            sub_batches: method.sub_batches,
            keep: method.keep.map_or(Keeps::AsScheduled, Keeps::Same),
            ..Request::new(layers, degree, self.data * micro_batch)
        };
        Ok(variant.build_stages(&request))
    }
}

#[cfg(test)]
mod tests {
    use super::super::methods::MEGATRON;
    use super::super::setting::Cluster;
    use super::*;

    /// Equal stages in usual order, but for transfers: (m + p - 1) times the passes of a stage through a micro-batch, and Adam, which
    /// are the step of a single stage with one micro-batch. Transfers are 4 · 1024 · 2048 B to the next server: 8 MB at 10/4 GB/s,
    /// 3.4 ms, of which at most one in each direction is exposed in each of the m + p - 1 turns.
    #[test]
    fn a_blocking_pipeline_is_turns_of_equal_stages() {
        let setting = Setting::of(Cluster::Pcie).unwrap();
        let case = |layers| Case { hidden: 2048, layers, degree: 4, micro_batch: 1 };
        let step = |layers, pipeline, micro_batches| {
            let spread = Spread { case: case(layers), data: 1, pipeline, micro_batches };
            spread.step_ms(MEGATRON, &setting, &setting.machine).unwrap()
        };
        let one = step(2, 1, 2) - step(2, 1, 1);
        let adam = step(2, 1, 1) - one;
        for (pipeline, micro_batches) in [(2, 4), (4, 8), (8, 8)] {
            let turns = f64::from(micro_batches + pipeline - 1);
            let found = step(2 * pipeline, pipeline, micro_batches);
            let least = turns * one + adam;
            let most = least + 2.0 * (turns + f64::from(pipeline)) * 3.4;
            assert!((least..most).contains(&found), "{pipeline} stages: {found} in {least}..{most}");
        }
    }
}
