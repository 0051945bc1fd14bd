//! The C interface of outlast. `include/outlast.h` documents it; cbindgen writes that file from this source.
//!
//! Every function of the interface has the same shape: [`code::answer`] runs its body, turns an error or a panic
//! into a code, and keeps the message for the thread. The functions in [`argument`] check what C passes in. Types,
//! functions and constants have the names that they have in C.

#![allow(non_camel_case_types, reason = "these are the names in C")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the header says once, for all functions, what C has to keep to"
)]

mod argument;
mod batch;
mod cache;
mod code;
mod element;
mod expiry;
mod map;
mod options;
mod pool;
mod read;
mod report;
mod scan;
mod transaction;
mod words;

/// The header promises that threads can share handles.
const _: () = {
    const fn can_be_shared<T: Send + Sync>() {}
    can_be_shared::<pool::outlast_pool>();
    can_be_shared::<map::outlast_map>();
    can_be_shared::<batch::outlast_batch>();
    can_be_shared::<cache::outlast_cache>();
};
