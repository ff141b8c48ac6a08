//! The counter-based random generator.
