//! Tests of the real program: what it prints, where, and with which exit code.

#![allow(
    unreachable_pub,
    reason = "a test program exports nothing; `pub` marks what a module offers to the others"
)]

mod bad_configurations;
mod bad_files;
mod bench;
mod command_line;
mod launch;
mod models;
mod output;
mod plan;
mod reproduce;
mod runs;
mod simulate;
mod support;
