//! The second opinion: the same problem by a solver of integer linear programmes, its answer checked in whole numbers.

use std::time::Duration;

use super::answer::{Answer, Assignment, NoAnswer, Work};
use super::chain::Chain;
use super::lp::{Constraint, Ilp};
use super::{Problem, infeasible};
use crate::time::Nanoseconds;

/// A solver from elsewhere, as this module sees it.
pub(super) trait IlpSolver {
    /// What it is called in messages.
    const NAME: &'static str;

    /// Solves, or says why not, in its own words.
    fn solve(ilp: &Ilp, time_limit: Option<Duration>) -> Result<Found, String>;
}

/// What a solver found.
pub(super) enum Found {
    Optimum(Values),
    /// The time was up; what it had by then.
    Stopped(Option<Values>),
    Infeasible,
}

/// Values of all variables.
pub(super) struct Values {
    pub(super) values: Vec<f64>,
    /// The objective is no less.
    pub(super) bound: f64,
    /// Nodes of the tree of branch and bound.
    pub(super) nodes: u64,
}

/// Solves a checked problem, and again without the answer, for the runner-up; the time limit holds for each. `room` is for
/// the explanation, where nothing is possible.
pub(super) fn solve<S: IlpSolver>(
    problem: &Problem,
    time_limit: Option<Duration>,
    room: usize,
) -> Result<Answer, NoAnswer> {
    infeasible::by_itself(problem, &Chain::all(problem))?;
    let mut ilp = Ilp::new(problem);
    let once = |ilp: &Ilp| {
        once::<S>(problem, ilp, time_limit).map_err(|problem| NoAnswer::Solver { solver: S::NAME, problem })
    };
    let Some(first) = once(&ilp)? else { return Err(infeasible::together(problem, room).into()) };
    let limit = || NoAnswer::Limit(format!("{:?} for {}", time_limit.unwrap_or_default(), S::NAME));
    let best = first.found.ok_or_else(limit)?;
    ilp.exclude(&best.choices);
    let (runner_up, others_bound, nodes) = match once(&ilp)? {
        None => (None, None, 0),
        Some(second) => (second.found, Some(second.bound.max(first.bound)), second.nodes),
    };
    let usage = problem.usage(&best.choices);
    let work = Work { explored: first.nodes + nodes, ..Work::default() };
    Ok(Answer { best, usage, bound: first.bound, runner_up, others_bound, work })
}

/// What came of solving once.
struct Round {
    found: Option<Assignment>,
    bound: Nanoseconds,
    nodes: u64,
}

/// Solves once, and checks what is found; `None` if the solver says that nothing is possible.
fn once<S: IlpSolver>(
    problem: &Problem,
    ilp: &Ilp,
    time_limit: Option<Duration>,
) -> Result<Option<Round>, String> {
    let (values, is_optimum) = match S::solve(ilp, time_limit)? {
        Found::Infeasible => return Ok(None),
        Found::Stopped(None) => return Ok(Some(Round { found: None, bound: Nanoseconds::ZERO, nodes: 0 })),
        Found::Stopped(Some(values)) => (values, false),
        Found::Optimum(values) => (values, true),
    };
    let found = assignment(problem, ilp, &values.values)?;
    // A bound from floating point, with room for its rounding.
    let bound = Nanoseconds((values.bound * (1.0 - 1e-9) - 1.0) as u64).min(found.objective);
    let bound = if is_optimum { found.objective } else { bound };
    Ok(Some(Round { found: Some(found), bound, nodes: values.nodes }))
}

/// Reads the assignment off the variables that make choices, and checks it against the problem.
fn assignment(problem: &Problem, ilp: &Ilp, values: &[f64]) -> Result<Assignment, String> {
    let mut choices = vec![None; problem.stages.len()];
    for (variable, value) in ilp.variables.iter().zip(values) {
        if let (Some((stage, choice)), true) = (variable.choice, *value > 0.5) {
            choices[stage] = Some(choice);
        }
    }
    let choices: Option<Vec<usize>> = choices.into_iter().collect();
    let choices = choices.ok_or("a stage is left without a choice")?;
    let objective = problem.cost(&choices).ok_or("two choices follow each other that may not")?;
    if !problem.fits(&problem.usage(&choices)) {
        return Err("the answer is beyond a budget".to_string());
    }
    Ok(Assignment { objective, choices })
}

/// By what a constraint is to be divided, so that its coefficients are numbers that solvers in floating point handle well:
/// with tolerances of 1e-7 and the greatest coefficient at most 2^20, sums of 10^13 are still exact to one.
pub(super) fn scale(constraint: &Constraint) -> f64 {
    let greatest = constraint.terms.iter().map(|(_, coefficient)| coefficient.unsigned_abs()).max();
    let bits = u64::BITS - greatest.unwrap_or(1).leading_zeros();
    f64::from(bits.saturating_sub(20)).exp2()
}
