//! A service that is asked to end closes its pools, and the machine can be restarted.

use crate::files::{child_path, dir, in_child};
use outlast::{Error, Pool, PoolOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

const NAMES: [&str; 2] = ["one.pool", "two.pool"];

/// The program's threads notice that the pool is closed, and `main` returns with an error: the end of the process
/// is the signal's all the same, and waits until the pool is closed. With and without a journal.
#[test]
fn a_main_that_returns_meanwhile_does_not_cut_the_closing_short() {
    let name = "signals::a_main_that_returns_meanwhile_does_not_cut_the_closing_short";
    if let Some(path) = child_path() {
        // SAFETY: the file belongs to this test.
        let pool = unsafe { PoolOptions::new().open_or_create(path).unwrap() };
        pool.close_on_signals().unwrap();
        let map = pool.map::<u64, u64>("m").unwrap();
        println!("\nready");
        let error = (0..).find_map(|n| map.put(&(n % 100_000), &n).err()).unwrap();
        drop((map, pool));
        eprintln!("{error}");
        std::process::exit(1);
    }
    let dirs =
        [tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")), tempfile::tempdir_in("/dev/shm")];
    for dir in dirs.into_iter().flatten() {
        let path = dir.path().join("a.pool");
        for _ in 0..15 {
            let mut child = in_child(name, &path).stdout(Stdio::piped()).spawn().unwrap();
            let mut told = BufReader::new(child.stdout.take().unwrap()).lines();
            assert!(told.any(|line| line.unwrap() == "ready"));
            std::thread::sleep(std::time::Duration::from_millis(20));
            // SAFETY: this is the process that was started above, and it was not waited for yet.
            assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGTERM) }, 0);
            assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
            let facts = PoolOptions::new().facts(&path).unwrap();
            assert!(facts.journal.is_none_or(|journal| journal.closed && journal.segments == 0));
            let options = PoolOptions::new().boot_id(77);
            // SAFETY: the file belongs to this test.
            unsafe { options.open_read_only(&path) }.expect("it was closed");
        }
    }
}

/// Opens a pool as if the machine had been restarted `boots` times.
fn open(path: &Path, boots: u64) -> Pool {
    let options =
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).boot_id(u128::from(boots) + 1);
    // SAFETY: only one process at a time uses the file.
    unsafe { options.open_or_create(path) }.unwrap()
}

/// The service: two threads change both pools until a signal ends the process. Tells the parent which
/// values are stored.
fn serve(directory: &Path, boots: u64) {
    let pools = NAMES.map(|name| open(&directory.join(name), boots));
    for pool in &pools {
        pool.close_on_signals().unwrap();
    }
    std::thread::scope(|threads| {
        for thread in 0..2_u64 {
            let pools = &pools;
            threads.spawn(move || {
                let maps = pools.each_ref().map(|pool| pool.map::<u64, u64>("m").unwrap());
                for number in 1_u64.. {
                    for map in &maps {
                        match map.put(&thread, &(boots << 32 | number)) {
                            Ok(_) => {}
                            // It is being closed, and the process is about to end.
                            Err(Error::NotOpen(_)) => loop {
                                std::thread::park();
                            },
                            Err(error) => panic!("{error}"),
                        }
                    }
                    let line = format!("{thread} {number}\n");
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                }
            });
        }
    });
}

#[test]
fn a_service_that_is_asked_to_end_opens_after_a_restart() {
    if let Some(path) = child_path() {
        let boots = std::env::var("OUTLAST_TEST_BOOTS").unwrap().parse().unwrap();
        return serve(&path, boots);
    }
    let (dir, _) = dir();
    for boots in 1..=100_u64 {
        let name = "signals::a_service_that_is_asked_to_end_opens_after_a_restart";
        let mut child = in_child(name, dir.path());
        child.env("OUTLAST_TEST_BOOTS", boots.to_string()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut told = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut last = [0; 2];
        let mut note = |line: String| {
            let words: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
            if let [thread, number] = words[..] {
                last[thread as usize] = number;
            }
        };
        told.by_ref().take(50 + 13 * boots as usize).for_each(&mut note);
        let signal = if boots % 2 == 0 { libc::SIGTERM } else { libc::SIGINT };
        // SAFETY: this is the process that was started above, and it was not waited for yet.
        assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
        told.for_each(&mut note);
        assert_eq!(child.wait().unwrap().signal(), Some(signal), "the signal ends the process");
        for name in NAMES {
            let pool = open(&dir.path().join(name), boots + 1);
            let map = pool.map::<u64, u64>("m").unwrap();
            for (thread, last) in last.into_iter().enumerate() {
                let found = map.get(&(thread as u64)).unwrap();
                // A thread that was not scheduled before the signal has acknowledged nothing.
                let is_there = last == 0 || found >= Some(boots << 32 | last);
                assert!(is_there, "{name}, {boots}: {found:?}, and {last} was acknowledged");
            }
            pool.close().unwrap();
        }
    }
}
