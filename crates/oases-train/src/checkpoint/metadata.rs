//! What a checkpoint says about itself, besides its tensors.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::path::Path;

use crate::error::{Error, Result};

/// The version of the format that this program writes and reads.
const FORMAT_VERSION: &str = "1";
const FORMAT_KEY: &str = "oases_checkpoint";

/// Names and values that describe a model or an optimizer, printed as `name=value` lines.
///
/// Two that differ can say in which names, so a mismatch is explained instead of only noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description(BTreeMap<String, String>);

impl Description {
    /// Describes nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with one more value. `f32` and `f64` are kept with all digits.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Display) -> Self {
        self.0.insert(name.into(), value.to_string());
        self
    }

    /// The value under this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Names and values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// In which names `self`, which was found, differs from what is `wanted`: one phrase for each.
    pub fn differences(&self, wanted: &Self) -> Vec<String> {
        let names: std::collections::BTreeSet<_> = self.0.keys().chain(wanted.0.keys()).collect();
        let shown = |value: Option<&str>| value.unwrap_or("absent").to_owned();
        names
            .into_iter()
            .map(|name| (name, self.get(name), wanted.get(name)))
            .filter(|(_, found, wanted)| found != wanted)
            .map(|(name, found, wanted)| format!("{name} is {}, wanted {}", shown(found), shown(wanted)))
            .collect()
    }
}

impl Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|(name, value)| writeln!(f, "{name}={value}"))
    }
}

/// What a checkpoint says besides its tensors: all that a run needs to go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Optimizer steps done.
    pub step: u64,
    /// Training samples used: the next step begins with this one.
    pub samples: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// The seed of initial weights, dropout and data order.
    pub seed: u64,
    /// The model, as far as its weights depend on it.
    pub model: Description,
    /// The optimizer's settings that a resumed run must share.
    pub optimizer: Description,
}

impl Metadata {
    /// An error that names each difference, if the checkpoint at `path` is of another model.
    pub fn expect_model(&self, wanted: &Description, path: &Path) -> Result<()> {
        let differences = self.model.differences(wanted);
        if differences.is_empty() {
            return Ok(());
        }
        let reason = format!("is of another model: {}", differences.join("; "));
        Err(Error::checkpoint(path, reason)
            .with_hint("use the configuration that the checkpoint was made with, or another run folder"))
    }

    /// As the flat names and values that a safetensors file holds.
    pub(super) fn to_map(&self) -> BTreeMap<String, String> {
        let mut map = BTreeMap::from([
            (FORMAT_KEY.to_owned(), FORMAT_VERSION.to_owned()),
            ("step".to_owned(), self.step.to_string()),
            ("samples".to_owned(), self.samples.to_string()),
            ("tokens".to_owned(), self.tokens.to_string()),
            ("seed".to_owned(), self.seed.to_string()),
        ]);
        for (prefix, description) in [("model.", &self.model), ("optimizer.", &self.optimizer)] {
            map.extend(description.iter().map(|(name, value)| (format!("{prefix}{name}"), value.to_owned())));
        }
        map
    }

    /// Back from names and values; the error says what is missing or wrong, to follow "checkpoint FILE:".
    pub(super) fn from_map(map: &BTreeMap<String, String>) -> std::result::Result<Self, String> {
        match map.get(FORMAT_KEY).map(String::as_str) {
            Some(FORMAT_VERSION) => {}
            Some(other) => {
                return Err(format!("has format version {other:.20}, this program reads {FORMAT_VERSION}"));
            }
            None => return Err(format!("is a safetensors file, but not of oases (no {FORMAT_KEY} in it)")),
        }
        let number = |name: &str| {
            let value = map.get(name).ok_or_else(|| format!("does not say its {name}"))?;
            value.parse().map_err(|_| format!("has {name} = {value:.40}, which is not a number"))
        };
        let description = |prefix: &str| {
            let named = map.iter().filter_map(|(name, value)| Some((name.strip_prefix(prefix)?, value)));
            Description(named.map(|(name, value)| (name.to_owned(), value.clone())).collect())
        };
        Ok(Self {
            step: number("step")?,
            samples: number("samples")?,
            tokens: number("tokens")?,
            seed: number("seed")?,
            model: description("model."),
            optimizer: description("optimizer."),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Description {
        Description::new().with("heads", 6).with("hidden", 192)
    }

    #[test]
    fn survives_the_map() {
        let metadata = Metadata {
            step: u64::MAX,
            samples: 1,
            tokens: 2,
            seed: 3,
            model: model(),
            optimizer: Description::new().with("beta2", 0.95_f32),
        };
        assert_eq!(Metadata::from_map(&metadata.to_map()), Ok(metadata));
    }

    #[test]
    fn mismatch_names_field_and_both_values() {
        let metadata = Metadata { model: model(), ..Metadata::default() };
        let path = Path::new("step.safetensors");
        assert!(metadata.expect_model(&model(), path).is_ok());
        let wanted = Description::new().with("heads", 8).with("layers", 4).with("hidden", 192);
        assert_eq!(
            metadata.expect_model(&wanted, path).unwrap_err().to_string(),
            "checkpoint step.safetensors: is of another model: heads is 6, wanted 8; layers is absent, wanted 4"
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut map = Metadata::default().to_map();
        map.insert("step".into(), "-1".into());
        assert_eq!(Metadata::from_map(&map).unwrap_err(), "has step = -1, which is not a number");
        map.remove("step");
        assert_eq!(Metadata::from_map(&map).unwrap_err(), "does not say its step");
        map.insert(FORMAT_KEY.into(), "7".into());
        assert_eq!(Metadata::from_map(&map).unwrap_err(), "has format version 7, this program reads 1");
        map.remove(FORMAT_KEY);
        assert!(Metadata::from_map(&map).unwrap_err().contains("not of oases"));
    }
}
