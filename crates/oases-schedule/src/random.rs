//! Random valid training schedules, to compare executors with each other and to question the verifier.
//!
//! A schedule is drawn in two steps: what each forward keeps and how the rest is rebuilt, then an order of the instructions
//! among all that their dependencies allow. The dependencies are stated here a second time, and not taken from the
//! verifier, so that the two can be held against each other: a candidate that does not verify is a fault in one of them.
//!
//! The parts are those of every [`crate::Variant`] for the same request, so executors must find the same numbers.

use std::collections::BTreeSet;

use crate::ids::{BlockId, CollectiveId, Cut, PartId, Pass, Piece};
use crate::instruction::Instruction;
use crate::passes::{Request, VARIANTS};
use crate::schedule::{Extent, Keep, Schedule, Scope};
use crate::verify::verify;

/// Candidates that [`schedule`] looks at before it gives up.
const ATTEMPTS: u64 = 100;

/// A valid training schedule, the same for the same seed and request.
///
/// # Panics
/// If 100 candidates in a row do not verify.
pub fn schedule(seed: u64, request: &Request) -> Schedule {
    (0..ATTEMPTS)
        .map(|attempt| candidate(seed.wrapping_add(attempt << 48), request))
        .find(|schedule| verify(schedule).is_empty())
        .unwrap_or_else(|| panic!("{ATTEMPTS} candidates from seed {seed} do not verify"))
}

/// One draw that should be valid, not verified.
pub fn candidate(seed: u64, request: &Request) -> Schedule {
    let mut numbers = Numbers::new(seed);
    let plain = VARIANTS[0].build(request);
    let mut step = Graph::new(&plain);
    let backwards: Vec<Vec<Backward>> =
        plain.parts.iter().map(|part| add_part(&mut step, &plain, part.id, &mut numbers)).collect();
    add_order(&mut step, &plain, &backwards);
    add_end(&mut step, &plain, &backwards);
    let instructions = step.draw_order(&mut numbers);
    Schedule { name: format!("random {seed}"), instructions, ..plain }
}

/// A sequence of random numbers (SplitMix64; Steele, Lea and Flood 2014), the same everywhere.
#[derive(Clone, Debug)]
pub struct Numbers {
    state: u64,
}

impl Numbers {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Numbers {
        Numbers { state: seed }
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// The next number, below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.draw() % end as u64) as usize
    }

    /// True once in `many` draws.
    pub fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// What a forward keeps, and the recomputation that follows from it.
#[derive(Clone, Copy)]
struct Policy {
    keep: Keep,
    rebuild: Option<Extent>,
}

/// Draws a policy for every block of the chain. A block that keeps nothing stands behind one that keeps its input, and is
/// rebuilt from that one's recomputed output.
fn policies(schedule: &Schedule, numbers: &mut Numbers) -> Vec<Policy> {
    let fixed = |keep| Policy { keep, rebuild: None };
    let mut policies = vec![fixed(Keep::Nothing)];
    let inner = 2 * schedule.layers as usize;
    while policies.len() <= inner {
        // 0: keep all; otherwise the number of blocks rebuilt in one go.
        let blocks = numbers.pick(&[0, 0, 1, 1, 1, 2, 2, 3, 4]).min(inner + 1 - policies.len());
        if blocks == 0 {
            // Every other block is attention.
            let selective = policies.len() % 2 == 1 && numbers.one_in(2);
            policies.push(match selective {
                true => Policy { keep: Keep::Selective, rebuild: Some(Extent::Core) },
                false => fixed(Keep::All),
            });
        }
        for index in 0..blocks {
            let keep = if index == 0 { Keep::Input } else { Keep::Nothing };
            let further = index + 1 < blocks || numbers.one_in(4);
            let extent = if further { Extent::Output } else { Extent::Saved };
            policies.push(Policy { keep, rebuild: Some(extent) });
        }
    }
    policies.push(fixed(Keep::All));
    policies
}

/// The instructions of a backward that others must wait for, or wait themselves.
struct Backward {
    /// The first.
    first: usize,
    /// The last that makes the gradient of the input.
    input: usize,
    /// The one that makes the gradients of the weights.
    weight: usize,
    /// From where on the gradient of the input may be used.
    ready: Vec<usize>,
}

/// Adds everything on one part up to its gradients; returns its backwards, in the order of the chain.
fn add_part(step: &mut Graph<'_>, schedule: &Schedule, part: PartId, numbers: &mut Numbers) -> Vec<Backward> {
    let policies = policies(schedule, numbers);
    let chain: Vec<BlockId> = schedule.chain().collect();
    let mut forwards: Vec<Ends> = Vec::new();
    for (&block, policy) in chain.iter().zip(&policies) {
        let mut input = forwards.last().map(|before| before.ready.clone()).unwrap_or_default();
        step.add_border(Pass::Forward, block, part, &mut input);
        let keep = policy.keep;
        let inner = matches!(block, BlockId::Attn(_) | BlockId::Mlp(_));
        forwards.push(match inner && numbers.one_in(4) {
            false => {
                step.add_reduced(Instruction::Forward { block, part, keep, extent: Extent::Output }, input)
            }
            true => {
                let body = step.add(Instruction::Forward { block, part, keep, extent: Extent::Body }, input);
                step.add_pieces(Pass::Forward, block, part, body, numbers)
            }
        });
    }
    let last = forwards.last().expect("the head").ready.clone();
    let loss = step.add(Instruction::Loss { part }, last);

    let mut rebuilt: Vec<Option<Ends>> = vec![None];
    for index in 1..chain.len() {
        let Policy { keep, rebuild } = policies[index];
        let Some(extent) = rebuild else {
            rebuilt.push(None);
            continue;
        };
        let mut after = vec![forwards[index].own];
        if let (Keep::Nothing, Some(before)) = (keep, &rebuilt[index - 1]) {
            after.extend(&before.ready);
        }
        if keep == Keep::Nothing || extent == Extent::Output {
            // Until then the forward's own input or output is in the way.
            after.push(forwards[index + 1].own);
        }
        let block = chain[index];
        if keep == Keep::Nothing {
            step.add_border(Pass::Recompute, block, part, &mut after);
        }
        rebuilt.push(Some(match extent == Extent::Output && numbers.one_in(4) {
            false => step.add_reduced(Instruction::Recompute { block, part, extent }, after),
            true => {
                let body = step.add(Instruction::Recompute { block, part, extent: Extent::Body }, after);
                step.add_pieces(Pass::Recompute, block, part, body, numbers)
            }
        }));
    }

    let mut backwards = Vec::new();
    let mut gradient = vec![loss];
    for (&block, rebuilt) in chain.iter().zip(&rebuilt).rev() {
        let after: Vec<usize> = rebuilt.iter().map(|rebuilt| rebuilt.own).chain(gradient).collect();
        let backward = add_backward(step, block, part, after, numbers);
        gradient = backward.ready.clone();
        step.add_border(Pass::Backward, block, part, &mut gradient);
        backwards.push(backward);
    }
    backwards.reverse();
    backwards
}

/// A backward as a whole, in its two halves, or with its last product in pieces.
fn add_backward(
    step: &mut Graph<'_>,
    block: BlockId,
    part: PartId,
    after: Vec<usize>,
    numbers: &mut Numbers,
) -> Backward {
    let scope = match block {
        BlockId::Embed => Scope::All,
        _ => numbers.pick(&[Scope::All, Scope::All, Scope::Input, Scope::Body]),
    };
    let instruction = Instruction::Backward { block, part, scope };
    if scope == Scope::Body {
        let body = step.add(instruction, after);
        let Ends { own, ready } = step.add_pieces(Pass::Backward, block, part, body, numbers);
        return Backward { first: body, input: own, weight: body, ready };
    }
    let Ends { own, ready } = step.add_reduced(instruction, after);
    let weight = match scope {
        Scope::Input => step.add(Instruction::Backward { block, part, scope: Scope::Weight }, [own]),
        _ => own,
    };
    Backward { first: own, input: own, weight, ready }
}

/// Gradients are added up in sample order, and in each micro-batch the embedding's after the head's.
fn add_order(step: &mut Graph<'_>, schedule: &Schedule, backwards: &[Vec<Backward>]) {
    for pair in backwards.windows(2) {
        for (earlier, later) in pair[0].iter().zip(&pair[1]) {
            step.depend(later.first, earlier.input);
            step.depend(later.weight, earlier.weight);
        }
    }
    let head = backwards[0].len() - 1;
    for micro_batch in schedule.parts.chunk_by(|left, right| left.id.micro == right.id.micro) {
        let index = |part: PartId| schedule.parts.iter().position(|p| p.id == part).expect("a part");
        let first = index(micro_batch[0].id);
        let last = first + micro_batch.len() - 1;
        step.depend(backwards[first][0].weight, backwards[last][head].weight);
        if let Some(next) = backwards.get(last + 1) {
            step.depend(next[head].weight, backwards[last][0].weight);
        }
    }
}

/// Adds the reductions of the gradients, the norm and the step, which waits for everything.
fn add_end(step: &mut Graph<'_>, schedule: &Schedule, backwards: &[Vec<Backward>]) {
    let all = backwards.iter().flatten().flat_map(|backward| [backward.input, backward.weight]).collect();
    let mut gradients = step.add_collective(CollectiveId::Gradients(0), all);
    for (position, block) in schedule.chain().enumerate() {
        let of_block = backwards.iter().map(|backwards| backwards[position].weight);
        // The embedding's gradients are reduced with the head's.
        let of_head =
            backwards.iter().filter(|_| block == BlockId::Embed).map(|all| all[all.len() - 1].weight);
        let weights = of_block.chain(of_head).collect();
        gradients.extend(step.add_collective(CollectiveId::Replicas(block), weights));
    }
    step.add_reduced(Instruction::Norm, gradients);
    let all = step.sinks();
    step.add(Instruction::Step, all);
}

/// An instruction, and from where on its result may be used: its own place, or the `sync` of each collective on it. Of a
/// product in pieces, the last.
struct Ends {
    own: usize,
    ready: Vec<usize>,
}

/// Instructions and what each depends on.
struct Graph<'a> {
    schedule: &'a Schedule,
    instructions: Vec<Instruction>,
    /// What depends on each instruction.
    dependents: Vec<Vec<usize>>,
    /// On how many each instruction depends.
    waits: Vec<usize>,
}

impl<'a> Graph<'a> {
    fn new(schedule: &'a Schedule) -> Graph<'a> {
        Graph { schedule, instructions: Vec::new(), dependents: Vec::new(), waits: Vec::new() }
    }

    fn add(&mut self, instruction: Instruction, after: impl IntoIterator<Item = usize>) -> usize {
        let index = self.instructions.len();
        self.instructions.push(instruction);
        self.dependents.push(Vec::new());
        self.waits.push(0);
        after.into_iter().for_each(|earlier| self.depend(index, earlier));
        index
    }

    fn depend(&mut self, later: usize, earlier: usize) {
        self.dependents[earlier].push(later);
        self.waits[later] += 1;
    }

    /// An instruction with the collective that completes its result.
    fn add_reduced(&mut self, instruction: Instruction, after: impl IntoIterator<Item = usize>) -> Ends {
        let own = self.add(instruction, after);
        Ends { own, ready: self.reduced(instruction, own) }
    }

    /// From where on the result of an instruction may be used.
    fn reduced(&mut self, instruction: Instruction, own: usize) -> Vec<usize> {
        match instruction.produces() {
            Some(collective) => self.add_collective(collective, vec![own]),
            None => vec![own],
        }
    }

    /// Where the TMP degree changes before the block, what must come between `after` and the block.
    fn add_border(&mut self, pass: Pass, block: BlockId, part: PartId, after: &mut Vec<usize>) {
        if self.schedule.border(block).is_some() {
            *after = self.add_reduced(Instruction::Reshard { pass, block, part }, after.drain(..)).ready;
        }
    }

    /// The pieces of the last product of a pass through a block, after its body.
    fn add_pieces(
        &mut self,
        pass: Pass,
        block: BlockId,
        part: PartId,
        body: usize,
        numbers: &mut Numbers,
    ) -> Ends {
        let cut = if pass == Pass::Backward { Cut::Rows } else { numbers.pick(&[Cut::Rows, Cut::Columns]) };
        let (mut own, mut ready) = (body, Vec::new());
        for piece in Piece::all(numbers.pick(&[2, 3, 4]), cut) {
            let tail = Instruction::Tail { pass, block, part, piece };
            own = self.add(tail, [own]);
            ready.extend(self.reduced(tail, own));
        }
        Ends { own, ready }
    }

    /// Adds a collective where it has something to do; returns from where on its result may be used.
    fn add_collective(&mut self, collective: CollectiveId, after: Vec<usize>) -> Vec<usize> {
        let Some((kind, axis, grouping)) = self.schedule.collective(collective) else { return after };
        let start = self.add(Instruction::Start { collective, kind, axis, grouping }, after);
        vec![self.add(Instruction::Sync { collective }, [start])]
    }

    /// What nothing depends on yet.
    fn sinks(&self) -> Vec<usize> {
        (0..self.instructions.len()).filter(|&index| self.dependents[index].is_empty()).collect()
    }

    /// A random order that respects every dependency: always the ready instruction with the lowest key. Keys lie between
    /// the order in which the instructions were added and pure chance. A hurried start follows its producer; a patient
    /// sync comes when nothing else can, the one that has waited longest first.
    fn draw_order(mut self, numbers: &mut Numbers) -> Vec<Instruction> {
        let count = self.instructions.len();
        let chance = numbers.below(5);
        let [hurried, patient] = [numbers.one_in(2), numbers.one_in(2)];
        let keys: Vec<usize> =
            (0..count).map(|index| index * (4 - chance) + numbers.below(count) * chance + 1).collect();
        let entry = |index: usize, now: usize| match self.instructions[index] {
            Instruction::Start { .. } if hurried => (0, index),
            Instruction::Sync { .. } if patient => (5 * count + now, index),
            _ => (keys[index], index),
        };
        let mut ready: BTreeSet<(usize, usize)> =
            (0..count).filter(|&index| self.waits[index] == 0).map(|index| entry(index, 0)).collect();
        let mut order = Vec::with_capacity(count);
        while let Some((_, index)) = ready.pop_first() {
            order.push(self.instructions[index]);
            for &dependent in &self.dependents[index] {
                self.waits[dependent] -= 1;
                if self.waits[dependent] == 0 {
                    ready.insert(entry(dependent, order.len()));
                }
            }
        }
        assert_eq!(order.len(), count, "the dependencies go round in a circle");
        order
    }
}
