//! Tests of the harness, and of the library with it, in one program: linking a program takes longer than
//! running most of them. Those that need the processor to themselves are next to this folder.

mod commands;
mod counts;
mod disk;
mod endings;
mod expiry;
mod explore;
mod fuzz;
mod history;
mod hostile;
mod interleaved;
mod journal;
mod mutants;
mod schedule;
mod seeded;
mod stops;
mod verify;
