//! Schedules against each other: what only changes the order of work changes no bit.

use oases_exec::philox::{Normal, philox4x32};
use oases_schedule::passes::VARIANTS;
use oases_schedule::{Cut, Init, Keep, Keeps, Model, Request, Schedule, Variant};

use crate::harness::{Extras, HYPER, Outcome, Run, Tensors, request};

/// Weights large enough that every path matters.
fn weights(model: &Model) -> Tensors {
    let draw = |(stream, parameter): (u64, oases_schedule::Parameter)| {
        let mean = if parameter.init == Init::Ones { 1.0 } else { 0.0 };
        let mut values = vec![0.0; parameter.elements()];
        Normal { mean, deviation: 0.1 }.fill([1, 2], stream, 0, &mut values);
        (parameter.name, values)
    };
    (0..).zip(model.parameters()).map(draw).collect()
}

fn batches(model: &Model, sequences: u32, steps: u32) -> Vec<(Vec<u32>, Vec<u32>)> {
    let count = sequences as usize * model.sequence;
    let draw = |step: u32, stream: u32| -> Vec<u32> {
        (0..count as u32)
            .map(|at| philox4x32([at, step, stream, 0], [3, 4])[0] % model.vocabulary as u32)
            .collect()
    };
    (0..steps).map(|step| (draw(step, 0), draw(step, 1))).collect()
}

pub(crate) struct Case {
    pub model: Model,
    pub sequences: u32,
    pub micro: u32,
    pub sub: u32,
    pub steps: u32,
}

impl Case {
    pub(crate) fn request(&self, degrees: &str) -> Request {
        request(&self.model, degrees, self.sequences, self.micro, self.sub)
    }

    pub(crate) fn run(&self, variant: &str, degrees: &str) -> Outcome {
        self.run_schedule(Variant::find(variant).unwrap().build(&self.request(degrees)))
    }

    pub(crate) fn run_schedule(&self, schedule: Schedule) -> Outcome {
        self.run_stages(vec![schedule])
    }

    pub(crate) fn run_stages(&self, stages: Vec<Schedule>) -> Outcome {
        let batches = batches(&self.model, self.sequences * self.micro, self.steps);
        let hyper = oases_exec::AdamW { learning_rate: 1e-3, ..HYPER };
        let (model, layout) = (self.model.clone(), stages[0].layout.clone());
        Run {
            model,
            layout,
            stages,
            weights: &weights(&self.model),
            batches,
            extras: Extras::default(),
            hyper,
        }
        .run()
    }
}

/// The bits of each tensor.
pub(crate) type Bits = Vec<(String, Vec<u32>)>;

/// Losses, norms and final weights, as bits.
pub(crate) fn bits(outcome: &Outcome) -> (Vec<u64>, Bits) {
    let scalars = outcome.losses.iter().chain(&outcome.norms).map(|value| value.to_bits()).collect();
    let tensors = outcome.weights.iter();
    let weights = tensors.map(|(name, w)| (name.clone(), w.iter().map(|x| x.to_bits()).collect())).collect();
    (scalars, weights)
}

/// Dropout on, uneven sub-batches, several micro-batches, vocabulary that does not divide.
fn case() -> Case {
    let model = Model { dropout: 0.1, ..Model::gpt(2, 32, 4, 12, 50) };
    Case { model, sequences: 5, micro: 2, sub: 2, steps: 3 }
}

#[test]
fn all_schedules_give_the_same_bits() {
    for tensor in ["1", "2", "4"] {
        for sub in 1..=4 {
            let case = Case { sub, ..case() };
            let reference = case.run("megatron", tensor);
            assert!(reference.losses.iter().all(|loss| loss.is_finite()));
            for variant in VARIANTS {
                let outcome = case.run(variant.name, tensor);
                assert!(
                    bits(&outcome) == bits(&reference),
                    "{} over {tensor}, {sub} sub-batches",
                    variant.name
                );
            }
        }
    }
}

#[test]
fn what_is_kept_and_how_products_are_cut_changes_no_bit() {
    let case = case();
    let reference = case.run("none", "2");
    let plain = case.request("2");
    let keeps = [Keep::Input, Keep::Selective, Keep::All];
    let kept = VARIANTS.iter().flat_map(|variant| keeps.map(|keep| (variant, keep)));
    let mut requests: Vec<(&Variant, Request)> = kept
        .filter(|(variant, keep)| variant.can_keep(*keep))
        .map(|(variant, keep)| (variant, Request { keep: Keeps::Same(keep), ..plain.clone() }))
        .collect();
    let decomposed = Variant::find("decomposed").unwrap();
    let cuts = [(2, Cut::Columns), (3, Cut::Columns), (5, Cut::Rows), (7, Cut::Columns)];
    requests.extend(cuts.map(|(pieces, cut)| (decomposed, Request { pieces, cut, ..plain.clone() })));
    for (variant, request) in requests {
        let outcome = case.run_schedule(variant.build(&request));
        let Request { keep, pieces, cut, .. } = request;
        assert!(bits(&outcome) == bits(&reference), "{} {keep:?} {pieces} {cut:?}", variant.name);
        assert_eq!(outcome.arena_used, outcome.arena_planned, "{} {keep:?}", variant.name);
    }
}

#[test]
fn random_schedules_give_the_same_bits() {
    for tensor in ["1", "2"] {
        let case = case();
        let reference = case.run("none", tensor);
        for seed in 0..40 {
            let schedule = oases_schedule::random::schedule(seed, &case.request(tensor));
            let outcome = case.run_schedule(schedule.clone());
            assert!(bits(&outcome) == bits(&reference), "seed {seed} over {tensor}:\n{schedule}");
            assert_eq!(outcome.arena_used, outcome.arena_planned, "seed {seed} over {tensor}");
        }
    }
}

#[test]
fn the_degree_changes_only_rounding() {
    let case = Case { steps: 20, ..case() };
    let reference = case.run("oases", "1");
    for tensor in ["2", "4"] {
        let outcome = case.run("oases", tensor);
        for step in 0..20 {
            let loss = outcome.losses[step] / reference.losses[step] - 1.0;
            let norm = outcome.norms[step] / reference.norms[step] - 1.0;
            assert!(loss.abs() <= 2e-5, "loss of step {step} over {tensor} differs by {loss:e}");
            assert!(norm.abs() <= 1e-4, "norm of step {step} over {tensor} differs by {norm:e}");
        }
    }
}

#[test]
fn sub_batches_change_only_rounding() {
    let reference = Case { sub: 1, ..case() }.run("oases", "2");
    for sub in [2, 3, 4] {
        let outcome = Case { sub, ..case() }.run("oases", "2");
        for step in 0..3 {
            assert!((outcome.losses[step] / reference.losses[step] - 1.0).abs() <= 1e-6, "{sub} sub-batches");
        }
    }
}

#[test]
fn micro_batches_change_only_rounding() {
    let reference = Case { sequences: 6, micro: 1, ..case() }.run("oases", "2");
    let outcome = Case { sequences: 2, micro: 3, ..case() }.run("oases", "2");
    for step in 0..3 {
        assert!((outcome.losses[step] / reference.losses[step] - 1.0).abs() <= 1e-6);
    }
}

#[test]
fn dropout_matters() {
    let with = case().run("oases", "2");
    let without = Case { model: Model { dropout: 0.0, ..case().model }, ..case() }.run("oases", "2");
    assert!((with.losses[0] / without.losses[0] - 1.0).abs() > 1e-4);
}

#[test]
fn the_plan_is_used_to_the_byte() {
    for variant in VARIANTS {
        for (tensor, micro, sub) in [("1", 1, 1), ("2", 2, 2), ("4", 1, 3)] {
            let outcome = Case { micro, sub, steps: 1, ..case() }.run(variant.name, tensor);
            assert_eq!(outcome.arena_used, outcome.arena_planned, "{} over {tensor}", variant.name);
        }
    }
}

#[test]
fn a_vocabulary_smaller_than_the_group_trains() {
    let model = Model::gpt(1, 16, 4, 6, 5);
    let case = Case { model, sequences: 2, micro: 1, sub: 2, steps: 2 };
    let (one, four) = (case.run("oases", "1"), case.run("oases", "4"));
    assert!((four.losses[1] / one.losses[1] - 1.0).abs() <= 2e-5);
}

#[test]
fn one_sequence_of_one_token_trains() {
    let case = Case { model: Model::gpt(1, 8, 2, 1, 3), sequences: 1, micro: 1, sub: 1, steps: 2 };
    assert!(case.run("oases", "2").losses.iter().all(|loss| loss.is_finite()));
}
