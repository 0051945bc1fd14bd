//! Writes the golden pools that `tests/library/golden.rs` opens, one for each scheme. This program is run once
//! for each format. The pool of Dash-EH also gets a map of large values.
//!
//! ```text
//! cargo run --example golden -- crates/outlast/tests/golden
//! ```

use outlast::{Config, MapOptions, PoolOptions, Scheme};
use std::path::Path;

#[path = "../tests/golden/content.rs"]
mod content;
use content::{LARGE, TEXTS, WORDS, large, removed, text, value, word};

fn main() {
    let place = std::env::args().nth(1).expect("the directory to write to");
    for &scheme in Scheme::ALL {
        write(&Path::new(&place).join(format!("format1-{scheme}.pool")), scheme);
    }
}

fn write(path: &Path, scheme: Scheme) {
    let options = PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .page_bits(12)
        .initial_size(160 << 10)
        .background(false);
    // The file must not depend on the machine that writes it.
    let options = options.boot_id(1);
    // SAFETY: the file belongs to this program.
    let pool = unsafe { options.create(path).unwrap() };
    let small = Config::small(scheme);
    let mut stash = small;
    match &mut stash {
        Config::DashEh(config) => config.stash_buckets = 4,
        Config::DashLh(config) => config.stash_buckets = 4,
        _ => {}
    }
    let [small, stash] = [small, stash].map(|config| MapOptions::new().config(config));
    let words = pool.map_with::<u64, u64>("words", &small).unwrap();
    let bytes = pool.map_with::<u64, [u8]>("bytes", &stash).unwrap();
    let texts = pool.map_with::<str, i32>("texts", &small).unwrap();
    for n in 0..WORDS {
        words.put(&word(n), &(n << 32 | n)).unwrap();
    }
    for n in 0..TEXTS {
        bytes.put(&word(n), &value(n)).unwrap();
        texts.put(&text(n), &(n as i32 - 30)).unwrap();
    }
    for n in (0..WORDS).filter(|&n| removed(n)) {
        words.remove(&word(n)).unwrap();
        bytes.remove(&word(n)).unwrap();
        texts.remove(&text(n)).unwrap();
    }
    if scheme == Scheme::DashEh {
        let map = pool.map_with::<u64, [u8]>("large", &small).unwrap();
        for len in LARGE {
            map.put(&(len as u64), &large(len)[..]).unwrap();
        }
    }
    drop((words, bytes, texts));
    pool.close().unwrap();
}
