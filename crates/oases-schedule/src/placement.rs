//! Offsets for buffers with known lifetimes: first fit, largest buffer first.
//!
//! The greedy order by size is that of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference",
//! arXiv 2001.03288, section 5. It is deterministic, and close to the lower bound (the most bytes alive at once).

use crate::units::Span;

/// A buffer to place: it lives from instruction `birth` to `death`, both included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interval {
    pub birth: usize,
    pub death: usize,
    pub bytes: usize,
}

/// Instructions per stretch of the time index.
const STRETCH: usize = 64;

/// Offset of each interval, so that no two that live together share a byte.
pub(crate) fn place(intervals: &[Interval], instructions: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..intervals.len()).collect();
    order.sort_by_key(|&index| (std::cmp::Reverse(intervals[index].bytes), intervals[index].birth, index));

    let mut offsets = vec![0; intervals.len()];
    // Placed intervals by the stretch of time in which they begin, and those that enter a stretch from before. What lives
    // together with an interval either enters the stretch of its birth or begins between that and its death.
    let stretches = instructions / STRETCH + 1;
    let mut beginning: Vec<Vec<usize>> = vec![Vec::new(); stretches];
    let mut entering: Vec<Vec<usize>> = vec![Vec::new(); stretches];
    let mut taken: Vec<Span> = Vec::new();
    for index in order {
        let interval = intervals[index];
        let [first, last] = [interval.birth / STRETCH, interval.death / STRETCH];
        taken.clear();
        for &other in entering[first].iter().chain(beginning[first..=last].iter().flatten()) {
            if intervals[other].birth <= interval.death && interval.birth <= intervals[other].death {
                taken.push(Span { offset: offsets[other], bytes: intervals[other].bytes });
            }
        }
        offsets[index] = first_fit(&mut taken, interval.bytes);
        beginning[first].push(index);
        entering[first + 1..=last].iter_mut().for_each(|stretch| stretch.push(index));
    }
    offsets
}

/// The lowest aligned offset with room for `bytes` between the taken spans.
fn first_fit(taken: &mut [Span], bytes: usize) -> usize {
    taken.sort_unstable();
    let mut offset = 0_usize;
    for span in taken {
        if offset + bytes <= span.offset {
            break;
        }
        offset = offset.max(span.end().next_multiple_of(Span::ALIGNMENT));
    }
    offset
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small deterministic generator, so that the test needs no dependency.
    fn next(state: &mut u64) -> usize {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*state >> 33) as usize
    }

    #[test]
    fn buffers_that_live_together_never_share_a_byte() {
        let mut state = 7;
        for _ in 0..50 {
            let instructions = 1 + next(&mut state) % 500;
            let intervals: Vec<Interval> = (0..next(&mut state) % 200)
                .map(|_| {
                    let birth = next(&mut state) % instructions;
                    let death = birth + next(&mut state) % (instructions - birth);
                    Interval { birth, death, bytes: 1 + next(&mut state) % 1000 }
                })
                .collect();
            let offsets = place(&intervals, instructions);
            for (index, left) in intervals.iter().enumerate() {
                assert_eq!(offsets[index] % Span::ALIGNMENT, 0);
                for (other, right) in intervals.iter().enumerate().skip(index + 1) {
                    let together = left.birth <= right.death && right.birth <= left.death;
                    let a = Span { offset: offsets[index], bytes: left.bytes };
                    let b = Span { offset: offsets[other], bytes: right.bytes };
                    assert!(!together || !a.overlaps(b), "{a:?} and {b:?} live together");
                }
            }
        }
    }

    #[test]
    fn buffers_that_follow_each_other_share() {
        let interval = |birth, death| Interval { birth, death, bytes: 64 };
        assert_eq!(place(&[interval(0, 1), interval(2, 3), interval(1, 2)], 4), [0, 0, 64]);
    }
}
