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

fn is_sound_head(bytes: &[u8]) -> bool {
    let sum = crc32c::crc32c(&bytes[..56]).to_le_bytes();
    bytes[56..60] == sum && bytes[60..] == sum
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
        ((spare || bytes.starts_with(b"OLJSEGM1")) && is_sound_head(&bytes)).then_some(head)
    })
}

/// Returns the offset and the epoch of each intact block that begins a sector.
fn blocks(content: &Content, life: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..content.used()).map(|page| page * PAGE).filter_map(move |at| {
        let head = content.get(at, 64);
        if !head.starts_with(b"OLJBLOK1") || content.word(at + 40) != life {
            return None;
        }
        let counts = content.word(at + 24);
        let len = 64 + 8 * (counts & 0xffff_ffff) + 64 * (counts >> 32);
        let whole = at + len <= content.len && {
            let payload = content.get(at + 64, len - 64);
            let own = crc32c::crc32c(&head[..56]);
            let sum = crc32c::crc32c_append(own, &payload);
            content.word(at + 56) == u64::from(sum) | u64::from(own) << 32
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
    let life = life_of(image);
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

/// Returns the last epoch of the image's life that the journal and the base of a mutant name.
fn named(mutant: &Files, life: u64) -> u64 {
    let heads = heads(mutant).filter(|head| head.life == life).map(|head| head.epoch);
    let reached = entries(mutant).into_iter().filter(|entry| entry[4] == life);
    let blocks = journal(mutant).flat_map(|content| blocks(content, life));
    let reached = reached.map(|entry| entry[7]);
    heads.chain(reached).chain(blocks.map(|(_, epoch)| epoch)).max().unwrap_or(0)
}

/// Returns the last epoch that a mutant names.
pub fn last_named(image: &Image, mutant: &Files) -> u64 {
    named(mutant, life_of(image))
}

/// Returns what blocks and headers name of the life of an image.
fn life_of(image: &Image) -> u64 {
    image.files.get(BASE).map_or(0, |base| base.word(ENTRIES[0] + 32))
}

/// Returns whether a mutant's working file is an older one, and nothing names an epoch that it has not
/// begun.
fn has_older_working(image: &Image, mutant: &Files, found: u64, life: u64) -> bool {
    let of = |files: &Files| {
        let file = files.get(working(&image.files)?)?;
        Some([16, 19].map(|word| file.word(CONTROL + word * 8)))
    };
    let (Some([durable, begun]), Some([latest, _])) = (of(mutant), of(&image.files)) else {
        return false;
    };
    let waited = image.waited.iter().filter(|(epoch, _)| *epoch <= durable);
    let needed = waited.map(|(_, count)| *count).max().unwrap_or(0);
    durable <= latest && found >= needed && named(mutant, life) <= begun
}

/// Returns which case of docs/model.md explains that a mutant opens with only `found` records, if one
/// does. `died` is set if only the process has died.
pub fn excuse(image: &Image, mutant: &Files, found: u64, died: bool) -> Option<&'static str> {
    let name = working(&image.files).filter(|name| died && mutant.contains_key(*name));
    let is_empty = |content: &Content| blocks(content, content.word(40)).next().is_none();
    if is_closed(mutant)
        && mutant.get(BASE) != image.files.get(BASE)
        && journal(mutant).all(is_empty)
    {
        return Some("the pool's file is another closed one, and there is no epoch");
    }
    let life = life_of(image);
    if let Some(name) = name {
        let is_older = mutant.get(name) != image.files.get(name)
            && has_older_working(image, mutant, found, life);
        return is_older.then_some("the working file is older, and nothing names an epoch since");
    }
    if found >= image.durable() {
        // Only what was not waited for is missing.
        return died.then_some("the working file is missing");
    }
    // Only the end of the last segment may be lost, and only if nothing names it any more.
    let (next, _) = *image.waited.iter().find(|(_, count)| *count > found)?;
    let (name, original) = image.files.iter().find(|(name, content)| {
        name.starts_with(JOURNAL) && blocks(content, life).any(|(_, epoch)| epoch == next)
    })?;
    let is_hit = mutant.get(name) != Some(original);
    // A header says how long its file is.
    let is_cut = mutant
        .get(name)
        .is_some_and(|content| content.len < original.len && is_sound_head(&content.get(0, 64)));
    (named(mutant, life) < next && is_hit && !is_cut).then_some("the end of the last segment")
}
