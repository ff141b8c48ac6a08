//! What a training step is: the model, its layout over ranks, and the schedule as a value.
//!
//! The one decision of this crate: a step is a list of instructions that is built, verified, printed, planned, simulated
//! and executed as the same value. The alternative, a trainer that decides while it runs (hooks on an autograd graph),
//! cannot be verified before the run, nor simulated without it.
//!
//! The folders are the pipeline: [`Model`] → [`passes`] → [`Schedule`] → [`verify()`] → [`plan()`].

mod activations;
mod dataflow;
mod ids;
mod instruction;
mod lifetimes;
mod mesh;
mod model;
mod operation;
mod parameters;
pub mod passes;
mod placement;
#[cfg(feature = "random")]
pub mod random;
mod rotary;
mod schedule;
mod stage;
mod statics;
mod text;
mod units;
mod value;
mod verify;

pub use activations::{Products, Slot, Workspace};
pub use ids::{BlockId, CollectiveId, Cut, PartId, Pass, Piece};
pub use instruction::Instruction;
pub use lifetimes::{Buffer, BufferKind, Operands, Plan, collective_bytes, plan};
pub use mesh::{Axis, Coordinates, Grouping, Layout, Mesh};
pub use model::{
    Activation, Biases, HeadKind, Mask, Model, ModelError, NormKind, NormPlacement, Positions, divisors,
};
pub use operation::{Direction, Family, Operation};
pub use parameters::{GradientKind, Init, Parameter, Role, Shard};
pub use passes::{Keeps, Order, Request, Variant};
pub use rotary::{Rotary, RotaryScaling};
pub use schedule::{CollectiveKind, Extent, Keep, Part, Schedule, Scope};
pub use stage::{Optimizer, Stage, Stages};
pub use statics::{Placed, Purpose, Statics, Updated};
pub use text::ParseError;
pub use units::{Bytes, Flops, Span};
pub use verify::{Rule, Violation, verify, verify_stages};
