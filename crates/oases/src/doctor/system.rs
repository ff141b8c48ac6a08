//! The operating system, the memory, and the limits that a container sets.

use std::path::Path;

use super::{Line, bytes_text, read};

/// The lines about the system.
pub(super) fn lines(root: &Path) -> Vec<Line> {
    vec![("os", os(root)), ("memory", memory(root)), ("container", limits(root))]
}

fn os(root: &Path) -> String {
    let name = read(root, "/etc/os-release").and_then(|text| pretty_name(&text));
    let kernel = read(root, "/proc/sys/kernel/osrelease");
    let name = name.unwrap_or_else(|| std::env::consts::OS.to_string());
    match kernel {
        Some(kernel) => format!("{name}, kernel {}", kernel.trim()),
        None => name,
    }
}

fn pretty_name(os_release: &str) -> Option<String> {
    let value = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim().trim_matches(['"', '\'']).to_string())
}

fn memory(root: &Path) -> String {
    let Some(meminfo) = read(root, "/proc/meminfo") else {
        return "unknown (no /proc/meminfo)".to_string();
    };
    let field = |name| meminfo_bytes(&meminfo, name).map_or("unknown".to_string(), bytes_text);
    format!("{} in all, {} available, {} swap", field("MemTotal"), field("MemAvailable"), field("SwapTotal"))
}

fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Bytes that this process can still have, as far as the system tells: what is available, within the limits of its
/// control groups.
pub(super) fn available_memory(root: &Path) -> Option<u64> {
    let available = read(root, "/proc/meminfo").and_then(|meminfo| meminfo_bytes(&meminfo, "MemAvailable"));
    let limit = read(root, "/proc/self/cgroup").and_then(|groups| memory_limit(root, &groups));
    available.into_iter().chain(limit).min()
}

fn memory_limit(root: &Path, groups: &str) -> Option<u64> {
    smallest(&folders(groups, "memory"), |folder| {
        let value = read(root, &format!("{folder}/memory.max"))
            .or_else(|| read(root, &format!("{folder}/memory.limit_in_bytes")))?;
        // Version 1 writes a number near 2^63 where there is no limit, version 2 writes `max`.
        value.trim().parse::<u64>().ok().filter(|bytes| *bytes < 1 << 60)
    })
}

/// What the control groups of this process allow, over all that enclose it.
fn limits(root: &Path) -> String {
    let Some(groups) = read(root, "/proc/self/cgroup") else {
        return "unknown (no /proc/self/cgroup)".to_string();
    };
    let memory = memory_limit(root, &groups);
    let cores = smallest(&folders(&groups, "cpu"), |folder| cpu_quota(root, folder));
    let memory =
        memory.map_or("no memory limit".to_string(), |bytes| format!("memory {}", bytes_text(bytes)));
    let cores = cores.map_or("no core limit".to_string(), |cores| format!("{cores:.2} cores"));
    format!("{memory}, {cores}")
}

/// The cores that a group may use at once.
fn cpu_quota(root: &Path, folder: &str) -> Option<f64> {
    let (quota, period) = match read(root, &format!("{folder}/cpu.max")) {
        Some(text) => {
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.to_string(), period.to_string())
        }
        None => (
            read(root, &format!("{folder}/cpu.cfs_quota_us"))?,
            read(root, &format!("{folder}/cpu.cfs_period_us"))?,
        ),
    };
    let (quota, period): (f64, f64) = (quota.trim().parse().ok()?, period.trim().parse().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

fn smallest<T: PartialOrd>(folders: &[String], limit: impl Fn(&str) -> Option<T>) -> Option<T> {
    let mut smallest: Option<T> = None;
    for value in folders.iter().filter_map(|folder| limit(folder)) {
        if smallest.as_ref().is_none_or(|so_far| value < *so_far) {
            smallest = Some(value);
        }
    }
    smallest
}

/// The folders of this process's group for a controller and of all groups around it, innermost first.
fn folders(groups: &str, controller: &str) -> Vec<String> {
    let mut folders = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let mount = match controllers {
            "" => "/sys/fs/cgroup".to_string(),
            names if names.split(',').any(|name| name == controller) => {
                format!("/sys/fs/cgroup/{controller}")
            }
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        loop {
            folders.push(format!("{mount}{path}"));
            match path.rfind('/') {
                Some(end) => path = &path[..end],
                None => break,
            }
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn groups_of_both_versions_lead_to_their_folders() {
        assert_eq!(
            folders("0::/a/b\n", "memory"),
            ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"]
        );
        assert_eq!(folders("3:cpu,cpuacct:/\n4:memory:/x\n", "cpu"), ["/sys/fs/cgroup/cpu"]);
        assert_eq!(folders("nonsense\n", "cpu"), [""; 0]);
    }

    #[test]
    fn the_smallest_limit_of_all_enclosing_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/self/cgroup", "0::/pod/box\n");
        write("sys/fs/cgroup/pod/box/memory.max", "max\n");
        write("sys/fs/cgroup/pod/memory.max", "1073741824\n");
        write("sys/fs/cgroup/pod/box/cpu.max", "150000 100000\n");
        write("sys/fs/cgroup/pod/cpu.max", "max 100000\n");
        assert_eq!(limits(root.path()), "memory 1.0 GiB, 1.50 cores");
        write("proc/self/cgroup", "4:memory:/\n1:cpu:/\n");
        write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
        write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
        assert_eq!(limits(root.path()), "no memory limit, no core limit");
    }

    #[test]
    fn memory_is_read_in_bytes() {
        let meminfo = "MemTotal:       24684092 kB\nMemAvailable:   1048576 kB\n";
        assert_eq!(meminfo_bytes(meminfo, "MemAvailable"), Some(1 << 30));
        assert_eq!(meminfo_bytes(meminfo, "Mem"), None);
        assert_eq!(pretty_name("ID=x\nPRETTY_NAME=\"Some Linux 12\"\n").as_deref(), Some("Some Linux 12"));
    }
}
