//! Why nothing is allowed: which stage, which resource, or which resources together.

use super::answer::{Infeasible, Shortfall};
use super::chain::{Chain, Prices};
use super::{Choice, Problem, labels};
use crate::time::Nanoseconds;

/// What can be said about each stage and each resource by itself, of the chains that are a problem.
pub(super) fn by_itself(problem: &Problem, chains: &[Chain]) -> Result<(), Infeasible> {
    let least = |prices: &Prices| {
        let of = |chain: &Chain| Some(chain.cheapest(prices, &chain.to_go(prices))?.0);
        chains.iter().filter_map(of).min()
    };
    if least(&Prices::bounding(&[])).is_none() {
        return Err(Infeasible::NoChoice { stage: first_without_choice(problem) });
    }
    let mut shortfalls = Vec::new();
    for (resource, budget) in problem.budgets.iter().enumerate() {
        let least = least(&Prices::of_resource(resource, problem.budgets.len()));
        let least = least.expect("there is a way through the stages");
        if least > i128::from(budget.amount) {
            shortfalls.push(shortfall(problem, resource, least as u64));
        }
    }
    if shortfalls.is_empty() { Ok(()) } else { Err(Infeasible::Resources(shortfalls)) }
}

/// What is to be said when each resource fits alone and nothing fits: the least of each while the others are kept.
pub(super) fn together(problem: &Problem, room: usize) -> Infeasible {
    let least = |resource| {
        let answer = labels::solve(&costing(problem, resource), room).ok()?;
        // Where room was short the bound may say nothing.
        let least = answer.bound.0;
        (least > problem.budgets[resource].amount).then(|| shortfall(problem, resource, least))
    };
    Infeasible::Together((0..problem.budgets.len()).filter_map(least).collect())
}

fn shortfall(problem: &Problem, resource: usize, least: u64) -> Shortfall {
    let budget = &problem.budgets[resource];
    Shortfall { resource, name: budget.name.clone(), least, budget: budget.amount }
}

/// The same stages, where what costs is one resource, which then has no budget.
fn costing(problem: &Problem, resource: usize) -> Problem {
    let mut costing = problem.clone();
    costing.budgets.remove(resource);
    for choice in costing.kinds.iter_mut().flat_map(|kind| &mut kind.choices) {
        let amount = choice.resources.remove(resource);
        choice.cost = choice.cost.map(|_| Nanoseconds(amount));
    }
    for cost in costing.transitions.iter_mut().flat_map(|transition| transition.costs.iter_mut().flatten()) {
        *cost = cost.map(|_| Nanoseconds::ZERO);
    }
    costing
}

/// The first stage none of whose choices can be reached; the last one if all can be.
fn first_without_choice(problem: &Problem) -> usize {
    let last = problem.stages.len() - 1;
    let mut reached: Vec<usize> = Vec::new();
    for stage in 0..last {
        let arrives = |choice: usize| {
            let allowed =
                |from: &usize| problem.transitions[problem.links[stage - 1]].costs[*from][choice].is_some();
            stage == 0 || reached.iter().any(allowed)
        };
        let possible =
            |(choice, what): (usize, &Choice)| (what.cost.is_some() && arrives(choice)).then_some(choice);
        reached = problem.choices(stage).iter().enumerate().filter_map(possible).collect();
        if reached.is_empty() {
            return stage;
        }
    }
    last
}
