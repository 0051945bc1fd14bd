//! A reader for the public traces of Twitter's caches (Yang, Yue and Rashmi, OSDI 2020).
//!
//! A line has seven fields, divided by commas: the time in seconds, the anonymized key, the sizes of
//! key and value in bytes, the client, the operation, and the time to live in seconds (0 for none).

use super::BadLine;
use std::io::BufRead;

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Reads: `get`, `gets`.
    Get,
    /// Stores whether or not the key is there: `set`, `cas`.
    Set,
    /// Stores if the key is absent.
    Add,
    /// Stores if the key is present: `replace`, `append`, `prepend`.
    Replace,
    /// Removes.
    Delete,
    /// Changes a number: `incr`, `decr`.
    Count,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// When it came, in seconds since the trace began.
    pub time: u64,
    /// The anonymized key.
    pub key: String,
    /// Size of the key in bytes, which the anonymized one need not have.
    pub key_bytes: u64,
    /// Size of the value in bytes; 0 if the request has none.
    pub value_bytes: u64,
    /// The client that sent it.
    pub client: u64,
    /// What it does.
    pub kind: Kind,
    /// For how many seconds the record is to live; 0 for ever, or if nothing is stored.
    pub lives: u64,
}

/// Reads the requests of a trace.
///
/// # Errors
/// As an item, [`BadLine`] for a line that is no request.
pub fn read(file: impl BufRead) -> impl Iterator<Item = Result<Request, BadLine>> {
    (1..).zip(file.lines()).map(|(line, text)| {
        let text = text.map_err(|e| BadLine::unreadable(line, e))?;
        request(&text).map_err(|expected| BadLine::new(line, expected))
    })
}

fn request(text: &str) -> Result<Request, &'static str> {
    let fields: Vec<&str> = text.trim_end().split(',').collect();
    let [time, key, key_bytes, value_bytes, client, kind, lives] = fields[..] else {
        return Err("seven fields");
    };
    let number = |field: &str, expected| field.parse().map_err(|_| expected);
    Ok(Request {
        time: number(time, "a time in seconds")?,
        key: key.to_owned(),
        key_bytes: number(key_bytes, "the size of the key")?,
        value_bytes: number(value_bytes, "the size of the value")?,
        client: number(client, "the number of the client")?,
        kind: match kind {
            "get" | "gets" => Kind::Get,
            "set" | "cas" => Kind::Set,
            "add" => Kind::Add,
            "replace" | "append" | "prepend" => Kind::Replace,
            "delete" => Kind::Delete,
            "incr" | "decr" => Kind::Count,
            _ => return Err("an operation"),
        },
        lives: number(lives, "the time to live in seconds")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_field_by_field() {
        let text = "0,abc-1,12,0,7,get,0\n3,def,20,153,8,set,86400\n";
        let requests: Vec<Request> = read(text.as_bytes()).collect::<Result<_, _>>().unwrap();
        let expected = Request {
            time: 3,
            key: "def".into(),
            key_bytes: 20,
            value_bytes: 153,
            client: 8,
            kind: Kind::Set,
            lives: 86_400,
        };
        assert_eq!((requests.len(), &requests[1]), (2, &expected));
        assert_eq!((requests[0].kind, requests[0].lives), (Kind::Get, 0));
        for (name, kind) in [("gets", Kind::Get), ("cas", Kind::Set), ("decr", Kind::Count)] {
            let line = format!("0,k,1,0,1,{name},0");
            assert_eq!(read(line.as_bytes()).next().unwrap().unwrap().kind, kind);
        }
    }

    #[test]
    fn a_line_that_is_no_request_is_named() {
        let bad = |line: &str| {
            let text = format!("0,k,1,0,1,get,0\n{line}\n");
            let error = read(text.as_bytes()).find_map(Result::err).expect("a bad line");
            (error.line, error.expected)
        };
        assert_eq!(bad("0,k,1,0,1,get"), (2, "seven fields"));
        assert_eq!(bad("0,k,1,0,1,get,0,0"), (2, "seven fields"));
        assert_eq!(bad("x,k,1,0,1,get,0"), (2, "a time in seconds"));
        assert_eq!(bad("0,k,1,0,1,take,0"), (2, "an operation"));
        assert_eq!(bad("0,k,1,-1,1,set,0"), (2, "the size of the value"));
    }
}
