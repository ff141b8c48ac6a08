//! Values that people look at: each is computed once and shown as text or JSON.

pub mod bench;
mod explanation;
mod prediction;
pub mod trace;

pub use explanation::Explanation;
pub use prediction::{Prediction, Row, write_trace};
