//! What a schedule computes, found by a small symbolic executor that shares no code with the verifier.
//!
//! Every buffer holds a term: a hash of how its content came about. Two schedules that end in the same terms compute the
//! same numbers, rounding included, for any weights and any batch. What no executor could do (read a buffer that is not
//! there, wait for what was not started) is an error; what it could do by mistake (read a sum before it is complete)
//! as well.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use oases_schedule::{
    BlockId, CollectiveId, Cut, Extent, Instruction, Keep, PartId, Pass, Piece, Schedule, Scope,
};

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
    let moving = |state: &State| matches!(state, State::Moving(_));
    let flying = machine.buffers.values().any(|buffer| moving(&buffer.state))
        || machine.pieces.values().flat_map(|pieces| &pieces.states).any(moving);
    if incomplete || flying || !machine.bodies.is_empty() {
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
    /// What the backward of block k needs besides `x[k]` and what its attention core puts out.
    Activations(usize, PartId),
    /// What the attention core of block k puts out.
    Core(usize, PartId),
    /// What the weight gradients of block k are made of.
    Delta(usize, PartId),
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

/// A value that is made piece by piece. Each piece carries the term of the whole.
struct Pieces {
    of: u8,
    cut: Cut,
    states: Vec<State>,
    terms: Vec<Term>,
}

/// A pass through a block that has stopped before its last product.
#[derive(Clone, Copy)]
struct Body {
    term: Term,
    /// What the product reads, where that is a buffer that others read too.
    operand: Option<Name>,
}

/// The gradients that a backward adds to: of the normalisation, and of everything else in a block.
type Place = (usize, bool);

#[derive(Default)]
struct Machine {
    chain: Vec<BlockId>,
    tensor: u32,
    buffers: BTreeMap<Name, Buffer>,
    /// Inputs to drop as soon as the next block has been fed.
    dropped: Vec<Name>,
    pieces: BTreeMap<Name, Pieces>,
    bodies: BTreeMap<(Pass, usize, PartId), Body>,
    /// Backwards whose weight gradients are still to come, and whether they alone hold the gradient of their output.
    owed: BTreeMap<(usize, PartId), bool>,
    /// The accumulated gradients of every block; of the embedding's and the head's, the weights are in common.
    gradients: BTreeMap<Place, Term>,
    /// The part whose rows are being added to a normalisation's gradients.
    adding: BTreeMap<usize, PartId>,
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
        if let Some(pieces) = self.pieces.get(&name) {
            let whole = pieces.states.len() == usize::from(pieces.of)
                && pieces.states.iter().all(|&state| state == State::Done);
            return match whole && pieces.terms.windows(2).all(|pair| pair[0] == pair[1]) {
                true => Ok(pieces.terms[0]),
                false => Err(format!("{name:?} is in pieces")),
            };
        }
        match self.buffers.get(&name) {
            Some(buffer) if buffer.state == State::Done => Ok(buffer.term),
            Some(buffer) => Err(format!("{name:?} is {:?}", buffer.state)),
            None => Err(format!("{name:?} is not there")),
        }
    }

    fn take(&mut self, name: Name) -> Result<Term, String> {
        let term = self.read(name)?;
        self.buffers.remove(&name);
        self.pieces.remove(&name);
        Ok(term)
    }

    fn write(&mut self, name: Name, term: Term, state: State) -> Result<(), String> {
        if self.pieces.contains_key(&name) {
            return Err(format!("{name:?} is overwritten"));
        }
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
            Instruction::Forward { block, part, keep, extent } => {
                self.forward(self.position(block)?, part, keep, extent)
            }
            Instruction::Recompute { block, part, extent } => {
                self.recompute(self.position(block)?, part, extent)
            }
            Instruction::Loss { part } => self.loss(part),
            Instruction::Tail { pass, block, part, piece } => {
                self.tail(pass, self.position(block)?, part, piece)
            }
            Instruction::Backward { block, part, scope } => {
                let k = self.position(block)?;
                if self.buffers.contains_key(&Name::Gradients) {
                    return Err("the gradients are reduced already".into());
                }
                if scope == Scope::Weight { self.weights(k, part) } else { self.backward(k, part, scope) }
            }
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
                let (term_of, state) = self.place(name, collective).ok_or("nothing to work on")?;
                if *state != State::Own {
                    return Err("no contribution to work on".into());
                }
                *term_of = term((kind.name(), axis.name(), *term_of));
                *state = State::Moving(collective);
                Ok(())
            }
            Instruction::Sync { collective } => {
                let name = self.target(collective)?;
                match self.place(name, collective) {
                    Some((_, state)) if *state == State::Moving(collective) => {
                        *state = State::Done;
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

    /// Term and state of what a collective works on: a buffer, or a piece of one.
    fn place(&mut self, name: Name, collective: CollectiveId) -> Option<(&mut Term, &mut State)> {
        if let CollectiveId::Block { piece: Some(Piece { index, of, cut }), .. } = collective {
            let pieces = self.pieces.get_mut(&name).filter(|pieces| (pieces.of, pieces.cut) == (of, cut))?;
            let index = usize::from(index);
            return Some((pieces.terms.get_mut(index)?, pieces.states.get_mut(index)?));
        }
        self.buffers.get_mut(&name).map(|buffer| (&mut buffer.term, &mut buffer.state))
    }

    fn target(&self, collective: CollectiveId) -> Result<Name, String> {
        Ok(match collective {
            CollectiveId::Block { pass: Pass::Backward, block, part, .. } => {
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

    fn is_attention(&self, k: usize) -> bool {
        matches!(self.chain[k], BlockId::Attn(_))
    }

    fn forward(&mut self, k: usize, part: PartId, keep: Keep, extent: Extent) -> Result<(), String> {
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
        if keep == Keep::Selective && !self.is_attention(k) {
            return Err("there is no core to leave out".into());
        }
        if keep == Keep::All || keep == Keep::Selective || k == self.head() {
            self.write(Name::Activations(k, part), activations, State::Done)?;
        }
        if keep == Keep::All && self.is_attention(k) {
            self.write(Name::Core(k, part), term(("core", activations)), State::Done)?;
        }
        self.end(Pass::Forward, k, part, extent, activations)
    }

    fn recompute(&mut self, k: usize, part: PartId, extent: Extent) -> Result<(), String> {
        if !self.forwarded.contains(&(k, part)) {
            return Err("there is nothing to repeat yet".into());
        }
        let name = Name::Activations(k, part);
        let activations = if extent == Extent::Core {
            self.read(name)?
        } else {
            let input = self.input(k, part)?;
            let activations = term(("activations", k, input));
            self.write(name, activations, State::Done)?;
            activations
        };
        match self.is_attention(k) {
            true => self.write(Name::Core(k, part), term(("core", activations)), State::Done)?,
            false if extent == Extent::Core => return Err("there is no core to repeat".into()),
            false => {}
        }
        self.end(Pass::Recompute, k, part, extent, activations)
    }

    /// The output of a block, or what pieces of it are made from.
    fn end(
        &mut self,
        pass: Pass,
        k: usize,
        part: PartId,
        extent: Extent,
        activations: Term,
    ) -> Result<(), String> {
        let output = term(("output", k, activations));
        match extent {
            Extent::Core | Extent::Saved => Ok(()),
            Extent::Output => self.write(Name::Y(k, part), output, self.own()),
            Extent::Body if k == 0 || k == self.head() => Err("it has no product to cut".into()),
            Extent::Body => {
                let core = Name::Core(k, part);
                let operand = self.buffers.contains_key(&core).then_some(core);
                self.bodies.insert((pass, k, part), Body { term: output, operand });
                Ok(())
            }
        }
    }

    fn tail(&mut self, pass: Pass, k: usize, part: PartId, piece: Piece) -> Result<(), String> {
        let body = *self.bodies.get(&(pass, k, part)).ok_or("there is no product to cut")?;
        body.operand.map_or(Ok(0), |name| self.read(name))?;
        let name = if pass == Pass::Backward { Name::Dx(k, part) } else { Name::Y(k, part) };
        if pass == Pass::Backward {
            self.rows(k, part, piece, body.term)?;
        }
        if piece.index == 0 {
            if self.pieces.contains_key(&name) || self.buffers.contains_key(&name) {
                return Err(format!("{name:?} is overwritten"));
            }
            let (of, cut) = (piece.of, piece.cut);
            self.pieces.insert(name, Pieces { of, cut, states: Vec::new(), terms: Vec::new() });
        }
        let own = self.own();
        let pieces = self.pieces.get_mut(&name).ok_or("the first piece is missing")?;
        let next = Piece { index: pieces.states.len() as u8, of: pieces.of, cut: pieces.cut };
        if piece != next {
            return Err(format!("{next} is the next"));
        }
        pieces.states.push(own);
        pieces.terms.push(body.term);
        if piece.index + 1 == piece.of {
            self.bodies.remove(&(pass, k, part));
        }
        Ok(())
    }

    /// Some rows of a normalisation's backward. They add to the gradients one after another, without others between.
    fn rows(&mut self, k: usize, part: PartId, piece: Piece, dx: Term) -> Result<(), String> {
        if piece.cut == Cut::Columns {
            return Err("a normalisation needs whole rows".into());
        }
        if self.buffers.contains_key(&Name::Gradients) {
            return Err("the gradients are reduced already".into());
        }
        if piece.index == 0 && self.adding.insert(k, part).is_some() {
            return Err("others are adding".into());
        }
        if self.adding.get(&k) != Some(&part) {
            return Err("others came between".into());
        }
        if piece.index + 1 < piece.of {
            return Ok(());
        }
        self.adding.remove(&k);
        let delta = self.take(Name::Delta(k, part))?;
        self.take(Name::Activations(k, part))?;
        self.take(Name::X(k, part))?;
        if self.is_attention(k) {
            self.take(Name::Core(k, part))?;
        }
        assert_eq!(dx, term(("dx", k, delta)));
        self.add(k, false, delta)
    }

    /// Adds to the gradients of the normalisation, or to all others of a block.
    fn add(&mut self, k: usize, weights: bool, delta: Term) -> Result<(), String> {
        if !weights && self.adding.contains_key(&k) {
            return Err("others are adding".into());
        }
        let place = if weights && k == self.head() { 0 } else { k };
        let before = self.gradients.get(&(place, weights)).copied();
        self.gradients.insert((place, weights), term(("add", before, k, delta)));
        Ok(())
    }

    fn loss(&mut self, part: PartId) -> Result<(), String> {
        let statistics = self.take(Name::Y(self.head(), part))?;
        let logits = Name::Activations(self.head(), part);
        let loss = term(("loss", self.take(logits)?, statistics));
        self.losses.insert(part, loss);
        self.write(logits, loss, State::Done)
    }

    /// The complete gradient of a block's output, which stays for the block before.
    fn arrived(&mut self, k: usize, part: PartId) -> Result<Option<Term>, String> {
        if k == self.head() {
            return Ok(None);
        }
        let branch = self.take(Name::Dx(k + 1, part))?;
        let mut around = None;
        if k + 1 < self.head() {
            let upstream = Name::Dx(k + 2, part);
            around = Some(self.read(upstream)?);
            // Weight gradients that are still to come read it too.
            match self.owed.get_mut(&(k + 1, part)) {
                Some(alone) => *alone = true,
                None => drop(self.take(upstream)?),
            }
        }
        let sum = term(("sum", branch, around));
        if k > 0 {
            self.write(Name::Dx(k + 1, part), sum, State::Done)?;
        }
        Ok(Some(sum))
    }

    fn backward(&mut self, k: usize, part: PartId, scope: Scope) -> Result<(), String> {
        let arrived = self.arrived(k, part)?;
        if k == 0 {
            let delta = term(("delta", arrived, term(("tokens", part))));
            return if scope == Scope::All {
                self.add(0, true, delta)
            } else {
                Err("it has one half".into())
            };
        }
        let saved = self.read(Name::Activations(k, part))?;
        let core = if self.is_attention(k) { Some(self.read(Name::Core(k, part))?) } else { None };
        let delta = term(("delta", arrived, term((saved, core, self.read(Name::X(k, part))?))));
        let dx = term(("dx", k, delta));
        if scope == Scope::All {
            self.forget(k, part);
        } else {
            self.write(Name::Delta(k, part), delta, State::Done)?;
        }
        if scope != Scope::Input {
            self.add(k, true, delta)?;
        } else {
            self.owed.insert((k, part), false);
        }
        if scope == Scope::Body {
            self.bodies.insert((Pass::Backward, k, part), Body { term: dx, operand: None });
            return Ok(());
        }
        self.buffers.remove(&Name::X(k, part));
        self.add(k, false, delta)?;
        self.write(Name::Dx(k, part), dx, self.own())
    }

    fn forget(&mut self, k: usize, part: PartId) {
        for name in [Name::Activations(k, part), Name::Core(k, part), Name::Delta(k, part)] {
            self.buffers.remove(&name);
        }
    }

    fn weights(&mut self, k: usize, part: PartId) -> Result<(), String> {
        let alone = self.owed.remove(&(k, part)).ok_or("the input's gradient comes first")?;
        let delta = self.read(Name::Delta(k, part))?;
        self.read(Name::Activations(k, part))?;
        if k < self.head() {
            self.read(Name::Dx(k + 1, part))?;
        }
        if alone {
            self.take(Name::Dx(k + 1, part))?;
        }
        self.forget(k, part);
        self.add(k, true, delta)
    }
}
