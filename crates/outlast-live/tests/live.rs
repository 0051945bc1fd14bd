//! A pool that one thread changes while others, and other processes, read it through its socket.

use outlast::{Error, Failure, Pool, PoolOptions, Scheme};
use outlast_live::{Client, serve};
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Bound;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn dir() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pool");
    (dir, path)
}

fn create(path: &Path) -> Pool {
    let options = PoolOptions::new().survive(Failure::ProcessDeath);
    // SAFETY: the file belongs to this test.
    unsafe { options.open_or_create(path).unwrap() }
}

/// Every record that stays is read exactly once by each scan, whatever happens to the others, in maps of all
/// schemes. Counts and lookups give what the owner sees.
#[test]
fn what_stays_is_read_while_threads_change_the_rest() {
    let (_dir, path) = dir();
    let pool = create(&path);
    for &scheme in Scheme::ALL {
        let options = outlast::MapOptions::new().scheme(scheme);
        let map = pool.map_with::<u64, str>(scheme.name(), &options).unwrap();
        for n in 0..3_000 {
            map.insert(&n, &format!("stays {n}")).unwrap();
        }
    }
    let serving = serve(&pool, &path).unwrap();
    let client = Client::of(&path);
    assert_eq!(client.maps().unwrap().len(), Scheme::ALL.len());
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for n in 0.. {
                for &scheme in Scheme::ALL {
                    let map = pool.map::<u64, str>(scheme.name()).unwrap();
                    map.put(&(1_000_000 + n % 5_000), "comes and goes").unwrap();
                    map.delete(&(1_000_000 + (n + 2_500) % 5_000)).unwrap();
                }
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for &scheme in Scheme::ALL {
            let map = client.map(scheme.name()).unwrap();
            assert_eq!(map.info().scheme(), scheme);
            for _ in 0..3 {
                let mut seen = vec![0; 3_000];
                for record in map.iter().unwrap() {
                    let (key, value) = record.unwrap();
                    let key = u64::from_le_bytes(key.try_into().unwrap());
                    if key < 3_000 {
                        seen[key as usize] += 1;
                        assert_eq!(value, format!("stays {key}").as_bytes());
                    }
                }
                assert_eq!(seen, [1; 3_000], "{scheme}");
            }
            assert!(map.len().unwrap() >= 3_000);
            let value = map.get(&7u64.to_le_bytes()).unwrap();
            assert_eq!(value.as_deref(), Some(&b"stays 7"[..]));
            assert_eq!(map.get(&77_777u64.to_le_bytes()).unwrap(), None);
            assert!(map.stats().unwrap().slots > 0);
        }
        done.store(true, Ordering::Relaxed);
    });
    drop(serving);
    assert!(!client.is_served());
    assert!(matches!(client.maps(), Err(Error::Locked { .. })));
    pool.close().unwrap();
}

#[test]
fn ranges_come_in_order_and_in_reverse() {
    let (_dir, path) = dir();
    let pool = create(&path);
    let log = pool.ordered_map::<str, u64>("log").unwrap();
    for n in 0..500u64 {
        log.insert(&format!("{n:03}"), &n).unwrap();
    }
    let _serving = serve(&pool, &path).unwrap();
    let map = Client::of(&path).map("log").unwrap();
    let (low, high) = (Bound::Included(&b"100"[..]), Bound::Excluded(&b"200"[..]));
    let keys = |reverse| -> Vec<String> {
        let records = map.range(low, high, reverse).unwrap();
        records.map(|record| String::from_utf8(record.unwrap().0).unwrap()).collect()
    };
    let expected: Vec<String> = (100..200).map(|n| format!("{n:03}")).collect();
    assert_eq!(keys(false), expected);
    assert_eq!(keys(true), expected.into_iter().rev().collect::<Vec<_>>());
    pool.map::<str, u64>("unordered").unwrap();
    let unordered = Client::of(&path).map("unordered").unwrap();
    let refused = unordered.range(low, high, false).unwrap().next().unwrap();
    assert!(format!("{:?}", refused.unwrap_err()).contains("no key order"));
}

/// The copy is a closed pool as of one moment: sums that transactions keep are right in it.
#[test]
fn a_copy_is_of_one_moment() {
    let (dir, path) = dir();
    let pool = create(&path);
    let accounts = pool.map::<u64, i64>("accounts").unwrap();
    let _serving = serve(&pool, &path).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let moved = pool.transaction(|t| {
                    t.add(&accounts, &1, 1)?;
                    t.add(&accounts, &2, -1)
                });
                moved.unwrap();
            }
        });
        for round in 0..5 {
            let to = dir.path().join(format!("copy {round}"));
            let bytes = Client::of(&path).copy(&mut std::fs::File::create(&to).unwrap()).unwrap();
            assert_eq!(to.metadata().unwrap().len(), bytes);
            // SAFETY: the file belongs to this test.
            let copy = unsafe { PoolOptions::new().open_read_only(&to).unwrap() };
            copy.verify().unwrap().ensure_sound().unwrap();
            let copied = copy.map::<u64, i64>("accounts").unwrap();
            let sum: i64 = copied.iter().map(|record| record.unwrap().1).sum();
            assert_eq!(sum, 0);
        }
        done.store(true, Ordering::Relaxed);
    });
    // Nothing is left beside the pool but its socket and the copies.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2 + 5);
}

/// Whatever bytes a client sends, the owner answers or hangs up, and goes on.
#[test]
fn bytes_that_are_no_request_do_no_harm() {
    let (_dir, path) = dir();
    let pool = create(&path);
    pool.map::<u64, u64>("numbers").unwrap().insert(&1, &2).unwrap();
    let _serving = serve(&pool, &path).unwrap();
    let socket = path.with_file_name("a.pool.live");
    let mut seed = 1u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize
    };
    let name = |request: &mut Vec<u8>| {
        request.extend(7u32.to_le_bytes());
        request.extend(b"numbers");
    };
    for round in 0..2_000 {
        let mut request = vec![(random() % 9) as u8];
        if round % 2 == 0 {
            name(&mut request);
        }
        request
            .extend((0..random() % 40).map(|_| if random() % 3 == 0 { 0 } else { random() as u8 }));
        let len = if random() % 8 == 0 { random() as u32 } else { request.len() as u32 };
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let _ = stream.write_all(&[&len.to_le_bytes()[..], &request].concat());
        // The rest never comes.
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
    }
    let map = Client::of(&path).map("numbers").unwrap();
    assert_eq!(map.len().unwrap(), 1);
    let refused = format!("{:?}", map.get(b"short").unwrap_err());
    assert!(refused.contains("5 bytes"), "{refused}");
}

/// A reader that takes nothing neither stops the owner's threads nor its end, nor other readers.
#[test]
fn a_reader_that_hangs_holds_nobody_up() {
    let (_dir, path) = dir();
    let pool = create(&path);
    let map = pool.map::<u64, [u8]>("blobs").unwrap();
    for n in 0..200 {
        map.insert(&n, &[7; 100_000]).unwrap();
    }
    let serving = serve(&pool, &path).unwrap();
    let live = Client::of(&path).map("blobs").unwrap();
    let hung: Vec<_> = (0..15).map(|_| live.iter().unwrap()).collect();
    map.insert(&1_000, b"goes on").unwrap();
    let start = Instant::now();
    while live.get(&1_000u64.to_le_bytes()).is_err() {
        assert!(start.elapsed() < Duration::from_secs(5));
    }
    let more: Vec<_> = (0..20).map(|_| live.iter().unwrap()).collect();
    let busy = more.into_iter().filter_map(|mut records| records.next()).filter(Result::is_err);
    assert!(busy.count() > 0, "there is a limit");
    let start = Instant::now();
    drop(serving);
    assert!(start.elapsed() < Duration::from_secs(2));
    pool.close().unwrap();
    for mut records in hung {
        assert!(records.find(Result::is_err).is_some(), "a scan that was cut short says so");
    }
}

/// The owner is another process, which is killed in the middle; its socket is left, and says nothing.
#[test]
fn readers_learn_that_the_owner_has_died() {
    if let Some(path) = std::env::var_os("OUTLAST_LIVE_CHILD") {
        let path = PathBuf::from(path);
        let pool = create(&path);
        let map = pool.map::<u64, u64>("numbers").unwrap();
        for n in 0..200_000 {
            map.put(&n, &n).unwrap();
        }
        let _serving = serve(&pool, &path).unwrap();
        println!("\nready");
        std::thread::sleep(Duration::from_secs(60));
    }
    let (_dir, path) = dir();
    for _ in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "readers_learn_that_the_owner_has_died", "--nocapture"])
            .env("OUTLAST_LIVE_CHILD", &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"));
        let client = Client::of(&path);
        assert_eq!(client.map("numbers").unwrap().len().unwrap(), 200_000);
        let mut records = client.map("numbers").unwrap().iter().unwrap();
        assert!(records.next().unwrap().is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(records.find(Result::is_err).is_some(), "it was cut short");
        assert!(matches!(client.maps(), Err(Error::Locked { .. })), "nobody answers");
    }
    let none = Client::of(path.with_file_name("none"));
    assert!(matches!(none.maps(), Err(Error::NoSuchPool { .. })));
}

#[test]
fn who_may_not_read_the_file_is_refused() {
    let (_dir, path) = dir();
    let pool = create(&path);
    let _serving = serve(&pool, &path).unwrap();
    let client = Client::of(&path);
    assert!(client.maps().is_ok());
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o200)).unwrap();
    let is_root = rustix::process::getuid().is_root();
    match client.maps() {
        Ok(_) => assert!(is_root),
        Err(error) => assert!(format!("{error:?}").contains("may not read"), "{error:?}"),
    }
    if is_root {
        // As somebody else.
        std::fs::set_permissions(path.parent().unwrap(), PermissionsExt::from_mode(0o755)).unwrap();
        let script = "import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b'\\x01\\x00\\x00\\x00\\x01')
sys.stdout.buffer.write(s.recv(1000))";
        let socket = path.with_file_name("a.pool.live");
        let mut other = Command::new("python3");
        std::os::unix::process::CommandExt::uid(&mut other, 65_534);
        std::os::unix::process::CommandExt::gid(&mut other, 65_534);
        match other.args(["-c", script]).arg(socket).output() {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(text.contains("may not read"), "{text} {output:?}");
            }
            Err(error) => println!("skipped: {error}"),
        }
    }
}

/// A long path, a link, and a socket that a dead process has left.
#[test]
fn the_socket_is_found_beside_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("d".repeat(120)).join("e".repeat(120));
    std::fs::create_dir_all(&deep).unwrap();
    let path = deep.join("a.pool");
    let pool = create(&path);
    std::fs::write(deep.join("a.pool.live"), "left").unwrap();
    let serving = serve(&pool, &path).unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(Client::of(&link).is_served());
    let again = serve(&pool, &link).unwrap();
    drop(serving);
    assert!(Client::of(&path).is_served(), "the socket is the later one's");
    drop(again);
    assert!(!deep.join("a.pool.live").exists());
}
