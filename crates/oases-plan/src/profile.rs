//! A profile: measured durations of one model's instructions and collectives, on one machine and backend.
//!
//! Its text form is TOML, read and written by whoever has a parser. Units stand in the names of the fields.

use std::collections::BTreeSet;

use oases_schedule::{CollectiveKind, Model, Operation};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::Error;

/// The version of the form that this crate reads and writes.
pub const FORMAT: u32 = 1;

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Where it comes from.
    pub profile: Origin,
    /// Which model.
    pub model: Shape,
    /// The link over which the collectives were measured; none where ranks share memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<MeasuredLink>,
    /// Compute instructions.
    #[serde(default)]
    pub compute: Vec<MeasuredCompute>,
    /// Collectives.
    #[serde(default)]
    pub collective: Vec<MeasuredCollective>,
}

/// Where a profile comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Version of the form; [`FORMAT`].
    pub format: u32,
    /// The backend: `cpu`.
    pub backend: String,
    /// The machine, in words.
    pub machine: String,
    /// Ranks that ran at once.
    pub tensor: u32,
    /// The day: `2026-11-29`.
    pub created: String,
}

/// All of a model that durations depend on; its layers matter to `norm` and `step` only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// The kind of transformer: `gpt`.
    pub family: String,
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width inside an MLP block.
    pub ffn: usize,
    /// Tokens in a sequence.
    pub sequence: usize,
    /// Tokens that exist.
    pub vocabulary: usize,
    /// Whether the head shares the embedding's weight.
    pub tied: bool,
    /// Share of activations that is dropped.
    pub dropout: f32,
}

/// The link of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredLink {
    /// Its speed, in units of 10⁹ bit/s.
    pub bandwidth_gbit_s: f64,
    /// Its latency.
    pub latency_us: f64,
}

/// The duration of a compute instruction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredCompute {
    /// What it does: `forward attn`.
    #[serde(with = "operation_name")]
    pub operation: Operation,
    /// TMP degree.
    pub tensor: u32,
    /// Sequences; 0 for `norm` and `step`.
    pub sequences: u32,
    /// Mean of the samples, in milliseconds, without those that tell of other work on the machine.
    pub ms: f64,
    /// The least of the samples, in milliseconds.
    pub min_ms: f64,
    /// How often it was measured.
    pub samples: u32,
}

/// The duration of a collective.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredCollective {
    /// What it does: `all_reduce`.
    #[serde(with = "kind_name")]
    pub operation: CollectiveKind,
    /// Ranks of the group.
    pub ranks: u32,
    /// Bytes of each rank's whole buffer.
    pub bytes: u64,
    /// From the moment at which all ranks have started it until all have it, in milliseconds, over the link that was
    /// there.
    pub ms: f64,
    /// The arithmetic in it that a rank does itself, in milliseconds.
    pub host_ms: f64,
    /// How often it was measured.
    pub samples: u32,
}

/// Operations by the names of the schedule crate, which knows no serialized form but its own.
mod operation_name {
    use super::*;

    pub(super) fn serialize<S: Serializer>(operation: &Operation, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(operation)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Operation, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Kinds of collectives by their names.
mod kind_name {
    use super::*;

    pub(super) fn serialize<S: Serializer>(kind: &CollectiveKind, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(kind.name())
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<CollectiveKind, D::Error> {
        let name = String::deserialize(from)?;
        let kinds = [CollectiveKind::AllReduce, CollectiveKind::AllGather];
        let bad = || D::Error::custom(format!("`{name}` is not a collective (all_reduce, all_gather)"));
        kinds.into_iter().find(|kind| kind.name() == name).ok_or_else(bad)
    }
}

impl Shape {
    /// The shape of a model of that family.
    pub fn of(family: &str, model: &Model) -> Shape {
        Shape {
            family: family.to_owned(),
            layers: model.layers,
            hidden: model.hidden,
            heads: model.heads,
            kv_heads: model.kv_heads,
            ffn: model.ffn,
            sequence: model.sequence,
            vocabulary: model.vocabulary,
            tied: model.tied,
            dropout: model.dropout,
        }
    }

    /// The fields, by name, for comparison.
    fn fields(&self) -> [(&'static str, String); 10] {
        [
            ("family", self.family.clone()),
            ("layers", self.layers.to_string()),
            ("hidden", self.hidden.to_string()),
            ("heads", self.heads.to_string()),
            ("kv_heads", self.kv_heads.to_string()),
            ("ffn", self.ffn.to_string()),
            ("sequence", self.sequence.to_string()),
            ("vocabulary", self.vocabulary.to_string()),
            ("tied", self.tied.to_string()),
            ("dropout", self.dropout.to_string()),
        ]
    }
}

impl Profile {
    /// Everything that must hold before it is computed with.
    pub fn check(&self) -> Result<(), Error> {
        let bad = |entry: String, problem: String| Err(Error::Profile { entry, problem });
        if self.profile.format != FORMAT {
            let problem = format!("{} is not known, only {FORMAT}", self.profile.format);
            return bad("profile.format".to_owned(), problem);
        }
        if let Some(MeasuredLink { bandwidth_gbit_s, latency_us }) = self.link {
            let sound = (1e-9..=1e9).contains(&bandwidth_gbit_s) && (0.0..=1e9).contains(&latency_us);
            if !sound {
                let problem = format!("{bandwidth_gbit_s} Gbit/s with {latency_us} us is no link");
                return bad("link".to_owned(), problem);
            }
        }
        let mut seen = BTreeSet::new();
        for entry in &self.compute {
            let MeasuredCompute { operation, tensor, sequences, .. } = *entry;
            let name = entry.name();
            if operation.is_on_part() != (sequences > 0) || tensor == 0 {
                return bad(
                    name,
                    "`sequences` is 0 for `norm` and `step` only, and `tensor` never".to_owned(),
                );
            }
            measured(&name, "ms", entry.ms)?;
            if !seen.insert((operation, tensor, sequences)) {
                return bad(name, "it is there twice".to_owned());
            }
        }
        let mut seen = BTreeSet::new();
        for entry in &self.collective {
            let name = entry.name();
            if entry.ranks < 2 || entry.bytes == 0 {
                return bad(name, "a collective has bytes and at least two ranks".to_owned());
            }
            measured(&name, "ms", entry.ms)?;
            if entry.host_ms != 0.0 {
                measured(&name, "host_ms", entry.host_ms)?;
            }
            if !seen.insert((entry.operation, entry.ranks, entry.bytes)) {
                return bad(name, "it is there twice".to_owned());
            }
        }
        Ok(())
    }

    /// Refuses a profile of another model or backend, with the fields that differ.
    pub fn check_is_of(&self, shape: &Shape, backend: &str) -> Result<(), Error> {
        if self.profile.backend != backend {
            let differences = format!("{} instead of {backend}", self.profile.backend);
            return Err(Error::OtherProfile { what: "backend", differences });
        }
        let differences: Vec<String> = self
            .model
            .fields()
            .into_iter()
            .zip(shape.fields())
            .filter(|((_, measured), (_, asked))| measured != asked)
            .map(|((name, measured), (_, asked))| format!("{name} {measured} instead of {asked}"))
            .collect();
        match differences.is_empty() {
            true => Ok(()),
            false => Err(Error::OtherProfile { what: "model", differences: differences.join(", ") }),
        }
    }
}

impl MeasuredCompute {
    fn name(&self) -> String {
        format!("`{}` of {} sequences at TMP degree {}", self.operation, self.sequences, self.tensor)
    }
}

impl MeasuredCollective {
    fn name(&self) -> String {
        format!("{} of {} B over {} ranks", self.operation.name(), self.bytes, self.ranks)
    }
}

/// A duration that was measured is not zero, and not longer than 11 days.
fn measured(entry: &str, field: &str, ms: f64) -> Result<(), Error> {
    if ms > 0.0 && ms <= 1e9 {
        return Ok(());
    }
    let problem = format!("`{field}` must be above 0 and at most 1e9, not {ms}");
    Err(Error::Profile { entry: entry.to_owned(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;
    use oases_schedule::{Extent, Family};

    fn sample() -> Profile {
        let profile = Origin {
            format: FORMAT,
            backend: "cpu".to_owned(),
            machine: "test".to_owned(),
            tensor: 2,
            created: "2026-11-29".to_owned(),
        };
        let compute = |operation, sequences| MeasuredCompute {
            operation,
            tensor: 2,
            sequences,
            ms: 5.0,
            min_ms: 4.9,
            samples: 9,
        };
        Profile {
            profile,
            model: Shape::of("gpt", &Model::gpt(4, 192, 6, 128, 256)),
            link: None,
            compute: vec![
                compute(Operation::Forward(Family::Attn, Extent::Output), 4),
                compute(Operation::Step, 0),
            ],
            collective: vec![MeasuredCollective {
                operation: CollectiveKind::AllReduce,
                ranks: 2,
                bytes: 4096,
                ms: 0.1,
                host_ms: 0.0,
                samples: 9,
            }],
        }
    }

    #[test]
    fn another_model_is_told_by_its_fields() {
        let profile = sample();
        let model = Model::gpt(4, 192, 6, 128, 256);
        assert_eq!(profile.check_is_of(&Shape::of("gpt", &model), "cpu"), Ok(()));
        let error = profile.check_is_of(&Shape::of("gpt", &model), "cuda").unwrap_err();
        assert_eq!(error.to_string(), "the profile is of another backend: cpu instead of cuda");
        let other = Model { hidden: 256, dropout: 0.1, ..model };
        let error = profile.check_is_of(&Shape::of("gpt", &other), "cpu").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the profile is of another model: hidden 192 instead of 256, dropout 0 instead of 0.1"
        );
    }

    #[test]
    fn entries_that_cannot_be_are_refused() {
        type Change = fn(&mut Profile);
        let table: [(Change, &str); 8] = [
            (|p| p.profile.format = 2, "profile.format: 2 is not known, only 1"),
            (
                |p| p.compute[0].ms = 0.0,
                "`forward attn` of 4 sequences at TMP degree 2: `ms` must be above 0 and at most 1e9, not 0",
            ),
            (
                |p| p.compute[1].sequences = 1,
                "`step` of 1 sequences at TMP degree 2: `sequences` is 0 for `norm` and `step` only, and `tensor` never",
            ),
            (
                |p| p.compute[0].sequences = 0,
                "`forward attn` of 0 sequences at TMP degree 2: `sequences` is 0 for `norm` and `step` only, and \
                 `tensor` never",
            ),
            (
                |p| p.compute[1] = p.compute[0].clone(),
                "`forward attn` of 4 sequences at TMP degree 2: it is there twice",
            ),
            (
                |p| p.collective[0].ms = f64::NAN,
                "all_reduce of 4096 B over 2 ranks: `ms` must be above 0 and at most 1e9, not NaN",
            ),
            (
                |p| p.collective[0].host_ms = -1.0,
                "all_reduce of 4096 B over 2 ranks: `host_ms` must be above 0 and at most 1e9, not -1",
            ),
            (
                |p| p.collective[0].ranks = 1,
                "all_reduce of 4096 B over 1 ranks: a collective has bytes and at least two ranks",
            ),
        ];
        assert_eq!(sample().check(), Ok(()));
        for (change, message) in table {
            let mut profile = sample();
            change(&mut profile);
            assert_eq!(profile.check().unwrap_err().to_string(), message);
        }
    }
}
