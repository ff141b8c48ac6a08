//! What a solver answers: the best assignment with its proof, or why there is none.

use crate::time::Nanoseconds;

/// One choice for each stage, and what it comes to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Assignment {
    /// The sum of all costs. It comes first, so that the cheaper assignment is the lesser one, and of two that cost the
    /// same the one whose first differing choice has the lower index.
    pub objective: Nanoseconds,
    /// The index of the choice of each stage.
    pub choices: Vec<usize>,
}

/// The best assignment, the second best, and what proves them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The best that was found.
    pub best: Assignment,
    /// What it needs of each resource.
    pub usage: Vec<u64>,
    /// No assignment within the budgets costs less than this.
    pub bound: Nanoseconds,
    /// The best of all others that was found.
    pub runner_up: Option<Assignment>,
    /// No other than the best costs less than this; `None` where there is proven to be no other.
    pub others_bound: Option<Nanoseconds>,
    /// What it took.
    pub work: Work,
}

impl Answer {
    /// Whether no assignment costs less than the best, and no other than the best costs less than the runner-up.
    pub fn is_proven(&self) -> bool {
        let others = self.runner_up.as_ref().map(|runner_up| runner_up.objective);
        self.bound == self.best.objective && self.others_bound == others
    }

    /// By how much the runner-up loses.
    pub fn margin(&self) -> Option<Nanoseconds> {
        self.runner_up.as_ref().map(|runner_up| runner_up.objective - self.best.objective)
    }
}

/// What a solver did; all zero where it does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Beginnings of assignments that were extended by another stage; nodes of a branch-and-bound tree.
    pub explored: u64,
    /// Beginnings that can only end above the runner-up, or above a budget.
    pub pruned: u64,
    /// Beginnings to which two others are preferable, whatever follows.
    pub dominated: u64,
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.explored += other.explored;
        self.pruned += other.pruned;
        self.dominated += other.dominated;
    }
}

/// A budget that cannot be met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// Index of the resource.
    pub resource: usize,
    /// Its name.
    pub name: String,
    /// The least possible total.
    pub least: u64,
    /// What there is.
    pub budget: u64,
}

impl Shortfall {
    /// By how much the budget is exceeded in the best case.
    pub fn missing(&self) -> u64 {
        self.least - self.budget
    }
}

impl std::fmt::Display for Shortfall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shortfall { name, least, budget, .. } = self;
        write!(f, "{name}: at least {least} of {budget}, {} too many", self.missing())
    }
}

/// Why no assignment is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Infeasible {
    /// A stage has no choice that is allowed and can be reached from the stages before it, or the ring cannot be closed.
    #[error("stage {stage} has no possible choice")]
    NoChoice {
        /// The first such stage; the last stage where all can be reached but the ring cannot be closed.
        stage: usize,
    },
    /// Resources each of which exceeds its budget, whatever is chosen.
    #[error("{}", list(.0))]
    Resources(Vec<Shortfall>),
    /// Each resource alone can be kept within its budget, but not all at once. For each, what it comes to at least if all
    /// *others* are kept; a resource is absent where the others are too much by themselves, or nothing could be proven.
    #[error("each budget can be met alone, but not all at once: {}", list(.0))]
    Together(Vec<Shortfall>),
}

fn list(shortfalls: &[Shortfall]) -> String {
    shortfalls.iter().map(Shortfall::to_string).collect::<Vec<_>>().join("; ")
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// The problem contradicts itself.
    #[error("not a problem: {0}")]
    Malformed(String),
    /// Nothing is allowed; proven.
    #[error(transparent)]
    Infeasible(#[from] Infeasible),
    /// The limit was reached before anything was found or ruled out.
    #[error("no answer within the limit of {0}")]
    Limit(String),
    /// A solver from elsewhere failed, or its answer does not stand.
    #[error("{solver}: {problem}")]
    Solver {
        /// Its name.
        solver: &'static str,
        /// What it said, or what is wrong with its answer.
        problem: String,
    },
}
