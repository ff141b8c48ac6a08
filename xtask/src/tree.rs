//! The files of the repository that the rules are about.

use std::fs;
use std::path::{Path, PathBuf};

/// The top of the repository.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// All files below the folder whose name ends so, as (path from the folder, text), sorted.
///
/// Build output, version control and what is not UTF-8 are left out.
pub fn files(root: &Path, suffix: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && !name.starts_with('.') && name != "target" && name != "runs" {
                folders.push(path);
            } else if kind.is_file() && name.ends_with(suffix) {
                let relative = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
                if let Ok(text) = fs::read_to_string(&path) {
                    found.push((relative, text));
                }
            }
        }
    }
    found.sort();
    found
}
