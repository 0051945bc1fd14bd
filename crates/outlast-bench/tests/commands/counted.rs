//! `counts`, `model` and `space`, which count and do not measure time.

use super::{dir, is_near, number, of, rows, text};

#[test]
fn counts_agree_with_the_scheme_and_the_model_with_the_counts() {
    let sizes = ["--records", "5000", "--operations", "3000"];
    let counted = rows(&[&["counts"], &sizes[..]].concat());
    let counted = of(&counted, "counts");
    assert_eq!(counted.len(), 6);
    let find = |operation: &str| *counted.iter().find(|r| r["operation"] == operation).unwrap();
    for operation in ["get_hit", "get_miss"] {
        let row = find(operation);
        let stored = ["/lines_flushed", "/fences", "/lines_stored"].map(|f| number(row, f));
        assert_eq!(stored, [0.0; 3], "lookups store nothing");
        // A hit reads the record's line. A miss reads a line only if a fingerprint matches.
        let (lines, blocks) = (number(row, "/lines_read"), number(row, "/blocks_read"));
        let expected = if operation == "get_hit" { 1.0..1.5 } else { 0.0..0.5 };
        assert!(expected.contains(&lines) && blocks <= lines, "{row}");
    }
    for operation in ["update", "remove"] {
        let row = find(operation);
        assert_eq!([number(row, "/lines_flushed"), number(row, "/fences")], [1.0, 1.0]);
    }
    let simple = find("insert_simple");
    assert!(number(simple, "/lines_flushed") <= number(find("insert"), "/lines_flushed"));
    let splits = number(find("insert"), "/splits") + number(find("insert"), "/doublings");
    assert!(number(simple, "/operations") < 3000.0 && splits > 0.0);

    let modelled = rows(&[&["model", "--base-ns", "200"], &sizes[..]].concat());
    let modelled = of(&modelled, "model");
    assert_eq!(modelled.len(), 3 * counted.len());
    for row in modelled {
        assert_eq!(row["model"], true);
        let mops = number(row, "/mops_one_thread");
        assert!(is_near(mops, 1000.0 / (200.0 + number(row, "/added_ns"))), "{row}");
        if row["medium"] == "300 ns a line" {
            let lines = number(find(row["operation"].as_str().unwrap()), "/lines_flushed");
            assert!(is_near(number(row, "/added_ns"), lines * 300.0), "{row}");
        }
    }

    let bytes = ["--record", "bytes", "--key-size", "16"];
    let counted = rows(&[&["counts"], &sizes[..], &bytes].concat());
    let counted = of(&counted, "counts");
    let update = counted.iter().find(|r| r["operation"] == "update").unwrap();
    // One fence for the record's block, and one for the link to it.
    assert_eq!(number(update, "/fences"), 2.0);
}

#[test]
fn space_accounts_for_every_byte() {
    let dir = dir();
    for form in ["inline", "bytes"] {
        let arguments = ["space", "--records", "30000", "--record", form];
        let rows = rows(&[&arguments[..], &["--pool-dir", text(dir.path())]].concat());
        let rows = of(&rows, "space");
        let bytes = |what: &str| {
            let row = rows.iter().find(|row| row["what"] == what);
            number(row.unwrap_or_else(|| panic!("no {what}")), "/bytes")
        };
        assert_eq!(bytes("slots with a record"), 16.0 * 30_000.0);
        // A bucket has 16 slots of 16 bytes. A segment of 66 buckets has a header of 256 bytes.
        let slots = bytes("slots with a record") + bytes("empty slots");
        let segments = slots / (66.0 * 256.0);
        assert_eq!(segments.fract(), 0.0);
        assert!(bytes("headers, directory, overflow nodes") >= segments * 256.0);
        // A record's block holds two lengths, a checksum, and 16 bytes.
        assert_eq!(bytes("blocks of records") > 30_000.0 * 16.0, form == "bytes");
        let sum: f64 = rows[..rows.len() - 2].iter().map(|row| number(row, "/bytes")).sum();
        let free = bytes("free pages") + bytes("saved free state");
        assert_eq!([sum, sum - free], [bytes("file"), bytes("pool without free pages")]);
    }
}
