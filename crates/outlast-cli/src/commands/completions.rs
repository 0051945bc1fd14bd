//! `completions`: prints a completion script for a shell.

use crate::args::{Args, CompletionsArgs};
use crate::failure::Failure;
use crate::output::Output;
use clap::{Command, CommandFactory};
use serde_json::json;

pub(crate) fn run(args: &CompletionsArgs, out: &mut Output) -> Result<(), Failure> {
    let all = Args::command();
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set());
    let mut visible = Command::new("outlast").args(all.get_arguments()).subcommands(shown.cloned());
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible, "outlast", &mut script);
    let script = String::from_utf8_lossy(&script);
    out.object(&json!({
        "event": "completions",
        "shell": args.shell.to_string(),
        "script": script,
    }))?;
    out.line(script.trim_end())
}
