//! TMP degrees as people read them: which blocks have which, and what happens where they change.

use oases_schedule::{BlockId, Layout, Schedule};
use serde::Serialize;

use crate::config::RunConfig;

/// Neighbouring blocks of one TMP degree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DegreeRun {
    /// Over how many ranks each of them is cut.
    pub degree: u32,
    /// How often each of them is there.
    pub replicas: u32,
    /// The first of them.
    pub first: String,
    /// The last of them.
    pub last: String,
    /// How many they are.
    pub blocks: usize,
}

/// Where the TMP degree changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Border {
    /// The first block behind it.
    pub before: String,
    /// The degree of the block ahead of it.
    pub from: u32,
    /// The degree of the block behind it.
    pub to: u32,
}

/// The degrees of a schedule, run by run.
pub fn runs(schedule: &Schedule) -> Vec<DegreeRun> {
    let chain: Vec<BlockId> = schedule.chain().collect();
    let runs = chain.chunk_by(|left, right| schedule.degree(*left) == schedule.degree(*right));
    let run = |blocks: &[BlockId]| {
        let degree = schedule.degree(blocks[0]);
        DegreeRun {
            degree,
            replicas: schedule.layout.group() / degree,
            first: blocks[0].to_string(),
            last: blocks[blocks.len() - 1].to_string(),
            blocks: blocks.len(),
        }
    };
    runs.map(run).collect()
}

/// The borders of a schedule, in the order of its blocks.
pub fn borders(schedule: &Schedule) -> Vec<Border> {
    let border = |block: BlockId| {
        let ahead = schedule.border(block)?;
        Some(Border { before: block.to_string(), from: schedule.degree(ahead), to: schedule.degree(block) })
    };
    schedule.chain().filter_map(border).collect()
}

/// `TMP degree 2`, `TMP degree 2 in a group of 4`, `TMP degrees 2*3 1*4 2*3`.
pub fn words(layout: &Layout) -> String {
    let degrees = match layout.uniform_degree() {
        Some(degree) => format!("TMP degree {degree}"),
        None => format!("TMP degrees {}", layout.runs()),
    };
    match layout.degrees().contains(&layout.group()) {
        true => degrees,
        false => format!("{degrees} in a group of {}", layout.group()),
    }
}

/// TMP degrees, and where there are several stages, how the chain is cut.
pub fn words_of_all_stages(config: &RunConfig) -> String {
    let degrees = words(&config.layout());
    let stages = config.stages();
    if stages.count() == 1 {
        return degrees;
    }
    let layers = config.model.layers as u32;
    let starts = stages.starts().iter().map(|&start| BlockId::at(start, layers).to_string());
    let starts: Vec<String> = starts.collect();
    format!("{degrees}; {} stages, {}: {}", stages.count(), config.parallel.order, starts.join(" "))
}

impl Border {
    /// What the two passes do at it.
    pub fn meaning(&self) -> &'static str {
        match self.from < self.to {
            true => "forward gathers sequences, backward slices them",
            false => "forward slices sequences, backward gathers them",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oases_schedule::{Request, Variant};

    #[test]
    fn runs_and_borders_follow_the_chain() {
        let layout = Layout::parse("4*2 1*1 2*1 4*2", 6).unwrap();
        let request = Request { layout, ..Request::new(2, 4, 8) };
        let schedule = Variant::find("oases").unwrap().build(&request);
        let runs: Vec<String> = runs(&schedule)
            .iter()
            .map(|run| format!("{}x{} {}..{} {}", run.degree, run.replicas, run.first, run.last, run.blocks))
            .collect();
        assert_eq!(
            runs,
            ["4x1 embed..attn.0 2", "1x4 mlp.0..mlp.0 1", "2x2 attn.1..attn.1 1", "4x1 mlp.1..head 2"]
        );
        let borders = borders(&schedule);
        let places: Vec<(&str, u32, u32)> =
            borders.iter().map(|border| (border.before.as_str(), border.from, border.to)).collect();
        assert_eq!(places, [("mlp.0", 4, 1), ("attn.1", 1, 2), ("mlp.1", 2, 4)]);
        assert!(borders[0].meaning().starts_with("forward slices"));
        assert!(borders[1].meaning().starts_with("forward gathers"));
    }

    #[test]
    fn words_name_the_group_where_no_block_fills_it() {
        for (text, expected) in [
            ("2", "TMP degree 2"),
            ("2 of 4", "TMP degree 2 in a group of 4"),
            ("2*2 1*2", "TMP degrees 2*2 1*2"),
            ("2*2 1*2 of 8", "TMP degrees 2*2 1*2 in a group of 8"),
        ] {
            assert_eq!(words(&Layout::parse(text, 4).unwrap()), expected);
        }
    }
}
