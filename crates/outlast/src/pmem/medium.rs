//! The media: how each is detected, what it needs, and which failures it survives.

use super::{FlushInstruction, FlushMode};
use std::path::Path;
use std::{fmt, fs, io};

/// Where the kernel lists the regions of persistent memory.
const REGIONS: &str = "/sys/bus/nd/devices";

/// The kind of memory that a pool is on.
///
/// | medium | how it is detected | what an operation costs | kept after process death | kept after a power loss |
/// |---|---|---|---|---|
/// | DAX | `MAP_SYNC` is accepted; not every region's `persistence_domain` is `cpu_cache` | `clwb`, else `clflushopt`, else `clflush`; `sfence` | all operations that returned | all operations that returned |
/// | DAX, persistent caches (eADR) | `persistence_domain` is `cpu_cache` for every region | a fence | all operations that returned | all operations that returned |
/// | page cache (ext4, xfs, tmpfs, ...) | `MAP_SYNC` is refused | nothing | all operations that returned | a pool that was closed, or is unmodified since its last sync |
/// | emulated PM | on request | as DAX, with optional added latency | all operations that returned | what the file's real medium keeps |
/// | journal | on request | notes the lines that changed | all operations that returned | all that were waited for, and all others but the most recent |
/// | bytes | memory of the process | as requested | nothing | nothing |
///
/// The numbers are written to media and never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum MediumKind {
    /// Persistent memory, mapped directly. A power loss discards the caches.
    Dax = 1,
    /// Persistent memory, mapped directly. A power loss writes the caches back.
    DaxPersistentCaches = 2,
    /// A file that the kernel writes back from its page cache, in any order.
    PageCache = 3,
    /// A file treated as if it were [`Dax`](Self::Dax), for measurements and tests.
    EmulatedPm = 4,
    /// Memory of the process.
    Bytes = 5,
    /// A file in memory, whose changes a journal on the disk records.
    Journal = 6,
}

impl MediumKind {
    /// Decodes the number that a pool has recorded.
    #[doc(hidden)]
    pub fn from_u64(number: u64) -> Option<Self> {
        [
            Self::Dax,
            Self::DaxPersistentCaches,
            Self::PageCache,
            Self::EmulatedPm,
            Self::Bytes,
            Self::Journal,
        ]
        .into_iter()
        .find(|&kind| kind as u64 == number)
    }

    /// Returns whether the effect of every call that returned survives a power loss.
    #[doc(hidden)]
    pub fn survives_power_loss(self) -> bool {
        matches!(self, Self::Dax | Self::DaxPersistentCaches)
    }

    /// Returns whether surviving more than process death takes an fsync.
    #[doc(hidden)]
    pub fn needs_fsync(self) -> bool {
        matches!(self, Self::PageCache | Self::EmulatedPm)
    }
}

impl fmt::Display for MediumKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dax => "dax",
            Self::DaxPersistentCaches => "dax-eadr",
            Self::PageCache => "page-cache",
            Self::EmulatedPm => "emulated-pm",
            Self::Bytes => "bytes",
            Self::Journal => "journal",
        })
    }
}

/// A medium, and how it is flushed on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Medium {
    /// The kind of memory that the pool is on.
    pub kind: MediumKind,
    /// What makes a store durable on it.
    pub flush: FlushMode,
}

impl Medium {
    /// Chooses the cheapest flush that the medium allows and the processor has.
    ///
    /// Logs the choice: as a warning if the processor lacks the best flush instruction.
    pub fn detect(kind: MediumKind) -> Self {
        let flush = match kind {
            MediumKind::Dax | MediumKind::EmulatedPm => {
                FlushMode::Lines(FlushInstruction::detect())
            }
            MediumKind::DaxPersistentCaches => FlushMode::FenceOnly,
            MediumKind::PageCache | MediumKind::Bytes => FlushMode::None,
            MediumKind::Journal => FlushMode::Journal,
        };
        match flush {
            FlushMode::Lines(slower) if slower != FlushInstruction::BEST => tracing::warn!(
                "{kind}: this processor has no {}, flushing with {slower}",
                FlushInstruction::BEST
            ),
            _ => tracing::debug!("{kind}: {flush}"),
        }
        Medium { kind, flush }
    }

    /// Returns whether the effect of every call that returned survives a power loss.
    pub fn survives_power_loss(&self) -> bool {
        self.kind.survives_power_loss()
    }

    /// Returns whether surviving more than process death takes an fsync.
    pub fn needs_fsync(&self) -> bool {
        self.kind.needs_fsync()
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.kind, self.flush)
    }
}

/// Returns which of the two kinds of DAX this machine has.
pub(super) fn dax_kind() -> MediumKind {
    if caches_persist(Path::new(REGIONS)) {
        MediumKind::DaxPersistentCaches
    } else {
        MediumKind::Dax
    }
}

/// Returns whether the caches are in the persistence domain for every region of persistent memory.
///
/// A mapping does not say which region it lies in. So lines are flushed if the caches are outside
/// the domain for even one region, if a region cannot be read, or if there is no region at all.
fn caches_persist(regions: &Path) -> bool {
    all_regions_say_cpu_cache(regions).unwrap_or(false)
}

fn all_regions_say_cpu_cache(regions: &Path) -> io::Result<bool> {
    let mut seen = false;
    for entry in fs::read_dir(regions)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("region"));
        if !number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())) {
            continue;
        }
        let domain = fs::read_to_string(entry.path().join("persistence_domain"))?;
        if domain.trim() != "cpu_cache" {
            return Ok(false);
        }
        seen = true;
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use MediumKind::*;

    /// Names of devices, with the content of their `persistence_domain` if they have one.
    type Devices = [(&'static str, Option<&'static str>)];

    fn regions(domains: &Devices) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, domain) in domains {
            fs::create_dir(dir.path().join(name)).unwrap();
            if let Some(domain) = domain {
                fs::write(dir.path().join(name).join("persistence_domain"), domain).unwrap();
            }
        }
        dir
    }

    #[test]
    fn caches_persist_only_where_every_region_says_so() {
        let cases: &[(&Devices, bool)] = &[
            (&[], false),
            (&[("region0", Some("cpu_cache\n"))], true),
            (&[("region0", Some("cpu_cache\n")), ("region1", Some("cpu_cache\n"))], true),
            (&[("region0", Some("memory_controller\n"))], false),
            (&[("region0", Some("cpu_cache\n")), ("region1", Some("memory_controller\n"))], false),
            (&[("region0", Some("cpu_cache\n")), ("region11", None)], false),
            (&[("region0", Some("\n"))], false),
            (&[("region0", Some("cpu_cache")), ("namespace0.0", None), ("ndbus0", None)], true),
            (&[("namespace0.0", Some("cpu_cache"))], false),
            (&[("regional", Some("cpu_cache"))], false),
        ];
        for (domains, expected) in cases {
            let dir = regions(domains);
            assert_eq!(caches_persist(dir.path()), *expected, "{domains:?}");
        }
    }

    #[test]
    fn caches_are_lost_on_a_machine_without_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!caches_persist(&dir.path().join("none")));
    }

    #[test]
    fn numbers_on_media_do_not_change() {
        let numbers = [
            (1, Dax),
            (2, DaxPersistentCaches),
            (3, PageCache),
            (4, EmulatedPm),
            (5, Bytes),
            (6, Journal),
        ];
        for (number, kind) in numbers {
            assert_eq!(kind as u64, number);
            assert_eq!(MediumKind::from_u64(number), Some(kind));
        }
        for unknown in [0, 7, u64::MAX] {
            assert_eq!(MediumKind::from_u64(unknown), None);
        }
    }

    #[test]
    fn lines_are_flushed_where_they_must_be_and_nowhere_else() {
        let lines = FlushMode::Lines(FlushInstruction::detect());
        for (kind, flush, power, fsync) in [
            (Dax, lines, true, false),
            (DaxPersistentCaches, FlushMode::FenceOnly, true, false),
            (PageCache, FlushMode::None, false, true),
            (EmulatedPm, lines, false, true),
            (Bytes, FlushMode::None, false, false),
            (Journal, FlushMode::Journal, false, false),
        ] {
            let medium = Medium::detect(kind);
            assert_eq!(medium, Medium { kind, flush });
            assert_eq!(medium.survives_power_loss(), power, "{kind}");
            assert_eq!(medium.needs_fsync(), fsync, "{kind}");
        }
    }

    #[test]
    fn a_medium_names_its_flush() {
        let named = |kind, flush| Medium { kind, flush }.to_string();
        let best = FlushMode::Lines(FlushInstruction::BEST);
        assert_eq!(named(Dax, best), format!("dax, {}", FlushInstruction::BEST));
        assert_eq!(named(DaxPersistentCaches, FlushMode::FenceOnly), "dax-eadr, fence only");
        assert_eq!(named(PageCache, FlushMode::None), "page-cache, no flush");
    }
}
