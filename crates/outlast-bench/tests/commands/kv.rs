//! `kv`: stores on files.

use super::{check_percentiles, check_spread, dir, is_near, number, of, rows, text};

#[test]
fn kv_names_what_each_store_promises() {
    let dir = dir();
    let arguments = ["kv", "--records", "2000", "--operations", "400", "--insert-seconds", "0.2"];
    let place = ["--rounds", "2", "--pool-dir", text(dir.path())];
    let rows = rows(&[&arguments[..], &place].concat());
    let rows = of(&rows, "kv");
    let stores = if cfg!(feature = "stores") { 10 } else { 4 };
    assert_eq!(rows.len(), stores * 2);
    for row in &rows {
        check_spread(row);
        check_percentiles(row);
        assert!(row["guarantee"].is_string() && row["survives_power_loss"].is_boolean());
        assert!(number(row, "/file_bytes_per_record") > 16.0, "{row}");
        assert!(
            is_near(number(row, "/kops"), number(row, "/mops") * 1000.0)
                || number(row, "/mops") < 0.1
        );
        let count = number(row, "/operations");
        assert!((1.0..=800.0).contains(&count), "{row}");
    }
    let power: Vec<&str> = rows
        .iter()
        .filter(|row| row["survives_power_loss"] == true && row["phase"] == "get")
        .map(|row| row["store"].as_str().unwrap())
        .collect();
    let all = ["outlast-wait", "redb", "lmdb", "fjall"];
    assert_eq!(power, if stores == 10 { &all[..] } else { &all[..1] });
    let ours = rows.iter().find(|row| row["store"] == "outlast" && row["phase"] == "get").unwrap();
    for other in rows.iter().filter(|row| row["store"] != "outlast" && row["phase"] == "get") {
        let name = other["store"].as_str().unwrap();
        let ratio = number(ours, &format!("/ratio_to_rival/{name}/of_medians"));
        assert!(is_near(ratio, number(ours, "/mops") / number(other, "/mops")));
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "stores are removed");
}
