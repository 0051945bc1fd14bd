//! Writes `include/outlast.h` from the crate's source. With `--check`, fails if the file is not up to date.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder of the crate");
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let sources = [
        "code",
        "argument",
        "options",
        "pool",
        "report",
        "map",
        "read",
        "scan",
        "words",
        "batch",
        "transaction",
        "expiry",
        "cache",
    ];
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources {
        builder = builder.with_src(root.join("src").join(source).with_extension("rs"));
    }
    let mut header = Vec::new();
    builder.generate().expect("the header").write(&mut header);
    let header = with_helpers(&String::from_utf8(header).expect("the sources are UTF-8"));
    let file = root.join("include/outlast.h");
    if !std::env::args().any(|argument| argument == "--check") {
        std::fs::write(&file, header).expect("writing the header");
        return ExitCode::SUCCESS;
    }
    if std::fs::read(&file).is_ok_and(|found| found == header.as_bytes()) {
        return ExitCode::SUCCESS;
    }
    eprintln!("{} is stale: run `cargo run -p outlast-c-header`", file.display());
    ExitCode::FAILURE
}

/// Adds what cbindgen cannot make of the sources, before the end of the include guard.
fn with_helpers(header: &str) -> String {
    let (content, end) = header.rsplit_once("#endif").expect("an include guard");
    format!("{content}{}\n#endif{end}", include_str!("helpers.h"))
}
