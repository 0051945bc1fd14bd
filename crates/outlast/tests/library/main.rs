//! Tests of the library through its public interface, in one program: building a program takes longer
//! than running most of them.

mod files;

mod backup;
mod batch;
mod cache;
mod clevel;
mod closed;
mod concurrent;
mod damaged_drop;
mod dash_lh;
mod disk_faults;
mod drop_race;
mod ea_pht;
mod encoded;
mod expiry;
mod fresh_space;
mod golden;
mod many;
mod many_threads;
mod model;
mod names;
mod offline;
mod offline_damage;
mod ordered;
mod page_sizes;
mod phast_damaged;
mod phast_links;
mod pool;
mod processes;
mod salvage;
mod signals;
mod space;
mod space_waits;
mod survive;
mod torn;
mod transactions;
mod trim;
mod types;
