//! Tests of what makes `outlast` convenient and safe to use: listing, counting and dropping maps,
//! key prefixes, plain text as input and output, help and shell completions, escaping on terminals,
//! and refusals that prevent mistakes.

use crate::common::{Place, command, finished};
use serde_json::json;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::process::{Command, Stdio};

#[test]
fn without_a_name_no_pool_is_made() {
    let place = Place::new();
    let run = |args: &[&str], named: Option<&OsStr>| {
        let mut command = command();
        command.args(args).env("TMPDIR", place.dir.path()).env_remove("OUTLAST_POOL");
        finished(command.envs(named.map(|name| ("OUTLAST_POOL", name))).output().unwrap())
    };
    for args in [&["put", "k", "v"][..], &["get", "k"], &["stat"], &["scan"]] {
        for named in [None, Some(OsStr::new(""))] {
            let failed = run(args, named).expect(2);
            assert!(failed.err.contains("--pool") && failed.err.contains("OUTLAST_POOL"));
        }
    }
    assert_eq!(std::fs::read_dir(place.dir.path()).unwrap().count(), 0);
    let pool = place.pool();
    run(&["put", "k", "v"], Some(pool.as_os_str())).expect(0);
    assert_eq!(place.run(["get", "k"]).expect(0).text(), "v\n");
    // The argument takes precedence.
    let other = place.path("other.pool");
    let args = ["--pool", other.to_str().unwrap(), "put", "k", "other"];
    run(&args, Some(pool.as_os_str())).expect(0);
    assert_eq!(run(&["get", "k"], Some(pool.as_os_str())).expect(0).text(), "v\n");
    assert_eq!(run(&["get", "k"], Some(other.as_os_str())).expect(0).text(), "other\n");
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn maps_are_listed_counted_and_dropped() {
    let place = Place::new();
    let lines: String = (0..1234).map(|n| format!("{n}\t{n}\n")).collect();
    let types = ["--key-type", "u32", "--value-type", "u64"];
    place.run_with(["load", "--map", "many"].iter().chain(&types), lines.as_bytes()).expect(0);
    place.run(["put", "--map", "few", "--scheme", "phast", "a", "b"]).expect(0);
    let listed = place.run(["maps"]).expect(0);
    assert_eq!(listed.text(), "many\tdash-eh\tu32\tu64\nfew\tphast\tstr\tstr\n");
    let objects = place.run(["maps", "--json"]).expect(0).objects();
    assert_eq!((&objects[1]["name"], &objects[1]["scheme"]), (&json!("few"), &json!("phast")));
    assert_eq!(place.run(["count", "--map", "many"]).expect(0).text(), "1234\n");
    let count = place.run(["count", "--map", "few", "--json"]).expect(0).objects();
    assert_eq!(count, [json!({"event": "count", "name": "few", "records": 1})]);
    assert!(place.run(["count"]).expect(2).err.contains("many"), "which of them?");

    assert!(place.run(["drop", "--map", "none"]).expect(1).err.contains("few"));
    place.run(["drop"]).expect(2);
    assert_eq!(place.run(["drop", "--map", "many"]).expect(0).text(), "map many dropped\n");
    assert_eq!(place.run(["maps"]).expect(0).text(), "few\tphast\tstr\tstr\n");
    place.run(["put", "--map", "a\tb\nc\\", "k", "v"]).expect(0);
    let odd = "few\tphast\tstr\tstr\na\\tb\\nc\\\\\tdash-eh\tstr\tstr\n";
    assert_eq!(sorted(place.run(["maps"]).expect(0).text()), sorted(odd));
    place.run(["verify"]).expect(0);
}

#[test]
fn records_are_chosen_by_what_their_keys_begin_with() {
    let place = Place::new();
    let lines = "ab\t1\nabc\t2\nb\t3\na\t4\n\u{10ffff}\t5\n";
    for scheme in ["dash-eh", "phast"] {
        let map = ["--map", scheme];
        let load = ["load", "--scheme", scheme];
        place.run_with(load.iter().chain(&map), lines.as_bytes()).expect(0);
        let keys = |args: &[&str]| {
            let run = place.run(["scan", "--json"].iter().chain(&map).chain(args)).expect(0);
            let mut keys: Vec<_> =
                run.objects().iter().map(|r| r["key"].as_str().unwrap().to_owned()).collect();
            keys.sort_unstable();
            keys
        };
        assert_eq!(keys(&["--prefix", "ab"]), ["ab", "abc"]);
        assert_eq!(keys(&["--prefix", "x"]).len(), 0);
        assert_eq!(keys(&["--prefix", "\u{10ffff}"]), ["\u{10ffff}"]);
        assert_eq!(keys(&["--prefix", ""]).len(), 5);
        assert_eq!(keys(&["--prefix", "a", "--limit", "2"]).len(), 2);
        let count = place.run(["count", "--prefix", "a"].iter().chain(&map)).expect(0);
        assert_eq!(count.text(), "3\n");
        place.run(["scan", "--prefix", "a", "--from", "a"].iter().chain(&map)).expect(2);
    }
    let reversed = place.run(["scan", "--map", "phast", "--prefix", "a", "--reverse"]).expect(0);
    assert_eq!(reversed.text(), "abc\t2\nab\t1\na\t4\n");
    place.run(["put", "--map", "numbers", "--key-type", "u64", "1", "1"]).expect(0);
    assert!(place.run(["scan", "--map", "numbers", "--prefix", "1"]).expect(2).err.contains("u64"));
}

#[test]
fn raw_lines_are_taken_as_they_are() {
    let place = Place::new();
    let lines = b"C:\\temp\\new\tD:\\x\nkey\ta\tb\\t\n\\q\t\n";
    place.run_with(["load"], lines).expect(1);
    assert!(!place.pool().exists());
    place.run_with(["load", "--raw"], lines).expect(0);
    assert_eq!(place.run(["get", "C:\\temp\\new"]).expect(0).text(), "D:\\x\n");
    assert_eq!(place.run(["get", "key"]).expect(0).text(), "a\tb\\t\n");
    assert_eq!(place.run(["get", "\\q"]).expect(0).text(), "\n");
    assert!(place.run_with(["load", "--raw"], b"no tab\n").expect(1).err.contains("line 1"));
    place.run_with(["load", "--raw", "--format", "ndjson"], b"{}\n").expect(2);
}

#[test]
fn a_byte_order_mark_and_carriage_returns_at_line_ends_are_no_part_of_records() {
    let place = Place::new();
    place.run_with(["load"], b"\xef\xbb\xbfkey\tvalue\r\n\xef\xbb\xbfkey\tother\ra\r\n").expect(0);
    assert_eq!(place.run(["get", "key"]).expect(0).text(), "value\n");
    assert_eq!(place.run(["get", "\u{feff}key"]).expect(0).text(), "other\ra\n");
    place.run_with(["load", "--raw", "--map", "raw"], b"\xef\xbb\xbfkey\tvalue\r\n").expect(0);
    assert_eq!(place.run(["get", "--map", "raw", "key"]).expect(0).text(), "value\n");
    let object = b"\xef\xbb\xbf{\"key\": \"k\", \"value\": \"v\"}\r\n";
    place.run_with(["load", "--format", "ndjson", "--map", "json"], object).expect(0);
    assert_eq!(place.run(["get", "--map", "json", "k"]).expect(0).text(), "v\n");
    // `load` reads back what `scan` prints, including the byte order mark in a key and carriage
    // returns.
    place.run(["put", "--map", "odd", "\u{feff}k", "v\r"]).expect(0);
    let printed = place.run(["scan", "--map", "odd"]).expect(0).out;
    place.run_with(["load", "--map", "again"], &printed).expect(0);
    assert_eq!(place.run(["get", "--map", "again", "\u{feff}k"]).expect(0).text(), "v\r\n");
}

#[test]
fn json_that_is_no_string_or_number_is_refused_with_a_way_out() {
    let place = Place::new();
    for (value, what) in
        [("{\"a\": 1}", "object"), ("[1]", "array"), ("true", "boolean"), ("null", "null")]
    {
        let line = format!("{{\"key\": \"k\", \"value\": {value}}}\n");
        let failed = place.run_with(["load", "--format", "ndjson"], line.as_bytes()).expect(1);
        assert!(failed.err.contains(what) && failed.err.contains("as a string"), "{}", failed.err);
        assert!(!place.pool().exists());
    }
}

#[test]
fn a_pool_in_memory_is_not_said_to_survive_a_power_loss() {
    const MEMORY: &str = "/dev/shm";
    if !std::fs::File::open(MEMORY)
        .is_ok_and(|dir| outlast::internals::pmem::Mapping::is_tmpfs(&dir))
    {
        println!("skipped: {MEMORY} is not in memory");
        return;
    }
    let dirs =
        [(tempfile::tempdir_in(MEMORY).unwrap(), false), (tempfile::tempdir().unwrap(), true)];
    for (dir, survives) in dirs {
        if survives
            && outlast::internals::pmem::Mapping::is_tmpfs(
                &std::fs::File::open(dir.path()).unwrap(),
            )
        {
            continue;
        }
        let place = Place { dir };
        let warned = place.run(["put", "k", "v", "--journal"]).expect(0).err;
        assert_eq!(warned.contains("does not survive a power loss"), !survives, "{warned}");
        let warned = place.run_with(["load", "--journal"], b"k\tv\n").expect(0).err;
        assert_eq!(warned.contains("does not survive a power loss"), !survives, "{warned}");
        assert_eq!(place.run(["put", "k", "v"]).expect(0).err, "");
        let stat = || {
            let told = place.run(["stat", "--json"]).expect(0).objects()[0].clone();
            assert_eq!(told["survives_power_loss"], false);
            assert_eq!(told["confirmed_survives_power_loss"], survives);
            let text = place.run(["stat"]).expect(0).text().to_owned();
            assert_eq!(text.contains("no power loss"), !survives, "{text}");
            assert_eq!(text.contains("power loss, except"), survives, "{text}");
        };
        stat();
        // SAFETY: the file belongs to this test.
        let pool = unsafe { outlast::PoolOptions::new().open(place.pool()).unwrap() };
        stat();
        pool.close().unwrap();
        // A copy has no journal.
        let copy = place.path("copy.pool");
        place.run([OsStr::new("snapshot"), copy.as_os_str()]).expect(0);
        std::fs::rename(copy, place.pool()).unwrap();
        let text = place.run(["stat"]).expect(0).text().to_owned();
        assert!(text.contains("page-cache") && !text.contains("except"), "{text}");
    }
}

#[test]
fn the_help_lists_what_a_command_takes() {
    let help = |name: &str| finished(command().args([name, "--help"]).output().unwrap()).expect(0);
    for name in ["put", "load"] {
        let help = help(name);
        let types = help.text().split_once("--key-type").unwrap().1;
        let types = types.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(types.contains("u8 to u128, i8 to i128") && types.contains("(u64,str)"), "{types}");
    }
    for name in ["put", "load", "compact", "salvage"] {
        assert!(help(name).text().contains("--pool"), "{name}");
    }
    assert!(!help("completions").text().contains("--pool"));
}

#[test]
fn shells_get_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let output = command().args(["completions", shell]).output().unwrap();
        let text = finished(output).expect(0).text().to_owned();
        assert!(text.contains("salvage") && text.contains("accept-possibly-torn"), "{shell}");
        assert!(!text.contains("demo-worker"), "{shell}: a command that is not for users");
    }
    let place = Place::new();
    place.run(["completions", "no-shell"]).expect(2);
}

#[test]
fn terminals_get_control_characters_escaped() {
    let place = Place::new();
    place.run(["put", "k", "\u{1b}[31mred\u{7}\ttab"]).expect(0);
    place.run(["put", "--map", "a\u{1b}\nb", "k", "v"]).expect(0);
    // If the output is not a terminal, the bytes are printed as they are.
    assert_eq!(place.run(["get", "--map", "main", "k"]).expect(0).out, b"\x1b[31mred\x07\ttab\n");
    let on_terminal = |args: &[&str]| {
        let (mut ours, mut theirs) = (0, 0);
        let null = std::ptr::null_mut();
        // SAFETY: both numbers are valid to write, and the rest may be null.
        let made = unsafe { libc::openpty(&mut ours, &mut theirs, null, null.cast(), null.cast()) };
        assert_eq!(made, 0);
        // SAFETY: both were just opened, and nothing else has them.
        let (mut ours, theirs) = unsafe { (File::from_raw_fd(ours), File::from_raw_fd(theirs)) };
        let mut command = command();
        command.arg("--pool").arg(place.pool()).args(args).stdout(theirs).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        // From here on, only the child has the terminal's other end.
        drop(command);
        let mut text = Vec::new();
        // Reading fails once the child has ended.
        let _ = ours.read_to_end(&mut text);
        assert!(child.wait().unwrap().success(), "{args:?}");
        String::from_utf8(text).unwrap()
    };
    assert_eq!(on_terminal(&["get", "--map", "main", "k"]), "\\x1b[31mred\\x07\ttab\r\n");
    for listing in ["maps", "stat", "verify"] {
        let text = on_terminal(&[listing]);
        assert!(text.contains(r"a\x1b\nb") && !text.contains('\u{1b}'), "{text:?}");
        // If the output is not a terminal, only what would break its lines is escaped.
        let text = place.run([listing]).expect(0);
        assert!(text.text().contains("a\u{1b}\\nb"), "{listing}: {}", text.text());
    }
    for args in [&["get", "k"][..], &["drop", "--map", "none"]] {
        assert!(place.run(args).err.contains("a\u{1b}\\nb"), "{args:?}");
    }
}

#[test]
fn a_snapshot_is_of_a_sound_pool_and_replaces_no_sound_copy_by_another() {
    let place = Place::new();
    let lines: String = (0..3000).map(|n| format!("key {n}\tvalue {n}\n")).collect();
    place.run_with(["load"], lines.as_bytes()).expect(0);
    let copy = place.path("copy.pool");
    let copy = copy.to_str().unwrap();
    let made = place.run(["snapshot", copy, "--json"]).expect(0).objects();
    assert_eq!(made[0]["verified"], true);
    let sound = std::fs::read(copy).unwrap();
    // Change one byte of a record.
    let mut bytes = std::fs::read(place.pool()).unwrap();
    let at = bytes.windows(9).position(|window| window == b"value 777").unwrap();
    bytes[at] ^= 1;
    std::fs::write(place.pool(), &bytes).unwrap();

    let failed = place.run(["snapshot", copy, "--force"]).expect(3);
    assert!(failed.err.contains("salvage") && failed.err.contains("--no-verify"), "{}", failed.err);
    place.run(["snapshot", copy, "--force", "--no-verify"]).expect(2);
    assert_eq!(std::fs::read(copy).unwrap(), sound, "the sound copy is still there");
    let other = place.path("other.pool");
    let other = other.to_str().unwrap();
    place.run(["snapshot", other]).expect(3);
    assert!(!std::fs::exists(other).unwrap());
    let made = place.run(["snapshot", other, "--no-verify", "--json"]).expect(0).objects();
    assert_eq!(made[0]["verified"], false);
    place.run(["snapshot", "-"]).expect(2);
}

#[test]
fn valgrind_has_nothing_to_say() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed");
        return;
    }
    let valgrind = |place: &Place, args: &[&str]| {
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--error-exitcode=99", env!("CARGO_BIN_EXE_outlast"), "--pool"]);
        let run = finished(command.arg(place.pool()).args(args).output().unwrap());
        assert_eq!(run.code, 0, "{args:?}: {}{}", run.text(), run.err);
        // It warns about large mappings.
        let said = |line: &&str| !line.contains("Warning: set address range perms: large range");
        assert_eq!(run.err.lines().find(said), None, "{args:?}");
        run
    };
    // This takes so long that the background thread comes to all of its work.
    let lines: String = (0..10_000).map(|n| format!("k{n}\t{n}\n")).collect();
    for journal in [&[][..], &["--journal"]] {
        let place = Place::new();
        let file = place.file("lines", &lines);
        valgrind(&place, &[&["put"], journal, &["k", "v"]].concat());
        valgrind(&place, &["load", file.to_str().unwrap()]);
        assert_eq!(valgrind(&place, &["get", "k"]).text(), "v\n");
        assert_eq!(valgrind(&place, &["get", "k9999"]).text(), "9999\n");
    }
}
