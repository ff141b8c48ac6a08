//! Tests of whole schedules: what the builders make verifies, communicates as often as it should, and fits its plan.

mod borders;
mod builders;
mod crossings;
mod files;
mod hostile;
mod layouts;
mod meaning;
mod memory;
mod mixed;
mod mutations;
mod needs;
mod pipeline;
mod random;
