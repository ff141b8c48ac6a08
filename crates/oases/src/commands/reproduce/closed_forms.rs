//! Steps of the two methods of figure 6 that are no schedule of this program, by closed forms.
//!
//! Both block on every collective, so a step is a sum over its blocks: with `L` layers and [`MICRO_BATCHES`] micro-batches,
//! `L` times that many layers, then the reduction of gradients and the optimizer's step.

use oases_plan::{BlockFit, BlockSize, PublishedCosts};
use oases_plan::{Costs, Error, Reach};
use oases_schedule::{Bytes, CollectiveKind, Family};

use super::setting::{Case, EXCHANGE_SHARE, MICRO_BATCHES, SERVER, Setting};

/// Alpa (Zheng et al., arXiv 2201.12023), in milliseconds.
///
/// Its intra-operator plan has the least communication volume under the memory limit, with computation taken as equal and no
/// overlap. At a given global batch that volume grows with the TMP degree, so the plan is the smallest degree that fits,
/// which is that of the figure: Megatron-LM's layout. But a layer is recomputed by `jax.checkpoint`, and nothing reads
/// the output of a recomputed layer, so XLA removes the last all-reduce of the recomputation as dead code: 5 all-reduces
/// a layer instead of 6. With forward times `F`, backward times `B` and an all-reduce `C` of a layer:
///
/// ```text
/// layer = 2 (F_attn + F_mlp) + B_attn + B_mlp + 5 C
/// ```
///
/// XLA's kernels and its all-reduces across servers are taken as equal to PyTorch's and NCCL's, which they need not be.
pub fn alpa(setting: &Setting, case: Case) -> Result<f64, Error> {
    let model = case.model();
    let costs = setting.costs(&model, case.degree)?;
    let [attn, mlp] = blocks(&costs, case)?;
    let bytes = Bytes(case.all_reduce_bytes());
    let ring = Reach::neighbours(case.degree);
    let all_reduce = costs.collective(CollectiveKind::AllReduce, bytes, ring)?.link.milliseconds();
    let layer = 2.0 * (attn[0] + mlp[0]) + attn[1] + mlp[1] + 5.0 * all_reduce;
    step(&costs, case, layer)
}

/// Wang et al., "Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning Models", ASPLOS
/// 2023, in milliseconds. It is not the schedule `decomposed`, which cuts only the product before an all-reduce.
///
/// Every all-reduce is split into a reduce-scatter and an all-gather. The reduce-scatter runs in a loop with the product
/// before it and the all-gather in a loop with the product after it: `t` partial products of `1/t` of the rows each and
/// `t - 1` exchanges in a ring of `S/t` bytes between them. An exchange runs under a partial product, which it slows down
/// by the interference `s` while it lasts; the first partial product is before any exchange:
///
/// ```text
/// exchange = S / (t · bandwidth) + latency
/// loop(p)  = p/t + (t - 1) · max(exchange, p/t + min(exchange, p/t) · (1 - 1/s))
/// ```
///
/// Between the loops normalisation, dropout and residual run on `1/t` of the tokens, which saves `(1 - 1/t)` of what they
/// take (`r`). With the column-parallel product `c` and the row-parallel `w` of a block:
///
/// ```text
/// forward  = F - c - w  - r (1 - 1/t) + loop(c) + loop(w)
/// backward = B - 2w - c - r (1 - 1/t) + loop(2w) + loop(c)
/// ```
///
/// In backward the gathered gradient is read by both gradient products of the row-parallel weight; the input gradient of
/// the column-parallel weight is scattered; its weight gradient is not overlapped. The forward is run twice, for
/// recomputation.
///
/// Across servers the slowest exchange (through two hosts and the port, and GeForce cards have no direct path to it) sets
/// the pace of every iteration, where NCCL's collective is a pipeline: a ring of exchanges gets [`EXCHANGE_SHARE`] of the
/// collective's bandwidth there. Bounds of that share are 1, for perfect pipelining, and 0.45, for exchanges that are stored
/// and forwarded through host memory, port and host memory again (1 / (1/8.3 + 1/10 + 1/8.3) of 6.5 GB/s).
pub fn wang(setting: &Setting, case: Case) -> Result<f64, Error> {
    let model = case.model();
    let costs = setting.costs(&model, case.degree)?;
    let [attn, mlp] = blocks(&costs, case)?;
    let rings = Rings {
        fit: costs.fit(),
        size: costs.size(case.micro_batch, case.degree),
        exchange: exchange(setting, case)?,
        interference: costs.interference(),
    };
    let layer: f64 = [(Family::Attn, attn), (Family::Mlp, mlp)]
        .into_iter()
        .map(|(family, times)| 2.0 * rings.forward(family, times[0]) + rings.backward(family, times[1]))
        .sum();
    step(&costs, case, layer)
}

/// Forward and backward of attention and of the MLP, on a whole micro-batch.
fn blocks(costs: &PublishedCosts<'_>, case: Case) -> Result<[[f64; 2]; 2], Error> {
    let times = |family| costs.block_ms(family, case.micro_batch, case.degree);
    Ok([times(Family::Attn)?, times(Family::Mlp)?])
}

fn step(costs: &PublishedCosts<'_>, case: Case, layer_ms: f64) -> Result<f64, Error> {
    let layers = f64::from(MICRO_BATCHES) * f64::from(case.layers);
    Ok(layers * layer_ms + costs.gradients(case.degree)?.milliseconds() + costs.step_ms(case.degree))
}

/// One exchange of a ring, in milliseconds.
fn exchange(setting: &Setting, case: Case) -> Result<f64, Error> {
    let bytes = case.all_reduce_bytes() as f64 / f64::from(case.degree);
    let levels = setting.machine.spanned(case.degree)?;
    let time = |level: &oases_plan::LinkLevel| {
        let share = if level.ranks > SERVER { EXCHANGE_SHARE } else { 1.0 };
        bytes / (level.bandwidth_gb_s * share * 1e6) + level.latency_us * 1e-3
    };
    Ok(levels.iter().map(time).fold(0.0, f64::max))
}

/// Products in loops with exchanges.
struct Rings<'a> {
    fit: BlockFit<'a>,
    size: BlockSize,
    exchange: f64,
    interference: f64,
}

impl Rings<'_> {
    fn forward(&self, family: Family, whole: f64) -> f64 {
        let [column, row] = BlockFit::products(family, self.size);
        let products = self.fit.product_ms(column) + self.fit.product_ms(row);
        let rest = whole - products - self.saved(0);
        rest.max(0.0) + self.in_loop(column, 1.0) + self.in_loop(row, 1.0)
    }

    fn backward(&self, family: Family, whole: f64) -> f64 {
        let [column, row] = BlockFit::products(family, self.size);
        let products = self.fit.product_ms(column) + 2.0 * self.fit.product_ms(row);
        let rest = whole - products - self.saved(1);
        rest.max(0.0) + self.in_loop(row, 2.0) + self.in_loop(column, 1.0)
    }

    /// `copies` products of so many operations each, in one loop.
    fn in_loop(&self, flops: f64, copies: f64) -> f64 {
        let ranks = f64::from(self.size.degree);
        let part = copies * self.fit.product_ms(flops / ranks);
        let slowed = part + part.min(self.exchange) * (1.0 - 1.0 / self.interference);
        part + (ranks - 1.0) * self.exchange.max(slowed)
    }

    fn saved(&self, pass: usize) -> f64 {
        self.fit.residual_ms(self.size)[pass] * (1.0 - 1.0 / f64::from(self.size.degree))
    }
}

#[cfg(test)]
mod tests {
    use super::super::methods::MEGATRON;
    use super::super::setting::Cluster;
    use super::*;

    /// The difference to Megatron-LM is one all-reduce a layer and micro-batch: 4 · 8 · 1024 · 2048 bytes over 4 ranks at 8.3
    /// GB/s, 6 hops of 3 µs.
    #[test]
    fn alpa_is_megatron_without_the_all_reduce_that_nobody_reads() {
        let setting = Setting::of(Cluster::Pcie).unwrap();
        let case = Case { hidden: 2048, layers: 2, degree: 4, micro_batch: 8 };
        let all_reduce = 2.0 * 3.0 / 4.0 * 67_108_864.0 / 8.3e6 + 6.0 * 3e-3;
        let difference = MEGATRON.step(&setting, case).unwrap().ms - alpa(&setting, case).unwrap();
        assert!((difference - 40.0 * all_reduce).abs() < 1e-3, "{difference} {all_reduce}");
    }

    /// A loop by hand, at degree 4 and hidden 4096, of one sequence: the product of an MLP is 2 · 1024 · 4096 · 4096 = 34.36
    /// GFLOP, a quarter of it 8.59 GFLOP: a share of 0.76 + 0.17 · ln(8.59/8) / ln 4 of 35.6 TFLOPS, 0.3138 ms.
    #[test]
    fn loops_by_hand() {
        let setting = Setting::of(Cluster::Pcie).unwrap();
        let model = Case { hidden: 4096, layers: 1, degree: 4, micro_batch: 1 }.model();
        let costs = setting.costs(&model, 4).unwrap();
        let of = |exchange| Rings { fit: costs.fit(), size: costs.size(1, 4), exchange, interference: 1.19 };
        let part = 8.589_934_592 / 35.6 / (0.76 + 0.17 * (8.589_934_592f64 / 8.0).ln() / 4f64.ln());
        let flops = 2.0 * 1024.0 * 4096.0 * 4096.0;
        // An exchange that is much longer, and one of 0.1 ms, under which the part loses 0.1 · 0.19/1.19.
        let long = of(2.0).in_loop(flops, 1.0);
        assert!((long - (part + 6.0)).abs() < 1e-9, "{long}");
        let short = of(0.1).in_loop(flops, 1.0);
        assert!((short - (4.0 * part + 3.0 * 0.1 * 0.19 / 1.19)).abs() < 1e-9, "{short}");
    }
}
