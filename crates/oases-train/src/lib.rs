//! Trains: the step loop over ranks, data, optimisation, checkpoints, and the run folder.
//!
//! The one decision of this crate: every rank runs the same loop on the same samples, and rank 0 also keeps the run folder.
//! A controller that sends commands to ranks would be one more thing that can fail, and could not become a process per
//! rank without a protocol of its own.

mod agreement;
pub mod checkpoint;
pub mod data;
mod digest;
mod error;
mod evaluate;
mod event;
pub mod exchange;
mod forward;
mod generate;
mod job;
mod launch;
pub mod learning_rate;
pub mod measure;
pub mod metrics;
mod options;
pub mod permutation;
mod rank;
mod replace_file;
pub mod run_dir;
pub mod sampling;
mod streams;
pub mod trial;
mod weights;

pub use error::{Error, Result};
pub use evaluate::{EvaluateOptions, Evaluated, evaluate};
pub use event::Event;
pub use forward::{Output, forward};
pub use generate::Generator;
pub use job::{Job, request};
#[cfg(feature = "mpi")]
pub use launch::processes;
pub use launch::{Outcome, train};
pub use options::{DataOptions, Fault, FaultKind, OptimizerOptions, Options};
