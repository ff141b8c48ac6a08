//! Numbers in place of tensors: any, where a block computes; linear, where collectives and gradients add up.
//!
//! So a sum over the wrong ranks, a term that is added twice and a shard that is added to another one are not looked for:
//! they come out as other numbers.

use std::hash::{DefaultHasher, Hash, Hasher};

use oases_schedule::{Axis, CollectiveKind, Grouping};

/// What stands for a row of a tensor, or for a gradient.
pub(crate) type Number = u64;

/// The rows of a buffer, rank by rank.
pub(crate) type Rows = Vec<Vec<Number>>;

/// The number of whatever is computed from `parts` and is not linear in them.
pub(crate) fn number(parts: impl Hash) -> Number {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

/// What the rank at `place` of `degree` contributes to a sum that comes to `whole`.
pub(crate) fn term(whole: Number, place: usize, degree: usize) -> Number {
    let drawn = |place: usize| number(("term", whole, place, degree));
    match place + 1 < degree {
        true => drawn(place),
        false => (0..place).map(drawn).fold(whole, Number::wrapping_sub),
    }
}

/// Shard `place` of `degree`: another number for each, and linear.
pub(crate) fn shard(whole: Number, place: usize, degree: usize) -> Number {
    whole.wrapping_mul(mark(place, degree))
}

/// What `part` is the shard of.
pub(crate) fn unsharded(part: Number, place: usize, degree: usize) -> Number {
    // Newton's iteration for the inverse modulo 2^64: each step doubles the 3 bits that are right at first.
    let mark = mark(place, degree);
    let refined = |inverse: Number| inverse.wrapping_mul(Number::wrapping_sub(2, mark.wrapping_mul(inverse)));
    part.wrapping_mul((0..5).fold(mark, |inverse, _| refined(inverse)))
}

fn mark(place: usize, degree: usize) -> Number {
    number(("shard", place, degree)) | 1
}

/// The sum of several numbers.
pub(crate) fn sum(numbers: impl IntoIterator<Item = Number>) -> Number {
    numbers.into_iter().fold(0, Number::wrapping_add)
}

/// The ranks with which `rank` exchanges, in their order, itself among them. On the other axes there is one rank only.
pub(crate) fn members(
    rank: usize,
    ranks: usize,
    axis: Axis,
    grouping: Grouping,
) -> Result<Vec<usize>, String> {
    let members = match (axis, grouping) {
        (Axis::Tensor | Axis::Data, Grouping::Whole) => (0..ranks).collect(),
        (Axis::Tensor | Axis::Data, Grouping::Cut { size, stride }) => {
            let [size, stride] = [size as usize, stride as usize];
            let span = size * stride;
            if span == 0 || !ranks.is_multiple_of(span) {
                return Err(format!("{ranks} ranks do not fall into such groups"));
            }
            let first = rank / span * span + rank % stride;
            (0..size).map(|position| first + position * stride).collect()
        }
        (_, Grouping::Whole) => vec![rank],
        (_, Grouping::Cut { .. }) => return Err("one rank does not fall into groups".into()),
    };
    if members == [rank] { Err("there is nobody to exchange with".into()) } else { Ok(members) }
}

/// What a collective makes of a buffer: the sum of all ranks' rows, or every rank's own slot of them.
pub(crate) fn exchanged(
    rows: &Rows,
    kind: CollectiveKind,
    axis: Axis,
    grouping: Grouping,
) -> Result<Rows, String> {
    let of_rank = |rank: usize| {
        let members = members(rank, rows.len(), axis, grouping)?;
        let count = rows[rank].len();
        if members.iter().any(|&member| rows[member].len() != count) {
            return Err("the buffers differ in size".to_owned());
        }
        match kind {
            CollectiveKind::AllReduce => {
                Ok((0..count).map(|row| sum(members.iter().map(|&member| rows[member][row]))).collect())
            }
            CollectiveKind::ReduceScatter if !count.is_multiple_of(members.len()) => {
                Err("the buffer has no slot for every rank".to_owned())
            }
            // In the slots of others, every rank finds there what happens to be in its memory.
            CollectiveKind::ReduceScatter => {
                let slot = count / members.len();
                let own = members.iter().position(|&member| member == rank);
                let value = |row: usize| match own == Some(row / slot) {
                    true => sum(members.iter().map(|&member| rows[member][row])),
                    false => number(("memory", rank, row)),
                };
                Ok((0..count).map(value).collect())
            }
            CollectiveKind::Send | CollectiveKind::Recv => Err("that is between stages".to_owned()),
            CollectiveKind::AllGather if !count.is_multiple_of(members.len()) => {
                Err("the buffer has no slot for every rank".to_owned())
            }
            CollectiveKind::AllGather => {
                let slot = count / members.len();
                let own = |(position, &member): (usize, &usize)| &rows[member][position * slot..][..slot];
                Ok(members.iter().enumerate().flat_map(own).copied().collect())
            }
        }
    };
    (0..rows.len()).map(of_rank).collect()
}

#[test]
fn terms_add_up_and_shards_can_be_told_apart() {
    for degree in [1, 2, 4, 8] {
        let whole = number(("any", degree));
        assert_eq!(sum((0..degree).map(|place| term(whole, place, degree))), whole);
        for place in 0..degree {
            let other = number("other");
            let both = shard(whole, place, degree).wrapping_add(shard(other, place, degree));
            assert_eq!(unsharded(both, place, degree), whole.wrapping_add(other));
            assert_eq!(
                unsharded(shard(whole, place, degree), (place + 1) % degree, degree) == whole,
                degree == 1
            );
        }
    }
}

#[test]
fn exchanges_over_groups() {
    let rows: Rows = (0..8).map(|rank| vec![10 * rank, 10 * rank + 1]).collect();
    let far = Grouping::Cut { size: 2, stride: 4 };
    let reduced = exchanged(&rows, CollectiveKind::AllReduce, Axis::Tensor, far).unwrap();
    assert_eq!([&reduced[1], &reduced[5]], [&[60, 62]; 2]);
    let gathered = exchanged(&rows, CollectiveKind::AllGather, Axis::Tensor, far).unwrap();
    assert_eq!([&gathered[3], &gathered[7]], [&[30, 71]; 2]);
    let near =
        exchanged(&rows, CollectiveKind::AllGather, Axis::Tensor, Grouping::Cut { size: 2, stride: 1 });
    assert_eq!(near.unwrap()[6..], [[60, 71], [60, 71]]);
}
