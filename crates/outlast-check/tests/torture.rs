//! A small torture run, with enough kills to hit each part of a process's life. Other tests show
//! that such a run can fail.

use outlast::{RecordForm, Scheme};
use outlast_check::codec::key_bytes;
use outlast_check::state::Checked;
use outlast_check::torture::life::{Subject, check_at_rest, live, open};
use outlast_check::torture::{Options, POOL, Until, prepare, run};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_outlast-check");

#[test]
fn nothing_is_lost_by_64_kills() {
    for &scheme in Scheme::ALL {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            subject: Subject { scheme, record: None, keys: 1_000, threads: 4 },
            until: Until::Kills(64),
            seed: 1,
            program: PROGRAM.into(),
            dir: dir.path().into(),
            pool_dir: None,
            journal: scheme == Scheme::DashEh,
            after_kill: None,
        };
        let summary = run(&options, |_| ()).unwrap();
        println!("{summary:?}");
        assert_eq!(summary.kills, 64);
        assert!(summary.checks >= 16);
        assert!(summary.unfinished >= 1, "kills must leave something to reclaim");
    }
}

/// Works on a pool for a moment, then changes it without telling the cells.
fn tampered(form: RecordForm, tamper: impl FnOnce(&outlast::RawMap)) -> (Checked, Checked) {
    let dir = tempfile::tempdir().unwrap();
    let subject = Subject { scheme: Scheme::ALL[0], record: Some(form), keys: 200, threads: 2 };
    let options = Options {
        subject,
        until: Until::Kills(0),
        seed: 1,
        program: PROGRAM.into(),
        dir: dir.path().into(),
        pool_dir: None,
        journal: false,
        after_kill: None,
    };
    let (cells, subject) = (prepare(&options).unwrap(), &options.subject);
    let pool = open(&dir.path().join(POOL)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| live(subject, &pool, &cells, 1, &stop));
        std::thread::sleep(Duration::from_millis(100));
        stop.store(true, Ordering::SeqCst);
        worker.join().unwrap().unwrap();
    });
    check_at_rest(subject, &pool, &cells).unwrap();
    tamper(&pool.raw_map(&form.to_string()).unwrap());
    let at_rest = check_at_rest(subject, &pool, &cells);
    let stop = AtomicBool::new(true);
    // A life that is told to stop still checks every key.
    let under_load = live(subject, &pool, &cells, 1, &stop);
    (at_rest, under_load)
}

fn present(map: &outlast::RawMap) -> Vec<u8> {
    map.iter().next().unwrap().unwrap().0
}

#[test]
fn each_kind_of_tampering_is_found() {
    let lost = |map: &outlast::RawMap| assert!(map.remove(&present(map)).unwrap().is_some());
    let changed = |map: &outlast::RawMap| {
        let value = 77u64.to_le_bytes();
        assert!(map.update(&present(map), &value).unwrap());
    };
    let torn = |map: &outlast::RawMap| assert!(map.update(&present(map), b"nobody's").unwrap());
    for form in RecordForm::ALL {
        for tamper in [&lost as &dyn Fn(&outlast::RawMap), &changed, &torn] {
            let (at_rest, under_load) = tampered(form, tamper);
            assert!(at_rest.is_err(), "{form}, at rest");
            assert!(under_load.is_err(), "{form}, under load");
        }
        // Iteration finds a key that nobody inserted.
        let (at_rest, _) = tampered(form, |map| {
            let key = match form {
                RecordForm::Inline => 100_000u64.to_le_bytes().to_vec(),
                RecordForm::Bytes => key_bytes(100_000),
            };
            assert!(map.insert(&key, &5u64.to_le_bytes()).unwrap());
        });
        assert!(at_rest.is_err(), "{form}, a new key");
    }
}

#[test]
fn a_child_that_fails_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        subject: Subject { scheme: Scheme::ALL[0], record: None, keys: 10, threads: 1 },
        until: Until::Kills(1_000),
        seed: 1,
        program: PROGRAM.into(),
        dir: dir.path().into(),
        pool_dir: None,
        journal: false,
        after_kill: None,
    };
    let ruin = |path: &Path| std::fs::write(path, b"not a pool any more").unwrap();
    let pool = dir.path().join(POOL);
    let found = run(&options, |summary| {
        if summary.kills == 2 {
            ruin(&pool);
        }
    });
    let fault = found.unwrap_err().to_string();
    assert!(fault.contains("pool"), "{fault}");
}
