//! A report for the tests of this module: schedules executed by a model of two streams, with DESIGN's costs. A block's
//! forward and recomputation take f, its backward 2f, its all-reduce c; a sub-batch takes its share of each.

use std::collections::BTreeMap;

use super::{BenchReport, LinkRow, Row, ScheduleNote, Span, SpanKind, Timeline, TimelinePair, Track};

/// Milliseconds of a block's forward, for the full batch.
pub const FORWARD_MS: f64 = 10.0;
const BLOCKS: usize = 8;
const MICRO_BATCHES: usize = 4;
/// Two sub-batches, where there are any.
const PARTS: usize = 2;

/// The schedules of the sample, each with what it is.
pub const SCHEDULES: [(&str, &str); 6] = [
    ("megatron", "waits for every all-reduce, recomputes layer by layer"),
    ("merak", "sub-batches overlap within each pass, with barriers between"),
    ("cross-pass", "hides all-reduces across passes, recomputes with its all-reduces"),
    ("oases", "hides all-reduces across passes, recomputes between them only"),
    ("domino", "batch halves without recomputation, barriers between passes"),
    ("oases-keep-all", "hides all-reduces across passes, keeps everything"),
];

/// The ratios of the sample.
pub const RATIOS: [f64; 5] = [0.5, 1.0, 1.5, 2.0, 3.0];

/// One step of a rank, as a list of what its compute stream is told.
#[derive(Default)]
struct Program {
    instructions: Vec<Instruction>,
}

enum Instruction {
    Compute { kind: SpanKind, name: String, part: usize, cost: f64 },
    Start { name: String, part: usize, share: f64 },
    Sync { name: String },
}

impl Program {
    fn compute(
        &mut self,
        kind: SpanKind,
        word: &str,
        block: usize,
        place: (usize, Option<usize>),
        cost: f64,
    ) {
        let share = if place.1.is_some() { 1.0 / PARTS as f64 } else { 1.0 };
        let name = format!("{word} {} {}", block_name(block), part_name(place));
        let part = place.1.unwrap_or(0);
        self.instructions.push(Instruction::Compute { kind, name, part, cost: cost * share });
    }

    fn start(&mut self, pass: &str, block: usize, place: (usize, Option<usize>)) {
        let share = if place.1.is_some() { 1.0 / PARTS as f64 } else { 1.0 };
        let name = collective(pass, block, place);
        self.instructions.push(Instruction::Start { name, part: place.1.unwrap_or(0), share });
    }

    fn sync(&mut self, pass: &str, block: usize, place: (usize, Option<usize>)) {
        self.instructions.push(Instruction::Sync { name: collective(pass, block, place) });
    }

    /// Two streams, collectives in the order of their starts. `drift` stretches the n-th duration.
    fn run(&self, all_reduce_ms: f64, drift: impl Fn(usize) -> f64) -> Timeline {
        let (mut now, mut link_free) = (0.0f64, 0.0f64);
        let mut done = BTreeMap::new();
        let mut spans = Vec::new();
        let mut push = |track, kind, name: &str, start_ms, end_ms, part| {
            spans.push(Span { track, kind, name: name.to_owned(), start_ms, end_ms, part });
        };
        for (index, instruction) in self.instructions.iter().enumerate() {
            match instruction {
                Instruction::Compute { kind, name, part, cost } => {
                    let end = now + cost * FORWARD_MS * drift(index);
                    push(Track::Compute, *kind, name, now, end, *part);
                    now = end;
                }
                Instruction::Start { name, part, share } => {
                    let start = link_free.max(now);
                    link_free = start + all_reduce_ms * share * drift(index);
                    push(Track::Communication, SpanKind::Collective, name, start, link_free, *part);
                    done.insert(name.clone(), link_free);
                }
                Instruction::Sync { name } => {
                    let end = done.get(name).copied().unwrap_or(now).max(now);
                    if end > now {
                        push(Track::Waiting, SpanKind::Wait, name, now, end, 0);
                    }
                    now = end;
                }
            }
        }
        Timeline { step_ms: now, spans }
    }
}

fn block_name(block: usize) -> String {
    format!("{}.{}", ["attn", "mlp"][block % 2], block / 2)
}

fn part_name((micro_batch, part): (usize, Option<usize>)) -> String {
    let parts = [".a", ".b"];
    format!("m{micro_batch}{}", part.map_or("", |part| parts[part]))
}

fn collective(pass: &str, block: usize, place: (usize, Option<usize>)) -> String {
    format!("{pass}.{}.{}", block_name(block), part_name(place))
}

/// What makes the schedules differ.
struct Style {
    parts: bool,
    /// Waits for every all-reduce before anything else.
    blocking: bool,
    /// Waits for all of them at the end of a pass or a layer's recomputation.
    barriers: bool,
    recompute: bool,
    /// Recomputation repeats the all-reduces.
    recompute_communicates: bool,
}

fn style(schedule: &str) -> Style {
    let is = |names: &[&str]| names.contains(&schedule);
    Style {
        parts: !is(&["megatron"]),
        blocking: is(&["megatron"]),
        barriers: is(&["merak", "domino"]),
        recompute: !is(&["domino", "oases-keep-all"]),
        recompute_communicates: is(&["megatron", "merak", "cross-pass"]),
    }
}

fn program(schedule: &str) -> Program {
    let style = style(schedule);
    let parts: Vec<Option<usize>> = if style.parts { (0..PARTS).map(Some).collect() } else { vec![None] };
    let mut program = Program::default();
    for micro_batch in 0..MICRO_BATCHES {
        let places: Vec<(usize, Option<usize>)> = parts.iter().map(|part| (micro_batch, *part)).collect();
        forward(&mut program, &style, &places);
        backward(&mut program, &style, &places);
    }
    program.compute(SpanKind::Other, "step", 0, (0, None), 2.0);
    program
}

fn forward(program: &mut Program, style: &Style, places: &[(usize, Option<usize>)]) {
    for block in 0..BLOCKS {
        for &place in places {
            if block > 0 {
                program.sync("f", block - 1, place);
            }
            program.compute(SpanKind::Forward, "forward", block, place, 1.0);
            program.start("f", block, place);
            if style.blocking {
                program.sync("f", block, place);
            }
        }
    }
    for &place in places.iter().filter(|_| style.barriers) {
        program.sync("f", BLOCKS - 1, place);
    }
}

fn backward(program: &mut Program, style: &Style, places: &[(usize, Option<usize>)]) {
    for layer in (0..BLOCKS / 2).rev() {
        let blocks = [2 * layer, 2 * layer + 1];
        if style.recompute_communicates {
            recompute_layer(program, style, blocks, places);
        }
        for block in blocks.into_iter().rev() {
            for &place in places {
                if style.recompute && !style.recompute_communicates {
                    program.compute(SpanKind::Recompute, "recompute", block, place, 1.0);
                }
                match block + 1 == BLOCKS {
                    true => program.sync("f", block, place),
                    false => program.sync("b", block + 1, place),
                }
                program.compute(SpanKind::Backward, "backward", block, place, 2.0);
                program.start("b", block, place);
                if style.blocking {
                    program.sync("b", block, place);
                }
            }
        }
        for &place in places.iter().filter(|_| style.barriers) {
            program.sync("b", blocks[0], place);
        }
    }
    for &place in places {
        program.sync("b", 0, place);
    }
}

fn recompute_layer(
    program: &mut Program,
    style: &Style,
    blocks: [usize; 2],
    places: &[(usize, Option<usize>)],
) {
    for block in blocks {
        for &place in places {
            if block == blocks[1] {
                program.sync("r", blocks[0], place);
            }
            program.compute(SpanKind::Recompute, "recompute", block, place, 1.0);
            program.start("r", block, place);
            if style.blocking {
                program.sync("r", block, place);
            }
        }
    }
    for &place in places.iter().filter(|_| style.barriers) {
        program.sync("r", blocks[1], place);
    }
}

/// A repeatable deviation between −1 and 1.
fn noise(seed: usize) -> f64 {
    let mixed = (seed as u64 + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// A full report of the sample's schedules and ratios.
pub fn report() -> BenchReport {
    let names: Vec<(String, String)> =
        SCHEDULES.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect();
    report_of(&names, &RATIOS)
}

/// A report of schedules (a name behind which a `#` and more may stand) and ratios.
pub fn report_of(schedules: &[(String, String)], ratios: &[f64]) -> BenchReport {
    let links: Vec<LinkRow> = ratios.iter().map(|ratio| link(*ratio)).collect();
    let mut rows = Vec::new();
    let mut timelines = Vec::new();
    for link in &links {
        for (index, (name, _)) in schedules.iter().enumerate() {
            let (row, pair) = cell(name, index, link);
            rows.push(row);
            if link.comm_ratio == Some(2.0) || ratios.len() == 1 {
                timelines.push(pair);
            }
        }
    }
    fill_speedups(&mut rows);
    BenchReport {
        pipeline: 1,
        title: "GPT on two ranks".to_owned(),
        machine: "2 cores of an Intel Xeon at 2.1 GHz (AVX-512), 8 GiB, Linux 6.1".to_owned(),
        command: "oases bench configs/bench.toml --html report.html".to_owned(),
        version: "oases 0.1.0 (rustc 1.90.0)".to_owned(),
        model: [
            ("model", "GPT, 4 layers, hidden 512, 8 heads"),
            ("batch", "4 micro-batches of 8 sequences of 256 tokens"),
            ("ranks", "2, tensor model parallel"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec(),
        rounds: 7,
        interrupted: None,
        schedules: schedules
            .iter()
            .map(|(name, description)| ScheduleNote { name: name.clone(), description: description.clone() })
            .collect(),
        links,
        rows,
        timelines,
    }
}

fn link(ratio: f64) -> LinkRow {
    LinkRow {
        comm_ratio: Some(ratio),
        label: format!("ratio {ratio}"),
        bandwidth: format!("{:.3} Gbit/s", 1.6 / ratio),
        latency: "50 us".to_owned(),
        all_reduce_ms: ratio * FORWARD_MS * 1.004,
        block_forward_ms: FORWARD_MS,
    }
}

fn cell(name: &str, index: usize, link: &LinkRow) -> (Row, TimelinePair) {
    let kind = name.split('#').next().unwrap_or(name);
    let ratio = link.comm_ratio.unwrap_or(1.0);
    let program = program(kind);
    let all_reduce_ms = ratio * FORWARD_MS;
    let predicted = program.run(all_reduce_ms, |_| 1.0);
    let seed = index * 1000 + (ratio * 100.0) as usize;
    let pace = 1.015 + 0.03 * noise(seed) + 0.002 * index as f64;
    let measured = program.run(all_reduce_ms, |at| pace * (1.0 + 0.06 * noise(seed * 7 + at)));
    let style = style(kind);
    let waits = |timeline: &Timeline| -> f64 {
        let waits = timeline.spans.iter().filter(|span| span.track == Track::Waiting);
        waits.map(|span| span.end_ms - span.start_ms).sum()
    };
    let computing = if style.recompute { 4.0 } else { 3.0 };
    let bound_ms =
        FORWARD_MS * (BLOCKS * MICRO_BATCHES) as f64 * f64::max(computing, 2.0 * ratio) + 2.0 * FORWARD_MS;
    let kept = if style.recompute { 1.0 } else { 2.6 };
    let row = Row {
        schedule: name.to_owned(),
        comm_ratio: link.comm_ratio,
        link: link.label.clone(),
        step_ms: measured.step_ms,
        step_min_ms: measured.step_ms * 0.985,
        step_max_ms: measured.step_ms * (1.03 + 0.02 * noise(seed + 5)),
        predicted_step_ms: Some(predicted.step_ms),
        speedup: None,
        predicted_speedup: None,
        bound_ms: Some(bound_ms),
        bound_ratio: Some(measured.step_ms / bound_ms),
        exposed_comm_ms: waits(&measured),
        predicted_exposed_comm_ms: Some(waits(&predicted)),
        utilisation: 1.0 - waits(&measured) / measured.step_ms,
        arena_bytes: (kept * 61.0 * 1048576.0) as u64 + 4096 * index as u64,
        loss: 5.545_177_4,
        rounds: 7,
    };
    let pair = TimelinePair {
        schedule: name.to_owned(),
        link: link.label.clone(),
        measured: Some(measured),
        predicted: Some(predicted),
    };
    (row, pair)
}

/// Speedups over the baseline of the same link, where it is there.
pub fn fill_speedups(rows: &mut [Row]) {
    let baselines: Vec<Row> = rows.iter().filter(|row| row.schedule == super::BASELINE).cloned().collect();
    for row in rows {
        let baseline = baselines.iter().find(|baseline| baseline.link == row.link);
        row.speedup = baseline.map(|baseline| baseline.step_ms / row.step_ms);
        row.predicted_speedup =
            baseline.and_then(|baseline| Some(baseline.predicted_step_ms? / row.predicted_step_ms?));
    }
}
