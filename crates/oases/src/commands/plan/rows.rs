//! What was planned, as the values of a report.

use oases_plan::Nanoseconds;
use oases_plan::planner::{Candidate, Planned};
use oases_schedule::{Bytes, Keeps};

use super::planner::{Planner, Setting};
use crate::report::memory::{self, MemoryKind};
use crate::report::plan::{PlanReport, Proof, RefusedDegree, Row, Run};

/// Fills in all that follows from the plan.
pub fn fill(report: &mut PlanReport, planner: &Planner<'_>, setting: &Setting, planned: &Planned) {
    let row = |name: &str, candidate: &Candidate| row(name, candidate, planner.budget);
    let several = setting.keeps.len() > 1;
    report.plan = row("plan", &planned.best);
    report.runs = Run::of(&planned.best.layout, &planned.best.keep, planner.model.layers);
    report.runner_up = planned.runner_up.as_ref().map(|other| row("runner-up", other));
    report.alpa = planned.blocking.as_ref().map(|other| row("alpa", other));
    report.uniform = planned.uniform.iter().map(|one| row(&uniform_name(one, several), one)).collect();
    report.refused = refused(planned);
    let plan = planned.best.step;
    let fastest = planned.uniform.iter().filter(|one| fits(one, planner.budget)).map(|one| one.step).min();
    report.speedup_over_uniform = fastest.map(|step| step.share_of(plan));
    report.speedup_over_alpa = planned
        .blocking
        .as_ref()
        .filter(|other| fits(other, planner.budget))
        .map(|other| other.step.share_of(plan));
    report.memory = memory(&planned.best);
    report.proof = proof(planned, planner);
    report.remarks = remarks(planned);
}

fn fits(candidate: &Candidate, budget: Option<Bytes>) -> bool {
    budget.is_none_or(|budget| candidate.bytes <= budget)
}

/// A candidate as a row.
pub fn row(name: &str, candidate: &Candidate, budget: Option<Bytes>) -> Row {
    Row {
        name: name.to_owned(),
        degrees: candidate.layout.runs(),
        keep: candidate.keep.to_string(),
        step_ms: candidate.step.milliseconds(),
        exposed_comm_ms: candidate.exposed.milliseconds(),
        arena_bytes: candidate.bytes.0,
        fits: fits(candidate, budget),
    }
}

/// `degree 4`, or `degree 4 all` where what is kept is chosen as well.
pub fn uniform_name(candidate: &Candidate, several_keeps: bool) -> String {
    let degree = candidate.layout.degree(0);
    match &candidate.keep {
        Keeps::Same(keep) if several_keeps => format!("degree {degree} {}", keep.name()),
        _ => format!("degree {degree}"),
    }
}

/// Each degree that has no way at all, once; each way without costs otherwise.
fn refused(planned: &Planned) -> Vec<RefusedDegree> {
    let mut list: Vec<RefusedDegree> = Vec::new();
    for refused in &planned.refused {
        let refused = RefusedDegree { degree: refused.degree, reason: refused.reason.clone() };
        if !list.contains(&refused) {
            list.push(refused);
        }
    }
    list
}

/// What fills a rank's memory at the peak.
pub fn memory(candidate: &Candidate) -> Vec<MemoryKind> {
    let mut kinds = memory::kinds(
        [candidate.weight_bytes, candidate.moment_bytes, candidate.static_bytes],
        &candidate.alive,
    );
    let sum: u64 = kinds.iter().map(|kind| kind.bytes).sum();
    kinds.push(MemoryKind { kind: "gaps between buffers", bytes: candidate.bytes.0.saturating_sub(sum) });
    kinds
}

fn proof(planned: &Planned, planner: &Planner<'_>) -> Proof {
    let answer = &planned.answer;
    let objective = answer.best.objective;
    Proof {
        solver: planner.solver_name(),
        objective_ms: objective.milliseconds(),
        bound_ms: planned.bound.milliseconds(),
        optimal: answer.is_proven() && planned.bound == objective,
        margin_ms: answer.margin().map(Nanoseconds::milliseconds),
        explored: answer.work.explored,
        cut_off: answer.work.pruned + answer.work.dominated,
        rounds: planned.rounds,
        planning_ms: 0.0,
    }
}

fn remarks(planned: &Planned) -> Vec<String> {
    let mut remarks = Vec::new();
    if planned.best != planned.solved {
        remarks.push(format!(
            "the simulator prefers another layout than the solver, whose answer {} takes {}",
            planned.solved.layout.runs(),
            planned.solved.step
        ));
    }
    if planned.best.layout.uniform_degree() == Some(1) {
        remarks.push(why_degree_one(planned));
    }
    remarks.extend(planned.barred.iter().map(|barred| {
        format!(
            "no block of degree {} follows one of degree {}: {}",
            barred.after, barred.before, barred.reason
        )
    }));
    remarks
}

/// TMP degree 1 is an answer like any other, with a reason.
fn why_degree_one(planned: &Planned) -> String {
    let others = planned.uniform.iter().filter(|one| one.layout.degree(0) > 1);
    match others.min_by_key(|one| one.step) {
        None => "degree 1 is the only one that is possible".to_owned(),
        Some(other) => format!(
            "degree 1 has no all-reduces behind its blocks, and {} of it are exposed; at degree {}, the best of the others, \
             {} of {} are",
            planned.best.exposed,
            other.layout.degree(0),
            other.exposed,
            other.step
        ),
    }
}
