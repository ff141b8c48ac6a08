//! Layouts to test with: uniform ones, and ones that change inside a layer, at the ends, once and at every block.

use oases_schedule::random::Numbers;
use oases_schedule::{Layout, Request, Schedule};

/// Layers of the chain and its degrees.
pub(crate) const LAYOUTS: [(u32, &str); 16] = [
    (1, "1"),
    (2, "2"),
    (1, "4"),
    // All blocks replicated.
    (1, "1 of 2"),
    (2, "1 of 4"),
    (1, "2 of 4"),
    // Attention against perceptron; ends higher, ends lower.
    (1, "2*1 1*1 2*2"),
    (1, "2*2 1*1 2*1"),
    (1, "1*1 2*1 1*2"),
    (1, "1*2 2*1 1*1"),
    // One border at each end, and at the layers.
    (2, "2*1 1*4 2*1"),
    (2, "1*1 2*4 1*1"),
    (2, "1*3 2*2 1*1"),
    // Everything changes, in both directions, by more than a factor of two, and never up to the whole group.
    (2, "4*1 1*1 4*1 2*1 1*1 4*1"),
    (2, "1*1 4*1 2*1 1*1 2*1 1*1 of 4"),
    (2, "1*1 2*1 1*2 2*1 1*1 of 4"),
];

/// Small ones of every kind, for tests with many schedules of each.
pub(crate) const FEW: [(u32, &str); 6] = [
    (1, "2"),
    (1, "1 of 2"),
    (1, "2*1 1*1 2*2"),
    (1, "1*2 2*1 1*1"),
    (2, "1*1 2*1 1*2 2*1 1*1"),
    (1, "2*1 1*1 4*1 2*1"),
];

/// What to build over a layout, in sub-batches of unequal sizes where there are several.
pub(crate) fn request((layers, layout): (u32, &str), micro_batches: u32, sub_batches: u32) -> Request {
    let layout = Layout::parse(layout, Schedule::blocks(layers)).unwrap();
    over(layers, layout, micro_batches, sub_batches)
}

/// The same over a layout that has no text here.
pub(crate) fn over(layers: u32, layout: Layout, micro_batches: u32, sub_batches: u32) -> Request {
    let sequences = layout.granularity() * (2 * sub_batches - 1);
    Request { layout, micro_batches, sub_batches, ..Request::new(layers, 1, sequences) }
}

/// A random degree for every block of a chain, each a power of two up to a group of `group` ranks.
pub(crate) fn drawn(numbers: &mut Numbers, layers: u32, group: u32) -> Layout {
    let degrees: Vec<u32> = (0..).map(|power| 1 << power).take_while(|&degree| degree <= group).collect();
    let mut drawn: Vec<u32> = (0..Schedule::blocks(layers)).map(|_| numbers.pick(&degrees)).collect();
    let ends = drawn[0];
    *drawn.last_mut().unwrap() = ends;
    Layout::new(group, drawn)
}

#[test]
fn layouts_have_one_spelling() {
    // Text, group, degrees, spelling.
    let table: [(&str, u32, &[u32], &str); 9] = [
        ("2", 2, &[2, 2, 2, 2], "2"),
        ("2*4", 2, &[2, 2, 2, 2], "2"),
        ("2 of 8", 8, &[2, 2, 2, 2], "2 of 8"),
        ("8 of 8", 8, &[8, 8, 8, 8], "8"),
        ("4*1 2*2 4*1", 4, &[4, 2, 2, 4], "4*1 2*2 4*1"),
        ("4*1 2*1 2*1  4*1\tof  4", 4, &[4, 2, 2, 4], "4*1 2*2 4*1"),
        ("1*1 2*2 1*1 of 4", 4, &[1, 2, 2, 1], "1*1 2*2 1*1 of 4"),
        // Not sound, and still told apart from others.
        ("4 of 2", 2, &[4, 4, 4, 4], "4 of 2"),
        ("1*1 3*3", 3, &[1, 3, 3, 3], "1*1 3*3"),
    ];
    for (text, group, degrees, spelling) in table {
        let layout = Layout::parse(text, 4).unwrap();
        assert_eq!((layout.group(), layout.degrees()), (group, degrees), "{text}");
        assert_eq!(layout.to_string(), spelling);
        assert_eq!(Layout::parse(spelling, 4), Ok(layout));
    }
    let words = [
        "",
        "of",
        "of 2",
        "2 of",
        "2 of 0",
        "0 of 2",
        "2 of 4 of 8",
        "2*4 of",
        "2 2",
        "2*5",
        "2*3",
        "*4",
        "2*",
    ];
    for text in words.iter().chain(&["4294967296", "2*4 of 4294967296", "02", "2*+4", "-1", "2*4,"]) {
        assert!(Layout::parse(text, 4).is_err(), "`{text}`");
    }
}

/// Against brute force: every replica of every block gets as many whole sequences.
#[test]
fn granularity_is_the_least_number_of_sequences_that_all_replicas_can_share() {
    let mut numbers = Numbers::new(3);
    for group in 1..=24_u32 {
        for _ in 0..20 {
            let divisors: Vec<u32> = (1..=group).filter(|&degree| group.is_multiple_of(degree)).collect();
            let layout = Layout::new(group, (0..4).map(|_| numbers.pick(&divisors)).collect());
            let shared = |sequences: u32| {
                layout.degrees().iter().all(|degree| (sequences * degree).is_multiple_of(group))
            };
            let least = (1..).find(|&sequences| shared(sequences)).unwrap();
            assert_eq!(layout.granularity(), least, "{layout}");
        }
    }
}
