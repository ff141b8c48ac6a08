//! Weights and moments between the arena of a rank and the outside: initial values, checkpoints in, checkpoints out.

use std::ops::Range;

use oases_exec::Backend;
use oases_exec::philox::{Normal, key_from_seed};
use oases_schedule::{Init, Parameter, Positions, Span, Statics};

use crate::checkpoint::{Checkpoint, Draft, Kind};
use crate::digest::Digest;
use crate::error::Result;

/// Streams of the generator for initial weights begin here; one per parameter.
const INIT_STREAM: u64 = 0x0001_0000_0000_0000;

/// One rank's shards.
pub(crate) struct Shards<'a> {
    pub statics: &'a Statics,
    pub tp_rank: u32,
}

impl Shards<'_> {
    /// Draws every element by its index in the full tensor, so that no layout changes it. Moments begin at zero.
    pub(crate) fn initialize(&self, backend: &mut impl Backend, seed: u64) {
        let key = key_from_seed(seed);
        for index in self.statics.held() {
            let parameter = &self.statics.parameters[index];
            let mut values = self.room(parameter);
            match parameter.init {
                Init::Zeros => {}
                Init::Ones => self.for_each_row(parameter, &mut values, |_, row| row.fill(1.0)),
                Init::Normal { std } => {
                    let normal = Normal { mean: 0.0, deviation: std };
                    let stream = INIT_STREAM + index as u64;
                    self.for_each_row(parameter, &mut values, |first, row| {
                        normal.fill(key, stream, first, row)
                    });
                }
            }
            backend.write(self.statics.placed(index).weight, &values);
            values.fill(0.0);
            for moment in self.statics.updated(index, self.tp_rank).moments {
                backend.write(moment, &values[..moment.bytes / size_of::<f32>()]);
            }
        }
    }

    /// Writes what no step changes: the angles of rotary positions.
    pub(crate) fn write_constants(&self, backend: &mut impl Backend) {
        let model = &self.statics.model;
        if let Positions::Rotary(rotary) = model.positions {
            backend.write(self.statics.rotations, &rotary.table(model.head_dim, model.sequence));
        }
    }

    /// Reads this rank's part of every tensor. Padding stays zero.
    pub(crate) fn load(
        &self,
        backend: &mut impl Backend,
        checkpoint: &Checkpoint,
        kinds: &[Kind],
    ) -> Result<()> {
        for kind in kinds {
            for index in self.statics.held() {
                let parameter = &self.statics.parameters[index];
                let name = kind.tensor_name(&parameter.name);
                let mut values = self.room(parameter);
                let (rows, columns) = self.slice(parameter);
                let held = rows.len() * columns.len();
                if parameter.vector {
                    checkpoint.read_slice(&name, columns, 0..1, &mut values[..held])?;
                } else {
                    checkpoint.read_slice(&name, rows, columns, &mut values[..held])?;
                }
                let (elements, place) = self.place(index, *kind);
                backend.write(place, &values[elements]);
            }
        }
        Ok(())
    }

    /// Writes what is this rank's to write: of what several ranks hold, the first one's. Of moments that replicas share, each
    /// writes its own.
    pub(crate) fn write(&self, backend: &mut impl Backend, draft: &Draft) -> Result<()> {
        for index in self.statics.held().filter(|&index| !self.statics.is_copy(index)) {
            let parameter = &self.statics.parameters[index];
            let place = self.statics.place_in(parameter.block, self.tp_rank);
            if place > 0 && parameter.is_whole(self.statics.degree(parameter.block)) {
                continue;
            }
            for kind in Kind::ALL {
                let shares = kind != Kind::Weight && self.statics.shares_moments(index);
                if !shares && self.tp_rank > place {
                    continue;
                }
                let (elements, span) = self.place(index, kind);
                let mut values = vec![0.0; elements.len()];
                backend.read(span, &mut values);
                let (rows, columns) = self.slice(parameter);
                // Padding has no place in the file.
                let held = elements.start..elements.end.min(rows.len() * columns.len()).max(elements.start);
                let rectangle = if parameter.vector { (columns, 0..1) } else { (rows, columns) };
                values.truncate(held.len());
                draft.write(&kind.tensor_name(&parameter.name), rectangle, held, &values)?;
            }
        }
        Ok(())
    }

    /// A digest of the weights that this rank holds of each parameter, under the parameter's index and the rank's place: all
    /// ranks with the same key hold the same weights.
    pub(crate) fn digests(&self, backend: &mut impl Backend) -> Vec<([u32; 2], u64)> {
        let digest = |index: usize| {
            let parameter = &self.statics.parameters[index];
            let whole = parameter.is_whole(self.statics.degree(parameter.block));
            let place = if whole { 0 } else { self.statics.place_in(parameter.block, self.tp_rank) };
            let mut values = self.room(parameter);
            backend.read(self.statics.placed(index).weight, &mut values);
            let digest = values.iter().fold(Digest::default(), |digest, value| digest.word(value.to_bits()));
            ([index as u32, place], digest.finish())
        };
        self.statics.held().map(digest).collect()
    }

    /// Zeros for all that a rank has room for.
    fn room(&self, parameter: &Parameter) -> Vec<f32> {
        vec![0.0; parameter.local_elements(self.statics.degree(parameter.block))]
    }

    /// The rows and columns of the full tensor that this rank holds.
    fn slice(&self, parameter: &Parameter) -> (Range<usize>, Range<usize>) {
        let place = self.statics.place_in(parameter.block, self.tp_rank);
        parameter.slice(place, self.statics.degree(parameter.block))
    }

    /// Which elements of its shard of a parameter this rank has of a kind, and where: all but where replicas share the moments.
    fn place(&self, index: usize, kind: Kind) -> (Range<usize>, Span) {
        let weight = self.statics.placed(index).weight;
        let updated = self.statics.updated(index, self.tp_rank);
        match kind {
            Kind::Weight => (0..weight.bytes / size_of::<f32>(), weight),
            Kind::FirstMoment => (updated.elements, updated.moments[0]),
            Kind::SecondMoment => (updated.elements, updated.moments[1]),
        }
    }

    /// Calls with the index of the row's first element in the full tensor, and the row's part on this rank.
    fn for_each_row(&self, parameter: &Parameter, values: &mut [f32], mut fill: impl FnMut(u64, &mut [f32])) {
        let (rows, columns) = self.slice(parameter);
        if columns.is_empty() {
            return;
        }
        for (row, values) in rows.zip(values.chunks_mut(columns.len())) {
            fill((row * parameter.columns + columns.start) as u64, values);
        }
    }
}
