//! What blocks compute, and what passes from one to the next.

use oases_schedule::{BlockId, Cut, Extent, Keep, PartId, Pass, Piece, Scope};

use super::algebra::{Number, Rows, number, shard, sum, term, unsharded};
use super::{Body, Buffer, Machine, Name, Pieces, State, Sum};

/// Row by row.
fn map(rows: &Rows, function: impl Fn(Number) -> Number) -> Rows {
    rows.iter().map(|rows| rows.iter().map(|&row| function(row)).collect()).collect()
}

/// Row by row, of two buffers of the same sequences.
fn zip(left: &Rows, right: &Rows, function: impl Fn(Number, Number) -> Number) -> Result<Rows, String> {
    let of_rank = |(left, right): (&Vec<Number>, &Vec<Number>)| match left.len() == right.len() {
        true => Ok(left.iter().zip(right).map(|(&left, &right)| function(left, right)).collect()),
        false => Err(format!("{} rows meet {}", left.len(), right.len())),
    };
    left.iter().zip(right).map(of_rank).collect()
}

impl Machine {
    /// What every rank contributes to a sum over its replica of block k.
    fn terms(&self, k: usize, whole: &Rows) -> Rows {
        let degree = self.degrees[k];
        let of_rank = |(rank, rows): (usize, &Vec<Number>)| {
            rows.iter().map(|&row| term(row, rank % degree, degree)).collect()
        };
        whole.iter().enumerate().map(of_rank).collect()
    }

    /// `x[k]` of the sequences of block k - 1, from `x[k-1]` and what its block added.
    fn join(&mut self, k: usize, part: PartId) -> Result<Rows, String> {
        let added = self.take(Name::Y(k - 1, part))?;
        match k {
            1 => Ok(map(&added, |added| number(("join", k, added)))),
            _ => zip(&added, &self.read(Name::X(k - 1, part))?, |added, residual| {
                number(("join", k, added, residual))
            }),
        }
    }

    /// Block k has been fed.
    fn fed(&mut self, k: usize, part: PartId) {
        if let Some(index) = self.dropped.iter().position(|name| k > 0 && *name == Name::X(k - 1, part)) {
            let name = self.dropped.remove(index);
            self.buffers.remove(&name);
        }
    }

    /// `x[k]`, made where it is not there. Behind a border it is.
    fn input(&mut self, k: usize, part: PartId) -> Result<Rows, String> {
        let name = Name::X(k, part);
        if k == 0 {
            return self.rows(0, part, |_, _, sequence| number(("tokens", part, sequence)));
        }
        if !self.buffers.contains_key(&name) && !self.apart(k) {
            let input = self.join(k, part)?;
            self.write(name, input, State::Done)?;
        }
        self.read(name)
    }

    /// Puts what a rank has of the sequences of block `from` where those of block `to` are wanted. Of the others, every rank
    /// finds there what happens to be in its memory.
    fn deal(&mut self, name: Name, whole: &Rows, from: usize, to: usize, part: PartId) -> Result<(), String> {
        let mut complete = true;
        let mut dealt =
            self.rows(to, part, |rank, _, sequence| number(("memory", rank, name_of(name), sequence)))?;
        for (rank, rows) in dealt.iter_mut().enumerate() {
            let [had, wanted] = [self.share(from, rank, part)?, self.share(to, rank, part)?];
            complete &= had.start <= wanted.start && wanted.end <= had.end;
            for sequence in wanted.clone().filter(|sequence| had.contains(sequence)) {
                rows[sequence - wanted.start] = whole[rank][sequence - had.start];
            }
        }
        self.write(name, dealt, if complete { State::Done } else { State::Own })
    }

    pub(super) fn reshard(&mut self, pass: Pass, k: usize, part: PartId) -> Result<(), String> {
        if !self.border(k) {
            return Err("there is no border".into());
        }
        if self.forwarded.contains(&(k, part)) == (pass == Pass::Forward) {
            return Err("the block's forward is on the wrong side".into());
        }
        if pass == Pass::Backward {
            let whole = self.completed(k, part)?;
            return self.deal(Name::Dealt(k, part), &whole, k, k - 1, part);
        }
        let whole = self.join(k, part)?;
        if pass == Pass::Forward {
            self.fed(k, part);
        }
        self.deal(Name::X(k, part), &whole, k - 1, k, part)
    }

    /// Completes what crosses to another stage before block k.
    pub(super) fn complete(&mut self, pass: Pass, k: usize, part: PartId) -> Result<(), String> {
        let own = if pass == Pass::Backward { Some(k) } else { k.checked_sub(1) };
        if !self.crosses(k) || !own.is_some_and(|own| self.stage().runs(own)) {
            return Err("it does not cross from here".into());
        }
        match pass {
            Pass::Forward => {
                let whole = self.join(k, part)?;
                self.fed(k, part);
                self.write(Name::X(k, part), whole, State::Own)
            }
            Pass::Backward => {
                let whole = self.completed(k, part)?;
                self.write(Name::Dx(k, part), whole, State::Own)
            }
            Pass::Recompute => Err("nothing crosses in recomputation".into()),
        }
    }

    fn is_attention(&self, k: usize) -> bool {
        matches!(self.chain[k], BlockId::Attn(_))
    }

    pub(super) fn forward(
        &mut self,
        k: usize,
        part: PartId,
        keep: Keep,
        extent: Extent,
    ) -> Result<(), String> {
        self.forwarded.push((k, part));
        let input = self.input(k, part)?;
        if !self.apart(k) {
            self.fed(k, part);
        }
        let activations = map(&input, |input| number(("activations", k, input)));
        if keep == Keep::Nothing && k < self.head() {
            self.dropped.push(Name::X(k, part));
        }
        if keep == Keep::Selective && !self.is_attention(k) {
            return Err("there is no core to leave out".into());
        }
        if keep == Keep::All || keep == Keep::Selective || k == self.head() {
            self.write(Name::Activations(k, part), activations.clone(), State::Done)?;
        }
        if keep == Keep::All && self.is_attention(k) {
            self.write_core(k, part, &activations)?;
        }
        self.end(Pass::Forward, k, part, extent, &activations)
    }

    fn write_core(&mut self, k: usize, part: PartId, activations: &Rows) -> Result<(), String> {
        self.write(Name::Core(k, part), map(activations, |saved| number(("core", saved))), State::Done)
    }

    pub(super) fn recompute(&mut self, k: usize, part: PartId, extent: Extent) -> Result<(), String> {
        if !self.forwarded.contains(&(k, part)) {
            return Err("there is nothing to repeat yet".into());
        }
        let name = Name::Activations(k, part);
        let activations = if extent == Extent::Core {
            self.read(name)?
        } else {
            let activations = map(&self.input(k, part)?, |input| number(("activations", k, input)));
            self.write(name, activations.clone(), State::Done)?;
            activations
        };
        match self.is_attention(k) {
            true => self.write_core(k, part, &activations)?,
            false if extent == Extent::Core => return Err("there is no core to repeat".into()),
            false => {}
        }
        self.end(Pass::Recompute, k, part, extent, &activations)
    }

    /// The output of a block, or what pieces of it are made from.
    fn end(
        &mut self,
        pass: Pass,
        k: usize,
        part: PartId,
        extent: Extent,
        activations: &Rows,
    ) -> Result<(), String> {
        let output = map(activations, |activations| number(("output", k, activations)));
        match extent {
            Extent::Core | Extent::Saved => Ok(()),
            Extent::Output => {
                let own = if k == self.head() { self.statistics(&output) } else { self.terms(k, &output) };
                self.write(Name::Y(k, part), own, Machine::alone(self.degrees[k]))
            }
            Extent::Body if k == 0 || k == self.head() => Err("it has no product to cut".into()),
            Extent::Body => {
                let core = Name::Core(k, part);
                let operand = self.buffers.contains_key(&core).then_some(core);
                // What the product of the other pass still reads is there once.
                let other = if pass == Pass::Forward { Pass::Recompute } else { Pass::Forward };
                let read = self.bodies.get(&(other, k, part)).is_some_and(|body| body.operand.is_none());
                if operand.is_none() && read {
                    return Err("the operand of the last product is overwritten".into());
                }
                self.bodies.insert((pass, k, part), Body { rows: output, operand });
                Ok(())
            }
        }
    }

    /// A slot for the statistics of every rank of the head's replica, of which each fills its own.
    fn statistics(&self, whole: &Rows) -> Rows {
        let degree = self.degrees[self.head()];
        let of_rank = |(rank, rows): (usize, &Vec<Number>)| {
            let slot = |place: usize| {
                let row = move |&row: &Number| match place == rank % degree {
                    true => shard(row, place, degree),
                    false => number(("memory", rank, row)),
                };
                rows.iter().map(row)
            };
            (0..degree).flat_map(slot).collect()
        };
        whole.iter().enumerate().map(of_rank).collect()
    }

    pub(super) fn loss(&mut self, part: PartId) -> Result<(), String> {
        let head = self.head();
        let degree = self.degrees[head];
        let statistics = self.take(Name::Y(head, part))?;
        let logits = self.take(Name::Activations(head, part))?;
        let mut losses = vec![None; self.parts[&part]];
        let mut rows = logits;
        for (rank, rows) in rows.iter_mut().enumerate() {
            let count = rows.len();
            if count != self.share(head, rank, part)?.len() {
                return Err("these are the rows of another part".into());
            }
            for (row, sequence) in self.share(head, rank, part)?.enumerate() {
                let of = |place: usize| unsharded(statistics[rank][place * count + row], place, degree);
                if (1..degree).any(|place| of(place) != of(0)) {
                    return Err("these are the statistics of different rows".into());
                }
                rows[row] = number(("loss", part, sequence, rows[row], of(0)));
                if losses[sequence].replace(rows[row]).is_some_and(|other| other != rows[row]) {
                    return Err("the ranks of a replica disagree".into());
                }
            }
        }
        self.losses.insert(part, losses);
        self.write(Name::Activations(head, part), rows, State::Done)
    }

    pub(super) fn tail(&mut self, pass: Pass, k: usize, part: PartId, piece: Piece) -> Result<(), String> {
        let body = self.bodies.get(&(pass, k, part)).ok_or("there is no product to cut")?.clone();
        if let Some(operand) = body.operand {
            self.read(operand)?;
        }
        let name = if pass == Pass::Backward { Name::Dx(k, part) } else { Name::Y(k, part) };
        if pass == Pass::Backward {
            self.normalisation_rows(k, part, piece)?;
        }
        if piece.index == 0 {
            if self.pieces.contains_key(&name) || self.buffers.contains_key(&name) {
                return Err(format!("{name:?} is overwritten"));
            }
            self.pieces.insert(name, Pieces { of: piece.of, cut: piece.cut, made: Vec::new() });
        }
        let own = Buffer { rows: self.terms(k, &body.rows), state: Machine::alone(self.degrees[k]) };
        let pieces = self.pieces.get_mut(&name).ok_or("the first piece is missing")?;
        let next = Piece { index: pieces.made.len() as u8, of: pieces.of, cut: pieces.cut };
        if piece != next {
            return Err(format!("{next} is the next"));
        }
        pieces.made.push(own);
        if piece.index + 1 == piece.of {
            self.bodies.remove(&(pass, k, part));
        }
        Ok(())
    }

    /// Some rows of a normalisation's backward. They add to the gradients one after another, without others between.
    fn normalisation_rows(&mut self, k: usize, part: PartId, piece: Piece) -> Result<(), String> {
        if piece.cut == Cut::Columns {
            return Err("a normalisation needs whole rows".into());
        }
        self.still_open((k, false))?;
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
        self.add(k, false, &delta)
    }

    /// Adds to the gradients of the normalisation, or to all others of a block: its shard of them.
    fn add(&mut self, k: usize, weights: bool, delta: &Rows) -> Result<(), String> {
        if !weights && self.adding.contains_key(&k) {
            return Err("others are adding".into());
        }
        let place = (if weights && k == self.head() { 0 } else { k }, weights);
        self.still_open(place)?;
        let (ranks, degree) = (self.ranks, self.degrees[k]);
        let slots = if weights { ranks / degree } else { 1 };
        let added = self.terms(k, delta);
        let nothing = || Sum { values: vec![vec![0; slots]; ranks], orders: vec![0; ranks] };
        let sums = self.gradients.entry(place).or_insert_with(nothing);
        for rank in 0..ranks {
            let added = match weights {
                true => shard(sum(delta[rank].iter().copied()), rank % degree, degree),
                false => sum(added[rank].iter().copied()),
            };
            for (slot, value) in sums.values[rank].iter_mut().enumerate() {
                *value = value.wrapping_add(if weights { shard(added, slot, slots) } else { added });
            }
            sums.orders[rank] = number(("add", sums.orders[rank], k, &delta[rank]));
        }
        Ok(())
    }

    /// Where block k - 1 finds the gradient of its output.
    fn arrival(&self, k: usize, part: PartId) -> Name {
        if self.apart(k) { Name::Dealt(k, part) } else { Name::Dx(k, part) }
    }

    /// `dLoss/dx[k]` of the sequences of block k: through the block, and around it.
    fn completed(&mut self, k: usize, part: PartId) -> Result<Rows, String> {
        let branch = self.take(Name::Dx(k, part))?;
        if k == self.head() {
            return Ok(map(&branch, |branch| number(("sum", branch))));
        }
        let upstream = self.arrival(k + 1, part);
        let around = self.read(upstream)?;
        // Weight gradients that are still to come read it too.
        match self.owed.get_mut(&(k, part)) {
            Some(alone) => *alone = true,
            None => drop(self.take(upstream)?),
        }
        zip(&branch, &around, |branch, around| number(("sum", branch, around)))
    }

    /// The complete gradient of a block's output, which stays for the block before.
    fn arrived(&mut self, k: usize, part: PartId) -> Result<Option<Rows>, String> {
        if k == self.head() {
            return Ok(None);
        }
        let name = self.arrival(k + 1, part);
        if !self.apart(k + 1) {
            let whole = self.completed(k + 1, part)?;
            self.write(name, whole, State::Done)?;
        }
        if k == 0 { self.take(name).map(Some) } else { self.read(name).map(Some) }
    }

    pub(super) fn backward(&mut self, k: usize, part: PartId, scope: Scope) -> Result<(), String> {
        let arrived = self.arrived(k, part)?;
        if k == 0 {
            let tokens = self.input(0, part)?;
            let arrived = arrived.ok_or("a chain of one block")?;
            let delta = zip(&arrived, &tokens, |arrived, tokens| number(("delta", arrived, tokens)))?;
            return if scope == Scope::All {
                self.add(0, true, &delta)
            } else {
                Err("it has one half".into())
            };
        }
        let input = self.read(Name::X(k, part))?;
        let saved = self.read(Name::Activations(k, part))?;
        let mut delta = zip(&saved, &input, |saved, input| number(("delta", saved, input)))?;
        for also in [arrived, self.is_attention(k).then(|| self.read(Name::Core(k, part))).transpose()?] {
            delta = also
                .map_or(Ok(delta.clone()), |also| zip(&delta, &also, |delta, also| number((delta, also))))?;
        }
        let dx = map(&delta, |delta| number(("dx", k, delta)));
        if scope == Scope::All {
            self.forget(k, part);
        } else {
            self.write(Name::Delta(k, part), delta.clone(), State::Done)?;
        }
        if scope != Scope::Input {
            self.add(k, true, &delta)?;
        } else {
            self.owed.insert((k, part), false);
        }
        if scope == Scope::Body {
            self.bodies.insert((Pass::Backward, k, part), Body { rows: dx, operand: None });
            return Ok(());
        }
        self.buffers.remove(&Name::X(k, part));
        self.add(k, false, &delta)?;
        self.write(Name::Dx(k, part), self.terms(k, &dx), Machine::alone(self.degrees[k]))
    }

    fn forget(&mut self, k: usize, part: PartId) {
        for name in [Name::Activations(k, part), Name::Core(k, part), Name::Delta(k, part)] {
            self.buffers.remove(&name);
        }
    }

    pub(super) fn weights(&mut self, k: usize, part: PartId) -> Result<(), String> {
        let alone = self.owed.remove(&(k, part)).ok_or("the input's gradient comes first")?;
        let delta = self.read(Name::Delta(k, part))?;
        self.read(Name::Activations(k, part))?;
        if k < self.head() {
            self.read(self.arrival(k + 1, part))?;
        }
        if alone {
            self.take(self.arrival(k + 1, part))?;
        }
        self.forget(k, part);
        self.add(k, true, &delta)
    }
}

/// Whether a buffer is an input or a gradient.
fn name_of(name: Name) -> &'static str {
    if matches!(name, Name::X(..)) { "input" } else { "gradient" }
}
