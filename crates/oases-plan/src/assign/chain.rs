//! The problem's numbers laid out for dynamic programming, and the plain one: the least price from each choice to the end.

use super::{Kind, Problem, Transition};

/// What a nanosecond weighs in [`Prices::bounding`]: multipliers have so many binary places below it.
pub(super) const NANOSECOND: i128 = 1 << 40;

/// A cost that is not allowed.
pub(super) const FORBIDDEN: u64 = u64::MAX;

/// A price where no way leads on.
pub(super) const NEVER: i128 = i128::MAX;

/// Weights that make one number of a cost and of amounts of resources. All is in whole numbers, so that a bound is
/// exact: costs and amounts sum up to less than 2^62, weights of all resources to less than 2^61, and so prices stay below 2^124.
#[derive(Clone, Debug)]
pub(super) struct Prices {
    cost: i128,
    resources: Vec<u64>,
}

impl Prices {
    /// For lower bounds on costs: Lagrangian multipliers, in nanoseconds per unit of each resource.
    pub(super) fn bounding(multipliers: &[f64]) -> Prices {
        let greatest = (1_u64 << 61) / multipliers.len().max(1) as u64;
        // The conversion saturates. What is cut off makes the bound weaker, not wrong.
        let whole = |multiplier: &f64| ((multiplier * NANOSECOND as f64) as u64).min(greatest);
        Prices { cost: NANOSECOND, resources: multipliers.iter().map(whole).collect() }
    }

    /// For the least possible amount of one resource, whatever the cost.
    pub(super) fn of_resource(resource: usize, resources: usize) -> Prices {
        Prices { cost: 0, resources: (0..resources).map(|other| u64::from(other == resource)).collect() }
    }

    pub(super) fn of_cost(&self, cost: u64) -> i128 {
        self.cost * i128::from(cost)
    }

    pub(super) fn of_amounts(&self, amounts: &[u64]) -> i128 {
        let weighted = self.resources.iter().zip(amounts);
        weighted.map(|(weight, amount)| i128::from(*weight) * i128::from(*amount)).sum()
    }

    pub(super) fn of(&self, cost: u64, amounts: &[u64]) -> i128 {
        self.of_cost(cost) + self.of_amounts(amounts)
    }
}

/// A stage with the way to the next.
#[derive(Clone, Debug, Default)]
struct Stage {
    /// Of each choice.
    costs: Vec<u64>,
    /// Of the first choice, of the second …
    amounts: Vec<u64>,
    /// From the first choice to each of the next stage, from the second …; nothing after the last stage.
    onward: Vec<u64>,
}

/// Stages in a row. A ring is one such row for each choice of its first stage, to which the last stage leads back.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    resources: usize,
    stages: Vec<Stage>,
    /// What it costs to begin with each choice of the first stage.
    entry: Vec<u64>,
    /// What it costs to end with each choice of the last stage.
    exit: Vec<u64>,
}

impl Chain {
    /// The chains that together are a problem; it must have passed [`Problem::check`].
    pub(super) fn all(problem: &Problem) -> Vec<Chain> {
        let resources = problem.budgets.len();
        let last = problem.stages.len() - 1;
        let stages = (0..=last).map(|stage| {
            let onward =
                if stage == last { Vec::new() } else { flat(&problem.transitions[problem.links[stage]]) };
            let Kind { choices } = &problem.kinds[problem.stages[stage]];
            Stage {
                costs: choices.iter().map(|choice| choice.cost.map_or(FORBIDDEN, |cost| cost.0)).collect(),
                amounts: choices.iter().flat_map(|choice| choice.resources.iter().copied()).collect(),
                onward,
            }
        });
        let stages: Vec<Stage> = stages.collect();
        let [first_width, last_width] = [0, last].map(|stage| stages[stage].costs.len());
        let Some(closing) = problem.closing else {
            return vec![Chain { resources, stages, entry: vec![0; first_width], exit: vec![0; last_width] }];
        };
        let closing = flat(&problem.transitions[closing]);
        let beginning_with = |first: usize| Chain {
            resources,
            stages: stages.clone(),
            entry: (0..first_width).map(|choice| if choice == first { 0 } else { FORBIDDEN }).collect(),
            exit: (0..last_width).map(|choice| closing[choice * first_width + first]).collect(),
        };
        (0..first_width).map(beginning_with).collect()
    }

    /// The same from the last stage to the first.
    pub(super) fn reversed(&self) -> Chain {
        let turned = |stage: usize| {
            let onward = match stage.checked_sub(1) {
                None => Vec::new(),
                Some(before) => {
                    let [rows, columns] = [before, stage].map(|stage| self.width(stage));
                    (0..columns * rows)
                        .map(|at| self.stages[before].onward[at % rows * columns + at / rows])
                        .collect()
                }
            };
            Stage { onward, ..self.stages[stage].clone() }
        };
        Chain {
            resources: self.resources,
            stages: (0..self.stages.len()).rev().map(turned).collect(),
            entry: self.exit.clone(),
            exit: self.entry.clone(),
        }
    }

    pub(super) fn stages(&self) -> usize {
        self.stages.len()
    }

    pub(super) fn resources(&self) -> usize {
        self.resources
    }

    /// How many choices a stage has.
    pub(super) fn width(&self, stage: usize) -> usize {
        self.stages[stage].costs.len()
    }

    pub(super) fn cost(&self, stage: usize, choice: usize) -> u64 {
        self.stages[stage].costs[choice]
    }

    pub(super) fn amounts(&self, stage: usize, choice: usize) -> &[u64] {
        &self.stages[stage].amounts[choice * self.resources..(choice + 1) * self.resources]
    }

    /// The cost of coming to a choice of `stage` from a choice of the stage before; in the first stage, of beginning with it.
    pub(super) fn arrival(&self, stage: usize, from: usize, to: usize) -> u64 {
        match stage.checked_sub(1) {
            None => self.entry[to],
            Some(before) => self.stages[before].onward[from * self.width(stage) + to],
        }
    }

    /// The dynamic programme without budgets, from the last stage to the first.
    pub(super) fn to_go(&self, prices: &Prices) -> ToGo {
        let last = self.stages() - 1;
        let end = |cost: &u64| if *cost == FORBIDDEN { NEVER } else { prices.of_cost(*cost) };
        let mut after: Vec<Vec<i128>> = vec![Vec::new(); last + 1];
        after[last] = self.exit.iter().map(end).collect();
        for stage in (0..last).rev() {
            let next: Vec<i128> = (0..self.width(stage + 1))
                .map(|choice| self.onwards(stage + 1, choice, prices, after[stage + 1][choice]))
                .collect();
            let least = |row: &[u64]| {
                let ways =
                    row.iter().zip(&next).filter(|(cost, next)| **cost != FORBIDDEN && **next != NEVER);
                ways.map(|(cost, next)| prices.of_cost(*cost) + next).min().unwrap_or(NEVER)
            };
            after[stage] = self.stages[stage].onward.chunks(next.len()).map(least).collect();
        }
        ToGo { after }
    }

    /// The assignment of the least price, with that price; `None` where there is none.
    pub(super) fn cheapest(&self, prices: &Prices, to_go: &ToGo) -> Option<(i128, Vec<usize>)> {
        let mut choices: Vec<usize> = Vec::with_capacity(self.stages());
        let mut total = NEVER;
        for stage in 0..self.stages() {
            let from = choices.last().copied().unwrap_or_default();
            let priced = (0..self.width(stage)).filter_map(|choice| {
                let arrival = self.arrival(stage, from, choice);
                let rest = self.onwards(stage, choice, prices, to_go.after(stage, choice));
                let possible = arrival != FORBIDDEN && rest != NEVER;
                possible.then(|| (prices.of_cost(arrival) + rest, choice))
            });
            let (price, choice) = priced.min()?;
            if stage == 0 {
                total = price;
            }
            choices.push(choice);
        }
        Some((total, choices))
    }

    /// The price of a choice with all that follows it, `after`.
    fn onwards(&self, stage: usize, choice: usize, prices: &Prices, after: i128) -> i128 {
        let cost = self.cost(stage, choice);
        if cost == FORBIDDEN || after == NEVER {
            return NEVER;
        }
        prices.of(cost, self.amounts(stage, choice)) + after
    }
}

fn flat(transition: &Transition) -> Vec<u64> {
    transition.costs.iter().flatten().map(|cost| cost.map_or(FORBIDDEN, |cost| cost.0)).collect()
}

/// The least price of all that follows a choice: transitions and later stages, without its own.
#[derive(Clone, Debug)]
pub(super) struct ToGo {
    /// By stage and choice.
    after: Vec<Vec<i128>>,
}

impl ToGo {
    /// [`NEVER`] where nothing can follow.
    pub(super) fn after(&self, stage: usize, choice: usize) -> i128 {
        self.after[stage][choice]
    }
}
