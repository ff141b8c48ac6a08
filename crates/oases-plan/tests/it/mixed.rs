//! A schedule of two TMP degrees, drawn and computed by hand.

use oases_plan::{CollectiveTime, Costs, Error, Nanoseconds, Reach, bound, durations};
use oases_schedule::{Bytes, CollectiveKind, Direction, Instruction, Operation, Schedule};

use crate::support::{planned, simulate};

/// One layer and one part in a group of four: the degree falls from 4 to 2 behind the embedding and rises again before the
/// head. The reductions over replicas (`g.mlp.0`, `g.attn.0`) run under what follows.
const TWO_DEGREES: &str = "\
schedule  by hand
layers    1
tensor    4*1 2*2 4*1
parts     m0=4

forward   embed m0 keep=nothing
start     f.embed.m0 all_reduce @tensor
sync      f.embed.m0
forward   attn.0 m0 reshard
forward   attn.0 m0 keep=all
start     f.attn.0.m0 all_reduce @tensor:2
sync      f.attn.0.m0
forward   mlp.0 m0 keep=all
start     f.mlp.0.m0 all_reduce @tensor:2
sync      f.mlp.0.m0
forward   head m0 reshard
start     f.head.m0:in all_gather @tensor:2/2
sync      f.head.m0:in
forward   head m0 keep=all
start     f.head.m0 all_gather @tensor
sync      f.head.m0
loss      m0
backward  head m0
start     b.head.m0 all_reduce @tensor
sync      b.head.m0
backward  head m0 reshard
backward  mlp.0 m0
start     b.mlp.0.m0 all_reduce @tensor:2
sync      b.mlp.0.m0
start     g.mlp.0 all_reduce @data:2/2
backward  attn.0 m0
start     b.attn.0.m0 all_reduce @tensor:2
sync      b.attn.0.m0
start     g.attn.0 all_reduce @data:2/2
backward  attn.0 m0 reshard
start     b.attn.0.m0:in all_gather @tensor:2/2
sync      b.attn.0.m0:in
sync      g.mlp.0
backward  embed m0
start     g.0 all_reduce @tensor
sync      g.attn.0
sync      g.0
norm
start     norm all_reduce @tensor
sync      norm
step
";

/// So much for each sequence, and one more for each rank of the degree, so that neither can be mistaken. Collectives of all
/// four take 30, of two neighbours 10, of two ranks that are two apart 50.
struct BySize;

impl Costs for BySize {
    fn compute(&self, operation: Operation, sequences: u32, tensor: u32) -> Result<Nanoseconds, Error> {
        let per_sequence = match operation {
            Operation::Forward(..) => 10,
            Operation::Backward(..) => 20,
            Operation::Reshard(Direction::Forward) => 3,
            Operation::Reshard(Direction::Backward) => 5,
            Operation::Complete(_) => panic!("there is one stage"),
            Operation::Loss => 1,
            Operation::Norm => return Ok(Nanoseconds(100 * u64::from(tensor))),
            Operation::Step => return Ok(Nanoseconds(1000 * u64::from(tensor))),
            Operation::Recompute(..) | Operation::Tail(..) => panic!("nothing is recomputed or cut here"),
        };
        Ok(Nanoseconds(per_sequence * u64::from(sequences) + u64::from(tensor)))
    }

    fn collective(&self, _: CollectiveKind, _: Bytes, reach: Reach) -> Result<CollectiveTime, Error> {
        let link = match (reach.ranks, reach.stride) {
            (4, 1) => 30,
            (2, 1) => 10,
            (2, 2) => 50,
            other => panic!("no collective has {other:?}"),
        };
        Ok(CollectiveTime { link: Nanoseconds(link), host: Nanoseconds::ZERO })
    }
}

/// What each instruction takes: at degree 4 it works on 4 sequences, at degree 2 on 2, a reshard on those of the side that it
/// comes from.
///
/// A rank holds 4096/t + 128 elements of the embedding at degree t, 1072/t + 48 of attention, 2112/t + 48 of the MLP and 32 of
/// the head: 3896 at degree 2 and 2076 at degree 4. Of these the inner blocks are 1688 and the ends 1184, so norm takes
/// 200 · 1688/3896 + 400 · 1184/2076 = 314.8 and the step ten times as much.
const DURATIONS: [(&str, u64); 15] = [
    ("forward   embed m0 keep=nothing", 44),
    ("forward   attn.0 m0 reshard", 16),
    ("forward   attn.0 m0 keep=all", 22),
    ("forward   mlp.0 m0 keep=all", 22),
    ("forward   head m0 reshard", 8),
    ("forward   head m0 keep=all", 44),
    ("loss      m0", 8),
    ("backward  head m0", 84),
    ("backward  head m0 reshard", 24),
    ("backward  mlp.0 m0", 42),
    ("backward  attn.0 m0", 42),
    ("backward  attn.0 m0 reshard", 12),
    ("backward  embed m0", 84),
    ("norm", 315),
    ("step", 3148),
];

#[test]
fn instructions_cost_what_their_side_of_a_border_says() {
    let schedule = Schedule::parse(TWO_DEGREES).unwrap();
    let durations = durations(&schedule, &planned(&schedule), &BySize).unwrap();
    assert_eq!(durations.len(), schedule.instructions.len());
    let (mut computing, mut rest) = (Vec::new(), 0);
    for (instruction, duration) in schedule.instructions.iter().zip(durations) {
        match instruction {
            Instruction::Start { .. } | Instruction::Sync { .. } => rest += duration.0,
            _ => computing.push((instruction.to_string(), duration.0)),
        }
    }
    assert_eq!(computing, DURATIONS.map(|(text, duration)| (text.to_owned(), duration)));
    assert_eq!(rest, 0);
}

/// Forward waits for every collective; at the fall there is none. In backward `b.attn` queues behind `g.mlp`, and the gather
/// of the embedding's gradient behind `g.attn`, which is done by the time it is asked for.
///
/// ```text
/// time     0      44    74       90    112   122  144   154      162   212   256   286   294   378   408
/// compute  embed  wait  reshard  attn  wait  mlp  wait  reshard  wait  head  wait  loss  head  wait
/// link            ====                 ====       ====           ====        ====              ====
///
/// time     408      432  474   484   526    544      556      644    728   758   1073  1103  4251
/// compute  reshard  mlp  wait  attn  wait   reshard  wait     embed  wait  norm  wait  step
/// link                   ====  g.mlp=b.attn=g.attn=====gather=        ====        ====
///                              484   534    544        594   644
/// ```
#[test]
fn a_fall_and_a_rise_by_hand() {
    let schedule = Schedule::parse(TWO_DEGREES).unwrap();
    let timeline = simulate(&schedule, &BySize);
    let ends: Vec<u64> = timeline.instructions.iter().map(|interval| interval.end.0).collect();
    let expected = [
        [44, 44, 74].as_slice(),
        &[90, 112, 112, 122, 144, 144, 154],
        &[162, 162, 212, 256, 256, 286, 294],
        &[378, 378, 408, 432],
        &[474, 474, 484, 484],
        &[526, 526, 544, 544, 556, 556, 644, 644],
        &[728, 728, 728, 758],
        &[1073, 1073, 1103, 4251],
    ];
    assert_eq!(ends, expected.concat());
    let on_link = |run: &oases_plan::CollectiveRun| {
        (run.collective.to_string(), run.bytes.0, run.on_link.start.0, run.on_link.end.0)
    };
    let runs: Vec<(String, u64, u64, u64)> = timeline.collectives.iter().map(on_link).collect();
    // 4 sequences of 8 · 16 floats are 2048 B, a replica's share is half of it; head statistics, 4 ranks · 32 tokens · 3 floats.
    // Gradients of an MLP at degree 2: 1056 floats of its shards and a bias of 16.
    for expected in [
        ("f.attn.0.m0", 1024, 112, 122),
        ("f.head.m0:in", 2048, 162, 212),
        ("f.head.m0", 1536, 256, 286),
        // 4288 B of gradients in a slot of whole 64 B for each of two replicas.
        ("g.mlp.0", 4352, 484, 534),
        ("b.attn.0.m0", 1024, 534, 544),
        ("b.attn.0.m0:in", 2048, 594, 644),
    ] {
        let (name, bytes, start, end) = expected;
        assert!(runs.contains(&(name.to_owned(), bytes, start, end)), "{expected:?} in {runs:?}");
    }
    assert_eq!((timeline.compute.0, timeline.communication.0, timeline.exposed.0), (3915, 390, 336));
    let least = bound(&schedule, &planned(&schedule), &BySize).unwrap();
    assert_eq!((least.compute.0, least.communication.0), (3915, 390));
}
