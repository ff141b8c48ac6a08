//! Collectives between the ranks of the group, and what ends a step.

use std::collections::BTreeMap;

use oases_schedule::{Axis, CollectiveId, CollectiveKind, Grouping, Pass, Piece};

use super::algebra::{Number, exchanged, members, number, term, unsharded};
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
            CollectiveId::Norm => Some(Name::Norm),
            CollectiveId::Replicas(_) | CollectiveId::Gradients(_) => None,
        })
    }

    /// The gradients that a collective works on: of the normalisations, or of all else in a block.
    fn places(&self, collective: CollectiveId) -> Result<Vec<Place>, String> {
        match collective {
            CollectiveId::Gradients(0) => Ok((1..=self.head()).map(|k| (k, false)).collect()),
            CollectiveId::Replicas(block) if self.position(block)? < self.head() => {
                Ok(vec![(self.position(block)?, true)])
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
        axis: Axis,
        grouping: Grouping,
    ) -> Result<(), String> {
        if self.started.contains(&collective) {
            return Err("it was started before".into());
        }
        self.started.push(collective);
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
        let order = |rank| {
            let members = members(rank, ranks, axis, grouping)?;
            Ok(number(members.iter().map(|&member| sum.orders[member]).collect::<Vec<Number>>()))
        };
        sum.orders = (0..ranks).map(order).collect::<Result<_, String>>()?;
        Ok(())
    }

    pub(super) fn sync(&mut self, collective: CollectiveId) -> Result<(), String> {
        let state = match self.target(collective)? {
            Some(name) => self.found(name, collective).map(|buffer| &mut buffer.state),
            None => self.reductions.get_mut(&collective),
        };
        match state {
            Some(state) if *state == State::Moving(collective) => {
                *state = State::Done;
                Ok(())
            }
            _ => Err("it is not under way".into()),
        }
    }

    /// Nothing may be added to gradients that are on their way, nor to their sum. Those of all normalisations are reduced after
    /// everything else.
    pub(super) fn still_open(&self, (k, weights): Place) -> Result<(), String> {
        let own = CollectiveId::Replicas(self.chain[k]);
        let closed = self.reductions.contains_key(&CollectiveId::Gradients(0))
            || (weights && self.reductions.contains_key(&own));
        if closed { Err("the gradients are reduced already".into()) } else { Ok(()) }
    }

    /// The gradients of the whole model, put together from the shards of each rank.
    fn all_gradients(&self) -> Result<BTreeMap<Place, Number>, String> {
        if self.reductions.values().any(|state| *state != State::Done) {
            return Err("gradients are on their way".into());
        }
        let whole = |(&(k, weights), sum): (&Place, &super::Sum)| {
            let degree = self.degrees[k];
            let of_rank = |rank: usize| match weights {
                true => unsharded(sum.values[rank][0], rank % degree, degree),
                false => sum.values[rank][0],
            };
            match (1..self.ranks).all(|rank| of_rank(rank) == of_rank(0)) {
                true => Ok(((k, weights), of_rank(0))),
                false => Err(format!("ranks disagree about gradients of block {k}")),
            }
        };
        self.gradients.iter().map(whole).collect()
    }

    /// Every rank's share of the norm.
    pub(super) fn norm(&mut self) -> Result<(), String> {
        let norm = number(("norm", self.all_gradients()?));
        let shares = (0..self.ranks).map(|rank| vec![term(norm, rank, self.ranks)]).collect();
        self.write(Name::Norm, shares, Machine::own(self.ranks))
    }

    pub(super) fn step(&mut self) -> Result<(), String> {
        let gradients = self.all_gradients()?;
        let norm = self.read(Name::Norm)?;
        if norm.iter().any(|of_rank| *of_rank != norm[0]) {
            return Err("ranks disagree about the norm".into());
        }
        self.step = Some(number(("step", gradients, &norm[0])));
        Ok(())
    }
}
