//! Invalid arguments are refused by name, before any other output.

use super::bench;

#[test]
fn arguments_that_cannot_be_are_refused_by_name() {
    let refused = |arguments: &[&str], what: &str| {
        let output = bench(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}: refused before anything is said");
        assert!(said.contains(what), "{arguments:?} said: {said}");
        assert!(!said.contains("panicked"), "{said}");
    };
    refused(&["micro", "--scheme", "nonesuch"], "unknown scheme");
    refused(&["micro", "--record", "words"], "known: inline, bytes");
    refused(&["micro", "--scheme", "clevel", "--phases", "scan"], "keeps keys in order");
    refused(&["recovery", "--scheme", "dash-eh", "--threads", "2"], "constant time");
    refused(&["recovery", "--scheme", "phast", "--threads", "0"], "threads");
    refused(&["micro", "--rival", "sled"], "sled");
    refused(&["micro", "--key-size", "16"], "--key-size 16: inline records");
    refused(&["micro", "--record", "bytes", "--key-size", "7"], "--key-size 7: at least 8");
    refused(&["micro", "--record", "bytes", "--key-size", "5000"], "--key-size 5000");
    refused(&["micro", "--record", "bytes", "--value-size", "2000000"], "--value-size 2000000");
    refused(&["micro", "--threads", "0"], "--threads");
    refused(&["micro", "--rounds", "0"], "--rounds 0");
    refused(&["micro", "--records", "10"], "--records 10: at least 1000");
    refused(&["micro", "--line-ns", "300"], "need --medium emulated-pm");
    refused(&["micro", "--pool-dir", "/no/such"], "--pool-dir /no/such: no such directory");
    refused(&["micro", "--phases", "get_many"], "get_many and gets");
    refused(&["micro", "--json", "--table"], "--table");
    refused(&["kv", "--store", "sqlite"], "unknown store");
    refused(&["kv", "--key-size", "600"], "--key-size 600: at most 500");
    let many = "999999999999";
    refused(&["contention", "--seconds", "nan"], "at least 0.001");
    refused(&["contention", "--threads", "2,2"], "--threads 2: named twice");
    let commands =
        ["micro", "kv", "recovery", "space", "stalls", "contention", "load-factor", "counts"];
    for command in commands {
        refused(&[command, "--records", many], "--records 999999999999: at most");
        refused(&[command, "--records", "0"], "--records 0: at least");
        // Keys and values of 4 TB.
        let big = ["--records", "250000000000"];
        refused(&[&[command], &big[..]].concat(), "bytes of keys and values");
    }
    refused(&["floor", "--mib", "3"], "--mib 3: not a power of two");
    refused(&["floor", "--mib", "0"], "--mib 0: at least 1");
    refused(&["floor", "--operations", "0"], "--operations 0: at least 1");
    for command in ["kv", "recovery", "space", "stalls", "floor"] {
        refused(&[command, "--pool-dir", "/no/such"], "--pool-dir /no/such: no such directory");
    }
    for command in ["micro", "kv"] {
        refused(&[command, "--operations", many], "--operations 999999999999: at most");
        refused(&[command, "--rounds", "1000000"], "--rounds 1000000: at most");
    }
    for seconds in ["nan", "NaN", "0", "-1", "-inf"] {
        let option = format!("--insert-seconds={seconds}");
        refused(&["kv", &option], "at least 0.001");
    }
    refused(&["kv", "--insert-seconds", "inf"], "--insert-seconds inf: at most");
    refused(&["kv", "--store", "outlast,outlast"], "--store outlast: named twice");
    refused(&["micro", "--threads", "100000"], "--threads 100000: at most 1024");
    refused(&["micro", "--threads", "1,1"], "--threads 1: named twice");
    refused(&["micro", "--latency-rounds", "1000000"], "--latency-rounds 1000000: at most");
    let scheme = outlast::Scheme::ALL[0].name();
    let twice = [scheme, scheme].join(",");
    refused(&["micro", "--rival", &twice], "named twice");
    refused(&["stalls", "--scheme", &twice], "named twice");
    for option in ["--line-ns", "--fence-ns"] {
        refused(&["micro", "--medium", "emulated-pm", option, "1000001"], "at most 1000000");
        refused(&["micro", option, "18446744073709551615"], "need --medium emulated-pm");
    }
    for command in ["micro", "space", "stalls", "counts", "load-factor"] {
        refused(&[command, "--stash", "3"], "--stash 3: 2 or 4");
    }
    refused(&["first-full", "--group-size", "100"], "not powers of two");
    refused(&["first-full", "--cells", "64"], "--cells 64: at least");
    refused(&["load-factor", "--every", "0"], "--every 0");
    refused(&["load-factor", "--stash", "2,4,2"], "--stash 2: named twice");
    let without = &["load-factor", "--scheme", "clevel", "--stash", "4"];
    refused(without, "--stash 4: clevel has no stash");
    refused(&["micro", "--helpers", "2"], "--helpers 2: dash-eh has no helpers");
    let none = &["micro", "--scheme", "ea-pht-h", "--helpers", "0"];
    refused(none, "--helpers 0");
    refused(&["load-factor", "--records", "200000000", "--every", "1"], "samples, at most");
    refused(&["recovery", "--kills", "0"], "--kills 0: at least 1");
    refused(&["recovery", "--kills", "100000"], "--kills 100000: at most");
    refused(&["counts", "--records", "10", "--operations", "20"], "--operations");
    refused(&["stalls", "--slowest", "0"], "--slowest 0: at least 1");
    refused(&["stalls", "--slowest", "99999999999999"], "--slowest 99999999999999: at most");
    refused(&["stalls", "--threads", "100000"], "--threads 100000: at most 1024");
    refused(&["model", "--base-ns", "0"], "--base-ns 0");
    refused(&["model", "--base-ns", "nan"], "--base-ns NaN");
    let plots: [(&str, &str); 4] = if cfg!(feature = "plot") {
        [
            ("/tmp/x.jpg", "/tmp/x.jpg: the name has to end with .png or .svg"),
            ("plot", "plot: the name has to end with .png or .svg"),
            ("/no/such/x.png", "/no/such/x.png: "),
            ("/", "--plot /: "),
        ]
    } else {
        ["/tmp/x.jpg", "plot", "/no/such/x.png", "/"].map(|path| (path, "feature `plot`"))
    };
    for (path, why) in plots {
        for command in ["micro", "load-factor"] {
            refused(&[command, "--plot", path], why);
        }
    }
}
