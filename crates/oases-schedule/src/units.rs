//! Units that cross crate borders: bytes, floating-point operations, and a place in the arena.

use std::fmt;

/// A number of bytes, printed with a binary prefix (`12.0 MiB`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const PREFIXES: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        for (unit, size) in PREFIXES {
            if self.0 >= size {
                return write!(f, "{:.1} {unit}", self.0 as f64 / size as f64);
            }
        }
        write!(f, "{} B", self.0)
    }
}

impl std::ops::Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0 + other.0)
    }
}

impl std::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(iter: I) -> Bytes {
        Bytes(iter.map(|bytes| bytes.0).sum())
    }
}

/// A number of floating-point operations; a multiply-add counts as two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flops(pub u64);

/// A place in the arena, in bytes from its start. Every tensor of a step is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// First byte; a multiple of [`Span::ALIGNMENT`] for a whole buffer.
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
}

impl Span {
    /// Buffers start at multiples of this, a cache line and the widest SIMD register.
    pub const ALIGNMENT: usize = 64;

    /// One past the last byte.
    pub fn end(self) -> usize {
        self.offset + self.bytes
    }

    /// Whether the two share a byte.
    pub fn overlaps(self, other: Span) -> bool {
        self.bytes > 0 && other.bytes > 0 && self.offset < other.end() && other.offset < self.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_print_with_binary_prefix() {
        assert_eq!(Bytes(1023).to_string(), "1023 B");
        assert_eq!(Bytes(1536).to_string(), "1.5 KiB");
        assert_eq!(Bytes(3 << 30).to_string(), "3.0 GiB");
    }

    #[test]
    fn spans_that_only_touch_do_not_overlap() {
        let span = |offset, bytes| Span { offset, bytes };
        assert!(!span(0, 64).overlaps(span(64, 64)));
        assert!(span(0, 65).overlaps(span(64, 64)));
        assert!(!span(8, 0).overlaps(span(0, 64)));
    }
}
