//! Times the solvers of the planner's problem: `cargo run --release -p oases-plan --example assign`.
//!
//! 96 layers of two blocks with 6 degrees each, between an embedding and a head that share one, so the chain is a ring. The
//! numbers of each block are off by up to a permille given in the table: nothing is equal unless that is 0. Budgets lie a
//! given share of the way from the least to the greatest that one degree for all blocks needs. Printed are the median
//! and the greatest time over the instances, with building the problem, labels explored, and how many are proven; the last rows
//! are `microlp` beside it on fewer blocks, with a limit of 10 s (first argument).

use std::time::{Duration, Instant};

use oases_plan::Nanoseconds;
use oases_plan::assign::{
    Answer, Budget, Choice, Kind, Limits, NoAnswer, Problem, Solver, Transition, solve,
};
use oases_schedule::random::Numbers;

const DEGREES: [u32; 6] = [1, 2, 4, 8, 16, 32];
const SEEDS: std::ops::Range<u64> = 0..5;

/// What instances are like.
#[derive(Clone, Copy)]
struct Recipe {
    blocks: usize,
    budgets: usize,
    /// From the least to the greatest that one degree needs.
    tightness: f64,
    /// Cost of changing the degree by one step, as a share of the smaller block.
    change: f64,
    permille: f64,
}

/// `value`, off by up to `permille`.
fn near(numbers: &mut Numbers, value: f64, permille: f64) -> u64 {
    let offset = numbers.below(2_000_001) as f64 / 1e6 - 1.0;
    (value * (1.0 + offset * permille / 1000.0)) as u64
}

/// A block of 4 or 6.8 ms at degree 1: communication grows with the degree, memory falls with it.
fn block(recipe: &Recipe, numbers: &mut Numbers, index: usize) -> Kind {
    let size = if index.is_multiple_of(2) { 1.0 } else { 1.7 };
    let choice = |degree: &u32| {
        let (degree, steps) = (f64::from(*degree), f64::from(degree.ilog2()));
        let parameters = 3e8 * size / degree + 4e7;
        let activations = 1.5e8 * size * (0.6 + 0.4 / degree.sqrt());
        let resources = [parameters, activations];
        let cost = 4e6 * size * (1.0 + 0.25 * steps + 0.02 * steps * steps);
        Choice {
            label: degree.to_string(),
            cost: Some(Nanoseconds(near(numbers, cost, recipe.permille))),
            resources: resources[..recipe.budgets]
                .iter()
                .map(|amount| near(numbers, *amount, recipe.permille))
                .collect(),
        }
    };
    Kind { choices: DEGREES.iter().map(choice).collect() }
}

fn instance(recipe: &Recipe, seed: u64) -> Problem {
    let mut numbers = Numbers::new(seed);
    let kinds: Vec<Kind> = (0..recipe.blocks).map(|index| block(recipe, &mut numbers, index)).collect();
    let mut transition = || {
        let mut cost = |from: usize, to: usize| {
            let cost = recipe.change * 4e6 * from.abs_diff(to) as f64;
            Some(Nanoseconds(near(&mut numbers, cost, recipe.permille)))
        };
        let mut row = |from: usize| (0..DEGREES.len()).map(|to| cost(from, to)).collect();
        Transition { costs: (0..DEGREES.len()).map(&mut row).collect() }
    };
    let transitions = (0..recipe.blocks).map(|_| transition()).collect();
    let budget = |resource: usize| {
        let of_all = |degree: usize| kinds.iter().map(|kind| kind.choices[degree].resources[resource]).sum();
        let totals: Vec<u64> = (0..DEGREES.len()).map(of_all).collect();
        let [least, most] =
            [totals.iter().min(), totals.iter().max()].map(|total| total.copied().unwrap_or(0));
        let amount = least + ((most - least) as f64 * recipe.tightness) as u64;
        Budget { name: format!("memory {resource}"), amount }
    };
    Problem {
        budgets: (0..recipe.budgets).map(budget).collect(),
        transitions,
        stages: (0..recipe.blocks).collect(),
        links: (0..recipe.blocks - 1).collect(),
        closing: Some(recipe.blocks - 1),
        kinds,
    }
}

/// Time in milliseconds and answer of each instance.
fn timed(recipe: &Recipe, solver: Solver, limits: Limits) -> Vec<(f64, Result<Answer, NoAnswer>)> {
    SEEDS
        .map(|seed| {
            let started = Instant::now();
            let answer = solve(&instance(recipe, seed), solver, limits);
            (started.elapsed().as_secs_f64() * 1e3, answer)
        })
        .collect()
}

fn row(recipe: &Recipe, name: &str, runs: &[(f64, Result<Answer, NoAnswer>)]) {
    let mut times: Vec<f64> = runs.iter().map(|(time, _)| *time).collect();
    times.sort_by(f64::total_cmp);
    let answers: Vec<&Answer> = runs.iter().filter_map(|(_, answer)| answer.as_ref().ok()).collect();
    let gap = |answer: &&Answer| (answer.best.objective - answer.bound).share_of(answer.best.objective);
    println!(
        "{name:8} {:6} {:7} {:9} {:6} {:8} {:10.1} {:10.1} {:10} {:6}/{} {:9.1e}",
        recipe.blocks,
        recipe.budgets,
        recipe.tightness,
        recipe.change,
        recipe.permille,
        times[times.len() / 2],
        times[times.len() - 1],
        answers.iter().map(|answer| answer.work.explored).max().unwrap_or(0),
        answers.iter().filter(|answer| answer.is_proven()).count(),
        runs.len(),
        answers.iter().map(gap).fold(0.0, f64::max),
    );
}

fn main() {
    let limit = std::env::args().nth(1).and_then(|seconds| seconds.parse().ok()).unwrap_or(10);
    println!(
        "solver   blocks budgets tightness change permille  median ms     max ms   explored proven       gap"
    );
    let tightnesses = [0.05, 0.3, 0.6, 0.9];
    for budgets in [1, 2] {
        for change in [0.0, 0.01, 0.1, 1.0] {
            for permille in [0.0, 1.0, 10.0] {
                for tightness in tightnesses {
                    let recipe = Recipe { blocks: 192, budgets, tightness, change, permille };
                    row(&recipe, "labels", &timed(&recipe, Solver::Labels, Limits::default()));
                }
            }
        }
    }
    for blocks in [8, 16, 32] {
        let recipe = Recipe { blocks, budgets: 1, tightness: 0.3, change: 0.1, permille: 10.0 };
        let limits = Limits { time: Some(Duration::from_secs(limit)), ..Limits::default() };
        row(&recipe, "labels", &timed(&recipe, Solver::Labels, limits));
        row(&recipe, "microlp", &timed(&recipe, Solver::Microlp, limits));
    }
}
