//! Blocks of different TMP degrees: the same numbers as with one degree, whatever the schedule.

use oases_schedule::passes::VARIANTS;
use oases_schedule::{Cut, Keep, Keeps, Model, Request, Variant};

use crate::schedules::{Case, bits};

/// Degrees of two layers between embedding and head: replicas only, one change, changes everywhere, also inside a layer, with
/// ends above and below the rest.
const DEGREES: [&str; 10] = [
    "1 of 2",
    "2*2 1*2 2*2",
    "1*1 2*4 1*1",
    "1*2 2*1 1*3",
    "1 of 4",
    "2 of 4",
    "4*1 1*1 4*1 2*1 1*1 4*1",
    "1*1 4*1 2*1 4*1 1*2",
    "2*3 1*2 2*1 of 4",
    "2*1 4*1 1*1 4*1 1*1 2*1",
];

/// Dropout on, uneven sub-batches, several micro-batches, vocabulary that does not divide.
fn case() -> Case {
    let model = Model { dropout: 0.1, ..Model::gpt(2, 32, 4, 6, 50) };
    Case { model, sequences: 12, micro: 2, sub: 2, steps: 3 }
}

#[test]
fn all_schedules_give_the_same_bits() {
    for degrees in DEGREES {
        let case = case();
        let reference = case.run("megatron", degrees);
        for variant in VARIANTS {
            let outcome = case.run(variant.name, degrees);
            assert!(bits(&outcome) == bits(&reference), "{} with degrees {degrees}", variant.name);
            assert_eq!(outcome.arena_used, outcome.arena_planned, "{} with degrees {degrees}", variant.name);
        }
    }
}

#[test]
fn what_is_kept_and_how_products_are_cut_changes_no_bit() {
    let (case, degrees) = (Case { sub: 3, ..case() }, "2*1 4*1 1*1 4*1 1*1 2*1");
    let reference = case.run("none", degrees);
    let plain = case.request(degrees);
    let keeps = [Keep::Input, Keep::Selective, Keep::All];
    let kept = VARIANTS.iter().flat_map(|variant| keeps.map(|keep| (variant, keep)));
    let mut requests: Vec<(&Variant, Request)> = kept
        .filter(|(variant, keep)| variant.can_keep(*keep))
        .map(|(variant, keep)| (variant, Request { keep: Keeps::Same(keep), ..plain.clone() }))
        .collect();
    let decomposed = Variant::find("decomposed").unwrap();
    let cuts = [(2, Cut::Columns), (3, Cut::Rows)];
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
    for degrees in ["2*2 1*2 2*2", "4*1 1*1 4*1 2*1 1*1 4*1", "1*1 4*1 2*1 4*1 1*2"] {
        let case = Case { steps: 2, ..case() };
        let reference = case.run("none", degrees);
        for seed in 0..20 {
            let schedule = oases_schedule::random::schedule(seed, &case.request(degrees));
            let outcome = case.run_schedule(schedule.clone());
            assert!(bits(&outcome) == bits(&reference), "seed {seed} with degrees {degrees}:\n{schedule}");
            assert_eq!(outcome.arena_used, outcome.arena_planned, "seed {seed} with degrees {degrees}");
        }
    }
}

/// Every sample has tokens of its own, so one that lands in another's place shows.
#[test]
fn degrees_change_only_rounding() {
    for tied in [true, false] {
        let case = Case { model: Model { tied, ..case().model }, steps: 20, ..case() };
        let reference = case.run("oases", "1");
        for degrees in DEGREES {
            let outcome = case.run("oases", degrees);
            for step in 0..20 {
                let loss = outcome.losses[step] / reference.losses[step] - 1.0;
                let norm = outcome.norms[step] / reference.norms[step] - 1.0;
                assert!(loss.abs() <= 2e-5, "loss of step {step} with degrees {degrees} differs by {loss:e}");
                assert!(norm.abs() <= 1e-4, "norm of step {step} with degrees {degrees} differs by {norm:e}");
            }
        }
    }
}

/// Gradients element by element: a sum over the wrong ranks, or one too many, shows in the block that it belongs to.
#[test]
fn gradients_are_those_of_one_rank() {
    let case = Case { steps: 1, ..case() };
    let reference = case.run("none", "1");
    let greatest = |values: &[f32]| values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    // The gradient of a key's bias is zero but for rounding.
    let least = reference.gradients.values().map(|values| greatest(values)).fold(0.0, f32::max) * 1e-3;
    for degrees in DEGREES {
        let outcome = case.run("oases", degrees);
        for (name, expected) in &reference.gradients {
            let scale = greatest(expected).max(least);
            for (value, expected) in outcome.gradients[name].iter().zip(expected) {
                let error = (value - expected).abs();
                assert!(
                    error <= 2e-5 * scale,
                    "{name} with degrees {degrees}: {value} instead of {expected}"
                );
            }
        }
    }
}

/// Some blocks keep everything, some their input, some all but the attention core.
#[test]
fn what_each_block_keeps_changes_no_bit() {
    let (case, degrees) = (case(), "2*2 1*2 2*2");
    let reference = case.run("none", degrees);
    for text in
        ["input*1 all*1 input*1 all*1", "all*2 input*2", "selective*1 input*2 all*1", "input*2 selective*2"]
    {
        let keep = Keeps::parse(text, 2).unwrap();
        for name in ["megatron", "merak", "cross-pass", "decomposed", "oases", "oases-w", "oases-dual"] {
            let request = Request { keep: keep.clone(), ..case.request(degrees) };
            let outcome = case.run_schedule(Variant::find(name).unwrap().build(&request));
            assert!(bits(&outcome) == bits(&reference), "{name} keeps {text}");
            assert_eq!(outcome.arena_used, outcome.arena_planned, "{name} keeps {text}");
        }
    }
}
