//! The states that the files of a pool can be found in, and what all tools say about them. The
//! tools agree with each other, and with what opening the pool then finds. None of them calls a
//! sound pool damaged.

use crate::common::{Place, Run, command, finished, told};
use outlast::{Error, JournalOptions, Map, MapOptions, Pool, PoolOptions, Scheme};
use outlast_offline::walk;
use serde_json::json;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The directory for a child process of one of the tests.
const CHILD: &str = "OUTLAST_TEST_CHILD";
/// A boot that is not this one.
const OTHER_BOOT: u64 = 77;

/// How a life of a pool ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Killed,
    Closed,
    /// Synced, and killed then.
    Synced,
    /// The process goes on until its input ends.
    Open,
}

/// What a child process does with a pool.
#[derive(Debug, Clone, Copy)]
struct Life {
    scheme: Scheme,
    journal: bool,
    /// Whether closing keeps the working file.
    keep: bool,
    /// The number of checkpoints that the base sees at least.
    checkpoints: u64,
    /// The number of records that are inserted at least.
    records: u64,
    boot: Option<u64>,
    end: End,
}

impl Life {
    fn new(scheme: Scheme, journal: bool, end: End) -> Life {
        Life { scheme, journal, keep: false, checkpoints: 0, records: 300, boot: None, end }
    }

    fn parse(text: &str) -> Life {
        let words: Vec<u64> = text.split(' ').map(|word| word.parse().unwrap()).collect();
        let [scheme, journal, keep, checkpoints, records, boot, end] = words[..] else {
            panic!("{text}")
        };
        Life {
            scheme: Scheme::ALL[scheme as usize],
            journal: journal == 1,
            keep: keep == 1,
            checkpoints,
            records,
            boot: (boot > 0).then_some(boot),
            end: [End::Killed, End::Closed, End::Synced, End::Open][end as usize],
        }
    }

    fn text(&self) -> String {
        let scheme = Scheme::ALL.iter().position(|&scheme| scheme == self.scheme).unwrap();
        let (journal, keep) = (u8::from(self.journal), u8::from(self.keep));
        let Life { checkpoints, records, boot, end, .. } = *self;
        format!(
            "{scheme} {journal} {keep} {checkpoints} {records} {} {}",
            boot.unwrap_or(0),
            end as u8
        )
    }

    /// Starts this life, and waits until it has made its changes. Returns the process and the
    /// number of records that the pool has then.
    fn start(&self, place: &Place) -> (Child, u64) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "states::child", "--nocapture", "--test-threads", "1"])
            .env(CHILD, place.dir.path())
            .env("OUTLAST_TEST_LIFE", self.text())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut said = said.filter_map(|line| Some(line.strip_prefix("records ")?.to_owned()));
        let records = said.next().expect("a child that works").parse().unwrap();
        (child, records)
    }

    /// Runs this life to its end. Returns the number of records.
    fn run(&self, place: &Place) -> u64 {
        let (mut child, records) = self.start(place);
        let is_killed = matches!(self.end, End::Killed | End::Synced);
        assert_eq!(child.wait().unwrap().success(), !is_killed);
        records
    }
}

fn maps(pool: &Pool, scheme: Scheme) -> (Map<u64, u64>, Map<str, str>) {
    let options = MapOptions::new().scheme(scheme);
    (pool.map_with("numbers", &options).unwrap(), pool.map_with("texts", &options).unwrap())
}

#[test]
fn child() {
    let Some(place) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let life = Life::parse(&std::env::var("OUTLAST_TEST_LIFE").unwrap());
    let mut options = PoolOptions::new().survive(outlast::Failure::ProcessDeath);
    if life.journal {
        let journal = JournalOptions::new().limit(1 << 20).working_directory(&place);
        options = options.journal(journal.keep_working_file(life.keep));
    }
    if let Some(boot) = life.boot {
        options = options.boot_id(boot.into());
    }
    // SAFETY: no one else uses the file.
    let pool = unsafe { options.open_or_create(place.join("test.pool")).unwrap() };
    let (numbers, texts) = maps(&pool, life.scheme);
    let checkpoints = || pool.stats().journal.map_or(u64::MAX, |journal| journal.checkpoints);
    let first = numbers.len().unwrap();
    let mut records = first;
    while records < first + life.records || checkpoints() < life.checkpoints {
        assert!(numbers.insert(&records, &(records * 3)).unwrap());
        assert!(texts.insert(&format!("key {records}"), &format!("value {records}")).unwrap());
        records += 1;
    }
    if life.journal {
        pool.wait_durable().unwrap();
    }
    match life.end {
        End::Closed => pool.clone().close().unwrap(),
        End::Synced => pool.sync().unwrap(),
        End::Killed | End::Open => {}
    }
    println!("\nrecords {records}");
    match life.end {
        // The test framework would write to an output that nobody reads any more.
        End::Closed => std::process::exit(0),
        End::Open => {
            let _ = std::io::stdin().read(&mut [0]);
            pool.close().unwrap();
            std::process::exit(0);
        }
        // SAFETY: the call ends this process.
        End::Killed | End::Synced => unsafe {
            libc::kill(libc::getpid(), libc::SIGKILL);
        },
    }
}

/// Checks that the pool at this path, opened for writing, has these records and no others.
fn assert_holds(path: &Path, scheme: Scheme, records: u64) {
    // SAFETY: no one else uses the file.
    let pool = unsafe { PoolOptions::new().open(path).unwrap() };
    check(&pool, scheme, records);
    pool.close().unwrap();
}

fn check(pool: &Pool, scheme: Scheme, records: u64) {
    pool.verify().unwrap().ensure_sound().unwrap();
    let (numbers, texts) = maps(pool, scheme);
    assert_eq!((numbers.len().unwrap(), texts.len().unwrap()), (records, records));
    for n in 0..records {
        assert_eq!(numbers.get(&n).unwrap(), Some(n * 3));
        assert_eq!(texts.get(&format!("key {n}")).unwrap(), Some(format!("value {n}")));
    }
}

/// The base of such a pool is older than the pool, and damaged where a checkpoint was under way.
#[test]
fn verify_calls_no_killed_journaled_pool_damaged() {
    for round in 0..20 {
        let place = Place::new();
        let scheme = Scheme::ALL[round % Scheme::ALL.len()];
        let (checkpoints, records) = (1 + round as u64 / 8, 500 * round as u64);
        let life = Life { checkpoints, records, ..Life::new(scheme, true, End::Killed) };
        let records = life.run(&place);
        let verified = place.run(["verify"]).expect(0);
        assert!(verified.text().ends_with("sound\n"), "{}", verified.text());
        assert!(matches!(walk(&place.pool()), Err(Error::Unfinished { .. })));
        assert_holds(&place.pool(), scheme, records);
    }
}

/// A state of a pool's files.
#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Closed,
    Synced,
    Killed,
    KilledTwice,
    /// Changed under another boot, and not closed.
    Torn,
    JournalClosed,
    /// Closed, and its working file kept.
    JournalKept,
    /// Killed before the first checkpoint of its life, with its working file.
    JournalKilled,
    /// Killed after the first checkpoint, with its working file.
    Checkpointed,
    /// As the two above, but the working file is gone.
    JournalKilledAlone,
    CheckpointedAlone,
    /// As the two above, and the machine was restarted.
    JournalRestarted,
    CheckpointedRestarted,
    /// Rebuilt from its journal after a restart, and killed again.
    Rebuilt,
    /// A compaction was killed.
    HalfCompacted,
    /// A snapshot was killed that was to replace the pool.
    HalfSnapshotted,
    /// A backup of a pool that was killed.
    Backup,
}

const STATES: [State; 17] = [
    State::Closed,
    State::Synced,
    State::Killed,
    State::KilledTwice,
    State::Torn,
    State::JournalClosed,
    State::JournalKept,
    State::JournalKilled,
    State::Checkpointed,
    State::JournalKilledAlone,
    State::CheckpointedAlone,
    State::JournalRestarted,
    State::CheckpointedRestarted,
    State::Rebuilt,
    State::HalfCompacted,
    State::HalfSnapshotted,
    State::Backup,
];

/// What the tools have to say about a state.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Verdict {
    /// Every tool works, without asking anything of the user.
    Sound,
    /// Opening is refused until the user accepts the pool; everything is there then.
    Refused,
    /// As `Refused`, but base and journal together hold everything: backups work.
    Lonely,
}

impl State {
    fn verdict(self) -> Verdict {
        match self {
            State::Torn => Verdict::Refused,
            State::JournalKilledAlone | State::CheckpointedAlone => Verdict::Lonely,
            _ => Verdict::Sound,
        }
    }

    /// Makes the state. Returns the number of records in each map.
    fn make(self, place: &Place, scheme: Scheme) -> u64 {
        let plain = |end| Life::new(scheme, false, end);
        let journaled = |end| Life::new(scheme, true, end);
        let checkpointed = Life { checkpoints: 1, ..journaled(End::Killed) };
        let boot = Some(OTHER_BOOT);
        match self {
            State::Closed => plain(End::Closed).run(place),
            State::Synced => plain(End::Synced).run(place),
            State::Killed => plain(End::Killed).run(place),
            State::KilledTwice => {
                plain(End::Killed).run(place);
                plain(End::Killed).run(place)
            }
            State::Torn => Life { boot, ..plain(End::Killed) }.run(place),
            State::JournalClosed => journaled(End::Closed).run(place),
            State::JournalKept => Life { keep: true, ..journaled(End::Closed) }.run(place),
            State::JournalKilled => journaled(End::Killed).run(place),
            State::Checkpointed => checkpointed.run(place),
            State::JournalKilledAlone => alone(journaled(End::Killed).run(place), place),
            State::CheckpointedAlone => alone(checkpointed.run(place), place),
            State::JournalRestarted => Life { boot, ..journaled(End::Killed) }.run(place),
            State::CheckpointedRestarted => alone(Life { boot, ..checkpointed }.run(place), place),
            State::Rebuilt => {
                Life { boot, ..checkpointed }.run(place);
                journaled(End::Killed).run(place)
            }
            State::HalfCompacted => {
                let records = plain(End::Closed).run(place);
                let unfinished = place.path("test.pool.compacting");
                // SAFETY: no one else uses the file.
                let pool = unsafe {
                    PoolOptions::new()
                        .survive(outlast::Failure::ProcessDeath)
                        .create(&unfinished)
                        .unwrap()
                };
                maps(&pool, scheme).0.insert(&1, &1).unwrap();
                let half = std::fs::read(&unfinished).unwrap();
                drop(pool);
                std::fs::write(&unfinished, half).unwrap();
                records
            }
            State::HalfSnapshotted => {
                let records = plain(End::Killed).run(place);
                place.file(".outlast-0000000000000001.snapshot", [1; 10_000]);
                records
            }
            State::Backup => {
                let records = checkpointed.run(place);
                let copy = place.path("copy.pool");
                place.run(["backup", copy.to_str().unwrap()]).expect(0);
                let _ = std::fs::remove_dir_all(place.path("test.pool.journal"));
                alone(records, place);
                std::fs::rename(copy, place.pool()).unwrap();
                records
            }
        }
    }
}

/// Removes the working file.
fn alone(records: u64, place: &Place) -> u64 {
    for entry in std::fs::read_dir(place.dir.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "working") {
            std::fs::remove_file(path).unwrap();
        }
    }
    records
}

/// Runs the command on paths instead of the pool.
fn on_paths(args: &[&str], paths: &[&Path]) -> Run {
    finished(command().args(args).args(paths).output().unwrap())
}

/// Runs all tools that leave the pool as it is.
fn read(place: &Place, scheme: Scheme, records: u64, verdict: Verdict) {
    let pool = place.pool();
    let sound = verdict == Verdict::Sound;
    let code = if sound { 0 } else { 3 };
    let all = json!(2 * records);

    // What needs no lock and asks nothing.
    let facts = PoolOptions::new().facts(&pool).unwrap();
    if let Some(maps) = &facts.maps {
        let names: Vec<_> = maps.iter().map(|map| map.as_ref().unwrap().name.clone()).collect();
        assert_eq!(names, ["numbers", "texts"]);
    }
    // The walk finds nothing wrong, or says that the file is not the whole pool.
    match walk(&pool) {
        Ok(report) => {
            assert_eq!(report.problems, []);
            // The base of a pool that is only accepted is as old as it is.
            assert_eq!(report.records, 2 * records);
        }
        Err(error) => {
            assert!(matches!(error, Error::Unfinished { .. }), "{error}");
            assert!(facts.journal.is_some_and(|journal| !journal.closed));
        }
    }

    // Copies first: they must not depend on what other tools have completed.
    let [backup, snapshot, compacted, salvaged] =
        ["backup", "snapshot", "compacted", "salvaged"].map(|name| place.path(name));
    let backed_up = place.run(["backup".as_ref(), backup.as_os_str()]);
    if verdict == Verdict::Refused {
        assert_advice(&backed_up.expect(3));
    } else {
        backed_up.expect(0);
        assert_holds(&backup, scheme, records);
    }
    let snapped = place.run(["snapshot".as_ref(), snapshot.as_os_str()]).expect(code);
    let packed = on_paths(&["compact"], &[&pool, &compacted]).expect(code);
    let saved = on_paths(&["--json", "salvage"], &[&pool, &salvaged]).expect(code);
    let told_of = told(&saved, "salvage");
    assert_eq!((&told_of["records"], &told_of["complete"]), (&all, &json!(sound)));
    assert_holds(&salvaged, scheme, records);
    for (run, copy) in [(snapped, &snapshot), (packed, &compacted)] {
        match sound {
            true => assert_holds(copy, scheme, records),
            false => assert_advice(&run),
        }
    }

    // SAFETY: no one else uses the file.
    let opened = unsafe { PoolOptions::new().open_read_only(&pool) };
    match opened {
        Ok(pool) if verdict != Verdict::Refused => check(&pool, scheme, records),
        // It needs its journal, and a read-only opening writes nothing.
        Err(Error::Unfinished { .. }) if verdict == Verdict::Lonely => {}
        Err(Error::PossiblyTorn { .. }) if verdict == Verdict::Refused => {}
        other => panic!("{other:?}"),
    }
    for (args, answer) in [
        (&["get", "--map", "texts", "key 7"][..], "value 7\n"),
        (&["count", "--map", "numbers"], &format!("{records}\n")),
        (&["stat"], ""),
        (&["maps"], ""),
        (&["verify"], ""),
    ] {
        let run = place.run(args).expect(code);
        match sound {
            true => assert!(answer.is_empty() || run.text() == answer, "{args:?}"),
            false => assert_advice(&run),
        }
        if args == ["verify"] && sound {
            assert!(run.text().ends_with("sound\n"), "{}", run.text());
        }
    }
}

/// A refusal of a sound pool names the way back to all of it, and speaks of no damage.
fn assert_advice(run: &Run) {
    assert!(run.err.contains("outlast accept"), "{}", run.err);
    assert!(!run.err.contains("damaged"), "{}", run.err);
}

/// What puts the pool back into use.
const ENDS: [&str; 3] = ["open", "accept", "compact"];

/// Puts the pool back into use. Then everything is there.
fn finish(place: &Place, scheme: Scheme, records: u64, verdict: Verdict, end: &str) {
    let pool = place.pool();
    match end {
        "accept" => {
            let accepted = place.run(["--json", "accept"]).expect(0);
            assert_eq!(told(&accepted, "accept")["was_refused"], json!(verdict != Verdict::Sound));
        }
        "compact" => {
            let run = on_paths(&["compact"], &[&pool]);
            if verdict != Verdict::Sound {
                assert_advice(&run.expect(3));
                place.run(["accept"]).expect(0);
                on_paths(&["compact"], &[&pool]).expect(0);
            } else {
                run.expect(0);
            }
        }
        _ => {
            let put = place.run(["put", "--map", "texts", "key 0", "value 0"]);
            if verdict != Verdict::Sound {
                assert_advice(&put.expect(3));
                place.run(["accept"]).expect(0);
            } else {
                put.expect(0);
            }
        }
    }
    assert_holds(&pool, scheme, records);
    let verified = place.run(["verify"]).expect(0);
    assert!(verified.text().ends_with("sound\n"), "{}", verified.text());
    assert!(walk(&pool).unwrap().clean);
}

/// All states times all tools. (A tool that restores a backup over a pool will be one more of
/// [`ENDS`].)
fn all_tools_on_all_states(scheme: Scheme) {
    for state in STATES {
        for end in ENDS {
            let place = Place::new();
            let records = state.make(&place, scheme);
            println!("{scheme} {state:?} {end}: {records} records");
            // `finish` also has to work where nothing was read before.
            if end == "open" {
                read(&place, scheme, records, state.verdict());
            }
            finish(&place, scheme, records, state.verdict(), end);
        }
    }
}

macro_rules! for_schemes {
    ($($name:ident $scheme:ident;)*) => {
        $(#[test]
        fn $name() {
            all_tools_on_all_states(Scheme::$scheme);
        })*

        #[test]
        fn all_schemes_are_tested() {
            assert_eq!(Scheme::ALL.len(), [$(stringify!($name)),*].len());
        }
    };
}

for_schemes! {
    tools_agree_on_dash_eh DashEh;
    tools_agree_on_clevel Clevel;
    tools_agree_on_phast Phast;
    tools_agree_on_group Group;
    tools_agree_on_dash_lh DashLh;
    tools_agree_on_ea_pht EaPht;
    tools_agree_on_ea_pht_h EaPhtH;
    tools_agree_on_ea_pht_hpr EaPhtHpr;
    tools_agree_on_line Line;
}

/// While a process has the pool open, every tool says that, or works on what is there.
#[test]
fn a_pool_in_use_is_called_nothing_else() {
    for (n, journal) in (0..).zip([false, true, false, true]) {
        let place = Place::new();
        let scheme = Scheme::ALL[n];
        let (mut child, records) = Life::new(scheme, journal, End::Open).start(&place);
        let [pool, new] = [place.pool(), place.path("new.pool")];
        assert!(matches!(walk(&pool), Err(Error::Locked { .. })));
        // SAFETY: no one else uses the file, except through the pool.
        let opened = unsafe { PoolOptions::new().open_read_only(&pool) };
        assert!(matches!(opened, Err(Error::Locked { .. })), "{opened:?}");
        let in_use = |run: Run| {
            let run = run.expect(1);
            assert!(run.err.contains("in use"), "{}", run.err);
        };
        for args in [
            &["get", "--map", "texts", "key 1"][..],
            &["count", "--map", "texts"],
            &["maps"],
            &["verify"],
            &["accept"],
            &["put", "--map", "texts", "a", "b"],
            &["snapshot", new.to_str().unwrap()],
        ] {
            in_use(place.run(args));
        }
        in_use(on_paths(&["salvage"], &[&pool, &new]));
        in_use(on_paths(&["compact"], &[&pool, &new]));
        in_use(on_paths(&["compact"], &[&pool]));
        let stat = told(&place.run(["stat", "--json"]).expect(0), "pool");
        assert!(!stat.is_null());
        assert_eq!(PoolOptions::new().facts(&pool).unwrap().journal.is_some(), journal);
        let backup = place.run(["backup".as_ref(), new.as_os_str()]);
        match journal {
            false => in_use(backup),
            true => {
                backup.expect(0);
                assert_holds(&new, scheme, records);
            }
        }
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        assert_holds(&pool, scheme, records);
    }
}

/// The base of an earlier life lies beside the journal of a later one, as if an old copy was put
/// back. Every tool refuses it, as opening does, and the later life loses nothing.
#[test]
fn every_tool_refuses_an_older_base_beside_a_later_journal() {
    for scheme in [Scheme::DashEh, Scheme::Phast] {
        let place = Place::new();
        let older = Life::new(scheme, true, End::Closed).run(&place);
        let base = std::fs::read(place.pool()).unwrap();
        let records = Life::new(scheme, true, End::Killed).run(&place);
        assert!(records > older);
        let newer = std::fs::read(place.pool()).unwrap();
        let pool = place.pool();
        for args in [
            &["get", "--map", "texts", "key 1"][..],
            &["stat"],
            &["verify"],
            &["accept"],
            &["put", "--map", "texts", "key 0", "value 0"],
            &["load", "--map", "texts", "/dev/null"],
            &["backup", place.path("backup").to_str().unwrap()],
            &["snapshot", place.path("snapshot").to_str().unwrap()],
            &["compact"],
        ] {
            std::fs::write(&pool, &base).unwrap();
            let run = match args {
                ["compact"] => on_paths(args, &[&pool]),
                _ => place.run(args),
            };
            let run = run.expect(1);
            assert!(run.err.contains("later copy of this one"), "{args:?}: {}", run.err);
            std::fs::write(&pool, &newer).unwrap();
            // SAFETY: no one else uses the file.
            let opened = unsafe { PoolOptions::new().open_read_only(&pool) }
                .unwrap_or_else(|error| panic!("{scheme}, after {args:?}: {error}"));
            assert_eq!(maps(&opened, scheme).1.len().unwrap(), records, "{args:?}");
        }
        assert_holds(&pool, scheme, records);
    }
}
