//! What a schedule computes, found by a small symbolic executor that shares no code with the verifier.
//!
//! Every buffer holds a term: a hash of how its content came about. Two schedules that end in the same terms compute the
//! same numbers, rounding included, for any weights and any batch. What no executor could do (read a buffer that is not
//! there, wait for what was not started) is an error; what it could do by mistake (read a sum before it is complete)
//! as well.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use oases_schedule::{BlockId, CollectiveId, Extent, Instruction, Keep, PartId, Pass, Schedule};

/// A hash of how a value came about.
type Term = u64;

/// What the batch and the weights become.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Meaning {
    losses: BTreeMap<PartId, Term>,
    step: Option<Term>,
}

/// Executes a schedule on terms.
pub(crate) fn meaning(schedule: &Schedule) -> Result<Meaning, String> {
    let chain: Vec<BlockId> = schedule.chain().collect();
    let tensor = schedule.layout.degree(0);
    let mut machine = Machine { chain, tensor, ..Machine::default() };
    for instruction in &schedule.instructions {
        if machine.step.is_some() {
            return Err(format!("`{instruction}` follows the step"));
        }
        machine.execute(*instruction).map_err(|message| format!("`{instruction}`: {message}"))?;
    }
    let parts = schedule.parts.len();
    let incomplete =
        machine.losses.len() < parts || (machine.step.is_none() && !machine.gradients.is_empty());
    let flying = machine.buffers.values().any(|buffer| matches!(buffer.state, State::Moving(_)));
    if incomplete || flying {
        return Err("the step is not complete".into());
    }
    Ok(Meaning { losses: machine.losses, step: machine.step })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// This rank's own contribution.
    Own,
    /// A collective works on it.
    Moving(CollectiveId),
    /// The same on all ranks, or private to this one for good.
    Done,
}

#[derive(Clone, Copy, Debug)]
struct Buffer {
    term: Term,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    /// `x[k]`.
    X(usize, PartId),
    /// What block k adds to `x[k]`.
    Y(usize, PartId),
    /// What the backward of block k needs besides `x[k]`.
    Activations(usize, PartId),
    /// `dLoss/dx[k]`.
    Dx(usize, PartId),
    /// All parameter gradients together.
    Gradients,
    Norm,
}

fn term(parts: impl Hash) -> Term {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

#[derive(Default)]
struct Machine {
    chain: Vec<BlockId>,
    tensor: u32,
    buffers: BTreeMap<Name, Buffer>,
    /// Inputs to drop as soon as the next block has been fed.
    dropped: Vec<Name>,
    /// The accumulated gradient of every block; embedding and head have one in common.
    gradients: BTreeMap<usize, Term>,
    forwarded: Vec<(usize, PartId)>,
    started: Vec<CollectiveId>,
    losses: BTreeMap<PartId, Term>,
    step: Option<Term>,
}

impl Machine {
    fn head(&self) -> usize {
        self.chain.len() - 1
    }

    fn position(&self, block: BlockId) -> Result<usize, String> {
        self.chain.iter().position(|&found| found == block).ok_or_else(|| format!("no {block}"))
    }

    fn read(&self, name: Name) -> Result<Term, String> {
        match self.buffers.get(&name) {
            Some(buffer) if buffer.state == State::Done => Ok(buffer.term),
            Some(buffer) => Err(format!("{name:?} is {:?}", buffer.state)),
            None => Err(format!("{name:?} is not there")),
        }
    }

    fn take(&mut self, name: Name) -> Result<Term, String> {
        let term = self.read(name)?;
        self.buffers.remove(&name);
        Ok(term)
    }

    fn write(&mut self, name: Name, term: Term, state: State) -> Result<(), String> {
        match self.buffers.insert(name, Buffer { term, state }) {
            // A partial sum is there to be reduced, a complete one to be read: writing over either loses it.
            Some(_) if !matches!(name, Name::Dx(..)) => Err(format!("{name:?} is overwritten")),
            _ => Ok(()),
        }
    }

    /// The state of what a rank computed alone and a collective completes.
    fn own(&self) -> State {
        if self.tensor == 1 { State::Done } else { State::Own }
    }

    fn execute(&mut self, instruction: Instruction) -> Result<(), String> {
        match instruction {
            Instruction::Forward { block, part, keep } => self.forward(self.position(block)?, part, keep),
            Instruction::Recompute { block, part, extent } => {
                self.recompute(self.position(block)?, part, extent)
            }
            Instruction::Loss { part } => self.loss(part),
            Instruction::Backward { block, part } => self.backward(self.position(block)?, part),
            Instruction::Start { collective, kind, axis } => {
                let name = self.target(collective)?;
                if self.tensor == 1 || self.started.contains(&collective) {
                    return Err("it should not start".into());
                }
                self.started.push(collective);
                if name == Name::Gradients {
                    let all = term(&self.gradients);
                    self.buffers.insert(name, Buffer { term: all, state: State::Own });
                }
                let buffer = self.buffers.get_mut(&name).ok_or("nothing to work on")?;
                if buffer.state != State::Own {
                    return Err("no contribution to work on".into());
                }
                *buffer = Buffer {
                    term: term((kind.name(), axis.name(), buffer.term)),
                    state: State::Moving(collective),
                };
                Ok(())
            }
            Instruction::Sync { collective } => {
                let name = self.target(collective)?;
                match self.buffers.get_mut(&name) {
                    Some(buffer) if buffer.state == State::Moving(collective) => {
                        buffer.state = State::Done;
                        Ok(())
                    }
                    _ => Err("it is not under way".into()),
                }
            }
            Instruction::Norm => {
                let gradients = self.all_gradients()?;
                self.write(Name::Norm, term(("norm", gradients)), self.own())
            }
            Instruction::Step => {
                let gradients = self.all_gradients()?;
                let norm = self.read(Name::Norm)?;
                self.step = Some(term(("step", gradients, norm)));
                Ok(())
            }
        }
    }

    /// The gradients that norm and step read.
    fn all_gradients(&self) -> Result<Term, String> {
        if self.tensor == 1 { Ok(term(&self.gradients)) } else { self.read(Name::Gradients) }
    }

    fn target(&self, collective: CollectiveId) -> Result<Name, String> {
        Ok(match collective {
            CollectiveId::Block { pass: Pass::Backward, block, part } => {
                Name::Dx(self.position(block)?, part)
            }
            CollectiveId::Block { block, part, .. } => Name::Y(self.position(block)?, part),
            CollectiveId::Gradients(0) => Name::Gradients,
            CollectiveId::Gradients(_) => return Err("no such bucket".into()),
            CollectiveId::Norm => Name::Norm,
        })
    }

    /// `x[k]`, made from `x[k-1]` and what its block added where it is not there.
    fn input(&mut self, k: usize, part: PartId) -> Result<Term, String> {
        let name = Name::X(k, part);
        if k == 0 || self.buffers.contains_key(&name) {
            return if k == 0 { Ok(term(("tokens", part))) } else { self.read(name) };
        }
        let added = self.take(Name::Y(k - 1, part))?;
        let residual = if k == 1 { None } else { Some(self.read(Name::X(k - 1, part))?) };
        let input = term(("join", k, added, residual));
        self.write(name, input, State::Done)?;
        Ok(input)
    }

    fn forward(&mut self, k: usize, part: PartId, keep: Keep) -> Result<(), String> {
        self.forwarded.push((k, part));
        let input = self.input(k, part)?;
        if let Some(index) = self.dropped.iter().position(|name| k > 0 && *name == Name::X(k - 1, part)) {
            let name = self.dropped.remove(index);
            self.buffers.remove(&name);
        }
        let activations = term(("activations", k, input));
        if keep == Keep::Nothing && k < self.head() {
            self.dropped.push(Name::X(k, part));
        }
        if keep == Keep::All || k == self.head() {
            self.write(Name::Activations(k, part), activations, State::Done)?;
        }
        self.write(Name::Y(k, part), term(("output", k, activations)), self.own())
    }

    fn recompute(&mut self, k: usize, part: PartId, extent: Extent) -> Result<(), String> {
        if !self.forwarded.contains(&(k, part)) {
            return Err("there is nothing to repeat yet".into());
        }
        let input = self.input(k, part)?;
        let activations = term(("activations", k, input));
        self.write(Name::Activations(k, part), activations, State::Done)?;
        match extent {
            Extent::Saved => Ok(()),
            Extent::Output => self.write(Name::Y(k, part), term(("output", k, activations)), self.own()),
        }
    }

    fn loss(&mut self, part: PartId) -> Result<(), String> {
        let statistics = self.take(Name::Y(self.head(), part))?;
        let logits = Name::Activations(self.head(), part);
        let loss = term(("loss", self.take(logits)?, statistics));
        self.losses.insert(part, loss);
        self.write(logits, loss, State::Done)
    }

    fn backward(&mut self, k: usize, part: PartId) -> Result<(), String> {
        if self.buffers.contains_key(&Name::Gradients) {
            return Err("the gradients are reduced already".into());
        }
        let mut arrived = None;
        if k < self.head() {
            let branch = self.take(Name::Dx(k + 1, part))?;
            let around = if k + 1 < self.head() { Some(self.take(Name::Dx(k + 2, part))?) } else { None };
            let sum = term(("sum", branch, around));
            arrived = Some(sum);
            if k > 0 {
                self.write(Name::Dx(k + 1, part), sum, State::Done)?;
            }
        }
        let own = if k == 0 {
            term(("tokens", part))
        } else {
            let activations = self.take(Name::Activations(k, part))?;
            term((activations, self.take(Name::X(k, part))?))
        };
        let place = if k == self.head() { 0 } else { k };
        let before = self.gradients.get(&place).copied();
        self.gradients.insert(place, term(("add", before, k, arrived, own)));
        if k == 0 { Ok(()) } else { self.write(Name::Dx(k, part), term(("dx", k, arrived, own)), self.own()) }
    }
}
