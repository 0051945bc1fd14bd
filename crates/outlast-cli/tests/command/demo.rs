//! The demonstration on a small scale, as a user runs it.

use crate::common::{Place, Run, command, finished};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Makes a place with some files in `tree`.
fn tree() -> Place {
    let place = Place::new();
    std::fs::create_dir_all(place.path("tree/deep/er")).unwrap();
    for i in 0..200 {
        let content = vec![i as u8; i * 700];
        std::fs::write(place.path(format!("tree/deep/{i}")), content).unwrap();
    }
    std::fs::write(place.path("tree/deep/er").join(OsStr::from_bytes(b"\xfe\xff")), "odd").unwrap();
    std::os::unix::fs::symlink("/usr", place.path("tree/link")).unwrap();
    place
}

/// Runs a demonstration with its own temporary directory.
fn demo(place: &Place, args: &[&str]) -> Run {
    let temporary = place.path("tmp");
    std::fs::create_dir_all(&temporary).unwrap();
    let mut command = command();
    command.arg("demo").arg(place.path("tree")).args(["--records", "3000"]).args(args);
    finished(command.env("TMPDIR", temporary).output().unwrap())
}

fn files_in(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().flatten();
    names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn of<'o>(objects: &'o [Value], event: &str) -> Vec<&'o Value> {
    objects.iter().filter(|object| object["event"] == event).collect()
}

#[test]
fn three_kills_lose_nothing_and_leave_nothing_behind() {
    outlast::Scheme::ALL.iter().for_each(|scheme| three_kills(scheme.name()));
}

fn three_kills(scheme: &str) {
    let place = tree();
    let args = ["--kills", "3", "--threads", "2", "--scheme", scheme, "--json"];
    let run = demo(&place, &args).expect(0);
    let objects = run.objects();
    let start = of(&objects, "start")[0];
    assert_eq!((&start["files"], &start["more_files"]), (&json!(201), &json!(false)));
    assert!(start["generated"].as_u64().unwrap() > 2000);
    let kills = of(&objects, "kill");
    assert_eq!(kills.len(), 3);
    let mut done = 0.0;
    for kill in &kills {
        assert!(kill["done"].as_f64().unwrap() > done && kill["done"].as_f64().unwrap() < 1.0);
        done = kill["done"].as_f64().unwrap();
        assert!(kill["compared_with_files"].as_u64().unwrap() > 0);
    }
    let listing = of(&objects, "listing");
    assert_eq!(listing.len(), usize::from(scheme == "phast"), "where keys have an order");
    for listing in listing {
        assert!(listing["directory"].as_str().unwrap().ends_with("/tree/deep/"), "{listing}");
        assert!(listing["files"].as_u64().unwrap() > 100, "{listing}");
        assert_eq!(listing["wrong"], 0);
    }
    let summary = objects.last().unwrap();
    for (field, value) in [
        ("event", json!("summary")),
        ("scheme", json!(scheme)),
        ("records", json!(3000)),
        ("kills", json!(3)),
        ("lost", json!(0)),
        ("torn", json!(0)),
        ("duplicated", json!(0)),
        ("leaked_bytes", json!(0)),
        ("verified", json!(true)),
    ] {
        assert_eq!(summary[field], value, "{field}");
    }
    for field in ["reopen_ms_p50", "reopen_ms_max", "gets_per_s"] {
        assert!(summary[field].as_f64().unwrap() > 0.0, "{field}");
    }
    assert_eq!(files_in(&place.path("tmp")), [""; 0]);
}

#[test]
fn with_a_journal_a_power_loss_takes_back_nothing_that_was_durable() {
    let place = tree();
    let mut taken_back = 0;
    for seed in ["1", "2"] {
        let args = ["--journal", "--kills", "4", "--threads", "2", "--seed", seed, "--json"];
        let run = demo(&place, &args).expect(0);
        let objects = run.objects();
        assert_eq!(of(&objects, "start")[0]["journal"], true);
        let losses = of(&objects, "kill").into_iter().filter(|kill| kill["power_loss"] == true);
        let losses = losses.count();
        let summary = objects.last().unwrap();
        for (field, value) in [
            ("records", json!(3000)),
            ("kills", json!(4)),
            ("power_losses", json!(losses)),
            ("lost", json!(0)),
            ("torn", json!(0)),
            ("duplicated", json!(0)),
            ("leaked_bytes", json!(0)),
            ("verified", json!(true)),
        ] {
            assert_eq!(summary[field], value, "{field}");
        }
        assert!(losses > 0, "{summary}");
        taken_back += summary["taken_back"].as_u64().unwrap();
        assert_eq!(files_in(&place.path("tmp")), [""; 0]);
    }
    assert!(taken_back > 0, "what was not durable is taken back");
}

#[test]
fn a_person_sees_a_table_and_a_verdict() {
    let place = tree();
    let run = demo(&place, &["--kills", "1", "--threads", "1"]).expect(0);
    for text in ["generated records", "acknowledged", "1 kill: nothing lost"] {
        assert!(run.text().contains(text), "{}", run.text());
    }
    assert_eq!(run.err, "", "no bar where there is no terminal");
}

#[test]
fn the_pool_can_be_kept_and_looked_at() {
    let place = tree();
    let pool = place.pool();
    let args = ["--pool", pool.to_str().unwrap(), "--kills", "1"];
    demo(&place, &args).expect(0);
    let verify = place.run(["verify", "--json"]).expect(0).objects();
    assert_eq!(verify[0]["records"], 3000);
    assert_eq!(place.run(["scan"]).expect(0).out.split(|&b| b == b'\n').count(), 3001);
    // The next run replaces the pool.
    demo(&place, &args).expect(0);
}

#[test]
fn another_file_is_not_replaced() {
    let place = tree();
    place.run(["put", "precious", "1"]).expect(0);
    let pool = place.pool();
    let args = ["--pool", pool.to_str().unwrap(), "--kills", "1"];
    assert!(demo(&place, &args).expect(1).err.contains("nothing was changed"));
    assert_eq!(place.run(["get", "precious"]).expect(0).text(), "1\n");
    std::fs::write(&pool, "also precious").unwrap();
    demo(&place, &args).expect(1);
    assert_eq!(std::fs::read(&pool).unwrap(), b"also precious");
    assert_eq!(files_in(&place.path("tmp")), [""; 0]);
}

#[test]
fn what_is_no_directory_is_an_error() {
    let place = Place::new();
    let run = demo(&place, &["--json"]).expect(1);
    assert_eq!(run.objects().last().unwrap()["event"], "error");
    assert_eq!(files_in(&place.path("tmp")), [""; 0]);
}

#[test]
fn an_interrupted_demonstration_cleans_up() {
    let place = tree();
    let temporary = place.path("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let mut command = command();
    command.arg("demo").arg(place.path("tree")).args(["--records", "200000", "--kills", "50"]);
    command.env("TMPDIR", &temporary).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    while !files_in(&temporary).iter().any(|name| name.ends_with(".pool")) {
        assert!(start.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(100));
    // SAFETY: this sends a signal to a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(130), None));
    assert_eq!(files_in(&temporary), [""; 0]);
}
