//! Named roots: which maps a pool holds.

use super::alloc::checksum;
use super::core::{Core, root_offset, root_words};
use super::header::Header;
use super::layout::{
    ROOT_FIXED, ROOT_SCHEME_WORDS, ROOT_SLOTS, ROOT_TEXT, ROOT_TEXT_BYTES, ROOT_WORDS, RootSlot,
    field, pack_roots,
};
use super::points;
use crate::error::{Damage, Error, Result};
use crate::index::{RecordForm, Scheme};
use crate::pmem::{Offset, Planted, Seam};
use std::sync::atomic::{Ordering, fence};

/// A map as its root describes it. Fixed when the map is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapInfo {
    /// Its name.
    pub name: String,
    /// Its scheme.
    pub scheme: Scheme,
    /// Its record form.
    pub form: RecordForm,
    /// Schema of its keys.
    pub key_schema: String,
    /// Schema of its values.
    pub value_schema: String,
    /// Settings of the scheme, by its own numbering.
    pub config: [u64; 3],
}

/// Word 8 of a slot: kinds and lengths.
fn pack_kinds(info: &MapInfo) -> u64 {
    u64::from(info.scheme as u8)
        | u64::from(info.form as u8) << 8
        | (info.name.len() as u64) << 16
        | (info.key_schema.len() as u64) << 32
        | (info.value_schema.len() as u64) << 48
}

impl MapInfo {
    /// Whether name and schemas fit a root.
    pub fn check(&self) -> Result<()> {
        let invalid = |why| Err(Error::Invalid { what: "map name", why });
        if self.name.is_empty() {
            return invalid("it is empty".into());
        }
        let total = self.name.len() + self.key_schema.len() + self.value_schema.len();
        if total > ROOT_TEXT_BYTES {
            return invalid(format!(
                "with the schemas it takes {total} bytes, {ROOT_TEXT_BYTES} are allowed"
            ));
        }
        Ok(())
    }

    fn fixed_words(&self) -> [u64; ROOT_WORDS - ROOT_FIXED] {
        let mut words = [0; ROOT_WORDS - ROOT_FIXED];
        words[0] = pack_kinds(self);
        words[1..4].copy_from_slice(&self.config);
        let text = [&*self.name, &self.key_schema, &self.value_schema].concat();
        for (word, chunk) in
            words[ROOT_TEXT - ROOT_FIXED..].iter_mut().zip(text.as_bytes().chunks(8))
        {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(bytes);
        }
        words
    }

    fn parse(words: &[u64; ROOT_WORDS]) -> Option<MapInfo> {
        let kinds = words[ROOT_FIXED];
        let lengths = [kinds >> 16 & 0xffff, kinds >> 32 & 0xffff, kinds >> 48];
        let [name, key, value] = lengths.map(|l| l as usize);
        if name == 0 || name + key + value > ROOT_TEXT_BYTES {
            return None;
        }
        let text: Vec<u8> = words[ROOT_TEXT..].iter().flat_map(|w| w.to_le_bytes()).collect();
        let take = |from: usize, len: usize| String::from_utf8(text[from..from + len].into()).ok();
        Some(MapInfo {
            name: take(0, name)?,
            scheme: Scheme::from_media(kinds as u8)?,
            form: RecordForm::from_media((kinds >> 8) as u8)?,
            key_schema: take(name, key)?,
            value_schema: take(name + key, value)?,
            config: words[ROOT_FIXED + 1..ROOT_FIXED + 4].try_into().ok()?,
        })
    }
}

fn commit_word(fixed: &[u64]) -> u64 {
    1 | u64::from(checksum(fixed)) << 32
}

/// Reads a root. `None` if its slot is free.
pub fn read<S: Seam>(core: &Core<S>, slot: usize) -> Result<Option<MapInfo>> {
    let offset = root_offset(slot);
    let root = core.memory.at(offset)?;
    let (commit, words) = loop {
        // Acquire: pairs with the Release of the commit store.
        let commit = core.memory.load_acquire(&root.commit);
        if commit == 0 {
            return Ok(None);
        }
        let words: Vec<u64> = root_words(root).iter().map(|w| core.memory.load(w)).collect();
        let words: [u64; ROOT_WORDS] = words.try_into().expect("a slot's words");
        // The map can be dropped beside us, and another one created in its slot.
        fence(Ordering::Acquire);
        if core.memory.load(&root.commit) == commit {
            break (commit, words);
        }
    };
    let expected = commit_word(&words[ROOT_FIXED..]);
    let damaged = |expected: String, found: String| Error::DamagedRoot {
        slot,
        damage: Damage::new(offset.raw(), expected, found),
    };
    if commit != expected {
        return Err(damaged(format!("commit word {expected:#x}"), format!("{commit:#x}")));
    }
    MapInfo::parse(&words).map(Some).ok_or_else(|| {
        damaged("a map of a known scheme".into(), format!("kinds {:#x}", words[ROOT_FIXED]))
    })
}

/// The checksum over the commit words of all slots.
pub fn commits<S: Seam>(core: &Core<S>) -> Result<u32> {
    let mut words = [0; ROOT_SLOTS];
    for (slot, word) in words.iter_mut().enumerate() {
        *word = core.memory.load(&slot_of(core, slot)?.commit);
    }
    Ok(checksum(&words))
}

/// What is wrong with the roots of a pool, if its header tells of others: a root whose commit
/// word is 0 looks like a free slot. The header of a clean pool does; that of a dirty one tells
/// whether the clean pool had lost one.
pub fn check_commits<S: Seam>(core: &Core<S>, header: &Header) -> Result<Option<(usize, Damage)>> {
    let told = header.get(field::ROOTS);
    let commits = commits(core)?;
    let expected = pack_roots(commits, header.get(field::SEQUENCE));
    // Another sequence number: written by a build that does not know the field.
    // Also if the other copy is damaged: as long as that can be a dirty mark which a crash cut
    // short, no root has been stored since.
    let differs = !header.is_dirty() && told >> 32 == expected >> 32 && told != expected;
    if !differs && !header.lacks_root() {
        return Ok(None);
    }
    let mut lost = 0;
    for slot in 0..ROOT_SLOTS {
        let root = slot_of(core, slot)?;
        let words: Vec<u64> = root_words(root).iter().map(|w| core.memory.load(w)).collect();
        let words: [u64; ROOT_WORDS] = words.try_into().expect("a slot's words");
        if words[0] == 0 && MapInfo::parse(&words).is_some() {
            lost = slot;
            break;
        }
    }
    let expected = match differs {
        true => format!("roots whose commit words have the checksum {:#x}", told as u32),
        false => "all roots that there were at the last clean end".into(),
    };
    let damage = Damage::new(root_offset(lost).raw(), expected, format!("{commits:#x}"));
    Ok(Some((lost, damage)))
}

/// Reads every root: slot and map, or what is wrong with it.
pub fn read_all<S: Seam>(core: &Core<S>) -> Vec<(usize, Result<MapInfo>)> {
    (0..ROOT_SLOTS).filter_map(|slot| Some((slot, read(core, slot).transpose()?))).collect()
}

/// Writes a root into a free slot: the map exists when this returns, and a crash before
/// its commit word leaves the slot free.
///
/// What the scheme has flushed for `scheme` to lead to is durable before the commit word,
/// with the fixed words. The scheme's words share the commit word's line: they are durable
/// whenever it is.
pub fn commit<S: Seam>(
    core: &Core<S>,
    slot: usize,
    info: &MapInfo,
    scheme: [u64; ROOT_SCHEME_WORDS],
) -> Result<()> {
    let root = slot_of(core, slot)?;
    let fixed = info.fixed_words();
    if core.memory.seam().planted(Planted::RootCommittedFirst) {
        core.memory.store(&root.commit, commit_word(&fixed), &points::ROOT_COMMIT);
    }
    for (word, value) in root.fixed.iter().zip(fixed) {
        core.memory.store(word, value, &points::ROOT_FIXED);
    }
    core.memory.flush_words(&root.fixed, &points::ROOT_FIXED);
    core.memory.fence(&points::ROOT_FIXED);
    for (word, value) in root.scheme.iter().zip(scheme) {
        core.memory.store(word, value, &points::ROOT_COMMIT);
    }
    core.memory.store_release(&root.commit, commit_word(&fixed), &points::ROOT_COMMIT);
    core.memory.persist(&root.commit, &points::ROOT_COMMIT);
    Ok(())
}

/// Frees a slot: the map is gone when this returns.
pub fn clear<S: Seam>(core: &Core<S>, slot: usize) -> Result<()> {
    let root = slot_of(core, slot)?;
    core.memory.store_release(&root.commit, 0, &points::ROOT_DROP);
    core.memory.persist(&root.commit, &points::ROOT_DROP);
    Ok(())
}

fn slot_of<S: Seam>(core: &Core<S>, slot: usize) -> Result<&RootSlot> {
    let offset: Offset<RootSlot> = root_offset(slot);
    Ok(core.memory.at(offset)?)
}
