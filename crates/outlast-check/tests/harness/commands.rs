//! The names of the commands, which scripts and documents use.

mod api;

use std::process::Command;

const COMMANDS: [&str; 15] = [
    "run",
    "explore",
    "mutants",
    "seeded",
    "torture",
    "growth",
    "guard",
    "full",
    "schedule",
    "endings",
    "disk",
    "vm",
    "fuzz",
    "fuzz-journal",
    "history",
];

#[test]
fn every_command_has_the_name_that_scripts_use() {
    let output = Command::new(env!("CARGO_BIN_EXE_outlast-check")).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    // A name is indented by two columns, and the further lines of its description by more.
    let names = listed
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !name.is_empty() && *name != "help");
    assert_eq!(names.collect::<Vec<_>>(), COMMANDS, "{help}");
}
