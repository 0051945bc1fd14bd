//! `floor`: what memory accesses take by themselves.

use super::{number, of, rows};

#[test]
fn more_accesses_take_longer() {
    let rows = rows(&["floor", "--mib", "64", "--operations", "20000", "--rounds", "3"]);
    let rows = of(&rows, "floor");
    let least = |accesses: &str| {
        let row = rows.iter().find(|row| row["accesses"] == accesses).unwrap();
        assert!(number(row, "/ns_min") <= number(row, "/ns"), "{row}");
        assert!(
            number(row, "/ns") <= number(row, "/ns_max") && number(row, "/mops") > 0.0,
            "{row}"
        );
        number(row, "/ns_min")
    };
    assert_eq!(rows.len(), 11);
    assert!(least("1 line read") < least("4 lines read, each names the next"));
    assert!(least("1 line stored, 1 fence") < least("16 lines stored, 1 fence"));
}
