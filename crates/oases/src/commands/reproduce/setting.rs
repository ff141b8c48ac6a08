//! The settings of the paper's experiments: clusters, models, degrees and batches, and the published figures.

use anyhow::Context;
use oases_plan::{Error, GradientRing, Machine, PublishedCosts, PublishedTable, Ring};
use oases_schedule::Model;

/// Micro-batches of a step: `--gas 20` in the authors' benchmark/overlap_run.sh.
pub const MICRO_BATCHES: u32 = 20;
/// Tokens of a sequence.
pub const SEQUENCE: u32 = 1024;
/// What the rings between data-parallel replicas share in each direction of a server's port: the best bus bandwidth in the
/// all-reduce column of the published table, at 12-25 MB, where it crosses the port with one ring.
pub const PORT_GB_S: f64 = 10.0;
/// Devices of a server of the paper's RTX 3090 clusters.
pub const SERVER: u32 = 4;
/// The share of a collective's bandwidth that a ring of single exchanges across servers has, in the closed form of `wang`.
/// The one number that was calibrated on the figure.
pub const EXCHANGE_SHARE: f64 = 0.65;

const TABLE: &str = include_str!("../../../../../data/oases-paper/oases_3090_profile.csv");
const FIGURE_6: &str = include_str!("../../../../../data/oases-paper/fig6_3090.csv");
const FIGURE_6_NVLINK: &str = include_str!("../../../../../data/oases-paper/fig6_3090_nvlink.csv");

/// A cluster of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cluster {
    /// 32 RTX 3090 without NVLink.
    Pcie,
    /// 32 RTX 3090 with NVLink between pairs.
    Nvlink,
    /// One server of 8 V100 with NVLink, in float32.
    V100,
    /// The same in float16.
    V100Half,
}

impl Cluster {
    /// The description of its machine: file name and text.
    pub fn description(self) -> (&'static str, &'static str) {
        match self {
            Cluster::Pcie => (
                "machines/rtx3090-cluster.toml",
                include_str!("../../../../../machines/rtx3090-cluster.toml"),
            ),
            Cluster::Nvlink => (
                "machines/rtx3090-nvlink-cluster.toml",
                include_str!("../../../../../machines/rtx3090-nvlink-cluster.toml"),
            ),
            Cluster::V100 => (
                "machines/v100-8x-nvlink-f32.toml",
                include_str!("../../../../../machines/v100-8x-nvlink-f32.toml"),
            ),
            Cluster::V100Half => {
                ("machines/v100-8x-nvlink.toml", include_str!("../../../../../machines/v100-8x-nvlink.toml"))
            }
        }
    }
}

/// A cluster, and what is known about it.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Its devices and links.
    pub machine: Machine,
    /// Measured times of its devices, if there are any.
    pub table: Option<PublishedTable>,
}

impl Setting {
    /// Reads the descriptions that are part of the program.
    pub fn of(cluster: Cluster) -> anyhow::Result<Setting> {
        let (name, text) = cluster.description();
        let machine: Machine = toml::from_str(text).with_context(|| format!("cannot read {name}"))?;
        machine.check().with_context(|| format!("cannot use {name}"))?;
        let measured = matches!(cluster, Cluster::Pcie | Cluster::Nvlink);
        let table = if measured { Some(published_table()?) } else { None };
        Ok(Setting { machine, table })
    }

    /// Costs of a model at a TMP degree. The replicas whose ranks are in one server share its port.
    pub fn costs<'a>(&'a self, model: &'a Model, degree: u32) -> Result<PublishedCosts<'a>, Error> {
        let replicas = self.machine.ranks() / degree;
        let rings = degree.min(SERVER);
        let latency_s = self.machine.links.last().map_or(0.0, |level| level.latency_us * 1e-6);
        let bandwidth_bytes_per_s = PORT_GB_S * 1e9 / f64::from(rings);
        let gradients = (replicas > 1)
            .then_some(GradientRing { replicas, ring: Ring { bandwidth_bytes_per_s, latency_s } });
        PublishedCosts::new(self.table.as_ref(), &self.machine, model, gradients)
    }
}

/// A model of the paper, as it is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// Width of the residual stream.
    pub hidden: u32,
    /// Transformer layers.
    pub layers: u32,
    /// TMP degree.
    pub degree: u32,
    /// Sequences of a micro-batch of a TMP group.
    pub micro_batch: u32,
}

impl Case {
    /// A model of figure 6 at the degree of the paper and the largest micro-batch that fits.
    pub fn of(setting: &Setting, hidden: u32, layers: u32) -> Case {
        let degree = degree(hidden);
        Case { hidden, layers, degree, micro_batch: largest(setting, hidden, layers, degree, kept_inputs) }
    }

    /// The same with selective recomputation.
    pub fn selective(setting: &Setting, hidden: u32, layers: u32) -> Case {
        let degree = degree(hidden);
        Case {
            hidden,
            layers,
            degree,
            micro_batch: largest(setting, hidden, layers, degree, kept_selectively),
        }
    }

    /// A model of figure 6 over all devices of one server.
    pub fn over_a_server(setting: &Setting, hidden: u32, layers: u32) -> Case {
        let degree = setting.machine.ranks();
        Case { hidden, layers, degree, micro_batch: largest(setting, hidden, layers, degree, kept_inputs) }
    }

    /// The model: heads of 64, an MLP of 4 times the width. The vocabulary does not matter, for its blocks cost nothing.
    pub fn model(&self) -> Model {
        Model::gpt(self.layers, self.hidden as usize, self.hidden as usize / 64, SEQUENCE as usize, 1024)
    }

    /// Bytes of an all-reduce of the whole micro-batch, in 32 bits.
    pub fn all_reduce_bytes(&self) -> u64 {
        4 * u64::from(self.micro_batch) * u64::from(SEQUENCE) * u64::from(self.hidden)
    }
}

/// TMP degrees of figure 6: 2 for hidden 1024, 4 for the middle models, 8 (across servers) for the largest. The last follows
/// from memory: at degree 4, weights, gradients and two moments of hidden 6144 in 16 layers alone need 29 GB.
fn degree(hidden: u32) -> u32 {
    match hidden {
        ..=1024 => 2,
        1025..=4096 => 4,
        _ => 8,
    }
}

/// Share of the memory that the authors' planner fills.
const MEMORY_SHARE: f64 = 0.95;
/// Bytes of state for each weight: five numbers of 32 bits, as the authors' planner counts.
const STATE_BYTES: f64 = 20.0;

/// The greatest power of two up to 32 for which state and activations fit, and, where there are measurements, that was
/// measured.
fn largest(
    setting: &Setting,
    hidden: u32,
    layers: u32,
    degree: u32,
    kept: fn(f64, f64, f64) -> [f64; 2],
) -> u32 {
    let (h, l, t) = (f64::from(hidden), f64::from(layers), f64::from(degree));
    let limit = MEMORY_SHARE * setting.machine.device.memory_gb * f64::from(1 << 30);
    let fits = |batch: u32| {
        let [a_layer, once] = kept(f64::from(batch) * f64::from(SEQUENCE), h, t);
        a_layer * l + once + STATE_BYTES * 12.0 * h * h / t * l <= limit
    };
    let table = setting.table.as_ref().filter(|table| hidden <= table.greatest_hidden());
    let known = |batch: u32| table.is_none_or(|table| table.times(hidden, degree, batch).is_ok());
    (0..6).map(|power| 1 << power).filter(|batch| fits(*batch) && known(*batch)).max().unwrap_or(1)
}

/// Bytes of activations with full recomputation, a layer and once: the authors' planner counts 12 bytes for each number of
/// the input of each of the two blocks; one block's inside (three score tensors, three tensors of the MLP's width) is alive
/// at a time.
fn kept_inputs(tokens: f64, h: f64, t: f64) -> [f64; 2] {
    let scores = tokens * f64::from(SEQUENCE) * h / 64.0 / t;
    [2.0 * 12.0 * tokens * h, 3.0 * 4.0 * scores + 3.0 * 16.0 * tokens * h / t]
}

/// Bytes of activations with selective recomputation: Korthikanti et al., arXiv 2205.05198, equation 6, `sbh (10 + 24/t)`
/// in 16 bits, doubled for 32.
fn kept_selectively(tokens: f64, h: f64, t: f64) -> [f64; 2] {
    [(20.0 + 48.0 / t) * tokens * h, 0.0]
}

/// A row of figure 6: throughputs over that of Megatron-LM.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// Width of the residual stream.
    pub hidden: u32,
    /// Transformer layers.
    pub layers: u32,
    /// Of [`METHODS`], in that order.
    pub speedups: [f64; 4],
}

/// The methods of figure 6 beside Megatron-LM.
pub const METHODS: [&str; 4] = ["alpa", "wang", "merak", "oases"];

/// The published per-block times.
pub fn published_table() -> anyhow::Result<PublishedTable> {
    PublishedTable::parse(TABLE).context("cannot read data/oases-paper/oases_3090_profile.csv")
}

/// The rows of the paper's figure 6 on a cluster of RTX 3090.
pub fn figure(cluster: Cluster) -> anyhow::Result<Vec<Published>> {
    let text = if cluster == Cluster::Nvlink { FIGURE_6_NVLINK } else { FIGURE_6 };
    rows(text).context("cannot read the figures in data/oases-paper")
}

fn rows(text: &str) -> anyhow::Result<Vec<Published>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#') && !line.is_empty());
    let mut rows = Vec::new();
    for (index, line) in lines {
        if line == "hidden,layers,alpa,wang,merak,oases" {
            continue;
        }
        rows.push(row(line).with_context(|| format!("line {}: `{line}`", index + 1))?);
    }
    Ok(rows)
}

fn row(line: &str) -> anyhow::Result<Published> {
    let cells: Vec<f64> = line.split(',').map(|cell| cell.trim().parse()).collect::<Result<_, _>>()?;
    match cells.as_slice() {
        &[hidden, layers, alpa, wang, merak, oases]
            if cells.iter().all(|cell| *cell > 0.0 && *cell < 1e6) =>
        {
            Ok(Published {
                hidden: hidden as u32,
                layers: layers as u32,
                speedups: [alpa, wang, merak, oases],
            })
        }
        _ => anyhow::bail!("six numbers above 0 are needed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_embedded_can_be_read() {
        for cluster in [Cluster::Pcie, Cluster::Nvlink, Cluster::V100, Cluster::V100Half] {
            Setting::of(cluster).unwrap();
        }
        for (cluster, alpa, oases) in [(Cluster::Pcie, 0.96, 1.81), (Cluster::Nvlink, 1.05, 1.58)] {
            let rows = figure(cluster).unwrap();
            assert_eq!((rows.len(), rows[0].speedups[0], rows[6].speedups[3]), (7, alpa, oases));
        }
    }

    #[test]
    fn rows_that_cannot_be_are_refused() {
        for text in ["1024,24,1,1,1", "1024,24,1,1,1,x", "1024,24,1,1,1,-1", "1024,24,1,1,1,NaN"] {
            assert!(rows(text).is_err(), "{text}");
        }
    }

    /// The micro-batch of hidden 3072 is that of the authors' script, which trains it (`bs=4`, `TP=4`).
    #[test]
    fn micro_batches_are_the_largest_that_fit() {
        let setting = Setting::of(Cluster::Pcie).unwrap();
        let batches: Vec<u32> = figure(Cluster::Pcie)
            .unwrap()
            .iter()
            .map(|row| Case::of(&setting, row.hidden, row.layers).micro_batch)
            .collect();
        assert_eq!(batches, [16, 8, 4, 4, 2, 4, 4]);
        // 24 layers of 24 · 4 · 1024 · 3072 bytes, weights of 12 · 3072² · 24 / 4 of 20 bytes, and inside a block 12 bytes for
        // each of 4 · 1024² · 12 scores, 48 for each of 4 · 1024 · 3072 / 4 numbers: 21.6e9, of 24.5e9. Twice the batch: 29.6e9.
        let [layer, once] = kept_inputs(4096.0, 3072.0, 4.0);
        assert_eq!(layer, 24.0 * 4096.0 * 3072.0);
        assert_eq!(once, 12.0 * 4.0 * 1048576.0 * 12.0 + 48.0 * 4096.0 * 768.0);
    }
}
