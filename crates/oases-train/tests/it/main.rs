//! Tests of this crate through its public interface, in processes of their own where they are killed.

mod child;
mod exchange;

mod kill;
mod layouts;
mod position;
mod processes;
