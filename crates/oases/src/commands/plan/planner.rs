//! From a configuration to planning tasks, and to their answers.

use oases_plan::Costs;
use oases_plan::assign::{self, Answer, Limits, NoAnswer, Problem, Solver};
use oases_plan::planner::{Candidate, NoPlan, Planned, Task, plan_layout, solve_layout};
use oases_schedule::{
    Bytes, Keep, Keeps, Layout, Model, Optimizer, Order, Request, Schedule, Stage, Variant, Workspace,
};

use super::super::plan_run;
use crate::args::PlanSolver;
use crate::config::RunConfig;

/// What is the same for all tasks of a command.
pub struct Planner<'a> {
    pub model: &'a Model,
    pub costs: &'a dyn Costs,
    pub workspace: Workspace,
    pub budget: Option<Bytes>,
    /// The degrees that were asked for; none leaves them to the group.
    pub degrees: Vec<u32>,
    pub solver: PlanSolver,
}

/// What a configuration says about a step, and what may differ from one task to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    pub variant: &'static str,
    /// The batch; its layout gives the group of ranks.
    pub request: Request,
    /// What blocks may keep, to choose from.
    pub keeps: Vec<Keeps>,
}

impl Setting {
    /// What the configuration says, all blocks of which keep the same or what it lists.
    pub fn of(config: &RunConfig) -> Setting {
        let options = plan_run::options(config, false, None);
        let group = config.parallel.tensor as u32;
        let layers = options.model.layers;
        let request = Request {
            layers,
            layout: Layout::uniform(group, Schedule::blocks(layers)),
            stage: Stage::whole(),
            order: Order::default(),
            optimizer: Optimizer::Whole,
            micro_batches: options.micro_batches,
            sub_batches: options.sub_batches,
            sequences: options.batch / options.micro_batches,
            keep: options.keep.clone(),
            pieces: options.pieces,
            cut: options.cut,
        };
        Setting { variant: options.variant.name, request, keeps: vec![options.keep] }
    }

    fn variant(&self) -> &'static Variant {
        Variant::find(self.variant).expect("a configuration's rules know every schedule")
    }

    /// The same with every block keeping what is best for it; `None` where the schedule leaves no choice.
    pub fn with_choice_of_keeps(&self) -> Option<Setting> {
        let choice = self.variant().keeps_always().is_none();
        let keeps = [Keep::Input, Keep::Selective, Keep::All].map(Keeps::Same).to_vec();
        choice.then(|| Setting { keeps, ..self.clone() })
    }

    /// Sequences of a step.
    pub fn batch(&self) -> u32 {
        self.request.sequences * self.request.micro_batches
    }
}

/// The degrees to choose from: those that were asked for, or the powers of two that divide the group and the group itself.
pub fn degrees(asked: &[u32], group: u32) -> Vec<u32> {
    if !asked.is_empty() {
        let mut asked = asked.to_vec();
        asked.sort_unstable();
        asked.dedup();
        return asked;
    }
    let mut degrees: Vec<u32> = Task::powers_of_two(group);
    degrees.retain(|&degree| group.is_multiple_of(degree));
    if !degrees.contains(&group) {
        degrees.push(group);
    }
    degrees
}

impl<'a> Planner<'a> {
    /// The task of a setting.
    pub fn task(&self, setting: &Setting) -> Task<'a> {
        let group = setting.request.layout.group();
        Task {
            model: self.model,
            variant: setting.variant(),
            request: setting.request.clone(),
            degrees: degrees(&self.degrees, group),
            keeps: setting.keeps.clone(),
            budget: self.budget,
            workspace: self.workspace,
            costs: self.costs,
        }
    }

    /// Plans a setting.
    pub fn plan(&self, setting: &Setting) -> Result<Planned, NoPlan> {
        plan_layout(&self.task(setting), &|problem| self.solve(problem))
    }

    /// The solver's answer for a setting, without what it is to be compared with.
    pub fn plan_alone(&self, setting: &Setting) -> Result<Candidate, NoPlan> {
        solve_layout(&self.task(setting), &|problem| self.solve(problem))
    }

    /// How reports call the solver.
    pub fn solver_name(&self) -> &'static str {
        match self.solver {
            PlanSolver::Labels => "labels",
            PlanSolver::Ilp => "microlp",
            PlanSolver::Highs => "HiGHS",
        }
    }

    fn solve(&self, problem: &Problem) -> Result<Answer, NoAnswer> {
        let solver = match self.solver {
            PlanSolver::Labels => Solver::Labels,
            PlanSolver::Ilp => Solver::Microlp,
            PlanSolver::Highs => Solver::Highs,
        };
        assign::solve(problem, solver, Limits::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn degrees_divide_the_group_and_the_group_is_one() {
        assert_eq!(degrees(&[], 1), [1]);
        assert_eq!(degrees(&[], 8), [1, 2, 4, 8]);
        assert_eq!(degrees(&[], 6), [1, 2, 6]);
        assert_eq!(degrees(&[], 3), [1, 3]);
        assert_eq!(degrees(&[2, 4], 8), [2, 4]);
    }
}
