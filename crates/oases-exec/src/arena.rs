//! The arena: the one allocation in which every tensor of a step lives, addressed by [`Span`]s.
//!
//! The schedule plans all offsets before the first step, so the arena allocates nothing itself: it
//! turns planned spans into slices, and checks at every access that the plan was right. Three ways in:
//!
//! - [`Arena::access`] gives any number of `f32` reads and writes at once;
//! - [`Arena::claims`] does the same one operand at a time, for operands of mixed type or number;
//! - [`Arena::lend`] hands a part to a communicator as an owned [`Region`], until [`Arena::give_back`].
//!
//! A violation (a write that overlaps another operand, a span out of bounds or misaligned, an access to a
//! part that is lent out) is a bug of the schedule or of the executor, hence a panic, never an error.
//!
//! # Why this is sound
//!
//! This module holds the crate's only raw memory. The argument has five steps.
//!
//! 1. *Validity.* The allocation is zeroed once and every element type ([`f32`], [`u32`]) accepts every bit
//!    pattern, so reading any in-bounds, aligned place as any [`Element`] is defined.
//! 2. *Provenance.* Every slice is made from the allocation's base pointer for exactly its own bytes. No
//!    reference to more than that is ever made, so slices of disjoint spans never invalidate each other.
//! 3. *Access.* A [`Claims`] borrows the arena mutably for `'a`, and its slices live for the same `'a`. So
//!    while any of them lives there is one `Claims`, which remembers all it has handed out and refuses a span
//!    that overlaps a written one, or a write that overlaps anything. [`Arena::read`] borrows the arena
//!    shared and gives shared slices only, hence excludes `Claims`.
//! 4. *Loans.* A `Region` is the only handle to its bytes: it cannot be cloned, [`Region::split_at`] consumes
//!    it and yields disjoint parts, and the arena refuses any access or second loan that overlaps a loan on
//!    its list. An entry leaves the list only when a region that covers all of it comes back by value. (A
//!    region that is dropped instead leaves its part lent for good: safe, and every access says so.)
//! 5. *Threads.* Sending a region to another thread transfers exclusive access, like sending a `&mut [f32]`;
//!    the region's `Arc` keeps the allocation alive when the arena goes first. The arena itself may move
//!    between threads but is not shared by them (its high-water mark is a `Cell`).
//!
//! The tests of this module and of [`crate::comm`] run under Miri, which checks steps 1 to 5 (aliasing,
//! bounds, data races) on the paths they take, and under ThreadSanitizer at full size:
//!
//! ```text
//! MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test -p oases-exec --lib -- arena:: comm::
//! RUSTFLAGS=-Zsanitizer=thread cargo +nightly test -Zbuild-std --target x86_64-unknown-linux-gnu \
//!     -p oases-exec --lib -- arena:: comm::
//! ```

#![allow(unsafe_code, reason = "the one home of raw memory: spans become slices here, checked")]

#[cfg(test)]
mod tests;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use oases_schedule::{Bytes, Span};

/// The memory for an arena could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot allocate an arena of {} ({} bytes)", .bytes, .bytes.0)]
pub struct ArenaError {
    /// The size that was asked for.
    pub bytes: Bytes,
}

/// What a span can be read as: [`f32`] or [`u32`].
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {}
impl Element for f32 {}
impl Element for u32 {}

mod sealed {
    /// Four bytes, aligned to four, every bit pattern valid.
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for u32 {}
}

/// Size and alignment of every [`Element`].
const ELEMENT: usize = 4;

/// One zeroed allocation that holds every tensor of a step. See the module's text for the rules.
#[derive(Debug)]
pub struct Arena {
    allocation: Arc<Allocation>,
    loans: Vec<Loan>,
    next_loan: u64,
    touched: Cell<usize>,
}

impl Arena {
    /// Allocates `bytes` zeroed bytes, aligned to a huge page (2 MiB) when at least that large, else to a
    /// page.
    ///
    /// Fresh pages come from the system lazily, at their first use.
    pub fn new(bytes: usize) -> Result<Arena, ArenaError> {
        let allocation = Allocation::new(bytes).ok_or(ArenaError { bytes: Bytes(bytes as u64) })?;
        Ok(Arena {
            allocation: Arc::new(allocation),
            loans: Vec::with_capacity(64),
            next_loan: 0,
            touched: Cell::new(0),
        })
    }

    /// Size of the arena.
    pub fn bytes(&self) -> usize {
        self.allocation.bytes
    }

    /// The high-water mark: one past the highest byte that was ever read, written or lent.
    pub fn touched_bytes(&self) -> usize {
        self.touched.get()
    }

    /// Counts what is touched from here on.
    pub fn forget_touched(&mut self) {
        self.touched.set(0);
    }

    /// Slices of `f32` for one operation: `let ([x, w], [y]) = arena.access([x, w], [y]);`
    ///
    /// Reads may overlap each other. An empty span gives an empty slice and overlaps nothing.
    ///
    /// # Panics
    /// If a write overlaps another operand, or a span is out of bounds, misaligned or lent out.
    #[track_caller]
    pub fn access<const R: usize, const W: usize>(
        &mut self,
        reads: [Span; R],
        writes: [Span; W],
    ) -> ([&[f32]; R], [&mut [f32]; W]) {
        let mut claims = self.claims();
        let mut inputs: [&[f32]; R] = [&[]; R];
        for (slice, span) in inputs.iter_mut().zip(reads) {
            *slice = claims.read(span);
        }
        let mut outputs: [&mut [f32]; W] = std::array::from_fn(|_| Default::default());
        for (slice, span) in outputs.iter_mut().zip(writes) {
            *slice = claims.write(span);
        }
        (inputs, outputs)
    }

    /// Starts the list of operands of one operation, to be claimed one by one.
    pub fn claims(&mut self) -> Claims<'_> {
        Claims { arena: self, reads: SpanList::new(), writes: SpanList::new() }
    }

    /// One span, to read.
    ///
    /// # Panics
    /// If the span is out of bounds, misaligned or lent out.
    #[track_caller]
    pub fn read<E: Element>(&self, span: Span) -> &[E] {
        self.check(span, "read");
        // SAFETY: `check` found the span in bounds, aligned and not lent; the result borrows the arena
        // shared, so no `Claims` (the only other way to a mutable slice) exists while it lives.
        unsafe { std::slice::from_raw_parts(self.allocation.at(span), span.bytes / ELEMENT) }
    }

    /// One span, to write.
    ///
    /// # Panics
    /// If the span is out of bounds, misaligned or lent out.
    #[track_caller]
    pub fn write<E: Element>(&mut self, span: Span) -> &mut [E] {
        self.claims().write(span)
    }

    /// Hands out exclusive access to `span` as an owned value, which may go to another thread.
    ///
    /// Until it comes back by [`Arena::give_back`], every access to an overlapping span panics.
    ///
    /// # Panics
    /// If the span is out of bounds, misaligned or overlaps a part that is lent already.
    #[track_caller]
    pub fn lend(&mut self, span: Span) -> Region {
        self.check(span, "loan");
        let loan = self.next_loan;
        self.next_loan += 1;
        self.loans.push(Loan { id: loan, span });
        Region { allocation: Arc::clone(&self.allocation), loan, span }
    }

    /// Takes a lent region back, whole.
    ///
    /// # Panics
    /// If the region is only a part of what was lent, or comes from another arena.
    #[track_caller]
    pub fn give_back(&mut self, region: Region) {
        assert!(Arc::ptr_eq(&self.allocation, &region.allocation), "{region:?} belongs to another arena");
        let index = self
            .loans
            .iter()
            .position(|loan| loan.id == region.loan)
            .expect("a region's loan is on the list");
        let lent = self.loans[index].span;
        assert!(lent == region.span, "{region:?} is only a part of the loan of {}", Place(lent));
        self.loans.swap_remove(index);
    }

    /// Panics unless `span` may be handed out; raises the high-water mark.
    #[track_caller]
    fn check(&self, span: Span, what: &str) {
        if span.bytes == 0 {
            return;
        }
        let end = span.offset.checked_add(span.bytes).filter(|end| *end <= self.allocation.bytes);
        let Some(end) = end else {
            panic!(
                "{what} of {} is out of bounds: the arena has {} bytes",
                Place(span),
                self.allocation.bytes
            );
        };
        let aligned = span.offset.is_multiple_of(ELEMENT) && span.bytes.is_multiple_of(ELEMENT);
        assert!(aligned, "{what} of {} is misaligned: elements have {ELEMENT} bytes", Place(span));
        if let Some(loan) = self.loans.iter().find(|loan| loan.span.overlaps(span)) {
            panic!(
                "{what} of {} overlaps {}, which is lent to a communicator",
                Place(span),
                Place(loan.span)
            );
        }
        self.touched.set(self.touched.get().max(end));
    }
}

/// The operands of one operation: each slice lives as long as the borrow of the arena, and each new one is
/// checked against all before it.
#[derive(Debug)]
pub struct Claims<'a> {
    arena: &'a mut Arena,
    reads: SpanList,
    writes: SpanList,
}

impl<'a> Claims<'a> {
    /// A span to read; may overlap other reads.
    ///
    /// # Panics
    /// If it overlaps a write, or is out of bounds, misaligned or lent out.
    #[track_caller]
    pub fn read<E: Element>(&mut self, span: Span) -> &'a [E] {
        self.arena.check(span, "read");
        self.writes.refuse_overlap(span, "read", "written");
        self.reads.push(span);
        // SAFETY: in bounds, aligned and not lent (`check`); overlaps no mutable slice of this borrow of the
        // arena, and every later write is checked against it; no other access to the arena exists during
        // `'a`.
        unsafe { std::slice::from_raw_parts(self.arena.allocation.at(span), span.bytes / ELEMENT) }
    }

    /// A span to write (and read): the operation's own alone.
    ///
    /// # Panics
    /// If it overlaps any other operand, or is out of bounds, misaligned or lent out.
    #[track_caller]
    pub fn write<E: Element>(&mut self, span: Span) -> &'a mut [E] {
        self.arena.check(span, "write");
        self.writes.refuse_overlap(span, "write", "written");
        self.reads.refuse_overlap(span, "write", "read");
        self.writes.push(span);
        // SAFETY: as in `read`, and it overlaps no slice of this borrow of the arena at all.
        unsafe { std::slice::from_raw_parts_mut(self.arena.allocation.at(span), span.bytes / ELEMENT) }
    }

    /// [`Claims::read`] of an operand that may be absent.
    #[track_caller]
    pub fn read_optional<E: Element>(&mut self, span: Option<Span>) -> Option<&'a [E]> {
        match span {
            Some(span) => Some(self.read(span)),
            None => None,
        }
    }

    /// [`Claims::write`] of an operand that may be absent.
    #[track_caller]
    pub fn write_optional<E: Element>(&mut self, span: Option<Span>) -> Option<&'a mut [E]> {
        match span {
            Some(span) => Some(self.write(span)),
            None => None,
        }
    }
}

/// Exclusive, owned access to a lent part of an arena, as `f32`. Keeps the memory alive.
pub struct Region {
    allocation: Arc<Allocation>,
    loan: u64,
    span: Span,
}

impl Region {
    /// Where in the arena this is.
    pub fn span(&self) -> Span {
        self.span
    }

    /// Splits into elements `..middle` and `middle..`. Does not allocate.
    ///
    /// # Panics
    /// If `middle` is past the end.
    #[track_caller]
    pub fn split_at(self, middle: usize) -> (Region, Region) {
        assert!(middle <= self.len(), "cannot split {self:?} at element {middle}");
        let bytes = middle * ELEMENT;
        let head = Span { offset: self.span.offset, bytes };
        let tail = Span { offset: self.span.offset + bytes, bytes: self.span.bytes - bytes };
        let allocation = Arc::clone(&self.allocation);
        (Region { allocation, loan: self.loan, span: head }, Region { span: tail, ..self })
    }

    /// Undoes [`Region::split_at`]. Does not allocate.
    ///
    /// # Panics
    /// If `tail` does not begin where `self` ends, or belongs to another loan.
    #[track_caller]
    pub fn join(self, tail: Region) -> Region {
        let same = Arc::ptr_eq(&self.allocation, &tail.allocation) && self.loan == tail.loan;
        assert!(same && self.span.end() == tail.span.offset, "{tail:?} does not continue {self:?}");
        Region { span: Span { bytes: self.span.bytes + tail.span.bytes, ..self.span }, ..self }
    }
}

impl Deref for Region {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        // SAFETY: the span was checked when it was lent; this value is the only handle to its bytes until it
        // is given back by value, so a shared borrow of it excludes every writer.
        unsafe { std::slice::from_raw_parts(self.allocation.at(self.span), self.span.bytes / ELEMENT) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `deref`; a mutable borrow of the only handle is exclusive access.
        unsafe { std::slice::from_raw_parts_mut(self.allocation.at(self.span), self.span.bytes / ELEMENT) }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region of {} (loan {})", Place(self.span), self.loan)
    }
}

/// A part that is lent out.
#[derive(Debug)]
struct Loan {
    id: u64,
    span: Span,
}

/// Prints a span as a byte range.
struct Place(Span);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {}..{}", self.0.offset, self.0.offset.saturating_add(self.0.bytes))
    }
}

/// A list of spans of fixed capacity, so that an access does not allocate.
#[derive(Debug)]
struct SpanList {
    spans: [Span; SpanList::CAPACITY],
    len: usize,
}

impl SpanList {
    /// More operands than any operation has.
    const CAPACITY: usize = 48;

    fn new() -> SpanList {
        SpanList { spans: [Span { offset: 0, bytes: 0 }; SpanList::CAPACITY], len: 0 }
    }

    #[track_caller]
    fn push(&mut self, span: Span) {
        assert!(self.len < SpanList::CAPACITY, "an operation has more than {} operands", SpanList::CAPACITY);
        self.spans[self.len] = span;
        self.len += 1;
    }

    #[track_caller]
    fn refuse_overlap(&self, span: Span, what: &str, how: &str) {
        if let Some(other) = self.spans[..self.len].iter().find(|other| other.overlaps(span)) {
            panic!("{what} of {} overlaps {}, {how} by the same operation", Place(span), Place(*other));
        }
    }
}

/// The memory itself. Gives out no references: the argument for each is at the place that makes it.
#[derive(Debug)]
struct Allocation {
    /// As allocated; `base` lies within.
    raw: NonNull<u8>,
    layout: Layout,
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an allocation is an address range; it reads and writes nothing until it is dropped, when no arena
// and no region is left.
unsafe impl Send for Allocation {}
// SAFETY: as above; its shared methods compute addresses only.
unsafe impl Sync for Allocation {}

impl Allocation {
    const PAGE: usize = 4096;
    const HUGE_PAGE: usize = 2 << 20;

    /// `None` when there is no such memory.
    fn new(bytes: usize) -> Option<Allocation> {
        let alignment = if bytes >= Self::HUGE_PAGE { Self::HUGE_PAGE } else { Self::PAGE };
        // The base is aligned by hand: the allocator is asked for its natural alignment, because only then it
        // takes zero pages from the system as they are. For a larger one it would write every byte.
        let layout = Layout::from_size_align(bytes.checked_add(alignment)?, 16).ok()?;
        // SAFETY: the layout's size is at least `alignment`, hence not zero.
        let raw = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let padding = raw.as_ptr().align_offset(alignment);
        assert!(padding <= alignment, "an address can be aligned");
        // SAFETY: `padding <= alignment`, and the allocation has `bytes + alignment` bytes.
        let base = unsafe { raw.add(padding) };
        Some(Allocation { raw, layout, base, bytes })
    }

    /// Address of a span that was checked to be in bounds; an empty span has some aligned address.
    fn at<E>(&self, span: Span) -> *mut E {
        if span.bytes == 0 {
            return NonNull::dangling().as_ptr();
        }
        debug_assert!(span.end() <= self.bytes);
        // SAFETY: every caller's span was checked against `bytes` when it was claimed or lent.
        unsafe { self.base.add(span.offset).cast().as_ptr() }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout, and dropped once.
        unsafe { dealloc(self.raw.as_ptr(), self.layout) }
    }
}
