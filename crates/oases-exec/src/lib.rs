//! Executes a schedule: the interpreter, its backends and communicators.
//!
//! The one decision of this crate: the interpreter never chooses. It enqueues the operators of each instruction on the
//! compute stream and hands collectives to the communication stream, in the order of the schedule. The alternative, hooks
//! that start communication when a gradient happens to be ready, overlaps what the host is fast enough to see.

pub mod arena;
mod backend;
mod blocks;
pub mod comm;
pub mod cpu;
mod inputs;
mod interpreter;
pub mod null;
pub mod operators;
pub mod philox;
mod place;

pub use backend::Backend;
pub use cpu::backend::CpuBackend;
pub use inputs::StepInputs;
pub use interpreter::{Interpreter, Interrupted, Position, Program, Progress, Timing};
pub use operators::AdamW;
