//! What differs between two saved configurations.

use super::keys;

/// Each key whose value differs, with both values, in the order of the keys; where a run is kept is no matter of it.
///
/// Both texts are of [`super::RunConfig::to_toml`]. What is no TOML has nothing that could differ.
pub fn changes(before: &str, after: &str) -> Vec<String> {
    let (Ok(before), Ok(after)) = (toml::from_str(before), toml::from_str(after)) else { return Vec::new() };
    keys::KEYS
        .iter()
        .filter(|key| key.path != "run.dir")
        .filter_map(|key| {
            let (before, after) = (value(&before, key), value(&after, key));
            // An older version did not save keys that it did not have: what is left out is the default.
            let unsaid = before.is_none()
                && match key.default {
                    keys::WhenLeftOut::Value(text) => after.is_some_and(|after| after.to_string() == text),
                    _ => key.section() == "model",
                };
            (before != after && !unsaid).then(|| format!("{} {} → {}", key.path, text(before), text(after)))
        })
        .collect()
}

fn value<'a>(configuration: &'a toml::Table, key: &keys::Key) -> Option<&'a toml::Value> {
    configuration.get(key.section())?.get(key.name())
}

fn text(value: Option<&toml::Value>) -> String {
    value.map_or("none".to_string(), toml::Value::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_told_key_by_key() {
        let before = "[data]\ntext = [\"a\"]\nvalidation = 0.05\n[train]\nsteps = 500\n[run]\ndir = \"a\"\n";
        let after = "[data]\ntext = [\"a\"]\nvalidation = 0.1\n[link]\nlatency = \"1 us\"\n[train]\nsteps = 130\n\
                     [run]\ndir = \"b\"\n";
        assert_eq!(
            changes(before, after),
            ["data.validation 0.05 → 0.1", "link.latency none → \"1 us\"", "train.steps 500 → 130"]
        );
        let newer = format!("{before}[model]\nkv_heads = 3\nnorm = \"layer_norm\"\n");
        assert_eq!(changes(before, &newer), [""; 0]);
        let newer = format!("{before}[model]\nnorm = \"rms_norm\"\n");
        assert_eq!(changes(before, &newer), ["model.norm none → \"rms_norm\""]);
        assert_eq!(changes(before, before), [""; 0]);
        assert_eq!(changes("steps =", after), [""; 0]);
    }
}
