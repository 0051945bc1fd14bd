//! What `verify` prints of much damage.

use crate::common::Place;
use outlast::internals::pool::layout::ROOTS_OFFSET;
use outlast_offline as offline;
use outlast_offline::What;

/// Makes a pool, changes its bytes, and returns the lines about damage that `verify` prints.
fn told(change: impl FnOnce(&mut [u8])) -> Vec<String> {
    let place = Place::new();
    for scheme in ["clevel", "dash-eh", "group"] {
        let lines: String = (0..4000).map(|n| format!("key {n}\tvalue {n}\n")).collect();
        let load = ["load", "--map", scheme, "--scheme", scheme];
        place.run_with(load, lines.as_bytes()).expect(0);
    }
    let mut bytes = std::fs::read(place.pool()).unwrap();
    change(&mut bytes);
    std::fs::write(place.pool(), bytes).unwrap();
    let run = place.run(["verify"]).expect(3);
    let lines = run.text().lines().filter(|line| line.starts_with("  "));
    lines.map(str::to_owned).collect()
}

#[test]
fn damaged_roots_take_few_lines() {
    let roots = ROOTS_OFFSET as usize..ROOTS_OFFSET as usize + 128 * 512;
    let lines = told(|bytes| bytes[roots].fill(0xa7));
    assert!((2..10).contains(&lines.len()), "{lines:#?}");
    assert!(lines.iter().all(|line| line.len() < 200), "{lines:#?}");
    let more = lines.iter().find(|line| line.contains("more, up to offset 0x13e00"));
    assert!(more.is_some_and(|line| line.contains("and 125 more")), "{lines:#?}");
}

#[test]
fn a_page_of_zeros_is_one_line() {
    // The descriptors of the first pages.
    let lines = told(|bytes| bytes[0x20000..0x21000].fill(0));
    let of_page: Vec<_> = lines.iter().filter(|line| line.contains("offset 0x20")).collect();
    assert!(!of_page.is_empty(), "{lines:#?}");
    for line in &of_page {
        assert!(line.contains("4096 bytes of zeros") || of_page.len() == 1, "{lines:#?}");
    }
}

#[test]
fn a_pointer_that_leads_outside_is_called_that() {
    const OUTSIDE: u64 = 0x7fff_ffff_fff0;
    let lines = told(|bytes| {
        let (_, regions) = offline::regions(bytes).unwrap();
        let slots = regions.iter().filter(|region| region.what == What::ClevelSlot);
        for slot in slots.take(20) {
            let word = &mut bytes[slot.offset as usize..][..6];
            word.copy_from_slice(&OUTSIDE.to_le_bytes()[..6]);
        }
    });
    assert!(lines.iter().all(|line| !line.contains("at offset 0x7ffff")), "{lines:#?}");
    let is_outside = |line: &&String| line.contains("pointers that lead outside the pool");
    let outside: Vec<_> = lines.iter().filter(is_outside).collect();
    assert!((1..=2).contains(&outside.len()), "{lines:#?}");
    let count: u64 = outside[0].trim_start().split(' ').next().unwrap().parse().unwrap();
    assert!(count >= 20, "{lines:#?}");
}
