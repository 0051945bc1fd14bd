//! Tests of the `outlast` command, in one program: building a program takes longer than running most of
//! them.

mod common;

mod accept;
mod commands;
mod compact;
mod demo;
mod expiry;
mod live;
mod load;
mod ordered;
mod refusals;
mod repaired;
mod restore;
mod salvage;
mod states;
mod tools;
mod types;
mod unlinked;
mod verify;
