//! The published table: times of an attention and an MLP block by hidden size, TMP degree and batch.

use std::collections::BTreeMap;

use oases_schedule::Family;

use crate::error::Error;
use crate::measured::Points;

/// Times of the two blocks of a layer on one rank, in milliseconds. Backward is without recomputation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockTimes {
    /// Forward of attention.
    pub attn_forward_ms: f64,
    /// Backward of attention.
    pub attn_backward_ms: f64,
    /// Forward of the perceptron.
    pub mlp_forward_ms: f64,
    /// Backward of the perceptron.
    pub mlp_backward_ms: f64,
}

impl BlockTimes {
    /// Of one kind of block. Panics for embedding and head, which no table has.
    pub fn forward_ms(&self, family: Family) -> f64 {
        match family {
            Family::Attn => self.attn_forward_ms,
            Family::Mlp => self.mlp_forward_ms,
            Family::Embed | Family::Head => panic!("only layers are published"),
        }
    }

    /// Of one kind of block. Panics for embedding and head, which no table has.
    pub fn backward_ms(&self, family: Family) -> f64 {
        match family {
            Family::Attn => self.attn_backward_ms,
            Family::Mlp => self.mlp_backward_ms,
            Family::Embed | Family::Head => panic!("only layers are published"),
        }
    }

    /// Forward and backward of both blocks.
    pub fn layer_ms(&self) -> f64 {
        self.attn_forward_ms + self.attn_backward_ms + self.mlp_forward_ms + self.mlp_backward_ms
    }

    fn from_columns(columns: [f64; 4]) -> BlockTimes {
        let [attn_forward_ms, attn_backward_ms, mlp_forward_ms, mlp_backward_ms] = columns;
        BlockTimes { attn_forward_ms, attn_backward_ms, mlp_forward_ms, mlp_backward_ms }
    }

    fn columns(&self) -> [f64; 4] {
        [self.attn_forward_ms, self.attn_backward_ms, self.mlp_forward_ms, self.mlp_backward_ms]
    }
}

/// Per-block times by size.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedTable {
    /// By hidden size, TMP degree and batch; `None` where the authors could not measure.
    rows: BTreeMap<(u32, u32, u32), Option<BlockTimes>>,
}

/// Columns of a row: three sizes, four times, the time of an all-reduce, and memory.
const COLUMNS: usize = 9;

impl PublishedTable {
    /// Reads the CSV: `hidden, tmp_degree, batch`, the four times in milliseconds, `all_reduce_ms` and `runtime_memory_mb`,
    /// with -1 in all of them for what could not be measured. Lines that begin with `#`, and the line of names, are passed
    /// over. The last two columns are not kept: the all-reduce was measured over all 32 ranks whatever the degree.
    pub fn parse(text: &str) -> Result<PublishedTable, Error> {
        let mut rows = BTreeMap::new();
        let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#') && !line.is_empty());
        for (index, line) in lines.filter(|(_, line)| !line.starts_with("hidden,")) {
            let bad = |problem: String| Error::Profile { entry: format!("line {}", index + 1), problem };
            let (key, times) = row(line).map_err(bad)?;
            if rows.insert(key, times).is_some() {
                return Err(bad("the size is there twice".to_owned()));
            }
        }
        match rows.is_empty() {
            true => {
                Err(Error::Profile { entry: "the table".to_owned(), problem: "it has no rows".to_owned() })
            }
            false => Ok(PublishedTable { rows }),
        }
    }

    /// The greatest hidden size that was measured.
    pub fn greatest_hidden(&self) -> u32 {
        self.rows.keys().next_back().map_or(0, |(hidden, ..)| *hidden)
    }

    /// All that was measured: hidden size, TMP degree, batch and times, ascending.
    pub fn measured(&self) -> impl Iterator<Item = ([u32; 3], BlockTimes)> {
        self.rows
            .iter()
            .filter_map(|(&(hidden, degree, batch), times)| Some(([hidden, degree, batch], (*times)?)))
    }

    /// The batches that were measured at a hidden size and a degree, ascending.
    pub fn batches(&self, hidden: u32, degree: u32) -> Vec<u32> {
        self.of(hidden, degree).map(|(batch, _)| batch).collect()
    }

    /// Times at a size. A batch between two measured ones is interpolated; everything else that was not measured is an
    /// error.
    pub fn times(&self, hidden: u32, degree: u32, batch: u32) -> Result<BlockTimes, Error> {
        let what = || format!("a layer of hidden size {hidden} at TMP degree {degree}, batch {batch}");
        let missing = |measured: String| Err(Error::NotMeasured { what: what(), measured });
        match self.rows.get(&(hidden, degree, batch)) {
            Some(Some(times)) => return Ok(*times),
            Some(None) => {
                return missing("the table has -1 for it: out of memory or not divisible".to_owned());
            }
            None => {}
        }
        let column = |index: usize| {
            let points =
                self.of(hidden, degree).map(|(batch, times)| (u64::from(batch), times.columns()[index]));
            Points::new(points)
        };
        let values = [0, 1, 2, 3].map(|index| column(index).at(u64::from(batch)));
        match values {
            [Some(a), Some(b), Some(c), Some(d)] => Ok(BlockTimes::from_columns([a, b, c, d])),
            _ if column(0).is_empty() => missing("the table has no batch of that size and degree".to_owned()),
            _ => missing(format!("the table has batches {}", column(0).sizes())),
        }
    }

    fn of(&self, hidden: u32, degree: u32) -> impl Iterator<Item = (u32, BlockTimes)> {
        let range = self.rows.range((hidden, degree, 0)..=(hidden, degree, u32::MAX));
        range.filter_map(|(&(.., batch), times)| Some((batch, (*times)?)))
    }
}

type Row = ((u32, u32, u32), Option<BlockTimes>);

fn row(line: &str) -> Result<Row, String> {
    let cells: Vec<&str> = line.split(',').map(str::trim).collect();
    if cells.len() != COLUMNS {
        return Err(format!("it has {} columns instead of {COLUMNS}", cells.len()));
    }
    let size = |index: usize| match cells[index].parse::<u32>() {
        Ok(size) if size > 0 => Ok(size),
        _ => Err(format!("`{}` is not a size", cells[index])),
    };
    let key = (size(0)?, size(1)?, size(2)?);
    let mut values = [0.0; COLUMNS - 3];
    for (value, cell) in values.iter_mut().zip(&cells[3..]) {
        *value = cell.parse().map_err(|_| format!("`{cell}` is not a number"))?;
    }
    if values.iter().all(|value| *value == -1.0) {
        return Ok((key, None));
    }
    match values.iter().position(|value| !(*value > 0.0 && *value <= 1e9)) {
        Some(index) => Err(format!("`{}` is neither a time nor -1 in a row of -1", cells[3 + index])),
        None => Ok((key, Some(BlockTimes::from_columns([values[0], values[1], values[2], values[3]])))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "\
# A comment.
hidden,tmp_degree,batch,attn_forward_ms,attn_backward_ms,mlp_forward_ms,mlp_backward_ms,all_reduce_ms,runtime_memory_mb
1024,2,4,2.0,4.0,1.0,3.0,9.0,50
1024,2,8,4.0,8.0,3.0,5.0,9.0,90
1024,2,16,-1,-1,-1,-1,-1,-1
2048,1,1,-1,-1,-1,-1,-1,-1
";

    fn table() -> PublishedTable {
        PublishedTable::parse(SMALL).unwrap()
    }

    #[test]
    fn batches_between_measured_ones_are_on_the_line_between_them() {
        let times = |batch| table().times(1024, 2, batch).unwrap().columns();
        assert_eq!(times(4), [2.0, 4.0, 1.0, 3.0]);
        assert_eq!(times(6), [3.0, 6.0, 2.0, 4.0]);
        assert_eq!(times(8), [4.0, 8.0, 3.0, 5.0]);
        assert_eq!(table().batches(1024, 2), [4, 8]);
        assert_eq!(table().measured().count(), 2);
        assert_eq!(table().greatest_hidden(), 2048);
    }

    #[test]
    fn what_is_missing_is_an_error_and_never_zero() {
        for (hidden, degree, batch, message) in [
            (
                1024,
                2,
                16,
                "batch 16 was not measured; the table has -1 for it: out of memory or not divisible",
            ),
            (2048, 1, 1, "batch 1 was not measured; the table has -1 for it: out of memory or not divisible"),
            (1024, 2, 2, "batch 2 was not measured; the table has batches 4 and 8"),
            (1024, 2, 12, "batch 12 was not measured; the table has batches 4 and 8"),
            (1024, 4, 4, "batch 4 was not measured; the table has no batch of that size and degree"),
            (2048, 1, 4, "batch 4 was not measured; the table has no batch of that size and degree"),
        ] {
            let error = table().times(hidden, degree, batch).unwrap_err().to_string();
            let what = format!("a layer of hidden size {hidden} at TMP degree {degree}, ");
            assert_eq!(error, format!("{what}{message}"));
        }
    }

    #[test]
    fn rows_that_cannot_be_are_told_with_their_line() {
        for (from, into, message) in [
            (",9.0,50", "", "line 3: it has 7 columns instead of 9"),
            ("2.0", "fast", "line 3: `fast` is not a number"),
            ("2.0", "0", "line 3: `0` is neither a time nor -1 in a row of -1"),
            ("2.0", "NaN", "line 3: `NaN` is neither a time nor -1 in a row of -1"),
            ("2.0", "-1", "line 3: `-1` is neither a time nor -1 in a row of -1"),
            ("1024,2,4", "1024,0,4", "line 3: `0` is not a size"),
            ("1024,2,4", "1024,2,-4", "line 3: `-4` is not a size"),
            ("1024,2,8", "1024,2,4", "line 4: the size is there twice"),
        ] {
            let error = PublishedTable::parse(&SMALL.replacen(from, into, 1)).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
        assert_eq!(
            PublishedTable::parse("# nothing\n").unwrap_err().to_string(),
            "the table: it has no rows"
        );
    }
}
