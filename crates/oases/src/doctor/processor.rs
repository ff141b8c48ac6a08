//! The processor: its name, how many cores this process may use, and which vector instructions it has.

use std::path::Path;

use super::{Line, read};

/// The lines about the processor.
pub(super) fn lines(root: &Path) -> Vec<Line> {
    let cpuinfo = read(root, "/proc/cpuinfo").unwrap_or_default();
    let name = cpuinfo_field(&cpuinfo, "model name").unwrap_or("unknown");
    vec![("cpu", name.to_string()), ("cores", cores(root, &cpuinfo)), ("simd", simd(&cpuinfo))]
}

fn cores(root: &Path, cpuinfo: &str) -> String {
    let usable = match std::thread::available_parallelism() {
        Ok(count) => format!("{count} usable"),
        Err(error) => format!("unknown ({error})"),
    };
    let online = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let affinity = read(root, "/proc/self/status").and_then(|status| allowed_cores(&status));
    let mut details = Vec::new();
    if online > 0 {
        details.push(format!("{online} online"));
    }
    if let Some((list, count)) = affinity {
        details.push(format!("affinity {list}, {count} of them"));
    }
    if let Some(siblings) = threads_per_core(cpuinfo).filter(|siblings| *siblings > 1) {
        details.push(format!("{siblings} hardware threads to a core"));
    }
    if details.is_empty() { usable } else { format!("{usable} ({})", details.join("; ")) }
}

/// The list of cores that this process may run on, and how many they are.
fn allowed_cores(status: &str) -> Option<(String, usize)> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim();
    let mut count = 0usize;
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        count += last.checked_sub(first)? + 1;
    }
    Some((list.to_string(), count))
}

/// How many hardware threads share a core: two ranks on one core slow each other down.
fn threads_per_core(cpuinfo: &str) -> Option<usize> {
    let siblings: usize = cpuinfo_field(cpuinfo, "siblings")?.parse().ok()?;
    let cores: usize = cpuinfo_field(cpuinfo, "cpu cores")?.parse().ok()?;
    siblings.checked_div(cores)
}

fn cpuinfo_field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    cpuinfo.lines().find_map(|line| {
        let (field, value) = line.split_once(':')?;
        (field.trim() == name).then(|| value.trim())
    })
}

fn simd(cpuinfo: &str) -> String {
    let mut found: Vec<&str> =
        detected().into_iter().filter(|(_, present)| *present).map(|(name, _)| name).collect();
    // The compiler cannot ask for AMX yet; the kernel lists it only where programs may use it.
    let flags = cpuinfo_field(cpuinfo, "flags").unwrap_or_default();
    for (flag, name) in [("amx_tile", "amx-tile"), ("amx_bf16", "amx-bf16")] {
        if flags.split_whitespace().any(|present| present == flag) {
            found.push(name);
        }
    }
    if found.is_empty() { "none known".to_string() } else { found.join(" ") }
}

#[cfg(target_arch = "x86_64")]
fn detected() -> Vec<(&'static str, bool)> {
    vec![
        ("sse4.2", std::is_x86_feature_detected!("sse4.2")),
        ("avx", std::is_x86_feature_detected!("avx")),
        ("avx2", std::is_x86_feature_detected!("avx2")),
        ("fma", std::is_x86_feature_detected!("fma")),
        ("avx512f", std::is_x86_feature_detected!("avx512f")),
        ("avx512bf16", std::is_x86_feature_detected!("avx512bf16")),
        ("avx512vnni", std::is_x86_feature_detected!("avx512vnni")),
    ]
}

#[cfg(target_arch = "aarch64")]
fn detected() -> Vec<(&'static str, bool)> {
    vec![
        ("neon", std::arch::is_aarch64_feature_detected!("neon")),
        ("dotprod", std::arch::is_aarch64_feature_detected!("dotprod")),
        ("bf16", std::arch::is_aarch64_feature_detected!("bf16")),
        ("i8mm", std::arch::is_aarch64_feature_detected!("i8mm")),
        ("sve", std::arch::is_aarch64_feature_detected!("sve")),
        ("sve2", std::arch::is_aarch64_feature_detected!("sve2")),
    ]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn detected() -> Vec<(&'static str, bool)> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cores_of_an_affinity_list_are_counted() {
        let count = |list: &str| allowed_cores(&format!("Name:\tx\nCpus_allowed_list:\t{list}\n"));
        assert_eq!(count("0-1"), Some(("0-1".to_string(), 2)));
        assert_eq!(count("0,2-4,7"), Some(("0,2-4,7".to_string(), 5)));
        assert_eq!(count("4-2"), None);
        assert_eq!(count("x"), None);
        assert_eq!(allowed_cores(""), None);
    }

    #[test]
    fn hyper_threads_are_seen() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2.0 GHz\nsiblings\t: 4\ncpu cores\t: 2\n";
        assert_eq!(threads_per_core(cpuinfo), Some(2));
        assert_eq!(cpuinfo_field(cpuinfo, "model name"), Some("Some CPU @ 2.0 GHz"));
        assert_eq!(threads_per_core("siblings : 4\ncpu cores : 0\n"), None);
    }
}
