//! What all predictions are computed from, with sources; printed above them.

use super::setting::{EXCHANGE_SHARE, MICRO_BATCHES, PORT_GB_S, Setting};
use super::simulators::Simulators;
use crate::report::reproduction::Parameter;

/// The parameters of both RTX 3090 clusters. Those of the V100 server stand with its experiment.
pub fn parameters(simulators: &Simulators) -> Vec<Parameter> {
    let (pcie, nvlink) = (&simulators.pcie.setting, &simulators.nvlink.setting);
    let device = &pcie.machine.device;
    let one = |name: &str, value: String, source: &str| Parameter {
        name: name.to_owned(),
        value,
        source: source.to_owned(),
    };
    vec![
        one(
            "times of a block, hidden ≤ 4096",
            "measured".to_owned(),
            "authors' repository, data/oases-paper/oases_3090_profile.csv; a recomputation takes the whole forward",
        ),
        one(
            "times of a block, hidden > 4096",
            format!("{} TFLOPS, {} GB/s", device.peak_tflops, device.bandwidth_gb_s),
            "peak rates of NVIDIA's specifications in a formula that was fitted to the same table, median error 2 %",
        ),
        one(
            "ring inside a server",
            levels(pcie, 0),
            "machines/rtx3090-cluster.toml: copies through host memory of two other RTX 3090 (Puget Systems)",
        ),
        one(
            "ring across servers",
            levels(pcie, 1),
            "machines/rtx3090-cluster.toml: all-reduce column of the same table, which ran over all 32 devices",
        ),
        one(
            "the same with NVLink pairs",
            format!("{}, {}, {} GB/s", gb_s(nvlink, 0), gb_s(nvlink, 1), gb_s(nvlink, 2)),
            "machines/rtx3090-nvlink-cluster.toml: in a pair, in a server, across servers; estimates",
        ),
        one(
            "slow-down under a collective",
            format!("{} times", device.interference),
            "arXiv 2507.03114: 18.9 % on average on A100, H100, MI210 and MI250",
        ),
        one(
            "port of a server, gradients",
            format!("{PORT_GB_S} GB/s"),
            "best all-reduce of the same table (12-25 MB); shared by the rings of a server's ranks, not overlapped",
        ),
        one("micro-batches of a step", MICRO_BATCHES.to_string(), "authors' script: --gas 20"),
        one(
            "TMP degree",
            "2, 4 or 8".to_owned(),
            "2 for hidden 1024, 4 up to 4096, 8 above: what is known of the paper's setting, and what fits the memory",
        ),
        one(
            "micro-batch",
            "1 to 16".to_owned(),
            "the largest power of two that fits 0.95 of the memory by the formula of the authors' planner, if measured",
        ),
        one(
            "exchanges across servers (wang)",
            format!("{EXCHANGE_SHARE} of the ring"),
            "CALIBRATED on the three cells of wang at degree 8 of figure 6; the only number that was",
        ),
    ]
}

fn gb_s(setting: &Setting, level: usize) -> String {
    setting.machine.links.get(level).map_or(String::new(), |link| link.bandwidth_gb_s.to_string())
}

fn levels(setting: &Setting, level: usize) -> String {
    let latency = setting.machine.links.get(level).map_or(0.0, |link| link.latency_us);
    format!("{} GB/s, {latency} µs", gb_s(setting, level))
}
