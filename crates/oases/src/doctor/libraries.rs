//! CUDA, NCCL and MPI: whether they are here, and if not, what is missing.
//!
//! Looks where the dynamic loader would look, without loading anything.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Line, read};
use crate::environment::Environment;

/// Folders that the loader or an installer of CUDA uses without naming them in `ld.so.conf`.
const DEFAULT_FOLDERS: [&str; 8] = [
    "/lib",
    "/usr/lib",
    "/lib64",
    "/usr/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/local/cuda/lib64",
    "/usr/lib/wsl/lib",
];

/// The lines about libraries.
pub(super) fn lines(root: &Path, environment: &Environment) -> Vec<Line> {
    let folders = library_folders(root, environment);
    vec![
        ("cuda", cuda(root, &folders)),
        ("nccl", nccl(&folders)),
        ("mpi", mpi(&folders, &environment.program_folders)),
    ]
}

/// Every folder that libraries are looked for in, in the loader's order, each once.
fn library_folders(root: &Path, environment: &Environment) -> Vec<PathBuf> {
    let mut folders = environment.library_folders.clone();
    let mut configured = Vec::new();
    read_loader_configuration(root, "/etc/ld.so.conf", &mut configured, 0);
    let named = configured.iter().map(String::as_str).chain(DEFAULT_FOLDERS);
    for folder in named.map(|folder| root.join(folder.trim_start_matches('/'))) {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders
}

/// Reads `ld.so.conf`: a folder a line, and `include` with a pattern whose last part may be `*.conf`.
fn read_loader_configuration(root: &Path, path: &str, folders: &mut Vec<String>, depth: usize) {
    // Includes may form a circle; nobody nests them deeper than once.
    if depth > 4 {
        return;
    }
    for line in read(root, path).unwrap_or_default().lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(pattern) = line.strip_prefix("include ") {
            for file in matching(root, path, pattern.trim()) {
                read_loader_configuration(root, &file, folders, depth + 1);
            }
        } else if line.starts_with('/') {
            folders.push(line.to_string());
        }
    }
}

/// The files that an `include` names, in order. A relative pattern starts at the folder of the including file.
fn matching(root: &Path, including: &str, pattern: &str) -> Vec<String> {
    let pattern = match (pattern.starts_with('/'), including.rfind('/')) {
        (false, Some(end)) => format!("{}/{pattern}", &including[..end]),
        _ => pattern.to_string(),
    };
    let Some((folder, name)) = pattern.rsplit_once('/') else { return Vec::new() };
    let Some(suffix) = name.strip_prefix('*') else { return vec![pattern.clone()] };
    let mut files: Vec<String> = names_in(&root.join(folder.trim_start_matches('/')))
        .into_iter()
        .filter(|name| name.ends_with(suffix))
        .map(|name| format!("{folder}/{name}"))
        .collect();
    files.sort();
    files
}

fn names_in(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Where the first of these names lies in the folders. A link that leads nowhere does not count.
fn find(folders: &[PathBuf], names: &[&str]) -> Option<PathBuf> {
    names.iter().find_map(|name| folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file()))
}

fn cuda(root: &Path, folders: &[PathBuf]) -> String {
    let library = find(folders, &["libcuda.so.1", "libcuda.so"]);
    let devices = names_in(&root.join("dev"))
        .iter()
        .filter(|name| name.strip_prefix("nvidia").is_some_and(|index| index.parse::<u32>().is_ok()))
        .count();
    // Under WSL the devices are behind another node.
    let wsl = root.join("dev/dxg").exists();
    let version = read(root, "/proc/driver/nvidia/version").and_then(|text| driver_version(&text));
    let driver = version.map_or(String::new(), |version| format!(", driver {version}"));
    match library {
        Some(path) if devices > 0 => format!("found: {devices} device(s), {}{driver}", path.display()),
        Some(path) if wsl => format!("found: /dev/dxg, {}{driver}", path.display()),
        Some(path) => format!(
            "not usable: {} is there but no /dev/nvidia*; no GPU, no kernel module, or a container without the GPU",
            path.display()
        ),
        None if devices > 0 => format!(
            "not usable: {devices} device(s) in /dev but no libcuda.so.1 in {}{driver}",
            searched(folders)
        ),
        None => format!("not found: no libcuda.so.1 in {} and no /dev/nvidia*", searched(folders)),
    }
}

/// `535.183.01` out of `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 …`.
fn driver_version(text: &str) -> Option<String> {
    let line = text.lines().next()?;
    let is_version = |word: &&str| {
        word.contains('.') && word.chars().all(|character| character.is_ascii_digit() || character == '.')
    };
    line.split_whitespace().find(is_version).map(str::to_string)
}

fn nccl(folders: &[PathBuf]) -> String {
    match find(folders, &["libnccl.so.2", "libnccl.so"]) {
        Some(path) => format!("found: {}", path.display()),
        None => format!("not found: no libnccl.so.2 in {}", searched(folders)),
    }
}

fn mpi(library_folders: &[PathBuf], program_folders: &[PathBuf]) -> String {
    let launcher = find(program_folders, &["mpirun", "mpiexec"]);
    // Open MPI and MPICH call theirs by different names and versions.
    let library = library_folders.iter().find_map(|folder| {
        let mut names = names_in(folder);
        names.sort();
        names.into_iter().find(|name| is_mpi_library(name)).map(|name| folder.join(name))
    });
    match (launcher, library) {
        (Some(launcher), Some(library)) => format!("found: {}, {}", launcher.display(), library.display()),
        (Some(launcher), None) => format!(
            "not usable: {} is there but no libmpi.so in {}",
            launcher.display(),
            searched(library_folders)
        ),
        (None, Some(library)) => {
            format!("not usable: {} is there but no mpirun or mpiexec in PATH", library.display())
        }
        (None, None) => {
            format!(
                "not found: no mpirun or mpiexec in PATH and no libmpi.so in {}",
                searched(library_folders)
            )
        }
    }
}

fn is_mpi_library(name: &str) -> bool {
    ["libmpi.so", "libmpich.so"]
        .iter()
        .any(|stem| name.strip_prefix(stem).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

fn searched(folders: &[PathBuf]) -> String {
    format!("{} library folders", folders.iter().filter(|folder| folder.is_dir()).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file system of its own, with these files.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn lines_of(root: &Path) -> String {
        let environment =
            Environment { program_folders: vec![root.join("usr/bin")], ..Environment::default() };
        let text: Vec<String> =
            lines(root, &environment).into_iter().map(|(name, value)| format!("{name}: {value}")).collect();
        text.join("\n").replace(root.to_str().unwrap(), "")
    }

    #[test]
    fn an_empty_machine_has_nothing_and_says_why() {
        let root = machine(&[("usr/lib/libc.so.6", "")]);
        assert_eq!(
            lines_of(root.path()),
            "cuda: not found: no libcuda.so.1 in 1 library folders and no /dev/nvidia*\n\
             nccl: not found: no libnccl.so.2 in 1 library folders\n\
             mpi: not found: no mpirun or mpiexec in PATH and no libmpi.so in 1 library folders"
        );
    }

    #[test]
    fn a_machine_with_everything_says_where() {
        let root = machine(&[
            ("etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\ninclude ld.so.conf\n"),
            ("etc/ld.so.conf.d/cuda.conf", "# the driver\n/opt/nvidia/lib # here\n"),
            ("opt/nvidia/lib/libcuda.so.1", ""),
            ("usr/lib64/libnccl.so.2", ""),
            ("usr/lib/x86_64-linux-gnu/libmpi.so.40", ""),
            ("usr/lib/x86_64-linux-gnu/libmpi_cxx.so.40", ""),
            ("usr/bin/mpirun", ""),
            ("dev/nvidia0", ""),
            ("dev/nvidia1", ""),
            ("dev/nvidiactl", ""),
            (
                "proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May\n",
            ),
        ]);
        assert_eq!(
            lines_of(root.path()),
            "cuda: found: 2 device(s), /opt/nvidia/lib/libcuda.so.1, driver 535.183.01\n\
             nccl: found: /usr/lib64/libnccl.so.2\n\
             mpi: found: /usr/bin/mpirun, /usr/lib/x86_64-linux-gnu/libmpi.so.40"
        );
    }

    #[test]
    fn half_of_an_installation_is_not_found() {
        let root = machine(&[("usr/lib/libcuda.so.1", ""), ("usr/bin/mpiexec", "")]);
        let lines = lines_of(root.path());
        assert!(
            lines.contains("cuda: not usable: /usr/lib/libcuda.so.1 is there but no /dev/nvidia*"),
            "{lines}"
        );
        assert!(lines.contains("mpi: not usable: /usr/bin/mpiexec is there but no libmpi.so"), "{lines}");
        let root = machine(&[("dev/nvidia0", ""), ("usr/lib/libmpich.so.12", "")]);
        let lines = lines_of(root.path());
        assert!(lines.contains("cuda: not usable: 1 device(s) in /dev but no libcuda.so.1"), "{lines}");
        assert!(lines.contains("libmpich.so.12 is there but no mpirun or mpiexec in PATH"), "{lines}");
    }
}
