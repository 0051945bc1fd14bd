//! What a pool says about itself.

use super::store::ReclaimState;
use crate::error::Damage;
use crate::journal::running::JournalStats;
use crate::pmem::{FlushMode, MediumKind};
use std::fmt::Write;
use std::time::Duration;

/// Which failures the pool's memory survives, and how stores become durable in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Durability {
    /// The medium. If the pool is open read-only: the medium that its last writer found.
    pub medium: MediumKind,
    /// How a store becomes durable on this medium.
    pub flush: FlushMode,
    /// Whether operations that have returned survive process death.
    pub survives_process_death: bool,
    /// For a journaled pool, the interval of its commits. A power loss undoes at most the
    /// operations of the last interval and of two commits (see
    /// [`JournalOptions::interval`](crate::JournalOptions::interval)), and none that
    /// [`Pool::wait_durable`](crate::Pool::wait_durable) has confirmed.
    pub interval: Option<Duration>,
    /// Whether operations that have returned survive a power loss. If not, a pool without a journal
    /// keeps the state of the last [`Pool::sync`](crate::Pool::sync), provided that nothing has
    /// changed since. [`Pool::snapshot`](crate::Pool::snapshot) makes a restore point.
    pub survives_power_loss: bool,
    /// Whether what [`Pool::wait_durable`](crate::Pool::wait_durable) confirms survives a power
    /// loss. `false` in memory and on a tmpfs, and as long as writes to the disk fail.
    pub confirmed_survives_power_loss: bool,
    /// Whether the disk may lack something that was written. If so, nothing becomes durable against
    /// a power loss until [`Pool::verify`](crate::Pool::verify) has found the pool sound; see
    /// [`Error::Suspect`](crate::Error::Suspect).
    pub is_suspect: bool,
}

/// Statistics of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Size of the pool within its file, in bytes.
    pub size: u64,
    /// Largest size the pool may grow to, in bytes.
    pub limit: u64,
    /// The limit set by [`max_size`](crate::PoolOptions::max_size), in bytes; 0 means none.
    pub max_size: u64,
    /// Bytes in pages known to be free.
    pub free_page_bytes: u64,
    /// Bytes of blocks that were unlinked but are not free yet, usually because a guard
    /// ([`Map::get_ref`](crate::Map::get_ref)) may still read them.
    pub held_bytes: u64,
    /// Number of live guards.
    pub guards: usize,
    /// Progress of the reclaim of space after a crash.
    pub reclaim: ReclaimState,
    /// Number of blocks that could not be freed because of damage.
    pub unfreeable_blocks: u64,
    /// Bytes of the pool mapped by huge pages, if the system reports it.
    pub huge_page_bytes: Option<u64>,
    /// Resident bytes of the pool's shadow, a reserved range of DRAM that holds the locks, bitmaps
    /// and fingerprints of buckets; `None` if the system does not report it. This counts whole
    /// resident pages, also for blocks that have been freed since. It is not the sum of the maps'
    /// [`IndexStats::dram_bytes`]: that counts metadata that has not been touched yet, and also
    /// DRAM outside of the shadow, such as directories and all of PhaST's.
    ///
    /// [`IndexStats::dram_bytes`]: crate::IndexStats::dram_bytes
    pub shadow_bytes: Option<u64>,
    /// The part of [`shadow_bytes`](Self::shadow_bytes) that is in huge pages.
    pub shadow_huge_page_bytes: Option<u64>,
    /// log2 of the page size.
    pub page_bits: u32,
    /// The damage in one copy of the header, if the other copy was used.
    pub damaged_header_copy: Option<Damage>,
    /// Counts of the journal, if the pool has one.
    pub journal: Option<JournalStats>,
}

impl PoolStats {
    /// Returns the statistics in the text format of Prometheus, with this name of the pool as a label.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let text = pool.stats().prometheus("sessions");
    /// assert!(text.contains("outlast_pool_bytes{pool=\"sessions\"} 2097152\n"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn prometheus(&self, pool: &str) -> String {
        let pool = pool.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let mut text = String::new();
        let mut put = |name: &str, kind: &str, what: &str, value: u64| {
            let _ = write!(
                text,
                "# HELP outlast_{name} {what}\n# TYPE outlast_{name} {kind}\n\
                 outlast_{name}{{pool=\"{pool}\"}} {value}\n"
            );
        };
        let running = u64::from(self.reclaim == ReclaimState::Running);
        let stopped = u64::from(matches!(self.reclaim, ReclaimState::Stopped(_)));
        let mut gauge = |name, what, value| put(name, "gauge", what, value);
        gauge("pool_bytes", "Size of the pool.", self.size);
        gauge("pool_limit_bytes", "Largest size that the pool may have.", self.limit);
        gauge("pool_free_bytes", "Bytes in free pages.", self.free_page_bytes);
        gauge("pool_held_bytes", "Bytes that guards keep from reuse.", self.held_bytes);
        gauge("pool_guards", "Live guards.", self.guards as u64);
        gauge("reclaim_running", "Whether space is reclaimed after a crash.", running);
        gauge("reclaim_stopped", "Whether damage has stopped the reclaim.", stopped);
        gauge(
            "unfreeable_blocks",
            "Blocks that damage kept from being freed.",
            self.unfreeable_blocks,
        );
        if let Some(journal) = &self.journal {
            gauge("journal_bytes", "Bytes of the journal's segments.", journal.journal_bytes);
            gauge(
                "journal_longest_commit_nanoseconds",
                "Longest time until a commit was durable.",
                journal.longest_commit_ns,
            );
            let mut counter = |name, what, value| put(name, "counter", what, value);
            counter("journal_commits_total", "Commits.", journal.epochs);
            counter("journal_written_bytes_total", "Written to segments.", journal.segment_bytes);
            counter("journal_base_bytes_total", "Written to the pool's file.", journal.base_bytes);
            counter("journal_checkpoints_total", "Checkpoints.", journal.checkpoints);
            counter(
                "journal_failures_total",
                "Failed attempts to write a commit.",
                journal.failures,
            );
            counter(
                "journal_slowed_nanoseconds_total",
                "Time for which a journal that was too long held writers back.",
                journal.slowed_ns,
            );
        }
        text
    }
}
