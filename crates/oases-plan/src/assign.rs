//! One choice for each stage of a chain, so that the sum of all costs is least and budgets are kept, with a proof.
//!
//! ```text
//! minimise   Σ_i node_i(p_i)  +  Σ_i edge_i(p_i, p_(i+1))     over the choices p
//! subject to Σ_i amount_ir(p_i) ≤ budget_r                    for each resource r
//! ```
//!
//! The last stage may lead back to the first, so that the chain is a ring. [`Ilp`] is the definition; [`Solver::Labels`] uses
//! the chain instead and is exact as well, and the other solvers are second opinions. The module knows numbers only:
//! what stages, choices and resources are is the caller's business.
//!
//! The pipeline: [`Problem`] → [`solve`] → [`Answer`], or [`NoAnswer`], which says what stands in the way.
//!
//! All costs and amounts are whole numbers, and so is what is computed from them. Of assignments that cost the same, the one
//! comes first whose first differing choice has the lower index; the label solver's best and runner-up are the first two in
//! that order. The other solvers stop at any that cost the same.

mod answer;
mod chain;
#[cfg(feature = "highs")]
mod highs;
mod ilp;
mod infeasible;
mod labels;
mod lp;
mod microlp;
mod problem;
mod relaxation;

use std::time::Duration;

pub use answer::{Answer, Assignment, Infeasible, NoAnswer, Shortfall, Work};
pub use lp::{Constraint, Ilp, Relation, Variable};
pub use problem::{Budget, Choice, Kind, Problem, Transition};

/// How to solve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Solver {
    /// The label-setting dynamic programme; exact.
    #[default]
    Labels,
    /// The [`Ilp`], by the crate `microlp`; exact up to floating point.
    Microlp,
    /// The [`Ilp`], by HiGHS; exact up to floating point. Only with the cargo feature `highs`.
    Highs,
}

/// When to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many labels [`Solver::Labels`] keeps in one stage. What it found by then is still answered, with the bound that is
    /// proven. It is a number and no time, so that the answer depends on the problem only.
    pub labels: usize,
    /// How long [`Solver::Microlp`] and [`Solver::Highs`] may take for the best and for the runner-up each.
    pub time: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { labels: 20_000, time: None }
    }
}

/// Finds the best assignment and the runner-up.
pub fn solve(problem: &Problem, solver: Solver, limits: Limits) -> Result<Answer, NoAnswer> {
    problem.check()?;
    match solver {
        Solver::Labels => labels::solve(problem, limits.labels.max(1)),
        Solver::Microlp => ilp::solve::<microlp::Microlp>(problem, limits.time, limits.labels),
        #[cfg(feature = "highs")]
        Solver::Highs => ilp::solve::<highs::Highs>(problem, limits.time, limits.labels),
        #[cfg(not(feature = "highs"))]
        Solver::Highs => Err(NoAnswer::Solver {
            solver: "HiGHS",
            problem: "this build is without it; build with `--features highs`".to_string(),
        }),
    }
}
