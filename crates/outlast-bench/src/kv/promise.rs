//! The stores, and what each promises.

use crate::systems::Medium;
use std::fmt;

/// A store, together with its promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Store {
    /// outlast on the page cache.
    Outlast,
    /// outlast, with `Pool::sync` after every change.
    OutlastSync,
    /// outlast with a journal.
    OutlastJournal,
    /// outlast with a journal, waiting until every change is durable.
    OutlastWait,
    /// redb with durable commits.
    Redb,
    /// redb with commits that become durable with a later durable one.
    RedbNone,
    /// LMDB with synchronous commits.
    Lmdb,
    /// LMDB with `MDB_NOSYNC`.
    LmdbNoSync,
    /// fjall, syncing its journal after every change.
    Fjall,
    /// fjall, writing its journal to the operating system after every change, without a sync.
    FjallBuffer,
}

/// The failures that a change survives once its call has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promise {
    /// Whether the change survives process death.
    pub process_death: bool,
    /// Whether the change survives a power loss at any time.
    pub power_loss: bool,
    /// What a power loss leaves, in a few words.
    pub after_power_loss: &'static str,
    /// The whole promise in words.
    pub text: &'static str,
}

impl Store {
    /// The stores of this build.
    pub const ALL: &'static [Store] = if cfg!(feature = "stores") {
        &[
            Store::Outlast,
            Store::OutlastSync,
            Store::OutlastJournal,
            Store::OutlastWait,
            Store::Redb,
            Store::RedbNone,
            Store::Lmdb,
            Store::LmdbNoSync,
            Store::Fjall,
            Store::FjallBuffer,
        ]
    } else {
        &[Store::Outlast, Store::OutlastSync, Store::OutlastJournal, Store::OutlastWait]
    };

    /// Its name, as commands accept and print it.
    pub fn name(self) -> &'static str {
        match self {
            Store::Outlast => "outlast",
            Store::OutlastSync => "outlast-sync",
            Store::OutlastJournal => "outlast-journal",
            Store::OutlastWait => "outlast-wait",
            Store::Redb => "redb",
            Store::RedbNone => "redb-none",
            Store::Lmdb => "lmdb",
            Store::LmdbNoSync => "lmdb-nosync",
            Store::Fjall => "fjall",
            Store::FjallBuffer => "fjall-buffer",
        }
    }

    /// Returns what the store promises about a change once the call has returned; for outlast, on
    /// this medium.
    pub fn promise(self, medium: Medium) -> Promise {
        let promise = |process_death, power_loss, after_power_loss, text| Promise {
            process_death,
            power_loss,
            after_power_loss,
            text,
        };
        match self {
            Store::Outlast | Store::OutlastSync if medium != Medium::PageCache => {
                let text = "process death; power loss, if the file were on PM";
                promise(true, false, "all, if it were on PM", text)
            }
            Store::Outlast => promise(true, false, "the last snapshot", "process death"),
            // A pool that is dirty at the power loss is refused as possibly torn.
            Store::OutlastSync => promise(
                true,
                false,
                "all, unless during a change",
                "process death; power loss, unless during a change",
            ),
            Store::OutlastJournal => promise(
                true,
                false,
                "all except about the last 10 ms",
                "process death; power loss, except about the last 10 ms",
            ),
            Store::OutlastWait => promise(true, true, "all", "power loss"),
            Store::Redb | Store::Lmdb | Store::Fjall => promise(true, true, "all", "power loss"),
            Store::RedbNone => promise(
                false,
                false,
                "the last durable commit",
                "nothing before the next durable commit",
            ),
            Store::LmdbNoSync => promise(
                true,
                false,
                "perhaps a damaged file",
                "process death; a power loss can damage the file",
            ),
            Store::FjallBuffer => promise(true, false, "what was written back", "process death"),
        }
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Store {
    type Err = String;

    fn from_str(text: &str) -> Result<Store, String> {
        Store::ALL.iter().copied().find(|store| store.name() == text).ok_or_else(|| {
            let known: Vec<&str> = Store::ALL.iter().map(|store| store.name()).collect();
            format!("unknown store {text:?}; known: {}", known.join(", "))
        })
    }
}
