//! The `oases` program.
fn main() {}
