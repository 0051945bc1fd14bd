//! The table of named roots, as words. A slot is in use while its commit word is not 0.
//!
//! [`db::roots`](crate::db::roots) decodes the fixed words.

use super::alloc::checksum;
use super::core::{Core, root_offset, root_words};
use super::header::Header;
use super::layout::{
    FixedWords, ROOT_FIXED, ROOT_SCHEME_WORDS, ROOT_SLOTS, ROOT_WORDS, RootSlot, field, pack_roots,
};
use super::points;
use crate::error::{Damage, Error, Result};
use crate::pmem::{Offset, Seam};
use crate::pool::bugs;
use std::sync::atomic::{Ordering, fence};

fn commit_word(fixed: &[u64]) -> u64 {
    1 | u64::from(checksum(fixed)) << 32
}

/// Reads the fixed words of a root. Returns `None` if its slot is free.
pub fn read<S: Seam>(core: &Core<S>, slot: usize) -> Result<Option<FixedWords>> {
    let root = core.memory.at(root_offset(slot))?;
    let (commit, words) = loop {
        // Acquire: pairs with the Release of the commit store.
        let commit = core.memory.load_acquire(&root.commit);
        if commit == 0 {
            return Ok(None);
        }
        let words: Vec<u64> = root_words(root).iter().map(|w| core.memory.load(w)).collect();
        let words: [u64; ROOT_WORDS] = words.try_into().expect("a slot's words");
        // The map may be dropped concurrently, and another one created in its slot.
        fence(Ordering::Acquire);
        if core.memory.load(&root.commit) == commit {
            break (commit, words);
        }
    };
    fixed_of(slot, commit, &words).map(Some)
}

/// Extracts the fixed words from the words of a root. `commit` is its commit word, which is not 0.
///
/// # Errors
/// [`Error::DamagedRoot`] if the commit word does not match the fixed words.
pub fn fixed_of(slot: usize, commit: u64, words: &[u64; ROOT_WORDS]) -> Result<FixedWords> {
    let expected = commit_word(&words[ROOT_FIXED..]);
    if commit != expected {
        let expected = format!("commit word {expected:#x}");
        let damage = Damage::new(root_offset(slot).raw(), expected, format!("{commit:#x}"));
        return Err(Error::DamagedRoot { slot, damage });
    }
    Ok(words[ROOT_FIXED..].try_into().expect("the words behind the scheme's"))
}

/// Returns the checksum over the commit words of all slots. The root in the slot `lost` counts as
/// if it were there, so that the next open also finds it missing.
pub fn commits<S: Seam>(core: &Core<S>, lost: Option<usize>) -> Result<u32> {
    let mut words = commit_words(core)?;
    match lost {
        None => {}
        Some(slot) if words[slot] == 0 => words[slot] = commit_word(&fixed_words(core, slot)?),
        // The guess was wrong, since this slot has a root. Any checksum that does not match tells
        // the next open that a root is missing.
        Some(_) => return Ok(checksum(&words) ^ 1),
    }
    Ok(checksum(&words))
}

fn fixed_words<S: Seam>(core: &Core<S>, slot: usize) -> Result<FixedWords> {
    Ok(slot_of(core, slot)?.fixed.each_ref().map(|word| core.memory.load(word)))
}

fn commit_words<S: Seam>(core: &Core<S>) -> Result<[u64; ROOT_SLOTS]> {
    let mut words = [0; ROOT_SLOTS];
    for (slot, word) in words.iter_mut().enumerate() {
        *word = core.memory.load(&slot_of(core, slot)?.commit);
    }
    Ok(words)
}

/// Finds the slot of a root that was lost: with the commit word of that slot put back, the commit
/// words of all slots have the checksum `told`, which is the one in the header. The slot of a
/// dropped map has fixed words too, but its commit word gives another checksum. If no slot gives
/// `told`, returns a guess: the first free slot that has fixed words, or 0.
fn lost_slot<S: Seam>(core: &Core<S>, told: u32) -> Result<usize> {
    let words = commit_words(core)?;
    let mut guess = None;
    for slot in (0..ROOT_SLOTS).filter(|&slot| words[slot] == 0) {
        if fixed_words(core, slot)?[0] == 0 {
            continue;
        }
        if commits(core, Some(slot))? == told {
            return Ok(slot);
        }
        guess = guess.or(Some(slot));
    }
    Ok(guess.unwrap_or(0))
}

/// Checks the roots of a pool against its header. Returns the slot and the damage if a root was
/// lost: a root whose commit word became 0 looks like a free slot. The header of a clean pool has a
/// checksum of the commit words. That of a dirty pool says whether the pool had lost a root when it
/// was last clean.
pub fn check_commits<S: Seam>(core: &Core<S>, header: &Header) -> Result<Option<(usize, Damage)>> {
    let told = header.get(field::ROOTS);
    let commits = commits(core, None)?;
    let expected = pack_roots(commits, header.get(field::SEQUENCE));
    // A different sequence number means that the field was left by a build that does not know it.
    // The check also runs if the other header copy is damaged: if that copy is a dirty mark that a
    // crash cut short, no root has been stored since, so the check still holds.
    let differs = !header.is_dirty() && told >> 32 == expected >> 32 && told != expected;
    if !differs && !header.lacks_root() {
        return Ok(None);
    }
    let lost = lost_slot(core, told as u32)?;
    let expected = match differs {
        true => format!("roots whose commit words have the checksum {:#x}", told as u32),
        false => "all roots of the last clean close".into(),
    };
    let damage = Damage::new(root_offset(lost).raw(), expected, format!("{commits:#x}"));
    Ok(Some((lost, damage)))
}

/// Writes a root into a free slot. Once this returns, the map exists; a crash before the commit
/// word is durable leaves the slot free.
///
/// The fence before the commit word makes the fixed words durable, and also everything that the
/// scheme has flushed and that its words, `scheme`, lead to. These words share the commit word's
/// cache line, so they are durable whenever it is.
pub fn commit<S: Seam>(
    core: &Core<S>,
    slot: usize,
    fixed: &FixedWords,
    scheme: [u64; ROOT_SCHEME_WORDS],
) -> Result<()> {
    let root = slot_of(core, slot)?;
    if core.memory.seam().seeded(&bugs::ROOT_COMMITTED_FIRST) {
        core.memory.store(&root.commit, commit_word(fixed), &points::ROOT_COMMIT);
    }
    for (word, value) in root.fixed.iter().zip(fixed) {
        core.memory.store(word, *value, &points::ROOT_FIXED);
    }
    core.memory.flush_words(&root.fixed, &points::ROOT_FIXED);
    core.memory.fence(&points::ROOT_FIXED);
    for (word, value) in root.scheme.iter().zip(scheme) {
        core.memory.store(word, value, &points::ROOT_COMMIT);
    }
    core.memory.store_release(&root.commit, commit_word(fixed), &points::ROOT_COMMIT);
    core.memory.persist(&root.commit, &points::ROOT_COMMIT);
    Ok(())
}

/// Frees a slot. Once this returns, the map is gone.
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
