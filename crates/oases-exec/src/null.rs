//! A backend that computes nothing and lasts as long as it is told: the interpreter, the streams and the schedules without
//! hardware. More ranks than processors distort real computation; sleeping ones they do not.

use std::time::{Duration, Instant};

use oases_schedule::{Activation, Bytes, Instruction, NormKind, Operands, Span};

use crate::arena::{Arena, ArenaError, Region};
use crate::backend::Backend;
use crate::comm::Link;
use crate::operators::{
    Accumulate, AdamW, Attention, Dropout, Mat, ParameterState, Rotation, Term, VocabularyShard,
};

/// Sleeps instead of computing.
pub struct NullBackend<F> {
    /// Virtual memory only: what is never touched costs nothing.
    arena: Arena,
    slots: usize,
    duration: F,
    /// By how much earlier sleeps lasted too long; later ones are shorter by it.
    overslept: Duration,
    touched: usize,
}

/// Bytes of a planned buffer that stand for one byte handed to a communicator, so that the arithmetic of collectives costs
/// next to nothing. The link must be scaled alike: [`scaled`].
const SCALE: usize = 1024;

/// The link on which the shrunken buffers of a [`NullBackend`] take as long as the real ones on `link`.
pub fn scaled(link: Link) -> Link {
    Link { bandwidth_bytes_per_s: link.bandwidth_bytes_per_s / SCALE as f64, ..link }
}

impl<F: FnMut(usize) -> Duration> NullBackend<F> {
    /// A backend on an arena of this size, whose instructions last `duration`, asked by their index. `slots` is a multiple of the size
    /// of every group that gathers or scatters: the ranks of a pipeline stage, say.
    pub fn new(bytes: Bytes, slots: usize, duration: F) -> Result<NullBackend<F>, ArenaError> {
        let arena = Arena::new(bytes.0 as usize)?;
        Ok(NullBackend { arena, slots, duration, overslept: Duration::ZERO, touched: 0 })
    }
}

impl<F: FnMut(usize) -> Duration> Backend for NullBackend<F> {
    type Region = Region;

    fn begin(&mut self, index: usize, _: &Instruction, operands: &Operands) {
        for slot in operands.spans() {
            self.touched = self.touched.max(slot.end());
        }
        let wanted = (self.duration)(index);
        if wanted.is_zero() {
            return;
        }
        let began = Instant::now();
        let rest = wanted.saturating_sub(self.overslept);
        std::thread::sleep(rest);
        // What is owed never grows past one instruction: a suspended process is no slow device.
        self.overslept = (self.overslept + began.elapsed()).saturating_sub(wanted).min(wanted);
    }

    fn touched(&self) -> Bytes {
        Bytes(self.touched as u64)
    }

    fn forget_touched(&mut self) {
        self.touched = 0;
    }

    /// The head of the buffer stands for all of it, cut so that it still has a slot per member of any group.
    fn lend(&mut self, span: Span) -> Region {
        let unit = size_of::<f32>() * self.slots;
        let bytes = span.bytes.div_ceil(SCALE).next_multiple_of(unit).min(span.bytes);
        self.arena.lend(Span { bytes, ..span })
    }

    fn give_back(&mut self, region: Region) {
        self.arena.give_back(region);
    }

    fn write(&mut self, _: Span, _: &[f32]) {}

    fn write_tokens(&mut self, _: Span, _: &[u32]) {}

    fn read(&mut self, _: Span, values: &mut [f32]) {
        values.fill(0.0);
    }

    fn matmul(&mut self, _: Mat, _: Mat, _: Mat, _: Span, _: Accumulate) {}

    fn embed(&mut self, _: Span, _: Span, _: VocabularyShard, _: usize, _: Span) {}

    fn embed_backward(&mut self, _: Span, _: Span, _: VocabularyShard, _: usize, _: Span, _: Accumulate) {}

    fn clear(&mut self, _: Span) {}

    fn copy(&mut self, _: Span, _: Span) {}

    fn columns_to_rows(&mut self, _: Span, _: Span, _: usize, _: u8) {}

    fn join(&mut self, _: Span, _: Span, _: Term, _: usize, _: Option<Dropout>) {}

    fn join_backward(&mut self, _: Span, _: Span, _: Span, _: usize, _: Option<Dropout>) {}

    fn norm(&mut self, _: NormKind, _: Span, _: Span, _: Span, _: f32, _: Span, _: Span) {}

    fn norm_backward(
        &mut self,
        _: NormKind,
        _: Span,
        _: Span,
        _: Span,
        _: Span,
        _: Span,
        _: Span,
        _: Accumulate,
    ) {
    }

    fn norm_heads(&mut self, _: Attention, _: Span, _: [Span; 2], _: f32, _: Span) {}

    fn norm_heads_backward(
        &mut self,
        _: Attention,
        _: Span,
        _: [(Span, Span); 2],
        _: f32,
        _: Span,
        _: Accumulate,
    ) {
    }

    fn rotate(&mut self, _: Attention, _: Span, _: Span, _: Rotation) {}

    fn attention(&mut self, _: Attention, _: Span, _: Span, _: Span, _: Span, _: Span) {}

    fn attention_backward(
        &mut self,
        _: Attention,
        _: Span,
        _: Span,
        _: Span,
        _: Span,
        _: Span,
        _: Span,
        _: Span,
    ) {
    }

    fn activate(&mut self, _: Activation, _: Span, _: Span, _: usize) {}

    fn activate_backward(&mut self, _: Activation, _: Span, _: Span, _: usize) {}

    fn bias_backward(&mut self, _: Span, _: Span, _: Accumulate) {}

    fn positions_backward(&mut self, _: Span, _: Span, _: usize, _: Accumulate) {}

    fn logit_statistics(&mut self, _: Span, _: Span, _: VocabularyShard, _: Span) {}

    fn cross_entropy(&mut self, _: Span, _: Span, _: Span, _: Span) {}

    fn cross_entropy_backward(&mut self, _: Span, _: Span, _: Span, _: VocabularyShard, _: f32) {}

    fn square_norm(&mut self, _: &[Span], _: Span) {}

    fn adamw(&mut self, _: &ParameterState, _: Span, _: &AdamW) {}
}
