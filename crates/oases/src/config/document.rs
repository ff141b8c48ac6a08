//! What was typed: a TOML file and the `--set` overrides, as dotted keys that know where they come from.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::UserError;

/// One `--set key=value`. The value is TOML where it can be read as such, text otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// Dotted name.
    pub key: String,
    /// Its value.
    pub value: toml::Value,
}

impl FromStr for Override {
    type Err = String;
    fn from_str(text: &str) -> Result<Override, String> {
        let (key, value) = text.split_once('=').ok_or("there is no `=`; write section.key=value")?;
        let key = key.trim();
        if key.is_empty() || key.split('.').any(str::is_empty) {
            return Err("the key before `=` is incomplete; write section.key=value".to_string());
        }
        let value = value.trim();
        let parsed = DeValue::parse(value).ok().and_then(|parsed| plain(parsed.get_ref()));
        let value = parsed.unwrap_or_else(|| toml::Value::String(value.to_string()));
        Ok(Override { key: key.to_string(), value })
    }
}

/// Where a key was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// At this line of the file, counted from 1.
    Line(usize),
    /// By `--set`.
    Set,
    /// It follows from the family or the preset of the model.
    Family,
}

/// A value and where it was given.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The value.
    pub value: toml::Value,
    /// Where it was given.
    pub origin: Origin,
}

/// All keys that were given, by dotted name.
#[derive(Clone, Debug, Default)]
pub struct Document {
    /// How messages call the file.
    pub name: String,
    /// Keys inside sections, and whatever else stands at the top.
    pub entries: BTreeMap<String, Entry>,
    /// Sections of the file and the line of their header, empty ones included.
    pub sections: BTreeMap<String, usize>,
}

impl Document {
    /// Reads the text of a configuration file, which messages call `name`.
    pub fn parse(name: &str, text: &str) -> Result<Document, UserError> {
        let table = DeTable::parse(text).map_err(|error| {
            let place = error.span().map_or(String::new(), |span| format!(":{}", line_of(text, span.start)));
            let message = error.message().replace('\n', ", ");
            UserError::new(
                format!("{name}{place}: not valid TOML: {message}"),
                "a configuration has lines like `layers = 4` under sections like `[model]`; text stands in quotes",
            )
        })?;
        let mut document = Document { name: name.to_string(), ..Document::default() };
        for (key, value) in table.get_ref() {
            document.add_top(text, key, value)?;
        }
        Ok(document)
    }

    fn add_top(
        &mut self,
        text: &str,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(), UserError> {
        let line = line_of(text, key.span().start);
        let Some(section) = value.get_ref().as_table() else {
            let entry = Entry { value: self.plain(value, line)?, origin: Origin::Line(line) };
            self.entries.insert(key.get_ref().to_string(), entry);
            return Ok(());
        };
        self.sections.insert(key.get_ref().to_string(), line);
        for (name, value) in section {
            let line = line_of(text, name.span().start);
            let entry = Entry { value: self.plain(value, line)?, origin: Origin::Line(line) };
            self.entries.insert(format!("{}.{}", key.get_ref(), name.get_ref()), entry);
        }
        Ok(())
    }

    fn plain(&self, value: &Spanned<DeValue<'_>>, line: usize) -> Result<toml::Value, UserError> {
        plain(value.get_ref()).ok_or_else(|| {
            UserError::new(
                format!("{}:{line}: the number has too many digits", self.name),
                "whole numbers go up to 9223372036854775807",
            )
        })
    }

    /// Applies the overrides in order; a later one of the same key wins.
    pub fn apply(&mut self, overrides: &[Override]) {
        for Override { key, value } in overrides {
            self.entries.insert(key.clone(), Entry { value: value.clone(), origin: Origin::Set });
        }
    }

    /// Whether anything was given in a section, its bare header included.
    pub fn has_section(&self, section: &str) -> bool {
        let inside = |key: &String| key.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'));
        self.sections.contains_key(section) || self.entries.keys().any(inside)
    }

    /// Where a problem with this key is to be mended: its own place, or its section's, or the file.
    pub fn place(&self, key: &str) -> Place<'_> {
        let section = key.split_once('.').map_or(key, |(section, _)| section);
        let given = self.entries.get(key).map(|entry| entry.origin);
        let origin = given.filter(|origin| *origin != Origin::Family);
        let origin = origin.or_else(|| self.sections.get(section).map(|line| Origin::Line(*line)));
        Place { name: &self.name, origin }
    }
}

/// A place in what was typed, as messages begin with it.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    name: &'a str,
    origin: Option<Origin>,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.origin {
            Some(Origin::Line(line)) => write!(f, "{}:{line}", self.name),
            Some(Origin::Set) => write!(f, "--set"),
            Some(Origin::Family) | None => write!(f, "{}", self.name),
        }
    }
}

/// The value without its places; `None` if a number in it does not fit 64 bits.
fn plain(value: &DeValue<'_>) -> Option<toml::Value> {
    Some(match value {
        DeValue::String(text) => toml::Value::String(text.to_string()),
        DeValue::Integer(integer) => {
            let number = i64::from_str_radix(integer.as_str(), integer.radix()).ok()?;
            toml::Value::Integer(number)
        }
        DeValue::Float(float) => toml::Value::Float(float.as_str().parse().ok()?),
        DeValue::Boolean(flag) => toml::Value::Boolean(*flag),
        DeValue::Datetime(datetime) => toml::Value::Datetime(*datetime),
        DeValue::Array(array) => {
            let values = array.iter().map(|value| plain(value.get_ref()));
            toml::Value::Array(values.collect::<Option<Vec<_>>>()?)
        }
        DeValue::Table(table) => {
            let pairs =
                table.iter().map(|(key, value)| Some((key.get_ref().to_string(), plain(value.get_ref())?)));
            toml::Value::Table(pairs.collect::<Option<toml::Table>>()?)
        }
    })
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = &text.as_bytes()[..offset.min(text.len())];
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value_of(text: &str) -> toml::Value {
        text.parse::<Override>().unwrap().value
    }

    #[test]
    fn an_override_is_toml_or_else_text() {
        use toml::Value::{Boolean, Float, Integer, String};
        assert_eq!(value_of("a.b=4"), Integer(4));
        assert_eq!(value_of("a.b = 2e-3"), Float(2e-3));
        assert_eq!(value_of("a.b=true"), Boolean(true));
        assert_eq!(value_of("a.b=\"x = y\""), String("x = y".into()));
        assert_eq!(value_of("a.b=runs/x"), String("runs/x".into()));
        assert_eq!(value_of("a.b=1 Gbit/s"), String("1 Gbit/s".into()));
        assert_eq!(value_of("a.b=1\nc=2"), String("1\nc=2".into()));
        assert_eq!(value_of("a.b="), String("".into()));
        assert_eq!(value_of("a.b=99999999999999999999"), String("99999999999999999999".into()));
        assert_eq!(value_of("a.b=[\"x\"]"), toml::Value::Array(vec![String("x".into())]));
    }

    #[test]
    fn an_override_without_a_key_is_refused() {
        for text in ["", "a.b", "=1", ".b=1", "a.=1"] {
            assert!(text.parse::<Override>().is_err(), "{text}");
        }
    }

    #[test]
    fn keys_know_their_line() {
        let text = "top = 1\n[model]\nlayers = 2\n\n# note\nhidden = 3\n[link]\n";
        let mut document = Document::parse("x.toml", text).unwrap();
        assert_eq!(document.place("top").to_string(), "x.toml:1");
        assert_eq!(document.place("model.hidden").to_string(), "x.toml:6");
        assert_eq!(document.place("model.heads").to_string(), "x.toml:2");
        assert_eq!(document.place("train.steps").to_string(), "x.toml");
        assert!(document.has_section("link") && !document.has_section("mode"));
        document.apply(&["model.hidden=5".parse().unwrap()]);
        assert_eq!(document.place("model.hidden").to_string(), "--set");
    }

    #[test]
    fn broken_toml_names_the_line() {
        let error = Document::parse("x.toml", "[model]\nlayers = = 4\n").unwrap_err().to_string();
        assert!(error.starts_with("x.toml:2: not valid TOML: "), "{error}");
        let error = Document::parse("x.toml", "a = 1\na = 2\n").unwrap_err().to_string();
        assert!(error.starts_with("x.toml:2: not valid TOML: "), "{error}");
        let error =
            Document::parse("x.toml", "a = 123456789012345678901234567890\n").unwrap_err().to_string();
        assert_eq!(error, "x.toml:1: the number has too many digits");
    }
}
