//! The proof harness.
