//! Histories as JSON lines. `docs/lab/history-format.md` describes the format.

use super::record::{Answer, Call, Event, History};
use crate::session::Do;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;

const FORMAT: &str = "outlast-history";
const VERSION: u64 = 1;

/// Writes a history as JSON lines.
pub fn export(history: &History) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}", json!({ "format": FORMAT, "version": VERSION }));
    for event in &history.events {
        let _ = writeln!(text, "{}", line(event));
    }
    text
}

fn line(event: &Event) -> Value {
    match event {
        Event::Initial { map, key, value } => {
            json!({ "event": "initial", "map": &**map, "key": key, "value": value })
        }
        Event::Begin { op, thread, map, call } => {
            let mut line = json!({ "event": "begin", "op": op, "thread": thread, "map": &**map });
            let mut set = |field: &str, value: Value| line[field] = value;
            match *call {
                Call::Get(key) => {
                    set("do", "get".into());
                    set("key", key.into());
                }
                Call::Scan => set("do", "scan".into()),
                Call::Change(key, change) => {
                    let (name, expected, value) = match change {
                        Do::Insert(value) => ("insert", None, Some(value)),
                        Do::Put(value) => ("put", None, Some(value)),
                        Do::Update(value) => ("update", None, Some(value)),
                        Do::Swap(expected, value) => ("swap", Some(expected), Some(value)),
                        Do::Remove => ("remove", None, None),
                        Do::CompareRemove(expected) => ("compare-remove", Some(expected), None),
                    };
                    set("do", name.into());
                    set("key", key.into());
                    if let Some(expected) = expected {
                        set("expected", expected.into());
                    }
                    if let Some(value) = value {
                        set("value", value.into());
                    }
                }
            }
            line
        }
        Event::End { op, answer } => match answer {
            Answer::Value(found) => json!({ "event": "end", "op": op, "found": found }),
            Answer::Present(present) => json!({ "event": "end", "op": op, "present": present }),
            Answer::Changed { applied, present, before } => {
                let mut line = json!({ "event": "end", "op": op, "applied": applied });
                if let Some(present) = present {
                    line["present"] = (*present).into();
                }
                if let Some(before) = before {
                    line["before"] = (*before).into();
                }
                line
            }
            Answer::Records(records) => {
                json!({ "event": "end", "op": op, "records": records })
            }
        },
        Event::Crash => json!({ "event": "crash" }),
    }
}

/// Reads a history from JSON lines.
///
/// # Errors
/// The line and what is wrong with it, or the reason why the events are not a history.
pub fn import(text: &str) -> Result<History, String> {
    let mut history = History::default();
    let mut lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty());
    let head = lines.next().map(|(_, line)| serde_json::from_str::<Value>(line));
    match head {
        Some(Ok(head)) if head["format"] == FORMAT && head["version"] == VERSION => {}
        _ => return Err(format!("line 1: expected a {FORMAT} of version {VERSION}")),
    }
    for (number, line) in lines {
        let event = serde_json::from_str(line).map_err(|e| e.to_string()).and_then(|v| event(&v));
        history.events.push(event.map_err(|e| format!("line {}: {e}", number + 1))?);
    }
    history.validate()?;
    Ok(history)
}

fn number(line: &Value, field: &str) -> Result<u64, String> {
    line[field].as_u64().ok_or_else(|| format!("expected a number as {field:?}"))
}

fn text<'v>(line: &'v Value, field: &str) -> Result<&'v str, String> {
    line[field].as_str().ok_or_else(|| format!("expected a text as {field:?}"))
}

fn optional(line: &Value, field: &str) -> Result<Option<u64>, String> {
    if line[field].is_null() { Ok(None) } else { number(line, field).map(Some) }
}

fn event(line: &Value) -> Result<Event, String> {
    let map = || Ok::<Arc<str>, String>(text(line, "map")?.into());
    Ok(match text(line, "event")? {
        "initial" => {
            Event::Initial { map: map()?, key: number(line, "key")?, value: number(line, "value")? }
        }
        "begin" => {
            let key = || number(line, "key");
            let value = || number(line, "value");
            let call = match text(line, "do")? {
                "get" => Call::Get(key()?),
                "scan" => Call::Scan,
                "insert" => Call::Change(key()?, Do::Insert(value()?)),
                "put" => Call::Change(key()?, Do::Put(value()?)),
                "update" => Call::Change(key()?, Do::Update(value()?)),
                "swap" => Call::Change(key()?, Do::Swap(number(line, "expected")?, value()?)),
                "remove" => Call::Change(key()?, Do::Remove),
                "compare-remove" => {
                    Call::Change(key()?, Do::CompareRemove(number(line, "expected")?))
                }
                other => return Err(format!("unknown operation {other:?}")),
            };
            let thread = number(line, "thread")? as usize;
            Event::Begin { op: number(line, "op")?, thread, map: map()?, call }
        }
        "end" => {
            let answer = if let Some(applied) = line["applied"].as_bool() {
                let present = line["present"].as_bool();
                Answer::Changed { applied, present, before: optional(line, "before")? }
            } else if let Some(records) = line["records"].as_array() {
                let pair = |record: &Value| {
                    let pair = (record[0].as_u64(), record[1].as_u64());
                    pair.0.zip(pair.1).ok_or("expected pairs of numbers as \"records\"")
                };
                Answer::Records(records.iter().map(pair).collect::<Result<_, _>>()?)
            } else if line.get("found").is_some() {
                Answer::Value(optional(line, "found")?)
            } else if let Some(present) = line["present"].as_bool() {
                Answer::Present(present)
            } else {
                return Err("expected \"found\", \"present\", \"applied\" or \"records\"".into());
            };
            Event::End { op: number(line, "op")?, answer }
        }
        "crash" => Event::Crash,
        other => return Err(format!("unknown event {other:?}")),
    })
}
