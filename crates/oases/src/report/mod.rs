//! Values that people look at: each is computed once and shown as text or JSON.

mod explanation;

pub use explanation::Explanation;
