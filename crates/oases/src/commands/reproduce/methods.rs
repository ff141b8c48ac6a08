//! Steps of the methods that are schedules of this program, each simulated instruction by instruction.

use std::collections::BTreeMap;

use anyhow::Context;
use oases_plan::{Costs, simulate};
use oases_schedule::{Keep, Keeps, Plan, Purpose, Request, Schedule, Statics, Variant, Workspace, plan};

use super::setting::{Case, Cluster, MICRO_BATCHES, Setting};

/// A predicted step of one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// How long it takes.
    pub ms: f64,
    /// Share of it in which the compute stream computes.
    pub utilisation: f64,
    /// What its computation does not hide of its communication.
    pub exposed_ms: f64,
}

/// A schedule by name, in so many sub-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Method {
    /// Name of the schedule.
    pub schedule: &'static str,
    /// Sub-batches of a micro-batch.
    pub sub_batches: u32,
    /// What a forward keeps, where the schedule leaves that open.
    pub keep: Option<Keep>,
}

/// Simulates on a cluster, each method and model once.
#[derive(Clone, Debug)]
pub struct Simulator {
    /// The cluster.
    pub setting: Setting,
    known: BTreeMap<(Method, Case), Step>,
}

impl Simulator {
    /// A simulator of a cluster.
    pub fn of(cluster: Cluster) -> anyhow::Result<Simulator> {
        Ok(Simulator { setting: Setting::of(cluster)?, known: BTreeMap::new() })
    }

    /// The step of a method.
    pub fn step(&mut self, method: Method, case: Case) -> anyhow::Result<Step> {
        if let Some(step) = self.known.get(&(method, case)) {
            return Ok(*step);
        }
        let step = method.step(&self.setting, case)?;
        self.known.insert((method, case), step);
        Ok(step)
    }

    /// How many times faster a method is than another.
    pub fn speedup(&mut self, method: Method, over: Method, case: Case) -> anyhow::Result<f64> {
        Ok(self.step(over, case)?.ms / self.step(method, case)?.ms)
    }
}

/// Megatron-LM: blocking.
pub const MEGATRON: Method = Method { schedule: "megatron", sub_batches: 1, keep: None };
/// Merak.
pub const MERAK: Method = Method { schedule: "merak", sub_batches: 2, keep: None };
/// The product before each all-reduce in pieces: not what Wang et al. do.
pub const DECOMPOSED: Method = Method { schedule: "decomposed", sub_batches: 1, keep: None };
/// The paper's schedule before its recomputation is cut.
pub const CROSS_PASS: Method = Method { schedule: "cross-pass", sub_batches: 2, keep: None };
/// The paper's schedule.
pub const OASES: Method = Method { schedule: "oases", sub_batches: 2, keep: None };
/// Megatron-LM with selective recomputation.
pub const MEGATRON_SELECTIVE: Method = Method { schedule: "megatron-ss", sub_batches: 1, keep: None };
/// The paper's schedule with selective recomputation.
pub const OASES_SELECTIVE: Method = Method { schedule: "oases", sub_batches: 2, keep: Some(Keep::Selective) };

impl Method {
    /// Its step on a cluster.
    pub fn step(self, setting: &Setting, case: Case) -> anyhow::Result<Step> {
        let model = case.model();
        let costs = setting.costs(&model, case.degree)?;
        self.step_with(case, &costs).with_context(|| format!("cannot simulate `{}`", self.schedule))
    }

    fn step_with(self, case: Case, costs: &dyn Costs) -> anyhow::Result<Step> {
        let schedule = self.build(case)?;
        let timeline = simulate(&schedule, &planned(&schedule, case), costs)?;
        Ok(Step {
            ms: timeline.step.milliseconds(),
            utilisation: timeline.compute_utilisation(),
            exposed_ms: timeline.exposed.milliseconds(),
        })
    }

    /// The schedule, with as many pieces of each product as there are ranks, where it cuts products.
    fn build(self, case: Case) -> anyhow::Result<Schedule> {
        let variant =
            Variant::find(self.schedule).with_context(|| format!("no schedule `{}`", self.schedule))?;
        let request = Request {
            micro_batches: MICRO_BATCHES,
            sub_batches: self.sub_batches,
            keep: self.keep.map_or(Keeps::AsScheduled, Keeps::Same),
            pieces: case.degree as u8,
            ..Request::new(case.layers, case.degree, case.micro_batch)
        };
        Ok(variant.build(&request))
    }
}

fn planned(schedule: &Schedule, case: Case) -> Plan {
    let (sequences, parts) = (schedule.batch(), schedule.parts.len());
    let statics = Statics::new(&case.model(), &schedule.layout, Purpose::Training, sequences, parts);
    plan(schedule, &statics, Workspace::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing overlaps in Megatron-LM's step, so it is a sum. Hidden 2048, 24 layers, degree 4, 8 sequences: the row
    /// `2048,4,8` of the table has 6.328, 10.055, 5.280 and 9.934 ms. An all-reduce of 4 · 8 · 1024 · 2048 bytes over 4 ranks
    /// carries 3/4 of that twice at 8.3 GB/s, in 6 hops of 3 µs. 20 micro-batches. 8 replicas reduce 12 · 2048² · 24 / 4
    /// gradients of 4 bytes at 10/4 GB/s in 14 hops of 9 µs, and Adam passes over them 16 times at 0.85 · 936 GB/s.
    #[test]
    fn megatron_is_a_sum() {
        let all_reduce = 2.0 * 0.75 * 67_108_864.0 / 8.3e6 + 6.0 * 0.003;
        let layer = 2.0 * (6.328 + 5.280) + 10.055 + 9.934 + 6.0 * all_reduce;
        let gradients = 4.0 * 301_989_888.0;
        let reduce = 2.0 * 7.0 / 8.0 * gradients / 2.5e6 + 14.0 * 0.009;
        let adam = 16.0 * gradients / 795.6e6;
        let case = Case { hidden: 2048, layers: 24, degree: 4, micro_batch: 8 };
        let step = MEGATRON.step(&Setting::of(Cluster::Pcie).unwrap(), case).unwrap();
        let expected = 20.0 * 24.0 * layer + reduce + adam;
        assert!((step.ms / expected - 1.0).abs() < 1e-6, "{} {expected}", step.ms);
        let exposed = 20.0 * 24.0 * 6.0 * all_reduce + reduce;
        assert!((step.exposed_ms / exposed - 1.0).abs() < 1e-6, "{} {exposed}", step.exposed_ms);
        assert!((step.utilisation - (1.0 - exposed / expected)).abs() < 1e-6);
    }

    /// With half batches, the row `2048,4,4`: one layer and part is 3.236 + 2.685 ms forward. The table's c/f is 2.1, so forward
    /// lasts as long as its all-reduces, and backward with recomputation as long as the longer of the two streams, under which
    /// computation is stretched 1.19 times. Beside these a micro-batch has the first computation and the last all-reduce of
    /// each pass, which is less than one layer's; so the sum bounds the step on both sides.
    #[test]
    fn oases_is_as_long_as_the_longer_stream() {
        let half = 2.0 * 0.75 * 33_554_432.0 / 8.3e6 + 6.0 * 0.003;
        let forward = f64::max(2.0 * 1.19 * (3.236 + 2.685), 4.0 * half);
        let backward = f64::max(2.0 * 1.19 * (3.236 + 2.685 + 5.184 + 5.076), 4.0 * half);
        let case = Case { hidden: 2048, layers: 24, degree: 4, micro_batch: 8 };
        let step = OASES.step(&Setting::of(Cluster::Pcie).unwrap(), case).unwrap();
        let once = 1.75 * 4.0 * 301_989_888.0 / 2.5e6 + 14.0 * 0.009 + 64.0 * 301_989_888.0 / 795.6e6;
        let micro_batch = (step.ms - once) / 20.0;
        let [least, most] = [23.0, 25.0].map(|layers| layers * (forward + backward));
        assert!((least..most).contains(&micro_batch), "{micro_batch} in {least}..{most}");
    }

    /// Speedups of an independent two-stream model of the methods: chains of blocks instead of schedules, 9 µs for every hop, no
    /// barrier between forward and backward.
    #[test]
    fn oases_agrees_with_a_model_without_schedules() {
        let mut simulator = Simulator::of(Cluster::Pcie).unwrap();
        for (hidden, layers, cross_pass, oases) in
            [(1024, 24, 1.52, 1.61), (4096, 16, 1.56, 1.69), (12288, 4, 1.55, 1.76)]
        {
            let case = Case::of(&simulator.setting, hidden, layers);
            for (method, expected) in [(CROSS_PASS, cross_pass), (OASES, oases)] {
                let found = simulator.speedup(method, MEGATRON, case).unwrap();
                assert!(
                    (found / expected - 1.0).abs() < 0.025,
                    "{hidden} {}: {found} {expected}",
                    method.schedule
                );
            }
        }
    }

    #[test]
    fn a_batch_that_was_not_measured_is_refused() {
        let case = Case { hidden: 2048, layers: 2, degree: 4, micro_batch: 32 };
        let error = MEGATRON.step(&Setting::of(Cluster::Pcie).unwrap(), case).unwrap_err();
        let message = format!("{error:#}");
        assert!(message.contains("batch 32 was not measured"), "{message}");
    }
}
