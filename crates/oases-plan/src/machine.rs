//! A description of hardware that one does not have: rates of a device, and the links that join its ranks.

use oases_schedule::{Bytes, CollectiveKind};
use serde::{Deserialize, Serialize};

use crate::costs::Reach;
use crate::error::Error;
use crate::link::Ring;
use crate::time::Nanoseconds;

/// Devices and the links between them. Each rank is one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// How reports call it.
    pub name: String,
    /// What each rank computes on.
    pub device: Device,
    /// Links, from the inside out. A machine of one rank has none.
    #[serde(default, rename = "link")]
    pub links: Vec<LinkLevel>,
}

/// The type in which products are computed and activations are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32 bits.
    F32,
    /// Products in 19 bits, kept in 32.
    Tf32,
    /// 16 bits, 5 of them exponent.
    F16,
    /// 16 bits, 8 of them exponent.
    Bf16,
}

impl Dtype {
    /// Bytes of an element in memory.
    fn element_bytes(self) -> u64 {
        match self {
            Dtype::F32 | Dtype::Tf32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }
}

/// What computes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Memory, in units of 2³⁰ bytes, which is how makers count that of a card.
    pub memory_gb: f64,
    /// Peak rate of matrix products in `dtype`, dense, in units of 10¹² operations per second (a multiply-add is two).
    pub peak_tflops: f64,
    /// The type that is computed in.
    pub dtype: Dtype,
    /// Bytes of an activation in memory.
    pub element_bytes: u64,
    /// Memory bandwidth, in units of 10⁹ bytes per second.
    pub bandwidth_gb_s: f64,
    /// Fixed time of one operator, in microseconds; 0 if it is hidden altogether.
    pub launch_us: f64,
    /// Share of the peak that one product of so many GFLOP reaches: `[gflop, share]`, the sizes ascending. Between two
    /// sizes the share is linear in the logarithm of the size; beyond the ends it stays.
    pub efficiency: Vec<[f64; 2]>,
    /// How often the attention scores (one number for each query, key and head) pass through memory, forward and
    /// backward; [0, 0] for a fused kernel, which never writes them and leaves masked ones out.
    #[serde(default)]
    pub score_passes: [f64; 2],
    /// How much more the operators that are no products read and write than if each were one kernel, forward and backward:
    /// what a framework adds that runs a normalisation, a dropout or an addition as several.
    #[serde(default = "as_one_kernel")]
    pub unfused: [f64; 2],
    /// How many times longer an operator takes while a collective runs on the same device; 1 where it does not matter.
    #[serde(default = "no_interference")]
    pub interference: f64,
    /// Keys of this section that are estimated.
    #[serde(default)]
    pub estimates: Vec<String>,
    /// Whether the whole section is estimated.
    #[serde(default)]
    pub estimate: bool,
}

fn as_one_kernel() -> [f64; 2] {
    [1.0; 2]
}

fn no_interference() -> f64 {
    1.0
}

/// A link that joins ranks, or the groups that the level inside joins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkLevel {
    /// Its name.
    pub name: String,
    /// How many ranks are joined up to this level.
    pub ranks: u32,
    /// What one rank of a ring can send while it also receives as much, in units of 10⁹ bytes per second ("bus
    /// bandwidth").
    pub bandwidth_gb_s: f64,
    /// What all rings together can send that leave a server (what the level inside joins) at once, in the same units;
    /// `bandwidth_gb_s` if left out, which is then bounded by the port of the server and not by the ring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_gb_s: Option<f64>,
    /// Time of one hop, in microseconds.
    pub latency_us: f64,
    /// Keys of this section that are estimated.
    #[serde(default)]
    pub estimates: Vec<String>,
    /// Whether the whole section is estimated.
    #[serde(default)]
    pub estimate: bool,
}

impl LinkLevel {
    /// One of `rings` rings over this level that leave each server at once: they share its port, but none is faster than a
    /// ring alone.
    pub fn ring(&self, rings: u32) -> Ring {
        let port_gb_s = self.port_gb_s.unwrap_or(self.bandwidth_gb_s);
        let bandwidth_gb_s = self.bandwidth_gb_s.min(port_gb_s / f64::from(rings));
        Ring { bandwidth_bytes_per_s: bandwidth_gb_s * 1e9, latency_s: self.latency_us * 1e-6 }
    }
}

impl Device {
    /// Share of the peak that one product reaches.
    pub fn efficiency(&self, flops: u64) -> f64 {
        let gflop = flops as f64 / 1e9;
        let above = self.efficiency.partition_point(|[size, _]| *size <= gflop);
        match (above.checked_sub(1).map(|below| self.efficiency[below]), self.efficiency.get(above).copied())
        {
            (Some([low, left]), Some([high, right])) => {
                left + (right - left) * (gflop / low).ln() / (high / low).ln()
            }
            (Some([_, share]), None) | (None, Some([_, share])) => share,
            (None, None) => unreachable!("a checked machine has an efficiency"),
        }
    }
}

impl Machine {
    /// Everything that must hold before it is computed with.
    pub fn check(&self) -> Result<(), Error> {
        let device = &self.device;
        positive("device.memory_gb", device.memory_gb)?;
        positive("device.peak_tflops", device.peak_tflops)?;
        positive("device.bandwidth_gb_s", device.bandwidth_gb_s)?;
        not_negative("device.launch_us", device.launch_us)?;
        for [passes, factor] in [0, 1].map(|pass| [device.score_passes[pass], device.unfused[pass]]) {
            not_negative("device.score_passes", passes)?;
            positive("device.unfused", factor)?;
        }
        if !(1.0..=GREATEST).contains(&device.interference) {
            return Err(refused("device.interference", must_be("at least 1", device.interference)));
        }
        let element = device.dtype.element_bytes();
        if device.element_bytes != element {
            let problem = format!("is {}, but the dtype has {element} bytes", device.element_bytes);
            return Err(refused("device.element_bytes", problem));
        }
        check_efficiency(&device.efficiency)?;
        check_estimates("device", &device.estimates, &DEVICE_FIGURES)?;
        let mut inside = 1;
        for level in &self.links {
            level.check(inside)?;
            inside = level.ranks;
        }
        Ok(())
    }

    /// Ranks that its links join.
    pub fn ranks(&self) -> u32 {
        self.links.last().map_or(1, |level| level.ranks)
    }

    /// The levels that `span` neighbours need: up to the first that joins as many.
    pub fn spanned(&self, span: u32) -> Result<&[LinkLevel], Error> {
        if span <= 1 {
            return Ok(&[]);
        }
        let outermost = self.links.iter().position(|level| level.ranks >= span);
        let outermost = outermost.ok_or_else(|| Error::TooManyRanks {
            asked: span,
            joined: self.ranks(),
            machine: self.name.clone(),
        })?;
        Ok(&self.links[..=outermost])
    }

    /// How long a collective occupies the links: each group is one ring over its ranks, as slow as the slowest level that it
    /// spans. All groups run at once.
    ///
    /// How many rings leave a server (what a level joins inside the next, `r` ranks) follows from the stride `s`. If `s < r`,
    /// each run of `s` neighbours belongs to `s` rings, and what lies `s` further belongs to the same ones: they are `s`.
    /// Otherwise every rank of the server is in a ring of its own, and they are `r`. So `min(s, r)` rings share a port; a
    /// reduction over replicas of degree 4 in servers of four cards gets a quarter of the network port. Neighbours (`s` = 1)
    /// are one ring, whose bandwidth is what the machine describes.
    ///
    /// A hop that leaves a server has passed what joins its cards to the port, so the levels inside count for it too.
    pub fn collective(&self, kind: CollectiveKind, bytes: Bytes, reach: Reach) -> Result<Nanoseconds, Error> {
        if reach.ranks <= 1 {
            return Ok(Nanoseconds::ZERO);
        }
        let (mut slowest, mut inside) = (Nanoseconds::ZERO, 1);
        for level in self.spanned(reach.span)? {
            let ring = level.ring(reach.stride.min(inside));
            let too_long =
                || Error::TooLong { what: format!("{} of {bytes} over `{}`", kind.name(), level.name) };
            slowest = slowest.max(ring.duration(kind, bytes, reach.ranks).ok_or_else(too_long)?);
            inside = level.ranks;
        }
        Ok(slowest)
    }

    /// The figures that are estimates: `launch_us`, `bandwidth_gb_s of NVLink`.
    pub fn estimates(&self) -> Vec<String> {
        let device = &self.device;
        let mut list: Vec<String> = device.estimates.clone();
        if device.estimate {
            list = vec![format!("all of {}", device.name)];
        }
        for level in &self.links {
            match level.estimate {
                true => list.push(format!("all of {}", level.name)),
                false => list.extend(level.estimates.iter().map(|key| format!("{key} of {}", level.name))),
            }
        }
        list
    }
}

impl LinkLevel {
    fn check(&self, inside: u32) -> Result<(), Error> {
        positive("link.bandwidth_gb_s", self.bandwidth_gb_s)?;
        not_negative("link.latency_us", self.latency_us)?;
        if let Some(port) = self.port_gb_s {
            positive("link.port_gb_s", port)?;
            if port < self.bandwidth_gb_s {
                let problem = format!(
                    "of `{}` is {port}, but one ring alone sends {}; a port carries at least that",
                    self.name, self.bandwidth_gb_s
                );
                return Err(refused("link.port_gb_s", problem));
            }
        }
        if self.ranks <= inside {
            let problem = format!(
                "of `{}` is {}; a level joins more ranks than what is inside it, {inside}",
                self.name, self.ranks
            );
            return Err(refused("link.ranks", problem));
        }
        check_estimates("link", &self.estimates, &["ranks", "bandwidth_gb_s", "port_gb_s", "latency_us"])
    }
}

/// Figures of a device that may be estimates.
const DEVICE_FIGURES: [&str; 8] = [
    "memory_gb",
    "peak_tflops",
    "bandwidth_gb_s",
    "launch_us",
    "efficiency",
    "score_passes",
    "unfused",
    "interference",
];

fn check_efficiency(points: &[[f64; 2]]) -> Result<(), Error> {
    let bad = |problem: String| Err(refused("device.efficiency", problem));
    if points.is_empty() {
        return bad("has no point; write [[gflop, share], …]".to_owned());
    }
    for [gflop, share] in points {
        positive("device.efficiency", *gflop)?;
        if !(*share > 0.0 && *share <= 1.0) {
            return bad(format!("has the share {share}; shares are above 0 and at most 1"));
        }
    }
    match points.windows(2).find(|pair| pair[0][0] >= pair[1][0]) {
        Some(pair) => bad(format!("has {} GFLOP after {}; sizes ascend", pair[1][0], pair[0][0])),
        None => Ok(()),
    }
}

fn check_estimates(section: &str, estimates: &[String], known: &[&str]) -> Result<(), Error> {
    match estimates.iter().find(|key| !known.contains(&key.as_str())) {
        Some(key) => {
            let problem = format!("names `{key}`; it can name {}", known.join(", "));
            Err(refused(&format!("{section}.estimates"), problem))
        }
        None => Ok(()),
    }
}

/// No figure of a machine is beyond a billion of its unit.
const GREATEST: f64 = 1e9;

fn positive(key: &str, value: f64) -> Result<(), Error> {
    if value > 0.0 && value <= GREATEST { Ok(()) } else { Err(refused(key, must_be("above 0", value))) }
}

fn not_negative(key: &str, value: f64) -> Result<(), Error> {
    if (0.0..=GREATEST).contains(&value) { Ok(()) } else { Err(refused(key, must_be("at least 0", value))) }
}

fn must_be(range: &str, value: f64) -> String {
    format!("must be {range} and at most 1e9, not {value}")
}

fn refused(key: &str, problem: String) -> Error {
    Error::Machine { key: key.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(name: &str, ranks: u32, bandwidth_gb_s: f64, latency_us: f64) -> LinkLevel {
        let estimates = vec!["latency_us".to_owned()];
        LinkLevel {
            name: name.to_owned(),
            ranks,
            bandwidth_gb_s,
            port_gb_s: None,
            latency_us,
            estimates,
            estimate: false,
        }
    }

    pub(crate) fn sample() -> Machine {
        let device = Device {
            name: "Card".to_owned(),
            memory_gb: 24.0,
            peak_tflops: 10.0,
            dtype: Dtype::F32,
            element_bytes: 4,
            bandwidth_gb_s: 100.0,
            launch_us: 5.0,
            efficiency: vec![[1.0, 0.2], [100.0, 0.6]],
            score_passes: [0.0; 2],
            unfused: [1.0; 2],
            interference: 1.0,
            estimates: Vec::new(),
            estimate: false,
        };
        let links = vec![level("inner", 4, 10.0, 5.0), level("outer", 8, 1.0, 20.0)];
        Machine { name: "Test".to_owned(), device, links }
    }

    #[test]
    fn efficiency_is_linear_in_the_logarithm_and_stays_beyond_the_ends() {
        let device = sample().device;
        // 10 GFLOP is half way between 1 and 100 on a logarithmic scale.
        for (gflop, share) in [(0.1, 0.2), (1.0, 0.2), (10.0, 0.4), (100.0, 0.6), (5000.0, 0.6)] {
            assert!((device.efficiency((gflop * 1e9) as u64) - share).abs() < 1e-12, "{gflop}");
        }
    }

    #[test]
    fn a_collective_is_as_slow_as_the_slowest_level_it_spans() {
        let machine = sample();
        let time =
            |ranks| machine.collective(CollectiveKind::AllReduce, Bytes(8_000_000), Reach::neighbours(ranks));
        // 2 · 3/4 · 8 MB at 10 GB/s and 6 hops of 5 µs.
        assert_eq!(time(4), Ok(Nanoseconds(1_230_000)));
        // 2 · 4/5 · 8 MB at 1 GB/s and 8 hops of 20 µs.
        assert_eq!(time(5), Ok(Nanoseconds(12_960_000)));
        assert_eq!(time(1), Ok(Nanoseconds::ZERO));
        let message = time(9).unwrap_err().to_string();
        assert_eq!(message, "a group of 9 ranks does not fit on `Test`, which joins 8");
    }

    /// Three levels: pairs (20 GB/s), two pairs in a server (10 GB/s), eight servers (1 GB/s). No latency.
    fn nested() -> Machine {
        let links =
            vec![level("pair", 2, 20.0, 0.0), level("server", 4, 10.0, 0.0), level("network", 32, 1.0, 0.0)];
        Machine { links, ..sample() }
    }

    #[test]
    fn the_link_is_the_one_that_holds_the_span_of_the_ranks() {
        let machine = nested();
        let gather = |ranks, stride| {
            machine
                .collective(CollectiveKind::AllGather, Bytes(8_000_000), Reach::apart(ranks, stride))
                .map(|time| time.0)
                .map_err(|error| error.to_string())
        };
        // Half of 8 MB: at 20 GB/s in a pair, 10 GB/s in a server, 1 GB/s beyond it. Two ranks that are 2 apart span a server,
        // and the two rings of a pair share what joins it to the other: 5 GB/s.
        assert_eq!(gather(2, 1), Ok(200_000));
        assert_eq!(gather(2, 2), Ok(800_000));
        // Three quarters in a server, and over four pairs, one rank of each: two rings share the port of a server.
        assert_eq!(gather(4, 1), Ok(600_000));
        assert_eq!(gather(4, 2), Ok(12_000_000));
        assert_eq!(gather(8, 1), Ok(7_000_000));
        // Each rank of a server has a ring of its own, with a quarter of the port, however far the next rank is.
        assert_eq!(
            [gather(2, 4), gather(2, 16), gather(8, 4)],
            [Ok(16_000_000), Ok(16_000_000), Ok(28_000_000)]
        );
        // One rank has nobody to talk to, wherever the next would be.
        assert_eq!(gather(1, 64), Ok(0));
        let message = "a group of 64 ranks does not fit on `Test`, which joins 32";
        assert_eq!(gather(2, 32), Err(message.to_owned()));
        assert_eq!(gather(u32::MAX, 2), Err(message.replace("64", "4294967295")));
    }

    #[test]
    fn rings_share_a_port_that_carries_more_than_one() {
        let mut machine = nested();
        machine.links[2].port_gb_s = Some(2.5);
        let gather = |stride| {
            let reach = Reach::apart(2, stride);
            machine.collective(CollectiveKind::AllGather, Bytes(8_000_000), reach).unwrap().0
        };
        // Four rings get 2.5/4 GB/s each; 4 MB of 8.
        assert_eq!(gather(4), 6_400_000);
        // Two ranks that are 2 apart stay in a server.
        assert_eq!(gather(2), 800_000);
        // Two rings of four ranks would get 1.25 each, but a ring alone passes no more than 1: 6 MB.
        let reach = Reach::apart(4, 2);
        let two = machine.collective(CollectiveKind::AllGather, Bytes(8_000_000), reach);
        assert_eq!(two, Ok(Nanoseconds(6_000_000)));
    }

    #[test]
    fn every_figure_is_checked() {
        type Change = fn(&mut Machine);
        let table: [(Change, &str); 13] = [
            (
                |m| m.device.interference = 0.9,
                "`device.interference` must be at least 1 and at most 1e9, not 0.9",
            ),
            (|m| m.device.peak_tflops = 0.0, "`device.peak_tflops` must be above 0 and at most 1e9, not 0"),
            (
                |m| m.device.memory_gb = f64::NAN,
                "`device.memory_gb` must be above 0 and at most 1e9, not NaN",
            ),
            (|m| m.device.launch_us = -1.0, "`device.launch_us` must be at least 0 and at most 1e9, not -1"),
            (|m| m.device.element_bytes = 2, "`device.element_bytes` is 2, but the dtype has 4 bytes"),
            (|m| m.device.efficiency.clear(), "`device.efficiency` has no point; write [[gflop, share], …]"),
            (
                |m| m.device.efficiency[0][1] = 1.5,
                "`device.efficiency` has the share 1.5; shares are above 0 and at most 1",
            ),
            (|m| m.device.efficiency.reverse(), "`device.efficiency` has 1 GFLOP after 100; sizes ascend"),
            (
                |m| m.links[1].ranks = 4,
                "`link.ranks` of `outer` is 4; a level joins more ranks than what is inside it, 4",
            ),
            (
                |m| m.links[0].bandwidth_gb_s = f64::INFINITY,
                "`link.bandwidth_gb_s` must be above 0 and at most 1e9, not inf",
            ),
            (|m| m.links[0].port_gb_s = Some(0.0), "`link.port_gb_s` must be above 0 and at most 1e9, not 0"),
            (
                |m| m.links[1].port_gb_s = Some(0.5),
                "`link.port_gb_s` of `outer` is 0.5, but one ring alone sends 1; a port carries at least that",
            ),
            (
                |m| m.links[0].estimates.push("speed".to_owned()),
                "`link.estimates` names `speed`; it can name ranks, bandwidth_gb_s, port_gb_s, latency_us",
            ),
        ];
        assert_eq!(sample().check(), Ok(()));
        for (change, message) in table {
            let mut machine = sample();
            change(&mut machine);
            assert_eq!(machine.check().unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn estimates_are_listed_with_their_place() {
        let mut machine = sample();
        machine.device.estimates.push("launch_us".to_owned());
        machine.links[1].estimate = true;
        assert_eq!(machine.estimates(), ["launch_us", "latency_us of inner", "all of outer"]);
    }
}
