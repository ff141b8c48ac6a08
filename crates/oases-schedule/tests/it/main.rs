//! Tests of whole schedules: what the builders make verifies, communicates as often as it should, and fits its plan.

mod builders;
mod files;
mod hostile;
mod meaning;
mod memory;
mod mutations;
mod needs;
mod random;
