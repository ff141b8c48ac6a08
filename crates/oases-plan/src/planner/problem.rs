//! The chain of blocks as a [`Problem`]: a stage for both ends, one for every block between them, and back.

use oases_schedule::{Bytes, CollectiveKind, Direction, Family, Keep, Keeps, Layout, Operation};

use super::objective::{Crossing, Objective, Step};
use super::times::LayerTimes;
use super::{Barred, Refused, Task};
use crate::assign::{Budget, Choice, Kind, Problem, Transition};
use crate::costs::Reach;
use crate::error::Error;
use crate::time::Nanoseconds;

/// A budget for everything that can be counted.
const UNLIMITED: Bytes = Bytes(u64::MAX >> 2);

/// A way to run a block.
#[derive(Clone, Debug)]
struct Way {
    degree: u32,
    keep: Keeps,
    times: LayerTimes,
}

impl Way {
    fn label(&self) -> String {
        match &self.keep {
            Keeps::Same(keep) => format!("{} {}", self.degree, keep.name()),
            _ => self.degree.to_string(),
        }
    }
}

/// What blocks take in each way, and what lies between them.
#[derive(Clone, Debug)]
pub struct Chain {
    group: u32,
    layers: u32,
    micro_batches: u64,
    interference: f64,
    ways: Vec<Way>,
    /// The first way of each degree: the ends have no other choice.
    ends: Vec<usize>,
    /// From one degree to another, where that is possible.
    crossings: Vec<(u32, u32, Crossing)>,
    /// Degrees that cannot be chosen.
    pub refused: Vec<Refused>,
    /// Degrees that cannot follow each other.
    pub barred: Vec<Barred>,
}

impl Chain {
    /// Asks for all costs.
    pub fn new(task: &Task<'_>) -> Chain {
        let mut chain = Chain {
            group: task.request.layout.group(),
            layers: task.model.layers,
            micro_batches: u64::from(task.request.micro_batches),
            interference: task.costs.interference(),
            ways: Vec::new(),
            ends: Vec::new(),
            crossings: Vec::new(),
            refused: Vec::new(),
            barred: Vec::new(),
        };
        for &degree in &task.degrees {
            if let Some(reason) = task.refuses(degree) {
                chain.refused.push(Refused { degree, reason, cause: None });
                continue;
            }
            let first = chain.ways.len();
            for keep in &task.keeps {
                // What was not measured is not possible.
                match LayerTimes::measure(task, degree, keep) {
                    Ok(times) => chain.ways.push(Way { degree, keep: keep.clone(), times }),
                    Err(error) => {
                        let reason = error.to_string();
                        chain.refused.push(Refused { degree, reason, cause: Some(error) });
                    }
                }
            }
            if chain.ways.len() > first {
                chain.ends.push(first);
            }
        }
        chain.add_crossings(task);
        chain
    }

    fn add_crossings(&mut self, task: &Task<'_>) {
        for &from in &self.ends {
            for &to in &self.ends {
                let degrees = [from, to].map(|way| self.ways[way].degree);
                let [before, after] = degrees;
                if before == after {
                    continue;
                }
                let reason = match before.max(after).is_multiple_of(before.min(after)) {
                    false => "one must divide the other".to_owned(),
                    // What was not measured is not possible.
                    true => match crossing(task, degrees, &self.ways[from].times.parts) {
                        Ok(crossing) => {
                            self.crossings.push((before, after, crossing));
                            continue;
                        }
                        Err(error) => error.to_string(),
                    },
                };
                self.barred.push(Barred { before, after, reason });
            }
        }
    }

    /// The problem, with the budget for what blocks need by themselves.
    pub fn problem(&self, objective: Objective, budget: Option<Bytes>) -> Problem {
        let step = Step { objective, micro_batches: self.micro_batches, interference: self.interference };
        let ends: Vec<&Way> = self.ends.iter().map(|&way| &self.ways[way]).collect();
        let ways: Vec<&Way> = self.ways.iter().collect();
        let resources = |families: &[Family], way: &Way| match budget {
            None => Vec::new(),
            Some(_) => {
                let bytes = |family: &Family| {
                    let block = way.times.of(*family);
                    block.parameter_bytes.0 + block.kept_bytes.0
                };
                vec![families.iter().map(bytes).sum()]
            }
        };
        let kind = |family| Kind {
            choices: ways
                .iter()
                .map(|way| Choice {
                    label: way.label(),
                    cost: Some(step.node(way.times.of(family))),
                    resources: resources(&[family], way),
                })
                .collect(),
        };
        let of_ends = |way: &&Way| {
            let [embed, head] = [Family::Embed, Family::Head].map(|family| way.times.of(family));
            Choice {
                label: way.degree.to_string(),
                cost: Some(step.node(embed) + step.node(head) + step.turns(embed, head)),
                resources: resources(&[Family::Embed, Family::Head], way),
            }
        };
        let between = |before: (&[&Way], Family), after: (&[&Way], Family)| Transition {
            costs: before
                .0
                .iter()
                .map(|&from| {
                    after.0.iter().map(|&to| self.edge(step, (from, before.1), (to, after.1))).collect()
                })
                .collect(),
        };
        let blocks = 2 * self.layers as usize;
        let stages: Vec<usize> =
            (0..=blocks).map(|stage| if stage == 0 { 0 } else { 1 + (stage - 1) % 2 }).collect();
        Problem {
            budgets: budget
                .map(|budget| Budget { name: "memory of a rank".to_owned(), amount: budget.0 })
                .into_iter()
                .collect(),
            kinds: vec![
                Kind { choices: ends.iter().map(of_ends).collect() },
                kind(Family::Attn),
                kind(Family::Mlp),
            ],
            transitions: vec![
                between((&ends, Family::Embed), (&ways, Family::Attn)),
                between((&ways, Family::Attn), (&ways, Family::Mlp)),
                between((&ways, Family::Mlp), (&ways, Family::Attn)),
                between((&ways, Family::Mlp), (&ends, Family::Head)),
            ],
            // The transition behind a stage is that of its kind.
            links: stages[..blocks].to_vec(),
            stages,
            closing: Some(3),
        }
    }

    /// The problem of needing as little memory as possible, a byte for a nanosecond.
    pub(crate) fn least_memory(&self) -> Problem {
        let mut problem = self.problem(Objective::Overlapped, Some(UNLIMITED));
        problem.budgets.clear();
        for choice in problem.kinds.iter_mut().flat_map(|kind| &mut kind.choices) {
            choice.cost = std::mem::take(&mut choice.resources).first().map(|&bytes| Nanoseconds(bytes));
        }
        for cost in problem.transitions.iter_mut().flat_map(|transition| &mut transition.costs).flatten() {
            *cost = cost.map(|_| Nanoseconds::ZERO);
        }
        problem
    }

    fn edge(&self, step: Step, before: (&Way, Family), after: (&Way, Family)) -> Option<Nanoseconds> {
        let [from, to] = [before.0.degree, after.0.degree];
        let crossing = match from == to {
            true => None,
            false => {
                let found = self.crossings.iter().find(|(a, b, _)| [*a, *b] == [from, to]);
                Some(&found?.2)
            }
        };
        Some(step.edge(before.0.times.of(before.1), after.0.times.of(after.1), crossing))
    }

    /// The layout of an assignment, and what its blocks keep.
    pub fn layout(&self, choices: &[usize]) -> (Layout, Keeps) {
        let ends = self.ways[self.ends[choices[0]]].degree;
        let blocks: Vec<&Way> = choices[1..].iter().map(|&choice| &self.ways[choice]).collect();
        let inner = blocks.iter().map(|way| way.degree);
        let degrees = std::iter::once(ends).chain(inner).chain(std::iter::once(ends)).collect();
        let keeps: Option<Vec<Keep>> = blocks
            .iter()
            .map(|way| match way.keep {
                Keeps::Same(keep) => Some(keep),
                _ => None,
            })
            .collect();
        let keep = match keeps {
            Some(keeps) if keeps.windows(2).all(|pair| pair[0] == pair[1]) => Keeps::Same(keeps[0]),
            Some(keeps) => Keeps::Blocks(keeps),
            None => blocks[0].keep.clone(),
        };
        (Layout::new(self.group, degrees), keep)
    }

    /// Bytes of the blocks of a layout by themselves, if it can be chosen.
    pub fn bytes(&self, choices: &[usize]) -> Bytes {
        let usage = self.problem(Objective::Overlapped, Some(UNLIMITED)).usage(choices);
        Bytes(usage[0])
    }

    /// The assignments that run all blocks in one way.
    pub fn uniform(&self) -> Vec<Vec<usize>> {
        let of_way = |(index, way): (usize, &Way)| {
            let ends = self.ends.iter().position(|&first| self.ways[first].degree == way.degree);
            let mut choices = vec![index; 2 * self.layers as usize + 1];
            choices[0] = ends.expect("every degree has a first way");
            choices
        };
        self.ways.iter().enumerate().map(of_way).collect()
    }
}

/// What lies between two degrees, in both directions of the chain.
fn crossing(task: &Task<'_>, [before, after]: [u32; 2], parts: &[u32]) -> Result<Crossing, Error> {
    let group = task.request.layout.group();
    let share = |part: &u32, degree: u32| part / (group / degree);
    let arithmetic = |direction, degree| -> Result<Vec<Nanoseconds>, Error> {
        let operation = Operation::Reshard(direction);
        parts.iter().map(|part| task.costs.compute(operation, share(part, degree), degree)).collect()
    };
    let gather = |from: u32, to: u32| -> Result<Vec<Nanoseconds>, Error> {
        let row = (task.model.sequence * task.model.hidden * size_of::<f32>()) as u64;
        let one = |part: &u32| {
            if to <= from {
                return Ok(Nanoseconds::ZERO);
            }
            let reach = Reach::apart(to / from, from);
            let bytes = Bytes(u64::from(share(part, to)) * row);
            Ok(task.costs.collective(CollectiveKind::AllGather, bytes, reach)?.link)
        };
        parts.iter().map(one).collect()
    };
    Ok(Crossing {
        forward: arithmetic(Direction::Forward, before)?,
        forward_gather: gather(before, after)?,
        backward: arithmetic(Direction::Backward, after)?,
        backward_gather: gather(after, before)?,
    })
}
