//! Tests of the simulator over schedules of every kind.

#![allow(
    unreachable_pub,
    reason = "a test program exports nothing; `pub` marks what a module offers to the others"
)]

mod assign;
mod drawn;
mod interference;
mod mixed;
mod pipeline;
mod planner;
mod random;
mod support;
mod table;
mod ticks;
