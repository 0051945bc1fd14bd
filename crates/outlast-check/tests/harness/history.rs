//! Compares the history checker with brute force, and checks histories of real threads.

use outlast::{RecordForm, Scheme};
use outlast_check::history::{Answer, Call, Event, History, brute, check, generate, json, live};
use outlast_check::session::Do;

fn begin(op: u64, thread: usize, call: Call) -> Event {
    Event::Begin { op, thread, map: "m".into(), call }
}
fn value(op: u64, found: Option<u64>) -> Event {
    Event::End { op, answer: Answer::Value(found) }
}
fn changed(op: u64, applied: bool, before: Option<u64>) -> Event {
    let answer = Answer::Changed { applied, present: Some(before.is_some()), before };
    Event::End { op, answer }
}
fn records(op: u64, records: &[(u64, u64)]) -> Event {
    Event::End { op, answer: Answer::Records(records.to_vec()) }
}
fn put(key: u64, value: u64) -> Call {
    Call::Change(key, Do::Put(value))
}
fn is_good(events: &[Event]) -> bool {
    let history = History { events: events.to_vec() };
    history.validate().unwrap();
    check(&history).is_ok()
}

#[test]
fn the_verdict_is_that_of_brute_force() {
    const HISTORIES: u64 = 4_000;
    let (mut wrong, mut crashes, mut pending) = (0, 0, 0);
    for seed in 0..HISTORIES {
        let history = generate::history(seed);
        history.validate().unwrap();
        let expected = brute::is_linearizable(&history);
        let found = check(&history);
        assert_eq!(found.is_ok(), expected, "seed {seed}:\n{}", json::export(&history));
        wrong += u64::from(!expected);
        crashes += u64::from(history.events.contains(&Event::Crash));
        pending += u64::from(found.is_ok_and(|f| f.pending > 0));
    }
    eprintln!(
        "{wrong} of {HISTORIES} not linearizable, {crashes} with a crash, {pending} right ones with pending"
    );
    assert!((HISTORIES * 40 / 100..=HISTORIES * 60 / 100).contains(&wrong), "{wrong}");
    assert!(crashes > HISTORIES / 3, "{crashes}");
    assert!(pending > HISTORIES / 20, "{pending}");
}

#[test]
fn histories_read_back() {
    let scan = History {
        events: vec![
            Event::Initial { map: "a \"map\"".into(), key: u64::MAX, value: 0 },
            begin(3, 1, Call::Scan),
            begin(4, 2, Call::Change(5, Do::Swap(1, 2))),
            Event::End {
                op: 4,
                answer: Answer::Changed { applied: false, present: None, before: None },
            },
            records(3, &[(1, 2), (u64::MAX, 3)]),
            Event::Crash,
            begin(5, 3, Call::Get(9)),
        ],
    };
    for history in (0..300).map(generate::history).chain([scan]) {
        assert_eq!(json::import(&json::export(&history)).as_ref(), Ok(&history));
    }
    for broken in ["", "{}", "{\"format\":\"outlast-history\",\"version\":2}"] {
        assert!(json::import(broken).is_err(), "{broken:?}");
    }
    let head = "{\"format\":\"outlast-history\",\"version\":1}\n";
    for broken in [
        "{\"event\":\"end\",\"op\":1,\"found\":null}",
        "{\"event\":\"begin\",\"op\":1,\"thread\":0,\"map\":\"m\",\"do\":\"dance\",\"key\":1}",
        "not json",
    ] {
        let error = json::import(&format!("{head}{broken}\n")).unwrap_err();
        assert!(error.contains("line 2") || error.contains("event 1"), "{error}");
    }
}

/// An interrupted operation may have taken effect, but not after the crash.
#[test]
fn what_a_crash_interrupted_happened_before_it_or_never() {
    let start = [begin(0, 0, put(1, 5)), Event::Crash];
    let reads = |first, second| {
        let later = [
            begin(1, 1, Call::Get(1)),
            value(1, first),
            begin(2, 1, Call::Get(1)),
            value(2, second),
        ];
        is_good(&[&start[..], &later[..]].concat())
    };
    assert!(reads(None, None));
    assert!(reads(Some(5), Some(5)));
    assert!(!reads(None, Some(5)), "it surfaced later");
    assert!(!reads(Some(5), None), "it was taken back");
}

#[test]
fn what_was_answered_before_a_crash_stays() {
    let events = |found| {
        is_good(&[
            begin(0, 0, put(1, 5)),
            begin(1, 1, Call::Get(1)),
            value(1, Some(5)),
            Event::Crash,
            begin(2, 2, Call::Get(1)),
            value(2, found),
        ])
    };
    assert!(events(Some(5)));
    assert!(!events(None), "another thread had read it");
}

#[test]
fn iterations_are_held_to_their_guarantee() {
    let during = |found: &[(u64, u64)]| {
        is_good(&[
            Event::Initial { map: "m".into(), key: 1, value: 10 },
            Event::Initial { map: "m".into(), key: 2, value: 20 },
            begin(0, 0, Call::Scan),
            begin(1, 1, put(1, 11)),
            changed(1, true, Some(10)),
            begin(2, 1, put(3, 30)),
            changed(2, true, None),
            records(0, found),
            begin(3, 1, put(1, 12)),
            changed(3, true, Some(11)),
        ])
    };
    assert!(during(&[(1, 10), (2, 20)]));
    assert!(during(&[(2, 20), (1, 11), (3, 30)]));
    assert!(!during(&[(1, 12), (2, 20)]), "a value from afterwards");
    assert!(!during(&[(1, 10)]), "key 2 was there all the time");
    assert!(!during(&[(1, 10), (2, 20), (2, 20)]), "twice");
    assert!(!during(&[(1, 10), (2, 20), (4, 40)]), "never there");
    assert!(!during(&[(2, 20)]), "key 1 was there all the time, with one value or another");
}

#[test]
fn a_finding_shows_the_shortest_beginning() {
    let history = History {
        events: vec![
            begin(0, 0, put(1, 5)),
            begin(1, 1, Call::Get(1)),
            changed(0, true, None),
            value(1, Some(5)),
            begin(2, 1, Call::Get(1)),
            value(2, None),
            begin(3, 1, Call::Get(1)),
            value(3, Some(5)),
        ],
    };
    let findings = check(&history).unwrap_err();
    assert_eq!(findings[0].events, 6);
    let text = findings[0].to_string();
    assert!(text.contains("   2 T1 get 1 -> none                        |X"), "{text}");
    assert!(text.contains("explained by the order: 0 1"), "{text}");
}

#[test]
fn histories_of_real_threads_are_linearizable() {
    for (seed, form) in RecordForm::ALL.into_iter().enumerate() {
        for &scheme in Scheme::ALL {
            let options = live::Options {
                scheme,
                form,
                threads: 4,
                operations: 40_000,
                keys: 6,
                seed: seed as u64,
            };
            let (history, changes) = live::record(&options).unwrap();
            assert!(changes > 10, "{changes} changes of structure");
            history.validate().unwrap();
            let figures = check(&history).unwrap_or_else(|f| panic!("{}", f[0]));
            assert!(figures.operations > 160_000);
        }
    }
}
