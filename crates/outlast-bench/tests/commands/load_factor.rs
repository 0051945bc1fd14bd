//! `load-factor`: how full a table is.

use super::{is_near, number, of, rows};

#[test]
fn load_factor_samples_and_finds_the_peak() {
    for form in ["inline", "bytes"] {
        let rows = rows(&["load-factor", "--records", "20000", "--every", "500", "--record", form]);
        let samples = of(&rows, "load_factor");
        assert_eq!(samples.len(), 2 * 40);
        for row in &samples {
            let load = number(row, "/load_factor");
            assert!(is_near(load, number(row, "/records") / number(row, "/slots")), "{row}");
        }
        for stash in [2, 4] {
            let of_stash = samples.iter().filter(|row| row["stash_buckets"] == stash);
            let loads: Vec<f64> = of_stash.map(|row| number(row, "/load_factor")).collect();
            let peaks = of(&rows, "peak");
            let peak = peaks.iter().find(|row| row["stash_buckets"] == stash).unwrap();
            assert_eq!(number(peak, "/peak"), loads.iter().copied().fold(0.0, f64::max));
            assert!(number(peak, "/peak") > 0.6, "{peak}");
        }
    }
}

#[test]
fn tables_are_as_full_before_they_split_as_the_paper_says() {
    // Dash (VLDB 2020), figure 9. All segments of a table are full at about the same time, for a
    // few thousand inserts, so samples 10,000 apart miss the first peaks.
    let rows = rows(&["load-factor", "--records", "600000", "--every", "10000"]);
    let peaks = of(&rows, "peak");
    for (stash, least) in [(2, 0.8), (4, 0.9)] {
        let peak = peaks.iter().find(|row| row["stash_buckets"] == stash).unwrap();
        assert!(number(peak, "/peak") >= least, "{peak}");
    }
}

#[test]
fn clevel_is_as_full_as_its_paper_says() {
    // Figure 6: up to 0.86, and 0.80 at least when it is resized (4.5). Without its background work, all
    // levels would stay.
    let rows = rows(&["load-factor", "--scheme", "clevel", "--records", "60000", "--every", "500"]);
    let peak = of(&rows, "peak")[0];
    assert!((0.80..0.92).contains(&number(peak, "/peak")), "{peak}");
}

#[test]
#[cfg(feature = "plot")]
fn load_factors_are_drawn() {
    use super::{dir, text};
    use std::path::Path;

    let dir = dir();
    let draw = |plot: &Path| {
        rows(&["load-factor", "--records", "20000", "--every", "500", "--plot", text(plot)]);
        std::fs::read(plot).unwrap()
    };
    let png = draw(&dir.path().join("load.png"));
    assert!(png.starts_with(b"\x89PNG") && png.len() > 5000);
    let svg = String::from_utf8(draw(&dir.path().join("load.svg"))).unwrap();
    // The plot has a curve for each table, and its name.
    assert!(svg.matches("<polyline").count() >= 2 && svg.contains("4 stash buckets"), "{svg}");
}
