//! A chain of stages, each with a choice to make, under budgets: the numbers of the problem, checked.

use super::NoAnswer;
use crate::time::Nanoseconds;

/// One way to run a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What it is called: letters, digits and single spaces, such as `8` or `8 keep`. Unique within its kind.
    pub label: String,
    /// What it takes; `None` where it cannot be chosen.
    pub cost: Option<Nanoseconds>,
    /// How much it needs of each resource, in the order of [`Problem::budgets`].
    pub resources: Vec<u64>,
}

/// What stages that are alike may choose from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    /// At least one.
    pub choices: Vec<Choice>,
}

/// What it takes to come from each choice of a stage to each choice of the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// A row for each choice of the stage before, a column for each choice of the stage after; `None` where the two
    /// may not follow each other.
    pub costs: Vec<Vec<Option<Nanoseconds>>>,
}

/// How much there is of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// What the resource is called, for people.
    pub name: String,
    /// How much all stages together may need of it.
    pub amount: u64,
}

/// Stages in a row, or in a ring, of which each makes one choice, so that the sum of all costs is least and no
/// budget is exceeded. Stages that are alike share a kind, and so do the transitions between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The resources; may be empty.
    pub budgets: Vec<Budget>,
    /// The kinds of stages.
    pub kinds: Vec<Kind>,
    /// The kinds of transitions.
    pub transitions: Vec<Transition>,
    /// The kind of each stage, an index into `kinds`; at least one.
    pub stages: Vec<usize>,
    /// The transition from each stage but the last to the next, an index into `transitions`.
    pub links: Vec<usize>,
    /// The transition from the last stage back to the first, where the chain is a ring.
    pub closing: Option<usize>,
}

/// The greatest sum of costs or of amounts of a resource that is computed with; an hour is 2^42 nanoseconds. It leaves
/// room for exact products with Lagrangian multipliers.
const GREATEST_TOTAL: u64 = 1 << 62;

impl Problem {
    /// What stage `stage` may choose from.
    pub fn choices(&self, stage: usize) -> &[Choice] {
        &self.kinds[self.stages[stage]].choices
    }

    /// The transition after `stage`, with the stage that it leads to.
    pub fn link(&self, stage: usize) -> Option<(&Transition, usize)> {
        match self.links.get(stage) {
            Some(link) => Some((&self.transitions[*link], stage + 1)),
            None => self.closing.map(|closing| (&self.transitions[closing], 0)),
        }
    }

    /// The sum of all costs, if stage i takes choice `choices[i]`; `None` where a choice or a transition is not allowed.
    pub fn cost(&self, choices: &[usize]) -> Option<Nanoseconds> {
        let mut total = Nanoseconds::ZERO;
        for (stage, choice) in choices.iter().enumerate() {
            total += self.choices(stage)[*choice].cost?;
            if let Some((transition, next)) = self.link(stage) {
                total += transition.costs[*choice][choices[next]]?;
            }
        }
        Some(total)
    }

    /// How much of each resource is needed, if stage i takes choice `choices[i]`.
    pub fn usage(&self, choices: &[usize]) -> Vec<u64> {
        let mut totals = vec![0; self.budgets.len()];
        for (stage, choice) in choices.iter().enumerate() {
            for (total, amount) in totals.iter_mut().zip(&self.choices(stage)[*choice].resources) {
                *total += amount;
            }
        }
        totals
    }

    /// Whether these amounts of each resource are within the budgets.
    pub fn fits(&self, usage: &[u64]) -> bool {
        usage.iter().zip(&self.budgets).all(|(used, budget)| *used <= budget.amount)
    }

    /// Checks that every index points at something, that matrices have the sizes of the stages that they join, and that sums
    /// do not overflow; says what is wrong first.
    pub fn check(&self) -> Result<(), NoAnswer> {
        let refuse = |what: String| Err(NoAnswer::Malformed(what));
        if self.stages.is_empty() || self.links.len() + 1 != self.stages.len() {
            return refuse(format!("{} stages with {} links", self.stages.len(), self.links.len()));
        }
        if let Some(kind) = self.stages.iter().find(|kind| **kind >= self.kinds.len()) {
            return refuse(format!("a stage is of kind {kind}, of which there are {}", self.kinds.len()));
        }
        for (index, kind) in self.kinds.iter().enumerate() {
            if let Some(problem) = self.fault(kind) {
                return refuse(format!("kind {index}: {problem}"));
            }
        }
        for (stage, link) in self.links.iter().chain(&self.closing).enumerate() {
            let [before, after] = [stage, (stage + 1) % self.stages.len()].map(|at| self.choices(at).len());
            let Some(transition) = self.transitions.get(*link) else {
                return refuse(format!("the transition after stage {stage} is {link}, which does not exist"));
            };
            let rows = &transition.costs;
            if rows.len() != before || rows.iter().any(|row| row.len() != after) {
                return refuse(format!("transition {link} after stage {stage} is not {before} × {after}"));
            }
        }
        let totals = (0..self.budgets.len()).map(|resource| self.sum_of_greatest(Some(resource)));
        if totals.chain([self.sum_of_greatest(None)]).any(|total| total > u128::from(GREATEST_TOTAL)) {
            return refuse(format!("costs or amounts of a resource sum up to more than {GREATEST_TOTAL}"));
        }
        Ok(())
    }

    fn fault(&self, kind: &Kind) -> Option<String> {
        if kind.choices.is_empty() {
            return Some("it has no choices".to_string());
        }
        for (index, choice) in kind.choices.iter().enumerate() {
            let Choice { label, resources, .. } = choice;
            if resources.len() != self.budgets.len() {
                let [amounts, budgets] = [resources.len(), self.budgets.len()];
                return Some(format!("`{label}` needs {amounts} resources, and there are {budgets}"));
            }
            let of_words = label.split(' ').all(|word| {
                !word.is_empty() && word.chars().all(|character| character.is_ascii_alphanumeric())
            });
            if !of_words || kind.choices[..index].iter().any(|other| other.label == *label) {
                return Some(format!("`{label}` is no label, or there are two of it"));
            }
        }
        None
    }

    /// No assignment costs more; of a checked problem.
    pub(super) fn greatest_cost(&self) -> u64 {
        self.sum_of_greatest(None) as u64
    }

    /// The budget of a resource, no greater than can be needed whatever is chosen; of a checked problem.
    pub(super) fn useful(&self, resource: usize) -> u64 {
        self.budgets[resource].amount.min(self.sum_of_greatest(Some(resource)) as u64)
    }

    /// The greatest amount of a resource in each stage, or the greatest cost of each stage and link, summed up.
    fn sum_of_greatest(&self, resource: Option<usize>) -> u128 {
        let of_choice = |choice: &Choice| match resource {
            None => choice.cost.unwrap_or_default().0,
            Some(resource) => choice.resources[resource],
        };
        let of_kind = |kind: &Kind| kind.choices.iter().map(of_choice).max().unwrap_or(0);
        let of_transition = |transition: &Transition| match resource {
            None => transition.costs.iter().flatten().flatten().map(|cost| cost.0).max().unwrap_or(0),
            Some(_) => 0,
        };
        let kinds: Vec<u64> = self.kinds.iter().map(of_kind).collect();
        let transitions: Vec<u64> = self.transitions.iter().map(of_transition).collect();
        let on_stages = self.stages.iter().map(|kind| kinds[*kind]);
        let on_links = self.links.iter().chain(&self.closing).map(|link| transitions[*link]);
        on_stages.chain(on_links).map(u128::from).sum()
    }
}
