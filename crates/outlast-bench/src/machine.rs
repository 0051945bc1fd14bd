//! Where results come from: machine, build and file system.

use serde::Serialize;
use std::fs;
use std::path::Path;

/// What a reader has to know about the machine to judge the results.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Number of cores that this process may use.
    pub cores: usize,
    /// Size of the memory in bytes.
    pub memory_bytes: Option<u64>,
    /// The kernel's release.
    pub kernel: String,
    /// The kernel's setting for huge pages of anonymous memory.
    pub huge_pages_anonymous: String,
    /// The kernel's setting for huge pages of shared memory (tmpfs).
    pub huge_pages_shared: String,
    /// The tunables that the environment sets for the C library's allocator.
    pub glibc_tunables: String,
    /// The system's load average over the minute before the run. Above zero, other programs may
    /// have disturbed the measurement.
    pub load_average: f64,
    /// The commit that the program was built from, with `-dirty` if the sources differed from it;
    /// `unknown` outside a repository.
    pub commit: String,
    /// Start time in seconds since 1970.
    pub began: u64,
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Returns the setting in brackets from a file that lists all possible settings of the kernel.
fn chosen(path: &str) -> String {
    let text = read(path);
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(text.clone(), |(chosen, _)| chosen.to_owned())
}

fn after<'t>(text: &'t str, field: &str) -> Option<&'t str> {
    let line = text.lines().find(|line| line.starts_with(field))?;
    line.split_once(':').map(|(_, value)| value.trim())
}

/// Size of this machine's memory in bytes.
pub fn memory_bytes() -> Option<u64> {
    let kb: u64 = after(&read("/proc/meminfo"), "MemTotal")?.split(' ').next()?.parse().ok()?;
    Some(kb * 1024)
}

impl Machine {
    /// Describes this machine now.
    pub fn here() -> Machine {
        let cpu = read("/proc/cpuinfo");
        let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs());
        Machine {
            processor: after(&cpu, "model name").unwrap_or(std::env::consts::ARCH).to_owned(),
            cores: crate::team::cores().len(),
            memory_bytes: memory_bytes(),
            kernel: read("/proc/sys/kernel/osrelease"),
            huge_pages_anonymous: chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
            huge_pages_shared: chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
            glibc_tunables: std::env::var("GLIBC_TUNABLES").unwrap_or_default(),
            load_average: read("/proc/loadavg")
                .split(' ')
                .next()
                .unwrap_or("")
                .parse()
                .unwrap_or(0.0),
            commit: env!("OUTLAST_COMMIT").into(),
            began: now,
        }
    }
}

/// Returns the name of a directory's file system.
pub fn file_system(dir: &Path) -> String {
    let Ok(found) = rustix::fs::statfs(dir) else { return "unknown".into() };
    match found.f_type as u64 {
        0x0102_1994 => "tmpfs".into(),
        0xef53 => "ext4".into(),
        0x5846_5342 => "xfs".into(),
        0x9123_683e => "btrfs".into(),
        0x794c_7630 => "overlayfs".into(),
        other => format!("{other:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_fields_are_read() {
        assert_eq!(after("a : 1\nmodel name\t: Some CPU\n", "model name"), Some("Some CPU"));
        let here = Machine::here();
        assert!(here.cores > 0 && !here.kernel.is_empty() && here.began > 1_700_000_000);
        assert_ne!(file_system(Path::new("/")), "unknown");
        assert!(here.memory_bytes.is_some_and(|bytes| bytes > 1 << 20));
    }
}
