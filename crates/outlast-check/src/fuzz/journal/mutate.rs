//! Mutations of the files of a journaled pool.

use super::evidence::{CONTROL, ENTRIES};
use super::files::{BASE, Files, JOURNAL, PAGE};
use super::images::{Image, working};
use crate::random::Random;

/// Chooses one of these.
fn any<'a, T>(of: &'a [T], random: &mut Random) -> Option<&'a T> {
    (!of.is_empty()).then(|| &of[random.below(of.len() as u64) as usize])
}

/// Chooses a file: the base, the working file or a file of the journal.
fn file(files: &Files, random: &mut Random) -> Option<String> {
    let one = match random.below(4) {
        0 => files.get_key_value(BASE).map(|(name, _)| name),
        1 => working(files),
        _ => None,
    };
    one.cloned().or_else(|| journal_file(files, random))
}

fn journal_file(files: &Files, random: &mut Random) -> Option<String> {
    let names: Vec<_> = files.keys().filter(|name| name.starts_with(JOURNAL)).collect();
    any(&names, random).map(|name| (*name).clone())
}

/// Chooses a page of a file that says something of the journal.
fn page(name: &str, files: &Files, random: &mut Random) -> u64 {
    let pages = files[name].used().min(files[name].len.div_ceil(PAGE));
    match name {
        BASE => [0, 1, ENTRIES[0] / PAGE, ENTRIES[1] / PAGE][random.below(4) as usize],
        name if name.starts_with(JOURNAL) => random.below(pages + 2),
        _ => CONTROL / PAGE,
    }
}

/// Makes one mutation, and returns what it is.
fn once(files: &mut Files, image: &Image, others: &[Image], random: &mut Random) -> Option<String> {
    let name = file(files, random)?;
    let page = page(&name, files, random);
    let is_working = !name.starts_with(JOURNAL) && name != BASE;
    Some(match random.below(9) {
        0 | 1 => {
            // Mostly a header, an entry, or a control word.
            let bytes = match random.below(8) {
                0 => PAGE,
                _ if is_working => 67 * 8,
                _ => 96,
            };
            let (at, bit) = (page * PAGE + random.below(bytes), random.below(8));
            let content = files.get_mut(&name)?;
            let byte = content.get(at, 1)[0] ^ 1 << bit;
            content.set(at, &[byte]);
            format!("bit {bit} of byte {at} of {name} flipped")
        }
        2 => {
            let len = match random.below(3) {
                0 => random.below(files[&name].len.max(1)),
                _ => page * PAGE,
            };
            files.get_mut(&name)?.cut(len);
            format!("{name} cut to {len} bytes")
        }
        3 => {
            // What the pool itself holds is the other fuzzer's.
            let more = if name == BASE { 0 } else { random.below(2) * random.below(200) };
            let to = page + 1 + more;
            files.get_mut(&name)?.zero(page, to);
            format!("pages {page} to {to} of {name} zeroed")
        }
        4 => {
            let (one, other) = (journal_file(files, random)?, journal_file(files, random)?);
            let (first, second) = (files[&one].clone(), files[&other].clone());
            files.insert(one.clone(), second);
            files.insert(other.clone(), first);
            format!("{one} and {other} changed places")
        }
        5 => {
            let (one, other) = (journal_file(files, random)?, journal_file(files, random)?);
            let from = self::page(&one, files, random);
            let to = self::page(&other, files, random);
            let (first, second) =
                (files[&one].get(from * PAGE, PAGE), files[&other].get(to * PAGE, PAGE));
            files.get_mut(&one)?.set(from * PAGE, &second);
            files.get_mut(&other)?.set(to * PAGE, &first);
            format!("page {from} of {one} and page {to} of {other} changed places")
        }
        6 => {
            files.remove(&name);
            format!("{name} removed")
        }
        kind => {
            // A file of an earlier moment, or of the other life under this one's name; all of it, or a
            // page.
            let is_older = |other: &&Image| other.life == image.life && other.acked < image.acked;
            let of: Vec<_> = match kind {
                7 => others.iter().filter(is_older).collect(),
                _ => others.iter().filter(|other| other.life != image.life).collect(),
            };
            let other = any(&of, random)?;
            let theirs = if is_working { working(&other.files)? } else { &name };
            let found = other.files.get(theirs)?;
            let is_page = random.below(4) == 0 && !is_working;
            if is_page {
                files.get_mut(&name)?.set(page * PAGE, &found.get(page * PAGE, PAGE));
            } else {
                files.insert(name.clone(), found.clone());
            }
            let what = if is_page { format!("page {page} of {name}") } else { name };
            format!("{what} from {:?} of life {}", other.name, other.life)
        }
    })
}

/// Makes one mutation or a few. Returns what they are.
pub fn mutate(
    files: &mut Files,
    image: &Image,
    others: &[Image],
    random: &mut Random,
) -> Vec<String> {
    let count = if random.below(4) == 0 { 2 + random.below(2) } else { 1 };
    let mut done = Vec::new();
    for _ in 0..20 {
        let before = files.clone();
        if let Some(what) = once(files, image, others, random)
            && *files != before
        {
            done.push(what);
        }
        if done.len() as u64 == count {
            break;
        }
    }
    done
}
