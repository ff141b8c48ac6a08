//! Times each kernel inside a training step of a GPT: `cargo run --release -p oases-exec --example kernel_times`.
//!
//! The kernels run in the order of a step, each on its own arrays, so that the caches are in the state that they
//! have in training. Printed are the best and the median time per step over the given number of steps (first argument, 7).

use oases_exec::cpu::attention::{attention, attention_backward};
use oases_exec::cpu::cross_entropy::{STATISTICS, combine, cross_entropy_backward, statistics};
use oases_exec::cpu::matmul::{Matrix, MatrixMut, matmul, matmul_bias};
use oases_exec::cpu::norm::{layer_norm, layer_norm_backward};
use oases_exec::cpu::optimizer::{Update, adamw};
use oases_exec::cpu::residual::{RowTerm, add, bias_gradient, join, positions_gradient};
use oases_exec::cpu::{activation, embedding};
use oases_exec::operators::Accumulate::{Add, Overwrite};
use oases_exec::operators::{Attention, VocabularyShard};
use oases_exec::philox::{Normal, block};
use oases_schedule::Mask;
use std::collections::BTreeMap;
use std::time::Instant;

const HIDDEN: usize = 512;
const LAYERS: usize = 8;
const HEADS: usize = 8;
const SEQUENCE: usize = 256;
const BATCH: usize = 4;
const VOCABULARY: usize = 8192;
const TOKENS: usize = BATCH * SEQUENCE;

/// A parameter with its gradient and moments.
struct Parameter {
    w: Vec<f32>,
    g: Vec<f32>,
    m: Vec<f32>,
    v: Vec<f32>,
}

impl Parameter {
    fn new(stream: u64, length: usize, mean: f32, deviation: f32) -> Self {
        let mut w = vec![0.0; length];
        Normal { mean, deviation }.fill([0, 0], stream, 0, &mut w);
        Self { w, g: vec![0.0; length], m: vec![0.0; length], v: vec![0.0; length] }
    }
}

/// Parameters of a layer, by place: gain, shift, qkv, its bias, projection, its bias, and the same again for the MLP.
struct Layer {
    parameters: [Parameter; 12],
    x: [Vec<f32>; 2],
    y: [Vec<f32>; 2],
    stats: [Vec<f32>; 2],
    qkv: Vec<f32>,
    o: Vec<f32>,
    lse: Vec<f32>,
    u: Vec<f32>,
    a: Vec<f32>,
}

fn zeros(columns: usize) -> Vec<f32> {
    vec![0.0; TOKENS * columns]
}

impl Layer {
    fn new(layer: u64) -> Self {
        let weight = |i, length| Parameter::new(12 * layer + i, length, 0.0, 0.02);
        let gain = |i| Parameter::new(12 * layer + i, HIDDEN, 1.0, 0.0);
        let h = HIDDEN;
        let parameters = [
            gain(0),
            weight(1, h),
            weight(2, 3 * h * h),
            weight(3, 3 * h),
            weight(4, h * h),
            weight(5, h),
            gain(6),
            weight(7, h),
            weight(8, 4 * h * h),
            weight(9, 4 * h),
            weight(10, 4 * h * h),
            weight(11, h),
        ];
        Self {
            parameters,
            x: [zeros(h), zeros(h)],
            y: [zeros(h), zeros(h)],
            stats: [zeros(2), zeros(2)],
            qkv: zeros(3 * h),
            o: zeros(h),
            lse: zeros(HEADS),
            u: zeros(4 * h),
            a: zeros(4 * h),
        }
    }
}

#[derive(Default)]
struct Times {
    seconds: BTreeMap<&'static str, f64>,
}

impl Times {
    fn time<R>(&mut self, name: &'static str, kernel: impl FnOnce() -> R) -> R {
        let begin = Instant::now();
        let result = kernel();
        *self.seconds.entry(name).or_default() += begin.elapsed().as_secs_f64();
        result
    }
}

fn rows(data: &[f32]) -> Matrix<'_> {
    Matrix::new(data, TOKENS, data.len() / TOKENS)
}

fn rows_mut(data: &mut [f32]) -> MatrixMut<'_> {
    let columns = data.len() / TOKENS;
    MatrixMut::new(data, TOKENS, columns)
}

/// y = x·Wᵀ (+ b).
fn linear(times: &mut Times, name: &'static str, x: &[f32], w: &[f32], b: Option<&[f32]>, y: &mut [f32]) {
    let w = Matrix::new(w, y.len() / TOKENS, x.len() / TOKENS).t();
    times.time(name, || match b {
        Some(b) => matmul_bias(rows_mut(y), rows(x), w, b),
        None => matmul(rows_mut(y), rows(x), w, Overwrite),
    });
}

/// dX = dY·W and dW = dYᵀ·X.
fn linear_backward(
    times: &mut Times,
    name: [&'static str; 2],
    x: &[f32],
    w: &mut Parameter,
    dy: &[f32],
    dx: &mut [f32],
) {
    let (out, input) = (dy.len() / TOKENS, x.len() / TOKENS);
    times.time(name[0], || matmul(rows_mut(dx), rows(dy), Matrix::new(&w.w, out, input), Overwrite));
    times.time(name[1], || matmul(MatrixMut::new(&mut w.g, out, input), rows(dy).t(), rows(x), Overwrite));
}

fn main() {
    let steps: usize = std::env::args().nth(1).map_or(7, |steps| steps.parse().expect("a number of steps"));
    let h = HIDDEN;
    let shape = Attention {
        sequences: BATCH,
        length: SEQUENCE,
        heads: HEADS,
        kv_heads: HEADS,
        group: 1,
        head_size: h / HEADS,
        mask: Mask::Causal,
        separate: false,
        first_head: 0,
    };
    let shard = VocabularyShard { first_row: 0, width: VOCABULARY, valid: VOCABULARY };
    let mut layers: Vec<Layer> = (0..LAYERS as u64).map(Layer::new).collect();
    let mut table = Parameter::new(1000, VOCABULARY * h, 0.0, 0.02);
    let mut positions = Parameter::new(1001, SEQUENCE * h, 0.0, 0.02);
    let (mut gain, mut shift) = (Parameter::new(1002, h, 1.0, 0.0), Parameter::new(1003, h, 0.0, 0.0));
    let (mut x, mut y, mut stats) = (zeros(h), zeros(h), zeros(2));
    let (mut logits, mut token_stats, mut lse) = (zeros(VOCABULARY), zeros(STATISTICS), zeros(1));
    let (mut g, mut d_h, mut d_4h, mut d_qkv) = (zeros(h), zeros(h), zeros(4 * h), zeros(3 * h));
    let mut workspace = vec![0.0; shape.forward_workspace().max(shape.backward_workspace())];
    let mut all: Vec<(f64, Times)> = Vec::new();
    for step in 1..=steps as u32 + 2 {
        let token = |i: usize| block([step, 0], 77, i as u64)[0] % VOCABULARY as u32;
        let tokens: Vec<u32> = (0..TOKENS).map(token).collect();
        let targets: Vec<u32> = (0..TOKENS).map(|i| token(i + 1)).collect();
        let mut times = Times::default();
        let t = &mut times;
        let begin = Instant::now();

        t.time("embed", || embedding::embed(&tokens, &table.w, 0, h, &mut x));
        t.time("join", || join(&mut x, h, None, RowTerm::Positions(&positions.w), None));
        for layer in &mut layers {
            let [ln1, sh1, w_qkv, b_qkv, w_o, b_o, ln2, sh2, w_up, b_up, w_down, b_down] = &layer.parameters;
            std::mem::swap(&mut layer.x[0], &mut x);
            let (y, stats) = (&mut layer.y[0], &mut layer.stats[0]);
            t.time("layer_norm", || layer_norm(&layer.x[0], &ln1.w, &sh1.w, 1e-5, y, stats));
            linear(t, "matmul fwd qkv", y, &w_qkv.w, Some(&b_qkv.w), &mut layer.qkv);
            t.time("attention", || {
                attention(&shape, &layer.qkv, &[], &mut layer.o, &mut layer.lse, &mut workspace)
            });
            linear(t, "matmul fwd proj", &layer.o, &w_o.w, None, &mut layer.x[1]);
            let [residual, out] = &mut layer.x;
            t.time("join", || join(out, h, Some(residual), RowTerm::Bias(&b_o.w), None));
            let (y, stats) = (&mut layer.y[1], &mut layer.stats[1]);
            t.time("layer_norm", || layer_norm(&layer.x[1], &ln2.w, &sh2.w, 1e-5, y, stats));
            linear(t, "matmul fwd up", y, &w_up.w, Some(&b_up.w), &mut layer.u);
            t.time("gelu", || activation::gelu(&layer.u, &mut layer.a));
            linear(t, "matmul fwd down", &layer.a, &w_down.w, None, &mut x);
            t.time("join", || join(&mut x, h, Some(&layer.x[1]), RowTerm::Bias(&b_down.w), None));
        }
        t.time("layer_norm", || layer_norm(&x, &gain.w, &shift.w, 1e-5, &mut y, &mut stats));
        linear(t, "matmul fwd head", &y, &table.w, None, &mut logits);
        t.time("cross_entropy", || statistics(&logits, shard, &targets, &mut token_stats));
        let loss = t.time("cross_entropy", || combine(&token_stats, &targets, &mut lse)) / TOKENS as f64;
        let forward = begin.elapsed().as_secs_f64();

        t.time("cross_entropy backward", || {
            cross_entropy_backward(&mut logits, shard, &lse, &targets, 1.0 / TOKENS as f32)
        });
        linear_backward(t, ["matmul dX head", "matmul dW head"], &y, &mut table, &logits, &mut g);
        t.time("layer_norm backward", || {
            layer_norm_backward(&x, &stats, &gain.w, &mut g, &mut gain.g, &mut shift.g, Overwrite)
        });
        for layer in layers.iter_mut().rev() {
            let [ln1, sh1, w_qkv, b_qkv, w_o, b_o, ln2, sh2, w_up, b_up, w_down, b_down] =
                &mut layer.parameters;
            t.time("bias_gradient", || bias_gradient(&g, &mut b_down.g, Overwrite));
            let w = Matrix::new(&w_down.w, h, 4 * h);
            t.time("matmul dX down", || matmul(rows_mut(&mut d_4h), rows(&g), w, Overwrite));
            t.time("gelu backward", || activation::gelu_backward(&mut layer.u, &mut d_4h));
            let dw = MatrixMut::new(&mut w_down.g, h, 4 * h);
            t.time("matmul dW down", || matmul(dw, rows(&g).t(), rows(&layer.u), Overwrite));
            t.time("bias_gradient", || bias_gradient(&d_4h, &mut b_up.g, Overwrite));
            linear_backward(t, ["matmul dX up", "matmul dW up"], &layer.y[1], w_up, &d_4h, &mut d_h);
            t.time("layer_norm backward", || {
                let (x, stats) = (&layer.x[1], &layer.stats[1]);
                layer_norm_backward(x, stats, &ln2.w, &mut d_h, &mut ln2.g, &mut sh2.g, Overwrite)
            });
            t.time("join backward", || add(&mut g, &d_h));
            t.time("bias_gradient", || bias_gradient(&g, &mut b_o.g, Overwrite));
            linear_backward(t, ["matmul dX proj", "matmul dW proj"], &layer.o, w_o, &g, &mut d_h);
            t.time("attention backward", || {
                let (qkv, o, lse) = (&layer.qkv, &layer.o, &layer.lse);
                attention_backward(&shape, qkv, &[], o, lse, &d_h, &mut d_qkv, &mut workspace)
            });
            t.time("bias_gradient", || bias_gradient(&d_qkv, &mut b_qkv.g, Overwrite));
            linear_backward(t, ["matmul dX qkv", "matmul dW qkv"], &layer.y[0], w_qkv, &d_qkv, &mut d_h);
            t.time("layer_norm backward", || {
                let (x, stats) = (&layer.x[0], &layer.stats[0]);
                layer_norm_backward(x, stats, &ln1.w, &mut d_h, &mut ln1.g, &mut sh1.g, Overwrite)
            });
            t.time("join backward", || add(&mut g, &d_h));
            std::mem::swap(&mut layer.x[0], &mut x);
        }
        t.time("join backward", || positions_gradient(&g, &mut positions.g, Overwrite));
        t.time("embed", || embedding::embed_backward(&tokens, &g, 0, h, &mut table.g, Add));
        let backward = begin.elapsed().as_secs_f64();

        let update = Update {
            learning_rate: 3e-4,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.1,
            step,
            gradient_scale: 1.0,
        };
        t.time("adamw", || {
            let rest = [&mut table, &mut positions, &mut gain, &mut shift];
            for p in layers.iter_mut().flat_map(|layer| &mut layer.parameters).chain(rest) {
                adamw(&mut p.w, &p.g, &mut p.m, &mut p.v, &update);
            }
        });
        let seconds = begin.elapsed().as_secs_f64();
        eprintln!(
            "step {step}: loss {loss:.4}, {:.1} ms = {:.1} forward + {:.1} backward + {:.1} update",
            seconds * 1e3,
            forward * 1e3,
            (backward - forward) * 1e3,
            (seconds - backward) * 1e3
        );
        if step > 2 {
            all.push((seconds, times));
        }
    }
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    println!("{:24} {:>9} {:>9}   ms per step", "kernel", "best", "median");
    let names: Vec<&str> = all[0].1.seconds.keys().copied().collect();
    let row = |name: &str, mut of: Vec<f64>| {
        of.sort_by(f64::total_cmp);
        println!("{name:24} {:9.2} {:9.2}", of[0] * 1e3, of[of.len() / 2] * 1e3);
    };
    for name in names {
        row(name, all.iter().map(|(_, times)| times.seconds[name]).collect());
    }
    let products = |times: &Times| {
        times.seconds.iter().filter(|(name, _)| name.starts_with("matmul")).map(|(_, s)| s).sum::<f64>()
    };
    row("all matmul", all.iter().map(|(_, times)| products(times)).collect());
    row("everything", all.iter().map(|(seconds, _)| *seconds).collect());
}
