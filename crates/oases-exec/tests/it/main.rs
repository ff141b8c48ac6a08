//! Whole steps on the CPU backend: against float64, against each other, and against their memory plan.

mod allocations;
mod families;
mod golden;
mod harness;
mod mixed;
mod null;
mod schedules;
mod stages;
