//! `recovery`: pools opened after a kill.

use super::{dir, is_near, number, of, rows, text};

#[test]
fn recovery_kills_and_measures() {
    let dir = dir();
    let arguments = ["recovery", "--records", "1,1000,5000", "--kills", "2"];
    let rows = rows(&[&arguments[..], &["--pool-dir", text(dir.path())]].concat());
    let rows = of(&rows, "recovery");
    assert_eq!(rows.len(), 3);
    for (row, records) in rows.iter().zip([1.0, 1000.0, 5000.0]) {
        assert_eq!(number(row, "/records"), records);
        let [open, get, answer] =
            ["/open_ms", "/first_get_us", "/answer_ms"].map(|f| number(row, f));
        assert!(open > 0.0 && get > 0.0, "{row}");
        assert!(is_near(answer, open + get / 1000.0), "of two kills: {row}");
        assert!(number(row, "/open_ms_max") >= open);
    }
}

#[test]
fn recovery_by_several_threads_is_held_against_reading_raw() {
    let dir = dir();
    let arguments = ["recovery", "--scheme", "phast", "--records", "20000", "--kills", "2"];
    let place = ["--threads", "1,2", "--pool-dir", text(dir.path())];
    let rows = rows(&[&arguments[..], &place].concat());
    let rows = of(&rows, "recovery");
    assert_eq!(rows.iter().map(|row| number(row, "/threads")).collect::<Vec<_>>(), [1.0, 2.0]);
    for row in rows {
        let opened = number(row, "/reading/records_per_s") * number(row, "/open_ms") / 1000.0;
        assert!(is_near(opened, 20000.0), "{row}");
        assert!(number(row, "/reading/raw_ms") > 0.0, "{row}");
        let of_raw = number(row, "/reading/speed_up") / number(row, "/reading/raw_speed_up");
        assert!(is_near(number(row, "/reading/of_raw"), of_raw), "{row}");
    }
}
