//! What files prove, read by another program than the library, from docs/format.md.

use super::files::{BASE, Content, Files, JOURNAL, PAGE};
use super::images::{Image, working};

/// Where a working file has its control page.
pub const CONTROL: u64 = 1 << 41;
/// Where a base has its entries.
pub const ENTRIES: [u64; 2] = [12_288, 98_304];

/// An intact header of a segment or of a spare.
pub struct Head {
    /// Whether it is that of a spare.
    pub spare: bool,
    /// The epoch that it names.
    pub epoch: u64,
    life: u64,
}

fn is_sound(bytes: &[u8]) -> bool {
    let (content, sum) = bytes.split_at(bytes.len() - 8);
    u64::from(crc32c::crc32c(content)).to_le_bytes() == sum
}

fn journal(files: &Files) -> impl Iterator<Item = &Content> {
    files.iter().filter(|(name, _)| name.starts_with(JOURNAL)).map(|(_, content)| content)
}

/// Returns the intact headers.
pub fn heads(files: &Files) -> impl Iterator<Item = Head> {
    journal(files).filter_map(|content| {
        let bytes = content.get(0, 64);
        let spare = bytes.starts_with(b"OLJSPAR1");
        let head = Head { spare, epoch: content.word(16), life: content.word(40) };
        ((spare || bytes.starts_with(b"OLJSEGM3")) && is_sound(&bytes)).then_some(head)
    })
}

/// Returns the offset and the epoch of each intact block that begins a sector.
fn blocks(content: &Content, life: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..content.used()).map(|page| page * PAGE).filter_map(move |at| {
        let head = content.get(at, 64);
        if !head.starts_with(b"OLJBLOK2") || content.word(at + 40) != life {
            return None;
        }
        let counts = content.word(at + 24);
        let len = 64 + 8 * (counts & 0xffff_ffff) + 64 * (counts >> 32);
        let whole = at + len <= content.len && {
            let payload = content.get(at + 64, len - 64);
            let sum = crc32c::crc32c_append(crc32c::crc32c(&head[..56]), &payload);
            content.word(at + 56) == u64::from(sum)
        };
        whole.then(|| (at, content.word(at + 8)))
    })
}

/// Returns the intact entries of a base.
fn entries(files: &Files) -> Vec<[u64; 12]> {
    let Some(base) = files.get(BASE) else { return Vec::new() };
    let sound = ENTRIES.into_iter().filter(|&at| {
        let bytes = base.get(at, 96);
        bytes.starts_with(b"OLJMETA1") && is_sound(&bytes)
    });
    sound.map(|at| std::array::from_fn(|word| base.word(at + 8 * word as u64))).collect()
}

fn is_closed(files: &Files) -> bool {
    entries(files).iter().max_by_key(|entry| entry[1]).is_some_and(|entry| entry[9] & 1 == 1)
}

/// Returns whether an epoch is damaged that is not in the last segment, and only in its lines. After
/// process death, the library does not read those lines.
pub fn has_damaged_lines(image: &Image, mutant: &Files) -> bool {
    let life = image.files.get(BASE).map_or(0, |base| base.word(ENTRIES[0] + 32));
    let holds = |files: &Files| -> Vec<(String, u64)> {
        let segments = files.iter().filter(|(name, _)| name.starts_with(JOURNAL));
        let blocks = segments
            .flat_map(|(name, content)| blocks(content, life).map(|(at, _)| (name.clone(), at)));
        blocks.collect()
    };
    let (before, now) = (holds(&image.files), holds(mutant));
    let last = before.last().map(|(name, _)| name.clone());
    let is_lost = |block: &&(String, u64)| !now.contains(block) && Some(&block.0) != last.as_ref();
    let same_header = |(name, at): &(String, u64)| {
        let head = |files: &Files| files.get(name).map(|content| content.get(*at, 64));
        head(&image.files) == head(mutant)
    };
    before.iter().filter(is_lost).any(same_header)
}

/// Returns why the library may go on without the working file, if it may.
fn no_working_file(image: &Image, mutant: &Files) -> Option<&'static str> {
    let name = working(&image.files)?;
    let (original, Some(found)) = (&image.files[name], mutant.get(name)) else {
        return Some("the working file is missing");
    };
    // What it belongs to, and what the notes say of themselves.
    let parts = [(0, 88), (512, 24)].map(|(at, len)| (CONTROL + at, len));
    let differs = parts.iter().any(|&(at, len)| original.get(at, len) != found.get(at, len));
    (differs || found.len != original.len).then_some("the working file does not say whose it is")
}

/// Returns which case of docs/model.md explains that a mutant opens with only `found` records, if one
/// does. `died` is set if only the process has died.
pub fn excuse(image: &Image, mutant: &Files, found: u64, died: bool) -> Option<&'static str> {
    let no_working = no_working_file(image, mutant).filter(|_| died);
    let is_empty = |content: &Content| blocks(content, content.word(40)).next().is_none();
    if is_closed(mutant)
        && mutant.get(BASE) != image.files.get(BASE)
        && journal(mutant).all(is_empty)
    {
        return Some("the pool's file is another closed one, and there is no epoch");
    }
    if found >= image.durable() {
        // Only what was not waited for is missing.
        let name = working(&image.files)?;
        let durable = |files: &Files| files.get(name).map(|file| file.word(CONTROL + 16 * 8));
        let is_older =
            mutant.get(name) != image.files.get(name) && durable(mutant) == durable(&image.files);
        return no_working
            .or(is_older.then_some("the working file is older, without an epoch since"));
    }
    if died && no_working.is_none() {
        return None;
    }
    // Only the end of the last segment may be lost, and only if nothing names it any more.
    let at = image.waited.iter().position(|(_, count)| *count == found)?;
    let next = image.waited.get(at + 1)?.0;
    let life = image.files.get(BASE)?.word(ENTRIES[0] + 32);
    let named = heads(mutant).filter(|head| head.life == life).map(|head| head.epoch);
    let reached =
        entries(mutant).into_iter().filter(|entry| entry[4] == life).map(|entry| entry[7]);
    let last_block = journal(mutant).flat_map(|content| blocks(content, life));
    let known = named.chain(reached).chain(last_block.map(|(_, epoch)| epoch)).max().unwrap_or(0);
    let (name, original) = image.files.iter().find(|(name, content)| {
        name.starts_with(JOURNAL) && blocks(content, life).any(|(_, epoch)| epoch == next)
    })?;
    let is_hit = mutant.get(name) != Some(original);
    let is_cut = mutant.get(name).is_some_and(|content| content.len < original.len);
    (known < next && is_hit && !is_cut).then_some("the end of the last segment")
}
