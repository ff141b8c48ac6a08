//! Values that people look at: each is computed once and shown as text or JSON.

pub mod bench;
mod explanation;
mod measured;
pub mod prediction;
pub mod reproduction;
pub mod statistics;
pub mod trace;

pub use explanation::Explanation;
pub use measured::{MeasuredStep, write_measured_trace};
