//! The exact solver: a label-setting dynamic programme from both ends, cut by bounds.
//!
//! A *label* is the beginning of an assignment: what it cost so far, what it needs of each resource, and the choice it ends
//! with. Labels grow by one stage at a time, all of them together; so do others from the end of the chain, and where the two
//! meet they are joined. A label is dropped when
//!
//! 1. a budget cannot be met any more, even with the least of that resource in all other stages;
//! 2. it can only become dearer than the runner-up known so far, by its cost and the [`Relaxation`]'s lower bound on the rest;
//! 3. two others with the same last choice come before it (cost, then the order of choices) and need no more of any
//!    resource, so that whatever the rest is, those two come before it with the same rest.
//!
//! What is left are the two first of all assignments in the order of [`Assignment`], and the proof is that nothing else was
//! dropped. The number of labels grows fast with the distance between the lower bound and the runner-up, and no heuristic finds
//! a runner-up as cheaply as the programme itself. So it runs with an assumed one, just above the lower bound, and again
//! farther above, until what it finds is no dearer than what was assumed: all runs together cost little more than the last. In a ring each choice of the first stage is a chain of its own; they share the assignments found.

mod run;

use super::Problem;
use super::answer::{Answer, Assignment, NoAnswer, Work};
use super::chain::{Chain, NANOSECOND, Prices, ToGo};
use super::infeasible;
use super::relaxation::Relaxation;
use crate::time::Nanoseconds;

/// The first run reaches above the lower bound by this part of it.
const FIRST_REACH: i128 = 1 << 22;
/// How many times as many labels as in the run before are aimed at.
const MORE_LABELS: f64 = 4.0;
/// After runs with fewer labels, which take no time worth a thought, the distance is doubled.
const FEW_LABELS: u64 = 2_000;

/// Solves a checked problem, with at most `room` labels in one stage. If that is not enough, the bounds of the answer are
/// below its objectives.
pub(super) fn solve(problem: &Problem, room: usize) -> Result<Answer, NoAnswer> {
    let chains = Chain::all(problem);
    infeasible::by_itself(problem, &chains)?;
    let mut search = Search::new(problem, chains);
    let least = search.least_unexplored().unwrap_or_default();
    let mut before = Distance { above: 0, labels: 0 };
    let mut above = least / FIRST_REACH + NANOSECOND;
    loop {
        let reach = search.found.ceiling().min(least + above);
        let explored = search.work.explored;
        let was_full = search.run(reach, room);
        let is_settled = search.unexplored().is_none() || reach >= search.found.ceiling();
        if is_settled || was_full && search.found.first_two.len() == 2 {
            return search.answer(room);
        }
        let now = Distance { above, labels: search.work.explored - explored };
        // At least as far as the next label. Where room is short, a longer reach may still find something, but no bound.
        let next = search.least_unexplored().map_or(above, |bound| bound - least);
        above = if was_full { search.found.ceiling() } else { next.max(now.farther(&before)) };
        before = now;
    }
}

/// How far above the lower bound a run reached, in 1/[`NANOSECOND`], and how many labels it had.
struct Distance {
    above: i128,
    labels: u64,
}

impl Distance {
    /// How far to reach next. The number of labels is taken for a power of the distance, whose exponent shows in the last two
    /// runs. It decides how long the search takes, not what it finds.
    fn farther(&self, before: &Distance) -> i128 {
        if before.labels < FEW_LABELS {
            return 2 * self.above;
        }
        let exponent =
            (self.labels as f64 / before.labels as f64).ln() / (self.above as f64 / before.above as f64).ln();
        let factor = if exponent > 0.0 { MORE_LABELS.powf(exponent.recip()) } else { f64::INFINITY };
        (self.above as f64 * factor.clamp(1.1, 64.0)) as i128
    }
}

/// A chain in one direction, with what guides labels along it.
struct Way {
    chain: Chain,
    /// The least price of the rest.
    to_go: ToGo,
    /// For each resource the least amount that the rest needs.
    least_amounts: Vec<ToGo>,
}

impl Way {
    fn new(chain: Chain, to_go: ToGo) -> Way {
        let least = |resource| chain.to_go(&Prices::of_resource(resource, chain.resources()));
        Way { least_amounts: (0..chain.resources()).map(least).collect(), chain, to_go }
    }
}

/// A chain in both directions.
struct Branch {
    forward: Way,
    backward: Way,
    prices: Prices,
    /// What the budgets are worth; to be taken off each price.
    budgets_price: i128,
    /// No assignment costs less but those that were looked at, in 1/[`NANOSECOND`]; `None` when all were.
    unexplored: Option<i128>,
}

struct Search<'a> {
    problem: &'a Problem,
    /// The budgets, no greater than all stages can need.
    budgets: Vec<u64>,
    branches: Vec<Branch>,
    found: Found,
    work: Work,
}

impl<'a> Search<'a> {
    fn new(problem: &'a Problem, chains: Vec<Chain>) -> Search<'a> {
        let budgets: Vec<u64> = (0..problem.budgets.len()).map(|resource| problem.useful(resource)).collect();
        let branch = |chain: Chain| {
            let Relaxation { prices, to_go, budgets_price, bound } =
                Relaxation::best(problem, &chain, &budgets)?;
            let reversed = chain.reversed();
            let reversed_to_go = reversed.to_go(&prices);
            Some(Branch {
                forward: Way::new(chain, to_go),
                backward: Way::new(reversed, reversed_to_go),
                prices,
                budgets_price,
                unexplored: Some(bound),
            })
        };
        let mut branches: Vec<Branch> = chains.into_iter().filter_map(branch).collect();
        // What is found in the most promising branch cuts the others.
        branches.sort_by_key(|branch| branch.unexplored);
        let found = Found { first_two: Vec::new(), greatest_cost: problem.greatest_cost() };
        Search { problem, budgets, branches, found, work: Work::default() }
    }

    /// Runs through all branches that are not settled, up to a bound of `reach`, and says whether room was too short.
    fn run(&mut self, reach: i128, room: usize) -> bool {
        let mut was_full = false;
        for branch in &mut self.branches {
            let reach = reach.min(self.found.ceiling());
            if branch.unexplored.is_none_or(|bound| bound > reach) {
                continue;
            }
            let outcome = run::Run { branch, budgets: &self.budgets, reach, room }.through();
            for choices in outcome.first_two {
                self.found.offer(self.problem, choices);
            }
            self.work += outcome.work;
            branch.unexplored = outcome.least_left_out;
            was_full |= outcome.was_full;
        }
        was_full
    }

    /// The least bound of what was not looked at, in 1/[`NANOSECOND`]; `None` if all was.
    fn least_unexplored(&self) -> Option<i128> {
        self.branches.iter().filter_map(|branch| branch.unexplored).min()
    }

    /// No assignment costs less that was not looked at and may be one of the two first; `None` if there is none.
    fn unexplored(&self) -> Option<Nanoseconds> {
        let least = self.least_unexplored().filter(|bound| *bound <= self.found.ceiling())?;
        // Costs are whole nanoseconds, so the bound may be rounded up.
        let whole = least.unsigned_abs().div_ceil(NANOSECOND.unsigned_abs());
        Some(Nanoseconds(whole as u64))
    }

    fn answer(self, room: usize) -> Result<Answer, NoAnswer> {
        let unexplored = self.unexplored();
        let mut found = self.found.first_two.into_iter();
        let Some(best) = found.next() else {
            return Err(match unexplored {
                None => infeasible::together(self.problem, room).into(),
                Some(_) => NoAnswer::Limit(format!("{room} labels in one stage")),
            });
        };
        let runner_up = found.next();
        Ok(Answer {
            usage: self.problem.usage(&best.choices),
            bound: unexplored.map_or(best.objective, |bound| bound.min(best.objective)),
            others_bound: runner_up.iter().map(|other| other.objective).chain(unexplored).min(),
            best,
            runner_up,
            work: self.work,
        })
    }
}

/// The two first assignments so far.
struct Found {
    first_two: Vec<Assignment>,
    /// No assignment costs more.
    greatest_cost: u64,
}

impl Found {
    /// The cost above which an assignment is of no interest, in 1/[`NANOSECOND`].
    fn ceiling(&self) -> i128 {
        let cost = self.first_two.get(1).map_or(self.greatest_cost, |runner_up| runner_up.objective.0);
        i128::from(cost) * NANOSECOND
    }

    /// Takes an assignment if it is one of the two first.
    fn offer(&mut self, problem: &Problem, choices: Vec<usize>) {
        let objective = problem.cost(&choices).expect("labels follow what is allowed");
        let assignment = Assignment { objective, choices };
        if let Err(place) = self.first_two.binary_search(&assignment) {
            self.first_two.insert(place, assignment);
            self.first_two.truncate(2);
        }
    }
}
