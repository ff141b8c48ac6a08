//! Checkpoints: one safetensors file per saved step that does not know how the model was laid out.
//!
//! The file `step-00000500.safetensors` holds the state after 500 steps: every parameter in full and unpadded, in
//! F32, and its two AdamW moments, under the names that [`Kind::tensor_name`] gives; and, in the file's own
//! `__metadata__`, the [`Metadata`]. The learning rate follows from the step, the data position is the number of
//! samples, the random generator's state is the seed, so nothing else is needed to go on.
//!
//! A file is complete from the moment it has its name: see [`Draft`]. [`Checkpoint`] reads one, also in part;
//! [`Checkpoints`] is the folder of a run.

mod folder;
mod metadata;
mod read;
mod write;

pub use folder::{Checkpoints, Latest};
pub use metadata::{Description, Metadata};
pub use read::Checkpoint;
pub(crate) use read::read_header;
pub use write::Draft;

/// A full tensor by name and shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name in the file.
    pub name: String,
    /// Its dimensions, outermost first; none for a single number.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// A tensor by name and shape.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), shape: shape.into() }
    }

    /// How many numbers it holds, or nothing if that is not a `usize`.
    pub fn elements(&self) -> Option<usize> {
        self.shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim))
    }
}

/// A tensor of a file.
#[derive(Debug)]
struct Stored {
    shape: Vec<usize>,
    /// Its first byte in the file.
    start: u64,
}

impl Stored {
    /// The tensor as a matrix: the outermost dimension, and all others together.
    fn rows_and_columns(&self) -> (usize, usize) {
        match self.shape.split_first() {
            None => (1, 1),
            Some((&rows, others)) => {
                // The product of all dimensions is a `usize`: if that of the others is not, there are no rows.
                let columns = others.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
                (rows, columns.unwrap_or(0))
            }
        }
    }
}

/// What a checkpoint keeps of each parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The parameter itself.
    Weight,
    /// AdamW's running mean of its gradient.
    FirstMoment,
    /// AdamW's running mean of its gradient's square.
    SecondMoment,
}

impl Kind {
    /// All kinds, in the order in which they are written.
    pub const ALL: [Kind; 3] = [Kind::Weight, Kind::FirstMoment, Kind::SecondMoment];

    /// What stands before the parameter's name.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Weight => "model.",
            Self::FirstMoment => "adam.m.",
            Self::SecondMoment => "adam.v.",
        }
    }

    /// The name of this kind of tensor of a parameter.
    pub fn tensor_name(self, parameter: &str) -> String {
        format!("{}{parameter}", self.prefix())
    }
}
