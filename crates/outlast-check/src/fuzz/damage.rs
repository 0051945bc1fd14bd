//! Decides which records a mutant's damage may change without verification noticing. It follows
//! docs/model.md, byte by byte.

use super::images::Image;
use super::pool::word_at;
use outlast::internals::index::clevel::layout::state;
use outlast::internals::index::phast::layout::LEAF_HEADER;
use outlast::{RecordForm, Scheme};
use outlast_offline::What;
use std::collections::HashSet;

const LOW48: u64 = (1 << 48) - 1;

/// What may be wrong in one map of a mutant that is called sound.
#[derive(Debug, Clone, Default)]
pub struct Excused {
    /// Keys that may be gone, may appear although they were absent, and may have any value.
    pub vanished: HashSet<Vec<u8>>,
    /// Keys whose value may differ.
    pub changed: HashSet<Vec<u8>>,
    /// Whether any key of the map may be gone, appear, or have another value.
    pub all: bool,
}

impl Excused {
    /// Returns whether a key may be gone or appear.
    pub fn may_vanish(&self, key: &[u8]) -> bool {
        self.all || self.vanished.contains(key)
    }

    /// Returns whether a key's value may differ.
    pub fn may_change(&self, key: &[u8]) -> bool {
        self.may_vanish(key) || self.changed.contains(key)
    }
}

/// Finds the regions of an image that were hit, and what that may change in each map.
///
/// With `strict`, the pool was closed, and its free state tells which blocks are in use.
/// Verification then notices a lost link or commit word, because a block is in use to which nothing
/// links. Without the free state, the loss looks like an operation that a crash has undone.
pub fn excused(image: &Image, mutant: &[u8], strict: bool) -> Vec<Excused> {
    let mut all: Vec<Excused> = image.maps.iter().map(|_| Excused::default()).collect();
    // Each root's regions follow its commit word.
    let mut map = None;
    let mut maps = Vec::with_capacity(image.regions.len());
    for region in &image.regions {
        if region.what == What::RootCommit {
            map = None;
        } else if matches!(
            region.what,
            What::RootScheme
                | What::ClevelRoot
                | What::PhastRoot
                | What::GroupRoot
                | What::PhtRoot
                | What::LineRoot
        ) {
            let before = maps.iter().flatten().max().map_or(0, |&m: &usize| m + 1);
            map = Some(before);
            // The commit word is just before this region and belongs to the same map.
            maps.pop();
            maps.push(map);
        }
        maps.push(map);
    }
    let len = image.bytes.len().min(mutant.len());
    for at in (0..len as u64 & !7).step_by(8) {
        if word_at(&image.bytes, at) == word_at(mutant, at) {
            continue;
        }
        let Some(index) = image.region_of[at as usize / 8] else { continue };
        let region = image.regions[index as usize];
        let Some(map) = maps[index as usize] else { continue };
        let hit = Hit { image, mutant, at, base: region.offset };
        hit.excuse(region.what, image.maps[map].form, strict, &mut all[map]);
    }
    all
}

/// A word that was changed.
struct Hit<'a> {
    image: &'a Image,
    mutant: &'a [u8],
    at: u64,
    /// The offset at which its region begins.
    base: u64,
}

impl Hit<'_> {
    fn excuse(&self, what: What, form: RecordForm, strict: bool, excused: &mut Excused) {
        let inline = form == RecordForm::Inline;
        match (what, self.image.scheme) {
            (What::Bucket { .. } | What::LiveSlot { .. }, scheme) if scheme != Scheme::Clevel => {
                if inline {
                    self.words_of_slot(self.at & !15, excused);
                } else if !strict {
                    self.links_of_slot(self.at & !15, excused);
                }
            }
            (What::Pair { .. }, _) if inline => self.words_of_slot(self.at & !15, excused),
            (What::Pair { .. }, _) => {
                if !strict {
                    self.links_of_slot(self.at & !15, excused);
                }
            }
            (What::LeafHead { slots }, _) => self.bits_of_leaf(slots, inline, strict, excused),
            (What::Bucket { .. } | What::ClevelSlot, _) => {
                if !strict {
                    for bytes in [&self.image.bytes[..], self.mutant] {
                        excused.vanished.extend(tail_key(bytes, word_at(bytes, self.at)));
                    }
                }
            }
            (What::ClevelRecord, _) => {
                let keys = [&self.image.bytes[..], self.mutant]
                    .map(|bytes| tail_key(bytes, self.base))
                    .into_iter()
                    .flatten();
                let own = clevel_key(&self.image.bytes, self.base);
                // If the damage also turned the key into another one with the same hash, the record
                // is now that key's.
                let same = own == clevel_key(self.mutant, self.base);
                let strict = strict && same;
                let set = if strict { &mut excused.changed } else { &mut excused.vanished };
                set.extend(keys.chain(own));
            }
            // Verification accepts a damaged record only if its checksum matches. Then it is an
            // earlier record of the same block or a forgery, so its key and value may differ.
            (What::Record, _) => {
                let keys = [&self.image.bytes[..], self.mutant].map(|b| block_key(b, self.base));
                // If the damage also turned the key into another one with the same hash, the record
                // is now that key's.
                let set =
                    if keys[0] == keys[1] { &mut excused.changed } else { &mut excused.vanished };
                set.extend(keys.into_iter().flatten());
            }
            (What::ReadyLevel, _) => {}
            _ => excused.all |= !strict,
        }
    }

    /// Excuses the keys in a slot of an inline record, before and after the damage.
    fn words_of_slot(&self, slot: u64, excused: &mut Excused) {
        for bytes in [&self.image.bytes[..], self.mutant] {
            excused.vanished.insert(word_at(bytes, slot).to_le_bytes().to_vec());
        }
    }

    /// Excuses the keys of the records that a slot links to, before and after the damage.
    fn links_of_slot(&self, slot: u64, excused: &mut Excused) {
        for bytes in [&self.image.bytes[..], self.mutant] {
            excused.vanished.extend(block_key(bytes, word_at(bytes, slot) & LOW48));
        }
    }

    /// Excuses the pairs whose bits changed under a valid seal, as when an earlier header of the
    /// leaf comes back.
    fn bits_of_leaf(&self, slots: u32, inline: bool, strict: bool, excused: &mut Excused) {
        let bits = word_at(&self.image.bytes, self.base) ^ word_at(self.mutant, self.base);
        for slot in (0..u64::from(slots)).filter(|slot| bits >> slot & 1 == 1) {
            let pair = self.base + LEAF_HEADER + 16 * slot;
            if pair + 16 > self.mutant.len() as u64 {
                continue;
            }
            if inline {
                self.words_of_slot(pair, excused);
            } else if !strict {
                self.links_of_slot(pair, excused);
            }
        }
    }
}

fn bytes_at(bytes: &[u8], at: u64, len: u64) -> Option<Vec<u8>> {
    let end = at.checked_add(len)?;
    Some(bytes.get(at as usize..end as usize)?.to_vec())
}

/// Returns the key of a record's block.
fn block_key(bytes: &[u8], block: u64) -> Option<Vec<u8>> {
    let lengths = u64::from_le_bytes(bytes_at(bytes, block, 8)?.try_into().ok()?);
    bytes_at(bytes, block + 16, lengths & 0xffff_ffff)
}

/// Returns the key of a clevel record that was not replaced.
fn clevel_key(bytes: &[u8], record: u64) -> Option<Vec<u8>> {
    let word = u64::from_le_bytes(bytes_at(bytes, record, 8)?.try_into().ok()?);
    let (key_len, _) = state::lengths(word);
    bytes_at(bytes, record + 16, key_len as u64)
}

/// Returns the key of the record that a slot's word leads to.
fn tail_key(bytes: &[u8], word: u64) -> Option<Vec<u8>> {
    let mut at = word & LOW48;
    for _ in 0..100 {
        let word = u64::from_le_bytes(bytes_at(bytes, at, 8)?.try_into().ok()?);
        if state::kind(word) != state::FORWARD {
            break;
        }
        at = state::next(word);
    }
    clevel_key(bytes, at)
}
