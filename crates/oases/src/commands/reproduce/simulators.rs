//! One simulator for each cluster of the paper.

use super::methods::Simulator;
use super::setting::Cluster;

/// All clusters. Experiments share what has been simulated.
#[derive(Clone, Debug)]
pub struct Simulators {
    /// 32 RTX 3090 without NVLink.
    pub pcie: Simulator,
    /// 32 RTX 3090 with NVLink between pairs.
    pub nvlink: Simulator,
    /// 8 V100 in float32.
    pub v100: Simulator,
    /// 8 V100 in float16.
    pub v100_half: Simulator,
}

impl Simulators {
    /// Reads the descriptions that are part of the program.
    pub fn new() -> anyhow::Result<Simulators> {
        Ok(Simulators {
            pcie: Simulator::of(Cluster::Pcie)?,
            nvlink: Simulator::of(Cluster::Nvlink)?,
            v100: Simulator::of(Cluster::V100)?,
            v100_half: Simulator::of(Cluster::V100Half)?,
        })
    }
}
