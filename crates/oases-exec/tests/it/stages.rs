//! Pipeline stages and sharded optimizers: the numbers of a step that one stage takes with whole optimizers.

use oases_schedule::{Model, Optimizer, Request, Schedule, Stage, Stages, Variant};

use crate::harness::Outcome;
use crate::schedules::Case;

/// Dropout on, uneven sub-batches, several micro-batches, vocabulary that does not divide.
fn case(tied: bool) -> Case {
    let model = Model { dropout: 0.1, tied, ..Model::gpt(2, 32, 4, 6, 50) };
    Case { model, sequences: 12, micro: 2, sub: 2, steps: 3 }
}

/// The blocking schedule of each stage.
fn schedules(case: &Case, degrees: &str, stages: &Stages, optimizer: Optimizer) -> Vec<Schedule> {
    let blocking = Variant::find("none").unwrap();
    let stage = |index| Stage { stages: stages.clone(), index };
    let request = |index| Request { stage: stage(index), optimizer, ..case.request(degrees) };
    (0..stages.count()).map(|index| blocking.build(&request(index))).collect()
}

/// Stages of the six blocks of the chain: none, two, three, and two with two chunks each.
fn cuts(tied: bool) -> [Stages; 4] {
    [(1, vec![0]), (2, vec![0, 3]), (3, vec![0, 1, 5]), (2, vec![0, 2, 3, 4])]
        .map(|(count, starts)| Stages::new(count, starts, tied))
}

#[track_caller]
fn assert_close(found: &Outcome, expected: &Outcome, what: &str) {
    let close = |found: f64, expected: f64| (found - expected).abs() <= 2e-5 * expected.abs().max(1.0);
    for (found, expected) in found.losses.iter().zip(&expected.losses) {
        assert!(close(*found, *expected), "{what}: loss {found} instead of {expected}");
    }
    for (found, expected) in found.norms.iter().zip(&expected.norms) {
        assert!(close(*found, *expected), "{what}: norm {found} instead of {expected}");
    }
    for (name, expected) in &expected.gradients {
        let pairs = found.gradients[name].iter().zip(expected);
        let worst = pairs.map(|(found, expected)| (found - expected).abs()).fold(0.0, f32::max);
        assert!(worst <= 1e-5, "{what}: gradient of {name} is off by {worst}");
    }
}

#[test]
fn stages_take_the_step_of_one() {
    for tied in [true, false] {
        let case = case(tied);
        let reference = case.run("none", "1");
        for stages in cuts(tied) {
            for degrees in ["1", "2", "1 of 2"] {
                let what = format!("degrees {degrees} over {stages:?}");
                let outcome = case.run_stages(schedules(&case, degrees, &stages, Optimizer::Whole));
                assert_close(&outcome, &reference, &what);
                assert_eq!(outcome.arena_used, outcome.arena_planned, "{what}");
            }
        }
    }
}

#[test]
fn a_sharded_optimizer_changes_no_bit() {
    for tied in [true, false] {
        let case = case(tied);
        for stages in cuts(tied) {
            for degrees in ["1 of 2", "1 of 4", "2 of 4"] {
                let [whole, sharded] = [Optimizer::Whole, Optimizer::Sharded]
                    .map(|optimizer| case.run_stages(schedules(&case, degrees, &stages, optimizer)));
                let what = format!("degrees {degrees} over {stages:?}");
                assert_eq!((&sharded.losses, &sharded.norms), (&whole.losses, &whole.norms), "{what}");
                assert!(sharded.weights == whole.weights, "{what}");
                assert!(sharded.arena_planned < whole.arena_planned, "{what}");
            }
        }
    }
}
