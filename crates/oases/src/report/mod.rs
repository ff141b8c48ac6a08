//! Values that people look at: each is computed once and shown as text or JSON.

pub mod bench;
mod explanation;
pub mod html;
pub mod layout;
mod measured;
pub mod memory;
mod numbers;
mod on_link;
pub mod plan;
pub mod prediction;
pub mod reproduction;
pub mod statistics;
pub mod trace;
mod wrap;

pub use explanation::{Explanation, overview};
pub use measured::{MeasuredStep, write_measured_trace};
