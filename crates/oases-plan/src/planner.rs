//! The planner: the TMP degree, and what is kept, for every block, so that a step is as short as memory allows.
//!
//! 1. `times` reads off a schedule of one layer what each kind of block takes at each degree.
//! 2. `objective` makes node and edge costs of that, `problem` the chain of them, in a budget; a solver answers it with
//!    a proof, or with the gap that is left.
//! 3. `candidate` builds the schedule of each answer, plans its memory to the byte and simulates it. Where the memory of the
//!    best answer is more than the sum over its blocks had said, the budget is lowered by the difference and the solver is
//!    asked again.
//!
//! So the objective only has to order layouts; what is printed, and whether it fits, is read off the schedule that will run.

mod candidate;
mod objective;
mod problem;
mod task;
mod times;

pub use candidate::Candidate;
pub use objective::Objective;
pub use problem::Chain;
pub use task::{Barred, Refused, Task};

use oases_schedule::Bytes;

use crate::assign::{Answer, Infeasible, NoAnswer, Problem};
use crate::error::Error;
use crate::time::Nanoseconds;

/// Solves a problem.
pub type Solve<'a> = dyn Fn(&Problem) -> Result<Answer, NoAnswer> + 'a;

/// A plan, and what it was chosen over.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The plan: of all candidates here that fit, the one that the simulator finds shortest.
    pub best: Candidate,
    /// The solver's answer.
    pub solved: Candidate,
    /// The next best: the solver's, or its answer where that one is the plan.
    pub runner_up: Option<Candidate>,
    /// All blocks alike, each way that is possible, whether it fits or not.
    pub uniform: Vec<Candidate>,
    /// What a planner chooses that counts every collective in full, as Alpa does.
    pub blocking: Option<Candidate>,
    /// The degrees that cannot be chosen, and why.
    pub refused: Vec<Refused>,
    /// The degrees that cannot follow each other, and why.
    pub barred: Vec<Barred>,
    /// The problem that was solved last.
    pub problem: Problem,
    /// The proof.
    pub answer: Answer,
    /// No layout that fits has a lower objective: that of the best answer before the budget was lowered.
    pub bound: Nanoseconds,
    /// How often the solver was asked.
    pub rounds: u32,
}

/// Why there is no plan.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NoPlan {
    /// Nothing is known about any degree.
    #[error("no TMP degree is possible")]
    NoDegree(Vec<Refused>),
    /// Nothing fits into memory.
    #[error("nothing fits into {budget}: the least needs {}", .least.bytes)]
    Memory {
        /// What there is.
        budget: Bytes,
        /// The layout that needs the least.
        least: Box<Candidate>,
    },
    /// The solver failed.
    #[error(transparent)]
    Solver(NoAnswer),
    /// A cost is not known.
    #[error(transparent)]
    Cost(#[from] Error),
}

/// Rounds of lowering the budget after which there is no plan; each takes off at least a byte, and in practice all of it.
const ROUNDS: u32 = 20;

/// Plans.
pub fn plan_layout(task: &Task<'_>, solve: &Solve<'_>) -> Result<Planned, NoPlan> {
    let search = Search::new(task, solve)?;
    let (mut known, beside) = search.known()?;
    let Some(solved) = search.solve(beside)? else { return Err(search.too_large(known)) };
    let Solved { problem, answer, candidate: solved, bound, rounds, budget } = solved;
    let runner_up = answer.runner_up.as_ref().map(|other| search.candidate(&other.choices)).transpose()?;
    let blocking = solve(&search.chain.problem(Objective::Blocking, budget)).ok();
    let blocking = blocking.map(|answer| search.candidate(&answer.best.choices)).transpose()?;
    let all = [Some(&solved), runner_up.as_ref(), blocking.as_ref()].into_iter().flatten().chain(&known);
    let best = all.filter(|candidate| candidate.fits(task)).min_by_key(|candidate| candidate.step);
    let Some(best) = best.cloned() else { return Err(search.too_large(known)) };
    // Where the simulator turns the two round, so do we.
    let runner_up = runner_up.map(|other| if other == best { solved.clone() } else { other });
    // The last of them is the one that needs the least.
    known.pop();
    let Chain { refused, barred, .. } = search.chain;
    Ok(Planned {
        best,
        solved,
        runner_up,
        uniform: known,
        blocking,
        refused,
        barred,
        problem,
        answer,
        bound,
        rounds,
    })
}

/// The solver's answer alone, without what it is to be compared with; another that fits where that one does not.
pub fn solve_layout(task: &Task<'_>, solve: &Solve<'_>) -> Result<Candidate, NoPlan> {
    let search = Search::new(task, solve)?;
    let fits = |candidate: &Candidate| candidate.fits(task);
    if let Some(candidate) = search.solve(0)?.map(|solved| solved.candidate).filter(fits) {
        return Ok(candidate);
    }
    // The first answer may have lowered the budget further than another needs.
    let (known, beside) = search.known()?;
    let solved = search.solve(beside)?.map(|solved| solved.candidate);
    let fitting = known.iter().chain(&solved).filter(|candidate| fits(candidate));
    fitting.min_by_key(|candidate| candidate.step).cloned().ok_or_else(|| search.too_large(known))
}

/// A task on its way.
struct Search<'a> {
    task: &'a Task<'a>,
    solve: &'a Solve<'a>,
    chain: Chain,
    /// The choices that need the least memory.
    least: Vec<usize>,
}

/// The last answer of the solver: the first that fits, if there is one.
struct Solved {
    problem: Problem,
    answer: Answer,
    candidate: Candidate,
    /// The bound of the first answer, before the budget was lowered.
    bound: Nanoseconds,
    rounds: u32,
    budget: Option<Bytes>,
}

impl<'a> Search<'a> {
    fn new(task: &'a Task<'_>, solve: &'a Solve<'_>) -> Result<Search<'a>, NoPlan> {
        let chain = Chain::new(task);
        if chain.uniform().is_empty() {
            return Err(NoPlan::NoDegree(chain.refused));
        }
        let least = solve(&chain.least_memory()).map_err(NoPlan::Solver)?.best.choices;
        Ok(Search { task, solve, chain, least })
    }

    fn candidate(&self, choices: &[usize]) -> Result<Candidate, Error> {
        let (layout, keep) = self.chain.layout(choices);
        Candidate::new(self.task, &layout, &keep)
    }

    /// All blocks alike, each way that is possible, and last what needs the least; with what the sum over blocks does not see
    /// of their memory, the least of it, so that nothing is ruled out that fits.
    fn known(&self) -> Result<(Vec<Candidate>, u64), Error> {
        let (mut known, mut beside) = (Vec::new(), u64::MAX);
        for choices in self.chain.uniform().iter().chain([&self.least]) {
            let candidate = self.candidate(choices)?;
            beside = beside.min(candidate.bytes.0.saturating_sub(self.chain.bytes(choices).0));
            known.push(candidate);
        }
        Ok((known, beside))
    }

    /// Asks with the budget less `beside`, and with ever less until an answer fits or there is none.
    fn solve(&self, mut beside: u64) -> Result<Option<Solved>, NoPlan> {
        let objective = Objective::of(self.task.variant);
        let mut last: Option<Solved> = None;
        for rounds in 1..=ROUNDS {
            let budget = self.task.budget.map(|budget| Bytes(budget.0.saturating_sub(beside)));
            let problem = self.chain.problem(objective, budget);
            let answer = match (self.solve)(&problem) {
                Ok(answer) => answer,
                Err(NoAnswer::Infeasible(Infeasible::Resources(_))) => break,
                Err(other) => return Err(NoPlan::Solver(other)),
            };
            let candidate = self.candidate(&answer.best.choices)?;
            let fits = candidate.fits(self.task);
            if !fits {
                beside = candidate.bytes.0 - self.chain.bytes(&answer.best.choices).0;
            }
            let bound = last.map_or(answer.bound, |first| first.bound);
            last = Some(Solved { problem, answer, candidate, bound, rounds, budget });
            if fits {
                break;
            }
        }
        Ok(last)
    }

    fn too_large(&self, known: Vec<Candidate>) -> NoPlan {
        let budget = self.task.budget.expect("without a budget everything fits");
        let least = known.into_iter().min_by_key(|candidate| candidate.bytes).expect("at least one layout");
        NoPlan::Memory { budget, least: Box::new(least) }
    }
}
