//! Costs from a machine description.

use oases_schedule::{Bytes, CollectiveKind, Model, Operation};

use crate::costs::{CollectiveTime, Costs, Reach};
use crate::error::Error;
use crate::link::Ring;
use crate::machine::{Device, Machine};
use crate::time::Nanoseconds;
use crate::work::{Work, work};

/// What a model costs on a described machine.
///
/// An instruction takes the sum of
///
/// - each matrix product: its operations over peak rate times efficiency at its size,
/// - the traffic of the other operators: elements read and written times their size, over the memory bandwidth,
/// - the fixed time of each operator.
///
/// Collectives run on the communication stream alone, arithmetic included, as they do on GPUs. Over a given link every ring
/// has one of its own, as emulated links are; over the machine's links, see [`Machine::collective`].
#[derive(Clone, Copy, Debug)]
pub struct MachineCosts<'a> {
    machine: &'a Machine,
    model: &'a Model,
    link: Option<Ring>,
}

impl<'a> MachineCosts<'a> {
    /// Costs of `model` on a machine that has been checked; over `link` instead of the machine's own links, if given.
    pub fn new(machine: &'a Machine, model: &'a Model, link: Option<Ring>) -> MachineCosts<'a> {
        MachineCosts { machine, model, link }
    }
}

impl Costs for MachineCosts<'_> {
    fn compute(&self, operation: Operation, sequences: u32, tensor: u32) -> Result<Nanoseconds, Error> {
        let seconds = seconds(&self.machine.device, &work(self.model, operation, sequences, tensor));
        let too_long = || Error::TooLong { what: format!("`{operation}` on {sequences} sequences") };
        Nanoseconds::from_seconds(seconds).ok_or_else(too_long)
    }

    /// The plan counts elements of 32 bits; a device with smaller ones sends less.
    fn collective(&self, kind: CollectiveKind, bytes: Bytes, reach: Reach) -> Result<CollectiveTime, Error> {
        let bytes = Bytes(bytes.0 / size_of::<f32>() as u64 * self.machine.device.element_bytes);
        let link = match &self.link {
            Some(ring) => ring
                .duration(kind, bytes, reach.ranks)
                .ok_or_else(|| Error::TooLong { what: format!("{} of {bytes}", kind.name()) })?,
            None => self.machine.collective(kind, bytes, reach)?,
        };
        Ok(CollectiveTime { link, host: Nanoseconds::ZERO })
    }

    fn interference(&self) -> f64 {
        self.machine.device.interference
    }
}

fn seconds(device: &Device, work: &Work) -> f64 {
    let product = |flops: u64| flops as f64 / (device.peak_tflops * 1e12 * device.efficiency(flops));
    let mut products: f64 = work.products.iter().map(|flops| product(*flops)).sum();
    let pass = usize::from(work.backward);
    let mut elements = work.elements as f64 * device.unfused[pass];
    if let Some(core) = &work.core {
        let passes = device.score_passes[pass];
        // Kernels that write the scores compute the masked ones too.
        let flops = if passes > 0.0 { core.unmasked_flops } else { core.flops };
        products += core.products as f64 * product(flops);
        elements += passes * core.scores as f64;
    }
    let bytes = elements * device.element_bytes as f64 + work.state_bytes as f64;
    products + bytes / (device.bandwidth_gb_s * 1e9) + work.operators as f64 * device.launch_us * 1e-6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Dtype, LinkLevel};
    use oases_schedule::{Extent, Family};

    fn machine() -> Machine {
        let device = Device {
            name: "Card".to_owned(),
            memory_gb: 24.0,
            peak_tflops: 10.0,
            dtype: Dtype::F16,
            element_bytes: 2,
            bandwidth_gb_s: 100.0,
            launch_us: 5.0,
            efficiency: vec![[1.0, 0.5]],
            score_passes: [10.0, 12.0],
            unfused: [1.0; 2],
            interference: 1.0,
            estimates: Vec::new(),
            estimate: false,
        };
        let link = LinkLevel {
            name: "link".to_owned(),
            ranks: 2,
            bandwidth_gb_s: 1.0,
            port_gb_s: None,
            latency_us: 10.0,
            estimates: Vec::new(),
            estimate: false,
        };
        Machine { name: "Test".to_owned(), device, links: vec![link] }
    }

    #[test]
    fn products_traffic_and_launches_add_up() {
        let (machine, model) = (machine(), Model::gpt(1, 1024, 16, 1024, 256));
        let costs = MachineCosts::new(&machine, &model, None);
        // MLP, one sequence, two ranks: 2 products of 2 · 1024 · 1024 · 2048 = 4.295 GFLOP at 5 TFLOP/s: 1.717987 ms. Join 3,
        // norm 2 times 1024² and GELU 2 times 1024 · 2048 elements of 2 bytes at 100 GB/s: 0.188744 ms. Join, norm, up, GELU,
        // down: 25 µs.
        let forward = costs.compute(Operation::Forward(Family::Mlp, Extent::Output), 1, 2).unwrap();
        assert_eq!(forward, Nanoseconds(1_717_987 + 188_744 + 25_000));
        // Twice the traffic: 0.377487 ms.
        let mut plain = machine.clone();
        plain.device.unfused = [2.0, 3.0];
        let forward = MachineCosts::new(&plain, &model, None).compute(
            Operation::Forward(Family::Mlp, Extent::Output),
            1,
            2,
        );
        assert_eq!(forward, Ok(Nanoseconds(1_717_987 + 377_487 + 25_000)));
        // Attention: products of 1536 and 512 columns, and the core over all 1024 keys of 512 features, masked or not; all are
        // at the same rate. 10 passes over the scores of 8 heads.
        let products = (2.0 * 1024.0 * 1024.0 * 2048.0 + 4.0 * 1024.0 * 1024.0 * 512.0) / 5e12;
        let scores = 10.0 * 1024.0 * 8.0 * 1024.0;
        let traffic = (5.0 * 1024.0 * 1024.0 + 1024.0 * (1536.0 + 512.0) + scores) * 2.0 / 1e11;
        let forward = costs.compute(Operation::Forward(Family::Attn, Extent::Output), 1, 2).unwrap();
        assert_eq!(forward, Nanoseconds::from_seconds(products + traffic + 25e-6).unwrap());
        // A fused kernel computes what is seen, and writes no scores.
        let mut fused = machine.clone();
        fused.device.score_passes = [0.0; 2];
        let products = (2.0 * 1024.0 * 1024.0 * 2048.0 + 2.0 * 1024.0 * 1025.0 * 512.0) / 5e12;
        let traffic = (5.0 * 1024.0 * 1024.0 + 1024.0 * (1536.0 + 512.0)) * 2.0 / 1e11;
        let forward = MachineCosts::new(&fused, &model, None).compute(
            Operation::Forward(Family::Attn, Extent::Output),
            1,
            2,
        );
        assert_eq!(forward, Ok(Nanoseconds::from_seconds(products + traffic + 25e-6).unwrap()));
    }

    #[test]
    fn collectives_carry_elements_of_the_device() {
        let (machine, model) = (machine(), Model::gpt(1, 64, 2, 8, 256));
        let time = |link| {
            let costs = MachineCosts::new(&machine, &model, link);
            costs.collective(CollectiveKind::AllReduce, Bytes(8_000_000), Reach::neighbours(2)).unwrap()
        };
        // Half of the bytes: 4 MB at 1 GB/s, two hops of 10 µs.
        assert_eq!(time(None), CollectiveTime { link: Nanoseconds(4_020_000), host: Nanoseconds::ZERO });
        let fast = Ring { bandwidth_bytes_per_s: 4e9, latency_s: 0.0 };
        assert_eq!(time(Some(fast)).link, Nanoseconds(1_000_000));
    }
}
