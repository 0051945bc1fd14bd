//! Counts crash images, and tells which of them are distinct.
//!
//! Two images are the same if they agree in all of the following: whether they are of a second
//! crash, the kind of the operation in flight, the structural phase it was in, the cut (the commit
//! points of the last store that survives and of the first that does not), and everything that
//! recovery and reading read of the image.

use crate::session::Kind;
use comfy_table::{CellAlignment, Table, presets};
use outlast::internals::pmem::Point;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::{Mutex, MutexGuard};

/// The largest share of the images that one kind of operation gets, by default.
const SHARE: f64 = 0.26;
/// The largest part of its kind's share that one phase gets. Common phases (an insert into a
/// bucket) must leave room for rare ones (a split).
const PHASE: f64 = 0.6;
/// The share of all images below which a phase counts as rare. Images of a rare phase are taken
/// even if its kind has used up its share, until the kind exceeds the share by a tenth.
const RARE: f64 = 0.002;
/// The number of images that are taken of each kind of operation, and of each phase, regardless of
/// its share.
const FREE: u64 = 500;

/// Where a crash cut a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// The kind of the operation in flight.
    pub kind: Kind,
    /// The commit point of the operation's last store before the crash: its structural phase.
    pub phase: Option<&'static Point>,
    /// The commit point of the last store that survives although it could have been lost. Stores on
    /// which no later opening relies count only if there is no other.
    pub kept: Option<&'static Point>,
    /// The commit point of the first store that does not survive.
    pub lost: Option<&'static Point>,
    /// Whether this is the second crash, in recovery or soon after.
    pub nested: bool,
}

struct Name(Option<&'static Point>);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(point) => write!(f, "{}: {}", point.owner, point.name),
            None => f.write_str("-"),
        }
    }
}

/// A number of images.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Images checked.
    pub images: u64,
    /// Distinct images.
    pub distinct: u64,
}

impl Count {
    fn add(&mut self, distinct: bool) {
        self.images += 1;
        self.distinct += u64::from(distinct);
    }
}

#[derive(Default)]
struct Inner {
    all: Count,
    nested: Count,
    kinds: BTreeMap<Kind, Count>,
    /// By kind and structural phase.
    phases: BTreeMap<(Kind, Option<&'static Point>), Count>,
    /// By kind and the commit point of the first store that was lost.
    cuts: BTreeMap<(Kind, Option<&'static Point>), Count>,
    seen: HashSet<u64>,
    skipped: u64,
}

/// Counts images, from any number of threads.
pub struct Tally {
    share: f64,
    inner: Mutex<Inner>,
}

impl Default for Tally {
    fn default() -> Self {
        Tally { share: SHARE, inner: Mutex::default() }
    }
}

impl Tally {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Makes a tally that limits each kind of operation to about `share` of the images.
    pub fn with_share(share: f64) -> Tally {
        Tally { share, ..Tally::default() }
    }

    /// Returns whether more images of this kind and phase are wanted.
    pub fn wants(&self, kind: Kind, phase: Option<&'static Point>) -> bool {
        let mut inner = self.inner();
        let all = inner.all;
        let over = |has: Option<&Count>, share: f64| {
            let has = has.copied().unwrap_or_default();
            let over = |has: u64, all: u64| has > FREE && has as f64 >= share * all as f64;
            over(has.images, all.images) || over(has.distinct, all.distinct)
        };
        let phase_share = if self.share < 1.0 { PHASE * self.share } else { 1.0 };
        let (of_kind, of_phase) = (inner.kinds.get(&kind), inner.phases.get(&(kind, phase)));
        let is_rare = of_phase.is_none_or(|has| (has.images as f64) < RARE * all.images as f64);
        let wants = if is_rare {
            !over(of_kind, self.share * 1.1)
        } else {
            !over(of_kind, self.share) && !over(of_phase, phase_share)
        };
        inner.skipped += u64::from(!wants);
        wants
    }

    /// Counts an image. `digest` stands for everything that recovery and reading read of it.
    /// Returns whether the image is distinct from all before it.
    pub fn note(&self, site: Site, digest: u64) -> bool {
        // This hasher has fixed keys, so every run hashes alike.
        let key = BuildHasherDefault::<DefaultHasher>::default().hash_one((site, digest));
        let mut inner = self.inner();
        let distinct = inner.seen.insert(key);
        inner.all.add(distinct);
        if site.nested {
            inner.nested.add(distinct);
        }
        inner.kinds.entry(site.kind).or_default().add(distinct);
        inner.phases.entry((site.kind, site.phase)).or_default().add(distinct);
        inner.cuts.entry((site.kind, site.lost)).or_default().add(distinct);
        distinct
    }

    /// Returns the count of all images.
    pub fn all(&self) -> Count {
        self.inner().all
    }

    /// Returns the count of images of a second crash.
    pub fn nested(&self) -> Count {
        self.inner().nested
    }

    /// Returns the counts by kind of operation.
    pub fn kinds(&self) -> BTreeMap<Kind, Count> {
        self.inner().kinds.clone()
    }

    /// Returns the largest share of the images that one kind of operation has.
    pub fn largest_share(&self) -> f64 {
        let inner = self.inner();
        let of = |count: fn(&Count) -> u64| {
            let largest = inner.kinds.values().map(count).max().unwrap_or(0);
            largest as f64 / count(&inner.all).max(1) as f64
        };
        of(|c| c.images).max(of(|c| c.distinct))
    }

    /// Formats the images by operation, and by operation and cut.
    pub fn tables(&self) -> String {
        let inner = self.inner();
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["operation", "first store lost", "images", "distinct", "share"]);
        let part = |count: &Count| {
            let share = 100.0 * count.distinct as f64 / inner.all.distinct.max(1) as f64;
            [count.images.to_string(), count.distinct.to_string(), format!("{share:.1}%")]
        };
        for (kind, count) in &inner.kinds {
            let [images, distinct, share] = part(count);
            table.add_row([kind.to_string(), "all".into(), images, distinct, share]);
            for ((_, lost), count) in inner.cuts.iter().filter(|((k, _), _)| k == kind) {
                let [images, distinct, share] = part(count);
                let lost = lost.map_or("nothing".into(), |p| Name(Some(p)).to_string());
                table.add_row([String::new(), lost, images, distinct, share]);
            }
        }
        let [images, distinct, share] = part(&inner.all);
        table.add_row(["all".into(), "all".into(), images, distinct, share]);
        for column in 2..5 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.to_string()
    }

    /// Returns the same as JSON.
    pub fn json(&self) -> Value {
        let inner = self.inner();
        let count = |c: &Count| json!({ "images": c.images, "distinct": c.distinct });
        let kinds: serde_json::Map<_, _> =
            inner.kinds.iter().map(|(kind, c)| (kind.to_string(), count(c))).collect();
        let cuts: Vec<_> = inner
            .cuts
            .iter()
            .map(|((kind, lost), c)| {
                json!({
                    "operation": kind.to_string(),
                    "lost": Name(*lost).to_string(),
                    "images": c.images,
                    "distinct": c.distinct,
                })
            })
            .collect();
        json!({
            "images": inner.all.images,
            "images_distinct": inner.all.distinct,
            "nested": count(&inner.nested),
            "skipped_by_quota": inner.skipped,
            "operations": kinds,
            "cuts": cuts,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast::internals::index::dash_eh::points::{INSERT, SPLIT_NEW};

    fn site(kind: Kind) -> Site {
        Site { kind, phase: None, kept: None, lost: Some(&INSERT), nested: false }
    }

    #[test]
    fn images_are_distinct_by_operation_site_and_what_is_read() {
        let tally = Tally::default();
        assert!(tally.note(site(Kind::Insert), 1));
        assert!(!tally.note(site(Kind::Insert), 1));
        assert!(tally.note(site(Kind::Insert), 2));
        assert!(tally.note(site(Kind::Put), 1));
        let (nested, kept) = (site(Kind::Insert), site(Kind::Insert));
        assert!(tally.note(Site { nested: true, ..nested }, 1));
        assert!(tally.note(Site { kept: Some(&INSERT), ..kept }, 1));
        assert_eq!(tally.all(), Count { images: 6, distinct: 5 });
        assert_eq!(tally.nested(), Count { images: 1, distinct: 1 });
    }

    #[test]
    fn no_kind_gets_more_than_its_share_and_no_phase_all_of_it() {
        let tally = Tally::with_share(0.27);
        let of = |phase| Site { phase, ..site(Kind::Insert) };
        for digest in 0..40_000 {
            for kind in [Kind::Put, Kind::Remove, Kind::Sync, Kind::Swap, Kind::Update, Kind::Open]
            {
                if digest % 2 == 0 && tally.wants(kind, None) {
                    tally.note(site(kind), digest);
                }
            }
            // Splits are rare.
            for phase in [Some(&INSERT), (digest % 8 == 0).then_some(&SPLIT_NEW)] {
                if phase.is_some() && tally.wants(Kind::Insert, phase) {
                    tally.note(of(phase), digest);
                }
            }
        }
        assert!(tally.largest_share() < 0.298, "{}", tally.tables());
        let inner = tally.inner();
        let [inserts, splits] =
            [&INSERT, &SPLIT_NEW].map(|p| inner.phases[&(Kind::Insert, Some(p))].distinct);
        assert!(splits > 4_500, "all there are: {splits}");
        assert!(inserts * 100 < inner.all.distinct * 17, "{inserts} of {:?}", inner.all);
    }
}
