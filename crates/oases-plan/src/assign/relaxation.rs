//! The problem with its budgets priced instead of enforced, which is a plain dynamic programme, and the prices at which its
//! optimum is the best lower bound.
//!
//! For any multipliers λ ≥ 0 the least of `cost(p) + Σ_r λ_r · (usage_r(p) − budget_r)` over all assignments p is no more than the
//! optimum. The best λ are the dual values of a linear programme over mixtures of assignments:
//!
//! ```text
//! minimise   Σ_p cost(p) x_p     subject to  Σ_p usage_r(p) x_p ≤ budget_r,  Σ_p x_p = 1,  x ≥ 0
//! ```
//!
//! It has a row for each budget and one more, so its basis is a tiny matrix; the assignment that enters the basis is found by the
//! dynamic programme (Dantzig and Wolfe, Decomposition principle for linear programs, 1960). It is computed in floating
//! point: what comes out is only a proposal for λ, and any λ gives a true bound.

use super::Problem;
use super::chain::{Chain, NANOSECOND, Prices, ToGo};

/// Pivots after which the multipliers are taken as they are.
const MOST_PIVOTS: usize = 200;

/// What multipliers say of a chain.
pub(super) struct Relaxation {
    /// The weights of costs and resources.
    pub(super) prices: Prices,
    /// The least price from each choice to the end.
    pub(super) to_go: ToGo,
    /// What the budgets are worth; to be taken off each price.
    pub(super) budgets_price: i128,
    /// No assignment within the budgets costs less, in 1/[`NANOSECOND`]; of the best multipliers not below 0.
    pub(super) bound: i128,
}

impl Relaxation {
    /// With the assignment of the least price; `None` where nothing is possible even without budgets.
    fn at(chain: &Chain, multipliers: &[f64], budgets: &[u64]) -> Option<(Relaxation, Vec<usize>)> {
        let prices = Prices::bounding(multipliers);
        let to_go = chain.to_go(&prices);
        let (price, choices) = chain.cheapest(&prices, &to_go)?;
        let budgets_price = prices.of_amounts(budgets);
        Some((Relaxation { prices, to_go, budgets_price, bound: price - budgets_price }, choices))
    }

    /// Finds the best multipliers for a chain of `problem`; `None` where nothing is possible even without budgets. The
    /// budgets are no greater than what can be needed at most.
    pub(super) fn best(problem: &Problem, chain: &Chain, budgets: &[u64]) -> Option<Relaxation> {
        let (mut best, choices) = Relaxation::at(chain, &vec![0.0; budgets.len()], budgets)?;
        let mut tried = vec![choices];
        let mut master = Master::new(Column::of(problem, budgets, &tried[0]), problem.greatest_cost());
        for _ in 0..MOST_PIVOTS {
            let duals = master.duals();
            if let Some(slack) = master.entering_slack(&duals) {
                master.pivot(&slack);
                continue;
            }
            let multiplier = |(dual, budget): (&f64, &u64)| -dual / (*budget).max(1) as f64;
            let multipliers: Vec<f64> = duals.iter().zip(budgets).map(multiplier).collect();
            let (relaxation, choices) = Relaxation::at(chain, &multipliers, budgets)?;
            if relaxation.bound > best.bound {
                best = relaxation;
            }
            // Below half a nanosecond nothing is to be gained, nor from what was tried before.
            let gap = master.objective() - best.bound as f64 / NANOSECOND as f64;
            if gap < 0.5 || tried.contains(&choices) {
                break;
            }
            master.pivot(&Column::of(problem, budgets, &choices));
            tried.push(choices);
        }
        Some(best)
    }
}

/// A column of the linear programme.
struct Column {
    cost: f64,
    /// Shares of the budgets; then 1 for an assignment, 0 for the slack of a budget.
    rows: Vec<f64>,
}

impl Column {
    fn of(problem: &Problem, budgets: &[u64], choices: &[usize]) -> Column {
        let cost = problem.cost(choices).expect("the dynamic programme finds allowed assignments");
        let usage = problem.usage(choices);
        let shares = usage.iter().zip(budgets).map(|(used, budget)| *used as f64 / (*budget).max(1) as f64);
        Column { cost: cost.0 as f64, rows: shares.chain([1.0]).collect() }
    }
}

/// The linear programme as the simplex method sees it: rows are the budgets, each scaled to 1, and the sum of all weights. A
/// budget can be exceeded at a price that is beyond all others, so that there is a basis from the start.
struct Master {
    /// Costs of the columns of the basis.
    costs: Vec<f64>,
    /// The inverse of the basis, by rows.
    inverse: Vec<Vec<f64>>,
    /// The weights of the columns of the basis.
    weights: Vec<f64>,
    /// The price of exceeding a budget by as much as there is of it.
    excess: f64,
}

impl Master {
    /// With one assignment in the basis, and the slack or the excess of every budget.
    fn new(start: Column, greatest_cost: u64) -> Master {
        let budgets = start.rows.len() - 1;
        let excess = 1e4 * (greatest_cost as f64 + 1.0);
        let mut master = Master { costs: Vec::new(), inverse: Vec::new(), weights: Vec::new(), excess };
        for row in 0..budgets {
            // The row reads `share · 1 ± weight = 1`.
            let sign = if start.rows[row] <= 1.0 { 1.0 } else { -1.0 };
            let mut inverse = vec![0.0; budgets + 1];
            (inverse[row], inverse[budgets]) = (sign, -sign * start.rows[row]);
            master.costs.push(if sign > 0.0 { 0.0 } else { excess });
            master.weights.push(sign * (1.0 - start.rows[row]));
            master.inverse.push(inverse);
        }
        master.costs.push(start.cost);
        master.weights.push(1.0);
        master.inverse.push((0..=budgets).map(|row| f64::from(u8::from(row == budgets))).collect());
        master
    }

    fn objective(&self) -> f64 {
        self.costs.iter().zip(&self.weights).map(|(cost, weight)| cost * weight).sum()
    }

    /// The dual value of each row; of a budget it is the multiplier, negated.
    fn duals(&self) -> Vec<f64> {
        let columns = 0..self.costs.len();
        columns
            .map(|column| self.costs.iter().zip(&self.inverse).map(|(cost, row)| cost * row[column]).sum())
            .collect()
    }

    /// The slack of a budget whose multiplier is below 0, or the excess of one whose multiplier is beyond its price.
    fn entering_slack(&self, duals: &[f64]) -> Option<Column> {
        let budgets = duals.len() - 1;
        let tolerance = 1e-12 * self.excess;
        (0..budgets).find_map(|row| {
            let mut rows = vec![0.0; budgets + 1];
            let (sign, cost) = match -duals[row] {
                multiplier if multiplier < -tolerance => (1.0, 0.0),
                multiplier if multiplier > self.excess + tolerance => (-1.0, self.excess),
                _ => return None,
            };
            rows[row] = sign;
            Some(Column { cost, rows })
        })
    }

    /// Lets a column enter the basis in the place of the one whose weight first falls to 0.
    fn pivot(&mut self, entering: &Column) {
        let product = |row: &Vec<f64>| row.iter().zip(&entering.rows).map(|(a, b)| a * b).sum();
        let direction: Vec<f64> = self.inverse.iter().map(product).collect();
        let ratio = |row: usize| self.weights[row] / direction[row];
        let candidates = (0..direction.len()).filter(|row| direction[*row] > 1e-11);
        let Some(leaving) = candidates.min_by(|a, b| ratio(*a).total_cmp(&ratio(*b))) else { return };
        let step = ratio(leaving).max(0.0);
        let pivot_row: Vec<f64> =
            self.inverse[leaving].iter().map(|value| value / direction[leaving]).collect();
        for (row, along) in direction.iter().enumerate().filter(|(row, _)| *row != leaving) {
            self.weights[row] = (self.weights[row] - step * along).max(0.0);
            for (value, pivot) in self.inverse[row].iter_mut().zip(&pivot_row) {
                *value -= along * pivot;
            }
        }
        self.inverse[leaving] = pivot_row;
        self.weights[leaving] = step;
        self.costs[leaving] = entering.cost;
    }
}
