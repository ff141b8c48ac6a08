//! The planner against every layout there is, each simulated and planned to the byte.

use oases_plan::assign::{Answer, Limits, NoAnswer, Problem, Solver, solve};
use oases_plan::planner::{Candidate, NoPlan, Planned, Task, plan_layout, solve_layout};
use oases_plan::{CollectiveTime, Costs, Error, Nanoseconds, Reach, Ring};
use oases_schedule::{
    Bytes, CollectiveKind, Direction, Extent, Family, Keep, Keeps, Layout, Model, Operation, Request,
    Schedule, Scope, Variant, Workspace,
};

/// Costs of a made-up machine: work by sequences, less efficient at higher degrees, on a ring.
struct Made {
    ring: Ring,
    /// Of a forward of one sequence at degree 1, in microseconds.
    attn_us: f64,
    mlp_us: f64,
    /// Share of the work that does not get less with the degree.
    serial: f64,
    /// A degree about which nothing is known.
    unknown: Option<u32>,
}

impl Costs for Made {
    fn compute(&self, operation: Operation, sequences: u32, tensor: u32) -> Result<Nanoseconds, Error> {
        if self.unknown == Some(tensor) {
            let (what, measured) = (format!("`{operation}`"), "nothing".to_owned());
            return Err(Error::NotMeasured { what, measured });
        }
        let base = match operation.family() {
            Some(Family::Attn) => self.attn_us,
            Some(Family::Mlp) => self.mlp_us,
            Some(Family::Head) => 0.7 * self.mlp_us,
            Some(Family::Embed) | None => 0.05 * self.mlp_us,
        };
        let times = match operation {
            Operation::Backward(_, Scope::All) => 2.0,
            Operation::Backward(..) => 1.0,
            Operation::Recompute(Family::Mlp, Extent::Saved) => 0.5,
            Operation::Reshard(Direction::Forward | Direction::Backward) => 0.3,
            _ => 1.0,
        };
        let share = self.serial + (1.0 - self.serial) / f64::from(tensor);
        let sequences = f64::from(sequences.max(1));
        Ok(Nanoseconds::from_seconds(base * times * sequences * share / 1e6).expect("a short time"))
    }

    fn collective(&self, kind: CollectiveKind, bytes: Bytes, reach: Reach) -> Result<CollectiveTime, Error> {
        let link = self.ring.duration(kind, bytes, reach.ranks).expect("a short time");
        Ok(CollectiveTime { link, host: Nanoseconds::ZERO })
    }
}

fn made(gigabytes_per_s: f64) -> Made {
    let ring = Ring { bandwidth_bytes_per_s: gigabytes_per_s * 1e9, latency_s: 5e-6 };
    Made { ring, attn_us: 900.0, mlp_us: 700.0, serial: 0.1, unknown: None }
}

fn labels(problem: &Problem) -> Result<Answer, NoAnswer> {
    solve(problem, Solver::Labels, Limits::default())
}

fn model() -> Model {
    Model::gpt(2, 64, 4, 32, 300)
}

fn task<'a>(model: &'a Model, costs: &'a dyn Costs, budget: Option<u64>) -> Task<'a> {
    let variant = Variant::find("oases").unwrap();
    let layout = Layout::uniform(4, Schedule::blocks(model.layers));
    let request = Request { layout, ..Request::new(model.layers, 4, 16) };
    let (degrees, keeps) = (vec![1, 2, 4], vec![Keeps::AsScheduled]);
    let budget = budget.map(Bytes);
    Task { model, variant, request, degrees, keeps, budget, workspace: Workspace::default(), costs }
}

/// Every layout of two layers over four ranks.
fn all(task: &Task<'_>) -> Vec<Candidate> {
    let degree = |index: usize| [1, 2, 4][index % 3];
    let layouts = (0..243).map(|index| {
        let [ends, a, b, c, d] = [1, 3, 9, 27, 81].map(|digit| degree(index / digit));
        Layout::new(4, vec![ends, a, b, c, d, ends])
    });
    layouts.map(|layout| Candidate::new(task, &layout, &Keeps::AsScheduled).unwrap()).collect()
}

fn planned(task: &Task<'_>) -> Planned {
    plan_layout(task, &labels).unwrap_or_else(|error| panic!("{error}"))
}

/// From links on which one rank is best to links that are free.
const LINKS: [f64; 5] = [0.003, 0.01, 0.03, 0.1, 10.0];

#[test]
fn no_layout_is_much_shorter_than_the_plan() {
    // Many tokens for few weights, whose gradients are soon summed over replicas; and the reverse.
    for (model, best_on_a_slow_link) in [(model(), 1), (Model::gpt(2, 256, 4, 4, 300), 4)] {
        for (index, link) in LINKS.into_iter().enumerate() {
            let costs = made(link);
            let task = task(&model, &costs, None);
            let plan = planned(&task);
            let shortest = all(&task).into_iter().min_by_key(|candidate| candidate.step).unwrap();
            let over = plan.best.step.0 as f64 / shortest.step.0 as f64;
            assert!(over <= 1.02, "{} takes {over} times as long as {}", plan.best.layout, shortest.layout);
            assert!(plan.answer.is_proven());
            if index == 0 {
                assert_eq!(
                    plan.best.layout.uniform_degree(),
                    Some(best_on_a_slow_link),
                    "{}",
                    plan.best.layout
                );
            }
        }
    }
}

#[test]
fn in_a_budget_the_plan_fits_to_the_byte_and_nothing_that_fits_is_much_shorter() {
    let model = model();
    let mut mixed = 0;
    for link in LINKS {
        let costs = made(link);
        let candidates = all(&task(&model, &costs, None));
        let bytes = candidates.iter().map(|candidate| candidate.bytes.0);
        let [least, most] = [bytes.clone().min().unwrap(), bytes.max().unwrap()];
        for share in [0.02, 0.2, 0.4, 0.6, 0.9] {
            let budget = least + ((most - least) as f64 * share) as u64;
            let plan = match plan_layout(&task(&model, &costs, Some(budget)), &labels) {
                Ok(plan) => plan,
                // What the sum over blocks does not see may differ by more than is left.
                Err(NoPlan::Memory { .. }) if share < 0.1 => continue,
                Err(error) => panic!("{error}"),
            };
            assert!(plan.best.bytes.0 <= budget, "{} needs {}", plan.best.layout, plan.best.bytes);
            let fitting = candidates.iter().filter(|candidate| candidate.bytes.0 <= budget);
            let shortest = fitting.min_by_key(|candidate| candidate.step).unwrap();
            let over = plan.best.step.0 as f64 / shortest.step.0 as f64;
            let [found, known] = [&plan.best.layout, &shortest.layout];
            assert!(
                over <= 1.03,
                "{found} takes {over} times as long as {known} at {link} GB/s in {budget} B"
            );
            mixed += u32::from(plan.best.layout.uniform_degree().is_none());
            // Without what it is to be compared with, the answer fits as well, and is not much longer.
            match solve_layout(&task(&model, &costs, Some(budget)), &labels) {
                Ok(alone) => {
                    assert!(alone.bytes.0 <= budget, "{} needs {}", alone.layout, alone.bytes);
                    let over = alone.step.0 as f64 / shortest.step.0 as f64;
                    assert!(over <= 1.1, "{} takes {over} times as long as {known}", alone.layout);
                }
                Err(NoPlan::Memory { .. }) if share < 0.1 => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(mixed >= 3, "budgets made only {mixed} plans mixed");
}

#[test]
fn what_was_not_measured_is_not_chosen() {
    let model = model();
    let costs = Made { unknown: Some(4), ..made(10.0) };
    let plan = planned(&task(&model, &costs, None));
    assert!(!plan.best.layout.degrees().contains(&4), "{}", plan.best.layout);
    assert_eq!(plan.refused.len(), 1);
    assert!(plan.refused[0].reason.contains("was not measured"), "{}", plan.refused[0].reason);
}

/// The same, but that nobody knows what changes of the degree take.
struct WithoutBorders(Made);

impl Costs for WithoutBorders {
    fn compute(&self, operation: Operation, sequences: u32, tensor: u32) -> Result<Nanoseconds, Error> {
        match operation {
            Operation::Reshard(_) => {
                let (what, measured) = (format!("`{operation}`"), "nothing".to_owned());
                Err(Error::NotMeasured { what, measured })
            }
            _ => self.0.compute(operation, sequences, tensor),
        }
    }

    fn collective(&self, kind: CollectiveKind, bytes: Bytes, reach: Reach) -> Result<CollectiveTime, Error> {
        self.0.collective(kind, bytes, reach)
    }
}

#[test]
fn degrees_without_a_known_border_do_not_follow_each_other() {
    let model = model();
    let costs = WithoutBorders(made(0.1));
    let plan = planned(&task(&model, &costs, None));
    assert!(plan.best.layout.uniform_degree().is_some(), "{}", plan.best.layout);
    let pairs: Vec<[u32; 2]> = plan.barred.iter().map(|barred| [barred.before, barred.after]).collect();
    assert_eq!(pairs, [[1, 2], [1, 4], [2, 1], [2, 4], [4, 1], [4, 2]]);
    assert!(plan.barred[0].reason.contains("was not measured"), "{}", plan.barred[0].reason);
}

#[test]
fn a_schedule_that_does_not_overlap_is_planned_by_the_sum_of_everything() {
    let model = model();
    let costs = made(0.1);
    let variant = Variant::find("none").unwrap();
    let base = task(&model, &costs, None);
    let request = Request { sub_batches: 1, ..base.request.clone() };
    let task = Task { variant, request, ..base };
    let plan = planned(&task);
    let shortest = all(&task).into_iter().min_by_key(|candidate| candidate.step).unwrap();
    assert_eq!(plan.best.step, shortest.step);
    assert_eq!(Some(&plan.solved), plan.blocking.as_ref());
}

#[test]
fn nothing_fits_into_too_little() {
    let model = model();
    let costs = made(0.1);
    let least = all(&task(&model, &costs, None)).iter().map(|candidate| candidate.bytes).min().unwrap();
    match plan_layout(&task(&model, &costs, Some(least.0 - 1)), &labels) {
        Err(NoPlan::Memory { budget, least: named }) => {
            assert_eq!(budget.0, least.0 - 1);
            // The sum over blocks does not see what else is alive at the peak.
            assert!(named.bytes >= least && named.bytes.0 as f64 <= 1.03 * least.0 as f64, "{}", named.bytes);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn memory_that_is_left_keeps_activations() {
    let model = model();
    let costs = made(0.1);
    let base = task(&model, &costs, None);
    let keeps = vec![Keeps::Same(Keep::Input), Keeps::Same(Keep::All)];
    let bytes = |keep: Keep| {
        let layout = Layout::new(4, vec![2; 6]);
        Candidate::new(&base, &layout, &Keeps::Same(keep)).unwrap().bytes.0
    };
    let budget = (bytes(Keep::Input) + bytes(Keep::All)) / 2;
    let plain = planned(&task(&model, &costs, Some(budget)));
    let kept = planned(&Task { keeps, ..task(&model, &costs, Some(budget)) });
    assert!(
        matches!(&kept.best.keep, Keeps::Blocks(blocks) if blocks.contains(&Keep::All)),
        "{}",
        kept.best.keep
    );
    assert!(kept.best.step < plain.best.step && kept.best.bytes.0 <= budget);
}
