//! In which order the stages of a pipeline take their micro-batches, and when each would if every slot took one beat.

use std::collections::VecDeque;

use crate::passes::Order;
use crate::stage::Stages;

/// What a stage does with a micro-batch in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// The forward of a chunk.
    Forward,
    /// Its backward, with what is recomputed for it; without the weight gradients where these have slots of their own.
    Backward,
    /// Its weight gradients.
    Weight,
}

/// A chunk and a micro-batch in one pass over the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    pub kind: Kind,
    pub chunk: usize,
    pub micro: u32,
}

/// A slot, with its first beat and the one after its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timed {
    pub slot: Slot,
    pub start: u64,
    pub finish: u64,
}

/// The slots of all stages.
pub(super) struct Timetable {
    stages: Stages,
    pub slots: Vec<Vec<Timed>>,
}

impl Timetable {
    /// The timetable of a step, or without `backward` of an evaluation.
    pub(super) fn new(stages: &Stages, order: Order, micro_batches: u32, backward: bool) -> Timetable {
        let orders =
            (0..stages.count()).map(|stage| forward_backward(stages, stage, micro_batches, backward));
        Run::new(stages, order, micro_batches, orders.collect()).timetable()
    }

    /// The slot that makes what another needs from another stage.
    pub(super) fn producer(&self, slot: Slot) -> Option<Timed> {
        let wanted = producer(&self.stages, slot).filter(|wanted| wanted.chunk != slot.chunk)?;
        let stage = wanted.chunk % self.stages.count() as usize;
        self.slots[stage].iter().find(|timed| timed.slot == wanted).copied()
    }
}

/// Forwards and backwards of a stage: first as many forwards as it takes until the first backward arrives, then one forward and
/// one backward in turn (Narayanan et al., arXiv 2104.04473, figures 3 and 4). With several chunks per stage, each is run for as
/// many micro-batches as there are stages before the next one is.
fn forward_backward(stages: &Stages, stage: u32, micro_batches: u32, backward: bool) -> Vec<Slot> {
    let (count, chunks) = (stages.count() as usize, stages.chunks_per_stage());
    let micros: Vec<u32> = (0..micro_batches).collect();
    let chunk = |local: usize| local * count + stage as usize;
    let order = |kind: Kind, locals: &[usize]| {
        let of_group = |group: &[u32]| {
            let slots = locals
                .iter()
                .flat_map(|&local| group.iter().map(move |&micro| Slot { kind, chunk: chunk(local), micro }));
            slots.collect::<Vec<Slot>>()
        };
        micros.chunks(count).flat_map(of_group).collect::<Vec<Slot>>()
    };
    let forwards = order(Kind::Forward, &(0..chunks).collect::<Vec<_>>());
    if !backward {
        return forwards;
    }
    let backwards = order(Kind::Backward, &(0..chunks).rev().collect::<Vec<_>>());
    let following = count - 1 - stage as usize;
    let warmup = if chunks == 1 { following } else { 2 * following + (chunks - 1) * count };
    let (warmup, rest) = forwards.split_at(warmup.min(forwards.len()));
    let (paired, last) = backwards.split_at(rest.len());
    let pairs = rest.iter().zip(paired).flat_map(|(&forward, &backward)| [forward, backward]);
    warmup.iter().copied().chain(pairs).chain(last.iter().copied()).collect()
}

/// The slot whose result a slot needs.
fn producer(stages: &Stages, slot: Slot) -> Option<Slot> {
    let Slot { kind, chunk, micro } = slot;
    match kind {
        Kind::Forward => Some(Slot { kind, chunk: chunk.checked_sub(1)?, micro }),
        Kind::Backward if chunk + 1 == stages.chunks() => Some(Slot { kind: Kind::Forward, chunk, micro }),
        Kind::Backward => Some(Slot { kind, chunk: chunk + 1, micro }),
        Kind::Weight => Some(Slot { kind: Kind::Backward, chunk, micro }),
    }
}

/// All stages, one slot after another in the order of their starts.
struct Run<'a> {
    stages: &'a Stages,
    order: Order,
    micro_batches: u32,
    /// What each stage has still to do, in its order.
    left: Vec<VecDeque<Slot>>,
    /// Weight gradients that each stage has put off, in the order of their backwards.
    put_off: Vec<VecDeque<Slot>>,
    slots: Vec<Vec<Timed>>,
    finishes: Vec<Option<u64>>,
}

impl<'a> Run<'a> {
    fn new(stages: &'a Stages, order: Order, micro_batches: u32, orders: Vec<Vec<Slot>>) -> Run<'a> {
        let left: Vec<VecDeque<Slot>> = orders.into_iter().map(VecDeque::from).collect();
        let finishes = vec![None; 3 * stages.chunks() * micro_batches as usize];
        let (put_off, slots) = (vec![VecDeque::new(); left.len()], vec![Vec::new(); left.len()]);
        Run { stages, order, micro_batches, left, put_off, slots, finishes }
    }

    fn timetable(mut self) -> Timetable {
        while let Some((start, _, stage, slot)) = (0..self.left.len()).filter_map(|s| self.next(s)).min() {
            self.take(stage, slot, start);
        }
        assert!(
            self.left.iter().all(VecDeque::is_empty),
            "every stage waits for another: are the micro-batches a multiple of the stages?"
        );
        Timetable { stages: self.stages.clone(), slots: self.slots }
    }

    fn index(&self, slot: Slot) -> usize {
        (slot.kind as usize * self.stages.chunks() + slot.chunk) * self.micro_batches as usize
            + slot.micro as usize
    }

    /// What a stage does next, and when. Weight gradients that were put off fill the time in which it would wait, and come
    /// first where it would hold more than the first stage does: as many micro-batches as stages come before it (ZB-H1).
    fn next(&self, stage: usize) -> Option<(u64, Kind, usize, Slot)> {
        let free = self.slots[stage].last().map_or(0, |last| last.finish);
        let next = self.left[stage].front().and_then(|&slot| {
            let ready = match producer(self.stages, slot) {
                None => Some(0),
                Some(producer) => self.finishes[self.index(producer)],
            };
            Some((ready?.max(free), slot.kind, stage, slot))
        });
        let per_stage = if self.stages.chunks_per_stage() > 1 { 2 } else { 1 };
        let held = self.put_off[stage].len() > per_stage * stage;
        let waits = held || next.is_none_or(|(start, ..)| start > free);
        let fill = self.put_off[stage].front().filter(|_| waits);
        fill.map(|&slot| (free, Kind::Weight, stage, slot)).or(next)
    }

    fn take(&mut self, stage: usize, slot: Slot, start: u64) {
        let halves = self.order == Order::ZeroBubble;
        // Backward takes twice as long as forward, unless it is cut in halves.
        let beats = if slot.kind == Kind::Backward && !halves { 2 } else { 1 };
        let (finish, index) = (start + beats, self.index(slot));
        self.finishes[index] = Some(finish);
        self.slots[stage].push(Timed { slot, start, finish });
        if slot.kind == Kind::Weight {
            self.put_off[stage].pop_front();
            return;
        }
        self.left[stage].pop_front();
        if slot.kind == Kind::Backward && halves {
            self.put_off[stage].push_back(Slot { kind: Kind::Weight, ..slot });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timetable(count: u32, chunks: u32, order: Order, micro_batches: u32) -> Timetable {
        let starts = (0..(count * chunks) as usize).collect();
        Timetable::new(&Stages::new(count, starts, false), order, micro_batches, true)
    }

    /// A stage's slots, as in the figures: F and B of each micro-batch, W where it has weight gradients of its own, and the
    /// chunk of the stage where it has several.
    fn spelled(timetable: &Timetable, stage: usize) -> String {
        let count = timetable.slots.len();
        let several = timetable.stages.chunks() > count;
        let slot = |timed: &Timed| {
            let letter = ["F", "B", "W"][timed.slot.kind as usize];
            let chunk = if several { format!(".{}", timed.slot.chunk / count) } else { String::new() };
            format!("{letter}{}{chunk}", timed.slot.micro)
        };
        timetable.slots[stage].iter().map(slot).collect::<Vec<String>>().join(" ")
    }

    #[test]
    fn one_forward_one_backward_as_in_the_figure() {
        // Narayanan et al., figure 4 (top), with 4 devices and 5 of its micro-batches.
        let table = timetable(4, 1, Order::OneForwardOneBackward, 5);
        let figure = [
            "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4",
            "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4",
            "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4",
            "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4",
        ];
        for (stage, slots) in figure.into_iter().enumerate() {
            assert_eq!(spelled(&table, stage), slots);
        }
        // Bubbles of (p - 1)(f + b).
        assert_eq!(table.slots[0].last().map(|last| last.finish), Some(5 * 3 + 3 * 3));
    }

    #[test]
    fn interleaved_stages_as_in_the_figure() {
        // The same, bottom: 2 chunks per device; here with 2 devices and 4 micro-batches. Warm-up 2(p - s - 1) + p.
        let table = timetable(2, 2, Order::OneForwardOneBackward, 4);
        assert_eq!(
            spelled(&table, 0),
            "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0"
        );
        // Bubbles of (p - 1)(f + b) / v: here of one chunk's forward and backward.
        assert_eq!(table.slots[0].last().map(|last| last.finish), Some(2 * 4 * 3 + 3));
    }

    #[test]
    fn zero_bubble_waits_a_third_as_long_and_holds_no_more() {
        for (count, micro_batches) in [(2, 6), (4, 8), (4, 16), (6, 12)] {
            let table = timetable(count, 1, Order::ZeroBubble, micro_batches);
            for (stage, slots) in table.slots.iter().enumerate() {
                let busy = slots.iter().map(|timed| timed.finish - timed.start).sum::<u64>();
                assert_eq!(busy, 3 * u64::from(micro_batches));
                // Qi et al., table 2: (p - 1)(f + b - w) instead of (p - 1)(f + b + w).
                let span = slots[slots.len() - 1].finish - slots[0].start;
                assert!(span - busy <= u64::from(count - 1), "stage {stage} of {count}: {span} for {busy}");
                let mut held = 0;
                for timed in slots {
                    held += match timed.slot.kind {
                        Kind::Forward => 1,
                        Kind::Backward => 0,
                        Kind::Weight => -1,
                    };
                    assert!(held <= count as i32, "stage {stage} of {count} holds {held}");
                }
            }
        }
    }

    #[test]
    fn every_number_of_micro_batches_that_is_allowed_comes_to_an_end() {
        let pipelines = [(2, 1), (2, 2), (2, 5), (3, 2), (4, 1), (4, 3), (5, 4), (8, 2)];
        for ((count, chunks), order) in pipelines.into_iter().flat_map(|pipeline| {
            [Order::OneForwardOneBackward, Order::ZeroBubble].map(move |order| (pipeline, order))
        }) {
            let allowed = |micro: &u32| chunks == 1 || micro.is_multiple_of(count);
            for micro in (1..=24).filter(allowed) {
                let kinds = if order == Order::ZeroBubble { 3 } else { 2 };
                for slots in timetable(count, chunks, order, micro).slots {
                    assert_eq!(slots.len(), (kinds * chunks * micro) as usize);
                    assert!(slots.windows(2).all(|pair| pair[0].finish <= pair[1].start));
                }
            }
            let stages = Stages::new(count, (0..(count * chunks) as usize).collect(), false);
            for micro in 1..=9 {
                let forward = Timetable::new(&stages, order, micro, false).slots;
                assert!(forward.iter().all(|slots| slots.len() == (chunks * micro) as usize));
            }
        }
    }
}
