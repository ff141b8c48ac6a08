//! The CPU backend and its kernels.
