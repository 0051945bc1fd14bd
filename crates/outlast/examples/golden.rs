//! Writes one of the golden pools that `tests/library/golden.rs` opens. This program is run once for each
//! file. If the file's name contains `eighths`, the pool also gets a map of large values.
//!
//! ```text
//! cargo run --example golden -- crates/outlast/tests/golden/format2.pool dash-eh
//! cargo run --example golden -- crates/outlast/tests/golden/format2-clevel.pool clevel
//! cargo run --example golden -- crates/outlast/tests/golden/format2-phast.pool phast
//! cargo run --example golden -- crates/outlast/tests/golden/format2-phast-blanks.pool phast
//! cargo run --example golden -- crates/outlast/tests/golden/format2-group.pool group
//! cargo run --example golden -- crates/outlast/tests/golden/format2-dash-lh.pool dash-lh
//! cargo run --example golden -- crates/outlast/tests/golden/format2-ea-pht.pool ea-pht
//! cargo run --example golden -- crates/outlast/tests/golden/format2-ea-pht-h.pool ea-pht-h
//! cargo run --example golden -- crates/outlast/tests/golden/format2-ea-pht-hpr.pool ea-pht-hpr
//! cargo run --example golden -- crates/outlast/tests/golden/format2-eighths.pool dash-eh
//! ```

use outlast::{MapOptions, PoolOptions, Scheme};

#[path = "../tests/golden/content.rs"]
mod content;
use content::{LARGE, TEXTS, WORDS, large, removed, text, value, word};

fn main() {
    let path = std::env::args().nth(1).expect("the file to write");
    let scheme = std::env::args().nth(2).expect("the scheme of its maps");
    let options = PoolOptions::new().page_bits(12).initial_size(160 << 10).background(false);
    // The file must not depend on the machine that writes it.
    let options = options.boot_id(1);
    // SAFETY: the file belongs to this program.
    let pool = unsafe { options.create(&path).unwrap() };
    let scheme: Scheme = scheme.parse().unwrap();
    let small = MapOptions::new().scheme(scheme).small();
    let has_stash = scheme.has_setting("stash_buckets");
    let stash = if has_stash { small.clone().stash_buckets(4) } else { small.clone() };
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
    if path.contains("eighths") {
        let map = pool.map_with::<u64, [u8]>("large", &small).unwrap();
        for len in LARGE {
            map.put(&(len as u64), &large(len)[..]).unwrap();
        }
    }
    drop((words, bytes, texts));
    pool.close().unwrap();
}
