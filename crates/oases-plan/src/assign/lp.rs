//! The problem as an integer linear programme: data for solvers, and text for people and other programs.
//!
//! ```text
//! minimise   Σ_ij cost_ij s_ij  +  Σ_ijk cost_ijk e_ijk
//! subject to one_i:     Σ_j s_ij = 1                       each stage makes one choice
//!            from_i_j:  Σ_k e_ijk = s_ij                   a transition begins where its stage is
//!            to_i_k:    Σ_j e_ijk = s_(i+1)k               and ends where the next stage is
//!            budget_r:  Σ_ij amount_ijr s_ij ≤ budget_r
//! ```
//!
//! `s_ij` are 0 or 1; `e_ijk ≥ 0` are then so by themselves. What is not allowed has no variable.

use std::collections::BTreeMap;
use std::fmt;

use super::Problem;

/// An integer linear programme: find the values, none below 0, that make the sum of costs least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ilp {
    /// The variables.
    pub variables: Vec<Variable>,
    /// What must hold.
    pub constraints: Vec<Constraint>,
    /// Said at the top of its text, a line each.
    pub remarks: Vec<String>,
}

/// A variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// `s_12_8`: stage 12 takes choice `8`; `e_12_8_4`: and the next stage takes `4`. A space in a label is a `.` here.
    pub name: String,
    /// Its coefficient in the objective: nanoseconds.
    pub cost: u64,
    /// The stage and its choice, if this variable makes one: then it is 0 or 1.
    pub choice: Option<(usize, usize)>,
}

/// A linear constraint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraint {
    /// As at the top of this module; `not_0` … are assignments that are excluded.
    pub name: String,
    /// Indices of variables with their coefficients.
    pub terms: Vec<(usize, i64)>,
    /// How the sum of terms relates to the right side.
    pub relation: Relation,
    /// The right side.
    pub right: i64,
}

/// How the sides of a constraint relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The left side is no greater.
    AtMost,
    /// Both are equal.
    Equal,
}

impl Ilp {
    /// The programme of a problem that passed [`Problem::check`].
    pub fn new(problem: &Problem) -> Ilp {
        let remark = |(index, budget): (usize, &super::Budget)| format!("budget_{index}: {}", budget.name);
        let remarks = problem.budgets.iter().enumerate().map(remark).collect();
        let mut ilp = Ilp { variables: Vec::new(), constraints: Vec::new(), remarks };
        let stages: Vec<Vec<Option<usize>>> =
            (0..problem.stages.len()).map(|stage| ilp.add_stage(problem, stage)).collect();
        for stage in 0..problem.stages.len() {
            ilp.add_link(problem, stage, &stages);
        }
        for (resource, budget) in problem.budgets.iter().enumerate() {
            let amount = |variable: &Variable| {
                let (stage, choice) = variable.choice?;
                Some(problem.choices(stage)[choice].resources[resource] as i64)
            };
            let amounts =
                ilp.variables.iter().enumerate().filter_map(|(at, variable)| Some((at, amount(variable)?)));
            let terms = amounts.filter(|(_, amount)| *amount != 0).collect();
            // A budget beyond all that can be needed says nothing, and a greater one might not be a number here.
            let right = i64::try_from(budget.amount).unwrap_or(i64::MAX);
            ilp.add_constraint(format!("budget_{resource}"), terms, Relation::AtMost, right);
        }
        ilp
    }

    /// Excludes one assignment.
    pub fn exclude(&mut self, choices: &[usize]) {
        let is_made =
            |variable: &Variable| variable.choice.is_some_and(|(stage, choice)| choices[stage] == choice);
        let made = self.variables.iter().enumerate().filter(|(_, variable)| is_made(variable));
        let terms = made.map(|(index, _)| (index, 1)).collect();
        let earlier =
            self.constraints.iter().filter(|constraint| constraint.name.starts_with("not_")).count();
        self.add_constraint(format!("not_{earlier}"), terms, Relation::AtMost, choices.len() as i64 - 1);
    }

    /// Adds the variables of a stage, and returns the one of each choice that is allowed.
    fn add_stage(&mut self, problem: &Problem, stage: usize) -> Vec<Option<usize>> {
        let choices = problem.choices(stage).iter().enumerate();
        let variables: Vec<Option<usize>> = choices
            .map(|(choice, what)| {
                let name = format!("s_{stage}_{}", word(&what.label));
                let cost = what.cost?.0;
                Some(self.add_variable(Variable { name, cost, choice: Some((stage, choice)) }))
            })
            .collect();
        let terms = variables.iter().flatten().map(|variable| (*variable, 1)).collect();
        self.add_constraint(format!("one_{stage}"), terms, Relation::Equal, 1);
        variables
    }

    /// Adds the transition after a stage, if there is one.
    fn add_link(&mut self, problem: &Problem, stage: usize, stages: &[Vec<Option<usize>>]) {
        let Some((transition, next)) = problem.link(stage) else { return };
        let [labels_before, labels_after] = [stage, next]
            .map(|stage| problem.choices(stage).iter().map(|choice| word(&choice.label)).collect::<Vec<_>>());
        // By choice of the stage before and of the stage after, since both need all of theirs.
        let mut leaving: BTreeMap<usize, Vec<(usize, i64)>> = BTreeMap::new();
        let mut arriving: BTreeMap<usize, Vec<(usize, i64)>> = BTreeMap::new();
        for (from, row) in transition.costs.iter().enumerate() {
            for (to, cost) in row.iter().enumerate() {
                let (Some(cost), Some(_), Some(_)) = (cost, stages[stage][from], stages[next][to]) else {
                    continue;
                };
                let name = format!("e_{stage}_{}_{}", labels_before[from], labels_after[to]);
                let variable = self.add_variable(Variable { name, cost: cost.0, choice: None });
                leaving.entry(from).or_default().push((variable, 1));
                arriving.entry(to).or_default().push((variable, 1));
            }
        }
        for (side, terms, at, labels) in
            [("from", leaving, stage, labels_before), ("to", arriving, next, labels_after)]
        {
            for (choice, label) in labels.iter().enumerate() {
                let Some(made) = stages[at][choice] else { continue };
                let mut terms = terms.get(&choice).cloned().unwrap_or_default();
                terms.push((made, -1));
                self.add_constraint(format!("{side}_{stage}_{label}"), terms, Relation::Equal, 0);
            }
        }
    }

    fn add_variable(&mut self, variable: Variable) -> usize {
        self.variables.push(variable);
        self.variables.len() - 1
    }

    fn add_constraint(&mut self, name: String, terms: Vec<(usize, i64)>, relation: Relation, right: i64) {
        self.constraints.push(Constraint { name, terms, relation, right });
    }
}

/// A label as a part of a name.
fn word(label: &str) -> String {
    label.replace(' ', ".")
}

/// The greatest length of a line; readers of the format stop at 255 or at 560.
const LINE: usize = 200;

/// In the LP format of CPLEX, which all solvers read.
impl fmt::Display for Ilp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for remark in &self.remarks {
            writeln!(f, "\\ {remark}")?;
        }
        writeln!(f, "Minimize")?;
        let costs = self.variables.iter().enumerate().filter(|(_, variable)| variable.cost != 0);
        self.write_sum(f, "cost", costs.map(|(index, variable)| (index, variable.cost as i64)), "")?;
        writeln!(f, "Subject To")?;
        for Constraint { name, terms, relation, right } in &self.constraints {
            let relation = match relation {
                Relation::AtMost => "<=",
                Relation::Equal => "=",
            };
            self.write_sum(f, name, terms.iter().copied(), &format!("{relation} {right}"))?;
        }
        writeln!(f, "Binary")?;
        let binary = self.variables.iter().filter(|variable| variable.choice.is_some());
        write_wrapped(f, String::new(), binary.map(|variable| variable.name.clone()))?;
        writeln!(f, "End")
    }
}

impl Ilp {
    fn write_sum(
        &self,
        f: &mut fmt::Formatter<'_>,
        name: &str,
        terms: impl Iterator<Item = (usize, i64)>,
        end: &str,
    ) -> fmt::Result {
        let mut words: Vec<String> = terms
            .enumerate()
            .map(|(place, (variable, coefficient))| {
                let sign = match (coefficient < 0, place) {
                    (true, _) => "- ",
                    (false, 0) => "",
                    (false, _) => "+ ",
                };
                let factor = match coefficient.unsigned_abs() {
                    1 => String::new(),
                    factor => format!("{factor} "),
                };
                format!("{sign}{factor}{}", self.variables[variable].name)
            })
            .collect();
        // A sum of nothing needs a term all the same: of a variable that means nothing.
        if words.is_empty() {
            words.push("0 nothing".to_string());
        }
        words.extend((!end.is_empty()).then(|| end.to_string()));
        write_wrapped(f, format!("{name}:"), words.into_iter())
    }
}

/// Writes words behind a beginning, in as many lines as they need.
fn write_wrapped(
    f: &mut fmt::Formatter<'_>,
    begin: String,
    words: impl Iterator<Item = String>,
) -> fmt::Result {
    let mut line = begin;
    for word in words {
        if line.len() + 1 + word.len() > LINE {
            writeln!(f, " {line}")?;
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&word);
    }
    if line.is_empty() { Ok(()) } else { writeln!(f, " {line}") }
}
