//! Costs from published measurements: a table of per-block times, a fit to it for sizes beyond it, and both as [`Costs`].
//!
//! The table is that of the Oases prototype (Li et al., arXiv 2305.16121): transformer layers on RTX 3090, without
//! embedding and head.
//!
//! [`Costs`]: crate::Costs

mod costs;
mod fit;
mod table;

pub use costs::{GradientRing, PublishedCosts};
pub use fit::{BlockFit, BlockParts, BlockSize};
pub use table::{BlockTimes, PublishedTable};
