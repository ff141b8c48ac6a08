//! Collectives between the ranks of the group, and what ends a step.

use std::collections::BTreeMap;

use oases_schedule::{Axis, BlockId, CollectiveId, CollectiveKind, Grouping, Pass, Piece};

use super::algebra::{Number, Rows, exchanged, members, number, sum, term, unsharded};
use super::wire::Wire;
use super::{Buffer, Machine, Name, Place, State};

impl Machine {
    /// The value that a collective works on, if on one.
    fn target(&self, collective: CollectiveId) -> Result<Option<Name>, String> {
        Ok(match collective {
            CollectiveId::Block { pass: Pass::Backward, block, part, .. } => {
                Some(Name::Dx(self.position(block)?, part))
            }
            CollectiveId::Block { block, part, .. } => Some(Name::Y(self.position(block)?, part)),
            CollectiveId::Reshard { pass: Pass::Backward, block, part } => {
                Some(Name::Dealt(self.position(block)?, part))
            }
            CollectiveId::Reshard { block, part, .. } => Some(Name::X(self.position(block)?, part)),
            CollectiveId::Transfer { pass: Pass::Backward, block, part } => {
                let k = self.position(block)?;
                Some(if self.stage().runs(k) { Name::Dx(k, part) } else { Name::Dealt(k, part) })
            }
            CollectiveId::Transfer { block, part, .. } => Some(Name::X(self.position(block)?, part)),
            CollectiveId::Norm => Some(Name::Norm),
            CollectiveId::Replicas(_)
            | CollectiveId::Gradients(_)
            | CollectiveId::Weights(_)
            | CollectiveId::Table => None,
        })
    }

    /// The gradients that a collective works on: of the normalisations, or of all else in a block.
    fn places(&self, collective: CollectiveId) -> Result<Vec<Place>, String> {
        match collective {
            CollectiveId::Gradients(0) => {
                let own = (1..=self.head()).filter(|&k| self.stage().runs(k));
                Ok(own.map(|k| (k, false)).collect())
            }
            // The head's are with the embedding's, as far as this stage has any.
            CollectiveId::Replicas(BlockId::Head) | CollectiveId::Weights(BlockId::Head)
                if !self.stage().runs(0) =>
            {
                self.own(BlockId::Head).map(|_| vec![(0, true)])
            }
            CollectiveId::Replicas(block) | CollectiveId::Weights(block)
                if self.position(block)? < self.head() =>
            {
                Ok(vec![(self.own(block)?, true)])
            }
            _ => Err("no such bucket".into()),
        }
    }

    /// What a collective works on: a buffer, or a piece of one.
    fn found(&mut self, name: Name, collective: CollectiveId) -> Option<&mut Buffer> {
        if let CollectiveId::Block { piece: Some(Piece { index, of, cut }), .. } = collective {
            let pieces = self.pieces.get_mut(&name).filter(|pieces| (pieces.of, pieces.cut) == (of, cut))?;
            return pieces.made.get_mut(usize::from(index));
        }
        self.buffers.get_mut(&name)
    }

    pub(super) fn start(
        &mut self,
        collective: CollectiveId,
        kind: CollectiveKind,
        (axis, grouping): (Axis, Grouping),
        wire: &mut Wire,
    ) -> Result<(), String> {
        if self.started.contains(&collective) {
            return Err("it was started before".into());
        }
        self.started.push(collective);
        if matches!(axis, Axis::Pipeline | Axis::Ends | Axis::World) {
            return self.start_across(collective, kind, (axis, grouping), wire);
        }
        let Some(name) = self.target(collective)? else {
            for place in self.places(collective)? {
                self.reduce(place, kind, axis, grouping)?;
            }
            self.reductions.insert(collective, State::Moving(collective));
            return Ok(());
        };
        let buffer = self.found(name, collective).ok_or("nothing to work on")?;
        if buffer.state != State::Own {
            return Err("no contribution to work on".into());
        }
        *buffer =
            Buffer { rows: exchanged(&buffer.rows, kind, axis, grouping)?, state: State::Moving(collective) };
        Ok(())
    }

    /// Starts what other stages take part in.
    fn start_across(
        &mut self,
        collective: CollectiveId,
        kind: CollectiveKind,
        (axis, grouping): (Axis, Grouping),
        wire: &mut Wire,
    ) -> Result<(), String> {
        if grouping != Grouping::Whole {
            return Err("stages do not fall into groups".into());
        }
        let stage = self.stage().index as usize;
        let moving = State::Moving(collective);
        let place = match (collective, kind, axis) {
            (CollectiveId::Transfer { .. }, CollectiveKind::Recv, Axis::Pipeline) => {
                let (name, other) = (self.target(collective)?.ok_or("no buffer")?, self.other(collective)?);
                self.write(name, Rows::new(), moving)?;
                wire.receive(other, stage)
            }
            (CollectiveId::Transfer { .. }, CollectiveKind::Send, Axis::Pipeline) => {
                let (name, other) = (self.target(collective)?.ok_or("no buffer")?, self.other(collective)?);
                let buffer = self.buffers.get_mut(&name).filter(|buffer| buffer.state == State::Own);
                let buffer = buffer.ok_or("nothing to send")?;
                buffer.state = moving;
                wire.send(stage, other, buffer.rows.clone())
            }
            (CollectiveId::Table, CollectiveKind::AllReduce, Axis::Ends) => {
                let sum = self.gradients.get(&(0, true)).ok_or("there are no gradients yet")?;
                let rows = sum.values.iter().zip(&sum.orders);
                let rows = rows.map(|(values, &order)| [values.as_slice(), &[order]].concat()).collect();
                self.reductions.insert(collective, moving);
                let place = wire.join(wire.members(false), stage, rows);
                self.joined.insert(collective, (wire.members(false), place));
                place
            }
            (CollectiveId::Norm, CollectiveKind::AllReduce, Axis::World) => {
                let norm = self.buffers.get_mut(&Name::Norm).filter(|norm| norm.state == State::Own);
                let norm = norm.ok_or("no contribution to work on")?;
                norm.state = moving;
                wire.join(wire.members(true), stage, norm.rows.clone())
            }
            _ => return Err("no such collective between stages".into()),
        };
        self.across.insert(collective, (kind, place));
        Ok(())
    }

    /// The stage at the other end of a transfer.
    fn other(&self, collective: CollectiveId) -> Result<usize, String> {
        let k = self.position(collective.block().ok_or("no transfer")?)?;
        if !self.crosses(k) {
            return Err("the chain does not cross there".into());
        }
        let ends = [k - 1, k].map(|k| self.stage().stages.stage_of(k));
        let other = ends.into_iter().find(|&end| end != self.stage().index);
        match ends.contains(&self.stage().index) {
            true => other.map(|other| other as usize).ok_or("both ends are here".into()),
            false => Err("neither end is here".into()),
        }
    }

    /// Waits for what other stages take part in; `false` where it has not come yet.
    fn sync_across(&mut self, collective: CollectiveId, wire: &Wire) -> Result<bool, String> {
        let (kind, place) = self.across[&collective];
        let stage = self.stage().index as usize;
        match (collective, kind) {
            (CollectiveId::Table, _) => {
                let Some(ends) = wire.joined(&wire.members(false), place) else { return Ok(false) };
                let sums = self.gradients.get_mut(&(0, true)).ok_or("there are no gradients")?;
                for (rank, values) in sums.values.iter_mut().enumerate() {
                    let slots = values.len();
                    if ends.iter().any(|rows| rows.get(rank).is_none_or(|row| row.len() != slots + 1)) {
                        return Err("the tables differ in size".into());
                    }
                    for (slot, value) in values.iter_mut().enumerate() {
                        *value = sum(ends.iter().map(|rows| rows[rank][slot]));
                    }
                    sums.orders[rank] = number(ends.iter().map(|rows| rows[rank][slots]).collect::<Vec<_>>());
                }
                self.reductions.insert(collective, State::Done);
            }
            (CollectiveId::Norm, _) => {
                let Some(all) = wire.joined(&wire.members(true), place) else { return Ok(false) };
                let total = sum(all.into_iter().flatten().flatten().copied());
                let norm = self.buffers.get_mut(&Name::Norm).ok_or("there is no norm")?;
                *norm = Buffer { rows: vec![vec![total]; self.ranks], state: State::Done };
            }
            (_, CollectiveKind::Send) => {
                let (name, other) = (self.target(collective)?.ok_or("no buffer")?, self.other(collective)?);
                if wire.arrived(stage, other, place).is_none() {
                    return Ok(false);
                }
                self.buffers.remove(&name);
            }
            _ => {
                let (name, other) = (self.target(collective)?.ok_or("no buffer")?, self.other(collective)?);
                let Some(rows) = wire.arrived(other, stage, place) else { return Ok(false) };
                self.buffers.insert(name, Buffer { rows: rows.clone(), state: State::Done });
            }
        }
        self.across.remove(&collective);
        Ok(true)
    }

    fn reduce(
        &mut self,
        place: Place,
        kind: CollectiveKind,
        axis: Axis,
        grouping: Grouping,
    ) -> Result<(), String> {
        let ranks = self.ranks;
        let sum = self.gradients.get_mut(&place).ok_or("there are no gradients yet")?;
        sum.values = exchanged(&sum.values, kind, axis, grouping)?;
        if self.step.is_some() {
            return Ok(());
        }
        let order = |rank| {
            let members = members(rank, ranks, axis, grouping)?;
            Ok(number(members.iter().map(|&member| sum.orders[member]).collect::<Vec<Number>>()))
        };
        sum.orders = (0..ranks).map(order).collect::<Result<_, String>>()?;
        Ok(())
    }

    pub(super) fn sync(&mut self, collective: CollectiveId, wire: &Wire) -> Result<bool, String> {
        if self.across.contains_key(&collective) {
            return self.sync_across(collective, wire);
        }
        // Collectives of a group run one after another: behind one that other stages join, this one waits for those stages too.
        let started = self.started.iter().take_while(|&&started| started != collective);
        let mut before = started.filter_map(|started| self.joined.get(started));
        if before.any(|(members, place)| wire.joined(members, *place).is_none()) {
            return Ok(false);
        }
        let state = match self.target(collective)? {
            Some(name) => self.found(name, collective).map(|buffer| &mut buffer.state),
            None => self.reductions.get_mut(&collective),
        };
        match state {
            Some(state) if *state == State::Moving(collective) => {
                *state = State::Done;
                Ok(true)
            }
            _ => Err("it is not under way".into()),
        }
    }

    /// Nothing may be added to gradients that are on their way, nor to their sum. Those of all normalisations are reduced after
    /// everything else.
    pub(super) fn still_open(&self, (k, weights): Place) -> Result<(), String> {
        let own = CollectiveId::Replicas(self.chain[k]);
        let closed = self.reductions.contains_key(&CollectiveId::Gradients(0))
            || (weights && self.reductions.contains_key(&own))
            || (weights && k == 0 && self.reductions.contains_key(&CollectiveId::Table));
        if closed { Err("the gradients are reduced already".into()) } else { Ok(()) }
    }

    /// The gradients of all parameters of the stage, put together from the shards of each rank and the slots of each replica.
    fn all_gradients(&self) -> Result<BTreeMap<Place, Number>, String> {
        if self.reductions.values().any(|state| *state != State::Done) {
            return Err("gradients are on their way".into());
        }
        let whole = |(&(k, weights), sum): (&Place, &super::Sum)| {
            let own = |rank: usize| if weights { rank / self.degrees[k] } else { 0 };
            let of_rank = |rank: usize| self.whole((k, weights), &sum.values, rank, own(rank));
            match (1..self.ranks).all(|rank| of_rank(rank) == of_rank(0)) {
                true => Ok(((k, weights), of_rank(0))),
                false => Err(format!("ranks disagree about gradients of block {k}")),
            }
        };
        self.gradients.iter().map(whole).collect()
    }

    /// The whole of which a slot of a rank is a part.
    fn whole(&self, (k, weights): Place, values: &Rows, rank: usize, slot: usize) -> Number {
        let degree = self.degrees[k];
        match weights {
            true => {
                unsharded(unsharded(values[rank][slot], slot, self.ranks / degree), rank % degree, degree)
            }
            false => values[rank][slot],
        }
    }

    /// After the step, every replica has all that the others have updated: weights are what gradients became.
    pub(super) fn replicas_agree(&self) -> Result<(), String> {
        for (&place, sum) in self.gradients.iter().filter(|((_, weights), _)| *weights) {
            let slots = (0..self.ranks).flat_map(|rank| (0..sum.values[rank].len()).map(move |s| (rank, s)));
            let mut wholes = slots.map(|(rank, slot)| self.whole(place, &sum.values, rank, slot));
            let first = wholes.next();
            if wholes.any(|whole| Some(whole) != first) {
                return Err(format!("the replicas of block {} come apart", place.0));
            }
        }
        Ok(())
    }

    /// Every rank's share of the norm, which adds up over all parameters of all stages. The first stage counts the table.
    pub(super) fn norm(&mut self) -> Result<(), String> {
        let counts = |place: &Place| *place != (0, true) || self.stage().runs(0);
        let gradients = self.all_gradients()?.into_iter().filter(|(place, _)| counts(place));
        let norm = sum(gradients.map(|gradient| number(("norm", gradient))));
        let shares = (0..self.ranks).map(|rank| vec![term(norm, rank, self.ranks)]).collect();
        let ranks = self.ranks * self.stage().stages.count() as usize;
        self.write(Name::Norm, shares, Machine::alone(ranks))
    }

    pub(super) fn step(&mut self) -> Result<(), String> {
        let gradients = self.all_gradients()?;
        let norm = self.read(Name::Norm)?;
        if norm.iter().any(|of_rank| *of_rank != norm[0]) {
            return Err("ranks disagree about the norm".into());
        }
        self.step = Some((gradients, norm[0][0]));
        Ok(())
    }
}
