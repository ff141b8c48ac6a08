//! The solver HiGHS: C++, built and linked only with the cargo feature `highs`.

use std::time::Duration;

use ::highs::{HighsModelStatus, HighsSolutionStatus, RowProblem, Sense};

use super::ilp::{Found, IlpSolver, Values, scale};
use super::lp::{Ilp, Relation};

pub(super) struct Highs;

impl IlpSolver for Highs {
    const NAME: &'static str = "HiGHS";

    fn solve(ilp: &Ilp, time_limit: Option<Duration>) -> Result<Found, String> {
        let mut problem = RowProblem::default();
        let columns: Vec<_> = ilp
            .variables
            .iter()
            .map(|variable| match variable.choice {
                Some(_) => problem.add_integer_column(variable.cost as f64, 0..=1),
                None => problem.add_column(variable.cost as f64, 0..),
            })
            .collect();
        for constraint in &ilp.constraints {
            let scale = scale(constraint);
            let terms = constraint.terms.iter();
            let terms: Vec<_> = terms.map(|(at, factor)| (columns[*at], *factor as f64 / scale)).collect();
            let right = constraint.right as f64 / scale;
            match constraint.relation {
                Relation::AtMost => problem.add_row(..=right, terms),
                Relation::Equal => problem.add_row(right..=right, terms),
            };
        }
        let failed = |what: &dyn std::fmt::Debug| format!("{what:?}");
        let mut model = problem.try_optimise(Sense::Minimise).map_err(|status| failed(&status))?;
        model.make_quiet();
        // Costs are whole nanoseconds: what is less than one apart is the same.
        let options = [("mip_rel_gap", 0.0), ("mip_abs_gap", 0.5), ("mip_feasibility_tolerance", 1e-9)];
        let limit = time_limit.map(|limit| ("time_limit", limit.as_secs_f64()));
        for (option, value) in options.into_iter().chain(limit) {
            model.try_set_option(option, value).map_err(|status| format!("{option}: {status:?}"))?;
        }
        let solved = model.try_solve().map_err(|status| failed(&status))?;
        let values = || Values {
            values: solved.get_solution().columns().to_vec(),
            bound: solved.double_info_value(c"mip_dual_bound").unwrap_or(0.0),
            nodes: solved.int_info_value(c"mip_node_count").unwrap_or(0).max(0).unsigned_abs(),
        };
        match solved.status() {
            HighsModelStatus::Optimal => Ok(Found::Optimum(values())),
            HighsModelStatus::Infeasible => Ok(Found::Infeasible),
            HighsModelStatus::ReachedTimeLimit => {
                let is_something = solved.primal_solution_status() == HighsSolutionStatus::Feasible;
                Ok(Found::Stopped(is_something.then(values)))
            }
            status => Err(failed(&status)),
        }
    }
}
