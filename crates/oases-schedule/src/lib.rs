//! What a training step is: the model, its layout over ranks, and the schedule as a value.

mod units;

pub use units::{Bytes, Flops, Span};
