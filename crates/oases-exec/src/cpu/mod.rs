//! The CPU kernels: plain functions on row-major f32 slices, one thread, no allocation.
//!
//! Names of tensors end in the shape: n tokens (sequences × sequence length), s positions of a sequence, h hidden,
//! m any number of columns, d features of a head, v vocabulary rows of this shard. Tokens are stored sequence
//! after sequence. A weight is [out, in], so that y = x·Wᵀ + b.
//!
//! Every kernel gives the same bits for the same arguments, and a row's result does not depend on how many
//! other rows there are (gradients of parameters excepted, which are sums over the rows, in their order).

pub mod activation;
pub mod attention;
pub(crate) mod backend;
pub mod cache;
pub mod cross_entropy;
pub mod embedding;
mod gemm;
pub mod heads;
pub mod matmul;
pub mod norm;
pub mod optimizer;
#[cfg(test)]
mod reference;
pub mod residual;
mod simd;
