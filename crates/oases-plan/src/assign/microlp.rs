//! The solver `microlp`: pure Rust, branch and bound over a simplex.

use std::time::Duration;

use ::microlp::{
    ComparisonOp, Error, OptimizationDirection, Problem, SolutionStatus, SolveOptions, Variable,
};

use super::ilp::{Found, IlpSolver, Values, scale};
use super::lp::{Ilp, Relation};

/// Units of the rows. Once in a thousand problems the simplex ends in a basis that it cannot invert, and says so; in
/// another unit it takes another way.
const UNITS: [f64; 2] = [1.0, (1 << 20) as f64];

pub(super) struct Microlp;

impl IlpSolver for Microlp {
    const NAME: &'static str = "microlp";

    fn solve(ilp: &Ilp, time_limit: Option<Duration>) -> Result<Found, String> {
        let mut options = SolveOptions::default();
        options.time_limit = time_limit;
        // Costs are whole nanoseconds and sum up to less than 10^12: this part of the best is less than one.
        options.tolerances.prune_epsilon = 1e-13;
        let mut failure = String::new();
        for unit in UNITS {
            let (problem, variables) = model(ilp, unit);
            let outcome = match problem.solve_with(options.clone()) {
                Err(Error::Infeasible) => return Ok(Found::Infeasible),
                Err(error) => {
                    failure = error.to_string();
                    continue;
                }
                Ok(outcome) => outcome,
            };
            let stats = outcome.stats();
            let Some(solution) = outcome.solution() else { return Ok(Found::Stopped(None)) };
            let values = Values {
                values: variables.iter().map(|variable| solution.var_value(*variable)).collect(),
                bound: stats.best_bound.unwrap_or(0.0),
                nodes: stats.nodes_solved,
            };
            return Ok(match solution.status() {
                SolutionStatus::Optimal => Found::Optimum(values),
                SolutionStatus::Feasible => Found::Stopped(Some(values)),
            });
        }
        Err(failure)
    }
}

fn model(ilp: &Ilp, unit: f64) -> (Problem, Vec<Variable>) {
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let variables: Vec<Variable> = ilp
        .variables
        .iter()
        .map(|variable| match variable.choice {
            Some(_) => problem.add_binary_var(variable.cost as f64),
            None => problem.add_var(variable.cost as f64, (0.0, f64::INFINITY)),
        })
        .collect();
    for constraint in &ilp.constraints {
        let scale = scale(constraint) * unit;
        let terms = constraint.terms.iter();
        let terms: Vec<_> = terms.map(|(at, factor)| (variables[*at], *factor as f64 / scale)).collect();
        let relation = match constraint.relation {
            Relation::AtMost => ComparisonOp::Le,
            Relation::Equal => ComparisonOp::Eq,
        };
        problem.add_constraint(terms, relation, constraint.right as f64 / scale);
    }
    (problem, variables)
}
