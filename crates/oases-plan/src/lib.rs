//! What a schedule would take: costs of its instructions, and the streams on which they run, of one rank for each pipeline stage.
//!
//! The one decision of this crate: a prediction walks the same [`oases_schedule::Schedule`] that is executed, and shares
//! nothing else with the executors. The alternative, to ask the executor for its times or to simulate a model of the
//! method instead of its instructions, could not disagree with the measurement, or would not notice what the schedule
//! really waits for.
//!
//! The pipeline: [`Profile`] (measured) or [`Machine`] (described) → [`Costs`] → [`simulate_stages`] → [`Timeline`].

pub mod assign;
mod costs;
mod error;
mod estimated;
mod link;
mod links;
mod machine;
mod measured;
pub mod planner;
mod profile;
mod published;
mod rank;
mod simulate;
mod time;
mod timeline;
mod walk;
mod work;

pub use costs::{CollectiveTime, Costs, Reach};
pub use error::Error;
pub use estimated::MachineCosts;
pub use link::Ring;
pub use machine::{Device, Dtype, LinkLevel, Machine};
pub use measured::ProfileCosts;
pub use profile::{FORMAT, MeasuredCollective, MeasuredCompute, MeasuredLink, Origin, Profile, Shape};
pub use published::{
    BlockFit, BlockParts, BlockSize, BlockTimes, GradientRing, PublishedCosts, PublishedTable,
};
pub use simulate::{bound, durations, simulate, simulate_stages};
pub use time::{Interval, Nanoseconds};
pub use timeline::{Bound, CollectiveRun, Timeline};
pub use work::{Core, Work, work};
