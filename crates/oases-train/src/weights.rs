//! Weights and moments between the arena of a rank and the outside: initial values, checkpoints in, checkpoints out.

use std::ops::Range;

use oases_exec::Backend;
use oases_exec::comm::HostGroup;
use oases_exec::philox::{Normal, key_from_seed};
use oases_schedule::{Init, Parameter, Shard, Span, Statics};

use crate::checkpoint::{Checkpoint, Kind, TensorWriter};
use crate::error::{Error, Result};

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
        for (index, parameter) in self.statics.parameters.iter().enumerate() {
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
            for moment in self.statics.moments(index) {
                backend.write(moment, &values);
            }
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
            for (index, parameter) in self.statics.parameters.iter().enumerate() {
                let name = kind.tensor_name(&parameter.name);
                let mut values = self.room(parameter);
                let (rows, columns) = self.slice(parameter);
                let held = rows.len() * columns.len();
                if parameter.vector {
                    checkpoint.read_slice(&name, columns, 0..1, &mut values[..held])?;
                } else {
                    checkpoint.read_slice(&name, rows, columns, &mut values[..held])?;
                }
                backend.write(self.place(index, *kind), &values);
            }
        }
        Ok(())
    }

    /// Sends this rank's part of a tensor to rank 0, which writes the whole.
    pub(crate) fn gather(
        &self,
        backend: &mut impl Backend,
        host: &impl HostGroup,
        index: usize,
        kind: Kind,
        writer: Option<&mut TensorWriter<'_>>,
    ) -> Result<()> {
        let parameter = &self.statics.parameters[index];
        let mut values = Vec::new();
        // What every rank holds, rank 0 has already; other replicas hold the same as the first.
        let degree = self.statics.degree(parameter.block);
        let first_replica = self.tp_rank < degree && parameter.shard != Shard::Whole;
        if self.tp_rank == 0 || first_replica {
            values = self.room(parameter);
            backend.read(self.place(index, kind), &mut values);
            let (rows, columns) = self.slice(parameter);
            values.truncate(rows.len() * columns.len());
        }
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        drop(values);
        let gathered = host.gather(bytes).map_err(|error| Error::communicator(&error, " (checkpoint)"))?;
        match (gathered, writer) {
            (Some(parts), Some(writer)) => write_whole(parameter, &parts[..degree as usize], writer),
            _ => Ok(()),
        }
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

    fn place(&self, index: usize, kind: Kind) -> Span {
        match kind {
            Kind::Weight => self.statics.placed(index).weight,
            Kind::FirstMoment => self.statics.moments(index)[0],
            Kind::SecondMoment => self.statics.moments(index)[1],
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

/// Puts the parts of the ranks of one replica together, row by row.
fn write_whole(parameter: &Parameter, parts: &[Vec<u8>], writer: &mut TensorWriter<'_>) -> Result<()> {
    let numbers = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    match parameter.shard {
        Shard::Whole => writer.write(&numbers(&parts[0])),
        Shard::Rows => parts.iter().try_for_each(|part| writer.write(&numbers(part))),
        Shard::Columns => {
            for row in 0..parameter.rows {
                for (tp_rank, part) in (0..).zip(parts) {
                    let (_, columns) = parameter.slice(tp_rank, parts.len() as u32);
                    let bytes = columns.len() * size_of::<f32>();
                    writer.write(&numbers(&part[row * bytes..(row + 1) * bytes]))?;
                }
            }
            Ok(())
        }
    }
}
