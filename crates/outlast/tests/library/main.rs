//! Tests of the library through its public interface, in one program: building a program takes longer
//! than running most of them. Tests that need a process of their own are beside this folder.

#[path = "../files/mod.rs"]
mod files;

mod batch;
mod clevel;
mod closed;
mod concurrent;
mod damaged_drop;
mod dash_lh;
mod disk_faults;
mod drop_race;
mod ea_pht;
mod fresh_space;
mod golden;
mod many;
mod model;
mod names;
mod offline;
mod offline_damage;
mod ordered;
mod page_sizes;
mod phast_damaged;
mod phast_links;
mod pool;
mod salvage;
mod space_waits;
mod torn;
mod types;
