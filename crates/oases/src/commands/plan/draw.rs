//! Random layouts to compare a plan with.

use oases_exec::philox::philox4x32;
use oases_schedule::Layout;

/// Numbers that depend on the seed only.
struct Draws {
    seed: u64,
    drawn: u32,
}

impl Draws {
    /// One of the numbers below `count`.
    fn below(&mut self, count: usize) -> usize {
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        let [word, ..] = philox4x32([self.drawn, 0, 0, 0], key);
        self.drawn += 1;
        ((u64::from(word) * count as u64) >> 32) as usize
    }
}

/// How often a layout is drawn for each that is wanted, before there are taken to be no more.
const TRIES: usize = 200;

/// Layouts of these degrees over a chain of `blocks` blocks, each accepted by `accepts` and none twice; fewer than `count`
/// where there are no more to be found. Each has runs of a mean length of its own, from a block to the whole chain, so
/// that the changes of degree lie anywhere and are few or many.
pub fn layouts(
    count: usize,
    seed: u64,
    degrees: &[u32],
    (group, blocks): (u32, usize),
    mut accepts: impl FnMut(&Layout) -> bool,
) -> Vec<Layout> {
    let mut draws = Draws { seed, drawn: 0 };
    let lengths: Vec<usize> =
        (0..).map(|power| 1 << power).take_while(|length| *length < 2 * blocks).collect();
    let mut layouts: Vec<Layout> = Vec::new();
    for _ in 0..count * TRIES {
        if layouts.len() == count {
            break;
        }
        let layout = draw(&mut draws, degrees, (group, blocks), &lengths);
        if layout.check().is_ok() && !layouts.contains(&layout) && accepts(&layout) {
            layouts.push(layout);
        }
    }
    layouts
}

fn draw(draws: &mut Draws, degrees: &[u32], (group, blocks): (u32, usize), lengths: &[usize]) -> Layout {
    let mean = lengths[draws.below(lengths.len())];
    let ends = degrees[draws.below(degrees.len())];
    let mut degree = degrees[draws.below(degrees.len())];
    let mut chain = vec![ends];
    for _ in 1..blocks - 1 {
        if draws.below(mean) == 0 {
            degree = degrees[draws.below(degrees.len())];
        }
        chain.push(degree);
    }
    chain.push(ends);
    Layout::new(group, chain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_distinct_and_the_seed_decides() {
        let of = |seed| layouts(24, seed, &[1, 2, 4], (4, 18), |_| true);
        let drawn = of(7);
        assert_eq!(drawn.len(), 24);
        assert_eq!(of(7), drawn);
        assert_ne!(of(8), drawn);
        for (index, layout) in drawn.iter().enumerate() {
            assert_eq!(layout.check(), Ok(()));
            assert!(!drawn[..index].contains(layout), "{layout} is there twice");
        }
        let changes = drawn.iter().map(|layout| layout.degrees().chunk_by(|a, b| a == b).count());
        let changes: Vec<usize> = changes.collect();
        assert!(
            changes.iter().any(|runs| *runs <= 3) && changes.iter().any(|runs| *runs >= 8),
            "{changes:?}"
        );
    }

    #[test]
    fn where_there_are_few_all_of_them_are_found() {
        // Of embedding and head together and of each of two blocks, one of two degrees: eight layouts.
        let drawn = layouts(100, 0, &[1, 2], (2, 4), |_| true);
        assert_eq!(drawn.len(), 8);
        let mixed = layouts(100, 0, &[1, 2], (2, 4), |layout| layout.uniform_degree().is_none());
        assert_eq!(mixed.len(), 6);
        assert_eq!(layouts(100, 0, &[2], (2, 4), |_| true).len(), 1);
    }
}
