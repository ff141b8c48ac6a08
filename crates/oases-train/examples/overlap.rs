//! Times schedules of two ranks over an emulated link whose all-reduce takes a given multiple of a block's forward.
//!
//! `overlap [RATIO] [ROUNDS]` prints medians and the ratio of `megatron` to each.

use oases_exec::comm::Link;
use oases_schedule::{BlockId, Instruction, Layout, Model, Request, Schedule, Variant};
use oases_train::metrics::median;
use oases_train::trial::{Sample, Trial};
use std::time::Duration;

const BATCH: u32 = 4;

fn request(model: &Model, sub_batches: u32) -> Request {
    let layout = Layout::uniform(2, Schedule::blocks(model.layers));
    Request { layers: model.layers, layout, micro_batches: 1, sub_batches, sequences: BATCH }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let ratio: f64 = arguments.next().unwrap_or("2".into()).parse()?;
    let rounds: usize = arguments.next().unwrap_or("7".into()).parse()?;
    let model = Model::gpt(4, 512, 8, 256, 256);

    // f: the mean forward of a block on the whole batch, with both ranks computing.
    let whole = [Variant::find("none").ok_or("none")?.build(&request(&model, 1))];
    let trial = Trial { model: &model, tensor: 2, schedules: &whole, link: None, warmup: 2, rounds };
    let samples = trial.run()?.remove(0);
    let forward_ms =
        median(&mut samples.iter().map(|sample| mean_forward_ms(&whole[0], sample)).collect::<Vec<_>>());
    let bytes = f64::from(BATCH) * (model.sequence * model.hidden * 4) as f64;
    let bandwidth_bytes_per_s = bytes / (ratio * forward_ms / 1e3);
    let link = Link { bandwidth_bytes_per_s, latency: Duration::ZERO };
    println!(
        "block forward f = {forward_ms:.2} ms, all-reduce c = {ratio} f over a link of {:.1} MB/s",
        bandwidth_bytes_per_s / 1e6
    );

    let cases = [("megatron", 1), ("megatron", 2), ("cross-pass", 2), ("oases", 2), ("oases", 4)];
    let schedules: Vec<Schedule> = cases
        .iter()
        .map(|(name, sub)| Variant::find(name).expect("a schedule").build(&request(&model, *sub)))
        .collect();
    let trial =
        Trial { model: &model, tensor: 2, schedules: &schedules, link: Some(link), warmup: 1, rounds };
    let samples = trial.run()?;
    let of = |samples: &[Sample], value: fn(&Sample) -> u64| {
        median(&mut samples.iter().map(|sample| value(sample) as f64 / 1e6).collect::<Vec<_>>())
    };
    let reference = of(&samples[0], |sample| sample.step_ns);
    for ((name, sub), samples) in cases.iter().zip(&samples) {
        let step = of(samples, |sample| sample.step_ns);
        let exposed = of(samples, |sample| sample.exposed_ns);
        println!(
            "{name:<11} {sub} sub-batches   step {step:8.1} ms   exposed {exposed:8.1} ms   speedup {:.3}",
            reference / step
        );
    }
    Ok(())
}

fn mean_forward_ms(schedule: &Schedule, sample: &Sample) -> f64 {
    let forwards = schedule.instructions.iter().zip(&sample.timings).filter(|(instruction, _)| {
        matches!(instruction, Instruction::Forward { block: BlockId::Attn(_) | BlockId::Mlp(_), .. })
    });
    let (count, ns) =
        forwards.fold((0, 0), |(count, ns), (_, timing)| (count + 1, ns + timing.duration_ns()));
    ns as f64 / f64::from(count) / 1e6
}
