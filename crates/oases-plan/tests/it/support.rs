//! Costs by rule, and schedules with their memory plans.

use oases_plan::{CollectiveTime, Costs, Error, Nanoseconds, Reach, Timeline};
use oases_schedule::{
    Bytes, CollectiveKind, Model, Operation, Plan, Purpose, Request, Schedule, Statics, Variant, Workspace,
    plan,
};

/// Costs given by two functions.
pub struct Rule<C, L> {
    pub compute: C,
    pub collective: L,
}

impl<C, L> Costs for Rule<C, L>
where
    C: Fn(Operation, u32) -> u64,
    L: Fn(CollectiveKind, Bytes) -> (u64, u64),
{
    fn compute(&self, operation: Operation, sequences: u32, _: u32) -> Result<Nanoseconds, Error> {
        Ok(Nanoseconds((self.compute)(operation, sequences)))
    }

    fn collective(&self, kind: CollectiveKind, bytes: Bytes, _: Reach) -> Result<CollectiveTime, Error> {
        let (link, host) = (self.collective)(kind, bytes);
        Ok(CollectiveTime { link: Nanoseconds(link), host: Nanoseconds(host) })
    }
}

/// Tokens of a sequence times width: the floats of an all-reduce per sequence.
pub const ELEMENTS: u64 = 8 * 16;

pub fn model(layers: u32) -> Model {
    Model::gpt(layers, 16, 4, 8, 256)
}

pub fn request(layers: u32, micro_batches: u32, sub_batches: u32, sequences: u32) -> Request {
    Request { micro_batches, sub_batches, ..Request::new(layers, 2, sequences) }
}

pub fn build(variant: &str, request: &Request) -> Schedule {
    Variant::find(variant).unwrap().build(request)
}

pub fn planned(schedule: &Schedule) -> Plan {
    let model = model(schedule.layers);
    let statics = Statics::of(&model, schedule, Purpose::Training, schedule.batch());
    plan(schedule, &statics, Workspace::default())
}

pub fn simulate(schedule: &Schedule, costs: &dyn Costs) -> Timeline {
    oases_plan::simulate(schedule, &planned(schedule), costs).unwrap()
}

/// Forward only, one layer, in two sub-batches: while one computes, the other is reduced.
pub const OVERLAPPED: &str = "\
schedule  by hand
layers    1
tensor    2
parts     m0.a=1 m0.b=1

forward   embed m0.a keep=nothing
start     f.embed.m0.a all_reduce @tensor
forward   embed m0.b keep=nothing
start     f.embed.m0.b all_reduce @tensor
sync      f.embed.m0.a
forward   attn.0 m0.a keep=nothing
start     f.attn.0.m0.a all_reduce @tensor
sync      f.embed.m0.b
forward   attn.0 m0.b keep=nothing
start     f.attn.0.m0.b all_reduce @tensor
sync      f.attn.0.m0.a
forward   mlp.0 m0.a keep=nothing
start     f.mlp.0.m0.a all_reduce @tensor
sync      f.attn.0.m0.b
forward   mlp.0 m0.b keep=nothing
start     f.mlp.0.m0.b all_reduce @tensor
sync      f.mlp.0.m0.a
forward   head m0.a keep=nothing
start     f.head.m0.a all_gather @tensor
sync      f.mlp.0.m0.b
forward   head m0.b keep=nothing
start     f.head.m0.b all_gather @tensor
sync      f.head.m0.a
loss      m0.a
sync      f.head.m0.b
loss      m0.b
";
