//! Executes a schedule: the interpreter, its backends and communicators.

pub mod arena;
pub mod comm;
pub mod cpu;
pub mod philox;
