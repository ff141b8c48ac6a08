//! Figure 10: weak scaling with data parallelism up to 1,024 devices.

use oases_plan::Machine;

use super::methods::{MEGATRON, Method, OASES};
use super::setting::{Case, MICRO_BATCHES, Setting};
use super::simulators::Simulators;
use super::stages::Spread;
use crate::report::reproduction::{Cell, Experiment, Row, Table, Unit};

/// Devices of all replicas.
const DEVICES: [u32; 4] = [32, 128, 512, 1024];
/// Width and layers: a model of each TMP degree of figure 6.
const MODELS: [(u32, u32); 3] = [(1024, 24), (4096, 16), (6144, 16)];

/// On clusters like that without NVLink, of more servers.
pub fn experiment(simulators: &Simulators) -> anyhow::Result<Experiment> {
    let setting = &simulators.pcie.setting;
    let mut tables = Vec::new();
    for (name, method) in [("megatron", MEGATRON), ("oases", OASES)] {
        let rows = MODELS.iter().map(|&(hidden, layers)| {
            row(setting, hidden, layers, |spread, machine| {
                let alone = Spread { data: 1, ..*spread }.step_ms(method, setting, machine)?;
                Ok(alone / spread.step_ms(method, setting, machine)?)
            })
        });
        tables.push(table(
            format!(
                "Throughput of a device with {name}, over that in one TMP group without replicas, by devices:"
            ),
            rows.collect::<anyhow::Result<_>>()?,
        ));
    }
    let rows = MODELS.iter().map(|&(hidden, layers)| {
        row(setting, hidden, layers, |spread, machine| {
            let step = |method: Method| spread.step_ms(method, setting, machine);
            Ok(step(MEGATRON)? / step(OASES)?)
        })
    });
    tables.push(table(
        "Throughput of oases over megatron, by devices:".to_owned(),
        rows.collect::<anyhow::Result<_>>()?,
    ));
    Ok(Experiment {
        name: "figure10",
        title: "weak scaling with data parallelism",
        setting: format!(
            "Every replica is one TMP group with {MICRO_BATCHES} micro-batches of a step, as in figure6, and so the batch grows with \
             the devices. Gradients are reduced over N replicas block by block: 2(N - 1)/N of them cross the port of a server, \
             which the rings of its ranks share; megatron waits for each reduction, oases goes on with backward. ASSUMED: servers \
             of four RTX 3090 as in machines/rtx3090-cluster.toml, as many as needed, with the same bandwidth between any two; and \
             links without latency, since over so many \
             servers libraries reduce over trees, not rings."
        ),
        tables,
        claims: Vec::new(),
        remarks: vec![
            "The paper's values were not found, so there is nothing to set beside these. By the law, 2(N - 1)/N is 1.75 of the gradients \
             with 8 replicas and 2.00 with 512: what is lost is lost at the first servers, and from there on scaling is flat. \
             Contention in a network of hundreds of servers, and stragglers, are not in it."
                .to_owned(),
        ],
    })
}

fn table(title: String, rows: Vec<Row>) -> Table {
    Table { title, unit: Unit::Times, rows, agreement: None }
}

fn row(
    setting: &Setting,
    hidden: u32,
    layers: u32,
    cell: impl Fn(&Spread, &Machine) -> anyhow::Result<f64>,
) -> anyhow::Result<Row> {
    let case = Case::of(setting, hidden, layers);
    let cells = DEVICES.iter().map(|&devices| {
        let data = devices / case.degree;
        let spread = Spread { case, data, pipeline: 1, micro_batches: MICRO_BATCHES };
        let predicted = cell(&spread, &larger(&setting.machine, spread.ranks()))?;
        Ok(Cell::alone(&devices.to_string(), Some(predicted)))
    });
    Ok(Row::of(hidden, layers, case.degree, case.micro_batch, cells.collect::<anyhow::Result<_>>()?))
}

/// The machine with as many servers as it takes, and links without latency.
fn larger(machine: &Machine, ranks: u32) -> Machine {
    let mut machine = machine.clone();
    machine.links.iter_mut().for_each(|level| level.latency_us = 0.0);
    if let Some(outermost) = machine.links.last_mut() {
        outermost.ranks = outermost.ranks.max(ranks);
    }
    machine
}

#[cfg(test)]
mod tests {
    use super::super::setting::Cluster;
    use super::*;

    /// Megatron-LM waits for every reduction, so replicas cost 2(N - 1)/N of the gradients at the share of a port that one of two rings
    /// has, 5 GB/s: 12 · 1024² · 24 / 2 gradients of 4 bytes, and few of biases and normalisations.
    #[test]
    fn replicas_cost_what_the_law_says() {
        let setting = Setting::of(Cluster::Pcie).unwrap();
        let case = Case { hidden: 1024, layers: 24, degree: 2, micro_batch: 2 };
        for data in [4, 16, 512] {
            let step = |data| {
                let spread = Spread { case, data, pipeline: 1, micro_batches: 1 };
                spread.step_ms(MEGATRON, &setting, &larger(&setting.machine, 1024)).unwrap()
            };
            let found = step(data) - step(1);
            let law = 2.0 * f64::from(data - 1) / f64::from(data);
            let expected = law * 4.0 * 12.0 * 1024.0 * 1024.0 * 24.0 / 2.0 / 5e6;
            assert!((found / expected - 1.0).abs() < 0.01, "{data} replicas: {found} {expected}");
        }
    }
}
