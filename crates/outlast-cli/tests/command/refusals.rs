//! What the command says when it cannot go on: full disks, missing directories, other processes.

use crate::common::{Place, command, finished};
use outlast::PoolOptions;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::process::Stdio;

/// Runs `test` in a directory on an in-memory file system of `size` for up to 200 files. The file
/// system is visible only to the test's thread and the processes that it starts. Skips the test if it
/// cannot be mounted.
fn on_small_disk(size: &str, test: impl FnOnce(&Place) + Send) {
    let place = Place::new();
    let target = CString::new(place.dir.path().to_str().unwrap()).unwrap();
    let options = CString::new(format!("size={size},nr_inodes=200")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: all pointers are to C strings or null. The mount namespace belongs to this thread
            // and disappears with it, mounts included.
            let mounted = unsafe {
                let (none, root, tmpfs) = (std::ptr::null(), c"/".as_ptr(), c"tmpfs".as_ptr());
                let private = libc::MS_REC | libc::MS_PRIVATE;
                libc::unshare(libc::CLONE_NEWNS) == 0
                    && libc::mount(none, root, none, private, none.cast()) == 0
                    && libc::mount(tmpfs, target.as_ptr(), tmpfs, 0, options.as_ptr().cast()) == 0
            };
            match mounted {
                true => test(&place),
                false => println!("skipped: {}", std::io::Error::last_os_error()),
            }
        });
    });
}

#[test]
fn a_pool_is_compacted_where_there_is_room_for_the_copy() {
    on_small_disk("8m", |place| {
        place.run(["put", "k", "v"]).expect(1);
        // SAFETY: the file belongs to this test.
        let pool = unsafe {
            PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(place.pool()).unwrap()
        };
        assert!(pool.map::<u64, u64>("m").unwrap().insert(&1, &2).unwrap());
        pool.close().unwrap();
        let compact = || {
            let mut compact = command();
            compact.arg("compact").arg(place.pool());
            finished(compact.output().unwrap())
        };
        compact().expect(0);
        place.file("filler", vec![1; 5 << 20]);
        let refused = compact().expect(1).err;
        assert!(refused.contains("as NEW") && !refused.contains("--pool"), "{refused}");
        place.run(["verify"]).expect(0);
    });
}

#[test]
fn a_full_disk_of_a_journal_is_told_with_what_is_stored_and_what_to_do() {
    on_small_disk("120m", |place| {
        let warned = place.run(["put", "k", "v", "--journal"]);
        assert_eq!(warned.code, 0);
        // The disk has no room for names, except for that of the journal's first segment.
        let name = |n: u32| place.path(format!("filler-{n}"));
        let fillers = (0..).find(|&n| File::create(name(n)).is_err()).unwrap();
        std::fs::remove_file(name(0)).unwrap();
        let line = |n| format!("{n}\t{}\n", "value ".repeat(20));
        let lines: String = (0..200_000).map(line).collect();
        let full = place.run_with(["load"], lines.as_bytes()).expect(1).err;
        for part in ["records loaded, then", "in the pool", "a power loss", "Make room"] {
            assert!(full.contains(part), "{full}");
        }
        assert!(place.run(["put", "later", "w"]).expect(1).err.contains("Make room"));
        (1..fillers).for_each(|n| std::fs::remove_file(name(n)).unwrap());
        place.run(["put", "last", "x"]).expect(0);
        assert_eq!(place.run(["get", "later"]).expect(0).text(), "w\n");
        let loaded: String = full.chars().skip_while(|c| !c.is_ascii_digit()).collect();
        let loaded: u64 = loaded.split(' ').next().unwrap().replace(',', "").parse().unwrap();
        assert_eq!(place.run(["count"]).expect(0).text(), format!("{}\n", loaded + 3));
    });
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let place = Place::new();
    place.run(["put", "k", "v"]).expect(0);
    let to = place.path("none/copy.pool");
    for args in [&["snapshot"][..], &["backup"]] {
        let run = place.run(args.iter().map(OsStr::new).chain([to.as_os_str()]));
        assert!(run.expect(1).err.contains("there is no directory"));
    }
    for name in ["compact", "salvage"] {
        let run = command().arg(name).arg(place.pool()).arg(&to).output().unwrap();
        assert!(finished(run).expect(1).err.contains("there is no directory"));
    }
}

#[test]
fn first_puts_at_the_same_time_make_one_pool() {
    for journal in [None, Some("--journal")] {
        let place = Place::new();
        let start = |n: usize| {
            let mut put = command();
            put.arg("--pool").arg(place.pool()).args(["put", &format!("k{n}"), "v"]).args(journal);
            put.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let mut puts: Vec<_> = (0..16).map(start).collect();
        let mut stored = 0;
        for put in puts.drain(..) {
            let run = finished(put.wait_with_output().unwrap());
            match run.code {
                0 => stored += 1,
                _ => assert!(run.expect(1).err.contains("in use")),
            }
        }
        assert!(stored > 0);
        assert_eq!(place.run(["count"]).expect(0).text(), format!("{stored}\n"));
        place.run(["verify"]).expect(0);
    }
}

#[test]
fn links_lead_to_pools_and_to_their_journals() {
    let place = Place::new();
    let target = place.path("target.pool");
    std::os::unix::fs::symlink("target.pool", place.pool()).unwrap();
    let refused = place.run(["put", "k", "v"]).expect(1).err;
    assert!(refused.contains("is a link to target.pool"), "{refused}");
    // Kill a process that has opened the file under its own name, not through the link.
    let of_target = |args: &[&str]| {
        let mut command = command();
        command.arg("--pool").arg(&target).args(args).stdin(Stdio::piped()).stdout(Stdio::null());
        command.spawn().unwrap()
    };
    assert!(of_target(&["put", "k", "v", "--journal"]).wait().unwrap().success());
    let mut load = of_target(&["load"]);
    let is_open = || {
        let facts = PoolOptions::new().facts(&target).unwrap();
        facts.journal.is_some_and(|journal| !journal.closed && journal.segments > 0)
    };
    while !is_open() {
        std::thread::yield_now();
    }
    load.kill().unwrap();
    load.wait().unwrap();
    assert_eq!(place.run(["get", "k"]).expect(0).text(), "v\n");
    place.run(["put", "k", "w"]).expect(0);
    assert!(!place.path("test.pool.journal").exists());
    // If a program opens the pool through the link, the pool's journal is beside the link. SAFETY:
    // the file belongs to this test.
    let pool = unsafe { PoolOptions::new().open(place.pool()).unwrap() };
    pool.map::<str, str>("main").unwrap().put("k", "x").unwrap();
    pool.wait_durable().unwrap();
    assert!(
        place.run(["stat", "--json"]).expect(0).objects()[0]["journal_bytes"].as_u64() > Some(0)
    );
    pool.close().unwrap();
    assert_eq!(place.run(["get", "k"]).expect(0).text(), "x\n");
}

#[test]
fn another_type_than_the_maps_is_told_as_such() {
    let place = Place::new();
    place.run(["put", "k", "v"]).expect(0);
    let load = ["load", "--value-type", "u64"];
    let refused = place.run_with(load, b"k\tword\n").expect(1).err;
    assert!(refused.contains("value schema str, not u64"), "{refused}");
    let refused = place.run(["put", "k", "word", "--key-type", "u64"]).expect(1).err;
    assert!(refused.contains("key schema str, not u64"), "{refused}");
}

#[test]
fn an_empty_file_is_told_from_a_damaged_pool() {
    let place = Place::new();
    place.file("test.pool", "");
    for args in [&["put", "k", "v"][..], &["get", "k"], &["stat"], &["verify"]] {
        let refused = place.run(args).expect(3).err;
        assert!(refused.contains("empty") && refused.contains("remove it"), "{refused}");
    }
}

#[test]
fn a_directory_is_no_pool_for_any_command() {
    let place = Place::new();
    std::fs::create_dir(place.pool()).unwrap();
    let copy = place.path("copy.pool");
    let backup = ["backup", copy.to_str().unwrap()];
    for args in [&["put", "k", "v"][..], &["del", "k"], &["get", "k"], &["verify"], &backup] {
        let refused = place.run(args).expect(3).err;
        assert!(refused.contains("not a pool: a directory"), "{args:?}: {refused}");
    }
    let compact = command().arg("compact").arg(place.pool()).output().unwrap();
    assert!(finished(compact).expect(3).err.contains("not a pool: a directory"));
}

#[test]
fn a_limit_on_file_sizes_is_named_if_it_excludes_a_journal() {
    let place = Place::new();
    let put = |args: &str| {
        let script = format!("ulimit -f 1000000 && exec \"$0\" --pool \"$1\" put k v {args}");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_outlast")]).arg(place.pool());
        finished(command.output().unwrap())
    };
    let refused = put("--journal").expect(1).err;
    assert!(refused.contains(".working") && refused.contains("ulimit -f"), "{refused}");
    assert!(!refused.contains("disk full") && !place.pool().exists(), "{refused}");
    put("--survive process-death").expect(0);
}
