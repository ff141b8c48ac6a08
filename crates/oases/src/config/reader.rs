//! Takes typed values out of a [`Document`], and collects what is wrong with each key instead of stopping at the first.

use std::collections::BTreeSet;
use std::ops::RangeBounds;
use std::path::PathBuf;

use super::document::Document;
use super::keys::{self, Accepts, Key, WhenLeftOut};
use super::units::{Bandwidth, Latency, UnitError};
use crate::error::UserError;

/// Reads keys. A key with a problem gives a stand-in, and is remembered, so that rules about it are not applied.
pub struct Reader<'a> {
    document: &'a Document,
    problems: Vec<UserError>,
    unusable: BTreeSet<&'static str>,
}

impl<'a> Reader<'a> {
    /// Starts reading; unknown keys and sections are the first problems found.
    pub fn new(document: &'a Document) -> Reader<'a> {
        let mut reader = Reader { document, problems: Vec::new(), unusable: BTreeSet::new() };
        reader.problems.extend(unknown_keys(document));
        reader
    }

    /// Whether a section is there at all.
    pub fn has_section(&self, section: &str) -> bool {
        self.document.has_section(section)
    }

    /// All problems found so far, and the keys whose values are stand-ins.
    pub fn finish(self) -> (Vec<UserError>, BTreeSet<&'static str>) {
        (self.problems, self.unusable)
    }

    /// A whole number.
    pub fn integer(&mut self, path: &'static str) -> u64 {
        let key = known(path);
        let Some(value) = self.given(key) else { return 1 };
        let Accepts::Integer(low, high) = key.accepts else { unreachable!("{path} is no integer") };
        match value.as_integer().map(u64::try_from) {
            Some(Ok(integer)) if (low..=high).contains(&integer) => integer,
            _ => self.refuse(key, &value, 1),
        }
    }

    /// A whole number, or this one, which follows from the key `source`, where it is left out.
    pub fn integer_or(&mut self, path: &'static str, derived: u64, source: &'static str) -> u64 {
        if self.document.entries.contains_key(path) {
            return self.integer(path);
        }
        if self.unusable.contains(source) {
            self.unusable.insert(path);
        }
        derived
    }

    /// A whole number that counts something in memory. Their limits are far below an address, see [`keys`].
    pub fn size(&mut self, path: &'static str) -> usize {
        self.integer(path) as usize
    }

    /// A finite number; a whole one will do.
    pub fn number(&mut self, path: &'static str) -> f64 {
        let key = known(path);
        let Some(value) = self.given(key) else { return 1.0 };
        let Accepts::Number(low, high) = key.accepts else { unreachable!("{path} is no number") };
        let number = value.as_float().or_else(|| value.as_integer().map(|integer| integer as f64));
        match number {
            Some(number) if number.is_finite() && (low, high).contains(&number) => number,
            _ => self.refuse(key, &value, 1.0),
        }
    }

    /// True or false.
    pub fn flag(&mut self, path: &'static str) -> bool {
        let key = known(path);
        let Some(value) = self.given(key) else { return false };
        value.as_bool().unwrap_or_else(|| self.refuse(key, &value, false))
    }

    /// Text, which only rules can read.
    pub fn text(&mut self, path: &'static str) -> String {
        let key = known(path);
        match self.given(key) {
            Some(toml::Value::String(text)) if !text.is_empty() => single_spaced(&text),
            Some(value) => self.refuse(key, &value, String::new()),
            None => String::new(),
        }
    }

    /// One of a fixed set of words.
    pub fn word(&mut self, path: &'static str) -> String {
        let key = known(path);
        let (Accepts::Word(words) | Accepts::Runs(words)) = key.accepts else {
            unreachable!("{path} is no word")
        };
        let Some(value) = self.given(key) else { return words[0].to_string() };
        match value.as_str() {
            Some(word) if words.contains(&word) => word.to_string(),
            Some(word) if words.len() > 1 => {
                let hint = match (path, word) {
                    ("parallel.order", "interleaved") => "stages are interleaved by several pieces of the chain on each: set \
                                                          `parallel.chunks` to 2 or more, and leave the order \"1f1b\""
                        .to_owned(),
                    _ => format!("did you mean \"{}\"?", nearest(word, words).0),
                };
                self.problem(key, must_be(key, &value), hint);
                word.to_string()
            }
            _ => self.refuse(key, &value, words[0].to_string()),
        }
    }

    /// One of a fixed set of words, or runs of them, which only rules can read: their number depends on other keys.
    pub fn word_or_runs(&mut self, path: &'static str) -> String {
        match self.given(known(path)) {
            Some(toml::Value::String(text)) if text.contains('*') => single_spaced(&text),
            _ => self.word(path),
        }
    }

    /// TMP degrees, which only rules can read. A single one may stand without quotes.
    pub fn degrees(&mut self, path: &'static str) -> String {
        let key = known(path);
        match self.given(key) {
            Some(toml::Value::String(text)) => single_spaced(&text),
            Some(toml::Value::Integer(degree)) if degree > 0 => degree.to_string(),
            Some(value) => self.refuse(key, &value, String::new()),
            None => String::new(),
        }
    }

    /// Names of blocks, which only rules can read.
    pub fn blocks(&mut self, path: &'static str) -> String {
        let key = known(path);
        match self.given(key) {
            Some(toml::Value::String(text)) => single_spaced(&text),
            Some(value) => self.refuse(key, &value, String::new()),
            None => String::new(),
        }
    }

    /// A path, if one was given.
    pub fn path(&mut self, path: &'static str) -> Option<PathBuf> {
        self.document.entries.contains_key(path).then(|| self.path_or(path, PathBuf::new()))
    }

    /// A path, or the derived one where it is left out.
    pub fn path_or(&mut self, path: &'static str, derived: PathBuf) -> PathBuf {
        let key = known(path);
        let Some(value) = self.given(key) else { return derived };
        match value.as_str() {
            Some(text) if usable_path(text) => PathBuf::from(text),
            _ => self.refuse(key, &value, derived),
        }
    }

    /// A list of paths; a single one may stand without brackets.
    pub fn paths(&mut self, path: &'static str) -> Vec<PathBuf> {
        let key = known(path);
        let Some(value) = self.given(key) else { return Vec::new() };
        let items = match &value {
            toml::Value::Array(items) => items.clone(),
            single => vec![single.clone()],
        };
        let paths: Option<Vec<PathBuf>> = items
            .iter()
            .map(|item| item.as_str().filter(|text| usable_path(text)).map(PathBuf::from))
            .collect();
        match paths {
            Some(paths) if !paths.is_empty() => paths,
            _ => self.refuse(key, &value, Vec::new()),
        }
    }

    /// A list of texts.
    pub fn texts(&mut self, path: &'static str) -> Vec<String> {
        let items =
            self.list(path, |item| item.as_str().filter(|text| !text.trim().is_empty()).map(str::to_owned));
        if items.as_ref().is_some_and(Vec::is_empty) {
            return self.refuse(known(path), &toml::Value::Array(Vec::new()), Vec::new());
        }
        items.unwrap_or_default()
    }

    /// A list of texts, possibly an empty one.
    pub fn texts_or_none(&mut self, path: &'static str) -> Vec<String> {
        let read =
            |item: &toml::Value| item.as_str().filter(|text| !text.trim().is_empty()).map(str::to_owned);
        self.list(path, read).unwrap_or_default()
    }

    /// A list of numbers.
    pub fn numbers(&mut self, path: &'static str) -> Vec<f64> {
        let Accepts::Numbers(low, high) = known(path).accepts else { unreachable!("{path} has no numbers") };
        let number = |item: &toml::Value| {
            let number = item.as_float().or_else(|| item.as_integer().map(|integer| integer as f64))?;
            (number.is_finite() && (low, high).contains(&number)).then_some(number)
        };
        self.list(path, number).unwrap_or_default()
    }

    /// A list of rates.
    pub fn bandwidths(&mut self, path: &'static str) -> Vec<Bandwidth> {
        self.list(path, |item| item.as_str()?.parse().ok()).unwrap_or_default()
    }

    /// A list; a single item may stand without brackets. `None` where one is not what it should be.
    fn list<T>(&mut self, path: &'static str, read: impl Fn(&toml::Value) -> Option<T>) -> Option<Vec<T>> {
        let key = known(path);
        let value = self.given(key)?;
        let items = match &value {
            toml::Value::Array(items) => items.clone(),
            single => vec![single.clone()],
        };
        for item in &items {
            if read(item).is_none() {
                return self.refuse(key, item, None);
            }
        }
        Some(items.iter().filter_map(read).collect())
    }

    /// A rate.
    pub fn bandwidth(&mut self, path: &'static str) -> Bandwidth {
        self.quantity(path, Bandwidth::MAX)
    }

    /// A time.
    pub fn latency(&mut self, path: &'static str) -> Latency {
        self.quantity(path, Latency::MAX)
    }

    fn quantity<T: std::str::FromStr<Err = UnitError>>(&mut self, path: &'static str, stand_in: T) -> T {
        let key = known(path);
        let Some(value) = self.given(key) else { return stand_in };
        let Some(text) = value.as_str() else { return self.refuse(key, &value, stand_in) };
        text.parse().unwrap_or_else(|error: UnitError| {
            self.problem(key, error.message, error.hint);
            stand_in
        })
    }

    /// The value given for a key, or its default. `None` where the caller's stand-in or derived value is to be used.
    fn given(&mut self, key: &'static Key) -> Option<toml::Value> {
        if let Some(entry) = self.document.entries.get(key.path) {
            return Some(entry.value.clone());
        }
        match key.default {
            WhenLeftOut::Value(text) => Some(default_value(text)),
            WhenLeftOut::Derived(_) => None,
            WhenLeftOut::Required => {
                self.problem(key, "is missing".to_string(), key.hint());
                None
            }
        }
    }

    fn refuse<T>(&mut self, key: &'static Key, value: &toml::Value, stand_in: T) -> T {
        self.problem(key, must_be(key, value), key.hint());
        stand_in
    }

    fn problem(&mut self, key: &'static Key, message: String, hint: String) {
        self.unusable.insert(key.path);
        let place = self.document.place(key.path);
        self.problems.push(UserError::new(format!("{place}: `{}` {message}", key.path), hint));
    }
}

fn known(path: &'static str) -> &'static Key {
    keys::find(path).unwrap_or_else(|| panic!("{path} is not in the table of keys"))
}

/// A default from the table, which is TOML.
fn default_value(text: &str) -> toml::Value {
    let parsed: Result<toml::Table, _> = toml::from_str(&format!("value = {text}"));
    parsed
        .ok()
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| panic!("the default {text} is not TOML"))
}

/// The same words, with one space between two of them.
fn single_spaced(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Paths go through TOML and through system calls: neither an empty one nor a NUL can be meant.
fn usable_path(text: &str) -> bool {
    !text.is_empty() && !text.contains('\0')
}

fn must_be(key: &Key, found: &toml::Value) -> String {
    format!("must be {}, not {}", key.accepts.words(), describe(found))
}

/// A value that was found where another was expected.
fn describe(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) if text.chars().count() > 60 => {
            format!("\"{}…\"", text.chars().take(60).collect::<String>())
        }
        toml::Value::String(text) => format!("\"{text}\""),
        toml::Value::Integer(integer) => integer.to_string(),
        toml::Value::Float(float) => format!("{float:?}"),
        toml::Value::Boolean(flag) => flag.to_string(),
        toml::Value::Datetime(datetime) => format!("the date {datetime}"),
        toml::Value::Array(items) if items.is_empty() => "an empty list".to_string(),
        toml::Value::Array(_) => "such a list".to_string(),
        toml::Value::Table(_) => "a section".to_string(),
    }
}

/// One problem for each unknown section and for each unknown key in a known section, in the order of the file.
fn unknown_keys(document: &Document) -> Vec<UserError> {
    let sections = keys::sections();
    let mut problems = Vec::new();
    for section in document.sections.keys().filter(|section| !sections.contains(&section.as_str())) {
        let hint = section_hint(section, &sections);
        problems.push((section.as_str(), format!("unknown section `[{section}]`"), hint));
    }
    for (path, entry) in document.entries.iter().filter(|(path, _)| keys::find(path).is_none()) {
        match path.split_once('.') {
            Some((section, name)) if sections.contains(&section) => {
                problems.push((path, format!("unknown key `{path}`"), key_hint(section, name)));
            }
            // The section has been told already, unless it comes from --set.
            Some((section, _)) if document.sections.contains_key(section) => {}
            Some((section, _)) => {
                let hint = section_hint(section, &sections);
                problems.push((path, format!("unknown section `[{section}]` of `{path}`"), hint));
            }
            None => problems.push(outside(path, &entry.value, &sections)),
        }
    }
    let mut errors: Vec<(usize, UserError)> = problems
        .into_iter()
        .map(|(path, message, hint)| {
            let line = match document.entries.get(path).map(|entry| entry.origin) {
                Some(super::document::Origin::Line(line)) => line,
                Some(super::document::Origin::Set | super::document::Origin::Family) => usize::MAX,
                None => document.sections.get(path).copied().unwrap_or(usize::MAX),
            };
            (line, UserError::new(format!("{}: {message}", document.place(path)), hint))
        })
        .collect();
    errors.sort_by_key(|(line, _)| *line);
    errors.into_iter().map(|(_, error)| error).collect()
}

/// A name at the top level that is no section.
fn outside<'a>(path: &'a str, value: &toml::Value, sections: &[&str]) -> (&'a str, String, String) {
    if sections.contains(&path) {
        let hint = format!("write its keys on lines below `[{path}]`");
        return (path, format!("`{path}` is a section, not a key with the value {}", describe(value)), hint);
    }
    let hint = match keys::KEYS.iter().find(|key| key.name() == path) {
        Some(key) => format!("it belongs under `[{}]`", key.section()),
        None => {
            let names: Vec<&str> = keys::KEYS.iter().map(Key::name).collect();
            let nearest = nearest(path, &names).0;
            let key = keys::KEYS.iter().find(|key| key.name() == nearest);
            format!("the nearest key is `{}`", key.map_or(nearest, |key| key.path))
        }
    };
    (path, format!("unknown key `{path}` outside any section"), hint)
}

fn section_hint(section: &str, sections: &[&str]) -> String {
    let list = sections.join(", ");
    format!("the nearest section is `[{}]`; there are {list}", nearest(section, sections).0)
}

/// The key that was probably meant: the same name elsewhere, or the one spelled most alike in this section.
fn key_hint(section: &str, name: &str) -> String {
    let here: Vec<&str> = keys::KEYS.iter().filter(|key| key.section() == section).map(Key::name).collect();
    let (nearest, similarity) = nearest(name, &here);
    if let Some(elsewhere) = keys::KEYS.iter().find(|key| key.name() == name) {
        return format!("did you mean `{}`?", elsewhere.path);
    }
    if similarity >= 0.75 {
        return format!("did you mean `{section}.{nearest}`?");
    }
    format!("the nearest key is `{section}.{nearest}`; [{section}] has {}", here.join(", "))
}

/// The candidate spelled most alike, and how much alike it is, from 0 to 1.
fn nearest<'a>(name: &str, candidates: &[&'a str]) -> (&'a str, f64) {
    // Keys are short; comparing a name of a megabyte with them would only take time.
    let name: String = name.to_lowercase().chars().take(64).collect();
    let scored = candidates.iter().map(|candidate| (*candidate, strsim::jaro_winkler(&name, candidate)));
    scored.max_by(|left, right| left.1.total_cmp(&right.1)).unwrap_or(("", 0.0))
}
