//! House rules of the workspace, checked by `cargo test`.
