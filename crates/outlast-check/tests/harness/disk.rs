//! Every fault of the file system below a pool, on one scheme. `run` tries the others.

use outlast::{RecordForm, Scheme};
use outlast_check::disk;

#[test]
fn no_fault_of_the_disk_breaks_a_promise_unnoticed() {
    let found = disk::run(Scheme::DashEh, RecordForm::Bytes, 2, &|_| ());
    println!("{found}");
    assert!(found.is_good(), "{}", found.failures());
    assert!(found.faults.len() > 1000 && found.noticed() > 20, "{found}");
}
